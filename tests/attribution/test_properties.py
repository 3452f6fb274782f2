"""What must hold for any cluster: the seven properties of the reference, and those of our own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpucost.attribution import attribute as attribute_module
from gpucost.attribution.attribute import attribute
from gpucost.attribution.conservation import difference
from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.attribution.usage_lines import Attribution
from gpucost.contract.frames import HOLDER_COLUMNS, SIGNALS
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from tests.support.frames import START, FlatRates, NamespaceTeams, build, hours, node, pod, signal, units

LENGTH = 3 * HOUR_MS
PRICES = FlatRates(("2.50", 0), ("3.333333333", 1.3))
slow = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# What a node can be: its GPUs, and its resources as (name, units, replicas).
KINDS: list[tuple[int, list[tuple[str, int, int]]]] = [
    (8, [("nvidia.com/gpu", 8, 1)]),
    (2, [("nvidia.com/gpu", 2, 1)]),
    (1, [("nvidia.com/mig-1g.10gb", 7, 1)]),
    (1, [("nvidia.com/mig-3g.40gb", 1, 1), ("nvidia.com/mig-2g.20gb", 1, 1)]),
    (2, [("nvidia.com/gpu", 1, 1), ("nvidia.com/mig-1g.10gb", 5, 1)]),
    (2, [("nvidia.com/gpu", 6, 3)]),
    (1, [("nvidia.com/mig-1g.10gb", 14, 2)]),
]


@st.composite
def clusters(draw: st.DrawFn, overcommit: bool = True, vanishing: bool = False) -> ClusterFrames:
    """One to three nodes of any kind, with pods, failures, cordons and gaps, to the millisecond.

    With ``vanishing``, nodes go while pods still hold their units, GPUs are not counted, and counts of
    resources end.
    """
    nodes, counts, pods = [], [], []
    for i in range(draw(st.integers(1, 3))):
        boards, kinds = draw(st.sampled_from(KINDS))
        name = f"n{i}"
        since = draw(st.sampled_from([START, START + 1234567]))
        until = START + 90 * DAY_MS
        if vanishing:
            boards = draw(st.sampled_from([boards, boards, -1]))
            until = draw(st.sampled_from([until, draw(st.integers(since + 1, START + LENGTH))]))
        nodes.append(node(name, boards, start_ms=since, end_ms=until))
        for resource, number, replicas in kinds:
            cut = draw(st.integers(since, START + LENGTH))
            ill = {
                "allocatable": number - draw(st.integers(0, number)),
                "schedulable": draw(st.integers(0, 1)),
            }
            counts.append(units(number, resource, name, replicas=replicas, start_ms=since, end_ms=cut))
            if not vanishing or draw(st.booleans()):
                counts.append(units(number, resource, name, replicas=replicas, start_ms=cut, **ill))
            free = number
            for j in range(draw(st.integers(0, 4))):
                start = draw(st.integers(since, START + LENGTH - 1))
                end = draw(st.integers(start, START + LENGTH + HOUR_MS))
                count = draw(st.integers(1, number if overcommit else max(free, 1)))
                if not overcommit:
                    if free < count:
                        continue
                    free -= count
                who = pod(f"p{i}{j}{resource[-4:]}", (0, 0), count, resource, name)
                pods.append(who | {"start_ms": start, "end_ms": end})
    gap = draw(st.floats(0, 3)), draw(st.floats(0, 1))
    return build(pods, nodes, counts, observed=[(0, gap[0]), (gap[0] + gap[1], 100)])


def run(frames: ClusterFrames, step: int = HOUR_MS) -> Attribution:
    return attribute(frames, list(hours(0, 3).split(step)), rates=PRICES, teams=NamespaceTeams())


def totals(result: Attribution, by: list[str]) -> dict[Any, tuple[int, int]]:
    sums = result.flat().groupby(by)[["board_ms", "nano"]].sum()
    return {key: (int(row["board_ms"]), int(row["nano"])) for key, row in sums.iterrows()}


@pytest.mark.fault(31)
@slow
@given(clusters())
def test_a_parts_add_up_to_the_asset_in_time_and_money(frames: ClusterFrames) -> None:
    flat = run(frames).flat()
    assert difference(flat, frames, hours(0, 3), PRICES).is_zero
    assert (flat["board_ms"] >= 0).all()  # a seventh of a GPU for one millisecond may be none
    assert (flat["nano"] >= 0).all()


@slow
@given(clusters(vanishing=True))
def test_a_boards_that_were_counted_are_never_billed_twice(frames: ClusterFrames) -> None:
    result = run(frames)
    found = difference(result.flat(), frames, hours(0, 3), PRICES)
    assert found.is_zero, found
    assert DataProblemCode.NOT_CONSERVED not in {problem.code for problem in result.problems}


@pytest.mark.fault(31)
@slow
@given(clusters())
def test_a_every_node_adds_up_in_every_window(frames: ClusterFrames) -> None:
    flat = run(frames).flat()
    flat = flat[flat["bucket"] != Bucket.OVERCOMMITTED]
    sums = flat.groupby(["node", "window_start_ms"])["board_ms"].sum()
    for row in frames.nodes.itertuples():
        for window in hours(0, 3).split(HOUR_MS):
            alive = window.overlap_ms(int(str(row.start_ms)), int(str(row.end_ms)))
            assert sums[row.node, window.start_ms] == int(str(row.boards)) * alive


@slow
@given(clusters())
def test_b_idle_is_never_negative_and_over_commitment_has_a_cause(frames: ClusterFrames) -> None:
    result = run(frames)
    flat = result.flat()
    over = flat[flat["bucket"] == Bucket.OVERCOMMITTED]
    assert (flat["nano"] >= 0).all()
    assert (over["nano"] == 0).all()
    named = {problem.subject for problem in result.problems if problem.code is DataProblemCode.OVERCOMMITTED}
    assert named == set(over["node"])


@slow
@given(clusters(overcommit=False))
def test_b_without_over_commitment_every_pod_has_exactly_what_it_asked_for(frames: ClusterFrames) -> None:
    flat = run(frames).flat()
    assert Bucket.OVERCOMMITTED not in set(flat["bucket"])
    held = flat[flat["bucket"] == Bucket.HELD].groupby("pod_uid")["board_ms"].sum()
    for row in frames.allocations.to_dict("records"):
        mine = flat[(flat["pod_uid"] == row["pod_uid"]) & (flat["bucket"] == Bucket.HELD)]
        inside = hours(0, 3).overlap_ms(row["start_ms"], row["end_ms"])
        if inside and not mine.empty:
            share = mine["share_num"].iloc[0] / mine["share_den"].iloc[0]
            assert abs(held[row["pod_uid"]] - row["count"] * share * inside) <= 8 * 60


@pytest.mark.fault(32)
@slow
@given(
    st.one_of(clusters(), clusters(vanishing=True)),
    st.sampled_from([7 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS]),
)
def test_c_window_size_never_changes_a_total(frames: ClusterFrames, step: int) -> None:
    by = ["node", "resource", "bucket", "pod_uid"]
    assert totals(run(frames, step), by) == totals(run(frames, 5 * MINUTE_MS), by)


def clipped(frames: ClusterFrames, window: Window) -> ClusterFrames:
    """What a source that clips everything to the window would return."""
    parts = []
    for frame in (frames.allocations, frames.nodes, frames.capacity, frames.observed):
        meets = (frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)
        times = {name: frame[name].clip(window.start_ms, window.end_ms) for name in ("start_ms", "end_ms")}
        parts.append(frame.assign(**times)[meets].reset_index(drop=True))
    return ClusterFrames(*parts)


@slow
@given(st.one_of(clusters(), clusters(vanishing=True)), st.integers(START + 1, START + LENGTH - 1))
def test_c_two_halves_read_and_attributed_apart_add_up_to_the_whole(frames: ClusterFrames, cut: int) -> None:
    by = ["node", "resource", "bucket", "pod_uid"]
    whole = hours(0, 3)
    summed: dict[Any, tuple[int, int]] = {}
    for a, b in ((whole.start_ms, cut), (cut, whole.end_ms)):
        window = Window(a, b)
        part = attribute(clipped(frames, window), [window], rates=PRICES, teams=NamespaceTeams())
        for key, (ms, nano) in totals(part, by).items():
            before = summed.get(key, (0, 0))
            summed[key] = (before[0] + ms, before[1] + nano)
    assert summed == totals(run(frames), by)


@pytest.mark.fault(31)
@slow
@given(clusters(), st.randoms(use_true_random=False))
def test_d_the_order_of_rows_and_of_grouping_does_not_matter(frames: ClusterFrames, random: Any) -> None:
    def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.sample(frac=1, random_state=random.randrange(2**32)).reset_index(drop=True)

    mixed = ClusterFrames(
        *(shuffled(frame) for frame in (frames.allocations, frames.nodes, frames.capacity)), frames.observed
    )
    one, other = run(frames).flat(), run(mixed).flat()
    columns = list(one.columns)
    assert one.sort_values(columns).values.tolist() == other.sort_values(columns).values.tolist()
    coarse = one.groupby("bucket")["nano"].sum()
    fine = one.groupby(["bucket", "node", "pod_uid"])["nano"].sum().groupby("bucket").sum()
    assert coarse.to_dict() == fine.to_dict()


@slow
@given(clusters(), st.booleans())
def test_d_the_number_of_nodes_at_a_time_does_not_matter(frames: ClusterFrames, is_coded: bool) -> None:
    """Neither does it matter whether names come as texts or as codes: all is the same, the order too."""
    pods = frames.allocations[["cluster", "node", "pod_uid", "start_ms", "end_ms"]].drop_duplicates("pod_uid")
    names = [column.name for column in SIGNALS.columns]
    signals = pods.assign(observed_ms=0.8 * MINUTE_MS, busy_ms=7.5).reindex(columns=names)
    signals = conform(signals.fillna({"pod": ""}), SIGNALS)
    coded = dict.fromkeys((*(column.name for column in HOLDER_COLUMNS), "node"), "category")
    of_nodes = replace(
        frames,
        allocations=frames.allocations.astype(coded) if is_coded else frames.allocations,
        signals=signals,
    )
    whole = run(replace(frames, signals=signals))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribute_module, "MOST_ROWS", 1)
        parts = run(of_nodes)
    pd.testing.assert_frame_equal(whole.lines, parts.lines)
    pd.testing.assert_frame_equal(whole.flat(), parts.flat())
    assert whole.located == parts.located


@slow
@given(clusters())
def test_e_renaming_pods_changes_nothing(frames: ClusterFrames) -> None:
    renamed = frames.allocations.assign(pod=[f"zz{i:03}" for i in reversed(range(len(frames.allocations)))])
    by = ["node", "resource", "bucket", "pod_uid", "window_start_ms"]
    other = ClusterFrames(renamed.astype({"pod": "str"}), frames.nodes, frames.capacity, frames.observed)
    assert totals(run(frames), by) == totals(run(other), by)


@slow
@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=4),
    st.floats(0, 20),
    st.floats(0, 20),
)
def test_f_efficiency_is_between_0_and_1(
    spans: list[tuple[float, float]], observed: float, busy: float
) -> None:
    real = [(a, b) for a, b in spans if b - a > 0.001]
    assume(real)
    pods = [pod(f"p{i}", span, 2) for i, span in enumerate(real)]
    signals = [signal(f"p{i}", span, observed, busy) for i, span in enumerate(real)]
    flat = run(build(pods, [node()], [units()], signals=signals)).flat()
    seen = flat.dropna(subset=["observed_ms"])
    assert (seen["observed_ms"] <= seen["board_ms"]).all()
    assert (seen["busy_ms"] <= seen["observed_ms"]).all()
    assert (seen["busy_ms"] >= 0).all()


@slow
@given(clusters())
def test_g_missing_data_never_lowers_cost_silently(frames: ClusterFrames) -> None:
    """Take the counts away: what pods held stays on the bill, and a problem says so."""
    assume(not frames.allocations.empty)
    full = run(frames)
    held = {key: value for key, value in totals(full, ["bucket", "node"]).items() if key[0] == Bucket.HELD}
    assume(held)
    blind = ClusterFrames(frames.allocations, frames.nodes, frames.capacity.iloc[:0], frames.observed)
    result = run(blind)
    without = totals(result, ["bucket", "node"])
    said = {(problem.subject, problem.code) for problem in result.problems}
    for (bucket, name), (ms, nano) in held.items():
        assert {(name, DataProblemCode.COUNT_UNKNOWN), (name, DataProblemCode.UNIT_UNKNOWN)} & said
        # Replica counts stand with the capacity: without them a replica counts as a whole GPU, and what
        # no longer fits the GPUs is over-committed, and said to be.
        if (name, DataProblemCode.OVERCOMMITTED) not in said:
            assert without[bucket, name][0] >= ms - 8 * 60
            assert without[bucket, name][1] >= nano - 8 * 60


@pytest.mark.fault(29)
@slow
@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_nonsense_times_are_refused_and_named_never_billed(start: int, end: int) -> None:
    frames = build([pod("a", (0, 0)) | {"start_ms": start, "end_ms": end}], [node()], [units()])
    result = run(frames)
    held, _ = result.totals().get(Bucket.HELD, (0, 0))
    assert 0 <= held <= LENGTH
    if start > end:
        assert [problem.code for problem in result.problems] == [DataProblemCode.INTERVAL_REFUSED]
        assert held == 0


@pytest.mark.fault(26)
def test_a_gap_is_unknown_not_idle_and_what_was_held_for_certain_stays_held() -> None:
    gap = [(0, 1), (1 + 1 / 3, 24)]
    result = run(build([pod("a", (0, 3), 2)], [node()], [units()], observed=gap))
    assert {bucket: ms for bucket, (ms, _) in result.totals().items()} == {
        Bucket.HELD: 6 * HOUR_MS,
        Bucket.UNALLOCATED: 6 * (3 * HOUR_MS - 20 * MINUTE_MS),
        Bucket.UNKNOWN: 6 * 20 * MINUTE_MS,
    }


def test_a_cordoned_node_and_a_lost_gpu_are_unavailable() -> None:
    cordoned = [units(end_ms=START + HOUR_MS), units(start_ms=START + HOUR_MS, schedulable=0)]
    result = run(build([pod("a", (0, 3), 2)], [node()], cordoned))
    assert result.totals()[Bucket.UNAVAILABLE][0] == 2 * 6 * HOUR_MS
    lost = run(build([pod("a", (0, 3), 2)], [node()], [units(allocatable=7)]))
    assert lost.totals()[Bucket.UNAVAILABLE][0] == 3 * HOUR_MS
    silent = run(build(nodes=[node()]))
    assert silent.totals() == {Bucket.UNAVAILABLE: (24 * HOUR_MS, silent.totals()[Bucket.UNAVAILABLE][1])}


def test_one_holder_has_one_line_even_if_the_source_split_its_interval() -> None:
    parts = [pod("a", (0, 0.5)), pod("a", (0.5, 1))]
    flat = run(build(parts, [node()], [units()])).flat()
    held = flat[flat["bucket"] == Bucket.HELD]
    assert held[["board_ms", "first_ms", "last_ms"]].values.tolist() == [[HOUR_MS, START, START + HOUR_MS]]
    key = ["window_start_ms", "node", "resource", "bucket", *(c.name for c in HOLDER_COLUMNS), "rate_id"]
    assert not flat.duplicated(key).any()
