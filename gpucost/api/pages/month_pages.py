"""The first page: a month, who pays what, what became of the capacity, and what to do first; the months to
choose from; and a month beside the one before.

Amounts are those of ``GET /v1/reports/{month}`` and ``GET /v1/months/{month}/charges``: one number for each
team, what it pays under the charge policy in force, or what it held and was adjusted where there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from fractions import Fraction
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from gpucost.access.principal import Principal
from gpucost.api.pages.page_layout import PageContent, PageFrame, content, is_page, months_seen, shown
from gpucost.api.routes.months import MonthText
from gpucost.api.routes.reports import OneTeam
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.routes.service import index
from gpucost.api.server.authentication import READERS, Reader, authenticate, require_role
from gpucost.api.server.services import ApiServices, KnownServices, OneCluster, nothing_held
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import HOLDERS_OF_NONE
from gpucost.domain.errors import ChargesChanged, InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month, iso
from gpucost.reports.base import display, page_addresses
from gpucost.reports.base.values import CostAmount, CostChange, UsageSignal
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.month.model import MonthReport, TeamBudget, budget_words, jobs_of_several
from gpucost.reports.month.provenance import provisional_words, read_of
from gpucost.reports.month.span_change import SpanChange
from gpucost.reports.render.html import waste_chart
from gpucost.reports.waste import waste_table
from gpucost.service.reporting.charge_reports import policy_digest
from gpucost.service.reporting.charged_changes import charges_apart, compare_charges
from gpucost.service.reporting.month_closing import scope_of_team
from gpucost.service.reporting.month_forecasts import month_forecast
from gpucost.service.reporting.span_changes import compare_spans

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

_MOST_FIRST = 5


@dataclass(frozen=True, slots=True)
class MonthPayer:
    """One team on the page: what it pays for the month, adjustments included, and what stands beside it.

    ``nano`` is None where nothing of it has a price; ``share`` is of what all teams that the reader sees pay.
    """

    team: str
    cost_centre: str | None
    nano: int | None
    held: CostAmount
    jobs: int
    share: Fraction | None
    budget: TeamBudget | None
    change: CostChange | None
    busy: UsageSignal | None


def payers(report: MonthReport) -> tuple[MonthPayer, ...]:
    """Every team of ``report`` that pays, held or was adjusted, the dearest first, ties by name."""
    found_rows = ((row.row.group["team"], row) for row in report.teams)
    rows = {team: row for team, row in found_rows if team not in HOLDERS_OF_NONE}
    pays: dict[str, int | None]
    if report.charges is None:
        pays = {team: row.adjusted.nano for team, row in rows.items()}
        centres = {team: row.cost_centre for team, row in rows.items()}
    else:
        pays = dict[str, int | None].fromkeys(rows, 0)
        pays |= {each.team: each.total_nano for each in report.charges.teams}
        centres = {each.team: each.cost_centre for each in report.charges.teams}
    whole = sum(nano or 0 for nano in pays.values())
    found = []
    for team, nano in pays.items():
        row = rows.get(team)
        share = Fraction(nano, whole) if nano is not None and whole > 0 else None
        if row is None:
            found.append(MonthPayer(team, centres[team], nano, CostAmount(0, 0), 0, share, None, None, None))
            continue
        busy = row.row.utilisation.busy
        found.append(
            MonthPayer(
                team,
                centres.get(team),
                nano,
                row.row.held,
                row.row.jobs,
                share,
                row.budget,
                row.row.change,
                busy,
            )
        )
    return tuple(sorted(found, key=lambda each: (-(each.nano or 0), -each.held.board_ms, each.team)))


def paid(found: Iterable[MonthPayer]) -> int | None:
    """What they pay together; None where nothing of any of them has a price."""
    known = [each.nano for each in found if each.nano is not None]
    return sum(known) if known else None


def adjusted(report: MonthReport) -> int | None:
    """What of that adjustments are; None where there are none of teams."""
    if report.charges is not None:
        booked = [each.adjusted_nano for each in report.charges.teams if each.adjusted_nano]
    else:
        booked = [each.nano for each in report.adjustments if each.team not in HOLDERS_OF_NONE]
    return sum(booked) if booked else None


@dataclass(frozen=True, slots=True)
class MonthMark:
    """A change from ``day`` on (UTC) that somebody decided: ``kind`` is price or quota."""

    day: str
    kind: str
    text: str


def month_marks(report: MonthReport, policy: PolicyBook, scope: Scope) -> tuple[MonthMark, ...]:
    """By day: prices that changed within the month, and quotas of the charge policy, of the teams that
    ``scope`` sees."""
    marks = {
        MonthMark(
            each.at[:10],
            "price",
            f"{display.name(each.model)} {display.name(each.pricing_category).lower()}: "
            f"{display.price(each.previous_price_nano)} to {display.price(each.price_nano)} an hour",
        )
        for each in report.provenance.price_changes
    }
    window = report.month.window
    for quota in policy.file.quotas:
        if scope.teams is not None and quota.team not in scope.teams:
            continue
        who = display.name(quota.queue or quota.team or quota.cohort or "")
        what = f"quota of {who}: {display.price(quota.gpus)} {display.name(quota.model)}"
        for edge, word in ((quota.valid_from, "from here on"), (quota.valid_to, "until here")):
            if edge is not None and window.start_ms < edge < window.end_ms:
                marks.add(MonthMark(iso(edge)[:10], "quota", f"{what} {word}"))
    return tuple(sorted(marks, key=astuple))


@router.get("/months")
async def list_months(request: Request, principal: Reader, known: KnownServices) -> Response:
    """The months to choose from. A browser's form asks for one as ``/months?month=``."""
    months = await months_seen(known, principal.scope)
    frame = PageFrame(request, known, principal, "month")
    return await frame.response(content("Months", "months.html.j2", months=months))


@router.get("/month")
async def choose_month(
    request: Request,
    principal: Reader,
    known: KnownServices,
    month: Annotated[str, Query(max_length=64, description="a month in UTC, such as 2026-10")],
    cluster: OneCluster = None,
) -> Response:
    """Where the form that chooses a month leads to."""
    del request, principal, known
    return RedirectResponse(
        page_addresses.month_page(Month.parse(month), cluster=cluster or ""), HTTPStatus.SEE_OTHER
    )


@router.get("/month/{month}")
async def show_month(
    request: Request,
    principal: Reader,
    known: KnownServices,
    month: MonthText,
    cluster: OneCluster = None,
) -> Response:
    """Who pays what, what became of the capacity, what to do first."""
    wanted = Month.parse(month)
    months, now_ms = await months_seen(known, principal.scope), known.now()

    def make() -> PageContent:
        return _month(known, principal.scope, wanted, cluster, months, now_ms)

    frame = PageFrame(request, known, principal, "month", wanted)
    asked = "month", wanted, cluster, policy_digest(known.policy), now_ms // HOUR_MS
    return await shown(frame, asked, make)


def _month(
    known: ApiServices,
    scope: Scope,
    month: Month,
    cluster: str | None,
    months: tuple[Month, ...],
    now_ms: int,
) -> PageContent:
    seen = known.reporting.of_cluster(scope, cluster)
    found = known.reporting.month(seen, month)
    if found is None:
        raise nothing_held(known, scope, "month", str(month))
    forecast = None if cluster else month_forecast(known.reporting, scope, month, now_ms)
    report, marks = found.report, month_marks(found.report, known.policy, scope)
    teams = payers(report)
    return content(
        f"{display.month_name(month)}: who pays what",
        "month_page.html.j2",
        report=report,
        payers=teams,
        paid=paid(teams),
        adjusted=adjusted(report),
        marks=marks,
        chart=waste_chart(report, marks=tuple((mark.day, mark.text) for mark in marks)),
        words=waste_table,
        cause_words=cause_words,
        forecast=forecast,
        ends={} if forecast is None else {each.team: each for each in forecast.teams},
        first=() if report.waste is None else report.waste.to_do[:_MOST_FIRST],
        budget_words=budget_words(report),
        several=jobs_of_several(report),
        read=read_of(report.provenance.clusters, month.window),
        provisional=provisional_words(report.provenance.clusters),
        months=months,
        month=month,
        cluster=cluster or "",
        clusters=known.ledger.clusters(scope=scope),
        is_final=report.provenance.state == "closed",
    )


@router.get("/month/{month}/change")
async def show_change(
    request: Request,
    principal: Reader,
    known: KnownServices,
    month: MonthText,
    team: OneTeam = None,
    charged: Annotated[bool, Query(description="with the causes of what is charged")] = False,
) -> Response:
    """A month beside the one before, by team, model, queue and kind of job; with ``charged`` why another
    amount is charged, too, which takes both months through the charge policy."""
    wanted = Month.parse(month)

    def make() -> PageContent:
        seen = scope_of_team(known.reporting, principal.scope, wanted, team)
        found = known.reporting.month(seen, wanted)
        if found is None:
            raise nothing_held(known, principal.scope, "month", month)
        why = compare_spans(known.reporting, seen, wanted.window, wanted.previous().window)
        why_charged, uncharged = _charged_change(known, seen, wanted) if charged else (None, "")
        title = f"Why {display.month_name(wanted)} is not {display.month_name(wanted.previous())}"
        return content(
            title,
            "change_page.html.j2",
            report=found.report,
            month=wanted,
            team=team or "",
            marks=month_marks(found.report, known.policy, seen),
            cause_words=cause_words,
            why=None if why is None else why.report,
            charged=why_charged,
            uncharged=uncharged,
            is_apart=not charged
            and charges_apart(known.reporting, (wanted, wanted.previous()), known.policy),
        )

    frame = PageFrame(request, known, principal, "month", wanted)
    return await shown(frame, ("change", wanted, team, charged, policy_digest(known.policy)), make)


def _charged_change(known: KnownServices, scope: Scope, month: Month) -> tuple[SpanChange | None, str]:
    """Why another amount is charged than in the month before, or what keeps it from being told; neither where
    teams are charged what they held."""
    before = month.previous()
    if not charges_apart(known.reporting, (month, before), known.policy):
        return None, ""
    try:
        found = compare_charges(known.reporting, scope, month.window, before.window, known.policy)
    except InputError as error:
        return None, error.allowed
    except ChargesChanged as error:
        return None, str(error)
    return None if found is None else found.report, ""


@router.get("/")
async def show_home(
    request: Request, principal: Annotated[Principal, Depends(authenticate)], known: KnownServices
) -> Response:
    """The newest month for a person who comes without an address; the index of the API for a program."""
    if not is_page(request):
        return JSONResponse(index(request).model_dump())
    require_role(principal, READERS)
    months = await months_seen(known, principal.scope)
    if months:
        return RedirectResponse(page_addresses.month_page(months[0]), HTTPStatus.SEE_OTHER)
    frame = PageFrame(request, known, principal, "month")
    return await frame.response(content("Nothing yet", "months.html.j2", months=()))
