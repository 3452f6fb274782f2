"""Whether pods that wait would find nodes now, by what the cluster's state says: labels, taints, CPU, memory,
GPUs. Rules about other pods, topology spreading, volumes and devices of claims are not asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from gpucost.cluster.fit import FreeNodes, is_evaluated, room
from gpucost.cluster.nodes import Node
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import Pod


@dataclass(frozen=True, slots=True)
class Fit:
    """How pods of one job that wait stand to the nodes, ``resource`` being their GPUs.

    ``fits``: enough of them find places at once. ``needed`` units would do for that. ``free`` are units free
    on nodes whose labels and taints admit them. ``lacking`` counts, by resource, the nodes with GPUs enough
    for one pod that have too little of it; empty where no node has enough GPUs. ``barred`` are nodes with
    GPUs enough that labels or taints keep them from. ``asks_others``: there are rules about other pods, too.
    """

    fits: bool
    needed: int
    free: int
    lacking: tuple[tuple[str, int], ...]
    barred: tuple[str, ...]
    asks_others: bool


class Fitter:
    """Answers for the waiting jobs of one state; what is free is worked out once."""

    def __init__(self, overview: Overview) -> None:
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

    def of(self, job_uid: str, resource: str, least: int) -> Fit | None:
        """``least``: how many must find places at once. None where the state has no such pods, or they have
        more rules than are looked at."""
        pods = [pod for pod in self._waiting.get(job_uid, ()) if pod.requests.get(resource, 0) > 0]
        if not pods or not all(is_evaluated(pod.template) for pod in pods):
            return None
        pods.sort(key=lambda pod: (-pod.requests[resource], -pod.requests.get("cpu", 0), pod.meta.uid))
        needed = min(max(least, 1), len(pods))
        admitted = {node.meta.name: node for pod in pods for node in self._free.matching(pod.template)}
        free = sum(max(self._free.free(node).get(resource, 0), 0) for node in admitted.values())
        return Fit(
            fits=self._placed(pods, resource) >= needed,
            needed=sum(pod.requests[resource] for pod in pods[-needed:]),
            free=free,
            lacking=self._lacking(pods[0], resource),
            barred=self._barred(pods[0], resource, admitted),
            asks_others=any(pod.template.has_pod_affinity for pod in pods),
        )

    def _placed(self, pods: list[Pod], resource: str) -> int:
        """How many find a place, the largest first, each where the fewest GPUs are left over."""
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
            for each, amount in (*pod.requests.items(), ("pods", 1)):
                if each in here:
                    here[each] -= amount
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
