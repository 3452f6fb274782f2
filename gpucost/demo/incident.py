"""An idle allocation on command: a training job that does nothing until it is ended, on a node of its own.

The node is there all the time. When the job appears, it has been running for ``BEFORE_MS`` already, so that a
detector which requires five minutes finds it at once. ``IdleIncident.since_ms`` is the start of the history
that is to be added to the scraped one (``stack``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TypeVar

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.nodes import Node as NodeObject
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodSet,
    PodTemplate,
    Toleration,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost.contract.metrics import LINGER_MS
from gpucost.demo.gpu_counters import PodCount
from gpucost.domain.jobs import JobKind, OwnerReference
from gpucost.domain.time import MINUTE_MS
from gpucost.simulator.injected_patterns import GIB
from gpucost.simulator.inventory import GPU, POOLS, SimulatedNode
from gpucost.simulator.scheduler import board_uuid
from gpucost.simulator.state import node_object
from gpucost.simulator.state_workloads import POOL, TAINT, meta

TEAM, NAMESPACE, JOB, NODE = "vision", "vision", "finetune-forgotten", "h100-spare-01"
UNITS = 4
BEFORE_MS = 12 * MINUTE_MS
"""Less than the overlap in which a service reads its history again."""

_IDLE_WATTS = 68
T = TypeVar("T", Pod, JobObject, NodeObject)


@dataclass
class IdleIncident:
    """``begin`` and ``end`` may be called from any thread, each once."""

    seed: int
    node: SimulatedNode
    _told: Lock = field(default_factory=Lock)
    _since_ms: int | None = None
    _ended_ms: int | None = None

    @classmethod
    def on(cls, seed: int, start_ms: int, end_ms: int) -> IdleIncident:
        """On a node that exists from ``start_ms`` to ``end_ms``."""
        pool = next(each for each in POOLS if each.name == "h100")
        node = SimulatedNode(
            NODE, pool.name, pool.product, pool.boards, pool.instance_type, pool.capacity_type,
            "us-east-1a", pool.offers, start_ms, end_ms,
        )  # fmt: skip
        return cls(seed, node)

    @property
    def since_ms(self) -> int | None:
        """When its allocation began; None while there is none."""
        return self._since_ms

    def begin(self, now_ms: int) -> int:
        """The job appears; returns since when it has held its GPUs."""
        with self._told:
            self._since_ms = now_ms - BEFORE_MS
            return self._since_ms

    def end(self, now_ms: int) -> None:
        """The job ends, and gives its GPUs back."""
        with self._told:
            self._ended_ms = now_ms

    def added(self, state: ClusterState) -> ClusterState:
        """The state with the node, and with the job while it exists."""
        nodes = {**state.nodes, **_by_uid([node_object(self.node, self.seed, state.at_ms)])}
        if not self._is_there(state.at_ms):
            return replace(state, nodes=nodes)
        pods = {**state.pods, **_by_uid([self._pod(None)])}
        return replace(state, nodes=nodes, pods=pods, jobs={**state.jobs, **_by_uid([self._job()])})

    def ended(self, at_ms: int) -> tuple[tuple[Pod, ...], Mapping[str, JobObject]]:
        """Its pod and job for ten minutes after its end."""
        ended_ms = self._ended_ms
        if ended_ms is None or not ended_ms <= at_ms < ended_ms + LINGER_MS:
            return (), {}
        return (self._pod(ended_ms),), _by_uid([self._job()])

    def held(self, at_ms: int) -> list[tuple[str, str, str]]:
        """(uid of the pod, GPU, resource) of everything held now."""
        return [(self._uid, gpu, GPU) for gpu in self._gpus] if self._is_there(at_ms) else []

    def counts(self, at_ms: int) -> list[PodCount]:
        """The counts of its GPUs: time, and no activity in it."""
        since_ms = self._since_ms
        if since_ms is None or at_ms < since_ms:
            return []
        held_ns = (min(at_ms, self._ended_ms or at_ms) - since_ms) * 1_000_000
        amounts = {
            **dict.fromkeys((GpuMeasure.HELD, GpuMeasure.OBSERVED, GpuMeasure.SM_OBSERVED), held_ns),
            **dict.fromkeys((GpuMeasure.BUSY, GpuMeasure.SM_ACTIVE, GpuMeasure.TENSOR_ACTIVE), 0),
            GpuMeasure.TENSOR_OBSERVED: held_ns,
            GpuMeasure.ENERGY: _IDLE_WATTS * held_ns // 1_000_000,
        }
        memory = int(0.6 * GIB) if self._is_there(at_ms) else 0
        return [PodCount(self._uid, gpu, since_ms, amounts, memory) for gpu in self._gpus]

    def held_ns(self, gpu: str, at_ms: int) -> int:
        """GPU time in which it held a GPU."""
        if self._since_ms is None or gpu not in self._gpus:
            return 0
        return max(0, min(at_ms, self._ended_ms or at_ms) - self._since_ms) * 1_000_000

    @property
    def pod(self) -> tuple[str, str, str]:
        """Namespace, name and uid of its pod."""
        return NAMESPACE, f"{JOB}-0", self._uid

    def _is_there(self, at_ms: int) -> bool:
        since_ms, ended_ms = self._since_ms, self._ended_ms
        return since_ms is not None and since_ms <= at_ms and (ended_ms is None or at_ms < ended_ms)

    @property
    def _gpus(self) -> tuple[str, ...]:
        return tuple(board_uuid(self.seed, NODE, number) for number in range(UNITS))

    @property
    def _uid(self) -> str:
        return meta(self.seed, "pod", NAMESPACE, f"{JOB}-0", 0, {}).uid

    def _job(self) -> JobObject:
        own = meta(self.seed, "job", NAMESPACE, JOB, self._since_ms or 0, _LABELS)
        return JobObject(
            own, "kubeflow.org/v1", JobKind.PYTORCH_JOB.value, JobKind.PYTORCH_JOB,
            (PodSet("main", 1, _TEMPLATE),), active=1,
        )  # fmt: skip

    def _pod(self, ended_ms: int | None) -> Pod:
        job, since_ms = self._job(), self._since_ms or 0
        owner = OwnerReference(job.api_version, job.kind, JOB, job.meta.uid)
        phase = PodPhase.RUNNING if ended_ms is None else PodPhase.SUCCEEDED
        return Pod(
            meta(self.seed, "pod", NAMESPACE, f"{JOB}-0", since_ms, _LABELS, owner=owner),
            phase, _TEMPLATE, NODE, bound_ms=since_ms, ended_ms=ended_ms, ready_ms=since_ms,
        )  # fmt: skip


_LABELS = {"gpucost.io/team": TEAM, "gpucost.io/user": "farid", "gpucost.io/project": "iris"}
_TEMPLATE = PodTemplate(
    {"cpu": 48_000, "memory": 400 * GIB, GPU: UNITS},
    {POOL: "h100"},
    tolerations=(Toleration(TAINT, exists=True),),
)


def _by_uid(objects: Iterable[T]) -> dict[str, T]:
    return {each.meta.uid: each for each in objects}
