"""Free capacity of nodes: one immutable base per snapshot, and cheap overlays of what is taken from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TypeAlias, TypeVar

from gpucost.cluster.objects.metadata import Labels, Resources
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import Pod, PodTemplate
from gpucost.cluster.views.device_claims import NOT_PUBLISHED
from gpucost.cluster.views.gpu_units import of_node
from gpucost.cluster.views.node_fit import PODS, lacking, matches, node_rules, pod_kind
from gpucost.cluster.views.overview import ClusterOverview

MOST_KEPT = 256
"""Answers that a base remembers of each kind; when there are more it starts anew."""
OF_EVERY_NODE = frozenset({"DaemonSet", "Node"})
"""Owners of pods that stay when jobs end: DaemonSets, and the node itself for static pods."""

TopologyDomain: TypeAlias = tuple[str, ...]
"""Label values of a topology domain, from the widest level down to its own."""
_Counts: TypeAlias = Mapping[int, int]
_K = TypeVar("_K")
_V = TypeVar("_V")


class NodeBase:
    """The nodes of a snapshot in order of name, and what is free on them; ``usage`` says what a bound pod
    holds, ``broken`` which GPU units a node should advertise and does not, ``may_back`` whether devices of
    ResourceSlices may stand for an extended resource on some node, which the state does not record.

    Never changed once made; remembers which nodes admit equal templates, and how many each takes.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        free: Sequence[Resources],
        pods: Mapping[str, Pod],
        usage: Callable[[Pod], Resources],
        broken: Mapping[str, Resources] | None = None,
        may_back: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.broken, self.may_back = broken or {}, may_back
        self.nodes, self.free, self.pods, self.usage = nodes, free, pods, usage
        self.index = {node.meta.name: at for at, node in enumerate(nodes)}
        stands: dict[tuple[bool, bool, tuple[Taint, ...]], int] = {}
        self._stands = [stands.setdefault((n.is_ready, n.is_cordoned, n.taints), len(stands)) for n in nodes]
        self._admits: dict[object, frozenset[int]] = {}
        self._counts: dict[object, _Counts] = {}
        self._refusals: dict[object, Sequence[tuple[str, ...]]] = {}
        self._domains: dict[TopologyDomain, Sequence[TopologyDomain | None]] = {}

    def admits(self, template: PodTemplate) -> frozenset[int]:
        """Nodes whose state, labels and taints admit it, whatever is free there (``fit.matches``)."""
        return _kept(self._admits, node_rules(template), lambda: frozenset(self._admitting(template)))

    def counts(self, template: PodTemplate) -> _Counts:
        """How many pods of it each admitting node takes, where that is any."""
        return _kept(self._counts, pod_kind(template), lambda: self._counted(template))

    def domains(self, levels: TopologyDomain) -> Sequence[TopologyDomain | None]:
        """Of each node the domain at the last of ``levels``; None where it lacks a label."""
        return _kept(self._domains, levels, lambda: [domain_of(node, levels) for node in self.nodes])

    def refusals(
        self, template: PodTemplate, make: Callable[[NodeBase, PodTemplate], Sequence[tuple[str, ...]]]
    ) -> Sequence[tuple[str, ...]]:
        """What ``make`` says of every node, worked out once for equal templates."""
        return _kept(self._refusals, pod_kind(template), lambda: make(self, template))

    def alike(self, template: PodTemplate) -> Iterator[tuple[int, tuple[object, ...]]]:
        """For every node, what decides whether it admits the template: nodes with equal keys give equal
        answers."""
        keys = set(template.node_selector)
        keys.update(each.key for term in template.affinity for each in term if not each.of_field)
        by_name = any(each.of_field for term in template.affinity for each in term)
        stands, asked = self._stands, sorted(keys)
        for at, node in enumerate(self.nodes):
            labels = node.meta.labels
            name = (node.meta.name,) if by_name else ()
            yield at, (stands[at], *name, *[labels.get(key) for key in asked])

    @cached_property
    def largest(self) -> Resources:
        """The most that any node has allocatable, by resource."""
        most: dict[str, int] = {}
        for node, free in zip(self.nodes, self.empty.free, strict=True):
            for resource, amount in (*free.items(), *node.allocatable.items()):
                most[resource] = max(amount, most.get(resource, 0))
        return most

    @cached_property
    def by_importance(self) -> Sequence[Sequence[Pod]]:
        """Pods of each node, the most important first: higher priority, then longer since its kubelet took it
        (kubernetes v1.36, pkg/scheduler/util/utils.go, MoreImportantPod); names decide between equals."""
        found: list[list[Pod]] = [[] for _ in self.nodes]
        for pod in self.pods.values():
            at = self.index.get(pod.node) if pod.is_bound else None
            if at is not None:
                found[at].append(pod)
        for pods in found:
            pods.sort(key=_importance)
        return found

    @cached_property
    def empty(self) -> NodeBase:
        """Without all pods but those that every node has (DaemonSets, static pods)."""
        if not self.pods:
            return self
        free = [dict(each) for each in self.free]
        for pod in self.pods.values():
            owner = pod.meta.owner
            at = self.index.get(pod.node) if pod.is_bound else None
            if at is not None and (owner is None or owner.kind not in OF_EVERY_NODE):
                left = free[at]
                for resource, amount in self.usage(pod).items():
                    left[resource] = left.get(resource, 0) + amount
                if PODS in left:
                    left[PODS] += 1
        return NodeBase(self.nodes, free, {}, self.usage, self.broken, self.may_back)

    def _admitting(self, template: PodTemplate) -> Iterator[int]:
        known: dict[tuple[object, ...], bool] = {}
        for at, key in self.alike(template):
            found = known.get(key)
            if found is None:
                found = known[key] = matches(self.nodes[at], template)
            if found:
                yield at

    def _counted(self, template: PodTemplate) -> dict[int, int]:
        asked = positive(template.requests)
        found = ((at, how_many(self.nodes[at], self.free[at], asked)) for at in self.admits(template))
        return {at: count for at, count in found if count}


class FreeCapacity:
    """What is free, for one question: an overlay over a base that many share. Making one, or a copy, costs
    as much as was changed in it, however many nodes there are.

    Nodes are named; those an autoscaler would add (``is_new``) come after those that exist.
    """

    def __init__(
        self, base: NodeBase, extra: Sequence[Node] = (), minutes: Mapping[str, float] | None = None
    ) -> None:
        """``minutes`` until nodes of ``extra`` are ready, by their pool."""
        self.base, self.extra, self.minutes = base, extra, minutes or {}
        self._changed: dict[int, Resources] = {}
        self._journal: list[tuple[int, Resources | None]] = []

    @classmethod
    def of(cls, overview: ClusterOverview) -> FreeCapacity:
        """Of a snapshot: allocatable less what bound pods ask for, devices of claims with them. It goes
        through every pod: make it once and share it (``copy``) among all questions to that snapshot."""
        return cls(_base(overview))

    @property
    def nodes(self) -> Iterator[Node]:
        yield from self.base.nodes
        yield from self.extra

    def __len__(self) -> int:
        return len(self.base.nodes) + len(self.extra)

    def node(self, at: int) -> Node:
        known = len(self.base.nodes)
        return self.base.nodes[at] if at < known else self.extra[at - known]

    def name(self, at: int) -> str:
        return self.node(at).meta.name

    def is_new(self, at: int) -> bool:
        """Whether it is not there yet."""
        return at >= len(self.base.nodes)

    def at(self, name: str) -> int | None:
        """The index of a node; None for a name that is not known."""
        return self._at.get(name) if self.extra else self.base.index.get(name)

    @cached_property
    def _at(self) -> Mapping[str, int]:
        known = len(self.base.nodes)
        return {**self.base.index, **{n.meta.name: known + at for at, n in enumerate(self.extra)}}

    def free(self, name: str) -> Resources:
        """By resource; below zero where more is bound than the node advertises; empty for an unknown node."""
        at = self.at(name)
        return {} if at is None else self.free_at(at)

    def free_at(self, at: int) -> Resources:
        found = self._changed.get(at)
        if found is None:
            known = len(self.base.nodes)
            found = self.base.free[at] if at < known else self.extra[at - known].allocatable
        return found

    @property
    def changed(self) -> Iterable[int]:
        """Nodes on which it differs from its base."""
        return sorted(self._changed)

    def copy(self) -> FreeCapacity:
        """The same capacity, to be changed apart; undo does not reach behind it."""
        other = FreeCapacity(self.base, self.extra, self.minutes)
        other._changed = dict(self._changed)
        return other

    def without(self, pod_uids: Iterable[str]) -> FreeCapacity:
        """Once these pods are gone; uids of pods that hold nothing count for nothing, each once."""
        other = self.copy()
        for uid in sorted(set(pod_uids)):
            pod = self.base.pods.get(uid)
            if pod is not None and pod.is_bound and pod.node in self.base.index:
                other.give(pod.node, self.base.usage(pod))
        return other

    def emptied(self) -> FreeCapacity:
        """As if no pod were on any node, but those that every node has (DaemonSets, static pods)."""
        return FreeCapacity(self.base.empty, self.extra, self.minutes)

    def with_nodes(self, nodes: Sequence[Node], minutes: Mapping[str, float]) -> FreeCapacity:
        """And these nodes, which are not there yet. Names already there are left out."""
        known = self.base.index
        more = (node for node in nodes if node.meta.name not in known)
        other = FreeCapacity(self.base, (*self.extra, *more), {**self.minutes, **minutes})
        other._changed = dict(self._changed)
        return other

    def replaced(self, nodes: Mapping[str, tuple[Node, Resources]]) -> FreeCapacity:
        """With these nodes as given, with what is then free on them, in place of those of their names. They
        are used last, as if they were new."""
        known = [(name, *each) for name, each in sorted(nodes.items()) if name in self.base.index]
        other = FreeCapacity(self.base, (*self.extra, *(node for _, node, _ in known)), self.minutes)
        other._changed = dict(self._changed)
        for place, (name, _, free) in enumerate(known, len(self)):
            other._changed[self.base.index[name]] = {PODS: 0}
            other._changed[place] = free
        return other

    def take(self, node: str, requests: Resources, count: int = 1) -> None:
        """``count`` pods of ``requests`` are put there, whether or not they fit. Raises KeyError for a node
        that is not known."""
        at = self.at(node)
        if at is None:
            raise KeyError(node)
        self.take_at(at, requests, count)

    def give(self, node: str, requests: Resources, count: int = 1) -> None:
        """The reverse of ``take``."""
        self.take(node, requests, -count)

    def take_at(self, at: int, requests: Resources, count: int) -> None:
        self._journal.append((at, self._changed.get(at)))
        left = dict(self.free_at(at))
        for resource, amount in requests.items():
            left[resource] = left.get(resource, 0) - amount * count
        if PODS in self.node(at).allocatable:
            left[PODS] = left.get(PODS, 0) - count
        self._changed[at] = left

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._journal)

    def rewind(self, mark: int) -> None:
        """Undo all that was taken or given since."""
        while len(self._journal) > mark:
            at, before = self._journal.pop()
            if before is None:
                del self._changed[at]
            else:
                self._changed[at] = before

    def counts(self, template: PodTemplate, among: Collection[str] | None = None) -> dict[int, int]:
        """How many pods of it each node takes now, by index, where that is any; ``among`` those only."""
        found = dict(self.base.counts(template))
        asked = positive(template.requests)
        nodes, admits, admitted = self.base.nodes, self.base.admits(template), dict[int, bool]()
        for at, free in self._changed.items():
            found.pop(at, None)
            if at in admits and (count := how_many(nodes[at], free, asked)):
                found[at] = count
        for at, node in enumerate(self.extra, len(nodes)):
            # Nodes of one pool share what they have, and are admitted alike.
            alike = id(node.allocatable)
            if alike not in admitted:
                admitted[alike] = matches(node, template)
            if admitted[alike] and (count := how_many(node, self.free_at(at), asked)):
                found[at] = count
        if among is not None:
            found = {at: count for at, count in found.items() if self.name(at) in among}
        return found

    def admitting(self, template: PodTemplate) -> Callable[[int], bool]:
        """Says of a node whether its state, labels and taints admit the template."""
        known, admits = len(self.base.nodes), self.base.admits(template)
        return lambda at: at in admits if at < known else matches(self.node(at), template)

    def domains(self, levels: TopologyDomain) -> Callable[[int], TopologyDomain | None]:
        """Gives the domain of a node at the last of ``levels``, None where it lacks a label."""
        known, found = len(self.base.nodes), self.base.domains(levels)
        return lambda at: found[at] if at < known else domain_of(self.node(at), levels)


def _importance(pod: Pod) -> tuple[int, float, str, str]:
    since_ms = inf if pod.started_ms is None else pod.started_ms
    return -pod.priority, since_ms, pod.meta.namespace, pod.meta.name


def how_many(node: Node, free: Resources, asked: Resources) -> int:
    """How many pods of ``asked`` (no zeros) fit there at once (as repeated calls of ``node_fit.room`` would
    give).

    A pod that asks for nothing fits as often as the node takes pods; ``UNLIMITED`` where it states no limit.
    """
    most = max(free.get(PODS, 0), 0) if PODS in node.allocatable else UNLIMITED
    for resource, amount in asked.items():
        fits = free.get(resource, 0) // amount
        if fits < most:
            if fits <= 0:
                return 0
            most = fits
    return most


UNLIMITED = 2**31 - 1
"""Pods on one node: Kubernetes counts them in 32 bits."""


def positive(requests: Resources) -> Resources:
    """The amounts above 0."""
    return {resource: amount for resource, amount in requests.items() if amount > 0}


def domain_of(node: Node, levels: Sequence[str]) -> TopologyDomain | None:
    """Its label values at ``levels``, None where one is missing."""
    labels: Labels = node.meta.labels
    found = tuple(labels.get(level, "") for level in levels)
    return found if all(level in labels for level in levels) else None


def _base(overview: ClusterOverview) -> NodeBase:
    state, units, published = overview.state, overview.units, overview.published
    catalog = overview.catalog
    nodes = sorted(state.nodes.values(), key=lambda node: (node.meta.name, node.meta.uid))
    has_claims = bool(state.claims or state.slices)

    def usage(pod: Pod) -> Resources:
        asked = pod.template.requests
        if not has_claims:
            return asked
        return {**asked, **{key: amount for key, amount in units.of(pod).items() if key not in asked}}

    free, broken, only_slices = list[Resources](), dict[str, Resources](), False
    for node in nodes:
        devices = published.get(node.meta.name)
        lack = lacking(node, devices or NOT_PUBLISHED, catalog)
        if lack:
            broken[node.meta.name] = lack
        left = dict(node.allocatable)
        if devices:
            left.update(of_node(node, devices, catalog)[1])
            only_slices = only_slices or any(left.get(key) for key in devices.there)
        pods = state.pods_by_node.get(node.meta.name, ())
        for pod in pods:
            for resource, amount in usage(pod).items():
                left[resource] = left.get(resource, 0) - amount
        if PODS in left:
            left[PODS] -= len(pods)
        free.append(left)
    return NodeBase(nodes, free, state.pods, usage, broken, lambda key: only_slices and catalog.is_gpu(key))


def _kept(kept: dict[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    found = kept.get(key)
    if found is None:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        found = kept[key] = make()
    return found
