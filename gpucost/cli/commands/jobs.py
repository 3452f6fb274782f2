"""gpucost jobs: jobs by person, team and time, those that wait too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import CommandContext, context_of
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.cli.terminal.output import Output, refuse_table_file, stdout, write
from gpucost.domain.errors import ErrorRemark, InputError

if TYPE_CHECKING:
    from gpucost.reports.job.job_report import JobMatches

_NAMED = {each: f"--{each}" for each in ("user", "mine", "team", "cluster", "since", "limit", "page")}


def jobs(
    ctx: typer.Context,
    mine: Annotated[
        bool,
        typer.Option("--mine", help="Your own, by the name of the key or token that you are logged in with."),
    ] = False,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this person, as labels of pods say.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Of this team only.")] = None,
    cluster: Annotated[str | None, typer.Option(help="In this cluster.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="That held GPUs then or later; else in the ledger's last 30 days."),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many, those that held GPUs last.", min=1, max=1000)] = 100,
    page: Annotated[int, typer.Option(help="The page after as many, from 1.", min=1, max=100_000)] = 1,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """Jobs with what they held and cost: those that run, are done, and, asked of a server, that wait and why.

    Whose a job is, its pods say by the labels gpucost.io/user, user or hub.jupyter.org/username. A key's id,
    or the name in a token, is matched with that; of an address also what stands before its @.
    """
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_job import print_jobs

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as(_NAMED):
        remote = context.remote()
        if remote is not None:
            found = remote.jobs(
                user=user,
                mine="true" if mine else None,
                team=team,
                cluster=cluster,
                since=since,
                limit=str(limit),
                page=str(page),
            )
        else:
            if mine and user is None:
                remark = ErrorRemark(
                    "given, and nothing tells who you are: you are not logged in to a server"
                )
                raise InputError("--mine", remark, "--user NAME, or gpucost login URL")
            found = _of_ledger(context, user, team, cluster, since, limit, page)
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_jobs(found, stdout())


def _of_ledger(
    context: CommandContext,
    user: str | None,
    team: str | None,
    cluster: str | None,
    since: str | None,
    limit: int,
    page: int,
) -> JobMatches:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import parse_day_or_instant
    from gpucost.ledger.usage.job_index import JobQuery
    from gpucost.service.reporting.list_reports import job_list, lately_ms

    with context.reporting() as reporting:
        scope = reporting.of_team(reporting.of_cluster(EVERYTHING, cluster), team)
        since_ms = lately_ms(reporting, scope) if since is None else parse_day_or_instant(since, "since")
        query = JobQuery(users=None if user is None else (user,), since_ms=since_ms)
        return job_list(reporting, scope, query, limit=limit, offset=(page - 1) * limit)
