"""What was observed of a cluster in a month, as a history: from a telemetry source (Prometheus, a recording),
with prices from the ledger and what only the cluster's objects say.

A batch job is one arrival: all pods it held at once, from the first instant it was seen waiting; a server or
a notebook is one arrival for each pod, since its pods come and go by themselves. Each keeps the flavor, or
the pool of nodes, that it ran on: no source says whether another would have done. What could not be known
stands in ``limits``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from math import isnan
from operator import itemgetter
from typing import Any, NamedTuple

import pandas as pd

from gpucost.advisor.kueue.requests import PodSetRequest
from gpucost.advisor.replay.history_record import (
    HistoryJob,
    JobRecord,
    KueueRecord,
    PoolRecord,
    ReplayHistory,
    with_shared_pod_sets,
)
from gpucost.advisor.replay.kueue_replay import ReplayTimings
from gpucost.advisor.replay.replay_timeline import StoryEviction
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import CONDITIONS, TeamRules
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
    ResourceFlavor,
    ResourceGroup,
    Topology,
)
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis, parse_product
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import DAY_MS, MINUTE_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.service.replay.ledger_prices import observed_prices
from gpucost.service.replay.observed_volcano import ObservedVolcano, observed_volcano
from gpucost.telemetry.interval_source import IntervalSource

FRAMES = ("allocations", "nodes", "capacity", "demand", "evictions", "quotas", "cohorts")
LEAVES_MS = 30_000
"""Kubernetes' own termination grace period: how long a preempted workload holds its quota."""
_TOGETHER_MS = 10 * MINUTE_MS
"""Pods of a batch job that begin this close to each other, or overlap, are one run."""
_NEAR_MS = 2 * MINUTE_MS
_FLAVOR_LABEL = "gpucost.replay/flavor"
_ANYWHERE: Mapping[str, str] = {"unconstrained": "true"}
"""The topology request of a job of which none is known, in a flavor that has a topology."""
Row = dict[str, Any]


@dataclass(frozen=True)
class ObservedCluster:
    """What a history is made from. ``state`` are the cluster's objects as they are now, where they are known;
    ``ledger`` says what a GPU-hour of each node cost."""

    source: IntervalSource
    cluster: str
    window: Window
    teams: TeamRules
    basis: ShareBasis = ShareBasis.COMPUTE
    ledger: Ledger | None = None
    state: ClusterState | None = None

    def history(self, name: str) -> ReplayHistory:
        """Raises SourceError, and InputError where the source holds nothing of the window."""
        covered = self.source.covered(self.cluster)
        known = None if covered is None else covered.intersect(self.window)
        if known is None:
            raise InputError("MONTH", name, f"a time of which {self.source.name} holds something: {covered}")
        days = [self.source.history(self.cluster, day, FRAMES) for day in known.split(DAY_MS)]
        return _Builder(self, name, known, days).history()


class _Pod(NamedTuple):
    """A pod with its held time in one piece."""

    uid: str
    start_ms: int
    end_ms: int
    row: Row

    @property
    def job(self) -> str:
        return str(self.row["job_uid"] or self.row["pod_uid"])


class _Builder:
    def __init__(
        self, observed: ObservedCluster, name: str, window: Window, days: list[ClusterFrames]
    ) -> None:
        self.of, self.name, self.window = observed, name, window
        self.frames = days
        self.limits: list[str] = []
        self.volcano: ObservedVolcano | None = None
        self.demand = _by_job(_rows(day.demand for day in days))
        self.evictions = _by_job(_rows(day.evictions for day in days))
        self.pods = _pods(_rows(day.allocations for day in days))
        self.pool_of_node = self._pool_names()
        self.prices, why = observed_prices(observed.ledger, observed.cluster, window)
        self.limits += [why] if why else []
        self.pools = self._pools()

    def history(self) -> ReplayHistory:
        kueue = self._kueue()
        self._find_volcano(has_kueue=kueue is not None)
        jobs = with_shared_pod_sets(self._jobs(kueue))
        if self.window != self.of.window:
            self.limits.append(f"time: the source holds {self.window} only")
        for name, why in sorted({(name, why) for day in self.frames for name, why in day.lacks.items()}):
            if name in FRAMES:
                self.limits.append(f"{name}: {why}")
        currency = (self.of.ledger.currency or "") if self.of.ledger is not None else ""
        return ReplayHistory(
            self.name,
            self.window,
            jobs,
            self.pools,
            kueue,
            None if self.volcano is None else self.volcano.record,
            currency=currency,
            cluster=self.of.cluster,
            ledger=None if self.prices is None else self.prices.cost,
            limits=tuple(self.limits),
        )

    def _pool_names(self) -> dict[str, str]:
        """By node: the flavor that most of its pods had, else its pool, else its model."""
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for pod in self.pods:
            if pod.row["flavor"]:
                seen[pod.row["node"]][pod.row["flavor"]] += 1
        found = {}
        for row in _rows(day.nodes for day in self.frames):
            flavors = seen[row["node"]]
            # The most frequent, of several the first by name: a node in two flavors is counted in one.
            named = min(flavors, key=lambda each: (-flavors[each], each)) if flavors else ""
            found[row["node"]] = named or row["pool"] or parse_product(row["product"]).model
        return found

    def _pools(self) -> dict[str, PoolRecord]:
        products = {row["node"]: row["product"] for row in _rows(day.nodes for day in self.frames)}
        spans: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in _rows(day.capacity for day in self.frames):
            pool = self.pool_of_node.get(row["node"])
            if pool is not None:
                spans[pool, row["resource"]].append(row)
        resources = Counter(pool for pool, _ in spans)
        found = {}
        for (pool, resource), rows in sorted(spans.items()):
            sizes = Counter(row["allocatable"] for row in rows if row["allocatable"] > 0)
            if not sizes:
                continue
            gpus = max(sizes, key=lambda each: (sizes[each], each))
            if len(sizes) > 1:
                self.limits.append(
                    f"nodes of {pool}: not all offer {gpus} units of {resource}; one with less than half of "
                    "it counts as gone"
                )
            name = pool if resources[pool] == 1 else f"{pool}/{resource.rpartition('/')[2]}"
            nodes = sorted({row["node"] for row in rows})
            product, replicas = products.get(nodes[0], ""), max(row["replicas"] for row in rows)
            steps = [] if self.prices is None else self.prices.steps(nodes)
            found[name] = PoolRecord(
                name,
                gpus,
                _steps(rows, gpus, self.window),
                parse_product(product).model,
                steps[0][1] if steps else None,
                pool,
                resource,
                self._share(resource, product, replicas),
                labels=self._labels(pool, nodes),
                later_prices=tuple(steps[1:]),
                node_names=tuple(nodes),
            )
        return found

    def _levels(self, flavor: str) -> tuple[str, ...]:
        """Of its topology; empty where it has none, or nobody knows."""
        if self.of.state is None:
            return ()
        known = {each.meta.name: each.levels for each in self.of.state.topologies.values()}
        named = self.of.state.flavor_by_name.get(flavor)
        return () if named is None else known.get(named.topology, ())

    def _labels(self, flavor: str, nodes: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """Of each node those that its flavor's topology is about, as they are now."""
        levels = self._levels(flavor)
        if not levels or self.of.state is None:
            return ()
        known = {each.meta.name: each.meta.labels for each in self.of.state.nodes.values()}
        found = tuple(
            {level: own[level] for level in levels if level in own}
            for own in (known.get(node, {}) for node in nodes)
        )
        gone = sum(len(each) < len(levels) for each in found)
        if gone == len(found):
            self.limits.append(f"topology of {flavor}: none of its nodes is there now; pods stand anywhere")
            return ()
        told = f"topology of {flavor}: domains are those that nodes have now; the last goes first"
        if gone:
            told += f"; {gone} of {len(found)} are in none now, and take only who asks for no domain"
        if told not in self.limits:
            self.limits.append(told)
        return found

    def _share(self, resource: str, product: str, replicas: int) -> Fraction:
        try:
            return ResourceCatalog().unit(resource, product, max(1, replicas), self.of.basis).share
        except InputError:
            self.limits.append(
                f"{resource} on {product}: nothing says what part of a GPU it is; counted whole"
            )
            return Fraction(1)

    def _jobs(self, kueue: KueueRecord | None) -> Iterator[HistoryJob]:
        queues = set() if kueue is None else {each.name for each in kueue.state.cluster_queues.values()}
        queues |= set() if self.volcano is None else self.volcano.record.queues.keys()
        priorities = _priorities(self.of.state)
        topologies = _topologies(self.of.state)
        by_job: dict[str, list[_Pod]] = defaultdict(list)
        alone: list[_Pod] = []
        for pod in self.pods:
            kind = pod.row["job_kind"]
            is_batch = (
                workload_class(JobKind(kind) if kind in set(JobKind) else JobKind.JOB) is WorkloadClass.BATCH
            )
            if is_batch and pod.row["job_uid"]:
                by_job[pod.row["job_uid"]].append(pod)
            else:
                alone.append(pod)
        unknown = lacking = 0
        for pods in [*by_job.values(), *([pod] for pod in alone)]:
            for n, runs in enumerate(self._attempts(pods)):
                job = self._job(runs, n, queues, priorities, topologies)
                if job is None:
                    lacking += 1
                    continue
                named = pods[0].row["namespace"], pods[0].row["workload"]
                unknown += job.queue != "" and named not in priorities
                yield job
        ran = by_job.keys() | {pod.job for pod in alone}
        waits = len(self.demand.keys() - ran)
        if waits:
            self.limits.append(f"run times: {waits:,} jobs waited and never ran; they are left out")
        if lacking:
            self.limits.append(
                f"nodes: {lacking:,} jobs ran where no capacity was observed; they are left out"
            )
        if unknown:
            self.limits.append(f"priorities: of {unknown:,} jobs nothing says one; they count as 0")

    def _attempts(self, pods: list[_Pod]) -> Iterator[list[list[_Pod]]]:
        """Runs that belong together: one that was evicted, and those after it until it ended by itself. A
        retry after a failure is an arrival of its own."""
        pods.sort(key=lambda each: (each.start_ms, each.uid))
        stops = [each["end_ms"] for each in self.evictions.get(pods[0].row["job_uid"], ())]
        attempt: list[list[_Pod]] = []
        for run in _runs(pods):
            attempt.append(run)
            ended_ms = max(each.end_ms for each in run)
            if not any(abs(at_ms - ended_ms) <= _NEAR_MS for at_ms in stops):
                yield attempt
                attempt = []
        if attempt:
            yield attempt

    def _job(
        self,
        runs: list[list[_Pod]],
        number: int,
        queues: set[str],
        priorities: Mapping[tuple[str, str], int],
        topologies: Mapping[tuple[str, str, str, int], Mapping[str, str]],
    ) -> HistoryJob | None:
        first, last = runs[0][0], runs[-1]
        pods = [pod for run in runs for pod in run]
        row = first.row
        is_one = workload_class_of(row) is not WorkloadClass.BATCH or not row["job_uid"]
        uid = first.uid if is_one else first.job
        sets = _pod_sets(last)
        pool = self.pool_of_node.get(row["node"], "")
        own = {each.resource: name for name, each in self.pools.items() if each.flavor == pool}
        if not pool or any(resource not in own for resource, _ in sets):
            return None
        flavor = row["flavor"] or pool
        template = PodTemplate({}, node_selector={_FLAVOR_LABEL: flavor})
        named, has_domains = (row["namespace"], row["workload"]), bool(self._levels(flavor))
        asked = tuple(
            PodSetRequest(
                f"set-{n}",
                count,
                count,
                {resource: units},
                template,
                topologies.get((*named, resource, units), _ANYWHERE) if has_domains else {},
            )
            for n, ((resource, units), count) in enumerate(sorted(sets.items()))
        )
        begun_ms, ended_ms = min(each.start_ms for each in last), max(each.end_ms for each in last)
        lasts = ended_ms >= self.window.end_ms
        uids = {each.uid for each in pods}
        told = (each for each in self.evictions.get(row["job_uid"], ()) if each["pod_uid"] in uids)
        evicted = tuple(StoryEviction(each["end_ms"], each["reason"], each["by"]) for each in _once(told))
        was_killed = any(abs(each.at_ms - ended_ms) <= _NEAR_MS for each in evicted)
        starts = tuple(min(each.start_ms for each in run) for run in runs)
        holder = {name: str(row.get(name, "")) for name in CONDITIONS}
        queue = row["cluster_queue" if self.volcano is None else "queue"]
        group = None if self.volcano is None else self.volcano.groups.get(named)
        return HistoryJob(
            uid=f"{uid}#{number}" if number else uid,
            created_ms=self._created_ms(row["job_uid"], starts[0], number, is_one=is_one),
            run_ms=max(1, ended_ms - begun_ms),
            gpus=sum(units * count for (_, units), count in sets.items()),
            queue=queue if queue in queues else "",
            pool=min(own[resource] for resource, _ in sets),
            name=f"{row['namespace']}/{row['job'] or row['pod']}",
            team=self.of.teams.team_of(holder, starts[0]),
            user=row["user"],
            priority=priorities.get(named, 0),
            pod_sets=asked,
            is_censored=lasts or was_killed,
            record=JobRecord(starts, evicted, None if lasts else ended_ms),
            min_member=0 if group is None else group.min_member,
            topology={} if group is None else group.topology,
        )

    def _created_ms(self, job_uid: str, start_ms: int, number: int, *, is_one: bool) -> int:
        """Since when it was seen waiting for this start. What ran when the window began came before it: how
        long it had waited nobody knows."""
        if start_ms <= self.window.start_ms:
            return self.window.start_ms - 1
        waits = (
            [] if is_one else [each for each in self.demand.get(job_uid, ()) if each["start_ms"] <= start_ms]
        )
        if not waits:
            return start_ms
        if not number:
            return int(min(each["start_ms"] for each in waits))
        # Of a retry the last stretch of waiting that reaches its start.
        since_ms = start_ms
        for each in sorted(waits, key=itemgetter("start_ms"), reverse=True):
            if each["end_ms"] >= since_ms - _NEAR_MS:
                since_ms = min(since_ms, each["start_ms"])
        return int(since_ms)

    def _kueue(self) -> KueueRecord | None:
        """Queues as the source saw their quota of GPUs; the rest of them as the cluster's objects have it."""
        rows: dict[str, list[Row]] = defaultdict(list)
        for row in _rows(day.quotas for day in self.frames):
            if row["scheduler"] == "kueue" and not isnan(row["nominal"]):
                rows[row["queue"]].append(row)
        if not rows:
            return None
        known = {} if self.of.state is None else self.of.state.cluster_queue_by_name
        queues: dict[str, ClusterQueue] = {}
        changes: list[tuple[int, ClusterQueue]] = []
        guessed = sorted(rows.keys() - known.keys())
        for name, own in sorted(rows.items()):
            base = known.get(name) or ClusterQueue(ObjectMeta(f"queue {name}", "", name, 0, {}, {}))
            steps = list(_queue_steps(base, own, self.window))
            queues[base.meta.uid] = steps[0][1]
            changes += steps[1:]
        if guessed:
            listed = ", ".join(guessed[:5]) + (" and others" if len(guessed) > 5 else "")
            self.limits.append(
                f"policies of {listed}: no object of them is known, so that nothing is preempted and the "
                "order is BestEffortFIFO"
            )
        else:
            self.limits.append("policies: preemption and queueing are those that the objects have now")
        flavors = sorted({row["flavor"] for own in rows.values() for row in own})
        labelled = {
            f"flavor {each}": ResourceFlavor(
                ObjectMeta(f"flavor {each}", "", each, 0, {}, {}),
                {_FLAVOR_LABEL: each},
                topology=each if self._levels(each) else "",
            )
            for each in flavors
        }
        domains = {
            f"topology {each}": Topology(ObjectMeta(f"topology {each}", "", each, 0, {}, {}), levels)
            for each in flavors
            if (levels := self._levels(each))
        }
        state = ClusterState(
            self.window.start_ms,
            cluster_queues=queues,
            flavors=labelled,
            cohorts=dict(self._cohorts()),
            topologies=domains,
        )
        config = (
            self.of.state.schedulers.kueue if self.of.state is not None else ClusterState(0).schedulers.kueue
        )
        self.limits.append("resources: quota of GPUs only; cpu and memory hold nobody here")
        changes.sort(key=lambda each: (each[0], each[1].name))
        return KueueRecord(state, config, ReplayTimings(LEAVES_MS), tuple(changes))

    def _find_volcano(self, *, has_kueue: bool) -> None:
        rows = (row for row in _rows(day.quotas for day in self.frames) if row["scheduler"] == "volcano")
        found = observed_volcano(rows, self.of.state, self.window)
        if found is not None and has_kueue:
            self.limits.append("queues of Volcano beside Kueue's: their jobs wait for nodes only")
        elif found is not None:
            self.volcano = found
            self.limits += found.limits

    def _cohorts(self) -> Iterator[tuple[str, Cohort]]:
        """As they were first seen."""
        found: dict[str, Cohort] = {}
        for row in _rows(day.cohorts for day in self.frames):
            name = row["cohort"]
            cohort = found.setdefault(
                name, Cohort(ObjectMeta(f"cohort {name}", "", name, 0, {}, {}), row["parent"])
            )
            key = FlavorResource(row["flavor"], row["resource"])
            if row["flavor"] and key not in cohort.quotas:
                quota = FlavorQuota(_whole(row["nominal"]) or 0, None, _whole(row["lending_limit"]))
                quotas = {**cohort.quotas, key: quota}
                groups = (
                    ResourceGroup(
                        tuple({each.resource: None for each in quotas}),
                        tuple({each.flavor: None for each in quotas}),
                    ),
                )
                found[name] = replace(cohort, quotas=quotas, groups=groups)
        for cohort in found.values():
            yield cohort.meta.uid, cohort


def workload_class_of(row: Row) -> WorkloadClass:
    kind = row["job_kind"]
    return workload_class(JobKind(kind)) if kind in set(JobKind) else WorkloadClass.UNKNOWN


def _rows(frames: Iterable[pd.DataFrame]) -> Iterator[Row]:
    for frame in frames:
        names = [str(name) for name in frame.columns]
        for values in zip(*(frame[name].tolist() for name in names), strict=True):
            yield dict(zip(names, values, strict=True))


def _by_job(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["job_uid"]].append(row)
    return found


def _pods(rows: Iterable[Row]) -> list[_Pod]:
    """Rows of one pod and resource, end to end over days and labels, as one."""
    found: dict[tuple[str, str], _Pod] = {}
    for row in rows:
        key = row["pod_uid"], row["resource"]
        old = found.get(key)
        if old is None:
            found[key] = _Pod(row["pod_uid"], row["start_ms"], row["end_ms"], row)
        else:
            found[key] = old._replace(
                start_ms=min(old.start_ms, row["start_ms"]), end_ms=max(old.end_ms, row["end_ms"])
            )
    return sorted(found.values(), key=lambda each: (each.start_ms, each.uid, each.row["resource"]))


def _runs(pods: Sequence[_Pod]) -> Iterator[list[_Pod]]:
    """Pods (ascending) of a job, by the runs that they were in."""
    run: list[_Pod] = []
    for pod in pods:
        if (
            run
            and pod.start_ms >= max(each.end_ms for each in run)
            and (
                pod.start_ms - run[0].start_ms > _TOGETHER_MS
                or pod.start_ms > min(each.end_ms for each in run)
            )
        ):
            yield run
            run = []
        run.append(pod)
    yield run


def _pod_sets(run: Sequence[_Pod]) -> dict[tuple[str, int], int]:
    """The most pods at once, by resource and units."""
    events = sorted(
        event
        for pod in run
        for key in [(pod.row["resource"], int(pod.row["count"]))]
        for event in ((pod.start_ms, 1, key), (pod.end_ms, -1, key))
    )
    now: Counter[tuple[str, int]] = Counter()
    most: dict[tuple[str, int], int] = {}
    for _, group in groupby(events, key=itemgetter(0)):
        for _, step, key in group:
            now[key] += step
        for key, count in now.items():
            if count > most.get(key, 0):
                most[key] = count
    return most


def _once(rows: Iterable[Row]) -> Iterator[Row]:
    """Evictions of a job: pods that were stopped together are one."""
    last_ms = None
    for row in sorted(rows, key=itemgetter("end_ms", "pod_uid")):
        if last_ms is None or row["end_ms"] - last_ms > _NEAR_MS:
            last_ms = row["end_ms"]
            yield row


def _steps(rows: Sequence[Row], gpus: int, window: Window) -> tuple[tuple[int, int], ...]:
    """How many nodes offered at least half of what a node has, over time."""
    there = [row for row in rows if row["schedulable"] and row["allocatable"] * 2 >= gpus]
    edges = sorted({window.start_ms, *(row[name] for row in there for name in ("start_ms", "end_ms"))})
    found: list[tuple[int, int]] = []
    for edge in edges:
        if edge >= window.end_ms:
            break
        count = sum(row["start_ms"] <= edge < row["end_ms"] for row in there)
        if not found or found[-1][1] != count:
            found.append((edge, count))
    return tuple(found)


def _queue_steps(
    base: ClusterQueue, rows: Sequence[Row], window: Window
) -> Iterator[tuple[int, ClusterQueue]]:
    """The queue at the begin, and again at each instant where its quota or its cohort is another."""
    keys = sorted({(row["flavor"], row["resource"]) for row in rows})
    order = [flavor for group in base.groups for flavor in group.flavors]
    ranked = sorted(keys, key=lambda each: (order.index(each[0]) if each[0] in order else len(order), each))
    groups = _groups(ranked)
    quotas: dict[FlavorResource, FlavorQuota] = {FlavorResource(*key): FlavorQuota(0) for key in keys}
    cohort, last, is_first = base.cohort, None, True
    for at_ms, own in groupby(sorted(rows, key=itemgetter("start_ms")), key=itemgetter("start_ms")):
        for row in own:
            limits = _whole(row["borrowing_limit"]), _whole(row["lending_limit"])
            quotas[FlavorResource(row["flavor"], row["resource"])] = FlavorQuota(
                _whole(row["nominal"]) or 0, *limits
            )
            cohort = row["own_cohort"] or row["cohort"]
        if last != (quotas, cohort):
            last = dict(quotas), cohort
            queue = replace(
                base, cohort=cohort, groups=groups, quotas=dict(quotas), conditions={}, stop_policy="None"
            )
            yield window.start_ms if is_first else at_ms, queue
            is_first = False


def _groups(keys: Sequence[tuple[str, str]]) -> tuple[ResourceGroup, ...]:
    """One group for each set of resources that share flavors."""
    flavors: dict[str, list[str]] = defaultdict(list)
    for flavor, resource in keys:
        flavors[resource].append(flavor)
    return tuple(ResourceGroup((resource,), tuple(own)) for resource, own in flavors.items())


def _priorities(state: ClusterState | None) -> dict[tuple[str, str], int]:
    if state is None:
        return {}
    return {(each.meta.namespace, each.meta.name): each.priority for each in state.workloads.values()}


def _topologies(state: ClusterState | None) -> Mapping[tuple[str, str, str, int], Mapping[str, str]]:
    """The request of each pod set, by namespace, workload, resource and units of one pod."""
    if state is None:
        return {}
    return {
        (each.meta.namespace, each.meta.name, resource, amount): pods.topology
        for each in state.workloads.values()
        for pods in each.pod_sets
        for resource, amount in pods.template.requests.items()
        if pods.topology
    }


def _whole(amount: float) -> int | None:
    return None if isnan(amount) else round(amount)
