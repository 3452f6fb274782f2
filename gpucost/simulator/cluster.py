"""The simulated cluster as frames, and the truth about it by plain arithmetic."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd

from gpucost.attribution.frames import Frames, conform
from gpucost.contract.frames import ALLOCATIONS, CAPACITY, NODES, OBSERVED
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.time import Month, Window, iso
from gpucost.simulator.incidents import HandOver, double_booking, gap_of, go_unseen, hand_over_of
from gpucost.simulator.inventory import REGION, Node, inventory
from gpucost.simulator.scheduler import Placement, Scheduler
from gpucost.simulator.signals import draw_progress, draw_signals
from gpucost.simulator.workloads import Submission, stable_uid, submissions

DEMO_MONTH = Month(2026, 10)


@dataclass(frozen=True)
class GroundTruth:
    """What gpucost must find, in board milliseconds inside the month; fractions are exact.

    ``held_ms`` is by team ("" is nobody's), ``capacity_ms`` is boards times the life of their nodes.
    """

    held_ms: Mapping[str, Fraction]
    capacity_ms: int
    overcommitted_ms: Fraction


class SimulatedCluster:
    """A month of a cluster that never existed: 112 GPUs times ``scale``, six teams, several mishaps.

    ``name`` is the cluster's. The same arguments give equal frames. Work that was still running when the
    month ended has its end at the end of the month.
    """

    def __init__(self, seed: int = 7, month: Month = DEMO_MONTH, scale: int = 1, name: str = "demo") -> None:
        self.seed = seed
        self.name = name
        self.window = month.window
        self.gap = gap_of(self.window)
        self.nodes = inventory(self.window, scale)
        bound, never = Scheduler(self.nodes, self.window).run(submissions(self.window, seed, scale))
        bound = [pod for pod in bound if pod.end_ms > self.window.start_ms]
        bound, self.lost = go_unseen(bound, self.gap)
        self.extra = double_booking(bound, self.nodes, self.window, seed)
        self.placements: Sequence[Placement] = (*bound, self.extra)
        self.never_bound: Sequence[Submission] = never
        self.hand_over = hand_over_of(self.window)

    @cached_property
    def frames(self) -> Frames:
        """All six frames of the month, and the problems a collector would report: the lost pods."""
        held = self._held()
        detail = f"not seen after {iso(self.gap.start_ms)}, when observation stopped"
        nodes = {node.name: node for node in self.nodes}
        return Frames(
            allocations=conform(held[list(ALLOCATIONS.column_names)], ALLOCATIONS),
            nodes=self._nodes(),
            capacity=self._capacity(),
            observed=self._observed(),
            signals=draw_signals(held, nodes, self.gap, np.random.default_rng([self.seed, 3])),
            progress=draw_progress(held, np.random.default_rng([self.seed, 4])),
            problems=tuple(
                Problem(ProblemCode.END_UNKNOWN, self.name, uid, detail)
                for uid in sorted(held.loc[held["is_lost"], "pod_uid"])
            ),
        )

    @cached_property
    def ground_truth(self) -> GroundTruth:
        """Sums over what the scheduler did, without any of gpucost's attribution."""
        shares = {(node.name, offer.resource): offer.share for node in self.nodes for offer in node.offers}
        held: dict[str, Fraction] = defaultdict(Fraction)
        over = Fraction(0)
        for pod in self.placements:
            share = shares[pod.node, pod.submission.resource] * pod.submission.units
            for start_ms, end_ms, team in _by_team(pod, self.hand_over):
                inside = share * self.window.overlap_ms(start_ms, end_ms)
                if pod is self.extra:
                    over += inside
                else:
                    held[team] += inside
        capacity = sum(
            node.boards * self.window.overlap_ms(node.start_ms, node.end_ms) for node in self.nodes
        )
        return GroundTruth(dict(held), capacity, over)

    def _held(self) -> pd.DataFrame:
        """Allocations, with what the drawing of signals needs: board share, leader of its gang, lost."""
        shares = {
            (node.name, offer.resource): float(offer.share) for node in self.nodes for offer in node.offers
        }
        lost = {id(pod) for pod in self.lost}
        serial: Counter[str] = Counter()
        rows = []
        for pod in self.placements:
            submission, job = pod.submission, pod.submission.job
            number = serial[job.uid]
            serial[job.uid] += 1
            queued = bool(job.team.queue)
            common = {
                "cluster": self.name,
                "node": pod.node,
                "namespace": job.namespace,
                "pod": f"{job.name}-{number}",
                "pod_uid": stable_uid(self.seed, f"{job.name}/{number}"),
                "job_kind": job.kind.value,
                "job": job.name,
                "job_uid": job.uid,
                "workload": f"{job.kind.value.lower()}-{job.name}" if queued else "",
                "queue": job.team.queue,
                "cluster_queue": job.team.cluster_queue,
                "flavor": submission.pool if queued else "",
                "project": job.project if job.labelled else "",
                "user": job.user,
                "resource": submission.resource,
                "count": submission.units,
                "share": shares[pod.node, submission.resource] * submission.units,
                "leader": pod.index == 0,
                "is_lost": id(pod) in lost,
            }
            for start_ms, end_ms, team in _by_team(pod, self.hand_over):
                label = team if job.labelled else ""
                rows.append({**common, "team_label": label, "start_ms": start_ms, "end_ms": end_ms})
        return pd.DataFrame(rows)

    def _nodes(self) -> pd.DataFrame:
        rows = [
            {
                "cluster": self.name,
                "node": node.name,
                "start_ms": node.start_ms,
                "end_ms": node.end_ms,
                "product": node.product,
                "boards": node.boards,
                "instance_type": node.instance_type,
                "capacity_type": node.capacity_type,
                "region": REGION,
                "zone": node.zone,
                "pool": node.pool,
                "labels": json.dumps({}, sort_keys=True),
            }
            for node in self.nodes
        ]
        return conform(pd.DataFrame(rows), NODES)

    def _capacity(self) -> pd.DataFrame:
        rows = [
            {
                "cluster": self.name,
                "node": node.name,
                "resource": offer.resource,
                "start_ms": start_ms,
                "end_ms": end_ms,
                "expected": offer.units,
                "capacity": offer.units,
                "allocatable": offer.units - lost,
                "replicas": offer.replicas,
                "schedulable": int(not cordoned),
            }
            for node in self.nodes
            for start_ms, end_ms, lost, cordoned in _states(node)
            for offer in node.offers
        ]
        return conform(pd.DataFrame(rows), CAPACITY)

    def _observed(self) -> pd.DataFrame:
        before = Window(self.window.start_ms, self.gap.start_ms)
        after = Window(self.gap.end_ms, self.window.end_ms)
        rows = [{"cluster": self.name, "start_ms": w.start_ms, "end_ms": w.end_ms} for w in (before, after)]
        return conform(pd.DataFrame(rows), OBSERVED)


def _by_team(pod: Placement, hand_over: HandOver) -> Iterator[tuple[int, int, str]]:
    """Stretches of a pod's time and the team each belongs to."""
    job = pod.submission.job
    if job.name != hand_over.job or not pod.start_ms < hand_over.at_ms < pod.end_ms:
        later = job.name == hand_over.job and pod.start_ms >= hand_over.at_ms
        yield pod.start_ms, pod.end_ms, hand_over.team if later else job.team.name
        return
    yield pod.start_ms, hand_over.at_ms, job.team.name
    yield hand_over.at_ms, pod.end_ms, hand_over.team


def _states(node: Node) -> Iterator[tuple[int, int, int, bool]]:
    """(start, end, units lost, cordoned) of the stretches of a node's life."""
    cuts = sorted({node.start_ms, node.end_ms, *(t for s in node.spells for t in (s.start_ms, s.end_ms))})
    for start_ms, end_ms in pairwise(cuts):
        spells = [spell for spell in node.spells if spell.start_ms <= start_ms < spell.end_ms]
        yield start_ms, end_ms, sum(s.lost for s in spells), any(s.cordoned for s in spells)
