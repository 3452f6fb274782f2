"""Jobs of every kind, from an object of the API to a ``JobObject``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpucost.cluster.jobs import JobObject
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import job_kind
from gpucost.kube.parse.job_shapes import JOB_KINDS, Shape, shape
from gpucost.kube.parse.job_status import counts, ended_ms, is_suspended, started_ms
from gpucost.kube.parse.reading import Part, meta

_DEADLINE = "activeDeadlineSeconds"
KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"


def job_parser(api_version: str, kind: str) -> Callable[[Mapping[str, Any]], JobObject]:
    """The parser of one collection: items of typed lists do not say of what kind they are.

    The version of ``api_version`` is only handed on: the fields that are read are the same in all that were
    released. Raises InputError for a kind that is no job; the parser raises Unreadable for an object without
    a uid or a name.
    """
    found_kind = job_kind(api_version, kind)
    if found_kind not in JOB_KINDS:
        raise InputError("kind", f"{api_version} {kind}", "a kind of job that gpucost knows")

    def parse(found: Mapping[str, Any]) -> JobObject:
        root = Part(found)
        identity = meta(root)
        wanted, has = shape(found_kind, root), counts(found_kind, root)
        return JobObject(
            meta=identity,
            api_version=api_version,
            kind=kind,
            job_kind=found_kind,
            pod_sets=wanted.pod_sets,
            gang_size=wanted.gang_size,
            gangs=wanted.gangs,
            is_suspended=is_suspended(found_kind, root),
            active=has.active,
            ready=has.ready,
            succeeded=has.succeeded,
            failed=has.failed,
            started_ms=started_ms(root),
            ended_ms=ended_ms(found_kind, root),
            priority_class=_priority_class(wanted) or identity.labels.get(KUEUE_PRIORITY, ""),
            deadline_s=_deadline(root.part("spec")),
            flaws=tuple(dict.fromkeys(root.flaws)),
        )

    return parse


def _priority_class(wanted: Shape) -> str:
    """The job's own, else the first that a template has."""
    of_templates = (each.template.priority_class for each in wanted.pod_sets)
    return wanted.priority_class or next(filter(None, of_templates), "")


def _deadline(spec: Part) -> int | None:
    """The shorter of the job's own and its run policy's."""
    places = (spec, spec.part("runPolicy")) if "runPolicy" in spec else (spec,)
    found = [each.count(_DEADLINE) for each in places if _DEADLINE in each]
    return min((each for each in found if each > 0), default=None)
