"""Shared GPUs, pods that come and go, MIG instances made anew, and restarts, through the whole exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost_gpu_exporter.metric_families import ExporterSnapshot
from gpucost_gpu_exporter.model.holdings import DeviceKey, PodRef
from tests.support.gpu_accounts import differences
from tests.support.gpu_node import SECOND, START_MS, GpuNode, build_double, gpu_node, of, uid_of
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeComputeInstance, FakeInstance

GPU, OTHER = "GPU-one", "GPU-two"
SHARED = "nvidia.com/gpu.shared"
BUSY = {GPU: DeviceLoad(busy=0.5, sm=0.25, tensor=0.125, watts=300.0)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("library"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[GpuNode]:
    with gpu_node(tmp_path, library, FakeBoard(GPU, minor=0)) as node:
        node.kubelet.allocatable = {SHARED: [f"{GPU}::{replica}" for replica in range(4)]}
        node.pass_time(1)
        yield node


def share(node: GpuNode, **pids: int) -> None:
    """These pods have a replica each, and a process each."""
    for replica, (name, pid) in enumerate(pids.items()):
        uid = node.pod(name, f"{GPU}::{replica}", resource=SHARED)
        node.process(node.driver.board(GPU), pid, uid)


def working(**shares: float) -> dict[str, DeviceLoad]:
    """A GPU that is always busy, with these SM percentages by process (``p101=60``)."""
    return {GPU: DeviceLoad(busy=1.0, sm=0.8, processes={int(pid[1:]): part for pid, part in shares.items()})}


def busy(snapshot: ExporterSnapshot, *names: str) -> list[float]:
    return [round(of(snapshot, "busy_seconds", pod=name), 2) for name in names]


def shown(node: GpuNode, name: str, label: str = "") -> dict[str, float]:
    """The scraped series of this name in whose labels the text is."""
    body, _ = node.exposition.render("")
    lines = (line.rpartition(" ") for line in body.decode().splitlines() if line.startswith(f"{name}{{"))
    return {labels: float(value) for labels, _, value in lines if label in labels}


def restart(node: GpuNode, away_s: float = 8, loads: dict[str, DeviceLoad] | None = None) -> None:
    node.stop()
    node.pass_time(away_s, loads if loads is not None else BUSY)
    node.start()


class TestReplicas:
    @pytest.mark.trap(23)
    def test_use_follows_the_processes_and_time_the_replicas(self, node: GpuNode) -> None:
        node.start()
        share(node, heavy=101, light=102)
        found = node.ticks(10, working(p101=60, p102=20))
        assert busy(found, "heavy", "light") == [7.5, 2.5]
        assert of(found, "held_seconds", pod="heavy") == of(found, "held_seconds", pod="light") == 2.5
        assert of(found, "held_seconds", holder="__unallocated__") == 5
        assert of(found, "sm_active_seconds") == pytest.approx(8)
        assert of(found, "busy_seconds", method="weighted") == 10
        assert not list(differences(found.accounts))

    @pytest.mark.trap(24)
    def test_an_idle_holder_still_holds(self, node: GpuNode) -> None:
        node.start()
        share(node, heavy=101, idle=102)
        found = node.ticks(10, working(p101=90))
        assert busy(found, "heavy", "idle") == [10, 0]
        assert of(found, "held_seconds", pod="idle") == 2.5
        assert list(shown(node, "gpucost_pod_gpu_busy_seconds_total", 'pod="idle"').values()) == [0]

    @pytest.mark.trap(29)
    def test_a_process_outside_kubernetes_is_unmanaged(self, node: GpuNode) -> None:
        node.start()
        share(node, heavy=101, light=102)
        node.process(node.driver.board(GPU), 900, None)
        found = node.ticks(10, working(p101=40, p102=20, p900=40))
        assert busy(found, "heavy", "light") == [4, 2]
        assert of(found, "busy_seconds", holder="__unmanaged__") == pytest.approx(4, abs=1e-4)
        assert of(found, "held_seconds", holder="__unmanaged__") == 0
        assert list(shown(node, "gpucost_gpu_processes", "outside").values()) == [1]

    @pytest.mark.trap(29)
    def test_nor_is_a_whole_board_billed_for_it(self, node: GpuNode) -> None:
        node.start()
        uid = node.pod("train", GPU)
        node.process(node.driver.board(GPU), 101, uid)
        node.process(node.driver.board(GPU), 900, None)
        found = node.ticks(10, working(p101=60, p900=20))
        assert busy(found, "train") == [7.5]
        assert of(found, "busy_seconds", holder="__unmanaged__") == 2.5
        assert of(found, "held_seconds", pod="train") == 10

    def test_a_process_that_cannot_be_read_is_shared_overhead(self, node: GpuNode) -> None:
        node.start()
        share(node, heavy=101, light=102)
        node.process(node.driver.board(GPU), 700, "")
        found = node.ticks(10, working(p101=40, p102=20, p700=40))
        assert busy(found, "heavy", "light") == [4, 2]
        assert of(found, "busy_seconds", holder="__shared_overhead__") == pytest.approx(4, abs=1e-4)

    @pytest.mark.trap(25)
    def test_under_mps_the_replicas_share_equally(self, node: GpuNode) -> None:
        node.start()
        share(node, first=101, second=102)
        node.process(node.driver.board(GPU), 500, None, comm="nvidia-cuda-mps")
        found = node.ticks(10, working(p500=80))
        assert busy(found, "first", "second") == [5, 5]
        assert of(found, "busy_seconds", method="equal") == 10

    @pytest.mark.trap(28)
    def test_two_containers_of_a_pod_are_one_holder(self, node: GpuNode) -> None:
        node.start()
        node.kubelet.hold("team", "pair", GPU, container="init")
        node.kubelet.hold("team", "pair", GPU, container="main")
        node.names.uids["team", "pair"] = uid_of("pair")
        node.holders.refresh()
        node.running.collect()
        found = node.ticks(4, BUSY)
        assert of(found, "held_seconds") == of(found, "held_seconds", pod="pair") == 4
        assert len(shown(node, "gpucost_pod_gpu_share", 'container_names="init,main"')) == 1


class TestPodsThatComeAndGo:
    @pytest.mark.trap(15, 16)
    def test_a_pod_of_the_same_name_on_the_same_gpu_is_another(self, node: GpuNode) -> None:
        node.start()
        first = node.pod("train", GPU, uid="11111111-0000-4000-8000-000000000001")
        node.ticks(10, BUSY)
        node.end("train")
        second = node.pod("train", GPU, uid="22222222-0000-4000-8000-000000000002")
        found = node.ticks(20, BUSY)
        assert [of(found, "held_seconds", pod_uid=uid) for uid in (first, second)] == [10, 20]
        assert [of(found, "busy_seconds", pod_uid=uid) for uid in (first, second)] == [5, 10]
        assert of(found, "energy_joules", pod_uid=second) == 20 * 300
        assert found.accounts.pods[PodRef("team", "train", second)].since_ms == START_MS + 11_000

    @pytest.mark.trap(26)
    def test_a_short_job_is_all_there(self, node: GpuNode) -> None:
        node.start()
        node.ticks(5)
        node.pod("short", GPU)
        node.ticks(2, BUSY)
        node.end("short")
        found = node.ticks(20)
        assert (of(found, "held_seconds", pod="short"), of(found, "busy_seconds", pod="short")) == (2, 1)
        assert list(shown(node, "gpucost_pod_gpu_held_seconds_total", "short").values()) == [2]

    @pytest.mark.trap(17, 18)
    def test_it_holds_nothing_after_its_end_and_its_series_stay_for_ten_minutes(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", GPU)
        node.ticks(10, BUSY)
        node.names.over.add(("team", "train"))  # the kubelet lists the devices of a finished pod still
        node.names.version += 1
        node.running.collect()
        found = node.tick(590, BUSY)
        assert of(found, "held_seconds", pod="train") == 10
        assert of(found, "held_seconds", holder="__unallocated__") == 590
        assert shown(node, "gpucost_pod_gpu_held_seconds_total", "train")
        assert shown(node, "gpucost_gpu_retired_total") == {}
        found = node.tick(12, BUSY)
        assert not shown(node, "gpucost_pod_gpu_held_seconds_total", "train")
        assert shown(node, "gpucost_pod_gpu_counted_since_timestamp_seconds") == {}
        assert list(shown(node, "gpucost_gpu_retired_total", 'measure="held_seconds"').values()) == [10]
        [present] = shown(node, "gpucost_gpu_present_seconds_total").values()
        held = sum(shown(node, "gpucost_pod_gpu_held_seconds_total").values())
        assert held + 10 == present == 612
        assert not list(differences(found.accounts))

    @pytest.mark.trap(19)
    def test_a_pod_that_pulls_its_image_holds_the_gpu(self, node: GpuNode) -> None:
        node.start()
        node.pod("waiting", GPU)
        found = node.ticks(30)
        assert (of(found, "held_seconds", pod="waiting"), of(found, "busy_seconds", pod="waiting")) == (30, 0)


def sliced(*parts: FakeInstance) -> FakeBoard:
    return FakeBoard(GPU, minor=0, mig=True, instances=list(parts))


def part(number: int, slices: int, uuid: str = "") -> FakeInstance:
    name = uuid or f"MIG-{number}"
    return FakeInstance(number, slices, f"{slices}g.{slices}0gb", [FakeComputeInstance(name, slices=slices)])


def loads(**activity: float) -> dict[tuple[str, int], DeviceLoad]:
    return {(GPU, int(number[1:])): DeviceLoad(busy=part, sm=part) for number, part in activity.items()}


class TestMig:
    @pytest.mark.fault(7)
    @pytest.mark.trap(5, 7)
    def test_the_board_is_cut_anew_while_a_job_runs(self, tmp_path: Path, library: Path) -> None:
        with gpu_node(tmp_path, library, sliced(part(1, 3), part(2, 4))) as node:
            node.start()
            node.pod("stays", "MIG-1", resource="nvidia.com/mig-3g.30gb")
            node.pod("goes", "MIG-2", resource="nvidia.com/mig-4g.40gb")
            node.ticks(14, loads(i1=1.0, i2=0.5))
            node.end("goes")
            board = node.driver.board(GPU)
            board.repartition([board.instances[0], part(5, 2)])
            node.tick(1, loads(i1=1.0))
            node.pod("comes", "MIG-5", resource="nvidia.com/mig-2g.20gb")
            found = node.ticks(14, loads(i1=1.0, i5=1.0))
        assert of(found, "held_seconds", pod="stays") == pytest.approx(29 * 3 / 7, abs=1e-4)
        assert of(found, "held_seconds", pod="goes") == pytest.approx(14 * 4 / 7, abs=1e-4)
        assert of(found, "held_seconds", pod="comes") == pytest.approx(14 * 2 / 7, abs=1e-4)
        assert of(found, "held_seconds", instance="5") == pytest.approx(15 * 2 / 7, abs=1e-4)
        assert of(found, "held_seconds", holder="__unpartitioned__") == pytest.approx(15 * 2 / 7, abs=1e-4)
        assert of(found, "held_seconds") == pytest.approx(29, abs=1e-5)
        assert of(found, "busy_seconds", pod="stays") == pytest.approx(29 * 3 / 7, abs=0.9)
        assert of(found, "busy_seconds", pod="comes") == pytest.approx(4, abs=0.3)
        assert DeviceKey(GPU, "2") not in {device.key for board in found.boards for device in board.devices}
        assert not list(differences(found.accounts))

    @pytest.mark.trap(12)
    def test_a_slice_destroyed_and_made_again_under_the_same_ids(self, tmp_path: Path, library: Path) -> None:
        with gpu_node(tmp_path, library, sliced(part(1, 7, "MIG-same"))) as node:
            node.start()
            node.pod("first", "MIG-same", resource="nvidia.com/mig-7g.80gb")
            node.ticks(10, loads(i1=1.0))
            node.end("first")
            node.driver.board(GPU).repartition([part(1, 7, "MIG-same")])
            node.pod("second", "MIG-same", resource="nvidia.com/mig-7g.80gb")
            found = node.ticks(10, loads(i1=0.5))
        assert [of(found, "held_seconds", pod=name) for name in ("first", "second")] == [10, 10]
        assert of(found, "busy_seconds", pod="first") == pytest.approx(9, abs=1.1)
        assert of(found, "busy_seconds", pod="second") == pytest.approx(4.5, abs=0.6)

    @pytest.mark.trap(6)
    def test_energy_of_the_slices_is_that_of_the_board_once(self, tmp_path: Path, library: Path) -> None:
        with gpu_node(tmp_path, library, sliced(part(1, 2), part(2, 4))) as node:
            node.start()
            node.pod("first", "MIG-1", resource="nvidia.com/mig-2g.20gb")
            node.pod("second", "MIG-2", resource="nvidia.com/mig-4g.40gb")
            node.ticks(20, {GPU: DeviceLoad(watts=70.0)})
            before = node.ticks(10, {GPU: DeviceLoad(watts=70.0)})
            load = loads(i1=1.0, i2=0.25) | {GPU: DeviceLoad(watts=370.0)}
            found = node.ticks(10, load)
            [energy] = shown(node, "gpucost_gpu_energy_joules_total").values()
        rise = {
            name: of(found, "energy_joules", pod=name) - of(before, "energy_joules", pod=name)
            for name in ("first", "second")
        }
        # 70 W by slices held; 300 W by slices x activity: 2 x 1 to 4 x 1/4.
        assert rise["first"] == pytest.approx(200 + 2000, rel=0.01)
        assert rise["second"] == pytest.approx(400 + 1000, rel=0.01)
        assert of(found, "energy_joules") == energy == 30 * 70 + 10 * 370
        assert of(found, "energy_joules", pod="first", method="exact") == 0


class TestRestart:
    @pytest.mark.trap(27)
    @pytest.mark.fault(6)
    def test_the_time_between_goes_to_the_pods_that_held_the_gpu_all_along(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", GPU)
        before = node.ticks(10, BUSY)
        restart(node, 8)
        found = node.ticks(5, BUSY)
        assert of(before, "held_seconds", pod="train") == 10
        assert of(found, "held_seconds", pod="train") == 23
        assert of(found, "busy_seconds", pod="train") == pytest.approx(11.5, abs=0.6)
        assert of(found, "energy_joules", pod="train") == 23 * 300
        # GPM keeps nothing: that time was not observed, and nothing is filled in.
        assert of(found, "sm_observed_seconds", pod="train") <= 15
        since = found.accounts.pods[PodRef("team", "train", uid_of("train"))].since_ms
        assert since == before.accounts.pods[PodRef("team", "train", uid_of("train"))].since_ms
        assert not list(differences(found.accounts))

    @pytest.mark.trap(27)
    @pytest.mark.fault(6)
    def test_no_counter_falls(self, node: GpuNode) -> None:
        node.start()
        share(node, heavy=101, light=102)
        node.ticks(12, working(p101=60, p102=20))
        for _ in range(3):
            before = {
                name: shown(node, name)
                for name in ("gpucost_pod_gpu_busy_seconds_total", "gpucost_gpu_energy_joules_total")
            }
            restart(node, 3, working(p101=60, p102=20))
            node.tick(1, working(p101=60, p102=20))
            for name, values in before.items():
                after = shown(node, name)
                assert all(after[labels] >= value for labels, value in values.items())

    @pytest.mark.trap(15, 27)
    def test_of_a_gpu_that_changed_hands_meanwhile_nobody_knows(self, node: GpuNode) -> None:
        node.start()
        node.pod("first", GPU)
        node.ticks(10, BUSY)
        node.stop()
        node.kubelet.remove("team", "first")
        node.pod("second", GPU)
        node.pass_time(8, BUSY)
        node.start()
        found = node.ticks(5, BUSY)
        assert [of(found, "held_seconds", pod=name) for name in ("first", "second")] == [10, 4]
        assert of(found, "held_seconds", holder="__unknown__") == 9
        assert of(found, "energy_joules", holder="__unknown__") == 9 * 300
        assert of(found, "energy_joules", pod="second") == 4 * 300

    @pytest.mark.trap(15, 27)
    def test_nor_of_one_that_a_pod_of_the_same_name_has_now(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", GPU)
        node.ticks(10, BUSY)
        node.stop()
        node.kubelet.remove("team", "train")
        new = node.pod("train", GPU, uid="22222222-0000-4000-8000-000000000002")
        node.pass_time(8, BUSY)
        node.start()
        found = node.ticks(5, BUSY)
        assert of(found, "held_seconds", holder="__unknown__") == 9
        assert of(found, "held_seconds", pod_uid=new) == 4

    def test_another_boot_begins_at_0(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", GPU)
        node.ticks(10, BUSY)
        node.stop()
        node.boot_id = "boot-2"
        node.start()
        found = node.ticks(5, BUSY)
        assert of(found, "held_seconds") == of(found, "held_seconds", pod="train") == 4
        assert found.accounts.pods[PodRef("team", "train", uid_of("train"))].since_ms == START_MS + 12_000

    @pytest.mark.trap(27)
    def test_more_than_an_hour_is_not_bridged(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", GPU)
        node.ticks(10, BUSY)
        restart(node, 3_601)
        found = node.ticks(5, BUSY)
        assert of(found, "held_seconds") == of(found, "held_seconds", pod="train") == 14
        assert of(found, "energy_joules") == pytest.approx(14 * 300, abs=1)
        assert found.accounts.gpus[DeviceKey(GPU)][GpuMeasure.OBSERVED] <= 14 * SECOND
        assert not list(differences(found.accounts))

    @pytest.mark.trap(13, 27)
    def test_the_driver_is_reloaded_meanwhile(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", GPU)
        node.ticks(10, BUSY)
        node.stop()
        node.driver.reload()
        node.pass_time(8, BUSY)
        node.start()
        found = node.ticks(5, BUSY)
        assert of(found, "energy_joules", pod="train") == (10 + 8 + 5) * 300
        assert list(shown(node, "gpucost_gpu_driver_epoch").values()) == [1]
