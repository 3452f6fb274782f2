"""Patches of a job's GPU request: lines of YAML with the whole path, by kind of the job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpucost.cluster.views.commands import is_plain
from gpucost.detectors.allocation_pieces import with_names
from gpucost.detectors.findings import FindingAction
from gpucost.domain.jobs import JobKind

RESTART = "It takes effect when the job is started again."
UNKNOWN_CONTAINER = "<its container>"


@dataclass(frozen=True, slots=True)
class RequestingPod:
    """A pod of a job that requests GPUs; ``pod`` is its name, which says what part of the job it is."""

    kind: str
    namespace: str
    job: str
    pod: str


def request_action(
    text: str, who: RequestingPod, resource: str, units: int, frees_boards: float
) -> FindingAction:
    """The action to request ``units`` of a resource per pod. Without a patch for kinds that gpucost does not
    know, and where a name is not plain."""
    text = f"{text.rstrip('.')}. {RESTART}"
    make = _PATHS.get(who.kind)
    if make is None:
        return FindingAction(text, "", frees_boards)
    version, path, container = make(who)
    lines = [
        f"apiVersion: {version}",
        f"kind: {'Job' if who.kind == JobKind.VOLCANO_JOB else who.kind}",
        "metadata:",
        f"  name: {json.dumps(who.job)}",
        f"  namespace: {json.dumps(who.namespace)}",
        *_nested(path, container, [f"{json.dumps(resource)}: {units}"]),
    ]
    return with_names(FindingAction(text, "\n".join(lines), frees_boards), who.namespace, who.job)


def _nested(path: tuple[str, ...], container: str, limits: list[str]) -> list[str]:
    """``limits`` of a container below ``path``, or of ``path`` itself where no container is named. Lines that
    follow the first line of a list entry, which begins with a dash, are part of the entry."""
    if container:
        path = (*path, "containers:", f"- name: {json.dumps(container)}", "resources:")
    return ["  " * depth + part for depth, part in enumerate((*path, "limits:", *limits))]


_Made = tuple[str, tuple[str, ...], str]
_TEMPLATE = ("template:", "spec:")


def _fixed(version: str, *path: str, container: str = UNKNOWN_CONTAINER) -> Callable[[RequestingPod], _Made]:
    def made(_: RequestingPod) -> _Made:
        return version, path, container

    return made


def _notebook(who: RequestingPod) -> _Made:
    """The notebook controller expects a container of the notebook's name."""
    return "kubeflow.org/v1", ("spec:", *_TEMPLATE), who.job


def _replicas(field: str, container: str) -> Callable[[RequestingPod], _Made]:
    """Kubeflow's training operator names pods JOB-REPLICATYPE-INDEX."""

    def made(who: RequestingPod) -> _Made:
        kind = _part(who, r"-(?P<part>[a-z]+)-\d+") or "worker"
        path = ("spec:", f"{field}:", f"{_SPELLED.get(kind, kind.capitalize())}:", *_TEMPLATE)
        return "kubeflow.org/v1", path, container

    return made


_SPELLED = {"ps": "PS"}


def _job_set(who: RequestingPod) -> _Made:
    """Pods are named JOBSET-REPLICATEDJOB-INDEX-INDEX-SUFFIX."""
    name = json.dumps(_part(who, r"-(?P<part>[-a-z0-9]+?)-\d+-\d+(-[a-z0-9]+)?") or "<its replicated job>")
    path = ("spec:", "replicatedJobs:", f"- name: {name}", "template:", "spec:", *_TEMPLATE)
    return "jobset.x-k8s.io/v1alpha2", path, UNKNOWN_CONTAINER


def _volcano(who: RequestingPod) -> _Made:
    """Pods are named JOB-TASK-INDEX."""
    name = json.dumps(_part(who, r"-(?P<part>[-a-z0-9]+?)-\d+") or "<its task>")
    return "batch.volcano.sh/v1alpha1", ("spec:", "tasks:", f"- name: {name}", *_TEMPLATE), UNKNOWN_CONTAINER


def _ray(*field: str) -> Callable[[RequestingPod], _Made]:
    group = "- groupName: " + json.dumps("<its group>")
    return _fixed("ray.io/v1", "spec:", *field, "workerGroupSpecs:", group, *_TEMPLATE)


def _part(who: RequestingPod, pattern: str) -> str:
    """The part of the pod's name that identifies it within its job; empty where there is none."""
    if not is_plain(who.pod) or not who.pod.startswith(who.job):
        return ""
    found = re.fullmatch(pattern, who.pod[len(who.job) :])
    return found["part"] if found else ""


_APPS = _fixed("apps/v1", "spec:", *_TEMPLATE)
_PATHS: dict[str, Callable[[RequestingPod], _Made]] = {
    JobKind.JOB: _fixed("batch/v1", "spec:", *_TEMPLATE),
    JobKind.CRON_JOB: _fixed("batch/v1", "spec:", "jobTemplate:", "spec:", *_TEMPLATE),
    JobKind.JOB_SET: _job_set,
    # Trainers of Kubeflow's second version give the resources of a node, whatever the container.
    JobKind.TRAIN_JOB: _fixed(
        "trainer.kubeflow.org/v1alpha1", "spec:", "trainer:", "resourcesPerNode:", container=""
    ),
    JobKind.PYTORCH_JOB: _replicas("pytorchReplicaSpecs", "pytorch"),
    JobKind.TF_JOB: _replicas("tfReplicaSpecs", "tensorflow"),
    JobKind.XGBOOST_JOB: _replicas("xgbReplicaSpecs", "xgboost"),
    JobKind.PADDLE_JOB: _replicas("paddleReplicaSpecs", "paddle"),
    JobKind.JAX_JOB: _replicas("jaxReplicaSpecs", "jax"),
    JobKind.MPI_JOB: _replicas("mpiReplicaSpecs", UNKNOWN_CONTAINER),
    JobKind.RAY_CLUSTER: _ray(),
    JobKind.RAY_JOB: _ray("rayClusterSpec:"),
    JobKind.RAY_SERVICE: _ray("rayClusterConfig:"),
    JobKind.VOLCANO_JOB: _volcano,
    JobKind.LEADER_WORKER_SET: _fixed(
        "leaderworkerset.x-k8s.io/v1", "spec:", "leaderWorkerTemplate:", "workerTemplate:", "spec:"
    ),
    JobKind.DEPLOYMENT: _APPS,
    JobKind.STATEFUL_SET: _APPS,
    JobKind.REPLICA_SET: _APPS,
    JobKind.DAEMON_SET: _APPS,
    JobKind.NOTEBOOK: _notebook,
    JobKind.POD: _fixed("v1", "spec:"),
}
"""apiVersion, the path to the pod's spec, and the container, by kind (their API references)."""
