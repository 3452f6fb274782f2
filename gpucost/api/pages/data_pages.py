"""The data behind a month: how much of it is in the ledger and was observed, day by day; what keeps it open;
problems, prices, sources and digests; and, for who runs the service, how far it is now.

All of it stands in the report of the month and in its status, of the scope of the reader. What is shown by
the day is of windows, which are of a cluster and of no team.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from gpucost.access.principal import AccessRole, Principal
from gpucost.api.pages.page_layout import PageContent, PageFrame, content, render
from gpucost.api.routes.months import MonthText
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.routes.responses import cached_answer
from gpucost.api.routes.service import cluster_readiness
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.services import ApiServices, KnownServices, nothing_held
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso
from gpucost.ledger.db.records import WindowInfo
from gpucost.reports.base import display
from gpucost.reports.base.values import CostAmount, ratio
from gpucost.reports.month.model import MonthReport
from gpucost.reports.render.html import ChartRect, ChartTick
from gpucost.service.reporting.month_closing import month_status

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

MOST_ROWS = 100
MOST_STRIPS = 8
"""Clusters whose days are shown; of more those of which least was observed. The table has all."""
STRIP_HEIGHT = 26
_CELL, _GAP, _SMALLEST = 30, 2, 4.0
_DAYS_A_WEEK = 7
OPERATORS = frozenset({AccessRole.FINANCE, AccessRole.ADMIN})
"""Who may see how the service is, of the roles that read reports: those of GET /readyz."""


@dataclass(frozen=True, slots=True)
class DayCoverage:
    """One day of a cluster, in milliseconds: ``observed`` and ``unobserved`` are in the ledger, ``missing``
    is not, ``ahead`` is still to come."""

    day: str
    observed: int
    unobserved: int
    missing: int
    ahead: int

    @property
    def part(self) -> Fraction | None:
        """The observed part of what is not still to come; None of a day that is."""
        return ratio(self.observed, self.observed + self.unobserved + self.missing)


@dataclass(frozen=True, slots=True)
class CoverageStrip:
    """The days of a cluster, and how they are drawn: a cell a day, filled from the bottom."""

    cluster: str
    days: tuple[DayCoverage, ...]
    rects: tuple[ChartRect, ...]
    ticks: tuple[ChartTick, ...]
    width: int
    description: str


def coverage_strips(
    clusters: Iterable[str], windows: Sequence[WindowInfo], month: Window, now_ms: int
) -> tuple[CoverageStrip, ...]:
    """One strip for each of ``clusters``, by name. ``windows`` meet ``month``, and are disjoint in a
    cluster."""
    of: dict[str, list[WindowInfo]] = {cluster: [] for cluster in sorted(clusters)}
    for info in windows:
        of.setdefault(info.cluster, []).append(info)
    return tuple(_strip(cluster, tuple(_days(found, month, now_ms))) for cluster, found in sorted(of.items()))


def least_observed(strips: Sequence[CoverageStrip]) -> tuple[CoverageStrip, ...]:
    """At most MOST_STRIPS of them, by name."""
    ranked = sorted(strips, key=lambda strip: (sum(day.observed for day in strip.days), strip.cluster))
    return tuple(sorted(ranked[:MOST_STRIPS], key=lambda strip: strip.cluster))


def _days(windows: Sequence[WindowInfo], month: Window, now_ms: int) -> Iterator[DayCoverage]:
    covered, observed = dict[int, int](), dict[int, int]()
    for info in windows:
        for day_ms in range(info.window.start_ms // DAY_MS * DAY_MS, info.window.end_ms, DAY_MS):
            part_ms = info.window.overlap_ms(day_ms, day_ms + DAY_MS)
            covered[day_ms] = covered.get(day_ms, 0) + part_ms
            # A window that is longer than a day was observed evenly, as far as the ledger can say.
            seen_ms = info.observed_ms * part_ms // info.window.length_ms
            observed[day_ms] = observed.get(day_ms, 0) + seen_ms
    until_ms = max((info.window.end_ms for info in windows), default=month.start_ms)
    for day in month.split(DAY_MS):
        there, seen = covered.get(day.start_ms, 0), observed.get(day.start_ms, 0)
        ahead = day.overlap_ms(max(now_ms, until_ms), max(now_ms, until_ms, day.end_ms))
        ahead = min(ahead, day.length_ms - there)
        yield DayCoverage(iso(day.start_ms)[:10], seen, there - seen, day.length_ms - there - ahead, ahead)


def _strip(cluster: str, days: tuple[DayCoverage, ...]) -> CoverageStrip:
    rects = []
    for at, day in enumerate(days):
        y = float(STRIP_HEIGHT)
        for css, part, words in (
            ("held", day.observed, "observed"),
            ("unknown", day.unobserved, "in the ledger, and not observed"),
            ("unavailable", day.missing, "not in the ledger"),
            ("nobody", day.ahead, "still to come"),
        ):
            if part:
                # What is missing is seen, however little it is.
                high = max(part * STRIP_HEIGHT / DAY_MS, _SMALLEST)
                y = max(0.0, y - high)
                title = f"{day.day}: {display.duration(part)} {words}"
                rects.append(ChartRect(at * _CELL, round(y, 2), _CELL - _GAP, round(high, 2), css, title))
    lacking = [day for day in days if day.missing or day.unobserved]
    described = f"{len(days) - len(lacking)} of {len(days)} days without a gap"
    ticks = tuple(
        ChartTick(at * _CELL + _CELL / 2 - 1, str(at + 1)) for at in range(0, len(days), _DAYS_A_WEEK)
    )
    return CoverageStrip(cluster, days, tuple(rects), ticks, len(days) * _CELL - _GAP, described)


@dataclass(frozen=True, slots=True)
class UnpricedModel:
    """GPU time of a model that has no price: of what was held, and of all capacity (None for who sees some
    teams)."""

    model: str
    held_ms: int
    capacity_ms: int | None


def unpriced_models(report: MonthReport) -> tuple[UnpricedModel, ...]:
    """The models of which some time has no price, the most first."""
    held = {row.group["model"]: row.held for row in report.models}
    whole: dict[str, CostAmount] = {}
    if report.capacity is not None:
        whole = {each.model: each.capacity for each in report.capacity.models}
    found = [
        UnpricedModel(
            model,
            0 if model not in held else held[model].unpriced_board_ms,
            None if report.capacity is None else 0 if model not in whole else whole[model].unpriced_board_ms,
        )
        for model in {*held, *whole}
    ]
    there = [each for each in found if each.held_ms or each.capacity_ms]
    return tuple(sorted(there, key=lambda each: (-(each.capacity_ms or each.held_ms), each.model)))


@router.get("/month/{month}/data")
async def show_data(request: Request, principal: Reader, known: KnownServices, month: MonthText) -> Response:
    """What the figures of a month rest on."""
    wanted = Month.parse(month)
    frame = PageFrame(request, known, principal, "data", wanted)
    # What is still to come is not part of the ledger.
    hour_ms = known.now() // HOUR_MS * HOUR_MS

    def make() -> PageContent:
        return _data(known, principal.scope, wanted, hour_ms)

    asked = "page", "data", wanted, hour_ms
    found = await cached_answer(known, principal.scope, asked, make)
    if principal.role in OPERATORS:
        health = await run_in_threadpool(_health, known, principal)
        found = PageContent(found.title, found.html + health)
    return await frame.response(found)


def _data(known: ApiServices, scope: Scope, month: Month, now_ms: int) -> PageContent:
    found = known.reporting.month(scope, month)
    if found is None:
        raise nothing_held(known, scope, "month", str(month))
    report = found.report
    clusters = report.provenance.clusters
    covered_ms, observed_ms = (
        sum(each.covered_ms for each in clusters),
        sum(each.observed_ms for each in clusters),
    )
    return content(
        f"The data of {display.month_name(month)}",
        "data_page.html.j2",
        month=month,
        report=report,
        facts=report.provenance,
        status=month_status(known.reporting, scope, month, known.close_coverage),
        covered=ratio(covered_ms, len(clusters) * month.window.length_ms),
        observed=ratio(observed_ms, covered_ms),
        strips=least_observed(
            coverage_strips(
                (each.cluster for each in clusters),
                known.ledger.windows(month.window, scope=scope),
                month.window,
                now_ms,
            )
        ),
        height=STRIP_HEIGHT,
        unpriced=unpriced_models(report),
        price_missing=DataProblemCode.PRICE_MISSING,
        most=MOST_ROWS,
    )


def _health(known: ApiServices, principal: Principal) -> str:
    """How far the service is, now: of no month, and never kept."""
    return render(
        "health_part.html.j2",
        at=iso(known.now()),
        stalled=known.status.stalled(),
        clusters=cluster_readiness(known, principal.scope),
        last_turn=None if (turned := known.status.last_turn_ms()) is None else iso(turned),
    )
