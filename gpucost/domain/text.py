"""Helpers for text: counts with their nouns, shell patterns of names, the name that was meant, and a bound on
the size of a JSON text before it is parsed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def counted(count: int, noun: str) -> str:
    """``1 window``, ``2,000 windows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some shell patterns, as settings name namespaces, queues, teams and
    users; without patterns every name does."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """``research (did you mean this?)``: the one of ``known`` that is most like ``name``, for a message that
    refuses it; empty when none is similar."""
    close = difflib.get_close_matches(name, sorted(known), 1, cutoff)
    return f"{close[0]} (did you mean this?)" if close else ""


def named_first(name: str, known: Iterable[str]) -> str:
    """As ``did_you_mean``, to be followed by all of ``known``."""
    meant = did_you_mean(name, known)
    return f"{meant}, or another of: " if meant else ""


def most_values_of(content: bytes) -> int:
    """An upper bound on the lists, objects and plain values in a JSON text: each is the first, or follows a
    comma or an opening bracket. Those inside strings count too. Takes a millisecond for 4 MiB, where parsing
    as much of ``[],[],`` would block the interpreter for a tenth of a second.
    """
    return 1 + content.count(b",") + content.count(b"[") + content.count(b"{")
