"""The screens of ``gpucost advise`` and ``gpucost explain``.

Advice: the answer in the first line, the reasons below it, then what to change. Explanation: the answer
first, then the layers one by one, then what to do. Both are made of labelled lines, suggestions, evidence,
and amounts, times and money in words.

Names, messages and patches come from elsewhere: they are shown, and never interpreted. Words are folded at
the width of the screen; text that is meant to be copied is neither folded nor cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.text import Text

from gpucost.advisor.model.answers import (
    Advice,
    AdviceEvidence,
    AdviceSubject,
    Explanation,
    JobSuggestion,
    LayerAnswer,
    LayerVerdict,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
    about,
)
from gpucost.cli.terminal.columns import fitted, folded
from gpucost.domain.time import iso
from gpucost.reports.base.display import (
    visible,
)
from gpucost.reports.render.advice_text import (
    advice_facts,
    after,
    per_hour,
    reasons,
    search_note,
)

_LABEL = 10
_INDENT = "  "
_TEXT = len(_INDENT) + _LABEL + 2
_LEAST_TEXT = 24
_LONGEST_SENTENCE = 4_000
_LEAST_NAME = 16


@dataclass(frozen=True, slots=True)
class AdviceLayout:
    """``width`` is that of the screen, ``currency`` that of the price book, empty for none. ``again`` is the
    command line, ready to be run again with ``--apply``; empty where that cannot be, and ``was_piped`` is the
    reason where it read standard input. ``number`` is that of the first suggestion. ``is_new`` is whether the
    API server names the object, which kubectl creates and cannot apply.
    """

    width: int
    currency: str = ""
    again: str = ""
    number: int = 1
    was_piped: bool = False
    is_new: bool = False


# Lines


def headline(subject: AdviceSubject, says: str, width: int) -> Iterator[Text]:
    """The subject, and the answer. The name is shortened in favour of the answer."""
    room = max(_LEAST_NAME, width // 3)
    who = fitted(visible(subject.name, 253), room)
    about = ", ".join(fitted(visible(each, 253), room) for each in (subject.kind, subject.namespace) if each)
    yield from _wrapped(f"{who} ({about}): {sentence(says)}", width, "", "    ", "bold")


def labelled(label: str, texts: Iterable[str], width: int, style: str = "") -> Iterator[Text]:
    """Each text under the label, which is written once; below it where the screen is too narrow."""
    is_narrow = width < _TEXT + _LEAST_TEXT
    first, later = f"{_INDENT}{label:<{_LABEL}}  ", " " * (len(_INDENT) * 2 if is_narrow else _TEXT)
    if is_narrow:
        yield Text(first.rstrip(), style)
        first = later
    for text in texts:
        yield from _wrapped(sentence(text), width, first, later, style)
        first = later


def paragraph(text: str, width: int, indent: int, style: str = "", mark: str = "") -> Iterator[Text]:
    """Folded; lines after the first stand below the text, not below the mark."""
    first = " " * indent + mark
    yield from _wrapped(sentence(text), width, first, " " * cell_len(first), style)


def block(text: str, indent: int) -> Iterator[Text]:
    """Text that is meant to be copied: no line of it is folded or cut."""
    for line in text.splitlines():
        yield Text(" " * indent + visible(line, len(line)), "green")


def _wrapped(text: str, width: int, first: str, later: str, style: str) -> Iterator[Text]:
    """Words that are longer than a line are broken: half of a path of a field would be another field."""
    room = max(8, width - max(cell_len(first), cell_len(later)))
    words = [piece for word in text.split() for piece in chop_cells(word, room)]
    yield from (Text(line, style) for line in folded(" ".join(words), width, first, later))


# Sections


def evidence_lines(evidence: Sequence[AdviceEvidence], width: int, indent: int) -> Iterator[Text]:
    """Object, field and value, and what that means."""
    for each in evidence:
        value = f" = {each.value}" if each.value else ""
        meaning = f": {each.meaning}" if each.meaning else ""
        yield from paragraph(f"{each.object} {each.field}{value}{meaning}", width, indent, "dim", "· ")


def suggestion_lines(suggestions: Sequence[JobSuggestion], look: AdviceLayout) -> Iterator[Text]:
    """Numbered, the best first: what to change, what that brings, and how to do it."""
    if suggestions:
        yield Text("  what to do", "bold")
    for number, each in enumerate(suggestions, look.number):
        mark = f"{number}. "
        indent = 4 + len(mark)
        yield from paragraph(f"{each.says}: {after(each, look.currency)}", look.width, 4, "", mark)
        if each.caveat:
            yield from paragraph(f"mind: {each.caveat}", look.width, indent)
        yield from _change_lines(each.change, number, look, indent)


def _change_lines(change: SuggestedChange, number: int, look: AdviceLayout, indent: int) -> Iterator[Text]:
    """The author of the change, the command, and the patch."""
    is_own = change.kind is SuggestedChangeKind.MANIFEST
    verb = "create" if look.is_new else "apply"
    command = (
        f"{look.again} --apply {number} | kubectl {verb} -f -" if is_own and look.again else change.command
    )
    who = "" if is_own else "for an administrator, "
    if change.patch:
        yield from paragraph(f"{who}in {change.target}:", look.width, indent, "dim")
        yield from block(change.patch, indent + 2)
    elif who:
        yield from paragraph(f"{who}to {change.target}:", look.width, indent, "dim")
    yield from block(command, indent)
    if is_own and look.was_piped:
        hint = f"save what was piped in to a file to use --apply {number}"
        yield from paragraph(hint, look.width, indent, "dim")


# Words


def since(since_ms: int, at_ms: int) -> str:
    """``since 2026-10-21T00:00:00Z (3 d)``; without the length where clocks disagree."""
    length = f" ({about(at_ms - since_ms)})" if at_ms >= since_ms else ""
    return f"since {iso(since_ms)}{length}"


def sentence(text: str) -> str:
    """On one line, safe for a terminal."""
    return visible(" ".join(text.split()), _LONGEST_SENTENCE)


def advice_lines(advice: Advice, look: AdviceLayout) -> Iterator[Text]:
    """All of one answer. Unknown values are marked as unknown, or left out."""
    width = look.width
    hourly = "" if advice.price is None else f" · {per_hour(advice.price.per_hour, advice.price.currency)}"
    yield from headline(advice.subject, f"{advice.says}{hourly}", width)
    if advice.layer is not SchedulingLayer.NONE:
        reason = f" ({advice.reason})" if advice.reason else ""
        yield from labelled("held by", [f"{advice.layer.value}{reason}"], width)
    told = reasons(advice)
    for label, texts in told.items():
        yield from labelled(label, texts, width)
    for label, texts in advice_facts(advice).items():
        if texts and label not in told:
            yield from labelled(label, texts, width)
    yield from suggestion_lines(advice.suggestions, look)
    if note := search_note(advice.assumptions):
        yield from paragraph(note, width, 4 if advice.suggestions else 2, "dim")
    yield from evidence_section(advice, width)
    yield from remarks(advice.rules or advice.scheduler, advice.drift, advice.assumptions, width)


def evidence_section(advice: Advice, width: int) -> Iterator[Text]:
    if advice.evidence:
        yield Text("  evidence", "dim")
        yield from evidence_lines(advice.evidence, width, 4)


def remarks(rules: str, drift: Sequence[str], assumptions: Sequence[str], width: int) -> Iterator[Text]:
    """The rules in use, how the cluster differs from them, and what was assumed."""
    for label, texts in (("rules", [rules]), ("differs", drift), ("assumed", assumptions)):
        yield from labelled(label, filter(None, texts), width, "dim") if any(texts) else ()


MARKS = {
    LayerVerdict.PASSED: "✓",
    LayerVerdict.HOLDS: "✗",
    LayerVerdict.NOT_REACHED: "·",
    LayerVerdict.UNKNOWN: "?",
}
_LAYER = max(len(layer.value) for layer in SchedulingLayer)
_VERDICT = 2 + max(len(verdict.value) for verdict in LayerVerdict)
_NOW = ("ahead", "evicts", "starts", "wait", "price")
"""What the advisor's answer adds to the layers."""


def explanation_lines(found: Explanation, at_ms: int, look: AdviceLayout) -> Iterator[Text]:
    """The whole explanation. ``at_ms`` is the time of the state."""
    width = look.width
    held = f", {since(found.since_ms, at_ms)}" if found.since_ms is not None else ""
    yield from headline(found.subject, f"{found.says}{held}", width)
    for step in found.steps:
        yield from _step_lines(step, at_ms, width)
    advice = found.advice
    if advice is not None:
        yield from _outlook(advice, width)
    rules = found.rules or (advice.rules if advice is not None else "")
    told = advice.assumptions if advice is not None else ()
    assumptions = [*dict.fromkeys((*told, *found.assumptions))]
    drift = found.drift or (advice.drift if advice is not None else ())
    yield from suggestion_lines(found.actions, look)
    yield from remarks(rules, drift, assumptions, width)


def _step_lines(step: LayerAnswer, at_ms: int, width: int) -> Iterator[Text]:
    """A row of the table; its message and evidence below it, since both may be long."""
    verdict = f"{MARKS[step.verdict]} {step.verdict.value}"
    dated = "" if step.since_ms is None else since(step.since_ms, at_ms)
    row = f"  {step.layer.value:<{_LAYER}}  {verdict:<{_VERDICT}}"
    style = (
        ""
        if step.verdict is LayerVerdict.NOT_REACHED
        else "bold"
        if step.verdict is LayerVerdict.HOLDS
        else ""
    )
    if len(row) + 2 + len(dated) <= width:
        yield Text(f"{row}  {dated}".rstrip(), style)
    else:
        yield Text(row.rstrip(), style)
        yield from paragraph(dated, width, 6)
    if step.says:
        yield from paragraph(step.says, width, 6)
    yield from evidence_lines(step.evidence, width, 6)


def _outlook(advice: Advice, width: int) -> Iterator[Text]:
    """The advisor's outlook for the present state."""
    yield from labelled("outlook", [advice.says], width)
    known = advice_facts(advice)
    for label in _NOW:
        if known[label]:
            yield from labelled(label, known[label], width)
