"""Shell patterns, as settings name namespaces, queues, teams and users."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some shell patterns; without patterns every name does."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
