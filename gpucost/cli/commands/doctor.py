"""What there is to work with: gpucost doctor says which series a Prometheus has and lacks, which features
that gives, and what to turn on; gpucost config checks settings before a service gets them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import context_of, now_ms, say_stale
from gpucost.cli.terminal.exit_codes import ExitCode, fields_as
from gpucost.cli.terminal.output import stdout, write

if TYPE_CHECKING:
    from gpucost.cluster.objects.metadata import OwnerKeys
    from gpucost.service.settings.model import PrometheusSettings

config_app = typer.Typer(
    no_args_is_help=True,
    help="Try the settings, price book, team rules and charge policy.",
    rich_markup_mode=None,
)
_ATTEMPTS = 2  # a person is waiting


def doctor(
    ctx: typer.Context,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="This Prometheus; else that of the settings.")
    ] = None,
    month: Annotated[
        str | None,
        typer.Option(
            metavar="MONTH", help="The month to tell, such as 2026-10; else the last, or this on a new stack."
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster; else all of the server.")] = None,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
) -> None:
    """What a Prometheus has and lacks for gpucost, which features that gives, and what to turn on for the
    rest, with the exact setting.

    Nothing is written anywhere. Ends with 0 where the cost of all of the month can be told, with 3 where
    not, or only in part.
    """
    from gpucost.domain.time import Month
    from gpucost.reports.doctor.diagnose import diagnose
    from gpucost.reports.doctor.model import DoctorRequirements
    from gpucost.reports.doctor.output import as_json, print_diagnosis
    from gpucost.service.wiring.inputs import parse_source
    from gpucost.service.wiring.prometheus_connection import build_client, source_options
    from gpucost.service.wiring.source import inner_schedulers
    from gpucost.service.wiring.source_checks import build_trial
    from gpucost.telemetry.doctor.cluster_probe import probe

    context, now = context_of(ctx), now_ms()
    settings = context.settings
    if prometheus is not None:
        with fields_as({"prometheus.url": "--prometheus"}):
            settings = parse_source(f"prometheus:{prometheus}", settings)
    with fields_as({"month": "--month", "cluster": "--cluster"}):
        wanted = Month.of(now).previous() if month is None else Month.parse(month)
        catalog = settings.attribution.catalog()
        client = build_client(settings.prometheus, attempts=_ATTEMPTS)
        options = source_options(settings.prometheus)
        priced = context.of_prometheus(str(settings.prometheus.url), waste=False)
        trial = build_trial(priced, context.book(priced), context.teams, attempts=_ATTEMPTS)
        found = probe(client, options, catalog, wanted, now, cluster, trial)
        if month is None and found.is_of_later:
            # A new stack has nothing of last month, and some of this one.
            found = probe(client, options, catalog, Month.of(now), now, cluster, trial)
    records = tuple(each.told() for each in inner_schedulers(settings))
    found = replace(found, inner=records)
    owners = _owners(settings.prometheus)
    limits = DoctorRequirements(owners, max_gap_ms=options.max_gap_ms, replica_labels=options.replica_labels)
    diagnosis = diagnose(found, limits, context.program)
    if format_ == "json":
        write(as_json(diagnosis), None)
    else:
        print_diagnosis(diagnosis, stdout())
    if not diagnosis.can_tell:
        raise typer.Exit(ExitCode.SOURCE)


def _owners(settings: PrometheusSettings) -> OwnerKeys:
    from gpucost.cluster.objects.metadata import OwnerKeys

    return OwnerKeys(settings.team_labels, settings.project_labels, settings.user_labels)


@config_app.command()
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
