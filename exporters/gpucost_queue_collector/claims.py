"""What is remembered of ResourceClaims: they are taken from a pod, or deleted, before it is seen to end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpucost.cluster.claims import ClaimHistory, Shares
from gpucost.cluster.dra import ResourceClaim
from gpucost.cluster.overview import Overview
from gpucost.contract.metrics import LINGER_MS
from gpucost.kube.store import Change


class _Seen(NamedTuple):
    """Claims by uid, and when one of them was last seen to be the pod's."""

    claims: Mapping[str, ResourceClaim]
    seen_ms: int


class ClaimMemory:
    """Told of changes by a reflector, asked when series are refreshed; ``now_ms`` is a clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen: dict[str, _Seen] = {}
        self._shares: Mapping[str, Shares] = {}
        self._lock = threading.Lock()

    def claim_changed(self, change: Change[ResourceClaim]) -> None:
        """To be called for every change of a claim."""
        claim, now_ms = change.object, self._now_ms()
        with self._lock:
            for uid in claim.reserved_for:
                known = self._seen.get(uid)
                claims = {**known.claims, claim.meta.uid: claim} if known else {claim.meta.uid: claim}
                self._seen[uid] = _Seen(claims, now_ms)

    def history(self) -> ClaimHistory:
        """All that is remembered, for the next overview."""
        with self._lock:
            return ClaimHistory({uid: seen.claims for uid, seen in self._seen.items()}, self._shares)

    def remember(self, overview: Overview) -> None:
        """What pods hold now, for their lives. What was seen of pods that nobody knows (any more) is
        forgotten after ten minutes."""
        known = overview.state.pods.keys() | {pod.meta.uid for pod in overview.ended}
        since_ms = self._now_ms() - LINGER_MS
        shares = overview.units.devices.shares
        with self._lock:
            self._shares = {uid: held for uid, held in shares.items() if uid in known}
            self._seen = {
                uid: seen for uid, seen in self._seen.items() if uid in known or seen.seen_ms > since_ms
            }
