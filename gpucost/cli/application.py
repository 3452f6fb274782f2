"""The application: global options, and the commands under their names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import gpucost
from gpucost.cli.advise import advise_command, advisor_command, explain_command
from gpucost.cli.commands import (
    chargeback,
    compare,
    demo,
    digest,
    doctor,
    findings,
    focus,
    ingest,
    jobs,
    key,
    ledger,
    login,
    mcp,
    month,
    notify,
    prices,
    replay,
    reports,
    serve,
    session,
    teams,
    words,
)
from gpucost.cli.state import state_command
from gpucost.cli.terminal.context import CommandContext
from gpucost.cli.terminal.exit_codes import EPILOG, reported
from gpucost.cli.terminal.output import tolerate_narrow_encodings


class CommandGroup(TyperGroup):
    """Every command runs inside ``reported``."""

    def invoke(self, ctx: Any) -> Any:
        with reported(bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    help="GPU cost allocation for Kubernetes, in numbers that add up.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpucost {gpucost.__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings file (YAML). Else GPUCOST_CONFIG names it.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask this gpucost serve, not a ledger. Else GPUCOST_SERVER."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the log.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Global options; they stand before the command."""
    del version
    ctx.obj = CommandContext(config, debug, server)


app.command("ingest")(ingest.ingest)
app.command("doctor")(doctor.doctor)
app.command("report")(reports.report)
app.command("allocations")(reports.allocations)
app.command("job")(reports.job)
app.command("jobs")(jobs.jobs)
app.command("waste")(reports.waste)
app.command("teams")(teams.teams)
app.command("budgets")(teams.budgets)
app.add_typer(teams.app, name="budget")
app.add_typer(teams.forecast_app, name="forecast")
app.add_typer(teams.incidents_app, name="incidents")
app.command("statement")(chargeback.statement)
app.command("commitments")(chargeback.commitments)
app.command("digest")(digest.digest)
app.add_typer(focus.export_app, name="export")
app.add_typer(focus.import_app, name="import")
app.add_typer(compare.app, name="compare")
app.command("replay")(replay.replay)
app.add_typer(chargeback.app, name="chargeback")
app.add_typer(findings.app, name="findings")
app.command("savings")(findings.savings)
app.add_typer(prices.app, name="prices")
app.add_typer(month.app, name="month")
app.add_typer(ledger.app, name="ledger")
app.add_typer(state_command.app, name="state")
app.command("advise")(advise_command.advise)
app.command("explain")(explain_command.explain)
app.command("explain-term")(words.explain_term)
app.add_typer(advisor_command.app, name="advisor")
app.add_typer(notify.app, name="notify")
app.add_typer(key.app, name="key")
app.add_typer(session.app, name="session")
app.command("login")(login.login)
app.command("logout")(login.logout)
app.command("whoami")(login.whoami)
app.add_typer(doctor.config_app, name="config")
app.command("mcp")(mcp.mcp)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)


def _keep_only(name: str) -> None:
    """Of commands and groups only the one that is ``name``, where one is: to make all sixty takes longer than
    some of them run."""
    commands = [each for each in app.registered_commands if each.name == name]
    groups = [each for each in app.registered_groups if each.name == name]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


def run() -> None:
    """Run the command line. kubectl starts ``kubectl-gpucost`` as a command of its own."""
    tolerate_narrow_encodings()
    _keep_only(next(iter(sys.argv[1:]), ""))
    is_plugin = Path(sys.argv[0]).stem == "kubectl-gpucost"
    app(prog_name="kubectl gpucost" if is_plugin else "gpucost")
