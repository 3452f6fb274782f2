"""What somebody has to put right: switches that were set by hand (suspend of a job, stopPolicy of a queue,
spec.active of a Workload), nodes to be repaired, and a Volcano queue that may hold more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpucost.advisor.kueue.job_workloads import SUSPENDED, suspend_path
from gpucost.advisor.kueue.messages import quantity
from gpucost.advisor.model.answers import (
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
)
from gpucost.advisor.placement.repaired_nodes import NodeRepair
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.candidates import (
    SuggestionCandidate,
    SuggestionCase,
    is_as_good,
    with_queues,
    with_repairs,
    with_volcano_queue,
)
from gpucost.advisor.suggest.patches import (
    drop,
    get,
    pointer,
    put,
    text_of,
)
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import Conditions, added, times
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.commands import (
    CLUSTER_QUEUES,
    VOLCANO_QUEUES,
    is_plain,
    json_patch,
    kubectl,
)
from gpucost.cluster.views.quota import QUEUE_INACTIVE

STOP_POLICY = "spec.stopPolicy"
_GOES = "None"
_STOPPED = "Stopped"
"""Reason of a queue's Active condition where its stopPolicy is why it is False (kueue v0.19.2)."""
_LOCAL_QUEUES = "localqueues.v1beta2.kueue.x-k8s.io"
_WORKLOADS = "workloads.kueue.x-k8s.io"
_PLUGIN = "device-plugin"
_PLUGIN_LABEL = "app=nvidia-device-plugin-daemonset"
_OPERATOR = "gpu-operator"
_NODE = "node/"


def suspends(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """For a job whose suspend no queue lifts: lift it."""
    if case.advice.reason != SUSPENDED:
        return
    path = suspend_path(case.manifest.job.job_kind)
    is_flag = get(case.manifest.document, path) is True

    def edit(document: dict[str, Any]) -> None:
        if is_flag:
            put(document, path, False)
        else:
            drop(document, path)

    says = f"{path[-1]}: false, so that it may start" if is_flag else f"without the annotation {path[-1]}"
    yield case.of_manifest(says, edit, same_work=True)


def stop_policies(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """For a queue that the answer names as stopped: resume it. One object only, the first that is stopped."""
    if case.advice.reason != QUEUE_INACTIVE:
        return
    stopped = next((each for each in case.advice.evidence if each.field == STOP_POLICY), None)
    kind, _, name = stopped.object.partition("/") if stopped is not None else ("", "", "")
    namespace = case.manifest.namespace if kind == "localqueue" else ""
    known = _going_on(case.known, namespace, name)
    if stopped is None or known is None:
        return
    collection = _LOCAL_QUEUES if namespace else CLUSTER_QUEUES
    what = "LocalQueue" if namespace else "ClusterQueue"
    says = f"let {what} {name} go on: stopPolicy {_GOES} instead of {stopped.value}"
    change = _switch(collection, namespace, name, f"{kind}/{name}", "stopPolicy", _GOES)
    yield case.of_cluster(says, change, known, "somebody stopped it on purpose: ask first")


def _going_on(known: AdvisorContext, namespace: str, name: str) -> AdvisorContext | None:
    state = known.state
    if namespace:
        local = state.local_queue_by_name.get((namespace, name))
        if local is None:
            return None
        active = replace(local, stop_policy=_GOES, conditions=_without_stop(local.conditions))
        return with_queues(known, local_queues=[active])
    queue = state.cluster_queue_by_name.get(name)
    if queue is None:
        return None
    goes = replace(queue, stop_policy=_GOES, conditions=_without_stop(queue.conditions))
    return with_queues(known, cluster_queues=[goes])


def _without_stop(conditions: Conditions) -> Conditions:
    """The conditions once Kueue no longer reports the queue as inactive because it is stopped."""
    return {name: each for name, each in conditions.items() if (name, each.reason) != ("Active", _STOPPED)}


def activation(workload: Workload) -> SuggestedChange:
    """Lets its Workload queue again: for those who may change Workloads."""
    name, namespace = workload.meta.name, workload.meta.namespace
    return _switch(_WORKLOADS, namespace, name, f"workload/{name}", "active", True)


def _switch(
    collection: str, namespace: str, name: str, target: str, field: str, value: object
) -> SuggestedChange:
    """Without a command where a name is not a valid Kubernetes name."""
    patch: Mapping[str, object] = {"spec": {field: value}}
    written = json.dumps(patch, separators=(",", ":"))
    where = ("-n", namespace) if namespace else ()
    is_safe = is_plain(name) and (not namespace or is_plain(namespace))
    command = kubectl(*where, "patch", collection, name, "--type=merge", "-p", written) if is_safe else ""
    operations = ({"op": "replace", "path": f"/spec/{field}", "value": value},)
    return SuggestedChange(SuggestedChangeKind.CLUSTER, target, text_of(patch), operations, command)


def repairs(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Repairs of the nodes that the answer names as what keeps the job from fitting."""
    wanted = _wanted(case)
    if not wanted or case.advice.decision is SchedulingDecision.NOW:
        return
    nodes = case.known.state.node_by_name
    closed = [nodes[name] for name, repair in wanted.items() if repair is not NodeRepair.DEVICES]
    if any(node.drain or node.maintenance for node in closed):
        return  # an administrator is at work there, and says so: the node comes back with that
    names = ", ".join(sorted(wanted))
    says = "; ".join(_says(repair, wanted) for repair in NodeRepair if repair in wanted.values())
    is_cordoned = set(wanted.values()) == {NodeRepair.UNCORDON}
    change = SuggestedChange(
        SuggestedChangeKind.CLUSTER,
        f"{_NODE}{names}",
        text_of({"spec": {"unschedulable": False}}) if is_cordoned else "",
        ({"op": "replace", "path": "/spec/unschedulable", "value": False},) if is_cordoned else (),
        _commands(case, wanted),
    )
    caveat = "somebody cordoned it on purpose: ask first" if NodeRepair.UNCORDON in wanted.values() else ""
    yield case.of_cluster(says, change, with_repairs(case.known, wanted), caveat)


def _wanted(case: SuggestionCase) -> dict[str, NodeRepair]:
    """The repairs by node, from the evidence of the answer."""
    found = {}
    for each in case.advice.evidence:
        name = each.object.removeprefix(_NODE)
        if not each.object.startswith(_NODE) or name not in case.known.state.node_by_name:
            continue
        if each.field.startswith("status.allocatable"):
            found[name] = NodeRepair.DEVICES
        elif each.field == "status.conditions[Ready]":
            found.setdefault(name, NodeRepair.READY)
        elif each.field == "spec.unschedulable":
            found.setdefault(name, NodeRepair.UNCORDON)
    return found if case.advice.layer in (SchedulingLayer.DEVICE, SchedulingLayer.PLACEMENT) else {}


def _says(repair: NodeRepair, wanted: Mapping[str, NodeRepair]) -> str:
    names = ", ".join(name for name, each in sorted(wanted.items()) if each is repair)
    many = "nodes" if "," in names else "node"
    if repair is NodeRepair.DEVICES:
        return f"restart the device plugin on {many} {names}, which advertises fewer GPUs than it has"
    return f"{'uncordon' if repair is NodeRepair.UNCORDON else 'bring back'} {many} {names}"


def _commands(case: SuggestionCase, wanted: Mapping[str, NodeRepair]) -> str:
    """One command a line; none for names that are not valid Kubernetes names."""
    lines = []
    for name, repair in sorted(wanted.items()):
        if not is_plain(name):
            continue
        if repair is NodeRepair.UNCORDON:
            lines.append(kubectl("uncordon", name))
        elif repair is NodeRepair.READY:
            lines.append(kubectl("describe", "node", name))
        else:
            lines.append(_restart(case, name))
    return "\n".join(lines)


def _restart(case: SuggestionCase, node: str) -> str:
    """Restarts the device plugin's pod on the node, else the pods of NVIDIA's operator that run there."""
    pods = case.known.state.pods_by_node.get(node, ())
    plugins = (pod.meta for pod in pods if _PLUGIN in pod.meta.name)
    plugin = min(plugins, key=lambda meta: meta.name, default=None)
    if plugin is not None and is_plain(plugin.name) and is_plain(plugin.namespace):
        return kubectl("-n", plugin.namespace, "delete", "pod", plugin.name)
    selector = f"--field-selector=spec.nodeName={node}"
    return kubectl("-n", _OPERATOR, "delete", "pod", "-l", _PLUGIN_LABEL, selector)


def capabilities(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """A higher cap for a Volcano queue, by what the job lacks."""
    if not case.is_at_volcano or case.advice.decision not in (
        SchedulingDecision.WAITS,
        SchedulingDecision.NEVER,
    ):
        return
    for name in dict.fromkeys(each.object.removeprefix("queue/") for each in case.advice.evidence):
        queue = case.known.world.queues.get(name)
        if queue is None or not queue.capability:
            continue
        asked = added(*(times(each.template.requests, each.count) for each in case.manifest.job.pod_sets))
        by = {key: amount for key, amount in asked.items() if amount and key in queue.capability}
        yield from _least(case, queue, by)


def _least(
    case: SuggestionCase, queue: VolcanoQueue, by: dict[str, int]
) -> Iterator[SuggestionCandidate | None]:
    """First all that the job asks for beyond the cap; then without what is not needed, and of the rest the
    least."""
    first = _with(case, queue, by)
    yield first
    if first is None or not case.helps(first):
        return
    for key in sorted(by, key=lambda name: ("/" in name, name)):
        low, high, middle = 0, by[key], 0
        while low < high and case.may_ask:
            found = _with(case, queue, {**by, key: middle})
            yield found
            if found is not None and is_as_good(found, first):
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        by = {**by, key: high}


def _with(case: SuggestionCase, queue: VolcanoQueue, by: Mapping[str, int]) -> SuggestionCandidate | None:
    raised = {key: amount for key, amount in by.items() if amount}
    if not raised or not case.may_ask or queue.capability is None:
        return None
    amounts = {key: queue.capability[key] + amount for key, amount in raised.items()}
    changed = replace(queue, capability={**queue.capability, **amounts})
    values = {key: quantity(key, amount) for key, amount in sorted(amounts.items())}
    operations = tuple(
        {"op": "replace", "path": pointer(("spec", "capability", key)), "value": value}
        for key, value in values.items()
    )
    change = SuggestedChange(
        SuggestedChangeKind.CLUSTER,
        f"queue/{queue.name}",
        text_of({"spec": {"capability": values}}),
        operations,
        json_patch(VOLCANO_QUEUES, queue.name, operations) if is_plain(queue.name) else "",
    )
    parts = [f"{key} from {quantity(key, queue.capability[key])} to {value}" for key, value in values.items()]
    says = f"raise capability of Volcano queue {queue.name}: {', '.join(parts)}"
    return case.of_cluster(says, change, with_volcano_queue(case.known, changed))
