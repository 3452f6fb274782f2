"""Variables of the boards: each in one place, so that a link can hand them on by name.

In queries: ``cluster=~"$cluster"`` on series of the exporters (a target label), ``gpu_cluster=~"$cluster"``
on those of the service, ``owner_team=~"$team"``, ``namespace=~"$namespace"``, ``job_name=~"$job"``. "All" is
``.*``, which also matches series without the label: one cluster needs no target label ``cluster``.
"""

from __future__ import annotations

from grafanalib import core

from dashboards.panels import DATASOURCE

ALL = "$__all"


def datasource() -> core.Template:
    """Which Prometheus; every panel reads from it."""
    return core.Template(name="datasource", label="Prometheus", type="datasource", query="prometheus")


def cluster() -> core.Template:
    """Which clusters of the ledger; several or all."""
    return from_labels("cluster", "Cluster", "label_values(gpucost_ledger_lag_seconds, gpu_cluster)")


def team(*, multi: bool = False) -> core.Template:
    """Which team. What is nobody's (``__unallocated__``), or several teams', is no team."""
    metric = 'gpucost_team_cost_usd{gpu_cluster=~"$cluster", owner_team!~"__.*"}'
    return from_labels("team", "Team", f"label_values({metric}, owner_team)", multi=multi)


def from_labels(name: str, label: str, query: str, *, multi: bool = True) -> core.Template:
    """A variable with the values of ``query`` (``label_values(metric{…}, label)``) in the range shown.

    ``multi``: several values, or all; else exactly one, the first unless a link gives it.
    """
    return core.Template(
        name=name,
        label=label,
        query=query,
        dataSource=DATASOURCE,
        type="query",
        default=ALL if multi else None,
        includeAll=multi,
        allValue=".*" if multi else None,
        multi=multi,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )
