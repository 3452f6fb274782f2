"""Either dialect: gpucost's own series from when they begin, and before what is there without them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from gpucost.attribution.frames import Frames
from gpucost.domain.errors import InputError, NotCovered
from gpucost.domain.time import DAY_MS, Window
from gpucost.telemetry.existing.source import ExistingSource
from gpucost.telemetry.promapi import QueryStats
from gpucost.telemetry.prometheus import PrometheusSource

_ENOUGH = 0.9
_GONE_MS = DAY_MS
"""After so long without gpucost's own series of a window, they are not waited for any more."""


class EitherSource:
    """Two sources over one server. A window is read whole from one of them, and its frames say which."""

    def __init__(self, own: PrometheusSource, existing: ExistingSource, now: Callable[[], int]) -> None:
        self._own, self._existing, self._now = own, existing, now
        self._since: dict[str, int] = {}  # when a cluster's own series begin: asked for once they are there

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def stats(self) -> QueryStats:
        return self._own.stats

    def clusters(self) -> tuple[str, ...]:
        """Those that either knows, sorted. Raises SourceError; InputError where both know one cluster under
        two names, which would be billed twice."""
        own, existing = self._own.clusters(), self._existing.clusters()
        for one, other in ((one, other) for one in own for other in existing if one not in existing):
            mine, theirs = self._own.node_births(one), self._existing.node_births(other)
            if other not in own and mine & theirs:
                allowed = f"{one}, since the nodes of {other} and {one} are the same"
                raise InputError("prometheus.cluster", other, allowed)
        return tuple(sorted({*own, *existing}))

    def covered(self, cluster: str) -> Window | None:
        """From the first scrape of either to the last of either; where both go on, of gpucost's own.
        Raises SourceError."""
        own, existing = self._own.covered(cluster), self._existing.covered(cluster)
        if own is None or existing is None:
            return own or existing
        end_ms = max(own.end_ms, existing.end_ms)
        if end_ms - own.end_ms <= self._own.max_gap_ms:
            end_ms = own.end_ms
        return Window(min(own.start_ms, existing.start_ms), end_ms)

    def read(self, cluster: str, window: Window) -> Frames:
        """Raises as the source that was asked last does. Where gpucost's own series have a long gap, the
        others' count if they saw more."""
        found = self._either(cluster, window, lambda source: source.read(cluster, window))
        if found.source != self._own.name or _seen_ms(found) >= _ENOUGH * window.length_ms:
            return found
        try:
            other = replace(self._existing.read(cluster, window), source=self._existing.name)
        except NotCovered:
            return found
        return other if _seen_ms(other) > _seen_ms(found) else found

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> Frames:
        """As ``read``."""
        return self._either(cluster, window, lambda source: source.history(cluster, window, only))

    def _either(
        self, cluster: str, window: Window, ask: Callable[[PrometheusSource | ExistingSource], Frames]
    ) -> Frames:
        if self._has_begun(cluster, window.start_ms):
            try:
                return replace(ask(self._own), source=self._own.name)
            except NotCovered:
                # What is only late comes; what is gone does not.
                if window.end_ms + _GONE_MS > self._now():
                    raise
        return replace(ask(self._existing), source=self._existing.name)

    def _has_begun(self, cluster: str, at_ms: int) -> bool:
        """Whether gpucost's own series tell of the cluster then: its heartbeat alone, which anybody can write
        who has a target scraped, says nothing while it shows less than half of the nodes."""
        if cluster not in self._since:
            covered = self._own.covered(cluster)
            if covered is None or 2 * self._own.nodes(cluster) < self._existing.nodes(cluster):
                return False
            self._since[cluster] = covered.start_ms
        return self._since[cluster] <= at_ms


def _seen_ms(frames: Frames) -> int:
    observed = frames.observed
    return int((observed["end_ms"] - observed["start_ms"]).sum())
