"""The real command scraped by a real Prometheus while a node's load goes on: the parts are the GPUs."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import GPU_COUNTERS, HOLDER_COUNTERS, GpuMeasure
from gpucost.contract.metrics import METRICS
from tests.support.gpu_command import NODE, CommandNode, Running, command_node, eventually, moving, node_api
from tests.support.http import Reply, scripted_server
from tests.support.kube import pod
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import (
    DeviceLoad,
    FakeBoard,
    FakeComputeInstance,
    FakeDriver,
    FakeInstance,
    FakeProcess,
)
from tests.support.prometheus import PROMTOOL, needs_prometheus, running_prometheus

DCGM_TEXT = (Path(__file__).parent / "dcgm" / "classic.prom").read_text()
METRICS_PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
# The GPUs of the dcgm-exporter's text, which says SM 0.5 of the first and 0 of the second, and one of MIG.
AMPERE = "GPU-0a000000-0000-4000-8000-000000000001"
HOPPER = "GPU-0b000000-0000-4000-8000-000000000002"
SLICED = "GPU-0c000000-0000-4000-8000-000000000003"
BOARDS = {AMPERE, HOPPER, SLICED}
HEAVY, LIGHT = 4711, 4712
UIDS = {
    name: f"00000000-0000-4000-8000-00000000000{number}"
    for number, name in enumerate(("train", "heavy", "light", "slice"))
}
LOADS: Mapping[str | tuple[str, int], DeviceLoad] = {
    AMPERE: DeviceLoad(busy=0.75, watts=300),
    HOPPER: DeviceLoad(busy=0.9, sm=0.6, tensor=0.3, watts=450, processes={HEAVY: 45, LIGHT: 15}),
    SLICED: DeviceLoad(watts=210),
    (SLICED, 1): DeviceLoad(busy=1, sm=0.8, tensor=0.2),
}
SCRAPES = 4

pytestmark = [needs_prometheus]


@dataclass
class Live:
    """The command as it ran, the last text it served, and the Prometheus that scraped it."""

    text: str
    url: str
    at: float

    def ask(self, query: str) -> list[tuple[dict[str, str], str]]:
        """The rows of an instant query: labels and value."""
        parameters = urllib.parse.urlencode({"query": query, "time": self.at})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}") as answer:
            found = json.load(answer)["data"]["result"]
        return [(row["metric"], row["value"][1]) for row in found]

    @property
    def scrapes(self) -> int:
        return sum(int(value) for _, value in self.ask("count_over_time(up[1m])"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    driver = FakeDriver(folder / "nvml.state", _boards())
    with ExitStack() as parts:
        node = parts.enter_context(command_node(folder, build_double(folder), driver))
        dcgm = parts.enter_context(scripted_server(Reply(body=DCGM_TEXT, content_type="text/plain")))
        api = parts.enter_context(node_api(*(pod(name, uid) for name, uid in UIDS.items())))
        parts.enter_context(moving(driver, LOADS))
        _held(node)
        _processes(folder / "proc")
        node.set(
            kubernetes="url",
            kubernetes_url=api.url,
            dcgm_url=f"{dcgm.url}/metrics",
            dcgm_interval="1s",
            processes="true",
            proc_root=str(folder / "proc"),
        )
        running = parts.enter_context(node.start())
        url = parts.enter_context(running_prometheus(folder / "data", scrape_configs=[_scrape(running)]))
        # Prometheus takes up a new target after five seconds.
        eventually(lambda: Live("", url, time.time()).scrapes >= SCRAPES, running.log)
        yield Live(running.get("/metrics")[1], url, time.time())


def _scrape(running: Running) -> dict[str, object]:
    return {
        "job_name": "gpu-exporter",
        "scrape_interval": "1s",
        "honor_labels": True,
        "static_configs": [{"targets": [running.target]}],
    }


def _boards() -> list[FakeBoard]:
    slices = [FakeInstance(gi, 1, "1g.10gb", [FakeComputeInstance(f"MIG-{gi}")]) for gi in (1, 2, 3)]
    return [
        FakeBoard(AMPERE, product="NVIDIA A100-SXM4-80GB", gpm=None),
        FakeBoard(HOPPER, processes=[FakeProcess(HEAVY), FakeProcess(LIGHT)]),
        FakeBoard(SLICED, mig=True, instances=slices),
    ]


def _held(node: CommandNode) -> None:
    replicas = [f"{HOPPER}::{replica}" for replica in range(4)]
    node.kubelet.allocatable = {
        "nvidia.com/gpu": [AMPERE, *replicas],
        "nvidia.com/mig-1g.10gb": [f"MIG-{gi}" for gi in (1, 2, 3)],
    }
    node.kubelet.hold("team", "train", AMPERE)
    node.kubelet.hold("team", "heavy", replicas[0])
    node.kubelet.hold("team", "light", replicas[1])
    node.kubelet.hold("team", "slice", "MIG-1", resource="nvidia.com/mig-1g.10gb")


def _processes(proc: Path) -> None:
    """The host's /proc as mounted into a container: this process has a PID in two namespaces."""
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "status").write_text("NSpid:\t4242\t7\n")
    for pid, name in ((HEAVY, "heavy"), (LIGHT, "light")):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/burstable/pod{UIDS[name]}/{'a' * 64}\n")
        (proc / str(pid) / "stat").write_text(f"{pid} (python) S {'0 ' * 18}{pid} {'0 ' * 30}\n")


def test_every_scrape_was_answered(live: Live) -> None:
    assert live.scrapes >= SCRAPES
    assert [value for _, value in live.ask("min_over_time(up[1m])")] == ["1"]
    assert [value for _, value in live.ask("gpucost_nvml_up")] == ["1"]


@pytest.mark.parametrize("measure", GpuMeasure)
@pytest.mark.trap(5, 6, 7, 23)
def test_the_holders_of_each_board_are_the_board(live: Live, measure: GpuMeasure) -> None:
    whole = f"sum by (gpu_uuid) ({GPU_COUNTERS[measure].name})"
    parts = f"sum by (gpu_uuid) ({HOLDER_COUNTERS[measure].name})"

    totals = {row["gpu_uuid"]: float(value) for row, value in live.ask(whole)}
    assert totals.keys() == BOARDS
    assert all(total > 0 for total in totals.values()), totals
    differences = {row["gpu_uuid"]: value for row, value in live.ask(f"{whole} - {parts}")}
    assert differences == dict.fromkeys(BOARDS, "0")


@pytest.mark.parametrize(
    ("name", "board"), [("train", AMPERE), ("heavy", HOPPER), ("light", HOPPER), ("slice", SLICED)]
)
@pytest.mark.trap(15)
def test_each_pod_has_its_uid_and_its_board(live: Live, name: str, board: str) -> None:
    rows = live.ask(f'sum by (pod_uid, gpu_uuid) (gpucost_pod_gpu_held_seconds_total{{pod="{name}"}})')
    assert [(row["pod_uid"], row["gpu_uuid"]) for row, _ in rows] == [(UIDS[name], board)]


@pytest.mark.parametrize(("board", "source"), [(AMPERE, "dcgm"), (HOPPER, "gpm"), (SLICED, "gpm")])
@pytest.mark.fault(5)
def test_sm_activity_has_one_source_per_board(live: Live, board: str, source: str) -> None:
    rows = live.ask(f'gpucost_gpu_signal{{gpu_uuid="{board}",signal="sm_active"}}')
    assert {row["source"] for row, _ in rows} == {source}


@pytest.mark.parametrize(("board", "ratio"), [(AMPERE, 0.5), (HOPPER, 0.6)])
def test_sm_activity_is_what_its_source_says(live: Live, board: str, ratio: float) -> None:
    [(_, found)] = live.ask(
        f'gpucost_gpu_sm_active_seconds_total{{gpu_uuid="{board}"}} / gpucost_gpu_sm_observed_seconds_total'
    )
    assert float(found) == pytest.approx(ratio, rel=0.02)


def test_a_shared_board_is_split_by_what_processes_did(live: Live) -> None:
    busy = 'gpucost_pod_gpu_busy_seconds_total{method="weighted",pod="%s"}'
    [(_, ratio)] = live.ask(f"sum({busy % 'heavy'}) / sum({busy % 'light'})")
    assert float(ratio) == pytest.approx(3, rel=0.1)


def test_promtool_has_nothing_to_say(live: Live) -> None:
    done = subprocess.run(
        [PROMTOOL or "promtool", "check", "metrics"],
        input=live.text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_series_is_in_the_contract_and_on_the_page(live: Live) -> None:
    names = set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)", live.text, re.MULTILINE))
    page = METRICS_PAGE.read_text()
    assert names <= {spec.name for spec in METRICS}
    assert [name for name in names if f"### {name}\n" not in page] == []
    assert {GPU_COUNTERS[GpuMeasure.BUSY].name, HOLDER_COUNTERS[GpuMeasure.BUSY].name} <= names


def test_nothing_is_missing_that_nobody_took_away(live: Live) -> None:
    rows = live.ask("gpucost_gpu_exporter_missing_since_timestamp_seconds")
    found = {(row.get("gpu_uuid", ""), row["part"]) for row, _ in rows}
    # NVML says neither of the Ampere GPU, which is why dcgm-exporter is asked.
    of_dcgm = {(AMPERE, "sm_active"), (AMPERE, "tensor_active")}
    assert found - of_dcgm == {(SLICED, "process_utilization")}


def test_the_server_was_asked_for_this_node_only(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard(HOPPER)])
    driver.write()
    with command_node(tmp_path, build_double(tmp_path), driver) as node, node_api() as api:
        node.set(kubernetes="url", kubernetes_url=api.url)
        with node.start():
            eventually(lambda: any(asked.is_watch for asked in api.asked))
        pods = [asked for asked in api.asked if asked.path == "/api/v1/pods"]
    assert {asked.params["fieldSelector"] for asked in pods} == {f"spec.nodeName={NODE}"}
