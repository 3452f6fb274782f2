"""The first line of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.advisor.model.answers import (
    LayerResult,
    PreemptionVictim,
    SchedulingDecision,
    SchedulingLayer,
    WaitEstimate,
)
from gpucost.domain.time import DAY_MS, MINUTE_MS, SECOND_MS

_MOST_NAMED = 2
REST = "; the rest "
"""Between what starts of a job and what becomes of the others."""
STARTS_WITH = "starts with "
"""Before what starts of a gang whose minimum is below its size."""


def headline(found: LayerResult, wait: WaitEstimate | None) -> str:
    """What happens, and the reason: ``waits about 3 h (p90 9 h): asks 16 …``."""
    match found.decision:
        case SchedulingDecision.NOW:
            return _now(found)
        case SchedulingDecision.LATER:
            return f"starts in about {about(found.later_ms or 0)}: {found.says}"
        case SchedulingDecision.WAITS:
            partly = f"{found.partly}{REST}" if found.partly else ""
            waits = f"waits until {found.until}" if found.until else _waits(wait)
            return f"{partly}{waits}: {found.says}"
        case SchedulingDecision.NEVER if found.partly:
            return f"{found.partly}{REST}never runs as it is: {found.says}"
        case SchedulingDecision.NEVER:
            return f"never runs as it is: {found.says}"
        case _:
            return f"unknown: {found.says}"


def about(span_ms: int) -> str:
    """A span that is known roughly: ``20 min``, ``1 h 40 min``, ``5 h 30 min``, ``2 d 4 h``."""
    minutes = max(1, -(-span_ms // MINUTE_MS))
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 10 * 60:
        step = 10 if minutes < 3 * 60 else 30
        hours, rest = divmod((minutes + step // 2) // step * step, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    hours = round(minutes / 60)
    if span_ms < 2 * DAY_MS:
        return f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def _now(found: LayerResult) -> str:
    nodes = sorted({node for each in found.pod_sets for node in each.nodes})
    where = ""
    if nodes:
        more = len(nodes) - _MOST_NAMED
        named = ", ".join(nodes[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        where = f" on {len(nodes):,} node{'s' if len(nodes) > 1 else ''} ({named})"
    runs = found.partly or "runs now"
    pods = [each for each in found.victims if each.is_of_scheduler]
    if pods:
        stop = (
            ""
            if found.later_ms is None
            else f", which ha{_of(pods, 's', 've')} {seconds(found.later_ms)} to stop"
        )
        where += f" by preempting {pods_named(pods)}{stop}"
    count = len(found.victims) - len(pods)
    if count:
        who = f"{count:,} workloads are" if count > 1 else "1 workload is"
        return f"{runs}{where}, once {who} preempted for it"
    borrows = ", on borrowed quota" if found.borrowed else ""
    says = f": {found.says}" if found.says and found.layer is SchedulingLayer.NONE else ""
    return f"{runs}{where}{borrows}{says}"


def pods_named(pods: Sequence[PreemptionVictim]) -> str:
    """``2 pods of lower priority (team-a/x, team-b/y)``."""
    names = [f"{each.subject.namespace}/{each.subject.name}" for each in pods[:_MOST_NAMED]]
    more = f" and {len(pods) - _MOST_NAMED:,} more" if len(pods) > _MOST_NAMED else ""
    return f"{len(pods):,} pod{_of(pods, '', 's')} of lower priority ({', '.join(names)}{more})"


def seconds(span_ms: int) -> str:
    """A span that was configured to the second: ``30 s``; from two minutes on as ``about``."""
    whole = -(-span_ms // SECOND_MS)
    return f"{whole} s" if whole < 2 * MINUTE_MS // SECOND_MS else about(span_ms)


def _of(pods: Sequence[PreemptionVictim], one: str, more: str) -> str:
    return one if len(pods) == 1 else more


def _waits(wait: WaitEstimate | None) -> str:
    if wait is None:
        return "waits"
    if wait.p50_ms is None:
        return f"waits longer than {about(wait.horizon_ms)}"
    return f"waits about {about(wait.p50_ms)} ({bounds(wait)})"


def bounds(wait: WaitEstimate) -> str:
    """``p10 1 h, p90 9 h``; what is past the horizon as longer than that."""
    early = "" if wait.p10_ms is None else f"p10 {about(wait.p10_ms)}, "
    late = f"longer than {about(wait.horizon_ms)}" if wait.p90_ms is None else about(wait.p90_ms)
    return f"{early}p90 {late}"
