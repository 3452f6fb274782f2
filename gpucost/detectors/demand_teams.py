"""The team of those who wait, by the same rules as of those who hold: a label is not yet a team."""

from __future__ import annotations

import pandas as pd

from gpucost.attribution.holders import HOLDER_NAMES
from gpucost.detectors.facts import History


def demand_teams(history: History, demand: pd.DataFrame) -> pd.Series[str]:
    """By row of demand, with its index; by the rules in force at the window's start, as ``History.held``."""
    holders = pd.DataFrame({name: demand.get(name, "") for name in HOLDER_NAMES}, index=demand.index)
    return history.teams.assign(holders.astype("str"), history.window.start_ms)
