"""Series of what waits: pod sets, how many of their pods wait, what one wants, which nodes would take it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod, PodSet, PodTemplate
from gpucost.cluster.views.node_fit import is_evaluated, matches
from gpucost.cluster.views.nvlink_domains import ChannelNeed, ChannelNeeds
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import POD_SET, PodOwnership
from gpucost.cluster.views.quota import cluster_queue_of
from gpucost.cluster.views.workload_families import sends_elsewhere
from gpucost.contract import queue_metrics as m
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.queue_metrics import PRODUCT_SEPARATOR, NodeAdmission, WaitLayer
from gpucost.domain.jobs import JobReference
from gpucost_queue_collector.page import line

WORKLOAD_SETS = (m.WORKLOAD_SET_PODS, m.WORKLOAD_SET_MIN, m.WORKLOAD_SET_UNITS, m.WORKLOAD_SET_CHANNELS)
JOB_SETS = (m.JOB_SET_PODS, m.JOB_SET_MIN, m.JOB_SET_UNITS, m.JOB_SET_CHANNELS)
K = TypeVar("K")
# Labels that name what part of its job a pod is: Kueue's, Volcano's and the training operator's.
SET_LABELS = (
    *(POD_SET, "volcano.sh/task-spec"),
    *("training.kubeflow.org/replica-type", "jobset.sigs.k8s.io/replicatedjob-name"),
)


class PodGpuDemand(NamedTuple):
    """GPU ``units`` of one resource for one pod, and which nodes would take it."""

    resource: str
    units: int
    nodes: NodeAdmission
    products: tuple[str, ...] = ()


class WaitingSet(NamedTuple):
    """Equal pods that wait: how many, and how many of them must start at once."""

    name: str
    pods: int
    min_pods: int
    wants: tuple[PodGpuDemand, ...]
    channel: ChannelNeed = ChannelNeed.NONE


@dataclass(frozen=True)
class WaitingDemand:
    """What the waiting workloads and jobs of one state want. Equal templates are evaluated once."""

    overview: ClusterOverview
    _answers: dict[object, tuple[NodeAdmission, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def ownership(self) -> PodOwnership:
        return self.overview.ownership

    def of_workload(self, workload: Workload) -> tuple[WaitingSet, ...]:
        """The waiting sets of a workload that is held back. While quota holds it, all of its pods wait, made
        or not; once it is admitted, those without a node. One whose pods all have nodes, and cannot start
        there, wants none. Nor does one that MultiKueue sends elsewhere: nodes here cannot serve it. Of one
        that waits to be sent it is not known which nodes would."""
        if workload.meta.uid in self.overview.dispatches:
            return ()
        layer = self.overview.holds[workload.meta.uid].layer
        waiting = self._by_workload.get(workload.meta.uid, ())
        size = self._gang_size(workload)
        is_far = self._is_far(workload)
        found = []
        for each in workload.pod_sets:
            pods = max(0, each.count - workload.reclaimable.get(each.name, 0))
            if layer is not WaitLayer.QUOTA:
                names = (each.name, "") if len(workload.pod_sets) == 1 else (each.name,)
                pods = min(pods, sum(pod.meta.labels.get(POD_SET, "") in names for pod in waiting))
            wants = self._wants(each.template, self._asked(workload, each))
            if is_far:
                wants = tuple(wanted._replace(nodes=NodeAdmission.UNKNOWN, products=()) for wanted in wants)
            if pods and wants:
                fewest = pods if each.min_count is None else min(pods, each.min_count)
                need = self._channels.of(workload.meta, each.template, topology=each.topology)
                found.append(WaitingSet(each.name, pods, max(1, min(fewest, size)), wants, need))
        return tuple(found)

    def _is_far(self, workload: Workload) -> bool:
        """Whether its queue sends workloads to other clusters."""
        queue = cluster_queue_of(self.overview.state, workload)
        return queue is not None and bool(queue.checks) and sends_elsewhere(queue, self.overview.state)

    def pods_of(self, job: JobReference) -> Sequence[Pod]:
        """Pods without a node of a job without a workload."""
        return self._by_job.get(job, ())

    def of_job(self, job: JobReference) -> tuple[WaitingSet, ...]:
        """Its pods without a node, alike ones together, named by their labels; of several with one name the
        others are numbered, in order of their rules."""
        fewest = self._gang_need.get(job, 1)
        alike: dict[tuple[str, str, tuple[PodGpuDemand, ...], ChannelNeed], int] = {}
        for pod in self.pods_of(job):
            wants = self._wants(pod.template, self.overview.units.of(pod))
            if not wants:
                continue  # it wants a part of a GPU, and demand is in whole units
            name = next((pod.meta.labels[key] for key in SET_LABELS if pod.meta.labels.get(key)), "")
            need = self._channels.of(pod.meta, pod.template, pod.claims)
            key = name, repr((wants, need)), wants, need
            alike[key] = alike.get(key, 0) + 1
        names: dict[str, int] = {}
        found = []
        for (name, _, wants, channel), pods in sorted(alike.items(), key=lambda item: item[0][:2]):
            names[name] = names.get(name, 0) + 1
            numbered = name if names[name] == 1 else f"{name}#{names[name]}"
            found.append(WaitingSet(numbered, pods, max(1, min(pods, fewest)), wants, channel))
        return tuple(found)

    def _asked(self, workload: Workload, pod_set: PodSet) -> Resources:
        """GPU units of one pod: of its template, else, for devices of claims, what Kueue counted."""
        units = self.overview.units
        asked = units.asked(pod_set.template.requests)
        if asked or not pod_set.count:
            return asked
        counted = units.asked(workload.asked.get(pod_set.name, {}))
        return {resource: -(-amount // pod_set.count) for resource, amount in counted.items()}

    def _gang_size(self, workload: Workload) -> int:
        """How many of its pods are of no use without each other, at most; as for gangs, by the job's shape,
        and all where that is not known."""
        job = self.ownership.maker_of(workload)
        if job is not None and (job.pod_sets or job.gang_size):
            return job.gang_size or 1
        return sum(each.count for each in workload.pod_sets)

    @cached_property
    def _channels(self) -> ChannelNeeds:
        return ChannelNeeds(self.overview.state)

    @cached_property
    def _gang_need(self) -> Mapping[JobReference, int]:
        """By job, how many more its neediest gang needs."""
        found: dict[JobReference, int] = {}
        for gang in self.overview.gangs:
            if gang.pending:
                found[gang.job] = max(found.get(gang.job, 1), gang.min_members - gang.running)
        return found

    @cached_property
    def _waiting(self) -> Sequence[Pod]:
        units = self.overview.units
        pods = self.overview.state.pods.values()
        return [pod for pod in pods if pod.bound_ms is None and not pod.has_ended and units.is_gpu_pod(pod)]

    @cached_property
    def _by_workload(self) -> Mapping[str, Sequence[Pod]]:
        return _grouped((self.ownership.of(pod).workload_uid, pod) for pod in self._waiting)

    @cached_property
    def _by_job(self) -> Mapping[JobReference, Sequence[Pod]]:
        belongings = ((self.ownership.of(pod), pod) for pod in self._waiting)
        return _grouped((of.job, pod) for of, pod in belongings if not of.workload_uid)

    def _wants(self, template: PodTemplate, asked: Resources) -> tuple[PodGpuDemand, ...]:
        return tuple(
            PodGpuDemand(resource, amount, *self._admitting(template, resource))
            for resource, amount in sorted(asked.items())
        )

    def _admitting(self, template: PodTemplate, resource: str) -> tuple[NodeAdmission, tuple[str, ...]]:
        if not is_evaluated(template):
            return NodeAdmission.UNKNOWN, ()
        selector = tuple(sorted(template.node_selector.items()))
        key = selector, template.affinity, template.tolerations, resource
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._look(template, resource)
        return found

    def _look(self, template: PodTemplate, resource: str) -> tuple[NodeAdmission, tuple[str, ...]]:
        """Whether nodes would take the template. One node of a product is enough."""
        by_product = self._nodes.get(resource, {})
        admitted = {
            product for product, nodes in by_product.items() if any(matches(node, template) for node in nodes)
        }
        if not admitted:
            return NodeAdmission.NONE, ()
        if len(admitted) == len(by_product):
            return NodeAdmission.ALL, ()
        return NodeAdmission.SOME, tuple(sorted(admitted - {""}))

    @cached_property
    def _nodes(self) -> Mapping[str, Mapping[str, Sequence[Node]]]:
        """Nodes that have a resource, or should, by it and their GPU product."""
        found: dict[str, dict[str, list[Node]]] = {}
        overview, units = self.overview, self.overview.units
        for node in overview.state.nodes.values():
            known = (
                node.capacity,
                node.allocatable,
                node.expected,
                overview.published_on(node).there,
            )
            has = {resource for of in known for resource, amount in of.items() if amount > 0}
            for resource in has:
                if units.is_gpu(resource):
                    found.setdefault(resource, {}).setdefault(node.product, []).append(node)
        return found


def _grouped(pairs: Iterable[tuple[K, Pod]]) -> dict[K, list[Pod]]:
    found: dict[K, list[Pod]] = {}
    for key, pod in pairs:
        found.setdefault(key, []).append(pod)
    return found


def write_sets(
    specs: tuple[MetricSpec, MetricSpec, MetricSpec, MetricSpec],
    identity: tuple[str, ...],
    sets: Sequence[WaitingSet],
) -> tuple[bytes, bytes, bytes, bytes]:
    """One text for each of ``specs``: pods, fewest pods, units of a pod, channels."""
    pods, fewest, units, channels = specs
    return (
        b"".join(line(pods, (*identity, each.name), each.pods) for each in sets),
        b"".join(line(fewest, (*identity, each.name), each.min_pods) for each in sets),
        b"".join(
            line(
                units,
                (
                    *(*identity, each.name, wanted.resource),
                    *(PRODUCT_SEPARATOR.join(wanted.products), wanted.nodes.value),
                ),
                wanted.units,
            )
            for each in sets
            for wanted in each.wants
        ),
        b"".join(
            line(channels, (*identity, each.name, each.channel.value), 1) for each in sets if each.channel
        ),
    )
