"""The FGD measure (fgd.py) over the history of a cluster, and of its state now.

History has no CPU: there a node's CPU is taken for enough. Only units that are whole boards are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags, Ints
from gpucost.cluster.fit import FreeNodes
from gpucost.cluster.overview import Overview
from gpucost.detectors.activity import Floats
from gpucost.detectors.facts import History
from gpucost.detectors.fgd import GPU_MILLI, Fragmentation, Shape, Typical
from gpucost.detectors.findings import ViewTime
from gpucost.domain.time import HOUR_MS, MINUTE_MS

STEP_MS = 5 * MINUTE_MS
"""The measure is taken every five minutes, at multiples of it, so that it does not matter when one looks."""


@dataclass(frozen=True)
class Gauge:
    """Arrays over ``times``. ``by_pods`` and ``by_gpus`` are boards that are fragments, for the typical pods
    weighed by their number and by their GPUs; ``capacity`` all boards; ``waiting``: somebody wanted some.
    ``larger``: of the larger of the two, the part on each of ``groups``, the nodes with one GPU product."""

    times: Ints
    by_pods: Floats
    by_gpus: Floats
    capacity: Floats
    waiting: Flags
    groups: tuple[tuple[str, ...], ...] = ()
    larger: Sequence[Floats] = ()

    def view(self, run: slice, now_ms: int) -> tuple[ViewTime, ...]:
        """The time of the fragments in some steps, by the hour and the nodes they are on."""
        times = self.times[run]
        length = np.minimum(times + STEP_MS, now_ms) - times
        hours, which = np.unique(times // HOUR_MS, return_inverse=True)
        found = list[ViewTime]()
        for nodes, boards in zip(self.groups, self.larger, strict=True):
            amounts = np.bincount(which, weights=boards[run] * length, minlength=len(hours))
            for n in np.flatnonzero(amounts).tolist():
                start, end = int(times[which == n][0]), int((times + length)[which == n][-1])
                found.append(ViewTime(start, end, float(amounts[n]), nodes))
        return tuple(found)

    @property
    def share(self) -> Floats:
        """The larger of the two, of capacity."""
        most = np.maximum(self.by_pods, self.by_gpus)
        return np.divide(most, self.capacity, out=np.zeros(len(most)), where=self.capacity > 0)


def typical_pods(history: History, resource: str, *, by_gpus: bool) -> Typical:
    """Of the pods that held or awaited the resource in the history: how many units, of which products."""
    key = ("typical_pods", resource, by_gpus)
    if key not in history.memo:
        history.memo[key] = Typical.of(_shapes(history, resource), by_gpus=by_gpus)
    found = history.memo[key]
    assert isinstance(found, Typical)
    return found


def boards_lost(typical: Typical, free: Ints, products: Sequence[str]) -> Floats:
    """Boards of each node that are fragments, ``free`` being how many whole boards are free there."""
    if not typical.shapes or not len(free):
        return np.zeros(len(free))
    gpu = np.where(np.arange(max(int(free.max()), 1)) < free[:, np.newaxis], GPU_MILLI, 0).astype(np.int64)
    return typical.of_nodes(np.zeros(len(free), np.int64), gpu, typical.allowed(products)) / GPU_MILLI


def gauge(history: History, resource: str) -> Gauge:
    window = history.window
    times = np.arange(-(-window.start_ms // STEP_MS) * STEP_MS, window.end_ms, STEP_MS, dtype=np.int64)
    capacity = history.frames.capacity
    capacity = capacity[capacity["resource"] == resource]
    held = history.frames.allocations
    held = held[held["resource"] == resource]
    names = sorted(set(capacity["node"]))
    at = {name: n for n, name in enumerate(names)}
    held = held[held["node"].isin(names)]
    products = dict(zip(history.frames.nodes["node"], history.frames.nodes["product"], strict=True))

    def over_time(node: Ints, start: Ints, end: Ints, units: Ints) -> Ints:
        change = np.zeros((len(names), len(times) + 1), dtype=np.int64)
        np.add.at(change, (node, np.searchsorted(times, start)), units)
        np.add.at(change, (node, np.searchsorted(times, end)), -units)
        return change.cumsum(axis=1)[:, :-1]

    def edges(frame: pd.DataFrame) -> tuple[Ints, Ints, Ints]:
        columns = [frame["node"].map(at), frame["start_ms"], frame["end_ms"]]
        node, start, end = (column.to_numpy(np.int64) for column in columns)
        return node, start, end

    given = capacity["allocatable"].to_numpy(np.int64)
    is_open = capacity["schedulable"].to_numpy(np.int64)
    all_units = over_time(*edges(capacity), given)
    free = over_time(*edges(capacity), given * is_open)
    free = np.maximum(free - over_time(*edges(held), held["count"].to_numpy(np.int64)), 0)
    kinds = sorted({products.get(name, "") for name in names})
    kind = np.array([kinds.index(products.get(name, "")) for name in names], dtype=np.int64)
    code = kind[:, np.newaxis] * (int(free.max(initial=0)) + 1) + free
    each, where = np.unique(code, return_inverse=True)
    where = where.reshape(code.shape)
    size = int(free.max(initial=0)) + 1
    by_pods, by_gpus = (
        boards_lost(
            typical_pods(history, resource, by_gpus=weighed),
            each % size,
            [kinds[n] for n in (each // size).tolist()],
        )[where]
        for weighed in (False, True)
    )
    groups = [np.flatnonzero(kind == n) for n in range(len(kinds))]
    parts = [[each[group].sum(axis=0) for group in groups] for each in (by_pods, by_gpus)]
    sums = [np.sum(each, axis=0) if groups else np.zeros(len(times)) for each in parts]
    larger = [np.where(sums[0] >= sums[1], one, other) for one, other in zip(*parts, strict=True)]
    demand = history.frames.demand
    demand = demand[demand["resource"] == resource]
    waiting = np.zeros(len(times) + 1, dtype=np.int64)
    np.add.at(waiting, np.searchsorted(times, demand["start_ms"].to_numpy(np.int64)), 1)
    np.add.at(waiting, np.searchsorted(times, demand["end_ms"].to_numpy(np.int64)), -1)
    return Gauge(
        times,
        sums[0],
        sums[1],
        all_units.sum(axis=0).astype(float),
        waiting.cumsum()[:-1] > 0,
        tuple(tuple(names[n] for n in group.tolist()) for group in groups),
        larger,
    )


def measured_now(overview: Overview, resource: str) -> Fragmentation:
    """With CPU, and with the pods that want none of the resource: the authors' measure of the state."""
    pods = [pod for pod in overview.state.pods.values() if not pod.has_ended]
    shapes: Counter[Shape] = Counter()
    for pod in pods:
        asked = pod.requests.get(resource, 0)
        shapes[Shape(pod.requests.get("cpu", 0), GPU_MILLI if asked else 0, asked)] += 1
    free_nodes = FreeNodes(overview.state, overview.catalog)
    nodes = [node for node in overview.state.nodes.values() if node.allocatable.get(resource, 0) > 0]
    units = [node.allocatable[resource] for node in nodes]
    open_units = [
        max(free_nodes.free(node).get(resource, 0), 0) if node.is_schedulable else 0 for node in nodes
    ]
    cpu = np.array([max(free_nodes.free(node).get("cpu", 0), 0) for node in nodes], dtype=np.int64)
    slots = np.arange(max(units, default=1))
    gpu = np.where(slots < np.array(open_units, dtype=np.int64).reshape(-1, 1), GPU_MILLI, 0)
    types = [node.product for node in nodes]
    return Fragmentation.of(Typical.of(shapes), cpu, gpu.astype(np.int64), types, sum(units) * GPU_MILLI)


def _shapes(history: History, resource: str) -> Counter[Shape]:
    held = history.frames.allocations
    held = held[held["resource"] == resource].drop_duplicates(["pod_uid", "count"])
    counts = held.loc[held["count"] > 0, "count"].value_counts()
    shapes = Counter({Shape(0, GPU_MILLI, int(n)): int(k) for n, k in zip(counts.index, counts, strict=True)})
    demand = history.frames.demand
    demand = demand[demand["resource"] == resource].drop_duplicates(["job_uid", "pod_set", "units"])
    for units, products, pods in zip(
        *(demand[name].tolist() for name in ("units", "products", "pods")), strict=True
    ):
        if units > 0:
            types = tuple(sorted(filter(None, products.split("|"))))
            shapes[Shape(0, GPU_MILLI, int(units), types)] += int(pods)
    return shapes
