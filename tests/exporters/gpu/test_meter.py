"""From looks to counters: what each look adds, and what is always so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

import pytest

from gpucost.contract.gpu_metrics import AttributionMethod, GpuMeasure
from gpucost_gpu_exporter.metering.accounts import GpuAccounts
from gpucost_gpu_exporter.metering.meter import NO_SECOND, GpuMeter, SecondSource
from gpucost_gpu_exporter.metering.process_owners import (
    OUTSIDE,
    UNREADABLE,
    OwnerKind,
    ProcessOwner,
)
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    DeviceHolding,
    DeviceKey,
    PodRef,
    exported,
)
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    InstanceReading,
    NodeReading,
    ProcessReading,
    ReadingPart,
    SignalActivity,
    SignalSource,
    XidEvent,
)
from tests.support.gpu_accounts import differences

GPU = DeviceKey("GPU-1")
FIRST, SECOND_SLICE = DeviceKey("GPU-1", "1"), DeviceKey("GPU-1", "2")
A, B, C = (PodRef("team", name, f"uid-{name}") for name in "abc")
OWNERS = {
    1: ProcessOwner(OwnerKind.POD, A.uid),
    2: ProcessOwner(OwnerKind.POD, B.uid),
    3: ProcessOwner(OwnerKind.POD, C.uid),
    8: OUTSIDE,
    9: UNREADABLE,
}
START_NS = 1_000 * SECOND_NS


def holds(pod: PodRef, device: DeviceKey = GPU, share: Fraction | int = 1) -> DeviceHolding:
    return DeviceHolding(pod, device, Fraction(share), "nvidia.com/gpu", ("main",))


def active(busy: float, observed: float = 1.0) -> SignalActivity:
    return SignalActivity(round(observed * SECOND_NS), round(busy * SECOND_NS), SignalSource.GPM)


def activity(busy: float, sm: float | None = None) -> dict[str, SignalActivity]:
    found = {GpuSignal.BUSY.value: active(busy)}
    return found if sm is None else found | {GpuSignal.SM.value: active(sm)}


def board(**more: object) -> GpuReading:
    return GpuReading(**{"uuid": "GPU-1", "minor": 0, **more})  # type: ignore[arg-type]


def instance(number: int, slices: int, uuid: str = "", **more: object) -> InstanceReading:
    name = uuid or f"MIG-{number}"
    return InstanceReading(number, {name: slices}, slices, 7, f"{slices}g.{slices}0gb", **more)  # type: ignore[arg-type]


class Watch:
    """A meter with a clock: ``look`` adds a second, or as many as are said, of what a GPU did."""

    def __init__(self) -> None:
        self.meter = GpuMeter(GpuAccounts(), {})
        self.now_ns = START_NS
        self.holdings: Sequence[DeviceHolding] | None = ()

    def look(
        self,
        *boards: GpuReading,
        seconds: float = 1.0,
        second: SecondSource = NO_SECOND,
        xids: Mapping[XidEvent, int] = MappingProxyType({}),
        up: bool = True,
    ) -> None:
        self.now_ns += round(seconds * SECOND_NS)
        reading = NodeReading("580.1", boards) if up else None
        self.meter.advance(self.now_ns, reading, self._held, OWNERS.__getitem__, second, xids)
        for holding in self.holdings or ():
            self.meter.accounts.saw(holding.pod, 0, self.now_ns)
        assert not list(differences(self.meter.accounts))

    def _held(self, device: DeviceKey) -> Sequence[DeviceHolding] | None:
        if self.holdings is None:
            return None
        return [holding for holding in self.holdings if holding.device == device]

    def of(
        self,
        measure: GpuMeasure,
        holder: PodRef | str | None = None,
        device: DeviceKey | None = None,
        method: AttributionMethod | None = None,
    ) -> float:
        """Seconds or joules of these rows."""
        return sum(
            exported(measure, amounts.get(measure, 0))
            for row, amounts in self.meter.accounts.rows.items()
            if (holder is None or holder in (row.who.pod, row.who.holder.value))
            and (device is None or device == row.device)
            and (method is None or method is row.method)
        )

    def has(self, measure: GpuMeasure, device: DeviceKey = GPU) -> bool:
        return measure in self.meter.accounts.gpus.get(device, {})

    def counted(self) -> Mapping[tuple[str, int], int]:
        return self.meter.accounts.xids


@pytest.fixture
def watch() -> Watch:
    return Watch()


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-4)


class TestTime:
    def test_the_first_look_adds_nothing(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board(activity=activity(1.0)))
        assert (watch.of(GpuMeasure.HELD), watch.of(GpuMeasure.BUSY)) == (0, 0)
        watch.look(board(activity=activity(0.5)))
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.BUSY, A)) == (1, 0.5)

    def test_a_board_that_comes_later_begins_then(self, watch: Watch) -> None:
        watch.look(board())
        watch.look(board(), GpuReading("GPU-2", activity=activity(1.0)))
        watch.look(board(), GpuReading("GPU-2", activity=activity(1.0)))
        assert watch.of(GpuMeasure.HELD, device=DeviceKey("GPU-2")) == 1
        assert watch.of(GpuMeasure.BUSY, device=DeviceKey("GPU-2")) == 1

    def test_a_clock_set_back_takes_nothing_away(self, watch: Watch) -> None:
        watch.look(board(activity=activity(1.0)))
        watch.look(board(activity=activity(1.0)))
        watch.look(board(activity=activity(1.0)), seconds=-100)
        assert (watch.of(GpuMeasure.HELD), watch.of(GpuMeasure.BUSY)) == (1, 1)

    def test_a_signal_is_never_observed_for_longer_than_time_passed(self, watch: Watch) -> None:
        watch.look(board())
        watch.look(board(activity={"busy": active(2.0, observed=4.0)}))
        assert (watch.of(GpuMeasure.OBSERVED), watch.of(GpuMeasure.BUSY)) == (1, 0.5)

    @pytest.mark.trap(26)
    def test_what_was_not_observed_may_be_caught_up(self, watch: Watch) -> None:
        watch.look(board())
        watch.look(board(), seconds=3)
        watch.look(board(activity={"busy": active(2.0, observed=4.0)}))
        assert (watch.of(GpuMeasure.OBSERVED), watch.of(GpuMeasure.BUSY)) == (4, 2)

    @pytest.mark.trap(11)
    def test_a_signal_without_a_value_is_absent_and_not_0(self, watch: Watch) -> None:
        watch.look(board())
        watch.look(board(activity=activity(0.0), missing={ReadingPart.SM: "NOT_SUPPORTED"}))
        assert watch.has(GpuMeasure.BUSY)
        assert watch.of(GpuMeasure.BUSY) == 0
        assert not watch.has(GpuMeasure.SM_ACTIVE)
        assert not watch.has(GpuMeasure.SM_OBSERVED)


class TestHolders:
    def test_a_holder_that_does_nothing_is_seen_doing_nothing(self, watch: Watch) -> None:
        watch.holdings = [holds(A, share=Fraction(1, 2)), holds(B, share=Fraction(1, 2))]
        work = board(activity=activity(1.0), processes=(ProcessReading(1, 1 << 30, 50),))
        watch.look(work)
        watch.look(work)
        assert watch.of(GpuMeasure.BUSY, A) == 1
        rows = watch.meter.accounts.rows
        assert [amounts[GpuMeasure.BUSY] for row, amounts in rows.items() if row.who.pod == B] == [0]

    @pytest.mark.trap(24)
    def test_an_idle_process_that_holds_memory_still_holds_its_replica(self, watch: Watch) -> None:
        watch.holdings = [holds(A, share=Fraction(1, 4)), holds(B, share=Fraction(1, 4))]
        busy, idle = ProcessReading(1, 1 << 30, 80), ProcessReading(2, 30 << 30, 0)
        for _ in range(5):
            watch.look(board(activity=activity(0.8), processes=(busy, idle)))
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.HELD, B)) == (1, 1)
        assert watch.of(GpuMeasure.HELD, "__unallocated__") == 2
        assert (watch.of(GpuMeasure.BUSY, A), watch.of(GpuMeasure.BUSY, B)) == (near(3.2), 0)

    @pytest.mark.trap(19)
    def test_a_gpu_is_held_while_nobody_computes(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for _ in range(3):
            watch.look(board(activity=activity(0.0), processes=()))
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.OBSERVED, A)) == (2, 2)
        assert watch.of(GpuMeasure.BUSY, A) == 0

    def test_nobody_knows_who_holds_it(self, watch: Watch) -> None:
        watch.holdings = None
        watch.look(board())
        watch.look(board(activity=activity(0.5)))
        assert watch.of(GpuMeasure.HELD, "__unknown__") == 1
        assert watch.of(GpuMeasure.BUSY, "__unknown__") == 0.5

    @pytest.mark.trap(29)
    def test_work_of_outsiders_is_not_billed_to_the_pod(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        both = (ProcessReading(1, 1, 30), ProcessReading(8, 1, 10))
        watch.look(board(activity=activity(1.0), processes=both))
        watch.look(board(activity=activity(1.0), processes=both))
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.BUSY, A)) == (1, 0.75)
        assert watch.of(GpuMeasure.BUSY, "__unmanaged__") == 0.25
        assert watch.of(GpuMeasure.HELD, "__unmanaged__") == 0


class TestLateSamples:
    """The driver's per-process samples come in bursts: until new ones come, the last stand for 10 s."""

    HALVES = (holds(A, share=Fraction(1, 2)), holds(B, share=Fraction(1, 2)))
    IDLE = (ProcessReading(1, 1, 0), ProcessReading(2, 1, 0))

    def shares(self, watch: Watch) -> tuple[float, float]:
        return watch.of(GpuMeasure.BUSY, A), watch.of(GpuMeasure.BUSY, B)

    def start(self, watch: Watch) -> None:
        watch.holdings = self.HALVES
        watch.look(board())
        seen = (ProcessReading(1, 1, 90), ProcessReading(2, 1, 10))
        watch.look(board(activity=activity(1.0), processes=seen))
        assert self.shares(watch) == (near(0.9), near(0.1))

    def test_the_last_weights_stand_for_ten_seconds(self, watch: Watch) -> None:
        self.start(watch)
        for _ in range(10):
            watch.look(board(activity=activity(1.0), processes=self.IDLE))
        assert self.shares(watch) == (near(9.9), near(1.1))
        assert watch.of(GpuMeasure.BUSY, method=AttributionMethod.EQUAL) == 0
        watch.look(board(activity=activity(1.0), processes=self.IDLE))
        assert watch.of(GpuMeasure.BUSY, method=AttributionMethod.EQUAL) == 1
        assert self.shares(watch) == (near(10.4), near(1.6))

    @pytest.mark.trap(15)
    def test_a_new_holder_does_not_inherit_them(self, watch: Watch) -> None:
        self.start(watch)
        new = A._replace(uid="uid-c")
        watch.holdings = [holds(new, share=Fraction(1, 2)), holds(B, share=Fraction(1, 2))]
        processes = (ProcessReading(3, 1, 0), ProcessReading(2, 1, 0))
        watch.look(board(activity=activity(1.0), processes=processes))
        assert watch.of(GpuMeasure.BUSY, new) == 0
        assert self.shares(watch) == (near(0.9), near(1.1))

    def test_when_all_holders_are_new_they_share_equally(self, watch: Watch) -> None:
        self.start(watch)
        new = [pod._replace(uid=f"uid-new-{pod.name}") for pod in (A, B)]
        watch.holdings = [holds(pod, share=Fraction(1, 2)) for pod in new]
        watch.look(board(activity=activity(1.0), processes=()))
        assert [watch.of(GpuMeasure.BUSY, pod, method=AttributionMethod.EQUAL) for pod in new] == [0.5, 0.5]


class TestMig:
    @pytest.mark.trap(5)
    def test_activity_is_of_the_slice_and_counts_by_its_size(self, watch: Watch) -> None:
        watch.holdings = [holds(A, FIRST), holds(B, SECOND_SLICE)]
        sliced = board(
            mig=True,
            instances=(
                instance(1, 3, activity=activity(1.0, 0.5)),
                instance(2, 4, activity=activity(0.5, 0.25)),
            ),
        )
        for _ in range(8):
            watch.look(sliced)
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.HELD, B)) == (near(3), near(4))
        assert (watch.of(GpuMeasure.BUSY, A), watch.of(GpuMeasure.BUSY, B)) == (near(3), near(2))
        assert (watch.of(GpuMeasure.SM_ACTIVE, A), watch.of(GpuMeasure.SM_ACTIVE, B)) == (near(1.5), near(1))

    @pytest.mark.trap(7)
    def test_what_is_not_partitioned_has_a_row_of_its_own(self, watch: Watch) -> None:
        watch.holdings = [holds(A, FIRST)]
        for _ in range(8):
            watch.look(board(mig=True, instances=(instance(1, 3), instance(2, 2))))
        assert watch.of(GpuMeasure.HELD, A) == near(3)
        assert watch.of(GpuMeasure.HELD, "__unallocated__", SECOND_SLICE) == near(2)
        assert watch.of(GpuMeasure.HELD, "__unpartitioned__", GPU) == near(2)
        assert watch.of(GpuMeasure.HELD) == near(7)
        assert not watch.has(GpuMeasure.BUSY, GPU)

    def test_a_board_with_mig_and_no_instances_is_all_unpartitioned(self, watch: Watch) -> None:
        watch.look(board(mig=True))
        watch.look(board(mig=True))
        assert watch.of(GpuMeasure.HELD, "__unpartitioned__", GPU) == 1

    @pytest.mark.trap(4, 11)
    def test_a_slice_without_a_signal_has_none(self, watch: Watch) -> None:
        for _ in range(2):
            sliced = instance(1, 7, missing={"busy": "NOT_SUPPORTED"})
            watch.look(board(mig=True, instances=(sliced,)))
        assert watch.has(GpuMeasure.HELD, FIRST)
        assert not watch.has(GpuMeasure.BUSY, FIRST)
        assert not watch.has(GpuMeasure.OBSERVED, FIRST)

    @pytest.mark.trap(6)
    def test_energy_counts_once_per_board_idle_by_share_and_the_rest_by_activity(self, watch: Watch) -> None:
        watch.holdings = [holds(A, FIRST), holds(B, SECOND_SLICE)]

        def sliced(energy_mj: int, first: float, second: float) -> GpuReading:
            parts = (
                instance(1, 2, activity=activity(first, first)),
                instance(2, 4, activity=activity(second, second)),
            )
            return board(mig=True, energy_mj=energy_mj, instances=parts)

        for tick in range(11):  # ten idle seconds: the GPU draws 70 W by being on
            watch.look(sliced(70_000 * tick, 0, 0))
        idle = watch.of(GpuMeasure.ENERGY, A), watch.of(GpuMeasure.ENERGY, B)
        watch.look(sliced(700_000 + 370_000, 1.0, 0.25))
        a, b = (watch.of(GpuMeasure.ENERGY, pod) - before for pod, before in zip((A, B), idle, strict=True))
        # 70 J by share held (2, 4 and 1 free of 7), 300 J by slices x activity (2 x 1 to 4 x 1/4).
        assert (a, b) == (near(20 + 200), near(40 + 100))
        assert watch.of(GpuMeasure.ENERGY, "__unpartitioned__") == near(100 + 10)
        assert watch.of(GpuMeasure.ENERGY) == near(700 + 370)
        assert watch.of(GpuMeasure.ENERGY, A, method=AttributionMethod.WEIGHTED) == watch.of(
            GpuMeasure.ENERGY, A
        )

    @pytest.mark.fault(7)
    def test_new_slices_while_a_job_runs(self, watch: Watch) -> None:
        watch.holdings = [holds(A, FIRST), holds(B, SECOND_SLICE)]
        before = (instance(1, 3, activity=activity(1.0)), instance(2, 4, activity=activity(1.0)))
        for _ in range(8):
            watch.look(board(mig=True, instances=before))
        old = watch.of(GpuMeasure.HELD, B)
        third = DeviceKey("GPU-1", "5")
        watch.holdings = [holds(A, FIRST), holds(C, third)]
        after = (instance(1, 3, activity=activity(1.0)), instance(5, 2, activity=activity(0.5)))
        for _ in range(7):
            watch.look(board(mig=True, instances=after))
        assert watch.of(GpuMeasure.HELD, B) == old == near(4)
        assert watch.of(GpuMeasure.HELD, A) == near(6)
        assert watch.of(GpuMeasure.HELD, C, third) == near(2)
        assert watch.of(GpuMeasure.BUSY, C, third) == near(1)
        assert watch.of(GpuMeasure.HELD, "__unpartitioned__") == near(2)
        assert watch.of(GpuMeasure.HELD) == near(14)

    @pytest.mark.fault(7)
    def test_a_board_that_is_cut_up_and_made_whole_again(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board(activity=activity(1.0)))
        watch.look(board(activity=activity(1.0)))
        watch.holdings = [holds(A, FIRST)]
        for _ in range(2):
            watch.look(board(mig=True, instances=(instance(1, 7, activity=activity(1.0)),)))
        watch.holdings = [holds(A)]
        watch.look(board(activity=activity(1.0)))
        assert (watch.of(GpuMeasure.HELD, A, GPU), watch.of(GpuMeasure.HELD, A, FIRST)) == (2, 2)
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.BUSY, A)) == (4, 4)

    @pytest.mark.trap(12)
    def test_a_slice_made_anew_under_the_same_ids_goes_to_its_new_holder(self, watch: Watch) -> None:
        for holder in (A, B):
            watch.holdings = [holds(holder, FIRST)]
            for _ in range(4):
                parts = (instance(1, 7, "MIG-same", activity=activity(0.5)),)
                watch.look(board(mig=True, instances=parts))
        assert (watch.of(GpuMeasure.HELD, A, FIRST), watch.of(GpuMeasure.BUSY, A, FIRST)) == (3, 1.5)
        assert (watch.of(GpuMeasure.HELD, B, FIRST), watch.of(GpuMeasure.BUSY, B, FIRST)) == (4, 2)

    @pytest.mark.trap(12)
    def test_an_instance_id_used_again_for_another_size_claims_no_time_of_the_old(self, watch: Watch) -> None:
        silent = instance(1, 1, missing={"busy": "NOT_SUPPORTED"})
        for _ in range(101):
            watch.look(board(mig=True, instances=(silent,)))
        grown = instance(1, 7, activity={"busy": active(60, observed=60)})
        watch.look(board(mig=True, instances=(grown,)))
        assert watch.of(GpuMeasure.OBSERVED, device=FIRST) == 1


class TestEnergy:
    def test_above_idling_it_follows_use(self, watch: Watch) -> None:
        watch.holdings = [holds(A, share=Fraction(1, 2)), holds(B, share=Fraction(1, 2))]
        for tick in range(11):
            watch.look(board(energy_mj=100_000 * tick, activity=activity(0.0), processes=()))
        assert watch.of(GpuMeasure.ENERGY, A) == watch.of(GpuMeasure.ENERGY, B) == near(500)
        working = (ProcessReading(1, 1, 75), ProcessReading(2, 1, 25))
        watch.look(board(energy_mj=1_500_000, activity=activity(1.0), processes=working))
        assert watch.of(GpuMeasure.ENERGY, A) == near(500 + 50 + 300)
        assert watch.of(GpuMeasure.ENERGY, B) == near(500 + 50 + 100)

    def test_of_a_board_never_seen_idle_all_follows_use(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board(energy_mj=0, activity=activity(1.0)))
        watch.look(board(energy_mj=400_000, activity=activity(1.0)))
        assert watch.of(GpuMeasure.ENERGY, A, method=AttributionMethod.EXACT) == 400

    @pytest.mark.trap(13)
    def test_a_total_that_fell_is_a_new_life_of_the_driver(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for energy_mj in (5_000_000, 5_300_000, 200_000, 500_000):
            watch.look(board(energy_mj=energy_mj, activity=activity(1.0)))
        assert watch.of(GpuMeasure.ENERGY, A) == near(300 + 200 + 300)
        assert watch.meter.boards["GPU-1"].epoch == 1

    @pytest.mark.trap(10)
    def test_a_step_that_no_board_can_make_is_left_out(self, watch: Watch) -> None:
        for energy_mj in (0, 300_000, 10**12, 10**12 + 300_000):
            watch.look(board(energy_mj=energy_mj))
        assert watch.of(GpuMeasure.ENERGY) == near(600)

    def test_energy_that_could_not_be_read_for_a_moment_is_caught_up(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        for energy_mj in (0, 300_000, None, 900_000):
            watch.look(board(energy_mj=energy_mj))
        assert watch.of(GpuMeasure.ENERGY, A) == near(900)

    def test_after_a_long_pause_it_goes_only_to_who_held_the_board_all_along(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board(energy_mj=0))
        watch.look(up=False, seconds=30)
        watch.look(board(energy_mj=3_000_000))
        assert watch.of(GpuMeasure.ENERGY, A) == near(3000)
        watch.look(up=False, seconds=30)
        watch.holdings = [holds(B)]
        watch.look(board(energy_mj=6_000_000))
        assert watch.of(GpuMeasure.ENERGY, "__unknown__") == near(3000)
        assert watch.of(GpuMeasure.ENERGY, B) == 0

    def test_energy_of_the_second_source_comes_in_bursts(self, watch: Watch) -> None:
        """dcgm-exporter shows a new value every 30 s: 400 W are then a step of 12 kJ in one look."""
        watch.holdings = [holds(A)]
        for tick in range(61):
            total_mj = 400_000 * (tick // 30 * 30)
            second = replace(NO_SECOND, energy_mj=lambda _uuid, total=total_mj: total)  # type: ignore[misc]
            watch.look(board(missing={"energy": "NOT_SUPPORTED"}), second=second)
        assert watch.of(GpuMeasure.ENERGY, A) == near(24_000)


class TestEvents:
    @pytest.mark.trap(14)
    def test_xid_events_are_counted_by_code(self, watch: Watch) -> None:
        watch.look(board(), xids={XidEvent("GPU-1", 79): 1, XidEvent("GPU-1", 13): 2})
        watch.look(board())
        watch.look(board(), xids={XidEvent("GPU-1", 13): 1})
        assert watch.counted() == {("GPU-1", 79): 1, ("GPU-1", 13): 3}

    @pytest.mark.trap(14, 32)
    def test_the_event_that_came_with_the_loss_of_a_board_counts(self, watch: Watch) -> None:
        watch.look(board())
        watch.look(GpuReading("GPU-1", lost="GPU_IS_LOST"), xids={XidEvent("GPU-1", 79): 1})
        assert watch.counted() == {("GPU-1", 79): 1}

    @pytest.mark.fault(1)
    def test_events_count_while_the_driver_does_not_answer(self, watch: Watch) -> None:
        """Also of a GPU that no look has shown yet."""
        watch.look(up=False, xids={XidEvent("GPU-1", 119): 1})
        watch.look(board())
        watch.look(up=False, xids={XidEvent("GPU-1", 119): 1})
        assert watch.counted() == {("GPU-1", 119): 2}

    def test_the_second_source_tells_the_events_that_the_driver_does_not(self, watch: Watch) -> None:
        def shows(code: int) -> SecondSource:
            return replace(NO_SECOND, take_xids=lambda _uuid: {code: 1})

        silent = board(missing={ReadingPart.XID: "NOT_SUPPORTED"})
        watch.look(board(), second=shows(31))
        watch.look(silent, second=shows(48))
        watch.look(up=False, second=shows(63))
        watch.look(GpuReading("GPU-1", lost="GPU_IS_LOST"), second=shows(79))
        assert watch.counted() == {("GPU-1", 48): 1, ("GPU-1", 63): 1, ("GPU-1", 79): 1}

    @pytest.mark.fault(1)
    def test_an_event_that_the_second_source_shows_late_counts_once(self, watch: Watch) -> None:
        """The driver told it, hung, and tells no events of the GPU since it is back."""
        late = replace(NO_SECOND, take_xids=lambda _uuid: {119: 1})
        silent = board(missing={ReadingPart.XID: "UNKNOWN"})
        watch.look(board(), xids={XidEvent("GPU-1", 119): 1})
        watch.look(silent, seconds=90, second=late)
        assert watch.counted() == {("GPU-1", 119): 1}
        watch.look(silent, seconds=90, second=late)
        assert watch.counted() == {("GPU-1", 119): 2}

    def throttled(self, watch: Watch) -> dict[tuple[str, str], int]:
        return watch.meter.accounts.throttled_ns

    def test_throttled_time_by_reason(self, watch: Watch) -> None:
        watch.look(board(throttled_ns={"sw_power_cap": 5 * SECOND_NS}))
        assert self.throttled(watch) == {}
        watch.look(board(throttled_ns={"sw_power_cap": 5 * SECOND_NS + 7, "hw_slowdown": 9}))
        assert self.throttled(watch) == {("GPU-1", "sw_power_cap"): 7}
        watch.look(board(throttled_ns={"sw_power_cap": 3, "hw_slowdown": 10}))
        assert self.throttled(watch) == {("GPU-1", "sw_power_cap"): 10, ("GPU-1", "hw_slowdown"): 1}

    def test_throttled_time_is_caught_up_after_a_look_without_it(self, watch: Watch) -> None:
        watch.look(board(throttled_ns={"sw_power_cap": 0}))
        watch.look(board(missing={"throttling": "UNKNOWN"}))
        watch.look(board(throttled_ns={"sw_power_cap": 11}))
        assert self.throttled(watch) == {("GPU-1", "sw_power_cap"): 11}


class TestLost:
    @pytest.mark.trap(32)
    @pytest.mark.fault(2)
    def test_a_lost_board_is_held_and_not_observed(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board(energy_mj=0, activity=activity(1.0)))
        watch.look(board(energy_mj=300_000, activity=activity(1.0)))
        for _ in range(3):
            watch.look(GpuReading("GPU-1", lost="GPU_IS_LOST"))
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.OBSERVED, A)) == (4, 1)
        assert watch.of(GpuMeasure.HELD, A, method=AttributionMethod.NONE) == 3
        watch.look(board(energy_mj=10_000, activity=activity(0.5)))
        assert (watch.of(GpuMeasure.HELD, A), watch.of(GpuMeasure.BUSY, A)) == (5, 1.5)
        assert watch.of(GpuMeasure.ENERGY, A) == near(310)

    @pytest.mark.fault(1)
    def test_without_a_driver_holders_go_on_holding(self, watch: Watch) -> None:
        watch.holdings = [holds(A, FIRST)]
        watch.look(board(mig=True, instances=(instance(1, 3),)))
        watch.look(up=False, seconds=7)
        assert watch.of(GpuMeasure.HELD, A) == near(3)
        assert watch.of(GpuMeasure.HELD) == near(7)
        assert watch.meter.boards["GPU-1"].lost == "NO_DRIVER"

    def test_a_board_that_is_gone_is_forgotten_once_nobody_holds_it(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board())
        watch.look(seconds=700)
        assert watch.meter.boards["GPU-1"].lost == "GONE"
        watch.holdings = ()
        watch.look()
        assert not watch.meter.boards
        assert watch.of(GpuMeasure.HELD, A) == 700

    def test_it_is_not_forgotten_while_nobody_knows_who_holds_it(self, watch: Watch) -> None:
        watch.holdings = [holds(A)]
        watch.look(board())
        watch.holdings = None
        watch.look(seconds=700)
        assert set(watch.meter.boards) == {"GPU-1"}
