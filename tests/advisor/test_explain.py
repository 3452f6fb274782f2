"""What explain says of jobs that are suspended or stopped, that have ended, or that started in part: real
objects in a dump, and the commands themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpucost.advisor.kueue.job_workloads import not_lifted
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import iso
from tests.advisor import worlds
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
    namespace,
    nodes,
    plain_job,
    queues,
    step,
    with_conditions,
    workload_of,
)
from tests.cli.advise_answers import furnish
from tests.support.cluster import shapes
from tests.support.objects import condition

Make = Callable[[Sequence[Json]], Cluster]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    furnish(tmp_path, monkeypatch)
    return lambda objects: Cluster(tmp_path, objects)


def suspended(name: str = "train", queue: str = "") -> Json:
    job = kueue_job(name, 1, 8)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return job


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
