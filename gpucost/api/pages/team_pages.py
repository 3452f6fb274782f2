"""One team in a month: what it pays and why, its jobs, people and queues, its waste, and what to do first.

Amounts are those of its statement (``GET /v1/months/{month}/statement``) and of its report
(``GET /v1/reports/{month}?team=``). Who sees every team reads what the team itself does, no more. A reader
of some clusters has no statement, which is of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from gpucost.access.principal import Principal
from gpucost.api.pages.month_pages import month_marks
from gpucost.api.pages.page_layout import PageContent, PageFrame, content, shown
from gpucost.api.routes.months import MonthText, no_such_team, refuse_foreign, seen_statements
from gpucost.api.routes.requests import WholeNumber, refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import ApiError
from gpucost.api.server.services import ApiServices, KnownServices, nothing_held
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import Month
from gpucost.reports.base import display
from gpucost.reports.base.page_addresses import team_page
from gpucost.reports.charges.charge_statements import CHARGE_WORDS, TeamStatement
from gpucost.reports.month.allocations import AllocationRow
from gpucost.reports.month.model import JobCostRow, MonthReport, TeamRow
from gpucost.reports.render.html import MOST_ROWS, waste_chart
from gpucost.reports.waste import waste_table
from gpucost.service.reporting.charge_reports import policy_digest
from gpucost.service.reporting.month_closing import scope_of_team

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

JOBS_A_PAGE = 50
_MOST_FIRST = 5
_NOT_OBSERVED = Fraction(2)


def _busy(job: JobCostRow) -> Fraction:
    """Least busy first, and what was never observed last."""
    return _NOT_OBSERVED if job.utilisation.busy is None else job.utilisation.busy.mean


_ORDERS: dict[str, Callable[[JobCostRow], Any]] = {
    "cost": lambda job: (-(job.held.nano or 0), -job.held.board_ms),
    "hours": lambda job: -job.held.board_ms,
    "busy": _busy,
    "name": lambda job: job.job.casefold(),
    "newest": lambda job: 0 if job.span is None else -job.span.start_ms,
}
SORTS = {
    "cost": "dearest first",
    "hours": "most GPU-hours first",
    "busy": "least busy first",
    "name": "by name",
    "newest": "newest first",
}
"""The orders of jobs, and their words."""


@dataclass(frozen=True, slots=True)
class JobChoice:
    """Which jobs to list: those whose name or namespace has ``name`` in it, of one ``kind``."""

    sort: str = "cost"
    name: str = ""
    kind: str = ""
    page: int = 1


@dataclass(frozen=True, slots=True)
class JobListing:
    """One page of the jobs of a team: ``found`` of ``every`` are chosen, on ``pages`` pages."""

    jobs: tuple[JobCostRow, ...]
    found: int
    every: int
    pages: int
    kinds: tuple[str, ...]


def listed(jobs: Sequence[JobCostRow], choice: JobChoice) -> JobListing:
    """The page of ``jobs`` that ``choice`` is about. Raises InputError for a page that is not there."""
    words = choice.name.casefold()
    chosen = [
        job
        for job in jobs
        if words in f"{job.namespace}/{job.job}".casefold() and choice.kind in ("", job.job_kind)
    ]
    pages = max(1, -(-len(chosen) // JOBS_A_PAGE))
    if choice.page > pages:
        raise InputError("page", choice.page, f"1 to {pages}")
    start = (choice.page - 1) * JOBS_A_PAGE
    ranked = sorted(chosen, key=_ORDERS[choice.sort])[start : start + JOBS_A_PAGE]
    kinds = sorted({job.job_kind for job in jobs})
    return JobListing(tuple(ranked), len(chosen), len(jobs), pages, tuple(kinds))


async def _choice(
    sort: Annotated[str, Query(max_length=16, description=f"one of {', '.join(SORTS)}")] = "cost",
    name: Annotated[str, Query(max_length=253, description="a part of a job's namespace/name")] = "",
    kind: Annotated[str, Query(max_length=253, description="kind of the job")] = "",
    page: Annotated[WholeNumber, Query(ge=1, le=1_000_000, description="page of the jobs, from 1")] = 1,
) -> JobChoice:
    if sort not in SORTS:
        raise InputError("sort", sort, ", ".join(SORTS))
    return JobChoice(sort, name, kind, page)


@router.get("/month/{month}/team")
async def show_team(
    request: Request,
    principal: Reader,
    known: KnownServices,
    month: MonthText,
    team: Annotated[str, Query(max_length=253, description="the team, by its whole name")],
    choice: Annotated[JobChoice, Depends(_choice)],
) -> Response:
    """What one team pays, and what it could do. A team that the reader may not see is not found."""
    wanted = Month.parse(month)
    refuse_foreign(principal, team)

    def make() -> PageContent:
        return _team(principal, known, wanted, team, choice)

    frame = PageFrame(request, known, principal, "month", wanted)
    return await shown(frame, ("team", wanted, team, choice, policy_digest(known.policy)), make)


def _team(
    principal: Principal, known: ApiServices, month: Month, team: str, choice: JobChoice
) -> PageContent:
    statement, why_none = _statement(principal, known, month, team)
    if statement is None:
        scope = scope_of_team(known.reporting, principal.scope, month, team)
    else:
        scope = Scope(frozenset({team}), principal.scope.clusters)
    found = known.reporting.month(scope, month, every_job=True)
    if found is None:
        raise nothing_held(known, principal.scope, "month", str(month))
    report = found.report
    row, marks = _row(report, team), month_marks(report, known.policy, scope)
    return content(
        f"{display.name(team, 60)}, {display.month_name(month)}",
        "team_page.html.j2",
        team=team,
        month=month,
        report=report,
        row=row,
        statement=statement,
        why_none=why_none,
        listing=listed(report.jobs or (), choice),
        choice=choice,
        sorts=SORTS,
        team_at=lambda page: _at(team, month, replace(choice, page=page)),
        people=_people(known, scope, month),
        most_rows=MOST_ROWS,
        charge_words=CHARGE_WORDS,
        chart=waste_chart(report, marks=tuple((mark.day, mark.text) for mark in marks)),
        marks=marks,
        words=waste_table,
        first=() if report.waste is None else report.waste.to_do[:_MOST_FIRST],
        months=[each for each in known.reporting.months(scope) if each in (month.previous(), month.next())],
    )


def _statement(
    principal: Principal, known: ApiServices, month: Month, team: str
) -> tuple[TeamStatement | None, str]:
    """The statement of ``team``, or why there is none. Raises ApiError (404) for a team that is not there."""
    if principal.scope.clusters is not None:
        return None, "A statement is of all clusters, and you may see some of them"
    try:
        found, _, _ = seen_statements(principal, known, month)
    except ApiError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        return None, str(error)
    own = next((each for each in found if each.team == team), None)
    if own is None:
        raise no_such_team(principal, team, {each.team for each in found})
    return own, ""


def _row(report: MonthReport, team: str) -> TeamRow | None:
    """None for a team that held nothing and was not adjusted."""
    return next((each for each in report.teams if each.row.group["team"] == team), None)


def _people(known: ApiServices, scope: Scope, month: Month) -> tuple[AllocationRow, ...]:
    found = known.reporting.allocations(scope, month.window, ("user",))
    return found.report.rows


def _at(team: str, month: Month, choice: JobChoice) -> str:
    """The address of a page of the jobs."""
    sort = "" if choice.sort == "cost" else choice.sort
    return team_page(
        team, month, sort=sort, name=choice.name, kind=choice.kind, page=choice.page, anchor="jobs"
    )
