"""Workloads that MultiKueue sends to other clusters, as their manager and a worker cluster see them."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.cluster.objects.kueue import AdmissionCheck, AdmissionCheckState, ClusterQueue, Workload
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.wait_causes import NO_WORKER
from gpucost.cluster.views.workload_families import (
    CONTROLLER,
    ORIGIN,
    DispatchStage,
    WorkloadDispatch,
    dispatches,
    origin_of,
    sends_elsewhere,
)
from tests.cluster.builders import (
    T0,
    cluster_queue,
    condition,
    local_queue,
    meta,
    pod,
    pod_set,
    state,
    workload,
)

MK = AdmissionCheck(meta("mk", ""), CONTROLLER)
BUDGET = AdmissionCheck(meta("budget", ""), "example.com/budget")
RESERVED = {"QuotaReserved": condition(True)}
PENDING = AdmissionCheckState("mk", "Pending")
SEEKING = WorkloadDispatch(DispatchStage.SEEKING, ())


def sent(*checks: AdmissionCheckState, admitted: bool = False, **rest: Any) -> Workload:
    conditions = {**RESERVED, "Admitted": condition(True)} if admitted else RESERVED
    return workload(
        "wl", pod_set("main", 2, 8), queue="lq", conditions=conditions, rest={"checks": checks, **rest}
    )


def overview(*objects: object) -> ClusterOverview:
    return ClusterOverview(
        state(
            cluster_queue("cq", checks={"mk": ()}),
            local_queue("lq", "cq"),
            *objects,
            checks=[MK, BUDGET],
        )
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (sent(PENDING), SEEKING),
        (
            sent(PENDING, nominated=("west", "east")),
            WorkloadDispatch(DispatchStage.NOMINATED, ("east", "west")),
        ),
        (sent(on_cluster="west", admitted=True), WorkloadDispatch(DispatchStage.ASSIGNED, ("west",))),
        (sent(AdmissionCheckState("budget", "Pending")), None),
        (sent(AdmissionCheckState("gone", "Pending")), None),
        # It waits for quota, is being evicted, or is over.
        (workload("wl", pod_set("main", 2, 8), rest={"checks": (PENDING,)}), None),
        (sent(PENDING, conditions={**RESERVED, "Evicted": condition(True)}), None),
        (sent(on_cluster="west", conditions={"Finished": condition(True)}), None),
    ],
)
def test_who_is_sent_where(found: Workload, expected: WorkloadDispatch | None) -> None:
    assert dispatches(overview(found).state).get("wl-uid") == expected


def test_a_queue_sends_elsewhere_if_a_check_of_it_is_multikueues() -> None:
    known = overview().state
    queues = {name: cluster_queue("q", checks={name: ()}) for name in ("mk", "budget", "gone")}
    assert [name for name, queue in queues.items() if sends_elsewhere(queue, known)] == ["mk"]
    assert not sends_elsewhere(ClusterQueue(meta("q", "")), known)


def test_it_waits_here_until_clusters_are_named() -> None:
    found = overview(sent(PENDING)).holds["wl-uid"]
    assert (found.layer.value, found.reason, found.since_ms) == ("quota", NO_WORKER, T0)
    # Another check is in the way of MultiKueue.
    open_ = AdmissionCheckState("budget", "Pending")
    assert overview(sent(PENDING, open_)).holds["wl-uid"].reason == "UnsatisfiedAdmissionChecks"
    assert overview(sent(PENDING, nominated=("west",))).holds == {}


@pytest.mark.parametrize("is_sent", [True, False])
def test_its_pods_here_wait_for_nothing_and_are_no_gang(is_sent: bool) -> None:
    rest = {"on_cluster": "west"} if is_sent else {}
    pods = [
        pod(name, 8, annotations={"kueue.x-k8s.io/workload": "wl"}, gates=("kueue.x-k8s.io/admission",))
        for name in ("a", "b")
    ]
    found = overview(sent(admitted=True, **rest), *pods)
    assert bool(found.holds) is not is_sent
    assert bool(found.gangs) is not is_sent


def test_pods_with_nodes_here_are_a_gang_whatever_workload_they_name() -> None:
    """Else whoever has one workload in another cluster could name it in the pods of all others, and what
    these hold while they lack members would be no waste."""
    named = {"kueue.x-k8s.io/workload": "wl"}
    holds, waits = pod("a", 8, annotations=named, node="node-1"), pod("b", 8, annotations=named)
    (gang,) = overview(sent(admitted=True, on_cluster="west"), holds, waits).gangs
    assert (gang.min_members, gang.running, gang.is_partial) == (2, 1, True)


def test_a_copy_says_where_it_is_from_in_the_label_of_its_workload() -> None:
    assert origin_of(workload("wl", labels={ORIGIN: "hub"})) == "hub"
    assert origin_of(workload("wl")) == ""
