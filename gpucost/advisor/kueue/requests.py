"""What a workload asks of a ClusterQueue, in the amounts that quota is counted in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from gpucost.cluster.objects.kueue import ClusterQueue, FlavorResource, Workload
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.views.node_fit import node_rules
from gpucost.cluster.views.queue_order import queue_timestamp_ms

PODS = "pods"
_FNV_BASIS, _FNV_PRIME, _FNV_MASK = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1


@dataclass(frozen=True, slots=True)
class PodSetRequest:
    """One pod set: ``each`` is of one pod. ``least`` is how few would do, ``count`` where all are needed."""

    name: str
    count: int
    least: int
    each: Resources
    template: PodTemplate
    topology: Mapping[str, str] = field(default_factory=dict)
    """Its topology request, as of ``PodSet``."""

    @property
    def group(self) -> str:
        """Pod sets of one group get the same flavors (kueue.x-k8s.io/podset-group-name)."""
        return self.topology.get("group", "")

    @property
    def level(self) -> str | None:
        """The node label its topology request names, empty for any; None where it makes no request."""
        asked = [self.topology[key] for key in ("required", "preferred", "slice") if self.topology.get(key)]
        return asked[0] if asked else "" if "unconstrained" in self.topology else None


_Shape = tuple[object, ...]


@lru_cache(maxsize=4096)
def _kept(shape: _Shape) -> _Shape:
    """The one that came first of equal ones: many thousands of workloads have few shapes."""
    return shape


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """A pending workload, by uid. ``queued_ms`` is what orders it among equals; ``before`` comes before all:
    the usage of its LocalQueue under admission fair sharing, else 0."""

    uid: str
    queue: str
    priority: int
    queued_ms: int
    pod_sets: tuple[PodSetRequest, ...]
    before: Fraction = Fraction(0)

    _shape: _Shape | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple([each.count for each in self.pod_sets])

    @property
    def shape(self) -> _Shape:
        """What makes two waiting workloads of a queue equal: Kueue parks equal ones together (pkg/workload,
        scheduling hash). Worked out once."""
        known = self._shape
        if known is None:
            known = _kept((self.priority, tuple(map(_shape_of, self.pod_sets))))
            object.__setattr__(self, "_shape", known)
        return known


def _shape_of(asked: PodSetRequest) -> _Shape:
    return (
        *(asked.name, asked.count, asked.least, tuple(sorted(asked.each.items()))),
        *(tuple(sorted(asked.topology.items())), node_rules(asked.template)),
    )


def in_order(ask: QuotaRequest) -> tuple[Fraction, int, int, str]:
    """As the heap of a queue is ordered, head first (pkg/cache/queue/cluster_queue.go, queueOrderingFunc)."""
    return ask.before, -ask.priority, ask.queued_ms, ask.uid


def ask_of(
    workload: Workload, queue: str, config: KueueConfig, before: Fraction = Fraction(0)
) -> QuotaRequest:
    """What a workload asks. Kueue's own figure (status.resourceRequests) takes precedence over its templates;
    pods that gave their quota back are not asked for again."""
    return QuotaRequest(
        workload.meta.uid,
        queue,
        workload.priority,
        queue_timestamp_ms(workload),
        tuple(
            PodSetRequest(
                each.name,
                count,
                count if each.min_count is None else max(0, min(each.min_count, count)),
                _of_one(workload.asked.get(each.name), each.count, each.template.requests, config),
                each.template,
                each.topology,
            )
            for each in workload.pod_sets
            for count in [max(0, each.count - workload.reclaimable.get(each.name, 0))]
        ),
        before,
    )


def requested(asked: PodSetRequest, count: int, covered: Mapping[str, int]) -> dict[str, int]:
    """Of ``count`` pods of a set; where the queue covers ``pods``, how many they are counts too."""
    amounts = {resource: amount * count for resource, amount in asked.each.items()}
    if PODS in covered:
        amounts[PODS] = count
    return amounts


@lru_cache(maxsize=4096)
def walk_rank(resource: str) -> tuple[int, str]:
    """The place of a resource when flavors are looked for: kueue v0.19.2 goes through requests in the order
    of the 64-bit FNV-1a hash of their names, equal ones by name (pkg/resources/slice_requests.go)."""
    found = _FNV_BASIS
    for byte in resource.encode("utf-8", "surrogatepass"):
        found = (found ^ byte) * _FNV_PRIME & _FNV_MASK
    return found, resource


def groups_by_resource(queue: ClusterQueue) -> dict[str, int]:
    """The index of the resource group that covers each resource: of several the first (pkg/cache/scheduler,
    RGByResource)."""
    found: dict[str, int] = {}
    for index, group in enumerate(queue.groups):
        for resource in group.resources:
            found.setdefault(resource, index)
    return found


def added_usage(usages: Sequence[Mapping[FlavorResource, int]]) -> dict[FlavorResource, int]:
    """The sum, key by key."""
    total: dict[FlavorResource, int] = {}
    for usage in usages:
        for key, amount in usage.items():
            total[key] = total.get(key, 0) + amount
    return total


def _of_one(said: Resources | None, count: int, asked: Resources, config: KueueConfig) -> Resources:
    each = {name: amount // count for name, amount in said.items()} if said and count else asked
    if not config.excluded_prefixes:
        return each
    return {name: amount for name, amount in each.items() if not name.startswith(config.excluded_prefixes)}
