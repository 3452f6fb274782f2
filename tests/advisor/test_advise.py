"""One answer over all layers: from a manifest, through quota and nodes, to wait and price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import Advice, SchedulingDecision, SchedulingLayer
from gpucost.advisor.model.settings import AdvisorSettings, AutoscaledPool
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.objects.kueue import AdmissionCheck
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import Pod, PodTemplate
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.workload_families import CONTROLLER
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.kube.manifests import manifest_of, reread
from gpucost.reports.live.queues_now import LivePrices
from tests.advisor.worlds import GPU, NOW, flavor, local_queue, node, overview, queue, state, workload
from tests.cluster import builders
from tests.pricing.books import book, price

H100 = "NVIDIA-H100-80GB-HBM3"


def job(
    pods: int = 2, gpus: int = 8, *, queue: str = "main", name: str = "train", **spec: Any
) -> JobManifest:
    """A batch/v1 Job of equal pods in namespace ml; ``annotations`` are of its pods."""
    amounts = spec.pop("resources", None) or ({GPU: gpus} if gpus else {"cpu": 1})
    annotations, priority = spec.pop("annotations", {}), spec.pop("priority", "")
    container = {"name": "c", "image": "i", "resources": {"limits": amounts}}
    pod = {"containers": [container], "restartPolicy": "Never", **spec.pop("pod", {})}
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    labels |= {"kueue.x-k8s.io/priority-class": priority} if priority else {}
    body = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", **spec}
    return manifest_of(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "ml", "labels": labels},
            "spec": {**body, "template": {"metadata": {"annotations": annotations}, "spec": pod}},
        },
        "job.yaml",
        NOW,
    )


def nodes(count: int, gpus: int = 8, **fields: Any) -> list[Node]:
    return [node(f"n{at}", gpus, product=H100, boards=8, **fields) for at in range(count)]


_KNOWN = ("prices", "cluster", "run_times", "settings")


def knows(*objects: object, **more: Any) -> AdvisorContext:
    """Of a cluster; settings, prices and run times by keyword."""
    known = {key: more.pop(key) for key in _KNOWN if key in more}
    settings = known.pop("settings", AdvisorSettings(horizon_hours=48, samples=20))
    return AdvisorContext(overview(*objects, **more), reread, settings=settings, **known)


def ask(manifest: JobManifest, *objects: object, **more: Any) -> Advice:
    return advise(manifest, knows(*objects, **more), with_suggestions=False)


def running(name: str, gpus: int, at: str, workload_name: str = "", **fields: Any) -> Pod:
    annotations = {"kueue.x-k8s.io/workload": workload_name} if workload_name else {}
    return builders.pod(name, gpus, node=at, annotations=annotations, **{"namespace": "ml", **fields})


def test_it_fits_quota_and_nodes() -> None:
    found = ask(job(), queue("ml", 16), *nodes(3))
    assert (found.decision, found.layer, found.queue, found.scheduler) == (
        SchedulingDecision.NOW,
        SchedulingLayer.NONE,
        "ml",
        "kueue",
    )
    assert found.says == "runs now on 2 nodes (n0, n1)"
    (pods,) = found.pod_sets
    assert (pods.count, pods.flavors, pods.nodes) == (2, {GPU: "h100"}, {"n0": 1, "n1": 1})
    assert (found.borrowed, found.victims, found.ahead) == (None, (), 0)
    assert found.rules == "Kueue 0.19.2, classical preemption"


@pytest.mark.parametrize(
    ("nominal", "decision"), [(15, SchedulingDecision.NEVER), (16, SchedulingDecision.NOW)]
)
def test_the_last_unit_of_quota_decides(nominal: int, decision: SchedulingDecision) -> None:
    found = ask(job(), queue("ml", nominal), *nodes(3))
    assert found.decision is decision
    if decision is SchedulingDecision.NEVER:
        assert (found.layer, found.reason) == (SchedulingLayer.QUOTA, "ExceedsMaxQuota")
        assert found.says.endswith(
            "asks 16 nvidia.com/gpu; ClusterQueue ml can never have more than 15 (flavor h100)"
        )
        path = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
        assert ("clusterqueue/ml", path, "15") in {
            (each.object, each.field, each.value) for each in found.evidence
        }


@pytest.mark.parametrize("controller", [CONTROLLER, "example.com/budget"])
def test_nodes_of_the_manager_do_not_keep_a_job_out_that_runs_elsewhere(controller: str) -> None:
    """It waits for quota, and no node here would ever take it."""
    check = AdmissionCheck(builders.meta("mk", ""), controller)
    held = workload("w", "ml", 8, holding=True, reserved=3600)
    far = queue("ml", 16, checks={"mk": ()})
    found = ask(job(), far, held, *nodes(3, 1), checks=[check])
    is_far = controller == CONTROLLER
    assert found.decision is (SchedulingDecision.WAITS if is_far else SchedulingDecision.NEVER)
    free = ask(job(), far, *nodes(3, 1), checks=[check])
    assert free.decision is SchedulingDecision.UNKNOWN
    assert ("another cluster must admit it" in free.says) is is_far


def test_quota_that_others_use_is_waited_for() -> None:
    found = ask(job(), queue("ml", 16), workload("w", "ml", 8, holding=True, reserved=3600), *nodes(3))
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.WAITS,
        SchedulingLayer.QUOTA,
        "WaitingForQuota",
    )
    assert "ClusterQueue ml has 8 left (flavor h100)" in found.says
    assert found.wait is not None
    assert found.wait.p50_ms is not None
    assert 0 < found.wait.p50_ms < (found.wait.p90_ms or 0)


def test_quota_is_there_and_no_node_is_large_enough() -> None:
    found = ask(job(1, 16), queue("ml", 16), *nodes(3))
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.NEVER,
        SchedulingLayer.PLACEMENT,
        "LargerThanAnyNode",
    )
    assert "the largest node that takes it has 8" in found.says


def test_quota_is_there_and_nodes_are_full() -> None:
    held = [running(f"p{at}", 8, f"n{at}") for at in range(2)]
    found = ask(job(), queue("ml", 16), *nodes(3), *held)
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.WAITS,
        SchedulingLayer.PLACEMENT,
        "Unschedulable",
    )
    assert found.wait is not None
    assert found.wait.p50_ms is not None
    assert all(not each.nodes for each in found.pod_sets)


def test_pods_that_are_about_to_get_a_node_go_first() -> None:
    waiting = builders.pod("early", 8, namespace="ml", unschedulable="")
    assert ask(job(), queue("ml", 16), *nodes(2)).decision is SchedulingDecision.NOW
    assert ask(job(), queue("ml", 16), *nodes(2), waiting).decision is SchedulingDecision.WAITS
    gated = builders.pod("gated", 8, namespace="ml", gates=("kueue.x-k8s.io/admission",))
    assert ask(job(), queue("ml", 16), *nodes(2), gated).decision is SchedulingDecision.NOW


def test_victims_leave_their_nodes() -> None:
    victim = workload("low", "ml", 8, priority=-1, holding=True)
    pod = running("low-0", 8, "n0", "low")
    found = ask(job(), queue("ml", 16, within="LowerPriority"), victim, pod, *nodes(2))
    assert found.decision is SchedulingDecision.NOW
    assert found.says == "runs now on 2 nodes (n0, n1), once 1 workload is preempted for it"
    assert [(each.subject.uid, each.reason, dict(each.units)) for each in found.victims] == [
        ("low", "InClusterQueue", {GPU: 8})
    ]


def test_what_preemption_frees_is_of_no_use() -> None:
    """Eight victims of one GPU, each on a node of its own."""
    victims = [workload(f"low{at}", "ml", 1, priority=-1, holding=True) for at in range(8)]
    pods = [running(f"low{at}-0", 1, f"n{at}", f"low{at}") for at in range(8)]
    others = [running(f"other{at}", 7, f"n{at}") for at in range(8)]
    found = ask(job(1, 8), queue("ml", 8, within="LowerPriority"), *victims, *pods, *others, *nodes(8))
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.WAITS,
        SchedulingLayer.PLACEMENT,
        "FreedCapacityUnusable",
    )
    assert "preemption frees 8 nvidia.com/gpu, but on 8 nodes with at most 1 free each" in found.says
    assert len(found.victims) == 8


def test_nodes_that_an_autoscaler_adds() -> None:
    pool = AutoscaledPool("h100", {"pool": "h100"}, {GPU: "8", "cpu": "64", "pods": "110"}, 4, 12.0)
    settings = AdvisorSettings(samples=20, pools=(pool,))
    found = ask(job(), queue("ml", 16), *nodes(1, labels={"pool": "h100"}), settings=settings)
    assert (found.decision, found.layer, found.later_ms) == (
        SchedulingDecision.LATER,
        SchedulingLayer.PLACEMENT,
        12 * MINUTE_MS,
    )
    assert "1 of pool h100" in found.says
    small = AdvisorSettings(samples=20, pools=(replace(pool, most=1),))
    found = ask(job(), queue("ml", 16), *nodes(1, labels={"pool": "h100"}), settings=small)
    assert found.decision is not SchedulingDecision.LATER


def test_a_node_that_advertises_no_gpus_is_a_matter_of_the_device_layer() -> None:
    broken = node("n9", 0, product=H100, boards=8, expected={GPU: 8})
    found = ask(job(1, 8), queue("ml", 8), broken)
    assert (found.layer, found.reason) == (SchedulingLayer.DEVICE, "NodesUnusable")
    assert "n9" in found.says
    assert found.evidence[-1].field == f"status.allocatable[{GPU}]"


def test_admission_checks_are_not_followed() -> None:
    check = AdmissionCheck(builders.meta("prov"), "kueue.x-k8s.io/provisioning-request")
    found = ask(job(), queue("ml", 16, checks={"prov": ()}), *nodes(3), checks=[check])
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.UNKNOWN,
        SchedulingLayer.QUOTA,
        "AdmissionChecks",
    )
    assert "admission check prov" in found.says


def test_without_a_queue_only_nodes_decide() -> None:
    found = ask(job(queue=""), queue("ml", 0), *nodes(2))
    assert (found.decision, found.scheduler, found.queue) == (SchedulingDecision.NOW, "kube-scheduler", "")
    assert any("names no queue" in line for line in found.why)


def test_kueue_gives_a_job_without_a_queue_the_default_one() -> None:
    found = ask(job(queue=""), queue("ml", 8), local_queue("default", "ml", "ml"), *nodes(2))
    assert (found.decision, found.queue) == (SchedulingDecision.NEVER, "ml")
    assert any("Kueue gives it LocalQueue default" in line for line in found.why)
    off = KueueConfig("v0.19.2", gates={"LocalQueueDefaulting": False}, is_read=True)
    found = ask(job(queue=""), queue("ml", 8), local_queue("default", "ml", "ml"), *nodes(2), kueue=off)
    assert (found.decision, found.queue) == (SchedulingDecision.NOW, "")


def test_a_queue_that_does_not_exist() -> None:
    found = ask(job(queue="mian"), queue("ml", 16), *nodes(2))
    assert (found.decision, found.reason) == (SchedulingDecision.NEVER, "QueueMissing")
    assert "LocalQueue ml/mian does not exist" in found.says


def test_a_stopped_queue() -> None:
    found = ask(job(), queue("ml", 16, stop_policy="Hold"), *nodes(2))
    assert (found.decision, found.reason) == (SchedulingDecision.NEVER, "QueueInactive")
    assert "is stopped (Hold)" in found.says


def test_an_integration_that_is_switched_off() -> None:
    config = KueueConfig("v0.19.2", frameworks=("ray.io/rayjob",), is_read=True)
    found = ask(job(), queue("ml", 0), *nodes(2), kueue=config)
    assert found.decision is SchedulingDecision.NOW
    assert any("batch/job is switched off" in line for line in found.why)


def test_what_a_manifest_does_not_say_is_unknown() -> None:
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "t", "namespace": "ml", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}},
    }
    found = ask(manifest_of(train_job, "t.yaml", NOW), queue("ml", 16), *nodes(2))
    assert found.decision is SchedulingDecision.UNKNOWN
    assert "torch" in found.says


def test_the_price_follows_the_nodes() -> None:
    prices = book(price("2.50"), price("1.00", model="A100"))
    history = RunTimes([PastRun("", "train", 16, 2 * HOUR_MS)] * 5)
    found = ask(job(), queue("ml", 16), *nodes(2), prices=prices, run_times=history)
    assert found.price is not None
    assert found.price.per_hour == 16 * 2_500_000_000
    assert (found.price.currency, found.price.run_ms) == ("USD", 2 * HOUR_MS)
    assert found.price.for_run == 80 * NANO


def test_a_price_may_be_of_one_cluster() -> None:
    prices = book(price("2.50"), price("1.00", cluster="basement"))
    for cluster, nano in (("basement", NANO), ("other", 2_500_000_000)):
        known = knows(queue("ml", 16), *nodes(2), prices=prices, cluster=cluster)
        found = advise(job(), known, with_suggestions=False)
        assert found.price is not None
        assert found.price.per_hour == 16 * nano
        live = LivePrices(known.overview, cluster, prices)
        assert live.gpu_hour(known.state.node_by_name["n0"]) == nano


def test_a_model_without_a_price_is_no_zero() -> None:
    found = ask(job(), queue("ml", 16), *nodes(2), prices=book(price("1.00", model="A100")))
    assert found.price is None
    assert any(line.startswith("price: unknown, ") for line in found.why)


def test_a_head_of_a_strict_queue_that_never_fits_blocks_for_ever() -> None:
    monster = workload("monster", "ml", 64, priority=5)
    found = ask(job(1, 1), queue("ml", 16, strict=True), monster, *nodes(2))
    assert (found.decision, found.reason, found.wait) == (SchedulingDecision.WAITS, "BlockedByHead", None)
    assert "stands behind ml/monster" in found.says
    assert ask(job(1, 1), queue("ml", 16), monster, *nodes(2)).decision is SchedulingDecision.NOW


def test_the_same_question_has_the_same_answer() -> None:
    """Nothing is left behind in what is kept between questions."""
    known = knows(
        queue("ml", 16, cohort="c", within="LowerPriority", reclaim="Any"),
        queue("b", 16, cohort="c"),
        workload("low", "ml", 8, priority=-1, holding=True),
        workload("loan", "b", 8, 3, holding=True),
        workload("next", "b", 8, 2),
        *nodes(4),
    )
    before = _usage(known)
    questions = [job(), job(1, 64), job(4, 8), job(1, 1, queue="mian")]
    first = [advise(each, known, with_suggestions=False) for each in questions]
    again = [advise(each, known, with_suggestions=False) for each in reversed(questions)]
    assert first == list(reversed(again))
    assert _usage(known) == before
    fresh = AdvisorContext(ClusterOverview(known.state), reread, settings=known.settings)
    assert [advise(each, fresh, with_suggestions=False) for each in questions] == first


def test_a_job_without_gpus() -> None:
    found = ask(job(gpus=0), queue("ml", 16, cpu=8), *nodes(1))
    assert found.decision is SchedulingDecision.NOW
    assert found.price is None


def test_ten_thousand_waiting_do_not_hide_the_answer() -> None:
    waiting = [workload(f"w{at}", "ml", 8, 4) for at in range(3000)]
    found = ask(job(1, 1), queue("ml", 16), *waiting, *nodes(2))
    assert found.decision is SchedulingDecision.NOW
    assert found.ahead == 3000


def test_flavors_steer_pods_to_their_nodes() -> None:
    h100 = flavor("h100", {"pool": "a"})
    found = ask(job(1), queue("ml", 8), h100, *nodes(1, labels={"pool": "b"}))
    assert (found.decision, found.layer) == (SchedulingDecision.NEVER, SchedulingLayer.PLACEMENT)
    assert (
        ask(job(1), queue("ml", 8), h100, *nodes(1, labels={"pool": "a"})).decision is SchedulingDecision.NOW
    )


def test_names_of_the_hostile_are_only_text() -> None:
    pod = PodTemplate({GPU: 8}, {"a": "x\n\x1b[31m"})
    assert pod.node_selector
    found = ask(job(1, pod={"nodeSelector": {"zone": "x"}}), queue("ml", 8), *nodes(1))
    assert found.decision is SchedulingDecision.NEVER


def _usage(known: AdvisorContext) -> Sequence[tuple[str, dict[Any, int]]]:
    tree = known.kueue.snapshot.tree
    every: Iterable[QuotaNode] = (*tree.queues.values(), *tree.cohorts.values())
    return [(each.name, {key: amount for key, amount in each.usage.items() if amount}) for each in every]


def test_a_state_without_nodes_is_no_crash() -> None:
    found = advise(
        job(), AdvisorContext(ClusterOverview(state(queue("ml", 16))), reread), with_suggestions=False
    )
    assert found.decision in (SchedulingDecision.NEVER, SchedulingDecision.WAITS, SchedulingDecision.UNKNOWN)


# Nodes that take no pods now


def taints(key: str) -> tuple[Taint, ...]:
    return (Taint(f"node.kubernetes.io/{key}", "", "NoSchedule"),)


DOWN = {"is_ready": False, "taints": taints("not-ready")}
CORDONED = {"is_cordoned": True, "taints": taints("unschedulable")}
DRAINED: dict[str, Any] = {"product": H100, "boards": 8, "expected": {GPU: 8}}


@pytest.mark.parametrize("queue_name", ["main", ""], ids=["kueue", "no-queue"])
@pytest.mark.parametrize(
    ("found", "until"),
    [
        (nodes(2, **DOWN), "nodes are ready"),
        (nodes(2, **CORDONED), "nodes are uncordoned"),
        (
            [*nodes(1, **DOWN), node("n7", 8, product=H100, boards=8, **CORDONED)],
            "nodes are ready and nodes are uncordoned",
        ),
        ([node("n7", 0, **DRAINED), node("n8", 0, **DRAINED)], "nodes advertise their GPUs"),
        ([node("n7", 4, product=H100, boards=4), *nodes(2, **DOWN)], "nodes are ready"),
    ],
    ids=["not-ready", "cordoned", "both", "no-gpus", "others-too-small"],
)
def test_nodes_that_take_no_pods_now_are_waited_for(found: list[Node], until: str, queue_name: str) -> None:
    """Never is for what no waiting helps against."""
    advice = ask(job(queue=queue_name), queue("ml", 16), *found)
    assert (advice.decision, advice.reason) == (SchedulingDecision.WAITS, "NodesUnusable")
    assert advice.says.startswith(f"waits until {until}: would fit if node n")
    assert advice.layer is (SchedulingLayer.DEVICE if "advertise" in until else SchedulingLayer.PLACEMENT)
    assert advice.wait is None
    assert advice.price is not None or "no price" in " ".join(advice.why)


def test_nodes_that_are_not_ready_and_full_are_waited_for() -> None:
    """Pods on a node that is lost hold it until it is recorded that they are gone."""
    held = [builders.pod(f"p{at}", 8, node=f"n{at}") for at in range(2)]
    advice = ask(job(queue=""), *nodes(2, **DOWN), *held)
    assert (advice.decision, advice.layer) == (SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT)
    assert advice.says.startswith("waits until nodes are ready: would fit if node n")
    assert "and jobs that are there have ended" in advice.says


def test_others_may_end_before_a_node_is_ready() -> None:
    held = [builders.pod(f"p{at}", 8, node=f"n{at}") for at in range(2)]
    down = node("n9", 8, product=H100, boards=8, **DOWN)
    advice = ask(job(1, queue=""), *nodes(2), down, *held)
    assert (advice.decision, advice.reason) == (SchedulingDecision.WAITS, "NodesUnusable")
    assert advice.wait is not None
    assert advice.says.startswith("waits ")
    assert "until" not in advice.says


@pytest.mark.parametrize(
    "asks", [job(3, queue=""), job(1, 16, queue=""), job(pod={"nodeSelector": {"zone": "b"}}, queue="")]
)
def test_what_nodes_would_not_take_when_ready_never_runs(asks: JobManifest) -> None:
    assert ask(asks, *nodes(2, **DOWN)).decision is SchedulingDecision.NEVER
