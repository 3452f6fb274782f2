"""One scripted hour through the real exporter and a real Prometheus: the parts are right, and add up."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.exporters.gpu import hour
from tests.support.gpu_node import GpuNode, gpu_node
from tests.support.nvml.build import build_double
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

SCRAPE_EVERY = 30
TOLERANCE = 0.01
_SAMPLE = re.compile(r"^(?P<series>[a-z_]+(?:\{.*\})?) (?P<value>\S+)$", re.MULTILINE)

pytestmark = [needs_prometheus, pytest.mark.xdist_group("hour")]


@dataclass
class Played:
    """The Prometheus that scraped the hour, and the instants of the scrapes in seconds since 1970."""

    url: str
    scrapes: list[int]

    def ask(self, query: str, at: int) -> list[dict[str, object]]:
        parameters = urllib.parse.urlencode({"query": query, "time": at})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}") as answer:
            found: list[dict[str, object]] = json.load(answer)["data"]["result"]
        return found

    def by_pod(self, query: str) -> dict[str, float]:
        return {
            str(row["metric"]["pod"]): float(row["value"][1])  # type: ignore[index]
            for row in self.ask(query, self.scrapes[-1])
        }


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("hour")
    library = build_double(folder)
    with gpu_node(folder, library, *hour.boards()) as node:
        scrapes = list(_play(node))
    data = folder / "data"
    create_blocks(_openmetrics(scrapes), data)
    # A sample counts until the next scrape, as with the staleness marks that a scrape would leave.
    with running_prometheus(data, f"--query.lookback-delta={SCRAPE_EVERY - 1}s") as url:
        yield Played(url, [at for at, _ in scrapes])


def _play(node: GpuNode) -> Iterator[tuple[int, str]]:
    """The hour, second by second; gives the text of each scrape with its time."""
    node.kubelet.allocatable = hour.ALLOCATABLE
    events, shared = hour.events(), node.driver.board(hour.SHARED)
    # A minute before the hour: the boards are idle, and the exporter learns what idling draws.
    node.start()
    node.ticks(60)
    yield _scrape(node)
    for second in hour.seconds():
        for kind, pod in events.get(second, ()):
            if kind == "end":
                node.end(pod.name)
                shared.processes = [found for found in shared.processes if found.pid != pod.pid]
            else:
                uid = node.pod(pod.name, pod.device, resource=pod.resource)
                if pod.pid:
                    node.process(shared, pod.pid, uid)
        if second == hour.LOST_AT:
            node.driver.board(hour.LOST).lost = True
        if second == hour.RESTART_AT:
            node.stop()
        if hour.RESTART_AT <= second < hour.RESTART_AT + hour.RESTART_FOR:
            node.pass_time(1, hour.loads(second))
            continue
        if node.exporter is None:
            node.start()
        node.tick(1, hour.loads(second))
        if (second + 1) % SCRAPE_EVERY == 0:
            yield _scrape(node)


def _scrape(node: GpuNode) -> tuple[int, str]:
    body, _ = node.exposition.render("")
    return node.wall_ms() // 1000, body.decode()


def _openmetrics(scrapes: list[tuple[int, str]]) -> Iterator[str]:
    """The scraped samples with their times, series by series, as promtool wants them."""
    series: dict[str, list[str]] = {}
    for at, text in scrapes:
        for found in _SAMPLE.finditer(text):
            series.setdefault(found["series"], []).append(f"{found['series']} {found['value']} {at}\n")
    for name in sorted(series, key=lambda name: name.partition("{")[0]):
        yield from series[name]
    yield "# EOF\n"


@pytest.mark.parametrize(
    ("metric", "measure"),
    [
        ("gpucost_pod_gpu_held_seconds_total", "held"),
        ("gpucost_pod_gpu_busy_seconds_total", "busy"),
        ("gpucost_pod_gpu_energy_joules_total", "joules"),
    ],
)
@pytest.mark.trap(16, 26)
def test_every_pod_is_within_a_hundredth_of_the_truth(played: Played, metric: str, measure: str) -> None:
    # All counters began in the hour, so the last value of each series is what the pod had.
    found = played.by_pod(f'sum by (pod) (last_over_time({metric}{{holder="pod"}}[2h]))')
    expected: dict[str, float] = getattr(hour.truth(), measure)

    assert set(found) == {pod.name for pod in hour.PODS}
    for pod, value in expected.items():
        assert found[pod] == pytest.approx(value, rel=TOLERANCE), pod
    assert found["short"] > 0


@pytest.mark.parametrize("measure", ["held_seconds", "busy_seconds", "sm_active_seconds", "observed_seconds"])
def test_pods_and_nobody_are_the_board_to_the_last_bit(played: Played, measure: str) -> None:
    of_gpu = {"held_seconds": "present_seconds"}.get(measure, measure)
    query = (
        f"sum by (gpu_uuid) (gpucost_gpu_{of_gpu}_total)"
        f" - sum by (gpu_uuid) (gpucost_pod_gpu_{measure}_total)"
        f' - (sum by (gpu_uuid) (gpucost_gpu_retired_total{{measure="{measure}"}}) or'
        f" 0 * sum by (gpu_uuid) (gpucost_gpu_{of_gpu}_total))"
    )
    compared = 0
    for at in played.scrapes:
        rows = played.ask(query, at)
        compared += len(rows)
        assert {row["value"][1] for row in rows} <= {"0"}, (at, rows)  # type: ignore[index]
    assert compared > 3 * len(played.scrapes)


def test_energy_of_the_holders_is_the_energy_of_the_board(played: Played) -> None:
    query = (
        "sum by (gpu_uuid) (gpucost_gpu_energy_joules_total)"
        " - sum by (gpu_uuid) (gpucost_pod_gpu_energy_joules_total)"
        ' - (sum by (gpu_uuid) (gpucost_gpu_retired_total{measure="energy_joules"}) or'
        " 0 * sum by (gpu_uuid) (gpucost_gpu_energy_joules_total))"
    )
    for at in played.scrapes:
        assert {row["value"][1] for row in played.ask(query, at)} == {"0"}, at  # type: ignore[index]


def test_board_time_is_the_hour(played: Played) -> None:
    end = played.scrapes[-1]
    rows = played.ask("sum by (gpu_uuid) (gpucost_gpu_present_seconds_total)", end)
    elapsed = end - played.scrapes[0] + 60
    assert [float(row["value"][1]) for row in rows] == [pytest.approx(elapsed, abs=1.5)] * 4  # type: ignore[index]


@pytest.mark.trap(32)
def test_the_lost_board_is_down_and_still_held(played: Played) -> None:
    at = played.scrapes[-1]
    [up] = played.ask(f'gpucost_gpu_up{{gpu_uuid="{hour.LOST}"}}', at)
    assert up["value"][1] == "0"  # type: ignore[index]
    assert not played.ask(f'gpucost_gpu_busy_seconds_total{{gpu_uuid="{hour.LOST}"}}', at)
    assert played.ask(f'gpucost_pod_gpu_held_seconds_total{{gpu_uuid="{hour.LOST}",pod="unlucky"}}', at)


