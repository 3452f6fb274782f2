"""Intervals x capacity x prices -> usage lines that add up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints, deal_ms, deal_nano
from gpucost.attribution.frames import Frames
from gpucost.attribution.held import HeldSlots, Intervals, held_slots
from gpucost.attribution.pieces import NodeKey, PieceBuilder, Pieces, RateLookup
from gpucost.attribution.result import HOLDER_NAMES, UNIT_NAMES, Attribution
from gpucost.attribution.signals import MEASURES, join_signals
from gpucost.attribution.sweep import (
    BUCKETS,
    CODE_OF_BUCKET,
    KindPieces,
    Leftovers,
    kind_pieces,
    leftovers,
    sweep,
)
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.holders import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.time import EARLIEST_MS, LATEST_MS, Window

# Who came first is decided by uid, never by name: renaming a pod must not move a millisecond.
_ARRIVAL = ["pod_uid", "resource", "count", "end_ms", *(name for name in HOLDER_NAMES if name != "pod_uid")]
_LINE_KEY = ["window", "unit", "holder", "rate", "bucket"]


class Teams(Protocol):
    """What attribution needs of team rules (attribution/teams.py)."""

    def assign(self, holders: pd.DataFrame, at_ms: int) -> pd.Series[str]: ...

    def changes(self, window: Window) -> tuple[int, ...]: ...


def attribute(
    frames: Frames,
    windows: Sequence[Window],
    *,
    rates: RateLookup,
    teams: Teams,
    catalog: ResourceCatalog | None = None,
    basis: ShareBasis = ShareBasis.COMPUTE,
) -> Attribution:
    """Attribute every millisecond of every board in ``windows`` to exactly one holder.

    ``windows`` must follow one another without a gap (InputError). For every node, unit kind and window,
    held + unallocated + unavailable + unknown = capacity in board milliseconds, and in nano-units where
    there is a price; over-committed time stands beside them and costs nothing, since capacity is paid for
    once. Totals do not depend on the windows' size, the order of rows, or other nodes.
    """
    windows = tuple(windows)
    _check_windows(windows)
    scope = Window(windows[0].start_ms, windows[-1].end_ms)
    changes = teams.changes(scope)
    allocations, problems = _inside(frames.allocations, scope)
    builder = PieceBuilder(windows, rates, catalog or ResourceCatalog(), basis, changes)
    pieces = builder.build(frames, _held_resources(allocations))
    kinds = kind_pieces(pieces, scope.start_ms)
    intervals = _intervals(allocations, pieces, kinds, scope)
    stretches = sweep(kinds, intervals.line, intervals.start, intervals.end, intervals.count)
    held = held_slots(intervals, kinds, stretches, allocations[_ARRIVAL])
    remainder = np.array(
        [CODE_OF_BUCKET[layout.remainder_bucket] for layout in pieces.layouts], dtype=np.int64
    )
    free = leftovers(pieces, kinds, stretches, remainder)
    units, unit_of = _units(pieces, kinds, basis)
    epochs = np.array(changes, dtype=np.int64)
    holders, holder_of = _holders(allocations, teams, [scope.start_ms, *changes])
    held_parts = _held_lines(held, pieces, kinds, unit_of, holder_of, epochs)
    free_parts = _free_lines(free, pieces, kinds, unit_of, len(holders) - len(HOLDER_OF_BUCKET))
    lines = _sum_lines(pd.concat([held_parts, free_parts], ignore_index=True))
    lines = _with_signals(lines, units, holders, frames.signals, builder.edges)
    problems += _overcommitted(lines, units, holders)
    problems += _uncounted(held_parts[kinds.elastic[held.kind_piece]], units)
    found = {*frames.problems, *pieces.problems, *problems}
    return Attribution(windows, lines, units, holders, pieces.rates, tuple(sorted(found, key=repr)))


def _check_windows(windows: tuple[Window, ...]) -> None:
    if not windows:
        raise InputError("windows", (), "at least one window")
    for before, after in pairwise(windows):
        if before.end_ms != after.start_ms:
            raise InputError(
                "windows", str(after), f"windows without a gap: one that starts where {before} ends"
            )


def _inside(frame: pd.DataFrame, scope: Window) -> tuple[pd.DataFrame, list[Problem]]:
    """The rows that touch the scope, and a problem for each that makes no sense: those are not counted."""
    start, end, count = frame["start_ms"], frame["end_ms"], frame["count"]
    nonsense = (start > end) | (start < EARLIEST_MS) | (end > LATEST_MS) | (count < 1)
    problems = [
        Problem(
            ProblemCode.INTERVAL_REFUSED,
            str(row.cluster),
            str(row.pod_uid),
            f"{row.count} x {row.resource} from {row.start_ms} to {row.end_ms} ms is not an interval",
        )
        for row in frame[nonsense].itertuples()
    ]
    inside = ~nonsense & (start < scope.end_ms) & (end > scope.start_ms) & (start < end)
    return frame[inside].reset_index(drop=True), problems


def _held_resources(allocations: pd.DataFrame) -> dict[NodeKey, frozenset[str]]:
    pairs = allocations[["cluster", "node", "resource"]].drop_duplicates()
    held: dict[NodeKey, set[str]] = {}
    for cluster, node, resource in pairs.itertuples(index=False):
        held.setdefault((cluster, node), set()).add(resource)
    return {key: frozenset(resources) for key, resources in held.items()}


def _intervals(allocations: pd.DataFrame, pieces: Pieces, kinds: KindPieces, scope: Window) -> Intervals:
    """Allocations whose resource has a known share, clipped to the scope."""
    node = _positions(allocations[["cluster", "node"]], pieces.nodes)
    resource = _positions(allocations[["resource"]], [(name,) for name in kinds.resources])
    known = np.unique(kinds.line_of(kinds.key))
    line = np.where(resource >= 0, kinds.line(node, resource), -1)
    start, end = allocations["start_ms"].to_numpy(), allocations["end_ms"].to_numpy()
    return Intervals(
        np.arange(len(allocations)),
        line,
        np.maximum(start, scope.start_ms),
        np.minimum(end, scope.end_ms),
        start,
        allocations["count"].to_numpy(),
    ).where(np.isin(line, known))


def _positions(columns: pd.DataFrame, values: Sequence[tuple[str, ...]]) -> Ints:
    """The position in ``values`` of each row, -1 where it is not among them."""
    names = list(columns.columns)
    table = pd.DataFrame(list(values), columns=names, dtype="str")
    codes = np.full(len(columns), 0, np.int64)
    wanted = np.full(len(table), 0, np.int64)
    for name in names:
        uniques = pd.Index(table[name].unique())
        codes = codes * (len(uniques) + 1) + _codes(columns[name], uniques) + 1
        wanted = wanted * (len(uniques) + 1) + _codes(table[name], uniques) + 1
    return pd.Index(wanted).get_indexer(pd.Index(codes)).astype(np.int64)


def _codes(column: pd.Series[str], uniques: pd.Index[str]) -> Ints:
    if column.dtype.name == "category":
        of_category = uniques.get_indexer(pd.Index(column.cat.categories))
        return of_category.astype(np.int64)[column.cat.codes.to_numpy()]
    return uniques.get_indexer(pd.Index(column)).astype(np.int64)


def _units(pieces: Pieces, kinds: KindPieces, basis: ShareBasis) -> tuple[pd.DataFrame, Ints]:
    """The units frame, and the unit of every kind piece."""
    pair = pieces.place[kinds.piece] * len(kinds.unit_kinds) + kinds.unit_kind
    distinct, unit_of = np.unique(pair, return_inverse=True)
    rows = []
    for value in distinct.tolist():
        place = pieces.places[value // len(kinds.unit_kinds)]
        unit = kinds.unit_kinds[value % len(kinds.unit_kinds)]
        rows.append(
            (
                place.cluster,
                place.node,
                unit.resource,
                unit.model,
                unit.profile,
                unit.share.numerator,
                unit.share.denominator,
                basis.value,
                place.instance_type,
                place.capacity_type,
                place.region,
                place.zone,
                place.pool,
            )
        )
    return pd.DataFrame(rows, columns=UNIT_NAMES), unit_of.astype(np.int64)


def _holders(allocations: pd.DataFrame, teams: Teams, epochs: list[int]) -> tuple[pd.DataFrame, Ints]:
    """The holders frame, and the holder of (epoch of the team rules x allocation row).

    Rows of one pod with the same attributes are one holder. The last three holders are nobody.
    """
    same_as = _first_with_same_attributes(allocations)
    distinct, position = np.unique(same_as, return_inverse=True)
    people = allocations[HOLDER_NAMES].take(distinct).reset_index(drop=True)
    frames = []
    for epoch in epochs:
        teamed = people.copy()
        teamed["team"] = teams.assign(people, epoch).to_numpy() if len(people) else pd.Series(dtype="str")
        frames.append(teamed)
    nobody = pd.DataFrame(
        [
            {**dict.fromkeys(HOLDER_NAMES, ""), "pod_uid": name, "team": name}
            for name in HOLDER_OF_BUCKET.values()
        ]
    )
    holder_of = np.stack([position + i * len(people) for i in range(len(epochs))])
    return pd.concat([*(frame for frame in frames if len(frame)), nobody], ignore_index=True), holder_of


def _first_with_same_attributes(allocations: pd.DataFrame) -> Ints:
    """For each row, the first row that names the same holder. Most pods have one row: they cost nothing."""
    row = np.arange(len(allocations))
    pod, _ = pd.factorize(allocations["pod_uid"])
    several = np.flatnonzero(np.bincount(pod, minlength=1)[pod] > 1) if len(pod) else row
    if len(several):
        part = allocations[HOLDER_NAMES].take(several).astype("str")
        group = part.groupby(HOLDER_NAMES, sort=False).ngroup().to_numpy()
        _, first = np.unique(group, return_index=True)
        row[several] = several[first[group]]
    return row


def _held_lines(
    held: HeldSlots, pieces: Pieces, kinds: KindPieces, unit_of: Ints, holder_of: Ints, epochs: Ints
) -> pd.DataFrame:
    epoch = np.searchsorted(epochs, held.start, side="right")
    bucket = np.where(held.over, CODE_OF_BUCKET[Bucket.OVERCOMMITTED], CODE_OF_BUCKET[Bucket.HELD])
    lines = _dealt(held, pieces, kinds, unit_of, bucket, holder_of[epoch, held.row])
    lines.loc[held.over, "nano"] = 0
    return lines


def _free_lines(
    free: Leftovers, pieces: Pieces, kinds: KindPieces, unit_of: Ints, first: int
) -> pd.DataFrame:
    """``first`` is the position of the first of the holders that are nobody."""
    position = {bucket: first + i for i, bucket in enumerate(HOLDER_OF_BUCKET)}
    holder = np.array([position.get(bucket, -1) for bucket in BUCKETS], dtype=np.int64)[free.bucket]
    return _dealt(free, pieces, kinds, unit_of, free.bucket, holder)


def _dealt(
    slots: HeldSlots | Leftovers, pieces: Pieces, kinds: KindPieces, unit_of: Ints, bucket: Ints, holder: Ints
) -> pd.DataFrame:
    at = slots.kind_piece
    piece, den = kinds.piece[at], kinds.den[at]
    rate = pieces.rate[piece]
    price = np.array([*(rate.nano_per_board_hour for rate in pieces.rates), 0], dtype=np.int64)[rate]
    where = (slots.start, slots.end, slots.slot_from, slots.slot_to, den)
    return pd.DataFrame(
        {
            "window": pieces.window[piece],
            "unit": unit_of[at],
            "holder": holder,
            "rate": rate,
            "bucket": bucket,
            "board_ms": deal_ms(*where),
            "nano": deal_nano(*where, price),
            "first_ms": slots.start,
            "last_ms": slots.end,
        }
    )


def _sum_lines(parts: pd.DataFrame) -> pd.DataFrame:
    """One row per natural key, sorted by it; cost is null where there is no price."""
    grouped = parts.groupby(_LINE_KEY, as_index=False)
    lines = grouped.agg({"board_ms": "sum", "nano": "sum", "first_ms": "min", "last_ms": "max"})
    free_of_charge = lines["bucket"] == CODE_OF_BUCKET[Bucket.OVERCOMMITTED]
    lines["nano"] = lines["nano"].astype("Int64").where((lines["rate"] >= 0) | free_of_charge)
    return lines


def _with_signals(
    lines: pd.DataFrame, units: pd.DataFrame, holders: pd.DataFrame, signals: pd.DataFrame, edges: Ints
) -> pd.DataFrame:
    for name in MEASURES:
        lines[name] = pd.Series(pd.NA, index=lines.index, dtype="Int64")
    is_held = lines["bucket"] == CODE_OF_BUCKET[Bucket.HELD]
    if signals.empty or not is_held.any():
        return lines
    held = lines.loc[is_held, ["window", "unit", "holder", "board_ms"]]
    held["cluster"] = units["cluster"].to_numpy()[held["unit"].to_numpy()]
    held["node"] = units["node"].to_numpy()[held["unit"].to_numpy()]
    held["pod_uid"] = holders["pod_uid"].to_numpy()[held["holder"].to_numpy()]
    measured = join_signals(held, signals, edges)
    lines.loc[is_held, list(MEASURES)] = measured
    return lines


def _overcommitted(lines: pd.DataFrame, units: pd.DataFrame, holders: pd.DataFrame) -> list[Problem]:
    over = lines[lines["bucket"] == CODE_OF_BUCKET[Bucket.OVERCOMMITTED]]
    total = over.groupby(["unit", "holder"], as_index=False)["board_ms"].sum()
    problems = []
    for unit, holder, ms in total.to_numpy().tolist():
        place, who = units.iloc[unit], holders.iloc[holder]
        detail = f"{who['namespace']}/{who['pod']} held {place['resource']} beyond what the node has"
        problems.append(
            Problem(ProblemCode.OVERCOMMITTED, str(place["cluster"]), str(place["node"]), detail, ms)
        )
    return problems


def _uncounted(held: pd.DataFrame, units: pd.DataFrame) -> list[Problem]:
    """Time held where nothing says how many units there are: billed, but what was free cannot be known."""
    problems = []
    for unit, ms in held.groupby("unit", as_index=False)["board_ms"].sum().to_numpy().tolist():
        place = units.iloc[unit]
        detail = f"count unknown: nothing says how many {place['resource']} the node had while pods held some"
        problems.append(
            Problem(ProblemCode.COUNT_UNKNOWN, str(place["cluster"]), str(place["node"]), detail, ms)
        )
    return problems
