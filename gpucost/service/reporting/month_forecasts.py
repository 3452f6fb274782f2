"""The end of a month that goes on: the ledger's history, for the forecast of ``reports.month.month_end``.

A day is known where every cluster has windows of all of it; what is forecast is what teams hold, adjustments
left out, as in budgets. The first day of a team is the first on which it held anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest

from gpucost.domain.buckets import UNALLOCATED, Bucket
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso, parse_instant
from gpucost.ledger.db.records import WindowInfo
from gpucost.ledger.stores.kept_forecasts import KeptForecast
from gpucost.reports.base.values import STEP
from gpucost.reports.month.model import CAPACITY_BUCKETS
from gpucost.reports.month.month_end import (
    COVERAGE,
    ForecastScore,
    MonthEnd,
    MonthForecast,
    month_ends,
    score_kept,
    score_month,
    scored,
)
from gpucost.reports.month.work_ahead import cost_by_team, daily_cost
from gpucost.service.reporting.jobs_ahead import work_ahead
from gpucost.service.reporting.report_service import ReportService

HISTORY_DAYS = 63
"""Read before the day from which is forecast: nine weeks."""
_ALL = "all teams"
_COMMITTED = ("Committed", "Other")
"""Categories of prices that are paid whoever holds the GPU: reserved and owned (``gpucost.pricing``)."""
_HELD = {"bucket": frozenset({Bucket.HELD.value})}


def month_forecast(reporting: ReportService, scope: Scope, month: Month, now_ms: int) -> MonthForecast | None:
    """As of ``now_ms``: later days count as unknown. None for a month that is over, or of which the ledger
    has all days, or that does not begin where the ledger ends."""
    ledger, window = reporting.ledger, month.window
    if now_ms >= window.end_ms:
        return None
    hour_ms = max(window.start_ms, -(-now_ms // HOUR_MS) * HOUR_MS)
    span = Window(max(0, window.start_ms - HISTORY_DAYS * DAY_MS), window.end_ms)
    infos = ledger.windows(span, scope=scope)
    known = frozenset(day for day in known_days(infos) if day + DAY_MS <= hour_ms)
    whole = [day for day in range(window.start_ms, window.end_ms, DAY_MS) if day in known]
    if not whole and window.start_ms - DAY_MS not in known:
        return None
    until_ms = whole[-1] + DAY_MS if whole else window.start_ms
    if until_ms == window.end_ms:
        return None
    span = Window(max(span.start_ms, until_ms - HISTORY_DAYS * DAY_MS), until_ms)
    costs = daily_costs(reporting, scope, span, _HELD)
    history = {team: costs.history(team, span, known) for team in costs.nano}
    spent = {
        team: sum(nano for day, nano in by_day.items() if day >= window.start_ms)
        for team, by_day in costs.nano.items()
    }
    last = [info for info in infos if until_ms - DAY_MS <= info.window.start_ms < until_ms]
    most_a_day = sum(info.nano for info in last) if scope.sees_every_team else None
    days_left = (window.end_ms - until_ms) // DAY_MS
    today = _begun_day(reporting, scope, infos, until_ms, hour_ms)
    held = {team: spent.get(team, 0) + sum(by_day.values()) for team, by_day in today.items()}
    together, all_held = ({_ALL: sum(each.values())} for each in (spent, spent | held))
    work = work_ahead(reporting, scope, as_of_ms=hour_ms)
    found = month_ends(
        *(history, spent, days_left, most_a_day, held), ahead=cost_by_team(work.jobs, until_ms, days_left)
    )
    total = month_ends(
        *({_ALL: _added(history.values())}, together, days_left, most_a_day, all_held),
        ahead={_ALL: daily_cost(work.jobs, until_ms, days_left)},
    )
    idle = _idle(reporting, scope, span, known, month, days_left) if scope.sees_every_team else None
    return MonthForecast(
        *(month, reporting.currency, iso(until_ms), days_left, COVERAGE),
        total[_ALL],
        tuple(found.values()),
        idle,
        _committed(reporting, scope, window.start_ms, until_ms, days_left),
        work.running,
        work.waiting,
        work.not_counted,
    )


def _begun_day(
    reporting: ReportService, scope: Scope, infos: Sequence[WindowInfo], until_ms: int, hour_ms: int
) -> Mapping[str, Mapping[int, int]]:
    """What teams held after the last whole day, up to the last window that ends by then."""
    ends = [info.window.end_ms for info in infos if until_ms < info.window.end_ms <= hour_ms]
    return daily_costs(reporting, scope, Window(until_ms, max(ends)), _HELD).nano if ends else {}


def _committed(
    reporting: ReportService, scope: Scope, start_ms: int, until_ms: int, days_left: int
) -> int | None:
    """What owned and committed GPUs cost in a month, held or not: so far, and as on the last day for each
    that is left. None for who sees some teams only, and where no such price was applied on the last day."""
    last_ms = until_ms - DAY_MS
    if not scope.sees_every_team:
        return None
    buckets = frozenset(each.value for each in CAPACITY_BUCKETS)
    span = Window(min(start_ms, last_ms), until_ms)
    lines = reporting.ledger.aggregate(scope, span, ("rate_id",), filters={"bucket": buckets}, step_ms=DAY_MS)
    rates = reporting.ledger.rates(frozenset(lines["rate_id"]) - {""})
    committed = {name for name, rate in rates.items() if rate.pricing_category in _COMMITTED}
    own = lines[lines["rate_id"].isin(committed) & lines["nano"].notna()]
    last = own[own[STEP] == last_ms]
    if last.empty:
        return None
    spent = own[own[STEP] >= start_ms]
    return int(spent["nano"].sum()) + int(last["nano"].sum()) * days_left


def forecast_score(reporting: ReportService, scope: Scope) -> ForecastScore:
    """How forecasts of months did of which the ledger knows every day: those that were kept, and each made
    again from the days that were known then."""
    extent = reporting.ledger.extent(scope=scope)
    months: list[Month] = []
    found: dict[int, list[tuple[MonthEnd, int, float]]] = defaultdict(list)
    kept: dict[int, list[tuple[MonthEnd, int, float]]] = defaultdict(list)
    if extent is not None:
        known = known_days(reporting.ledger.windows(extent, scope=scope))
        whole = [each for each in reporting.months(scope) if _is_known(each.window, known)]
        for month in whole:
            start_ms = max(month.window.start_ms - HISTORY_DAYS * DAY_MS, min(known))
            if not _is_known(Window(start_ms, month.window.end_ms), known):
                continue
            costs = daily_costs(reporting, scope, Window(start_ms, month.window.end_ms), _HELD)
            days = range(start_ms, month.window.end_ms, DAY_MS)
            by_team = {
                team: [by_day.get(day, 0) for day in days]
                for team, by_day in costs.nano.items()
                if team not in costs.unknown
            }
            first = (month.window.start_ms - start_ms) // DAY_MS
            length = month.window.length_ms // DAY_MS
            months.append(month)
            for left, rows in score_month(by_team, first, length).items():
                found[left] += rows
            said = _said(reporting, scope, month)
            for left, rows in score_kept(said, by_team, first, length).items():
                kept[left] += rows
    return ForecastScore(tuple(months), reporting.currency, COVERAGE, scored(found), scored(kept))


def _said(reporting: ReportService, scope: Scope, month: Month) -> list[tuple[MonthEnd, int]]:
    """The forecasts of a month that were kept, each with the number of its days that were known."""
    return [
        (
            MonthEnd(each.team, each.expected_nano, each.low_nano, each.high_nano, each.days_left),
            (each.as_of_ms - month.window.start_ms) // DAY_MS,
        )
        for each in reporting.ledger.kept_forecasts(scope=scope, month=month)
    ]


def keep_forecasts(reporting: ReportService, now_ms: int) -> int:
    """Keep what the month that goes on is expected to cost, of every team with a forecast; how many are new.
    What was said of the same day before stays."""
    month = Month.of(now_ms)
    made = month_forecast(reporting, EVERYTHING, month, now_ms)
    if made is None:
        return 0
    return reporting.ledger.keep_forecasts(
        [
            KeptForecast(
                str(month),
                each.team,
                parse_instant(made.as_of, "as_of"),
                each.days_left,
                each.expected_nano,
                each.low_nano,
                each.high_nano,
            )
            for each in made.teams
            if each.expected_nano is not None and each.low_nano is not None and each.high_nano is not None
        ]
    )


def _is_known(span: Window, known: frozenset[int]) -> bool:
    return all(day in known for day in range(span.start_ms, span.end_ms, DAY_MS))


def _idle(
    reporting: ReportService, scope: Scope, span: Window, known: frozenset[int], month: Month, days_left: int
) -> MonthEnd:
    """Of what nobody held, as if it were a team."""
    idle = {"bucket": frozenset({Bucket.UNALLOCATED.value})}
    found = daily_costs(reporting, scope, span, idle)
    costs: dict[int, int] = defaultdict(int)
    for by_day in found.nano.values():
        for day, nano in by_day.items():
            costs[day] += nano
    first = min(known, default=span.start_ms)
    days = range(max(span.start_ms, first), span.end_ms, DAY_MS)
    unknown = frozenset(day for own in found.unknown.values() for day in own)
    history = [costs.get(day, 0) if day in known - unknown else None for day in days]
    spent = sum(nano for day, nano in costs.items() if day >= month.window.start_ms)
    return month_ends({UNALLOCATED: history}, {UNALLOCATED: spent}, days_left)[UNALLOCATED]


def known_days(infos: tuple[WindowInfo, ...]) -> frozenset[int]:
    """The beginnings of days of which every cluster has all windows."""
    clusters = {info.cluster for info in infos}
    covered: dict[int, int] = defaultdict(int)
    for info in infos:
        first = info.window.start_ms // DAY_MS * DAY_MS
        for day in range(first, info.window.end_ms, DAY_MS):
            covered[day] += info.window.overlap_ms(day, day + DAY_MS)
    return frozenset(day for day, ms in covered.items() if ms == len(clusters) * DAY_MS)


@dataclass(frozen=True, slots=True)
class DailyCosts:
    """What was held, by team and the beginning of a day (UTC): nano-units, 0 where nothing of it has a price;
    GPU-milliseconds without a price, which are in no amount, where there are any; and the days of which more
    than a hundredth has none, so that their cost is not known."""

    nano: Mapping[str, Mapping[int, int]]
    unpriced_ms: Mapping[str, Mapping[int, int]]
    unknown: Mapping[str, frozenset[int]]

    def history(self, team: str, span: Window, known: Set[int]) -> list[int | None]:
        """Of each day of ``span``, from the first on which the team held anything; None for one that is not
        known."""
        by_day, unknown = self.nano[team], self.unknown.get(team, frozenset())
        days = range(max(span.start_ms, min(by_day)), span.end_ms, DAY_MS)
        return [by_day.get(day, 0) if day in known and day not in unknown else None for day in days]


_PRICED_PART = 100


def daily_costs(
    reporting: ReportService, scope: Scope, span: Window, filters: Mapping[str, frozenset[str]]
) -> DailyCosts:
    """Of what passes ``filters``."""
    lines = reporting.ledger.aggregate(scope, span, ("team",), filters=filters, step_ms=DAY_MS)
    nano: dict[str, dict[int, int]] = defaultdict(dict)
    unpriced: dict[str, dict[int, int]] = defaultdict(dict)
    unknown: dict[str, set[int]] = defaultdict(set)
    columns = [lines[name].tolist() for name in ("team", STEP, "board_ms", "unpriced_ms")]
    costs = lines["nano"].astype(object).where(lines["nano"].notna(), None).tolist()
    for team, day, board_ms, unpriced_ms, cost in zip(*columns, costs, strict=True):
        if cost is not None or unpriced_ms:
            nano[team][day] = int(cost or 0)
        if unpriced_ms:
            unpriced[team][day] = unpriced_ms
        if unpriced_ms * _PRICED_PART > board_ms:
            unknown[team].add(day)
    return DailyCosts(dict(nano), dict(unpriced), {team: frozenset(days) for team, days in unknown.items()})


def _added(histories: Iterable[Sequence[int | None]]) -> list[int | None]:
    """Of all teams together, day by day back from the last; a day that is not known is so for all."""
    listed = [list(reversed(days)) for days in histories]
    added = [_sum(day) for day in zip_longest(*listed, fillvalue=0)]
    return added[::-1]


def _sum(day: Iterable[int | None]) -> int | None:
    listed = list(day)
    return None if None in listed else sum(each for each in listed if each is not None)
