"""The proof: capacity computed a second time, from nodes and prices alone, beside the sum of all lines.

``capacity`` multiplies the GPUs of each node by the time it existed and by the price of a GPU-hour, per span
of prices: GPU milliseconds and nano-units. ``difference`` subtracts the lines, node by node, and must be 0 in
both. Nothing in these two looks at allocations, layouts or pieces, so that an error there cannot hide here.
It is a proof for each node, not for a total: two errors of opposite sign would otherwise cancel.

What it cannot see: a node that the source does not know, a price that is wrong in the book (both would be
wrong on both sides), and time in the wrong bucket, which is what the tests of attribution are for. A node
whose GPUs nothing counted has no capacity to compare with: it is named under ``uncounted``.

The second half tells what attribution could not compute, or only in part, per window and with the GPU time
it touches: units held beyond what a node has (``overcommitted``), time billed where no count is known
(``uncounted``), units of an unknown share (``unshared``), GPU time without a price (``unpriced``), use that
nobody measured (``unmeasured``), and nodes that fail the proof (``not_conserved``). They become problems in
the ledger and in reports.

``attribution.attribute`` calls the second half at the end of every attribution, ``not_conserved`` included.
``gpucost.service.wiring.demo_month`` calls ``difference`` over a whole month out of the ledger: the last line
of the demo, ``conservation: difference 0 GPU-ms, 0 nano-USD``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import loads
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.segments import NodeSegments
from gpucost.attribution.sweep import BUCKETS, CODE_OF_BUCKET
from gpucost.attribution.usage_lines import AllocationHolders
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.gpu import NVIDIA_RESOURCES, parse_product
from gpucost.domain.rates import NodeFacts, RateLookup
from gpucost.domain.time import HOUR_MS, Window


@dataclass(frozen=True, slots=True)
class ConservationDifference:
    """How far lines are from capacity: absolute differences, added over all nodes.

    ``nodes`` names those that differ. ``uncounted`` ones (cluster/node) have no GPU count for some of the
    time, or pods beyond the time for which the node is known: there is no capacity to compare with.
    """

    board_ms: int
    nano: int
    nodes: tuple[str, ...]
    uncounted: tuple[str, ...]

    @property
    def is_zero(self) -> bool:
        return self.board_ms == 0 and self.nano == 0


def difference(
    by_bucket: pd.DataFrame, frames: ClusterFrames, scope: Window, rates: RateLookup
) -> ConservationDifference:
    """Compare lines with capacity, node by node.

    ``by_bucket`` has cluster, node, model, bucket, board_ms and nano (as Ledger.aggregate returns them); of
    ``frames`` only the nodes are used. What it cannot detect: a node that the source does not know, a wrong
    price, and time in the wrong bucket; the first two would be wrong on both sides, the last is covered by
    the tests of attribution.
    """
    expected, uncounted = capacity(frames, scope, rates)
    found: dict[str, tuple[int, int]] = {}
    columns = (by_bucket[name].tolist() for name in ("cluster", "node", "model", "bucket", "board_ms"))
    nanos = by_bucket["nano"].astype(object).where(by_bucket["nano"].notna(), 0).tolist()
    for cluster, node, model, bucket, board_ms, nano in zip(*columns, nanos, strict=True):
        key = f"{cluster}/{node}"
        if not model:
            uncounted.add(key)
        if Bucket(bucket).is_capacity:
            ms, cost = found.get(key, (0, 0))
            found[key] = (ms + int(board_ms), cost + int(nano))
    off = {}
    for key in sorted((expected.keys() | found.keys()) - uncounted):
        (ms, cost), (its_ms, its_cost) = found.get(key, (0, 0)), expected.get(key, (0, 0))
        if (ms, cost) != (its_ms, its_cost):
            off[key] = (abs(ms - its_ms), abs(cost - its_cost))
    total_ms, total_nano = sum(ms for ms, _ in off.values()), sum(cost for _, cost in off.values())
    return ConservationDifference(total_ms, total_nano, tuple(off), tuple(sorted(uncounted)))


def capacity(
    frames: ClusterFrames, scope: Window, rates: RateLookup
) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """(cluster/node -> GPU milliseconds and nano-units where there is a price, nodes without a GPU count)."""
    total: dict[str, tuple[int, int]] = {}
    uncounted: set[str] = set()
    for row in frames.nodes.to_dict("records"):
        start, end = max(int(row["start_ms"]), scope.start_ms), min(int(row["end_ms"]), scope.end_ms)
        if start >= end:
            continue
        key, boards = f"{row['cluster']}/{row['node']}", int(row["boards"])
        if boards <= 0:
            uncounted.add(key)
            continue
        ms, nano = total.get(key, (0, 0))
        nano += sum(boards * earned for earned in _earned(row, Window(start, end), rates))
        total[key] = (ms + boards * (end - start), nano)
    return total, uncounted


def _earned(row: dict[Hashable, Any], time: Window, rates: RateLookup) -> Iterator[int]:
    """Nano-units of one GPU, per span of prices."""
    facts = NodeFacts(
        row["cluster"],
        row["node"],
        parse_product(row["product"]).model,
        int(row["boards"]),
        row["instance_type"],
        row["capacity_type"],
        row["region"],
        row["zone"],
        row["pool"],
        loads(row["labels"] or "{}"),
    )
    for span in rates(facts, time):
        if span.rate is not None:
            price = span.rate.nano_per_board_hour
            yield price * span.end_ms // HOUR_MS - price * span.start_ms // HOUR_MS


Located = tuple[int, DataProblem]


def overcommitted(lines: pd.DataFrame, units: pd.DataFrame, holders: AllocationHolders) -> list[Located]:
    """Units held beyond what a node has, per pod."""
    over = lines[lines["bucket"] == CODE_OF_BUCKET[Bucket.OVERCOMMITTED]]
    if over.empty:
        return []
    total = over.groupby(["window", "unit", "holder"], as_index=False)["board_ms"].sum()
    found = []
    for window, unit, holder, ms in total.to_numpy().tolist():
        place, who = units.iloc[unit], holders.frame.iloc[holder]
        detail = f"{who['namespace']}/{who['pod']} held {place['resource']} beyond what the node has"
        found.append(
            (window, DataProblem(DataProblemCode.OVERCOMMITTED, place["cluster"], place["node"], detail, ms))
        )
    return found


def uncounted(held: pd.DataFrame, units: pd.DataFrame) -> list[Located]:
    """Time held where the number of units is unknown: billed, but what was free cannot be known.

    ``held`` has window, unit and board_ms of that time.
    """
    if held.empty:
        return []
    found = []
    total = held.groupby(["window", "unit"], as_index=False)["board_ms"].sum()
    for window, unit, ms in total.to_numpy().tolist():
        place = units.iloc[unit]
        detail = f"count unknown: nothing says how many {place['resource']} the node had while pods held some"
        found.append(
            (window, DataProblem(DataProblemCode.COUNT_UNKNOWN, place["cluster"], place["node"], detail, ms))
        )
    return found


def unshared(
    allocations: pd.DataFrame, attributed: Ints, pieces: NodeSegments, windows: Sequence[Window]
) -> list[Located]:
    """Pods whose units are an unknown share of a GPU: their time is on no line, so it is reported as a
    problem.

    ``attributed`` are the rows of ``allocations`` that are on lines.
    """
    blind = {(p.cluster, p.subject) for _, p in pieces.problems if p.code is DataProblemCode.UNIT_UNKNOWN}
    if not blind:
        return []
    left_out = allocations[~np.isin(np.arange(len(allocations)), attributed)]
    found = []
    for row in left_out.to_dict("records"):
        if (row["cluster"], row["node"]) not in blind:
            continue
        for at, window in enumerate(windows):
            if held_ms := window.overlap_ms(row["start_ms"], row["end_ms"]):
                what = f"{row['count']} x {row['resource']} on {row['node']} for {held_ms} ms"
                detail = f"{row['namespace']}/{row['pod']} held {what}: share of a board unknown, not billed"
                found.append(
                    (at, DataProblem(DataProblemCode.UNIT_UNKNOWN, row["cluster"], row["pod_uid"], detail))
                )
    return found


def not_conserved(
    lines: pd.DataFrame, units: pd.DataFrame, frames: ClusterFrames, scope: Window, rates: RateLookup
) -> list[Located]:
    """Nodes whose lines do not add up to what their GPUs and prices come to: every attribution is checked."""
    sums = lines.groupby(["unit", "bucket"])[["board_ms", "nano"]].sum().reset_index()
    names = pd.Series([bucket.value for bucket in BUCKETS], dtype="str")
    by_bucket = sums.assign(bucket=names.take(sums["bucket"].to_numpy()).to_numpy())
    by_bucket = by_bucket.join(units[["cluster", "node", "model"]], on="unit")
    found = difference(by_bucket, frames, scope, rates)
    detail = f"lines and capacity differ: {found.board_ms} board ms, {found.nano} nano-units in all"
    places = (key.partition("/") for key in found.nodes)
    return [
        (0, DataProblem(DataProblemCode.NOT_CONSERVED, cluster, node, detail)) for cluster, _, node in places
    ]


def unpriced(lines: pd.DataFrame, units: pd.DataFrame, pieces: NodeSegments) -> list[Located]:
    """GPU time without a price, per model and instance type; never a default in its place."""
    capacity = lines["bucket"] != CODE_OF_BUCKET[Bucket.OVERCOMMITTED]
    part = lines.loc[(lines["rate"] < 0) & capacity, ["window", "unit", "board_ms"]]
    if part.empty:
        return []
    key = ["cluster", "model", "instance_type"]
    named = part.join(units[key], on="unit")
    found = []
    total = named.groupby(["window", *key])["board_ms"].sum().reset_index()
    for row in total.to_dict("records"):
        what = (row["cluster"], row["model"], row["instance_type"])
        reason = pieces.no_price.get(what, "nothing says what this node is, so no price can be looked up")
        subject = row["model"] or "unknown model"
        problem = DataProblem(DataProblemCode.PRICE_MISSING, row["cluster"], subject, reason, row["board_ms"])
        found.append((row["window"], problem))
    return found


_ENOUGH = 3, 4
_UNMEASURED: Mapping[str, str] = {
    "amd": (
        "use of AMD GPUs that is not measured: no series of device-metrics-exporter, or none for these "
        "units; of a GPU in partitions it measures the first one only"
    ),
    "": "use of GPUs that is not measured: no series that are read tell it of the pods that held them",
}


def unmeasured(lines: pd.DataFrame, units: pd.DataFrame) -> list[Located]:
    """GPU time held of GPUs of other makers than NVIDIA whose use nobody measured, by resource: there it is
    unknown, and not 0. Lines of which most was measured lack no more than the edges of samples."""
    others = ~units["resource"].str.startswith(NVIDIA_RESOURCES).to_numpy(dtype=bool)
    if not others.any():
        return []
    held = lines[lines["bucket"].to_numpy() == CODE_OF_BUCKET[Bucket.HELD]]
    held = held[others[held["unit"].to_numpy()]]
    seen = held["observed_ms"].fillna(0).astype("int64")
    lacks = held["board_ms"] - seen
    held = held.assign(lacks=lacks)[seen * _ENOUGH[1] < held["board_ms"] * _ENOUGH[0]]
    total = held.groupby(["window", "unit"], as_index=False)["lacks"].sum()
    of: dict[tuple[int, str, str], int] = {}
    for window, unit, ms in total[["window", "unit", "lacks"]].to_numpy().tolist():
        place = units.iloc[unit]
        key = window, str(place["cluster"]), str(place["resource"])
        of[key] = of.get(key, 0) + ms
    found = []
    for (window, cluster, resource), ms in of.items():
        detail = next(text for maker, text in _UNMEASURED.items() if maker in resource)
        found.append((window, DataProblem(DataProblemCode.USE_UNKNOWN, cluster, resource, detail, ms)))
    return found
