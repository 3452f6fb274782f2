"""What explain says of jobs that are not let in, that have ended, or that were sent back: real objects in a
dump, and the commands themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.kueue.job_workloads import not_lifted
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import iso
from tests.advisor import worlds
from tests.advisor.story_worlds import (
    GPU,
    NOW,
    NS,
    Cluster,
    Json,
    bound,
    by_operations,
    by_yaml,
    kueue_job,
    manifest_of,
    namespace,
    nodes,
    plain_job,
    quotas,
    running_job,
    workload_of,
)
from tests.cli.advise_answers import furnish
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue

HOUR = 3_600_000
GATE = "kueue.x-k8s.io/admission"
Make = Callable[[Sequence[Json]], Cluster]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    furnish(tmp_path, monkeypatch)
    return lambda objects: Cluster(tmp_path, objects)


def step(found: Json, layer: str) -> Json:
    return next(dict(each) for each in found["steps"] if each["layer"] == layer)


def facts(found: Json, layer: str = "quota") -> list[tuple[str, str, str]]:
    return [(each["object"], each["field"], each["value"]) for each in step(found, layer)["evidence"]]


def queues(gpus: int = 16, stopped: str = "", local_stopped: str = "") -> list[Json]:
    inactive = condition("Active", False, "Stopped", "Can't admit new workloads: it is stopped", NOW - HOUR)
    active: dict[str, Any] = {"conditions": [inactive]} if stopped else {}
    return [
        namespace(),
        *nodes(2),
        kueue.resource_flavor("h100"),
        kueue.cluster_queue("ml", quotas=quotas(gpus), stop_policy=stopped or "None", **active),
        kueue.local_queue("team", "ml", NS, stop_policy=local_stopped or "None"),
        *running_job("other", ["gpu-1"], 8),
    ]


def suspended(name: str = "train", queue: str = "") -> Json:
    job = kueue_job(name, 1, 8)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return job


def with_conditions(workload: Json, *conditions: Any, active: bool = True) -> Json:
    workload["spec"]["active"] = active
    workload["status"]["conditions"] = [*conditions]
    return workload


# Suspended


def test_a_job_without_a_queue_stays_suspended(cluster: Make) -> None:
    job = suspended()
    advice = cluster(queues()).advise(manifest_of(job))
    assert (advice["decision"], advice["layer"], advice["reason"]) == ("never", "quota", "Suspended")
    assert "it is suspended (spec.suspend), and names no queue of Kueue" in advice["says"]
    fix = advice["suggestions"][0]
    assert (fix["rule"], fix["decision"]) == ("suspend", "now")
    for how in (by_operations, by_yaml):
        changed = how(manifest_of(job), fix["change"])
        assert changed["spec"]["suspend"] is False
        assert cluster(queues()).advise(changed)["decision"] == "now"


def test_in_a_queue_suspend_is_as_it_should_be(cluster: Make) -> None:
    advice = cluster(queues()).advise(manifest_of(suspended(queue="team")))
    assert advice["decision"] == "now"


def test_a_suspended_job_that_exists(cluster: Make) -> None:
    found = cluster([*queues(), suspended()]).explain("job/train")
    assert found["layer"] == "quota"
    assert ("job/train", "spec.suspend", "true") in facts(found)
    assert found["advice"]["decision"] == "never"
    assert found["actions"][0]["rule"] == "suspend"


def test_a_suspended_pytorch_job_has_the_switch_elsewhere(cluster: Make) -> None:
    job = shapes.pytorch_job(NS, "train", NOW - HOUR, 1, shapes.template(GPU, 8), {})
    advice = cluster(queues()).advise(manifest_of(job))
    assert advice["reason"] == "Suspended"
    assert "spec.runPolicy.suspend" in advice["says"]
    changed = by_operations(manifest_of(job), advice["suggestions"][0]["change"])
    assert changed["spec"]["runPolicy"]["suspend"] is False


def test_who_lifts_it() -> None:
    """Kueue, of kinds that it looks at, in a queue; never that of a CronJob itself."""

    def why(kind: JobKind, queue: str, frameworks: tuple[str, ...] | None = None) -> str:
        job = JobObject(worlds.meta("train", "ml"), "v1", kind.value, kind, is_suspended=True)
        config = KueueConfig(frameworks=frameworks)
        return not_lifted(job, queue, worlds.state(worlds.queue("a", 8), kueue=config))

    assert why(JobKind.JOB, "main") == ""
    assert "names no queue" in why(JobKind.JOB, "")
    assert "which no queue lifts" in why(JobKind.CRON_JOB, "main")
    off = why(JobKind.RAY_JOB, "main", ("batch/job",))
    assert "Kueue's integration ray.io/rayjob, which would lift that, is switched off" in off


# A queue label without a Workload


def test_a_queue_that_is_missing_is_not_passed(cluster: Make) -> None:
    found = cluster([*queues(), suspended(queue="teem")]).explain("job/train")
    assert step(found, "quota")["verdict"] == "holds it"
    assert "LocalQueue teem, which would lift that, does not exist" in found["says"]
    assert found["actions"][0]["rule"] == "queue-name"


@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_label_without_a_workload_is_not_passed(cluster: Make, is_suspended: bool) -> None:
    job = suspended(queue="team")
    job["spec"]["suspend"] = is_suspended
    found = cluster([*queues(), job]).explain("job/train")
    assert step(found, "quota")["verdict"] == ("holds it" if is_suspended else "unknown")
    assert "Workload" in step(found, "quota")["says"]


# Ended


@pytest.mark.parametrize(
    ("status", "says"),
    [({"succeeded": 1}, "it is complete"), ({"failed": 1}, "it has failed")],
    ids=["complete", "failed"],
)
def test_a_job_that_has_ended(cluster: Make, status: Json, says: str) -> None:
    (job, *_) = plain_job("train", 1, 8, ["gpu-1"], "")
    ended = condition("Complete" if "succeeded" in status else "Failed", True, "", "", NOW - HOUR)
    job["status"] = {**status, "conditions": [ended]}
    found = cluster([*queues(), job]).explain("job/train")
    assert (found["layer"], found["says"], found["since_ms"]) == ("none", says, NOW - HOUR)
    assert [each["verdict"] for each in found["steps"]][:3] == ["not reached"] * 3


def test_a_workload_that_has_finished(cluster: Make) -> None:
    job = suspended("done", "team")
    over = condition("Finished", True, "Succeeded", "Job finished successfully", NOW - HOUR)
    workload = with_conditions(workload_of(job, placed={}), condition("QuotaReserved"), over)
    found = cluster([*queues(), job, workload]).explain("workload/job-done")
    assert found["says"] == "it has finished (Succeeded): Job finished successfully"
    assert found["actions"] == []


def test_a_pod_that_has_ended(cluster: Make) -> None:
    pod = bound(shapes.pod(NS, "solo", "solo", NOW - 2 * HOUR, GPU, 1), "gpu-2")
    pod["status"]["phase"] = "Failed"
    found = cluster([*queues(), pod]).explain("pod/solo")
    assert found["says"] == "it has failed"
    assert ("pod/solo", "status.phase", "Failed") in facts(found, "running")


# Evidence is what stands in the object


def test_what_is_worked_out_is_no_field(cluster: Make) -> None:
    job = kueue_job("train", 2, 8)
    said = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100"
    )
    found = cluster([*queues(), job, workload_of(job, message=said)]).explain("job/train")
    told = facts(found)
    assert ("workload/job-train", "status.conditions[QuotaReserved]", "Pending") in told
    assert ("workload/job-train", "", "WaitingForQuota") in told
    assert ("clusterqueue/ml", "", "8") in told
    assert not [field for _, field, _ in told if "flavorsReservation" in field]


def test_what_its_status_says_is_a_field(cluster: Make) -> None:
    objects = queues()
    queue = next(each for each in objects if each["kind"] == "ClusterQueue")
    of_gpus = {"name": "h100", "resources": [{"name": GPU, "total": "7", "borrowed": "0"}]}
    queue["status"]["flavorsReservation"] = [of_gpus]
    job = kueue_job("train", 2, 8)
    told = facts(cluster([*objects, job, workload_of(job)]).explain("job/train"))
    assert ("clusterqueue/ml", "status.flavorsReservation[h100]", "7") in told
    assert ("clusterqueue/ml", "", "8") in told


# Gates, deactivation, eviction


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


def test_a_deactivated_workload_does_not_wait(cluster: Make) -> None:
    job = kueue_job("train", 1, 8)
    why = condition("Evicted", True, "DeactivatedDueToRequeuingLimitExceeded", "limit exceeded", NOW - HOUR)
    workload = with_conditions(workload_of(job), why, active=False)
    before = cluster([*queues(), job, workload])
    found = before.explain("job/train")
    assert found["advice"] is None
    assert found["rules"].startswith("Kueue 0.19.2 (which version runs is not known)")
    assert found["drift"][0].startswith("which version of Kueue runs is not known")
    assert "differs     which version of Kueue runs is not known" in before.screen("job/train")
    assert "deactivated (DeactivatedDueToRequeuingLimitExceeded)" in found["says"]
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
    assert advice["says"].startswith("waits until 00:50 UTC (backoff after 2 requeues): ")
    assert cluster([*queues(), *in_backoff(1, 0, reason)]).explain("job/train")["advice"]["decision"] == "now"


def test_where_quota_is_short_the_wait_is_no_shorter_than_the_backoff(cluster: Make) -> None:
    advice = cluster([*queues(), *in_backoff(2, 50)]).explain("job/train")["advice"]
    assert (advice["decision"], advice["reason"]) == ("waits", "WaitingForQuota")
    assert advice["wait"]["simulated"]["p10_ms"] >= 50 * 60_000


def test_nobody_waits_behind_a_backoff(cluster: Make) -> None:
    advice = cluster([*queues(), *in_backoff(1, 50)]).advise(manifest_of(kueue_job("other-train", 1, 8)))
    assert (advice["decision"], advice["ahead"]) == ("now", 0)


def test_one_on_hold_does_not_run_now(cluster: Make) -> None:
    job = kueue_job("train", 1, 8)
    hold = condition("QuotaReserved", False, "OnHold", "Job is on hold", NOW - HOUR)
    found = cluster([*queues(), job, with_conditions(workload_of(job), hold)]).explain("job/train")
    assert (found["advice"]["decision"], found["advice"]["reason"]) == ("unknown", "OnHold")
    assert "Kueue does not try it (OnHold: Job is on hold)" in found["says"]
    assert facts(found) == [("workload/job-train", "status.conditions[QuotaReserved]", "OnHold")]


def test_one_that_waits_for_the_pods_of_others_does_not_run_now(cluster: Make) -> None:
    job = kueue_job("train", 1, 8)
    said = condition("QuotaReserved", False, "WaitingForPodsReady", "waiting for all", NOW - HOUR)
    found = cluster([*queues(), job, with_conditions(workload_of(job), said)]).explain("job/train")
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
    # Whoever it leaves for has come before.
    rival = kueue_job("rival", 1, 8)
    older = workload_of(rival)
    older["spec"]["priority"] = 9
    advice = before.with_(rival, older).explain("job/train")["advice"]
    assert (advice["decision"], advice["reason"]) == ("waits", "WaitingForQuota")
    assert advice["wait"]["p50_ms"] is None or advice["wait"]["p50_ms"] > 0


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


# A stopped queue


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
def test_a_stopped_queue_says_so_and_may_go_on(cluster: Make, kind: str) -> None:
    is_local = kind == "LocalQueue"
    objects = queues(stopped="" if is_local else "Hold", local_stopped="HoldAndDrain" if is_local else "")
    job = kueue_job("train", 1, 8)
    before = cluster([*objects, job, workload_of(job)])
    found = before.explain("job/train")
    name, policy = ("team", "HoldAndDrain") if is_local else ("ml", "Hold")
    assert found["says"] == f"quota holds it: {kind} {name} is stopped ({policy})"
    assert ("workload/job-train", "status.conditions[QuotaReserved]", "Pending") in facts(found)
    assert (f"{kind.lower()}/{name}", "spec.stopPolicy", policy) in facts(found)
    fix = found["actions"][0]
    assert (fix["rule"], fix["decision"], fix["change"]["kind"]) == ("stop-policy", "now", "cluster")
    assert '"stopPolicy":"None"' in fix["change"]["command"]
    for how in (by_operations, by_yaml):
        after = before.after(fix["change"], how)
        queue = after.find(kind, name)
        queue["status"]["conditions"] = [condition("Active", True, "Ready", "", NOW)]
        assert after.explain("job/train")["advice"]["decision"] == "now"


def test_whoever_stood_in_the_stopped_queue_comes_first(cluster: Make) -> None:
    """With room for one, it is that of the workload that was there before."""
    first = kueue_job("first", 1, 8)
    objects = [*queues(stopped="Hold"), first, workload_of(first)]
    advice = cluster(objects).advise(manifest_of(kueue_job("train", 1, 8)))
    assert advice["decision"] == "never"
    assert [each["decision"] for each in advice["suggestions"]] == ["waits"]


def test_a_namespace_that_is_missing(cluster: Make) -> None:
    manifest = manifest_of(suspended(queue="team"))
    manifest["metadata"]["namespace"] = "lm"
    advice = cluster(queues()).advise(manifest)
    assert advice["says"].endswith("LocalQueue lm/team does not exist: there is no namespace lm")


# A gang that nothing holds together


def test_a_plain_job_that_started_in_part(cluster: Make) -> None:
    objects = plain_job("half", 2, 8, ["gpu-2"], "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    found = cluster([*queues(), *objects]).explain("job/half")
    assert "1 of 2 pods that need each other has a node" in found["says"]
    assert ("job/half", "spec.completionMode", "Indexed") in facts(found, "gang and placement")


# Pods that are being deleted


def deleted(pod: Json) -> Json:
    pod["metadata"] |= {"deletionTimestamp": iso(NOW + 30_000), "deletionGracePeriodSeconds": 30}
    return pod


def test_a_pod_that_is_being_deleted_is_not_one_of_the_jobs(cluster: Make) -> None:
    """One was preempted and still ends; its successor waits: of one pod, one has no node."""
    objects = plain_job("train", 2, 8, ["gpu-1"], "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    job, leaving, successor = objects
    job["spec"] |= {"parallelism": 1, "completions": 1}
    found = cluster([namespace(), *nodes(1), job, deleted(leaving), successor]).explain("job/train")
    said = step(found, "gang and placement")["says"]
    assert said.startswith("its pod has no node: 0/1 nodes are available")
    assert said.endswith("; 1 pod is being deleted")


def test_a_waiting_pod_that_is_being_deleted_waits_for_nothing(cluster: Make) -> None:
    job, running, leaving = plain_job("train", 2, 4, ["gpu-1"], "0/1 nodes are available")
    job["spec"] |= {"parallelism": 1, "completions": 1}
    asked = cluster([namespace(), *nodes(1), job, running, deleted(leaving)])
    found = asked.explain("job/train")
    assert step(found, "gang and placement")["verdict"] == "passed"
    assert found["layer"] == "none"


def test_only_pods_that_are_being_deleted_are_none_of_the_jobs(cluster: Make) -> None:
    job, leaving = plain_job("train", 1, 8, ["gpu-1"], "")
    found = cluster([namespace(), *nodes(1), job, deleted(leaving)]).explain("job/train")
    assert step(found, "gang and placement")["says"] == "it has no pods now; 1 pod is being deleted"


def test_a_lost_node_of_a_pod_that_is_replaced_holds_nothing(cluster: Make) -> None:
    """The node controller deletes pods of a node that is gone, and no kubelet there confirms it."""
    job, leaving, successor = plain_job("train", 2, 8, ["gpu-1", "gpu-2"], "")
    job["spec"] |= {"parallelism": 1, "completions": 1}
    lost, other = nodes(2)
    shapes.set_condition(lost, "Ready", False, "NodeStatusUnknown", NOW - HOUR)
    found = cluster([namespace(), lost, other, job, deleted(leaving), successor]).explain("job/train")
    assert step(found, "device")["verdict"] == "passed"
