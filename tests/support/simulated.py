"""Simulated clusters that many tests look at, and none changes: each is made once by a process."""

from __future__ import annotations

from functools import cache

from gpucost.simulator.cluster import DEMO_SEED, SimulatedCluster


@cache
def simulated(seed: int = DEMO_SEED) -> SimulatedCluster:
    """The demo's month of one seed. Its frames are shared by all tests: copy before you change anything."""
    return SimulatedCluster(seed)
