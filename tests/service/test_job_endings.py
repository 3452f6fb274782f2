"""How jobs ended: by the objects of a cluster, and by the frames of a source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from gpucost.attribution.frames import empty_frame
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.pods import Pod, PodDisruption, PodPhase
from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.contract.frames import DEMAND, EVICTIONS
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.reports.job.job_receipt import NO_END, JobEndFacts, JobEnding
from gpucost.service.reporting.job_endings import end_in_cluster, end_in_history, ends_in, joined_end
from tests.cluster import builders
from tests.cluster.builders import T0, condition, pod, pod_set


def state(*found: Any, collections: dict[str, CollectionStatus] | None = None) -> ClusterState:
    jobs = {each.meta.uid: each for each in found if isinstance(each, JobObject)}
    workloads = {each.meta.uid: each for each in found if isinstance(each, Workload)}
    return ClusterState(T0, collections or {}, jobs=jobs, workloads=workloads)


def job(**fields: Any) -> JobObject:
    return replace(builders.job("train", pod_sets=(pod_set(count=2, gpus=8),)), **fields)


def of(found: JobObject | Pod) -> tuple[str, str]:
    return found.meta.namespace, found.meta.uid


def workload(reason: str, **conditions: Any) -> Workload:
    """Of ``train``: it waited for ten minutes, ran for an hour, and was evicted."""
    evicted = {"Evicted": condition(True, reason, since_ms=T0 + HOUR_MS)} if reason else {}
    return builders.workload("job-train", owner=job().as_owner, conditions={**evicted, **conditions})


@pytest.mark.parametrize(
    ("found", "ending", "reason"),
    [
        (job(ended_ms=T0), JobEnding.SUCCEEDED, ""),
        (job(ended_ms=T0, failure="BackoffLimitExceeded"), JobEnding.FAILED, "BackoffLimitExceeded"),
        (job(is_suspended=True), JobEnding.STOPPED, ""),
        (job(pod_sets=(), active=0), JobEnding.STOPPED, ""),
        (job(active=2), JobEnding.UNKNOWN, ""),
    ],
)
def test_a_job_by_its_own_status(found: JobObject, ending: JobEnding, reason: str) -> None:
    assert end_in_cluster(state(found), *of(found), "Job") == JobEndFacts(ending, reason)


@pytest.mark.parametrize(
    ("reason", "ending", "words"),
    [
        ("Preempted", JobEnding.PREEMPTED, "others needed its quota; it waits to run again"),
        ("PodsReadyTimeout", JobEnding.EVICTED, "its pods were not ready in time; it waits to run again"),
    ],
)
def test_a_job_that_kueue_took_the_quota_of(reason: str, ending: JobEnding, words: str) -> None:
    found = job(is_suspended=True)
    end = end_in_cluster(state(found, workload(reason)), *of(found), "Job")
    assert (end.ending, end.reason) == (ending, words)
    done = replace(found, ended_ms=T0)
    assert end_in_cluster(state(done, workload(reason)), *of(found), "Job").ending is JobEnding.SUCCEEDED


def test_a_workload_of_another_namespace_says_nothing_of_a_job() -> None:
    """Whoever makes one may name any uid as its owner's. Of several the newest that is not over counts."""
    found, own = job(is_suspended=True), workload("Preempted")

    def beside(name: str, **values: Any) -> Workload:
        return replace(own, meta=replace(own.meta, name=name, uid=name, **values))

    others = replace(workload("PodsReadyTimeout"), meta=beside("x", namespace="evil").meta)
    over = replace(beside("y", created_ms=T0 + HOUR_MS), conditions={"Finished": condition(True)})
    for workloads in ([others, own, over], [over, own, others]):
        end = end_in_cluster(state(found, *workloads), *of(found), "Job")
        assert end.ending is JobEnding.PREEMPTED
    alone = end_in_cluster(state(found, others), *of(found), "Job")
    assert (alone.ending, alone.waited_ms) == (JobEnding.STOPPED, None)


def test_the_wait_is_from_the_queue_to_the_admission() -> None:
    admitted = {type_: condition(True, since_ms=T0 + 600_000) for type_ in ("QuotaReserved", "Admitted")}
    found = job(ended_ms=T0 + HOUR_MS)
    known = state(found, replace(workload("", **admitted), meta=replace(workload("").meta, created_ms=T0)))
    assert end_in_cluster(known, *of(found), "Job").waited_ms == 10 * MINUTE_MS


def test_a_pod_by_its_phase_and_by_what_disrupted_it() -> None:
    alone = pod("alone")
    for fields, ending in (
        ({"phase": PodPhase.SUCCEEDED}, JobEnding.SUCCEEDED),
        ({"phase": PodPhase.FAILED}, JobEnding.FAILED),
        ({"disruption": PodDisruption("PreemptionByScheduler", T0)}, JobEnding.PREEMPTED),
        ({"disruption": PodDisruption("EvictionByEvictionAPI", T0)}, JobEnding.EVICTED),
        ({"phase": PodPhase.RUNNING}, JobEnding.UNKNOWN),
    ):
        known = ClusterState(T0, pods={alone.meta.uid: replace(alone, **fields)})  # type: ignore[arg-type]
        assert end_in_cluster(known, *of(alone), "Pod").ending is ending


def test_a_job_that_is_not_there_is_gone_only_where_all_of_its_kind_were_read() -> None:
    read = CollectionStatus("v1", synced=True)
    assert end_in_cluster(state(), "ml", "uid", "Job") == NO_END
    for collections, kind, ending in (
        ({"jobs.batch": read}, "Job", JobEnding.GONE),
        ({"jobs.batch": replace(read, synced=False)}, "Job", JobEnding.UNKNOWN),
        ({"jobs.batch": read}, "PyTorchJob", JobEnding.UNKNOWN),
        ({"jobs.batch": read}, "VolcanoJob", JobEnding.UNKNOWN),
        ({"jobs.batch.volcano.sh": read}, "VolcanoJob", JobEnding.GONE),
        ({"jobs.batch": read, "pods": read}, "Other", JobEnding.UNKNOWN),
        ({"jobs.batch": read}, "no kind", JobEnding.UNKNOWN),
    ):
        assert end_in_cluster(state(collections=collections), "ml", "uid", kind).ending is ending, kind


def test_only_jobs_of_the_watched_cluster_are_looked_up() -> None:
    found = job(ended_ms=T0)
    ends = ends_in("east", state(found))
    assert ends("east", *of(found), "Job").ending is JobEnding.SUCCEEDED
    assert ends("west", *of(found), "Job") == ends_in("east", None)("east", "ml", "x", "Job") == NO_END


def evictions(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{"pod_uid": "p", "job_uid": "j", "reason": "Preempted", **row} for row in rows])


def test_the_last_eviction_is_the_end_where_nothing_ran_after_it() -> None:
    demand = empty_frame(DEMAND)
    early, late = {"end_ms": T0}, {"end_ms": T0 + HOUR_MS, "reason": "Drain"}
    end = end_in_history(evictions(early, late), demand, "j", T0 + HOUR_MS, 0)
    assert end == JobEndFacts(JobEnding.EVICTED, "it gave its quota back")
    assert end_in_history(evictions(early), demand, "j", T0, 0).ending is JobEnding.PREEMPTED
    assert end_in_history(evictions(early), demand, "j", T0 + HOUR_MS, 0) == NO_END, "it ran on"
    assert end_in_history(evictions(early), demand, "another", T0, 0) == NO_END
    assert end_in_history(empty_frame(EVICTIONS), demand, "j", T0, 0) == NO_END


@pytest.mark.parametrize(
    ("last_ms", "since_ms", "waited_ms"),
    [
        (T0 + HOUR_MS, T0 - 1, 90_000),  # of quota, then of a place: one wait
        (T0 + HOUR_MS, T0, None),  # it may have begun before what was read
        (T0 + 3 * HOUR_MS, T0, MINUTE_MS),  # the last of two, which was read whole
        (T0, T0 - 1, None),  # it waited after it held GPUs, to run again
    ],
)
def test_the_wait_is_the_one_before_it_ran_last(last_ms: int, since_ms: int, waited_ms: int | None) -> None:
    again = T0 + 2 * HOUR_MS
    spans = [(T0, T0 + 60_000), (T0 + 30_000, T0 + 70_000), (T0 + 70_000, T0 + 90_000)]
    spans += [(again, again + MINUTE_MS)]
    demand = pd.DataFrame([{"job_uid": "j", "start_ms": start, "end_ms": end} for start, end in spans])
    found = end_in_history(empty_frame(EVICTIONS), demand, "j", last_ms, since_ms)
    assert found.waited_ms == waited_ms


def test_the_cluster_has_the_word_where_it_knows_the_end() -> None:
    preempted = JobEndFacts(JobEnding.PREEMPTED, "others needed its quota", 7)
    for of_cluster, expected in (
        (JobEndFacts(JobEnding.SUCCEEDED, "", 3), JobEndFacts(JobEnding.SUCCEEDED, "", 3)),
        (JobEndFacts(JobEnding.GONE, "", None), preempted),
        (NO_END, preempted),
    ):
        assert joined_end(of_cluster, preempted) == expected
    gone = JobEndFacts(JobEnding.GONE, "", 3)
    assert joined_end(gone, NO_END) == gone
