"""Suggestions, best first."""

from __future__ import annotations

from collections.abc import Callable

from gpucost.advisor.answers import Advice, Suggestion
from gpucost.advisor.knowledge import Knowledge
from gpucost.cluster.manifest import JobManifest


def suggestions(
    manifest: JobManifest,
    advice: Advice,
    known: Knowledge,
    ask: Callable[[JobManifest, Knowledge], Advice],
) -> tuple[Suggestion, ...]:
    """Changes that help, each of them tried."""
    return ()
