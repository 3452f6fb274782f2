"""Words of the domain, as ``docs/glossary.md`` says them; and where ``docs`` are.

Markdown is taken off, since people read the entries in a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

_ROW = re.compile(r"^\| (?!word |bucket |---)(.+) \|$")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_PLAIN = str.maketrans("", "", "`*")
_APART = str.maketrans("_()", "   ")
_BRACKETS = re.compile(r"\s*\([^)]*\)")


@dataclass(frozen=True, slots=True)
class GlossaryEntry:
    """One row: the ``words`` that it explains, as they stand there; what they mean; what others call it,
    empty where nobody has a word for it."""

    title: str
    meaning: str
    elsewhere: str

    @property
    def words(self) -> tuple[str, ...]:
        return _named(self.title)

    @property
    def other_words(self) -> tuple[str, ...]:
        return _named(self.elsewhere)


def docs_folder() -> Path:
    """The docs: beside the pages of the API where gpucost was installed, else those of the checkout."""
    package = Path(__file__).parents[2]
    installed = package / "api" / "pages" / "docs"
    return installed if installed.is_dir() else package.parent / "docs"


def glossary_entries(text: str) -> tuple[GlossaryEntry, ...]:
    """The rows of all tables of the glossary, in order."""
    return tuple(_entries(text))


def _entries(text: str) -> Iterator[GlossaryEntry]:
    for line in text.splitlines():
        found = _ROW.match(line)
        cells = [_plain(cell) for cell in found[1].split(" | ")] if found else []
        if len(cells) == 3:
            yield GlossaryEntry(cells[0], cells[1], "" if cells[2] == "–" else cells[2])


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).translate(_PLAIN).strip()


def _named(text: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in re.split(r"[,;]", _BRACKETS.sub("", text)) if word.strip())


def explained_by(entries: Sequence[GlossaryEntry], term: str) -> tuple[GlossaryEntry, ...]:
    """The entries of that word, whatever its case: our own words first, then those of others; where neither
    has it, those with it among several words. Empty for an unknown one."""
    word = " ".join(term.lower().translate(_APART).split())
    own = [each for each in entries if word in each.words]
    theirs = [each for each in entries if word in each.other_words and each not in own]
    if own or theirs:
        return (*own, *theirs)
    part = re.compile(rf"\b{re.escape(word)}\b") if word else None
    return tuple(each for each in entries if part and part.search(f"{each.title} {each.elsewhere}".lower()))


def near_words(entries: Sequence[GlossaryEntry], term: str) -> tuple[str, ...]:
    """Words of the glossary that are written like ``term``; else all of its own."""
    known = [word for each in entries for word in each.words]
    return tuple(get_close_matches(term.lower(), known, 5, 0.6)) or tuple(sorted(set(known)))
