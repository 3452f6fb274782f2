"""Panels, links, variables and rows of the dashboards: thin functions over grafanalib.

Every function takes title, description, unit and at least one query, so that nothing a reader needs can be
left out. How a dashboard module uses them::

    from dashboards.panels import GPUS, USD, PanelColumn, query, stat, table, team_link, timeseries

    stat("GPUs held", "GPUs that pods hold now …", GPUS,
         query('sum(gpucost_team_gpus{gpu_cluster=~"$cluster"})'), width=4)
    timeseries("GPUs held by team", "…", GPUS,
               query('sum by (owner_team) (gpucost_team_gpus{gpu_cluster=~"$cluster"})', "{{owner_team}}"),
               stacked=True)
    table("Teams", "…", USD,
         [query('sum by (owner_team) (gpucost_team_cost_usd{gpu_cluster=~"$cluster"})'),      # A
          query('sum by (owner_team) (gpucost_team_gpus{gpu_cluster=~"$cluster"})')],         # B
         [PanelColumn("owner_team", "Team", link=team_link(cell="Team")),
          PanelColumn("A", "Cost this month", unit=USD), PanelColumn("B", "GPUs held", unit=GPUS)],
         sort_by="Cost this month")

A panel's ``width`` counts in Grafana's 24 columns, its ``height`` in its rows of 30 px; ``board`` computes
the places from rows of panels, so no dashboard holds a coordinate. How a dashboard module ends::

    def dashboard() -> Dashboard:
        return board(TEAM, "Team", "What a team uses, costs and wastes …",
                     [PanelRow("Cost", [stat(…), timeseries(…)]), PanelRow("Use", […])],
                     [datasource_variable(), cluster_variable(), team_variable()])

Description: how to read the panel, then what it cannot show. Rates use ``$__rate_interval``. There is no text
panel: it could have no query, and every panel has one. Money: write the metrics and units of a ledger in US
dollars (``…_usd``, ``USD``); ``grafana_json.in_currency`` makes others. What has no series while all is well
(errors, XID events) reads 0 with ``series.or_zero``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafanalib import core

GPUS = "suffix:GPUs"
COUNT = "short"
RATIO = "percentunit"
SECONDS = "s"
AGO = "dateTimeFromNow"
"""A timestamp in milliseconds, shown as "3 hours ago": multiply seconds by 1000."""
BYTES = "bytes"
WATTS = "watt"
ENERGY = "watth"
"""Watt-hours: joules / 3600."""
PER_SECOND = "ops"
USD = "currencyUSD"
STATE = "bool_yes_no"
UNITS = frozenset({GPUS, COUNT, RATIO, SECONDS, AGO, BYTES, WATTS, ENERGY, PER_SECOND, USD, STATE})
"""Units of the dashboards: one word for one unit."""

GREEN, YELLOW, RED, GREY, BLUE = "green", "yellow", "red", "text", "blue"
DATASOURCE = "${datasource}"

ThresholdSteps = Sequence[tuple[float | None, str]]
"""Thresholds, lowest first: (from which value, colour); the first value is None."""
PanelLinks = Sequence[Mapping[str, Any]]


def query(expr: str, legend: str = "", *, ref: str = "") -> core.Target:
    """A PromQL query. ``legend`` is Grafana's format (``{{owner_team}}``); ``ref`` is A, B, … by order."""
    return core.Target(expr=expr, legendFormat=legend, refId=ref, datasource=DATASOURCE)


@dataclass(frozen=True, slots=True)
class PanelColumn:
    """A column of a table: the label ``field``, or the value of the query with that ref ("A")."""

    field: str
    title: str
    unit: str = ""
    link: Mapping[str, Any] | None = None
    steps: ThresholdSteps = ()
    """Thresholds that colour the text of the cell."""
    width: int | None = None


def stat(
    title: str,
    description: str,
    unit: str,
    *queries: core.Target,
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    steps: ThresholdSteps = ((None, BLUE),),
    values: Mapping[float, tuple[str, str]] | None = None,
    links: PanelLinks = (),
) -> core.Stat:
    """One number (or one per series), the last of the range, with its line below.

    ``values`` maps values to (text, colour): ``{1: ("up", GREEN), 0: ("down", RED)}``.
    """
    return core.Stat(
        **_common(title, description, queries, width, height, steps, links),
        format=unit,
        decimals=decimals,
        reduceCalc="lastNotNull",
        graphMode="area",
        color={"mode": "thresholds"},
        mappings=_mappings(values),
        noValue="no data",
        thresholds=_steps(steps),
    )


def timeseries(
    title: str,
    description: str,
    unit: str,
    *queries: core.Target,
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    steps: ThresholdSteps = (),
    maximum: int | None = None,
    min_step: str | None = None,
    colours: Mapping[str, str] | None = None,
    links: PanelLinks = (),
) -> core.TimeSeries:
    """Lines over time, from 0; ``stacked`` areas for parts of one whole.

    ``min_step`` ("1h") is the finest step, and so the shortest ``$__rate_interval``: for counters that change
    seldom, such as those of the ledger, which change once per window.

    ``steps`` draws its values as lines. ``colours`` maps names of series (as the legend has them) to colours.
    Gaps stay gaps: missing is not 0.
    """
    return core.TimeSeries(
        **_common(title, description, queries, width, height, steps, links),
        unit=unit,
        stacking={"mode": "normal" if stacked else "none", "group": "A"},
        fillOpacity=60 if stacked else 8,
        lineWidth=0 if stacked else 1,
        legendPlacement="right" if width >= 12 else "bottom",
        legendDisplayMode="table" if width >= 12 else "list",
        legendCalcs=["lastNotNull", "max"] if width >= 12 else [],
        tooltipMode="multi",
        tooltipSort="desc",
        showPoints="never",
        valueMin=0,
        valueMax=maximum,
        thresholds=_steps(steps),
        thresholdsStyleMode="line" if steps else "off",
        interval=min_step,
        overrides=[
            _override(name, {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}})
            for name, colour in (colours or {}).items()
        ],
    )


def bar_gauge(
    title: str,
    description: str,
    unit: str,
    *queries: core.Target,
    width: int = 8,
    height: int = 8,
    steps: ThresholdSteps = ((None, BLUE),),
    minimum: float | None = 0,
    maximum: float | None = None,
    links: PanelLinks = (),
) -> core.BarGauge:
    """A bar per series, at its last value: for comparing current values side by side."""
    return core.BarGauge(
        **_common(title, description, _instant(queries), width, height, steps, ()),
        format=unit,
        calc="lastNotNull",
        displayMode="gradient",
        min=minimum,
        max=maximum,
        dataLinks=[dict(link) for link in links],
        thresholds=_steps(steps),
    )


def table(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[core.Target],
    columns: Sequence[PanelColumn],
    *,
    sort_by: str = "",
    width: int = 24,
    height: int = 9,
) -> core.Table:
    """Rows by labels, one column per query; only ``columns`` are shown, in their order.

    Queries are joined on the labels they have in common, so all should have the same (``sum by``). ``unit``
    is the unit of columns without one. ``sort_by`` is a column's title; the largest value stands on top.
    """
    targets = _instant(queries, table=True)
    fields = {column.field: _field(column.field, len(targets)) for column in columns}
    order = [fields[column.field] for column in columns]
    shown: list[dict[str, Any]] = [{"id": "merge", "options": {}}] if len(targets) > 1 else []
    shown.append({"id": "filterFieldsByName", "options": {"include": {"names": order}}})
    renamed = {fields[column.field]: column.title for column in columns}
    indices = {name: index for index, name in enumerate(order)}
    shown.append({"id": "organize", "options": {"indexByName": indices, "renameByName": renamed}})
    return core.Table(
        **_common(title, description, targets, width, height, (), ()),
        unit=unit,
        filterable=True,
        overrides=[o for column in columns if (o := _column_override(column)) is not None],
        sortBy=[core.TableSortByField(displayName=sort_by, desc=True)] if sort_by else [],
        transformations=shown,
    )


def timeline(
    title: str,
    description: str,
    unit: str,
    *queries: core.Target,
    width: int = 24,
    height: int = 9,
    steps: ThresholdSteps = ((None, BLUE),),
    values: Mapping[float, tuple[str, str]] | None = None,
    links: PanelLinks = (),
) -> core.StateTimeline:
    """A row per series, coloured by value over time: the state of each subject over time."""
    extra = {"fieldConfig": {"defaults": {"unit": unit, "links": [dict(link) for link in links]}}}
    return core.StateTimeline(
        **_common(title, description, queries, width, height, steps, ()),
        mappings=_mappings(values),
        thresholds=_steps(steps),
        showValue="never",
        tooltipMode="single",
        extraJson=extra,
    )


def _common(
    title: str,
    description: str,
    queries: Sequence[core.Target],
    width: int,
    height: int,
    steps: ThresholdSteps,
    links: PanelLinks,
) -> dict[str, Any]:
    if not (title and description and queries):
        raise ValueError(f"panel {title!r}: title, description and at least one query are needed")
    if steps and steps[0][0] is not None:
        raise ValueError(f"panel {title!r}: the first step has no value, as it begins below all")
    common: dict[str, Any] = {
        "title": title,
        "description": description,
        "dataSource": DATASOURCE,
        "targets": list(queries),
        "gridPos": core.GridPos(h=height, w=width, x=0, y=0),
        "maxDataPoints": None,
    }
    if links:
        common["extraJson"] = {"fieldConfig": {"defaults": {"links": [dict(link) for link in links]}}}
    return common


def _instant(queries: Sequence[core.Target], *, table: bool = False) -> list[core.Target]:
    form = core.TABLE_TARGET_FORMAT if table else core.TIME_SERIES_TARGET_FORMAT
    return [
        core.Target(
            expr=one.expr,
            legendFormat=one.legendFormat,
            refId=one.refId,
            datasource=one.datasource,
            instant=True,
            format=form,
        )
        for one in queries
    ]


def _steps(steps: ThresholdSteps) -> list[dict[str, Any]]:
    return [{"color": colour, "value": value} for value, colour in steps]


def _mappings(values: Mapping[float, tuple[str, str]] | None) -> list[dict[str, Any]]:
    if not values:
        return []
    options = {
        f"{value:g}": {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(values.items())
    }
    return [{"type": "value", "options": options}]


def _field(field: str, queries: int) -> str:
    """What Grafana calls a column before it is renamed: a query's value is "Value #A", or "Value" alone."""
    is_ref = len(field) == 1 and field.isupper()
    if not is_ref:
        return field
    return "Value" if queries == 1 else f"Value #{field}"


def _override(name: str, *properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": name}, "properties": [dict(one) for one in properties]}


def _column_override(column: PanelColumn) -> dict[str, Any] | None:
    properties: list[dict[str, Any]] = []
    if column.unit:
        properties.append({"id": "unit", "value": column.unit})
    if column.link:
        properties.append({"id": "links", "value": [dict(column.link)]})
    if column.steps:
        properties.append({"id": "thresholds", "value": {"mode": "absolute", "steps": _steps(column.steps)}})
        properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    if column.width:
        properties.append({"id": "custom.width", "value": column.width})
    return _override(column.title, *properties) if properties else None


# Links between the dashboards: from team to job to GPU. The time range and the cluster go along.
#
# ``cell`` names the column (its *title*) of a table row that holds the value; ``label`` a label of the series
# under the pointer. Exactly one of them is given::
#
#     PanelColumn("owner_team", "Team", link=team_link(cell="Team"))
#     timeseries(…, links=[team_link(label="owner_team")])

FLEET, TEAM, JOB = "gpucost-fleet", "gpucost-team", "gpucost-job"
QUEUES, NODES, SELF = "gpucost-queues", "gpucost-nodes", "gpucost-self"
UIDS = (FLEET, TEAM, JOB, QUEUES, NODES, SELF)

_CONTEXT = f"var-datasource={DATASOURCE}&${{cluster:queryparam}}&${{__url_time_range}}"
DataLink = dict[str, object]


def team_link(*, cell: str = "", label: str = "") -> DataLink:
    """To the dashboard *Team* of the team in ``cell`` or ``label``."""
    return _to(TEAM, f"Team {_plain(cell, label)}", {"team": _value(cell, label)})


def job_link(*, name_cell: str, namespace_cell: str) -> DataLink:
    """To the dashboard *Job* of the job whose name and namespace are in these columns of a table."""
    values = {"namespace": _value(namespace_cell, ""), "job": _value(name_cell, "")}
    return _to(JOB, "Job", values)


def node_link(*, cell: str = "", label: str = "") -> DataLink:
    """To the dashboard *Nodes and GPUs*, with the node in ``cell`` or ``label`` only."""
    return _to(NODES, f"GPUs of {_plain(cell, label)}", {"node": _value(cell, label)})


def dashboard_link(uid: str, title: str) -> DataLink:
    """To a dashboard as a whole."""
    return _to(uid, title, {})


def _to(uid: str, title: str, values: dict[str, str]) -> DataLink:
    variables = "".join(f"&var-{name}={value}" for name, value in values.items())
    return {"title": title, "url": f"/d/{uid}?{_CONTEXT}{variables}"}


def _value(cell: str, label: str) -> str:
    """The value in a URL. Names come from users of the cluster, so it is encoded."""
    return _plain(cell, label).replace("}", ":percentencode}")


def _plain(cell: str, label: str) -> str:
    if bool(cell) == bool(label):
        raise ValueError(f"a link takes its value from a cell or from a label: {cell!r}, {label!r}")
    return f'${{__data.fields["{cell}"]}}' if cell else f"${{__field.labels.{label}}}"


# Variables of the dashboards: each in one place, so that a link can set them by name.
#
# In queries: ``cluster=~"$cluster"`` on series of the exporters (a target label),
# ``gpu_cluster=~"$cluster"`` on those of the service, ``owner_team=~"$team"``,
# ``namespace=~"$namespace"``, ``job_name=~"$job"``. "All" is ``.*``, which also matches series without the
# label: one cluster needs no target label ``cluster``.

ALL = "$__all"


def datasource_variable() -> core.Template:
    """Which Prometheus; every panel reads from it."""
    return core.Template(name="datasource", label="Prometheus", type="datasource", query="prometheus")


def cluster_variable() -> core.Template:
    """Which clusters of the ledger; several or all."""
    return from_labels("cluster", "Cluster", "label_values(gpucost_ledger_lag_seconds, gpu_cluster)")


def team_variable(*, multi: bool = False) -> core.Template:
    """Which team. Pseudo-teams, of capacity without a holder (``__unallocated__``) or of several teams, are
    left out."""
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


COLUMNS = 24
TAG = "gpucost"


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A heading and the panels below it, from left to right; a panel that does not fit begins a new line."""

    title: str
    panels: Sequence[core.Panel]


def board(
    uid: str,
    title: str,
    description: str,
    rows: Sequence[PanelRow],
    variables: Sequence[core.Template],
    *,
    since: str = "now-24h",
) -> core.Dashboard:
    """A dashboard called ``gpucost / title`` over the last day unless ``since`` says otherwise.

    Its links lead to all dashboards of gpucost, with the variables and the time range.
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


def _placed(rows: Sequence[PanelRow]) -> list[core.Panel]:
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
