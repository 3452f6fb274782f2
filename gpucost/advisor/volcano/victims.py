"""Pods that Volcano may evict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.volcano.amounts import Amounts
from gpucost.advisor.volcano.gang import Gang
from gpucost.cluster.pods import Pod, PodPhase, PodTemplate

PREEMPTABLE = "volcano.sh/preemptable"


@dataclass(frozen=True)
class Candidate:
    """A running pod of another gang. ``number`` is its place among the pods of its gang."""

    pod: Pod
    gang: Gang
    asked: Amounts
    number: int


def running(
    gangs: Mapping[str, Gang],
    members: Mapping[str, Sequence[Pod]],
    asked: Callable[[PodTemplate], Amounts],
) -> Iterator[Candidate]:
    """Pods that run and may be evicted at all; ``members`` are by the uid of their gang."""
    for uid, gang in gangs.items():
        ordered = sorted(members.get(uid, ()), key=lambda pod: (pod.meta.name, pod.meta.uid))
        for number, pod in enumerate(ordered):
            if pod.is_bound and pod.phase is PodPhase.RUNNING and pod.meta.deleted_ms is None:
                said = pod.meta.annotations.get(PREEMPTABLE) or pod.meta.labels.get(PREEMPTABLE, "true")
                if said.lower() in ("true", "1", "t"):
                    yield Candidate(pod, gang, asked(pod.template), number)
