"""What explain says of jobs that Kueue holds back, has not admitted, has deactivated or evicts: real objects
in a dump, and the commands themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucost.domain.time import iso
from gpucost.kube.dumps.scrub import scrubbed
from tests.advisor.story_worlds import (
    GPU,
    HOUR,
    NOW,
    NS,
    Cluster,
    Json,
    bound,
    by_operations,
    by_yaml,
    facts,
    kueue_job,
    manifest_of,
    queues,
    running_job,
    step,
    with_conditions,
    workload_of,
)
from tests.cli.advise_answers import furnish
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue

GATE = "kueue.x-k8s.io/admission"
Make = Callable[[Sequence[Json]], Cluster]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    furnish(tmp_path, monkeypatch)
    return lambda objects: Cluster(tmp_path, objects)


def test_the_gate_of_kueue_is_the_quota_layer(cluster: Make) -> None:
    pod = shapes.pod(NS, "gated", "gated", NOW - HOUR, GPU, 1)
    pod["spec"]["schedulingGates"] = [{"name": GATE}]
    found = cluster([*queues(), pod]).explain("pod/gated")
    assert found["layer"] == "quota"
    assert ("pod/gated", "spec.schedulingGates", GATE) in facts(found)
    assert (found["advice"], found["actions"]) == (None, [])


def test_other_gates_are_named(cluster: Make) -> None:
    pod = shapes.pod(NS, "gated", "gated", NOW - HOUR, GPU, 1)
    pod["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    found = cluster([*queues(), pod]).explain("pod/gated")
    assert "example.com/wait" in step(found, "gang and placement")["says"]


@pytest.mark.parametrize("reason", ["Deactivated", "DeactivatedDueToRequeuingLimitExceeded"])
def test_a_deactivated_workload_does_not_wait(cluster: Make, reason: str) -> None:
    job = kueue_job("train", 1, 8)
    evicted = condition("Evicted", True, reason, "limit exceeded", NOW - HOUR)
    requeued = condition("Requeued", False, reason, "limit exceeded", NOW - HOUR)
    workload = with_conditions(workload_of(job), evicted, requeued, active=False)
    before = cluster([*queues(), job, workload])
    found = before.explain("job/train")
    assert found["advice"] is None
    assert found["rules"].startswith("Kueue 0.19.2 (which version runs is not known)")
    assert found["drift"][0].startswith("which version of Kueue runs is not known")
    assert "differs     which version of Kueue runs is not known" in before.screen("job/train")
    assert f"it is deactivated ({reason}): " in found["says"]
    assert found["since_ms"] == NOW - HOUR
    (fix,) = found["actions"]
    assert (fix["rule"], fix["decision"]) == ("activate", "now")
    patch = '--type=merge -p \'{"spec":{"active":true}}\''
    command = f"kubectl -n {NS} patch workloads.kueue.x-k8s.io job-train {patch}"
    assert fix["change"]["command"] == command
    assert command in before.screen("job/train")
    for how in (by_operations, by_yaml):
        assert before.after(fix["change"], how).explain("job/train")["advice"]["decision"] == "now"


def test_that_it_was_preempted_is_told(cluster: Make) -> None:
    job = kueue_job("train", 2, 8)
    conditions = [
        condition("Evicted", True, "Preempted", "to accommodate another", NOW - HOUR),
        condition("Preempted", True, "InClusterQueue", "to accommodate another", NOW - HOUR),
        condition("QuotaReserved", False, "Pending", "to accommodate another", NOW - HOUR),
    ]
    found = cluster([*queues(), job, with_conditions(workload_of(job), *conditions)]).explain("job/train")
    assert "it ran before and was evicted (Preempted)" in found["says"]
    assert ("workload/job-train", "status.conditions[Preempted]", "InClusterQueue") in facts(found)


def in_backoff(pods: int, minutes: int, reason: str = "PodsReadyTimeout") -> list[Json]:
    """A job that was evicted and is put back into its queue in so many minutes."""
    job = kueue_job("train", pods, 8)
    conditions = [
        condition("Evicted", True, reason, "evicted", NOW - HOUR),
        condition("Requeued", False, reason, "evicted", NOW - HOUR),
        condition("QuotaReserved", False, "Pending", "evicted", NOW - HOUR),
    ]
    workload = with_conditions(workload_of(job), *conditions)
    workload["status"]["requeueState"] = {"count": 2, "requeueAt": iso(NOW + minutes * 60_000)}
    return [job, workload]


@pytest.mark.parametrize("reason", ["PodsReadyTimeout", "AdmissionCheck"])
def test_a_backoff_is_waited_out(cluster: Make, reason: str) -> None:
    before = cluster([*queues(), *in_backoff(1, 50, reason)])
    found = before.explain("job/train")
    assert found["says"] == (
        "quota holds it: Kueue does not try it before 00:50 UTC (backoff after 2 requeues); it ran before "
        f"and was evicted ({reason})"
    )
    assert facts(found) == [
        ("workload/job-train", "status.conditions[QuotaReserved]", "Pending"),
        ("workload/job-train", "status.requeueState.requeueAt", "2026-10-24T00:50:00Z"),
        ("workload/job-train", "status.requeueState.count", "2"),
        ("workload/job-train", "status.conditions[Evicted]", reason),
    ]
    advice = found["advice"]
    assert (advice["decision"], advice["ahead"], advice["wait"]) == ("waits", None, None)
    assert advice["says"] == (
        "waits until 00:50 UTC (backoff after 2 requeues): by the rules quota and nodes are there for it now"
    )
    assert ("workload/job-train", "status.requeueState.requeueAt") in [
        (each["object"], each["field"]) for each in advice["evidence"]
    ]
    assert cluster([*queues(), *in_backoff(1, 0, reason)]).explain("job/train")["advice"]["decision"] == "now"


def test_where_quota_is_short_the_wait_is_no_shorter_than_the_backoff(cluster: Make) -> None:
    advice = cluster([*queues(), *in_backoff(2, 50)]).explain("job/train")["advice"]
    assert (advice["decision"], advice["reason"]) == ("waits", "WaitingForQuota")
    assert advice["wait"]["simulated"]["p10_ms"] >= 50 * 60_000


BACKOFF = "Kueue does not try it before 00:50 UTC (backoff after 2 requeues)"
FOR_PODS = "nobody is let in before the pods of all admitted workloads are ready"


def for_pods_ready(pods: int) -> list[Json]:
    """A job that Kueue lets in once the pods of others are ready."""
    job = kueue_job("train", pods, 8)
    said = condition("QuotaReserved", False, "WaitingForPodsReady", "waiting for all", NOW - HOUR)
    return [job, with_conditions(workload_of(job), said)]


@pytest.mark.parametrize(
    ("objects", "line"),
    [(in_backoff(2, 50), BACKOFF), (for_pods_ready(2), f"{FOR_PODS} (waitForPodsReady.blockAdmission)")],
    ids=["backoff", "pods of others"],
)
def test_what_kueue_waits_for_does_not_hide_that_nodes_are_full(
    cluster: Make, objects: list[Json], line: str
) -> None:
    """With quota for it: nodes hold it, and its wait is simulated."""
    found = cluster([*queues(64), *objects]).explain("job/train")
    advice = found["advice"]
    assert (found["layer"], advice["decision"], advice["reason"]) == (
        *("gang and placement", "waits", "Unschedulable"),
    )
    assert advice["wait"]["simulated"]["p10_ms"] >= 50 * 60_000
    assert f"kueue: {line}" in advice["why"]
    assert step(found, "quota")["says"] == f"{line}; by the rules quota in queue ml is there for it"


def on_hold(gpus: int) -> list[Json]:
    job = kueue_job("train", 1, gpus)
    hold = condition("QuotaReserved", False, "OnHold", "Job is on hold", NOW - HOUR)
    return [job, with_conditions(workload_of(job), hold)]


def test_what_kueue_waits_for_does_not_hide_that_no_node_is_large_enough(cluster: Make) -> None:
    backoff = in_backoff(1, 50)
    larger = kueue_job("train", 1, 16)
    backoff[0]["spec"] = larger["spec"]
    backoff[1]["spec"]["podSets"] = workload_of(larger)["spec"]["podSets"]
    checked = queues(64)
    queue = next(each for each in checked if each["kind"] == "ClusterQueue")
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "budget"}]}
    check = kueue.admission_check("budget", "example.com/budget")
    for objects, line in (
        ([*queues(64), *backoff], f"kueue: {BACKOFF}"),
        ([*checked, check, *backoff], f"kueue: {BACKOFF}"),
        ([*queues(64), *on_hold(16)], "quota: Kueue does not try it (OnHold: Job is on hold)"),
    ):
        found = cluster(objects).explain("job/train")
        advice = found["advice"]
        assert (found["layer"], advice["decision"], advice["reason"]) == (
            *("gang and placement", "never", "LargerThanAnyNode"),
        )
        assert any(each.startswith(line) for each in advice["why"])


def test_a_backoff_comes_before_nodes_that_an_autoscaler_adds(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {GPU: "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
    pool = {"name": "burst", "allocatable": has, "most": 8}
    monkeypatch.setenv("GPUCOST_ADVISOR__POOLS", json.dumps([pool]))
    advice = cluster([*queues(64), *in_backoff(2, 50)]).explain("job/train")["advice"]
    assert (advice["decision"], advice["reason"]) == ("waits", "WaitingForRequeue")
    assert "until 00:50 UTC (backoff after 2 requeues): by the rules it fits once the autos" in advice["says"]


def test_nobody_waits_behind_a_backoff(cluster: Make) -> None:
    advice = cluster([*queues(), *in_backoff(1, 50)]).advise(manifest_of(kueue_job("other-train", 1, 8)))
    assert (advice["decision"], advice["ahead"]) == ("now", 0)


def test_one_on_hold_does_not_run_now(cluster: Make) -> None:
    found = cluster([*queues(), *on_hold(8)]).explain("job/train")
    assert (found["advice"]["decision"], found["advice"]["reason"]) == ("unknown", "OnHold")
    assert "Kueue does not try it (OnHold: Job is on hold)" in found["says"]
    assert facts(found) == [("workload/job-train", "status.conditions[QuotaReserved]", "OnHold")]


def test_one_that_waits_for_the_pods_of_others_does_not_run_now(cluster: Make) -> None:
    found = cluster([*queues(), *for_pods_ready(1)]).explain("job/train")
    ready = "the pods of all admitted workloads are ready"
    assert found["says"] == f"quota holds it: Kueue lets nobody in before {ready}"
    assert found["advice"]["says"].startswith(f"waits until {ready}: ")


def sent(*conditions: Any, check: str = "Pending", **status: Any) -> list[Json]:
    """A job of MultiKueue's manager that has quota, with more of its Workload's status."""
    job = kueue_job("train", 1, 8)
    objects = queues()
    queue = next(each for each in objects if each["kind"] == "ClusterQueue")
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "mk"}]}
    workload = with_conditions(workload_of(job), condition("QuotaReserved", since=NOW - HOUR), *conditions)
    given = kueue.assignment(flavors={GPU: "h100"}, usage={GPU: "8"})
    checks = [kueue.check_state("mk", check, "asked them")]
    workload["status"] |= {
        "admission": {"clusterQueue": "ml", "podSetAssignments": [given]},
        "admissionChecks": checks,
        **status,
    }
    return [*objects, kueue.admission_check("mk", "kueue.x-k8s.io/multikueue"), job, workload]


def with_quota(*conditions: Any, checks: Sequence[Json] = (), delayed: bool = False) -> list[Json]:
    """A job that has quota, with more conditions, and is not admitted."""
    job = kueue_job("train", 1, 8)
    workload = with_conditions(workload_of(job), condition("QuotaReserved", since=NOW - HOUR), *conditions)
    given = kueue.assignment(flavors={GPU: "h100"}, usage={GPU: "8"})
    if delayed:
        given["delayedTopologyRequest"] = "Pending"
    workload["status"] |= {
        "admission": {"clusterQueue": "ml", "podSetAssignments": [given]},
        "admissionChecks": list(checks),
    }
    return [*queues(), job, workload]


def test_with_quota_it_waits_for_its_checks(cluster: Make) -> None:
    said = condition("Admitted", False, "UnsatisfiedAdmissionChecks", "not all checks ready", NOW - HOUR)
    checks = [kueue.check_state("budget", "Ready", ""), kueue.check_state("prov", "Pending", "no nodes yet")]
    fact = ("workload/job-train", "status.admissionChecks[prov]", "Pending")
    for conditions in ((), (said,)):
        found = cluster(with_quota(*conditions, checks=checks)).explain("job/train")
        waits = "it has quota in ml and waits for its admission checks: prov is Pending: no nodes yet"
        assert found["says"] == f"quota holds it: {waits}"
        admitted = ("workload/job-train", "status.conditions[Admitted]", "UnsatisfiedAdmissionChecks")
        assert facts(found) == [*([admitted] if conditions else []), fact]
        advice = found["advice"]
        assert (advice["decision"], advice["reason"], advice["queue"]) == ("unknown", "AdmissionChecks", "ml")
        assert "admission check prov must agree" in advice["says"]
        assert "budget" not in advice["says"]


def test_a_check_that_was_rejected_ends_it(cluster: Make) -> None:
    checks = [kueue.check_state("prov", "Rejected", "no capacity")]
    found = cluster(with_quota(checks=checks)).explain("job/train")
    assert "Kueue deactivates it, as it was rejected by an admission check: prov is Rejected" in found["says"]
    assert (found["advice"]["decision"], found["advice"]["reason"]) == ("never", "AdmissionChecks")
    assert found["advice"]["says"].endswith("admission check prov rejected it, and Kueue deactivates it")


def test_with_quota_and_no_open_check(cluster: Make) -> None:
    ready, before = (
        [kueue.check_state("prov", "Ready", "")],
        condition("Admitted", False, "NoReservation", ""),
    )
    path = "status.admission.podSetAssignments[main].delayedTopologyRequest"
    found = cluster(with_quota(before, checks=ready, delayed=True)).explain("job/train")
    assert found["says"] == "quota holds it: it has quota in ml and waits for its topology assignment"
    assert facts(found) == [("workload/job-train", path, "Pending")]
    assert (found["advice"]["decision"], found["advice"]["reason"]) == (
        *("unknown", "PendingDelayedTopologyRequests"),
    )
    found = cluster(with_quota(before, checks=ready)).explain("job/train")
    assert found["says"] == "quota holds it: it has quota in ml; Kueue has not admitted it yet"
    assert facts(found) == []
    assert found["advice"]["says"] == "unknown: has quota; Kueue has not admitted it yet"


@pytest.mark.parametrize(
    "objects",
    [
        with_quota(checks=[kueue.check_state("prov", "Ready", "")], delayed=True),
        with_quota(checks=[kueue.check_state("prov", "Pending", "no nodes yet")]),
        [*queues(), *on_hold(8)],
    ],
    ids=["topology", "check", "on hold"],
)
def test_of_a_dump_it_says_the_same(cluster: Make, objects: list[Json]) -> None:
    live = cluster(objects).explain("job/train")
    assert cluster([*map(scrubbed, objects)]).explain("job/train") == live


def being_evicted(reason: str = "Preempted", active: bool = True) -> list[Json]:
    """Admitted on gpu-2, beside another job on gpu-1, and told to stop."""
    objects = running_job("train", ["gpu-2"], 8)
    evicted = condition("Evicted", True, reason, "evicted", NOW - 60_000)
    objects[1]["status"]["conditions"].append(evicted)
    objects[1]["spec"]["active"] = active
    return objects


def test_one_that_is_being_evicted_does_not_run_now(cluster: Make) -> None:
    before = cluster([*queues(), *being_evicted()])
    advice = before.explain("job/train")["advice"]
    assert (advice["decision"], advice["layer"], advice["queue"]) == ("waits", "quota", "ml")
    assert advice["says"].startswith("waits until it has given its quota back: ")
    # Its backoff has begun already.
    job, workload, *pods = being_evicted("PodsReadyTimeout")
    workload["status"]["requeueState"] = {"count": 2, "requeueAt": iso(NOW + HOUR)}
    advice = cluster([*queues(), job, workload, *pods]).explain("job/train")["advice"]
    assert advice["says"] == (
        "waits until 01:00 UTC (backoff after 2 requeues): by the rules quota and nodes are there for it then"
    )
    # Whoever it leaves for has come before.
    rival = kueue_job("rival", 1, 8)
    older = workload_of(rival)
    older["spec"]["priority"] = 9
    advice = before.with_(rival, older).explain("job/train")["advice"]
    assert (advice["decision"], advice["reason"]) == ("waits", "WaitingForQuota")
    assert advice["wait"]["p50_ms"] is None or advice["wait"]["p50_ms"] > 0


@pytest.mark.parametrize("members", [1, 2], ids=["pod", "group"])
def test_plain_pods_that_are_being_evicted_have_no_outlook(cluster: Make, members: int) -> None:
    """Kueue deletes them, and nobody makes others."""
    pods = [
        bound(shapes.pod(NS, f"solo-{at}", f"solo-{at}", NOW - HOUR, GPU, 8 // members), "gpu-2")
        for at in range(members)
    ]
    told = {"owner": ("v1", "Pod", "solo-0", "solo-0")} if members == 1 else {}
    for pod in pods:
        pod["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "solo"} if members > 1 else {}
    given = kueue.assignment(flavors={GPU: "h100"}, usage={GPU: "8"}, count=members)
    workload = kueue.workload(
        "solo",
        NS,
        queue="team",
        pod_sets=[{"name": "main", "count": members, "template": shapes.template(GPU, 8 // members)}],
        cluster_queue="ml",
        assignments=[given],
        conditions=[
            condition("QuotaReserved"),
            condition("Admitted"),
            condition("Evicted", True, "Preempted", "to accommodate another", NOW - 60_000),
        ],
        created=NOW - HOUR,
        **told,
    )
    found = cluster([*queues(), *pods, workload]).explain("workload/solo")
    assert found["says"] == "quota holds it: it is being evicted: Preempted"
    assert (found["advice"], found["actions"]) == (None, [])


def test_one_that_is_evicted_for_good_has_no_outlook(cluster: Make) -> None:
    objects = [*queues(), *being_evicted("DeactivatedDueToAdmissionCheck", active=False)]
    found = cluster(objects).explain("job/train")
    assert found["says"] == "quota holds it: it is being evicted: DeactivatedDueToAdmissionCheck"
    assert found["advice"] is None


def test_where_multi_kueue_runs_it(cluster: Make) -> None:
    admitted = condition("Admitted", since=NOW - HOUR)
    found = cluster(sent(admitted, check="Ready", clusterName="west")).explain("job/train")
    assert found["says"] == "its pods are on cluster west (MultiKueue), which knows more of them"
    assert step(found, "quota")["says"] == "it has quota in ml, and runs on cluster west (MultiKueue)"
    assert ("workload/job-train", "status.clusterName", "west") in facts(found)
    assert [step(found, layer)["verdict"] for layer in ("quota", "gang and placement", "device")] == [
        *("passed", "unknown", "unknown")
    ]


def test_for_what_multi_kueue_makes_it_wait(cluster: Make) -> None:
    named = cluster(sent(nominatedClusterNames=["west", "east"])).explain("job/train")
    assert named["layer"] == "quota"
    assert "waits for one of these clusters to admit it (MultiKueue): east, west" in named["says"]
    assert ("workload/job-train", "status.nominatedClusterNames", "east, west") in facts(named)
    none = cluster(sent()).explain("job/train")
    assert "MultiKueue has named no cluster yet that may run it: mk is Pending: asked them" in none["says"]
