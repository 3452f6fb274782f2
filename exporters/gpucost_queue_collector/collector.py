"""The queue collector: everything it exports is a function of the cluster's state and of what ended of late.

``QueueCollector`` watches pods, nodes, jobs, queues and workloads (``gpucost.kube.watch``). ``refresh`` takes
a snapshot, makes a ``ClusterOverview`` of it, and asks each ``SeriesPart`` for its facts by key;
``SeriesRows`` writes only the rows whose facts changed, and the page changes all at once. A scrape reads the
page and waits for nothing.

State, not events: a series says how things are, with the objects' own timestamps, so that a scrape that is
lost loses nothing, and replicas of the collector say the same. What is over must still be seen by a scrape:
``object_memory`` keeps pods, nodes and claims that ended for ten minutes.

The heartbeat ``gpucost_state_up`` is what bills rest on: a source takes a pod for absent only in scrapes in
which it is 1. So it is 1 only if pods and nodes, and whatever else the series need (claims, slices), were
heard of within 60 s, and the parts of pods and nodes could be made. It is worked out for each scrape, not for
each refresh; what else the collector says of itself is at most 1 s old.

A part that fails keeps its old rows, is counted and logged once, and holds up no other. A namespace that
makes more rows than ``most_per_namespace`` gets one row for the rest: a tenant can flood neither page nor
log. Renewing takes at most a fifth of the time (``pause_s``): events are more urgent.

``assemble`` puts it together; the command ``gpucost-queue-collector`` runs it. Add a series in
``queue_series``, ``pod_series``, ``node_series`` or ``workload_series``, with its metric in
``gpucost.contract``.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.views.nvlink_domains import domain_trays
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.problems import StateProblemCode
from gpucost.cluster.views.sharing_rules import DEFAULT_SHARING, SharingRules
from gpucost.contract import queue_metrics as m
from gpucost.contract.gpu_metrics import SOURCE_ERRORS, SOURCE_UP
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import POD_CLAIM_UNKNOWN, STATE_UP
from gpucost.contract.queue_metrics import STATE_PROBLEMS
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.connect.transport import KubeTransport
from gpucost.kube.parse.collections import ApiCollection
from gpucost.kube.watch.cluster_watch import SETTINGS as WATCH_SETTINGS
from gpucost.kube.watch.cluster_watch import ClusterWatch, OnChange, WatchClocks
from gpucost.kube.watch.object_store import ObjectChange
from gpucost.kube.watch.reflector import ReflectorSettings
from gpucost_exporter_base.endpoint import EndpointRequest, EndpointResponse
from gpucost_queue_collector import node_series, pod_series, queue_series, workload_series
from gpucost_queue_collector.node_series import GpuNode, GpuNodes, write_node, write_tray
from gpucost_queue_collector.object_memory import ClaimMemory, EndedObjects
from gpucost_queue_collector.page import MetricsPage, NamespaceLimit, SeriesRows, line
from gpucost_queue_collector.pod_series import (
    UNKNOWN_CLAIM_LIMIT,
    WAITING_LIMIT,
    GangStalls,
    HeldPod,
    held_pods,
    unknown_claims,
    waiting_pods,
    write_gang,
    write_held,
    write_unknown_claim,
    write_waiting,
)
from gpucost_queue_collector.queue_series import (
    LOCAL_LIMIT,
    write_cluster_queue,
    write_cohort,
    write_local_queue,
    write_volcano_queue,
)
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

SPECS = (
    STATE_UP,
    m.STATE_REPLICAS,
    m.STATE_REFRESHED,
    m.COLLECTION_UP,
    m.COLLECTION_OBJECTS,
    m.COLLECTION_SEEN,
    m.COLLECTION_ERRORS,
    SOURCE_UP,
    SOURCE_ERRORS,
    m.STATE_OTHERS,
)
NO_VERSION = "none"


class CollectorSelf(NamedTuple):
    """``counts`` are objects by collection, ``errors`` by collection and reason; ``failures`` count by part
    of the series, ``failed`` are the parts that could not be renewed the last time; ``others`` count objects
    without series of their own, by part."""

    is_current: bool
    replicas: int
    refreshed_ms: int | None
    collections: Mapping[str, CollectionStatus]
    counts: Mapping[str, int]
    errors: Mapping[tuple[str, str], int]
    failures: Mapping[str, int]
    failed: Collection[str]
    others: Mapping[str, int] = MappingProxyType({})


def write_self(found: CollectorSelf) -> Sequence[bytes]:
    """One text for each of SPECS."""
    by_name = found.collections.items()
    seen = ((name, each.seen_ms) for name, each in by_name)
    refreshed_ms = found.refreshed_ms
    return (
        line(STATE_UP, (), found.is_current),
        line(m.STATE_REPLICAS, (), found.replicas),
        b"" if refreshed_ms is None else line(m.STATE_REFRESHED, (), refreshed_ms / 1000),
        _lines(m.COLLECTION_UP, (((name, _version(each)), _is_up(each)) for name, each in by_name)),
        _lines(m.COLLECTION_OBJECTS, (((name,), n) for name, n in found.counts.items())),
        _lines(m.COLLECTION_SEEN, (((name,), at / 1000) for name, at in seen if at is not None)),
        _lines(m.COLLECTION_ERRORS, found.errors.items()),
        _lines(SOURCE_UP, (((part,), part not in found.failed) for part in found.failures)),
        _lines(SOURCE_ERRORS, (((part,), n) for part, n in found.failures.items())),
        _lines(m.STATE_OTHERS, (((part,), n) for part, n in found.others.items())),
    )


def write_problems(count: tuple[str, int]) -> Sequence[bytes]:
    """The text of STATE_PROBLEMS."""
    return (line(m.STATE_PROBLEMS, count[:1], count[1]),)


def _lines(spec: MetricSpec, samples: Iterable[tuple[tuple[str, ...], float]]) -> bytes:
    return b"".join(line(spec, values, number) for values, number in samples)


def _version(status: CollectionStatus) -> str:
    return NO_VERSION if status.absent else status.version


def _is_up(status: CollectionStatus) -> bool:
    return status.synced and not status.problem


logger = logging.getLogger(__name__)

LONGEST_SILENCE_S = 60.0
"""The age from which a view of pods and nodes is not current, because the API server cannot be read."""
SELF_INTERVAL_S = 1.0
"""The greatest age of the collector's series about itself: scrapes within it are answered with
the same page."""


PODS, NODES = "pods", "nodes"
NEEDED = frozenset({PODS, NODES})
"""Parts without which the heartbeat would be false."""

CLAIMS, SLICES = "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io"


REST = 4
"""Of the time, renewing the series takes at most a fifth."""


def pause_s(interval_s: float, took_s: float) -> float:
    """From one renewal to the next: long enough for events to be processed, but not so long that the page
    would be too old for the heartbeat before the next one is done."""
    return max(interval_s, min(REST * took_s, LONGEST_SILENCE_S - 3 * took_s))


@dataclass(frozen=True, slots=True)
class SeriesRules:
    """The settings that decide what series contain."""

    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owner_keys: OwnerKeys = field(default_factory=OwnerKeys)
    node_labels: Sequence[str] = ()
    replicas: int = 1
    most_per_namespace: int = 2_000
    sharing: SharingRules = DEFAULT_SHARING


@dataclass(frozen=True, slots=True)
class SeriesPart:
    """Series of one kind: ``facts`` are the rows by key, worked out at each refresh; with a ``limit``, of a
    namespace no more than the settings allow."""

    name: str
    rows: SeriesRows[Any]
    facts: Callable[[ClusterOverview], Mapping[str, Any]]
    limit: NamespaceLimit[Any] | None = None


class QueueCollector:
    """Watches ``collections`` over ``transport``; its page has the series as of the last ``refresh``.

    ``start`` begins to watch; ``refresh`` is for one thread, ``run`` does it again and again until ``close``.
    A part of the series that cannot be made stays as it was, is logged and counted, and holds up no other.
    """

    def __init__(
        self,
        transport: KubeTransport,
        collections: Sequence[ApiCollection],
        rules: SeriesRules | None = None,
        clocks: WatchClocks | None = None,
        settings: ReflectorSettings = WATCH_SETTINGS,
        further: Iterable[SeriesPart] = (),
    ) -> None:
        self._rules, self._clocks = rules or SeriesRules(), clocks or WatchClocks()
        self._ended, self._claims = EndedObjects(self._clocks.now_ms), ClaimMemory(self._clocks.now_ms)
        listeners: Mapping[str, OnChange] = {
            "pods": self._pod_changed,
            "nodes": self._ended.node_changed,
            CLAIMS: self._claims.claim_changed,
        }
        self.watch = ClusterWatch(transport, collections, listeners, settings, self._clocks)
        self._gpu_nodes = GpuNodes(self._rules.catalog, self._rules.node_labels)
        self._held: Mapping[str, HeldPod] = {}
        self._stalls = GangStalls()
        self._workloads: Mapping[str, ShownWorkload] = {}
        self._self = SeriesRows(SPECS, write_self)
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
        self.page = MetricsPage([each.table for each in rows])

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        self._claims.pod_changed(change)
        self._ended.pod_changed(change)

    def start(self) -> None:
        """Begin to watch; once."""
        self.watch.start()

    def close(self) -> None:
        """Stop watching, and ``run``."""
        self._closed.set()
        self.watch.close()

    def run(self, interval_s: float, then: Callable[[], object] = lambda: None) -> None:
        """Refresh every ``interval_s``, and call ``then``, until ``close``. Where a refresh takes long, less
        often: events are more urgent, and are processed by threads of the same interpreter."""
        while not self._closed.is_set():
            began_s = self._clocks.monotonic_s()
            try:
                self.refresh()
                then()
            except Exception:
                # An error of ours must not end the rest; the heartbeat shows the state.
                logger.exception("the series could not be renewed")
            took_s = self._clocks.monotonic_s() - began_s
            self._closed.wait(pause_s(interval_s, took_s))

    def refresh(self) -> ClusterOverview:
        """Bring the page up to date with what has been seen; what it shows changes all at once."""
        # Before the snapshot: a page of what was known before the server answered again is an old one.
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

    def overview(self) -> ClusterOverview:
        """The cluster as it is known now, with what ended of late."""
        # Memories are read after the state: they contain all that the state ever had.
        state = self.watch.snapshot()
        ended, history = self._ended.pods(), self._claims.history()
        rules = self._rules
        return ClusterOverview(state, rules.catalog, rules.owner_keys, ended, history, rules.sharing)

    def _limited(self, part: SeriesPart, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        if part.limit is None:
            return facts
        rows, beyond = part.limit.rows(facts, self._rules.most_per_namespace)
        if beyond and part.name not in self._crowded:  # once: who floods the API must not flood the log
            self._crowded.add(part.name)
            logger.warning(
                "%d of the %s have no series of their own: a namespace has more than most_per_namespace (%d)",
                *(beyond, part.name.replace("_", " "), self._rules.most_per_namespace),
            )
        self._others[part.name] = beyond
        return rows

    def _report(self, part: SeriesPart) -> None:
        """To be called in an except clause."""
        self._failures[part.name] += 1
        if part.name not in self._failed:  # once, not at every refresh
            logger.exception("the series of %s could not be made; the old ones stay", part.name)

    def answer(self, request: EndpointRequest) -> EndpointResponse:
        """The route of /metrics. The heartbeat is as of now, not of the last refresh; the other series about
        the collector are at most SELF_INTERVAL_S old."""
        with self._telling:
            now_s, is_current = self._clocks.monotonic_s(), self.is_current
            told = self._told
            if told is None or told[1] != is_current or now_s - told[0] >= SELF_INTERVAL_S:
                self._told = now_s, is_current  # before they are read: a refresh meanwhile undoes it
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

    def _make_parts(self) -> Iterator[SeriesPart]:
        yield SeriesPart(PODS, SeriesRows(pod_series.HELD, write_held), self._held_pods)
        yield SeriesPart(
            "waiting_pods", SeriesRows(pod_series.WAITING, write_waiting), waiting_pods, WAITING_LIMIT
        )
        yield SeriesPart(
            "unknown_claims",
            SeriesRows((POD_CLAIM_UNKNOWN,), write_unknown_claim),
            unknown_claims,
            UNKNOWN_CLAIM_LIMIT,
        )
        yield SeriesPart(NODES, SeriesRows(node_series.SPECS, write_node), self._nodes)
        yield SeriesPart(
            "domain_trays",
            SeriesRows(node_series.TRAYS, write_tray),
            lambda o: domain_trays(o.state, o.ownership),
        )
        workloads = SeriesRows(workload_series.SPECS, write_workload)
        yield SeriesPart("workloads", workloads, self._shown_workloads, WORKLOAD_LIMIT)
        yield SeriesPart("waiting_jobs", SeriesRows(WAITING_JOB, write_waiting_job), waiting_jobs, JOB_LIMIT)
        yield SeriesPart(
            "gangs",
            SeriesRows(pod_series.SPECS, write_gang),
            lambda o: self._stalls.find(o.gangs, o.state.at_ms),
            pod_series.LIMIT,
        )
        yield SeriesPart(
            "cluster_queues",
            SeriesRows(queue_series.CLUSTER_QUEUE, write_cluster_queue),
            lambda o: o.queues.cluster_queues,
        )
        yield SeriesPart("cohorts", SeriesRows(queue_series.COHORT, write_cohort), lambda o: o.queues.cohorts)
        yield SeriesPart(
            "local_queues",
            SeriesRows(queue_series.LOCAL_QUEUE, write_local_queue),
            lambda o: {"/".join(name): view for name, view in o.queues.local_queues.items()},
            LOCAL_LIMIT,
        )
        yield SeriesPart(
            "volcano_queues",
            SeriesRows(queue_series.VOLCANO_QUEUE, write_volcano_queue),
            lambda o: o.volcano_queues,
        )
        yield SeriesPart("problems", SeriesRows((STATE_PROBLEMS,), write_problems), _problems)

    def _held_pods(self, overview: ClusterOverview) -> Mapping[str, HeldPod]:
        self._held = held_pods(overview, self._held)
        self._claims.remember(overview)
        return self._held

    def _shown_workloads(self, overview: ClusterOverview) -> Mapping[str, ShownWorkload]:
        self._workloads = shown_workloads(overview, self._workloads)
        return self._workloads

    def _nodes(self, overview: ClusterOverview) -> Mapping[str, GpuNode]:
        nodes = overview.state.nodes.values()
        return self._gpu_nodes.find(nodes, self._ended.nodes(nodes), overview.published)

    def _about_itself(self) -> CollectorSelf:
        return CollectorSelf(
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


def _needed_for_claims(overview: ClusterOverview) -> frozenset[str]:
    """Whether collections are missing without which pods with claims are not shown rightly: slices name the
    devices."""
    bound = [
        pod for pod in overview.state.pods.values() if pod.is_bound and (pod.claims or pod.backing_claim)
    ]
    needed = set()
    if any(pod.claims for pod in (*bound, *overview.ended)):
        needed.add(CLAIMS)
    if overview.units.devices.shares or any(pod.backing_claim for pod in bound):
        needed.add(SLICES)
    return frozenset(needed)


def _problems(overview: ClusterOverview) -> Mapping[str, tuple[str, int]]:
    counts = Counter(problem.code.value for problem in overview.problems)
    return {code: (code, counts[code]) for code in StateProblemCode}
