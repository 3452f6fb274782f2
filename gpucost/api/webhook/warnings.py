"""Advice as warnings of an admission: a few short lines.

Kubernetes asks for at most 120 characters each, may cut what is longer than 256, and drops warnings once all
of them have 4,096 bytes (kubernetes, staging/src/k8s.io/api/admission/v1/types.go and
staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go, v1.34). kubectl writes ``Warning: `` before
each.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpucost.advisor.answers import Advice
from gpucost.reports.display import visible

LONGEST = 120
"""Characters of one warning."""
MOST = 5
MOST_BYTES = 2_000
"""Of all warnings of one answer, in UTF-8."""

_NAME = "gpucost: "
_MOST_SHOWN = 1_000


def warnings_of(advice: Advice) -> list[str]:
    """What happens, and then the best suggestion. Names in ``advice`` must be such as the reader may see."""
    lines = [advice.says]
    if advice.suggestions:
        best = advice.suggestions[0]
        lines.append(f"try {best.rule}: {best.says}" + (f" ({best.caveat})" if best.caveat else ""))
    return fitted(lines)


def fitted(lines: Iterable[str]) -> list[str]:
    """The first ``MOST`` of ``lines``, each as it may be shown; those that no longer fit are left out."""
    found: list[str] = []
    left = MOST_BYTES
    for line in lines:
        warning = _NAME + cut(visible(line.strip(), _MOST_SHOWN).removeprefix(_NAME), LONGEST - len(_NAME))
        left -= len(warning.encode())
        if len(found) == MOST or left <= 0:
            break
        found.append(warning)
    return found


def cut(text: str, limit: int) -> str:
    """``text`` of at most ``limit`` characters, cut between words and marked with an ellipsis."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    # A word that is longer than half of the line is cut in itself: a name of 253 characters is one word.
    at = kept.rfind(" ")
    return (kept[:at] if at >= limit // 2 else kept).rstrip(" ,;:(") + "…"
