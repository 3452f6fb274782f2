"""GPU counters by pod up to an instant: the simulated activity as sums of integers; and the GPUs and MIG
instances of simulated nodes, as an exporter would find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost.contract.metrics import LINGER_MS
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.gpu_activity import hardware_of
from gpucost.simulator.inventory import SimulatedNode
from gpucost.simulator.scheduler import board_uuid, gpu_id
from gpucost.simulator.workloads import DrawnInts
from gpucost_gpu_exporter.model.holdings import DeviceKey

SLICES = 7


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A GPU or an instance. ``part`` is its share of the GPU, ``replicas`` how many pods may share it;
    ``profile`` is empty for a whole GPU. Watts are of the whole GPU."""

    key: DeviceKey
    part: Fraction
    replicas: int
    profile: str
    resource: str
    memory_bytes: int
    idle_watts: float
    coverage: Fraction
    has_busy: bool
    has_sm: bool

    @property
    def text(self) -> str:
        """As in the frames."""
        return "/".join(part for part in self.key if part)


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    uuid: str
    minor: int
    product: str
    gpus: tuple[SimulatedGpu, ...]

    @property
    def is_mig(self) -> bool:
        return any(gpu.profile for gpu in self.gpus)

    @property
    def unpartitioned(self) -> Fraction:
        """The share of the GPU that no instance has."""
        return 1 - sum((gpu.part for gpu in self.gpus), Fraction(0))


def boards_of(seed: int, node: SimulatedNode) -> tuple[SimulatedDevice, ...]:
    """All of a node, with or without a holder."""
    by_board: dict[str, dict[DeviceKey, SimulatedGpu]] = {}
    for gpu in _gpus(seed, node):
        by_board.setdefault(gpu.key.gpu_uuid, {}).setdefault(gpu.key, gpu)
    product = node.product.partition("-MIG-")[0].removesuffix("-SHARED").replace("-", " ")
    uuids = (board_uuid(seed, node.name, number) for number in range(node.boards))
    return tuple(
        SimulatedDevice(uuid, minor, product, tuple(by_board[uuid].values()))
        for minor, uuid in enumerate(uuids)
    )


def _gpus(seed: int, node: SimulatedNode) -> Iterator[SimulatedGpu]:
    for offer in node.offers:
        idle_w, _, memory, coverage, has_busy, has_sm = hardware_of(node, offer.resource)
        for slot in range(offer.units):
            uuid, _, instance = gpu_id(seed, node, offer, slot).partition("/")
            sliced = node.product if "-MIG-" in node.product else offer.resource
            yield SimulatedGpu(
                DeviceKey(uuid, instance),
                offer.share * offer.replicas,
                offer.replicas,
                sliced.rpartition("-")[2] if instance else "",
                offer.resource,
                int(memory),
                idle_w,
                Fraction(str(coverage)),
                has_busy,
                has_sm,
            )


# In the order of the columns below; tensor activity is derived from SM activity.
MEASURES = (
    *(GpuMeasure.HELD, GpuMeasure.OBSERVED, GpuMeasure.BUSY, GpuMeasure.SM_OBSERVED, GpuMeasure.SM_ACTIVE),
    *(GpuMeasure.ENERGY, GpuMeasure.TENSOR_OBSERVED, GpuMeasure.TENSOR_ACTIVE),
)
_COLUMNS = (
    *(("held_ms", 1e6), ("observed_ms", 1e6), ("busy_ms", 1e6), ("sm_observed_ms", 1e6)),
    *(("sm_active_ms", 1e6), ("energy_j", 1e3)),
)
_SM_OBSERVED, _SM_ACTIVE = MEASURES.index(GpuMeasure.SM_OBSERVED), MEASURES.index(GpuMeasure.SM_ACTIVE)

Amounts = Mapping[GpuMeasure, int]
"""Nanoseconds of GPU time, and millijoules."""


@dataclass(frozen=True, slots=True)
class PodCount:
    """The counters of one GPU for one pod; ``memory_bytes`` is the pod's present use."""

    pod_uid: str
    gpu: str
    since_ms: int
    amounts: Amounts
    memory_bytes: int


class GpuCounts:
    """Sums over the activity of a simulated cluster, up to any instant."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        frame = cluster.frames.activity
        pod, gpu = frame["pod_uid"].cat.codes.to_numpy(), frame["gpu"].cat.codes.to_numpy()
        key = pod.astype(np.int64) * (int(gpu.max()) + 1) + gpu
        order = np.lexsort([frame["start_ms"].to_numpy(), key])
        key = key[order]
        first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        last = np.append(first[1:], len(key)) - 1
        self._start = frame["start_ms"].to_numpy(np.int64)[order]
        self._end = frame["end_ms"].to_numpy(np.int64)[order]
        self._memory = frame["memory_used_bytes"].to_numpy(np.float64)[order]
        self._pods = frame["pod_uid"].cat.categories.to_numpy()[pod[order[first]]]
        self._gpus = frame["gpu"].cat.categories.to_numpy()[gpu[order[first]]]
        self._nodes = frame["node"].astype("str").to_numpy()[order[first]]
        columns = [frame[name].to_numpy(np.float64)[order] * unit for name, unit in _COLUMNS]
        self._has = np.column_stack([~np.isnan(column[first]) for column in columns])
        rows = np.column_stack([np.rint(np.nan_to_num(column)) for column in columns]).astype(np.int64)
        tensor = np.rint(rows[:, _SM_ACTIVE] * _tensor_ratio(cluster, self._pods)[_spread(first, len(key))])
        self._rows = np.column_stack([rows, rows[:, _SM_OBSERVED], tensor.astype(np.int64)])
        self._has = np.column_stack([self._has, self._has[:, [_SM_OBSERVED, _SM_ACTIVE]]])
        total = np.cumsum(self._rows, axis=0)
        self._before = total - self._rows - (total - self._rows)[first][_spread(first, len(key))]
        self._first, self._last = first, last
        self._total = self._before[last] + self._rows[last]
        gone_ms = self._end[last] + LINGER_MS
        self._by_gone = np.argsort(gone_ms, kind="stable")
        self._gone_ms = gone_ms[self._by_gone]
        self._added, self._retired = 0, dict[tuple[str, str], dict[GpuMeasure, int]]()

    def of_pods(self, at_ms: int) -> Iterator[PodCount]:
        """Pods that hold a GPU at ``at_ms``, or gave it back in the last ten minutes."""
        begun, ended = self._start[self._first], self._end[self._last]
        for at in np.flatnonzero((begun <= at_ms) & (ended + LINGER_MS > at_ms)).tolist():
            low, high = int(self._first[at]), int(self._last[at]) + 1
            row = low + int(np.searchsorted(self._start[low:high], at_ms, "right")) - 1
            start_ms, end_ms = int(self._start[row]), int(self._end[row])
            done_ms = min(at_ms, end_ms) - start_ms
            amounts = {
                measure: int(self._before[row, n]) + int(self._rows[row, n]) * done_ms // (end_ms - start_ms)
                for n, measure in enumerate(MEASURES)
                if self._has[at, n]
            }
            memory = int(self._memory[row]) if at_ms < int(ended[at]) else 0
            yield PodCount(self._pods[at], self._gpus[at], int(begun[at]), amounts, memory)

    def retired(self, at_ms: int) -> Mapping[tuple[str, str], Amounts]:
        """By node and GPU: the counts of pods that ended earlier than that."""
        gone = int(np.searchsorted(self._gone_ms, at_ms, "right"))
        if gone < self._added:
            self._added, self._retired = 0, {}
        for at in self._by_gone[self._added : gone].tolist():
            of_gpu = self._retired.setdefault((self._nodes[at], self._gpus[at]), {})
            for n in np.flatnonzero(self._has[at]).tolist():
                of_gpu[MEASURES[n]] = of_gpu.get(MEASURES[n], 0) + int(self._total[at, n])
        self._added = gone
        return self._retired


class GpuHeldTime:
    """How long each GPU had a holder, by the scheduler's own times: the rest of the time it was free."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        found: dict[str, list[tuple[int, int]]] = {}
        for pod, gpus in zip(cluster.placements, cluster.gpus, strict=True):
            for gpu in gpus:
                # Some pods are older than the simulated span, in which nodes begin.
                start_ms = max(pod.start_ms, cluster.window.start_ms)
                found.setdefault(gpu, []).append((start_ms, pod.end_ms))
        self._spans = {gpu: np.array(spans, dtype=np.int64) for gpu, spans in found.items()}

    def held_ns(self, gpu: SimulatedGpu, at_ms: int) -> Fraction:
        """GPU time, exactly; it rises no faster than time, but for a GPU that was handed out twice."""
        spans = self._spans.get(gpu.text)
        if spans is None:
            return Fraction(0)
        held_ms = int((np.minimum(spans[:, 1], at_ms) - spans[:, 0]).clip(min=0).sum())
        return held_ms * 1_000_000 * gpu.part / gpu.replicas


def _spread(first: DrawnInts, length: int) -> DrawnInts:
    """The number of its series for each row."""
    found: DrawnInts = np.repeat(np.arange(len(first)), np.diff(np.append(first, length)))
    return found


def _tensor_ratio(cluster: SimulatedCluster, pods: DrawnInts) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Tensor activity is the same part of a pod's SM activity on all its GPUs."""
    sums = cluster.frames.signals.groupby("pod_uid")[["tensor_active_ms", "sm_active_ms"]].sum()
    ratio = (sums["tensor_active_ms"] / sums["sm_active_ms"]).fillna(0.0)
    return np.asarray(ratio.reindex(pods).fillna(0.0).to_numpy(np.float64))
