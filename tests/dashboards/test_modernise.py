"""What grafanalib writes becomes what Grafana reads today: one step, and the second time nothing changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from grafanalib import core
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import boards
from dashboards.grafana_json import (
    DATASOURCE,
    SCHEMA_VERSION,
    encode,
    in_currency,
    modernise,
    raw,
)
from tests.support.dashboard_queries import panels_of
from tests.support.dashboard_rules import LEGACY_BOARD, LEGACY_PANEL, LEGACY_TARGET, form

Json = dict[str, Any]


def legacy() -> Json:
    """A dashboard as grafanalib writes it, with a panel of every type that dashboards use and
    nothing set by hand."""
    target = {"expr": "up", "legendFormat": "{{job}}"}
    steps = [core.Threshold("green", 0, 0.0), core.Threshold("red", 1, 80.0)]
    panels = [
        core.RowPanel(title="Row", gridPos=core.GridPos(1, 24, 0, 0)),
        core.Stat(title="Stat", targets=[core.Target(**target)], thresholds=steps, format="s"),
        core.TimeSeries(title="Lines", targets=[core.Target(**target), core.Target(**target)], unit="s"),
        core.Table(title="Table", targets=[core.Target(**target, instant=True)], displayMode="color-text"),
        core.BarGauge(title="Bars", targets=[core.Target(**target)], thresholds=steps, format="bytes", max=5),
        core.StateTimeline(title="States", targets=[core.Target(**target)]),
    ]
    variables = [
        core.Template(name="datasource", type="datasource", query="prometheus"),
        core.Template(
            name="cluster", query="label_values(up, cluster)", includeAll=True, multi=True, allValue=".*"
        ),
        core.Template(name="team", query="label_values(up, team)"),
    ]
    return raw(
        core.Dashboard(
            title="Board",
            uid="uid",
            panels=panels,
            sharedCrosshair=True,
            templating=core.Templating(variables),
        )
    )


def named(of: Json, title: str) -> Json:
    (found,) = [one for one in of["panels"] if one["title"] == title]
    assert isinstance(found, dict)
    return found


def test_grafanalib_writes_what_has_to_go() -> None:
    """Should this fail, grafanalib has learned today's form, and the step can shrink."""
    old = legacy()
    assert old["schemaVersion"] == 12
    assert old["panels"][1]["targets"][0]["intervalFactor"] == 2
    assert {"hideControls", "rows", "sharedCrosshair"} <= old.keys()
    assert any(True for _ in form(old))


def test_legacy_keys_and_nulls_are_gone() -> None:
    today = modernise(legacy())
    assert list(form(today)) == []
    assert today["schemaVersion"] == SCHEMA_VERSION
    assert today["editable"] is False
    assert today["timezone"] == "utc"
    assert today["graphTooltip"] == 1
    assert not set(LEGACY_BOARD) & today.keys()
    for panel in panels_of(today):
        assert not set(LEGACY_PANEL) & panel.keys()
        assert "maxDataPoints" not in panel
        assert all(not set(LEGACY_TARGET) & target.keys() for target in panel["targets"])


def test_every_panel_and_query_reads_from_the_variable() -> None:
    for panel in panels_of(modernise(legacy())):
        assert panel["datasource"] == DATASOURCE
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


def test_ids_and_ref_ids_are_given_in_order() -> None:
    today = modernise(legacy())
    assert [panel["id"] for panel in today["panels"]] == [1, 2, 3, 4, 5, 6]
    assert [target["refId"] for target in named(today, "Lines")["targets"]] == ["A", "B"]


def test_own_ids_stay_and_doubles_get_new_ones() -> None:
    old = legacy()
    for panel, number in zip(old["panels"], (7, 7, None, 1, 2, 0), strict=True):
        panel["id"] = number
    old["panels"][2]["targets"][0]["refId"] = "B"
    old["panels"][2]["targets"][1]["refId"] = ""
    today = modernise(old)
    assert [panel["id"] for panel in today["panels"]] == [7, 3, 4, 1, 2, 5]
    assert [target["refId"] for target in named(today, "Lines")["targets"]] == ["B", "A"]


def test_thresholds_are_colour_and_value_and_begin_below_all() -> None:
    expected = [{"color": "green", "value": None}, {"color": "red", "value": 80.0}]
    for title in ("Stat", "Bars"):
        panel = named(modernise(legacy()), title)
        assert panel["fieldConfig"]["defaults"]["thresholds"] == {"mode": "absolute", "steps": expected}


def test_a_bar_gauge_has_its_field_options_where_grafana_looks_today() -> None:
    panel = named(modernise(legacy()), "Bars")
    assert "fieldOptions" not in panel["options"]
    assert panel["options"]["reduceOptions"] == {"calcs": ["mean"], "fields": "", "values": False}
    assert panel["fieldConfig"]["defaults"]["unit"] == "bytes"
    assert panel["fieldConfig"]["defaults"]["max"] == 5


def test_cells_of_a_table_have_cell_options() -> None:
    custom = named(modernise(legacy()), "Table")["fieldConfig"]["defaults"]["custom"]
    assert custom["cellOptions"] == {"type": "color-text"}
    assert "displayMode" not in custom


def test_instant_queries_are_no_range_queries() -> None:
    today = modernise(legacy())
    (instant,) = named(today, "Table")["targets"]
    assert (instant["instant"], instant["range"]) == (True, False)
    assert [(one["instant"], one["range"]) for one in named(today, "Lines")["targets"]] == [(False, True)] * 2


def test_variables_follow_the_time_range_and_begin_with_all() -> None:
    source, cluster, team = modernise(legacy())["templating"]["list"]
    assert source["query"] == "prometheus"
    assert "datasource" not in source
    assert cluster["datasource"] == DATASOURCE
    assert cluster["refresh"] == team["refresh"] == 2
    assert cluster["query"]["query"] == cluster["definition"] == "label_values(up, cluster)"
    assert cluster["current"] == {"selected": True, "text": ["All"], "value": ["$__all"]}
    assert team["current"] == {}


def test_the_input_is_left_as_it_was() -> None:
    old = legacy()
    before = copy.deepcopy(old)
    modernise(old)
    assert old == before


def test_the_same_board_is_the_same_bytes() -> None:
    today = modernise(legacy())
    backwards = json.loads(json.dumps(today), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert encode(backwards) == encode(today)
    assert encode(today).endswith("}\n")


@pytest.mark.parametrize("number", range(len(boards())))
def test_every_board_of_ours_is_the_same_the_second_time(number: int) -> None:
    once = modernise(raw(boards()[number]))
    assert modernise(once) == once


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def changed_boards(draw: st.DrawFn) -> Json:
    """The legacy dashboard with keys added, panels left out, moved, doubled, and ids and refIds
    as they come."""
    board = legacy()
    picked = draw(st.lists(st.sampled_from(board["panels"]), max_size=8))
    board["panels"] = copy.deepcopy(picked)
    for panel in board["panels"]:
        panel["id"] = draw(st.none() | st.integers(0, 5))
        panel["extra"] = draw(values)
        for target in panel["targets"]:
            target["refId"] = draw(st.sampled_from(["", "A", "B", "C"]))
    board["extra"] = draw(values)
    board["schemaVersion"] = draw(st.sampled_from([None, 12, 36, 39, 41]))
    return board


@settings(max_examples=60, deadline=None)
@given(changed_boards())
def test_twice_is_once_and_nothing_old_is_left(board: Json) -> None:
    once = modernise(board)
    assert modernise(once) == once
    assert list(form(once)) == []
    numbers = [panel["id"] for panel in once["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert "extra" not in once


def test_a_newer_schema_stays() -> None:
    assert modernise(legacy() | {"schemaVersion": 41})["schemaVersion"] == 41


def test_what_cannot_be_modernised_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="board 'Board': a uid is needed"):
        modernise(legacy() | {"uid": None})
    with pytest.raises(ValueError, match="board 'Board': rows of the old kind"):
        modernise(legacy() | {"rows": [{}]})
    old = legacy()
    old["panels"][1]["type"] = "singlestat"
    with pytest.raises(ValueError, match="board 'Board', panel 'Stat': type 'singlestat' is none of"):
        modernise(old)
    old = legacy()
    old["panels"][1]["datasource"] = "Prometheus of the office"
    with pytest.raises(ValueError, match="'Prometheus of the office': only"):
        modernise(old)
    old = legacy()
    old["panels"][0]["panels"] = [{}]
    with pytest.raises(ValueError, match="row 'Row': panels within a row"):
        modernise(old)


def test_another_currency_changes_metrics_and_units_and_nothing_else() -> None:
    for board in boards():
        usd = modernise(raw(board))
        text = encode(usd)
        euros = encode(in_currency(usd, "EUR"))
        assert "_usd" not in euros
        assert "currencyUSD" not in euros
        assert euros == text.replace("_usd", "").replace("currencyUSD", "currency:EUR ")
        assert in_currency(usd, "USD") == usd


def test_a_currency_is_a_code() -> None:
    with pytest.raises(ValueError, match="currency 'euro': three capital letters"):
        in_currency({}, "euro")
