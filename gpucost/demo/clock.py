"""A simulated cluster that stands around any instant, so that live scrapes go on where its history ends."""

from __future__ import annotations

from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.demo import DEMO_SEED

# How far into its span the demo stands: there is enough of everything to look at just then.
_INTO_MS = 29 * DAY_MS + 11 * HOUR_MS
_LENGTH_MS = 38 * DAY_MS


def span_around(at_ms: int) -> Window:
    """The span that a cluster is simulated for; it ends more than a week after ``at_ms``."""
    start_ms = at_ms // HOUR_MS * HOUR_MS - _INTO_MS
    return Window(start_ms, start_ms + _LENGTH_MS)


def cluster_around(at_ms: int, seed: int = DEMO_SEED) -> SimulatedCluster:
    """The demo's cluster with some trouble around ``at_ms``; the same arguments give the same cluster."""
    return SimulatedCluster(seed, span_around(at_ms), unrest_ms=at_ms)
