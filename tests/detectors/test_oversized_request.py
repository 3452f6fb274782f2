"""More GPU than there is use for: each variant, what it must not be taken for, and what it claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.views.node_fit import smallest_fit
from gpucost.detectors.allocation_pieces import board_ms
from gpucost.detectors.findings import FindingDraft, RuleDetection
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import OversizedRequestSettings, ScopedSettings, overridden
from gpucost.detectors.rules.oversized_request import oversized_request_rule
from gpucost.detectors.rules.oversized_request.candidates import quantile
from gpucost.domain.gpu import ShareBasis
from gpucost.domain.time import MINUTE_MS
from tests.detectors.case_oversized_request import A100_40, A100_80, CASES, host, job, team
from tests.detectors.worlds import GIB, GPU, Case, World, at, four_dollars

NAMES = [case.variant for case in CASES]


def detect(world: World | DetectorFacts, **values: object) -> RuleDetection:
    facts = world.facts() if isinstance(world, World) else world
    found = oversized_request_rule.run(facts, ScopedSettings(overridden(OversizedRequestSettings(), values)))
    # That the state is not watched is reported of the cluster each time, and tested by itself.
    return RuleDetection(
        found.drafts, tuple(each for each in found.withheld if each.subject.kind != "cluster")
    )


def only(world: World | DetectorFacts, **values: object) -> FindingDraft:
    detection = detect(world, **values)
    assert len(detection.drafts) == 1, detection
    return detection.drafts[0]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_least_that_is_a_finding(case: Case) -> None:
    draft = only(case.positive)
    assert (draft.variant, draft.ended_ms) == (case.variant, None)
    if case.is_view:
        assert draft.view_ms == case.board_ms
        assert draft.episodes == ()
    else:
        assert board_ms(draft.episodes) == pytest.approx(case.board_ms, abs=1)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_just_below_is_no_finding(case: Case) -> None:
    assert case.variant not in {draft.variant for draft in detect(case.below).drafts}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_too_short_is_no_finding(case: Case) -> None:
    assert detect(case.short) == RuleDetection()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_without_data_it_says_so(case: Case) -> None:
    detection = oversized_request_rule.run(case.gap.facts(), ScopedSettings(OversizedRequestSettings()))
    assert detection.drafts == ()
    assert any(each.lacks_data for each in detection.withheld)


@pytest.mark.parametrize(
    ("memory", "p95", "profile"),
    [
        (8e9, 0.10, "1g.10gb"),
        (8.1e9, 0.10, "1g.20gb"),
        (16.1e9, 0.10, "3g.40gb"),
        (32.1e9, 0.10, None),
        (8e9, 1 / 7, "1g.10gb"),
        (8e9, 0.15, "2g.20gb"),
        (8e9, 0.29, "3g.40gb"),
        (8e9, 0.5, "4g.40gb"),
        (8e9, 0.6, None),
    ],
)
def test_the_smallest_slice_that_fits(memory: float, p95: float, profile: str | None) -> None:
    fit = smallest_fit("H100", 80 * GIB, memory, p95, 0.8, ShareBasis.COMPUTE)
    assert (fit and fit.profile) == profile


def test_a_board_that_cannot_be_divided_fits_nothing() -> None:
    assert smallest_fit("L40S", 48 * GIB, 1e9, 0.01, 0.8, ShareBasis.COMPUTE) is None
    assert detect(job(product="NVIDIA-L40S", sm=0.1)) == RuleDetection()


def test_by_memory_a_slice_is_another_share() -> None:
    fit = smallest_fit("H100", 80 * GIB, 30e9, 0.1, 0.8, ShareBasis.MEMORY)
    assert fit is not None
    assert float(fit.share) == 0.5


def test_what_to_write() -> None:
    draft = only(job(sm=0.1))
    assert draft.action.patch == 'resources:\n  limits:\n    "nvidia.com/mig-1g.10gb": 1'
    assert draft.action.frees_boards == pytest.approx(6 / 7)
    assert draft.since_ms == at(15)
    assert draft.summary == (
        "Job ns/j1 uses 10.0 % of its GPU's SMs and 7.5 GiB of its memory: it fits 1g.10gb, 1/7 of the GPU"
    )
    assert "what it asks of cores and host memory is not known" in draft.checked
    assert any("days of history there are" in each for each in draft.checked)


def test_since_stays_while_time_goes_on() -> None:
    drafts = [only(job(minutes, sm=0.1)) for minutes in (61, 66, 600)]
    assert {draft.since_ms for draft in drafts} == {at(15)}
    assert len({draft.fingerprint for draft in drafts}) == 1


def test_jobs_that_never_worked_are_left_to_idle_allocation() -> None:
    assert detect(job(300, gpus=(0.0,))) == RuleDetection()
    assert detect(job(300, gpus=(0.0, 0.0, 0.0, 0.0))) == RuleDetection()
    assert detect(job(300, gpus=(0.9, 0.0, 0.0, 0.0), sm=0.5)) == RuleDetection()


def test_of_gpus_that_do_nothing_at_all_none_is_claimed() -> None:
    draft = only(job(70, gpus=(0.9, 0.01, 0.0, 0.0), sm=0.5))
    assert draft.variant == "too_many_gpus"
    assert board_ms(draft.episodes) == 60 * MINUTE_MS
    (container,) = yaml.safe_load(draft.action.patch)["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {GPU: 1}}
    assert draft.summary == "Job ns/j1 uses 1 of its 4 GPUs; of the others 1 hardly ever works, 2 never do"


def test_without_a_gap_between_those_in_use_and_the_others_it_is_low_efficiency() -> None:
    assert only(job(70, gpus=(0.9, 0.06, 0.02, 0.01), sm=0.5)).variant == "too_many_gpus"
    assert detect(job(70, gpus=(0.9, 0.06, 0.0201, 0.01), sm=0.5)) == RuleDetection()


def test_a_job_that_stopped_working_is_not_small() -> None:
    """Two hours at half of the SMs, then six at rest: idle, but not too small for its GPU."""
    world = World(485).node("n1").pod("p1", "n1", 5)
    world.work("p1", "n1", "g", [1.0] * 24 + [0.0] * 72, start=5, sm=0.5, memory=4 * GIB)
    assert detect(world) == RuleDetection()


def test_the_warm_up_is_not_judged() -> None:
    world = World(105).node("n1").pod("p1", "n1", 5)
    world.work("p1", "n1", "g", [1.0] * 2, start=5, sm=1.0, memory=4 * GIB)
    world.work("p1", "n1", "g", [1.0] * 18, start=15, sm=0.1, memory=4 * GIB)
    assert only(world).since_ms == at(15)


def test_a_job_needs_what_its_busiest_steps_need() -> None:
    """10 % on average, but a twentieth of the time 35 %: 2/7 are too little, 3/7 enough."""
    world = World(205).node("n1").pod("p1", "n1", 5)
    for n in range(40):
        level = 0.35 if n % 10 == 0 else 0.07
        world.work("p1", "n1", "g", [level], start=5 + 5 * n, sm=1.0, memory=4 * GIB)
    evidence = {each.name: each.value for each in only(world).evidence}
    assert evidence["smallest slice that fits"] == "3g.40gb"


def test_jobs_on_several_nodes_or_slices_get_no_advice_on_slices() -> None:
    world = World(105).node("n1").node("n2").pod("p1", "n1", 5, job="j").pod("p2", "n2", 5, job="j")
    for n in (1, 2):
        world.work(f"p{n}", f"n{n}", f"g{n}", [1.0] * 20, start=5, sm=0.1, memory=4 * GIB)
    assert detect(world) == RuleDetection()
    sliced = World(105).node("n1", resource="nvidia.com/mig-3g.40gb", units=2)
    sliced.pod("p1", "n1", 5, resource="nvidia.com/mig-3g.40gb")
    sliced.work("p1", "n1", "g/1", [1.0] * 20, start=5, sm=0.1, memory=4 * GIB, share=3 / 7)
    assert detect(sliced) == RuleDetection()


def test_host_memory_that_only_a_whole_gpu_comes_with() -> None:
    world = job(sm=0.1)
    other = host(cores=1)
    assert other.overview is not None
    world.overview = other.overview
    (draft,) = detect(world).drafts
    assert any("of host memory: ask for less of them too" in each for each in draft.checked)


def test_a_teams_few_hours_are_no_news() -> None:
    detection = detect(job(sm=0.1), team_gpu_hours=1000)
    assert detection.drafts == ()
    assert detection.withheld[0].because.startswith("its team's jobs of this kind held")
    assert not detection.withheld[0].lacks_data


def test_half_of_the_gpus_unseen_decide_nothing() -> None:
    world = job(70, gpus=(0.9, 0.01), sm=0.5)
    world.rows["allocations"][0]["count"] = 4
    detection = detect(world)
    assert detection.drafts == ()
    assert detection.withheld[0].lacks_data


def test_teams_are_ranked_and_the_first_shown() -> None:
    world = World(24 * 60).node("n1").node("n2").node("n3")
    for n, sm in enumerate((0.2, 0.1, 0.15), start=1):
        world.pod(f"p{n}", f"n{n}", 0, units=8, team=f"t{n}")
        for gpu in range(8):
            world.work(f"p{n}", f"n{n}", f"{n}-{gpu}", [1.0] * 24, step=60, sm=sm)
    drafts = detect(world, low_top=2).drafts
    assert [draft.subject.name for draft in drafts] == ["t2", "t3"]
    assert drafts[0].view_ms == round(8 * 24 * 60 * MINUTE_MS * 0.8)


def test_teams_with_full_memory_or_a_small_part_of_the_cluster_are_left_out() -> None:
    full = team()
    for row in full.rows["activity"]:
        row["memory_used_bytes"] = 61 * GIB
    assert detect(full) == RuleDetection()
    assert detect(team(), low_part_of_cluster=0.34) == RuleDetection()
    assert detect(team(), low_part_of_cluster=0.33).drafts


def test_the_fullest_gpu_decides_on_memory() -> None:
    world = World(105).node("n1", product=A100_80).node("n2", product=A100_40)
    world.pod("p1", "n1", 5, units=2)
    world.work("p1", "n1", "g0", [1.0] * 20, start=5, memory=20 * GIB)
    world.work("p1", "n1", "g1", [1.0] * 20, start=5, memory=40 * GIB)
    draft = only(world)
    assert draft.action.patch == f'nodeSelector:\n  "nvidia.com/gpu.product": "{A100_40}"'
    world.rows["activity"][-1]["memory_used_bytes"] = 41.0 * GIB
    world.rows["activity"][-2]["memory_used_bytes"] = 41.0 * GIB
    assert detect(world) == RuleDetection()


def test_a_job_is_told_of_one_thing() -> None:
    draft = only(job(sm=0.1, product=A100_80))
    assert draft.variant == "fits_smaller"


def test_cores_that_strand_gpus() -> None:
    draft = only(host())
    assert draft.action.patch == 'resources:\n  requests:\n    cpu: "48"'
    assert "3 free GPUs there can be given to nobody" in draft.summary
    assert detect(host(node_cores=192)) == RuleDetection()


def test_nothing_at_all() -> None:
    assert detect(World(60).node("n1")) == RuleDetection()


# Laws.


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20)), min_size=1, max_size=20), st.floats(0.01, 1))
def test_a_weighted_quantile_is_that_of_repeated_values(pairs: list[tuple[float, int]], part: float) -> None:
    values, weights = np.array([a for a, _ in pairs]), np.array([float(b) for _, b in pairs])
    repeated = np.sort(np.repeat(values, weights.astype(int)))
    expected = repeated[max(0, int(np.ceil(part * len(repeated) - 1e-9)) - 1)]
    assert quantile(values, weights, part) == expected


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(400).node("n1").node("n2")
    for n in range(2):
        start, end = 5 * draw(st.integers(1, 20)), 5 * draw(st.integers(40, 80))
        gpus = draw(st.integers(1, 4))
        world.pod(f"p{n}", f"n{n + 1}", start, end, units=gpus)
        for gpu in range(gpus):
            levels = draw(st.lists(st.sampled_from([0.0, 0.03, 0.04, 0.9, 0.9]), min_size=1, max_size=3))
            each = -(-(end - start) // 5 // len(levels))
            steps = [level for level in levels for _ in range(each)][: (end - start) // 5]
            sm, memory = draw(st.sampled_from([0.05, 0.1, 0.5])), draw(st.sampled_from([4, 12, 25, 60])) * GIB
            world.work(f"p{n}", f"n{n + 1}", f"g{n}{gpu}", steps, start=start, sm=sm, memory=memory)
    return world


def changed(facts: DetectorFacts, activity: pd.DataFrame) -> DetectorFacts:
    history = ClusterHistory(
        replace(facts.history.frames, activity=activity), facts.history.window, facts.history.teams
    )
    return DetectorFacts(facts.cluster, history, GpuTimePrices(history, four_dollars))


def told(detection: RuleDetection) -> list[tuple[str, int, int]]:
    return [(each.fingerprint, each.since_ms, board_ms(each.episodes)) for each in detection.drafts]


@settings(max_examples=20)
@given(worlds(), st.integers(0, 1 << 30), st.permutations([0, 1, 2, 3]))
def test_order_names_and_length_of_steps_change_nothing(
    world: World, seed: int, order: Sequence[int]
) -> None:
    facts = world.facts()
    expected = told(detect(facts))
    activity = facts.history.frames.activity
    assert told(detect(changed(facts, activity.sample(frac=1, random_state=seed)))) == expected
    names = {f"g{n}{a}": f"g{n}{b}" for n in range(2) for a, b in enumerate(order)}
    assert told(detect(changed(facts, activity.assign(gpu=activity["gpu"].replace(names))))) == expected
    halves = pd.concat([_part(activity, 0, 0.4), _part(activity, 0.4, 1)], ignore_index=True)
    again = told(detect(changed(facts, halves)))
    assert [each[:2] for each in again] == [each[:2] for each in expected]
    assert [each[2] for each in again] == pytest.approx([each[2] for each in expected], abs=1)


def _part(activity: pd.DataFrame, begin: float, end: float) -> pd.DataFrame:
    length = activity["end_ms"] - activity["start_ms"]
    sums = ["held_ms", "observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "energy_j"]
    return activity.assign(
        start_ms=(activity["start_ms"] + length * begin).astype("int64"),
        end_ms=(activity["start_ms"] + length * end).astype("int64"),
        **{name: activity[name] * (end - begin) for name in sums},
    )


@settings(max_examples=20)
@given(worlds())
def test_a_small_jobs_claim_is_an_integral_of_its_rows(world: World) -> None:
    """By pandas: all rows after the warm-up, without rests of an hour, times what the slice leaves."""
    facts = world.facts()
    activity = facts.history.frames.activity
    starts = facts.history.held.set_index("pod_uid")["start_ms"]
    for draft in detect(facts).drafts:
        if draft.variant != "fits_smaller":
            continue
        uid = draft.episodes[0].pod_uid
        rows = activity[activity["pod_uid"] == uid].sort_values("start_ms")
        rest = (rows["busy_ms"] > 0).cumsum()
        lasting = rows[rows["busy_ms"] == 0].groupby(rest)["held_ms"].transform("sum")
        resting = lasting.reindex(rows.index).fillna(0) >= 60 * MINUTE_MS
        counted = rows[~resting & (rows["start_ms"] >= starts[uid] + 10 * MINUTE_MS)]
        profile = next(each.value for each in draft.evidence if each.name == "smallest slice that fits")
        expected = counted["held_ms"].sum() * (1 - int(str(profile)[0]) / 7)
        claimed = sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in draft.episodes)
        assert claimed == pytest.approx(expected, rel=1e-6)
