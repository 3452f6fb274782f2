"""Command lines for people to run, safe whatever a name in them says."""

from __future__ import annotations

import re
import shlex

_PLAIN_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253


def kubectl(*arguments: str) -> str:
    """A command line with every argument quoted where it must be."""
    return shlex.join(("kubectl", *arguments))


def is_plain(name: str) -> bool:
    """Whether Kubernetes could have given an object that name: a label or metric may say anything."""
    return len(name) <= _LONGEST_NAME and _PLAIN_NAME.fullmatch(name) is not None
