"""Advice as warnings of an admission: a few short lines.

Kubernetes asks for at most 120 characters each, may cut what is longer than 256, and drops warnings once all
of them have 4,096 bytes (kubernetes, staging/src/k8s.io/api/admission/v1/types.go and
staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go, v1.34). kubectl writes ``Warning: `` before
each.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpucost.advisor.answers import Advice, ChangeKind, Decision, Suggestion, Wait
from gpucost.advisor.headline import REST, STARTS_WITH, about
from gpucost.advisor.kueue.answer import BLOCKED
from gpucost.reports.display import counted, money, visible

LONGEST = 120
"""Characters of one warning."""
MOST = 5
MOST_BYTES = 2_000
"""Of all warnings of one answer, in UTF-8."""

_NAME = "gpucost: "
_MOST_SHOWN = 1_000


_PARTIAL = "size: "
# Of what was asked again about a suggestion.
_THEN = {
    Decision.NOW: "would run now with one change",
    Decision.LATER: "would start with new nodes after one change",
    Decision.WAITS: "would wait less with one change",
}


def warnings_of(advice: Advice) -> list[str]:
    """What happens, then the best suggestion and what to mind. Names in ``advice`` must be such as the reader
    may see."""
    lines = [_says(advice)]
    lines += [f"gets {each.removeprefix(_PARTIAL)}" for each in advice.why if each.startswith(_PARTIAL)]
    own = (each for each in advice.suggestions if each.change.kind is ChangeKind.MANIFEST)
    best = next(own, next(iter(advice.suggestions), None))
    if best is not None:
        lines.append(_suggested(best))
        lines += [f"mind: {best.caveat}"] if best.caveat else []
    return fitted(lines)


def _says(advice: Advice) -> str:
    """One sentence. The reason is the advisor's own; what it says before that is said shorter here, since
    there are no lines below."""
    reason = advice.says.partition(": ")[2]
    match advice.decision:
        case Decision.NOW:
            return _now(advice)
        case Decision.LATER:
            return f"starts in about {about(advice.later_ms or 0)}, once an autoscaler has added nodes"
        case Decision.WAITS if advice.reason == BLOCKED:
            return (
                f"{_waits(advice.wait)}: the head of queue {advice.queue} does not fit yet, "
                "and nobody passes it (StrictFIFO)"
            )
        case Decision.WAITS:
            partly, rest, _ = advice.says.partition(": ")[0].partition(REST)
            return f"{partly + rest if rest else ''}{_waits(advice.wait)}: {reason}"
        case Decision.NEVER:
            return f"will not run as it is: {reason}"
        case _:
            return f"no forecast: {reason}"


def _now(advice: Advice) -> str:
    nodes = {node for each in advice.pod_sets for node in each.nodes}
    runs = advice.says.partition(" on ")[0] if advice.says.startswith(STARTS_WITH) else "runs now"
    parts = [runs, f" on {counted(len(nodes), 'node')}" if nodes else ""]
    pods = sum(each.is_of_scheduler for each in advice.victims)
    gone = (counted(len(advice.victims) - pods, "workload"), counted(pods, "pod"))
    parts += [f", by preempting {each}" for each in gone if not each.startswith("0 ")]
    if advice.borrowed:
        parts.append(", on borrowed quota, which can be taken back")
    if advice.price is not None:
        parts.append(f"; {advice.price.currency} {money(advice.price.per_hour)}/h")
    return "".join(parts)


def _waits(wait: Wait | None) -> str:
    """Roughly: at admission there is time for a few samples only, of which the middle is told."""
    if wait is None:
        return "waits"
    if wait.p50_ms is None:
        return f"waits longer than {about(wait.horizon_ms)}"
    return f"waits about {about(wait.p50_ms)}"


def _suggested(best: Suggestion) -> str:
    then = _THEN.get(best.decision, "would be better off with one change")
    if best.change.kind is ChangeKind.CLUSTER:
        then += " by an administrator"
    return f"{then}: {best.says}"


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
