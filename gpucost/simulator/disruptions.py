"""Disruptions that no scheduler causes, but that months of real life have, applied to its placements.

In the month: a device plugin restarts and hands out a GPU that is in use; the collector is down for 40
minutes, and a pod disappears meanwhile; a Deployment passes from one team to another.

Around one instant (``unsettle``), for readers of the cluster at that instant: a gang that waits for its last
rank, and a preemption. They only take away GPUs that the scheduler gave out, so nothing is over-committed by
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucost.contract.metrics import LINGER_MS
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import GPU, SimulatedNode
from gpucost.simulator.scheduler import PodPlacement, SchedulingWait, SimulatedOutcome
from gpucost.simulator.workloads import SANDBOX, JobSubmission, identity, stable_rng, stable_uid

_OVERLAP_MS = 25 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class HandOver:
    """From ``at_ms`` on, pods of ``job`` carry the label of ``team``."""

    job: str
    at_ms: int
    team: str


def gap_of(month: Window) -> Window:
    """Forty minutes in which the cluster was not observed."""
    start_ms = month.start_ms + 11 * DAY_MS + 3 * HOUR_MS + 10 * MINUTE_MS
    return Window(start_ms, start_ms + 40 * MINUTE_MS)


def hand_over_of(month: Window) -> HandOver:
    """``embedder`` moves from ranking to vision in the middle of an afternoon."""
    return HandOver("embedder", month.start_ms + 14 * DAY_MS + 15 * HOUR_MS + 30 * MINUTE_MS, "vision")


def go_unseen(
    placements: Sequence[PodPlacement], gap: Window
) -> tuple[list[PodPlacement], tuple[PodPlacement, ...]]:
    """What a collector that was down during ``gap`` can know: (placements, those whose end was not observed).

    A pod that ended in the gap is forgotten by its end, unless it still lingered afterwards: all that is
    known is when it was last seen. One that also began in the gap was never seen at all. At least one pod is
    lost: one on its own, so that taking away the rest of its time disturbs no gang.
    """
    there = [pod for pod in placements if pod.start_ms < gap.start_ms and pod.end_ms > gap.end_ms]
    alone = (pod for pod in there if pod.submission.pods == 1)
    victim = min(alone, key=lambda pod: (pod.end_ms, pod.start_ms, pod.submission.job.uid))
    known: list[PodPlacement] = []
    lost: list[PodPlacement] = []
    for pod in placements:
        forgotten = gap.start_ms < pod.end_ms <= gap.end_ms - LINGER_MS or pod is victim
        if not forgotten:
            known.append(pod)
        elif pod.start_ms < gap.start_ms:
            lost.append(replace(pod, end_ms=gap.start_ms, outcome=SimulatedOutcome.EVICTED))
    return [*known, *lost], tuple(lost)


def double_booking(
    placements: Sequence[PodPlacement], nodes: Sequence[SimulatedNode], month: Window, seed: int
) -> PodPlacement:
    """A pod on a GPU that is already held: one more unit than the node has, for 25 minutes.

    It comes to a node that one pod holds as a whole, and is of that pod's team: whichever of the two is
    called over-committed, what the team holds is the same.
    """
    units = {node.name: node.offers[0].units for node in nodes if node.pool == "h100" and not node.spells}
    holder = next(
        pod
        for pod in placements
        if pod.submission.units == units.get(pod.node)
        and pod.start_ms >= month.start_ms + 7 * DAY_MS
        and pod.end_ms - pod.start_ms >= HOUR_MS
    )
    job = replace(
        holder.submission.job,
        uid=stable_uid(seed, "double-booked"),
        name="double-booked",
        kind=JobKind.JOB,
    )
    start_ms = holder.start_ms + 10 * MINUTE_MS
    submission = JobSubmission(job, holder.submission.pool, GPU, 1, 1, start_ms, _OVERLAP_MS)
    return PodPlacement(submission, 0, holder.node, start_ms, start_ms + _OVERLAP_MS, SimulatedOutcome.FAILED)


_LATE_MS = 3 * HOUR_MS
_BEFORE_MS, _AWAY_MS, _REQUEUE_MS = 50 * MINUTE_MS, 12 * MINUTE_MS, 30 * SECOND_MS
_SETTLED_MS = 20 * MINUTE_MS
_LONE = "vj-whole-node"


@dataclass(frozen=True, slots=True)
class ClusterUnrest:
    """The result of ``unsettle``: ``placements`` are all of them, changed; ``waits`` come in addition to the
    existing ones."""

    placements: list[PodPlacement]
    waits: tuple[SchedulingWait, ...] = ()


def unsettle(placements: Sequence[PodPlacement], at_ms: int, seed: int) -> ClusterUnrest:
    """The youngest gang that runs at ``at_ms`` lacks its last rank for three hours more; one job was
    preempted 50 minutes before, for twelve minutes; a job that Kueue does not manage looks for a whole node.
    A disruption that finds no job for it is left out."""
    found = list(placements)
    late = _late_rank(found, at_ms)
    if late is not None:
        pod = found[late]
        found[late] = replace(pod, start_ms=min(at_ms + _LATE_MS, pod.end_ms - MINUTE_MS))
    lone = identity(seed, _LONE, JobKind.VOLCANO_JOB, SANDBOX, stable_rng(seed, _LONE), labelled=False)
    asked_ms = at_ms - _BEFORE_MS
    whole_node = JobSubmission(lone, "h100", GPU, 1, 8, asked_ms, HOUR_MS, retries=0)
    waits = (SchedulingWait(whole_node, asked_ms, at_ms + _LATE_MS),)
    victim = _victim(found, at_ms)
    if victim is None:
        return ClusterUnrest(found, waits)
    pod = found[victim]
    sub, stop_ms = pod.submission, at_ms - _BEFORE_MS
    again = replace(sub, attempt=sub.attempt + 1)
    by = next((other for other in found if _runs(other, stop_ms) and other.node == pod.node), pod)
    found[victim : victim + 1] = [
        replace(pod, end_ms=stop_ms, outcome=SimulatedOutcome.PREEMPTED, by=by.submission.job.full_name),
        replace(pod, submission=again, start_ms=stop_ms + _AWAY_MS),
    ]
    return ClusterUnrest(found, (*waits, SchedulingWait(again, stop_ms + _REQUEUE_MS, stop_ms + _AWAY_MS)))


def _late_rank(placements: Sequence[PodPlacement], at_ms: int) -> int | None:
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


def _victim(placements: Sequence[PodPlacement], at_ms: int) -> int | None:
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


def _is_batch(pod: PodPlacement) -> bool:
    return workload_class(pod.submission.job.kind) is WorkloadClass.BATCH


def _runs(pod: PodPlacement, at_ms: int) -> bool:
    return pod.start_ms <= at_ms < pod.end_ms
