"""What is said of a job that Kueue decides on: decision, reason in words, evidence, assumptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.kueue.answer import MOST_BESIDE, kueue_answer, rules_named
from gpucost.advisor.kueue.messages import KueueHold, hold_of
from gpucost.advisor.model.answers import LayerResult, SchedulingDecision, SchedulingLayer
from gpucost.cluster.objects.kueue import FlavorQuota, Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.scheduler_config import FairAdmission, KueueConfig
from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.views.overview import ClusterOverview
from tests.advisor import worlds
from tests.advisor.kueue_runs import GPUS
from tests.advisor.worlds import flavor, local_queue, pod_set, queue, taint, workload
from tests.cluster.builders import GPU

DOCS = Path(__file__).parents[2] / "docs"
NOW, WAITS, NEVER, UNKNOWN = (
    SchedulingDecision.NOW,
    SchedulingDecision.WAITS,
    SchedulingDecision.NEVER,
    SchedulingDecision.UNKNOWN,
)


def _answer(state: ClusterState, *names: str) -> LayerResult:
    view = KueueView(state, state.schedulers.kueue)
    return kueue_answer(view, ClusterOverview(state), [state.workloads[name] for name in names or ("new",)])


def _of(*objects: object, **options: Any) -> LayerResult:
    """Of the workload ``new``."""
    return _answer(worlds.state(*objects, **options))


def _evidence(found: LayerResult) -> dict[str, str]:
    return {f"{each.object} {each.field}".strip(): each.value for each in found.evidence}


def test_now() -> None:
    found = _of(queue("a", 8, cpu=64), workload("new", "a", 4, 2, cpu=8))
    assert (found.decision, found.layer, found.reason, found.says) == (NOW, SchedulingLayer.NONE, "", "")
    assert found.why == ("quota: ClusterQueue a has room for 16 cpu of h100, 8 nvidia.com/gpu of h100",)
    assert [(each.name, each.count, dict(each.flavors)) for each in found.pod_sets] == [
        ("main", 2, {GPU: "h100", "cpu": "h100"})
    ]
    assert (found.queue, found.ahead, found.level, dict(found.borrowed)) == ("a", 0, 0, {})


def test_now_with_borrowed_quota() -> None:
    found = _of(queue("a", 4, cohort="org"), queue("b", 8, cohort="org"), workload("new", "a", 6))
    assert (found.decision, found.level, dict(found.borrowed)) == (NOW, 1, {GPUS: 2})


def test_now_once_victims_have_left() -> None:
    held = workload("old", "a", 8, priority=1, holding=True)
    gone = workload("gone", "a", 4, priority=1, holding=True, evicted=60)
    found = _of(queue("a", 12, within="LowerPriority"), held, gone, workload("new", "a", 8, priority=2))
    assert found.decision is NOW
    by_name = {each.subject.name: each for each in found.victims}
    assert by_name.keys() == {"old"}
    (victim,) = found.victims
    assert (victim.queue, victim.priority, victim.reason, victim.already_leaving) == (
        "a",
        1,
        "InClusterQueue",
        False,
    )
    assert dict(victim.units) == {GPU: 8}
    found = _of(queue("a", 12, within="LowerPriority"), held, gone, workload("new", "a", 4, priority=2))
    assert [(each.subject.name, each.already_leaving) for each in found.victims] == [("gone", True)]


def test_now_at_a_smaller_size() -> None:
    held = workload("old", "a", 4, holding=True)
    found = _of(queue("a", 8), held, workload("new", "a", 1, 8, least=2))
    assert found.decision is NOW
    assert "size: 4 of 8 pods (partial admission)" in found.why
    assert found.pod_sets[0].count == 4


def test_waits_for_quota() -> None:
    found = _of(queue("a", 8), workload("old", "a", 6, holding=True), workload("new", "a", 4))
    assert (found.decision, found.layer, found.reason) == (WAITS, SchedulingLayer.QUOTA, "WaitingForQuota")
    assert found.says == "asks 4 nvidia.com/gpu; ClusterQueue a has 2 left (flavor h100)"
    assert found.why[0].startswith(
        "kueue: couldn't assign flavors to pod set main: insufficient unused quota"
    )
    quota = "clusterqueue/a spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    assert _evidence(found)[quota] == "8"
    worked_out = [each for each in found.evidence if not each.field]
    assert [each.value for each in worked_out] == ["6", "2"]
    assert all("worked out" in each.meaning for each in worked_out)


def test_waits_for_quota_that_others_borrow_or_do_not_lend() -> None:
    found = _of(
        queue("a", 4, cohort="org", borrowing=4),
        queue("b", 8, cohort="org", lending=3),
        workload("theirs", "b", 6, holding=True),
        workload("new", "a", 7),
    )
    assert (found.decision, found.says) == (
        WAITS,
        "asks 7 nvidia.com/gpu; ClusterQueue a has 6 left (flavor h100)",
    )
    evidence = _evidence(found)
    at = "spec.resourceGroups[0].flavors[0].resources[0]"
    assert evidence[f"clusterqueue/a {at}.borrowingLimit"] == "4"
    assert evidence[f"clusterqueue/b {at}.lendingLimit"] == "3"


def test_waits_behind_the_head_of_a_strict_queue() -> None:
    found = _of(
        queue("a", 8, strict=True),
        workload("old", "a", 4, holding=True),
        workload("big", "a", 8, created=9000),
        workload("new", "a", 4),
    )
    assert (found.decision, found.reason, found.ahead) == (WAITS, "BlockedByHead", 1)
    assert found.says == (
        "stands behind a/big, which does not fit; nobody passes the head of a StrictFIFO queue"
    )
    assert _evidence(found) == {"clusterqueue/a spec.queueingStrategy": "StrictFIFO"}


def test_in_another_queue_it_passes_and_that_is_an_assumption() -> None:
    objects = (
        workload("old", "a", 4, holding=True),
        workload("big", "a", 8, created=9000),
        workload("new", "a", 4),
    )
    found = _of(queue("a", 8), *objects)
    assert (found.decision, found.ahead) == (NOW, 1)
    assert any("parked" in each for each in found.assumptions)
    assert not any("parked" in each for each in _of(queue("a", 8, strict=True), *objects).assumptions)


def test_the_defect_of_preemption_over_borrowing_is_named() -> None:
    """The smallest form; the other preference preempts."""

    def hidden(preference: str) -> LayerResult:
        return _of(
            queue(
                "a", FlavorQuota(8, 0), cpu=16, cohort="org", within="LowerPriority", preference=preference
            ),
            queue("b", None, cpu=64, cohort="org"),
            workload("low", "a", 8, priority=100, holding=True),
            workload("new", "a", 8, priority=1000, cpu=32),
        )

    found = hidden("PreemptionOverBorrowing")
    assert (found.decision, found.victims) == (WAITS, ())
    assert any("PreemptionOverBorrowing" in each and "v0.19.2" in each for each in found.why)
    assert found.says == "Workload no longer fits after processing another workload"
    default = hidden("")
    assert default.decision is NOW
    assert [each.subject.name for each in default.victims] == ["low"]
    assert not any("PreemptionOverBorrowing" in each for each in default.why)


@pytest.mark.parametrize(
    ("spec", "asked", "reason", "says"),
    [
        (
            queue("a", 8),
            {"gpus": 9},
            "ExceedsMaxQuota",
            "asks 9 nvidia.com/gpu; ClusterQueue a can never have more than 8 (flavor h100)",
        ),
        (
            queue("a", {"h100": 2, "l4": 4}),
            {"gpus": 3, "pods": 2},
            "ExceedsMaxQuota",
            "asks 6 nvidia.com/gpu; ClusterQueue a can never have more than 4 (flavor l4)",
        ),
        (
            queue("a", 8),
            {"cpu": 1},
            "NoMatchingFlavor",
            "ClusterQueue a has no quota for cpu at all",
        ),
        (
            queue("a", 0),
            {},
            "ExceedsMaxQuota",
            "asks 1 nvidia.com/gpu; ClusterQueue a can never have more than 0 (flavor h100)",
        ),
    ],
)
def test_never(spec: object, asked: dict[str, Any], reason: str, says: str) -> None:
    found = _of(spec, workload("new", "a", **asked))
    assert (found.decision, found.layer, found.reason) == (NEVER, SchedulingLayer.QUOTA, reason)
    assert found.says == says


def test_never_where_no_flavor_takes_it() -> None:
    spot = flavor("h100", taints=(taint("spot", "true"),))
    found = _of(queue("a", 8), spot, workload("new", "a"))
    assert (found.decision, found.reason) == (NEVER, "NoMatchingFlavor")
    assert found.says == (
        "no flavor of ClusterQueue a takes its pods: "
        "h100 has the taint spot=true:NoSchedule, which they do not tolerate"
    )


def test_a_check_that_must_agree_is_unknown() -> None:
    found = _of(queue("a", 8, checks={"provision": ()}), workload("new", "a"))
    assert (found.decision, found.layer, found.reason) == (UNKNOWN, SchedulingLayer.QUOTA, "AdmissionChecks")
    assert found.says == "has quota; then admission check provision must agree, which is not followed"


def test_only_checks_of_its_flavors_count() -> None:
    spec = queue("a", {"h100": 8, "l4": 8}, checks={"provision": ("l4",)})
    assert _of(spec, workload("new", "a")).decision is NOW
    held = workload("old", "a", 8, holding=True)
    assert _of(spec, held, workload("new", "a")).decision is UNKNOWN


def test_a_check_does_not_hide_that_quota_is_short() -> None:
    spec = queue("a", 8, checks={"provision": ()})
    assert _of(spec, workload("new", "a", 9)).decision is NEVER
    assert _of(spec, workload("old", "a", 8, holding=True), workload("new", "a", 8)).decision is WAITS


def _held(
    reason: str = "",
    message: str = "",
    type_: str = "QuotaReserved",
    until: float | None = None,
    gpus: int = 4,
) -> Workload:
    """``new`` in queue a, with one condition; put back into its queue ``until`` seconds from now."""
    is_status = type_ == "WaitingForReplacementPods"
    said = {type_: StatusCondition(is_status, reason, message, None)} if reason else {}
    back = {} if until is None else {"requeue_at_ms": worlds.NOW + round(until * 1000), "requeue_count": 5}
    return workload("new", "a", gpus, rest={"conditions": said, **back})


def _hold(held: Workload) -> KueueHold | None:
    state = worlds.state(queue("a", 8), held)
    return hold_of(state.workloads["new"], state)


def test_in_its_backoff_it_is_let_in_once_that_is_over() -> None:
    held = _held("PodsReadyTimeout", "too slow", "Requeued", until=3000.5)
    hold = _hold(held)
    assert hold is not None
    assert (hold.reason, hold.until) == ("WaitingForRequeue", "01:51 UTC (backoff after 5 requeues)")
    assert [(each.object, each.field, each.value) for each in hold.evidence] == [
        ("workload/new", "status.requeueState.requeueAt", "2026-10-24T01:50:00.500Z"),
        ("workload/new", "status.requeueState.count", "5"),
    ]
    later = _hold(_held(until=86_400))
    assert later is not None
    assert later.until == "2026-10-25 01:00 UTC (backoff after 5 requeues)"
    assert _hold(_held("PodsReadyTimeout", "", "Requeued", until=0)) is None
    # Quota that is there is said to be there, so that nodes are asked next.
    found = _of(queue("a", 8), held)
    assert (found.decision, found.until, found.ahead) == (NOW, "", None)
    assert found.why[-1] == "kueue: Kueue does not try it before 01:51 UTC (backoff after 5 requeues)"


def test_in_its_backoff_a_check_comes_after_it() -> None:
    found = _of(queue("a", 8, checks={"provision": ()}), _held(until=60))
    assert (found.decision, found.until) == (WAITS, "01:01 UTC (backoff after 5 requeues)")
    assert found.says == (
        "by the rules it has quota; then admission check provision must agree, which is not followed"
    )
    assert found.why[-1] == "kueue: Kueue does not try it before 01:01 UTC (backoff after 5 requeues)"


def test_a_backoff_does_not_hide_that_quota_is_short() -> None:
    assert _of(queue("a", 3), _held(until=60)).decision is NEVER
    found = _of(queue("a", 8), workload("old", "a", 8, holding=True), _held(until=60))
    assert (found.decision, found.until, found.reason) == (WAITS, "", "WaitingForQuota")
    assert found.why[-1] == "kueue: Kueue does not try it before 01:01 UTC (backoff after 5 requeues)"


@pytest.mark.parametrize(
    ("held", "reason", "says"),
    [
        (
            _held("OnHold", "Job is on hold"),
            "OnHold",
            "Kueue does not try it (OnHold: Job is on hold) until its job wants it again (a StatefulSet that "
            "is scaled up, a RayJob that is valid)",
        ),
        (
            _held("AdmissionGated", "Admission is gated by: budget"),
            "AdmissionGated",
            "Kueue does not try it (AdmissionGated: Admission is gated by: budget) until the annotation "
            "kueue.x-k8s.io/admission-gated-by is taken away",
        ),
        (
            _held("Incomplete", "", "WaitingForReplacementPods"),
            "WaitingForReplacementPods",
            "Kueue does not try it (WaitingForReplacementPods) until all pods of its group are there again",
        ),
        (
            _held("Inadmissible", "no such claim", "Requeued"),
            "WaitingForRequeue",
            "Kueue does not try it (WaitingForRequeue: no such claim)",
        ),
    ],
)
def test_who_is_not_tried_is_not_said_to_run(held: Workload, reason: str, says: str) -> None:
    found = _of(queue("a", 8), held)
    assert (found.decision, found.layer, found.reason, found.says) == (
        *(UNKNOWN, SchedulingLayer.QUOTA, reason, says),
    )
    assert [each.object for each in found.evidence] == ["workload/new"]
    assert _of(queue("a", 8), workload("old", "a", 8, holding=True), held).decision is UNKNOWN
    assert _of(queue("a", 3), held).decision is NEVER


@pytest.mark.parametrize("reason", ["WaitingForPodsReady", "Waiting"])
def test_nobody_is_let_in_while_pods_of_others_start(reason: str) -> None:
    said = "waiting for all admitted workloads to be in PodsReady condition"
    hold = _hold(_held(reason, said))
    assert hold is not None
    assert (hold.reason, hold.until) == (
        *("WaitingForPodsReady", "the pods of all admitted workloads are ready"),
    )
    assert [(each.field, each.value) for each in hold.evidence] == [
        ("status.conditions[QuotaReserved]", reason)
    ]
    line = f"kueue: nobody is let in before {hold.until} (waitForPodsReady.blockAdmission)"
    found = _of(queue("a", 8), _held(reason, said))
    assert (found.decision, found.ahead, found.why[-1]) == (NOW, 0, line)
    found = _of(queue("a", 8), workload("old", "a", 8, holding=True), _held(reason, said))
    assert (found.decision, found.until) == (WAITS, "")
    assert found.why[-1] == line


def test_one_that_may_not_preempt_does_not_run_by_preempting() -> None:
    said = "Workload requires preemption, but it's gated"
    spec, held = queue("a", 8, within="LowerPriority"), workload("old", "a", 8, holding=True, priority=-1)
    found = _of(spec, held, _held("AdmissionGated", said))
    assert (found.decision, found.reason, found.victims) == (UNKNOWN, "PreemptionGated", ())
    assert found.says == f"Kueue does not let it preempt now: {said}"
    assert _of(spec, _held("AdmissionGated", said)).decision is NOW


def test_queues_that_lead_nowhere() -> None:
    lost = local_queue("lost", "gone", "a")
    found = _of(queue("a", 8), lost, workload("new", "a", rest={"queue": "lost"}))
    assert (found.decision, found.reason) == (NEVER, "QueueMissing")
    assert found.says == "LocalQueue a/lost leads to ClusterQueue gone, which does not exist"
    found = _of(queue("a", 8), workload("new", "a", rest={"queue": "never-made"}))
    assert (found.decision, found.says) == (NEVER, "LocalQueue a/never-made does not exist")


def test_what_could_not_be_read_is_unknown() -> None:
    state = worlds.state(queue("a", 8), workload("new", "a", rest={"queue": "other"}))
    read = CollectionStatus("v1beta2", True)
    unread = CollectionStatus("v1beta2", False, problem="Forbidden")
    for field, status in (("localqueues", unread), ("localqueues", read)):
        known = {f"{name}.kueue.x-k8s.io": read for name in ("clusterqueues", "localqueues")}
        known[f"{field}.kueue.x-k8s.io"] = status
        found = _answer(replace(state, collections=known))
        assert found.decision is (NEVER if status is read else UNKNOWN)
        assert found.reason == "QueueMissing"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"stop_policy": "Hold"}, "ClusterQueue a is stopped (Hold)"),
        ({"stop_policy": "HoldAndDrain"}, "ClusterQueue a is stopped (HoldAndDrain)"),
        (
            {"is_active": False, "reason": "AdmissionCheckInactive"},
            "ClusterQueue a is not active: AdmissionCheckInactive",
        ),
    ],
)
def test_never_in_a_queue_that_serves_nobody(how: dict[str, Any], says: str) -> None:
    found = _of(queue("a", 8, **how), workload("new", "a"))
    assert (found.decision, found.reason, found.says) == (NEVER, "QueueInactive", says)


def test_never_in_a_local_queue_that_is_stopped() -> None:
    stopped = local_queue("stopped", "a", "a", stop_policy="Hold")
    found = _of(queue("a", 8), stopped, workload("new", "a", rest={"queue": "stopped"}))
    assert (found.reason, found.says) == ("QueueInactive", "LocalQueue stopped is stopped (Hold)")


def test_never_in_a_circle_of_cohorts_or_with_a_flavor_that_does_not_exist() -> None:
    circle = worlds.cohort("p", parent="q"), worlds.cohort("q", parent="p")
    found = _of(*circle, queue("a", 8, cohort="p"), workload("new", "a"))
    assert found.says == "ClusterQueue a is in a circle of cohorts: nothing is admitted in it"
    state = worlds.state(queue("a", {"h100": 8, "gone": 8}), workload("new", "a"))
    state = replace(state, flavors={uid: each for uid, each in state.flavors.items() if uid != "gone"})
    found = _answer(state)
    assert (found.decision, found.says) == (NEVER, "ClusterQueue a names a flavor that does not exist")


def test_never_in_a_namespace_that_the_queue_does_not_take() -> None:
    found = _of(queue("a", 8, namespace_selector=None), workload("new", "a"))
    assert (found.decision, found.reason) == (NEVER, "Misconfigured")
    assert found.says == "ClusterQueue a takes no workloads of namespace a"


def test_all_workloads_of_a_job_are_asked_about() -> None:
    pods = [workload(f"pod-{place}", "a", 2) for place in range(4)]
    enough, short = (worlds.state(queue("a", gpus), *pods) for gpus in (8, 7))
    names = [each.meta.name for each in pods]
    assert _answer(enough, *names).decision is NOW
    assert _answer(short, *names[:3]).decision is NOW
    never = _answer(short, *names)
    assert (never.decision, never.reason, never.partly) == (NEVER, "ExceedsMaxQuota", "3 of its 4 pods")
    assert never.says == (
        "never more than 3 of its 4 pods have quota at once: all of it asks 8 nvidia.com/gpu; "
        "ClusterQueue a can never have more than 7 (flavor h100)"
    )


@pytest.mark.parametrize("strict", [False, True])
def test_of_some_of_its_workloads_quota_is_short(strict: bool) -> None:
    """Equal ones are parked together: the reason is quota, not a head that no workload passes."""
    pods = [workload(f"pod-{place}", "a", 4, cpu=1) for place in range(3)]
    held = workload("held", "a", 8, holding=True)
    quota = queue("a", 16, cpu=64, strict=strict)
    found = _answer(worlds.state(quota, held, *pods), *(each.meta.name for each in pods))
    assert (found.decision, found.reason, found.partly) == (WAITS, "WaitingForQuota", "2 of its 3 pods")
    assert found.says == "each asks 4 nvidia.com/gpu; ClusterQueue a has 0 left (flavor h100)"
    assert [(each.name, each.count) for each in found.pod_sets] == [("main", 2)]
    full = workload("more", "a", 8, holding=True)
    found = _answer(worlds.state(quota, held, full, *pods), *(each.meta.name for each in pods))
    assert (found.decision, found.reason, found.partly) == (WAITS, "WaitingForQuota", "")
    assert found.says == "each asks 4 nvidia.com/gpu; ClusterQueue a has 0 left (flavor h100)"


def test_workloads_of_one_job_in_two_flavors() -> None:
    pods = [workload(f"pod-{place}", "a", 4) for place in range(3)]
    found = _answer(worlds.state(queue("a", {"x": 8, "y": 8}), *pods), *(each.meta.name for each in pods))
    assert found.decision is NOW
    assert [(each.count, dict(each.flavors)) for each in found.pod_sets] == [(2, {GPU: "x"}), (1, {GPU: "y"})]


def test_that_not_all_were_asked_about_is_said() -> None:
    many = [
        workload(f"pod-{place:03}", "a", 0, pod_sets=(pod_set("main", 1, 1),))
        for place in range(MOST_BESIDE + 6)
    ]
    found = _answer(worlds.state(queue("a", 300), *many), *(each.meta.name for each in many))
    assert f"Up to {MOST_BESIDE} Workloads of a job" in (DOCS / "advise.md").read_text("utf-8")
    assert found.decision is UNKNOWN
    assert f"the first {MOST_BESIDE} of its {MOST_BESIDE + 6} workloads have quota" in found.says
    assert f"of its {MOST_BESIDE + 6} workloads the first {MOST_BESIDE} were asked about" in found.assumptions


def test_the_rules_are_named_and_what_differs() -> None:
    state = worlds.state(queue("a", 8), workload("new", "a"))
    assert rules_named(ClusterOverview(state)) == "Kueue 0.19.2, classical preemption"
    assert _answer(state).drift == ()
    older = _of(queue("a", 8), workload("new", "a"), kueue=KueueConfig("v0.18.0", is_read=True))
    assert "v0.18.0" in older.drift[0]


@pytest.mark.parametrize("where", ["nowhere", "stopped"])
def test_what_differs_stands_in_refusals_too(where: str) -> None:
    kueue = KueueConfig("v0.18.0", is_read=True)
    refused = _of(queue("stopped", 8, stop_policy="Hold"), workload("new", where), kueue=kueue)
    assert refused.decision is not NOW
    assert "v0.18.0" in refused.drift[0]


def test_where_the_search_begins_and_usage_of_local_queues_are_assumed() -> None:
    fair = queue("a", 8, admission_mode="UsageBasedAdmissionFairSharing")
    said = _of(fair, workload("new", "a")).assumptions
    assert any("from the first one on" in each for each in said)
    assert any("admission fair sharing" in each for each in said)
    assert not any(
        "admission fair sharing" in each for each in _of(queue("a", 8), workload("new", "a")).assumptions
    )


def test_that_order_goes_by_usage_is_said_with_its_place() -> None:
    fair = queue("a", 8, admission_mode="UsageBasedAdmissionFairSharing")
    others = [
        local_queue(name, "a", "a", fair_usage={GPU: used}) for name, used in (("less", 1), ("more", 9000))
    ]
    mine = local_queue("mine", "a", "a", fair_usage={GPU: 2000})
    asks = workload("new", "a", rest={"queue": "mine"})
    on = KueueConfig("v0.19.2", is_read=True, fair_admission=FairAdmission())
    found = _of(fair, *others, mine, asks, kueue=on)
    [order] = [each for each in found.why if each.startswith("order: ")]
    # The usual LocalQueue of the world has used nothing.
    assert order.endswith("before priority; of 3 other LocalQueues 2 used less than mine")
    [assumed] = [each for each in found.assumptions if "admission fair sharing" in each]
    assert "with penalties of who has quota" in assumed
    off = _of(fair, *others, mine, asks, kueue=KueueConfig("v0.19.2", is_read=True))
    assert not any(each.startswith("order: ") for each in off.why)
    assert any("switched off" in each for each in off.assumptions)
    unread = _of(fair, *others, mine, asks, kueue=KueueConfig("v0.19.2"))
    assert any("entry penalties are not known" in each for each in unread.assumptions)
