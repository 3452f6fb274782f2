"""What could not be computed is reported with its size; GPUs are billed once whatever is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.conservation import capacity, difference
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import HOUR_MS
from tests.support.frames import FlatRates, NamespaceTeams, build, hours, node, pod, units

RATES = FlatRates(("2.00", 0))


def run(frames: ClusterFrames, length: float = 1, step: int = HOUR_MS) -> Attribution:
    return attribute(frames, list(hours(0, length).split(step)), rates=RATES, teams=NamespaceTeams())


def board_hours(result: Attribution) -> dict[str, float]:
    return {bucket.value: ms / HOUR_MS for bucket, (ms, _) in result.totals().items()}


def codes(result: Attribution) -> set[DataProblemCode]:
    return {problem.code for problem in result.problems}


@pytest.mark.fault(26)
def test_a_count_that_goes_missing_does_not_bill_the_boards_twice() -> None:
    counts = [units(end_ms=hours(0, 22).end_ms), units(start_ms=hours(0, 22).end_ms, expected=-1)]
    counts[1] |= {"capacity": -1, "allocatable": -1}
    frames = build([pod("a", (0, 24), 8)], [node()], counts)
    result = run(frames, 24)
    assert result.totals() == {Bucket.HELD: (192 * HOUR_MS, 384 * 10**9)}
    assert difference(result.flat(), frames, hours(0, 24), RATES).is_zero
    [problem] = result.problems
    assert (problem.code, problem.board_ms) == (DataProblemCode.COUNT_UNKNOWN, 16 * HOUR_MS)


def test_a_pod_that_outlives_its_node_is_held_without_a_price_whatever_the_window() -> None:
    ended = hours(0, 1).end_ms
    frames = build([pod("a", (0, 2), 8)], [node(end_ms=ended)], [units(end_ms=ended)])
    whole = run(frames, 2)
    alone = attribute(
        ClusterFrames(frames.allocations, frames.nodes.iloc[:0], frames.capacity.iloc[:0], frames.observed),
        [hours(1, 2)],
        rates=RATES,
        teams=NamespaceTeams(),
    )
    late = whole.flat().query("window_start_ms == @ended")
    assert late[["bucket", "model", "board_ms"]].values.tolist() == [["held", "", 8 * HOUR_MS]]
    assert late["nano"].isna().all()
    assert alone.totals() == {Bucket.HELD: (8 * HOUR_MS, 0)}
    assert DataProblemCode.NODE_UNKNOWN in codes(whole)


def test_two_rows_of_one_node_at_once_are_one_node_and_the_larger_wins() -> None:
    for rows in ([node(boards=8), node(boards=4)], [node(boards=4), node(boards=8)]):
        result = run(build([], rows, [units()]))
        assert board_hours(result) == {"unallocated": 8.0}
        # The proof adds the rows up without choosing: it is right to complain.
        [problem] = result.problems
        assert (problem.code, problem.subject) == (DataProblemCode.NOT_CONSERVED, "n1")


def test_a_resource_that_pods_held_earlier_does_not_change_what_is_free_now() -> None:
    sliced, whole = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"
    counts = [units(56, sliced, end_ms=hours(0, 1).end_ms), units(8, whole, start_ms=hours(0, 1).end_ms)]
    counts[1] |= {"expected": 7, "capacity": 7, "allocatable": 7}
    frames = build([pod("a", (0, 1), resource=sliced)], [node()], counts)
    together = run(frames, 3).flat()
    apart = attribute(frames, [hours(1, 2)], rates=RATES, teams=NamespaceTeams()).flat()
    second = together[together["window_start_ms"] == hours(1, 2).start_ms]
    columns = ["resource", "bucket", "board_ms", "nano"]
    assert sorted(second[columns].values.tolist()) == sorted(apart[columns].values.tolist())
    assert "unavailable" in set(apart["bucket"])


def test_hami_cores_and_tenants_are_one_board() -> None:
    pods = [pod(name, (0, 1), 25, "nvidia.com/gpucores") for name in "abcd"]
    pods += [pod(name, (0, 1), 1, "nvidia.com/gpu") for name in "abcd"]
    counts = [units(10), units(100, "nvidia.com/gpucores")]
    assert board_hours(run(build(pods, [node(boards=1)], counts))) == {"held": 1.0}


def test_a_slice_of_unknown_share_leaves_the_board_unknown_and_names_the_pod() -> None:
    odd = "nvidia.com/mig-1g.99gb"
    result = run(build([pod("a", (0, 1), resource=odd)], [node(boards=1)], [units(7, odd)]))
    assert board_hours(result) == {"unknown": 1.0}
    [of_pod] = [problem for problem in result.problems if problem.subject == "uid-a"]
    assert of_pod.code is DataProblemCode.UNIT_UNKNOWN
    assert "1 x nvidia.com/mig-1g.99gb on n1 for 3600000 ms" in of_pod.detail


def test_the_proof_compares_node_by_node() -> None:
    frames = build([pod("a", (0, 1))], [node("n1"), node("n2")], [units(name="n1"), units(name="n2")])
    flat = run(frames).flat()
    assert difference(flat, frames, hours(0, 1), RATES).is_zero
    moved = flat.assign(node=flat["node"].where(flat["bucket"] != "held", "n2"))
    found = difference(moved, frames, hours(0, 1), RATES)
    assert (found.board_ms, found.nano, found.nodes) == (2 * HOUR_MS, 4 * 10**9, ("c/n1", "c/n2"))


def test_a_node_that_was_counted_for_part_of_the_time_is_left_out_of_the_proof() -> None:
    half = hours(0, 0.5).end_ms
    rows = [node(end_ms=half), node(start_ms=half, boards=-1)]
    frames = build([pod("a", (0, 1))], rows, [units()])
    found = difference(run(frames).flat(), frames, hours(0, 1), RATES)
    assert (found.is_zero, found.uncounted) == (True, ("c/n1",))


@pytest.mark.parametrize(
    ("at_ms", "window"),
    [(None, 0), (-1, 0), (0, 0), (HOUR_MS - 1, 0), (HOUR_MS, 1), (2 * HOUR_MS, 2), (3 * HOUR_MS, 2)],
)
def test_a_problem_of_the_source_is_told_of_the_window_that_it_is_about(
    at_ms: int | None, window: int
) -> None:
    at_ms = None if at_ms is None else hours(0, 1).start_ms + at_ms
    problem = DataProblem(DataProblemCode.COUNT_UNKNOWN, "c", "n", "said by the source", at_ms=at_ms)
    frames = replace(build([pod("a", (0, 3), 8)], [node()], [units()]), problems=(problem,))
    found = run(frames, 3).problems_by_window()
    assert [problem in each for each in found] == [at == window for at in range(3)]


def test_a_node_without_boards_is_counted_by_nobody() -> None:
    frames = build([], [node(boards=0)], [])
    assert capacity(frames, hours(0, 1), RATES) == ({}, {"c/n1"})
