"""gpucost teams and gpucost budgets: who there is, and what is left of their budgets."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpucost.cli.terminal.context import context_of
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.cli.terminal.output import Output, held, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError

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
