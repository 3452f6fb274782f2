"""Grafana dashboards: one module per board, written in grafanalib, brought to today's form by one pure step.

A board is a module with ``dashboard() -> Dashboard``, built from ``layout``, ``panels``, ``variables`` and
``links``. ``modernise`` turns what grafanalib writes into what Grafana reads today. ``python -m dashboards``
writes ``generated/*.json``, which is committed; a test holds it to these sources.
"""

from __future__ import annotations

from importlib import import_module

from grafanalib.core import Dashboard

BOARD_MODULES = ("fleet", "team", "job", "queues", "nodes", "self_monitoring")
"""In the order in which people read them."""


def boards() -> tuple[Dashboard, ...]:
    """All boards, as their modules describe them."""
    return tuple(import_module(f"dashboards.{name}").dashboard() for name in BOARD_MODULES)
