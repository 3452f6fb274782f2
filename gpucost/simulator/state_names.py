"""Names, labels and sizes that the objects of the simulated cluster have in common."""

from __future__ import annotations

from gpucost.cluster.objects import Labels, Meta
from gpucost.domain.jobs import JobKind, Owner
from gpucost.simulator.inventory import Node
from gpucost.simulator.plants import GIB
from gpucost.simulator.workloads import stable_uid

POOL = "gpucost.io/pool"
ZONE = "topology.kubernetes.io/zone"
BLOCK, RACK = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
TAINT = "nvidia.com/gpu"
TOPOLOGY = "racks"

# By instance type: thousandths of a core, and bytes.
_SIZES = {
    "p5.48xlarge": (192_000, 2_000 * GIB),
    "p4de.24xlarge": (96_000, 1_100 * GIB),
    "dgx-a100": (256_000, 1_000 * GIB),
    "g6.12xlarge": (48_000, 180 * GIB),
}

# The API of each kind of job.
API = {
    JobKind.PYTORCH_JOB: "kubeflow.org/v1",
    JobKind.MPI_JOB: "kubeflow.org/v2beta1",
    JobKind.NOTEBOOK: "kubeflow.org/v1",
    JobKind.TRAIN_JOB: "trainer.kubeflow.org/v1alpha1",
    JobKind.VOLCANO_JOB: "batch.volcano.sh/v1alpha1",
    JobKind.JOB_SET: "jobset.x-k8s.io/v1alpha2",
    JobKind.JOB: "batch/v1",
    JobKind.CRON_JOB: "batch/v1",
    JobKind.RAY_CLUSTER: "ray.io/v1",
    JobKind.RAY_SERVICE: "ray.io/v1",
    JobKind.DEPLOYMENT: "apps/v1",
    JobKind.STATEFUL_SET: "apps/v1",
    JobKind.LEADER_WORKER_SET: "leaderworkerset.x-k8s.io/v1",
}
KIND_NAMES = {JobKind.VOLCANO_JOB: "Job", JobKind.CRON_JOB: "Job"}
"""Kinds as their objects are called, where that is another name; of a CronJob its run."""

POD_GROUPED = (JobKind.VOLCANO_JOB, JobKind.MPI_JOB, JobKind.JOB_SET)
"""Kinds whose pods Volcano starts together, once Kueue has given them quota."""


def cores_and_memory(node: Node) -> tuple[int, int]:
    """Thousandths of a core and bytes of a node."""
    return _SIZES[node.instance_type]


def meta(
    seed: int,
    kind: str,
    namespace: str,
    name: str,
    created_ms: int,
    labels: Labels,
    *,
    uid: str = "",
    annotations: Labels | None = None,
    owner: Owner | None = None,
) -> Meta:
    """The identity of an object, with a uid of its kind and name unless it has one."""
    uid = uid or stable_uid(seed, f"{kind}/{namespace}/{name}")
    return Meta(uid, namespace, name, created_ms, labels, annotations or {}, owner)
