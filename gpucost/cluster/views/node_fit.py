"""Whether a pod fits a node, as kube-scheduler's filters decide it, and the MIG slices that a job fits.

Labels, taints and free amounts are checked. Rules are those of kubernetes, component-helpers (nodeaffinity,
corev1 helpers) and the scheduler's plugins NodeAffinity, TaintToleration, NodeUnschedulable and
NodeResourcesFit. Not evaluated: rules about other pods, topology spreading, volumes, host ports and devices
of claims. So "fits" means "nothing known is against it".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.cluster.objects.metadata import Labels, Resources
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import PodTemplate, SelectorRequirement, Toleration
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import NOT_PUBLISHED, PublishedUnits, published_units
from gpucost.cluster.views.gpu_units import expected_units, of_node
from gpucost.domain.gpu import MIG_TABLES, ResourceCatalog, ShareBasis, mig_share

PODS = "pods"
MOST_RULES = 100
"""Templates with more lines than this that decide where they fit are not evaluated: a tenant can write
thousands, and each is compared with every node."""
_KEPT_OUT = ("NoSchedule", "NoExecute")
_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)

_Where = tuple[
    tuple[tuple[str, str], ...], tuple[tuple[SelectorRequirement, ...], ...], tuple[Toleration, ...]
]
_What = tuple[_Where, tuple[tuple[str, int], ...]]


def matches(node: Node, template: PodTemplate) -> bool:
    """Whether the node takes pods now and its labels and taints admit this one, whatever is free on it."""
    if not node.is_ready or (node.is_cordoned and not _CORDON.tolerated_by(template.tolerations)):
        return False
    if any(node.labels.get(key) != value for key, value in template.node_selector.items()):
        return False
    if template.affinity and not any(_holds(term, node) for term in template.affinity):
        return False
    return all(
        taint.effect not in _KEPT_OUT or taint.tolerated_by(template.tolerations) for taint in node.taints
    )


def is_evaluated(template: PodTemplate) -> bool:
    """Whether it has few enough rules to be compared with every node. Costs the same however many there
    are."""
    rules = len(template.requests) + len(template.node_selector) + len(template.tolerations)
    rules += len(template.affinity)
    if rules <= MOST_RULES:
        rules += sum(map(len, template.affinity))
    if rules <= MOST_RULES:
        rules += sum(len(each.values) for term in template.affinity for each in term)
    return rules <= MOST_RULES


def room(node: Node, free: Resources, requests: Resources, added: Resources | None = None) -> bool:
    """Whether ``requests`` of one pod fit in what is ``free`` on the node, and ``added`` to it."""
    more = added or {}
    if PODS in node.allocatable and free.get(PODS, 0) < 1:
        return False
    return all(
        amount <= free.get(resource, 0) + more.get(resource, 0)
        for resource, amount in requests.items()
        if amount > 0
    )


class FreeNodes:
    """What is left of the nodes of a state: allocatable less the requests of pods bound to them.

    Each node is computed once, on first use; which nodes match is cached by what decides it, so that equal
    pods cost one lookup.
    """

    def __init__(self, state: ClusterState, catalog: ResourceCatalog | None = None) -> None:
        self._state = state
        self._nodes = tuple(state.nodes.values())
        published, gpus = published_units(state), catalog or ResourceCatalog()
        lacks = (
            (node, lacking(node, published.get(node.meta.name, NOT_PUBLISHED), gpus)) for node in self._nodes
        )
        self._short = tuple((node, lack) for node, lack in lacks if lack)
        self._free: dict[str, Resources] = {}
        self._matching: dict[_Where, tuple[Node, ...]] = {}
        self._fits: dict[_What, bool] = {}
        self._would_fit: dict[_What, Node | None] = {}

    def free(self, node: Node) -> Resources:
        """By resource; below zero where more is bound than the node advertises now."""
        left = self._free.get(node.meta.name)
        if left is None:
            left = self._free[node.meta.name] = self._left(node)
        return left

    def matching(self, template: PodTemplate) -> tuple[Node, ...]:
        """The nodes whose labels and taints admit it, in the order of the state."""
        where = node_rules(template)
        found = self._matching.get(where)
        if found is None:
            found = self._matching[where] = tuple(node for node in self._nodes if matches(node, template))
        return found

    def fits(self, template: PodTemplate) -> bool:
        """Whether one pod of it fits a node as nodes are now; True also where it is not evaluated."""
        if not is_evaluated(template):
            return True
        what = pod_kind(template)
        if what not in self._fits:
            asked = template.requests
            self._fits[what] = any(room(node, self.free(node), asked) for node in self.matching(template))
        return self._fits[what]

    def would_fit(self, template: PodTemplate) -> Node | None:
        """A node where one pod of it would fit if the node advertised all the GPUs it is expected to have,
        among those that do not; None when there is none, and where it is not evaluated."""
        if not self._short or not is_evaluated(template):
            return None
        what = pod_kind(template)
        if what not in self._would_fit:
            self._would_fit[what] = self._first_short(template)
        return self._would_fit[what]

    def _first_short(self, template: PodTemplate) -> Node | None:
        asked = template.requests
        for node, lack in self._short:
            helps = any(asked.get(resource, 0) > 0 for resource in lack)
            if helps and matches(node, template) and room(node, self.free(node), asked, lack):
                return node
        return None

    def _left(self, node: Node) -> Resources:
        left = dict(node.allocatable)
        pods = self._state.pods_by_node.get(node.meta.name, [])
        for pod in pods:
            for resource, amount in pod.template.requests.items():
                left[resource] = left.get(resource, 0) - amount
        if PODS in left:
            left[PODS] -= len(pods)
        return left


def lacking(node: Node, published: PublishedUnits, catalog: ResourceCatalog) -> dict[str, int]:
    """GPU units that it should advertise and does not, by itself or in slices (``published``)."""
    advertised = {**node.allocatable, **of_node(node, published, catalog)[1]}
    expected = expected_units(node, published, catalog)
    short = {key: amount - advertised.get(key, 0) for key, amount in expected.items()}
    return {key: amount for key, amount in short.items() if amount > 0}


def node_rules(template: PodTemplate) -> _Where:
    """What decides which nodes admit it."""
    return tuple(sorted(template.node_selector.items())), template.affinity, template.tolerations


def pod_kind(template: PodTemplate) -> _What:
    """Equal for pods that fit the same nodes."""
    return node_rules(template), tuple(sorted(template.requests.items()))


def _holds(term: tuple[SelectorRequirement, ...], node: Node) -> bool:
    """All of a term; an empty one matches no node."""
    fields: Labels = {"metadata.name": node.meta.name}
    return bool(term) and all(meets(each, fields if each.of_field else node.labels) for each in term)


def meets(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy one line of a node selector term."""
    value, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(values) == 1:
            if not _WHOLE.match(value) or not _WHOLE.match(values[0]):
                return False
            have, bound = int(value), int(values[0])
            return have > bound if requirement.operator == "Gt" else have < bound
        case _:
            return False


_GB = 10**9
_PROFILE = re.compile(r"(?P<g>\d)g\.(?P<gb>\d+)gb\Z")


@dataclass(frozen=True, slots=True)
class MigSliceFit:
    """``share`` is what the slice is of a GPU by the basis of the report, ``memory`` its bytes."""

    profile: str
    share: Fraction
    memory: float


def smallest_fit(
    model: str, memory_total: float, memory_p99: float, sm_p95: float, room: float, basis: ShareBasis
) -> MigSliceFit | None:
    """The first of ``fits``, if it is less than a GPU by the basis of the report."""
    found = next(fits(model, memory_total, memory_p99, sm_p95, room, basis), None)
    return found if found is not None and found.share < 1 else None


def fits(
    model: str,
    memory_total: float,
    memory_p99: float,
    sm_p95: float,
    room: float,
    basis: ShareBasis = ShareBasis.COMPUTE,
) -> Iterator[MigSliceFit]:
    """Slices with the least compute first, then the least memory, of which ``memory_p99`` takes at most
    ``room`` and whose share of the SMs is at least ``sm_p95``; the whole GPU is not one of them.

    A slice has its part of the memory slices, but no more than its name says: 1g.10gb is 10 GB.
    """
    table = MIG_TABLES.get(model)
    if table is None:
        return
    found = list[tuple[Fraction, float, str]]()
    for profile, slices in table.memory_by_profile.items():
        match = _PROFILE.match(profile)
        if match is None or int(match["g"]) == table.compute_slices:
            continue
        compute = Fraction(int(match["g"]), table.compute_slices)
        memory = min(memory_total * slices / table.memory_slices, float(int(match["gb"]) * _GB))
        if memory_p99 <= room * memory and sm_p95 <= compute:
            found.append((compute, memory, profile))
    for _, memory, profile in sorted(found):
        yield MigSliceFit(profile, mig_share(model, profile, basis), memory)
