"""Jobs that wait though enough GPUs are free, because these are in the wrong places: which jobs, and since
when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from gpucost.contract.queue_metrics import WaitLayer
from gpucost.detectors.allocation_pieces import LEAST_COVERAGE, amount
from gpucost.detectors.findings import FindingSubject, SubjectKind, WastePattern, WithheldFinding
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.queue_quotas import QuotaLeft
from gpucost.detectors.inputs.schedulability import PodNodeFit, PodNodeFitter, RequestSchedulability
from gpucost.detectors.inputs.unmet_demand import (
    DemandStanding,
    DemandStretch,
    UnmetDemand,
    hopeless,
)
from gpucost.detectors.rules.fragmentation.node_packing import NodeOccupancy

NAME = WastePattern.FRAGMENTATION
MOST_NAMED = 10
"""How many nodes or moves a text names one by one."""


class DemandWait(NamedTuple):
    """A row of the demand frame, with the wait it is part of."""

    cluster: str
    namespace: str
    job: str
    job_uid: str
    queue: str
    cluster_queue: str
    team: str
    resource: str
    products: str
    pods: int
    min_pods: int
    units: int
    layer: str
    since_ms: int
    until_ms: int

    @property
    def subject(self) -> FindingSubject:
        return FindingSubject(SubjectKind.JOB, self.cluster, self.job, self.namespace, self.job_uid)

    @property
    def least(self) -> int:
        """How many of its pods must find places at once."""
        return max(self.min_pods, 1)


def demand_waits(demand: pd.DataFrame) -> list[DemandWait]:
    """By position in the demand."""
    return [
        DemandWait(*row) for row in zip(*(demand[name].tolist() for name in DemandWait._fields), strict=True)
    ]


@dataclass(frozen=True)
class BlockedJob:
    """``demand_waits`` was blocked in ``stretches``, with short breaks between them. ``fit`` is the result of
    the present state for its pods, if it goes on and the state has them. ``rooms`` are the nodes at its end.
    """

    asked: DemandWait
    stretches: tuple[DemandStretch, ...]
    fit: PodNodeFit | None
    rooms: NodeOccupancy

    @property
    def start_ms(self) -> int:
        return self.stretches[0].start_ms

    @property
    def end_ms(self) -> int:
        return max(each.end_ms for each in self.stretches)


@dataclass
class BlockedSearch:
    """The jobs that were blocked, and the withheld findings."""

    facts: DetectorFacts
    rows: Sequence[DemandWait]
    blocked: list[BlockedJob] = field(default_factory=list)
    withheld: list[WithheldFinding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fitter = PodNodeFitter(self.facts.overview) if self.facts.overview is not None else None
        self._now: dict[str, NodeOccupancy] = {}
        self._quota = QuotaLeft(self.facts.history)
        self._said: set[WithheldFinding] = set()

    def run(self, found: UnmetDemand, times: Callable[[DemandWait], tuple[int, int]]) -> None:
        """``times``: how long a job must be blocked, and how long breaks may be, in ms."""
        self._without_hope(found.demand, times)
        jobs: dict[tuple[str, str, str], list[DemandStretch]] = defaultdict(list)
        for stretch in found.stretches:
            row = self.rows[stretch.row]
            if stretch.met is not DemandStanding.SHORT:
                jobs[row.namespace, row.job_uid, row.resource].append(stretch)
        for stretches in jobs.values():
            stretches.sort(key=lambda each: (each.start_ms, each.row))
            self._job(stretches, *times(self.rows[stretches[0].row]))

    def _without_hope(self, demand: pd.DataFrame, times: Callable[[DemandWait], tuple[int, int]]) -> None:
        """Records why ``unmet`` leaves requests out that no node could ever serve."""
        possible = RequestSchedulability(self.facts.history)
        for n in sorted(hopeless(self.facts.history, demand)):
            row = self.rows[n]
            if row.until_ms - row.since_ms >= times(row)[0]:
                self._withhold(row, possible.why_not(row))

    def _withhold(self, row: DemandWait, because: str, *, lacks_data: bool = False) -> None:
        one = WithheldFinding(NAME, row.subject, because, lacks_data)
        if one not in self._said:
            self._said.add(one)
            self.withheld.append(one)

    def _job(self, stretches: Sequence[DemandStretch], after_ms: int, pause_ms: int) -> None:
        row = self.rows[stretches[0].row]
        kept = [each for each in stretches if self._is_blocked(each)]
        reported = False
        for run in _runs(kept, pause_ms):
            end_ms = max(each.end_ms for each in run)
            if end_ms - run[0].start_ms < after_ms:
                continue
            reported = True
            last = self.rows[run[-1].row]
            one = BlockedJob(last, run, self._fit(run[-1]), self._rooms(last.resource, end_ms))
            because, lacks_data = self._guard(one)
            if because:
                self._withhold(one.asked, because, lacks_data=lacks_data)
            else:
                self.blocked.append(one)
        seen = self.facts.history.coverage(row.since_ms, row.until_ms)
        if kept and not reported and row.until_ms - row.since_ms >= after_ms and seen < LEAST_COVERAGE:
            self._withhold(row, "parts of its wait were not observed", lacks_data=True)

    def _is_blocked(self, stretch: DemandStretch) -> bool:
        """Whether only the places of free GPUs were in the way."""
        row = self.rows[stretch.row]
        if stretch.met is DemandStanding.SHAPE:
            if row.layer != WaitLayer.QUOTA.value or self._has_quota(row, stretch):
                return True
            self._withhold(row, "its queue has no quota left for it, wherever GPUs are free")
            return False
        if stretch.end_ms < self.facts.now_ms or row.layer == WaitLayer.QUOTA.value:
            return False
        # There are GPUs for it: does the present state show that something else is missing on their nodes?
        fit = self._fit(stretch)
        return fit is not None and not fit.fits and fit.free >= fit.needed and bool(fit.lacking)

    def _has_quota(self, row: DemandWait, stretch: DemandStretch) -> bool:
        """Whether the queue had quota left for it when the stretch ended: then only places are missing."""
        return self._quota.has(row.cluster_queue, row.resource, stretch.end_ms, row.least * row.units)

    def _fit(self, stretch: DemandStretch) -> PodNodeFit | None:
        if self._fitter is None or stretch.end_ms < self.facts.now_ms:
            return None
        row = self.rows[stretch.row]
        return self._fitter.of(row.job_uid, row.resource, row.min_pods)

    def _rooms(self, resource: str, end_ms: int) -> NodeOccupancy:
        """The nodes just before an instant; most findings need those of now."""
        if end_ms < self.facts.now_ms:
            return NodeOccupancy.at(self.facts.history, resource, end_ms - 1)
        if resource not in self._now:
            self._now[resource] = NodeOccupancy.at(self.facts.history, resource, self.facts.now_ms - 1)
        return self._now[resource]

    def _guard(self, one: BlockedJob) -> tuple[str, bool]:
        """(why it is not a finding, whether for lack of data); empty where it is one."""
        if self.facts.history.coverage(one.start_ms, one.end_ms) < LEAST_COVERAGE:
            return "parts of the stretch were not observed", True
        fit, row = one.fit, one.asked
        if fit is not None and fit.fits:
            return (
                "its pods fit now, by the state of the cluster: the scheduler has not placed them yet",
                False,
            )
        if fit is not None and fit.free < fit.needed:
            free = amount(fit.free, "GPU")
            return (
                f"only {free} of the {fit.needed} it needs are free where labels and taints admit it",
                False,
            )
        rooms, units = one.rooms, max(row.units, 1)
        closed = rooms.eligible(row.products, closed=True)
        names = [rooms.names[n] for n in closed.tolist() if not rooms.is_open[n] and rooms.free[n] >= units]
        if names and int((rooms.free[closed] // units).sum()) >= row.least:
            return f"it would fit if {', '.join(names[:MOST_NAMED])} took pods: cordoned or not ready", False
        return "", False


def _runs(stretches: Sequence[DemandStretch], pause_ms: int) -> list[tuple[DemandStretch, ...]]:
    """Stretches in order, merged where the break between two is shorter than ``pause_ms``."""
    runs: list[list[DemandStretch]] = []
    reached = 0
    for stretch in stretches:
        gap = stretch.start_ms - reached
        if runs and (gap <= 0 or gap < pause_ms):
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
        reached = max(reached, stretch.end_ms)
    return [tuple(each) for each in runs]
