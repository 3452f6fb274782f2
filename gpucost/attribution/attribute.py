"""Intervals x capacity x prices -> usage lines that add up.

``attribute`` is given the frames of one stretch of time (``ClusterFrames``: who held which units of which
node, what each node had, when it was observed), windows that follow one another, prices and team rules. It
gives one usage line per window, unit and holder: GPU milliseconds and nano-units of money, whole numbers.

The mechanism, in the order of the code:

1. ``segments`` cuts the time of each node wherever layout, price, team rules or observation change.
2. ``sweep`` counts, per kind of unit, how many units were held at every instant, and what was left over.
3. ``lines`` lets holders take slots in the order of their uids, and deals time and money to the slots
   (``apportion``). So nothing is rounded away, and the number and place of cuts change no total.
4. Measurements are laid on the lines of the time they were made in.
5. ``conservation`` computes capacity a second time, from nodes and prices alone: nodes that differ are
   problems.

Held + unallocated + unavailable + unknown = capacity holds by construction, in time and, where there is a
price, in money; over-committed time stands beside it and costs nothing. What cannot be computed is no 0 but a
problem with the GPU time it touches. Utilisation never changes what time cost.

Pure: no I/O, no clock. Called by ``attribute_windows`` in ``gpucost.service.ingest.pipeline``, which
ingestion, the waste ledger and ``gpucost doctor`` use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.conservation import (
    not_conserved,
    overcommitted,
    uncounted,
    unmeasured,
    unpriced,
    unshared,
)
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.lines import (
    MEASURES,
    AllocationIntervals,
    HeldResources,
    LineCells,
    LineParts,
    SlotApportioner,
    join_signals,
    plain_slots,
    queued_slots,
    sum_parts,
)
from gpucost.attribution.segments import NodeSegments, SegmentBuilder
from gpucost.attribution.sweep import (
    CODE_OF_BUCKET,
    KindSegments,
    SlotBuckets,
    kind_pieces,
    leftovers,
    plain_lines,
    sweep,
)
from gpucost.attribution.usage_lines import (
    HOLDER_NAMES,
    UNIT_NAMES,
    AllocationHolders,
    Attribution,
    TeamLookup,
)
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.rates import RateLookup
from gpucost.domain.time import EARLIEST_MS, LATEST_MS, Window

# Slots are taken in the order of uids, never of names: renaming a pod must not move a millisecond.
_ORDER = ["pod_uid", "count", *(name for name in HOLDER_NAMES if name != "pod_uid")]


def attribute(
    frames: ClusterFrames,
    windows: Sequence[Window],
    *,
    rates: RateLookup,
    teams: TeamLookup,
    catalog: ResourceCatalog | None = None,
    basis: ShareBasis = ShareBasis.COMPUTE,
) -> Attribution:
    """Attribute every millisecond of every GPU in ``windows`` to exactly one holder.

    ``windows`` must follow one another without a gap (InputError). For every node, unit kind and window,
    held + unallocated + unavailable + unknown = capacity in GPU milliseconds, and in nano-units where
    there is a price; over-committed time stands beside them and costs nothing, since capacity is paid for
    once. Totals do not depend on the windows' size, the order of rows, or other nodes.
    """
    windows = tuple(windows)
    _check_windows(windows)
    scope = Window(windows[0].start_ms, windows[-1].end_ms)
    changes = teams.changes(scope)
    allocations, refused = _inside(frames.allocations, scope)
    holders = AllocationHolders(allocations, teams, (scope.start_ms, *changes))
    builder = SegmentBuilder(windows, rates, catalog or ResourceCatalog(), basis, changes)
    pieces = builder.build(frames, HeldResources(allocations))
    kinds = kind_pieces(pieces, scope.start_ms)
    units, unit_of = _units(pieces, kinds, basis)
    cells = LineCells(pieces, kinds, unit_of)
    intervals = _intervals(allocations, pieces, kinds, scope)
    dealer = SlotApportioner(pieces, kinds, cells, holders.of_bucket())
    parts, uncertain = _parts(intervals, dealer, holders, allocations[_ORDER])
    lines = sum_parts(parts, cells, len(holders))
    lines = _with_signals(lines, units, holders, frames.signals, builder.edges)
    problems = [
        *_of_windows(frames.problems, builder.edges),
        *((0, problem) for problem in refused),
        *pieces.problems,
        *uncounted(uncertain, units),
        *overcommitted(lines, units, holders),
        *unpriced(lines, units, pieces),
        *unmeasured(lines, units),
        *unshared(allocations, intervals.row, pieces, windows),
        *not_conserved(lines, units, frames, scope, rates),
    ]
    located = tuple(sorted(set(problems), key=repr))
    return Attribution(windows, lines, units, holders, pieces.rates, located)


def _parts(
    intervals: AllocationIntervals, dealer: SlotApportioner, holders: AllocationHolders, order: pd.DataFrame
) -> tuple[LineParts, pd.DataFrame]:
    """All parts of lines, and (window, unit, board_ms) of what was held where the number of units is
    unknown."""
    kinds, cells = dealer.kinds, dealer.cells
    columns = (intervals.line, intervals.start, intervals.end, intervals.count)
    plain = plain_lines(kinds, *columns)
    stretches = sweep(kinds, *columns, plain)
    buckets = SlotBuckets.of(dealer.pieces, kinds)
    simple = plain_slots(intervals.where(plain[intervals.line]), kinds)
    queued = queued_slots(intervals.where(~plain[intervals.line]), kinds, stretches, order)
    whole = dealer.held(simple, holders.of(simple.row, simple.start))
    sliced = dealer.held(queued, holders.of(queued.row, queued.start))
    parts = whole + dealer.rest(
        np.flatnonzero(plain[kinds.line_of(kinds.key)]), whole, simple.kind_piece, buckets.free
    )
    for free in leftovers(kinds, stretches, buckets):
        parts += dealer.left_over(free)
    some = kinds.uncounted[queued.kind_piece]
    cell = sliced.cell[some]
    uncertain = {"window": cells.window[cell], "unit": cells.unit[cell], "board_ms": sliced.board_ms[some]}
    return parts + sliced, pd.DataFrame(uncertain)


def _of_windows(problems: Iterable[DataProblem], edges: Ints) -> Iterator[tuple[int, DataProblem]]:
    """A source's problems, each once in a window: what it says of several instants of one is added up."""
    found: dict[tuple[int, DataProblem], int | None] = {}
    for problem in problems:
        located = _window_of(problem, edges), replace(problem, board_ms=None)
        before = found.get(located)
        found[located] = before if problem.board_ms is None else (before or 0) + problem.board_ms
    for (window, problem), board_ms in found.items():
        yield window, replace(problem, board_ms=board_ms)


def _window_of(problem: DataProblem, edges: Ints) -> int:
    """The position of the window that a problem of the source belongs to: the first, where it has no
    instant."""
    if problem.at_ms is None:
        return 0
    return int(np.clip(np.searchsorted(edges, problem.at_ms, "right") - 1, 0, len(edges) - 2))


def _check_windows(windows: tuple[Window, ...]) -> None:
    if not windows:
        raise InputError("windows", (), "at least one window")
    for before, after in pairwise(windows):
        if before.end_ms != after.start_ms:
            raise InputError(
                "windows", str(after), f"windows without a gap: one that starts where {before} ends"
            )


def _inside(frame: pd.DataFrame, scope: Window) -> tuple[pd.DataFrame, list[DataProblem]]:
    """The rows inside the scope, and a problem for each row that makes no sense: those are not counted."""
    start, end, count = frame["start_ms"], frame["end_ms"], frame["count"]
    nonsense = (start > end) | (start < EARLIEST_MS) | (end > LATEST_MS) | (count < 1)
    problems = [
        DataProblem(
            DataProblemCode.INTERVAL_REFUSED,
            str(row.cluster),
            str(row.pod_uid),
            f"{row.count} x {row.resource} from {row.start_ms} to {row.end_ms} ms is not an interval",
        )
        for row in frame[nonsense].itertuples()
    ]
    inside = ~nonsense & (start < scope.end_ms) & (end > scope.start_ms) & (start < end)
    return frame[inside].reset_index(drop=True), problems


def _intervals(
    allocations: pd.DataFrame, pieces: NodeSegments, kinds: KindSegments, scope: Window
) -> AllocationIntervals:
    """Allocations whose resource has a known share, clipped to the scope."""
    node = _positions(allocations[["cluster", "node"]], pieces.nodes)
    resource = _positions(allocations[["resource"]], [(name,) for name in kinds.resources])
    known = np.unique(kinds.line_of(kinds.key))
    line = np.where(resource >= 0, kinds.line(node, resource), -1)
    start, end = allocations["start_ms"].to_numpy(), allocations["end_ms"].to_numpy()
    return AllocationIntervals(
        np.arange(len(allocations)),
        line,
        np.maximum(start, scope.start_ms),
        np.minimum(end, scope.end_ms),
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
        codes, values = column.cat.codes.to_numpy(), pd.Index(column.cat.categories)
    else:
        codes, values = pd.factorize(column)
    return uniques.get_indexer(values).astype(np.int64)[codes]


def _units(pieces: NodeSegments, kinds: KindSegments, basis: ShareBasis) -> tuple[pd.DataFrame, Ints]:
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


def _with_signals(
    lines: pd.DataFrame, units: pd.DataFrame, holders: AllocationHolders, signals: pd.DataFrame, edges: Ints
) -> pd.DataFrame:
    for name in MEASURES:
        lines[name] = pd.Series(pd.NA, index=lines.index, dtype="Int64")
    is_held = lines["bucket"] == CODE_OF_BUCKET[Bucket.HELD]
    if signals.empty or not is_held.any():
        return lines
    held = lines.loc[is_held, ["window", "unit", "holder", "board_ms"]]
    held["cluster"] = units["cluster"].to_numpy()[held["unit"].to_numpy()]
    held["node"] = units["node"].to_numpy()[held["unit"].to_numpy()]
    held["pod_uid"] = holders.frame["pod_uid"].to_numpy()[held["holder"].to_numpy()]
    measured = join_signals(held, signals, edges)
    for name in MEASURES:
        lines[name] = measured[name].reindex(lines.index)
    return lines
