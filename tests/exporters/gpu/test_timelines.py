"""Any timeline of a node, out of GPUs that are whole, cut up, shared or lost: what is always so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost_gpu_exporter.metering.accounts import CounterRow, GpuAccounts
from gpucost_gpu_exporter.metering.gpu_state import GpuState
from gpucost_gpu_exporter.metering.meter import (
    MEASURES,
    NO_SECOND,
    GpuMeter,
    HoldingsOfDevice,
)
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
)
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    InstanceReading,
    NodeReading,
    ProcessReading,
    SignalActivity,
    SignalSource,
)
from tests.support.gpu_accounts import differences

START_NS = 1_000 * SECOND_NS
KEEP_NS = 600 * SECOND_NS
PODS = [
    PodRef("team", name, uid) for name, uid in (("a", "uid-a"), ("b", "uid-b"), ("c", ""), ("a", "uid-a2"))
]
OWNERS = {
    **{number: ProcessOwner(OwnerKind.POD, pod.uid) for number, pod in enumerate(PODS, 1) if pod.uid},
    5: ProcessOwner(OwnerKind.POD, "uid-elsewhere"),
    7: ProcessOwner(OwnerKind.MPS_SERVER, "uid-mps"),
    8: OUTSIDE,
    9: UNREADABLE,
}
UUIDS = ("GPU-1", "GPU-2")
LAYOUTS = ((), ((1, 7),), ((1, 3), (2, 4)), ((1, 1), (2, 1), (5, 2)), ((2, 3), (7, 1)), ((1, 2),))
SPANS_NS = (0, 1, SECOND_NS, SECOND_NS + 7, 3 * SECOND_NS // 7, 40 * SECOND_NS, 700 * SECOND_NS)
SHARES = (Fraction(1), Fraction(1, 4), Fraction(1, 3), Fraction(3, 7))
SIGNALS = [signal.value for signal in GpuSignal]

activities = st.dictionaries(
    st.sampled_from(SIGNALS),
    st.tuples(st.integers(0, 3 * SECOND_NS), st.integers(0, 100), st.sampled_from(SignalSource)).map(
        lambda found: SignalActivity(found[0], found[0] * found[1] // 100, found[2])
    ),
)
gaps = st.dictionaries(st.sampled_from(SIGNALS), st.just("NOT_SUPPORTED"))
processes = st.none() | st.lists(
    st.builds(ProcessReading, st.sampled_from(sorted(OWNERS)), st.none(), st.none() | st.integers(0, 100)),
    max_size=4,
).map(tuple)
totals_mj = st.none() | st.integers(0, 5_000_000)
ratios = st.none() | st.floats(0, 1)
rarely = st.integers(0, 9).map(lambda number: number == 9)
reasons = st.dictionaries(st.sampled_from(["sw_power_cap", "hw_slowdown"]), st.integers(0, 10**12))
layouts = st.none() | st.sampled_from(LAYOUTS)
spans = st.sampled_from(SPANS_NS)
devices = [DeviceKey(uuid, number) for uuid in UUIDS for number in ("", "1", "2", "5")]
places = st.tuples(st.sampled_from(PODS), st.sampled_from(devices))
shares_of = st.dictionaries(places, st.sampled_from(SHARES), max_size=6)


@dataclass(frozen=True)
class Step:
    """One look: after how long, what is shown of the GPUs, who holds what from then on."""

    elapsed_ns: int
    boards: tuple[GpuReading, ...] | None
    holdings: tuple[DeviceHolding, ...] | None
    ratio: float | None
    energy_mj: int | None


def shown(draw: st.DrawFn) -> dict[str, Any]:
    """What a GPU and an instance have alike."""
    return {"activity": draw(activities), "processes": draw(processes), "missing": draw(gaps)}


@st.composite
def a_board(draw: st.DrawFn, uuid: str) -> GpuReading:
    if draw(rarely):
        return GpuReading(uuid, lost="GPU_IS_LOST")
    board = GpuReading(uuid, energy_mj=draw(totals_mj), throttled_ns=draw(reasons))
    layout = draw(layouts)
    if layout is None:
        return replace(board, **shown(draw))
    parts = [
        InstanceReading(number, {f"MIG-{number}": slices}, slices, 7, f"{slices}g", **shown(draw))
        for number, slices in layout
    ]
    return replace(board, mig=True, instances=tuple(parts))


@st.composite
def some_holdings(draw: st.DrawFn) -> tuple[DeviceHolding, ...] | None:
    """Of any devices, those that are not there included, and of more than there is of one."""
    if draw(rarely):
        return None
    held = draw(shares_of)
    return tuple(DeviceHolding(*place, share, "nvidia.com/gpu", ("main",)) for place, share in held.items())


# Made once: making a strategy takes longer than drawing from it.
boards_of = [a_board(uuid) for uuid in UUIDS]
holdings_of = some_holdings()


@st.composite
def a_step(draw: st.DrawFn) -> Step:
    boards = tuple(draw(board) for board in boards_of if not draw(rarely))
    return Step(
        draw(spans),
        None if draw(rarely) else boards,
        draw(holdings_of),
        draw(ratios),
        draw(totals_mj),
    )


timelines = st.lists(a_step(), max_size=8)


class Run:
    """A meter through steps, in which the time since a step belongs to who held the GPUs after it."""

    def __init__(self, is_reversed: bool = False) -> None:
        self.meter = GpuMeter(GpuAccounts(), {})
        self.now_ns = START_NS
        self.held: HoldingsOfDevice = lambda _device: None
        self.is_reversed = is_reversed

    def step(self, step: Step) -> None:
        self.now_ns += step.elapsed_ns
        boards, holdings = step.boards, step.holdings
        if self.is_reversed:
            boards = None if boards is None else boards[::-1]
            holdings = None if holdings is None else holdings[::-1]
        second = replace(
            NO_SECOND, ratio=lambda _device, _signal: step.ratio, energy_mj=lambda _uuid: step.energy_mj
        )
        reading = None if boards is None else NodeReading("580.1", boards)
        self.meter.advance(self.now_ns, reading, self.held, OWNERS.__getitem__, second, {})
        self.held = held_by(holdings)
        self.meter.open(self.held)
        for holding in holdings or ():
            self.meter.accounts.saw(holding.pod, 0, self.now_ns)
        self.meter.accounts.retire(self.now_ns, KEEP_NS)

    def restart(self) -> None:
        """What another process of the exporter would go on with."""
        saved = json.dumps(
            [
                self.meter.accounts.to_json(),
                {uuid: state.to_json() for uuid, state in self.meter.boards.items()},
            ]
        )
        accounts, boards = json.loads(saved)
        states = {uuid: GpuState.from_json(state) for uuid, state in boards.items()}
        self.meter = GpuMeter(GpuAccounts.from_json(accounts), states, self.now_ns)


def held_by(holdings: Sequence[DeviceHolding] | None) -> HoldingsOfDevice:
    if holdings is None:
        return lambda _device: None
    return lambda device: [holding for holding in holdings if holding.device == device]


def since(accounts: GpuAccounts, row: CounterRow) -> int | None:
    """When the row began, if that was after the node booted: a pod may go for long and come back."""
    life = accounts.pods.get(row.who.pod)
    return life.since_ns if life else None


def check(accounts: GpuAccounts) -> None:
    """What is always so."""
    assert not list(differences(accounts))
    every = [*accounts.gpus.values(), *accounts.rows.values(), *accounts.retired.values()]
    assert all(amount >= 0 for amounts in every for amount in amounts.values())
    assert all(ns >= 0 for ns in accounts.throttled_ns.values())
    for amounts in accounts.gpus.values():
        for observed, used in MEASURES.values():
            assert amounts.get(used, 0) <= amounts.get(observed, 0) <= amounts.get(GpuMeasure.HELD, 0)
            assert (used in amounts) == (observed in amounts)


class TestAnyTimeline:
    @given(timelines)
    def test_the_parts_are_the_whole(self, steps: list[Step]) -> None:
        run = Run()
        for step in steps:
            run.step(step)
            check(run.meter.accounts)

    @given(timelines)
    def test_counters_never_fall(self, steps: list[Step]) -> None:
        run = Run()
        for step in steps:
            before = run.meter.accounts.copy()
            run.step(step)
            after = run.meter.accounts
            for device, amounts in before.gpus.items():
                assert all(after.gpus[device][measure] >= amount for measure, amount in amounts.items())
            for row, amounts in before.rows.items():
                if since(before, row) == since(after, row):
                    assert all(after.rows[row][measure] >= amount for measure, amount in amounts.items())

    @given(timelines)
    def test_all_time_is_held_by_somebody(self, steps: list[Step]) -> None:
        run = Run()
        expected: Counter[str] = Counter()
        for step in steps:
            there = set(run.meter.boards)
            run.step(step)
            for uuid in there & set(run.meter.boards):
                expected[uuid] += step.elapsed_ns
        found: Counter[str] = Counter()
        for device, amounts in run.meter.accounts.gpus.items():
            found[device.gpu_uuid] += amounts.get(GpuMeasure.HELD, 0)
        assert +found == +expected

    @given(timelines)
    def test_the_order_of_boards_and_holders_is_of_no_matter(self, steps: list[Step]) -> None:
        forward, backward = Run(), Run(is_reversed=True)
        for step in steps:
            forward.step(step)
            backward.step(step)
        assert forward.meter.accounts == backward.meter.accounts

    @pytest.mark.trap(27)
    @pytest.mark.fault(6)
    @given(timelines, timelines)
    def test_a_restart_in_the_middle_keeps_all_and_loses_nothing(
        self, first: list[Step], then: list[Step]
    ) -> None:
        run = Run()
        for step in first:
            run.step(step)
        before = run.meter.accounts.copy()
        run.restart()
        assert run.meter.accounts == before
        for step in then:
            run.step(step)
            check(run.meter.accounts)

    @given(timelines)
    def test_what_is_saved_goes_on_as_if_nothing_had_been(self, steps: list[Step]) -> None:
        """Of all but signals: their weights and credits are those of a process."""
        through, broken = Run(), Run()
        for step in steps:
            plain = replace(step, boards=step.boards and tuple(map(without_signals, step.boards)), ratio=None)
            through.step(plain)
            broken.step(plain)
            broken.restart()
        assert broken.meter.accounts == through.meter.accounts


def without_signals(found: GpuReading) -> GpuReading:
    """The GPU without what a restart may lose."""
    parts = tuple(replace(part, activity={}, processes=None) for part in found.instances)
    return replace(found, activity={}, processes=None, instances=parts)
