"""All at once or not at all, for pods that need each other and may start in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpucost.advisor.answers import Decision, Layer
from gpucost.advisor.suggest.case import Case, Tried
from gpucost.advisor.suggest.patching import put
from gpucost.advisor.suggest.places import metadata, pod_specs
from gpucost.advisor.suggest.queue_names import kueue_queue
from gpucost.advisor.volcano.gang import MIN_MEMBER, SCHEDULER, gang_of_manifest
from gpucost.cluster.jobs import JobObject
from gpucost.cluster.manifest import Document
from gpucost.cluster.volcano_queues import ROOT_QUEUE
from gpucost.domain.jobs import JobKind
from gpucost.domain.words import counted


def gangs(case: Case) -> Iterator[Tried | None]:
    """A minimum as large as the job, at Volcano; else a queue or a scheduler that knows gangs."""
    job = case.manifest.job
    total = job.pods_wanted
    if total < 2 or case.advice.decision in (Decision.NEVER, Decision.UNKNOWN):
        return
    if case.is_at_volcano:
        yield from _minimum(case, total)
    elif _is_gang(job) and case.advice.layer is not Layer.NONE:
        yield from _scheduled(case, total)


def _minimum(case: Case, total: int) -> Iterator[Tried | None]:
    gang = gang_of_manifest(case.manifest, case.known.state)
    if gang.min_member >= total:
        return
    is_job = case.manifest.job.job_kind is JobKind.VOLCANO_JOB
    field = "minAvailable" if is_job else MIN_MEMBER
    says = f"{field} {total} instead of {gang.min_member}: all its pods start, or none does"
    caveat = f"as it is, {counted(gang.min_member, 'pod')} can start and hold GPUs while the rest waits"
    edit = _of_job(total) if is_job else _annotated(case.manifest.document, total)
    yield case.of_manifest(says, edit, caveat, completes=True)


def _scheduled(case: Case, total: int) -> Iterator[Tried | None]:
    """The default scheduler places pods one by one."""
    state, document = case.known.state, case.manifest.document
    if case.manifest.queue or case.manifest.group_name:
        return
    caveat = f"as it is, some of its {total} pods can start, hold their GPUs and wait for the rest"
    for namespace, name in sorted(state.local_queue_by_name):
        if namespace == case.manifest.namespace:
            says = f"submit it to queue {name}: Kueue lets all its pods in at once"
            yield case.of_manifest(says, kueue_queue(document, name), caveat, completes=True)
    if any(name != ROOT_QUEUE for name in state.volcano_queue_by_name):
        says = f"let Volcano schedule it, with a minimum of {total} pods: all start, or none does"
        yield case.of_manifest(says, _by_volcano(document, total), caveat, completes=True)


def _is_gang(job: JobObject) -> bool:
    """Whether its pods need each other."""
    return job.gang_size is not None and job.gang_size > 1


def _of_job(total: int) -> Callable[[dict[str, Any]], None]:
    def edit(changed: dict[str, Any]) -> None:
        put(changed, ("spec", "minAvailable"), total)

    return edit


def _annotated(document: Document, total: int) -> Callable[[dict[str, Any]], None]:
    def edit(changed: dict[str, Any]) -> None:
        for at in metadata(document):
            put(changed, (*at, "annotations", MIN_MEMBER), str(total))

    return edit


def _by_volcano(document: Document, total: int) -> Callable[[dict[str, Any]], None]:
    def edit(changed: dict[str, Any]) -> None:
        _annotated(document, total)(changed)
        for spec in pod_specs(document):
            put(changed, (*spec, "schedulerName"), SCHEDULER)

    return edit
