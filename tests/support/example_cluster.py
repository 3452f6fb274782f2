"""The small cluster that newcomers try the advisor on, ``docs/examples/cluster.yaml``:

python -m tests.support.example_cluster > docs/examples/cluster.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from gpucost.advisor.kueue.job_workloads import FRAMEWORKS
from gpucost.domain.time import HOUR_MS, iso
from gpucost.kube.dumps.dump import OURS
from gpucost.kube.parse.collections import collections
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue, metadata

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
H100, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
NOW = 1_792_800_000_000
"""2026-10-24T00:00:00Z."""
DAYS_AGO = NOW - 240 * HOUR_MS
SERVED = (
    *("", "apps", "batch", "policy", "scheduling.k8s.io", "kueue.x-k8s.io"),
    *("kubeflow.org", "ray.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io"),
)
"""Groups of its API server."""
HEAD = """\
# A small invented cluster: 4 nodes of 8 H100, 2 nodes of 4 L4; queues vision and language of Kueue 0.19.2
# lend each other quota. Made by tests/support/example_cluster.py; docs/advisor.md shows what to ask of it.
"""


def text() -> str:
    """The file."""
    served = {each.name: each.versions[0] if each.group in SERVED else "" for each in collections()}
    about = {"takenAt": iso(NOW), "collections": served, "forbidden": []}
    dump = {"apiVersion": "v1", "kind": "List", "metadata": {OURS: about}, "items": _objects()}
    return HEAD + str(yaml.dump(dump, Dumper=_Plain, sort_keys=False))


class _Plain(yaml.SafeDumper):
    """Without anchors, which dumps may not have."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _objects() -> list[Json]:
    limits = {"cpu": "1000", "memory": "16Ti"}
    queues = {
        "vision": {"h100": {GPU: "16", **limits}, "l4": {GPU: "8", **limits}},
        "language": {"h100": {GPU: "16", **limits}},
    }
    return [
        *(_node(f"gpu-{at}", 8, H100, "p5.48xlarge") for at in range(1, 5)),
        *(_node(f"l4-{at}", 4, L4, "g6.12xlarge", "inference") for at in range(1, 3)),
        *_kueue(),
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name)} for name in queues),
        kueue.resource_flavor("h100", node_labels={PRODUCT: H100}),
        kueue.resource_flavor(
            "l4", node_labels={PRODUCT: L4}, taints=[("dedicated", "inference", "NoSchedule")]
        ),
        *(kueue.cluster_queue(name, cohort="research", quotas=each) for name, each in queues.items()),
        *(kueue.local_queue("gpus", name, name) for name in queues),
        *_job("language", "pretrain", 30, ["gpu-1", "gpu-2"]),
        *_job("vision", "detect", 5, ["gpu-3"]),
        *_job("vision", "segment", 2, []),
    ]


def _node(name: str, gpus: int, product: str, machine: str, dedicated: str = "") -> Json:
    """Its labels say what a price is for, as those of a cloud do."""
    labels = {"nvidia.com/gpu.present": "true", PRODUCT: product, "nvidia.com/gpu.count": str(gpus)}
    labels |= {"node.kubernetes.io/instance-type": machine, "karpenter.sh/capacity-type": "on-demand"}
    found = shapes.node(name, DAYS_AGO, {GPU: gpus}, labels)
    if dedicated:
        found["spec"]["taints"] = [{"key": "dedicated", "value": dedicated, "effect": "NoSchedule"}]
    return found


def _kueue() -> list[Json]:
    """Its Configuration, and what says its version."""
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"frameworks": sorted(set(FRAMEWORKS.values()))},
    }
    place = "kueue-system"
    container = {"name": "manager", "image": "registry.k8s.io/kueue/kueue:v0.19.2"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata("kueue-manager-config", place),
            "data": {"controller_manager_config.yaml": yaml.safe_dump(config)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata("kueue-controller-manager", place),
            "spec": {"template": {"spec": {"containers": [container]}}},
        },
    ]


def _job(namespace: str, name: str, hours: int, nodes: Sequence[str]) -> list[Json]:
    """A Job of pods with 8 GPUs since ``hours``: one on each of ``nodes``, else two that wait for quota."""
    since_ms, count = NOW - hours * HOUR_MS, len(nodes) or 2
    template = shapes.template(GPU, 8)
    job = shapes.job(namespace, name, since_ms, count, template, labels={"kueue.x-k8s.io/queue-name": "gpus"})
    job["spec"]["suspend"] = not nodes
    pods = []
    for at, node in enumerate(nodes):
        pod = shapes.pod(
            namespace, f"{name}-{at}", f"{name}-{at}", since_ms, GPU, 8, owner=shapes.reference(job)
        )
        pod["spec"]["nodeName"] = node
        pod["status"] |= {"phase": "Running", "containerStatuses": shapes.running(iso(since_ms))}
        shapes.set_condition(pod, "PodScheduled", True, "", since_ms)
        shapes.set_condition(pod, "Ready", True, "", since_ms)
        pods.append(pod)
    usage = {GPU: str(8 * count), "cpu": str(8 * count), "memory": f"{64 * count}Gi"}
    given = kueue.assignment(flavors=dict.fromkeys(usage, "h100"), usage=usage, count=count)
    short = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor "
        "h100, 8 more needed"
    )
    workload = kueue.workload(
        f"job-{name}",
        namespace,
        queue="gpus",
        pod_sets=[{"name": "main", "count": count, "template": template}],
        created=since_ms,
        owner=shapes.reference(job),
        cluster_queue=namespace if nodes else "",
        assignments=[given] if nodes else [],
        conditions=[
            condition("QuotaReserved", since=since_ms, reason="QuotaReserved"),
            condition("Admitted", since=since_ms, reason="Admitted"),
        ]
        if nodes
        else [condition("QuotaReserved", False, "Pending", short, since_ms)],
    )
    return [job, workload, *pods]


if __name__ == "__main__":
    print(text(), end="")
