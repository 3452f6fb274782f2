"""How much of the idle GPU capacity is of no use to the work that comes: the FGD measure of fragmentation.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023), to the milli-GPU as the authors' simulator counts it. A node's idle GPUs are all
fragments to a task that does not fit it, and those too small for it are fragments to one that does. The mean
over the tasks that are typical is the node's fragmentation, and the cluster's is the sum of its nodes'.

GPUs and CPUs are in thousandths, integers. Sums of products stay integers until they are divided by the sum
of the weights, so that two states that are equal for the measure are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpucost.attribution.deal import Flags, Ints
from gpucost.detectors.activity import Floats

GPU_MILLI = 1000
COVERAGE = 0.95
"""Shapes are typical that cover this part of the pods, most popular first (the authors' setting)."""


class FragmentClass(IntEnum):
    """Why idle capacity is of no use to a task. ``USABLE`` is what is of use."""

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
class Shape:
    """What a task asks of a node: milli-CPU, milli-GPU of each GPU (1000: whole), how many GPUs, and which
    types will do, in order (empty: any)."""

    cpu: int
    gpu: int
    count: int
    types: tuple[str, ...] = ()

    @property
    def gpus(self) -> float:
        return self.gpu * self.count / GPU_MILLI


@dataclass(frozen=True)
class Typical:
    """Shapes with their weights: ``weights[i] / total`` is how likely the next task is of shape ``i``."""

    shapes: tuple[Shape, ...]
    weights: Floats
    total: float

    @classmethod
    def of(cls, pods: Mapping[Shape, float], *, by_gpus: bool = False, coverage: float = COVERAGE) -> Typical:
        """The most popular shapes of ``pods`` (how many of each) that cover ``coverage`` of them.

        ``by_gpus``: each pod weighs as many GPUs as it asks for. Else large jobs, few in number, fall out.
        """
        weights = {shape: n * (shape.gpus if by_gpus else 1.0) for shape, n in pods.items()}
        ranked = sorted((weight, shape) for shape, weight in weights.items() if weight > 0)[::-1]
        enough = coverage * sum(weight for weight, _ in ranked)
        kept: list[tuple[float, Shape]] = []
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
        """Different sizes of GPU requests, and which of them each shape has."""
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
        whether there are GPUs enough."""
        sizes, which = self._sizes
        enough = gpu[:, :, np.newaxis] >= sizes
        small = (gpu[:, :, np.newaxis] * ~enough).sum(axis=1)[:, which]
        has_gpus = enough.sum(axis=1)[:, which] >= self.count
        fits = has_gpus & (cpu[:, np.newaxis] >= self.cpu) & (self.gpu > 0)
        return small, fits, has_gpus


@dataclass(frozen=True)
class Fragmentation:
    """Of a cluster. ``weighted`` is its idle milli-GPU by FragmentClass, times ``weight``."""

    weighted: Floats
    weight: float
    capacity: int

    @classmethod
    def of(cls, typical: Typical, cpu: Ints, gpu: Ints, types: Sequence[str], capacity: int) -> Fragmentation:
        """Without typical shapes everything idle counts as usable."""
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
        """F: all that is idle and not usable, in milli-GPU."""
        return self.milli(*(kind for kind in FragmentClass if kind is not FragmentClass.USABLE))

    @property
    def of_cpu_tasks(self) -> float:
        """The part of F that is there because some tasks need no GPU: no placement can lower it."""
        return self.milli(*CPU_ONLY)

    @property
    def ratio(self) -> float:
        """F / idle; 0 where nothing is idle."""
        return self.total / self.idle if self.idle else 0.0

    @property
    def amount(self) -> float:
        """F / capacity; 0 where there is none."""
        return self.total / self.capacity if self.capacity else 0.0


def score(before: Floats, after: Floats) -> Floats:
    """How good placements are that change a node's fragmentation so: 0 to 100, whole numbers, 50 for none.

    floor(100 x sigmoid((before - after) / 1 GPU)).
    """
    found: Floats = np.floor(100.0 / (1.0 + np.exp((after - before) / GPU_MILLI)))
    return found
