"""Pods without GPUs that take the CPU or memory which free GPUs of their node would need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from pydantic import Field

from gpucost.cluster.fit import FreeNodes
from gpucost.cluster.nodes import Node
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import Pod
from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import (
    Action,
    Detection,
    Draft,
    Evidence,
    Pattern,
    Subject,
    SubjectKind,
    Withheld,
)
from gpucost.detectors.held import amount, kubectl, lasting, since
from gpucost.detectors.settings import DetectorSettings, Scoped
from gpucost.domain.time import DAY_MS
from gpucost.settings.types import Duration, milliseconds

NAME = Pattern.CPU_ONLY_PODS
_HOST = ("cpu", "memory")
_OF_EVERY_NODE = frozenset({"DaemonSet", "Node"})
"""Owners of pods that belong on a node: DaemonSets, and the node itself for static pods."""
_MOST_LISTED = 10


class Settings(DetectorSettings):
    """When pods without GPUs are in the way."""

    after: Duration = Field(default=timedelta(minutes=15), ge=timedelta(0))
    """How long they must have been there. Ours: short jobs leave by themselves."""

    least_gpus: float = Field(default=1.0, gt=0)
    """Free GPUs of one node that they keep from being used. Ours."""

    taint: str = Field(default="nvidia.com/gpu=present:NoSchedule", pattern=r"^[^\s=:]+(=[^\s:]*)?:\w+$")
    """The taint to put on nodes with GPUs. What cloud providers put on theirs, and what the admission plugin
    ExtendedResourceToleration of Kubernetes lets pods with GPUs through, by its key."""


@dataclass(frozen=True)
class _Blocked:
    """``gpus`` free GPUs of ``resource`` on a node that could be used but for ``pods``."""

    node: Node
    resource: str
    free: int
    gpus: int
    short_of: str
    pods: tuple[Pod, ...]
    since_ms: int


def run(facts: Facts, settings: Scoped[Settings]) -> Detection:
    """Nodes on which they are in the way now."""
    overview = facts.overview
    if overview is None:
        subject = Subject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        because = "nobody watches the cluster's objects, so pods without GPUs are not known"
        return Detection(withheld=(Withheld(NAME, subject, because, lacks_data=True),))
    if overview.state.is_unread("nodes"):
        subject = Subject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        return Detection(
            withheld=(Withheld(NAME, subject, "its nodes have not been read yet", lacks_data=True),)
        )
    own = settings.default
    drafts = [
        _draft(facts, found, own)
        for found in _all_blocked(overview)
        if facts.now_ms - found.since_ms >= milliseconds(own.after)
        and found.gpus * _share(facts, found) >= own.least_gpus
    ]
    return Detection(tuple(drafts))


def _all_blocked(overview: Overview) -> Iterator[_Blocked]:
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


def _blocked(overview: Overview, node: Node, resource: str, free: Mapping[str, int]) -> _Blocked | None:
    """What the free GPUs lack for their share of the host: its allocatable CPU and memory, without what
    DaemonSets ask for, divided by its GPUs."""
    pods = overview.state.pods_by_node.get(node.meta.name, [])
    without = [pod for pod in pods if not overview.units.of(pod)]
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
    return _Blocked(node, resource, free[resource], could - usable, short_of, tuple(blocking), since_ms)


def _is_of_node(pod: Pod) -> bool:
    return pod.meta.owner is not None and pod.meta.owner.kind in _OF_EVERY_NODE


def _asked(pods: Sequence[Pod], resource: str) -> int:
    return sum(pod.requests.get(resource, 0) for pod in pods)


def _usable(free: int, have: Mapping[str, int], shares: Mapping[str, Fraction]) -> int:
    """How many of the free GPUs find their share of what is left of the host."""
    return min([free, *(int(have[key] / shares[key]) for key in have if shares[key] > 0)])


def _since(
    free: Mapping[str, int], others: Sequence[Pod], shares: Mapping[str, Fraction], resource: str, could: int
) -> int:
    """When the first pod came with which fewer could be used, the node being otherwise as it is now."""
    left = {key: max(0, free.get(key, 0)) + _asked(others, key) for key in shares}
    ordered = sorted(others, key=lambda pod: (pod.bound_ms or 0, pod.meta.uid))
    for pod in ordered:
        left = {key: left[key] - pod.requests.get(key, 0) for key in left}
        if _usable(free[resource], {key: max(0, left[key]) for key in left}, shares) < could:
            return pod.bound_ms or pod.meta.created_ms
    return ordered[-1].bound_ms or ordered[-1].meta.created_ms


def _share(facts: Facts, found: _Blocked) -> float:
    """Boards per unit; 1 where the history does not know."""
    key = (facts.cluster, found.node.meta.name, found.resource)
    return float(facts.history.shares.get(key, 1))


def _draft(facts: Facts, found: _Blocked, settings: Settings) -> Draft:
    name = found.node.meta.name
    boards = found.gpus * _share(facts, found)
    view_ms = round(boards * (facts.now_ms - max(found.since_ms, facts.now_ms - DAY_MS)))
    word = "CPU" if found.short_of == "cpu" else "memory"
    pods = [f"{pod.meta.namespace}/{pod.meta.name}" for pod in found.pods[:_MOST_LISTED]]
    return Draft(
        NAME,
        "blocked",
        Subject(SubjectKind.NODE, facts.cluster, name),
        found.since_ms,
        f"{amount(found.gpus, 'free GPU')} of node {name} cannot be used since {since(found.since_ms)}, for "
        f"{lasting(facts.now_ms - found.since_ms)}: {amount(len(found.pods), 'pod')} without GPUs there "
        f"took the "
        f"{word} they need.",
        (
            Evidence(
                "free GPUs", found.free, found.resource, f"node {name}: allocatable − requests of its pods"
            ),
            Evidence("of these without their share of the host", found.gpus, found.resource, ""),
            Evidence(
                f"{word} asked for by pods without GPUs",
                _host_amount(found.short_of, _asked(found.pods, found.short_of)),
                "cores" if found.short_of == "cpu" else "GiB",
                f"spec.nodeName={name}",
            ),
            Evidence("the largest of them", ", ".join(pods), "", f"spec.nodeName={name}"),
            Evidence("taints of the node", _taints(found.node), "", f"node {name}: spec.taints"),
        ),
        _action(found, settings, boards),
        "free GPUs without their share of CPU or memory × time; shown, not counted",
        view_ms=view_ms,
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


def _action(found: _Blocked, settings: Settings, boards: float) -> Action:
    """A taint where there is none that is about GPUs; else the pods tolerate it, and have to go by hand."""
    name = found.node.meta.name
    key = settings.taint.partition(":")[0].partition("=")[0]
    if not any(taint.key == key and taint.effect != "PreferNoSchedule" for taint in found.node.taints):
        text = (
            f"Taint {name}, so that only pods which ask for GPUs are put there (Kubernetes lets these "
            f"through by "
            "itself where the admission plugin ExtendedResourceToleration is on; else they need the "
            "toleration "
            f"key: {key}, operator: Exists). Pods that are there stay until they end."
        )
        return Action(text, kubectl("taint", "nodes", name, settings.taint), boards)
    pod = found.pods[0].meta
    text = (
        f"The node has the taint {key}, and these pods tolerate it: take the toleration out of their "
        f"templates, "
        "and start the largest one again elsewhere."
    )
    return Action(text, kubectl("-n", pod.namespace, "delete", "pod", pod.name), boards)
