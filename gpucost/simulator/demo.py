"""What ``gpucost demo`` shows: the simulated cluster of October 2026, its prices and its teams."""

from __future__ import annotations

from importlib.resources import files

from gpucost.attribution.frames import Frames
from gpucost.simulator.cluster import SimulatedCluster

DEMO_SEED = 7
PRICES_NAME = "prices.yaml"
TEAMS_NAME = "teams.yaml"


def demo_frames(seed: int = DEMO_SEED) -> Frames:
    """The frames of the demo's cluster, whose month is ``cluster.DEMO_MONTH``."""
    return SimulatedCluster(seed).frames


def demo_prices_text() -> str:
    """The demo's price book, as YAML."""
    return _packaged(PRICES_NAME)


def demo_teams_text() -> str:
    """The demo's team rules, as YAML."""
    return _packaged(TEAMS_NAME)


def _packaged(name: str) -> str:
    return (files("gpucost.simulator") / name).read_text(encoding="utf-8")
