"""Servers that are busy a little: what their peak needs, by SMs and by memory."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import yaml

from gpucost.detectors.allocation_pieces import board_ms
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.findings import FindingDraft, RuleDetection, WastePattern
from gpucost.detectors.inputs.detector_facts import PastWork
from gpucost.detectors.rule_settings import OversizedRequestSettings, RuleSettings, ScopedSettings, overridden
from gpucost.detectors.rules.oversized_request import oversized_request_rule
from gpucost.domain.time import HOUR_MS
from tests.detectors.case_oversized_request import server
from tests.detectors.worlds import GIB, World, at


def detect(world: World, **values: object) -> RuleDetection:
    settings = overridden(OversizedRequestSettings(low_gpu_hours=1e9), values)
    return oversized_request_rule.run(world.facts(), ScopedSettings(settings))


def variants(world: World, **values: object) -> set[str]:
    return {draft.variant for draft in detect(world, **values).drafts}


def only(world: World, **values: object) -> FindingDraft:
    (draft,) = detect(world, **values).drafts
    return draft


def evidence(draft: FindingDraft) -> dict[str, object]:
    return {each.name: each.value for each in draft.evidence}


def test_replicas_that_the_busiest_hour_needs() -> None:
    """8 x 20 % are 160 %, 70 % of 2.3 replicas: three of eight, so five are too many for 24 hours."""
    draft = only(server(pods=8, peak=0.2))
    assert draft.summary == (
        "Deployment ns/web uses 20.0 % of the SMs of its 8 replicas in its busiest 60 min, and 5.6 % on "
        "average: 3 replicas would do"
    )
    assert board_ms(draft.episodes) == 5 * 24 * HOUR_MS
    assert draft.action.patch == "kubectl -n ns scale deployments.apps/web --replicas=3"
    assert draft.action.frees_boards == 5
    told = evidence(draft)
    assert (told["peak"], told["observed"], told["GPU memory, most"]) == ("2026-10-06T12:00:00Z", 100.0, 40.0)
    assert "whether there are busier days than in the 1 that were read is not known" in draft.checked


def test_a_server_that_is_always_busy_is_full_however_few_sms_it_uses() -> None:
    """8 x 10 % of the SMs fit one replica, but 8 x 60 % of the time at 90 % take six."""
    draft = only(server(pods=8, peak=0.1, rest=0.1, busy=6.0))
    assert draft.summary.endswith("6 replicas would do")
    assert "serving_peak" not in variants(server(pods=8, peak=0.1, rest=0.1, busy=9.0))


def test_one_replica_may_always_fail() -> None:
    assert variants(server(pods=2, peak=0.02, memory=70 * GIB)) == {"serving_memory"}
    alone = only(server(pods=2, peak=0.02, memory=70 * GIB), least_replicas=1)
    assert alone.summary.endswith("1 replica would do")


@pytest.mark.parametrize("kind", ["StatefulSet", "LeaderWorkerSet", "RayService"])
def test_pods_that_may_be_parts_of_one_replica_are_not_fewer(kind: str) -> None:
    assert variants(server(pods=4, peak=0.2, kind="Deployment", memory=62 * GIB)) == {"serving_peak"}
    assert variants(server(pods=4, peak=0.2, kind=kind, memory=62 * GIB)) == {"serving_memory"}


def test_replicas_only_where_there_were_more_than_the_peak_needs() -> None:
    """Four by day, of which the peak needs two, and two at night: half of 4 x 12 hours."""
    world = server(pods=2, peak=0.3).rows
    made = World(24 * 60, rows=world)
    for pod in (2, 3):
        made.pod(f"p{pod}", "n1", 6 * 60, 18 * 60, job="web", kind="Deployment")
        made.work(f"p{pod}", "n1", f"g{pod}", [0.05] * 6 + [0.3] + [0.05] * 5, start=360, step=60, sm=1.0)
    made.rows["nodes"][0]["boards"] = made.rows["capacity"][0]["expected"] = 4
    draft = only(made)
    assert board_ms(draft.episodes) == pytest.approx(2 * 12 * HOUR_MS - 20 * HOUR_MS / 60, abs=1)
    assert {(each.start_ms >= at(360), each.end_ms <= at(18 * 60)) for each in draft.episodes} == {
        (True, True)
    }


def test_a_slice_must_hold_the_memory_and_the_peak() -> None:
    """22 % of the SMs at 70 % are 31.4 %: 3/7; 31 GB are 78 % of its 40 GB, and 33 are too much."""
    draft = only(server(peak=0.22, memory=31e9))
    assert draft.variant == "serving_peak"
    assert "3g.40gb, 3/7 of the GPU would do, and hold its 28.9 GiB of memory" in draft.summary
    assert board_ms(draft.episodes) == round(24 * HOUR_MS * 4 / 7)
    template = yaml.safe_load(draft.action.patch)["spec"]["template"]["spec"]["containers"][0]
    assert template["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": 1}
    shown = only(server(peak=0.22, memory=33e9))
    assert (shown.variant, shown.episodes, shown.action.patch) == ("serving_memory", (), "")
    assert shown.view_ms == round(24 * HOUR_MS * 4 / 7)


def test_gpus_of_a_pod_are_halved_where_the_rest_holds_its_memory() -> None:
    draft = only(server(gpus=4, peak=0.3, kind="LeaderWorkerSet", memory=31 * GIB))
    assert draft.summary.endswith("2 GPUs per pod would do, and hold its 124.0 GiB of memory")
    assert draft.action.frees_boards == 2
    assert board_ms(draft.episodes) == 2 * 24 * HOUR_MS
    assert only(server(gpus=4, peak=0.3, kind="LeaderWorkerSet", memory=33 * GIB)).variant == "serving_memory"


def test_what_memory_holds_is_shown_at_most_and_counted_nowhere() -> None:
    world = server(gpus=4, peak=0.22, kind="LeaderWorkerSet", memory=62 * GIB)
    draft = only(world)
    assert draft.summary == (
        "LeaderWorkerSet ns/web uses 22.0 % of the SMs of its 4 GPUs in its busiest 60 min, and 5.7 % on "
        "average: 2 GPUs per pod would do, if its memory, 248.0 GiB at most, were less"
    )
    assert draft.formula.endswith("at most, and nothing for certain while that memory is needed")
    (finding,) = [
        each
        for each in evaluate(world.facts(), RuleSettings().only([WastePattern.OVERSIZED_REQUEST])).findings
        if each.draft.variant == "serving_memory"
    ]
    assert (finding.wasted.counted, finding.wasted.gpu_hours) == (False, 48.0)
    assert (finding.wasted.nano, finding.nano_per_hour) == (48 * 4_000_000_000, 2 * 4_000_000_000)


def test_gpus_that_idle_are_idle_allocations() -> None:
    """Of five replicas one never works, and the others need two: two are too many, and one idles."""
    world = server(pods=4, peak=0.3)
    world.pod("p9", "n1", 0, job="web", kind="Deployment")
    world.work("p9", "n1", "g9", [0.0] * 24, step=60, sm=1.0)
    world.rows["nodes"][0]["boards"] = world.rows["capacity"][0]["expected"] = 5
    draft = only(world)
    assert board_ms(draft.episodes) == 2 * 24 * HOUR_MS
    assert "p9" not in {each.pod_uid for each in draft.episodes}
    found = evaluate(world.facts(), RuleSettings())
    wasted = found.pieces.assign(
        ms=(found.pieces["end_ms"] - found.pieces["start_ms"]) * found.pieces["boards"]
    )
    assert wasted.groupby("waste")["ms"].sum().to_dict() == pytest.approx(
        {"idle": (24 - 1 / 6) * HOUR_MS, "oversized": 48 * HOUR_MS}, rel=0.01
    )


@pytest.mark.parametrize("kind", ["PyTorchJob", "Job", "Notebook", "Pod"])
def test_what_is_no_server_has_no_peak_to_wait_for(kind: str) -> None:
    assert variants(server(gpus=4, peak=0.22, kind=kind, memory=62 * GIB)) == set()


def test_a_real_peak_keeps_what_it_needs() -> None:
    assert variants(server(pods=4, peak=0.8, memory=62 * GIB)) == set()
    assert variants(server(gpus=4, peak=0.6, kind="LeaderWorkerSet", memory=62 * GIB)) == set()


def test_a_day_must_be_seen_nearly_all_of_it() -> None:
    (short,) = {
        each.because
        for each in detect(server(23, pods=8, peak=0.2, memory=62 * GIB)).withheld
        if each.subject.kind == "job"
    }
    assert short == "a server must be seen for 1 day, 0:00:00 to know its busiest hours"
    seen = server(pods=8, peak=0.2, memory=62 * GIB, gap=range(3))
    assert [each.because for each in detect(seen).withheld if each.subject.kind == "job"] == [
        "data are missing: SM activity and memory were observed for 88 % of the time"
    ]


@pytest.mark.parametrize(("boards", "told"), [(1.6, "3 replicas"), (0.4, "3 replicas"), (3.2, "5 replicas")])
def test_a_busier_hour_before_what_was_read_keeps_its_room(boards: float, told: str) -> None:
    """8 x 20 % are 1.6 GPUs. An hour of 3.2 two days before is twice as much: 4.57 replicas, so five."""
    row = {
        "namespace": "ns",
        "job_uid": "uid-web",
        "step_start_ms": at(-2 * 24 * 60),
        "board_ms": 8 * HOUR_MS,
    }
    row |= {"sm_active_ms": boards * HOUR_MS, "sm_observed_ms": 8 * HOUR_MS}
    row |= {"busy_ms": None, "observed_ms": None}
    facts = replace(server(pods=8, peak=0.2).facts(), past=PastWork(HOUR_MS, pd.DataFrame([row])))
    (draft,) = oversized_request_rule.run(
        facts, ScopedSettings(OversizedRequestSettings(low_gpu_hours=1e9))
    ).drafts
    assert draft.summary.endswith(f"{told} would do")
    times = f"{max(1.0, boards / 1.6):.3g} times as busy: room for that is kept"
    assert any(each.endswith(times) for each in draft.checked)
