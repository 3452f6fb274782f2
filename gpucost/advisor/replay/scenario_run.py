"""One scenario: a history with a change, or with none, played to its end.

``run_scenario`` makes cluster, arrivals and changes of both and plays them. Open loop: arrivals are as
recorded. Closed loop: a user's next job comes after the last one ended, with the recorded time to think
between them; a job that came before any other of its user had ended keeps its time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import TypeVar, cast

from gpucost.advisor.kueue.requests import PodSetRequest, QuotaRequest
from gpucost.advisor.replay.change_check import refuse_foreign
from gpucost.advisor.replay.fifo_nodes import FifoAsk, FifoReplay, PoolNodes
from gpucost.advisor.replay.history_record import (
    HistoryJob,
    KueueRecord,
    PoolRecord,
    ReplayHistory,
    VolcanoRecord,
)
from gpucost.advisor.replay.kueue_replay import KueueReplay
from gpucost.advisor.replay.node_domains import NodeDomains, PoolDomains
from gpucost.advisor.replay.node_places import PlacedAsk, PlacedReplay
from gpucost.advisor.replay.pool_changes import PriceStep, changed_pools
from gpucost.advisor.replay.replay_timeline import ReplayArrival, ReplayDiscipline, ReplayOutcome, play
from gpucost.advisor.replay.tree_replay import TreeMemory, play_trees
from gpucost.advisor.replay.volcano_replay import VolcanoReplay, gang_of_job
from gpucost.advisor.replay.what_if_change import (
    UNLIMITED,
    CohortChange,
    DatedChange,
    QueueChange,
    QuotaChange,
    SchedulerChange,
    VolcanoQueueChange,
    WhatIfChange,
)
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
    ResourceFlavor,
    ResourceGroup,
)
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.domain.errors import InputError

GPU = "nvidia.com/gpu"
BASELINE = WhatIfChange(name="baseline")
_Queue = TypeVar("_Queue")
_Part = TypeVar("_Part", bound=DatedChange)


class LoopMode(StrEnum):
    """How arrivals follow from ends."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True)
class ScenarioRun:
    """What became of ``jobs`` (as they were in the scenario; in closed loop ``created_ms`` is when they came,
    and those that never came are left out).

    ``pools`` and ``kueue`` are the scenario's; ``kueue_changes`` what was different from an instant on.
    ``for_nodes`` still waited for nodes at the end, ``refused`` had quota for which no node had room.
    ``prices`` are ascending.
    """

    change: WhatIfChange
    loop: LoopMode
    jobs: Mapping[str, HistoryJob]
    outcome: ReplayOutcome
    pools: Mapping[str, PoolRecord]
    prices: tuple[PriceStep, ...]
    kueue: KueueRecord | None
    kueue_changes: tuple[tuple[int, ClusterQueue | Cohort | KueueConfig], ...] = ()
    for_nodes: frozenset[str] = field(default_factory=frozenset)
    refused: frozenset[str] = field(default_factory=frozenset)
    volcano: VolcanoRecord | None = None

    @property
    def name(self) -> str:
        return self.change.name


def run_scenario(
    history: ReplayHistory,
    change: WhatIfChange = BASELINE,
    loop: LoopMode = LoopMode.OPEN,
    memory: TreeMemory | None = None,
) -> ScenarioRun:
    """Everything until nothing is due any more, also after the window. What ``memory`` has of trees that the
    change does not touch is not played again. Raises InputError for what the change is about and the history
    has not."""
    made = _Scenario(history, change)
    is_bare = made.is_bare(loop)
    arrivals = list(made.arrivals(is_bare))
    if loop is LoopMode.CLOSED:
        arrivals = list(followed(arrivals, history))
    discipline = made.discipline(is_bare)
    outcome = None
    if is_bare and made.kueue is not None:
        asks = cast("list[ReplayArrival[QuotaRequest]]", arrivals)
        record, changes = made.kueue, made.kueue_changes
        memory = memory or TreeMemory()
        outcome = play_trees(record.state, record.config, record.timings, asks, changes, memory)
    if outcome is None:
        outcome = play(arrivals, cast("ReplayDiscipline[object, object]", discipline), made.changes)
    waiting = refused = frozenset[str]()
    if isinstance(discipline, PlacedReplay):
        refused = frozenset(discipline.ever_refused)
    if isinstance(discipline, PlacedReplay | VolcanoReplay):
        waiting = discipline.waiting_for_nodes
    jobs = dict(_came(arrivals, made.jobs, outcome))
    return ScenarioRun(
        change,
        loop,
        jobs,
        outcome,
        made.pools,
        made.prices,
        made.kueue,
        made.kueue_changes,
        waiting,
        refused,
        made.volcano,
    )


def check_change(
    history: ReplayHistory, change: WhatIfChange
) -> tuple[Mapping[str, PoolRecord], tuple[PriceStep, ...]]:
    """The pools and the prices of a scenario. Raises InputError as ``run_scenario`` does; plays nothing."""
    made = _Scenario(history, change)
    return made.pools, made.prices


def followed(
    arrivals: Iterable[ReplayArrival[object]], history: ReplayHistory
) -> Iterator[ReplayArrival[object]]:
    """Each arrival after the job of its user that had ended last before it came, as it was recorded."""
    ended: dict[str, list[tuple[int, HistoryJob]]] = {}
    known = {each.uid: each for each in history.jobs}
    for job in history.jobs:
        if job.user and job.record is not None and job.record.ended_ms is not None:
            ended.setdefault(job.user, []).append((job.record.ended_ms, job))
    for own in ended.values():
        own.sort(key=lambda each: (each[0], each[1].uid))
    for arrival in arrivals:
        own = ended.get(known[arrival.uid].user, [])
        place, order = bisect_right(own, arrival.at_ms, key=_ENDED), (arrival.at_ms, arrival.uid)
        # Of runs without length several may come and end at one instant: none is after itself.
        while place and (own[place - 1][1].created_ms, own[place - 1][1].uid) >= order:
            place -= 1
        if not place:
            yield arrival
            continue
        at_ms, job = own[place - 1]
        yield replace(arrival, after=job.uid, think_ms=arrival.at_ms - at_ms)


_ENDED = itemgetter(0)


def has_users(history: ReplayHistory) -> bool:
    """Whether the history says whose jobs are whose, and when they ended: else there is no closed loop."""
    return any(each.user and each.record is not None for each in history.jobs)


def _came(
    arrivals: Sequence[ReplayArrival[object]], jobs: Sequence[HistoryJob], outcome: ReplayOutcome
) -> Iterator[tuple[str, HistoryJob]]:
    by_uid = {each.uid: each for each in jobs}
    for each in arrivals:
        job = by_uid[each.uid]
        if each.after:
            before_ms = outcome.stories[each.after].ended_ms
            if before_ms is None:
                continue
            job = replace(job, created_ms=before_ms + each.think_ms)
        yield each.uid, job


class _Scenario:
    """A history with the change made in it."""

    def __init__(self, history: ReplayHistory, change: WhatIfChange) -> None:
        self.history, self.change = history, change
        self._begin_ms = min([each.created_ms for each in history.jobs] or [history.window.start_ms])
        self._begin_ms = min(self._begin_ms, history.window.start_ms)
        self.kueue, pools, self.jobs = history.kueue, history.pools, history.jobs
        if change.scheduler is not None and change.scheduler.rules is not None:
            self.kueue, pools, self.jobs = _as_kueue(history, change.scheduler)
        refuse_foreign(change, self.kueue, pools, history)
        self.pools, self.prices = changed_pools(pools, change, self._begin_ms)
        self.jobs = self._jobs()
        self.kueue_changes: tuple[tuple[int, ClusterQueue | Cohort | KueueConfig], ...] = ()
        if self.kueue is not None:
            self.kueue, self.kueue_changes = self._kueue(self.kueue)
        steps = [
            (at_ms, PoolNodes(name, nodes))
            for name, pool in sorted(self.pools.items())
            for at_ms, nodes in pool.steps[1:]
        ]
        self.volcano, volcano_changes = None, list[tuple[int, VolcanoQueue]]()
        if self.kueue is None and history.volcano is not None:
            self.volcano, volcano_changes = _volcano(history.volcano, change, self._begin_ms)
        self.changes: list[tuple[int, object]] = sorted(
            [
                *self.kueue_changes,
                *volcano_changes,
                *(steps if self.kueue is None or history.has_nodes else ()),
            ],
            key=lambda each: each[0],
        )

        self._is_fifo = self.kueue is None and not any(each.pod_sets for each in self.jobs)

    def discipline(self, is_bare: bool) -> FifoReplay | KueueReplay | PlacedReplay | VolcanoReplay:
        if self.volcano is not None:
            return VolcanoReplay(self.volcano, self.pools)
        history, first = self.history, {name: pool.steps[0][1] for name, pool in self.pools.items()}
        if self._is_fifo:
            sizes = {name: pool.gpus for name, pool in self.pools.items()} if history.has_nodes else None
            return FifoReplay(first, sizes)
        inner = None
        if self.kueue is not None:
            inner = KueueReplay(self.kueue.state, self.kueue.config, self.kueue.timings)
            if is_bare:
                return inner
        pools = (
            {name: (first[name], pool.gpus) for name, pool in self.pools.items()} if history.has_nodes else {}
        )
        flavors = {(each.flavor, each.resource): name for name, each in self.pools.items() if each.flavor}
        places = flavors if pools else {}
        domains = self._domains() if pools else None
        return PlacedReplay(inner, pools, places, fits_first=history.fits_first, domains=domains)

    def _domains(self) -> NodeDomains | None:
        """Of pools whose flavor has a topology; None without any."""
        if self.kueue is None:
            return None
        state = self.kueue.state
        levels = {each.meta.name: each.levels for each in state.topologies.values()}
        of_flavor = {each.meta.name: levels.get(each.topology, ()) for each in state.flavors.values()}
        found = {
            name: PoolDomains(pool.resource, pool.gpus, of_flavor[pool.flavor], pool.labels)
            for name, pool in self.pools.items()
            if pool.labels and of_flavor.get(pool.flavor)
        }
        return NodeDomains(found) if found else None

    def is_bare(self, loop: LoopMode) -> bool:
        """Whether Kueue alone decides, and all that comes is as recorded."""
        is_quota = self.kueue is not None and not self.history.has_nodes
        return is_quota and loop is LoopMode.OPEN and all(each.queue for each in self.jobs)

    def arrivals(self, is_bare: bool) -> Iterator[ReplayArrival[object]]:
        for job in self.jobs:
            ask: object
            if self.volcano is not None:
                ask = gang_of_job(job, self.volcano)
            elif self._is_fifo:
                ask = FifoAsk(job.pool or job.queue, job.gpus)
            else:
                request = (
                    QuotaRequest(job.uid, job.queue, job.priority, job.created_ms, job.pod_sets)
                    if job.queue and self.kueue is not None
                    else None
                )
                ask = request if is_bare and request is not None else PlacedAsk(request, self._pieces(job))
            yield ReplayArrival(job.uid, job.created_ms, job.run_ms, ask, job.keeps_progress)

    def _pieces(self, job: HistoryJob) -> tuple[tuple[str, int, int], ...]:
        """What a job asks of nodes that no quota is asked for."""
        is_queued = job.queue and self.kueue is not None
        if is_queued or job.pool not in self.pools or not self.history.has_nodes:
            return ()
        pieces = [
            (job.pool, amount, each.count) for each in job.pod_sets for amount in each.each.values() if amount
        ]
        return tuple(pieces) or ((job.pool, job.gpus, 1),)

    def _jobs(self) -> tuple[HistoryJob, ...]:
        """With the priorities and the speeds of the change."""
        change = self.change
        speeds = [each for each in change.nodes if each.speed is not None]
        if not (speeds or change.priorities):
            return tuple(self.jobs)
        found = []
        for job in self.jobs:
            priority, run_ms = job.priority, job.run_ms
            for each in change.priorities:
                fits = (
                    each.queue in (None, job.queue)
                    and each.team in (None, job.team)
                    and each.user in (None, job.user)
                    and (each.job is None or job.name.startswith(each.job))
                )
                if fits and job.created_ms >= change.since_ms(each, self._begin_ms):
                    priority = each.set if each.set is not None else priority + (each.add or 0)
            for node in speeds:
                if node.pool == job.pool and job.created_ms >= change.since_ms(node, self._begin_ms):
                    assert node.speed is not None
                    run_ms = max(1, round(run_ms / node.speed))
            found.append(replace(job, priority=priority, run_ms=run_ms))
        return tuple(found)

    def _kueue(
        self, record: KueueRecord
    ) -> tuple[KueueRecord, tuple[tuple[int, ClusterQueue | Cohort | KueueConfig], ...]]:
        """The objects at the begin, and those that hold from an instant on: what was recorded, with the
        change made in each."""
        change, begin_ms = self.change, self._begin_ms
        dated: list[tuple[int, int, ClusterQueue | Cohort | KueueConfig]] = []
        queues: dict[str, ClusterQueue] = {}
        for uid, queue in record.state.cluster_queues.items():
            parts = [each for each in change.queues if each.name == queue.name]
            recorded = [(at_ms, each) for at_ms, each in record.changes if each.name == queue.name]
            queues[uid], later = _over_time(queue, recorded, parts, change, begin_ms, _with_queue)
            dated += [(at_ms, 0, each) for at_ms, each in later]
        cohorts = dict(record.state.cohorts)
        for name in dict.fromkeys(each.name for each in change.cohorts):
            own = [each for each in change.cohorts if each.name == name]
            known = next((each for each in cohorts.values() if each.name == name), None)
            cohort = known or Cohort(ObjectMeta(f"cohort {name}", "", name, 0, {}, {}))
            for part in sorted(own, key=lambda each: change.since_ms(each, begin_ms)):
                cohort = _with_cohort(cohort, part)
                since_ms = change.since_ms(part, begin_ms)
                if since_ms <= begin_ms:
                    cohorts[cohort.meta.uid] = cohort
                else:
                    dated.append((since_ms, 1, cohort))
        config = record.config
        if change.scheduler is not None:
            since_ms = change.since_ms(change.scheduler, begin_ms)
            changed = _with_config(config, change.scheduler)
            if since_ms <= begin_ms:
                config = changed
            elif changed != config:
                dated.append((since_ms, 2, changed))
        # Of one instant recorded changes keep their order, since that decides which tree is looked at when.
        order = {id(each): n for n, (_, each) in enumerate(record.changes)}
        dated.sort(key=lambda each: (each[0], each[1], order.get(id(each[2]), len(order))))
        state = replace(record.state, cluster_queues=queues, cohorts=cohorts)
        return replace(record, state=state, config=config), tuple((at_ms, each) for at_ms, _, each in dated)


def _volcano(
    record: VolcanoRecord, change: WhatIfChange, begin_ms: int
) -> tuple[VolcanoRecord, list[tuple[int, VolcanoQueue]]]:
    """The queues at the begin, and those that hold from an instant on."""
    queues, later = dict(record.queues), list[tuple[int, VolcanoQueue]]()
    for name, queue in record.queues.items():
        parts = [each for each in change.volcano if each.name == name]
        recorded = [(at_ms, each) for at_ms, each in record.changes if each.name == name]
        queues[name], own = _over_time(queue, recorded, parts, change, begin_ms, _with_volcano_queue)
        later += own
    return replace(record, queues=queues), later


def _over_time(
    queue: _Queue,
    recorded: Sequence[tuple[int, _Queue]],
    parts: Sequence[_Part],
    change: WhatIfChange,
    begin_ms: int,
    made: Callable[[_Queue, _Part], _Queue],
) -> tuple[_Queue, list[tuple[int, _Queue]]]:
    """The queue at the begin, and what it is from later instants on; ``made`` applies a part to a queue."""
    since = {id(each): change.since_ms(each, begin_ms) for each in parts}

    def changed(found: _Queue, at_ms: int) -> _Queue:
        for part in parts:
            if since[id(part)] <= at_ms:
                found = made(found, part)
        return found

    first, last, later = changed(queue, begin_ms), queue, list[tuple[int, _Queue]]()
    edges = sorted({at_ms for at_ms in since.values() if at_ms > begin_ms})
    events = sorted(
        [(at_ms, 0, each) for at_ms, each in recorded] + [(at_ms, 1, None) for at_ms in edges],
        key=lambda each: each[:2],
    )
    for at_ms, _, said in events:
        last = said or last
        later.append((at_ms, changed(last, at_ms) if parts else last))
    return first, later


def _with_volcano_queue(queue: VolcanoQueue, part: VolcanoQueueChange) -> VolcanoQueue:
    said = part.model_dump(include={"weight", "capability", "deserved", "guarantee"})
    return replace(queue, **{key: each for key, each in said.items() if each is not None})


def _with_quotas(
    quotas: Mapping[FlavorResource, FlavorQuota], changes: Iterable[QuotaChange]
) -> dict[FlavorResource, FlavorQuota]:
    found = dict(quotas)
    for each in changes:
        key = FlavorResource(each.flavor, each.resource)
        old = found.get(key, FlavorQuota(0))
        nominal = old.nominal if each.nominal is None else each.nominal
        found[key] = FlavorQuota(
            max(0, nominal + (each.add or 0)),
            _limit(old.borrowing_limit, each.borrowing_limit),
            _limit(old.lending_limit, each.lending_limit),
        )
    return found


def _limit(old: int | None, new: int | str | None) -> int | None:
    if new is None:
        return old
    return None if new == UNLIMITED else int(new)


def _with_queue(queue: ClusterQueue, part: QueueChange) -> ClusterQueue:
    preemption = queue.preemption
    if part.preemption is not None:
        said = part.preemption.model_dump(exclude_none=True)
        preemption = replace(preemption, **said)
    return replace(
        queue,
        quotas=_with_quotas(queue.quotas, part.quotas),
        cohort=queue.cohort if part.cohort is None else part.cohort,
        preemption=preemption,
        strategy=part.strategy or queue.strategy,
        weight=queue.weight if part.weight is None else part.weight,
        stop_policy=part.stop or queue.stop_policy,
    )


def _with_cohort(cohort: Cohort, part: CohortChange) -> Cohort:
    quotas = _with_quotas(cohort.quotas, part.quotas)
    groups = cohort.groups
    if quotas and not groups:
        resources = tuple(dict.fromkeys(each.resource for each in quotas))
        groups = (ResourceGroup(resources, tuple(dict.fromkeys(each.flavor for each in quotas))),)
    return replace(
        cohort,
        parent=cohort.parent if part.parent is None else part.parent,
        quotas=quotas,
        groups=groups,
        weight=cohort.weight if part.weight is None else part.weight,
    )


def _with_config(config: KueueConfig, part: SchedulerChange) -> KueueConfig:
    fair = config.fair_sharing if part.fair_sharing is None else part.fair_sharing
    return replace(config, fair_sharing=fair, version=part.version or config.version)


def _as_kueue(
    history: ReplayHistory, change: SchedulerChange
) -> tuple[KueueRecord, dict[str, PoolRecord], tuple[HistoryJob, ...]]:
    """Pools of plain FIFO as ClusterQueues over nodes that they share: quota is what each pool has."""
    if history.kueue is not None:
        raise InputError("scheduler.rules", change.rules, "left out: the history is of Kueue")
    if change.from_ms is not None:
        raise InputError("scheduler.from", change.from_ms, "no from beside rules: they hold from the begin")
    kinds: dict[object, str] = {}
    merged: dict[str, list[PoolRecord]] = {}
    flavor_of = {}
    for name, pool in sorted(history.pools.items()):
        kind = (pool.model, pool.gpus, pool.price, pool.later_prices)
        flavor = kinds.setdefault(
            kind, f"{pool.model or 'gpu'}-{len(kinds) + 1}" if kinds else pool.model or "gpu"
        )
        merged.setdefault(flavor, []).append(pool)
        flavor_of[name] = flavor
    pools = {
        flavor: replace(
            own[0], name=flavor, steps=_summed([each.steps for each in own]), flavor=flavor, resource=GPU
        )
        for flavor, own in merged.items()
    }
    queues, later = {}, []
    for name, pool in sorted(history.pools.items()):
        key = FlavorResource(flavor_of[name], GPU)
        queue = ClusterQueue(
            ObjectMeta(f"queue {name}", "", name, 0, {}, {}),
            change.cohort,
            groups=(ResourceGroup((GPU,), (flavor_of[name],)),),
            quotas={key: FlavorQuota(pool.steps[0][1] * pool.gpus)},
        )
        queues[queue.meta.uid] = queue
        later += [
            (at_ms, replace(queue, quotas={key: FlavorQuota(nodes * pool.gpus)}))
            for at_ms, nodes in pool.steps[1:]
        ]
    flavors = {each: ResourceFlavor(ObjectMeta(f"flavor {each}", "", each, 0, {}, {})) for each in pools}
    state = ClusterState(0, cluster_queues=queues, flavors=flavors)
    jobs = tuple(
        replace(
            job,
            pool=flavor_of[job.pool or job.queue],
            pod_sets=_one_pod(job.gpus),
        )
        for job in history.jobs
    )
    config = KueueConfig(change.version or "v0.19.2", bool(change.fair_sharing))
    return KueueRecord(state, config, changes=tuple(sorted(later, key=lambda each: each[0]))), pools, jobs


@lru_cache(maxsize=1024)
def _one_pod(gpus: int) -> tuple[PodSetRequest, ...]:
    return (PodSetRequest("main", 1, 1, {GPU: gpus}, PodTemplate({})),)


def _summed(steps: Sequence[Sequence[tuple[int, int]]]) -> tuple[tuple[int, int], ...]:
    begin_ms = min(each[0][0] for each in steps)
    edges = sorted({at_ms for each in steps for at_ms, _ in each})
    return tuple(
        (
            edge,
            sum(
                [count for at_ms, count in each if at_ms <= max(edge, each[0][0], begin_ms)][-1]
                for each in steps
            ),
        )
        for edge in edges
    )
