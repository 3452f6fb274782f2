"""gpucost teams, budgets, budget, forecast and incidents: who there is, what is left of their budgets, when
they will be exceeded, what a month will have cost, and who costs more than usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.default_group import DefaultCommandGroup
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.cli.terminal.output import Output, held, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from gpucost.reports.month.budget_status import BudgetReport
    from gpucost.reports.month.cost_incidents import IncidentReport

Format = Annotated[Literal["table", "json"], typer.Option("--format", "-f")]


def teams(
    ctx: typer.Context,
    cluster: Annotated[str | None, typer.Option(help="With usage in this cluster.")] = None,
    format_: Format = "table",
    output: Output = None,
) -> None:
    """The teams of the team rules and of the ledger, with cost centre, quota and monthly budget."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_lists import print_teams
    from gpucost.service.reporting.list_reports import team_directory

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"cluster": "--cluster"}):
        remote = context.remote()
        if remote is not None:
            found = remote.teams(cluster=cluster)
        else:
            with context.reporting() as reporting:
                found = team_directory(reporting, reporting.of_cluster(EVERYTHING, cluster))
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_teams(found, stdout())


def budgets(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    team: Annotated[str | None, typer.Option(help="Of this team only.")] = None,
    format_: Format = "table",
    output: Output = None,
) -> None:
    """The budgets of a month: what teams may cost, what they have held so far, and what is left."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_lists import print_budgets
    from gpucost.service.reporting.list_reports import budgets_of

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"month": "MONTH", "team": "--team"}):
        wanted = Month.parse(month)
        remote = context.remote()
        if remote is not None:
            found = remote.budgets(month=month, team=team)
        else:
            with context.reporting() as reporting:
                made = budgets_of(reporting, reporting.of_team(EVERYTHING, team), wanted)
                if made is None:
                    raise InputError("MONTH", month, held(reporting.ledger, "a month of"))
                found = made
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_budgets(found, stdout())


app = typer.Typer(
    no_args_is_help=True,
    help="Budgets: how they stand, and when they will be exceeded.",
    rich_markup_mode=None,
)
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="As of this day or instant; else now.")]


@app.callback()
def group() -> None:
    """Budgets: how they stand, and when they will be exceeded."""


@app.command("list")
def list_budgets(ctx: typer.Context, at: At = None, format_: Format = "table", output: Output = None) -> None:
    """Every budget in force: what is spent of it, and when it will be exceeded."""
    from gpucost.reports.render.terminal_budgets import print_budget_list

    _told(context_of(ctx), None, at, format_, output, print_budget_list)


@app.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The budget's name.")],
    at: At = None,
    format_: Format = "table",
    output: Output = None,
) -> None:
    """One budget: thresholds, what is carried over, the dearest causes, and its history."""
    from gpucost.reports.render.terminal_budgets import print_budget

    _told(context_of(ctx), name, at, format_, output, print_budget)


@app.command()
def check(ctx: typer.Context, at: At = None, format_: Format = "table", output: Output = None) -> None:
    """The thresholds that are reached, of what was spent and of what is expected."""
    from gpucost.reports.render.terminal_budgets import print_budget_check

    _told(context_of(ctx), None, at, format_, output, print_budget_check)


def _told(
    context: CommandContext,
    name: str | None,
    at: str | None,
    format_: str,
    output: Path | None,
    show_it: Callable[[BudgetReport, Console], None],
) -> None:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import parse_day_or_instant
    from gpucost.reports.base.document import to_json
    from gpucost.service.reporting.budget_reports import budget_report, named_plans

    refuse_table_file(format_ == "table", output)
    with fields_as({"at": "--at", "name": "NAME"}):
        at_ms = None if at is None else parse_day_or_instant(at, "at")
        remote = context.remote()
        if remote is not None:
            found = remote.budget_status(name=name, at=at)
        else:
            with context.reporting() as reporting:
                plans = named_plans(context.teams.budget_plans, name)
                when = now_ms() if at_ms is None else at_ms
                found = budget_report(reporting, EVERYTHING, plans, when, causes=name is not None)
    if format_ == "json":
        write(to_json(found), output)
    else:
        show_it(found, stdout())


class _MonthByDefault(DefaultCommandGroup):
    default = "month"


forecast_app = typer.Typer(
    cls=_MonthByDefault,
    no_args_is_help=True,
    help="What a month will have cost at its end, and how good such forecasts were.",
    rich_markup_mode=None,
)


@forecast_app.callback()
def forecast_group() -> None:
    """What a month will have cost at its end, and how good such forecasts were."""


@forecast_app.command("month")
def forecast_month(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month that goes on, such as 2026-11.")],
    team: Annotated[str | None, typer.Option(help="Of this team, as the team itself sees it.")] = None,
    at: At = None,
    format_: Format = "table",
    output: Output = None,
) -> None:
    """What teams will have held at the end of a month, each with an interval, or why that is not said.
    "month" may be left out: gpucost forecast 2026-11."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month, parse_day_or_instant
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_budgets import print_forecast
    from gpucost.service.reporting.month_forecasts import month_forecast

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"month": "MONTH", "team": "--team", "at": "--at"}):
        wanted = Month.parse(month)
        remote = context.remote()
        if remote is not None:
            if at is not None or team is not None:
                raise InputError("--at" if at else "--team", at or team, "nothing with --server")
            found = remote.forecast(wanted)
        else:
            with context.reporting() as reporting:
                when = now_ms() if at is None else parse_day_or_instant(at, "at")
                extent = reporting.ledger.extent()
                # A ledger that ends earlier knows no more: its month goes on where it ends.
                when = when if extent is None else min(when, extent.end_ms - 1)
                made = month_forecast(reporting, reporting.of_team(EVERYTHING, team), wanted, when)
                if made is None:
                    allowed = "the month in which the ledger ends, or that begins there"
                    if extent is not None and extent.start_ms < wanted.window.end_ms <= extent.end_ms:
                        allowed = f"{allowed}; {wanted} is over, gpucost report {wanted} says what it cost"
                    known = "the ledger is empty" if extent is None else f"the ledger holds {extent}"
                    raise InputError("MONTH", month, f"{allowed}; {known}")
                found = made
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_forecast(found, stdout())


@forecast_app.command("score")
def forecast_scores(ctx: typer.Context, format_: Format = "table", output: Output = None) -> None:
    """How past forecasts did: the part that intervals kept, WAPE and MASE, by days left. Of those that were
    kept, and of others made again from the ledger, as it was known then."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_budgets import print_score
    from gpucost.service.reporting.month_forecasts import forecast_score

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    remote = context.remote()
    if remote is not None:
        found = remote.forecast_score()
    else:
        with context.reporting() as reporting:
            found = forecast_score(reporting, EVERYTHING)
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_score(found, stdout())


incidents_app = typer.Typer(
    no_args_is_help=True,
    help="Incidents: teams that cost more than usual, for a named cause, for days.",
    rich_markup_mode=None,
)


@incidents_app.callback()
def incidents_group() -> None:
    """Incidents: teams that cost more than usual, for a named cause, for days."""


@incidents_app.command("list")
def list_incidents(
    ctx: typer.Context,
    team: Annotated[str | None, typer.Option(help="Of this team only.")] = None,
    at: At = None,
    format_: Format = "table",
    output: Output = None,
) -> None:
    """The incidents of the last four weeks, and what teams announced."""
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_budgets import print_incidents

    refuse_table_file(format_ == "table", output)
    found = _incidents(context_of(ctx), team, at)
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_incidents(found, stdout())


@incidents_app.command("show")
def show_incident(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(metavar="TEAM/DAY", help="As in gpucost incidents list.")],
    at: At = None,
    format_: Format = "table",
    output: Output = None,
) -> None:
    """One incident: since when, how much by which cause, and each of its days."""
    from gpucost.domain.text import named_first
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_budgets import print_incident

    refuse_table_file(format_ == "table", output)
    report = _incidents(context_of(ctx), None, at)
    found = next((each for each in report.incidents if each.incident == incident), None)
    if found is None:
        names = [each.incident for each in report.incidents]
        allowed = f"{named_first(incident, names)}{', '.join(names)}" or "none: there is no incident"
        raise InputError("TEAM/DAY", incident, allowed)
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_incident(found, report.currency, stdout())


def _incidents(context: CommandContext, team: str | None, at: str | None) -> IncidentReport:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import parse_day_or_instant
    from gpucost.service.reporting.incident_reports import incident_report

    with fields_as({"at": "--at", "team": "--team"}):
        at_ms = now_ms() if at is None else parse_day_or_instant(at, "at")
        remote = context.remote()
        if remote is not None:
            return remote.incidents(team=team, at=at)
        with context.reporting() as reporting:
            scope = reporting.of_team(EVERYTHING, team)
            return incident_report(reporting, scope, context.teams.expected, at_ms)
