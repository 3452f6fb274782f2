"""Series of ClusterQueues, cohorts, LocalQueues and Volcano's queues, in base units."""

from __future__ import annotations

from dataclasses import replace

from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.queues import (
    ClusterQueueQuota,
    ClusterQueueView,
    CohortQuota,
    CohortView,
    LocalQueueView,
    PendingWorkloads,
)
from gpucost.cluster.views.volcano_queues import VolcanoQueueView
from gpucost_queue_collector.queue_series import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    VOLCANO_QUEUE,
    write_cluster_queue,
    write_cohort,
    write_local_queue,
    write_volcano_queue,
)
from tests.cluster.builders import GPU, T0, cluster_queue, local_queue, meta
from tests.exporters.queue.series import HOSTILE, TAMED, lines, read_back

GPUS, CORES = FlavorResource("h100", GPU), FlavorResource("h100", "cpu")
PENDING = PendingWorkloads({"Pending": 3, "Inadmissible": 1}, {(GPU, "Pending"): 24}, T0 + 1)
_F = 'flavor="h100",resource="nvidia.com/gpu"'
_CPU = 'flavor="h100",resource="cpu"'


def test_a_cluster_queue() -> None:
    view = ClusterQueueView(
        cluster_queue("cq", cohort="all", strategy="StrictFIFO"),
        True,
        "Ready",
        {
            GPUS: ClusterQueueQuota(8, 4, 2, 10, 9, 2, 0),
            CORES: ClusterQueueQuota(64_000, None, None, 1_500, 0, 0, None),
        },
        PENDING,
        admitted=2,
        reserving=3,
        from_status=True,
    )
    assert lines(CLUSTER_QUEUE, write_cluster_queue(view)) == [
        'cluster_queue_info{cluster_queue="cq",cohort="all",strategy="StrictFIFO"} 1.0',
        'cluster_queue_active{cluster_queue="cq",reason=""} 1.0',
        f'cluster_queue_nominal_quota{{cluster_queue="cq",{_F}}} 8.0',
        f'cluster_queue_nominal_quota{{cluster_queue="cq",{_CPU}}} 64.0',
        f'cluster_queue_borrowing_limit{{cluster_queue="cq",{_F}}} 4.0',
        f'cluster_queue_lending_limit{{cluster_queue="cq",{_F}}} 2.0',
        f'cluster_queue_reserved{{cluster_queue="cq",{_F}}} 10.0',
        f'cluster_queue_reserved{{cluster_queue="cq",{_CPU}}} 1.5',
        f'cluster_queue_used{{cluster_queue="cq",{_F}}} 9.0',
        f'cluster_queue_used{{cluster_queue="cq",{_CPU}}} 0.0',
        f'cluster_queue_borrowed{{cluster_queue="cq",{_F}}} 2.0',
        f'cluster_queue_borrowed{{cluster_queue="cq",{_CPU}}} 0.0',
        f'cluster_queue_lendable{{cluster_queue="cq",{_F}}} 0.0',
        'cluster_queue_pending_workloads{cluster_queue="cq",reason="Pending"} 3.0',
        'cluster_queue_pending_workloads{cluster_queue="cq",reason="Inadmissible"} 1.0',
        'cluster_queue_pending_units{cluster_queue="cq",resource="nvidia.com/gpu",reason="Pending"} 24.0',
        'cluster_queue_oldest_pending_timestamp_seconds{cluster_queue="cq"} 1792800000.001',
        'cluster_queue_admitted_workloads{cluster_queue="cq"} 2.0',
        'cluster_queue_reserving_workloads{cluster_queue="cq"} 3.0',
    ]


def test_an_empty_queue_that_admits_nothing() -> None:
    view = ClusterQueueView(cluster_queue("cq"), False, "Stopped", {}, PendingWorkloads(), 0, 0, True)
    shown = lines(CLUSTER_QUEUE, write_cluster_queue(view))
    assert shown[1:] == [
        'cluster_queue_active{cluster_queue="cq",reason="Stopped"} 0.0',
        'cluster_queue_admitted_workloads{cluster_queue="cq"} 0.0',
        'cluster_queue_reserving_workloads{cluster_queue="cq"} 0.0',
    ]
    unknown = lines(CLUSTER_QUEUE, write_cluster_queue(replace(view, is_active=None)))
    assert unknown == [shown[0], *shown[2:]]


def test_a_cohort() -> None:
    quotas = {
        GPUS: CohortQuota(4, 8, 2, 12, 10, 9, 1, 2),
        CORES: CohortQuota(None, None, None, 96_000, 0, 0, 0, 96_000),
    }
    view = CohortView("all", "root", None, False, quotas, PENDING)
    assert lines(COHORT, write_cohort(view)) == [
        'cohort_info{cohort="all",parent="root"} 1.0',
        f'cohort_nominal_quota{{cohort="all",{_F}}} 4.0',
        f'cohort_borrowing_limit{{cohort="all",{_F}}} 8.0',
        f'cohort_lending_limit{{cohort="all",{_F}}} 2.0',
        f'cohort_subtree_quota{{cohort="all",{_F}}} 12.0',
        f'cohort_subtree_quota{{cohort="all",{_CPU}}} 96.0',
        f'cohort_reserved{{cohort="all",{_F}}} 10.0',
        f'cohort_reserved{{cohort="all",{_CPU}}} 0.0',
        f'cohort_used{{cohort="all",{_F}}} 9.0',
        f'cohort_used{{cohort="all",{_CPU}}} 0.0',
        f'cohort_borrowed{{cohort="all",{_F}}} 1.0',
        f'cohort_borrowed{{cohort="all",{_CPU}}} 0.0',
        f'cohort_lendable{{cohort="all",{_F}}} 2.0',
        f'cohort_lendable{{cohort="all",{_CPU}}} 96.0',
        'cohort_pending_workloads{cohort="all",reason="Pending"} 3.0',
        'cohort_pending_workloads{cohort="all",reason="Inadmissible"} 1.0',
        'cohort_pending_units{cohort="all",resource="nvidia.com/gpu",reason="Pending"} 24.0',
        'cohort_oldest_pending_timestamp_seconds{cohort="all"} 1792800000.001',
    ]


def test_a_local_queue() -> None:
    view = LocalQueueView(
        local_queue("lq", "cq"), False, "ClusterQueueIsInactive", {GPUS: 8}, {GPUS: 0}, PENDING, True
    )
    who = 'namespace="team-a",queue="lq"'
    assert lines(LOCAL_QUEUE, write_local_queue(view)) == [
        f'local_queue_info{{{who},cluster_queue="cq"}} 1.0',
        f'local_queue_active{{{who},reason="ClusterQueueIsInactive"}} 0.0',
        f"local_queue_reserved{{{who},{_F}}} 8.0",
        f"local_queue_used{{{who},{_F}}} 0.0",
        f'local_queue_pending_workloads{{{who},reason="Pending"}} 3.0',
        f'local_queue_pending_workloads{{{who},reason="Inadmissible"}} 1.0',
        f'local_queue_pending_units{{{who},resource="nvidia.com/gpu",reason="Pending"}} 24.0',
        f"local_queue_oldest_pending_timestamp_seconds{{{who}}} 1792800000.001",
    ]


def test_a_volcano_queue() -> None:
    queue = VolcanoQueue(
        meta("research", ""),
        weight=4,
        capability={"cpu": 1_500},
        deserved={GPU: 8},
        guarantee={GPU: 2},
        parent="root",
        state="Open",
    )
    view = VolcanoQueueView(queue, {GPU: 6, "memory": 2**30}, True, {"Inqueue": 2}, {GPU: 16}, T0)
    assert lines(VOLCANO_QUEUE, write_volcano_queue(view)) == [
        'volcano_queue_info{volcano_queue="research",parent="root",state="Open"} 1.0',
        'volcano_queue_weight{volcano_queue="research"} 4.0',
        'volcano_queue_deserved{volcano_queue="research",resource="nvidia.com/gpu"} 8.0',
        'volcano_queue_guarantee{volcano_queue="research",resource="nvidia.com/gpu"} 2.0',
        'volcano_queue_capability{volcano_queue="research",resource="cpu"} 1.5',
        'volcano_queue_allocated{volcano_queue="research",resource="nvidia.com/gpu"} 6.0',
        'volcano_queue_allocated{volcano_queue="research",resource="memory"} 1073741824.0',
        'volcano_queue_pod_groups{volcano_queue="research",phase="Inqueue"} 2.0',
        'volcano_queue_pending_units{volcano_queue="research",resource="nvidia.com/gpu"} 16.0',
        'volcano_queue_oldest_pending_timestamp_seconds{volcano_queue="research"} 1792800000.0',
    ]


def test_limits_that_are_not_set_are_absent_and_those_of_0_are_0() -> None:
    view = VolcanoQueueView(VolcanoQueue(meta("q", ""), capability={GPU: 0}), {}, True, {}, {}, None)
    assert lines(VOLCANO_QUEUE, write_volcano_queue(view)) == [
        'volcano_queue_info{volcano_queue="q",parent="",state=""} 1.0',
        'volcano_queue_weight{volcano_queue="q"} 1.0',
        'volcano_queue_capability{volcano_queue="q",resource="nvidia.com/gpu"} 0.0',
    ]


def test_hostile_names_come_back_as_they_were() -> None:
    quotas = {FlavorResource(HOSTILE, HOSTILE): ClusterQueueQuota(1, 1, 1, 1, 1, 1, 1)}
    pending = PendingWorkloads({HOSTILE: 1}, {(HOSTILE, HOSTILE): 1}, T0)
    view = ClusterQueueView(cluster_queue(HOSTILE), False, HOSTILE, quotas, pending, 0, 0, True)
    read = read_back(CLUSTER_QUEUE, write_cluster_queue(view))
    assert len(read) == len(CLUSTER_QUEUE)
    for each in read:
        others = {key: value for key, value in each.items() if key not in ("cohort", "strategy")}
        assert set(others.values()) == {TAMED}
    volcano = VolcanoQueueView(
        VolcanoQueue(meta(HOSTILE, "")), {HOSTILE: 1}, True, {HOSTILE: 1}, {HOSTILE: 1}, T0
    )
    assert {each["volcano_queue"] for each in read_back(VOLCANO_QUEUE, write_volcano_queue(volcano))} == {
        TAMED
    }
