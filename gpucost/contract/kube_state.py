"""The series of kube-state-metrics that are read where gpucost's own collector does not run.

Names, labels and rules: kube-state-metrics v2, internal/store/{pod,node,job,replicaset,namespace}.go and
docs/. Pitfalls:

- Requests stay as long as the Pod object does, also of pods that have ended; for pods that are not yet on a
  node, ``node`` is empty.
- ``kube_pod_completion_time`` is the end of the last container that has ended, while others may still run:
  it counts only once the pod's phase is Succeeded or Failed. Evicted pods may never have one.
- Labels and annotations are exported only where ``--metric-labels-allowlist`` (``--metric-annotations-
  allowlist``) names them, under names in which all but letters, digits and ``_`` became ``_``.
- ``kube_pod_status_reason`` has a row of 0 for each reason that a pod does not have, before 2.20; since then
  only the reason that it has. ``kube_pod_resourceclaim_info`` is new in 2.20: it names the claims of pods
  (DRA) and not the devices that they got (CHANGELOG.md of v2.20.0, docs/metrics/workload/pod-metrics.md).
- Owners come without API group and uid, jobs without uid: a job is known by namespace, kind and name only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

REQUESTS = "kube_pod_container_resource_requests"
INIT_REQUESTS = "kube_pod_init_container_resource_requests"
SCHEDULED = "kube_pod_status_scheduled_time"
STARTED = "kube_pod_start_time"
CREATED = "kube_pod_created"
COMPLETED = "kube_pod_completion_time"
PHASE = "kube_pod_status_phase"
POD_INFO = "kube_pod_info"
CONTAINER_INFO = "kube_pod_container_info"
INIT_INFO = "kube_pod_init_container_info"
INITIALIZED = "kube_pod_status_initialized_time"
POD_OWNER = "kube_pod_owner"
POD_LABELS = "kube_pod_labels"
POD_ANNOTATIONS = "kube_pod_annotations"
REPLICASET_OWNER = "kube_replicaset_owner"
JOB_OWNER = "kube_job_owner"
NAMESPACE_LABELS = "kube_namespace_labels"
JOB_LABELS = "kube_job_labels"
OWNERS_OF: tuple[tuple[str, str, str], ...] = (
    ("ReplicaSet", REPLICASET_OWNER, "replicaset"),
    ("Job", JOB_OWNER, "job_name"),
)
"""Kinds whose owners are exported: kind, series, label of its name."""
OWNER_LABELS: tuple[tuple[str, str, str], ...] = (
    ("Job", JOB_LABELS, "job_name"),
    ("CronJob", "kube_cronjob_labels", "cronjob"),
    ("Deployment", "kube_deployment_labels", "deployment"),
    ("StatefulSet", "kube_statefulset_labels", "statefulset"),
    ("DaemonSet", "kube_daemonset_labels", "daemonset"),
)
"""Kinds whose labels are exported, where the allowlist has them: kind, series, label of its name."""
NODE_INFO = "kube_node_info"
NODE_CREATED = "kube_node_created"
NAMESPACE_CREATED = "kube_namespace_created"
NODE_LABELS = "kube_node_labels"
NODE_CAPACITY = "kube_node_status_capacity"
NODE_ALLOCATABLE = "kube_node_status_allocatable"
NODE_CONDITION = "kube_node_status_condition"
NODE_UNSCHEDULABLE = "kube_node_spec_unschedulable"

LASTING = (NODE_CREATED, NAMESPACE_CREATED)
"""Series of few objects, which exist for long."""
UP = "up"
"""Not a series of kube-state-metrics: Prometheus writes it at each scrape of a target, with that scrape's
time."""

RESOURCE_CLAIMS = "kube_pod_resourceclaim_info"
STATUS_REASON = "kube_pod_status_reason"
REFUSALS = ("UnexpectedAdmissionError", "NodeAffinity")
"""Status reasons of pods that a kubelet did not admit: none of their containers began."""
ENDED_PHASES = ("Succeeded", "Failed")
NOBODY = "<none>"
"""The owner's name in series of objects without an owner."""

_UNFIT = re.compile(r"[^a-zA-Z0-9_]")
_MIG = re.compile(r"nvidia_com_mig_(?P<profile>\d+g_\d+gb)(?P<media>_me)?(?P<shared>_shared)?\Z")


OPTIONAL = (
    *(INIT_REQUESTS, RESOURCE_CLAIMS, POD_OWNER, POD_LABELS, POD_ANNOTATIONS, NAMESPACE_LABELS),
    *(metric for _, metric, _ in (*OWNERS_OF, *OWNER_LABELS)),
)
"""What is exported only where somebody asked for it, or where there are such objects."""


@lru_cache(maxsize=4096)
def sanitised(name: str) -> str:
    """``nvidia.com/gpu`` -> ``nvidia_com_gpu``, as the value of label ``resource`` and within label names."""
    return _UNFIT.sub("_", name)


@lru_cache(maxsize=4096)
def label_name(kubernetes_label: str) -> str:
    """``example.com/tier`` -> ``label_example_com_tier``, in kube_*_labels."""
    return f"label_{sanitised(kubernetes_label)}"


@lru_cache(maxsize=4096)
def annotation_name(annotation: str) -> str:
    """``example.com/tier`` -> ``annotation_example_com_tier``, in kube_pod_annotations."""
    return f"annotation_{sanitised(annotation)}"


_AMD = re.compile(r"amd_com_(?P<style>[sdtqc]px_nps[0-9])\Z")
PARTS = ("nvidia_com_mig_", *(f"amd_com_{mode}px_nps" for mode in "sdtqc"))
"""How the sanitised names of resources begin that are parts of GPUs: MIG slices, and AMD's partitions."""


def resource_name(found: str, known: Mapping[str, str]) -> str | None:
    """The resource name behind ``found``, a value of label ``resource``; None where that is not a GPU.

    ``known`` are GPU resources by their sanitised names (``by_sanitised``); those of MIG and AMD's partitions
    are recognised.
    """
    if found in known:
        return known[found]
    if amd := _AMD.match(found):
        return f"amd.com/{amd['style']}"
    match = _MIG.match(found)
    if match is None:
        return None
    profile = match["profile"].replace("_", ".")
    media, shared = ".me" if match["media"] else "", ".shared" if match["shared"] else ""
    return f"nvidia.com/mig-{profile}{media}{shared}"


def by_sanitised(resources: Iterable[str]) -> Mapping[str, str]:
    """GPU resources by their sanitised names."""
    return {sanitised(resource): resource for resource in resources}
