"""From a board of grafanalib to JSON."""

from __future__ import annotations

import json
from pathlib import Path

from grafanalib._gen import DashboardEncoder
from grafanalib.core import Dashboard

from dashboards.modernise import Json, modernise

GENERATED = Path(__file__).parent / "generated"


def raw(board: Dashboard) -> Json:
    """What grafanalib writes."""
    written: Json = json.loads(json.dumps(board.to_json_data(), cls=DashboardEncoder))
    return written


def modern(board: Dashboard) -> Json:
    """What Grafana reads today."""
    return modernise(raw(board))
