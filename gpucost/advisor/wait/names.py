"""Job names without what only tells runs of one job apart."""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 63
"""Characters of a pattern; what comes after them is cut off."""

_SEPARATORS = re.compile(r"([-_.])")
_DIGITS = re.compile(r"\d+")
# What Kubernetes makes suffixes of: no vowels and no 0, 1, 3, so that no words come out
# (kubernetes/apimachinery: pkg/util/rand/rand.go).
_SUFFIX = re.compile(r"(?=.*[a-z])[bcdfghjklmnpqrstvwxz2456789]{5,10}\Z")
_SHORTEST_HASH = 5


@lru_cache(maxsize=16_384)
def name_pattern(name: str) -> str:
    """``train-llm-20261103-x7k2p`` becomes ``train-llm-*``; empty stays empty.

    Parts (between ``-``, ``_`` and ``.``) that are numbers, hashes (five characters or more with a digit
    among them, after the first part) or Kubernetes' suffixes become ``*``, several in a row one. Digits in
    the other parts become ``*`` too (``v3`` is ``v*``). At most 63 characters.
    """
    parts = _SEPARATORS.split(name[: 4 * LONGEST].lower())
    made = [_part(part, is_first=at == 0) for at, part in enumerate(parts[::2])]
    text = made[0]
    for separator, part, before in zip(parts[1::2], made[1:], made, strict=False):
        if part != "*" or before != "*":
            text += separator + part
    return text[:LONGEST]


def _part(part: str, is_first: bool) -> str:
    has_digit = _DIGITS.search(part) is not None
    is_hash = has_digit and len(part) >= _SHORTEST_HASH
    if part.isdecimal() or (not is_first and (is_hash or _SUFFIX.match(part))):
        return "*"
    return _DIGITS.sub("*", part) if has_digit else part
