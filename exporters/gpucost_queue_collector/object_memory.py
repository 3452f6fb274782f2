"""Pods, nodes and workloads that have ended, and when: they keep their series a while longer, with their end.

The end of a pod is its object's own (when its last container ended) wherever the object has it, so that it is
the same after a restart. Only where an object was deleted without one, it is the time when that was observed:
the arrival of the deletion, or, for an object that vanished while it was not watched, its last sign of life
before.

``ClaimMemory`` remembers ResourceClaims: they are taken from a pod, or deleted, before the pod is seen to
end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpucost.cluster.objects.nodes import Node, ResourceClaim
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.cluster.views.device_claims import ClaimedDevices, ClaimHistory, DeviceUses
from gpucost.cluster.views.gpu_units import has_fraction
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.metrics import LINGER_MS
from gpucost.domain.time import DAY_MS
from gpucost.kube.watch.object_store import ObjectChange, ObjectChangeKind

_MS = 1_000_000
_GONE = (ObjectChangeKind.DELETED, ObjectChangeKind.VANISHED)
# A pod that had ended longer ago when it is first seen is not shown.
CATCH_UP_MS = DAY_MS


class _Ended(NamedTuple):
    """A pod with its end, when this collector came to know of it, and whether the API still has the pod."""

    pod: Pod
    known_ms: int
    is_there: bool


class EndedNode(NamedTuple):
    """A node that is gone, and when this collector came to know of it."""

    node: Node
    ended_ms: int
    known_ms: int


class EndedObjects:
    """Receives changes from reflectors, and is read when series are refreshed; ``now_ms`` is a clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._pods: dict[str, _Ended] = {}
        self._nodes: dict[str, EndedNode] = {}
        self._lock = threading.Lock()

    def pod_changed(self, change: ObjectChange[Pod]) -> None:
        """To be called for every change of a pod."""
        pod, uid = change.object, change.object.meta.uid
        is_there = change.kind not in _GONE
        with self._lock:
            known = self._pods.get(uid)
            if is_there and not pod.has_ended:  # a list may have missed it once
                self._pods.pop(uid, None)
            elif known is not None:
                self._pods[uid] = known._replace(is_there=is_there)
            elif pod.bound_ms is not None and (ended_ms := _end_of(change)) is not None:
                ended = replace(pod, phase=_final(pod), ended_ms=max(ended_ms, pod.bound_ms))
                now_ms = self._now_ms()
                # What ended while we watched is recent, also where the host's clock is a day ahead.
                is_news = _was_running(change) or ended_ms > now_ms - CATCH_UP_MS
                self._pods[uid] = _Ended(ended, now_ms if is_news else 0, is_there)

    def node_changed(self, change: ObjectChange[Node]) -> None:
        """To be called for every change of a node."""
        node = change.object
        with self._lock:
            if change.kind in _GONE:
                self._nodes[node.meta.uid] = EndedNode(node, change.seen_ns // _MS, self._now_ms())
            else:
                self._nodes.pop(node.meta.uid, None)

    def pods(self) -> list[Pod]:
        """Those that ended of late, with their ends; the ones that are still in the API included."""
        since_ms = self._now_ms() - LINGER_MS
        with self._lock:
            # What still exists is remembered, so that it does not end a second time.
            self._pods = {
                uid: ended for uid, ended in self._pods.items() if ended.is_there or ended.known_ms > since_ms
            }
            return [ended.pod for ended in self._pods.values() if ended.known_ms > since_ms]

    def nodes(self, there: Iterable[Node]) -> list[EndedNode]:
        """Nodes gone of late, except where another of the same name has come since: series are by name.

        Deletions are newer than ``there``: a node that is still in it is gone all the same.
        """
        since_ms = self._now_ms() - LINGER_MS
        uids = {node.meta.name: node.meta.uid for node in there}
        with self._lock:
            self._nodes = {
                uid: gone
                for uid, gone in self._nodes.items()
                if gone.known_ms > since_ms and uids.get(gone.node.meta.name, uid) == uid
            }
            return list(self._nodes.values())


def _end_of(change: ObjectChange[Pod]) -> int | None:
    """The end of a pod; None where it was not observed and its object does not have it."""
    if change.object.ended_ms is not None:
        return change.object.ended_ms
    return change.seen_ns // _MS if _was_running(change) else None


def _was_running(change: ObjectChange[Pod]) -> bool:
    return change.previous is not None and not change.previous.has_ended


def _final(pod: Pod) -> PodPhase:
    return pod.phase if pod.has_ended else PodPhase.FAILED


class _SeenObject(NamedTuple):
    """Claims by uid, and when one of them was last seen to be the pod's."""

    claims: Mapping[str, ResourceClaim]
    seen_ms: int


class ClaimMemory:
    """Receives changes from a reflector, and is read when series are refreshed; ``now_ms`` is a clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen: dict[str, _SeenObject] = {}
        self._shares: Mapping[str, ClaimedDevices] = {}
        self._uses: Mapping[str, DeviceUses] = {}
        self._fractions: Mapping[str, DeviceUses] = {}
        self._firsts: dict[str, Pod | None] = {}
        self._lock = threading.Lock()

    def claim_changed(self, change: ObjectChange[ResourceClaim]) -> None:
        """To be called for every change of a claim."""
        claim, now_ms = change.object, self._now_ms()
        with self._lock:
            for uid in claim.reserved_for:
                known = self._seen.get(uid)
                claims = {**known.claims, claim.meta.uid: claim} if known else {claim.meta.uid: claim}
                self._seen[uid] = _SeenObject(claims, now_ms)

    def pod_changed(self, change: ObjectChange[Pod]) -> None:
        """To be called for every change of a pod."""
        pod = change.object
        if pod.bound_ms is not None:
            with self._lock:
                self._firsts.setdefault(pod.meta.uid, pod if has_fraction(pod) else None)

    def history(self) -> ClaimHistory:
        """All that is remembered, for the next overview."""
        with self._lock:
            seen = {uid: each.claims for uid, each in self._seen.items()}
            return ClaimHistory(seen, self._shares, self._uses, self._fractions, dict(self._firsts))

    def remember(self, overview: ClusterOverview) -> None:
        """What pods hold now, for their lives. What was seen of pods that are not (or no longer) known is
        forgotten after ten minutes."""
        known = overview.state.pods.keys() | {pod.meta.uid for pod in overview.ended}
        since_ms = self._now_ms() - LINGER_MS
        devices = overview.units.devices
        with self._lock:
            self._shares = {uid: held for uid, held in devices.shares.items() if uid in known}
            self._uses = {uid: used for uid, used in devices.uses.items() if uid in known}
            fractions = overview.units.fractions.uses
            self._fractions = {uid: used for uid, used in fractions.items() if uid in known}
            self._firsts = {uid: pod for uid, pod in self._firsts.items() if uid in known}
            self._seen = {
                uid: seen for uid, seen in self._seen.items() if uid in known or seen.seen_ms > since_ms
            }
