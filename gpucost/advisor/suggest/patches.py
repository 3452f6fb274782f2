"""Changes of a job's document: made, written as RFC 6902 and as YAML, and carried out.

``operations`` and ``merge_patch`` write the difference between two documents; ``patched`` is a document after
the operations of a suggestion. Below them are the fields that suggestions change, for all kinds of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from gpucost.cluster.objects.jobs import Document
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind

DocumentPath = tuple[str | int, ...]
"""Keys and indexes from the top of a document."""
PatchOperation = Mapping[str, Any]
ManifestEdit = Callable[[dict[str, Any]], None]
"""Changes a document in place."""
_APPEND = "-"
_NAMES = ("name", "groupName")
SOME = "# merge this: only what changes is shown, list entries under their names\n"
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


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors and aliases, which manifests may not have."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base class names it
        return True


def pointer(path: DocumentPath) -> str:
    """The path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def get(document: Any, path: DocumentPath) -> Any:
    """The value at the path; None where there is none."""
    for key in path:
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and isinstance(key, int) and key < len(document):
            document = document[key]
        else:
            return None
    return document


def put(document: Any, path: DocumentPath, value: Any) -> None:
    """Sets a value, with the levels above it that are missing. Raises LookupError where another kind of value
    is in the way."""
    for at, key in enumerate(path[:-1]):
        inner = get(document, (key,))
        if inner is None and isinstance(document, dict) and isinstance(path[at + 1], str):
            inner = document[key] = {}
        document = inner
    if not isinstance(document, dict):
        raise LookupError(pointer(path))
    document[path[-1]] = value


def drop(document: Any, path: DocumentPath) -> None:
    """Removes a value, and the levels above it that are empty then, except for the first two."""
    above = get(document, path[:-1])
    if isinstance(above, dict):
        above.pop(path[-1], None)
        if not above and len(path) > 2:
            drop(document, path[:-1])


def operations(before: Any, after: Any, path: DocumentPath = ()) -> Iterator[PatchOperation]:
    """The operations that make one document into the other."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, value in before.items():
            if key not in after:
                yield {"op": "remove", "path": pointer((*path, key))}
            else:
                yield from operations(value, after[key], (*path, key))
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": pointer((*path, key)), "value": deepcopy(value)}
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, value in enumerate(before):
            yield from operations(value, after[at], (*path, at))
    elif isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before:
        for value in after[len(before) :]:
            yield {"op": "add", "path": pointer((*path, _APPEND)), "value": deepcopy(value)}
    elif before != after:
        yield {"op": "replace", "path": pointer(path), "value": deepcopy(after)}


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What changes, as YAML to be merged: None takes a field away. Lists are whole, but for those whose
    members have names: of these, only what changes, which the first line then states."""
    changes, is_whole = _merged(before, after)
    return text_of(changes, is_whole)


def text_of(changes: Mapping[str, Any], is_whole: bool = True) -> str:
    """As YAML; PyYAML quotes whatever needs it."""
    text = yaml.dump(changes, Dumper=_Plain, sort_keys=False, width=1_000_000).rstrip("\n")
    return text if is_whole else SOME + text


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    changes: dict[str, Any] = {key: None for key in before if key not in after}
    is_whole = True
    for key, value in after.items():
        old = before.get(key)
        if key in before and old == value:
            continue
        changes[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            changes[key], inner = _merged(old, value)
            is_whole = is_whole and inner
        elif (members := _members(old, value)) is not None:
            changes[key], is_whole = members, False
    return changes, is_whole


def _members(before: Any, after: Any) -> list[dict[str, Any]] | None:
    """Those of a list that change, with their names; None for no lists, and where one has no name."""
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    if len(before) != len(after) or not all(isinstance(each, Mapping) for each in (*before, *after)):
        return None
    found = []
    for old, new in zip(before, after, strict=True):
        identity = _identity(old)
        if identity is None or _identity(new) != identity:
            return None
        if old != new:
            found.append(_joined(identity, _merged(old, new)[0]))
    return found


def _identity(member: Mapping[str, Any]) -> dict[str, Any] | None:
    for key in _NAMES:
        if isinstance(member.get(key), str):
            return {key: member[key]}
    name = get(member, ("metadata", "name"))
    return {"metadata": {"name": name}} if isinstance(name, str) else None


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            found[key] = {**one[key], **other[key]}
    return found


def patched(document: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A copy of ``document`` after ``operations`` of RFC 6902: add, replace, remove and test, the operations
    that suggestions use. Raises ValueError for others and for a test that fails, LookupError where a path
    leads nowhere."""
    found: Any = deepcopy(dict(document))
    for each in operations:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in str(each["path"]).split("/")[1:]]
        above = found
        for key in keys[:-1]:
            above = above[_at(above, key)]
        _do(str(each["op"]), above, keys[-1], deepcopy(each.get("value")))
    return found  # type: ignore[no-any-return]


def _do(operation: str, above: Any, key: str, value: Any) -> None:
    if operation == "add" and isinstance(above, list):
        at = len(above) if key == _APPEND else int(key)
        if not 0 <= at <= len(above):
            raise IndexError(f"{key} of {len(above)}")
        above.insert(at, value)
    elif operation == "add":
        above[key] = value
    elif operation == "replace":
        _ = above[_at(above, key)]
        above[_at(above, key)] = value
    elif operation == "remove":
        del above[_at(above, key)]
    elif operation != "test" or above[_at(above, key)] != value:
        raise ValueError(f"operation {operation} of {key}")


def _at(above: Any, key: str) -> Any:
    return int(key) if isinstance(above, list) else key


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
