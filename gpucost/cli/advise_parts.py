"""What the screens of ``gpucost advise`` and ``gpucost explain`` are made of: labelled lines, suggestions,
evidence, and amounts, times and money in words.

Names, messages and patches come from elsewhere: they are shown, and never interpreted. Words are folded at
the width of the screen; what is meant to be copied is neither folded nor cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.text import Text

from gpucost.advisor.answers import (
    Change,
    ChangeKind,
    Evidence,
    Price,
    Subject,
    Suggestion,
    Wait,
)
from gpucost.advisor.headline import about
from gpucost.cli.columns import fitted, folded
from gpucost.domain.money import NANO, plain
from gpucost.domain.time import iso
from gpucost.reports.advice_words import after, amount, per_hour, range_of
from gpucost.reports.display import counted, gib, trimmed, visible

MOST_ROWS = 6
"""Of a list that one line or one section holds; how many more there are is said."""
_LABEL = 10
_INDENT = "  "
_TEXT = len(_INDENT) + _LABEL + 2
_LEAST_TEXT = 24
_LONGEST_SENTENCE = 4_000
_LEAST_NAME = 16
_BYTES = ("memory", "ephemeral-storage")
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Look:
    """``width`` is that of the screen, ``currency`` that of the price book, empty for none. ``again`` is the
    command that asked, ready to be run again with ``--apply``; empty where that cannot be, for which
    ``was_piped`` is the reason where it read standard input. ``number`` is that of the first suggestion.
    ``is_new`` is whether the API server names the object, which kubectl creates and cannot apply."""

    width: int
    currency: str = ""
    again: str = ""
    number: int = 1
    was_piped: bool = False
    is_new: bool = False


# Lines


def headline(subject: Subject, says: str, width: int) -> Iterator[Text]:
    """Whom the answer is about, and the answer. The name gives way to it."""
    room = max(_LEAST_NAME, width // 3)
    who = fitted(visible(subject.name, 253), room)
    about = ", ".join(fitted(visible(each, 253), room) for each in (subject.kind, subject.namespace) if each)
    yield from _wrapped(f"{who} ({about}): {sentence(says)}", width, "", "    ", "bold")


def labelled(label: str, texts: Iterable[str], width: int, style: str = "") -> Iterator[Text]:
    """Each text under the label, which stands once; below it where the screen is too narrow."""
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
    """What is meant to be copied: no line of it is folded or cut."""
    for line in text.splitlines():
        yield Text(" " * indent + visible(line, len(line)), "green")


def _wrapped(text: str, width: int, first: str, later: str, style: str) -> Iterator[Text]:
    """Words that are longer than a line are broken: half of a path of a field would be another field."""
    room = max(8, width - max(cell_len(first), cell_len(later)))
    words = [piece for word in text.split() for piece in chop_cells(word, room)]
    yield from (Text(line, style) for line in folded(" ".join(words), width, first, later))


# Sections


def evidence_lines(evidence: Sequence[Evidence], width: int, indent: int) -> Iterator[Text]:
    """Object, field and value, and what that means."""
    for each in evidence:
        value = f" = {each.value}" if each.value else ""
        meaning = f": {each.meaning}" if each.meaning else ""
        yield from paragraph(f"{each.object} {each.field}{value}{meaning}", width, indent, "dim", "· ")


def suggestion_lines(suggestions: Sequence[Suggestion], look: Look) -> Iterator[Text]:
    """Numbered, the best first: what to change, what that gives, and how to do it."""
    if suggestions:
        yield Text("  what to do", "bold")
    for number, each in enumerate(suggestions, look.number):
        mark = f"{number}. "
        indent = 4 + len(mark)
        yield from paragraph(f"{each.says}: {after(each, look.currency)}", look.width, 4, "", mark)
        if each.caveat:
            yield from paragraph(f"mind: {each.caveat}", look.width, indent)
        yield from _change_lines(each.change, number, look, indent)


def _change_lines(change: Change, number: int, look: Look, indent: int) -> Iterator[Text]:
    """For whom, the command, and the patch."""
    is_own = change.kind is ChangeKind.MANIFEST
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


def wait_texts(wait: Wait) -> Iterator[str]:
    """The range, what it rests on, and how often such ranges held."""
    basis = f"; {wait.basis}" if wait.basis else ""
    yield f"{range_of(wait)}, from {counted(wait.samples, 'simulation')} of the queue{basis}"
    if wait.held is not None and wait.given:
        yield f"{wait.held:,} of {counted(wait.given, 'range')} given so far held"
    else:
        yield "how often such ranges held is not known here"


def price_texts(price: Price) -> Iterator[str]:
    """Per hour and where that is from, without versions of rates; for the run, if its length is known."""
    names = dict.fromkeys(rate.partition("@")[0] for rate in price.rates)
    rates = f"; prices from {some([*names])}" if names else ""
    yield f"{per_hour(price.per_hour, price.currency)}{rates}"
    if price.run_ms is not None and price.for_run is not None:
        whole = amount(price.for_run, price.currency)
        yield f"{whole} for a run of {about(price.run_ms)}, the median of like jobs"
    else:
        yield "for the whole run unknown: no history says how long like jobs run"


def quantity(resource: str, amount: int) -> str:
    """An amount in Kueue's units as people say it: ``16 GPUs``, ``4 mig-1g.10gb``, ``2.5 cpu``."""
    if resource == _GPU:
        return counted(amount, "GPU")
    if resource == "cpu":
        return f"{trimmed(plain(amount * NANO // 1000))} cpu"
    if resource in _BYTES:
        return f"{gib(amount >> 20)} of {resource}"
    return f"{amount:,} {visible(resource.rpartition('/')[2])}"


def since(since_ms: int, at_ms: int) -> str:
    """``since 2026-10-21T00:00:00Z (3 d)``; without the length where clocks disagree."""
    length = f" ({about(at_ms - since_ms)})" if at_ms >= since_ms else ""
    return f"since {iso(since_ms)}{length}"


def some(texts: Sequence[str], where_else: str = "--format json") -> str:
    """At most ``MOST_ROWS`` of them, and how many more there are."""
    shown = texts if len(texts) <= MOST_ROWS + 1 else texts[:MOST_ROWS]
    rest = len(texts) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more ({where_else} has them)" if rest else "")


def sentence(text: str) -> str:
    """On one line, made safe to look at."""
    return visible(" ".join(text.split()), _LONGEST_SENTENCE)
