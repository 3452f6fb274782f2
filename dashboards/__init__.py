"""Grafana dashboards: one module per dashboard, written in grafanalib and converted to current JSON.

A dashboard is a module with ``dashboard() -> Dashboard``, built from ``panels`` (panels, rows, links and
variables) and ``series`` (PromQL). ``grafana_json.modernise`` turns what grafanalib writes into what Grafana
reads today. What must not live here: reading a Prometheus or a Grafana. ``python -m dashboards`` writes
``generated/*.json``, which is committed; a test compares it with these sources. Begin at fleet.
"""

from __future__ import annotations

from importlib import import_module

from grafanalib.core import Dashboard

BOARD_MODULES = ("fleet", "team", "job", "queues", "nodes", "self_monitoring")
"""In the order in which people read them."""


def boards() -> tuple[Dashboard, ...]:
    """All dashboards, as their modules describe them."""
    return tuple(import_module(f"dashboards.{name}").dashboard() for name in BOARD_MODULES)
