"""Helpers for text: counts with their nouns, shell patterns, as settings name namespaces, queues, teams and
users, and a bound on the size of a JSON text before it is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def counted(count: int, noun: str) -> str:
    """``1 window``, ``2,000 windows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some shell patterns; without patterns every name does."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def most_values_of(content: bytes) -> int:
    """An upper bound on the lists, objects and plain values in a JSON text: each is the first, or follows a
    comma or an opening bracket. Those inside strings count too. Takes a millisecond for 4 MiB, where parsing
    as much of ``[],[],`` would block the interpreter for a tenth of a second.
    """
    return 1 + content.count(b",") + content.count(b"[") + content.count(b"{")
