"""Which slots each holder had, and when.

On plain lines (sweep.py) an interval is cut at pieces only: one board is like another. Slices, replicas and
over-committed boards go through stretches of constant occupation, where holders take slots in the order of
their uids: arbitrary, but the same in every window and from every source, which may clip intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags, Ints
from gpucost.attribution.pieces import union
from gpucost.attribution.sweep import KindPieces, Stretches, expand


@dataclass(frozen=True)
class Intervals:
    """Allocations inside the scope: parallel arrays, ``row`` being the position in the allocations frame."""

    row: Ints
    line: Ints
    start: Ints
    end: Ints
    count: Ints

    def where(self, flags: Flags) -> Intervals:
        return Intervals(
            self.row[flags],
            self.line[flags],
            self.start[flags],
            self.end[flags],
            self.count[flags],
        )


@dataclass(frozen=True)
class HeldResources:
    """Which resources pods hold on each node, and when (pieces.Held)."""

    allocations: pd.DataFrame

    @cached_property
    def resources(self) -> dict[tuple[str, str], frozenset[str]]:
        pairs = self.allocations[["cluster", "node", "resource"]].drop_duplicates()
        held: dict[tuple[str, str], set[str]] = {}
        for cluster, node, resource in pairs.itertuples(index=False):
            held.setdefault((cluster, node), set()).add(resource)
        return {key: frozenset(resources) for key, resources in held.items()}

    def when(self, key: tuple[str, str], resource: str) -> list[tuple[int, int]]:
        rows = self.allocations.take(self._rows[key])
        rows = rows[rows["resource"] == resource]
        starts, ends = union(rows["start_ms"].tolist(), rows["end_ms"].tolist())
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    @cached_property
    def _rows(self) -> dict[tuple[str, str], Ints]:
        groups = self.allocations.groupby(["cluster", "node"], observed=True, sort=False)
        order = np.argsort(groups.ngroup().to_numpy(), kind="stable")
        sizes = groups.size()
        ends = np.cumsum(sizes.to_numpy())
        keys = [(str(cluster), str(node)) for cluster, node in sizes.index.tolist()]
        return dict(zip(keys, np.split(order, ends[:-1]), strict=True)) if keys else {}


@dataclass(frozen=True)
class HeldSlots:
    """Slots held in a stretch; ``over`` marks those beyond what exists (over-commitment)."""

    row: Ints
    kind_piece: Ints
    start: Ints
    end: Ints
    slot_from: Ints
    slot_to: Ints
    over: Flags


def plain_slots(intervals: Intervals, kinds: KindPieces) -> HeldSlots:
    """Slots of intervals on plain lines."""
    first = np.searchsorted(kinds.key, kinds.key_of(intervals.line, intervals.start), side="right") - 1
    origin = np.full(len(first), kinds.origin)
    first = np.maximum(first, np.searchsorted(kinds.key, kinds.key_of(intervals.line, origin), side="left"))
    past = np.searchsorted(kinds.key, kinds.key_of(intervals.line, intervals.end), side="left")
    per_interval = np.maximum(past - first, 0)
    who = np.repeat(np.arange(len(intervals.row)), per_interval)
    at = expand(first, per_interval)
    return HeldSlots(
        intervals.row[who],
        at,
        np.maximum(intervals.start[who], kinds.start_of(at)),
        np.minimum(intervals.end[who], kinds.end[at]),
        np.zeros(len(at), np.int64),
        intervals.count[who],
        np.zeros(len(at), bool),
    )


def _both(one: HeldSlots, other: HeldSlots) -> HeldSlots:
    return HeldSlots(
        np.concatenate([one.row, other.row]),
        np.concatenate([one.kind_piece, other.kind_piece]),
        np.concatenate([one.start, other.start]),
        np.concatenate([one.end, other.end]),
        np.concatenate([one.slot_from, other.slot_from]),
        np.concatenate([one.slot_to, other.slot_to]),
        np.concatenate([one.over, other.over]),
    )


def queued_slots(
    intervals: Intervals, kinds: KindPieces, stretches: Stretches, ids: pd.DataFrame
) -> HeldSlots:
    """Slots of intervals on the other lines. ``ids`` are the allocations' columns that order holders."""
    first = np.searchsorted(stretches.key, kinds.key_of(intervals.line, intervals.start), side="left")
    past = np.searchsorted(stretches.key, kinds.key_of(intervals.line, intervals.end), side="left")
    who = np.repeat(np.arange(len(intervals.row)), past - first)
    stretch = expand(first, past - first)
    order = np.lexsort((_place(intervals, ids)[who], stretch))
    who, stretch = who[order], stretch[order]
    at = stretches.kind_piece[stretch]
    count = intervals.count[who]
    upto = np.cumsum(count)
    before_stretch = np.repeat(*_group_starts(stretch, upto - count))
    upto = upto - before_stretch
    since = upto - count
    units = np.where(kinds.elastic[at], np.iinfo(np.int64).max, kinds.units[at])

    def part(low: Ints, high: Ints, over: bool) -> HeldSlots:
        real = low < high
        here = at[real]
        return HeldSlots(
            intervals.row[who[real]],
            here,
            stretches.start[stretch[real]],
            stretches.end[stretch[real]],
            kinds.base[here] + low[real] * kinds.width[here],
            kinds.base[here] + high[real] * kinds.width[here],
            np.full(len(here), over),
        )

    within = part(np.minimum(since, units), np.minimum(upto, units), over=False)
    return _both(within, part(np.maximum(since, units), np.maximum(upto, units), over=True))


def _place(intervals: Intervals, ids: pd.DataFrame) -> Ints:
    """The place of each interval in the queue."""
    table = ids.iloc[intervals.row].astype("str").reset_index(drop=True)
    order = table.sort_values(list(table.columns), kind="stable").index.to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _group_starts(group: Ints, value: Ints) -> tuple[Ints, Ints]:
    """The first ``value`` of every run of equal ``group``, and how long each run is."""
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
    return value[first], np.diff(np.append(first, len(group)))
