"""Idle GPUs: whole jobs and parts of them, and everything that only looks like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.attribution.frames import ClusterFrames
from gpucost.detectors.allocation_pieces import board_ms
from gpucost.detectors.findings import FindingDraft, RuleDetection, WasteEpisode
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import (
    IdleAllocationSettings,
    ScopedSettings,
    SettingsOverride,
    overridden,
)
from gpucost.detectors.rules.idle_allocation import idle_allocation_rule
from gpucost.domain.time import MINUTE_MS, Window
from tests.detectors.case_idle_allocation import CASES, holding, idle, spoiled
from tests.detectors.worlds import GIB, GPU, STEP, T0, Case, World, at, four_dollars, read_of

NAMES = [f"{case.variant}-{n}" for n, case in enumerate(CASES)]


def detect(world: World | DetectorFacts, **settings: object) -> RuleDetection:
    facts = world.facts() if isinstance(world, World) else world
    return idle_allocation_rule.run(facts, ScopedSettings(overridden(IdleAllocationSettings(), settings)))


def only(world: World | DetectorFacts, **settings: object) -> FindingDraft:
    detection = detect(world, **settings)
    assert len(detection.drafts) == 1, detection
    return detection.drafts[0]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_least_that_is_a_finding(case: Case) -> None:
    draft = only(case.positive)
    assert (draft.variant, draft.ended_ms) == (case.variant, None)
    assert board_ms(draft.episodes) == case.board_ms
    assert draft.since_ms == case.positive.facts().now_ms - _length(draft)


def _length(draft: FindingDraft) -> int:
    return max(each.end_ms for each in draft.episodes) - min(each.start_ms for each in draft.episodes)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_single_kernel_is_enough_to_be_no_finding(case: Case) -> None:
    assert detect(case.below) == RuleDetection()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_step_less_is_no_finding(case: Case) -> None:
    assert detect(case.short) == RuleDetection()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_without_data_it_says_so(case: Case) -> None:
    detection = detect(case.gap)
    assert detection.drafts == ()
    assert [each.lacks_data for each in detection.withheld] == [True]
    assert "data are missing" in detection.withheld[0].because


def test_one_step_that_nobody_saw_breaks_nothing_and_is_not_claimed() -> None:
    levels = spoiled(idle(70 + 30), None, [10])
    draft = only(holding([levels]))
    assert draft.since_ms == at(15)
    assert board_ms(draft.episodes) == (90 - STEP) * MINUTE_MS
    assert len(draft.episodes) == 2


def test_since_and_fingerprint_stay_while_time_goes_on() -> None:
    drafts = [only(holding([idle(minutes)] * 2)) for minutes in (70, 75, 300)]
    assert {draft.since_ms for draft in drafts} == {at(15)}
    assert len({draft.fingerprint for draft in drafts}) == 1


def test_what_is_over_has_an_end() -> None:
    world = holding([[*idle(100), *[1.0] * 6]])
    draft = only(world)
    assert (draft.since_ms, draft.ended_ms) == (at(15), at(105))
    assert draft.action.patch == ""
    assert draft.action.frees_boards == 0


def test_each_maximal_stretch_is_a_finding_of_its_own() -> None:
    draft, later = detect(holding([[*idle(100), 1.0, *idle(240)]])).drafts
    assert (draft.since_ms, later.since_ms) == (at(15), at(110))
    assert draft.fingerprint == later.fingerprint


def test_a_gpu_of_eight_never_makes_the_job_idle() -> None:
    busy = [1.0] * 24
    draft = only(holding([*[busy] * 7, idle(120)], busy_first=6))
    assert draft.variant == "partly"
    assert [(each.pod_uid, each.boards) for each in draft.episodes] == [("p1", 1.0)]
    assert draft.summary == "1 of the 8 GPUs of Job ns/j1 does nothing, for 2.0 h since 2026-10-06T00:35:00Z"
    patch = yaml.safe_load(draft.action.patch)
    assert (patch["kind"], patch["metadata"]) == ("Job", {"name": "j1", "namespace": "ns"})
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 7}}
    assert draft.action.text.endswith("It takes effect when the job is started again.")


def test_all_pods_of_a_job_must_idle() -> None:
    world = World(100).node("n1").node("n2")
    world.pod("p1", "n1", 5, units=8, job="j").pod("p2", "n2", 5, units=8, job="j")
    for n in range(8):
        world.work("p1", "n1", f"a{n}", idle(95), start=5).work("p2", "n2", f"b{n}", [1.0] * 19, start=5)
    draft = only(world)
    assert (draft.variant, board_ms(draft.episodes)) == ("partly", 8 * 85 * MINUTE_MS)
    assert draft.action.text.startswith("Run it with 1 pod instead of 2")


def test_while_all_gpus_idle_none_of_it_is_partly() -> None:
    """One GPU never worked; the others stopped much later, long enough for the whole job."""
    world = holding([[*[1.0] * 24, *idle(240)], [*idle(120), *idle(240)]], busy_first=1)
    partly, whole = detect(world).drafts
    assert (partly.variant, partly.since_ms, partly.ended_ms) == ("partly", at(15), at(130))
    assert (whole.variant, whole.since_ms, whole.ended_ms) == ("whole", at(130), None)
    assert board_ms(partly.episodes + whole.episodes) == (115 + 2 * 240) * MINUTE_MS


def test_a_gpu_that_nobody_measures_is_not_called_idle() -> None:
    world = holding([idle(100)] * 2)
    world.rows["allocations"][0]["count"] = 3
    detection = detect(world)
    assert detection.drafts == ()
    assert detection.withheld[0].lacks_data


def test_profiling_paused_is_no_idleness() -> None:
    world = holding([idle(300)])
    for row in world.rows["activity"]:
        row.update(observed_ms=float("nan"), busy_ms=float("nan"))
        row.update(sm_observed_ms=float("nan"), sm_active_ms=float("nan"))
    detection = detect(world)
    assert detection.drafts == ()
    assert [each.lacks_data for each in detection.withheld] == [True]


def test_a_start_of_25_minutes_is_not_idle_however_strict() -> None:
    world = holding([[*idle(25), 1.0, *[1.0] * 6]])
    assert detect(world, batch_from_start="10m").drafts == ()
    assert detect(holding([idle(25)]), batch_from_start="10m").drafts == ()
    assert len(detect(holding([idle(30)]), batch_from_start="10m").drafts) == 1


def test_dead_after_two_hours_of_work() -> None:
    assert detect(holding([idle(235)], busy_first=24)) == RuleDetection()
    draft = only(holding([idle(240)], busy_first=24))
    assert draft.since_ms == at(125)
    assert "logs p1" in draft.action.patch
    assert "suspend" in only(holding([idle(300)], busy_first=24)).action.patch


@pytest.mark.parametrize(
    ("watts", "product", "found"),
    [
        (99.0, "NVIDIA-A100-SXM4-80GB", True),
        (100.0, "NVIDIA-A100-SXM4-80GB", False),
        (120.0, "NVIDIA-H100-80GB-HBM3", True),
        (39.0, "NVIDIA-L4", True),
        (60.0, "NVIDIA-L4", False),
        (99.0, "Some-Other-GPU", True),
        (100.0, "Some-Other-GPU", False),
    ],
)
def test_power_contradicts(watts: float, product: str, found: bool) -> None:
    world = World(105).node("n1", product=product).pod("p1", "n1", 5)
    detection = detect(world.work("p1", "n1", "g", idle(100), start=5, watts=watts))
    assert bool(detection.drafts) is found
    if not found:
        assert not detection.withheld[0].lacks_data
        assert detection.withheld[0].because.startswith("power contradicts")


def test_an_unknown_board_is_measured_against_its_own_floor() -> None:
    def world(first: float, later: float) -> World:
        made = World(405).node("n1", product="Some-Other-GPU").pod("p1", "n1", 5)
        made.work("p1", "n1", "g", [0.5], start=5, watts=first)
        return made.work("p1", "n1", "g", idle(395), start=10, watts=later)

    assert detect(world(20, 29)).drafts
    assert detect(world(20, 30)).withheld[0].because.startswith("power contradicts")


def test_the_level_of_power_is_a_setting() -> None:
    assert detect(holding([idle(100)]), idle_watts=66.0).drafts
    assert detect(holding([idle(100)]), idle_watts=65.0).drafts == ()


def test_without_power_the_guard_is_said_to_be_missing() -> None:
    world = holding([idle(100)])
    for row in world.rows["activity"]:
        row["energy_j"] = float("nan")
    assert "no power was measured that could contradict it" in only(world).checked


def test_a_mig_instance_without_busy_signal_is_judged_by_its_sms() -> None:
    def world(level: float) -> World:
        made = World(105).node("n1", resource="nvidia.com/mig-1g.10gb", units=7)
        made.pod("p1", "n1", 5, resource="nvidia.com/mig-1g.10gb")
        made.work("p1", "n1", "GPU-0/7", [level] * 20, start=5, share=1 / 7, watts=700)
        for row in made.rows["activity"]:
            row.update(observed_ms=float("nan"), busy_ms=float("nan"))
        return made

    draft = only(world(0.0))
    assert board_ms(draft.episodes) == pytest.approx(90 * MINUTE_MS / 7, abs=1)
    assert detect(world(0.2)) == RuleDetection()


def test_a_pod_that_is_replaced_leaves_the_job_as_idle_as_it_was() -> None:
    world = World(300).node("n1")
    world.pod("p0", "n1", 5, 30, job="d", kind="Deployment").work("p0", "n1", "g0", [1.0] * 5, start=5)
    world.pod("p1", "n1", 30, 160, job="d", kind="Deployment").work("p1", "n1", "g0", idle(130), start=30)
    world.pod("p2", "n1", 160, job="d", kind="Deployment").work("p2", "n1", "g1", idle(140), start=160)
    world.served("p1", [0.0] * 26, start=30).served("p2", [0.0] * 28, start=160)
    draft = only(world)
    assert draft.since_ms == at(40)
    assert board_ms(draft.episodes) == (120 + 130) * MINUTE_MS


@pytest.mark.parametrize(
    ("kind", "minutes", "patch"),
    [
        ("Job", 300, """kubectl -n ns patch jobs.batch/j1 --type=merge -p '{"spec":{"suspend":true}}'"""),
        (
            "PyTorchJob",
            300,
            "kubectl -n ns patch pytorchjobs.kubeflow.org/j1 --type=merge "
            """-p '{"spec":{"runPolicy":{"suspend":true}}}'""",
        ),
        (
            "Notebook",
            180,
            "kubectl -n ns annotate notebooks.kubeflow.org/j1 kubeflow-resource-stopped=true --overwrite",
        ),
        ("Deployment", 240, "kubectl -n ns scale deployments.apps/j1 --replicas=0"),
        ("Pod", 240, ""),  # it is not made again
        ("RayService", 240, ""),
    ],
)
def test_one_action_per_kind(kind: str, minutes: int, patch: str) -> None:
    draft = only(holding([idle(minutes)], kind, busy_first=3))
    assert draft.action.patch == patch
    assert draft.action.frees_boards == 1.0


def test_evidence() -> None:
    draft = only(holding([idle(300)] * 2, busy_first=3))
    found: Mapping[str, object] = {each.name: each.value for each in draft.evidence}
    assert found["idle GPUs"] == "GPU-0, GPU-1"
    assert found["last activity"] == "2026-10-06T00:20:00Z"
    assert found["most power"] == 65.0
    assert found["GPU memory held"] == 40.0
    assert found["observed"] == 100.0
    assert found["idle"] == 10.0
    assert (found["owner"], found["team"]) == ("Job ns/j1", "t1")


def test_settings_of_a_namespace() -> None:
    other = SettingsOverride(("ns",), (), overridden(IdleAllocationSettings(), {"batch_from_start": "90m"}))
    facts = holding([idle(75)]).facts()
    assert idle_allocation_rule.run(facts, ScopedSettings(IdleAllocationSettings())).drafts
    assert idle_allocation_rule.run(facts, ScopedSettings(IdleAllocationSettings(), [other])).drafts == ()


def test_a_history_that_begins_later_than_the_pod() -> None:
    """How long it has idled already nothing says: no grace, and the patience of a job that has worked."""
    world = World(240).node("n1").pod("p1", "n1", 0).work("p1", "n1", "g", idle(240))
    assert only(world).since_ms == at(0)


def test_nothing_at_all() -> None:
    assert detect(World(60).node("n1")) == RuleDetection()


# Laws.


def changed(facts: DetectorFacts, activity: pd.DataFrame) -> DetectorFacts:
    frames: ClusterFrames = replace(facts.history.frames, activity=activity)
    history = ClusterHistory(frames, facts.history.window, facts.history.teams)
    return DetectorFacts(facts.cluster, history, GpuTimePrices(history, four_dollars))


PIECE = st.tuples(st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.4, None]), st.integers(1, 30))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Two jobs of a few GPUs, each GPU a few long stretches of work, rest, or no observation."""
    world = World(600).node("n1").node("n2")
    for job in range(2):
        kind = draw(st.sampled_from(["Job", "Notebook", "Deployment", "Pod"]))
        for pod in range(draw(st.integers(1, 2))):
            uid, start = f"p{job}{pod}", 5 * draw(st.integers(1, 20))
            end = min(600, start + 5 * draw(st.integers(1, 120)))
            gpus = draw(st.integers(1, 3))
            world.pod(uid, f"n{pod + 1}", start, end, units=gpus, job=f"j{job}", kind=kind)
            for gpu in range(gpus):
                pieces = draw(st.lists(PIECE, min_size=1, max_size=5))
                levels = [level for level, count in pieces for _ in range(count)]
                steps = (end - start) // 5
                world.work(uid, f"n{pod + 1}", f"{uid}-{gpu}", levels[:steps], start=start)
    if "activity" not in world.rows:
        world.work("p00", "n1", "p00-0", [0.0], start=100)
    return world


@settings(max_examples=20)
@given(worlds(), st.integers(0, 1 << 30))
def test_order_of_rows_and_length_of_steps_change_nothing(world: World, seed: int) -> None:
    facts = world.facts()
    expected = detect(facts)
    activity = facts.history.frames.activity
    shuffled = activity.sample(frac=1, random_state=seed)
    assert detect(changed(facts, shuffled)) == expected
    halves = pd.concat([_half(activity, 0, 0.4), _half(activity, 0.4, 1)], ignore_index=True)
    again = detect(changed(facts, halves))
    assert [(each.fingerprint, each.since_ms) for each in again.drafts] == [
        (each.fingerprint, each.since_ms) for each in expected.drafts
    ]
    assert board_ms(_claims(again)) == pytest.approx(board_ms(_claims(expected)), abs=1)
    assert again.withheld == expected.withheld


def _half(activity: pd.DataFrame, begin: float, end: float) -> pd.DataFrame:
    """The part of every step from ``begin`` to ``end``, as a step of its own."""
    length = activity["end_ms"] - activity["start_ms"]
    sums = ["held_ms", "observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "energy_j"]
    return activity.assign(
        start_ms=(activity["start_ms"] + length * begin).astype("int64"),
        end_ms=(activity["start_ms"] + length * end).astype("int64"),
        **{name: activity[name] * (end - begin) for name in sums},
    )


def _claims(detection: RuleDetection) -> list[WasteEpisode]:
    return [each for draft in detection.drafts for each in draft.episodes]


@settings(max_examples=20)
@given(worlds(), st.permutations(["p00-0", "p00-1", "p00-2", "p10-0", "p10-1", "p10-2"]))
def test_names_of_gpus_change_nothing_but_names(world: World, names: Sequence[str]) -> None:
    facts = world.facts()
    activity = facts.history.frames.activity
    renamed = dict(zip(sorted(names), names, strict=True))
    other = changed(facts, activity.assign(gpu=activity["gpu"].replace(renamed)))
    found = [
        replace(each, gpus=tuple(sorted(renamed.get(gpu, gpu) for gpu in each.gpus)))
        for each in _claims(detect(facts))
    ]
    assert _claims(detect(other)) == found


@settings(max_examples=20)
@given(worlds())
def test_claims_are_the_integral_of_idle_rows_and_nothing_is_claimed_twice(world: World) -> None:
    """By pandas, on the rows themselves: what a finding claims is what its GPUs held in idle rows."""
    facts = world.facts()
    activity = facts.history.frames.activity
    held = facts.history.held.set_index("pod_uid")
    start = activity["pod_uid"].map(held["start_ms"])
    idle_rows = activity[(activity["busy_ms"] == 0) & (activity["start_ms"] >= start + 10 * MINUTE_MS)]
    kinds = activity["pod_uid"].map(held["job"])
    detection = detect(facts)
    for draft in detection.drafts:
        end = facts.now_ms if draft.ended_ms is None else draft.ended_ms
        rows = idle_rows[kinds[idle_rows.index] == draft.subject.name]
        # A long gap may part a stretch within a row.
        inside = rows["end_ms"].clip(upper=end) - rows["start_ms"].clip(lower=draft.since_ms)
        held_ms = (rows["held_ms"] * inside.clip(lower=0) / (rows["end_ms"] - rows["start_ms"])).sum()
        claimed = sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in draft.episodes)
        if draft.variant == "whole":
            assert claimed == pytest.approx(held_ms, rel=1e-6)
        assert claimed <= held_ms * (1 + 1e-6)
    _never_twice(detection, facts)


def _never_twice(detection: RuleDetection, facts: DetectorFacts) -> None:
    boards = facts.history.held.set_index("pod_uid")["boards"]
    grid = np.arange(T0, facts.now_ms, MINUTE_MS)
    claimed: dict[str, np.ndarray] = {}
    for draft in detection.drafts:
        for each in draft.episodes:
            there = (each.start_ms <= grid) & (grid < each.end_ms)
            claimed.setdefault(each.pod_uid, np.zeros(len(grid)))[there] += each.boards or 0
    for uid, amounts in claimed.items():
        assert amounts.max() <= boards[uid] + 1e-9


def test_a_window_that_moves_on_keeps_the_pods_start() -> None:
    facts = holding([idle(100)]).facts()
    later = Window(facts.history.window.start_ms + MINUTE_MS, facts.now_ms)
    history = ClusterHistory(facts.history.frames, later, facts.history.teams)
    assert only(DetectorFacts("c", history, GpuTimePrices(history, four_dollars))).since_ms == at(15)


def test_peak_memory_is_that_of_the_idle_time() -> None:
    world = World(305).node("n1").pod("p1", "n1", 5)
    world.work("p1", "n1", "g", [1.0], start=5, memory=70 * GIB)
    world.work("p1", "n1", "g", idle(295), start=10, memory=3 * GIB)
    evidence = {each.name: each.value for each in only(world).evidence}
    assert evidence["GPU memory held"] == 3.0


@pytest.mark.parametrize(
    ("resource", "units", "replicas", "boards", "words"),
    [
        ("nvidia.com/mig-2g.20gb", 4, 1, 1, "1 nvidia.com/mig-2g.20gb, 2/7 of a GPU"),
        ("nvidia.com/gpu.shared", 4, 4, 1, "1 nvidia.com/gpu.shared, 1/4 of a GPU"),
        (GPU, 8, 1, 8, "1 GPU"),
    ],
)
def test_slices_and_shares_are_called_what_they_are(
    resource: str, units: int, replicas: int, boards: int, words: str
) -> None:
    world = World(200).node("n1", boards, resource=resource, units=units, replicas=replicas)
    world.pod("p1", "n1", 5, job="j", resource=resource)
    world.work("p1", "n1", "g", idle(195), start=5)
    draft = only(world)
    assert draft.summary == (
        f"Job ns/j holds {words} and does nothing, for 3.1 h since 2026-10-06T00:15:00Z; it never used them"
    )
    assert draft.since_ms == at(15)


def test_a_uid_in_another_namespace_is_another_job() -> None:
    """One of them idles: that the other one works does not help it, nor is it stopped for it."""
    world = World(200).node("n1")
    world.pod("p1", "n1", 5, job="j").pod("p2", "n1", 0, job="j", namespace="other")
    world.work("p1", "n1", "a", idle(195), start=5).work("p2", "n1", "b", [1.0] * 40)
    draft = only(world)
    assert (draft.variant, str(draft.subject)) == ("whole", "ns/j")
    assert draft.action.patch.startswith("kubectl -n ns patch jobs.batch/j ")


def _claimed(facts: DetectorFacts, start: float, end: float) -> set[int]:
    """Steps of ``[start, end)`` that are claimed, as minutes."""
    claims = [each for draft in detect(facts).drafts for each in draft.episodes]
    return {
        minute
        for minute in range(round(start), round(end), STEP)
        if any(each.start_ms <= at(minute) < each.end_ms for each in claims)
    }


DAY = 24 * 60


def test_a_gap_of_forty_minutes_is_judged_alike_by_the_days_on_either_side() -> None:
    """The stretch is seen for 89.3 % by the first day, which knows five hours of the next one, and for 93 %
    as a whole: it begins at 22:45 of the first day, has a gap from 03:00 to 03:40, and ends at 08:00."""
    begin, end = DAY - 75, DAY + 8 * 60
    gap = range(DAY + 180, DAY + 220, STEP)
    levels = [None if minute in gap else float(minute < begin) for minute in range(0, end, STEP)]
    world = World(2 * DAY + 300).node("n1").pod("p1", "n1", 0, end, job="j1", kind="Notebook")
    world.work("p1", "n1", "GPU-0", levels)
    whole = _claimed(read_of(world, 0, 2 * DAY + 300), 0, 2 * DAY)
    first = _claimed(read_of(world, 0, DAY + 300), 0, DAY)
    second = _claimed(read_of(world, 0, 2 * DAY + 300), DAY, 2 * DAY)
    assert first | second == whole
    # 75 minutes before midnight; after it all that was seen: three hours, and 4 h 20 min.
    assert (len(first) * STEP, len(second) * STEP) == (75, 180 + 260)


@pytest.mark.parametrize("seed", range(12))
def test_how_much_history_was_read_changes_nothing_within_a_day(seed: int) -> None:
    """Gaps at random; each day with the day before it and five hours after it, against all of three days."""
    rng = np.random.default_rng(seed)
    end = 3 * DAY + 300
    levels: list[float | None] = [0.0] * (end // STEP)
    for _ in range(int(rng.integers(3, 30))):
        first, length = int(rng.integers(0, len(levels))), int(rng.integers(1, 14))
        levels[first : first + length] = [None] * len(levels[first : first + length])
    for step in rng.integers(0, len(levels), int(rng.integers(0, 5))).tolist():
        levels[step] = 1.0
    kind = ("Job", "Deployment", "Notebook")[seed % 3]
    world = World(end).node("n1").pod("p1", "n1", float(rng.integers(0, 300)), units=1, job="j1", kind=kind)
    world.work("p1", "n1", "GPU-0", levels)
    whole = _claimed(read_of(world, 0, end), DAY, 3 * DAY)
    days = [
        _claimed(read_of(world, (n - 1) * DAY, (n + 1) * DAY + 300), n * DAY, (n + 1) * DAY) for n in (1, 2)
    ]
    assert days[0] | days[1] == whole
