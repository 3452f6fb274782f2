"""Trouble around one instant, made of what is there: a gang that waits for its last rank, and a preemption.

Only ever takes GPUs away from what the scheduler gave out, so nothing is over-committed by it. For whoever
looks at the cluster around that instant; the simulated month itself has its own trouble on its own days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS
from gpucost.simulator.inventory import GPU
from gpucost.simulator.scheduler import Outcome, Placement, Wait
from gpucost.simulator.tenants import SANDBOX
from gpucost.simulator.workloads import Submission, identity, stable_rng

_LATE_MS = 3 * HOUR_MS
_BEFORE_MS, _AWAY_MS, _REQUEUE_MS = 50 * MINUTE_MS, 12 * MINUTE_MS, 30 * SECOND_MS
_SETTLED_MS = 20 * MINUTE_MS
_LONE = "vj-whole-node"


@dataclass(frozen=True, slots=True)
class Unrest:
    """``placements`` are all of them, changed; ``waits`` come on top of those there were."""

    placements: list[Placement]
    waits: tuple[Wait, ...] = ()


def unsettle(placements: Sequence[Placement], at_ms: int, seed: int) -> Unrest:
    """The youngest gang that runs at ``at_ms`` lacks its last rank for three hours more; one job was
    preempted 50 minutes before, for twelve minutes; a job that Kueue does not manage looks for a whole node.
    What finds no job is left out."""
    found = list(placements)
    late = _late_rank(found, at_ms)
    if late is not None:
        pod = found[late]
        found[late] = replace(pod, start_ms=min(at_ms + _LATE_MS, pod.end_ms - MINUTE_MS))
    lone = identity(seed, _LONE, JobKind.VOLCANO_JOB, SANDBOX, stable_rng(seed, _LONE), labelled=False)
    asked_ms = at_ms - _BEFORE_MS
    whole_node = Submission(lone, "h100", GPU, 1, 8, asked_ms, HOUR_MS, retries=0)
    waits = (Wait(whole_node, asked_ms, at_ms + _LATE_MS),)
    victim = _victim(found, at_ms)
    if victim is None:
        return Unrest(found, waits)
    pod = found[victim]
    sub, stop_ms = pod.submission, at_ms - _BEFORE_MS
    again = replace(sub, attempt=sub.attempt + 1)
    by = next((other for other in found if _runs(other, stop_ms) and other.node == pod.node), pod)
    found[victim : victim + 1] = [
        replace(pod, end_ms=stop_ms, outcome=Outcome.PREEMPTED, by=by.submission.job.full_name),
        replace(pod, submission=again, start_ms=stop_ms + _AWAY_MS),
    ]
    return Unrest(found, (*waits, Wait(again, stop_ms + _REQUEUE_MS, stop_ms + _AWAY_MS)))


def _late_rank(placements: Sequence[Placement], at_ms: int) -> int | None:
    """Position of the last pod of the gang that began last."""
    found = [
        (pod.start_ms, pod.submission.job.uid, at)
        for at, pod in enumerate(placements)
        if pod.submission.pods > 1
        and pod.index == pod.submission.pods - 1
        and _is_batch(pod)
        and pod.start_ms <= at_ms - _SETTLED_MS
        and pod.end_ms > at_ms + _SETTLED_MS
    ]
    return max(found)[2] if found else None


def _victim(placements: Sequence[Placement], at_ms: int) -> int | None:
    """Position of the pod of a job of one pod that runs for the longest."""
    found = [
        (pod.start_ms, pod.submission.job.uid, at)
        for at, pod in enumerate(placements)
        if pod.submission.pods == 1
        and pod.submission.restarts
        and not pod.submission.measured
        and pod.submission.job.team.queue
        and _is_batch(pod)
        and pod.start_ms <= at_ms - 2 * HOUR_MS
        and pod.end_ms > at_ms + _SETTLED_MS
    ]
    return min(found)[2] if found else None


def _is_batch(pod: Placement) -> bool:
    return workload_class(pod.submission.job.kind) is WorkloadClass.BATCH


def _runs(pod: Placement, at_ms: int) -> bool:
    return pod.start_ms <= at_ms < pod.end_ms
