"""Nodes to be repaired, and a Volcano queue that may hold more: for an administrator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpucost.advisor.answers import Change, ChangeKind, Decision, Layer
from gpucost.advisor.kueue.words import quantity
from gpucost.advisor.placement.mended import Repair
from gpucost.advisor.suggest.case import Case, Tried, is_as_good
from gpucost.advisor.suggest.patching import pointer, text_of
from gpucost.advisor.suggest.what_if import with_repairs, with_volcano_queue
from gpucost.cluster.commands import is_plain, kubectl
from gpucost.cluster.objects import added, times
from gpucost.cluster.quota_yaml import VOLCANO_QUEUES, json_patch
from gpucost.cluster.volcano import VolcanoQueue

_PLUGIN = "device-plugin"
_PLUGIN_LABEL = "app=nvidia-device-plugin-daemonset"
_OPERATOR = "gpu-operator"
_NODE = "node/"


def repairs(case: Case) -> Iterator[Tried | None]:
    """Those nodes that the answer names as what keeps it from fitting."""
    wanted = _wanted(case)
    if not wanted or case.advice.decision is Decision.NOW:
        return
    names = ", ".join(sorted(wanted))
    says = "; ".join(_says(repair, wanted) for repair in Repair if repair in wanted.values())
    is_cordoned = set(wanted.values()) == {Repair.UNCORDON}
    change = Change(
        ChangeKind.CLUSTER,
        f"{_NODE}{names}",
        text_of({"spec": {"unschedulable": False}}) if is_cordoned else "",
        ({"op": "replace", "path": "/spec/unschedulable", "value": False},) if is_cordoned else (),
        _commands(case, wanted),
    )
    caveat = "somebody cordoned it on purpose: ask first" if Repair.UNCORDON in wanted.values() else ""
    yield case.of_cluster(says, change, with_repairs(case.known, wanted), caveat)


def _wanted(case: Case) -> dict[str, Repair]:
    """By node, from the evidence of the answer."""
    found = {}
    for each in case.advice.evidence:
        name = each.object.removeprefix(_NODE)
        if not each.object.startswith(_NODE) or name not in case.known.state.node_by_name:
            continue
        if each.field.startswith("status.allocatable"):
            found[name] = Repair.DEVICES
        elif each.field == "status.conditions[Ready]":
            found.setdefault(name, Repair.READY)
        elif each.field == "spec.unschedulable":
            found.setdefault(name, Repair.UNCORDON)
    return found if case.advice.layer in (Layer.DEVICE, Layer.PLACEMENT) else {}


def _says(repair: Repair, wanted: Mapping[str, Repair]) -> str:
    names = ", ".join(name for name, each in sorted(wanted.items()) if each is repair)
    many = "nodes" if "," in names else "node"
    if repair is Repair.DEVICES:
        return f"restart the device plugin on {many} {names}, which advertises fewer GPUs than it has"
    return f"{'uncordon' if repair is Repair.UNCORDON else 'bring back'} {many} {names}"


def _commands(case: Case, wanted: Mapping[str, Repair]) -> str:
    """One a line; none for names that are no names of Kubernetes."""
    lines = []
    for name, repair in sorted(wanted.items()):
        if not is_plain(name):
            continue
        if repair is Repair.UNCORDON:
            lines.append(kubectl("uncordon", name))
        elif repair is Repair.READY:
            lines.append(kubectl("describe", "node", name))
        else:
            lines.append(_restart(case, name))
    return "\n".join(lines)


def _restart(case: Case, node: str) -> str:
    """Of the device plugin's pod on the node, else of whatever NVIDIA's operator runs there."""
    pods = case.known.state.pods_by_node.get(node, ())
    plugins = (pod.meta for pod in pods if _PLUGIN in pod.meta.name)
    plugin = min(plugins, key=lambda meta: meta.name, default=None)
    if plugin is not None and is_plain(plugin.name) and is_plain(plugin.namespace):
        return kubectl("-n", plugin.namespace, "delete", "pod", plugin.name)
    selector = f"--field-selector=spec.nodeName={node}"
    return kubectl("-n", _OPERATOR, "delete", "pod", "-l", _PLUGIN_LABEL, selector)


def capabilities(case: Case) -> Iterator[Tried | None]:
    """A Volcano queue's hard cap, by what it lacks."""
    if not case.is_at_volcano or case.advice.decision not in (Decision.WAITS, Decision.NEVER):
        return
    for name in dict.fromkeys(each.object.removeprefix("queue/") for each in case.advice.evidence):
        queue = case.known.world.queues.get(name)
        if queue is None or not queue.capability:
            continue
        asked = added(*(times(each.template.requests, each.count) for each in case.manifest.job.pod_sets))
        by = {key: amount for key, amount in asked.items() if amount and key in queue.capability}
        yield from _least(case, queue, by)


def _least(case: Case, queue: VolcanoQueue, by: dict[str, int]) -> Iterator[Tried | None]:
    """All that it asks for more; then without what is not needed, and of the rest the least."""
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


def _with(case: Case, queue: VolcanoQueue, by: Mapping[str, int]) -> Tried | None:
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
    change = Change(
        ChangeKind.CLUSTER,
        f"queue/{queue.name}",
        text_of({"spec": {"capability": values}}),
        operations,
        json_patch(VOLCANO_QUEUES, queue.name, operations) if is_plain(queue.name) else "",
    )
    parts = [f"{key} from {quantity(key, queue.capability[key])} to {value}" for key, value in values.items()]
    says = f"raise capability of Volcano queue {queue.name}: {', '.join(parts)}"
    return case.of_cluster(says, change, with_volcano_queue(case.known, changed))
