"""The sweep over time: how many units of each kind were held at every moment, and what was left over.

Most nodes hand out whole GPUs, never over-committed and all of them advertised. There, what is left over is
capacity less what was held, and it does not matter who has which GPU. Such lines are *plain*; only the others
need the stretches in which the number of held units is constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.segments import (
    REMAINDER,
    KindLayout,
    NodeLayout,
    NodeSegments,
)
from gpucost.domain.buckets import Bucket
from gpucost.domain.gpu import UnitKind

# Codes of buckets in arrays, in the order of the enum.
CODE_OF_BUCKET = {bucket: code for code, bucket in enumerate(Bucket)}
BUCKETS = tuple(Bucket)

# 40 bits of milliseconds are 34 years, far beyond any scope that is attributed at once.
_TIME_BITS = 40
_TIME_MASK = (1 << _TIME_BITS) - 1


@dataclass(frozen=True)
class KindSegments:
    """Segments x the kinds of their layout, sorted by (node, resource), then time; parallel int64 arrays.

    ``key`` is ``line << 40 | start - origin``, where ``line`` numbers the (node, resource) pairs.
    """

    origin: int
    resources: tuple[str, ...]
    unit_kinds: tuple[UnitKind, ...]
    key: Ints
    piece: Ints
    end: Ints
    unit_kind: Ints
    units: Ints
    available: Ints
    width: Ints
    base: Ints
    den: Ints
    elastic: Flags
    uncounted: Flags

    def between(self, first: int, past: int) -> KindSegments:
        """The kind pieces ``[first, past)``: views."""
        cut: dict[str, Any] = {
            name: values[first:past] for name, values in vars(self).items() if isinstance(values, np.ndarray)
        }
        return replace(self, **cut)

    def line(self, node: Ints, resource: Ints) -> Ints:
        return node * len(self.resources) + resource

    def node_of(self, line: Ints) -> Ints:
        return line // max(len(self.resources), 1)

    def key_of(self, line: Ints, instant: Ints) -> Ints:
        return (line << _TIME_BITS) | (instant - self.origin)

    def line_of(self, key: Ints) -> Ints:
        return key >> _TIME_BITS

    def start_of(self, kind_piece: Ints) -> Ints:
        return (self.key[kind_piece] & _TIME_MASK) + self.origin


@dataclass(frozen=True)
class HeldIntervals:
    """Where the number of held units is constant, sorted; ``kind_piece`` is a position in KindSegments."""

    key: Ints
    kind_piece: Ints
    start: Ints
    end: Ints
    held: Ints


def kind_pieces(pieces: NodeSegments, origin: int) -> KindSegments:
    """Every segment once per kind of its layout, and once for the remainder of its GPUs."""
    kinds_of = [(*layout.kinds, *_remainder(layout)) for layout in pieces.layouts]
    flat = [kind for kinds in kinds_of for kind in kinds]
    unit_kinds = sorted({kind.unit for kind in flat}, key=repr)
    resources = tuple(sorted({kind.unit.resource for kind in flat}))
    position = {unit: i for i, unit in enumerate(unit_kinds)}
    sizes = np.array([len(kinds) for kinds in kinds_of], dtype=np.int64)
    first = np.cumsum(sizes) - sizes
    table = np.array(
        [
            (
                position[kind.unit],
                resources.index(kind.unit.resource),
                kind.units,
                kind.available,
                kind.width,
                kind.base,
                kind.den,
                kind.elastic,
                kind.elastic or kind.inferred,
            )
            for kind in flat
        ],
        dtype=np.int64,
    ).reshape(len(flat), 9)
    per_piece = sizes[pieces.layout] if len(sizes) else np.zeros(0, np.int64)
    piece = np.repeat(np.arange(len(pieces.start)), per_piece)
    row = expand(first[pieces.layout] if len(sizes) else per_piece, per_piece)
    key = (pieces.node[piece] * len(resources) + table[row, 1]) << _TIME_BITS | (pieces.start[piece] - origin)
    order = np.argsort(key)
    piece, row = piece[order], row[order]
    unit_kind, _, units, available, width, base, den, elastic, uncounted = table[row].T
    return KindSegments(
        origin=origin,
        resources=resources,
        unit_kinds=tuple(unit_kinds),
        key=key[order],
        piece=piece,
        end=pieces.end[piece],
        unit_kind=unit_kind,
        units=units,
        available=available,
        width=width,
        base=base,
        den=den,
        elastic=elastic.astype(bool),
        uncounted=uncounted.astype(bool),
    )


def expand(first: Ints, count: Ints) -> Ints:
    """``first[i], first[i] + 1, …`` for ``count[i]`` numbers, one after the other for every ``i``."""
    offset = np.cumsum(count) - count
    numbers: Ints = np.arange(int(count.sum()), dtype=np.int64) + np.repeat(first - offset, count)
    return numbers


def plain_lines(kinds: KindSegments, line: Ints, start: Ints, end: Ints, count: Ints) -> Flags:
    """Which (node, resource) lines are plain; indexed by line."""
    lines = int(max(kinds.line_of(kinds.key).max(initial=-1), line.max(initial=-1))) + 1
    plain = np.ones(lines, bool)
    odd = (kinds.den > 1) | kinds.elastic | (kinds.available < kinds.units)
    plain[kinds.line_of(kinds.key[odd])] = False
    fewest = np.full(lines, np.iinfo(np.int64).max)
    np.minimum.at(fewest, kinds.line_of(kinds.key), kinds.units)
    # Twice the key, so that what ends at an instant goes before what begins at it.
    key = np.concatenate([2 * kinds.key_of(line, end), 2 * kinds.key_of(line, start) + 1])
    order = np.argsort(key)
    held = np.cumsum(np.concatenate([-count, count])[order])
    at = np.concatenate([line, line])[order]
    plain[at[held > fewest[at]]] = False
    return plain


def sweep(
    kinds: KindSegments, line: Ints, start: Ints, end: Ints, count: Ints, plain: Flags
) -> HeldIntervals:
    """Held units over time on the lines that are not ``plain``.

    ``start``, ``end`` and ``count`` are intervals ``[start, end)`` of ``count`` units on their ``line``.
    """
    mine, looked_at = ~plain[line], np.flatnonzero(~plain[kinds.line_of(kinds.key)])
    line, start, end, count = line[mine], start[mine], end[mine], count[mine]
    key = np.concatenate([kinds.key[looked_at], kinds.key_of(line, start), kinds.key_of(line, end)])
    change = np.concatenate([np.zeros(len(looked_at), np.int64), count, -count])
    order = np.argsort(key)
    key = key[order]
    last_at_key = np.ones(len(key), bool)
    last_at_key[:-1] = key[1:] != key[:-1]
    held = np.cumsum(change[order])[last_at_key]
    kind_piece = looked_at[np.cumsum(order < len(looked_at))[last_at_key] - 1]
    key = key[last_at_key]
    begin = (key & _TIME_MASK) + kinds.origin
    until = kinds.end[kind_piece]
    same_line = np.zeros(len(key), bool)
    same_line[:-1] = kinds.line_of(key[1:]) == kinds.line_of(key[:-1])
    following = np.append(begin[1:], 0)
    until = np.where(same_line, np.minimum(until, following), until)
    real = begin < until
    return HeldIntervals(key[real], kind_piece[real], begin[real], until[real], held[real])


@dataclass(frozen=True)
class SlotBuckets:
    """Per kind piece: the bucket of slots that could be handed out, and of those that are missing.

    Unknown where the time was not observed; else unavailable where slots are missing or the node cannot be
    scheduled on, and unallocated otherwise.
    """

    free: Ints
    missing: Ints

    @classmethod
    def of(cls, pieces: NodeSegments, kinds: KindSegments) -> SlotBuckets:
        observed, schedulable = pieces.observed[kinds.piece], pieces.schedulable[kinds.piece]
        codes = [CODE_OF_BUCKET[layout.remainder_bucket] for layout in pieces.layouts]
        of_layout = np.array(codes, dtype=np.int64)
        remainders = np.array([kind.resource == REMAINDER for kind in kinds.unit_kinds], dtype=bool)
        unallocated = np.full(len(kinds.piece), CODE_OF_BUCKET[Bucket.UNALLOCATED])
        free = np.where(remainders[kinds.unit_kind], of_layout[pieces.layout[kinds.piece]], unallocated)
        unavailable, unknown = CODE_OF_BUCKET[Bucket.UNAVAILABLE], CODE_OF_BUCKET[Bucket.UNKNOWN]
        free = np.where(observed, np.where(schedulable, free, unavailable), unknown)
        return cls(free, np.where(observed, unavailable, unknown))


@dataclass(frozen=True)
class UnheldSlots:
    """What no pod held: parts of stretches by bucket, each a range of slots; sorted by ``kind_piece``."""

    bucket: Ints
    kind_piece: Ints
    start: Ints
    end: Ints
    slot_from: Ints
    slot_to: Ints


def leftovers(
    kinds: KindSegments, stretches: HeldIntervals, buckets: SlotBuckets
) -> tuple[UnheldSlots, UnheldSlots]:
    """Free slots: (those that could be handed out, those that are missing from what the node advertises)."""
    units, base, width = kinds.units, kinds.base, kinds.width
    held = np.minimum(stretches.held, units[stretches.kind_piece])
    free = np.flatnonzero(held < units[stretches.kind_piece])
    at = stretches.kind_piece[free]
    missing = np.minimum(units[at] - held[free], (units - kinds.available)[at])

    def part(which: Ints, low: Ints, high: Ints, bucket: Ints) -> UnheldSlots:
        here, stretch = at[which], free[which]
        slots = (base[here] + low[which] * width[here], base[here] + high[which] * width[here])
        return UnheldSlots(bucket[here], here, stretches.start[stretch], stretches.end[stretch], *slots)

    low, middle, high = held[free], units[at] - missing, units[at]
    return (
        part(np.flatnonzero(low < middle), low, middle, buckets.free),
        part(np.flatnonzero(missing), middle, high, buckets.missing),
    )


def _remainder(layout: NodeLayout) -> tuple[KindLayout, ...]:
    slots = layout.slots - layout.remainder_base
    if slots == 0:
        return ()
    unit = UnitKind(REMAINDER, layout.model, Fraction(1, layout.den))
    return (KindLayout(unit, slots, slots, 1, layout.remainder_base, layout.den),)
