"""Every query of every panel returns data on a real Prometheus that holds the demo."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.dashboard_queries import Asked, committed_boards, filled_in, queries_of
from tests.support.demo_prometheus import DemoPrometheus, demo_prometheus
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]
Json = dict[str, Any]

WITHOUT_DATA: dict[tuple[str, str], str] = {}
"""(dashboard's title, panel's title): why the demo has no data for it. There should be none."""
STEP_S = 60
RANGE = "3h"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoPrometheus]:
    with demo_prometheus(tmp_path_factory) as running:
        yield running


def asked_of(url: str, path: str, **fields: str) -> Any:
    """``data`` of Prometheus' answer. Raises AssertionError with its words when it refuses."""
    body = urllib.parse.urlencode(fields).encode() if path.startswith("query") else None
    address = f"{url}/api/v1/{path}" + ("" if body else f"?{urllib.parse.urlencode(fields)}")
    try:
        with urllib.request.urlopen(address, data=body, timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from None


def choices_of(board: Json, demo: DemoPrometheus) -> Iterator[dict[str, str]]:
    """What Grafana would put in for the variables: all where that can be, else one value after the other."""
    return _chosen(board["title"], list(board["templating"]["list"]), {}, demo)


def _chosen(
    title: str, variables: list[Json], values: dict[str, str], demo: DemoPrometheus
) -> Iterator[dict[str, str]]:
    if not variables:
        yield values
        return
    variable, *rest = variables
    if variable["type"] != "query":
        yield from _chosen(title, rest, values, demo)
        return
    arguments = variable["definition"].removeprefix("label_values(").removesuffix(")")
    series, label = arguments.rsplit(",", 1)
    fields = {"match[]": filled_in(series, values), "start": str(demo.start_ms // 1000)}
    found = asked_of(demo.url, f"label/{label.strip()}/values", **fields, end=str(demo.at_ms // 1000))
    regex = re.compile(variable.get("regex", "").strip("/"))
    found = [value for value in found if regex.search(value)]
    assert found, f"board {title!r}, variable {variable['name']!r}: no value for {fields['match[]']}"
    if variable.get("includeAll"):
        found = [variable.get("allValue", f"({'|'.join(found)})")]
    for value in found:
        yield from _chosen(title, rest, values | {variable["name"]: value}, demo)


def without_data(board: Json, demo: DemoPrometheus) -> list[Asked]:
    """The queries that return nothing for any choice: a panel about gangs has data for a job with one."""
    left = list(queries_of(board))
    for values in choices_of(board, demo):
        left = [asked for asked in left if not numbers(asked, values, demo)]
        if not left:
            break
    return left


def numbers(asked: Asked, values: dict[str, str], demo: DemoPrometheus) -> list[float]:
    """All values that are numbers, over the demo's time or at its end."""
    interval = "61m" if asked.min_step == "1h" else "4m"
    shown = {"__rate_interval": interval, "__range": RANGE, "__interval": f"{STEP_S}s"}
    text = filled_in(asked.expr, values | shown)
    end = str(demo.at_ms // 1000)
    try:
        if asked.is_instant:
            found = asked_of(demo.url, "query", query=text, time=end)["result"]
            samples = [series["value"] for series in found]
        else:
            times = {"start": str(demo.start_ms // 1000), "end": end, "step": str(STEP_S)}
            found = asked_of(demo.url, "query_range", query=text, **times)["result"]
            samples = [sample for series in found for sample in series["values"]]
    except AssertionError as error:
        raise AssertionError(f"{asked.where}: {error}: {text}") from None
    return [value for _, text in samples if not math.isnan(value := float(text))]


@pytest.mark.parametrize("uid", [board["uid"] for board in committed_boards()])
def test_every_query_of_every_panel_returns_data(uid: str, demo: DemoPrometheus) -> None:
    (board,) = [one for one in committed_boards() if one["uid"] == uid]
    left = without_data(board, demo)
    silent = {(asked.board, asked.panel) for asked in left}
    unexpected = [asked for asked in left if (asked.board, asked.panel) not in WITHOUT_DATA]
    assert not unexpected, "\n".join(f"{asked.where}: no data: {asked.expr}" for asked in unexpected)
    excused = {panel for panel in WITHOUT_DATA if panel[0] == board["title"]}
    assert excused == silent, f"there is data by now: {excused - silent}"
    assert all(WITHOUT_DATA.values())


def test_a_panel_without_data_would_be_named(demo: DemoPrometheus) -> None:
    asked = Asked("Board", "Panel", "A", 'gpucost_gpu_up{cluster="$cluster"}', "", True, "")
    assert numbers(asked, {"cluster": "demo"}, demo)
    assert not numbers(asked, {"cluster": "another"}, demo)
    refused = Asked("Board", "Panel", "A", "gpucost_gpu_up and", "", False, "")
    with pytest.raises(AssertionError, match=r"board 'Board', panel 'Panel', query A: .*parse error"):
        numbers(refused, {}, demo)
