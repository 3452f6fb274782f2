"""What is known after some scrapes: freshness, missing rows, stuck counters, XID edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucost_gpu_exporter.dcgm.scrapes import (
    MAX_ABSENT,
    MAX_XIDS,
    DcgmProblem,
    DcgmState,
    DcgmXidCounts,
    FrameBufferMemory,
    parse,
)
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import GpuSignal
from tests.support.gpu_accounts import power_w

FIXTURES = Path(__file__).parent / "dcgm"
A = "GPU-0a000000-0000-4000-8000-000000000001"
B = "GPU-0b000000-0000-4000-8000-000000000002"
BOARD = DeviceKey(A)
SECOND = 10**9
START = 1_767_225_600 * SECOND
MIB = 2**20


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.prom").read_text()


def board(**fields: object) -> str:
    """A text with rows of GPU A: ``GPU_UTIL=91``, ``SM_ACTIVE="0.5"``."""
    profiled = ("GR_ENGINE_ACTIVE", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE")
    return "".join(
        f'DCGM_FI_{"PROF" if name in profiled else "DEV"}_{name}{{UUID="{A}"}} {value}\n'
        for name, value in fields.items()
    )


def after(*texts: str, known: DcgmState | None = None, every_s: int = 10) -> DcgmState:
    known = known or DcgmState()
    for text in texts:
        at_ns = START if known.at_ns is None else known.at_ns + every_s * SECOND
        known = known.after(parse(text, known.units), at_ns)
    return known


def ratios(known: DcgmState, device: DeviceKey) -> list[float | None]:
    assert known.at_ns is not None
    return [known.ratio(device, signal, known.at_ns) for signal in GpuSignal]


@pytest.mark.trap(1)
def test_each_signal_of_a_board_is_its_own() -> None:
    assert ratios(after(fixture("classic")), BOARD) == [0.91, 0.5, 0.25]


@pytest.mark.trap(2, 4, 5)
def test_busy_of_a_mig_instance_is_its_graphics_engine_and_of_its_board_unknown() -> None:
    known = after(fixture("mig"))
    assert [ratios(known, DeviceKey(A, gi)) for gi in ("1", "5", "9")] == [
        [0.959228, 1.0, 0.3],
        [0.0, 0.0, 0.0],
        [0.5, 0.375, 0.0],
    ]
    assert ratios(known, BOARD) == [None, None, None]
    assert known.devices == {DeviceKey(B), *(DeviceKey(A, gi) for gi in ("1", "5", "9"))}


@pytest.mark.trap(3)
def test_tensor_activity_is_passed_on_as_measured() -> None:
    """0.28 is a healthy H100 at 600 W; what is low is for the analysis to say, per architecture."""
    assert ratios(after(board(PIPE_TENSOR_ACTIVE="0.280000")), BOARD) == [None, None, 0.28]


@pytest.mark.trap(4, 8, 11)
def test_a_row_that_is_not_there_is_missing_and_a_0_is_a_0() -> None:
    known = after(board(GPU_UTIL=0))
    assert ratios(known, BOARD) == [0.0, None, None]
    assert known.problems(START) == {
        (BOARD, GpuSignal.SM): DcgmProblem.MISSING,
        (BOARD, GpuSignal.TENSOR): DcgmProblem.MISSING,
    }
    assert known.problem(DeviceKey(B), GpuSignal.BUSY, START) is DcgmProblem.MISSING


@pytest.mark.trap(11)
def test_a_row_that_disappears_is_missing_at_once() -> None:
    known = after(board(GPU_UTIL=91, SM_ACTIVE="0.5"), board(GPU_UTIL=90))
    assert ratios(known, BOARD) == [0.9, None, None]


@pytest.mark.trap(11, 34)
def test_values_grow_stale_with_their_own_age() -> None:
    known = after(fixture("classic"))
    assert known.ratio(BOARD, GpuSignal.BUSY, START + 60 * SECOND) == 0.91
    late = START + 60 * SECOND + 1
    assert known.age_ns(late) == 60 * SECOND + 1
    assert known.ratio(BOARD, GpuSignal.BUSY, late) is None
    assert set(known.problems(late).values()) == {DcgmProblem.STALE}
    assert (known.energy_mj(A, late), power_w(known, A, late)) == (None, None)
    assert known.memory(BOARD, late) == FrameBufferMemory(None, None)


@pytest.mark.trap(11)
@pytest.mark.parametrize("text", ["", "# nothing\n", "<html>\n", "other_metric 5\n"])
def test_an_answer_without_values_takes_nothing_away_and_adds_no_freshness(text: str) -> None:
    known = after(fixture("classic"))
    assert known.after(parse(text), START + 30 * SECOND) == known


def test_before_the_first_scrape_everything_is_missing() -> None:
    known = DcgmState()
    assert (known.age_ns(START), known.devices, known.problems(START)) == (None, frozenset(), {})
    assert (known.ratio(BOARD, GpuSignal.BUSY, START), known.energy_mj(A, START)) == (None, None)


@pytest.mark.trap(6)
def test_energy_and_power_are_the_board_s_and_stand_once() -> None:
    known = after(fixture("mig"))
    assert (known.energy_mj(A, START), power_w(known, A, START)) == (257_858_316, 179)
    assert known.energy_mj(B, START) == 350_000_000


@pytest.mark.trap(8)
def test_a_board_without_profiling_keeps_its_busy_time_and_has_no_energy() -> None:
    known = after(board(GPU_UTIL=55, FB_USED=100))
    assert ratios(known, BOARD) == [0.55, None, None]
    assert (known.energy_mj(A, START), power_w(known, A, START)) == (None, None)


def test_total_memory_needs_all_three_parts_or_a_row_of_its_own() -> None:
    assert after(fixture("classic")).memory(BOARD, START) == FrameBufferMemory(40448 * MIB, 81920 * MIB)
    assert after(fixture("mig")).memory(DeviceKey(A, "1"), START) == FrameBufferMemory(19968 * MIB, None)
    assert after(board(FB_USED=1, FB_TOTAL=81920)).memory(BOARD, START) == FrameBufferMemory(MIB, 81920 * MIB)


STUCK = board(GPU_UTIL=99, GR_ENGINE_ACTIVE="0.000000", SM_ACTIVE="0.000000", PIPE_TENSOR_ACTIVE="0.000000")
IDLE = board(GPU_UTIL=0, GR_ENGINE_ACTIVE="0.000000", SM_ACTIVE="0.000000", PIPE_TENSOR_ACTIVE="0.000000")
WORKING = board(GPU_UTIL=99, GR_ENGINE_ACTIVE="0.900000", SM_ACTIVE="0.500000", PIPE_TENSOR_ACTIVE="0.000000")


@pytest.mark.trap(9)
def test_profiling_stuck_at_0_is_no_idleness() -> None:
    assert ratios(after(STUCK, STUCK), BOARD) == [0.99, 0.0, 0.0]
    known = after(STUCK, STUCK, STUCK)
    assert ratios(known, BOARD) == [0.99, None, None]
    assert known.problems(known.at_ns or 0) == {
        (BOARD, GpuSignal.SM): DcgmProblem.PROF_STUCK,
        (BOARD, GpuSignal.TENSOR): DcgmProblem.PROF_STUCK,
    }


@pytest.mark.trap(9)
def test_stuck_counters_stay_so_until_one_is_not_0() -> None:
    known = after(STUCK, STUCK, STUCK, IDLE, IDLE)
    assert ratios(known, BOARD) == [0.0, None, None]
    assert ratios(after(WORKING, known=known), BOARD) == [0.99, 0.5, 0.0]
    assert ratios(after(WORKING, STUCK, STUCK, known=known), BOARD) == [0.99, 0.0, 0.0]


@pytest.mark.trap(9)
@pytest.mark.parametrize(
    "texts",
    [
        [IDLE] * 5,
        [STUCK, STUCK, IDLE, STUCK, STUCK],
        [board(GPU_UTIL=50, SM_ACTIVE="0")] * 5,
        [board(GPU_UTIL=99, PIPE_TENSOR_ACTIVE="0")] * 5,
        [board(GPU_UTIL=99, GR_ENGINE_ACTIVE="0.9", PIPE_TENSOR_ACTIVE="0")] * 5,
    ],
    ids=["idle", "not in a row", "not over half", "no tensor work", "graphics count"],
)
def test_a_real_0_stays_a_0(texts: list[str]) -> None:
    assert ratios(after(*texts), BOARD)[2] in {0.0, None}
    assert DcgmProblem.PROF_STUCK not in after(*texts).problems(START).values()


@pytest.mark.trap(9)
def test_one_stuck_board_says_nothing_of_the_other() -> None:
    both = STUCK + WORKING.replace(A, B)
    assert ratios(after(both, both, both), DeviceKey(B)) == [0.99, 0.5, 0.0]


@pytest.mark.trap(14)
def test_a_latched_xid_counts_when_it_changes_and_never_while_it_stays() -> None:
    quiet, first, second = (
        board(GPU_UTIL=1),
        board(GPU_UTIL=1, XID_ERRORS=43),
        board(GPU_UTIL=1, XID_ERRORS=79),
    )
    known = after(quiet, first, first, first, second, second)
    assert known.xids == {
        (A, 43): DcgmXidCounts(1, START + 10 * SECOND),
        (A, 79): DcgmXidCounts(1, START + 40 * SECOND),
    }
    again = after(first, known=known)
    assert again.xids[A, 43] == DcgmXidCounts(2, START + 60 * SECOND)


@pytest.mark.trap(14)
@pytest.mark.parametrize("first", [fixture("mig"), board(GPU_UTIL=1, XID_ERRORS=13)])
def test_a_code_that_was_there_at_first_sight_is_of_unknown_age(first: str) -> None:
    assert after(first, first).xids == {}


@pytest.mark.trap(14)
def test_a_code_on_all_slices_of_a_board_is_one_event_even_when_one_is_late() -> None:
    text = fixture("mig")
    none = "".join(row for row in text.splitlines(keepends=True) if "XID" not in row)
    late = none + next(row for row in text.splitlines(keepends=True) if "XID" in row and "GPU_I_ID" in row)
    assert after(none, late, text, text).xids == {(A, 13): DcgmXidCounts(1, START + 10 * SECOND)}


@pytest.mark.trap(14)
def test_an_empty_answer_between_two_does_not_make_an_event() -> None:
    text = board(GPU_UTIL=1, XID_ERRORS=13)
    assert after(text, "", text).xids == {}


@pytest.mark.trap(14)
def test_a_board_that_was_away_for_a_scrape_keeps_its_latch() -> None:
    quiet, code = board(GPU_UTIL=1), board(GPU_UTIL=1, XID_ERRORS=79)
    only_b = quiet.replace(A, B)
    assert after(code, only_b, code).xids == {}
    assert after(quiet, only_b, code).xids == {(A, 79): DcgmXidCounts(1, START + 20 * SECOND)}


@pytest.mark.trap(14)
def test_a_0_of_an_old_exporter_is_no_code() -> None:
    assert after(board(GPU_UTIL=1), board(GPU_UTIL=1, XID_ERRORS=0)).xids == {}


@pytest.mark.trap(14)
def test_boards_under_ever_new_names_are_forgotten_and_those_shown_are_not() -> None:
    quiet, code = board(GPU_UTIL=1), board(GPU_UTIL=1, XID_ERRORS=79)
    texts = [STUCK + code.replace(A, f"GPU-{number}") for number in range(3 * MAX_ABSENT)]
    known = after(*texts)
    assert len(known.latched) == len(known.strikes) == 2 + MAX_ABSENT
    assert known.strikes[A] >= 3
    assert after(quiet, code.replace(A, B), code, known=known).xids == {
        (A, 79): DcgmXidCounts(1, (known.at_ns or 0) + 30 * SECOND)
    }


@pytest.mark.trap(14)
def test_events_without_end_are_forgotten_in_the_end() -> None:
    texts = (board(GPU_UTIL=1, XID_ERRORS=code) for code in range(1, 700))
    known = after(*("".join(text.replace(A, f"GPU-{number}") for number in range(7)) for text in texts))
    assert MAX_XIDS <= len(known.xids) <= MAX_XIDS + 7
    assert ("GPU-6", 699) in known.xids
