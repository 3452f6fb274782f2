"""Intervals x capacity x prices -> usage lines that add up.

``attribute`` is given the frames of one stretch of time (``ClusterFrames``: who held which units of which
node, what each node had, when it was observed), windows that follow one another, prices and team rules. It
gives one usage line per window, unit and holder: GPU milliseconds and nano-units of money, whole numbers.

The mechanism, in the order of the code:

1. ``segments`` cuts the time of each node wherever layout, price, team rules or observation change.
2. ``sweep`` counts, per kind of unit, how many units were held at every instant, and what was left over.
3. ``lines`` lets holders take slots in the order of their uids, and deals time and money to the slots
   (``apportion``). So nothing is rounded away, and the number and place of cuts change no total.
   Nodes have nothing to do with each other here: steps 2 and 3 are done for some nodes at a time, so that
   what they need meanwhile does not grow with the cluster (``MOST_ROWS``).
4. Measurements are laid on the lines of the time they were made in.
5. ``conservation`` computes capacity a second time, from nodes and prices alone: nodes that differ are
   problems.

Held + unallocated + unavailable + unknown = capacity holds by construction, in time and, where there is a
price, in money; over-committed time stands beside it and costs nothing. What cannot be computed is no 0 but a
problem with the GPU time it touches. Utilisation never changes what time cost.

Pure: no I/O, no clock. Called by ``attribute_windows`` in ``gpucost.service.ingest.batch_reader``, which
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
    line_frame,
    plain_slots,
    queued_slots,
    sum_parts,
)
from gpucost.attribution.segments import NodeKey, NodeSegments, SegmentBuilder
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

MOST_ROWS = 250_000
"""Intervals and segments that are made into lines at once, some hundred bytes each."""

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
    cells = LineCells.of(pieces, kinds, unit_of)
    intervals = _intervals(allocations, pieces, kinds, scope)
    dealer = SlotApportioner(pieces, kinds, cells, holders.of_bucket())
    group_of = _node_groups(len(pieces.nodes), kinds, intervals)
    sums, uncertain = _sums(intervals, dealer, holders, allocations[_ORDER], group_of)
    lines = line_frame(sums, cells)
    del sums
    group_of_unit = np.zeros(len(units), np.int64)
    group_of_unit[unit_of] = group_of[pieces.node[kinds.piece]]
    signals = _by_group(frames.signals, pieces.nodes, group_of)
    lines = _with_signals(lines, units, holders, signals, group_of_unit, builder.edges)
    is_unread = any(each.code is DataProblemCode.USE_UNREAD for each in frames.problems)
    problems = [
        *_of_windows(frames.problems, builder.edges),
        *((0, problem) for problem in refused),
        *pieces.problems,
        *uncounted(uncertain, units),
        *overcommitted(lines, units, holders),
        *unpriced(lines, units, pieces),
        *(() if is_unread else unmeasured(lines, units)),
        *unshared(allocations, intervals.row, pieces, windows),
        *not_conserved(lines, units, frames, scope, rates),
    ]
    located = tuple(sorted(set(problems), key=repr))
    return Attribution(windows, lines, units, holders, pieces.rates, located)


def _node_groups(nodes: int, kinds: KindSegments, intervals: AllocationIntervals) -> Ints:
    """The group of each node: neighbours with MOST_ROWS intervals and kind pieces in all, or about so."""
    line = np.concatenate([kinds.line_of(kinds.key), intervals.line])
    rows = np.bincount(kinds.node_of(line), minlength=nodes)
    before = np.cumsum(rows) - rows
    _, group = np.unique(before // MOST_ROWS, return_inverse=True)
    groups: Ints = group.astype(np.int64)
    return groups


def _sums(
    intervals: AllocationIntervals,
    dealer: SlotApportioner,
    holders: AllocationHolders,
    order: pd.DataFrame,
    group_of: Ints,
) -> tuple[list[LineParts], pd.DataFrame]:
    """The parts of lines, summed, of one group of nodes after the other; and ``_parts``' second result of
    all."""
    kinds, sums, uncertain = dealer.kinds, [], []
    group_of_piece = group_of[kinds.node_of(kinds.line_of(kinds.key))]
    group_of_interval = group_of[kinds.node_of(intervals.line)]
    for group in range(int(group_of.max(initial=0)) + 1):
        first, past = np.searchsorted(group_of_piece, [group, group + 1]).tolist()
        its = intervals.where(group_of_interval == group)
        parts, doubtful = _parts(its, dealer.between(first, past), holders, order)
        sums.append(sum_parts(parts, len(holders)))
        uncertain.append(doubtful)
    return sums, pd.concat(uncertain, ignore_index=True)


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
    return (frame if inside.all() else frame[inside]).reset_index(drop=True), problems


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


def _by_group(signals: pd.DataFrame, nodes: Sequence[NodeKey], group_of: Ints) -> list[pd.DataFrame]:
    """The rows of each group's nodes."""
    groups = int(group_of.max(initial=0)) + 1
    if groups == 1 or signals.empty:
        return [signals] * groups
    at = _positions(signals[["cluster", "node"]], nodes)
    group = np.where(at >= 0, group_of[at], -1)
    return [signals[group == number] for number in range(groups)]


def _with_signals(
    lines: pd.DataFrame,
    units: pd.DataFrame,
    holders: AllocationHolders,
    signals: Sequence[pd.DataFrame],
    group_of_unit: Ints,
    edges: Ints,
) -> pd.DataFrame:
    """``signals`` are by group, as ``group_of_unit`` says which group a line is of."""
    unit, measured = lines["unit"].to_numpy(), []
    is_held = lines["bucket"].to_numpy() == CODE_OF_BUCKET[Bucket.HELD]
    for group, its in enumerate(signals):
        rows = np.flatnonzero(is_held & (group_of_unit[unit] == group)) if len(its) else ()
        if not len(rows):
            continue
        held = lines.loc[rows, ["window", "unit", "holder", "board_ms"]]
        held["cluster"] = units["cluster"].to_numpy()[held["unit"].to_numpy()]
        held["node"] = units["node"].to_numpy()[held["unit"].to_numpy()]
        held["pod_uid"] = holders.frame["pod_uid"].to_numpy()[held["holder"].to_numpy()]
        measured.append(join_signals(held, its, edges))
    found = pd.concat(measured) if measured else pd.DataFrame()
    nothing = pd.Series(pd.NA, index=lines.index, dtype="Int64")
    for name in MEASURES:
        lines[name] = found[name].reindex(lines.index) if measured else nothing
    return lines
