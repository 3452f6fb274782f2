"""The collector: everything it exports is a function of the cluster's state and of what ended of late."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucost.cluster.overview import Overview
from gpucost.cluster.ownership import OwnerKeys
from gpucost.cluster.problems import ProblemCode
from gpucost.contract.queue_metrics import STATE_PROBLEMS
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.collections import Collection
from gpucost.kube.connect.transport import Transport
from gpucost.kube.reflector import ReflectorSettings
from gpucost.kube.watch import SETTINGS as WATCH_SETTINGS
from gpucost.kube.watch import Clocks, ClusterWatch, OnChange
from gpucost_exporter_base.messages import Request, Response
from gpucost_queue_collector import (
    gang_series,
    node_series,
    pod_series,
    queue_series,
    self_series,
    workload_series,
)
from gpucost_queue_collector.claims import ClaimMemory
from gpucost_queue_collector.ended import Ended
from gpucost_queue_collector.gang_series import Stalls, write_gang
from gpucost_queue_collector.namespace_limit import NamespaceLimit
from gpucost_queue_collector.node_series import GpuNode, GpuNodes, write_node
from gpucost_queue_collector.page import Page
from gpucost_queue_collector.pod_series import (
    WAITING_LIMIT,
    HeldPod,
    held_pods,
    waiting_pods,
    write_held,
    write_waiting,
)
from gpucost_queue_collector.queue_series import (
    LOCAL_LIMIT,
    write_cluster_queue,
    write_cohort,
    write_local_queue,
    write_volcano_queue,
)
from gpucost_queue_collector.rows import Rows
from gpucost_queue_collector.self_series import Self, write_problems, write_self
from gpucost_queue_collector.workload_series import (
    JOB_LIMIT,
    WAITING_JOB,
    WORKLOAD_LIMIT,
    ShownWorkload,
    shown_workloads,
    waiting_jobs,
    write_waiting_job,
    write_workload,
)

logger = logging.getLogger(__name__)

LONGEST_SILENCE_S = 60.0
"""A view of pods and nodes that is older, because the API server cannot be read, is not current."""
SELF_INTERVAL_S = 1.0
"""How old what the collector says of itself may be: scrapes within it are answered with the same page."""


PODS, NODES = "pods", "nodes"
NEEDED = frozenset({PODS, NODES})
"""Parts without which the heartbeat would be a lie."""

CLAIMS, SLICES = "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io"


REST = 4
"""Of the time, renewing the series takes at most a fifth."""


def pause_s(interval_s: float, took_s: float) -> float:
    """From one renewal to the next: so long that events are not held up, but not so long that the page would
    be too old for the heartbeat before the next one is done."""
    return max(interval_s, min(REST * took_s, LONGEST_SILENCE_S - 3 * took_s))


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the settings decides what series say."""

    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owner_keys: OwnerKeys = field(default_factory=OwnerKeys)
    node_labels: Sequence[str] = ()
    replicas: int = 1
    most_per_namespace: int = 2_000


@dataclass(frozen=True, slots=True)
class Part:
    """Series of one kind: ``facts`` are the rows by key, worked out at each refresh; with a ``limit`` no more
    of a namespace than the settings allow."""

    name: str
    rows: Rows[Any]
    facts: Callable[[Overview], Mapping[str, Any]]
    limit: NamespaceLimit[Any] | None = None


class Collector:
    """Watches ``collections`` over ``transport``; its page has the series as of the last ``refresh``.

    ``start`` begins to watch; ``refresh`` is for one thread, ``run`` does it again and again until ``close``.
    A part of the series that cannot be made stays as it was, is reported and counted, and holds up no other.
    """

    def __init__(
        self,
        transport: Transport,
        collections: Sequence[Collection],
        rules: Rules | None = None,
        clocks: Clocks | None = None,
        settings: ReflectorSettings = WATCH_SETTINGS,
        further: Iterable[Part] = (),
    ) -> None:
        self._rules, self._clocks = rules or Rules(), clocks or Clocks()
        self._ended, self._claims = Ended(self._clocks.now_ms), ClaimMemory(self._clocks.now_ms)
        listeners: Mapping[str, OnChange] = {
            "pods": self._ended.pod_changed,
            "nodes": self._ended.node_changed,
            CLAIMS: self._claims.claim_changed,
        }
        self.watch = ClusterWatch(transport, collections, listeners, settings, self._clocks)
        self._gpu_nodes = GpuNodes(self._rules.catalog, self._rules.node_labels)
        self._held: Mapping[str, HeldPod] = {}
        self._stalls = Stalls()
        self._workloads: Mapping[str, ShownWorkload] = {}
        self._self = Rows(self_series.SPECS, write_self)
        self._parts = (*self._make_parts(), *further)
        self._failures: Counter[str] = Counter({part.name: 0 for part in self._parts})
        self._failed: frozenset[str] = frozenset()
        self._others = {part.name: 0 for part in self._parts if part.limit is not None}
        self._crowded = set[str]()
        self._shows_current = False
        self._needed = self.watch.required
        self._closed = threading.Event()
        self._telling = threading.Lock()
        self._told: tuple[float, bool] | None = None  # when the self rows were renewed, with which heartbeat
        self.refreshed_ms: int | None = None
        self._refreshed_s: float | None = None
        """When series were last brought up to date."""
        rows = (self._self, *(part.rows for part in self._parts))
        self.page = Page([each.table for each in rows])

    def start(self) -> None:
        """Begin to watch; once."""
        self.watch.start()

    def close(self) -> None:
        """Stop watching, and ``run``."""
        self._closed.set()
        self.watch.close()

    def run(self, interval_s: float, then: Callable[[], object] = lambda: None) -> None:
        """Refresh every ``interval_s``, and call ``then``, until ``close``. Where a refresh takes long, less
        often: events are more urgent, and the same threads of one interpreter follow them."""
        while not self._closed.is_set():
            began_s = self._clocks.monotonic_s()
            try:
                self.refresh()
                then()
            except Exception:
                # A mistake of ours must not end the rest; the heartbeat says how it stands.
                logger.exception("the series could not be renewed")
            took_s = self._clocks.monotonic_s() - began_s
            self._closed.wait(pause_s(interval_s, took_s))

    def refresh(self) -> Overview:
        """Bring the page up to date with what has been seen; what it shows changes all at once."""
        # Before the snapshot: a page of what was known before the server was heard again is an old one.
        now_ms, begun_s = self._clocks.now_ms(), self._clocks.monotonic_s()
        current = self.watch.current(LONGEST_SILENCE_S)
        overview = self.overview()
        made, failed = [], set()
        for part in self._parts:
            try:
                made.append((part, self._limited(part, part.facts(overview))))
            except Exception:
                failed.add(part.name)
                self._report(part)
        with self.page.update():
            for part, facts in made:
                try:
                    part.rows.update(facts)
                except Exception:
                    failed.add(part.name)
                    self._report(part)
        further: frozenset[str] = frozenset() if PODS in failed else _needed_for_claims(overview)
        self._needed = self.watch.required | further
        self._shows_current = self._needed <= current
        self._failed, self.refreshed_ms = frozenset(failed), now_ms
        self._refreshed_s = begun_s
        self._told = None
        return overview

    def overview(self) -> Overview:
        """The cluster as it is known now, with what ended of late."""
        # What is remembered is taken after the state: it knows all that the state ever had.
        state = self.watch.snapshot()
        ended, history = self._ended.pods(), self._claims.history()
        return Overview(state, self._rules.catalog, self._rules.owner_keys, ended, history)

    def _limited(self, part: Part, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        if part.limit is None:
            return facts
        rows, beyond = part.limit.rows(facts, self._rules.most_per_namespace)
        if beyond and part.name not in self._crowded:  # once: whoever floods must not flood the log as well
            self._crowded.add(part.name)
            logger.warning(
                "%d of the %s have no series of their own: a namespace has more than most_per_namespace (%d)",
                *(beyond, part.name.replace("_", " "), self._rules.most_per_namespace),
            )
        self._others[part.name] = beyond
        return rows

    def _report(self, part: Part) -> None:
        """To be called in an except clause."""
        self._failures[part.name] += 1
        if part.name not in self._failed:  # once, not at every refresh
            logger.exception("the series of %s could not be made; the old ones stay", part.name)

    def answer(self, request: Request) -> Response:
        """The route of /metrics. The heartbeat is as of now, not of the last refresh; what else the collector
        says of itself as of at most SELF_INTERVAL_S ago."""
        with self._telling:
            now_s, is_current = self._clocks.monotonic_s(), self.is_current
            told = self._told
            if told is None or told[1] != is_current or now_s - told[0] >= SELF_INTERVAL_S:
                self._told = now_s, is_current  # before they are looked at: a refresh meanwhile undoes it
                with self.page.update():
                    self._self.update({"self": self._about_itself()})
        return self.page.answer(request)

    @property
    def is_current(self) -> bool:
        """Whether the series show pods and nodes as they are: the heartbeat."""
        since_s = self._refreshed_s
        is_fresh = since_s is not None and self._clocks.monotonic_s() - since_s <= LONGEST_SILENCE_S
        is_shown = is_fresh and self._shows_current and not self._failed & NEEDED
        return is_shown and self._needed <= self.watch.current(LONGEST_SILENCE_S)

    def _make_parts(self) -> Iterator[Part]:
        yield Part(PODS, Rows(pod_series.HELD, write_held), self._held_pods)
        yield Part("waiting_pods", Rows(pod_series.WAITING, write_waiting), waiting_pods, WAITING_LIMIT)
        yield Part(NODES, Rows(node_series.SPECS, write_node), self._nodes)
        workloads = Rows(workload_series.SPECS, write_workload)
        yield Part("workloads", workloads, self._shown_workloads, WORKLOAD_LIMIT)
        yield Part("waiting_jobs", Rows(WAITING_JOB, write_waiting_job), waiting_jobs, JOB_LIMIT)
        yield Part(
            "gangs",
            Rows(gang_series.SPECS, write_gang),
            lambda o: self._stalls.find(o.gangs, o.state.at_ms),
            gang_series.LIMIT,
        )
        yield Part(
            "cluster_queues",
            Rows(queue_series.CLUSTER_QUEUE, write_cluster_queue),
            lambda o: o.queues.cluster_queues,
        )
        yield Part("cohorts", Rows(queue_series.COHORT, write_cohort), lambda o: o.queues.cohorts)
        yield Part(
            "local_queues",
            Rows(queue_series.LOCAL_QUEUE, write_local_queue),
            lambda o: {"/".join(name): view for name, view in o.queues.local_queues.items()},
            LOCAL_LIMIT,
        )
        yield Part(
            "volcano_queues",
            Rows(queue_series.VOLCANO_QUEUE, write_volcano_queue),
            lambda o: o.volcano_queues,
        )
        yield Part("problems", Rows((STATE_PROBLEMS,), write_problems), _problems)

    def _held_pods(self, overview: Overview) -> Mapping[str, HeldPod]:
        self._held = held_pods(overview, self._held)
        self._claims.remember(overview)
        return self._held

    def _shown_workloads(self, overview: Overview) -> Mapping[str, ShownWorkload]:
        self._workloads = shown_workloads(overview, self._workloads)
        return self._workloads

    def _nodes(self, overview: Overview) -> Mapping[str, GpuNode]:
        nodes = overview.state.nodes.values()
        return self._gpu_nodes.find(nodes, self._ended.nodes(nodes), overview.published)

    def _about_itself(self) -> Self:
        return Self(
            self.is_current,
            self._rules.replicas,
            self.refreshed_ms,
            self.watch.statuses(),
            self.watch.counts(),
            self.watch.errors(),
            dict(self._failures),
            self._failed,
            dict(self._others),
        )


def _needed_for_claims(overview: Overview) -> frozenset[str]:
    """Collections that pods with claims are not rightly shown without: slices name the devices."""
    bound = [
        pod for pod in overview.state.pods.values() if pod.is_bound and (pod.claims or pod.backing_claim)
    ]
    needed = set()
    if any(pod.claims for pod in (*bound, *overview.ended)):
        needed.add(CLAIMS)
    if overview.units.devices.shares or any(pod.backing_claim for pod in bound):
        needed.add(SLICES)
    return frozenset(needed)


def _problems(overview: Overview) -> Mapping[str, tuple[str, int]]:
    counts = Counter(problem.code.value for problem in overview.problems)
    return {code: (code, counts[code]) for code in ProblemCode}
