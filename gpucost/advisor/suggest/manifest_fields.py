"""The fields of a job's document that suggestions change, for all kinds of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucost.advisor.suggest.patches import DocumentPath, get, put
from gpucost.cluster.objects.jobs import Document
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind

_SKIPPED = frozenset(("podSpecOverrides", "podTemplateOverrides", "runtimePatches", "status"))
_OF_JOBS = (JobKind.JOB, JobKind.CRON_JOB)
_REPLICAS = (
    *(JobKind.DEPLOYMENT, JobKind.REPLICA_SET, JobKind.STATEFUL_SET),
    JobKind.LEADER_WORKER_SET,
)
_RAY: Mapping[JobKind, DocumentPath] = {
    JobKind.RAY_CLUSTER: ("spec",),
    JobKind.RAY_JOB: ("spec", "rayClusterSpec"),
    JobKind.RAY_SERVICE: ("spec", "rayClusterConfig"),
}
_REPLICA_SPECS = "ReplicaSpecs"


def pod_specs(document: Document) -> list[DocumentPath]:
    """Every pod spec with containers, in the order of the document."""
    return [*_pod_specs(document, ())]


def _pod_specs(value: Any, path: DocumentPath) -> Iterator[DocumentPath]:
    if isinstance(value, Mapping):
        spec = value.get("spec")
        if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list):
            yield (*path, "spec")
            return
        for key, inner in value.items():
            if key not in _SKIPPED and isinstance(inner, Mapping | list):
                yield from _pod_specs(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            if isinstance(inner, Mapping | list):
                yield from _pod_specs(inner, (*path, at))


@dataclass(frozen=True, slots=True)
class GpuRequestField:
    """The field in which one pod asks for so many units of a resource: ``path`` leads to limits
    and requests."""

    path: DocumentPath
    resource: str
    amount: int

    def change(self, document: Any, resource: str, amount: int) -> None:
        """Asks for another amount or resource, at every place that asked for the old one."""
        for field in ("limits", "requests"):
            asked = get(document, (*self.path, field))
            if isinstance(asked, dict) and self.resource in asked:
                changed = {
                    resource if key == self.resource else key: amount if key == self.resource else value
                    for key, value in asked.items()
                }
                put(document, (*self.path, field), changed)


def gpu_asks(document: Document, catalog: ResourceCatalog) -> list[GpuRequestField]:
    """The requests of every container that asks for GPUs, and of a TrainJob's trainer."""
    holders: list[DocumentPath] = []
    for spec in pod_specs(document):
        containers = get(document, (*spec, "containers"))
        holders += [(*spec, "containers", at, "resources") for at in range(len(containers))]
    if document.get("kind") == JobKind.TRAIN_JOB:
        holders.append(("spec", "trainer", "resourcesPerNode"))
    return [ask for path in holders for ask in _asks(document, path, catalog)]


def _asks(document: Document, path: DocumentPath, catalog: ResourceCatalog) -> Iterator[GpuRequestField]:
    found: dict[str, int] = {}
    for field in ("requests", "limits"):
        asked = get(document, (*path, field))
        for resource, amount in asked.items() if isinstance(asked, Mapping) else ():
            number = str(amount)
            # Nothing could be suggested for a larger number, and int() refuses thousands of digits.
            if (
                isinstance(resource, str)
                and catalog.is_gpu(resource)
                and number.isdecimal()
                and len(number) < 10
            ):
                found[resource] = int(number)
    return (GpuRequestField(path, resource, amount) for resource, amount in found.items() if amount)


def gpu_specs(document: Document, catalog: ResourceCatalog) -> list[DocumentPath]:
    """Pod specs that ask for GPUs; all of them where none does."""
    specs = pod_specs(document)
    asks = {ask.path[:-3] for ask in gpu_asks(document, catalog)}
    return [each for each in specs if each in asks] or specs


def metadata(document: Document) -> list[DocumentPath]:
    """The metadata of the object that is queued: of a CronJob that of its jobs, of several pods
    that of each."""
    items = document.get("items")
    if document.get("kind") == "List" and isinstance(items, list):
        return [("items", at, "metadata") for at in range(len(items))]
    if document.get("kind") == JobKind.CRON_JOB:
        return [("spec", "jobTemplate", "metadata")]
    return [("metadata",)]


@dataclass(frozen=True, slots=True)
class PodCountField:
    """How many equal pods, or groups of pods: ``paths`` are fields that must all have this value. ``beside``
    are minimums that must not be above it, of which some may not be there. ``role`` is what the part is
    called, empty where there is only one; ``completions`` is the field for how many of its pods are to
    succeed, if there is one."""

    amount: int
    paths: tuple[DocumentPath, ...]
    beside: tuple[DocumentPath, ...] = ()
    role: str = ""
    completions: DocumentPath | None = None

    @property
    def field(self) -> str:
        """``Worker replicas``."""
        return f"{self.role} {self.paths[0][-1]}".strip()

    def change(self, document: Any, amount: int) -> None:
        for path in self.paths:
            put(document, path, amount)
        for path in self.beside:
            least = get(document, path)
            if isinstance(least, int) and least > amount:
                put(document, path, amount)


def largest_count(document: Document, kind: JobKind, least: int = 2) -> PodCountField | None:
    """The count of the part with the most pods, of ``least`` or more; None where no field has a count."""
    found = [each for each in _counts(document, kind) if each.amount >= least]
    return max(found, key=lambda each: each.amount, default=None)


def _counts(document: Document, kind: JobKind) -> Iterator[PodCountField]:
    if kind in _OF_JOBS:
        inside: DocumentPath = ("spec",) if kind is JobKind.JOB else ("spec", "jobTemplate", "spec")
        yield from _of_job(document, inside)
    elif kind in _REPLICAS:
        yield from _count(document, ("spec", "replicas"))
    elif kind is JobKind.TRAIN_JOB:
        yield from _count(document, ("spec", "trainer", "numNodes"))
    elif kind is JobKind.VOLCANO_JOB:
        yield from _of_volcano(document)
    elif kind is JobKind.JOB_SET:
        for at in _indexes(document, ("spec", "replicatedJobs")):
            path: DocumentPath = ("spec", "replicatedJobs", at)
            role = _text(document, (*path, "name"))
            yield from _count(document, (*path, "replicas"), role=role)
            yield from _of_job(document, (*path, "template", "spec"), role)
    elif kind in _RAY:
        groups = (*_RAY[kind], "workerGroupSpecs")
        for at in _indexes(document, groups):
            group: DocumentPath = (*groups, at)
            role = _text(document, (*group, "groupName"))
            yield from _count(document, (*group, "replicas"), ((*group, "minReplicas"),), role)
    else:
        spec = document.get("spec")
        for key in spec if isinstance(spec, Mapping) else ():
            if str(key).endswith(_REPLICA_SPECS):
                least: DocumentPath = ("spec", "elasticPolicy", "minReplicas")
                yield from _count(document, ("spec", key, "Worker", "replicas"), (least,), "Worker")


def _of_job(document: Document, spec: DocumentPath, role: str = "") -> Iterator[PodCountField]:
    """A Job whose pods all need each other (Indexed, as many completions as pods) has fewer of both. There
    are never more pods than completions."""
    job = get(document, spec)
    if not isinstance(job, Mapping):
        return
    pods, paths = (*spec, "parallelism"), [(*spec, "parallelism")]
    if job.get("completionMode") == "Indexed" and job.get("completions") == job.get("parallelism"):
        paths.append((*spec, "completions"))
    done = (*spec, "completions")
    most = [each.amount for each in _count(document, done)]
    for each in _count(document, pods):
        yield PodCountField(min([each.amount, *most]), tuple(paths), (), role, done if most else None)


def _of_volcano(document: Document) -> Iterator[PodCountField]:
    for at in _indexes(document, ("spec", "tasks")):
        task: DocumentPath = ("spec", "tasks", at)
        least: DocumentPath = (*task, "minAvailable")
        yield from _count(document, (*task, "replicas"), (least,), _text(document, (*task, "name")))


def _count(
    document: Document, path: DocumentPath, beside: tuple[DocumentPath, ...] = (), role: str = ""
) -> Iterator[PodCountField]:
    found = get(document, path)
    if isinstance(found, int) and not isinstance(found, bool):
        yield PodCountField(found, (path,), beside, role)


def _text(document: Document, path: DocumentPath) -> str:
    found = get(document, path)
    return found if isinstance(found, str) else ""


def _indexes(document: Document, path: DocumentPath) -> range:
    found = get(document, path)
    return range(len(found)) if isinstance(found, list) else range(0)
