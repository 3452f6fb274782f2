"""Redaction of answers: a reader does not see the names of what other teams run.

What belongs to others stays in the answer as a fact about their queue: how many workloads would have to
leave, from which queue, what they hold. Their names do not.

Whether a name stands in an answer must not reveal whether an object of that name exists. So what the reader
wrote is repeated as it is, and where a rule names others, only what is the reader's is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property

from gpucost.advisor.model.answers import (
    Advice,
    AdviceEvidence,
    AdviceSubject,
    Explanation,
    JobSuggestion,
    LayerAnswer,
    PodSetAnswer,
    PreemptionVictim,
    SuggestedChangeKind,
    WaitEstimate,
)

OTHERS = "another team's workload"
"""Stands in place of the name of another team's workload."""

# Names of Kubernetes objects, and several with slashes between them (namespace/name, kind/name).
_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._/]*[A-Za-z0-9])?")
# A digit beside a letter, or a mark inside: no plain word of a sentence.
_LIKE_A_NAME = re.compile(r"[-._]|[A-Za-z][0-9]|[0-9][A-Za-z]")
_BETWEEN = frozenset(("and", "more"))
# Words of our own sentences, which reveal nothing: a job called ``queue`` must not make sentences unreadable.
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


# Where a rule names others (kueue.answer, volcano.answer, headline): only the reader's own is named there.
_MENTIONS = re.compile(
    r"(?<=stands behind )(?!another workload).+?(?=, which )"
    r"|(?<=before it ).+?(?= get nodes)"
    r"|(?<=jobs before it take the room: )[^;]+"
    r"|(?<=not placed, as it is not evaluated: )[^;]+"
    r"|(?<=of lower priority \()[^)]+"
)
# Evidence and changes of these kinds are about the cluster, or about what the job names; of all other kinds
# tenants name the objects as they like.
_OF_CLUSTER = frozenset(
    (
        *("admissioncheck", "clusterqueue", "cohort", "configmap", "finding", "hypernode", "localqueue"),
        *("node", "priorityclass", "queue", "resourceflavor", "topology", "workloadpriorityclass"),
    )
)
_STATUS = "status"


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """The reader of an answer: ``shows`` says whether a workload may be named to them, ``hides`` whether a
    word is the name of something that may not be, ``owns`` whether it is the name of something of theirs, and
    ``knows`` whether they know the word anyway: it is theirs, or the cluster's."""

    shows: Callable[[AdviceSubject], bool]
    hides: Callable[[str], bool]
    owns: Callable[[str], bool]
    knows: Callable[[str], bool]


def redact_advice(advice: Advice, reader: AnswerReader, written: object = ()) -> Advice:
    """``advice`` without the names that ``reader`` may not see. ``written`` is what the reader wrote, such as
    the manifest that was asked about, in any form that holds its words.

    Evidence about an object of others is left out, and so is a change to one; in sentences its name becomes
    ``OTHERS``. What the subject itself is called, its pod sets, queue, nodes and flavors are kept.
    """
    return _RedactionWords(reader, _own(advice), written).advice(advice)


def redact_explanation(explanation: Explanation, reader: AnswerReader, written: object = ()) -> Explanation:
    """The same for the walk through the layers. In messages of schedulers about its objects, words that look
    like names are kept only where the reader knows them: they may name objects that have gone."""
    advice = explanation.advice
    own = _names_of(explanation.subject) | (frozenset() if advice is None else _own(advice))
    facts = [fact for step in explanation.steps for fact in step.evidence]
    words = _RedactionWords(
        reader, own, written, _quotes((*facts, *(advice.evidence if advice is not None else ())))
    )
    return replace(
        explanation,
        says=words.text(explanation.says),
        steps=tuple(map(words.step, explanation.steps)),
        actions=words.suggestions(explanation.actions),
        advice=None if advice is None else words.advice(advice),
        assumptions=words.texts(explanation.assumptions),
        drift=words.texts(explanation.drift),
    )


def redact_message(text: str, reader: AnswerReader, own: Iterable[str]) -> str:
    """A scheduler's message about an object of the reader's, called ``own``: words that look like names are
    kept only where the reader knows them."""
    return _RedactionWords(reader, frozenset(own), (), (text,) if text else ()).text(text)


def words_in(written: object) -> frozenset[str]:
    """All words of the texts in a document or a dataclass, keys too."""
    return frozenset(
        part for text in _texts_in(written) for found in _WORD.finditer(text) for part in found[0].split("/")
    )


def _texts_in(written: object) -> Iterator[str]:
    """Without recursion: a document may be nested deeply."""
    left: list[object] = [written]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            left += (*value.keys(), *value.values())
        elif is_dataclass(value):
            left += (getattr(value, field.name) for field in fields(value))
        elif isinstance(value, Iterable):
            left += value


def _quotes(facts: Iterable[AdviceEvidence]) -> tuple[str, ...]:
    """Messages of schedulers and controllers that the evidence quotes, the longest first."""
    said = {
        text
        for fact in facts
        if fact.field.startswith(_STATUS)
        for text in (fact.value, fact.meaning)
        if " " in text
    }
    return tuple(sorted(said, key=lambda text: (-len(text), text)))


def _own(advice: Advice) -> frozenset[str]:
    names = {advice.queue, advice.scheduler, *_names_of(advice.subject)}
    for pod_set in advice.pod_sets:
        names.update(_names_in(pod_set))
    return frozenset(names)


def _names_of(subject: AdviceSubject) -> frozenset[str]:
    return frozenset((subject.kind, subject.namespace, subject.name))


def _names_in(pod_set: PodSetAnswer) -> Iterable[str]:
    return (pod_set.name, *pod_set.flavors, *pod_set.flavors.values(), *pod_set.nodes)


@dataclass(frozen=True)
class _RedactionWords:
    """The parts of an answer, as ``reader`` may see them. ``own`` are words that are always kept, and so are
    those of ``written``; ``quotes`` are texts of the answer that others wrote."""

    reader: AnswerReader
    own: frozenset[str]
    written: object = ()
    quotes: tuple[str, ...] = ()

    @cached_property
    def said(self) -> frozenset[str]:
        """Looked for only where a word would be hidden: manifests may be large."""
        return words_in(self.written)

    def advice(self, advice: Advice) -> Advice:
        return replace(
            advice,
            says=self.text(advice.says),
            why=self.texts(advice.why),
            victims=tuple(map(self.victim, advice.victims)),
            wait=self.wait(advice.wait),
            suggestions=self.suggestions(advice.suggestions),
            evidence=self.evidence(advice.evidence),
            assumptions=self.texts(advice.assumptions),
            drift=self.texts(advice.drift),
        )

    def text(self, text: str) -> str:
        for quote in self.quotes:
            if quote in text:
                text = text.replace(quote, self._each(quote, self._is_unknown))
        parts: list[str] = []
        at = 0
        for found in _MENTIONS.finditer(text):
            parts += (self._each(text[at : found.start()], self._is_hidden), self._mentioned(found[0]))
            at = found.end()
        return "".join((*parts, self._each(text[at:], self._is_hidden)))

    def texts(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.text, texts))

    def victim(self, victim: PreemptionVictim) -> PreemptionVictim:
        if self.reader.shows(victim.subject):
            return victim
        return replace(victim, subject=AdviceSubject(victim.subject.kind, "", OTHERS), priority=None)

    def wait(self, wait: WaitEstimate | None) -> WaitEstimate | None:
        return None if wait is None else replace(wait, basis=self.text(wait.basis))

    def suggestions(self, suggestions: Iterable[JobSuggestion]) -> tuple[JobSuggestion, ...]:
        return tuple(
            replace(each, says=self.text(each.says), caveat=self.text(each.caveat), wait=self.wait(each.wait))
            for each in suggestions
            if not self._is_about_others(each)
        )

    def evidence(self, evidence: Iterable[AdviceEvidence]) -> tuple[AdviceEvidence, ...]:
        return tuple(
            replace(each, value=self.text(each.value), meaning=self.text(each.meaning))
            for each in evidence
            if not self._is_of_others(each.object)
        )

    def step(self, step: LayerAnswer) -> LayerAnswer:
        return replace(step, says=self.text(step.says), evidence=self.evidence(step.evidence))

    def _is_about_others(self, suggestion: JobSuggestion) -> bool:
        """A patch is carried out as it is written, so it is shown unchanged or left out. One for the manifest
        is made of what its author wrote."""
        change = suggestion.change
        if change.kind is SuggestedChangeKind.MANIFEST:
            return False
        return self._is_of_others(change.target) or any(map(self._tells, (change.patch, change.command)))

    def _is_of_others(self, target: str) -> bool:
        """Whether ``kind/name`` is a tenant's, and not the reader's."""
        kind, _, name = target.partition("/")
        if kind.lower() in _OF_CLUSTER:
            return self._tells(target)
        return not all(part in self.own or self.reader.owns(part) for part in name.split("/"))

    def _tells(self, text: str) -> bool:
        return any(self._is_hidden(found[0]) for found in _WORD.finditer(text))

    def _mentioned(self, text: str) -> str:
        return self._each(text, lambda word: not self._may_be_mentioned(word))

    def _each(self, text: str, is_hidden: Callable[[str], bool]) -> str:
        return _WORD.sub(lambda found: OTHERS if is_hidden(found[0]) else found[0], text)

    def _is_hidden(self, word: str) -> bool:
        return any(
            part not in self.own
            and part not in _OUR_WORDS
            and self.reader.hides(part)
            and part not in self.said
            for part in word.split("/")
        )

    def _is_unknown(self, word: str) -> bool:
        return any(
            _LIKE_A_NAME.search(part) is not None
            and part not in self.own
            and not self.reader.knows(part)
            and part not in self.said
            for part in word.split("/")
        )

    def _may_be_mentioned(self, word: str) -> bool:
        """One of theirs, not one of another namespace that is called the same."""
        parts = word.split("/")
        if len(parts) == 2:
            return self.reader.shows(AdviceSubject("", *parts))
        return all(map(self._is_plainly_own, parts))

    def _is_plainly_own(self, part: str) -> bool:
        return part in _BETWEEN or part.isdecimal() or self.reader.owns(part)
