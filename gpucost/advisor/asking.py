"""Who asks: a job that is not submitted yet, or one that is there and waits; the same to all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpucost.advisor.answers import Subject
from gpucost.advisor.volcano.gang import Gang
from gpucost.cluster.kueue import Workload
from gpucost.cluster.pods import Pod, PodSet


@dataclass(frozen=True, slots=True)
class Asking:
    """``pod_sets`` are all pods it wants, whoever schedules them. ``workloads`` stand for it at Kueue, none
    where Kueue has nothing to do with it; ``gang`` is it at Volcano, None likewise. ``gpus`` are GPU units of
    all pods. ``deadline_s`` is the longest it may run. ``unknown`` is what it wants and nothing says, in
    words: with any of it an answer would be a guess. ``remarks`` are told, and hold nothing; ``assumptions``
    are what was taken for granted where the manifest became a workload.
    """

    subject: Subject
    team: str
    pod_sets: tuple[PodSet, ...]
    workloads: tuple[Workload, ...] = ()
    gang: Gang | None = None
    gpus: int = 0
    deadline_s: int | None = None
    waiting: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Its pods that are there and have no node, by the pod set that they are."""
    pod_group: str = ""
    """The PodGroup of its pods, where that is not Volcano's; empty for none."""
    own_pods: frozenset[str] = frozenset()
    """Uids of its pods that are bound already: what they hold is its own."""
    unknown: tuple[str, ...] = ()
    refused: tuple[str, str] | None = None
    """Why it can never be made as it is, before any layer: a reason in one word, and what it says."""
    remarks: Sequence[str] = ()
    assumptions: tuple[str, ...] = ()
