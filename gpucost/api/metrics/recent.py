"""Metrics of the last settled window, of the last settled day, of budgets and of the last month."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
from prometheus_client.core import Metric

from gpucost.api.server.metric_families import FamilySample, family, money
from gpucost.api.server.services import ApiServices
from gpucost.charges import cell_charges
from gpucost.domain.buckets import HOLDERS_OF_NONE, OTHER_TEAMS, UNALLOCATED, Bucket
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, SECOND_MS, Month, Window
from gpucost.ledger.db.records import LedgerState, WindowInfo
from gpucost.ledger.waste.waste_reader import runs
from gpucost.service import metrics as m
from gpucost.service.reporting.closed_charges import adjustment_rate, closed_policy
from gpucost.service.reporting.month_forecasts import month_forecast
from gpucost.service.reporting.unit_reports import unit_costs_by_team

_PARTS: Mapping[str, str] = {
    "held": "board_ms",
    "observed": "observed_ms",
    "busy": "busy_ms",
    "sm_observed": "sm_observed_ms",
    "sm_active": "sm_active_ms",
}
_DIMS = ("team", "bucket")
EDGES = ("expected", "low", "high")
GIVEN_UP_MS = 7 * DAY_MS
"""A cluster without a settled window for longer has no samples of the present. A ledger that is behind for a
day or two shows that in its lag, and must not make capacity disappear."""


@dataclass(frozen=True, slots=True)
class _Recent:
    """The samples of one cluster, as of the windows with these digests."""

    key: Hashable
    gpus: tuple[FamilySample, ...]
    team_gpus: tuple[FamilySample, ...]
    hourly: tuple[FamilySample, ...]
    last_day: tuple[FamilySample, ...]
    observed: tuple[FamilySample, ...]
    settled: tuple[FamilySample, ...]
    units: tuple[FamilySample, ...]


class RecentFamilies:
    """Read from the ledger again only when its last day has changed."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._recent: dict[str, _Recent] = {}
        self._end_key: Hashable = ()
        self._ends: tuple[FamilySample, ...] = ()

    def collect(self) -> Iterable[Metric]:
        """Raises LedgerError."""
        ledger, fold = self._services.ledger, self._services.team_rows.fold
        found = [each for name in ledger.clusters() if (each := self._of(name)) is not None]
        currency = ledger.currency
        budgets = [((team,), nano / NANO) for team, nano in sorted(self._services.budgets.items())]
        return [
            family(m.CAPACITY, (sample for each in found for sample in each.gpus)),
            family(m.TEAM_GPUS, fold((sample for each in found for sample in each.team_gpus), 1)),
            money(m.JOB_UNIT_COST, self._units(found), currency),
            money(m.TEAM_COST_PER_HOUR, fold((one for each in found for one in each.hourly), 1), currency),
            money(m.TEAM_BUDGET, budgets, currency),
            *self._budgets(),
            money(m.MONTH_END, self._month_end(), currency),
            family(m.LAST_DAY, fold((sample for each in found for sample in each.last_day), 1)),
            family(m.OBSERVED, (sample for each in found for sample in each.observed)),
            family(m.SETTLED_END, (sample for each in found for sample in each.settled)),
            family(m.MONTH_CLOSED, self._last_month()),
            *self._charged(),
        ]

    def _of(self, cluster: str) -> _Recent | None:
        day = self._last_settled_day(cluster)
        if not day:
            return None
        key = tuple((each.window, each.digest) for each in day)
        with self._lock:
            before = self._recent.get(cluster)
            if before is None or before.key != key:
                before = self._recent[cluster] = self._read(cluster, key, day)
            return before

    def _last_settled_day(self, cluster: str) -> tuple[WindowInfo, ...]:
        """The settled windows of the 24 hours before the end of the newest of them, whatever is missing
        before; none where that is too long ago. A ledger may be ahead of the clock, as the demo's is."""
        extent = self._services.ledger.extent(cluster)
        if extent is None:
            return ()
        latest_ms = self._services.now() - GIVEN_UP_MS
        if extent.end_ms < latest_ms:
            return ()
        span = Window(min(latest_ms, extent.end_ms) - DAY_MS, extent.end_ms)
        windows = self._services.ledger.windows(span, cluster)
        settled = [each for each in windows if each.state is not LedgerState.OPEN]
        if not settled or settled[-1].window.end_ms < latest_ms:
            return ()
        # A window that begins before the day would count for more than a day.
        begin_ms = settled[-1].window.end_ms - DAY_MS
        return tuple(each for each in settled if begin_ms <= each.window.start_ms)

    def _read(self, cluster: str, key: Hashable, day: tuple[WindowInfo, ...]) -> _Recent:
        last = day[-1].window
        now = self._lines(cluster, last)
        whole = now if len(day) == 1 else self._lines(cluster, *runs([each.window for each in day]))
        held = now[now["bucket"] == Bucket.HELD]
        length_ms = last.length_ms
        observed_ms = sum(each.observed_ms for each in day)
        return _Recent(
            key,
            gpus=tuple(
                ((cluster, bucket.value), _sum(now[now["bucket"] == bucket], "board_ms") / length_ms)
                for bucket in Bucket
                if bucket.is_capacity
            ),
            team_gpus=tuple(
                ((cluster, str(team)), board_ms / length_ms)
                for team, board_ms in zip(held["team"], held["board_ms"].astype(int), strict=True)
            ),
            hourly=tuple(_hourly(cluster, now, length_ms)),
            last_day=tuple(_last_day(cluster, whole)),
            observed=(((cluster,), observed_ms / sum(each.window.length_ms for each in day)),),
            settled=(((cluster,), last.end_ms / SECOND_MS),),
            units=tuple(self._unit_costs(cluster, Window(day[0].window.start_ms, last.end_ms))),
        )

    def _unit_costs(self, cluster: str, day: Window) -> Iterator[FamilySample]:
        scope = EVERYTHING.within((cluster,))
        for team, units in sorted(unit_costs_by_team(self._services.ledger, scope, day).items()):
            for unit in units:
                nano, counted = unit.cost.counted_nano, unit.cost.amount
                if nano is not None and counted > 0:
                    labels = (cluster, unit.namespace, unit.job, unit.job_uid, team, unit.cost.name)
                    yield labels, float(nano / counted) / NANO

    def _units(self, found: Iterable[_Recent]) -> list[FamilySample]:
        """Of the teams that are shown: costs of units add up to nothing."""
        samples = [sample for each in found for sample in each.units]
        return [each for each in self._services.team_rows.fold(samples, 4) if each[0][4] != OTHER_TEAMS]

    def _lines(self, cluster: str, *windows: Window) -> pd.DataFrame:
        """By team and bucket, with the number of windows."""
        read, only = self._services.ledger.aggregate, {"cluster": {cluster}}
        return pd.concat([read(EVERYTHING, window, _DIMS, filters=only) for window in windows])

    def _budgets(self) -> Iterator[Metric]:
        watch, now_ms = self._services.budget_watch, self._services.now()
        found = watch.report(now_ms).budgets if watch.plans else ()
        used, expected = [], []
        for each in found:
            labels = (each.name, each.subject, each.of, each.period)
            if each.part is not None:
                used.append((labels, float(each.part)))
            elif each.spent_nano is not None:  # of nothing, or of less: anything is more than all of it
                used.append((labels, math.inf if each.spent_nano > each.total_nano else 0.0))
            for edge in EDGES:
                nano = None if each.forecast is None else getattr(each.forecast, f"{edge}_nano")
                if nano is not None and each.total_nano > 0:
                    expected.append(((*labels, edge), nano / each.total_nano))
        return iter((family(m.BUDGET_USED, used), family(m.BUDGET_EXPECTED, expected)))

    def _month_end(self) -> list[FamilySample]:
        """Made anew when a whole day more is known, or another hour has begun."""
        services = self._services
        now_ms = services.now()
        extent = services.ledger.extent()
        key = None if extent is None else (extent.end_ms // HOUR_MS, now_ms // HOUR_MS)
        with self._lock:
            if key != self._end_key:
                self._end_key, self._ends = key, tuple(self._read_ends(now_ms))
            return list(services.team_rows.fold(self._ends, 0))

    def _read_ends(self, now_ms: int) -> Iterator[FamilySample]:
        found = month_forecast(self._services.reporting, EVERYTHING, Month.of(now_ms), now_ms)
        if found is None:
            return
        ends = {each.team: each for each in found.teams} | {"__all_teams__": found.total}
        if found.unallocated is not None:
            ends[UNALLOCATED] = found.unallocated
        for team, each in sorted(ends.items()):
            for edge in EDGES:
                nano = getattr(each, f"{edge}_nano")
                if nano is not None:
                    yield (team, edge), nano / NANO

    def _last_month(self) -> list[FamilySample]:
        ledger, month = self._services.ledger, Month.of(self._services.now()).previous()
        if not ledger.windows(month.window):
            return []
        return [((str(month),), float(ledger.month(month).state is LedgerState.CLOSED))]

    def _charged(self) -> Iterator[Metric]:
        """What teams pay for the last month, as it was closed; nothing is computed."""
        ledger, month = self._services.ledger, Month.of(self._services.now()).previous()
        kept = ledger.month_charges(month)
        sums: dict[str, int] = defaultdict(int)
        for team, _, nano in () if kept is None else kept.amounts:
            sums[team] += nano
        adjustments = () if kept is None else ledger.adjustments(EVERYTHING, month)
        if kept is not None and adjustments:
            rate = adjustment_rate(closed_policy(kept), ledger.currency or "", month)
            for item in adjustments:
                payer = cell_charges.PLATFORM if item.team in HOLDERS_OF_NONE else item.team
                sums[payer] += cell_charges.part(item.nano, rate)
        found = [((str(month), team), nano / NANO) for team, nano in sorted(sums.items())]
        fold = self._services.team_rows.fold
        yield money(m.TEAM_MONTH_CHARGE, fold(found, 1), ledger.currency if kept is None else kept.currency)


def _sum(frame: pd.DataFrame, column: str) -> int:
    return int(frame[column].sum())


def _hourly(cluster: str, now: pd.DataFrame, length_ms: int) -> Iterator[FamilySample]:
    """Over-committed time is held beyond capacity: it costs nothing."""
    priced = now[now["nano"].notna() & (now["bucket"] != Bucket.OVERCOMMITTED)]
    sums: dict[str, int] = defaultdict(int)
    for team, nano in zip(priced["team"], priced["nano"].astype(int), strict=True):
        sums[str(team)] += nano
    for team, nano in sorted(sums.items()):
        yield (cluster, team), nano / NANO * HOUR_MS / length_ms


def _last_day(cluster: str, whole: pd.DataFrame) -> Iterator[FamilySample]:
    held = whole[whole["bucket"] == Bucket.HELD]
    for part, column in _PARTS.items():
        known = held[held[column].notna()]
        sums: Counter[str] = Counter()
        for team, part_ms in zip(known["team"], known[column].astype(int), strict=True):
            sums[str(team)] += int(part_ms)
        for team, part_ms in sums.items():
            yield (cluster, team, part), part_ms / SECOND_MS
