"""The screen of ``gpucost explain``: the answer first, then the walk through the layers, then what to do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gpucost.advisor.answers import Advice, Explanation, Layer, LayerAnswer, Verdict
from gpucost.cli.advise_parts import (
    Look,
    evidence_lines,
    headline,
    labelled,
    paragraph,
    since,
    suggestion_lines,
)
from gpucost.cli.advise_screen import facts, remarks

MARKS = {Verdict.PASSED: "✓", Verdict.HOLDS: "✗", Verdict.NOT_REACHED: "·", Verdict.UNKNOWN: "?"}
_LAYER = max(len(layer.value) for layer in Layer)
_VERDICT = 2 + max(len(verdict.value) for verdict in Verdict)
_NOW = ("ahead", "evicts", "starts", "wait", "price")
"""What the advisor's answer adds to the walk; the rest the layers have said."""


def explanation_lines(found: Explanation, at_ms: int, look: Look) -> Iterator[Text]:
    """All of it. ``at_ms`` is when the cluster was looked at."""
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
    yield from remarks(rules, advice.drift if advice is not None else (), assumptions, width)
    yield from suggestion_lines(found.actions, look)


def _step_lines(step: LayerAnswer, at_ms: int, width: int) -> Iterator[Text]:
    """A row of the table; what it says and rests on below it, since both may be long."""
    verdict = f"{MARKS[step.verdict]} {step.verdict.value}"
    dated = "" if step.since_ms is None else since(step.since_ms, at_ms)
    row = f"  {step.layer.value:<{_LAYER}}  {verdict:<{_VERDICT}}"
    style = "" if step.verdict is Verdict.NOT_REACHED else "bold" if step.verdict is Verdict.HOLDS else ""
    if len(row) + 2 + len(dated) <= width:
        yield Text(f"{row}  {dated}".rstrip(), style)
    else:
        yield Text(row.rstrip(), style)
        yield from paragraph(dated, width, 6)
    if step.says:
        yield from paragraph(step.says, width, 6)
    yield from evidence_lines(step.evidence, width, 6)


def _outlook(advice: Advice, width: int) -> Iterator[Text]:
    """What the advisor says of it as things stand."""
    yield from labelled("outlook", [advice.says], width)
    known = facts(advice)
    for label in _NOW:
        if known[label]:
            yield from labelled(label, known[label], width)
