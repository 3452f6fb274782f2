"""Suggestions of another queue or priority class.

Another queue: the one that was probably meant, or one of the same namespace that has what the job needs. A
higher priority class: where the job waits for workloads that it would then preempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from gpucost.advisor.kueue.job_workloads import priority_of
from gpucost.advisor.kueue.snapshot import SnapshotQueue
from gpucost.advisor.model.answers import SchedulingDecision
from gpucost.advisor.suggest.candidates import SuggestionCandidate, SuggestionCase
from gpucost.advisor.suggest.patches import DocumentPath, ManifestEdit, get, metadata, pod_specs, put
from gpucost.advisor.volcano.queues import OPEN
from gpucost.cluster.objects.jobs import Document
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.views.ownership import KUEUE_QUEUES, VOLCANO_QUEUES
from gpucost.cluster.views.queue_order import pod_priority
from gpucost.cluster.views.volcano_queues import ROOT_QUEUE
from gpucost.domain.text import counted

QUEUE_LABEL = KUEUE_QUEUES[1]
MISSING = "QueueMissing"
_NEAR = 0.6
_POLICY: DocumentPath = ("spec", "runPolicy", "schedulingPolicy")


def misspelt(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """For a queue that does not exist: the one with the nearest name."""
    if case.advice.reason != MISSING:
        return
    of_kueue = case.is_asked_of_kueue
    asked = case.manifest.queue if of_kueue else case.manifest.volcano_queue
    names = _local_queues(case) if of_kueue else _volcano_queues(case)
    near = sorted(names, key=lambda name: (-_likeness(asked, name), name))
    for name in near:
        is_near = _likeness(asked, name) >= _NEAR
        says = f"queue {name}, which exists, instead of {asked}" if is_near else f"use queue {name}"
        yield _renamed(case, name, says, "" if is_near else f"there is no queue with a name like {asked}")


def other(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Another queue that has room, or whose quota makes the wait shorter."""
    if case.advice.reason == MISSING or case.advice.decision is SchedulingDecision.NOW:
        return
    if case.is_asked_of_kueue:
        names, own = _local_queues(case), case.manifest.queue
    elif case.is_at_volcano:
        names, own = _volcano_queues(case), case.advice.queue
    else:
        return
    for name in names:
        if name != own:
            yield _renamed(case, name, f"submit it to queue {name} instead of {own}", "")


def _renamed(case: SuggestionCase, name: str, says: str, caveat: str) -> SuggestionCandidate | None:
    edit = kueue_queue if case.is_asked_of_kueue else volcano_queue
    return case.of_manifest(says, edit(case.manifest.document, name), caveat, same_work=True)


def kueue_queue(document: Document, name: str) -> ManifestEdit:
    """Puts the label where a queue is named already, else where Kueue looks for it first."""

    def edit(changed: dict[str, Any]) -> None:
        for path in _named_at(document):
            put(changed, path, name)

    return edit


def _named_at(document: Document) -> list[DocumentPath]:
    objects = metadata(document)
    templates = [(*spec[:-1], "metadata") for spec in pod_specs(document) if len(spec) > 1]
    for field in ("labels", "annotations"):
        found = [(*at, field, QUEUE_LABEL) for at in objects if get(document, (*at, field, QUEUE_LABEL))]
        if found:
            return found
    inner = [(*at, "labels", QUEUE_LABEL) for at in templates if get(document, (*at, "labels", QUEUE_LABEL))]
    return inner or [(*at, "labels", QUEUE_LABEL) for at in objects]


def volcano_queue(document: Document, name: str) -> ManifestEdit:
    """A Volcano job and kinds of the training operator have a field for it; others an annotation."""

    def edit(changed: dict[str, Any]) -> None:
        if document.get("apiVersion", "").startswith("batch.volcano.sh/"):
            put(changed, ("spec", "queue"), name)
        elif get(document, (*_POLICY, "queue")):
            put(changed, (*_POLICY, "queue"), name)
        else:
            for at in metadata(document):
                put(changed, _annotated_at(document, at), name)

    return edit


def _annotated_at(document: Document, at: DocumentPath) -> DocumentPath:
    places = [(*at, field, key) for key in VOLCANO_QUEUES for field in ("annotations", "labels")]
    return next((each for each in places if get(document, each)), places[0])


def _local_queues(case: SuggestionCase) -> list[str]:
    """Of its namespace, the one with the most room for its GPUs first."""
    queues, namespace = case.known.kueue.snapshot.queues, case.manifest.namespace
    found = []
    for (where, name), local in case.known.state.local_queue_by_name.items():
        queue = queues.get(local.cluster_queue)
        if where == namespace and queue is not None and queue.is_active and local.stop_policy == "None":
            found.append((-_room(queue, _resources(case)), name))
    return [name for _, name in sorted(found)]


def _room(queue: SnapshotQueue, resources: Sequence[str]) -> int:
    return max(
        (
            queue.node.available(FlavorResource(flavor, resource))
            for resource in resources
            if resource in queue.covered
            for flavor in queue.spec.groups[queue.covered[resource]].flavors
        ),
        default=0,
    )


def _resources(case: SuggestionCase) -> list[str]:
    """The GPU resources that it asks for; all resources where it asks for no GPU."""
    asked = dict.fromkeys(name for each in case.manifest.job.pod_sets for name in each.template.requests)
    catalog = case.known.overview.catalog
    return [name for name in asked if catalog.is_gpu(name)] or list(asked)


def _volcano_queues(case: SuggestionCase) -> list[str]:
    """Open ones without children, those with the fewest gangs first."""
    queues = case.known.world.queues
    parents = {each.parent for each in queues.values()}
    gangs = [each.queue for each in case.known.world.gangs.values()]
    names = [
        name
        for name, each in queues.items()
        if each.state in OPEN and name != ROOT_QUEUE and name not in parents
    ]
    return sorted(names, key=lambda name: (gangs.count(name), name))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


CLASS_LABEL = "kueue.x-k8s.io/priority-class"
_OF_KUBERNETES = "system-"


def priorities(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Classes above its own, the lowest first."""
    if case.advice.decision is not SchedulingDecision.WAITS or not (case.is_at_kueue or case.is_at_volcano):
        return
    classes = list(case.known.state.priority_classes.values())
    own, of_kueue = _own(case), case.is_at_kueue and any(each.of_kueue for each in classes)
    above = sorted(
        (each.value, each.meta.name)
        for each in classes
        if each.of_kueue == of_kueue and each.value > own and not each.meta.name.startswith(_OF_KUBERNETES)
    )
    for value, name in above:
        edit = (_kueue_class if of_kueue else _class)(case.manifest.document, name)
        found = case.of_manifest(f"priority class {name} ({value:,}, now {own:,})", edit, same_work=True)
        yield None if found is None else replace(found, caveat=_caveat(found))


def _own(case: SuggestionCase) -> int:
    state, job = case.known.state, case.manifest.job
    if case.is_at_kueue:
        return priority_of(case.manifest, state).value
    names = (job.priority_class, *(each.template.priority_class for each in job.pod_sets))
    return pod_priority(state, next(filter(None, names), ""))


def _caveat(found: SuggestionCandidate) -> str:
    count = sum(not each.is_of_scheduler for each in found.answer.victims)
    who = f"{counted(count, 'workload') if count else 'nobody'} {'are' if count > 1 else 'is'}"
    return f"it goes before others; {who} preempted for it: only where it is that important"


def _kueue_class(document: Document, name: str) -> ManifestEdit:
    def edit(changed: dict[str, Any]) -> None:
        for at in metadata(document):
            put(changed, (*at, "labels", CLASS_LABEL), name)

    return edit


def _class(document: Document, name: str) -> ManifestEdit:
    """A Volcano job has a field of its own."""

    def edit(changed: dict[str, Any]) -> None:
        if str(document.get("apiVersion")).startswith("batch.volcano.sh/"):
            put(changed, ("spec", "priorityClassName"), name)
            return
        for spec in pod_specs(document):
            put(changed, (*spec, "priorityClassName"), name)

    return edit
