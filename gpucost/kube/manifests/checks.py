"""Checks of a manifest: what the API server would refuse (``rules``), misspelt fields, and values without a
meaning.

Fields of Kubernetes' own kinds are in the published schemas. The names here are those of the other kinds' API
types: JobSet v1alpha2, Kubeflow trainer v1alpha1 and v1, mpi-operator v2beta1, KubeRay v1, LeaderWorkerSet
v1, Volcano v1alpha1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from gpucost.cluster.objects.metadata import FieldFlaw
from gpucost.cluster.objects.pods import PodSet
from gpucost.domain.configfile import is_name
from gpucost.domain.errors import shorten
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests.rules.kinds import OF_KUBERNETES, PATCHES, judged
from gpucost.kube.manifests.rules.names import VALUE_RULE, is_label_value
from gpucost.kube.manifests.rules.schemas import misspelt
from gpucost.kube.parse.fields import ObjectPart


class SpecFields(NamedTuple):
    """``read`` are the fields that decide something here; ``other`` exist too."""

    read: frozenset[str]
    other: frozenset[str] = frozenset()


def _fields(read: str, other: str = "") -> SpecFields:
    return SpecFields(frozenset(read.split()), frozenset(other.split()))


OBJECT = _fields("apiVersion kind metadata spec", "status data")
_RAY_CLUSTER = _fields(
    "enableInTreeAutoscaling headGroupSpec workerGroupSpecs autoscalerOptions suspend",
    "authOptions gcsFaultToleranceOptions headServiceAnnotations managedBy networkPolicy rayVersion "
    "upgradeStrategy",
)


def _kubeflow(replica_specs: str, other: str = "") -> SpecFields:
    return _fields(f"runPolicy elasticPolicy {replica_specs}", other)


SPECS: Mapping[JobKind, SpecFields] = {
    JobKind.JOB_SET: _fields(
        "replicatedJobs suspend",
        "coordinator failurePolicy managedBy network startupPolicy successPolicy ttlSecondsAfterFinished "
        "volumeClaimPolicies",
    ),
    JobKind.TRAIN_JOB: _fields(
        "runtimeRef trainer podTemplateOverrides podSpecOverrides runtimePatches suspend "
        "activeDeadlineSeconds",
        "annotations initializer labels managedBy ttlSecondsAfterFinished",
    ),
    JobKind.PYTORCH_JOB: _kubeflow("pytorchReplicaSpecs", "nprocPerNode"),
    JobKind.TF_JOB: _kubeflow("tfReplicaSpecs", "enableDynamicWorker successPolicy"),
    JobKind.XGBOOST_JOB: _kubeflow("xgbReplicaSpecs"),
    JobKind.PADDLE_JOB: _kubeflow("paddleReplicaSpecs"),
    JobKind.JAX_JOB: _kubeflow("jaxReplicaSpecs"),
    JobKind.MPI_JOB: _kubeflow(
        "mpiReplicaSpecs",
        "cleanPodPolicy launcherCreationPolicy mainContainer mpiImplementation runLauncherAsWorker "
        "slotsPerWorker sshAuthMountPath",
    ),
    JobKind.RAY_CLUSTER: _RAY_CLUSTER,
    JobKind.RAY_JOB: _fields(
        "rayClusterSpec submissionMode submitterPodTemplate clusterSelector suspend activeDeadlineSeconds",
        "backoffLimit deletionStrategy entrypoint entrypointNumCpus entrypointNumGpus entrypointResources "
        "jobId managedBy metadata preRunningDeadlineSeconds runtimeEnvYAML shutdownAfterJobFinishes "
        "submitterConfig ttlSecondsAfterFinished",
    ),
    JobKind.RAY_SERVICE: _fields(
        "rayClusterConfig suspend",
        "deploymentUnhealthySecondThreshold excludeHeadPodFromServeSvc managedBy "
        "rayClusterDeletionDelaySeconds serveConfigV2 serveService serviceUnhealthySecondThreshold "
        "upgradeStrategy",
    ),
    JobKind.VOLCANO_JOB: _fields(
        "minAvailable queue tasks priorityClassName schedulerName networkTopology",
        "maxRetry minSuccess plugins policies runningEstimate ttlSecondsAfterFinished volumes",
    ),
    JobKind.LEADER_WORKER_SET: _fields(
        "replicas leaderWorkerTemplate", "networkConfig revisionHistoryLimit rolloutStrategy startupPolicy"
    ),
    JobKind.NOTEBOOK: _fields("template"),
}
"""Fields of every kind that is not one of Kubernetes' own."""

TEMPLATE_AT: Mapping[JobKind, str] = {
    **dict.fromkeys(
        (JobKind.JOB, JobKind.DEPLOYMENT, JobKind.STATEFUL_SET, JobKind.REPLICA_SET, JobKind.DAEMON_SET),
        "spec.template.spec.containers",
    ),
    JobKind.NOTEBOOK: "spec.template.spec.containers",
    JobKind.CRON_JOB: "spec.jobTemplate.spec.template.spec.containers",
    JobKind.JOB_SET: "spec.replicatedJobs",
    JobKind.PYTORCH_JOB: "spec.pytorchReplicaSpecs",
    JobKind.TF_JOB: "spec.tfReplicaSpecs",
    JobKind.XGBOOST_JOB: "spec.xgbReplicaSpecs",
    JobKind.PADDLE_JOB: "spec.paddleReplicaSpecs",
    JobKind.JAX_JOB: "spec.jaxReplicaSpecs",
    JobKind.MPI_JOB: "spec.mpiReplicaSpecs",
    JobKind.RAY_CLUSTER: "spec.headGroupSpec",
    JobKind.RAY_JOB: "spec.rayClusterSpec",
    JobKind.RAY_SERVICE: "spec.rayClusterConfig",
    JobKind.VOLCANO_JOB: "spec.tasks",
    JobKind.LEADER_WORKER_SET: "spec.leaderWorkerTemplate.workerTemplate",
    JobKind.TRAIN_JOB: "spec.runtimeRef",
    JobKind.POD: "spec.containers",
}
"""Where the pod templates are, of every kind that a manifest may be of."""

_PODLESS_GROUPS = frozenset(
    {
        *("admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "autoscaling"),
        *("autoscaling.k8s.io", "autoscaling.x-k8s.io", "cert-manager.io", "coordination.k8s.io"),
        *("external-secrets.io", "flowcontrol.apiserver.k8s.io", "gateway.networking.k8s.io"),
        *("karpenter.sh", "keda.sh", "kueue.x-k8s.io", "kustomize.config.k8s.io", "monitoring.coreos.com"),
        *("networking.k8s.io", "node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io"),
        *("resource.nvidia.com", "scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io"),
        *("snapshot.storage.k8s.io", "storage.k8s.io", "topology.volcano.sh"),
    }
)
_PODLESS = frozenset(
    {
        *("ConfigMap", "Endpoints", "Event", "LimitRange", "Namespace", "Node", "PersistentVolume"),
        *("PersistentVolumeClaim", "PodTemplate", "ResourceQuota", "Secret", "Service", "ServiceAccount"),
    }
)
"""Kinds of the core group."""
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")


def makes_no_pods(group: str, kind: str) -> bool:
    """Whether documents of a kind only accompany jobs."""
    if group == "trainer.kubeflow.org":
        return kind in _RUNTIMES
    return kind in _PODLESS if not group else group in _PODLESS_GROUPS


MOST_PODS = 1_000_000
MOST_POD_SETS = 1_000
MOST_FLAWS = 20
_SHOWN_RULE = "1 to 253 characters, no control characters, no blanks at the ends"
_COUNTS = frozenset(
    ("replicas", "parallelism", "minAvailable", "minReplicas", "numOfHosts", "numNodes", "size", "minMember")
)
_SHOWN = frozenset(
    ("groupName", "priorityClass", "priorityClassName", "queue", "resourceClaimName", "schedulerName")
)
"""Fields whose text is shown in answers."""
_BY_NAME = frozenset(("annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests"))
_TEMPLATES = frozenset(("leaderTemplate", "submitterPodTemplate", "template", "workerTemplate"))
_POD_SETS = frozenset(
    {
        *("replicatedJobs", "tasks", "workerGroupSpecs", "jaxReplicaSpecs", "mpiReplicaSpecs"),
        *("paddleReplicaSpecs", "pytorchReplicaSpecs", "tfReplicaSpecs", "xgbReplicaSpecs"),
    }
)
_WITH_POD_SETS = ("rayClusterSpec", "rayClusterConfig")
_INNER = frozenset(("containers", "replicatedJobs", "template"))


class DocumentPart(NamedTuple):
    """A mapping in a document, and its path."""

    path: str
    value: dict[str, Any]


def below(document: Mapping[str, Any]) -> Iterator[DocumentPart]:
    """Every mapping but those in patches of other objects and in the status, the document first."""
    waiting: list[tuple[str, Any]] = [("", dict(document))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            yield DocumentPart(path, value)
            inside = [(_at(path, key), each) for key, each in value.items() if key not in PATCHES]
        else:
            inside = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        waiting += [each for each in reversed(inside) if isinstance(each[1], (dict, list))]


def pod_templates(document: Mapping[str, Any]) -> list[DocumentPart]:
    """Every mapping with a pod spec with containers: pod templates, and pods themselves."""
    found = []
    for each in below(document):
        spec = each.value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            found.append(each)
    return found


def examined(document: Mapping[str, Any], kind: JobKind) -> tuple[dict[str, Any], list[FieldFlaw]]:
    """The document as the API server would hold it, and its flaws: at most ``MOST_FLAWS``, and those by the
    API server's rules only where there are no others."""
    found = list(islice(_flaws(document, kind), MOST_FLAWS))
    if found:
        return dict(document), found
    root = ObjectPart(document)
    return judged(root, dict(document), kind), root.flaws


def too_many(document: Mapping[str, Any]) -> list[FieldFlaw]:
    """Lists of pod sets that are too long to be checked further."""
    spec = document.get("spec")
    own = spec if isinstance(spec, dict) else {}
    inside = [("spec", own), *((f"spec.{key}", own[key]) for key in _WITH_POD_SETS if key in own)]
    for path, holder in inside:
        for key, value in holder.items() if isinstance(holder, dict) else ():
            is_long = isinstance(value, (dict, list)) and len(value) > MOST_POD_SETS
            if is_long and key in _POD_SETS:
                return [_too_many(f"{path}.{key}", len(value))]
    return []


def _too_many(path: str, count: int) -> FieldFlaw:
    return FieldFlaw(path, f"{count:,} pod sets", f"at most {MOST_POD_SETS:,} pod sets in one job")


def flaws_of_pod_sets(kind: JobKind, pod_sets: tuple[PodSet, ...], templates: int) -> Iterator[FieldFlaw]:
    """``templates`` is how many pod templates with containers the manifest has."""
    at = TEMPLATE_AT[kind]
    if len(pod_sets) > MOST_POD_SETS:
        yield _too_many(at, len(pod_sets))
        return
    needed = 1 if kind is JobKind.LEADER_WORKER_SET else len(pod_sets)
    if templates < max(needed, 1):
        value = f"{templates} of {needed} with containers" if needed > 1 else "missing"
        yield FieldFlaw(at, value, "a pod template with containers for each")
    pods = sum(each.count for each in pod_sets)
    if pods > MOST_PODS:
        yield FieldFlaw("spec", f"{pods:,} pods", f"at most {MOST_PODS:,} pods in one job")
    names = [each.name for each in pod_sets]
    for name in dict.fromkeys(names):
        if not (name and is_label_value(name)):
            yield _flaw(f"{at} (a name in it)", name, VALUE_RULE)
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        yield _flaw(f"{at} (a name in it)", twice, "each name once")


def _flaws(document: Mapping[str, Any], kind: JobKind) -> Iterator[FieldFlaw]:
    for key, needed in (("metadata", "an object with a name"), ("spec", "an object")):
        if not isinstance(document.get(key), dict):
            yield _flaw(key, document.get(key), needed)
            return
    for each in below(document):
        yield from _plain(each)
    if kind not in OF_KUBERNETES:
        for at, key, fields in (("", "", OBJECT), ("spec", "spec", SPECS[kind])):
            value = document[key] if key else document
            unknown = [each for each in value if each not in fields.read and each not in fields.other]
            for name, close in misspelt(unknown, fields.read, ""):
                if close:
                    yield FieldFlaw(_at(at, name), "unknown field", close)
        for each in below(document):
            for key in _TEMPLATES.intersection(each.value):
                yield from _without_containers(_at(each.path, key), each.value[key])


def _plain(found: DocumentPart) -> Iterator[FieldFlaw]:
    """Counts without a meaning, and text that is not a name."""
    for key, value in found.value.items():
        if not is_name(key):
            yield _flaw(found.path or "(top level)", key, f"keys of {_SHOWN_RULE}")
        elif key in _COUNTS and type(value) is int and value > MOST_PODS:
            yield _flaw(_at(found.path, key), value, f"at most {MOST_PODS:,}")
        elif key in _SHOWN and isinstance(value, str) and value and not is_name(value):
            yield _flaw(_at(found.path, key), value, _SHOWN_RULE)


def _without_containers(path: str, template: object) -> Iterator[FieldFlaw]:
    spec = template.get("spec") if isinstance(template, dict) else None
    if isinstance(spec, dict) and not _INNER.intersection(spec):
        yield FieldFlaw(f"{path}.spec.containers", "missing", "at least one container")


def _at(path: str, key: str) -> str:
    if path.rpartition(".")[2] in _BY_NAME:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _flaw(field: str, value: object, allowed: str) -> FieldFlaw:
    return FieldFlaw(field, "missing" if value is None else shorten(value), allowed)
