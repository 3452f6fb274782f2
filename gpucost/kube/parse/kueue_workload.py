"""Kueue's Workloads, of v1beta1 and v1beta2 alike (kueue v0.19.2, apis/kueue/v1beta2/workload_types.go)."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.cluster.kueue import Assignment, CheckState, Eviction, Workload
from gpucost.cluster.objects import Resources
from gpucost.cluster.pods import PodSet
from gpucost.kube.events import Object
from gpucost.kube.parse.reading import Part, conditions, meta, shared
from gpucost.kube.parse.templates import pod_template
from gpucost.kube.parse.topology_assignment import domain_counts

_MAIN = "main"
_OF_KUEUE = "kueue.x-k8s.io"
_SOURCES = {"kueue.x-k8s.io/workloadpriorityclass": True, "scheduling.k8s.io/priorityclass": False}
_TOPOLOGY = {
    "required": "required",
    "preferred": "preferred",
    "group": "podSetGroupName",
    "slice": "podSetSliceRequiredTopology",
}
_PAST_EXECUTION = ("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")


def workload(found: Object) -> Workload:
    """Raises Unreadable for an object without identity."""
    part = Part(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    priority_class, of_kueue = _priority_class(spec)
    pod_sets = tuple(_pod_set(each) for each in spec.parts("podSets"))
    admission, requeue = status.part("admission"), status.part("requeueState")
    return Workload(
        identity,
        pod_sets,
        queue=spec.text("queueName"),
        priority=spec.whole("priority") or 0,
        priority_class=priority_class,
        priority_class_of_kueue=of_kueue,
        is_active=spec.flag("active", True),
        max_execution_s=spec.count("maximumExecutionTimeSeconds") or None,
        cluster_queue=admission.text("clusterQueue"),
        assignments=_assignments(admission, pod_sets),
        conditions=conditions(status),
        requeue_count=requeue.count("count"),
        requeue_at_ms=requeue.instant("requeueAt"),
        reclaimable=_reclaimable(status),
        checks=_checks(status),
        asked=_asked(status),
        evictions=_evictions(status),
        past_execution_s=max(status.count(key) for key in _PAST_EXECUTION),
        unhealthy_nodes=tuple(each.text("name") for each in status.parts("unhealthyNodes")),
        on_cluster=status.text("clusterName"),
        flaws=tuple(part.flaws),
    )


def _priority_class(spec: Part) -> tuple[str, bool]:
    """Its name, and whether it is a WorkloadPriorityClass.

    In v1beta1 a name without a source is no reference (kueue, apis/kueue/v1beta1/workload_conversion.go).
    """
    reference = spec.part("priorityClassRef")
    if reference:
        return reference.text("name"), reference.text("group") == _OF_KUEUE
    of_kueue = _SOURCES.get(spec.text("priorityClassSource"))
    return ("", False) if of_kueue is None else (spec.text("priorityClassName"), of_kueue)


def _pod_set(part: Part) -> PodSet:
    return PodSet(
        part.text("name") or _MAIN,
        part.count("count", 1),
        pod_template(part.part("template").part("spec")),
        part.count("minCount") or None,
        _topology(part.part("topologyRequest")),
    )


def _topology(request: Part) -> Mapping[str, str]:
    if not request:
        return {}
    read = {key: request.text(field) for key, field in _TOPOLOGY.items() if field in request}
    if "podSetSliceSize" in request:
        read["slice_size"] = str(request.count("podSetSliceSize"))
    if request.flag("unconstrained"):
        read["unconstrained"] = "true"
    return read


def _assignments(admission: Part, pod_sets: tuple[PodSet, ...]) -> tuple[Assignment, ...]:
    """Admissions that older Kueue wrote have no count: then it is all of the pod set."""
    sizes = {each.name: each.count for each in pod_sets}
    return tuple(_assignment(each, sizes) for each in admission.parts("podSetAssignments"))


def _assignment(part: Part, sizes: Mapping[str, int]) -> Assignment:
    name, topology = part.text("name") or _MAIN, part.part("topologyAssignment")
    domains = domain_counts(topology) if topology else ()
    return Assignment(
        name,
        part.labels("flavors"),
        shared(part.amounts("resourceUsage")),
        part.count("count", sizes.get(name, 0)),
        topology.texts("levels") if domains else (),
        domains,
    )


def _reclaimable(status: Part) -> dict[str, int]:
    return {each.text("name"): each.count("count") for each in status.parts("reclaimablePods")}


def _checks(status: Part) -> tuple[CheckState, ...]:
    return tuple(
        CheckState(each.text("name"), each.text("state"), each.text("message"))
        for each in status.parts("admissionChecks")
    )


def _asked(status: Part) -> dict[str, Resources]:
    return {each.text("name"): shared(each.amounts("resources")) for each in status.parts("resourceRequests")}


def _evictions(status: Part) -> tuple[Eviction, ...]:
    return tuple(
        Eviction(each.text("reason"), each.text("underlyingCause"), each.count("count"))
        for each in status.part("schedulingStats").parts("evictions")
    )
