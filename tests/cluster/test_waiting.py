"""What holds waiting workloads and jobs back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.cluster.objects.kueue import (
    AdmissionCheckState,
    ClusterQueue,
    PodSetAssignment,
    ResourceGroup,
    Workload,
)
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.objects.volcano import GroupKind
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.cluster.views.quota import reason_in
from gpucost.cluster.views.wait_causes import (
    WaitCause,
    pod_reason,
    waiting,
    waiting_jobs,
)
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind, JobReference
from tests.cluster.builders import (
    GPU,
    MINUTE,
    T0,
    cluster_queue,
    condition,
    job,
    local_queue,
    node,
    pod,
    pod_group,
    pod_set,
    state,
    workload,
)

QUEUES = (local_queue("lq", "cq"), cluster_queue("cq"))
ADMITTED = T0 + MINUTE
NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


READ = CollectionStatus("v1beta2", synced=True)


def hold_of(wl: Workload, *objects: object, **collections: CollectionStatus) -> WaitCause | None:
    known = {"clusterqueues.kueue.x-k8s.io": READ, "localqueues.kueue.x-k8s.io": READ, **collections}
    now = replace(state(wl, *(objects or QUEUES)), collections=known)
    return waiting(now, GpuUnits(now, ResourceCatalog()), PodOwnership(now)).get(wl.meta.uid)


def jobs_held(*objects: object) -> dict[JobReference, WaitCause]:
    now = state(*objects)
    return waiting_jobs(now, GpuUnits(now, ResourceCatalog()), PodOwnership(now))


def pending(reason: str = "", message: str = "", queue: str = "lq", **more: object) -> Workload:
    said = {"QuotaReserved": condition(False, reason, message, T0 + 5)} if reason else {}
    return workload("wl", pod_set("main", 2, 8), queue=queue, conditions={**said, **more})  # type: ignore[arg-type]


def admitted(**rest: object) -> Workload:
    return workload("wl", pod_set("main", 2, 8), queue="lq", admitted_ms=ADMITTED, rest=rest)


def member(name: str, *, node: str = "", unschedulable: str = "", **more: object) -> Pod:
    """Of the admitted workload, made two seconds after it was admitted; 8 GPUs."""
    return pod(
        name,
        8,
        node=node,
        unschedulable=unschedulable,
        created_ms=ADMITTED + 2_000,
        annotations={"kueue.x-k8s.io/workload": "wl"},
        **more,  # type: ignore[arg-type]
    )


# Quota

A_FLAVOR = "couldn't assign flavors to pod set main: "
MORE_NEEDED = "insufficient unused quota for nvidia.com/gpu in flavor h100, 2 more needed"
NEVER = (
    "insufficient quota for nvidia.com/gpu in flavor a100, previously considered podsets requests (0) + "
    "current podset request (16) > maximum capacity (8)"
)
GATED = "Workload requires preemption, but it's gated"
TAINTED = "untolerated taint {spot true NoSchedule <nil>} in flavor spot"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (A_FLAVOR + MORE_NEEDED, "WaitingForQuota"),
        (A_FLAVOR + NEVER, "ExceedsMaxQuota"),
        (A_FLAVOR + "insufficient quota for cpu in flavor x, request > maximum (9 > 8)", "ExceedsMaxQuota"),
        (A_FLAVOR + "insufficient unused quota in cohort for cpu in flavor x, 1 more", "WaitingForQuota"),
        (A_FLAVOR + "borrowing limit for cpu in flavor x exceeded", "WaitingForQuota"),
        (A_FLAVOR + TAINTED, "NoMatchingFlavor"),
        (A_FLAVOR + "flavor h100 doesn't match node affinity", "NoMatchingFlavor"),
        (A_FLAVOR + "flavor h100 not found", "NoMatchingFlavor"),
        (A_FLAVOR + 'Flavor "h100" supports only TopologyAwareScheduling', "NoMatchingFlavor"),
        (A_FLAVOR + "resource nvidia.com/gpu unavailable in ClusterQueue", "NoMatchingFlavor"),
        (A_FLAVOR + 'topology "default" doesn\'t allow to fit any of 4 pod(s)', "TopologyPlacementFailed"),
        (A_FLAVOR + 'topology "default" allows to fit only 2 out of 4 pod(s)', "TopologyPlacementFailed"),
        (A_FLAVOR + f"{MORE_NEEDED}. Pending the preemption of 2", "WaitingForPreemptedWorkloads"),
        ("Workload no longer fits after processing another workload", "WaitingForQuota"),
        ("Workload has overlapping preemption targets with another workload", "WaitingForQuota"),
        (A_FLAVOR + f"{MORE_NEEDED}. Pending the migration of 1 workload(s)", "WaitingForPreemptedWorkloads"),
        ("Workload has overlapping preemption targets with another workload, but will fit after these "
         "preemptions complete", "WaitingForPreemptedWorkloads"),
        (GATED, "PreemptionGated"),
        ("waiting for all admitted workloads to be in PodsReady condition", "WaitingForPodsReady"),
        ("ClusterQueue cq is inactive", "QueueInactive"),
        ("LocalQueue lq doesn't exist", "QueueMissing"),
        ("LocalQueue  doesn't exist", "QueueMissing"),
        ("ClusterQueue cq not found", "QueueMissing"),
        ("Workload namespace doesn't match ClusterQueue selector", "Misconfigured"),
        ("something new", ""),
        ("", ""),
        # Of alternatives the mildest, of one flavor's resources the most severe, of pod sets the most severe.
        (A_FLAVOR + f"{TAINTED}, {NEVER}, {MORE_NEEDED}", "WaitingForQuota"),
        (A_FLAVOR + f"{MORE_NEEDED}, {NEVER.replace('a100', 'h100')}", "ExceedsMaxQuota"),
        (f"{A_FLAVOR}{MORE_NEEDED}; couldn't assign flavors to pod set ps: {NEVER}", "ExceedsMaxQuota"),
    ],
)  # fmt: skip
def test_what_a_message_stands_for(message: str, expected: str) -> None:
    assert reason_in(message, None) == expected


def test_flavors_of_two_groups_are_both_needed() -> None:
    cpu = "insufficient unused quota for cpu in flavor default, 4 more needed"
    message = f"{A_FLAVOR}{cpu}, {NEVER}"
    groups = (ResourceGroup(("cpu",), ("default",)), ResourceGroup((GPU,), ("h100", "a100")))
    assert reason_in(message, cluster_queue("cq", groups=groups)) == "ExceedsMaxQuota"
    assert reason_in(message, None) == "WaitingForQuota"


def test_granular_reasons_are_kept_and_plain_ones_read_from_the_message() -> None:
    assert hold_of(pending("ExceedsMaxQuota", "said so")) == WaitCause(
        WaitLayer.QUOTA, "ExceedsMaxQuota", "said so", T0
    )
    assert hold_of(pending("Pending", A_FLAVOR + MORE_NEEDED)) == WaitCause(
        WaitLayer.QUOTA, "WaitingForQuota", A_FLAVOR + MORE_NEEDED, T0
    )
    assert hold_of(pending("Waiting", "something new")) == WaitCause(
        WaitLayer.QUOTA, "Waiting", "something new", T0
    )
    assert hold_of(pending()) == WaitCause(WaitLayer.QUOTA, "PendingEvaluation", "", T0)


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        # Kueue uses the reason of its admission gates for its preemption gates as well.
        ("AdmissionGated", GATED, "PreemptionGated"),
        ("AdmissionGated", "Admission is gated by: budget", "AdmissionGated"),
        ("OnHold", "scaled to zero", "OnHold"),
    ],
)
def test_who_is_held_back_is_so_even_before_it_is_put_back(reason: str, message: str, expected: str) -> None:
    later = {"Requeued": condition(False, "PodsReadyTimeout", "back off")}
    assert hold_of(pending(reason, message, **later)) == WaitCause(WaitLayer.QUOTA, expected, message, T0)


def test_since_its_last_eviction() -> None:
    evicted = {"Evicted": condition(True, "Preempted", "", T0 + 7 * MINUTE)}
    found = hold_of(pending("Pending", A_FLAVOR + MORE_NEEDED, **evicted))
    assert found is not None
    assert found.since_ms == T0 + 7 * MINUTE


def test_waiting_to_be_put_back_into_the_queue() -> None:
    later = {"Requeued": condition(False, "PodsReadyTimeout", "back off")}
    found = hold_of(pending("Pending", "Exceeded the PodsReady timeout", **later))
    assert found is not None
    assert (found.layer, found.reason, found.message) == (WaitLayer.QUOTA, "WaitingForRequeue", "back off")


def test_a_time_to_wait_says_more_than_that_it_is_pending() -> None:
    later = {"Requeued": condition(False, "PodsReadyTimeout", "back off")}
    for ahead_ms, reason in ((1, "WaitingForRequeue"), (0, "PendingEvaluation")):
        evicted = pending("PendingEvaluation", "evicted", **later)
        found = hold_of(replace(evicted, requeue_at_ms=T0 + 60 * MINUTE + ahead_ms))
        assert found is not None
        assert found.reason == reason


STOPPED = cluster_queue("cq", stop_policy="Hold")
BROKEN = cluster_queue("cq", is_active=False, reason="FlavorNotFound")


@pytest.mark.parametrize(
    ("queues", "reason", "message"),
    [
        ((cluster_queue("cq"),), "QueueMissing", "LocalQueue team-a/lq does not exist"),
        ((local_queue("lq", "cq"),), "QueueMissing", "ClusterQueue cq does not exist"),
        ((local_queue("lq", "cq"), STOPPED), "QueueInactive", "ClusterQueue cq is stopped (Hold)"),
        (
            (local_queue("lq", "cq"), BROKEN),
            "QueueInactive",
            "ClusterQueue cq is not active: FlavorNotFound",
        ),
        (
            (local_queue("lq", "cq", stop_policy="HoldAndDrain"), cluster_queue("cq")),
            "QueueInactive",
            "LocalQueue lq is stopped (HoldAndDrain)",
        ),
    ],
)
def test_a_queue_that_serves_nobody(queues: tuple[ClusterQueue, ...], reason: str, message: str) -> None:
    wl = pending("WaitingForQuota", "an old message")
    assert hold_of(wl, *queues) == WaitCause(WaitLayer.QUOTA, reason, message, T0)


def test_queues_that_cannot_be_read_are_not_missing() -> None:
    unread = CollectionStatus("v1beta2", synced=False, problem="forbidden")
    found = hold_of(
        pending("Pending", A_FLAVOR + MORE_NEEDED),
        cluster_queue("cq"),
        **{"localqueues.kueue.x-k8s.io": unread},
    )
    assert found is not None
    assert found.reason == "WaitingForQuota"


def test_admission_checks_that_are_outstanding() -> None:
    said = {
        "QuotaReserved": condition(True, "QuotaReserved", "", T0 + 9),
        "Admitted": condition(False, "UnsatisfiedAdmissionChecks", "1 of 3"),
    }
    checks = (
        AdmissionCheckState("a", "Ready"),
        AdmissionCheckState("b", "Pending", "no capacity"),
        AdmissionCheckState("c", "Retry"),
    )
    wl = workload("wl", conditions=said, rest={"checks": checks})
    assert hold_of(wl) == WaitCause(
        WaitLayer.QUOTA, "UnsatisfiedAdmissionChecks", "b is Pending: no capacity, c is Retry", T0 + 9
    )
    assert hold_of(workload("wl", conditions={"QuotaReserved": said["QuotaReserved"]})) == WaitCause(
        WaitLayer.QUOTA, "NotAdmittedYet", "", T0 + 9
    )
    before = {**said, "Admitted": condition(False, "NoReservation", "The workload has no reservation")}
    waits = PodSetAssignment("main", {}, {}, 1, awaits_topology=True)
    assert hold_of(workload("wl", conditions=before, rest={"assignments": (waits,)})) == WaitCause(
        WaitLayer.QUOTA, "PendingDelayedTopologyRequests", "", T0 + 9
    )
    delayed = {**said, "Admitted": condition(False, "PendingDelayedTopologyRequests", "later")}
    assert hold_of(workload("wl", conditions=delayed)) == WaitCause(
        WaitLayer.QUOTA, "PendingDelayedTopologyRequests", "later", T0 + 9
    )


@pytest.mark.parametrize(
    "wl",
    [
        workload("wl", conditions={"Finished": condition(True)}),
        workload("wl", rest={"is_active": False}),
        workload("wl", admitted_ms=T0, conditions={"Evicted": condition(True)}),
        workload("wl", admitted_ms=T0),  # and no pods yet
    ],
)
def test_what_waits_for_nothing(wl: Workload) -> None:
    assert hold_of(wl) is None


# Placement and device


def test_pods_that_run_wait_for_nothing() -> None:
    creating = replace(member("b", node="n1", stuck="ContainerCreating"), phase=PodPhase.PENDING)
    assert hold_of(admitted(), member("a", node="n1"), creating) is None


def test_pods_that_find_no_node() -> None:
    pods = [member("a", node="n1"), member("b", unschedulable=NO_NODE)]
    full = node("n1", 8)
    assert hold_of(admitted(), *pods, full) == WaitCause(
        WaitLayer.PLACEMENT, "Unschedulable", NO_NODE, ADMITTED + 2_000
    )


def test_a_scheduler_that_has_said_nothing_and_gates() -> None:
    found = hold_of(admitted(), member("a"))
    assert found == WaitCause(WaitLayer.PLACEMENT, "Pending", "", ADMITTED + 2_000)
    found = hold_of(admitted(), member("a", gates=("kueue.x-k8s.io/topology",)))
    assert found == WaitCause(
        WaitLayer.PLACEMENT, "SchedulingGated", "kueue.x-k8s.io/topology", ADMITTED + 2_000
    )
    gated = pod("old", 8, gates=("g",), annotations={"kueue.x-k8s.io/workload": "wl"})
    found = hold_of(admitted(), gated)
    assert found is not None
    assert found.since_ms == ADMITTED


SHORT = node("n2", allocatable={GPU: 6, "cpu": 64_000}, expected={GPU: 8})


def test_a_node_that_does_not_advertise_all_its_gpus() -> None:
    waits, full = member("b", unschedulable=NO_NODE), (member("a", node="n1"), node("n1", 8))
    assert hold_of(admitted(), waits, *full, SHORT) == WaitCause(
        WaitLayer.DEVICE, "NotAdvertised", "n2 advertises 6 of 8 nvidia.com/gpu", ADMITTED + 2_000
    )
    # Another node has room: what is missing on n2 is not what it waits for.
    found = hold_of(admitted(), waits, *full, SHORT, node("n3", 8))
    assert found is not None
    assert found.layer is WaitLayer.PLACEMENT
    # One GPU of n2 is taken: 7 would not do.
    found = hold_of(admitted(), waits, *full, SHORT, pod("x", 1, node="n2"))
    assert found is not None
    assert found.layer is WaitLayer.PLACEMENT


@pytest.mark.parametrize("reason", ["CreateContainerError", "RunContainerError"])
def test_containers_that_cannot_start_with_their_devices(reason: str) -> None:
    stuck = replace(member("b", node="n1", stuck=reason), bound_ms=ADMITTED + 5_000)
    assert hold_of(admitted(), member("a", node="n1"), stuck) == WaitCause(
        WaitLayer.DEVICE, reason, "pod b", ADMITTED + 5_000
    )


def test_pods_that_their_node_refused() -> None:
    refused = replace(
        member("a", node="n1", stuck="UnexpectedAdmissionError"),
        phase=PodPhase.FAILED,
        ended_ms=ADMITTED + 6_000,
    )
    assert hold_of(admitted(), refused) == WaitCause(
        WaitLayer.DEVICE, "UnexpectedAdmissionError", "pod a", ADMITTED + 6_000
    )
    assert hold_of(admitted(), refused, member("b", node="n1")) is None
    # Alone it waits for nothing, unless a job makes it again.
    alone = replace(refused, meta=replace(refused.meta, annotations={}))
    assert jobs_held(alone) == {}
    owner = job("j")
    owned = replace(alone, meta=replace(alone.meta, owner=owner.as_owner))
    assert [hold.reason for hold in jobs_held(owner, owned).values()] == ["UnexpectedAdmissionError"]
    assert jobs_held(replace(owner, ended_ms=T0), owned) == {}


IN_GROUP = {"scheduling.k8s.io/group-name": "pg"}
VCJOB = job("train", "Job", "batch.volcano.sh/v1alpha1")
TRAIN = JobReference(JobKind.VOLCANO_JOB, "train", "train-uid")


def test_a_gang_that_its_scheduler_holds_back() -> None:
    said = {"Unschedulable": condition(True, "NotEnoughResources", "3/4 tasks in gang unschedulable")}
    group = pod_group("pg", 4, rest={"phase": "Inqueue", "conditions": said}, owner=VCJOB)
    waits = pod("a", 8, owner=VCJOB, annotations=IN_GROUP, unschedulable="pod group is not ready")
    expected = WaitCause(WaitLayer.PLACEMENT, "GangNotReady", "3/4 tasks in gang unschedulable", T0)
    for phase in ("Inqueue", "Pending", ""):
        assert jobs_held(VCJOB, replace(group, phase=phase), waits) == {TRAIN: expected}
    # Running, with a pod to spare that finds no node; the old condition stays True.
    runs = replace(group, phase="Running")
    assert jobs_held(VCJOB, runs, waits)[TRAIN].reason == "Unschedulable"
    # A group of one is no gang.
    assert jobs_held(VCJOB, replace(group, min_member=1), waits)[TRAIN].reason == "Unschedulable"


def test_a_gang_that_is_not_let_in_has_no_pods() -> None:
    rest = {"phase": "Pending", "min_resources": {GPU: 32}}
    group = pod_group("pg", 4, rest=rest, owner=VCJOB)
    assert jobs_held(VCJOB, group) == {TRAIN: WaitCause(WaitLayer.PLACEMENT, "GangNotReady", "", T0)}
    assert jobs_held(VCJOB, replace(group, min_resources={"cpu": 1})) == {}


def test_a_native_gang() -> None:
    said = {"PodGroupScheduled": condition(False, "Unschedulable", "no room for 4")}
    group = pod_group("pg", 4, GroupKind.NATIVE, rest={"conditions": said})
    waits = pod("a", 8, group="pg", unschedulable="waiting for the gang")
    assert [(hold.reason, hold.message) for hold in jobs_held(group, waits).values()] == [
        ("GangNotReady", "no room for 4")
    ]


def test_jobs_are_those_without_kueue_that_want_gpus() -> None:
    cpu = pod("cpu", unschedulable="full")
    managed = member("managed", unschedulable=NO_NODE)
    plain = pod("plain", 1, unschedulable=NO_NODE)
    assert jobs_held(admitted(), cpu, managed, plain, *QUEUES) == {
        JobReference(JobKind.POD, "plain", "plain-uid"): WaitCause(
            WaitLayer.PLACEMENT, "Unschedulable", NO_NODE, T0
        )
    }


def test_why_a_pod_has_no_node() -> None:
    assert pod_reason(pod("a", 1, gates=("g",))) == "gated"
    assert pod_reason(pod("a", 1, unschedulable="full")) == "Unschedulable"
    assert pod_reason(pod("a", 1)) == "Pending"
