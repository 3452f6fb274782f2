"""Series of pods: intervals to the millisecond, whose they are, and who waits."""

from __future__ import annotations

from dataclasses import replace

from gpucost.cluster.objects.pods import (
    Pod,
    PodDisruption,
    PodPhase,
    PodWaitReason,
    UnhealthyDevice,
)
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import PodAffiliation
from gpucost.domain.jobs import JobKind, JobReference
from gpucost_queue_collector.pod_series import (
    HELD,
    WAITING,
    HeldPod,
    WaitingPod,
    held_pods,
    waiting_pods,
    write_held,
    write_waiting,
)
from tests.cluster.builders import (
    GPU,
    MINUTE,
    SECOND,
    T0,
    job,
    local_queue,
    pod,
    pod_set,
    state,
    template,
    workload,
)
from tests.exporters.queue.series import HOSTILE, TAMED, lines, read_back

MIG = "nvidia.com/mig-1g.10gb"
UUID = "GPU-0a1b2c3d-0000-4000-8000-000000000000"
BELONGING = PodAffiliation(
    JobReference(JobKind.JOB, "train", "job-uid"),
    "wl",
    "wl-uid",
    "lq",
    "cq",
    "h100",
    "vision",
    "atlas",
    "ann",
)


def test_a_pod_that_holds() -> None:
    found = pod("train-0", node="gpu-1", bound_ms=T0 + 250)
    assert lines(HELD, write_held(HeldPod(found, {GPU: 8, MIG: 2}, BELONGING))) == [
        'pod_gpu_request{namespace="team-a",pod="train-0",pod_uid="train-0-uid",node="gpu-1",'
        'resource="nvidia.com/gpu"} 8.0',
        'pod_gpu_request{namespace="team-a",pod="train-0",pod_uid="train-0-uid",node="gpu-1",'
        'resource="nvidia.com/mig-1g.10gb"} 2.0',
        'pod_gpu_start_timestamp_seconds{namespace="team-a",pod="train-0",pod_uid="train-0-uid",'
        'node="gpu-1",resource="nvidia.com/gpu"} 1792800000.25',
        'pod_gpu_start_timestamp_seconds{namespace="team-a",pod="train-0",pod_uid="train-0-uid",'
        'node="gpu-1",resource="nvidia.com/mig-1g.10gb"} 1792800000.25',
        'pod_owner_info{node="gpu-1",namespace="team-a",pod="train-0",pod_uid="train-0-uid",job_kind="Job",'
        'job_name="train",job_uid="job-uid",workload="wl",queue="lq",cluster_queue="cq",flavor="h100",'
        'owner_team="vision",owner_project="atlas",owner_user="ann"} 1.0',
    ]


def test_a_pod_that_ended() -> None:
    found = pod("train-0", node="gpu-1", bound_ms=T0, ended_ms=T0 + MINUTE + 1)
    [_, _, end, *_] = write_held(HeldPod(found, {GPU: 8}, BELONGING))
    assert end.decode() == (
        'gpucost_pod_gpu_end_timestamp_seconds{namespace="team-a",pod="train-0",pod_uid="train-0-uid",'
        'node="gpu-1",resource="nvidia.com/gpu"} 1792800060.001\n'
    )


def test_a_pod_that_was_told_to_stop() -> None:
    """Preempted by kube-scheduler: also of a pod that Kueue does not know. Words of others are not copied."""
    found = replace(pod("p", node="gpu-1"), disruption=PodDisruption("PreemptionByScheduler", T0 + SECOND))
    written = 'pod_disruption_timestamp_seconds{namespace="team-a",pod="p",pod_uid="p-uid",node="gpu-1",'
    assert lines(HELD, write_held(HeldPod(found, {GPU: 8}, BELONGING)))[-1] == (
        f'{written}reason="PreemptionByScheduler"}} 1792800001.0'
    )
    hostile = replace(found, disruption=PodDisruption(HOSTILE, T0))
    assert lines(HELD, write_held(HeldPod(hostile, {GPU: 8}, BELONGING)))[-1] == (
        f'{written}reason="other"}} 1792800000.0'
    )


def test_a_pod_with_unhealthy_units() -> None:
    """Of the seven that it holds; once it has ended it holds none."""
    told = (UnhealthyDevice(GPU, "", f"{UUID}::3"), UnhealthyDevice(GPU, "", "MIG-7"))
    found = replace(pod("p", 7, node="gpu-1"), unhealthy=told)
    [held] = held_pods(ClusterOverview(state(found)), {}).values()
    assert held.unhealthy == {(GPU, UUID): 1, (GPU, ""): 1}
    written = (
        'pod_gpu_unhealthy{namespace="team-a",pod="p",pod_uid="p-uid",node="gpu-1",resource="nvidia.com/gpu"'
    )
    assert lines(HELD, write_held(held))[-2:] == [
        f'{written},gpu_uuid="{UUID}"}} 1.0',
        f'{written},gpu_uuid=""}} 1.0',
    ]
    ended = replace(found, phase=PodPhase.SUCCEEDED, ended_ms=T0 + MINUTE)
    [held] = held_pods(ClusterOverview(state(), ended=[ended]), {}).values()
    assert held.unhealthy == {}


def test_a_pod_of_nobody_has_empty_labels() -> None:
    found = pod("train-0", node="gpu-1")
    row = lines(
        HELD, write_held(HeldPod(found, {GPU: 1}, PodAffiliation(JobReference(JobKind.POD, "train-0", "u"))))
    )
    assert row[-1].endswith(
        'job_kind="Pod",job_name="train-0",job_uid="u",workload="",queue="",cluster_queue="",flavor="",'
        'owner_team="",owner_project="",owner_user=""} 1.0'
    )


def test_hostile_names_come_back_as_they_were() -> None:
    found = pod(HOSTILE, 1, node=HOSTILE, namespace=HOSTILE, uid=HOSTILE, ended_ms=T0 + 1)
    belonging = PodAffiliation(JobReference(JobKind.JOB, HOSTILE, HOSTILE), HOSTILE, HOSTILE, HOSTILE)
    read = read_back(HELD, write_held(HeldPod(found, {GPU: 1}, belonging)))
    assert len(read) == 4
    for each in read:
        assert [each[key] for key in ("node", "namespace", "pod", "pod_uid")] == [TAMED] * 4
    assert [read[3][key] for key in ("job_name", "job_uid", "workload", "queue")] == [TAMED] * 4


# Which pods


def test_a_pod_holds_from_binding_to_its_end() -> None:
    bound, waits = pod("bound", 8, node="gpu-1"), pod("waits", 8)
    no_gpu = pod("no-gpu", node="gpu-1")
    over = pod("over", 8, node="gpu-1", ended_ms=T0 + MINUTE)
    unknown = pod("unknown", 8, node="gpu-1", phase=PodPhase.FAILED)
    overview = ClusterOverview(state(bound, waits, no_gpu, over, unknown), ended=[over])
    found = held_pods(overview, {})
    assert {each.pod.meta.name: each.pod.ended_ms for each in found.values()} == {
        "bound": None,
        "over": T0 + MINUTE,
    }
    assert [each.pod.meta.name for each in waiting_pods(overview).values()] == ["waits"]


def test_an_end_is_newer_than_the_state() -> None:
    running = pod("train-0", 8, node="gpu-1")
    over = replace(running, phase=PodPhase.FAILED, ended_ms=T0 + MINUTE)
    [found] = held_pods(ClusterOverview(state(running), ended=[over]), {}).values()
    assert (found.pod.ended_ms, found.units) == (T0 + MINUTE, {GPU: 8})


def test_what_ended_keeps_its_owner_and_units_after_they_are_gone() -> None:
    train = job("train", labels={"team": "vision"})
    running = pod("train-0", 8, node="gpu-1", owner=train)
    before = held_pods(ClusterOverview(state(train, running)), {})
    over = replace(running, phase=PodPhase.SUCCEEDED, ended_ms=T0 + MINUTE)
    alone = ClusterOverview(state(), ended=[over])
    [found] = held_pods(alone, before).values()
    assert (found.belonging.job.name, found.belonging.team) == ("train", "vision")
    [orphan] = held_pods(alone, {}).values()
    assert orphan.belonging.team == ""


def test_what_runs_on_keeps_its_owner_after_that_is_deleted() -> None:
    train = job("train", labels={"team": "vision"})
    running = pod("train-0", 8, node="gpu-1", owner=train)
    before = held_pods(ClusterOverview(state(train, running)), {})
    for again in range(2):
        before = held_pods(ClusterOverview(state(replace(running, priority=again))), before)
        [found] = before.values()
        assert (found.belonging.job.uid, found.belonging.team) == ("train-uid", "vision")
    taken = pod("train-0", 8, node="gpu-1", owner=job("other", uid="other-uid"))
    [found] = held_pods(ClusterOverview(state(taken)), before).values()
    assert found.belonging.job.uid == "team-a:other-uid"


def test_no_time_at_all_is_nothing_unless_it_was_shown() -> None:
    running = pod("train-0", 8, node="gpu-1", bound_ms=T0)
    refused = replace(running, phase=PodPhase.FAILED, ended_ms=T0)
    overview = ClusterOverview(state(refused), ended=[refused])
    assert held_pods(overview, {}) == {}
    before = held_pods(ClusterOverview(state(running)), {})
    [found] = held_pods(overview, before).values()
    assert found.pod.ended_ms == T0


def test_a_pod_keeps_the_flavor_it_was_bound_with() -> None:
    """Kueue takes it from the workload while the pods still run, and may give it another one later."""
    owner = job("train")
    running = pod("train-0", 8, node="gpu-1", bound_ms=T0 + MINUTE, owner=owner)
    lq = local_queue("lq", "cq")

    def shown(
        flavor: str | None, reserved_ms: int, before: dict[str, HeldPod], found: Pod = running
    ) -> dict[str, HeldPod]:
        given = {"admitted_ms": reserved_ms, "flavor": flavor, "cluster_queue": "cq"} if flavor else {}
        wl = [workload("wl", pod_set("main", 1, 8), queue="lq", owner=owner, **given)] * (flavor is not None)
        ended = [found] if found.has_ended else []
        return held_pods(ClusterOverview(state(found, owner, lq, *wl), ended=ended), before)

    def place(seen: dict[str, HeldPod]) -> tuple[str, str, str]:
        found = seen[running.meta.uid].belonging
        return found.flavor, found.cluster_queue, found.workload

    before = shown("h100", T0, {})
    assert place(before) == ("h100", "cq", "wl")
    over = replace(running, phase=PodPhase.FAILED, ended_ms=T0 + 9 * MINUTE)
    for flavor, reserved_ms in (("", 0), ("a100", T0 + 2 * MINUTE), (None, 0)):
        assert place(shown(flavor, reserved_ms, before)) == ("h100", "cq", "wl"), flavor
        assert place(shown(flavor, reserved_ms, before, over)) == ("h100", "cq", "wl"), flavor
    # Who sees it only now does not know what it was bound with.
    assert place(shown("a100", T0 + 2 * MINUTE, {})) == ("", "cq", "wl")
    # An older state of the workload, seen first, is no more than that.
    assert place(shown("a100", T0 + MINUTE, before)) == ("a100", "cq", "wl")


def test_an_owner_that_becomes_known_is_believed() -> None:
    owner = job("train")
    over = pod("train-0", 8, node="gpu-1", bound_ms=T0, ended_ms=T0 + MINUTE, owner=owner)
    early = held_pods(ClusterOverview(state(over), ended=[over]), {})
    assert early[over.meta.uid].belonging.job.uid == f"team-a:{owner.meta.uid}"
    known = held_pods(ClusterOverview(state(over, owner), ended=[over]), early)
    assert known[over.meta.uid].belonging.job.uid == owner.meta.uid
    late = held_pods(ClusterOverview(state(over), ended=[over]), known)
    assert late[over.meta.uid].belonging.job.uid == owner.meta.uid


# Waiting


def test_a_pod_that_waits() -> None:
    found = replace(
        pod("train-1", created_ms=T0 + 5 * SECOND),
        waiting=PodWaitReason("Unschedulable", "0/9 nodes", T0 + 9 * SECOND),
    )
    assert lines(WAITING, write_waiting(WaitingPod(found, {GPU: 8}))) == [
        'pod_gpu_waiting{namespace="team-a",pod="train-1",pod_uid="train-1-uid",'
        'resource="nvidia.com/gpu",reason="Unschedulable"} 8.0',
        'pod_gpu_waiting_since_timestamp_seconds{namespace="team-a",pod="train-1",'
        'pod_uid="train-1-uid"} 1792800009.0',
    ]


def test_why_a_pod_waits() -> None:
    def reason(**fields: object) -> str:
        found = pod("train-1", asks=template(8), **fields)  # type: ignore[arg-type]
        return read_back(WAITING, write_waiting(WaitingPod(found, {GPU: 8})))[0]["reason"]

    assert reason(gates=("kueue.x-k8s.io/admission",)) == "gated"
    assert reason(unschedulable="0/9 nodes") == "Unschedulable"
    assert reason() == "Pending"
