"""What the queue collector would say of the simulated cluster: the real collector over simulated objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np

from gpucost.cluster.overview import Overview
from gpucost.cluster.state import ClusterState, CollectionStatus
from gpucost.contract.metrics import LINGER_MS
from gpucost.demo.incident import Incident
from gpucost.kube.collections import Collection, collections
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.watch import Clocks, ClusterWatch
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.state import cluster_state
from gpucost.simulator.state_work import Work
from gpucost_exporter_base.messages import Request
from gpucost_queue_collector.collector import Collector, Part
from gpucost_queue_collector.rows import Rows
from gpucost_queue_collector.scheduler_metrics import (
    SCHEDULER_SPECS,
    Scheduler,
    SchedulerFacts,
    WaitHistogram,
    write_scheduler,
)


class _NoTransport:
    """The simulated cluster has no API server, and nobody asks for one."""

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> NoReturn:
        del params, timeout_s
        raise TransportError("unreachable", f"{path}: a simulated cluster has no API server")


_NOTHING = _NoTransport()
_KUEUE_VERSION = "v0.14.3"
_OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


class SimulatedCollector(Collector):
    """Ask for pages in order of time: it remembers as the real one does."""

    def __init__(self, cluster: SimulatedCluster, incident: Incident | None = None) -> None:
        self._cluster, self._incident = cluster, incident
        self._at_ms = cluster.window.start_ms
        clocks = Clocks(lambda: self._at_ms * 1_000_000, lambda: self._at_ms / 1000)
        waits = Part("schedulers", Rows(SCHEDULER_SPECS, write_scheduler), self._schedulers)
        self._admissions = _Admissions(cluster)
        super().__init__(_NOTHING, (), clocks=clocks, further=[waits])
        self.watch = _Watch(clocks, lambda: self._state)
        self._state = self._seen()

    def page_at(self, at_ms: int) -> str:
        """OpenMetrics text."""
        self._at_ms = at_ms
        self._state = self._seen()
        self.refresh()
        return self.answer(Request("GET", "/metrics", "", _OPENMETRICS, keep_alive=False)).body.decode()

    def overview(self) -> Overview:
        """The state with what ended in the last ten minutes, and the objects it belonged to."""
        ended = Work.ended(self._cluster, self._at_ms - LINGER_MS, self._at_ms)
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
        return Overview(state, self._rules.catalog, self._rules.owner_keys, pods)

    def _seen(self) -> ClusterState:
        seen = {
            each.name: CollectionStatus(each.versions[0], synced=True, seen_ms=self._at_ms)
            for each in collections()
        }
        state = replace(cluster_state(self._cluster, self._at_ms), collections=seen)
        return state if self._incident is None else self._incident.added(state)

    def _schedulers(self, overview: Overview) -> Mapping[str, SchedulerFacts]:
        queues = overview.state.cluster_queue_by_name
        kueue = SchedulerFacts(
            Scheduler.KUEUE, _KUEUE_VERSION, up=True, problem="", waits=self._admissions.upto(self._at_ms)
        )
        volcano = SchedulerFacts(Scheduler.VOLCANO, up=True, problem="")
        return {each.scheduler.value: each.within(queues) for each in (kueue, volcano)}


class _Watch(ClusterWatch):
    """A watch that has seen all of the simulated cluster."""

    def __init__(self, clocks: Clocks, state: Callable[[], ClusterState]) -> None:
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


def _count(state: ClusterState, collection: Collection) -> int:
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
