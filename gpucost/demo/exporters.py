"""The pages that the demo's exporters serve at one instant, with the labels a scrape gives them.

Pages of the queue collector come from the real collector over simulated objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.metric_spec import EOF
from gpucost.contract.metrics import LINGER_MS
from gpucost.demo.gpu_pages import GpuPages
from gpucost.demo.incident import IdleIncident
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.parse.collections import ApiCollection, collections
from gpucost.kube.watch.cluster_watch import ClusterWatch, WatchClocks
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.history import HEADER, request_counters
from gpucost.simulator.state import cluster_state
from gpucost.simulator.state_workloads import SimulatedWork
from gpucost_exporter_base.endpoint import EndpointRequest
from gpucost_queue_collector.collector import QueueCollector, SeriesPart
from gpucost_queue_collector.page import SeriesRows
from gpucost_queue_collector.scheduler_metrics import (
    SCHEDULER_SPECS,
    SchedulerFacts,
    SchedulerKind,
    WaitHistogram,
    write_scheduler,
)


class _NoTransport:
    """The simulated cluster has no API server; the transport is never used."""

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> NoReturn:
        del params, timeout_s
        raise TransportError("unreachable", f"{path}: a simulated cluster has no API server")


_NOTHING = _NoTransport()
_KUEUE_VERSION = "v0.14.3"
_OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


class SimulatedCollector(QueueCollector):
    """Ask for pages in order of time: it keeps state as the real one does."""

    def __init__(self, cluster: SimulatedCluster, incident: IdleIncident | None = None) -> None:
        self._cluster, self._incident = cluster, incident
        self._at_ms = cluster.window.start_ms
        clocks = WatchClocks(lambda: self._at_ms * 1_000_000, lambda: self._at_ms / 1000)
        waits = SeriesPart("schedulers", SeriesRows(SCHEDULER_SPECS, write_scheduler), self._schedulers)
        self._admissions = _Admissions(cluster)
        super().__init__(_NOTHING, (), clocks=clocks, further=[waits])
        self.watch = _Watch(clocks, lambda: self._state)
        self._state = self._seen()

    def page_at(self, at_ms: int) -> str:
        """OpenMetrics text."""
        self._at_ms = at_ms
        self._state = self._seen()
        self.refresh()
        return self.answer(
            EndpointRequest("GET", "/metrics", "", _OPENMETRICS, keep_alive=False)
        ).body.decode()

    def overview(self) -> ClusterOverview:
        """The state with the pods and objects that ended in the last ten minutes."""
        ended = SimulatedWork.ended(self._cluster, self._at_ms - LINGER_MS, self._at_ms)
        jobs = {each.meta.uid: each for each in ended.jobs}
        workloads = {each.meta.uid: each for each in ended.workloads}
        pods = ended.pods
        if self._incident is not None:
            more, of_more = self._incident.ended(self._at_ms)
            pods, jobs = [*pods, *more], jobs | dict(of_more)
        state = replace(
            self._state,
            jobs=jobs | dict(self._state.jobs),
            workloads=workloads | dict(self._state.workloads),
        )
        return ClusterOverview(state, self._rules.catalog, self._rules.owner_keys, pods)

    def _seen(self) -> ClusterState:
        seen = {
            each.name: CollectionStatus(each.versions[0], synced=True, seen_ms=self._at_ms)
            for each in collections()
        }
        state = replace(cluster_state(self._cluster, self._at_ms), collections=seen)
        return state if self._incident is None else self._incident.added(state)

    def _schedulers(self, overview: ClusterOverview) -> Mapping[str, SchedulerFacts]:
        queues = overview.state.cluster_queue_by_name
        kueue = SchedulerFacts(
            SchedulerKind.KUEUE, _KUEUE_VERSION, up=True, problem="", waits=self._admissions.upto(self._at_ms)
        )
        volcano = SchedulerFacts(SchedulerKind.VOLCANO, up=True, problem="")
        return {each.scheduler.value: each.within(queues) for each in (kueue, volcano)}


class _Watch(ClusterWatch):
    """A watch that has read all of the simulated cluster."""

    def __init__(self, clocks: WatchClocks, state: Callable[[], ClusterState]) -> None:
        super().__init__(_NOTHING, (), clocks=clocks)
        self._state = state

    def snapshot(self) -> ClusterState:
        return self._state()

    def statuses(self) -> dict[str, CollectionStatus]:
        return dict(self._state().collections)

    def counts(self) -> dict[str, int]:
        state = self._state()
        return {each.name: _count(state, each) for each in collections()}

    def current(self, longest_silence_s: float) -> frozenset[str]:
        del longest_silence_s
        return frozenset(self._state().collections)

    @property
    def required(self) -> frozenset[str]:
        return frozenset(each.name for each in collections() if each.required)


def _count(state: ClusterState, collection: ApiCollection) -> int:
    objects = getattr(state, collection.field)
    if collection.field == "jobs":
        group = collection.group
        return sum(
            each.kind == collection.kind and each.api_version.startswith(group) for each in objects.values()
        )
    if collection.field == "pod_groups" and not collection.group.endswith("volcano.sh"):
        return 0
    return len(objects)


class _Admissions:
    """How long workloads waited until they were admitted, by ClusterQueue, as Kueue counts."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        begun: dict[str, list[int]] = {}
        for pod in cluster.placements:
            queue = pod.submission.job.team.cluster_queue
            if queue and pod.index == 0:
                begun.setdefault(queue, []).append(pod.start_ms)
        ended: dict[str, list[tuple[int, int]]] = {queue: [] for queue in begun}
        for wait in cluster.waits:
            queue = wait.submission.job.team.cluster_queue
            if queue in ended and wait.end_ms < cluster.window.end_ms:
                ended[queue].append((wait.end_ms, wait.end_ms - wait.start_ms))
        self._begun = {queue: np.sort(np.array(found, dtype=np.int64)) for queue, found in begun.items()}
        self._ended = {
            queue: np.array(sorted(found), dtype=np.int64).reshape(-1, 2) for queue, found in ended.items()
        }

    def upto(self, at_ms: int) -> Mapping[str, WaitHistogram]:
        found = {}
        for queue, begun in self._begun.items():
            ends = self._ended[queue]
            waited = ends[ends[:, 0] <= at_ms, 1]
            count = float(np.searchsorted(begun, at_ms, "right"))
            found[queue] = WaitHistogram(((float("inf"), count),), float(waited.sum()) / 1000, count)
        return found


COLLECTOR_JOB, GPU_JOB, SERVICE_JOB = "gpucost-queue-collector", "gpucost-gpu-exporter", "gpucost"
SERVERS_JOB = "servers"
"""All model servers, as one target whose labels ``namespace`` and ``pod`` are kept: a PodMonitor would have
one for each pod and give them these labels."""
_PORTS = {COLLECTOR_JOB: 9837, GPU_JOB: 9836}


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A scrape target: ``instance`` is the node's name and port, or the program's."""

    job: str
    instance: str

    def labels(self, cluster: str) -> Mapping[str, str]:
        """As a scrape configuration with a target label ``cluster`` gives them."""
        return {"cluster": cluster, "job": self.job, "instance": self.instance}


COLLECTOR = ScrapeTarget(COLLECTOR_JOB, f"{COLLECTOR_JOB}:{_PORTS[COLLECTOR_JOB]}")
SERVERS = ScrapeTarget(SERVERS_JOB, f"{SERVERS_JOB}:8000")


def exporter_of(node: str) -> ScrapeTarget:
    """The GPU exporter of a node."""
    return ScrapeTarget(GPU_JOB, f"{node}:{_PORTS[GPU_JOB]}")


class SimulatedExporters:
    """All exporters of a simulated cluster. Ask in order of time: the collector keeps state."""

    def __init__(self, cluster: SimulatedCluster, incident: IdleIncident | None = None) -> None:
        self.cluster, self._incident = cluster, incident
        self._collector = SimulatedCollector(cluster, incident)
        self._gpus = GpuPages(cluster, incident)
        self._counters = tuple(request_counters(cluster.frames, cluster.frames.serving))

    def pages(self, at_ms: int) -> Iterator[tuple[ScrapeTarget, str]]:
        """OpenMetrics text of every target that answers at ``at_ms``."""
        yield COLLECTOR, self._collector.page_at(at_ms)
        for node, page in self._gpus.at(at_ms).items():
            yield exporter_of(node), page
        lines = (each.line(at_ms) for each in self._counters if each.start_ms <= at_ms < each.end_ms)
        yield SERVERS, "".join([HEADER, *lines, EOF])

    def incident_pages(self, collected: str, at_ms: int) -> Iterator[tuple[ScrapeTarget, str]]:
        """Pages of the incident's job alone, as scrapes at ``at_ms`` would have shown it. ``collected`` is a
        later page of the collector: its series about the job do not change while it runs."""
        if self._incident is None:
            return
        name, uid = self._incident.pod[1:]
        yield COLLECTOR, _only(collected, name.rpartition("-")[0])
        yield exporter_of(self._incident.node.name), _only(self._gpus.of_incident(self._incident, at_ms), uid)


def _only(page: str, part: str) -> str:
    """The page with only the series that have ``part`` in a label."""
    lines = (line for line in page.splitlines() if line.startswith("#") or part in line)
    return "".join(f"{line}\n" for line in lines)
