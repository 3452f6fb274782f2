"""Queues, cohorts and LocalQueues as the contract describes them, with numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.kueue import (
    Cohort,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    Workload,
)
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.views.queues import (
    ClusterQueueQuota,
    CohortQuota,
    PendingWorkloads,
    QueueViews,
    queue_views,
)
from gpucost.cluster.views.quota import workload_units, workload_usage
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import (
    GPU,
    MINUTE,
    T0,
    assignment,
    cluster_queue,
    condition,
    local_queue,
    meta,
    pod_set,
    state,
    workload,
)

CATALOG = ResourceCatalog()
KEY = FlavorResource("h100", GPU)
CPU = FlavorResource("h100", "cpu")


def views(*objects: object, **collections: Any) -> QueueViews:
    return queue_views(state(*objects, **collections), CATALOG)


def waiting(name: str, gpus: int, reason: str = "", queue: str = "main", **fields: Any) -> Workload:
    conditions = {"QuotaReserved": condition(False, reason)} if reason else {}
    return workload(name, pod_set(count=gpus, gpus=1, cpu=500), queue=queue, conditions=conditions, **fields)


def held(name: str, gpus: int, cluster_queue: str, queue: str = "main", **fields: Any) -> Workload:
    pods = pod_set(count=gpus, gpus=1)
    return workload(
        name, pods, queue=queue, cluster_queue=cluster_queue, flavor="h100", admitted_ms=T0, **fields
    )


def reserved_only(name: str, gpus: int, cluster_queue: str) -> Workload:
    pods = pod_set(count=gpus, gpus=1)
    return workload(
        name,
        pods,
        queue="main",
        cluster_queue=cluster_queue,
        conditions={"QuotaReserved": condition(True, "QuotaReserved")},
        rest={"assignments": (assignment(pods, "h100"),)},
    )


def test_a_cluster_queue_as_its_status_says() -> None:
    queue = cluster_queue(
        "a",
        {KEY: FlavorQuota(8, borrowing_limit=4, lending_limit=2)},
        cohort="c",
        reserved={KEY: FlavorUsage(7)},
        used={KEY: FlavorUsage(5)},
        reserving=3,
        admitted=2,
    )
    view = views(queue, local_queue("main", "a"), held("w", 1, "a")).cluster_queues["a"]
    assert view.quotas == {KEY: ClusterQueueQuota(8, 4, 2, 7, 5, 0, 1)}
    assert (view.is_active, view.reason, view.from_status) == (True, "Ready", True)
    assert (view.reserving, view.admitted) == (3, 2)
    assert view.pending == PendingWorkloads()


def test_what_can_be_lent() -> None:
    def lendable(quota: FlavorQuota, reserved: int, **fields: Any) -> int | None:
        queue = cluster_queue(
            "a", {KEY: quota}, reserved={KEY: FlavorUsage(reserved)}, **{"cohort": "c", **fields}
        )
        return views(queue).cluster_queues["a"].quotas[KEY].lendable

    assert lendable(FlavorQuota(8), 3) == 5
    assert lendable(FlavorQuota(8, lending_limit=2), 3) == 2
    assert lendable(FlavorQuota(8, lending_limit=0), 0) == 0
    assert lendable(FlavorQuota(8), 11) == 0
    assert lendable(FlavorQuota(8), 3, is_active=False, reason="Stopped") == 5
    assert lendable(FlavorQuota(8), 3, cohort="") is None


def test_what_others_have_borrowed_already_cannot_be_lent_again() -> None:
    found = views(
        cluster_queue("idle", {KEY: FlavorQuota(8)}, cohort="co"),
        cluster_queue("greedy", {KEY: FlavorQuota(0)}, cohort="co", reserved={KEY: FlavorUsage(6, 6)}),
    )
    assert found.cluster_queues["idle"].quotas[KEY].lendable == 2
    assert found.cohorts["co"].quotas[KEY].lendable == 2


def test_use_without_quota_has_no_limits() -> None:
    queue = cluster_queue(
        "a",
        {KEY: FlavorQuota(8)},
        reserved={KEY: FlavorUsage(0), CPU: FlavorUsage(500)},
        used={KEY: FlavorUsage(0)},
    )
    assert views(queue).cluster_queues["a"].quotas[CPU] == ClusterQueueQuota(
        None, None, None, 500, 0, 0, None
    )


def test_without_status_quota_is_counted_from_admissions() -> None:
    queue = cluster_queue("a", {KEY: FlavorQuota(4)}, cohort="c")
    found = views(
        queue,
        local_queue("main", "a"),
        held("w1", 3, "a"),
        reserved_only("w2", 2, "a"),
        held("gone", 7, "a", conditions={"Finished": condition(True, "Succeeded")}),
        held("elsewhere", 7, "b"),
    )
    view, local = found.cluster_queues["a"], found.local_queues["team-a", "main"]
    assert view.quotas == {KEY: ClusterQueueQuota(4, None, None, 5, 3, 1, 0)}
    assert (view.reserving, view.admitted, view.from_status) == (2, 1, False)
    # The LocalQueue's members elsewhere are its own still.
    assert (local.reserved, local.used, local.from_status) == ({KEY: 12}, {KEY: 10}, False)


def test_a_status_from_before_the_spec_is_not_believed() -> None:
    queue = cluster_queue(
        "a",
        {KEY: FlavorQuota(4), CPU: FlavorQuota(9000)},
        reserved={KEY: FlavorUsage(4)},
        used={KEY: FlavorUsage(4)},
    )
    view = views(queue, held("w", 1, "a")).cluster_queues["a"]
    assert (view.quotas[KEY].reserved, view.quotas[CPU].reserved, view.from_status) == (1, 0, False)


def test_over_quota_outside_a_cohort_is_not_borrowed() -> None:
    for reserved in ({KEY: FlavorUsage(5, 1)}, {}):
        queue = cluster_queue("a", {KEY: FlavorQuota(4)}, reserved=reserved)
        assert views(queue, held("w", 5, "a")).cluster_queues["a"].quotas[KEY].borrowed == 0


def test_who_waits() -> None:
    objects = (
        cluster_queue("a", {KEY: FlavorQuota(8)}),
        local_queue("main", "a"),
        local_queue("other", "a", "team-b"),
        local_queue("lost", "nowhere"),
        waiting("w1", 2, "Pending", created_ms=T0 + 3 * MINUTE),
        waiting("w2", 4, "Inadmissible", created_ms=T0 + 2 * MINUTE),
        waiting("w3", 1, "", queue="other", namespace="team-b", created_ms=T0 + MINUTE),
        waiting("w4", 1, "Pending", queue="lost"),
        waiting("w5", 1, "Pending", queue="not-there"),
        waiting("w6", 1, "Pending", rest={"is_active": False}),
        held("w7", 1, "a"),
    )
    found = views(*objects)
    assert found.local_queues["team-a", "main"].pending == PendingWorkloads(
        {"Pending": 1, "Inadmissible": 1},
        {(GPU, "Pending"): 2, (GPU, "Inadmissible"): 4},
        T0 + 2 * MINUTE,
    )
    assert found.cluster_queues["a"].pending == PendingWorkloads(
        {"Pending": 2, "Inadmissible": 1},
        {(GPU, "Pending"): 3, (GPU, "Inadmissible"): 4},
        T0 + MINUTE,
    )
    assert found.local_queues["team-a", "lost"].pending == PendingWorkloads(
        {"Pending": 1}, {(GPU, "Pending"): 1}, T0
    )


def test_a_requeued_workload_waits_since_then() -> None:
    evicted = {"Evicted": condition(True, "Preempted", "", T0 + 9 * MINUTE)}
    again = workload("w", pod_set(gpus=1), queue="main", conditions=evicted)
    found = views(cluster_queue("a"), local_queue("main", "a"), again)
    assert found.cluster_queues["a"].pending.oldest_ms == T0 + 9 * MINUTE


def test_cohorts_sum_what_is_below_them() -> None:
    cohorts = [
        Cohort(meta("left", ""), "root", quotas={KEY: FlavorQuota(0, lending_limit=5)}),
        Cohort(meta("root", ""), quotas={KEY: FlavorQuota(4)}),
    ]
    objects = (
        cluster_queue(
            "a",
            {KEY: FlavorQuota(8)},
            cohort="left",
            reserved={KEY: FlavorUsage(3)},
            used={KEY: FlavorUsage(2)},
        ),
        cluster_queue(
            "b",
            {KEY: FlavorQuota(2)},
            cohort="right",
            reserved={KEY: FlavorUsage(4, 2)},
            used={KEY: FlavorUsage(4, 2)},
        ),
        cluster_queue(
            "d",
            {KEY: FlavorQuota(0)},
            cohort="root",
            reserved={KEY: FlavorUsage(1, 1)},
            used={KEY: FlavorUsage(0)},
        ),
        local_queue("main", "a"),
        local_queue("other", "d"),
        waiting("w1", 2, "Pending", created_ms=T0 + MINUTE),
        waiting("w2", 3, "Pending", queue="other"),
    )
    found = views(*objects, cohorts=cohorts).cohorts
    # left keeps 3 of its 8 to itself, and a uses just as many: root has 4 + 5, of which d uses 1.
    assert found["left"].quotas == {KEY: CohortQuota(0, None, 5, 8, 3, 2, 0, 0 + 8)}
    assert found["root"].quotas == {KEY: CohortQuota(4, None, None, 9, 4, 2, 0, 8)}
    assert found["right"].quotas == {KEY: CohortQuota(None, None, None, 2, 4, 4, 0, 0)}
    assert (found["right"].cohort, found["left"].parent, found["root"].parent) == (None, "root", "")
    assert found["left"].pending == PendingWorkloads({"Pending": 1}, {(GPU, "Pending"): 2}, T0 + MINUTE)
    assert found["root"].pending == PendingWorkloads({"Pending": 2}, {(GPU, "Pending"): 5}, T0)


def test_a_cohort_borrows_from_its_parent() -> None:
    cohorts = [Cohort(meta("low", ""), "top"), Cohort(meta("top", ""), quotas={KEY: FlavorQuota(6)})]
    queue = cluster_queue("a", {KEY: FlavorQuota(2)}, cohort="low", reserved={KEY: FlavorUsage(5, 3)})
    found = views(queue, cohorts=cohorts).cohorts
    assert found["low"].quotas[KEY].borrowed == 3
    assert (found["low"].quotas[KEY].lendable, found["top"].quotas[KEY].lendable) == (3, 3)


def test_below_a_cycle_nothing_is_lent_and_nothing_hangs() -> None:
    cohorts = [Cohort(meta("x", ""), "y"), Cohort(meta("y", ""), "x")]
    found = views(cluster_queue("a", {KEY: FlavorQuota(8)}, cohort="x"), cohorts=cohorts)
    assert found.cluster_queues["a"].quotas[KEY].lendable == 0
    assert found.cohorts["x"].in_cycle
    assert found.cohorts["x"].quotas == {}


def test_nothing_said_is_not_active_nor_inactive() -> None:
    found = views(cluster_queue("a", conditions={}), local_queue("main", "a"))
    assert found.cluster_queues["a"].is_active is None
    assert found.local_queues["team-a", "main"].is_active is None


def test_what_could_not_be_read_is_not_counted_as_none() -> None:
    forbidden = CollectionStatus("v1beta2", synced=False, problem="http_403")
    read = CollectionStatus("v1beta2", synced=True)
    names = ("clusterqueues", "cohorts", "localqueues", "workloads")
    queues = (
        cluster_queue(
            "a",
            {KEY: FlavorQuota(8)},
            cohort="co",
            reserved={KEY: FlavorUsage(3)},
            used={KEY: FlavorUsage(2)},
        ),
        cluster_queue("b", {KEY: FlavorQuota(8)}, cohort="co"),
        local_queue("main", "a"),
    )

    def seen(unread: str) -> QueueViews:
        collections = {f"{name}.kueue.x-k8s.io": forbidden if name == unread else read for name in names}
        return queue_views(replace(state(*queues), collections=collections), ResourceCatalog())

    nothing = PendingWorkloads()
    found = seen("nothing")
    assert [view.pending for view in found.cluster_queues.values()] == [nothing, nothing]
    assert found.cohorts["co"].quotas[KEY].reserved == 3

    found = seen("workloads")
    a, b = found.cluster_queues["a"], found.cluster_queues["b"]
    assert (a.pending, b.pending, found.local_queues["team-a", "main"].pending) == (None, None, None)
    assert (a.quotas[KEY].reserved, a.admitted) == (3, None)
    assert b.quotas[KEY] == ClusterQueueQuota(8, None, None, None, None, None, None)
    assert found.cohorts["co"].quotas[KEY] == CohortQuota(None, None, None, 16, None, None, None, None)
    assert found.cohorts["co"].pending is None

    assert a.quotas[KEY].lendable is None  # what b uses of it is not known
    assert found.local_queues["team-a", "main"].reserved == {}

    found = seen("cohorts")
    assert (found.cohorts, found.cluster_queues["a"].quotas[KEY].lendable) == ({}, None)
    assert found.cluster_queues["a"].quotas[KEY].reserved == 3

    assert seen("localqueues").cluster_queues["a"].pending is None
    assert seen("clusterqueues").cohorts == {}


def test_units_a_workload_asks_for_or_was_given() -> None:
    asks = pod_set("main", 4, 2, cpu=500)
    assert workload_units(workload("w", asks), CATALOG) == {GPU: 8}
    assert workload_units(workload("w", asks, rest={"reclaimable": {"main": 1}}), CATALOG) == {GPU: 6}
    said = {"main": {GPU: 5, "cpu": 100}, "more": {GPU: 1, "nvidia.com/mig-1g.10gb": 2}}
    units = workload_units(workload("w", asks, rest={"asked": said}), CATALOG)
    assert units == {GPU: 6, "nvidia.com/mig-1g.10gb": 2}
    given = {"assignments": (assignment(asks, "h100", 3),), "asked": said, "reclaimable": {"main": 3}}
    assert workload_units(workload("w", asks, admitted_ms=T0, rest=given), CATALOG) == {GPU: 6}
    assert workload_units(workload("w", asks, rest=given), CATALOG) != {GPU: 6}


def test_reclaimable_pods_give_their_quota_back() -> None:
    asks = pod_set("main", 4, 2)

    def usage(count: int, reclaimable: int) -> int:
        given = {"assignments": (assignment(asks, "h100", count),), "reclaimable": {"main": reclaimable}}
        return workload_usage(workload("w", asks, admitted_ms=T0, rest=given))[KEY]

    assert [usage(4, reclaimable) for reclaimable in (0, 1, 4, 5)] == [8, 6, 0, 0]
    # Of 4 pods 3 were admitted: the first that is done was one of those that never came.
    assert [usage(3, reclaimable) for reclaimable in (0, 1, 2)] == [6, 6, 4]
    assert workload_usage(workload("w", asks, rest={"assignments": (assignment(asks),)})) == {}


@given(
    st.lists(st.tuples(st.sampled_from(["", "x", "y", "named"]), st.integers(0, 9)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 4)), max_size=12),
    st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["", "x", "y", "z"])),
)
def test_nothing_is_counted_twice_or_lost(
    queues: list[tuple[str, int]], workloads: list[tuple[int, bool, int]], parents: dict[str, str]
) -> None:
    """The roots together hold, and keep waiting, what the workloads hold and wait for."""
    objects: list[object] = []
    for number, (cohort, nominal) in enumerate(queues):
        objects.append(cluster_queue(f"q{number}", {KEY: FlavorQuota(nominal)}, cohort=cohort))
        objects.append(local_queue(f"l{number}", f"q{number}"))
    for number, (queue, has_quota, gpus) in enumerate(workloads):
        to = queue % len(queues)
        here = f"w{number}", gpus
        objects.append(held(*here, f"q{to}", f"l{to}") if has_quota else waiting(*here, queue=f"l{to}"))
    found = views(*objects, cohorts=[Cohort(meta(name, ""), parent) for name, parent in parents.items()])
    roots = [
        *(found.cohorts[name] for name, node in found.tree.cohorts.items() if node.parent is None),
        *(found.cluster_queues[name] for name, node in found.tree.queues.items() if node.parent is None),
    ]
    totals = [sum(root.quotas[KEY].reserved for root in roots if KEY in root.quotas)]
    totals.append(sum(sum(root.pending.units.values()) for root in roots))
    expected = [sum(gpus for _, state, gpus in workloads if state is has) for has in (True, False)]
    assert totals == expected
