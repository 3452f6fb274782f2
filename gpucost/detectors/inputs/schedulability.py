"""Whether pods that wait would find nodes: on empty nodes at any time, and now.

By the present state: labels, taints, CPU, memory and GPUs are checked. Rules about other pods, topology
spreading, volumes and devices of claims are not. By the history: requests that no node could ever serve, from
the most units that nodes had. ``unfit_now`` finds pods that would fit by GPUs alone, but not by what else the
present state requires.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import pandas as pd

from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod, PodTemplate, Toleration
from gpucost.cluster.views.node_fit import FreeNodes, is_evaluated, room
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.quota import cluster_queue_of
from gpucost.detectors.allocation_pieces import amount
from gpucost.detectors.inputs.detector_facts import ClusterHistory


@dataclass(frozen=True, slots=True)
class PodNodeFit:
    """How the waiting pods of one job fit the nodes, ``resource`` being their GPUs.

    ``fits``: enough of them find places at once. ``needed`` units would do for that. ``free`` are units free
    on nodes whose labels and taints admit them. ``lacking`` counts, by resource, the nodes with GPUs enough
    for one pod that have too little of it; empty where no node has enough GPUs. ``barred`` are nodes with
    GPUs enough that labels or taints keep them from. ``asks_others``: they have rules about other pods, too.
    """

    fits: bool
    needed: int
    free: int
    lacking: tuple[tuple[str, int], ...]
    barred: tuple[str, ...]
    asks_others: bool


class PodNodeFitter:
    """Answers for the waiting jobs of one state; free capacity is computed once."""

    def __init__(self, overview: ClusterOverview) -> None:
        self._overview = overview
        self._free = FreeNodes(overview.state, overview.catalog)

    @cached_property
    def _waiting(self) -> dict[str, list[Pod]]:
        """Pods without a node, by the uid of their job."""
        found: dict[str, list[Pod]] = {}
        for pod in self._overview.state.pods.values():
            if pod.bound_ms is None and not pod.has_ended:
                found.setdefault(self._overview.ownership.of(pod).job.uid, []).append(pod)
        return found

    def of(self, job_uid: str, resource: str, least: int) -> PodNodeFit | None:
        """``least``: how many must find places at once. None where the state has no such pods, or they have
        more rules than are checked."""
        pods = [pod for pod in self._waiting.get(job_uid, ()) if pod.requests.get(resource, 0) > 0]
        if not pods or not all(is_evaluated(pod.template) for pod in pods):
            return None
        pods.sort(key=lambda pod: (-pod.requests[resource], -pod.requests.get("cpu", 0), pod.meta.uid))
        needed = min(max(least, 1), len(pods))
        admitted = {node.meta.name: node for pod in pods for node in self._free.matching(pod.template)}
        free = sum(max(self._free.free(node).get(resource, 0), 0) for node in admitted.values())
        return PodNodeFit(
            fits=self._placed(pods, resource) >= needed,
            needed=sum(pod.requests[resource] for pod in pods[-needed:]),
            free=free,
            lacking=self._lacking(pods[0], resource),
            barred=self._barred(pods[0], resource, admitted),
            asks_others=any(pod.template.has_pod_affinity for pod in pods),
        )

    def _placed(self, pods: list[Pod], resource: str) -> int:
        """How many find a place: the largest first, each where the fewest GPUs are left over."""
        left: dict[str, dict[str, int]] = {}
        placed = 0
        for pod in pods:
            fitting = [
                (self._left(node, left).get(resource, 0), node.meta.name)
                for node in self._free.matching(pod.template)
                if room(node, self._left(node, left), pod.requests)
            ]
            if not fitting:
                continue
            name = min(fitting)[1]
            here = left.setdefault(name, dict(self._free.free(self._overview.state.node_by_name[name])))
            for each, asked in (*pod.requests.items(), ("pods", 1)):
                if each in here:
                    here[each] -= asked
            placed += 1
        return placed

    def _left(self, node: Node, left: dict[str, dict[str, int]]) -> dict[str, int]:
        return left.get(node.meta.name) or dict(self._free.free(node))

    def _lacking(self, pod: Pod, resource: str) -> tuple[tuple[str, int], ...]:
        found: Counter[str] = Counter()
        for node in self._free.matching(pod.template):
            free = self._free.free(node)
            if free.get(resource, 0) < pod.requests[resource]:
                continue
            found.update(name for name, amount in pod.requests.items() if amount > free.get(name, 0))
            if "pods" in node.allocatable and free.get("pods", 0) < 1:
                found["pods"] += 1
        return tuple(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def _barred(self, pod: Pod, resource: str, admitted: dict[str, Node]) -> tuple[str, ...]:
        nodes = self._overview.state.nodes.values()
        return tuple(
            node.meta.name
            for node in nodes
            if node.meta.name not in admitted
            and self._free.free(node).get(resource, 0) >= pod.requests[resource]
        )


class UnitRequest(Protocol):
    """The values of a row of demand that decide."""

    @property
    def resource(self) -> str: ...
    @property
    def products(self) -> str: ...
    @property
    def units(self) -> int: ...
    @property
    def min_pods(self) -> int: ...


class RequestSchedulability:
    """Answers for the nodes of one history."""

    def __init__(self, history: ClusterHistory) -> None:
        self._history = history
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}
        self._places: dict[tuple[str, str, int], int] = {}

    @cached_property
    def _sizes(self) -> dict[str, list[tuple[str, int]]]:
        """(product, the most units) of each node, by resource."""
        capacity = self._history.frames.capacity
        most = capacity[["expected", "capacity", "allocatable"]].max(axis=1)
        product = self._history.products
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        by_node = most.groupby([capacity["resource"], capacity["node"]], observed=True).max().reset_index()
        for resource, node, units in zip(*(by_node[name].tolist() for name in by_node), strict=True):
            found[resource].append((product.get(node, ""), units))
        return found

    def sizes(self, resource: str, products: str) -> tuple[int, ...]:
        """Units of each node that would do, the largest first."""
        key = (resource, products)
        if key not in self._known:
            wanted = set(products.split("|"))
            fitting = (
                units for product, units in self._sizes.get(resource, ()) if not products or product in wanted
            )
            self._known[key] = tuple(sorted(fitting, reverse=True))
        return self._known[key]

    def is_possible(self, asked: UnitRequest) -> bool:
        """Whether as many of its pods as must start at once would fit if all nodes were empty."""
        key = (asked.resource, asked.products, max(asked.units, 1))
        if key not in self._places:
            self._places[key] = sum(size // key[2] for size in self.sizes(asked.resource, asked.products))
        return self._places[key] >= max(asked.min_pods, 1)

    def why_not(self, asked: UnitRequest) -> str:
        largest = next(iter(self.sizes(asked.resource, asked.products)), 0)
        one = amount(asked.units, "GPU")
        if asked.units > largest:
            return f"impossible request: a pod asks for {one}, the largest node that would do has {largest}"
        pods = amount(asked.min_pods, "pod")
        return f"impossible request: {pods} of {one} at once do not fit, were all nodes that would do empty"


def unfit_now(overview: ClusterOverview, waiting: pd.DataFrame) -> Mapping[int, str]:
    """Why rows of demand that wait now would find no node, by their index; rows that would find one are left
    out, and so are rows whose pods are not in the state.

    Pods are checked as they are; for a job without pods the templates of its workload are, with all that
    Kueue may add to them on admission.
    """
    fitter, free = PodNodeFitter(overview), FreeNodes(overview.state, overview.catalog)
    found: dict[int, str] = {}
    names = ("job_uid", "namespace", "workload", "resource", "min_pods")
    for row, *values in zip(waiting.index, *(waiting[name].tolist() for name in names), strict=True):
        uid, namespace, workload, resource, least = values
        fit = fitter.of(uid, resource, least)
        if fit is not None:
            if not fit.fits:
                found[int(row)] = _said(fit.lacking, fit.barred)
        elif not _fits(overview, free, (namespace, workload), resource):
            found[int(row)] = "no node that its labels and taints admit has room for one of its pods"
    return found


def _said(lacking: tuple[tuple[str, int], ...], barred: tuple[str, ...]) -> str:
    if lacking:
        resource, nodes = lacking[0]
        return f"{nodes} nodes with GPUs enough for one of its pods have too little {resource}"
    if barred:
        return f"labels or taints keep it from {barred[0]} and {len(barred) - 1} other nodes with GPUs enough"
    return "its pods do not find places all at once"


def _fits(overview: ClusterOverview, free: FreeNodes, name: tuple[str, str], resource: str) -> bool:
    """Whether one pod of each of the workload's pod sets that want GPUs would fit; True where that is
    unknown."""
    workload = overview.state.workload_by_name.get(name)
    if workload is None:
        return True
    queue = cluster_queue_of(overview.state, workload)
    flavors = {key.flavor for key in queue.quotas if key.resource == resource} if queue is not None else set()
    added = [
        toleration
        for flavor in sorted(flavors)
        if (known := overview.state.flavor_by_name.get(flavor)) is not None
        for toleration in known.tolerations
    ]
    # Kubernetes lets pods onto nodes tainted with the name of the resource they ask for
    # (the ExtendedResourceToleration admission plugin).
    extra = (*added, Toleration(resource, exists=True))
    return all(
        free.fits(_with(each.template, extra))
        for each in workload.pod_sets
        if each.template.requests.get(resource, 0) > 0
    )


def _with(template: PodTemplate, tolerations: tuple[Toleration, ...]) -> PodTemplate:
    return replace(template, tolerations=(*template.tolerations, *tolerations))
