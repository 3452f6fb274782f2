"""What waiting workloads and jobs want: pods that wait, those needed at once, nodes that admit them."""

from __future__ import annotations

import pytest

from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import PodSet, PodTemplate, SelectorRequirement
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import POD_SET, WORKLOAD
from gpucost.contract.queue_metrics import NodeAdmission
from gpucost.domain.jobs import JobReference
from gpucost_queue_collector.demand_series import (
    JOB_SETS,
    PodGpuDemand,
    WaitingDemand,
    WaitingSet,
    write_sets,
)
from gpucost_queue_collector.workload_series import WaitingJob, shown_workloads, waiting_jobs
from tests.cluster.builders import (
    GPU,
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
    template,
    workload,
)
from tests.exporters.queue.series import HOSTILE, TAMED, read_back

H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
QUEUES = cluster_queue("cq"), local_queue("lq", "cq")
ALL = (PodGpuDemand(GPU, 8, NodeAdmission.ALL),)


def nodes() -> list[object]:
    return [
        node("a-1", product=A100, labels={"tier": "old"}),
        node("h-1", product=H100, labels={"tier": "new"}, taints=(Taint("reserved", "", "NoSchedule"),)),
        node("h-2", product=H100, labels={"tier": "new"}),
        node("cpu", 0, labels={"tier": "cpu"}),
    ]


def wanted(asks: PodTemplate, *objects: object) -> PodGpuDemand:
    """Of one workload that waits for quota."""
    found = workload("wl", PodSet("main", 1, asks), queue="lq")
    demand = WaitingDemand(ClusterOverview(state(found, *(objects or nodes()), *QUEUES)))
    [only] = demand.of_workload(found)
    [one] = only.wants
    return one


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        (template(8), (NodeAdmission.ALL, ())),  # a tainted node of a product does not count against it
        (template(8, node_selector={"tier": "new"}), (NodeAdmission.SOME, (H100,))),
        (template(8, node_selector={"tier": "cpu"}), (NodeAdmission.NONE, ())),
        (
            template(8, affinity=((SelectorRequirement("tier", "NotIn", ("new",)),),)),
            (NodeAdmission.SOME, (A100,)),
        ),
        (template(8, node_selector={str(key): "x" for key in range(200)}), (NodeAdmission.UNKNOWN, ())),
    ],
    ids=["all", "some", "none", "affinity", "too many rules"],
)
def test_nodes_that_admit_it(asks: PodTemplate, expected: tuple[NodeAdmission, tuple[str, ...]]) -> None:
    assert wanted(asks) == PodGpuDemand(GPU, 8, *expected)


def test_nodes_that_take_no_pods_admit_nothing() -> None:
    closed = [node("a-1", product=A100), node("h-1", product=H100, is_cordoned=True)]
    assert wanted(template(8), *closed) == PodGpuDemand(GPU, 8, NodeAdmission.SOME, (A100,))
    assert wanted(template(8), node("h-1", product=H100, is_ready=False)).nodes is NodeAdmission.NONE


def test_products_of_the_resource_only() -> None:
    sliced = node("m-1", allocatable={"nvidia.com/mig-1g.10gb": 7}, product=A100)
    found = wanted(template(requests={"nvidia.com/mig-1g.10gb": 1}), *nodes(), sliced)
    assert found == PodGpuDemand("nvidia.com/mig-1g.10gb", 1, NodeAdmission.ALL)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (job("train"), (1, 4)),  # nothing known of its shape
        (job("train", pod_sets=(pod_set(count=5, gpus=8),)), (1, 1)),  # pods of use alone
        (job("train", gang_size=3), (1, 3)),
        (None, (1, 4)),
    ],
    ids=["unknown", "independent", "gang", "no owner"],
)
def test_how_many_must_start_at_once(owner: object, expected: tuple[int, int]) -> None:
    sets = pod_set("leader", 1, 8), pod_set("worker", 4, 8)
    found = workload("wl", *sets, queue="lq", owner=owner)  # type: ignore[arg-type]
    objects = [*QUEUES, *nodes(), *([owner] if owner is not None else [])]
    demand = WaitingDemand(ClusterOverview(state(found, *objects)))
    leader, worker = demand.of_workload(found)
    assert (leader.min_pods, worker.min_pods) == expected
    assert (leader.pods, worker.pods) == (1, 4)


def test_partial_admission_needs_fewer() -> None:
    sets = PodSet("worker", 4, template(8), 2)
    found = workload("wl", sets, queue="lq")
    assert WaitingDemand(ClusterOverview(state(found, *nodes(), *QUEUES))).of_workload(found) == (
        WaitingSet("worker", 4, 2, ALL),
    )


def test_an_admitted_one_wants_what_has_no_node() -> None:
    sets = pod_set("leader", 1, 8), pod_set("worker", 3, 8)
    found = workload("wl", *sets, queue="lq", cluster_queue="cq", admitted_ms=T0)

    def member(name: str, of: str, **more: object) -> object:
        return pod(name, 8, labels={POD_SET: of}, annotations={WORKLOAD: "wl"}, **more)  # type: ignore[arg-type]

    pods = [
        member("l-0", "leader", node="h-1"),
        member("w-0", "worker", node="h-2"),
        member("w-1", "worker", unschedulable="0/4 nodes"),
        member("w-2", "worker", unschedulable="0/4 nodes"),
    ]
    overview = ClusterOverview(state(found, *pods, *nodes(), *QUEUES))
    assert shown_workloads(overview, {})["wl-uid"].wants == (WaitingSet("worker", 2, 2, ALL),)


def test_what_runs_or_wants_no_gpus_has_no_sets() -> None:
    runs = workload("runs", pod_set(gpus=8), queue="lq", cluster_queue="cq", admitted_ms=T0)
    plain = workload("plain", pod_set(cpu=1000), queue="lq")
    shown = shown_workloads(ClusterOverview(state(runs, plain, *nodes(), *QUEUES)), {})
    assert {uid: each.wants for uid, each in shown.items()} == {"runs-uid": (), "plain-uid": ()}


def test_devices_of_claims_as_kueue_counts_them() -> None:
    asked = {"main": {"gpu.nvidia.com": 4}}
    found = workload("wl", pod_set(count=2), queue="lq", rest={"asked": asked})
    [one] = WaitingDemand(ClusterOverview(state(found, *QUEUES))).of_workload(found)
    assert (one.pods, one.wants) == (2, (PodGpuDemand("gpu.nvidia.com", 2, NodeAdmission.NONE),))


def test_pods_without_a_workload_by_job() -> None:
    group = pod_group("pg", 3, rest={"queue": "vq", "phase": "Inqueue"})
    owner = job("sim")
    mine = {"scheduling.k8s.io/group-name": "pg"}

    def member(name: str, gpus: int, of: str, **more: object) -> object:
        labels = {"volcano.sh/task-spec": of, "team": "vision"}
        return pod(name, gpus, labels=labels, annotations=mine, owner=owner, **more)  # type: ignore[arg-type]

    pods = [
        member("ps-0", 1, "ps", node="h-1"),
        *(member(f"w-{number}", 8, "worker", unschedulable="0/4") for number in range(3)),
        member("odd", 4, "worker", unschedulable="0/4"),
    ]
    overview = ClusterOverview(state(group, owner, *pods, *nodes()))
    [(uid, found)] = waiting_jobs(overview).items()
    assert uid == owner.meta.uid
    assert found[2:6] == ("team-a", "pg", "vq", "vision")
    assert sorted((each.name, each.pods, each.min_pods, each.wants[0].units) for each in found.wants) == [
        ("worker", 1, 1, 4),
        ("worker#2", 3, 2, 8),
    ]


def test_a_job_whose_pods_are_not_made_yet() -> None:
    rest = {"phase": "Pending", "min_resources": {GPU: 8}}
    [found] = waiting_jobs(ClusterOverview(state(pod_group("pg", 2, rest=rest), *nodes()))).values()
    assert (found.wants, found.namespace) == ((), "")
    assert isinstance(found, WaitingJob)
    assert isinstance(found.job, JobReference)


def test_names_are_made_safe() -> None:
    sets = (WaitingSet(HOSTILE, 1, 1, (PodGpuDemand(HOSTILE, 1, NodeAdmission.SOME, (HOSTILE,)),)),)
    written = read_back(JOB_SETS, write_sets(JOB_SETS, ("Job", "train", "uid"), sets))
    assert [each["pod_set"] for each in written] == [TAMED] * 3
    assert (written[-1]["resource"], written[-1]["products"]) == (TAMED, TAMED)


def test_a_workload_that_nothing_holds_is_not_looked_at() -> None:
    done = workload("done", pod_set(gpus=1), conditions={"Finished": condition(True, "JobFinished", "", T0)})
    overview = ClusterOverview(state(done, at_ms=T0 + 1))
    assert shown_workloads(overview, {})["done-uid"].wants == ()
