"""Numbers with their nouns, in sentences for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 window``, ``2,000 windows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
