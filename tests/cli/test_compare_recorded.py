"""gpucost compare opencost on recordings of a real OpenCost 1.112: its own answers, and its own questions."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from typer.testing import CliRunner

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, MINUTE_MS, parse_instant
from tests.support.prometheus import needs_prometheus
from tests.support.recorded import recorded_json, recorded_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

START, END = "2026-11-22T21:00:00Z", "2026-11-22T21:40:00Z"
NOW = parse_instant("2026-11-22T22:10:00Z")
PRICE = 2.5
"""Of every GPU: OpenCost ran with custom prices, and has this one for nodes that it has no series of, too."""
CENT = 0.005
HUNDREDTH = 0.005 * HOUR_MS
"""What rounds to 0.01 GPU-hours."""

Rows = dict[str, dict[str, Any]]
Compared = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", params=["p1", "p2"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    name: str = request.param
    with recorded_prometheus(name, tmp_path_factory.mktemp(name)) as url:
        yield name, url


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """Each question once."""

    @cache
    def found(url: str, *words: str) -> dict[str, Any]:
        given = ["--prometheus", url, "--from", START, "--to", END, "-f", "json", *words]
        result = CliRunner().invoke(app, ["compare", "opencost", *given])
        assert (result.exit_code, result.stderr) == (ExitCode.OK, ""), result.stderr
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpucost.cli.commands.compare.now_ms", lambda: NOW)
        patch.chdir(tmp_path_factory.mktemp("nothing"))
        yield found


def by_name(found: dict[str, Any]) -> Rows:
    return {row["name"] or row["kind"]: row for row in found["rows"]}


def asked(url: str, query: str) -> list[dict[str, Any]]:
    form = urllib.parse.urlencode({"query": query, "time": END})
    with urllib.request.urlopen(f"{url}/api/v1/query?{form}") as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def as_opencost_asks(url: str, resolution: str) -> dict[str, float]:
    """GPU-hours by pod: the questions of v1.112.0 word for word, and its arithmetic in floats."""
    seconds = {"5m": 300, "1m": 60}[resolution]
    minutes = (
        f"avg(kube_pod_container_status_running{{}} != 0) by (pod, namespace, cluster_id)[40m:{resolution}]"
    )
    hours = {}
    for series in asked(url, minutes):
        first, last = series["values"][0][0], series["values"][-1][0]
        # One look alone is one resolution, within the window.
        clipped = min(last + seconds / 2, parse_instant(END) / 1000) - (first - seconds / 2)
        length = clipped if first == last else last - first
        hours[series["metric"]["namespace"], series["metric"]["pod"]] = length / 3600
    of = 'container!="", container!="POD", node!="", '
    by = "by (container, pod, namespace, node, cluster_id)"
    allocated = f"avg(avg_over_time(container_gpu_allocation{{{of}}}[40m])) {by}"
    requests = f'kube_pod_container_resource_requests{{resource="nvidia_com_gpu", {of}}}'
    units: dict[tuple[str, str], dict[str, float]] = {}
    for series in asked(url, allocated) or asked(url, f"avg(avg_over_time({requests}[40m])) {by}"):
        labels = series["metric"]
        of_pod = units.setdefault((labels["namespace"], labels["pod"]), {})
        of_pod[labels["container"]] = float(series["value"][1])
    return {"/".join(key): sum(found.values()) * hours[key] for key, found in units.items() if key in hours}


@pytest.mark.parametrize("resolution", ["5m", "1m"])
def test_its_column_is_what_its_own_questions_give(
    server: tuple[str, str], compared: Compared, resolution: str
) -> None:
    rows = by_name(compared(server[1], "--by", "pod", "--resolution", resolution))
    expected = as_opencost_asks(server[1], resolution)
    assert sum(expected.values()) > 1
    for pod in {*expected, *rows} - {"idle"}:
        hours = expected.get(pod, 0.0)
        assert rows[pod]["opencost_board_ms"] == pytest.approx(hours * HOUR_MS, abs=1), pod
        assert rows[pod]["opencost_nano"] == pytest.approx(hours * PRICE * NANO, abs=1000), pod


@pytest.mark.parametrize("server", ["p2"], indirect=True)
@pytest.mark.parametrize("resolution", ["5m", "1m"])
def test_its_column_is_its_own_answer(server: tuple[str, str], compared: Compared, resolution: str) -> None:
    """Recorded on p2. On p1, whose kube-state-metrics was scraped half as often and whose OpenCost exports
    container_gpu_allocation for the last three minutes, it would have answered something else."""
    rows = by_name(compared(server[1], "--by", "pod", "--resolution", resolution))
    answer = recorded_json(f"opencost-allocation-{resolution}.json")
    idle = answer.pop("__idle__", None)
    assert len(answer) > 25
    for pod, theirs in answer.items():
        row = rows.pop(pod, {"opencost_board_ms": 0, "opencost_nano": 0})
        assert row["opencost_board_ms"] == pytest.approx(theirs["gpuHours"] * HOUR_MS, abs=HUNDREDTH), pod
        assert row["opencost_nano"] == pytest.approx(theirs["gpuCost"] * NANO, abs=CENT * NANO), pod
    left = rows.pop("idle")
    if idle is not None:
        assert left["opencost_nano"] == pytest.approx(idle["gpuCost"] * NANO, abs=CENT * NANO)
        assert left["opencost_nano"] < 0
    assert {row["opencost_nano"] for row in rows.values()} == {0}


@pytest.mark.parametrize("by", ["pod", "namespace", "node", "team"])
@pytest.mark.parametrize("resolution", ["5m", "1m"])
def test_every_difference_has_its_cause(
    server: tuple[str, str], compared: Compared, by: str, resolution: str
) -> None:
    found = compared(server[1], "--by", by, "--resolution", resolution)
    for row in (*found["rows"], found["total"]):
        assert row["opencost_nano"] + sum(each["nano"] for each in row["causes"]) == row["ours_nano"]
    assert "not_explained" not in {each["cause"] for each in found["causes"]}
    assert found["total"] == compared(server[1], "--by", "pod", "--resolution", resolution)["total"]


def causes(row: dict[str, Any]) -> dict[str, float]:
    return {each["cause"]: each["nano"] / NANO for each in row["causes"]}


def test_what_makes_the_difference_of_single_pods(server: tuple[str, str], compared: Compared) -> None:
    name, url = server
    rows = by_name(compared(url, "--by", "pod"))
    if name == "p1":
        # Others have container_gpu_allocation, so a pod that has none costs nothing there.
        assert (rows["vision/train-0"]["opencost_nano"], rows["nlp/ts-3"]["opencost_nano"]) == (
            0, pytest.approx(PRICE / 3 * NANO),
        )  # fmt: skip
        assert causes(rows["vision/train-0"])["allocation"] == pytest.approx(4 * 20 / 60 * PRICE)
        return
    # Looked at from 21:10 to 21:30, and held from 21:07:07 to 21:31:34.
    off = 173 + 94
    assert causes(rows["vision/train-0"])["sampling"] == pytest.approx(4 * PRICE * off / 3600, abs=0.01)
    # One look at 21:15; held for 41 seconds.
    assert causes(rows["vision/short-1"])["sampling"] == pytest.approx(PRICE * (25 - 300) / 3600, abs=0.01)
    # Two pods of that name, on two nodes, of which the later one is gone; 36 seconds between them.
    assert causes(rows["research/nb-0"])["recreated"] == pytest.approx(-PRICE * 36 / 3600, abs=0.01)
    assert "default_price" in causes(rows["research/nb-0"])
    # An init container asks for two.
    assert causes(rows["vision/initgpu"])["allocation"] == pytest.approx(PRICE * 5 / 60)
    assert causes(rows["nlp/ts-3"])["units"] < -0.7
    assert "not_counted" in causes(rows["part2/c-mig"])


def test_no_more_is_put_down_to_looks_than_they_can_round_off(
    server: tuple[str, str], compared: Compared
) -> None:
    for resolution in (5, 1):
        for name, row in by_name(
            compared(server[1], "--by", "pod", "--resolution", f"{resolution}m")
        ).items():
            sampled = causes(row).get("sampling", 0.0)
            most = 4 * 2 * resolution * MINUTE_MS / HOUR_MS * PRICE  # none of the pods held more than four
            assert name == "idle" or abs(sampled) <= most, name


def test_which_opencost_was_compared(server: tuple[str, str], compared: Compared) -> None:
    found = compared(server[1])
    (release,) = found["releases"]
    assert release["versions"] == ["dev"]
    assert release["rules"] == "pods by name, from the first look at them to the last"
    assert (release["default_nano"], release["default_source"]) == (
        round(PRICE * NANO), "the configured price that all other nodes have",
    )  # fmt: skip
    assert "no release" in release["doubts"][0]
    assert (found["month"], found["window"]) == (None, {"start": START, "end": END})
    assert found["resolution_ms"] == 300_000
