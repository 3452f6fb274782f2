"""After a pause (a hang, a loss, an absence) nothing is attributed to a pod that did not hold the
GPU in it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gpucost.contract.gpu_metrics import GpuMeasure, HolderKind
from gpucost_gpu_exporter.exporter import KEEP_NS
from gpucost_gpu_exporter.holders import DeviceHolders
from gpucost_gpu_exporter.kubelet.client import PodResources
from gpucost_gpu_exporter.metering.meter import NO_SECOND
from gpucost_gpu_exporter.metering.missing_parts import MissingPart
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    DeviceClaim,
    DeviceKey,
    GpuTopology,
    KubeletState,
)
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    NodeReading,
    ProcessReading,
    ReadingPart,
)
from tests.exporters.gpu.test_meter import (
    FIRST,
    SECOND_SLICE,
    A,
    B,
    Watch,
    active,
    activity,
    board,
    holds,
    instance,
    near,
)
from tests.support.gpu_node import gpu_node, of
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import FakeBoard

UNKNOWN = HolderKind.UNKNOWN.value


@pytest.fixture
def watch() -> Watch:
    return Watch()


def _busy(watts: int, at_s: float, busy: float = 1.0, observed: float = 1.0) -> GpuReading:
    return board(activity={"busy": active(busy, observed)}, energy_mj=round(watts * at_s * 1000))


class TestOtherHolder:
    """A has the GPU, the driver is silent for 40 s, and B has it when the driver answers again."""

    def _hang(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for second in range(11):
            watch.look(_busy(500, second))
        for _ in range(30):
            watch.look(up=False)
        watch.holdings = [holds(B)]
        for _ in range(10):
            watch.look(up=False)

    @pytest.mark.fault(1)
    def test_energy_of_the_pause_is_nobodys(self, watch: Watch) -> None:
        self._hang(watch)
        watch.look(_busy(500, 51))
        assert watch.of(GpuMeasure.ENERGY, B) == 0
        assert watch.of(GpuMeasure.ENERGY, UNKNOWN) == 41 * 500
        watch.look(_busy(500, 52))
        assert watch.of(GpuMeasure.ENERGY, B) == 500

    @pytest.mark.fault(1)
    def test_nor_is_what_the_driver_remembers_of_it(self, watch: Watch) -> None:
        self._hang(watch)
        watch.look(_busy(500, 51, busy=20.0, observed=20.0))
        assert watch.of(GpuMeasure.BUSY, B) == near(1)
        assert watch.of(GpuMeasure.BUSY, UNKNOWN) == near(19)
        assert watch.of(GpuMeasure.OBSERVED, B) <= watch.of(GpuMeasure.HELD, B)

    def test_who_held_it_all_along_has_all_of_it(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for second in range(3):
            watch.look(_busy(500, second))
        for _ in range(40):
            watch.look(up=False)
        watch.look(_busy(500, 43, busy=20.0, observed=20.0))
        assert watch.of(GpuMeasure.ENERGY, A) == 43 * 500
        assert watch.of(GpuMeasure.BUSY, A) == near(22)


class TestIdling:
    def _idle_watts(self, watch: Watch) -> int | None:
        milliwatts = watch.meter.boards["GPU-1"].idle.milliwatts
        return None if milliwatts is None else milliwatts // 1000

    def test_a_pause_teaches_nothing(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for second in range(12):
            watch.look(_busy(70, second, busy=0.0))
        assert self._idle_watts(watch) == 70
        # 75 s unseen, the last of them idle; then idle looks too few to learn from.
        watch.look(board(activity={"busy": active(0.0, 20.0)}, energy_mj=900_000), seconds=75)
        for second in range(1, 5):
            watch.look(board(activity={"busy": active(0.0)}, energy_mj=900_000 + 70_000 * second))
        assert self._idle_watts(watch) == 70

    def test_looks_between_two_samples_do_not_hinder_it(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for look in range(240):
            samples = {"busy": active(0.0, 0.2)} if look % 2 else {}
            watch.look(board(activity=samples, energy_mj=7_000 * look), seconds=0.1)
        assert self._idle_watts(watch) == 70


@pytest.mark.trap(26)
def test_the_second_source_does_not_fill_an_absence(watch: Watch) -> None:
    second = replace(NO_SECOND, ratio=lambda _device, signal: 0.9 if signal is GpuSignal.SM else None)
    watch.holdings = [holds(A)]
    lacking = board(activity=activity(1.0), missing={ReadingPart.SM: "NOT_SUPPORTED"})
    watch.look(lacking, second=second)
    watch.look(lacking, second=second)
    watch.look(lacking, seconds=1200, second=second)
    assert watch.of(GpuMeasure.SM_OBSERVED, A) == 6
    assert watch.of(GpuMeasure.SM_ACTIVE, A) == near(5.4)


@pytest.mark.trap(6)
def test_energy_of_slices_follows_one_signal(watch: Watch) -> None:
    """One slice spins without using an SM, the other works; busy time would make them equal."""
    watch.holdings = [holds(A, FIRST), holds(B, SECOND_SLICE)]
    slices = (
        instance(1, 1, activity=activity(1.0, sm=0.0)),
        instance(2, 1, activity=activity(1.0, sm=0.5)),
    )
    for second in range(4):
        watch.look(board(mig=True, instances=slices, energy_mj=300_000 * second))
    assert watch.of(GpuMeasure.ENERGY, A) == 0
    assert watch.of(GpuMeasure.ENERGY, B) == 900


@pytest.mark.trap(23, 24)
def test_samples_that_come_in_turns_are_weighed_over_seconds(watch: Watch) -> None:
    watch.holdings = [holds(A, share=Fraction(1, 2)), holds(B, share=Fraction(1, 2))]
    watch.look(board(activity=activity(1.0)))
    for second in range(60):
        # The driver gives the samples of one process at even seconds, of the other at odd ones.
        weights = (60, 0) if second % 2 == 0 else (0, 15)
        processes = tuple(ProcessReading(pid, 1, weight) for pid, weight in zip((1, 2), weights, strict=True))
        watch.look(board(activity=activity(1.0), processes=processes))
    assert watch.of(GpuMeasure.BUSY, A) == pytest.approx(48, abs=1.5)
    assert watch.of(GpuMeasure.BUSY, B) == pytest.approx(12, abs=1.5)


def test_one_board_that_cannot_be_counted_does_not_stop_the_others(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = board(activity=activity(1.0)), GpuReading("GPU-2", activity=activity(1.0))
    broken = replace(first, energy_mj="12")  # type: ignore[arg-type]  # what no reading should hold
    watch.look(broken, second)
    for _ in range(3):
        watch.look(replace(broken, energy_mj=5), second)
        watch.look(broken, second)
    assert watch.of(GpuMeasure.BUSY, device=DeviceKey("GPU-2")) == 6
    assert watch.meter.failures > 0
    assert "GPU-1 could not be counted" in caplog.text


@pytest.mark.trap(32)
def test_a_lost_board_that_says_its_uuid_again_is_not_two(watch: Watch) -> None:
    watch.look(GpuReading("pci:0000:3b:00.0", lost="GPU_IS_LOST"), board())
    assert set(watch.meter.boards) == {"pci:0000:3b:00.0", "GPU-1"}
    watch.look(GpuReading("GPU-2"), board())
    assert set(watch.meter.boards) == {"GPU-1", "GPU-2"}


class TestKubelet:
    """``DeviceHolders`` over a kubelet that gives a scripted answer."""

    class Kubelet(PodResources):
        def __init__(self) -> None:
            self.answer: KubeletState | Exception = KubeletState((), None)
            self.allocatable_problem = ""

        def read(self, now_ns: int) -> KubeletState:  # noqa: ARG002
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    class Names:
        version, problem = 0, ""

        def uid(self, namespace: str, name: str) -> str | None:
            return None if name == "stranger" else f"uid-{namespace}-{name}"

        def is_finished(self, namespace: str, name: str) -> bool:
            return (namespace, name) == ("", "")

        def devices(self) -> dict[str, object]:
            return {}

    def _claims(self, pod: str) -> KubeletState:
        return KubeletState((DeviceClaim("team", pod, "main", "nvidia.com/gpu", "GPU-1"),), None)

    @pytest.fixture
    def holders(self) -> DeviceHolders:
        self.kubelet, self.now_ns = self.Kubelet(), 0
        return DeviceHolders(self.kubelet, self.Names(), lambda: self.now_ns)  # type: ignore[arg-type]

    def test_each_new_answer_counts_however_fast_they_come(self, holders: DeviceHolders) -> None:
        topology = GpuTopology.from_reading(_node(board()))
        for number in range(200):
            self.kubelet.answer = self._claims(f"pod-{number}")
            holders.refresh()
            if number % 2:
                continue  # two answers between two collections
            found = holders.current(self.now_ns, topology)
            assert found is not None
            assert [held.pod.name for held in found.holdings] == [f"pod-{number}"]

    def test_whatever_goes_wrong_is_said_and_asked_again(self, holders: DeviceHolders) -> None:
        self.kubelet.answer = RuntimeError("can't start new thread")
        holders.refresh()
        assert MissingPart(DeviceKey(""), "kubelet", "failed") in set(holders.lacks())
        assert holders.errors["failed"] == 1
        self.kubelet.answer = self._claims("back")
        holders.refresh()
        assert holders.current(self.now_ns, GpuTopology.from_reading(_node(board()))) is not None
        assert not set(holders.lacks())

    def test_a_pod_that_the_api_server_does_not_show_is_said(self, holders: DeviceHolders) -> None:
        self.kubelet.answer = self._claims("stranger")
        holders.refresh()
        holders.current(self.now_ns, GpuTopology.from_reading(_node(board())))
        assert MissingPart(DeviceKey(""), "pods", "uid_unknown") in set(holders.lacks())

    def test_devices_are_not_unknown_before_the_boards_are_known(self, holders: DeviceHolders) -> None:
        self.kubelet.answer = self._claims("early")
        holders.refresh()
        holders.current(self.now_ns, GpuTopology())
        assert not set(holders.lacks())


def _node(*boards: GpuReading) -> NodeReading:
    return NodeReading("580", boards)


def test_pods_are_not_retired_while_nobody_says_who_holds_what(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("silent")
    with gpu_node(folder, build_double(folder), FakeBoard("GPU-1")) as node:
        node.kubelet.allocatable = {"nvidia.com/gpu": ["GPU-1"]}
        node.start()
        node.pod("train", "GPU-1")
        before = of(node.ticks(30), "held_seconds", pod="train")
        node.kubelet.stop()
        node.tick(KEEP_NS / SECOND_NS + 60)
        node.ticks(3)
        node.kubelet.start()
        node.asked_ns = 0
        after = of(node.ticks(10), "held_seconds", pod="train")
    assert after >= before + 9
