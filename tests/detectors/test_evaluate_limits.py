"""What an evaluation must withstand: names that are no text, thousands held back, rows in disorder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine import evaluation as module
from gpucost.detectors.engine.evaluation import MOST_WITHHELD, evaluate
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs import stranded_trays
from gpucost.detectors.inputs.activity_table import SERIES, ActivityTable
from gpucost.detectors.rule_settings import RuleSettings
from tests.cluster.builders import job, node, pod, state, template
from tests.detectors.case_nvlink_domain import TRAYS, rack
from tests.detectors.worlds import GPU, T0, World, at


def test_half_a_character_in_a_name_has_a_fingerprint_of_its_own() -> None:
    drafts = [
        FindingDraft(
            WastePattern.MONOPOLY,
            "v",
            FindingSubject(SubjectKind.JOB, "c", name, "ns"),
            at(0),
            "s",
            (),
            FindingAction("a"),
            "f",
        )
        for name in ("job-\ud800", "job-\udfff", "job-?")
    ]
    assert len({draft.fingerprint for draft in drafts}) == 3


class _HoldsBack:
    """A rule that says of many jobs why it says nothing."""

    def __init__(self, count: int) -> None:
        self._count = count

    def run(self, *_: object) -> RuleDetection:
        jobs = (FindingSubject(SubjectKind.JOB, "c", f"j{n}", "ns") for n in range(self._count))
        said = (
            WithheldFinding(WastePattern.MONOPOLY, job, "of a guard", n % 1_000 == 999)
            for n, job in enumerate(jobs)
        )
        return RuleDetection(withheld=tuple(said))


@pytest.mark.parametrize(("count", "said"), [(MOST_WITHHELD, MOST_WITHHELD), (5_000, MOST_WITHHELD + 1)])
def test_of_what_a_rule_holds_back_a_thousand_are_kept_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch, count: int, said: int
) -> None:
    monkeypatch.setattr(module, "RULES", {WastePattern.MONOPOLY: _HoldsBack(count)})
    found = evaluate(World(60).node("n").facts(), RuleSettings()).withheld
    assert len(found) == said
    assert sum(each.lacks_data for each in found) == count // 1_000
    if count > MOST_WITHHELD:
        assert found[-1].because == "4,000 more were held back, for reasons like those listed"


@pytest.mark.parametrize("kind", ["str", "category"])
def test_activity_is_the_same_in_whatever_order_its_rows_come(kind: str) -> None:
    world = World(60).node("n1").node("n2")
    for n in range(8):
        world.work(
            f"p{n % 3}", f"n{1 + n % 2}", f"g{n}", [0.1 * n, None, 0.5, 0.0], sm=None if n == 2 else 0.5
        )
    frame = world.frames().activity.astype(dict.fromkeys(SERIES, kind))
    ordered = frame.sort_values([*SERIES, "start_ms"]).reset_index(drop=True)
    one = ActivityTable.of(ordered)
    other = ActivityTable.of(frame.sample(frac=1, random_state=1))
    pd.testing.assert_frame_equal(one.series, other.series)
    assert one.series.equals(ordered[SERIES].astype("str").drop_duplicates().reset_index(drop=True))
    for name in ("code", "start", "end", "begin"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    for name, values in one.values.items():
        assert np.array_equal(values, other.values[name], equal_nan=True)
    assert one.begin.tolist() == [*range(0, 24, 3), 24]


def test_no_activity_at_all() -> None:
    found = ActivityTable.of(World(60).frames().activity)
    assert found.begin.tolist() == [0]
    assert len(found) == len(found.series) == 0


def test_a_rule_that_lacks_its_frame_says_so_and_does_not_run() -> None:
    world = World(600).node("n").pod("p", "n", 0, 600, units=8)
    facts = world.facts()
    lacks = {"demand": "nobody tells who waits", "stalls": "nobody tells which gangs lack members"}
    frames = replace(facts.history.frames, lacks=lacks)
    blind = replace(facts, history=replace(facts.history, frames=frames, memo={}))
    found = evaluate(blind, RuleSettings())
    said = {each.pattern: each for each in found.withheld if each.because in lacks.values()}
    assert set(said) == {
        WastePattern.GANG_STALL,
        WastePattern.QUOTA_STARVATION,
        WastePattern.NVLINK_DOMAIN,
        WastePattern.FRAGMENTATION,
        WastePattern.MONOPOLY,
    }
    assert all(each.lacks_data for each in said.values())
    assert not {each.draft.pattern for each in found.findings} & set(said)


def test_many_jobs_of_one_kind_that_wait_for_trays_cost_as_much_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anybody may have thousands of pods wait: what they find is worked out once for each kind."""
    world = World(60)
    for n in range(4):
        world.node(f"t{n}", 4).tray(f"t{n}", taken=((0, 60),) if n < 2 else ())
    for n in range(40):
        world.pod(f"h{n}", "t0", n, n + 1, units=1)
    for n in range(200):
        world.waits(f"wide{n}", n / 10, pods=3, units=4, layer="placement", channel="clique")
    looked, admits = list[int](), stranded_trays._TraySweep._admits
    monkeypatch.setattr(
        stranded_trays._TraySweep, "_admits", lambda self, names: looked.append(1) or admits(self, names)
    )
    found = stranded_trays.stranded(world.facts().history).stretches
    assert {each.claims[:2] for each in found} == {(("t2", 4), ("t3", 4))}
    assert len(looked) < 1_000


def test_a_domain_of_which_nothing_is_free_is_no_finding() -> None:
    """A ComputeDomain has all of a rack, and a tray elsewhere is free, which is too few: nothing is stranded,
    and nobody is named for it. What is free there is of no use to the job for another reason."""
    world = World(60).node("b0", 4).tray("b0", "other")
    for n in range(4):
        world.node(f"a{n}", 4).tray(f"a{n}", "rack", taken=((0, 60),))
        world.pod(f"h{n}", f"a{n}", 0, units=4, job="holds")
    world.waits("wide", 0, pods=4, units=4, layer="placement", channel="clique")
    found = evaluate(world.facts(), RuleSettings()).findings
    assert [each.draft.pattern for each in found] == [WastePattern.FRAGMENTATION]


def test_a_job_that_its_own_gates_hold_accuses_nobody() -> None:
    """It never asked a scheduler for a tray; anybody may write gates into the pods of a job."""
    world = rack()
    world.rows["demand"] = [{**row, "reason": "SchedulingGated"} for row in world.rows["demand"]]
    found = evaluate(world.facts(), RuleSettings()).findings
    assert WastePattern.NVLINK_DOMAIN not in {each.draft.pattern for each in found}


@pytest.mark.parametrize(("cores", "is_found"), [(8_000, True), (1_000_000, False)])
def test_a_job_that_asks_for_cores_which_no_tray_has_accuses_nobody(cores: int, is_found: bool) -> None:
    """By the present state, not one of its pods would find a node, whoever has the trays."""
    world = rack()
    nodes = [node(f"t{n}", allocatable={GPU: 4, "cpu": 64_000, "pods": 110}) for n in range(TRAYS)]
    made = job("wide", namespace="ns", uid="uid-wide", created_ms=T0)
    asks = template(4, cpu=cores)
    waiting = pod("wide-0", namespace="ns", asks=asks, unschedulable="no", owner=made.as_owner)
    held = [pod(f"h{n}", 4, node=f"t{n}", namespace="ns") for n in range(2)]
    world.overview = ClusterOverview(state(made, *nodes, *held, waiting, at_ms=at(15)))
    answer = evaluate(world.facts(), RuleSettings())
    mine = [each for each in answer.findings if each.draft.pattern is WastePattern.NVLINK_DOMAIN]
    assert bool(mine) == is_found
    said = [each.because for each in answer.withheld if each.pattern is WastePattern.NVLINK_DOMAIN]
    assert said == ([] if is_found else ["4 nodes with GPUs enough for one of its pods lack cpu for it"])
