"""Pods without GPUs that use the CPU or memory which free GPUs of their node would need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.views.commands import kubectl
from gpucost.cluster.views.node_fit import FreeNodes
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.allocation_pieces import (
    amount,
    by_its_owner,
    lasting,
    since,
    with_names,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    TeamView,
    ViewTime,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts, demand_teams
from gpucost.detectors.rule_settings import CpuOnlyPodsSettings, ScopedSettings
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.time import DAY_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.CPU_ONLY_PODS
_HOST = ("cpu", "memory")
_OF_EVERY_NODE = frozenset({"DaemonSet", "Node"})
"""Owners of pods that belong on a node: DaemonSets, and the node itself for static pods."""
_MOST_LISTED = 10
_TAINTS = "taints of the node"


@dataclass(frozen=True)
class _Blocked:
    """``gpus`` free GPUs of ``resource`` on a node that could be used but for ``pods``."""

    node: Node
    resource: str
    free: int
    gpus: int
    short_of: str
    pods: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    """The largest pods without GPUs: without them the free GPUs could be used."""
    since_ms: int


def run(facts: DetectorFacts, settings: ScopedSettings[CpuOnlyPodsSettings]) -> RuleDetection:
    """Nodes on which pods without GPUs are in the way now."""
    overview = facts.overview
    if overview is None:
        subject = FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        because = "nobody watches the cluster's objects, so pods without GPUs are not known"
        return RuleDetection(withheld=(WithheldFinding(NAME, subject, because, lacks_data=True),))
    if overview.state.is_unread("nodes"):
        subject = FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        return RuleDetection(
            withheld=(WithheldFinding(NAME, subject, "its nodes have not been read yet", lacks_data=True),)
        )
    own = settings.default
    drafts = [
        _draft(facts, found, own)
        for found in _all_blocked(overview)
        if facts.now_ms - found.since_ms >= milliseconds(own.after)
        and found.gpus * _share(facts, found) >= own.least_gpus
    ]
    return RuleDetection(tuple(drafts))


def _all_blocked(overview: ClusterOverview) -> Iterator[_Blocked]:
    nodes = FreeNodes(overview.state, overview.catalog)
    for node in overview.state.nodes.values():
        resources = [
            key for key, units in node.allocatable.items() if units > 0 and overview.units.is_gpu(key)
        ]
        if not resources or not node.is_schedulable:
            continue
        free = nodes.free(node)
        for resource in sorted(resources):
            if free.get(resource, 0) > 0:
                found = _blocked(overview, node, resource, free)
                if found is not None:
                    yield found


def _blocked(
    overview: ClusterOverview, node: Node, resource: str, free: Mapping[str, int]
) -> _Blocked | None:
    """What the free GPUs lack of their share of the host: its allocatable CPU and memory, less the requests
    of DaemonSets, divided by its GPUs."""
    pods = overview.state.pods_by_node.get(node.meta.name, [])
    units = overview.units
    without = [pod for pod in pods if not (units.of(pod) or units.held(pod))]
    own = [pod for pod in without if _is_of_node(pod)]
    others = [pod for pod in without if not _is_of_node(pod)]
    if not others:
        return None
    shares = {
        key: Fraction(node.allocatable[key] - _asked(own, key), node.allocatable[resource])
        for key in _HOST
        if key in node.allocatable
    }
    have = {key: max(0, free.get(key, 0)) for key in shares}
    usable = _usable(free[resource], have, shares)
    could = _usable(free[resource], {key: have[key] + _asked(others, key) for key in have}, shares)
    if could <= usable:
        return None
    short_of = next(key for key in shares if _usable(free[resource], {key: have[key]}, shares) == usable)
    blocking = [pod for pod in others if pod.requests.get(short_of, 0) > 0]
    blocking.sort(key=lambda pod: (-pod.requests.get(short_of, 0), pod.meta.uid))
    since_ms = _since(free, others, shares, resource, could)
    leaving = _leaving(free, others, shares, resource, short_of)
    return _Blocked(
        node, resource, free[resource], could - usable, short_of, tuple(blocking), tuple(leaving), since_ms
    )


def _is_of_node(pod: Pod) -> bool:
    return pod.meta.owner is not None and pod.meta.owner.kind in _OF_EVERY_NODE


def _asked(pods: Sequence[Pod], resource: str) -> int:
    return sum(pod.requests.get(resource, 0) for pod in pods)


def _usable(free: int, have: Mapping[str, int], shares: Mapping[str, Fraction]) -> int:
    """How many of the free GPUs find their share in what is left of the host."""
    return min([free, *(int(have[key] / shares[key]) for key in have if shares[key] > 0)])


def _since(
    free: Mapping[str, int], others: Sequence[Pod], shares: Mapping[str, Fraction], resource: str, could: int
) -> int:
    """When the first pod came that reduced the usable GPUs, the node being otherwise as it is now."""
    left = {key: max(0, free.get(key, 0)) + _asked(others, key) for key in shares}
    ordered = sorted(others, key=lambda pod: (pod.bound_ms or 0, pod.meta.uid))
    for pod in ordered:
        left = {key: left[key] - pod.requests.get(key, 0) for key in left}
        if _usable(free[resource], {key: max(0, left[key]) for key in left}, shares) < could:
            return pod.bound_ms or pod.meta.created_ms
    return ordered[-1].bound_ms or ordered[-1].meta.created_ms


def _leaving(
    free: Mapping[str, int], others: Sequence[Pod], shares: Mapping[str, Fraction], resource: str, short: str
) -> list[Pod]:
    """The pods with the largest requests of ``short`` first, until as many GPUs can be used as without any of
    them."""
    left = {key: free.get(key, 0) for key in shares}
    without = {key: max(0, left[key] + _asked(others, key)) for key in left}
    could = _usable(free[resource], without, shares)
    found: list[Pod] = []
    for pod in sorted(others, key=lambda pod: (-pod.requests.get(short, 0), pod.meta.uid)):
        if _usable(free[resource], {key: max(0, left[key]) for key in left}, shares) >= could:
            break
        left = {key: left[key] + pod.requests.get(key, 0) for key in left}
        found.append(pod)
    return found


def _team(facts: DetectorFacts, found: _Blocked) -> str:
    """The team of all pods in the way; empty where they belong to several."""
    if facts.overview is None:
        return ""
    belongs = [facts.overview.ownership.of(pod) for pod in found.pods]
    rows = [
        {
            "namespace": pod.meta.namespace,
            "team_label": each.team,
            "project": each.project,
            "user": each.user,
            "queue": each.queue,
            "cluster_queue": each.cluster_queue,
        }
        for pod, each in zip(found.pods, belongs, strict=True)
    ]
    teams = set(demand_teams(facts.history, pd.DataFrame(rows)).tolist())
    return teams.pop() if len(teams) == 1 and NO_TEAM not in teams else ""


def _share(facts: DetectorFacts, found: _Blocked) -> float:
    """GPUs per unit; 1 where the history does not say."""
    key = (facts.cluster, found.node.meta.name, found.resource)
    return float(facts.history.shares.get(key, 1))


def _draft(facts: DetectorFacts, found: _Blocked, settings: CpuOnlyPodsSettings) -> FindingDraft:
    name = found.node.meta.name
    boards = found.gpus * _share(facts, found)
    since_ms = max(found.since_ms, facts.now_ms - DAY_MS)
    word = "CPU" if found.short_of == "cpu" else "memory"
    pods = [f"{pod.meta.namespace}/{pod.meta.name}" for pod in found.pods[:_MOST_LISTED]]
    summary = (
        f"{amount(found.gpus, 'free GPU')} of node {name} cannot be used since {since(found.since_ms)}, for "
        f"{lasting(facts.now_ms - found.since_ms)}: {amount(len(found.pods), 'pod')} without GPUs there "
        f"took the {word} they need."
    )
    evidence = (
        FindingEvidence(
            "free GPUs", found.free, found.resource, f"node {name}: allocatable − requests of its pods"
        ),
        FindingEvidence("of these without their share of the host", found.gpus, found.resource, ""),
        FindingEvidence(
            f"{word} asked for by pods without GPUs",
            _host_amount(found.short_of, _asked(found.pods, found.short_of)),
            "cores" if found.short_of == "cpu" else "GiB",
            f"spec.nodeName={name}",
        ),
        FindingEvidence("the largest of them", ", ".join(pods), "", f"spec.nodeName={name}"),
        FindingEvidence(_TAINTS, _taints(found.node), "", f"node {name}: spec.taints"),
    )
    team = _team(facts, found)
    # Taints may be named after the tenants of a node, and a team cannot set them.
    own = tuple(each for each in evidence if each.name != _TAINTS)
    return FindingDraft(
        NAME,
        "blocked",
        FindingSubject(SubjectKind.NODE, facts.cluster, name),
        found.since_ms,
        summary,
        evidence,
        _action(found, settings, boards),
        "free GPUs without their share of CPU or memory × time; shown, not counted",
        team=team,
        view=(ViewTime(since_ms, facts.now_ms, boards * (facts.now_ms - since_ms), (name,)),),
        boards_now=boards,
        team_view=TeamView(summary, own, _own_action(found, boards)) if team else None,
        labels=found.node.labels,
        checked=(
            "DaemonSets and static pods belong on every node",
            "without these pods the GPUs would have enough",
        ),
    )


def _host_amount(resource: str, units: int) -> float:
    return units / 1000 if resource == "cpu" else round(units / 2**30, 1)


def _taints(node: Node) -> str:
    return ", ".join(f"{each.key}={each.value}:{each.effect}" for each in node.taints) or "none"


def _action(found: _Blocked, settings: CpuOnlyPodsSettings, boards: float) -> FindingAction:
    """Pods leave, and a taint keeps others away; where they tolerate it the node is cordoned meanwhile."""
    name = found.node.meta.name
    key = settings.taint.partition(":")[0].partition("=")[0]
    if any(taint.key == key and taint.effect != "PreferNoSchedule" for taint in found.node.taints):
        return _move(found, boards)
    text = (
        f"Taint {name}, so that only pods which tolerate {key} are put there{_and_delete(found)}."
        f"{_bare(found)} Kubernetes lets pods with GPUs through by itself where the admission plugin "
        f"ExtendedResourceToleration is on; else they need the toleration key: {key}, operator: Exists."
    )
    lines = (kubectl("taint", "nodes", name, settings.taint), *_deleting(found))
    return with_names(FindingAction(text, "\n".join(lines), boards), *_names(found))


def _move(found: _Blocked, boards: float) -> FindingAction:
    name = found.node.meta.name
    text = (
        f"Close {name}{_and_delete(found)}; what tolerates the node's taints must lose the toleration in its "
        f"template.{_bare(found)}"
    )
    again = _deleting(found)
    lines = (kubectl("cordon", name), *again, kubectl("uncordon", name)) if again else ()
    return with_names(FindingAction(text, "\n".join(lines), boards), *_names(found))


def _own_action(found: _Blocked, boards: float) -> FindingAction:
    """What a team can do without rights to nodes."""
    text = (
        f"Keep {amount(len(found.leaving), 'pod')} without GPUs from nodes with GPUs by a node affinity"
        f"{_and_delete(found)}.{_bare(found)}"
    )
    return with_names(FindingAction(text, "\n".join(_deleting(found)), boards), *_names(found))


def _and_delete(found: _Blocked) -> str:
    again = sum(pod.meta.owner is not None for pod in found.leaving)
    if not again:
        return ""
    return f", and delete {amount(again, 'pod')} in the way, which their owners make again elsewhere"


def _bare(found: _Blocked) -> str:
    """A pod without an owner is not recreated."""
    bare = [f"{pod.meta.namespace}/{pod.meta.name}" for pod in found.leaving if pod.meta.owner is None]
    return f" {by_its_owner(bare)}." if bare else ""


def _deleting(found: _Blocked) -> list[str]:
    """One command per namespace, for pods that a controller recreates."""
    by_namespace: dict[str, list[str]] = {}
    for pod in found.leaving:
        if pod.meta.owner is not None:
            by_namespace.setdefault(pod.meta.namespace, []).append(pod.meta.name)
    return [kubectl("-n", each, "delete", "pod", *names) for each, names in sorted(by_namespace.items())]


def _names(found: _Blocked) -> list[str]:
    pods = (name for pod in found.leaving for name in (pod.meta.namespace, pod.meta.name))
    return [found.node.meta.name, *pods]
