"""An answer of the API, short enough for the context of a model, and what was left out of it.

Numbers are those of the API. Integers that stand beside a decimal text of the same (nano-units, GPU
milliseconds, millijoules) are left out, characters that cannot be seen are written as escapes, so that no
order to a model hides in a name, and long lists are cut. ``more`` says of each list how much of it is
there, so that nobody takes a part for the whole; sums in an answer are of all rows, as the API gives them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucost.reports.base import display
from gpucost.reports.base.document import companion

MOST_CHARACTERS = 16_000
"""Most characters of an answer, as JSON: about 5,000 tokens. Lists are cut further until it fits."""
_MOST_WORDS = 30
"""Most entries of a list of plain values."""
_INNER = (3, 1, 0)


@dataclass(frozen=True, slots=True)
class AnswerRemainder:
    """A part that an answer leaves out: ``shown`` of ``all`` entries of ``what``, and the arguments to ask
    with for the rest (None: ask for less at once)."""

    what: str
    shown: int
    all: int | None
    ask: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        return {"what": self.what, "shown": self.shown, "all": self.all, "ask": self.ask}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool answers: a document of the API, and what was left out of it."""

    answer: Mapping[str, Any]
    more: tuple[AnswerRemainder, ...] = ()

    def document(self) -> dict[str, Any]:
        return {"answer": dict(self.answer), "more": [each.document() for each in self.more]}


def concise(
    found: Mapping[str, Any],
    *,
    top: int,
    most_top: int,
    whole: Collection[str] = (),
    more: tuple[AnswerRemainder, ...] = (),
) -> ToolAnswer:
    """``found`` with at most ``top`` rows in each list, fewer in lists inside of rows where it would be too
    long else. Lists of the names in ``whole`` are pages of the API's own: none of their rows is dropped.
    ``more`` is what was left out before."""
    plain = _plain(found)
    for rows, inner in _limits(top):
        cut = _Cut(rows, inner, frozenset(whole))
        shown = cut.of(plain)
        if len(json.dumps(shown, ensure_ascii=False)) <= MOST_CHARACTERS:
            break
    left = [
        AnswerRemainder(
            path,
            kept,
            there,
            {"top": min(there, most_top)} if rows < min(there, most_top) and "[]" not in path else None,
        )
        for path, (kept, there) in cut.counts.items()
        if kept < there
    ]
    return ToolAnswer(shown, (*more, *left))


def parted(found: Mapping[str, Any], parts: Collection[str], all_parts: Collection[str]) -> ToolAnswer:
    """``found`` without those of ``all_parts`` that are not in ``parts``; they are named."""
    left = tuple(
        AnswerRemainder(name, 0, len(each) if isinstance(each, list) else None, {"parts": [name]})
        for name, each in found.items()
        if name in all_parts and name not in parts and each not in (None, [], {})
    )
    kept = {name: each for name, each in found.items() if name in parts or name not in all_parts}
    return ToolAnswer(kept, left)


def _limits(top: int) -> Iterator[tuple[int, int]]:
    """Rows of a list, and of a list inside of rows: fewer and fewer."""
    yield top, top
    yield from ((top, inner) for inner in _INNER if inner < top)
    while top > 1:
        top //= 2
        yield top, 0


@dataclass
class _Cut:
    """Cuts lists, and counts by their places how many entries were kept, of how many."""

    rows: int
    inner: int
    whole: frozenset[str]
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, value: Any, path: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self.of(each, f"{path}.{name}" if path else name) for name, each in value.items()}
        if not isinstance(value, list):
            return value
        if not any(isinstance(each, dict | list) for each in value):
            most = _MOST_WORDS
        elif path in self.whole:
            most = len(value)
        else:
            most = self.inner if "[]" in path else self.rows
        kept, there = self.counts.get(path, (0, 0))
        self.counts[path] = kept + min(most, len(value)), there + len(value)
        return [self.of(each, f"{path}[]") for each in value[:most]]


def _plain(value: Any) -> Any:
    """Without the integers that have a decimal text beside them; text as it is seen, line by line."""
    if isinstance(value, str):
        return "\n".join(display.visible(line, len(line)) for line in value.split("\n"))
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {_plain(name): _plain(each) for name, each in value.items() if not _is_told(name, value)}


def _is_told(name: str, beside: Mapping[str, Any]) -> bool:
    text = companion(name)
    return text is not None and text.name in beside
