"""The FGD gauge: how much of the idle GPU capacity is of no use to typical work, over a history and now.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023), to the milli-GPU as the authors' simulator counts it. A node's idle GPUs are all
fragments to a task that does not fit it, and those too small for it are fragments to one that does. The mean
over the tasks that are typical is the node's fragmentation, and the cluster's is the sum of its nodes'.

GPUs and CPUs are in thousandths, integers. Sums of products stay integers until they are divided by the sum
of the weights, so that two states that are equal for the measure are equal to the last bit.

A history has no CPU, so there a node's CPU counts as enough. Only units that are whole GPUs are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.views.node_fit import FreeNodes
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import ViewTime
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.domain.time import HOUR_MS, MINUTE_MS

GPU_MILLI = 1000
COVERAGE = 0.95
"""The typical shapes cover this part of the pods, most popular first (the authors' setting)."""


class FragmentClass(IntEnum):
    """Why idle capacity is of no use to a task. ``USABLE`` is capacity that is of use."""

    LACKS_BOTH = 0
    LACKS_GPU = 1
    USABLE = 2
    LACKS_CPU = 3
    CPU_TASK_FITS = 4
    CPU_TASK_LACKS_CPU = 5
    OTHER_TYPE = 6


CPU_ONLY = (FragmentClass.CPU_TASK_FITS, FragmentClass.CPU_TASK_LACKS_CPU)
"""To tasks without a GPU every idle GPU is a fragment: a constant that no placement changes."""


@dataclass(frozen=True, slots=True, order=True)
class TaskShape:
    """What a task requests of a node: milli-CPU, milli-GPU of each GPU (1000: whole), how many GPUs, and
    which types will do, in order (empty: any)."""

    cpu: int
    gpu: int
    count: int
    types: tuple[str, ...] = ()

    @property
    def gpus(self) -> float:
        return self.gpu * self.count / GPU_MILLI


@dataclass(frozen=True)
class TypicalPods:
    """Shapes with their weights: ``weights[i] / total`` is how likely the next task is of shape ``i``."""

    shapes: tuple[TaskShape, ...]
    weights: Floats
    total: float

    @classmethod
    def of(
        cls, pods: Mapping[TaskShape, float], *, by_gpus: bool = False, coverage: float = COVERAGE
    ) -> TypicalPods:
        """The most popular shapes of ``pods`` (how many of each) that cover ``coverage`` of them.

        ``by_gpus``: each pod weighs as many GPUs as it asks for. Else large jobs, few in number, fall out.
        """
        weights = {shape: n * (shape.gpus if by_gpus else 1.0) for shape, n in pods.items()}
        ranked = sorted((weight, shape) for shape, weight in weights.items() if weight > 0)[::-1]
        enough = coverage * sum(weight for weight, _ in ranked)
        kept: list[tuple[float, TaskShape]] = []
        reached = 0.0
        for weight, shape in ranked:
            if reached >= enough:
                break
            kept.append((weight, shape))
            reached += weight
        return cls(tuple(shape for _, shape in kept), np.array([weight for weight, _ in kept]), reached)

    @cached_property
    def cpu(self) -> Ints:
        return np.array([shape.cpu for shape in self.shapes], dtype=np.int64)

    @cached_property
    def count(self) -> Ints:
        return np.array([shape.count for shape in self.shapes], dtype=np.int64)

    @cached_property
    def gpu(self) -> Ints:
        return np.array([shape.gpu if shape.count else 0 for shape in self.shapes], dtype=np.int64)

    @cached_property
    def _sizes(self) -> tuple[Ints, npt.NDArray[np.intp]]:
        """The distinct sizes of GPU requests, and which of them each shape has."""
        return np.unique(self.gpu, return_inverse=True)

    def allowed(self, types: Sequence[str]) -> Flags:
        """Whether a node's GPU type will do, per node and shape."""
        known = {name: np.array([not s.types or name in s.types for s in self.shapes]) for name in set(types)}
        return np.array([known[name] for name in types], dtype=bool).reshape(len(types), len(self.shapes))

    def lost(self, cpu: Ints, gpu: Ints, allowed: Flags) -> Ints:
        """Milli-GPU of each node (rows) that are fragments to each shape (columns).

        ``cpu``: what is left per node. ``gpu``: what is left of each GPU of each node, 0 where it has no more
        GPUs. Not negative. ``allowed`` as above.
        """
        small, fits, _ = self._looked(cpu, gpu)
        found: Ints = np.where(fits & allowed, small, gpu.sum(axis=1)[:, np.newaxis])
        return found

    def of_nodes(self, cpu: Ints, gpu: Ints, allowed: Flags) -> Floats:
        """The fragmentation of each node, in milli-GPU."""
        found: Floats = (self.lost(cpu, gpu, allowed) @ self.weights) / self.total
        return found

    def classes(self, cpu: Ints, gpu: Ints, allowed: Flags) -> Floats:
        """Idle milli-GPU of each node (rows) by ``FragmentClass`` (columns), times ``total``; all but USABLE
        are fragments."""
        small, fits, has_gpus = self._looked(cpu, gpu)
        left = np.broadcast_to(gpu.sum(axis=1)[:, np.newaxis], small.shape)
        has_cpu = cpu[:, np.newaxis] >= self.cpu
        cpu_task = np.broadcast_to(self.gpu == 0, small.shape)
        of_type = allowed & ~cpu_task
        lost = {
            FragmentClass.LACKS_BOTH: left * (of_type & ~has_gpus & ~has_cpu),
            FragmentClass.LACKS_GPU: left * (of_type & ~has_gpus & has_cpu) + small * (fits & allowed),
            FragmentClass.USABLE: (left - small) * (fits & allowed),
            FragmentClass.LACKS_CPU: left * (of_type & has_gpus & ~has_cpu),
            FragmentClass.CPU_TASK_FITS: left * (cpu_task & has_cpu),
            FragmentClass.CPU_TASK_LACKS_CPU: left * (cpu_task & ~has_cpu),
            FragmentClass.OTHER_TYPE: left * (~allowed & ~cpu_task),
        }
        return np.stack([lost[kind] @ self.weights for kind in FragmentClass], axis=1)

    def _looked(self, cpu: Ints, gpu: Ints) -> tuple[Ints, Flags, Flags]:
        """Per node and shape: milli-GPU of GPUs too small for it; whether it fits but for the type; and
        whether the node has enough GPUs."""
        sizes, which = self._sizes
        enough = gpu[:, :, np.newaxis] >= sizes
        small = (gpu[:, :, np.newaxis] * ~enough).sum(axis=1)[:, which]
        has_gpus = enough.sum(axis=1)[:, which] >= self.count
        fits = has_gpus & (cpu[:, np.newaxis] >= self.cpu) & (self.gpu > 0)
        return small, fits, has_gpus


@dataclass(frozen=True)
class FragmentationMeasure:
    """Of a cluster. ``weighted`` is its idle milli-GPU by FragmentClass, times ``weight``."""

    weighted: Floats
    weight: float
    capacity: int

    @classmethod
    def of(
        cls, typical: TypicalPods, cpu: Ints, gpu: Ints, types: Sequence[str], capacity: int
    ) -> FragmentationMeasure:
        """Without typical shapes all idle capacity counts as usable."""
        if not typical.shapes:
            usable = np.zeros(len(FragmentClass))
            usable[FragmentClass.USABLE] = gpu.sum()
            return cls(usable, 1.0, capacity)
        weighted = typical.classes(cpu, gpu, typical.allowed(types)).sum(axis=0)
        return cls(weighted, typical.total, capacity)

    def milli(self, *kinds: FragmentClass) -> float:
        return float(self.weighted[list(kinds)].sum()) / self.weight

    @property
    def idle(self) -> float:
        return float(self.weighted.sum()) / self.weight

    @property
    def total(self) -> float:
        """F: all capacity that is idle and not usable, in milli-GPU."""
        return self.milli(*(kind for kind in FragmentClass if kind is not FragmentClass.USABLE))

    @property
    def of_cpu_tasks(self) -> float:
        """The part of F that is due to tasks without a GPU: no placement can lower it."""
        return self.milli(*CPU_ONLY)

    @property
    def ratio(self) -> float:
        """F / idle; 0 where nothing is idle."""
        return self.total / self.idle if self.idle else 0.0

    @property
    def amount(self) -> float:
        """F / capacity; 0 where there is none."""
        return self.total / self.capacity if self.capacity else 0.0


STEP_MS = 5 * MINUTE_MS
"""The gauge is computed every five minutes, at multiples of it, so that it does not depend on the time of the
evaluation."""


@dataclass(frozen=True)
class FragmentationGauge:
    """Arrays over ``times``. ``by_pods`` and ``by_gpus`` are GPUs that are fragments, for the typical pods
    weighed by their number and by their GPUs; ``capacity`` all GPUs; ``waiting``: some job waited.
    ``larger``: of the larger of the two, the part on each of ``groups``, the nodes with one GPU product."""

    times: Ints
    by_pods: Floats
    by_gpus: Floats
    capacity: Floats
    waiting: Flags
    groups: tuple[tuple[str, ...], ...] = ()
    larger: Sequence[Floats] = ()

    def view(self, run: slice, now_ms: int) -> tuple[ViewTime, ...]:
        """The time of the fragments in some steps, by hour and by the nodes they are on."""
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
        """The larger of the two, as a part of the capacity."""
        most = np.maximum(self.by_pods, self.by_gpus)
        return np.divide(most, self.capacity, out=np.zeros(len(most)), where=self.capacity > 0)


def typical_pods(history: ClusterHistory, resource: str, *, by_gpus: bool) -> TypicalPods:
    """The pods that held or waited for the resource in the history: how many units, of which products."""
    key = ("typical_pods", resource, by_gpus)
    if key not in history.memo:
        history.memo[key] = TypicalPods.of(_shapes(history, resource), by_gpus=by_gpus)
    found = history.memo[key]
    assert isinstance(found, TypicalPods)
    return found


def boards_lost(typical: TypicalPods, free: Ints, products: Sequence[str]) -> Floats:
    """GPUs of each node that are fragments, ``free`` being the number of free whole GPUs there."""
    if not typical.shapes or not len(free):
        return np.zeros(len(free))
    gpu = np.where(np.arange(max(int(free.max()), 1)) < free[:, np.newaxis], GPU_MILLI, 0).astype(np.int64)
    return typical.of_nodes(np.zeros(len(free), np.int64), gpu, typical.allowed(products)) / GPU_MILLI


def gauge(history: ClusterHistory, resource: str) -> FragmentationGauge:
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
    return FragmentationGauge(
        times,
        sums[0],
        sums[1],
        all_units.sum(axis=0).astype(float),
        waiting.cumsum()[:-1] > 0,
        tuple(tuple(names[n] for n in group.tolist()) for group in groups),
        larger,
    )


def measured_now(overview: ClusterOverview, resource: str) -> FragmentationMeasure:
    """With CPU, and with the pods that want none of the resource: the authors' measure of the present
    state."""
    pods = [pod for pod in overview.state.pods.values() if not pod.has_ended]
    shapes: Counter[TaskShape] = Counter()
    for pod in pods:
        asked = pod.requests.get(resource, 0)
        shapes[TaskShape(pod.requests.get("cpu", 0), GPU_MILLI if asked else 0, asked)] += 1
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
    return FragmentationMeasure.of(
        TypicalPods.of(shapes), cpu, gpu.astype(np.int64), types, sum(units) * GPU_MILLI
    )


def _shapes(history: ClusterHistory, resource: str) -> Counter[TaskShape]:
    held = history.frames.allocations
    held = held[held["resource"] == resource].drop_duplicates(["pod_uid", "count"])
    counts = held.loc[held["count"] > 0, "count"].value_counts()
    shapes = Counter(
        {TaskShape(0, GPU_MILLI, int(n)): int(k) for n, k in zip(counts.index, counts, strict=True)}
    )
    demand = history.frames.demand
    demand = demand[demand["resource"] == resource].drop_duplicates(["job_uid", "pod_set", "units"])
    for units, products, pods in zip(
        *(demand[name].tolist() for name in ("units", "products", "pods")), strict=True
    ):
        if units > 0:
            types = tuple(sorted(filter(None, products.split("|"))))
            shapes[TaskShape(0, GPU_MILLI, int(units), types)] += int(pods)
    return shapes
