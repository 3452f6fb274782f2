"""What the rows of a few GPUs say of one stretch of time: where they idled, and how well it was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpucost.attribution.deal import Ints
from gpucost.detectors.activity import Floats
from gpucost.detectors.coverage import Watched, covered_runs
from gpucost.detectors.findings import Episode
from gpucost.detectors.rules.claims import claims
from gpucost.detectors.rules.idle_stretches import IdleRows
from gpucost.detectors.rules.workloads import Workloads
from gpucost.domain.waste import Waste


@dataclass(frozen=True)
class Slot:
    """One GPU in ``[start, end)``, after its pod's grace. ``series`` is -1 where nobody measured it, else its
    rows are ``[first, last)``."""

    pod: int
    series: int
    start: int
    end: int
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Span:
    """Rows of some slots that say "idle", cut to their slots: parallel arrays, by slot, then time."""

    slots: Sequence[Slot]
    slot: Ints
    row: Ints
    start: Ints
    end: Ints
    held_ms: Floats
    contradicted: int
    """How many quiet rows the power contradicts; they are not among these."""

    @property
    def begin_ms(self) -> int:
        return int(self.start.min())

    @property
    def end_ms(self) -> int:
        return int(self.end.max())

    @property
    def gpus(self) -> int:
        return len(self.slots)

    def coverage(self) -> float:
        """The seen part of the stretch, of the GPU that was seen least: 0 to 1.

        A GPU that joined late is measured against the whole stretch, so that its first minutes weigh little.
        """
        begin, end = self.begin_ms, self.end_ms
        seen = np.bincount(self.slot, weights=self.end - self.start, minlength=len(self.slots))
        start = np.array([max(slot.start, begin) for slot in self.slots])
        close = np.array([min(slot.end, end) for slot in self.slots])
        unseen = np.maximum(close - start, 0) - seen
        return float(1 - unseen.max() / (end - begin))

    def covered_runs(self, needed_ms: int, latest_ms: int | None = None) -> list[tuple[int, int]]:
        """The union of all stretches of ``needed_ms`` (begun by ``latest_ms``) in which each GPU was seen for
        at least ``LEAST_COVERAGE`` of the time that it was held (``coverage.covered_runs``)."""
        if not len(self.row):
            return []
        return covered_runs(
            [
                Watched(slot.start, slot.end, self.start[mine], self.end[mine])
                for n, slot in enumerate(self.slots)
                for mine in [self.slot == n]
            ],
            self.begin_ms,
            self.end_ms,
            needed_ms,
            latest_ms,
        )

    def without(self, spans: Sequence[tuple[int, int]]) -> Span:
        """What of it lies in none of ``spans``: rows are cut there."""
        found = self
        for start, end in spans:
            found = found._around(start, end)
        return found

    def _around(self, start_ms: int, end_ms: int) -> Span:
        before, after = np.minimum(self.end, start_ms), np.maximum(self.start, end_ms)
        start = np.concatenate([self.start, after])
        end = np.concatenate([before, self.end])
        row, slot = np.tile(self.row, 2), np.tile(self.slot, 2)
        held = np.tile(self.held_ms / (self.end - self.start), 2) * (end - start)
        keep = np.flatnonzero(start < end)
        keep = keep[np.lexsort([start[keep], slot[keep]])]
        return Span(self.slots, slot[keep], row[keep], start[keep], end[keep], held[keep], self.contradicted)

    def episodes(self, table: Workloads, cluster: str, waste: Waste) -> tuple[Episode, ...]:
        """Claims on the idle rows: one per pod and stretch that GPUs of it have in common."""
        pods = np.array([slot.pod for slot in self.slots], np.int64)[self.slot]
        return claims(table, cluster, waste, pods, self.slot, self.start, self.end, self.held_ms)


def span(idle: IdleRows, slots: Sequence[Slot]) -> Span:
    """What the rows of ``slots`` say."""
    activity = idle.table.activity
    parts = [np.arange(slot.first, slot.last, dtype=np.int64) for slot in slots]
    number = np.repeat(np.arange(len(slots)), [len(part) for part in parts]).astype(np.int64)
    row = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    start = np.maximum(activity.start[row], np.array([slot.start for slot in slots], np.int64)[number])
    end = np.minimum(activity.end[row], np.array([slot.end for slot in slots], np.int64)[number])
    inside = (start < end) & idle.quiet(row)
    against = inside & idle.contradicted(row)
    keep = inside & ~against
    row, number, start, end = row[keep], number[keep], start[keep], end[keep]
    # The pod may have begun or ended within the row: what it held lies in the part that was its own.
    pod = np.array([slot.pod for slot in slots], np.int64)[number]
    own = np.minimum(activity.end[row], idle.table.end[pod])
    own = own - np.maximum(activity.start[row], idle.table.start[pod])
    held = activity.values["held_ms"][row] * (end - start) / own
    return Span(slots, number, row, start, end, held, int(against.sum()))
