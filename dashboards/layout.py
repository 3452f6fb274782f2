"""A board from rows of panels: places are worked out here, so no board holds a coordinate.

How a board module ends::

    def dashboard() -> Dashboard:
        return board(links.TEAM, "Team", "What a team uses, costs and wastes …",
                     [Row("Cost", [stat(…), timeseries(…)]), Row("Use", […])],
                     [variables.datasource(), variables.cluster(), variables.team()])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafanalib import core

COLUMNS = 24
TAG = "gpucost"


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it, from left to right; a panel that does not fit begins a new line."""

    title: str
    panels: Sequence[core.Panel]


def board(
    uid: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    variables: Sequence[core.Template],
    *,
    since: str = "now-24h",
) -> core.Dashboard:
    """A board called ``gpucost / title`` over the last day unless ``since`` says otherwise.

    Its links lead to all boards of gpucost, with the variables and the time range.
    """
    return core.Dashboard(
        uid=uid,
        title=f"gpucost / {title}",
        description=description,
        panels=_placed(rows),
        templating=core.Templating(list(variables)),
        links=[_all_boards()],
        tags=[TAG],
        time=core.Time(since, "now"),
        timezone="utc",
        refresh="1m",
        editable=False,
        sharedCrosshair=True,
    )


def _all_boards() -> core.DashboardLink:
    return core.DashboardLink(type="dashboards", title="gpucost", tags=[TAG], includeVars=True, keepTime=True)


def _placed(rows: Sequence[Row]) -> list[core.Panel]:
    placed: list[core.Panel] = []
    top = 0
    for row in rows:
        placed.append(core.RowPanel(title=row.title, gridPos=core.GridPos(h=1, w=COLUMNS, x=0, y=top)))
        top += 1
        left = tallest = 0
        for panel in row.panels:
            size = panel.gridPos
            if left + size.w > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            panel.gridPos = core.GridPos(h=size.h, w=size.w, x=left, y=top)
            left += size.w
            tallest = max(tallest, size.h)
            placed.append(panel)
        top += tallest
    return placed
