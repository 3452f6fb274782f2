"""Other nodes: a toleration that is missing, another flavor, spot nodes for what can be stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucost.advisor.model.answers import SchedulingDecision, SchedulingLayer
from gpucost.advisor.suggest.candidates import SuggestionCandidate, SuggestionCase
from gpucost.advisor.suggest.patches import (
    DocumentPath,
    ManifestEdit,
    drop,
    get,
    gpu_specs,
    put,
)
from gpucost.cluster.objects.kueue import ResourceFlavor
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import PodTemplate

SPOT = "spot"
_KEEPS_OUT = ("NoSchedule", "NoExecute")
_OF_KUBERNETES = "node.kubernetes.io/"
_REQUIRED: DocumentPath = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
_SOME = 3
_INTERRUPTED = "spot nodes can be taken away at any time: it must go on from its last checkpoint"


def tolerations(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Tolerations for the taints of a flavor that refuses it, or of nodes that would take it."""
    if case.advice.decision is SchedulingDecision.NOW:
        return
    for taints in _refusing_taints(case):
        named = ", ".join(f"{each.key}{f'={each.value}' if each.value else ''}" for each in taints)
        edit = _toleration_edit(case, taints)
        found = case.of_manifest(f"tolerate the taint {named}", edit, same_work=True)
        is_open = found is not None and found.answer.decision is SchedulingDecision.WAITS
        yield replace(found, caveat=_may_split(case, taints)) if found is not None and is_open else found


def flavors(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Another flavor of its ClusterQueue; without Kueue, another value of a node label that it asks for."""
    if case.advice.decision is SchedulingDecision.NOW and case.advice.price is None:
        return
    for flavor in _other_flavors(case):
        if not _is_spot(case, flavor):
            says = f"ask for flavor {flavor.meta.name}{_labels_text(flavor.node_labels)}"
            edit = _steered(case, flavor)
            yield case.of_manifest(says, edit, _products_text(case, flavor), same_work=True)
    if not case.is_at_kueue or case.advice.layer is SchedulingLayer.PLACEMENT:
        yield from _selectors(case)


def spot(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """A spot flavor or spot nodes, only for a job that states that it checkpoints."""
    if case.manifest.checkpoints is not True:
        return
    for flavor in _other_flavors(case):
        if _is_spot(case, flavor):
            says = f"run it on spot nodes: flavor {flavor.meta.name}{_labels_text(flavor.node_labels)}"
            yield case.of_manifest(says, _steered(case, flavor), _INTERRUPTED, same_work=True)
    if not case.is_at_kueue:
        nodes = [each for each in case.known.state.nodes.values() if each.capacity_type == SPOT]
        for taints in _taints_of(nodes, _templates(case)):
            edit = _toleration_edit(case, taints)
            yield case.of_manifest("let it run on spot nodes too", edit, _INTERRUPTED, same_work=True)


def _templates(case: SuggestionCase) -> list[PodTemplate]:
    """Of pods that ask for GPUs; all of them where none does."""
    sets = case.manifest.quota_sets or case.manifest.job.pod_sets
    is_gpu = case.known.overview.catalog.is_gpu
    found = [each.template for each in sets if any(map(is_gpu, each.template.requests))]
    return found or [each.template for each in sets]


def _flavors(case: SuggestionCase) -> Iterator[ResourceFlavor]:
    """Of its ClusterQueue, for its GPUs, in the order of trial."""
    if not case.is_at_kueue:
        return
    queue = case.known.kueue.snapshot.queues[case.advice.queue]
    asked = {name for each in _templates(case) for name in each.requests}
    gpus = [name for name in queue.covered if name in asked and case.known.overview.catalog.is_gpu(name)]
    groups = dict.fromkeys(queue.covered[name] for name in gpus or sorted(asked & queue.covered.keys()))
    for name in dict.fromkeys(each for at in groups for each in queue.spec.groups[at].flavors):
        flavor = case.known.state.flavor_by_name.get(name)
        if flavor is not None:
            yield flavor


def _other_flavors(case: SuggestionCase) -> list[ResourceFlavor]:
    """The flavors that it is not given without a change."""
    given = {name for each in case.advice.pod_sets for name in each.flavors.values()}
    return [each for each in _flavors(case) if each.meta.name not in given and each.node_labels]


def _refusing_taints(case: SuggestionCase) -> Iterator[tuple[Taint, ...]]:
    templates, found = _templates(case), dict[tuple[Taint, ...], None]()
    for flavor in _flavors(case):
        taints = _untolerated(flavor.taints, [(*each.tolerations, *flavor.tolerations) for each in templates])
        if taints and not _is_spot(case, flavor):
            found[taints] = None
    nodes = [each for each in case.known.state.nodes.values() if each.capacity_type != SPOT]
    found.update(dict.fromkeys(_taints_of(nodes, templates)))
    yield from found


def _taints_of(nodes: Iterable[Node], templates: Sequence[PodTemplate]) -> list[tuple[Taint, ...]]:
    """Sets of taints that keep it from nodes which have what one of its pods asks for, of the most nodes
    first."""
    counts: dict[tuple[Taint, ...], int] = {}
    seen: dict[tuple[Taint, ...], tuple[Taint, ...]] = {}
    special = {name for each in templates for name, amount in each.requests.items() if "/" in name and amount}
    for node in nodes:
        if not node.taints or not any(node.allocatable.get(name) for name in special):
            continue
        if node.taints not in seen:
            seen[node.taints] = _untolerated(node.taints, [each.tolerations for each in templates])
        if seen[node.taints]:
            counts[seen[node.taints]] = counts.get(seen[node.taints], 0) + 1
    return sorted(counts, key=lambda taints: (-counts[taints], str(taints)))[:_SOME]


def _may_split(case: SuggestionCase, taints: Sequence[Taint]) -> str:
    """A warning where it may use nodes with other GPUs than before the change; none for a single pod."""
    templates = _templates(case)
    special = {name for each in templates for name, amount in each.requests.items() if "/" in name and amount}
    before, opened = set[str](), set[str]()
    for node in case.known.state.nodes.values():
        is_asked = any(each.node_selector.items() <= node.labels.items() for each in templates)
        if is_asked and node.product and any(node.allocatable.get(name) for name in special):
            missing = _untolerated(node.taints, [each.tolerations for each in templates])
            if set(missing) <= set(taints):
                (opened if missing else before).add(node.product)
    if not before or opened <= before or case.manifest.job.pods_wanted < 2:
        return ""
    return (
        f"its pods may then be on {' and '.join(sorted(before | opened))}, which differ in speed and memory"
    )


def _untolerated(taints: Iterable[Taint], by: Sequence[tuple[Any, ...]]) -> tuple[Taint, ...]:
    return tuple(
        each
        for each in taints
        if each.effect in _KEEPS_OUT
        and not each.key.startswith(_OF_KUBERNETES)
        and not all(each.tolerated_by(tolerations) for tolerations in by)
    )


def _toleration_edit(case: SuggestionCase, taints: Sequence[Taint]) -> ManifestEdit:
    specs = gpu_specs(case.manifest.document, case.known.overview.catalog)

    def edit(document: dict[str, Any]) -> None:
        for spec in specs:
            _tolerate(document, spec, taints)

    return edit


def _tolerate(document: dict[str, Any], spec: DocumentPath, taints: Sequence[Taint]) -> None:
    own = get(document, (*spec, "tolerations"))
    added = [_toleration(each) for each in taints]
    known = own if isinstance(own, list) else []
    put(document, (*spec, "tolerations"), [*known, *(each for each in added if each not in known)])


def _toleration(taint: Taint) -> dict[str, str]:
    if not taint.value:
        return {"key": taint.key, "operator": "Exists", "effect": taint.effect}
    return {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}


def _steered(case: SuggestionCase, flavor: ResourceFlavor) -> ManifestEdit:
    """To the nodes of a flavor: its labels in the node selector, required affinity that speaks of these
    labels away, its taints tolerated."""
    specs = gpu_specs(case.manifest.document, case.known.overview.catalog)
    refusal = case.known.kueue.snapshot.mismatch

    def edit(document: dict[str, Any]) -> None:
        for spec in specs:
            for key, value in flavor.node_labels.items():
                put(document, (*spec, "nodeSelector", key), value)
            refused = [refusal(each, flavor.meta.name) for each in _templates(case)]
            if any(why is not None and why.kind == "affinity" for why in refused):
                drop(document, (*spec, *_REQUIRED))
            taints = _untolerated(flavor.taints, [flavor.tolerations])
            tolerated = [each.tolerations for each in _templates(case)]
            missing = [each for each in taints if not all(each.tolerated_by(own) for own in tolerated)]
            if missing:
                _tolerate(document, spec, missing)

    return edit


def _selectors(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Other values that nodes with its resources have for the labels it asks for."""
    specs = gpu_specs(case.manifest.document, case.known.overview.catalog)
    templates = _templates(case)
    special = {name for each in templates for name, amount in each.requests.items() if "/" in name and amount}
    asked = dict.fromkeys(item for each in templates for item in each.node_selector.items())
    for key, value in asked:
        counts: dict[str, int] = {}
        for node in case.known.state.nodes.values():
            label = node.labels.get(key)
            is_fit = label not in (None, value) and any(node.allocatable.get(name) for name in special)
            if label is not None and is_fit and node.capacity_type != SPOT:
                counts[label] = counts.get(label, 0) + 1
        for label in sorted(counts, key=lambda name: (-counts[name], name))[:_SOME]:
            says = f"ask for nodes with {key}={label} instead of {value}"
            edit = _selector_edit(specs, key, value, label)
            yield case.of_manifest(says, edit, "these are other nodes", same_work=True)


def _selector_edit(specs: Sequence[DocumentPath], key: str, value: str, label: str) -> ManifestEdit:
    def edit(document: dict[str, Any]) -> None:
        for spec in specs:
            if get(document, (*spec, "nodeSelector", key)) == value:
                put(document, (*spec, "nodeSelector", key), label)

    return edit


def _nodes_of(case: SuggestionCase, flavor: ResourceFlavor) -> list[Node]:
    labels = flavor.node_labels.items()
    if not labels:
        return []
    return [each for each in case.known.state.nodes.values() if labels <= each.labels.items()]


def _is_spot(case: SuggestionCase, flavor: ResourceFlavor) -> bool:
    nodes = _nodes_of(case, flavor)
    return bool(nodes) and all(each.capacity_type == SPOT for each in nodes)


def _products_text(case: SuggestionCase, flavor: ResourceFlavor) -> str:
    products = sorted({each.product for each in _nodes_of(case, flavor) if each.product})[:_SOME]
    return f"its nodes have {', '.join(products)}" if products else ""


def _labels_text(labels: Mapping[str, str]) -> str:
    named = ", ".join(f"{key}={value}" for key, value in list(labels.items())[:_SOME])
    return f" (node selector {named})"
