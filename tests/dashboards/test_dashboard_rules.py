"""Fault matrix 66: all dashboards keep the rules, and every rule fails, naming dashboard and
panel, when it must."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dashboards import panels
from dashboards.grafana_json import modern
from dashboards.panels import GPUS, RATIO, PanelColumn, PanelRow, board, query, table, timeseries
from tests.support.dashboard_queries import committed_boards, panels_of
from tests.support.dashboard_rules import RULES, lint, urls_of

Json = dict[str, Any]
BUSY = 'sum by (node) (rate(gpucost_gpu_busy_seconds_total{cluster=~"$cluster"}[$__rate_interval]))'
HELD = 'sum by (owner_team) (gpucost_team_gpus{gpu_cluster=~"$cluster"})'
TEXT = "How to read this panel, and what it cannot show."

EXCUSED: dict[tuple[str, str, str], str] = {}
"""(rule, dashboard's uid, panel's title): why the rule does not hold there. There should be none."""


@pytest.mark.fault(66)
def test_every_committed_board_keeps_every_rule() -> None:
    assert lint(committed_boards(), EXCUSED) == []


def test_every_excuse_is_needed_and_has_a_reason() -> None:
    assert all(EXCUSED.values())
    for excuse in EXCUSED:
        others = {one: reason for one, reason in EXCUSED.items() if one != excuse}
        assert lint(committed_boards(), others), f"{excuse} is kept: the excuse is not needed"


def sound() -> Json:
    """A small dashboard that keeps all rules."""
    rows = [
        PanelRow(
            "Row",
            [
                timeseries(
                    "Busy",
                    TEXT,
                    RATIO,
                    query(BUSY, "{{node}}"),
                    links=[panels.dashboard_link(panels.FLEET, "Fleet")],
                ),
                table(
                    "Teams",
                    TEXT,
                    GPUS,
                    [query(HELD)],
                    [PanelColumn("owner_team", "Team"), PanelColumn("A", "GPUs")],
                ),
            ],
        )
    ]
    return modern(
        board(panels.FLEET, "Small", TEXT, rows, [panels.datasource_variable(), panels.cluster_variable()])
    )


def test_the_small_board_is_sound() -> None:
    assert lint([sound()]) == []


def panel(of: Json, title: str = "Busy") -> Json:
    (found,) = [one for one in of["panels"] if one["title"] == title]
    assert isinstance(found, dict)
    return found


def asks(expr: str, legend: str = "") -> Callable[[Json], None]:
    def change(of: Json) -> None:
        panel(of)["targets"][0] |= {"expr": expr, "legendFormat": legend}

    return change


def defaults(of: Json) -> Json:
    config: Json = panel(of)["fieldConfig"]["defaults"]
    return config


def links_to(url: str) -> Callable[[Json], None]:
    return lambda of: defaults(of).update(links=[{"title": "There", "url": url}])


def the_cluster_variable(of: Json) -> Json:
    variable: Json = of["templating"]["list"][1]
    return variable


GAUGE = 'gpucost_gpu_memory_used_bytes{cluster=~"$cluster"}'
COUNTER = 'gpucost_gpu_busy_seconds_total{cluster=~"$cluster"}'
NO_LABEL = 'gpucost_gpu_memory_used_bytes{cluster=~"$cluster", owner_team="a"}'
ON_NOTHING = f"sum by (node) ({GAUGE}) * on (owner_team) gpucost_team_gpus{{gpu_cluster=~'$cluster'}}"

# What is changed, the rule that must speak, and words of what it says.
FAULTS: dict[str, tuple[Callable[[Json], None], str, str]] = {
    "unknown metric": (asks('sum(gpucost_nonsense{cluster="x"})'), "metrics_exist", "gpucost_nonsense"),
    "unknown label in a matcher": (asks(NO_LABEL), "labels_exist", "'owner_team'"),
    "unknown label in by": (asks(f"sum by (owner_team) ({GAUGE})"), "labels_exist", "'owner_team'"),
    "unknown label in on": (asks(ON_NOTHING), "labels_exist", "'owner_team'"),
    "label lost before by": (asks(f"sum by (node) (max by (gpu_uuid) ({GAUGE}))"), "labels_exist", "'node'"),
    "unknown label in a legend": (asks(f"sum by (node) ({GAUGE})", "{{pod}}"), "labels_exist", "'pod'"),
    "column that no query gives": (
        lambda of: panel(of, "Teams")["transformations"][0]["options"]["include"]["names"].append("pod"),
        "labels_exist",
        "'pod'",
    ),
    "selector without a name": (asks('sum({cluster="x"})'), "labels_exist", "without the name"),
    "no unit": (lambda of: defaults(of).pop("unit"), "units", "unit None"),
    "unit of nobody": (lambda of: defaults(of).update(unit="percent"), "units", "'percent'"),
    "unit of nobody in a column": (
        lambda of: panel(of, "Teams")["fieldConfig"].update(
            overrides=[{"matcher": {"options": "GPUs"}, "properties": [{"id": "unit", "value": "percent"}]}]
        ),
        "units",
        "'percent'",
    ),
    "no datasource variable": (lambda of: of["templating"]["list"].pop(0), "datasource", "no variable"),
    "datasource of a panel": (
        lambda of: panel(of).update(datasource={"type": "prometheus", "uid": "P1809F7CD0C75ACF3"}),
        "datasource",
        "P1809F7CD0C75ACF3",
    ),
    "no datasource in a query": (
        lambda of: panel(of)["targets"][0].pop("datasource"),
        "datasource",
        "query A",
    ),
    "rate of a gauge": (asks(f"sum(rate({GAUGE}[$__rate_interval]))"), "counters", "no counter"),
    "bare counter": (asks(f"sum({COUNTER})"), "counters", "without rate"),
    "highest of a counter": (asks(f"max(max_over_time({COUNTER}[$__range]))"), "counters", "without rate"),
    "fixed interval": (asks(f"sum(rate({COUNTER}[5m]))"), "ranges", "0:05:00"),
    "no description": (lambda of: panel(of).pop("description"), "words", "description"),
    "description that says nothing": (lambda of: panel(of).update(description="Busy."), "words", "Busy."),
    "no title": (lambda of: panel(of).update(title=""), "words", "no title"),
    "duplicate title": (lambda of: panel(of, "Teams").update(title="Busy"), "words", "twice"),
    "no query": (lambda of: panel(of).update(targets=[]), "targets", "no query"),
    "empty query": (asks(""), "targets", "no query"),
    "no PromQL": (asks(f"sum by node ({GAUGE}"), "promql_is_valid", "not PromQL"),
    "unknown variable": (asks('gpucost_gpu_up{cluster=~"$clusters"}'), "promql_is_valid", "$clusters"),
    "all clusters": (asks("sum(gpucost_gpu_up)"), "clusters", "not matched on cluster"),
    "all clusters of the service": (asks("sum(gpucost_team_gpus)"), "clusters", "on gpu_cluster"),
    "old schema": (lambda of: of.update(schemaVersion=12), "form", "schemaVersion 12"),
    "legacy key of the board": (lambda of: of.update(rows=[]), "form", "'rows'"),
    "legacy key of a panel": (lambda of: panel(of).update(yaxes=[]), "form", "'yaxes'"),
    "legacy key of a query": (lambda of: panel(of)["targets"][0].update(step=10), "form", "'step'"),
    "null": (lambda of: panel(of).update(interval=None), "form", "null"),
    "old type": (lambda of: panel(of).update(type="graph"), "form", "'graph'"),
    "foreign uid": (lambda of: of.update(uid="other"), "identity", "'other'"),
    "editable": (lambda of: of.update(editable=True), "identity", "editable"),
    "local time": (lambda of: of.update(timezone="browser"), "identity", "browser"),
    "no tag": (lambda of: of.update(tags=[]), "identity", "tag"),
    "no refresh": (lambda of: of.pop("refresh"), "identity", "refresh"),
    "same id": (lambda of: panel(of).update(id=1), "identity", "id 1"),
    "same refId": (
        lambda of: panel(of)["targets"].append(dict(panel(of)["targets"][0])),
        "identity",
        "refId 'A'",
    ),
    "variable not reloaded": (
        lambda of: the_cluster_variable(of).update(refresh=1),
        "variables",
        "not reloaded",
    ),
    "variable of no metric": (
        lambda of: the_cluster_variable(of).update(definition="label_values(gpucost_no, cluster)"),
        "variables",
        "gpucost_no",
    ),
    "variable of no label": (
        lambda of: the_cluster_variable(of).update(definition="label_values(gpucost_gpu_up, pod)"),
        "variables",
        "'pod'",
    ),
    "variable that is no query": (
        lambda of: the_cluster_variable(of).update(definition="gpucost_gpu_up"),
        "variables",
        "label_values",
    ),
    "link to no board": (links_to("/d/gpucost-none?x=1"), "links", "gpucost-none"),
    "link that sets no variable": (links_to("/d/gpucost-fleet?var-team=a"), "links", "'team'"),
    "link from no label": (
        links_to("/d/gpucost-fleet?var-cluster=${__field.labels.pod}"),
        "links",
        "'pod'",
    ),
    "link from no column": (
        links_to('/d/gpucost-fleet?var-cluster=${__data.fields["Pod"]:percentencode}'),
        "links",
        "'Pod'",
    ),
}
OF_THE_BOARD = {"form", "identity", "datasource", "variables"}
"""Rules whose problem may be the dashboard's and no panel's."""


@pytest.mark.fault(66)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_rule_naming_board_and_panel(fault: str) -> None:
    change, rule, words = FAULTS[fault]
    faulty = sound()
    change(faulty)
    spoken = [problem for problem in lint([faulty]) if problem.endswith(f"[{rule}]")]
    (found, *_) = [problem for problem in spoken if words in problem]
    assert "board 'gpucost / Small'" in found
    if rule not in OF_THE_BOARD and fault != "no title":
        assert "panel 'Busy'" in found or "panel 'Teams'" in found


def test_every_rule_is_seen_to_fail() -> None:
    proven = {rule for _, rule, _ in FAULTS.values()}
    assert proven == {rule.__name__ for rule in RULES} | {"links"}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (panels.FLEET, panels.TEAM),
        (panels.TEAM, panels.JOB),
        (panels.JOB, panels.NODES),
        (panels.FLEET, panels.SELF),
    ],
)
def test_links_lead_from_team_to_job_to_gpu(start: str, end: str) -> None:
    (of,) = [one for one in committed_boards() if one["uid"] == start]
    assert any(f"/d/{end}?" in url for one in panels_of(of) for url in urls_of(one))


def test_two_boards_of_one_uid_are_found() -> None:
    assert lint([sound(), copy.deepcopy(sound())]) == ["uid 'gpucost-fleet' is that of two boards [identity]"]


def test_an_excuse_holds_for_its_panel_and_rule_only() -> None:
    faulty = sound()
    asks(f"sum({COUNTER})")(faulty)
    assert lint([faulty], {("counters", "gpucost-fleet", "Busy"): "a reason"}) == []
    assert lint([faulty], {("counters", "gpucost-fleet", "Teams"): "a reason"}) != []
    assert lint([faulty], {("ranges", "gpucost-fleet", "Busy"): "a reason"}) != []


def test_the_difference_of_a_total_that_several_tell_is_allowed() -> None:
    """And of one of them, or of their sum, it is not."""
    total = 'gpucost_waste_gpu_seconds_total{gpu_cluster=~"$cluster"}'
    for expr, faults in (
        (f"sum(delta(max by (gpu_cluster, bucket, owner_team) ({total})[$__range:5m]))", 0),
        (f"sum(delta(sum by (gpu_cluster, bucket, owner_team) ({total})[$__range:5m]))", 1),
        (f"sum(delta({total}[$__range]))", 1),
    ):
        changed = sound()
        changed["panels"][1]["targets"][0]["expr"] = expr
        found = [one for one in lint([changed]) if one.endswith("[counters]")]
        assert len(found) == faults, found


def test_growth_of_a_counter_that_begins_with_its_first_event_is_allowed() -> None:
    grown = (
        f"clamp_min(max(max_over_time({COUNTER}[$__range])) - "
        f"(max({COUNTER} offset $__range) or 0 * max(max_over_time({COUNTER}[$__range]))), 0)"
    )
    of = sound()
    asks(grown)(of)
    assert lint([of]) == []
