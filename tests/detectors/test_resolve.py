"""Overlapping claims: every GPU-second in one bucket, by hand and by laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.engine.waste_resolution import resolve
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingSubject,
    SubjectKind,
    WasteEpisode,
    WastePattern,
)
from gpucost.domain.buckets import (
    ORDER,
    UNALLOCATED,
    UNAVAILABLE,
    Waste,
)
from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import CLUSTER, World, at


def draft(*episodes: WasteEpisode) -> FindingDraft:
    subject = FindingSubject(SubjectKind.JOB, CLUSTER, "j")
    return FindingDraft(
        WastePattern.IDLE_ALLOCATION, "v", subject, at(0), "", (), FindingAction(""), "", episodes=episodes
    )


def claim(
    waste: Waste, node: str, pod: str, start: float, end: float, boards: float | None = None
) -> WasteEpisode:
    return WasteEpisode(waste, CLUSTER, node, pod, at(start), at(end), boards)


def _pieces(world: World, *drafts: FindingDraft) -> list[tuple[str, str, float, float, float, int]]:
    frame = resolve(world.facts().history, drafts)
    minutes = [(frame[name] - at(0)) / MINUTE_MS for name in ("start_ms", "end_ms")]
    return sorted(
        zip(frame["pod_uid"], frame["waste"], *minutes, frame["boards"], frame["draft"], strict=True)
    )


def test_gpus_that_one_claim_names_are_not_claimed_again_by_name() -> None:
    world = World(60).node("n").pod("p", "n", 0, 60, units=8)
    broken = draft(replace(claim(Waste.UNAVAILABLE, "n", "p", 10, 40, 1), gpus=("g0",)))
    idle = draft(replace(claim(Waste.IDLE, "n", "p", 0, 60, 2), gpus=("g0/1", "g1")))
    assert _pieces(world, idle, broken) == [
        ("p", "idle", 0, 10, 2, 0),
        ("p", "idle", 10, 40, 1, 0),
        ("p", "idle", 40, 60, 2, 0),
        ("p", "unavailable", 10, 40, 1, 1),
    ]


def test_the_first_bucket_wins_and_the_next_takes_what_is_left() -> None:
    world = World(60).node("n").pod("p", "n", 0, 60, units=8)
    idle = draft(claim(Waste.IDLE, "n", "p", 10, 40, 3))
    too_much = draft(claim(Waste.OVERSIZED, "n", "p", 0, 60, 6))
    stalled = draft(claim(Waste.GANG_STALL, "n", "p", 30, 35))
    assert _pieces(world, too_much, idle, stalled) == [
        ("p", "gang_stall", 30, 35, 8, 2),
        ("p", "idle", 10, 30, 3, 1),
        ("p", "idle", 35, 40, 3, 1),
        ("p", "oversized", 0, 10, 6, 0),
        ("p", "oversized", 10, 30, 5, 0),
        ("p", "oversized", 35, 40, 5, 0),
        ("p", "oversized", 40, 60, 6, 0),
    ]


def test_nobody_wastes_more_than_there_is() -> None:
    world = World(60).node("n").pod("p", "n", 10, 50, units=2)
    assert _pieces(world, draft(claim(Waste.IDLE, "n", "p", 0, 60, 5))) == [("p", "idle", 10, 50, 2, 0)]
    free = draft(claim(Waste.STARVED, "n", "", 0, 60, 7))
    assert _pieces(world, free) == [
        (UNALLOCATED, "starved", 0, 10, 7, 0),
        (UNALLOCATED, "starved", 10, 50, 6, 0),
        (UNALLOCATED, "starved", 50, 60, 7, 0),
    ]
    assert _pieces(world, draft(claim(Waste.IDLE, "n", "nobody", 0, 60))) == []


def test_missing_units_are_an_account_of_their_own() -> None:
    world = World(60).node("n", expected=8, allocatable=7).pod("p", "n", 0, 60, units=6)
    missing = draft(claim(Waste.UNAVAILABLE, "n", "", 0, 60, 4))
    free = draft(claim(Waste.NO_DEMAND, "n", "", 0, 60))
    assert _pieces(world, missing, free) == [
        (UNALLOCATED, "no_demand", 0, 60, 1, 1),
        (UNAVAILABLE, "unavailable", 0, 60, 1, 0),
    ]


def test_a_cordoned_node_has_nothing_free() -> None:
    world = World(60).node("n", schedulable=0)
    assert _pieces(world, draft(claim(Waste.STARVED, "n", "", 0, 60))) == []


def test_parts_of_boards_and_two_resources_of_one_pod() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    world = World(60).node("n", product="NVIDIA-H100-80GB-HBM3", resource=mig, units=14)
    world.counts("n", 0, 60, 14, 14, resource="nvidia.com/mig-2g.20gb")
    world.pod("p", "n", 0, 60, units=2, resource=mig)
    world.pod("p", "n", 0, 60, units=1, resource="nvidia.com/mig-2g.20gb")
    pieces = _pieces(world, draft(claim(Waste.IDLE, "n", "p", 0, 60)))
    assert [piece[4] for piece in pieces] == pytest.approx([2 / 7, 2 / 7])


WASTES = [Waste.GANG_STALL, Waste.PREEMPTED, Waste.IDLE, Waste.OVERSIZED]
CLAIMS = st.lists(
    st.tuples(
        st.sampled_from(WASTES),
        st.integers(0, 90),
        st.integers(1, 60),
        st.one_of(st.none(), st.floats(0.01, 9)),
    ),
    min_size=1,
    max_size=12,
)
HELD = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=3)


def _naive(
    claims: Sequence[tuple[Waste, int, int, float | None]], held: Sequence[tuple[int, int, int]]
) -> dict[tuple[int, Waste], float]:
    """Minute by minute, as the docstring of resolve says."""
    found: dict[tuple[int, Waste], float] = {}
    for minute in range(100):
        left = float(sum(units for start, length, units in held if start <= minute < start + length))
        for n, (waste, start, length, boards) in sorted(
            enumerate(claims), key=lambda item: (ORDER[item[1][0]], item[0])
        ):
            if start <= minute < start + length:
                taken = min(left, float("inf") if boards is None else boards)
                left -= taken
                found[n, waste] = found.get((n, waste), 0.0) + taken
    return {key: boards for key, boards in found.items() if boards > 1e-9}


@given(CLAIMS, HELD)
def test_resolving_is_what_a_minute_by_minute_count_says(
    claims: list[tuple[Waste, int, int, float | None]], held: list[tuple[int, int, int]]
) -> None:
    world = World(100).node("n", boards=64)
    for start, length, units in held:
        world.pod("p", "n", start, min(100, start + length), units=units)
    drafts = [
        draft(claim(waste, "n", "p", start, start + length, boards))
        for waste, start, length, boards in claims
    ]
    pieces = resolve(world.facts().history, drafts)
    time = (pieces["end_ms"] - pieces["start_ms"]) / MINUTE_MS
    summed = (pieces["boards"] * time).groupby([pieces["draft"], pieces["waste"]]).sum()
    expected = _naive(claims, held)
    assert {(n, Waste(waste)) for n, waste in summed.index} == set(expected)
    for (n, waste), boards in expected.items():
        assert summed[n, waste.value] == pytest.approx(boards, rel=1e-6)


@given(CLAIMS, HELD, st.randoms(use_true_random=False))
def test_cutting_and_shuffling_claims_changes_no_sum(
    claims: list[tuple[Waste, int, int, float | None]],
    held: list[tuple[int, int, int]],
    random: np.random.Generator,
) -> None:
    world = World(100).node("n", boards=64)
    for start, length, units in held:
        world.pod("p", "n", start, min(100, start + length), units=units)
    whole, cut = [], []
    for waste, start, length, boards in claims:
        whole.append(draft(claim(waste, "n", "p", start, start + length, boards)))
        middle = start + length / 2
        parts = [
            claim(waste, "n", "p", start, middle, boards),
            claim(waste, "n", "p", middle, start + length, boards),
        ]
        random.shuffle(parts)  # type: ignore[arg-type]  # a random.Random of hypothesis
        cut.append(draft(*parts))
    one, other = (_sums(resolve(world.facts().history, drafts)) for drafts in (whole, cut))
    assert one.index.tolist() == other.index.tolist()
    assert other.to_numpy() == pytest.approx(one.to_numpy(), rel=1e-6, abs=1e-6)


def _sums(pieces: pd.DataFrame) -> pd.Series[float]:
    time = pieces["end_ms"] - pieces["start_ms"]
    sums = (pieces["boards"] * time).groupby([pieces["draft"], pieces["waste"]]).sum()
    return sums[sums > 1].sort_index()
