"""The data of ``gpucost demo``: the simulated cluster of October 2026, its prices and its teams."""

from __future__ import annotations

from importlib.resources import files

from gpucost.simulator.cluster import SimulatedCluster

DEMO_SEED = 7
PRICES_NAME = "prices.yaml"
TEAMS_NAME = "teams.yaml"


def demo_cluster(seed: int = DEMO_SEED) -> SimulatedCluster:
    """The demo's cluster, whose month is ``cluster.DEMO_MONTH``."""
    return SimulatedCluster(seed)


def demo_prices_text() -> str:
    """The demo's price book, as YAML."""
    return _packaged(PRICES_NAME)


def demo_teams_text() -> str:
    """The demo's team rules, as YAML."""
    return _packaged(TEAMS_NAME)


def _packaged(name: str) -> str:
    return (files("gpucost.simulator") / name).read_text(encoding="utf-8")
