"""From slots held and slots left over to usage lines: apportioning, pricing, and one row per natural key.

``plain_slots`` and ``queued_slots`` say which slots each holder had, and when. On plain lines (sweep.py) an
interval is cut at segments only: one GPU is like another. Slices, replicas and over-committed GPUs go through
stretches of constant occupation, where holders take slots in the order of their uids: arbitrary, but the same
in every window and from every source, which may clip intervals.

``join_signals`` adds utilisation: what was measured on a pod is laid on the lines of the time it held. A
signal row covers some time of one pod on one node. It is spread over the windows it touches by time, and
within a window over the pod's lines by GPU time. Where there is no row, the line's measures stay null: time
that was not observed is not time at 0 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import (
    Flags,
    Ints,
    deal_ms,
    deal_nano,
)
from gpucost.attribution.segments import NodeSegments, union
from gpucost.attribution.sweep import CODE_OF_BUCKET, HeldIntervals, KindSegments, UnheldSlots, expand
from gpucost.contract.frames import PEAKS, SIGNAL_MEASURES
from gpucost.domain.buckets import Bucket


@dataclass(frozen=True)
class AllocationIntervals:
    """Allocations inside the scope: parallel arrays, ``row`` being the position in the allocations frame."""

    row: Ints
    line: Ints
    start: Ints
    end: Ints
    count: Ints

    def where(self, flags: Flags) -> AllocationIntervals:
        if flags.all():
            return self
        return AllocationIntervals(
            self.row[flags],
            self.line[flags],
            self.start[flags],
            self.end[flags],
            self.count[flags],
        )


@dataclass(frozen=True)
class HeldResources:
    """Which resources pods hold on each node, and when (segments.PodHoldings)."""

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


def plain_slots(intervals: AllocationIntervals, kinds: KindSegments) -> HeldSlots:
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
    intervals: AllocationIntervals, kinds: KindSegments, stretches: HeldIntervals, ids: pd.DataFrame
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


def _place(intervals: AllocationIntervals, ids: pd.DataFrame) -> Ints:
    """The place of each interval in the queue."""
    table = ids.iloc[intervals.row, :2].astype("str").reset_index(drop=True)
    if table.duplicated().any():  # else the other columns decide nothing
        table = ids.iloc[intervals.row].astype("str").reset_index(drop=True)
    order = table.sort_values(list(table.columns), kind="stable").index.to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _group_starts(group: Ints, value: Ints) -> tuple[Ints, Ints]:
    """The first ``value`` of every run of equal ``group``, and how long each run is."""
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
    return value[first], np.diff(np.append(first, len(group)))


@dataclass(frozen=True)
class LineParts:
    """Parts of lines, parallel arrays: ``cell`` stands for (window, unit, rate), see LineCells."""

    cell: Ints
    holder: Ints
    bucket: Ints
    board_ms: Ints
    nano: Ints
    first_ms: Ints
    last_ms: Ints

    def __add__(self, other: LineParts) -> LineParts:
        return LineParts(
            *(np.concatenate([mine, its]) for mine, its in zip(self.arrays, other.arrays, strict=True))
        )

    @property
    def arrays(self) -> tuple[Ints, ...]:
        numbers = (self.board_ms, self.nano, self.first_ms, self.last_ms)
        return (self.cell, self.holder, self.bucket, *numbers)


@dataclass(frozen=True)
class LineCells:
    """Numbers the distinct (window, unit, rate) of all kind pieces; ``of_kind_piece`` says which is whose."""

    of_kind_piece: Ints
    window: Ints
    unit: Ints
    rate: Ints

    @classmethod
    def of(cls, pieces: NodeSegments, kinds: KindSegments, unit_of: Ints) -> Self:
        triple = [pieces.window[kinds.piece], unit_of, pieces.rate[kinds.piece]]
        order = np.lexsort(triple[::-1])
        ordered = np.stack([column[order] for column in triple]) if len(order) else np.zeros((3, 0), np.int64)
        new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))[: len(order)]
        of_kind_piece = np.empty(len(order), np.int64)
        of_kind_piece[order] = np.cumsum(new) - 1
        return cls(of_kind_piece, *ordered[:, new])


@dataclass(frozen=True)
class SlotApportioner:
    """Turns slots into parts of lines, for one set of segments.

    ``nobody`` is the pseudo-holder of each bucket that no pod is in.
    """

    pieces: NodeSegments
    kinds: KindSegments
    cells: LineCells
    nobody: Ints

    def between(self, first: int, past: int) -> Self:
        """For the kind pieces ``[first, past)``, which are to be all those of some nodes."""
        cells = replace(self.cells, of_kind_piece=self.cells.of_kind_piece[first:past])
        return replace(self, kinds=self.kinds.between(first, past), cells=cells)

    def held(self, held: HeldSlots, holder: Ints) -> LineParts:
        """Parts of pods; what is over-committed costs nothing, since capacity is paid for once."""
        board_ms, nano = self._deal(held)
        bucket = np.where(held.over, CODE_OF_BUCKET[Bucket.OVERCOMMITTED], CODE_OF_BUCKET[Bucket.HELD])
        nano = np.where(held.over, 0, nano)
        cell = self.cells.of_kind_piece[held.kind_piece]
        return LineParts(cell, holder, bucket, board_ms, nano, held.start, held.end)

    def left_over(self, free: UnheldSlots) -> LineParts:
        """Parts without a holder where there are stretches, summed per kind piece: they are many and
        short."""
        board_ms, nano = self._deal(free)
        at = free.kind_piece
        if not len(at):
            return self._of_nobody(at, free.bucket, board_ms, nano)
        runs = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
        sums = np.add.reduceat(board_ms, runs), np.add.reduceat(nano, runs)
        return self._of_nobody(at[runs], free.bucket[runs], *sums)

    def rest(self, plain: Ints, held: LineParts, at: Ints, bucket: Ints) -> LineParts:
        """Parts without a holder on plain lines: capacity of their kind pieces less what was ``held`` ``at``
        them.

        ``bucket`` is the bucket of every kind piece.
        """
        kinds, nothing = self.kinds, np.zeros(len(plain), np.int64)
        times = kinds.start_of(plain), kinds.end[plain]
        board_ms, nano = self._deal(
            HeldSlots(nothing, plain, *times, nothing, kinds.units[plain], nothing > 0)
        )
        taken_ms, taken_nano = np.zeros((2, len(kinds.key)), np.int64)
        np.add.at(taken_ms, at, held.board_ms)
        np.add.at(taken_nano, at, held.nano)
        board_ms, nano = board_ms - taken_ms[plain], nano - taken_nano[plain]
        free = np.flatnonzero(board_ms)
        return self._of_nobody(plain[free], bucket[plain[free]], board_ms[free], nano[free])

    def _of_nobody(self, at: Ints, bucket: Ints, board_ms: Ints, nano: Ints) -> LineParts:
        """Without a holder there is no first and last instant: the times are those of the kind piece."""
        cell, times = self.cells.of_kind_piece[at], (self.kinds.start_of(at), self.kinds.end[at])
        return LineParts(cell, self.nobody[bucket], bucket, board_ms, nano, *times)

    def _deal(self, slots: HeldSlots | UnheldSlots) -> tuple[Ints, Ints]:
        rates = [*(rate.nano_per_board_hour for rate in self.pieces.rates), 0]
        price_of = np.array(rates, dtype=np.int64)[self.pieces.rate[self.kinds.piece]]
        den, price = self.kinds.den[slots.kind_piece], price_of[slots.kind_piece]
        where = (slots.start, slots.end, slots.slot_from, slots.slot_to, den)
        return deal_ms(*where), deal_nano(*where, price)


def sum_parts(parts: LineParts, holders: int) -> LineParts:
    """One part per (cell, holder, bucket), in that order."""
    key = (parts.cell * (holders + 1) + parts.holder) * len(Bucket) + parts.bucket
    order = np.argsort(key)
    key = key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else order
    if len(first) < len(key):
        board_ms, nano = (np.add.reduceat(values[order], first) for values in (parts.board_ms, parts.nano))
        first_ms = np.minimum.reduceat(parts.first_ms[order], first)
        last_ms = np.maximum.reduceat(parts.last_ms[order], first)
    else:
        board_ms, nano = parts.board_ms[order], parts.nano[order]
        first_ms, last_ms = parts.first_ms[order], parts.last_ms[order]
    order = order[first]
    names = parts.cell[order], parts.holder[order], parts.bucket[order]
    return LineParts(*names, board_ms, nano, first_ms, last_ms)


def line_frame(groups: Sequence[LineParts], cells: LineCells) -> pd.DataFrame:
    """One row per (window, unit, holder, rate, bucket) with its measures; no price, no cost (null).

    ``groups`` are sums of the parts of groups of nodes, each in the order of its cells, which are its own.
    """
    cell = np.concatenate([group.cell for group in groups])
    order = np.argsort(cell, kind="stable")
    cell = cell[order]

    def column(name: str) -> Ints:
        values: Ints = np.concatenate([getattr(group, name) for group in groups])[order]
        return values

    bucket, rate = column("bucket"), cells.rate[cell]
    unpriced = (rate < 0) & (bucket != CODE_OF_BUCKET[Bucket.OVERCOMMITTED])
    columns = {
        "window": cells.window[cell],
        "unit": cells.unit[cell],
        "holder": column("holder"),
        "rate": rate,
        "bucket": bucket,
        "board_ms": column("board_ms"),
        "nano": pd.arrays.IntegerArray(column("nano"), unpriced),
        "first_ms": column("first_ms"),
        "last_ms": column("last_ms"),
    }
    return pd.DataFrame(columns, copy=False)


MEASURES = SIGNAL_MEASURES
# The time over which each amount was measured.
_AMOUNTS: Mapping[str, tuple[str, ...]] = {
    "observed_ms": ("busy_ms",),
    "sm_observed_ms": ("sm_active_ms",),
    "tensor_observed_ms": ("tensor_active_ms",),
    "memory_observed_ms": ("memory_total_mib_s", "memory_used_mib_s"),
    "energy_observed_ms": ("energy_mj",),
}
_CEILING = {
    "busy_ms": "observed_ms",
    "sm_active_ms": "sm_observed_ms",
    "tensor_active_ms": "tensor_observed_ms",
    "memory_used_mib_s": "memory_total_mib_s",
}
# Where the amount above the ceiling goes: on a shared GPU a pod may use more than its part of it.
_OVER = {"busy_ms": "busy_over_ms", "sm_active_ms": "sm_over_ms", "tensor_active_ms": "tensor_over_ms"}
_MEASURED = tuple(name for name in MEASURES if name not in _OVER.values())
_KEY = ["cluster", "node", "pod_uid", "window"]

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def join_signals(lines: pd.DataFrame, signals: pd.DataFrame, edges: Ints) -> pd.DataFrame:
    """The MEASURES of each line (same index as ``lines``), as nullable integers.

    ``lines`` has cluster, node, pod_uid, window and board_ms of held lines; ``edges`` are the window edges.
    No measure exceeds what it is a part of: observed time is at most held time (what was measured over the
    part that is cut goes with it), active time at most observed, with the rest beside it as time over.
    """
    per_window = _spread_over_windows(signals, edges)
    held = lines.groupby(_KEY, observed=True)["board_ms"].transform("sum").to_numpy("float64")
    joined = lines[_KEY].merge(per_window, how="left", on=_KEY, validate="many_to_one")
    measured = {name: joined[name].to_numpy("float64") for name in _MEASURED if name in joined}
    share = lines["board_ms"].to_numpy("float64") / np.where(held > 0, held, np.nan)
    found = {name: measured[name] for name in PEAKS if name in measured}
    for time, amounts in _AMOUNTS.items():
        seen = _time(measured, time)
        part = share if seen is None else share * _kept(held, seen)
        if time in measured:
            found[time] = measured[time] * part
        for name in (name for name in amounts if name in measured):
            limit = seen if name in _OVER else measured.get(_CEILING.get(name, ""))
            found |= _within(name, measured[name], limit, part)
    return _whole_numbers(found, lines)


def _time(measured: Mapping[str, Floats], name: str) -> Floats | None:
    """The time ``name``; a recording without one of its own read the tensor signal with the SM signal."""
    if name == "tensor_observed_ms" and "sm_observed_ms" in measured:
        own = measured.get(name)
        sm = measured["sm_observed_ms"]
        return sm if own is None else np.where(np.isnan(own), sm, own)
    return measured.get(name)


def _kept(held: Floats, seen: Floats) -> Floats:
    """The part of the observed time that fits into the held time: scrapes do not fall on a pod's ends."""
    return np.divide(held, seen, out=np.ones(len(seen)), where=seen > held)


def _within(name: str, amount: Floats, limit: Floats | None, part: Floats) -> dict[str, Floats]:
    """The amount up to its limit and, where there is a place for it, what is over."""
    amount = np.maximum(amount, 0.0)
    if limit is None:
        return {name: amount * part}
    over = np.where(np.isnan(limit), 0.0, np.maximum(amount - limit, 0.0))
    found = {name: (amount - over) * part}
    if name in _OVER:
        found[_OVER[name]] = over * part
    return found


def _whole_numbers(found: Mapping[str, Floats], lines: pd.DataFrame) -> pd.DataFrame:
    """Rounded, and under their ceilings after rounding too; nothing over is null."""
    board_ms = lines["board_ms"].to_numpy("float64")
    columns: dict[str, Floats] = {}
    for name in (*_AMOUNTS, *MEASURES):
        if name in found and name not in columns:
            limit = board_ms if name in _AMOUNTS else columns.get(_CEILING.get(name, ""))
            value = np.rint(np.maximum(found[name], 0.0))
            columns[name] = value if limit is None else np.where(value > limit, limit, value)
    result = pd.DataFrame(index=lines.index)
    for name in MEASURES:
        values = columns.get(name, np.full(len(lines), np.nan))
        missing = np.isnan(values) | ((values == 0) & (name in _OVER.values()))
        numbers = np.where(missing, 0.0, values).astype(np.int64)
        result[name] = pd.arrays.IntegerArray(numbers, missing)
    return result


def _spread_over_windows(signals: pd.DataFrame, edges: Ints) -> pd.DataFrame:
    """The measures that have a value anywhere, per pod, node and window."""
    lasts = signals["end_ms"] > signals["start_ms"]  # what has no length measured nothing
    is_inside = (signals["start_ms"] < edges[-1]) & (signals["end_ms"] > edges[0])
    inside = signals[lasts & is_inside].reset_index(drop=True)
    names = [name for name in _MEASURED if inside[name].notna().any()]
    start, end = inside["start_ms"].to_numpy(), inside["end_ms"].to_numpy()
    first = np.maximum(np.searchsorted(edges, start, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(edges, end, side="left"), len(edges) - 1)
    row = np.repeat(np.arange(len(inside)), last - first)
    window = expand(first, last - first)
    overlap = np.minimum(end[row], edges[window + 1]) - np.maximum(start[row], edges[window])
    weight = overlap / (end - start)[row]
    spread = inside.loc[row, ["cluster", "node", "pod_uid", *names]].reset_index(drop=True)
    added = [name for name in names if name not in PEAKS]
    spread[added] = spread[added].mul(weight, axis=0)
    spread["window"] = window
    grouped = spread.groupby(_KEY, observed=True)
    peaks = grouped[[name for name in names if name in PEAKS]].max()
    found: pd.DataFrame = pd.concat([grouped[added].sum(min_count=1), peaks], axis=1).reset_index()
    return found
