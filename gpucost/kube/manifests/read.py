"""Manifests from text, and one manifest from one object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.manifest import Document, JobManifest, Manifests
from gpucost.cluster.objects import Flaw
from gpucost.domain.errors import InputError, Remark
from gpucost.domain.jobs import JobKind, Owner, job_kind
from gpucost.kube.manifests import train_jobs
from gpucost.kube.manifests.checks import examined, flaws_of_pod_sets, pod_templates, too_many
from gpucost.kube.manifests.documents import Placed, checked, documents, is_list
from gpucost.kube.manifests.fields import TEMPLATE_AT, makes_no_pods
from gpucost.kube.manifests.pod_groups import Beside, Named, group_of, pod_groups, pods_as_job
from gpucost.kube.manifests.quota import quota
from gpucost.kube.manifests.rules.metadata import name_of
from gpucost.kube.manifests.said import Said, said
from gpucost.kube.parse.jobs import job_parser
from gpucost.kube.parse.reading import Part

_KINDS = ", ".join(sorted(kind.value for kind in TEMPLATE_AT))
_BY_NAME = re.compile(r"(.*?\.(?:requests|limits|annotations|labels|nodeSelector|overhead))\.(.+)", re.DOTALL)
_QUOTES = "'\""
_WORDS = {"None": "missing", "missing": "missing", "unknown field": "unknown field"}
"""Of values: what they are where there is none to show."""
_JOB = job_parser("batch/v1", "Job")


@dataclass(frozen=True, slots=True)
class _Reader:
    """What all manifests of a file have in common."""

    at_ms: int
    namespace: str
    groups: Mapping[tuple[str, str], Beside]
    runtimes: Mapping[train_jobs.Runtime, Document]


def read_manifests(text: str | bytes, place: str, at_ms: int, namespace: str = "default") -> Manifests:
    """All jobs of a file, in its order. ``namespace`` is that of documents that name none.

    Raises InputError for the first thing that is wrong, naming its document and field, and how many more
    there are in that document. Documents that make no pods are skipped, and said.
    """
    return _manifests(documents(text, place), place, at_ms, namespace, ())


def manifest_of(
    document: Document,
    place: str,
    at_ms: int,
    namespace: str = "default",
    beside: Sequence[Document] = (),
) -> JobManifest:
    """One job from its object, or from a ``kind: List`` of it, or of the pods of one group.

    ``beside`` are documents that say something of it: its PodGroup, the runtime of a TrainJob. Raises
    InputError as ``read_manifests`` does, and where it is not exactly one job.
    """
    found = checked(document, place)
    placed = [Placed(found, place)]
    if is_list(found):
        items = found.get("items")
        if not isinstance(items, list):
            raise InputError(f"{place}: items", items, "a list of objects")
        placed = [Placed(checked(each, place), place) for each in items]
    jobs = _manifests(placed, place, at_ms, namespace, beside).jobs
    if len(jobs) != 1:
        raise InputError(place, Remark(f"{len(jobs)} jobs"), f"exactly one job, of kind {_KINDS}")
    identity = replace(jobs[0].job.meta, uid=_uid(place))
    return replace(jobs[0], job=replace(jobs[0].job, meta=identity), document=found, place=place)


def reread(manifest: JobManifest, document: Document) -> JobManifest:
    """The same job after its document was changed. Raises InputError where it makes no sense any more."""
    created_ms = manifest.job.meta.created_ms
    return manifest_of(document, manifest.place, created_ms, manifest.namespace, manifest.beside)


def _manifests(
    placed: Sequence[Placed], place: str, at_ms: int, namespace: str, beside: Sequence[Document]
) -> Manifests:
    told = (*beside, *(each.document for each in placed))
    reader = _Reader(at_ms, namespace, pod_groups(told, namespace), train_jobs.runtimes(told, namespace))
    jobs: dict[object, list[Placed]] = {}
    skipped = []
    for number, each in enumerate(placed):
        kind = _known_kind(each.document, each.place)
        if kind is None:
            skipped.append(f"{each.place}: a {each.document['kind']} makes no pods")
            continue
        group = group_of(each.document) if kind is JobKind.POD else Named("")
        key = (_namespace(each.document, namespace), group) if group.name else number
        jobs.setdefault(key, []).append(each)
    return Manifests(tuple(_manifest(each, place, reader) for each in jobs.values()), tuple(skipped))


def _known_kind(document: Document, place: str) -> JobKind | None:
    """None for what makes no pods. Raises InputError for a kind that is not known."""
    version, kind = document.get("apiVersion"), document.get("kind")
    for field, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            found = Remark("missing") if value is None else value
            raise InputError(f"{place}: {field}", found, f"that of a kind of job: {_KINDS}")
    found_kind = job_kind(str(version), str(kind))
    if found_kind in TEMPLATE_AT:
        return found_kind
    if makes_no_pods(Owner(str(version), str(kind), "", "").group, str(kind)):
        return None
    raise InputError(f"{place}: kind", f"{version} {kind}", f"a kind of job: {_KINDS}")


def _manifest(placed: Sequence[Placed], place: str, reader: _Reader) -> JobManifest:
    given, where = placed[0]
    kind = job_kind(given["apiVersion"], given["kind"])
    held = [_held(each, kind) for each in placed]
    if kind is JobKind.POD:
        return _pods(placed, held, place, reader)
    document = held[0].document
    seen = _as_seen(held[0], kind, reader)
    job, templates = _job(seen, document, kind), pod_templates(document)
    beside: list[Document] = []
    unknown, needed = "", len(templates)
    if kind is JobKind.TRAIN_JOB:
        runtime = reader.runtimes.get(train_jobs.runtime_of(document, job.meta.namespace))
        beside += [runtime] if runtime is not None else []
        job, unknown = train_jobs.with_runtime(job, seen, runtime)
        needed = len(job.pod_sets)
    if kind is JobKind.DAEMON_SET and not job.pods_wanted:
        job = replace(job, pod_sets=tuple(replace(each, count=1) for each in job.pod_sets))
        unknown = "a DaemonSet has a pod on each node that it fits; it is read as one pod"
    found = said(seen, job, [each.value for each in templates])
    flaws = [*job.flaws, *found.flaws, *flaws_of_pod_sets(kind, job.pod_sets, needed)]
    _refuse(where, _of_cron_job(flaws) if kind is JobKind.CRON_JOB else flaws)
    group = found.group if not found.group.of_kueue else Named("")
    made = _filled(job, found, group.name, reader, beside)
    sets, workloads = quota(made.job, seen)
    return replace(
        made,
        document=given,
        place=where,
        quota_sets=sets,
        workloads=workloads,
        unknown=(unknown,) if unknown else (),
    )


def _held(placed: Placed, kind: JobKind) -> Placed:
    """As the API server would hold it. Raises InputError for what it would refuse."""
    _refuse(placed.place, too_many(placed.document))
    document, flaws = examined(placed.document, kind)
    _refuse(placed.place, flaws)
    return Placed(document, placed.place)


def _job(seen: Mapping[str, Any], document: Document, kind: JobKind) -> JobObject:
    if kind is not JobKind.CRON_JOB:
        return job_parser(document["apiVersion"], document["kind"])(seen)
    return replace(_JOB(seen), api_version=document["apiVersion"], kind=document["kind"], job_kind=kind)


def _pods(placed: Sequence[Placed], held: Sequence[Placed], place: str, reader: _Reader) -> JobManifest:
    """Pods that name the same group, or one that names none; ``placed`` as given."""
    seen = [_as_seen(each, JobKind.POD, reader) for each in held]
    group = group_of(seen[0])
    job, unknown = pods_as_job(seen, group)
    where = placed[0].place
    document: Document = placed[0].document
    if len(placed) > 1:
        where = f"{place}, pods of {group.name}"
        document = {"apiVersion": "v1", "kind": "List", "items": [each.document for each in placed]}
    if group.name:
        job = replace(job, meta=replace(job.meta, name=group.name, uid=_uid(where)))
    found = said(seen[0], job, seen)
    templates = len(seen) if len(seen) > 1 else len(pod_templates(held[0].document))
    _refuse(where, [*job.flaws, *found.flaws, *flaws_of_pod_sets(JobKind.POD, job.pod_sets, templates)])
    made = _filled(job, found, "" if group.of_kueue else group.name, reader, [])
    return replace(
        made,
        document=document,
        place=where,
        quota_sets=job.pod_sets,
        workloads=1,
        unknown=(unknown,) if unknown else (),
    )


def _filled(
    job: JobObject, found: Said, group_name: str, reader: _Reader, beside: list[Document]
) -> JobManifest:
    """A PodGroup that stands beside it decides its gang, and its queue where the job names none."""
    known = reader.groups.get((job.meta.namespace, group_name)) if group_name else None
    if known is not None:
        _refuse(f"PodGroup {group_name}", known.group.flaws)
        job = replace(job, gang_size=known.group.min_member)
        beside.append(known.document)
    return JobManifest(
        job=replace(job, meta=replace(job.meta, created_ms=reader.at_ms)),
        queue=found.queue,
        kueue_priority_class=found.kueue_priority_class,
        volcano_queue=found.volcano_queue or (known.group.queue if known is not None else ""),
        scheduler=found.scheduler,
        deadline_s=found.deadline_s,
        checkpoints=found.checkpoints,
        group_name=group_name,
        pod_group=known.group if known is not None else None,
        beside=tuple(beside),
    )


def _as_seen(placed: Placed, kind: JobKind, reader: _Reader) -> dict[str, Any]:
    """As the API server would hold it, before anything happened to it; of a CronJob the job it would make.

    The status of a DaemonSet stays: it says on how many nodes it is.
    """
    document = placed.document
    own, spec = document["metadata"], document["spec"]
    name = name_of(Part(own))
    inner = own
    if kind is JobKind.CRON_JOB:
        template = spec.get("jobTemplate")
        template = template if isinstance(template, dict) else {}
        inner, spec = template.get("metadata") or {}, template.get("spec")
        inner = inner if isinstance(inner, dict) else {}
    identity = {
        "uid": _uid(placed.place),
        "name": name,
        "namespace": _namespace(document, reader.namespace),
        "labels": inner.get("labels"),
        "annotations": inner.get("annotations"),
    }
    status = document.get("status") if kind is JobKind.DAEMON_SET else None
    return {"metadata": identity, "spec": spec, "status": status}


def _namespace(document: Document, default: str) -> str:
    metadata = document.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) and found else default


def _uid(place: str) -> str:
    return f"manifest/{place}"


def _of_cron_job(flaws: Iterable[Flaw]) -> list[Flaw]:
    return [
        replace(each, field=f"spec.jobTemplate.{each.field}")
        if each.field.startswith(("spec", "metadata")) and not each.field.startswith("spec.jobTemplate")
        else each
        for each in flaws
    ]


def _refuse(place: str, flaws: Sequence[Flaw]) -> None:
    """Raises InputError for the first."""
    distinct = list(dict.fromkeys(flaws))
    if not distinct:
        return
    first, more = distinct[0], len(distinct) - 1
    by_name = _BY_NAME.fullmatch(first.field)
    field = f"{by_name[1]}[{by_name[2].strip(_QUOTES)}]" if by_name else first.field
    value = Remark(_WORDS.get(first.value, f"{first.value} is not allowed"))
    after = f"; and {more} more" if more else ""
    raise InputError(f"{place}: {field}", value, f"{first.allowed}{after}")
