"""What no scheduler would do, but months of real life have: applied to what the scheduler returned.

A device plugin restarts and hands out a board that is in use; the collector is down for 40 minutes, and a
pod disappears meanwhile; a Deployment passes from one team to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucost.contract.metrics import LINGER_MS
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.simulator.inventory import GPU, Node
from gpucost.simulator.scheduler import Outcome, Placement
from gpucost.simulator.workloads import Submission, stable_uid

_OVERLAP_MS = 25 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class HandOver:
    """From ``at_ms`` on, pods of ``job`` carry the label of ``team``."""

    job: str
    at_ms: int
    team: str


def gap_of(month: Window) -> Window:
    """Forty minutes in which nobody watched the cluster."""
    start_ms = month.start_ms + 11 * DAY_MS + 3 * HOUR_MS + 10 * MINUTE_MS
    return Window(start_ms, start_ms + 40 * MINUTE_MS)


def hand_over_of(month: Window) -> HandOver:
    """``embedder`` moves from ranking to vision in the middle of an afternoon."""
    return HandOver("embedder", month.start_ms + 14 * DAY_MS + 15 * HOUR_MS + 30 * MINUTE_MS, "vision")


def go_unseen(placements: Sequence[Placement], gap: Window) -> tuple[list[Placement], tuple[Placement, ...]]:
    """What a collector that was down during ``gap`` can know: (placements, those whose end nobody saw).

    A pod that ended in the gap is forgotten by its end, unless it still lingered afterwards: all that is
    known is when it was last seen. One that also began in the gap was never seen at all. At least one pod
    is lost: one on its own, so that taking away the rest of its time disturbs no gang.
    """
    there = [pod for pod in placements if pod.start_ms < gap.start_ms and pod.end_ms > gap.end_ms]
    alone = (pod for pod in there if pod.submission.pods == 1)
    victim = min(alone, key=lambda pod: (pod.end_ms, pod.start_ms, pod.submission.job.uid))
    known: list[Placement] = []
    lost: list[Placement] = []
    for pod in placements:
        forgotten = gap.start_ms < pod.end_ms <= gap.end_ms - LINGER_MS or pod is victim
        if not forgotten:
            known.append(pod)
        elif pod.start_ms < gap.start_ms:
            lost.append(replace(pod, end_ms=gap.start_ms, outcome=Outcome.EVICTED))
    return [*known, *lost], tuple(lost)


def double_booking(
    placements: Sequence[Placement], nodes: Sequence[Node], month: Window, seed: int
) -> Placement:
    """A pod on a board that is already held: one more unit than the node has, for 25 minutes.

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
    submission = Submission(job, holder.submission.pool, GPU, 1, 1, start_ms, _OVERLAP_MS)
    return Placement(submission, 0, holder.node, start_ms, start_ms + _OVERLAP_MS, Outcome.FAILED)
