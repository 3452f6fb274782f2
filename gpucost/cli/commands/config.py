"""gpucost config: check settings before a service gets them."""

from __future__ import annotations

import os
from functools import partial

import typer

from gpucost.cli.terminal.context import context_of, say_stale
from gpucost.cli.terminal.exit_codes import fields_as

app = typer.Typer(
    no_args_is_help=True,
    help="Try the settings, price book, team rules and charge policy.",
    rich_markup_mode=None,
)


@app.command()
def check(ctx: typer.Context) -> None:
    """Read what gpucost serve reads: settings, price book, team rules, charge policy, and the files that they
    name. Nothing is opened or asked: no ledger, no source.

    What is wrong ends with exit code 2, and says what to change.
    """
    from gpucost.ledger.db.database import parsed_url
    from gpucost.reports.base.display import visible
    from gpucost.service.settings.loader import environment_names, load_settings
    from gpucost.service.wiring.configuration import ServiceConfiguration

    context = context_of(ctx)
    found = ServiceConfiguration.read(partial(load_settings, context.config))
    settings = found.settings
    with fields_as({"ledger URL": "ledger.url"}):
        parsed_url(settings.ledger.database_url())
    say_stale(found.book)
    known = set(environment_names())
    given = sorted(name for name in os.environ if name.upper() in known)
    read = {
        "settings": str(context.file or "none: no --config, no GPUCOST_CONFIG"),
        "environment": ", ".join(given) or "no setting",
        "price book": context.book_name(settings),
        "team rules": context.teams_name(settings),
        "charge policy": context.policy_name(settings),
        "other files": ", ".join(str(file) for file in found.files() if file not in found.named) or "none",
        "channels": ", ".join(channel.name for channel in settings.notify.channels) or "none",
    }
    for what, where in read.items():
        typer.echo(f"{what}: {visible(where, 2_000)}")
    typer.echo("ok")
