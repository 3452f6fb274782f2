"""What a scenario, or reality, did with every job, in one form; and sums of it over time.

``views_of`` is of a replay, ``recorded_views`` of what really happened, so that both are measured by the same
arithmetic. Times are milliseconds; amounts over time are units times milliseconds, whole numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.advisor.replay.history_record import HistoryJob, KueueRecord, PoolRecord, ReplayHistory
from gpucost.advisor.replay.node_places import RunStart
from gpucost.advisor.replay.replay_timeline import WorkloadStory
from gpucost.advisor.replay.scenario_run import ScenarioRun
from gpucost.cluster.objects.kueue import ClusterQueue, Cohort
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.domain.time import Window


class RunStretch(NamedTuple):
    """A run. ``is_lost``: it was stopped, and all of it has to be done again. ``nodes`` are (pool, node,
    units), empty where nobody knows; ``flavors`` (flavor, resource, units) of GPUs, where queues have several
    and it is known which it got."""

    start_ms: int
    end_ms: int
    is_lost: bool
    nodes: tuple[tuple[str, int, int], ...] = ()
    flavors: tuple[tuple[str, str, int], ...] = ()


class RunView(NamedTuple):
    """One job: when it came, its first start (None: none in the window), its runs, how often it was stopped,
    and the layer that held it; empty where it did not wait."""

    job: HistoryJob
    created_ms: int
    start_ms: int | None
    runs: tuple[RunStretch, ...]
    evictions: int
    layer: str

    def wait_ms(self, window: Window) -> int:
        """Until it started, or the window ended."""
        until = window.end_ms if self.start_ms is None else self.start_ms
        return max(0, until - self.created_ms)


def views_of(run: ScenarioRun, window: Window) -> dict[str, RunView]:
    """By uid, of the jobs that came."""
    is_plain = run.kueue is None and run.volcano is None
    plain = (WaitLayer.PLACEMENT if is_plain else WaitLayer.QUOTA).value
    several = run.kueue is not None and len(_gpu_keys(run.kueue)) > 1
    found = {}
    for uid, job in run.jobs.items():
        story = run.outcome.stories[uid]
        start_ms = story.admissions[0].at_ms if story.admissions else None
        if start_ms is not None and start_ms >= window.end_ms:
            start_ms = None
        layer = ""
        if start_ms != job.created_ms:
            layer = _layer(uid, job, story, run, plain)
        runs = tuple(_stretches(story, job, window, of_flavors=several))
        found[uid] = RunView(job, job.created_ms, start_ms, runs, len(story.evictions), layer)
    return found


def recorded_views(history: ReplayHistory) -> dict[str, RunView]:
    """What really happened to the jobs of which that is known. The layer that held them is not."""
    window, found = history.window, {}
    for job in history.jobs:
        record = job.record
        if record is None:
            continue
        starts = [at_ms for at_ms in record.starts if at_ms < window.end_ms]
        stops = _stops(starts, [each.at_ms for each in record.evictions])
        runs = []
        for n, (at_ms, stop) in enumerate(zip(starts, stops, strict=True)):
            next_ms = starts[n + 1] if n + 1 < len(starts) else None
            end_ms = record.ended_ms if next_ms is None else next_ms
            is_lost = stop is not None and not job.keeps_progress
            until = min(each for each in (stop, end_ms, window.end_ms) if each is not None)
            runs.append(RunStretch(at_ms, until, is_lost))
        found[job.uid] = RunView(
            job, job.created_ms, starts[0] if starts else None, tuple(runs), len(record.evictions), ""
        )
    return found


def _stretches(
    story: WorkloadStory, job: HistoryJob, window: Window, *, of_flavors: bool
) -> Iterator[RunStretch]:
    starts = [each.at_ms for each in story.admissions]
    stops = _stops(starts, [each.at_ms for each in story.evictions])
    for n, (begun, stop) in enumerate(zip(story.admissions, stops, strict=True)):
        if begun.at_ms >= window.end_ms:
            return
        is_last = n + 1 == len(starts)
        before = None if is_last else starts[n + 1]
        end_ms = stop if stop is not None else story.ended_ms if is_last else before
        until = window.end_ms if end_ms is None else min(end_ms, window.end_ms)
        is_lost = stop is not None and stop < window.end_ms and not job.keeps_progress
        flavors = _flavors(begun.given, job) if of_flavors else ()
        yield RunStretch(begun.at_ms, until, is_lost, _nodes(begun.given, job), flavors)


def _stops(starts: Sequence[int], evictions: Iterable[int]) -> list[int | None]:
    """For each start the eviction that ended its run: the first that no run before has, until the next start.
    A run may end at the instant in which it began, and another begin in which it ended."""
    left, found = sorted(evictions), list[int | None]()
    for n, at_ms in enumerate(starts):
        while left and left[0] < at_ms:
            left.pop(0)
        is_own = left and (n + 1 == len(starts) or left[0] <= starts[n + 1])
        found.append(left.pop(0) if is_own else None)
    return found


def _nodes(given: object, job: HistoryJob) -> tuple[tuple[str, int, int], ...]:
    if isinstance(given, RunStart):
        return tuple((pool, node, units) for pool, place in given.nodes for node, units in place)
    if isinstance(given, tuple) and given and isinstance(given[0], tuple) and len(given[0]) == 2:
        return tuple((job.pool or job.queue, node, units) for node, units in given)
    return ()


def _flavors(given: object, job: HistoryJob) -> tuple[tuple[str, str, int], ...]:
    got = given.flavors if isinstance(given, RunStart) else given
    if not isinstance(got, tuple):
        return ()
    of_set = {each.name: each for each in got if isinstance(each, PodSetFlavors)}
    units: dict[tuple[str, str], int] = defaultdict(int)
    for each in job.pod_sets:
        for resource, amount in each.each.items() if each.name in of_set else ():
            if is_gpu(resource):
                own = of_set[each.name]
                units[own.flavors.get(resource, ""), resource] += amount * own.count
    return tuple((*key, amount) for key, amount in sorted(units.items()))


def is_gpu(resource: str) -> bool:
    """Extended resources are GPUs here; memory and CPUs have plain names, and quotas of their own."""
    return "/" in resource


def _gpu_keys(kueue: KueueRecord) -> frozenset[tuple[str, str]]:
    return frozenset(
        (key.flavor, key.resource)
        for queue in kueue.state.cluster_queues.values()
        for key in queue.quotas
        if is_gpu(key.resource)
    )


def _layer(uid: str, job: HistoryJob, story: WorkloadStory, run: ScenarioRun, plain: str) -> str:
    """What held it longest until its first start."""
    if uid in run.for_nodes or uid in run.refused:
        return WaitLayer.PLACEMENT.value
    if story.admissions and isinstance(given := story.admissions[0].given, RunStart):
        for_quota = given.reserved_ms - job.created_ms
        for_nodes = story.admissions[0].at_ms - given.reserved_ms
        return (WaitLayer.PLACEMENT if for_nodes > for_quota else WaitLayer.QUOTA).value
    return plain


def pool_of(job: HistoryJob, pools: Mapping[str, PoolRecord]) -> str:
    """The pool whose GPUs it holds; empty where the history has no such pool."""
    name = job.pool or job.queue
    return name if name in pools else ""


class PoolRuns:
    """Runs on one pool, to ask who held it in a stretch of time."""

    def __init__(self, views: Iterable[RunView]) -> None:
        runs = [(each, run) for each in views for run in each.runs]
        self._starts = np.array([run.start_ms for _, run in runs], dtype=np.int64)
        self._ends = np.array([run.end_ms for _, run in runs], dtype=np.int64)
        self._jobs = [each.job for each, _ in runs]

    def of_teams(self, start_ms: int, end_ms: int, but: str) -> dict[str, int]:
        """By team (queue, where a job has none): units times milliseconds, without the job ``but``."""
        inside = np.minimum(self._ends, end_ms) - np.maximum(self._starts, start_ms)
        sums: dict[str, int] = defaultdict(int)
        for at in np.flatnonzero(inside > 0).tolist():
            job = self._jobs[at]
            if job.uid != but:
                sums[job.team or job.queue] += int(inside[at]) * job.gpus
        return sums


@dataclass(slots=True)
class QueueSums:
    """Of one queue in the window, units times milliseconds: its quota, what it held, what of it was beyond
    its quota, and what others held of its quota."""

    nominal: int = 0
    held: int = 0
    borrowed: int = 0
    lent: int = 0


class _QueueEvent(NamedTuple):
    """Of one flavor and resource: what a queue has from then on, or units that it holds more or less."""

    at_ms: int
    is_use: bool
    queue: str
    units: int
    cohort: str = ""


def queue_sums(
    views: Iterable[RunView],
    kueue: KueueRecord,
    changes: Sequence[tuple[int, object]],
    pools: Mapping[str, PoolRecord],
    window: Window,
) -> dict[str, QueueSums]:
    """By ClusterQueue, over its GPU quotas, in GPUs. What is borrowed at an instant is lent by the queues of
    the same tree that leave quota of that flavor unused, in proportion; never more than they leave. A run of
    which nobody knows the flavor, of several, counts in none."""
    events = _quota_events(kueue, changes, window)
    flavors = {name: (each.flavor, each.resource) for name, each in pools.items()}
    alone = next(iter(events)) if len(events) == 1 else None
    for view in views:
        if not view.job.queue:
            continue
        pool = flavors.get(pool_of(view.job, pools), alone)
        of_pool = () if pool is None else ((*pool, view.job.gpus),)
        for run in view.runs:
            begun = max(run.start_ms, window.start_ms)
            for flavor, resource, units in (run.flavors or of_pool) if begun < run.end_ms else ():
                own = events[flavor, resource]
                own.append(_QueueEvent(begun, True, view.job.queue, units))
                own.append(_QueueEvent(run.end_ms, True, view.job.queue, -units))
    shares = {flavors[name]: each.share for name, each in pools.items()}
    moved = _parents_over_time(kueue, changes, window)
    found: dict[str, QueueSums] = defaultdict(QueueSums)
    for key, own in events.items():
        share = shares.get(key, Fraction(1))
        for name, sums in _FlavorSweep(window, moved).run(own).items():
            total = found[name]
            total.nominal += int(sums.nominal * share)
            total.held += int(sums.held * share)
            total.borrowed += int(sums.borrowed * share)
            total.lent += int(sums.lent * share)
    return dict(found)


def _quota_events(
    kueue: KueueRecord, changes: Sequence[tuple[int, object]], window: Window
) -> dict[tuple[str, str], list[_QueueEvent]]:
    events: dict[tuple[str, str], list[_QueueEvent]] = defaultdict(list)
    queues = [(window.start_ms, each) for each in kueue.state.cluster_queues.values()]
    queues += [
        (max(at_ms, window.start_ms), each) for at_ms, each in changes if isinstance(each, ClusterQueue)
    ]
    for at_ms, queue in queues:
        for key, quota in queue.quotas.items():
            if not is_gpu(key.resource):
                continue
            event = _QueueEvent(at_ms, False, queue.name, quota.nominal, queue.cohort)
            events[key.flavor, key.resource].append(event)
    return events


def _parents_over_time(
    kueue: KueueRecord, changes: Sequence[tuple[int, object]], window: Window
) -> list[tuple[int, Mapping[str, str]]]:
    parents = {each.name: each.parent for each in kueue.state.cohorts.values()}
    found: list[tuple[int, Mapping[str, str]]] = [(window.start_ms, parents)]
    for at_ms, change in changes:
        if isinstance(change, Cohort):
            parents = {**parents, change.name: change.parent}
            found.append((max(at_ms, window.start_ms), parents))
    return found


@dataclass(slots=True)
class _QueueNow:
    nominal: int = 0
    held: int = 0
    cohort: str = ""
    sums: QueueSums = field(default_factory=QueueSums)


class _FlavorSweep:
    """Quota and use of one flavor and resource over time. Only the tree of a queue that changes is added up
    anew."""

    def __init__(self, window: Window, moved: Sequence[tuple[int, Mapping[str, str]]]) -> None:
        self._window, self._moved = window, list(moved)
        self._parents = self._moved.pop(0)[1]
        self._queues: dict[str, _QueueNow] = {}
        self._trees: dict[str, list[_QueueNow]] = {}
        self._tree_of: dict[str, str] = {}
        self._since: dict[str, int] = {}

    def run(self, events: list[_QueueEvent]) -> dict[str, QueueSums]:
        for event in sorted(events, key=lambda each: (each.at_ms, each.is_use)):
            if event.at_ms >= self._window.end_ms:
                break
            while self._moved and self._moved[0][0] <= event.at_ms:
                at_ms, self._parents = self._moved.pop(0)
                self._regroup(at_ms)
            self._enter(event)
        for tree in self._trees:
            self._settle(tree, self._window.end_ms)
        return {name: each.sums for name, each in self._queues.items()}

    def _enter(self, event: _QueueEvent) -> None:
        now = self._queues.get(event.queue)
        if now is None or not (event.is_use or now.cohort == event.cohort):
            now = self._queues.setdefault(event.queue, _QueueNow())
            self._settle_all(event.at_ms)
            now.cohort = event.cohort
            self._regroup(event.at_ms)
        self._settle(self._tree_of[event.queue], event.at_ms)
        if event.is_use:
            now.held += event.units
        else:
            now.nominal = event.units

    def _root(self, cohort: str) -> str:
        met = {cohort}
        while (above := self._parents.get(cohort, "")) and above not in met:
            met.add(above)
            cohort = above
        return f"cohort {cohort}"

    def _settle_all(self, at_ms: int) -> None:
        for tree in self._trees:
            self._settle(tree, at_ms)

    def _regroup(self, at_ms: int) -> None:
        self._settle_all(at_ms)
        self._trees = {}
        for name, now in sorted(self._queues.items()):
            tree = self._root(now.cohort) if now.cohort else f"queue {name}"
            self._tree_of[name] = tree
            self._trees.setdefault(tree, []).append(now)
        self._since = dict.fromkeys(self._trees, at_ms)

    def _settle(self, tree: str, at_ms: int) -> None:
        """Adds up what holds in a tree since it was last added up."""
        length, self._since[tree] = at_ms - self._since[tree], at_ms
        if length <= 0:
            return
        own, beyond, idle = self._trees[tree], 0, 0
        for each in own:
            each.sums.nominal += each.nominal * length
            each.sums.held += each.held * length
            over = each.held - each.nominal
            if over > 0:
                each.sums.borrowed += over * length
                beyond += over
            else:
                idle -= over
        if not beyond or not idle:
            return
        lenders = [each for each in own if each.held < each.nominal]
        left = lent = min(beyond, idle) * length
        for each in lenders:
            part = lent * (each.nominal - each.held) // idle
            each.sums.lent += part
            left -= part
        lenders[0].sums.lent += left
