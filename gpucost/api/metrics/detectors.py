"""Metrics of detectors, of their findings, and of the waste ledger."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from gpucost.api.server.metric_families import (
    FamilySample,
    TeamRows,
    family,
    money,
)
from gpucost.api.server.services import ApiServices
from gpucost.detectors.engine.lifecycle import LIVE, FindingLife
from gpucost.detectors.findings import WastePattern
from gpucost.domain.buckets import NO_TEAM, Waste
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import SECOND_MS, Window
from gpucost.ledger.db.records import FindingRecord
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.findings import MOST_PER_PAGE
from gpucost.ledger.waste.waste_reader import FinalWaste
from gpucost.service import metrics as m
from gpucost.service.detection.finding_records import life_of
from gpucost.service.detection.loop import DetectorStatus

# Windows that are summed between two checks of the clock, to begin with; then as many as take about _PART_S.
_WINDOWS_AT_ONCE = 24
_PART_S = 0.5
# Of the 10 s that Prometheus waits for a scrape.
_SUMMING_S = 2.0


def detector_families(status: DetectorStatus) -> Iterator[Metric]:
    """Metrics of the detectors' loop."""
    looks = status.looks()
    yield family(m.LAST_EVALUATION, [((name,), look.at_ms / SECOND_MS) for name, look in looks.items()])
    yield family(m.EVALUATION, [((name,), look.seconds) for name, look in looks.items()])
    # From 0, so that the first failure is an increase.
    errors: dict[tuple[str, str], int] = {
        (name, pattern.value): 0 for name in looks for pattern in WastePattern
    }
    yield family(m.DETECTOR_ERRORS, list((errors | status.errors()).items()))
    withheld: list[FamilySample] = []
    for name, look in looks.items():
        counts = Counter(each.pattern for each in look.withheld)
        withheld += [((name, pattern.value), counts[pattern]) for pattern in WastePattern]
    yield family(m.WITHHELD, withheld)


class FindingFamilies:
    """Findings in the ledger at a scrape; their content is read again only when it has changed."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._lives: dict[tuple[int | None, int], FindingLife] = {}

    def collect(self) -> Iterable[Metric]:
        """Raises LedgerError."""
        ledger, most = self._services.ledger, self._services.settings.metrics_findings
        records, currency = list(_live(ledger)), ledger.currency
        counts = Counter((each.cluster, each.pattern, each.severity, each.state.value) for each in records)
        active = self._active(records, most)
        hourly = [
            (_labels(record), life.finding.nano_per_hour / NANO)
            for record, life in active
            if life.finding.nano_per_hour is not None
        ]
        return [
            family(m.FINDING_ACTIVE, [(_labels(record), 1.0) for record, _ in active]),
            money(m.FINDING_WASTED, hourly, currency),
            family(m.FINDINGS, sorted(counts.items())),
        ]

    def _active(self, records: Iterable[FindingRecord], most: int) -> list[tuple[FindingRecord, FindingLife]]:
        now_ms, before = self._services.now(), self._lives
        active: list[tuple[FindingRecord, FindingLife]] = []
        lives: dict[tuple[int | None, int], FindingLife] = {}
        for record in records:
            if len(active) == most:
                break
            key = (record.id, record.revision)
            life = lives[key] = before.get(key) or life_of(record)
            if life.speaks(now_ms):
                active.append((record, life))
        self._lives = lives
        return active


@dataclass
class _TeamSums:
    """The sums of one cluster. ``is_whole``: at some time, they were complete. ``folded`` are the days that
    were rolled up when the sums were begun."""

    folded: tuple[Window, ...] = ()
    starts: set[int] = field(default_factory=set)
    board_ms: Counter[tuple[str, Waste]] = field(default_factory=Counter)
    is_whole: bool = False
    at_once: int = _WINDOWS_AT_ONCE

    def add(self, found: FinalWaste, took_s: float) -> None:
        self.starts.update(found.starts)
        for (team, waste), board_ms in found.board_ms.items():
            self.board_ms[team or NO_TEAM, waste] += board_ms
        self.is_whole = self.is_whole or found.complete
        self.at_once = self.at_once * 2 if took_s < _PART_S else max(1, self.at_once // 2)


class WasteFamilies:
    """The waste ledger as counters: windows are added when they become final, and never taken away.

    After a start the whole ledger has to be added, which may take longer than a scrape may; until then a
    cluster has no series, so that no rate sees the catching up. Windows assessed again by then count with
    their new values, so across a start the total may fall a little: hence ``delta``, not ``increase``
    (docs/api.md).
    """

    def __init__(self, ledger: Ledger, rows: TeamRows) -> None:
        self._ledger, self._rows = ledger, rows
        self._lock = threading.Lock()
        self._sums: dict[str, _TeamSums] = {}

    def collect(self) -> Iterable[Metric]:
        """Raises LedgerError; what was added until then is kept."""
        stands: list[FamilySample] = []
        clusters = self._ledger.clusters()
        for cluster in clusters:
            extent = self._ledger.extent(cluster)
            if extent is None:
                continue
            found = self._ledger.assessed(extent, cluster)
            for name in ("final", "provisional", "missing"):
                stands.append(((cluster, name), getattr(found, name)))
        with self._lock:
            until = time.monotonic() + _SUMMING_S
            for cluster in clusters:
                if cluster not in self._sums:
                    self._sums[cluster] = _TeamSums(self._folded(cluster))
                self._add(cluster, self._sums[cluster], until)
            samples = list(self._samples())
        return [family(m.WASTE_WINDOWS, stands), family(m.WASTE, self._rows.fold(samples, 2))]

    def _add(self, cluster: str, sums: _TeamSums, until: float) -> None:
        while True:
            begun = time.monotonic()
            found = self._ledger.final_waste(cluster, sums.starts, most=sums.at_once)
            now = time.monotonic()
            if not sums.is_whole and (folded := self._folded(cluster)) != sums.folded:
                # A day counts with its first window: an earlier sum may hold a part of it.
                self._sums[cluster] = sums = _TeamSums(folded)
                if now >= until:
                    return
                continue
            sums.add(found, now - begun)
            if found.complete or now >= until:
                return

    def _folded(self, cluster: str) -> tuple[Window, ...]:
        extent = self._ledger.extent(cluster)
        return () if extent is None else self._ledger.folded_days(Scope(None, frozenset({cluster})), extent)

    def _samples(self) -> Iterator[FamilySample]:
        """Every bucket of every team, 0 too: a series that begins above 0 hides its first increase."""
        for cluster, sums in self._sums.items():
            if sums.is_whole:
                held = Counter[str]()
                for (team, _), board_ms in sums.board_ms.items():
                    held[team] += board_ms
                for team in sorted(held, key=lambda name: (-held[name], name)):
                    for waste in Waste:
                        yield (cluster, waste.value, team), sums.board_ms[team, waste] / SECOND_MS


def _live(ledger: Ledger) -> Iterator[FindingRecord]:
    """The dearest first. A finding whose cost changes between two pages appears once."""
    last: tuple[int | None, int] | None = None
    told: set[int] = set()
    while True:
        records = ledger.findings(EVERYTHING, states=LIVE, limit=MOST_PER_PAGE, after=last)
        for record in records:
            assert record.id is not None
            if record.id not in told:
                told.add(record.id)
                yield record
            last = (record.nano, record.id)
        if len(records) < MOST_PER_PAGE:
            return


def _labels(record: FindingRecord) -> tuple[str, ...]:
    return (
        *(record.cluster, record.pattern, record.variant, record.severity),
        *(record.team, record.subject_namespace, record.subject_kind, record.subject_name),
        str(record.id),
    )
