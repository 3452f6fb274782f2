"""A higher priority class, where those it would then preempt are what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpucost.advisor.answers import Decision
from gpucost.advisor.kueue.submitted import priority_of
from gpucost.advisor.suggest.case import Case, Tried
from gpucost.advisor.suggest.patching import put
from gpucost.advisor.suggest.places import metadata, pod_specs
from gpucost.cluster.manifest import Document
from gpucost.cluster.priorities import pod_priority
from gpucost.domain.words import counted

CLASS_LABEL = "kueue.x-k8s.io/priority-class"
_OF_KUBERNETES = "system-"


def priorities(case: Case) -> Iterator[Tried | None]:
    """Classes above its own, the lowest first."""
    if case.advice.decision is not Decision.WAITS or not (case.is_at_kueue or case.is_at_volcano):
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


def _own(case: Case) -> int:
    state, job = case.known.state, case.manifest.job
    if case.is_at_kueue:
        return priority_of(case.manifest, state).value
    names = (job.priority_class, *(each.template.priority_class for each in job.pod_sets))
    return pod_priority(state, next(filter(None, names), ""))


def _caveat(found: Tried) -> str:
    count = sum(not each.is_of_scheduler for each in found.answer.victims)
    who = f"{counted(count, 'workload') if count else 'nobody'} {'are' if count > 1 else 'is'}"
    return f"it goes before others; {who} preempted for it: only where it is that important"


def _kueue_class(document: Document, name: str) -> Callable[[dict[str, Any]], None]:
    def edit(changed: dict[str, Any]) -> None:
        for at in metadata(document):
            put(changed, (*at, "labels", CLASS_LABEL), name)

    return edit


def _class(document: Document, name: str) -> Callable[[dict[str, Any]], None]:
    """A Volcano job has a field of its own."""

    def edit(changed: dict[str, Any]) -> None:
        if str(document.get("apiVersion")).startswith("batch.volcano.sh/"):
            put(changed, ("spec", "priorityClassName"), name)
            return
        for spec in pod_specs(document):
            put(changed, (*spec, "priorityClassName"), name)

    return edit
