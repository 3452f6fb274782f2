"""A cluster in trouble, as its API serves it: what ``gpucost state show`` has something to say about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue, volcano

Json = dict[str, Any]
NOW = 1_792_800_000_000
"""2026-10-24T00:00:00Z."""
GPU = "nvidia.com/gpu"
SECRET = "hunter2"
MESSAGE = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100, "
    "{} more needed. The workload is put back."
)


def cluster() -> Iterator[Json]:
    """Ten H100 nodes, one of which lacks two GPUs, and four of A100. ``vision`` borrows 16 GPUs, 8
    of its cohort and so 8 of the company; ``nlp`` waits for them."""
    yield from _nodes()
    yield from _queues()
    yield from _workloads()
    yield from _volcano()
    yield namespace("nlp", {"team": "language"})
    yield namespace("evil", {})


def _nodes() -> Iterator[Json]:
    for index in range(14):
        product, count = ("NVIDIA-H100-80GB-HBM3", 8) if index < 10 else ("NVIDIA-A100-SXM4-80GB", 8)
        labels = {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.count": str(count),
            "cloud.google.com/gke-nodepool": product.split("-")[1].lower(),
        }
        found = shapes.node(f"gpu-{index:02}", NOW - 30 * DAY_MS, {GPU: count}, labels)
        yield shapes.scaled(found, {GPU: 6}, "allocatable") if index == 3 else found


def _queues() -> Iterator[Json]:
    yield kueue.resource_flavor("h100")
    yield kueue.resource_flavor("a100")
    yield kueue.cohort("company")
    yield kueue.cohort("research", parent="company", quotas={"h100": {GPU: 8}})
    queues = (
        ("nlp", "research", 24, 24, 0),
        ("vision", "research", 16, 32, 16),
        ("speech", "company", 32, 8, 0),
    )
    for name, cohort, nominal, reserved, borrowed in queues:
        yield kueue.cluster_queue(
            name,
            cohort=cohort,
            quotas={"h100": {GPU: str(nominal)}, "a100": {GPU: "8"}},
            reserved={"h100": {GPU: (reserved, borrowed)}, "a100": {GPU: 0}},
            used={"h100": {GPU: (reserved, borrowed)}, "a100": {GPU: 0}},
            admitted=reserved // 8,
        )
        yield kueue.local_queue("gpus", name, namespace=name)
    stopped = condition("Active", False, "FlavorNotFound", "flavor gone")
    yield kueue.cluster_queue("legacy", quotas={"v100": {GPU: "8"}}, conditions=[stopped])
    yield kueue.cluster_queue("cpu-only", quotas={"cpu": {"cpu": "64"}})


def _workloads() -> Iterator[Json]:
    for index, (namespace_, waited_ms) in enumerate(
        [("nlp", 3 * DAY_MS), ("nlp", 7 * HOUR_MS), ("speech", 12 * MINUTE_MS), ("evil", 5 * MINUTE_MS)]
    ):
        evil = namespace_ == "evil"
        job = shapes.pytorch_job(
            namespace_,
            f"train-{index}",
            NOW - waited_ms,
            4,
            shapes.template(GPU, 8),
            {} if namespace_ == "nlp" else {"team": namespace_},
        )
        yield job
        yield kueue.workload(
            f"pytorchjob-train-{index}",
            namespace_,
            owner=shapes.reference(job),
            queue="nowhere" if evil else "gpus",
            pod_sets=[kueue.pod_set("main", 4, {GPU: "8"})],
            created=NOW - waited_ms,
            conditions=[
                condition(
                    "QuotaReserved",
                    False,
                    "Pending",
                    "[bold red]owned[/] \x1b[2J\u202e" if evil else MESSAGE.format(8 * (index + 1)),
                    since=NOW - waited_ms,
                )
            ],
        )


def _volcano() -> Iterator[Json]:
    amounts = {GPU: "32"}
    yield volcano.queue("default", weight=1)
    yield volcano.queue("batch", weight=4, capability=amounts, deserved={GPU: "16"}, allocated={GPU: "16"})
    group = volcano.pod_group(
        "big", "sim", min_member=3, queue="batch", phase="Running", uid="group-big", created=NOW - DAY_MS
    )
    yield group
    for index in range(3):
        made = shapes.pod(
            "sim",
            f"big-{index}",
            f"big-{index}",
            NOW - DAY_MS,
            GPU,
            8,
            annotations={"scheduling.k8s.io/group-name": "big"},
            scheduler="volcano",
        )
        made["spec"]["containers"][0] |= _secrets()
        made["metadata"]["annotations"] |= _annotations()
        if index < 2:
            yield running(made, f"gpu-{index + 10}", NOW - DAY_MS)
        else:
            message = "0/14 nodes are available: 14 Insufficient nvidia.com/gpu. preemption: none."
            shapes.set_condition(made, "PodScheduled", False, "Unschedulable", NOW - 2 * HOUR_MS, message)
            yield made


def running(made: Json, node: str, since_ms: int) -> Json:
    """On a node since ``since_ms``."""
    started = made["metadata"]["creationTimestamp"]
    made["spec"]["nodeName"] = node
    made["status"] |= {"phase": "Running", "containerStatuses": shapes.running(started), "startTime": started}
    shapes.set_condition(made, "PodScheduled", True, "", since_ms)
    shapes.set_condition(made, "Ready", True, "", since_ms)
    return made


def namespace(name: str, labels: dict[str, str]) -> Json:
    metadata = {"name": name, "uid": f"namespace-{name}", "labels": labels, "annotations": _annotations()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _secrets() -> Json:
    return {
        "env": [{"name": "PASSWORD", "value": SECRET}],
        "args": ["--token", SECRET],
        "command": ["sh", "-c", f"curl -u me:{SECRET}"],
    }


def _annotations() -> dict[str, str]:
    return {
        "kubectl.kubernetes.io/last-applied-configuration": f'{{"password": "{SECRET}"}}',
        "vault.example.com/token": SECRET,
    }
