"""What kube-state-metrics 2.x shows of a world: requests, phases, owners, labels and nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

from gpucost.contract import kube_state as kube
from tests.support.existing.text import Series, Steps, Target
from tests.support.existing.world import NEVER, Box, End, Node, Pod, World, stable

PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
DEVICE_PLUGIN_NAMESPACE = "gpu-operator"


def kube_target(world: World, honors: bool = True) -> Target:
    """As the chart of kube-prometheus-stack scrapes it (``honorLabels: true``), or without that."""
    labels = {
        "cluster": world.name,
        "job": "kube-state-metrics",
        "instance": "10.2.0.9:8080",
        "namespace": "monitoring",
        "pod": "kube-state-metrics-6b8d7c-x2lqk",
        "container": "kube-state-metrics",
        "service": "kube-state-metrics",
        "endpoint": "http",
    }
    return Target(labels, honors)


def kube_series(world: World, exporters: Mapping[str, str]) -> Iterator[Series]:
    """Everything, ``exporters`` being the pods of dcgm-exporter by node."""
    for node in world.nodes:
        yield from _node(node)
    for pod in world.pods:
        yield from _pod(pod)
    by_owner: dict[tuple[str, str, str], list[Pod]] = defaultdict(list)
    for pod in world.pods:
        by_owner[pod.namespace, *pod.owner].append(pod)
    for (namespace, kind, name), pods in sorted(by_owner.items(), key=itemgetter(0)):
        if kind == "Job":
            yield _job(namespace, name, pods)
        elif kind == "ReplicaSet":
            yield _replica_set(namespace, name, min(pod.created_ms for pod in pods))
    for node_name, name in exporters.items():
        yield from _exporter(world.node(node_name), name)


def _node(node: Node) -> Iterator[Series]:
    def series(name: str, value: float | Steps, **labels: str) -> Series:
        return Series(name, {"node": node.name, **labels}, value, node.start_ms, node.end_ms)

    yield series(kube.NODE_INFO, 1, kubelet_version="v1.33.2", os_image="Ubuntu 22.04", provider_id=node.name)
    yield series(kube.NODE_CREATED, node.start_ms // 1000)
    yield series(kube.NODE_UNSCHEDULABLE, 0)
    labels = node.labels.items() if node.shows_labels else ()
    yield series(kube.NODE_LABELS, 1, **{kube.label_name(key): value for key, value in labels})
    for condition in ("Ready", "MemoryPressure"):
        for status in ("true", "false", "unknown"):
            holds = status == ("true" if condition == "Ready" else "false")
            yield series(kube.NODE_CONDITION, int(holds), condition=condition, status=status)
    offered = {offer.resource: offer.units for offer in node.offers}
    if node.boards:
        # A resource that was there once stays, at 0: GPUs that were cut, GPUs that are shared.
        offered.setdefault("nvidia.com/gpu", 0)
    for resource, units in offered.items():
        of_resource = {"resource": kube.sanitised(resource), "unit": "integer"}
        yield series(kube.NODE_CAPACITY, units, **of_resource)
        yield series(kube.NODE_ALLOCATABLE, _allocatable(node, units), **of_resource)
    for resource, unit, amount in (("cpu", "core", 96), ("memory", "byte", 2**40)):
        yield series(kube.NODE_CAPACITY, amount, resource=resource, unit=unit)
        yield series(kube.NODE_ALLOCATABLE, amount, resource=resource, unit=unit)


def _allocatable(node: Node, units: int) -> float | Steps:
    since, values = [node.start_ms], [float(units)]
    for start_ms, end_ms, lost in node.lost:
        since += [start_ms, end_ms]
        values += [float(units - lost), float(units)]
    return Steps(since, values) if len(since) > 1 else units


def _pod(pod: Pod) -> Iterator[Series]:
    there = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}

    def series(
        name: str,
        value: float | Steps,
        since_ms: int | None = None,
        until_ms: int | None = None,
        **labels: str,
    ) -> Series:
        since = pod.created_ms if since_ms is None else since_ms
        until = pod.gone_ms if until_ms is None else until_ms
        return Series(name, {**there, **labels}, value, since, until)

    for box in pod.boxes:
        yield from _requests(pod, box, there)
    yield series(kube.CREATED, pod.created_ms // 1000)
    yield series(kube.SCHEDULED, pod.bound_ms // 1000, pod.bound_ms)
    yield series(kube.STARTED, pod.bound_ms // 1000 + 1, pod.bound_ms + 1000)
    completed = _completed(pod)
    if completed is not None:
        yield Series(kube.COMPLETED, there, completed, _first(completed), pod.gone_ms)
    for phase, value in _phases(pod).items():
        yield series(kube.PHASE, value, phase=phase)
    kind, name = pod.owner
    owner = {"owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}
    info = {"created_by_kind": kind, "created_by_name": name, "host_network": "false", "priority_class": ""}
    yield series(kube.POD_INFO, 1, until_ms=pod.bound_ms, **info)
    yield series(kube.POD_INFO, 1, pod.bound_ms, node=pod.node, host_ip="10.0.0.1", pod_ip="10.1.0.1", **info)
    yield series(kube.POD_OWNER, 1, **owner)
    edges = [pod.created_ms, *(since for since, _ in pod.teams[1:]), pod.gone_ms]
    for (since, until), (_, team) in zip(pairwise(edges), pod.teams, strict=True):
        yield series(kube.POD_LABELS, 1, since, until, label_team=team, label_app=pod.owner[1])


def _requests(pod: Pod, box: Box, there: Mapping[str, str]) -> Iterator[Series]:
    """As long as the object is there; of a pod that no node has yet, label ``node`` is empty."""
    name = kube.INIT_REQUESTS if box.is_init else kube.REQUESTS
    wanted = [(kube.sanitised(pod.resource), "integer", float(box.units))] if box.units else []
    for resource, unit, amount in (*wanted, ("cpu", "core", 0.5)):
        labels = {**there, "container": box.name, "resource": resource, "unit": unit}
        value = int(amount) if unit == "integer" else amount
        yield Series(name, {**labels, "node": ""}, value, pod.created_ms, pod.bound_ms)
        yield Series(name, {**labels, "node": pod.node}, value, pod.bound_ms, pod.gone_ms)


def _completed(pod: Pod) -> Steps | None:
    """The end of the last container that has ended so far, in seconds."""
    ends = sorted(box.end_ms for box in pod.boxes if box.end_ms < pod.end_ms)
    if pod.end in (End.COMPLETED, End.FAILED):
        ends.append(pod.end_ms)
    return Steps(ends, [end // 1000 for end in ends]) if ends else None


def _first(completed: Steps) -> int:
    return completed.since_ms[0]


def _phases(pod: Pod) -> dict[str, float | Steps]:
    since, said = [pod.created_ms, pod.bound_ms + 4000], ["Pending", "Running"]
    if pod.end in (End.COMPLETED, End.FAILED, End.EVICTED):
        since.append(pod.end_ms)
        said.append("Succeeded" if pod.end is End.COMPLETED else "Failed")
    return {phase: Steps(since, [int(phase == each) for each in said]) for phase in PHASES}


def _job(namespace: str, name: str, pods: Sequence[Pod]) -> Series:
    there = {"namespace": namespace, "job_name": name}
    owner = {"owner_kind": "<none>", "owner_name": "<none>", "owner_is_controller": "<none>"}
    span = min(pod.created_ms for pod in pods), max(pod.gone_ms for pod in pods)
    return Series(kube.JOB_OWNER, {**there, **owner}, 1, *span)


def _replica_set(namespace: str, name: str, since_ms: int) -> Series:
    labels = {"namespace": namespace, "replicaset": name, "owner_is_controller": "true"}
    labels |= {"owner_kind": "Deployment", "owner_name": name.rsplit("-", 1)[0]}
    return Series(kube.REPLICASET_OWNER, labels, 1, since_ms, NEVER)


def _exporter(node: Node, name: str) -> Iterator[Series]:
    there = {"namespace": DEVICE_PLUGIN_NAMESPACE, "pod": name, "uid": stable(name)}
    owner = {"created_by_kind": "DaemonSet", "created_by_name": "nvidia-dcgm-exporter"}
    since = node.start_ms + 60_000
    yield Series(kube.POD_INFO, {**there, **owner, "node": node.name}, 1, since, node.end_ms)
    yield Series(kube.CREATED, there, since // 1000, since, node.end_ms)
