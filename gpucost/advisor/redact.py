"""What an answer says to whom: a reader is not told the names of what others run.

What belongs to others stays in the answer as a fact about their queue: how many workloads would have to
leave, from which queue, what they hold. Who they are does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gpucost.advisor.answers import (
    Advice,
    ChangeKind,
    Evidence,
    Explanation,
    LayerAnswer,
    PodSetAnswer,
    Subject,
    Suggestion,
    Victim,
    Wait,
)

OTHERS = "another team's workload"
"""Stands where the name of somebody else's work stood."""

# Names of Kubernetes objects, and several with slashes between them (namespace/name, kind/name).
_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._/]*[A-Za-z0-9])?")
# Words of our own sentences: whoever calls a job ``queue`` shall not make them unreadable. They tell nothing.
_OUR_WORDS = frozenset(
    (
        *("a", "ahead", "all", "an", "and", "another", "any", "are", "as", "asks", "at"),
        *("be", "before", "borrows", "by", "can", "cohort", "cpu", "date", "fits", "for", "free"),
        *("gang", "gpu", "gpus", "has", "have", "held", "holds", "if", "in", "is", "it"),
        *("job", "jobs", "largest", "later", "least", "left", "limit", "memory", "more", "most", "name"),
        *("needs", "never", "no", "node", "nodes", "none", "not", "now", "of", "on", "one"),
        *(
            "or",
            "others",
            "own",
            "placement",
            "pod",
            "pods",
            "preempt",
            "priority",
            "queue",
            "queues",
            "quota",
        ),
        *("runs", "so", "such", "team", "than", "that", "the", "their", "them", "then", "there"),
        *("they", "this", "to", "topology", "under", "until", "wait", "waits", "was", "when", "which"),
        *("who", "with", "workload", "workloads", "would", "written"),
    )
)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads: ``shows`` says whether a workload may be named to them, ``hides`` whether a word is the name
    of something that may not be."""

    shows: Callable[[Subject], bool]
    hides: Callable[[str], bool]


def redact_advice(advice: Advice, reader: Reader) -> Advice:
    """``advice`` without the names of what ``reader`` may not know of.

    Evidence about such an object is left out, and so is a change to one; in sentences its name becomes
    ``OTHERS``. What the subject itself is called, its pod sets, queue, nodes and flavors are kept.
    """
    words = _Words(reader, _own(advice))
    return replace(
        advice,
        says=words.text(advice.says),
        why=words.texts(advice.why),
        victims=tuple(map(words.victim, advice.victims)),
        wait=words.wait(advice.wait),
        suggestions=words.suggestions(advice.suggestions),
        evidence=words.evidence(advice.evidence),
        assumptions=words.texts(advice.assumptions),
        drift=words.texts(advice.drift),
    )


def redact_explanation(explanation: Explanation, reader: Reader) -> Explanation:
    """The same for the walk through the layers."""
    advice = explanation.advice
    own = _names_of(explanation.subject) if advice is None else _own(advice)
    words = _Words(reader, own | _names_of(explanation.subject))
    return replace(
        explanation,
        says=words.text(explanation.says),
        steps=tuple(map(words.step, explanation.steps)),
        actions=words.suggestions(explanation.actions),
        advice=None if advice is None else redact_advice(advice, reader),
        assumptions=words.texts(explanation.assumptions),
    )


def _own(advice: Advice) -> frozenset[str]:
    names = {advice.queue, advice.scheduler, *_names_of(advice.subject)}
    for pod_set in advice.pod_sets:
        names.update(_names_in(pod_set))
    return frozenset(names)


def _names_of(subject: Subject) -> frozenset[str]:
    return frozenset((subject.kind, subject.namespace, subject.name))


def _names_in(pod_set: PodSetAnswer) -> Iterable[str]:
    return (pod_set.name, *pod_set.flavors, *pod_set.flavors.values(), *pod_set.nodes)


@dataclass(frozen=True, slots=True)
class _Words:
    """The parts of an answer, as ``reader`` may see them. ``own`` are words that are always kept."""

    reader: Reader
    own: frozenset[str]

    def text(self, text: str) -> str:
        return _WORD.sub(lambda found: OTHERS if self._is_hidden(found[0]) else found[0], text)

    def texts(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.text, texts))

    def victim(self, victim: Victim) -> Victim:
        if self.reader.shows(victim.subject):
            return victim
        return replace(victim, subject=Subject(victim.subject.kind, "", OTHERS), priority=None)

    def wait(self, wait: Wait | None) -> Wait | None:
        return None if wait is None else replace(wait, basis=self.text(wait.basis))

    def suggestions(self, suggestions: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
        return tuple(
            replace(each, says=self.text(each.says), caveat=self.text(each.caveat), wait=self.wait(each.wait))
            for each in suggestions
            if not self._is_about_others(each)
        )

    def evidence(self, evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
        return tuple(
            replace(each, value=self.text(each.value), meaning=self.text(each.meaning))
            for each in evidence
            if not self._tells(each.object)
        )

    def step(self, step: LayerAnswer) -> LayerAnswer:
        return replace(step, says=self.text(step.says), evidence=self.evidence(step.evidence))

    def _is_about_others(self, suggestion: Suggestion) -> bool:
        """A patch is carried out as it is written, so it is told as it is or not at all. One for the manifest
        is made of what its author wrote."""
        change = suggestion.change
        if change.kind is ChangeKind.MANIFEST:
            return False
        return any(map(self._tells, (change.target, change.patch, change.command)))

    def _tells(self, text: str) -> bool:
        return any(self._is_hidden(found[0]) for found in _WORD.finditer(text))

    def _is_hidden(self, word: str) -> bool:
        return any(
            part not in self.own and part not in _OUR_WORDS and self.reader.hides(part)
            for part in word.split("/")
        )
