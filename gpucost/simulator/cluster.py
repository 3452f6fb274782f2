"""The simulated cluster as frames, the ground truth about it by plain arithmetic, and the one of ``gpucost
demo``.

``SimulatedCluster`` is the month. ``nodes_frame`` and ``capacity_frame`` are its nodes; ``states`` is the
state of a node over time. ``demo_cluster`` is that of October 2026, with its prices and its teams as texts.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    FRAMES,
    HISTORY_FRAMES,
    NODES,
    OBSERVED,
)
from gpucost.detectors.findings import WastePattern
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import Month, Window, iso
from gpucost.simulator.disruptions import (
    ClusterUnrest,
    HandOver,
    double_booking,
    gap_of,
    go_unseen,
    hand_over_of,
    unsettle,
)
from gpucost.simulator.gpu_activity import (
    draw_activity,
    draw_progress,
    draw_signals,
    hour_sums,
    hourly,
)
from gpucost.simulator.history import (
    RELEASE,
    RELEASE_UNITS,
    SimulatedQueueQuota,
    StepSeries,
    demand,
    draw_serving,
    evictions,
    free_units,
    health,
    queue_quotas,
    quotas,
    stalls,
    workload_name,
)
from gpucost.simulator.injected_patterns import (
    XID,
    ActivityScript,
    InjectedPattern,
    arrive_late,
    of_jobs,
    planted,
    stage,
)
from gpucost.simulator.inventory import REGION, SimulatedNode, inventory
from gpucost.simulator.scheduler import (
    GpuSlots,
    PodPlacement,
    SchedulingWait,
    SimulatedOutcome,
    SimulatedScheduler,
    board_uuid,
    of_pods,
)
from gpucost.simulator.workloads import (
    FORGOTTEN,
    SERVERS,
    DrawnInts,
    JobIdentity,
    JobSubmission,
    ServerTemplate,
    stable_uid,
    submissions,
)

DEMO_SEED = 7
_SEED_BEFORE = 1 << 16
PRICES_NAME = "prices.yaml"
TEAMS_NAME = "teams.yaml"


def nodes_frame(cluster: str, nodes: Sequence[SimulatedNode]) -> pd.DataFrame:
    """The nodes frame."""
    rows = [
        {
            "cluster": cluster,
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
        for node in nodes
    ]
    return conform(pd.DataFrame(rows), NODES)


def capacity_frame(cluster: str, nodes: Sequence[SimulatedNode]) -> pd.DataFrame:
    """The capacity frame: a row per offer and stretch without a change."""
    rows = [
        {
            "cluster": cluster,
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
        for node in nodes
        for start_ms, end_ms, lost, cordoned in states(node)
        for offer in node.offers
    ]
    return conform(pd.DataFrame(rows), CAPACITY)


def states(node: SimulatedNode) -> Iterator[tuple[int, int, int, bool]]:
    """(start, end, units lost, cordoned) of the stretches of a node's life."""
    cuts = sorted({node.start_ms, node.end_ms, *(t for s in node.spells for t in (s.start_ms, s.end_ms))})
    for start_ms, end_ms in pairwise(cuts):
        spells = [spell for spell in node.spells if spell.start_ms <= start_ms < spell.end_ms]
        yield start_ms, end_ms, sum(s.lost for s in spells), any(s.cordoned for s in spells)


DEMO_MONTH = Month(2026, 10)


CPU_NODE = "a100-owned-01"
"""The node without a taint for GPUs, where pods without GPUs run."""


@dataclass(frozen=True)
class GroundTruth:
    """What gpucost must find, in GPU milliseconds inside the month; fractions are exact.

    ``held_ms`` is by team ("" is no team), ``capacity_ms`` is GPUs times the life of their nodes.
    """

    held_ms: Mapping[str, Fraction]
    capacity_ms: int
    overcommitted_ms: Fraction


class SimulatedCluster:
    """A month of a cluster that never existed: 112 GPUs times ``scale``, six teams, several disruptions.

    ``month`` may be any span of 31 days or more that begins on a full hour. ``name`` is the cluster's; with
    ``unrest_ms`` there are further disruptions around that instant (``unsettle``). The same arguments give
    equal frames. Work that was still running when the month ended has its end at the end of the month.
    """

    def __init__(
        self,
        seed: int = 7,
        month: Month | Window = DEMO_MONTH,
        scale: int = 1,
        name: str = "demo",
        unrest_ms: int | None = None,
        servers: Sequence[ServerTemplate] = SERVERS,
    ) -> None:
        self.seed = seed
        self.name = name
        self.window = month if isinstance(month, Window) else month.window
        self.gap = gap_of(self.window)
        self.nodes = inventory(self.window, scale)
        self.scale = scale
        scheduler = SimulatedScheduler(self.nodes, self.window)
        work = [*submissions(self.window, seed, scale, servers), *planted(self.window, seed)]
        bound, never = scheduler.run(work)
        bound = arrive_late([pod for pod in bound if pod.end_ms > self.window.start_ms])
        bound, self.lost = go_unseen(bound, self.gap)
        self.staged = stage(self.nodes, bound, self.window, seed)
        bound += self.staged.placements
        unrest = ClusterUnrest(bound) if unrest_ms is None else unsettle(bound, unrest_ms, seed)
        bound = unrest.placements
        self.extra = double_booking(bound, self.nodes, self.window, seed)
        self.placements: Sequence[PodPlacement] = (*bound, self.extra)
        self.never_bound: Sequence[JobSubmission] = never
        self.waits: Sequence[SchedulingWait] = (*scheduler.waits, *unrest.waits)
        self.hand_over = hand_over_of(self.window)

    @cached_property
    def frames(self) -> ClusterFrames:
        """All frames of the month, and the problems a collector would report: the lost pods."""
        held = self._held()
        gpus = [self.gpus[at] for at in held["placement"]]
        detail = f"not seen after {iso(self.gap.start_ms)}, when observation stopped"
        nodes = {node.name: node for node in self.nodes}
        rng = np.random.default_rng([self.seed, 3])
        activity = draw_activity(held, gpus, nodes, self.gap, self._of_jobs[1], rng)
        hours = hourly(held)
        seen = [(pod, uid) for pod, (_, uid) in zip(self.placements, self.names, strict=True)]
        return ClusterFrames(
            allocations=conform(held[list(ALLOCATIONS.column_names)], ALLOCATIONS),
            nodes=nodes_frame(self.name, self.nodes),
            capacity=capacity_frame(self.name, self.nodes),
            observed=self._observed(),
            signals=draw_signals(held, nodes, hours, hour_sums(activity, hours)),
            progress=draw_progress(held, np.random.default_rng([self.seed, 4])),
            activity=conform(activity.frame, ACTIVITY),
            serving=draw_serving(activity, held),
            demand=demand(self.name, self.waits, self.staged.waits, self.free, self.nodes),
            stalls=stalls(self.name, self.placements),
            evictions=evictions(self.name, seen, self.lost),
            quotas=quotas(self.name, self.placements, self.queues, self.window),
            health=health(self.name, self._broken()),
            problems=tuple(
                DataProblem(DataProblemCode.END_UNKNOWN, self.name, uid, detail)
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

    @cached_property
    def names(self) -> Sequence[tuple[str, str]]:
        """Name and uid of the pod of every placement."""
        serial: Counter[str] = Counter()
        found = []
        for pod in self.placements:
            job = pod.submission.job
            number = serial[job.uid]
            serial[job.uid] += 1
            found.append((f"{job.name}-{number}", stable_uid(self.seed, f"{job.name}/{number}")))
        return found

    @cached_property
    def plants(self) -> tuple[InjectedPattern, ...]:
        """The anti-patterns that were injected into the month."""
        return (*self._of_jobs[0], *self.staged.plants, *self._of_cluster())

    @cached_property
    def begun_ms(self) -> Mapping[tuple[str, int], int]:
        """When the first pod of each attempt of a job was bound, by job uid and attempt."""
        found: dict[tuple[str, int], int] = {}
        for pod in self.placements:
            key = (pod.submission.job.uid, pod.submission.attempt)
            found[key] = min(found.get(key, pod.start_ms), pod.start_ms)
        return found

    @cached_property
    def free(self) -> Mapping[tuple[str, str], StepSeries]:
        """Units that are free over time, by pool and resource."""
        return free_units(self.nodes, self.placements)

    def placed(self, from_ms: int, to_ms: int) -> Sequence[int]:
        """Positions of the placements of which some part is in ``[from_ms, to_ms)``."""
        start, end = self._spans
        found: list[int] = np.flatnonzero((start < to_ms) & (end > from_ms)).tolist()
        return found

    def missing(self, at_ms: int) -> Sequence[int]:
        """Positions of the placements whose gang has begun and which have not."""
        begun, start = self._gangs
        found: list[int] = np.flatnonzero((begun <= at_ms) & (at_ms < start)).tolist()
        return found

    @cached_property
    def _spans(self) -> tuple[DrawnInts, DrawnInts]:
        spans = np.array([(pod.start_ms, pod.end_ms) for pod in self.placements], dtype=np.int64)
        return spans[:, 0], spans[:, 1]

    @cached_property
    def _gangs(self) -> tuple[DrawnInts, DrawnInts]:
        """When the gang of each placement began, which for other pods is their own start; and the start of
        each placement."""
        start = self._spans[0]
        begun = [
            self.begun_ms[pod.submission.job.uid, pod.submission.attempt]
            if pod.submission.pods > 1
            else pod.start_ms
            for pod in self.placements
        ]
        return np.array(begun, dtype=np.int64), start

    @cached_property
    def evicted(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        """By job uid: when pods of it were evicted, and why; one entry for all that were evicted together."""
        frame = self.frames.evictions[["job_uid", "end_ms", "reason"]].drop_duplicates()
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for uid, end_ms, reason in frame.itertuples(index=False):
            found[uid].append((end_ms, reason))
        return found

    @cached_property
    def failed(self) -> Mapping[str, Sequence[int]]:
        """By job uid: when attempts of it failed, in order."""
        found: dict[str, set[int]] = defaultdict(set)
        for pod in self.placements:
            if pod.outcome is SimulatedOutcome.FAILED:
                found[pod.submission.job.uid].add(pod.end_ms)
        return {uid: sorted(ends) for uid, ends in found.items()}

    @cached_property
    def queues(self) -> Sequence[SimulatedQueueQuota]:
        return queue_quotas(self.placements, self.scale)

    @cached_property
    def _of_jobs(self) -> tuple[tuple[InjectedPattern, ...], tuple[ActivityScript, ...]]:
        plants, scripts = of_jobs(self.placements)
        return plants, (*scripts, *self.staged.scripts)

    @cached_property
    def _boards(self) -> GpuSlots:
        return GpuSlots(self.nodes, self.placements, self.extra)

    @cached_property
    def gpus(self) -> Sequence[tuple[str, ...]]:
        """GPU ids of the units of every placement."""
        return of_pods(self.seed, self.nodes, self.placements, self._boards)

    def _of_cluster(self) -> Iterator[InjectedPattern]:
        """Injected patterns whose subject is a node or a queue."""
        for node in self.nodes:
            for spell in node.spells:
                if spell.lost:
                    window = Window(spell.start_ms, spell.end_ms)
                    what = f"advertises {node.boards - spell.lost} of its {node.boards} boards"
                    yield InjectedPattern(
                        WastePattern.NOT_ADVERTISED, node.name, window, spell.lost, what, node=node.name
                    )
        what = "two pods without GPUs have half of its cores: it has no taint to keep them away"
        yield InjectedPattern(
            WastePattern.CPU_ONLY_PODS, "map-tiles", self.window, 0, what, namespace="robotics", node=CPU_NODE
        )
        what = f"{RELEASE_UNITS} GPUs are kept for releases, which use 2 of them for an hour a week"
        yield InjectedPattern(
            WastePattern.RESERVED_UNUSED, RELEASE, self.window, RELEASE_UNITS * self.scale, what
        )

    def _broken(self) -> list[tuple[str, str, Window, str]]:
        """(node, GPU, window, reason) of GPUs that were there but broken."""
        found = [
            (node.name, board_uuid(self.seed, node.name, self._boards.lost[node.name]),
             Window(spell.start_ms, spell.end_ms), "lost")
            for node in self.nodes for spell in node.spells if spell.lost
        ]  # fmt: skip
        broken = self.staged.broken
        if broken is not None:
            at = next(
                at for at, pod in enumerate(self.placements)
                if pod.submission.job.uid == broken.job_uid and pod.end_ms >= broken.window.end_ms
            )  # fmt: skip
            found.append((broken.node, self.gpus[at][broken.position], broken.window, XID))
        return found

    def _held(self) -> pd.DataFrame:
        """Allocations, with what the drawing of signals needs: GPU share, leader of its gang, lost."""
        shares = {
            (node.name, offer.resource): float(offer.share) for node in self.nodes for offer in node.offers
        }
        lost = {id(pod) for pod in self.lost}
        rows = []
        for at, (pod, (name, uid)) in enumerate(zip(self.placements, self.names, strict=True)):
            submission, job = pod.submission, pod.submission.job
            share = shares[pod.node, submission.resource]
            queued = bool(job.team.queue)
            common = {
                "cluster": self.name,
                "node": pod.node,
                "namespace": job.namespace,
                "pod": name,
                "pod_uid": uid,
                "job_kind": job.kind.value,
                "job": job.name,
                "job_uid": job.uid,
                "workload": workload_name(submission),
                "queue": job.team.queue,
                "cluster_queue": job.team.cluster_queue,
                "flavor": submission.pool if queued else "",
                "project": job.project if job.labelled else "",
                "user": job.user,
                "resource": submission.resource,
                "count": submission.units,
                "share": share * submission.units,
                "unit_share": share,
                "placement": at,
                "leader": pod.index == 0,
                "is_lost": id(pod) in lost,
            }
            for start_ms, end_ms, team in _by_team(pod, self.hand_over):
                label = team if job.labelled else ""
                rows.append({**common, "team_label": label, "start_ms": start_ms, "end_ms": end_ms})
        return pd.DataFrame(rows)

    def _observed(self) -> pd.DataFrame:
        before = Window(self.window.start_ms, self.gap.start_ms)
        after = Window(self.gap.end_ms, self.window.end_ms)
        rows = [{"cluster": self.name, "start_ms": w.start_ms, "end_ms": w.end_ms} for w in (before, after)]
        return conform(pd.DataFrame(rows), OBSERVED)


def _by_team(pod: PodPlacement, hand_over: HandOver) -> Iterator[tuple[int, int, str]]:
    """Stretches of a pod's time and the team each belongs to."""
    job = pod.submission.job
    if job.name != hand_over.job or not pod.start_ms < hand_over.at_ms < pod.end_ms:
        later = job.name == hand_over.job and pod.start_ms >= hand_over.at_ms
        yield pod.start_ms, pod.end_ms, hand_over.team if later else job.team.name
        return
    yield pod.start_ms, hand_over.at_ms, job.team.name
    yield hand_over.at_ms, pod.end_ms, hand_over.team


def demo_cluster(seed: int = DEMO_SEED) -> SimulatedCluster:
    """The demo's cluster, whose month is ``DEMO_MONTH``."""
    return SimulatedCluster(seed)


def frames_before(cluster: SimulatedCluster) -> ClusterFrames:
    """The same cluster in the time before: other jobs, the same servers, and those of FORGOTTEN, of which
    alone it is known what their GPUs did from minute to minute."""
    window = Window(2 * cluster.window.start_ms - cluster.window.end_ms, cluster.window.start_ms)
    before = SimulatedCluster(_SEED_BEFORE + cluster.seed, window, servers=(*SERVERS, *FORGOTTEN))
    names = {each.name for each in SERVERS}
    jobs = (pod.submission.job for pod in cluster.placements)
    known = {job.name: job for job in jobs if job.name in names}
    before.placements = tuple(_of_job(pod, known) for pod in before.placements)
    before.hand_over = cluster.hand_over
    before.staged.scripts += [ActivityScript(each.name, window, busy=0.0) for each in FORGOTTEN]
    found = before.frames
    held = found.allocations
    pods = set(held.loc[held["job"].isin([each.name for each in FORGOTTEN]), "pod_uid"])
    return ClusterFrames(
        **{spec.name: getattr(found, spec.name) for spec in FRAMES if spec not in HISTORY_FRAMES},
        activity=found.activity[found.activity["pod_uid"].isin(pods)],
        serving=found.serving[found.serving["pod_uid"].isin(pods)],
        problems=found.problems,
    )


def _of_job(pod: PodPlacement, known: Mapping[str, JobIdentity]) -> PodPlacement:
    """The placement, of the job in ``known`` that has its name."""
    job = known.get(pod.submission.job.name)
    return pod if job is None else replace(pod, submission=replace(pod.submission, job=job))


def demo_prices_text() -> str:
    """The demo's price book, as YAML."""
    return _packaged(PRICES_NAME)


def demo_teams_text() -> str:
    """The demo's team rules, as YAML."""
    return _packaged(TEAMS_NAME)


def _packaged(name: str) -> str:
    return (files("gpucost.simulator") / name).read_text(encoding="utf-8")
