"""From what grafanalib 0.7 writes to what Grafana reads today: one pure step, dict to dict.

grafanalib writes schema version 12: names of data sources, nulls, keys of panels that no longer exist.
Grafana migrates old dashboards on import, but no longer from before version 37, so the dashboards are written
in the current form. The step is idempotent, and refuses what it does not know rather than passing it on.

``in_currency`` makes dashboards for a ledger in another currency than US dollars: metrics have no ``_usd``,
and units another sign. ``modern`` goes all the way from a dashboard of grafanalib to JSON, ``encode`` to the
bytes of its file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from grafanalib._gen import DashboardEncoder
from grafanalib.core import Dashboard

Json = dict[str, Any]

SCHEMA_VERSION = 39
"""The schema of Grafana 10.4, which is the oldest Grafana that shows the dashboards as intended."""
PANEL_TYPES = frozenset(
    {"timeseries", "stat", "table", "bargauge", "state-timeline", "status-history", "heatmap", "row"}
)
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
ANNOTATIONS: Json = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}
ON_TIME_RANGE = 2

_BOARD_KEYS = (
    *(
        "annotations",
        "description",
        "editable",
        "graphTooltip",
        "links",
        "panels",
        "refresh",
        "schemaVersion",
    ),
    *("tags", "templating", "time", "timepicker", "timezone", "title", "uid", "version"),
)
_PANEL_KEYS = (
    *("collapsed", "datasource", "description", "fieldConfig", "gridPos", "id", "interval", "links"),
    *("maxDataPoints", "options", "panels", "repeat", "repeatDirection", "maxPerRow", "targets", "timeFrom"),
    *("title", "transformations", "transparent", "type"),
)
_TARGET_KEYS = (
    "datasource",
    "expr",
    "format",
    "hide",
    "instant",
    "interval",
    "legendFormat",
    "range",
    "refId",
)
_VARIABLE_KEYS = (
    *("allValue", "current", "datasource", "definition", "hide", "includeAll", "label", "multi", "name"),
    *("options", "query", "refresh", "regex", "sort", "type"),
)
_LEGACY_POINTS = 100
"""grafanalib's default for ``maxDataPoints``: it makes every graph coarse, so it is removed."""


def modernise(board: Mapping[str, Any]) -> Json:
    """``board`` (JSON of grafanalib, or an earlier result) in the current form; ``board`` stays as it is.

    Raises ValueError when it has no uid, has rows of the old kind, or has a panel of a type not in
    ``PANEL_TYPES``.
    """
    title = board.get("title", "")
    if not board.get("uid"):
        raise ValueError(f"board {title!r}: a uid is needed, so that links and updates find it")
    if board.get("rows"):
        raise ValueError(f"board {title!r}: rows of the old kind; use panels of type row")
    today = {key: board[key] for key in _BOARD_KEYS if key in board}
    today |= {
        "annotations": {"list": [ANNOTATIONS]},
        "editable": False,
        "graphTooltip": 1 if board.get("sharedCrosshair") else board.get("graphTooltip", 0),
        "panels": _panels(board.get("panels", []), title),
        "schemaVersion": max(SCHEMA_VERSION, board.get("schemaVersion") or 0),
        "templating": {"list": [_variable(one) for one in board.get("templating", {}).get("list", [])]},
        "timepicker": {},
        "timezone": "utc",
        "version": 1,
    }
    tidy = _without_nulls(today)
    assert isinstance(tidy, dict)
    return tidy


def encode(board: Mapping[str, Any]) -> str:
    """The file of a dashboard: keys sorted, so that the same dashboard is always the same bytes."""
    return json.dumps(board, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def _panels(panels: Sequence[Mapping[str, Any]], board: str) -> list[Json]:
    """Panels with ids: a panel's own if no other has it, else the next one free."""
    taken: set[int] = set()
    free = count(1)
    own = {panel.get("id") for panel in panels}
    modern = []
    for panel in panels:
        number = panel.get("id")
        if not number or number in taken:
            number = next(one for one in free if one not in taken and one not in own)
        taken.add(number)
        modern.append(_panel(panel, board) | {"id": number})
    return modern


def _panel(panel: Mapping[str, Any], board: str) -> Json:
    kind, title = panel.get("type"), panel.get("title", "")
    if kind not in PANEL_TYPES:
        known = ", ".join(sorted(PANEL_TYPES))
        raise ValueError(f"board {board!r}, panel {title!r}: type {kind!r} is none of {known}")
    if kind == "row":
        if panel.get("panels"):
            raise ValueError(f"board {board!r}, row {title!r}: panels within a row; place them after it")
        kept = {key: panel[key] for key in ("gridPos", "title") if key in panel}
        return kept | {"type": "row", "collapsed": False, "panels": []}
    modern = {key: panel[key] for key in _PANEL_KEYS if key in panel}
    if modern.get("maxDataPoints") == _LEGACY_POINTS:
        del modern["maxDataPoints"]
    for key in ("links", "transformations"):
        if not modern.get(key):
            modern.pop(key, None)
    modern["datasource"] = _datasource(panel.get("datasource"))
    modern["targets"] = _targets(panel.get("targets", []))
    modern["fieldConfig"] = _field_config(panel)
    modern["options"] = _options(panel)
    return modern


def _targets(targets: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Queries with refIds A, B, … where they have none of their own."""
    own = {target.get("refId") for target in targets}
    free = (chr(ord("A") + number) for number in count())
    modern = []
    for target in targets:
        kept = {key: target[key] for key in _TARGET_KEYS if key in target}
        kept["refId"] = target.get("refId") or next(ref for ref in free if ref not in own)
        kept["datasource"] = _datasource(target.get("datasource"))
        kept["instant"] = bool(target.get("instant"))
        kept["range"] = not kept["instant"]
        for key in ("hide", "interval"):
            if not kept.get(key):
                kept.pop(key, None)
        modern.append(kept)
    return modern


def _datasource(source: object) -> Json:
    """A data source by type and uid. None and the variable's name become the variable's."""
    if isinstance(source, dict):
        return dict(source)
    if source not in (None, "", DATASOURCE["uid"]):
        raise ValueError(f"data source {source!r}: only {DATASOURCE['uid']} leaves the choice to the reader")
    return dict(DATASOURCE)


def _field_config(panel: Mapping[str, Any]) -> Json:
    config = panel.get("fieldConfig", {})
    defaults = dict(config.get("defaults", {}))
    old = panel.get("options", {}).get("fieldOptions", {})
    moved = {key: value for key, value in old.get("defaults", {}).items() if value is not None}
    defaults |= moved
    if "thresholds" in old:
        defaults["thresholds"] = {"mode": "absolute", "steps": old["thresholds"]}
    if panel.get("type") == "bargauge":
        defaults.setdefault("color", {"mode": "thresholds"})
    defaults["thresholds"] = _thresholds(defaults.get("thresholds"))
    custom = {key: value for key, value in defaults.get("custom", {}).items() if value is not None}
    if "displayMode" in custom and panel.get("type") == "table":
        custom["cellOptions"] = {"type": custom.pop("displayMode")}
    if "scaleDistribution" in custom and custom["scaleDistribution"].get("type") == "linear":
        custom["scaleDistribution"] = {"type": "linear"}
    defaults["custom"] = custom
    for key in ("custom", "mappings", "links"):
        if not defaults.get(key):
            defaults.pop(key, None)
    return {"defaults": defaults, "overrides": list(config.get("overrides", []))}


def _thresholds(thresholds: Mapping[str, Any] | None) -> Json:
    """Thresholds with value and colour only. The first has the value null, which Grafana reads as "from
    below"."""
    given = (thresholds or {}).get("steps") or [{"color": "green"}]
    steps = [
        {"color": step["color"], "value": step.get("value") if index else None}
        for index, step in enumerate(given)
    ]
    return {"mode": (thresholds or {}).get("mode", "absolute"), "steps": steps}


def _options(panel: Mapping[str, Any]) -> Json:
    options = dict(panel.get("options", {}))
    old = options.pop("fieldOptions", None)
    if old is not None:
        options["reduceOptions"] = {"calcs": list(old["calcs"]), "fields": "", "values": bool(old["values"])}
    for gone in ("showThresholdLabels", "showThresholdMarkers"):
        options.pop(gone, None)
    if panel.get("type") == "bargauge":
        options.setdefault("showUnfilled", True)
        options.setdefault("valueMode", "color")
    if "legend" in options:
        options["legend"] = {"showLegend": True} | options["legend"]
    return options


def _variable(variable: Mapping[str, Any]) -> Json:
    modern = {key: variable[key] for key in _VARIABLE_KEYS if variable.get(key) not in (None, "")}
    name = variable["name"]
    kind = variable.get("type", "query")
    modern["current"] = _current(variable)
    modern["options"] = []
    if kind != "query":
        for key in ("datasource", "sort"):
            modern.pop(key, None)
        return modern
    query = variable["query"]
    text = query["query"] if isinstance(query, dict) else query
    modern |= {
        "datasource": _datasource(variable.get("datasource")),
        "definition": text,
        "query": {"query": text, "refId": f"variable-{name}"},
        "refresh": ON_TIME_RANGE,
    }
    return modern


def _current(variable: Mapping[str, Any]) -> Json:
    """The initial value of a variable: all where that is allowed, else the first value that Grafana finds."""
    if variable.get("includeAll"):
        several = bool(variable.get("multi"))
        return {
            "selected": True,
            "text": ["All"] if several else "All",
            "value": ["$__all"] if several else "$__all",
        }
    return {}


def _without_nulls(value: Any, *, key: str = "") -> Any:
    """``value`` without the nulls of its objects, but for the first threshold's."""
    if isinstance(value, dict):
        return {
            name: _without_nulls(one, key=name)
            for name, one in value.items()
            if one is not None or (key == "steps" and name == "value")
        }
    if isinstance(value, list):
        return [_without_nulls(one, key=key) for one in value]
    return value


USD = "USD"
_METRIC = re.compile(r"\b(gpucost_\w+)_usd\b")
_UNIT = "currencyUSD"


def in_currency(board: Json, currency: str) -> Json:
    """``board`` with metrics and units of ``currency``, an ISO code such as EUR.

    Raises ValueError when it is not a code of three capital letters.
    """
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise ValueError(f"currency {currency!r}: three capital letters are allowed, such as EUR")
    if currency == USD:
        return board
    changed: Json = _changed(board, currency)
    return changed


def _changed(value: Any, currency: str) -> Any:
    if isinstance(value, dict):
        return {key: _changed(one, currency) for key, one in value.items()}
    if isinstance(value, list):
        return [_changed(one, currency) for one in value]
    if value == _UNIT:
        return f"currency:{currency} "
    return _METRIC.sub(r"\1", value) if isinstance(value, str) else value


GENERATED = Path(__file__).parent / "generated"


def raw(board: Dashboard) -> Json:
    """The JSON that grafanalib writes."""
    written: Json = json.loads(json.dumps(board.to_json_data(), cls=DashboardEncoder))
    return written


def modern(board: Dashboard) -> Json:
    """The JSON that Grafana reads today."""
    return modernise(raw(board))
