"""Manifests from text, within limits: the text may come from untrusted people. Also one manifest from one
object."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml

from gpucost.cluster.objects.jobs import (
    Document,
    JobManifest,
    JobManifests,
    JobObject,
)
from gpucost.cluster.objects.metadata import FieldFlaw
from gpucost.domain.errors import ErrorRemark, InputError, shorten
from gpucost.domain.jobs import JobKind, OwnerReference, job_kind
from gpucost.kube.manifests import expansion
from gpucost.kube.manifests.checks import (
    TEMPLATE_AT,
    examined,
    flaws_of_pod_sets,
    makes_no_pods,
    pod_templates,
    too_many,
)
from gpucost.kube.manifests.expansion import kueue_pod_sets
from gpucost.kube.manifests.rules.names import name_of
from gpucost.kube.manifests.scheduler_hints import (
    ManifestPodGroup,
    PodGroupName,
    SchedulerHints,
    group_of,
    pod_groups,
    pods_as_job,
    scheduler_hints,
)
from gpucost.kube.parse import yaml_documents
from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.jobs import job_parser

MOST_BYTES = 3 << 20
"""The most that the API server takes of one request (kubernetes, apiserver/pkg/server/config.go)."""
MOST_DOCUMENTS = 200
MOST_VALUES = 100_000
"""The most keys, plain values, lists and mappings in one file."""
DEEPEST = yaml_documents.DEEPEST
_ALLOWED = "manifests in YAML or JSON"


class SourceDocument(NamedTuple):
    """A document, and its place in the file, for people."""

    document: dict[str, Any]
    place: str


def documents(text: str | bytes, place: str, most_values: int = MOST_VALUES) -> list[SourceDocument]:
    """All documents that are not empty; of a ``kind: List`` its items. Reading stops beyond ``most_values``.
    Raises InputError naming ``place``."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MOST_BYTES:
        raise InputError(place, ErrorRemark(f"{size:,} bytes"), f"at most {MOST_BYTES:,} bytes")
    found: list[tuple[Any, int]] = []
    for number, each in enumerate(_parsed(_decoded(text, place), place, most_values), 1):
        if number > MOST_DOCUMENTS:
            raise _too_many(place)
        if each is not None:
            found.append((each, number))
    if not found:
        raise InputError(place, ErrorRemark("empty"), _ALLOWED)
    placed = []
    for each, number in found:
        where = place if len(found) == 1 else f"{place}, document {number}"
        placed += list(_items(checked(each, where, most_values), where))
        if len(placed) > MOST_DOCUMENTS:
            raise _too_many(place)
    return placed


def checked(found: object, place: str, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """A mapping of plain values by text, not too deep and not too many. Raises InputError otherwise."""
    if not isinstance(found, Mapping):
        raise InputError(place, found, "a mapping with apiVersion, kind, metadata and spec")
    values, level, depth = 0, [found], 0
    while level:
        depth += 1
        below: list[Any] = []
        for each in level:
            inside = each if isinstance(each, list) else each.values()
            values += len(each) if isinstance(each, list) else 2 * len(each)
            below += (one for one in inside if isinstance(one, (dict, list)))
            for number in inside:
                if isinstance(number, float) and not math.isfinite(number):
                    raise InputError(place, number, "numbers that are finite")
            if not isinstance(each, list) and not all(isinstance(key, str) for key in each):
                key = next(key for key in each if not isinstance(key, str))
                raise InputError(place, ErrorRemark(f"the key {shorten(key, 64)}"), "keys that are text")
        if values > most_values:
            raise InputError(place, ErrorRemark("too large"), f"at most {most_values:,} keys and values")
        if depth > DEEPEST:
            raise InputError(place, ErrorRemark("too deep"), f"at most {DEEPEST} levels")
        level = below
    return dict(found)


def _items(document: dict[str, Any], place: str) -> Iterator[SourceDocument]:
    if not is_list(document):
        yield SourceDocument(document, place)
        return
    items = document.get("items")
    if not isinstance(items, list):
        raise InputError(f"{place}: items", items, "a list of objects")
    for number, each in enumerate(items, 1):
        if not isinstance(each, dict):
            raise InputError(f"{place}: items[{number - 1}]", each, "an object")
        yield SourceDocument(each, f"{place}, item {number}")


def is_list(document: Mapping[str, Any]) -> bool:
    """Whether it is a list of objects, as kubectl writes them."""
    return document.get("kind") == "List" and document.get("apiVersion") == "v1"


def _decoded(text: str | bytes, place: str) -> str:
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(place, ErrorRemark("not text in UTF-8"), _ALLOWED) from None


def _parsed(text: str, place: str, most_values: int) -> Iterator[Any]:
    if text.lstrip()[:1] in ("{", "["):
        yield _json(text, place)
        return
    try:
        yield from yaml_documents.documents(place, text, is_strict=True, most_values=most_values)
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        said = f"{problem or 'a character or number that cannot be read'}"
        where = f" in line {mark.line + 1:,}" if mark is not None else ""
        raise InputError(place, ErrorRemark(f"no YAML: {shorten(said)}{where}"), _ALLOWED) from None


def _json(text: str, place: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1) if len(keys) < 1000 else "a key"
            raise InputError(place, ErrorRemark(f"{shorten(twice, 64)} stands there twice"), "each key once")
        return read

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise InputError(place, ErrorRemark("too deep"), f"at most {DEEPEST} levels") from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(place, ErrorRemark(f"no JSON in line {line:,}"), _ALLOWED) from None


def _too_many(place: str) -> InputError:
    return InputError(place, ErrorRemark("too many documents"), f"at most {MOST_DOCUMENTS} in one file")


_KINDS = ", ".join(sorted(kind.value for kind in TEMPLATE_AT))
_BY_NAME = re.compile(r"(.*?\.(?:requests|limits|annotations|labels|nodeSelector|overhead))\.(.+)", re.DOTALL)
_QUOTES = "'\""
_WORDS = {"None": "missing", "missing": "missing", "unknown field": "unknown field"}
"""The description of values that have no text to show."""
_JOB = job_parser("batch/v1", "Job")


@dataclass(frozen=True, slots=True)
class _ManifestReader:
    """The state shared by all manifests of a file."""

    at_ms: int
    namespace: str
    groups: Mapping[tuple[str, str], ManifestPodGroup]
    runtimes: Mapping[expansion.TrainJobRuntime, Document]


def read_manifests(text: str | bytes, place: str, at_ms: int, namespace: str = "default") -> JobManifests:
    """All jobs of a file, in its order. ``namespace`` is that of documents that name none.

    Raises InputError for the first flaw, naming its document and field, and how many more there are in that
    document. Documents that make no pods are skipped and reported.
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

    ``beside`` are related documents: its PodGroup, the runtime of a TrainJob. Raises InputError as
    ``read_manifests`` does, and where it is not exactly one job.
    """
    found = checked(document, place)
    placed = [SourceDocument(found, place)]
    if is_list(found):
        items = found.get("items")
        if not isinstance(items, list):
            raise InputError(f"{place}: items", items, "a list of objects")
        placed = [SourceDocument(checked(each, place), place) for each in items]
    jobs = _manifests(placed, place, at_ms, namespace, beside).jobs
    if len(jobs) != 1:
        raise InputError(place, ErrorRemark(f"{len(jobs)} jobs"), f"exactly one job, of kind {_KINDS}")
    identity = replace(jobs[0].job.meta, uid=_uid(place))
    return replace(jobs[0], job=replace(jobs[0].job, meta=identity), document=found, place=place)


def reread(manifest: JobManifest, document: Document) -> JobManifest:
    """The same job after its document was changed. Raises InputError where it is not valid any more."""
    created_ms = manifest.job.meta.created_ms
    return manifest_of(document, manifest.place, created_ms, manifest.namespace, manifest.beside)


def _manifests(
    placed: Sequence[SourceDocument], place: str, at_ms: int, namespace: str, beside: Sequence[Document]
) -> JobManifests:
    told = (*beside, *(each.document for each in placed))
    reader = _ManifestReader(
        at_ms, namespace, pod_groups(told, namespace), expansion.runtimes(told, namespace)
    )
    jobs: dict[object, list[SourceDocument]] = {}
    skipped = []
    for number, each in enumerate(placed):
        kind = _known_kind(each.document, each.place)
        if kind is None:
            skipped.append(f"{each.place}: a {each.document['kind']} makes no pods")
            continue
        group = group_of(each.document) if kind is JobKind.POD else PodGroupName("")
        key = (_namespace(each.document, namespace), group) if group.name else number
        jobs.setdefault(key, []).append(each)
    return JobManifests(tuple(_manifest(each, place, reader) for each in jobs.values()), tuple(skipped))


def _known_kind(document: Document, place: str) -> JobKind | None:
    """The kind; None if it makes no pods. Raises InputError for an unknown kind."""
    version, kind = document.get("apiVersion"), document.get("kind")
    for field, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            found = ErrorRemark("missing") if value is None else value
            raise InputError(f"{place}: {field}", found, f"that of a kind of job: {_KINDS}")
    found_kind = job_kind(str(version), str(kind))
    if found_kind in TEMPLATE_AT:
        return found_kind
    if makes_no_pods(OwnerReference(str(version), str(kind), "", "").group, str(kind)):
        return None
    raise InputError(f"{place}: kind", f"{version} {kind}", f"a kind of job: {_KINDS}")


def _manifest(placed: Sequence[SourceDocument], place: str, reader: _ManifestReader) -> JobManifest:
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
        runtime = reader.runtimes.get(expansion.runtime_of(document, job.meta.namespace))
        beside += [runtime] if runtime is not None else []
        job, unknown = expansion.with_runtime(job, seen, runtime)
        needed = len(job.pod_sets)
    if kind is JobKind.DAEMON_SET and not job.pods_wanted:
        job = replace(job, pod_sets=tuple(replace(each, count=1) for each in job.pod_sets))
        unknown = "a DaemonSet has a pod on each node that it fits; it is read as one pod"
    found = scheduler_hints(seen, job, [each.value for each in templates])
    flaws = [*job.flaws, *found.flaws, *flaws_of_pod_sets(kind, job.pod_sets, needed)]
    _refuse(where, _of_cron_job(flaws) if kind is JobKind.CRON_JOB else flaws)
    group = found.group if not found.group.of_kueue else PodGroupName("")
    made = _filled(job, found, group.name, reader, beside)
    sets, workloads = kueue_pod_sets(made.job, seen)
    return replace(
        made,
        document=given,
        place=where,
        quota_sets=sets,
        workloads=workloads,
        unknown=(unknown,) if unknown else (),
    )


def _held(placed: SourceDocument, kind: JobKind) -> SourceDocument:
    """The document as the API server would hold it. Raises InputError if it would be refused."""
    _refuse(placed.place, too_many(placed.document))
    document, flaws = examined(placed.document, kind)
    _refuse(placed.place, flaws)
    return SourceDocument(document, placed.place)


def _job(seen: Mapping[str, Any], document: Document, kind: JobKind) -> JobObject:
    if kind is not JobKind.CRON_JOB:
        return job_parser(document["apiVersion"], document["kind"])(seen)
    return replace(_JOB(seen), api_version=document["apiVersion"], kind=document["kind"], job_kind=kind)


def _pods(
    placed: Sequence[SourceDocument], held: Sequence[SourceDocument], place: str, reader: _ManifestReader
) -> JobManifest:
    """A job of pods that name the same group, or of one that names none; ``placed`` as given."""
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
    found = scheduler_hints(seen[0], job, seen)
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
    job: JobObject, found: SchedulerHints, group_name: str, reader: _ManifestReader, beside: list[Document]
) -> JobManifest:
    """A PodGroup among the documents decides the job's gang, and its queue where the job names none."""
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


def _as_seen(placed: SourceDocument, kind: JobKind, reader: _ManifestReader) -> dict[str, Any]:
    """The object as the API server would hold it, before any change of status; of a CronJob the job it would
    make.

    The status of a DaemonSet stays: it has the number of its nodes.
    """
    document = placed.document
    own, spec = document["metadata"], document["spec"]
    name = name_of(ObjectPart(own))
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


def _of_cron_job(flaws: Iterable[FieldFlaw]) -> list[FieldFlaw]:
    return [
        replace(each, field=f"spec.jobTemplate.{each.field}")
        if each.field.startswith(("spec", "metadata")) and not each.field.startswith("spec.jobTemplate")
        else each
        for each in flaws
    ]


def _refuse(place: str, flaws: Sequence[FieldFlaw]) -> None:
    """Raises InputError for the first flaw."""
    distinct = list(dict.fromkeys(flaws))
    if not distinct:
        return
    first, more = distinct[0], len(distinct) - 1
    by_name = _BY_NAME.fullmatch(first.field)
    field = f"{by_name[1]}[{by_name[2].strip(_QUOTES)}]" if by_name else first.field
    value = ErrorRemark(_WORDS.get(first.value, f"{first.value} is not allowed"))
    after = f"; and {more} more" if more else ""
    raise InputError(f"{place}: {field}", value, f"{first.allowed}{after}")
