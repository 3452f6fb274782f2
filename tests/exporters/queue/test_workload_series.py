"""Series of Kueue's workloads, from waiting to finished, and of jobs that Kueue does not manage."""

from __future__ import annotations

import pytest

from gpucost.cluster.objects.kueue import Workload, WorkloadEviction, WorkloadState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.wait_causes import WaitCause
from gpucost.contract.metrics import LINGER_MS
from gpucost.contract.queue_metrics import NodeAdmission, WaitLayer
from gpucost.domain.jobs import JobKind, JobReference
from gpucost_queue_collector.demand_series import PodGpuDemand, WaitingSet
from gpucost_queue_collector.workload_series import (
    SPECS,
    WAITING_JOB,
    ShownWorkload,
    WaitingJob,
    shown_workloads,
    write_waiting_job,
    write_workload,
)
from tests.cluster.builders import (
    GPU,
    MINUTE,
    SECOND,
    T0,
    cluster_queue,
    condition,
    job,
    local_queue,
    meta,
    pod_set,
    state,
    workload,
)
from tests.exporters.queue.series import HOSTILE, TAMED, lines, read_back

JOB = JobReference(JobKind.JOB, "train", "job-uid")
_WHO = 'namespace="team-a",workload="wl",workload_uid="wl-uid"'


def test_one_that_waits() -> None:
    found = workload(
        "wl",
        queue="lq",
        conditions={"QuotaReserved": condition(False, "Pending", "insufficient quota")},
        rest={
            "priority": -10,
            "priority_class": "low",
            "requeue_count": 2,
            "evictions": (
                WorkloadEviction("Preempted", "InCohortReclamation", 2),
                WorkloadEviction("Preempted", "InClusterQueue", 1),
                WorkloadEviction("PodsReadyTimeout", "", 4),
            ),
        },
    )
    hold = WaitCause(WaitLayer.QUOTA, "NoFit", "insufficient quota", T0)
    shown = ShownWorkload(found, "cq", JOB, "vision", {GPU: 16}, found.queued_since_ms, 3, hold)
    assert lines(SPECS, write_workload(shown)) == [
        f'workload_info{{{_WHO},queue="lq",cluster_queue="cq",job_kind="Job",job_name="train",'
        'job_uid="job-uid",priority_class="low",owner_team="vision"} 1.0',
        f'workload_state{{{_WHO},state="pending",reason="Pending"}} 1.0',
        f'workload_units{{{_WHO},resource="nvidia.com/gpu"}} 16.0',
        f"workload_priority{{{_WHO}}} -10.0",
        f"workload_queued_timestamp_seconds{{{_WHO}}} 1792800000.0",
        f"workload_queue_position{{{_WHO}}} 3.0",
        f'workload_waiting{{{_WHO},layer="quota",reason="NoFit"}} 1.0',
        f'workload_evictions_total{{{_WHO},reason="Preempted"}} 3.0',
        f'workload_evictions_total{{{_WHO},reason="PodsReadyTimeout"}} 4.0',
        f"workload_requeues{{{_WHO}}} 2.0",
    ]


def test_one_that_finished() -> None:
    found = workload(
        "wl",
        admitted_ms=T0 + MINUTE + 1,
        cluster_queue="cq",
        conditions={"Finished": condition(True, "JobFinished", "", T0 + 2 * MINUTE)},
    )
    shown = ShownWorkload(found, "cq", JOB, "vision", {}, found.queued_since_ms, None, None)
    assert lines(SPECS, write_workload(shown))[1:] == [
        f'workload_state{{{_WHO},state="finished",reason="JobFinished"}} 1.0',
        f"workload_priority{{{_WHO}}} 0.0",
        f"workload_queued_timestamp_seconds{{{_WHO}}} 1792800000.0",
        f"workload_reserved_timestamp_seconds{{{_WHO}}} 1792800060.001",
        f"workload_admitted_timestamp_seconds{{{_WHO}}} 1792800060.001",
        f"workload_finished_timestamp_seconds{{{_WHO}}} 1792800120.0",
        f"workload_requeues{{{_WHO}}} 0.0",
    ]


EVICTED = {"QuotaReserved": condition(True), "Evicted": condition(True, "Preempted")}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (workload("wl"), ("pending", "")),
        (
            workload("wl", rest={"is_active": False}, conditions={"Evicted": condition(True, "Deactivated")}),
            ("inactive", "Deactivated"),
        ),
        (
            workload(
                "wl",
                conditions={"QuotaReserved": condition(True), "Admitted": condition(False, "ChecksPending")},
            ),
            ("reserved", "ChecksPending"),
        ),
        (workload("wl", admitted_ms=T0), ("admitted", "")),
        (workload("wl", conditions=EVICTED), ("evicting", "Preempted")),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_states_and_why(found: Workload, expected: tuple[str, str]) -> None:
    assert found.state is WorkloadState(expected[0])
    state_line = lines(SPECS, write_workload(ShownWorkload(found, "", JOB, "", {}, None, None, None)))[1]
    assert state_line == f'workload_state{{{_WHO},state="{expected[0]}",reason="{expected[1]}"}} 1.0'


def test_hostile_names_come_back_as_they_were() -> None:
    found = Workload(meta(HOSTILE, HOSTILE, uid=HOSTILE), queue=HOSTILE, priority_class=HOSTILE)
    shown = ShownWorkload(
        found,
        HOSTILE,
        JobReference(JobKind.JOB, HOSTILE, HOSTILE),
        HOSTILE,
        {},
        T0,
        1,
        WaitCause(WaitLayer.QUOTA, HOSTILE, "", T0),
    )
    read = read_back(SPECS, write_workload(shown))
    assert len(read) == 7
    identity = ("namespace", "workload", "workload_uid")
    assert all([each[key] for key in identity] == [TAMED] * 3 for each in read)
    values = [read[0][key] for key in ("queue", "cluster_queue", "job_name", "job_uid", "priority_class")]
    assert values == [TAMED] * 5


# Which workloads


def test_what_follows_from_the_state_around_them() -> None:
    train = job("train")
    first = workload("first", pod_set(count=2, gpus=8), queue="lq", owner=train)
    second = workload("second", pod_set(gpus=1), queue="lq", created_ms=T0 + SECOND)
    lost = workload("lost", pod_set(gpus=1), queue="nowhere")
    running = workload("running", pod_set(gpus=4), queue="lq", cluster_queue="other", admitted_ms=T0)
    queues = cluster_queue("cq"), cluster_queue("other"), local_queue("lq", "cq")
    shown = shown_workloads(ClusterOverview(state(first, second, lost, running, train, *queues)), {})
    found = {
        each.workload.meta.name: (each.cluster_queue, each.job.name, dict(each.units), each.position)
        for each in shown.values()
    }
    assert found["first"] == ("cq", "train", {GPU: 16}, 1)
    assert found["second"][::2] == ("cq", {GPU: 1})
    assert found["second"][3] == 2
    assert found["lost"][0] == ""
    assert found["running"][::3] == ("other", None)
    assert {name for name, each in ((e.workload.meta.name, e) for e in shown.values()) if each.hold} == {
        "first",
        "second",
        "lost",
    }


def test_a_finished_one_stays_for_ten_minutes() -> None:
    at_ms = T0 + 60 * MINUTE

    def finished(name: str, finished_ms: int) -> Workload:
        return workload(name, conditions={"Finished": condition(True, "JobFinished", "", finished_ms)})

    news, history = finished("news", at_ms - LINGER_MS + 1), finished("history", at_ms - LINGER_MS)
    assert set(shown_workloads(ClusterOverview(state(news, history, at_ms=at_ms)), {})) == {"news-uid"}


def test_the_wait_for_its_quota_is_remembered_over_two_evictions() -> None:
    """Requeued keeps the time of the first requeue, and Evicted goes with the next reservation."""

    def at(minute: int) -> int:
        return T0 + minute * MINUTE

    def seen(**conditions: tuple[bool, int]) -> Workload:
        given = {
            name: condition(status, "R", "", at(minute)) for name, (status, minute) in conditions.items()
        }
        times = sum(name == "Evicted" for name in conditions) * 2
        evictions = (WorkloadEviction("Preempted", "", times),) if times else ()
        return workload("train", conditions=given, rest={"evictions": evictions})

    steps = [
        (seen(), at(0)),
        (seen(QuotaReserved=(True, 5)), at(0)),
        (seen(QuotaReserved=(True, 5), Evicted=(True, 60)), at(0)),  # evicted
        (seen(QuotaReserved=(False, 61), Evicted=(True, 60), Requeued=(True, 61)), at(60)),
        (seen(QuotaReserved=(True, 70), Evicted=(False, 70), Requeued=(True, 61)), at(60)),
        (seen(QuotaReserved=(False, 601), Evicted=(True, 600), Requeued=(True, 61)), at(600)),
        (seen(QuotaReserved=(True, 630), Evicted=(False, 630), Requeued=(True, 61)), at(600)),
    ]
    before: dict[str, ShownWorkload] = {}
    for step, (found, expected) in enumerate(steps):
        before = shown_workloads(ClusterOverview(state(found)), before)
        assert before[found.meta.uid].queued_ms == expected, step
    # Who sees it only now cannot know.
    assert shown_workloads(ClusterOverview(state(found)), {})[found.meta.uid].queued_ms is None
    # Nor who missed that it waited again.
    missed = {found.meta.uid: before[found.meta.uid]._replace(workload=steps[1][0], queued_ms=at(0))}
    assert shown_workloads(ClusterOverview(state(found)), missed)[found.meta.uid].queued_ms is None


def test_a_workload_outlives_its_job() -> None:
    owner = job("train")
    wl = workload("wl", owner=owner)
    before = shown_workloads(ClusterOverview(state(wl, owner)), {})
    assert before[wl.meta.uid].job.uid == owner.meta.uid
    assert shown_workloads(ClusterOverview(state(wl)), before)[wl.meta.uid].job.uid == owner.meta.uid
    assert shown_workloads(ClusterOverview(state(wl)), {})[wl.meta.uid].job.uid == f"team-a:{owner.meta.uid}"


def test_a_job_that_waits_without_a_workload() -> None:
    hold = WaitCause(WaitLayer.PLACEMENT, "Unschedulable", "0/9 nodes", T0)
    wants = (PodGpuDemand(GPU, 8, NodeAdmission.SOME, ("A100", "H100")),)
    waiting = WaitingJob(JOB, hold, "team-a", "pg", "vq", "vision", (WaitingSet("worker", 4, 2, wants),))
    who = 'job_kind="Job",job_name="train",job_uid="job-uid"'
    assert lines(WAITING_JOB, write_waiting_job(waiting)) == [
        f'job_waiting{{{who},layer="placement",reason="Unschedulable"}} 1.0',
        f'job_waiting_info{{{who},namespace="team-a",pod_group="pg",queue="vq",owner_team="vision"}} 1.0',
        f'job_pod_set_pods{{{who},pod_set="worker"}} 4.0',
        f'job_pod_set_min_pods{{{who},pod_set="worker"}} 2.0',
        f'job_pod_set_units{{{who},pod_set="worker",resource="nvidia.com/gpu",products="A100|H100",'
        'nodes="some"} 8.0',
    ]
