"""Another queue: the one that was meant, or one of the same namespace that has what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from gpucost.advisor.answers import Decision
from gpucost.advisor.kueue.snapshot import Queue
from gpucost.advisor.suggest.case import Case, Tried
from gpucost.advisor.suggest.patching import Path, get, put
from gpucost.advisor.suggest.places import metadata, pod_specs
from gpucost.advisor.volcano.queues import OPEN
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.manifest import Document
from gpucost.cluster.ownership import KUEUE_QUEUES, VOLCANO_QUEUES
from gpucost.cluster.volcano_queues import ROOT_QUEUE

QUEUE_LABEL = KUEUE_QUEUES[1]
MISSING = "QueueMissing"
_NEAR = 0.6
_POLICY: Path = ("spec", "runPolicy", "schedulingPolicy")


def misspelt(case: Case) -> Iterator[Tried | None]:
    """The queue that it names does not exist: the one with the nearest name."""
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


def other(case: Case) -> Iterator[Tried | None]:
    """One that has room, or whose quota lets it wait less."""
    if case.advice.reason == MISSING or case.advice.decision is Decision.NOW:
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


def _renamed(case: Case, name: str, says: str, caveat: str) -> Tried | None:
    edit = kueue_queue if case.is_asked_of_kueue else volcano_queue
    return case.of_manifest(says, edit(case.manifest.document, name), caveat, same_work=True)


def kueue_queue(document: Document, name: str) -> Callable[[dict[str, Any]], None]:
    """Puts the label where a queue is named already, else where Kueue looks for it first."""

    def edit(changed: dict[str, Any]) -> None:
        for path in _named_at(document):
            put(changed, path, name)

    return edit


def _named_at(document: Document) -> list[Path]:
    objects = metadata(document)
    templates = [(*spec[:-1], "metadata") for spec in pod_specs(document) if len(spec) > 1]
    for field in ("labels", "annotations"):
        found = [(*at, field, QUEUE_LABEL) for at in objects if get(document, (*at, field, QUEUE_LABEL))]
        if found:
            return found
    inner = [(*at, "labels", QUEUE_LABEL) for at in templates if get(document, (*at, "labels", QUEUE_LABEL))]
    return inner or [(*at, "labels", QUEUE_LABEL) for at in objects]


def volcano_queue(document: Document, name: str) -> Callable[[dict[str, Any]], None]:
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


def _annotated_at(document: Document, at: Path) -> Path:
    places = [(*at, field, key) for key in VOLCANO_QUEUES for field in ("annotations", "labels")]
    return next((each for each in places if get(document, each)), places[0])


def _local_queues(case: Case) -> list[str]:
    """Of its namespace, the one with the most room for its GPUs first."""
    queues, namespace = case.known.kueue.snapshot.queues, case.manifest.namespace
    found = []
    for (where, name), local in case.known.state.local_queue_by_name.items():
        queue = queues.get(local.cluster_queue)
        if where == namespace and queue is not None and queue.is_active and local.stop_policy == "None":
            found.append((-_room(queue, _resources(case)), name))
    return [name for _, name in sorted(found)]


def _room(queue: Queue, resources: Sequence[str]) -> int:
    return max(
        (
            queue.node.available(FlavorResource(flavor, resource))
            for resource in resources
            if resource in queue.covered
            for flavor in queue.spec.groups[queue.covered[resource]].flavors
        ),
        default=0,
    )


def _resources(case: Case) -> list[str]:
    """GPUs that it asks for; whatever it asks for where it asks for none."""
    asked = dict.fromkeys(name for each in case.manifest.job.pod_sets for name in each.template.requests)
    catalog = case.known.overview.catalog
    return [name for name in asked if catalog.is_gpu(name)] or list(asked)


def _volcano_queues(case: Case) -> list[str]:
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
