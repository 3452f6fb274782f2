"""Lines divided among buckets: conservation to the millisecond and the nano-unit, whatever detectors say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import conform
from gpucost.attribution.teams import TeamRules
from gpucost.attribution.usage_lines import Attribution
from gpucost.attribution.waste import waste_parts
from gpucost.contract.frames import ACTIVITY, WASTE_PIECES
from gpucost.domain.buckets import UNALLOCATED, Waste
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from tests.detectors.worlds import CLUSTER, GPU, World, at, four_dollars


def attributed(world: World, minutes: int = 60) -> Attribution:
    """Lines in windows of ``minutes``."""
    windows = list(Window(at(0), at(world.end)).split(minutes * MINUTE_MS))
    return attribute(world.frames(), windows, rates=four_dollars, teams=TeamRules.default())


def watched(world: World, observed: dict[str, float] | None = None) -> pd.DataFrame:
    """Activity of every pod; ``observed`` is the part of its time that was observed (default all)."""
    held = world.frames().allocations
    names = ("pod_uid", "node", "start_ms", "end_ms", "count")
    nan = {column.name: np.nan for column in ACTIVITY.columns}
    rows = []
    for uid, node, start, end, count in zip(*(held[name].tolist() for name in names), strict=True):
        time = (end - start) * count
        seen = time * (observed or {}).get(uid, 1.0)
        place = {
            "cluster": CLUSTER,
            "node": node,
            "gpu": "g",
            "pod_uid": uid,
            "start_ms": start,
            "end_ms": end,
        }
        rows.append({**nan, **place, "held_ms": time, "observed_ms": seen, "busy_ms": seen})
    return conform(pd.DataFrame(rows), ACTIVITY) if rows else world.frames().activity


def pieces(*rows: tuple[str, str, float, float, Waste, float]) -> pd.DataFrame:
    """(node, pod or UNALLOCATED, from, to, waste, GPUs)"""
    frame = pd.DataFrame(
        [
            (CLUSTER, node, GPU, pod, at(a), at(b), waste.value, boards, 0)
            for node, pod, a, b, waste, boards in rows
        ],
        columns=list(WASTE_PIECES.column_names),
    )
    return conform(frame, WASTE_PIECES)


def _by(found: Attribution, parts: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    lines = found.flat()
    holder = lines["pod_uid"].to_numpy()[parts["line"].to_numpy()]
    sums = parts.groupby([pd.Series(holder), parts["waste"].to_numpy()])[["board_ms", "nano"]].sum()
    return {(str(pod), str(waste)): (int(ms), int(nano)) for (pod, waste), ms, nano in zip(
        sums.index, sums["board_ms"], sums["nano"], strict=True)}  # fmt: skip


def test_pieces_fall_into_windows_and_keep_time_and_money() -> None:
    world = World(120).node("n").pod("p", "n", 0, 120, units=4)
    found = attributed(world)
    claims = pieces(("n", "p", 30, 90, Waste.IDLE, 4.0), ("n", UNALLOCATED, 0, 120, Waste.STARVED, 1.0))
    parts = waste_parts(found, claims, watched(world))
    assert _by(found, parts) == {
        ("p", "idle"): (4 * HOUR_MS, 16_000_000_000),
        (UNALLOCATED, "starved"): (2 * HOUR_MS, 8_000_000_000),
    }
    assert sorted(found.lines.loc[parts["line"], "window"]) == [0, 0, 1, 1]


def test_held_time_that_nobody_observed_is_unknown_but_for_what_is_known_otherwise() -> None:
    world = World(60).node("n").pod("p", "n", 0, 60, units=1).pod("q", "n", 0, 60, units=1)
    found, seen = attributed(world), watched(world, {"p": 0.5, "q": 0.0})
    parts = waste_parts(
        found, pieces(("n", "p", 0, 15, Waste.IDLE, 1.0), ("n", "q", 0, 30, Waste.GANG_STALL, 1.0)), seen
    )
    by = _by(found, parts)
    assert by["p", "idle"][0] == 15 * MINUTE_MS
    # Of the 45 minutes that are left of p, 15 were observed.
    assert by["p", "unknown"][0] == 30 * MINUTE_MS
    assert by["q", "gang_stall"][0] == by["q", "unknown"][0] == 30 * MINUTE_MS


def test_claims_beyond_a_line_stop_at_the_line() -> None:
    world = World(60).node("n").pod("p", "n", 0, 60, units=1)
    found = attributed(world)
    parts = waste_parts(
        found,
        pieces(("n", "p", 0, 60, Waste.IDLE, 3.0), ("n", "p", 0, 60, Waste.OVERSIZED, 1.0)),
        watched(world),
    )
    assert _by(found, parts) == {("p", "idle"): (HOUR_MS, 4_000_000_000)}


def test_nobody_who_is_not_there_has_parts() -> None:
    world = World(60).node("n").pod("p", "n", 0, 60)
    found, seen = attributed(world), watched(world)
    assert waste_parts(found, pieces(("n", "other", 0, 60, Waste.IDLE, 1.0)), seen).empty
    assert waste_parts(found, pieces(("elsewhere", "p", 0, 60, Waste.IDLE, 1.0)), seen).empty


def test_without_activity_nothing_held_is_called_productive() -> None:
    """Signals by the hour cannot tell idle from busy time: who cannot see idleness must not deny it."""
    world = World(60).node("n").pod("p", "n", 0, 60, units=2)
    found = attributed(world)
    parts = waste_parts(found, pieces(), world.frames().activity)
    assert _by(found, parts) == {("p", "unknown"): (2 * HOUR_MS, 8_000_000_000)}


def test_labels_that_go_to_and_fro_do_not_double_a_claim() -> None:
    world = World(60).node("n")
    for start, end, team in ((0, 20, "a"), (20, 40, "b"), (40, 60, "a")):
        world.pod("p", "n", start, end, team=team)
    found = attributed(world)
    parts = waste_parts(found, pieces(("n", "p", 20, 40, Waste.IDLE, 1.0)), watched(world))
    assert _by(found, parts)["p", "idle"][0] == 20 * MINUTE_MS


def test_a_claim_on_a_pod_is_shared_by_the_jobs_in_it_by_their_gpu_time() -> None:
    """Of eight GPUs a job has three for half an hour; all eight are idle."""
    world = (
        World(60).node("n").pod("p", "n", 0, 30, units=3, team="a").pod("p", "n", 0, 30, units=5, team="b")
    )
    found = attributed(world.pod("p", "n", 30, 60, units=8, team="b"))
    activity = watched(World(60).node("n").pod("p", "n", 0, 60, units=8))
    parts = waste_parts(found, pieces(("n", "p", 0, 60, Waste.IDLE, 8.0)), activity)
    teams = found.flat()["team_label"].to_numpy()[parts["line"].to_numpy()]
    idle = {team: int(ms) for team, ms in parts.groupby(teams)["board_ms"].sum().items()}
    assert idle == {"a": 3 * 30 * MINUTE_MS, "b": (5 + 8) * 30 * MINUTE_MS}
    assert set(parts["waste"]) == {"idle"}


def test_a_claim_takes_nothing_from_a_line_that_it_does_not_meet() -> None:
    world = World(60).node("n").pod("p", "n", 0, 30, team="a").pod("p", "n", 30, 60, team="b")
    found, seen = attributed(world), watched(world, {"p": 0.0})
    parts = waste_parts(found, pieces(("n", "p", 0, 20, Waste.GANG_STALL, 1.0)), seen)
    assert {waste: ms for (_, waste), (ms, _) in _by(found, parts).items()} == {
        "gang_stall": 20 * MINUTE_MS,
        "unknown": 40 * MINUTE_MS,
    }


@given(
    pods=st.lists(st.tuples(st.integers(0, 170), st.integers(1, 180), st.integers(1, 4)), max_size=4),
    claims=st.lists(
        st.tuples(
            st.integers(-1, 3),
            st.floats(0, 179),
            st.floats(0.001, 120),
            st.sampled_from(list(Waste)[1:7]),
            st.floats(0.001, 10),
        ),
        max_size=8,
    ),
    minutes=st.sampled_from([15, 60]),
    seen=st.floats(0, 1),
)
def test_the_parts_of_a_line_are_whole_and_within_it(
    pods: list[tuple[int, int, int]],
    claims: list[tuple[int, float, float, Waste, float]],
    minutes: int,
    seen: float,
) -> None:
    world = World(180).node("n", boards=16)
    for n, (start, length, units) in enumerate(pods):
        world.pod(f"p{n}", "n", start, min(180, start + length), units)
    found = attributed(world, minutes)
    activity = watched(world, {f"p{n}": seen for n in range(len(pods))})
    rows = [
        ("n", UNALLOCATED if n < 0 else f"p{n}", start, min(180, start + length), waste, boards)
        for n, start, length, waste, boards in claims
        if round(start * MINUTE_MS) < round(min(180, start + length) * MINUTE_MS)
    ]
    parts = waste_parts(found, pieces(*rows), activity)
    assert (parts["board_ms"] > 0).all()
    assert (parts["nano"] >= 0).all()
    assert not parts.duplicated(["line", "waste"]).any()
    sums = parts.groupby("line")[["board_ms", "nano"]].sum()
    lines = found.lines.reset_index(drop=True).loc[sums.index]
    assert (sums["board_ms"] <= lines["board_ms"]).all()
    assert (sums["nano"] <= lines["nano"]).all()
    used_up = sums["board_ms"] == lines["board_ms"]
    assert (sums["nano"] == lines["nano"])[used_up].all()


def test_the_order_of_pieces_and_of_windows_does_not_matter_to_the_millisecond() -> None:
    world = World(180).node("n").pod("p", "n", 7, 172, units=3)
    claims = pieces(
        ("n", "p", 10, 50, Waste.IDLE, 1.0),
        ("n", "p", 50, 95, Waste.IDLE, 2.0),
        ("n", "p", 95, 170, Waste.OVERSIZED, 2.5),
    )
    sums = [
        _by(found, waste_parts(found, frame, watched(world)))
        for found in (attributed(world, 15), attributed(world, 60), attributed(world, 180))
        for frame in (claims, claims.iloc[::-1].reset_index(drop=True))
    ]
    assert sums[0]["p", "idle"][0] == (40 + 90) * MINUTE_MS
    for other in sums[1:]:
        for key, (ms, nano) in sums[0].items():
            assert other[key][0] == pytest.approx(ms, abs=12)
            assert other[key][1] == pytest.approx(nano, rel=1e-6)


def test_free_time_is_unknown_where_nobody_says_who_waits() -> None:
    world = World(60).node("n").pod("p", "n", 0, 60, units=4)
    found = attributed(world)
    claims = pieces(("n", UNALLOCATED, 0, 30, Waste.FRAGMENTED, 1.0))
    told = _by(found, waste_parts(found, claims, watched(world), demand_known=False))
    assert told == {
        (UNALLOCATED, "fragmented"): (HOUR_MS // 2, 2_000_000_000),
        (UNALLOCATED, "unknown"): (4 * HOUR_MS - HOUR_MS // 2, 14_000_000_000),
    }
    assert set(_by(found, waste_parts(found, claims, watched(world)))) == {(UNALLOCATED, "fragmented")}
