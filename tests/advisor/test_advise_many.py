"""Jobs that make several Workloads, and jobs of which only a part starts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import Advice, SchedulingDecision, SchedulingLayer
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.request.context import AdvisorContext
from gpucost.api.webhook.adviser import warnings_of
from gpucost.cluster.objects.nodes import Node
from gpucost.kube.manifests import read_manifests, reread
from tests.advisor import volcano_worlds
from tests.advisor.worlds import NOW, flavor, node, overview, queue, workload
from tests.cluster import builders
from tests.cluster.builders import GPU
from tests.pricing.books import book, price

H100, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
QUEUE = "kueue.x-k8s.io/queue-name"
DEPLOYMENT, LWS = ("apps/v1", "Deployment"), ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
PYTORCH, VOLCANO = ("kubeflow.org/v1", "PyTorchJob"), ("batch.volcano.sh/v1alpha1", "Job")


def pod(gpus: int) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}


def deployment(replicas: int, gpus: int = 4) -> dict[str, Any]:
    return {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": pod(gpus)}


def groups(replicas: int, size: int, gpus: int = 4) -> dict[str, Any]:
    return {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": pod(gpus)}}


def ask(
    kind: tuple[str, str], spec: dict[str, Any], *objects: object, queue: str = "main", **more: Any
) -> Advice:
    labels = {QUEUE: queue} if queue else {}
    metadata = {"name": "serve", "namespace": "ml", "labels": labels}
    document = {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, "spec": spec}
    (manifest,) = read_manifests(yaml.safe_dump(document), "job.yaml", NOW).jobs
    prices = book(price("2.50"), price("1.00", model="L4"))
    settings = AdvisorSettings(horizon_hours=48, samples=20)
    known = AdvisorContext(overview(*objects, **more), reread, prices, settings=settings)
    return advise(manifest, known, with_suggestions=False)


def nodes(count: int, gpus: int = 8, product: str = H100, **fields: Any) -> list[Node]:
    name = product[7:8].lower()
    return [node(f"{name}{at}", gpus, product=product, boards=8, **fields) for at in range(count)]


def held(gpus: int) -> Any:
    return workload("held", "ml", gpus, holding=True, reserved=3600)


def test_all_pods_of_a_deployment_start() -> None:
    found = ask(DEPLOYMENT, deployment(3), queue("ml", 16), *nodes(2))
    assert found.decision is SchedulingDecision.NOW
    (pods,) = found.pod_sets
    assert (pods.name, pods.count, sum(pods.nodes.values()), len(pods.nodes)) == ("main", 3, 3, 2)
    assert found.price is not None
    assert found.price.per_hour == 12 * 2_500_000_000


def test_two_of_three_pods_start_and_the_rest_waits() -> None:
    found = ask(DEPLOYMENT, deployment(3), queue("ml", 16), held(8), *nodes(3))
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.WAITS,
        SchedulingLayer.QUOTA,
        "WaitingForQuota",
    )
    assert found.says.startswith("2 of its 3 pods can start now; the rest waits about ")
    assert found.says.endswith(": each asks 4 nvidia.com/gpu; ClusterQueue ml has 0 left (flavor h100)")
    assert found.wait is not None
    assert found.wait.samples > 0
    assert found.wait.p50_ms is not None
    assert found.wait.p50_ms > 0
    assert found.price is not None
    assert found.price.per_hour == 12 * 2_500_000_000
    first = warnings_of(found)[0]
    assert first.startswith("gpucost: 2 of its 3 pods can start now; the rest waits about ")


def test_the_wait_lasts_until_the_last_has_quota() -> None:
    """Four pods of eight GPUs wait for four jobs to end: longer than one pod for one of them."""
    running = [workload(f"held{at}", "ml", 8, holding=True, reserved=3600 * (at + 1)) for at in range(4)]
    waits = []
    for replicas in (1, 2, 4):
        found = ask(DEPLOYMENT, deployment(replicas, 8), queue("ml", 32), *running, *nodes(8))
        assert found.wait is not None
        assert found.wait.p50_ms is not None
        waits.append(found.wait.p50_ms)
    assert 0 < waits[0] < waits[1] < waits[2]


def test_those_with_quota_may_still_find_no_node() -> None:
    others = [builders.pod(f"other{at}", 8, node=f"h{at}", namespace="ml") for at in range(2)]
    found = ask(DEPLOYMENT, deployment(3), queue("ml", 16), held(8), *nodes(2), *others)
    assert found.says.startswith("2 of its 3 pods can have quota now, but not all of these a node; the rest ")


def test_more_pods_than_quota_can_ever_hold() -> None:
    found = ask(DEPLOYMENT, deployment(3), queue("ml", 8), *nodes(3))
    assert (found.decision, found.reason) == (SchedulingDecision.NEVER, "ExceedsMaxQuota")
    assert found.says == (
        "2 of its 3 pods can start now; the rest never runs as it is: never more than 2 of its 3 pods have "
        "quota at once: all of it asks 12 nvidia.com/gpu; ClusterQueue ml can never have more than 8 "
        "(flavor h100)"
    )


def test_groups_start_one_by_one() -> None:
    found = ask(LWS, groups(2, 2), queue("ml", 16), held(8), *nodes(3))
    assert found.decision is SchedulingDecision.WAITS
    assert found.says.startswith("1 of its 2 groups of 2 pods can start now; the rest waits about ")
    assert "each asks 8 nvidia.com/gpu; ClusterQueue ml has 0 left" in found.says
    whole = ask(LWS, groups(2, 2), queue("ml", 16), *nodes(3))
    assert whole.decision is SchedulingDecision.NOW
    assert [(each.name, each.count) for each in whole.pod_sets] == [("main", 4)]
    assert whole.price is not None
    assert whole.price.per_hour == 16 * 2_500_000_000


def test_pods_of_all_workloads_need_nodes_at_once() -> None:
    found = ask(DEPLOYMENT, deployment(3, 8), queue("ml", 24), *nodes(2))
    assert (found.decision, found.layer) == (SchedulingDecision.NEVER, SchedulingLayer.PLACEMENT)
    assert "1 of its pods" in found.says or "1 pod" in found.says


def test_pods_of_one_deployment_in_two_flavors() -> None:
    """Each pod has nodes of its own flavor, and their price."""
    flavors = [flavor("h100", {"pool": "h"}), flavor("l4", {"pool": "l"})]
    quota = queue("ml", {"h100": 8, "l4": 8})
    pools = [*nodes(1, labels={"pool": "h"}), *nodes(1, product=L4, labels={"pool": "l"})]
    found = ask(DEPLOYMENT, deployment(3), quota, *flavors, *pools)
    assert found.decision is SchedulingDecision.NOW
    given = [(each.name, each.count, each.flavors[GPU], dict(each.nodes)) for each in found.pod_sets]
    assert given == [("main", 2, "h100", {"h0": 2}), ("main", 1, "l4", {"l0": 1})]
    assert found.price is not None
    assert found.price.per_hour == 8 * 2_500_000_000 + 4 * 1_000_000_000


def test_pods_that_nothing_starts_together_hold_gpus_while_others_wait() -> None:
    replicas = {"Worker": {"replicas": 4, "restartPolicy": "Never", "template": pod(4)}}
    running = [builders.pod("other", 8, node="h0", namespace="ml")]
    found = ask(PYTORCH, {"pytorchReplicaSpecs": replicas}, *nodes(2), *running, queue="")
    assert (found.decision, found.layer) == (SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT)
    assert "2 of its 4 pods would start and hold 8 GPUs while the others wait; " in found.says


@pytest.mark.parametrize(
    ("minimum", "starts"), [(1, "starts with 1 of 3 pods on 1 node (h0)"), (3, "runs now")]
)
def test_a_gang_whose_minimum_is_below_its_size(minimum: int, starts: str) -> None:
    tasks = [{"name": "worker", "replicas": 3, "template": pod(8)}]
    spec = {"schedulerName": "volcano", "queue": "default", "minAvailable": minimum, "tasks": tasks}
    shared = volcano_worlds.queue("default")
    found = ask(VOLCANO, spec, shared, *nodes(1 if minimum == 1 else 3), queue="")
    assert found.decision is SchedulingDecision.NOW
    assert found.says.startswith(starts)
    assert warnings_of(found)[0].startswith(f"gpucost: {starts.partition(' on ')[0]} on ")
    if minimum == 1:
        assert found.says == "starts with 1 of 3 pods on 1 node (h0): the other 2 follow as room allows"


def test_what_is_not_all_known_has_no_price() -> None:
    annotations = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    labels = {QUEUE: "main", "kueue.x-k8s.io/pod-group-name": "g"}
    metadata = {"name": "g0", "namespace": "ml", "labels": labels, "annotations": annotations}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod(4)["spec"]}
    (manifest,) = read_manifests(yaml.safe_dump(document), "job.yaml", NOW).jobs
    known = AdvisorContext(overview(queue("ml", 16), *nodes(2)), reread, book(price("2.50")))
    found = advise(manifest, known, with_suggestions=False)
    assert (found.decision, found.price) == (SchedulingDecision.UNKNOWN, None)
    assert "price: unknown, as not all that it asks for is known" in found.why
