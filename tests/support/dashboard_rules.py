"""The rules that every dashboard is held to: each is a function from a dashboard's JSON to its problems.

After grafana/dashboard-linter (docs/index.md), written anew for these dashboards. A problem names its panel;
``lint`` adds the dashboard and the rule.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import promql_parser as promql

from dashboards.grafana_json import DATASOURCE, PANEL_TYPES, SCHEMA_VERSION
from dashboards.panels import TAG, UIDS, UNITS
from gpucost.contract.metric_spec import MetricType
from gpucost.contract.metrics import METRICS
from gpucost.service.metrics import COUNTER, HISTOGRAM, SERVICE_METRICS
from tests.support.dashboard_queries import VARIABLE, Asked, filled_in, panels_of, queries_of
from tests.support.promql_labels import Checked, Labels, Selected

Json = dict[str, Any]
Problems = Iterator[str]

TARGET_LABELS = frozenset({"cluster", "instance", "job"})
RATE_INTERVAL, RANGE = timedelta(minutes=7, seconds=17), timedelta(hours=11, minutes=7)
# Durations that are not written by hand: a query that has others was not written with Grafana's variables.
BUILT_IN = {"__rate_interval": "7m17s", "__range": "11h7m", "__interval": "3m"}
LEGACY_BOARD = ("__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style")
LEGACY_PANEL = (
    *(
        "aliasColors",
        "cacheTimeout",
        "columns",
        "editable",
        "error",
        "fontSize",
        "height",
        "hideTimeOverride",
    ),
    *(
        "minSpan",
        "nullPointMode",
        "seriesOverrides",
        "span",
        "styles",
        "thresholds",
        "xaxis",
        "yaxes",
        "yaxis",
    ),
)
LEGACY_TARGET = ("intervalFactor", "metric", "query", "step", "target")
_RATES = ("rate", "increase")
_COLLAPSED = ("delta", "max")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_LINK = re.compile(r"/d/([\w-]+)")
_LINK_VARIABLE = re.compile(r"[?&]var-(\w+)=")
_LINK_LABEL = re.compile(r"\$\{__field\.labels\.(\w+)")
_LINK_CELL = re.compile(r'\$\{__data\.fields\["([^"]+)"\]')
_NAMES = re.compile(r'\{__name__=~"([\w|]+)", (.*)\}')
_LABEL_VALUES = re.compile(r"label_values\((.*), *(\w+)\)$", re.DOTALL)
_SENTENCE = re.compile(r"\S.* .*[.!?]$", re.DOTALL)


@cache
def known() -> dict[str, tuple[Labels, bool]]:
    """Every metric: its labels, with those of targets, and whether it is a counter."""
    table = {
        spec.name: (frozenset(spec.labels) | TARGET_LABELS, spec.type is MetricType.COUNTER)
        for spec in METRICS
    }
    for metric in SERVICE_METRICS:
        labels = frozenset(metric.labels) | TARGET_LABELS
        if metric.type == HISTOGRAM:
            table |= {f"{metric.name}_{part}": (labels, True) for part in ("sum", "count")}
            table[f"{metric.name}_bucket"] = (labels | {"le"}, True)
        else:
            table[metric.name] = (labels, metric.type == COUNTER)
    table["up"] = (TARGET_LABELS, False)
    return table


def labels_of(metric: str) -> Labels:
    """Labels of a metric; of one that is not known those of targets, as ``metrics_exist`` speaks of it."""
    return known().get(metric, (TARGET_LABELS | {"le"}, False))[0]


def parsed(expr: str, values: dict[str, str]) -> Any:
    """The expression with Grafana's variables replaced. Raises ValueError when it is not PromQL."""
    return promql.parse(filled_in(expr, BUILT_IN | values))


def checked(asked: Asked, board: Json) -> tuple[Labels, Checked] | None:
    """Result labels and what was found on the way; None when it is not PromQL."""
    found = Checked(labels_of)
    try:
        labels = found.labels(parsed(asked.expr, _names(board)))
    except ValueError:
        return None
    return labels, found


def form(board: Json) -> Problems:
    """Schema of today, no nulls, no keys that Grafana dropped."""
    if board.get("schemaVersion", 0) < SCHEMA_VERSION:
        yield f"schemaVersion {board.get('schemaVersion')} is below {SCHEMA_VERSION}"
    yield from (f"legacy key {key!r}" for key in LEGACY_BOARD if key in board)
    yield from (f"null at {path}" for path in _nulls(board))
    for panel in panels_of(board):
        if panel.get("type") not in PANEL_TYPES:
            yield _at(panel, f"type {panel.get('type')!r} is not of today")
        yield from (_at(panel, f"legacy key {key!r}") for key in LEGACY_PANEL if key in panel)
        for target in panel.get("targets", ()):
            yield from (
                _at(panel, f"legacy key {key!r} of a query") for key in LEGACY_TARGET if key in target
            )


def identity(board: Json) -> Problems:
    """A uid that links know, not editable, UTC, tagged, with a range and a refresh; ids and refIds unique."""
    if board.get("uid") not in UIDS:
        yield f"uid {board.get('uid')!r} is none of {', '.join(UIDS)}"
    wanted = {"editable": False, "timezone": "utc"}
    for key, value in wanted.items():
        if board.get(key) != value:
            yield f"{key} is {board.get(key)!r}, not {value!r}"
    if TAG not in board.get("tags", ()):
        yield f"the tag {TAG!r} is missing"
    yield from (f"no {key}" for key in ("title", "description", "time", "refresh") if not board.get(key))
    yield from (f"id {one} twice" for one in _twice(panel.get("id") for panel in board["panels"]))
    for panel in panels_of(board):
        refs = _twice(target.get("refId") for target in panel.get("targets", ()))
        yield from (_at(panel, f"refId {one!r} twice") for one in refs)


def datasource(board: Json) -> Problems:
    """Every panel and query reads from the variable ``datasource``, which the GPU has."""
    if not any(one.get("type") == "datasource" and one["name"] == "datasource" for one in _variables(board)):
        yield "there is no variable 'datasource' of type datasource"
    for panel in panels_of(board):
        if panel.get("datasource") != DATASOURCE:
            yield _at(panel, f"data source {panel.get('datasource')!r} is not the variable")
        for target in panel.get("targets", ()):
            if target.get("datasource") != DATASOURCE:
                yield _at(panel, f"query {target.get('refId')}: its data source is not the variable")


def words(board: Json) -> Problems:
    """Titles are there and unique; descriptions are sentences and more than the title."""
    titles = [panel.get("title") for panel in board["panels"] if panel.get("type") != "row"]
    yield from (f"panel {one!r}: the title stands twice" for one in _twice(titles))
    for panel in panels_of(board):
        text = panel.get("description", "")
        if not panel.get("title"):
            yield f"panel {panel.get('id')}: no title"
        if len(text) < 40 or not _SENTENCE.match(text):
            yield _at(panel, f"no description that says how to read it: {text!r}")


def units(board: Json) -> Problems:
    """Every panel has a unit of ours, and so has every column that has its own."""
    for panel in panels_of(board):
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        if unit not in UNITS:
            yield _at(panel, f"unit {unit!r} is none of {', '.join(sorted(UNITS))}")
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            for one in override["properties"]:
                if one["id"] == "unit" and one["value"] not in UNITS:
                    yield _at(
                        panel, f"unit {one['value']!r} of {override['matcher']['options']!r} is not ours"
                    )


def targets(board: Json) -> Problems:
    """Every panel asks something."""
    for panel in panels_of(board):
        if not any(target.get("expr") for target in panel.get("targets", ())):
            yield _at(panel, "no query")


def promql_is_valid(board: Json) -> Problems:
    """Every query is PromQL once the variables are filled in, and all its variables exist."""
    names = _names(board)
    for asked in queries_of(board):
        for name in VARIABLE.findall(asked.expr):
            if name not in names and name not in BUILT_IN:
                yield _of(asked, f"there is no variable ${name}")
        try:
            parsed(asked.expr, names)
        except ValueError as error:
            yield _of(asked, f"not PromQL: {error}")


def metrics_exist(board: Json) -> Problems:
    """Every metric stands in the contract or among the service's."""
    for asked, _, found in _checked(board):
        for one in found.selectors:
            if one.metric not in known():
                yield _of(asked, f"unknown metric {one.metric!r}")


def labels_exist(board: Json) -> Problems:
    """Matchers, ``by``, ``on``, legends, columns and links name labels that the series have."""
    for asked, labels, found in _checked(board):
        yield from (_of(asked, problem) for problem in found.problems)
        for name in _LEGEND.findall(asked.legend):
            if name not in labels:
                yield _of(asked, f"the legend has {name!r}, the result has not: {', '.join(sorted(labels))}")
    for panel in panels_of(board):
        results = _result_labels(panel, board)
        for name in _columns(panel):
            if not name.startswith("Value") and name not in results:
                yield _at(panel, f"a column {name!r} that no query gives")


def counters(board: Json) -> Problems:
    """Counters stand in ``rate`` or ``increase``, and nothing else does.

    Of a counter that begins with its first event, the growth over the time shown may be told as the highest
    value in it less that at its start (``series.grown``). A total that does not begin anew with its process
    may be told as the difference of the highest of all that tell it (``series.waste``).
    """
    for asked, _, found in _checked(board):
        grown = _grown(found)
        for one in found.selectors:
            if one in grown:
                continue
            is_counter = known().get(one.metric, (NO_LABELS, None))[1]
            is_rated = one.around[-1:] and one.around[-1] in _RATES
            if is_counter and not is_rated and one.around != _COLLAPSED:
                yield _of(asked, f"counter {one.metric} without rate or increase")
            if is_counter is False and is_rated:
                yield _of(asked, f"{one.around[-1]} of {one.metric}, which is no counter")


def ranges(board: Json) -> Problems:
    """Ranges follow the graph (``$__rate_interval``) or the time shown (``$__range``)."""
    allowed = (RATE_INTERVAL, RANGE)
    for asked, _, found in _checked(board):
        for one in found.selectors:
            if one.span is not None and one.span not in allowed:
                yield _of(
                    asked, f"the fixed range {one.span} of {one.metric}; use $__rate_interval or $__range"
                )


def clusters(board: Json) -> Problems:
    """The choice of clusters changes every panel: all series are matched on it that can be."""
    for asked, _, found in _checked(board):
        for one in found.selectors:
            labels = labels_of(one.metric)
            label = "gpu_cluster" if "gpu_cluster" in labels else "cluster"
            if one.metric in {metric.name for metric in SERVICE_METRICS} and label == "cluster":
                continue  # of the service as a whole
            if one.metric in known() and label not in one.matchers and not _is_histogram(one.metric):
                yield _of(asked, f"{one.metric} is not matched on {label}")


def variables(board: Json) -> Problems:
    """Variables of queries follow the time range, ask for what exists, and are used."""
    texts = [asked.expr for asked in queries_of(board)] + [
        str(one.get("definition")) for one in _variables(board)
    ]
    used = {name for text in texts for name in VARIABLE.findall(text)}
    for one in _variables(board):
        name = one["name"]
        if one.get("type") != "query":
            continue
        if one.get("refresh") != 2:
            yield f"variable {name!r}: not reloaded when the time range changes (refresh 2)"
        if name not in used:
            yield f"variable {name!r}: no query uses it"
        inner = _LABEL_VALUES.match(one.get("definition", ""))
        if not inner:
            yield f"variable {name!r}: {one.get('definition')!r} is no label_values(series, label)"
            continue
        found = Checked(labels_of)
        each = [found.labels(parsed(one, _names(board))) for one in _by_name(inner[1])]
        labels = frozenset.intersection(*each)
        yield from (f"variable {name!r}: {problem}" for problem in found.problems)
        unknown = [selected.metric for selected in found.selectors if selected.metric not in known()]
        yield from (f"variable {name!r}: unknown metric {metric!r}" for metric in unknown)
        if inner[2] not in labels:
            yield f"variable {name!r}: the series have no label {inner[2]!r}"


def _by_name(selector: str) -> list[str]:
    """A selector of series of several names as one for each."""
    found = _NAMES.fullmatch(selector)
    return [f"{name}{{{found[2]}}}" for name in found[1].split("|")] if found else [selector]


def links(board: Json, boards: list[Json]) -> Problems:
    """Links lead to GPUs that exist, and set their variables from labels and columns that are there."""
    variables_of = {one["uid"]: {variable["name"] for variable in _variables(one)} for one in boards}
    for panel in panels_of(board):
        titles = {override["matcher"]["options"] for override in panel["fieldConfig"].get("overrides", ())}
        for url in urls_of(panel):
            (uid, *_) = _LINK.findall(url) or [""]
            if uid not in variables_of:
                yield _at(panel, f"a link to the board {uid!r}, which does not exist")
                continue
            for name in _LINK_VARIABLE.findall(url):
                if name not in variables_of[uid]:
                    yield _at(panel, f"a link sets the variable {name!r}, which {uid} does not have")
            for name in _LINK_LABEL.findall(url):
                if name not in _result_labels(panel, board):
                    yield _at(panel, f"a link uses the label {name!r}, which no query gives")
            for title in _LINK_CELL.findall(url):
                if title not in titles | _renamed(panel):
                    yield _at(panel, f"a link uses the column {title!r}, which is not shown")


Rule = Callable[[Json], Problems]
RULES: tuple[Rule, ...] = (
    *(form, identity, datasource, words, units, targets, promql_is_valid, metrics_exist, labels_exist),
    *(counters, ranges, clusters, variables),
)
NO_LABELS: Labels = frozenset()


def _grown(found: Checked) -> set[Selected]:
    high = {one for one in found.selectors if one.around == ("max_over_time",) and one.span == RANGE}
    start = {one for one in found.selectors if one.offset == RANGE and one.span is None}
    both = {one.metric for one in high} & {one.metric for one in start}
    now = {one for one in found.selectors if one.offset is None and one.span is None}  # after a reset
    return {one for one in high | start | now if one.metric in both}


def lint(boards: list[Json], excused: dict[tuple[str, str, str], str] | None = None) -> list[str]:
    """All problems of all GPUs but those excused by (rule, GPU's uid, panel's title) with a reason."""
    problems = []
    for board in boards:
        rules: list[Rule] = [*RULES, lambda one: links(one, boards)]
        for rule in rules:
            name = getattr(rule, "__name__", "")
            name = "links" if name == "<lambda>" else name
            for problem in rule(board):
                panels = [title for of, uid, title in excused or {} if (of, uid) == (name, board["uid"])]
                if not any(f"panel {title!r}" in problem for title in panels):
                    problems.append(f"board {board.get('title')!r}: {problem} [{name}]")
    problems += [
        f"uid {uid!r} is that of two boards [identity]" for uid in _twice(one["uid"] for one in boards)
    ]
    return problems


def _checked(board: Json) -> Iterator[tuple[Asked, Labels, Checked]]:
    for asked in queries_of(board):
        result = checked(asked, board)
        if result is not None:
            yield asked, *result


def _result_labels(panel: Json, board: Json) -> Labels:
    alone = {**board, "panels": [panel]}
    return frozenset().union(*(labels for _, labels, _ in _checked(alone)))


def _columns(panel: Json) -> list[str]:
    for step in panel.get("transformations", ()):
        if step["id"] == "filterFieldsByName":
            names: list[str] = step["options"]["include"]["names"]
            return names
    return []


def _renamed(panel: Json) -> set[str]:
    steps = panel.get("transformations", ())
    return {new for step in steps for new in step["options"].get("renameByName", {}).values()}


def urls_of(panel: Json) -> Iterator[str]:
    """Where a panel's links lead, its columns' too."""
    config = panel.get("fieldConfig", {})
    listed = (*config.get("defaults", {}).get("links", ()), *panel.get("links", ()))
    yield from (link["url"] for link in listed)
    for override in config.get("overrides", ()):
        for one in override["properties"]:
            if one["id"] == "links":
                yield from (link["url"] for link in one["value"])


def _is_histogram(metric: str) -> bool:
    return any(metric.startswith(f"{one.name}_") for one in SERVICE_METRICS if one.type == HISTOGRAM)


def _variables(board: Json) -> list[Json]:
    listed: list[Json] = board.get("templating", {}).get("list", [])
    return listed


def _names(board: Json) -> dict[str, str]:
    return {one["name"]: "x" for one in _variables(board)}


def _nulls(value: Any, path: str = "board", key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            if one is None and not (key == "steps" and name == "value"):
                yield f"{path}.{name}"
            yield from _nulls(one, f"{path}.{name}", name)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _nulls(one, f"{path}[{index}]", key)


def _twice(values: Any) -> list[Any]:
    return [value for value, times in Counter(values).items() if times > 1]


def _at(panel: Json, problem: str) -> str:
    return f"panel {panel.get('title')!r}: {problem}"


def _of(asked: Asked, problem: str) -> str:
    return f"panel {asked.panel!r}, query {asked.ref}: {problem}"
