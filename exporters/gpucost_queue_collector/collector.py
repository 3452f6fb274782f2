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
from gpucost.contract.queue_metrics import JOB_WAITING, STATE_PROBLEMS
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.collections import Collection
from gpucost.kube.reflector import ReflectorSettings
from gpucost.kube.transport import Transport
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
from gpucost_queue_collector.ended import Ended
from gpucost_queue_collector.gang_series import write_gang
from gpucost_queue_collector.node_series import GpuNode, GpuNodes, write_node
from gpucost_queue_collector.page import Page
from gpucost_queue_collector.pod_series import HeldPod, held_pods, waiting_pods, write_held, write_waiting
from gpucost_queue_collector.queue_series import (
    write_cluster_queue,
    write_cohort,
    write_local_queue,
    write_volcano_queue,
)
from gpucost_queue_collector.rows import Rows
from gpucost_queue_collector.self_series import Self, write_problems, write_self
from gpucost_queue_collector.workload_series import (
    ShownWorkload,
    shown_workloads,
    waiting_jobs,
    write_waiting_job,
    write_workload,
)

logger = logging.getLogger(__name__)

LONGEST_SILENCE_S = 60.0
"""A view of pods and nodes that is older, because the API server cannot be read, is not current."""


PODS, NODES = "pods", "nodes"
NEEDED = frozenset({PODS, NODES})
"""Parts without which the heartbeat would be a lie."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the settings decides what series say."""

    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owner_keys: OwnerKeys = field(default_factory=OwnerKeys)
    node_labels: Sequence[str] = ()
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Series of one kind: ``facts`` are the rows by key, worked out at each refresh."""

    name: str
    rows: Rows[Any]
    facts: Callable[[Overview], Mapping[str, Any]]


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
        self._ended = Ended(self._clocks.now_ms)
        listeners: Mapping[str, OnChange] = {
            "pods": self._ended.pod_changed,
            "nodes": self._ended.node_changed,
        }
        self.watch = ClusterWatch(transport, collections, listeners, settings, self._clocks)
        self._gpu_nodes = GpuNodes(self._rules.catalog, self._rules.node_labels)
        self._held: Mapping[str, HeldPod] = {}
        self._workloads: Mapping[str, ShownWorkload] = {}
        self._self = Rows(self_series.SPECS, write_self)
        self._parts = (*self._make_parts(), *further)
        self._failures: Counter[str] = Counter({part.name: 0 for part in self._parts})
        self._failed: frozenset[str] = frozenset()
        self._shows_current = False
        self._closed = threading.Event()
        self.refreshed_ms: int | None = None
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

    def run(self, interval_s: float) -> None:
        """Refresh every ``interval_s`` until ``close``."""
        while not self._closed.is_set():
            try:
                self.refresh()
            except Exception:
                # A mistake of ours must not end the rest; the heartbeat says how it stands.
                logger.exception("the series could not be renewed")
            self._closed.wait(interval_s)

    def refresh(self) -> Overview:
        """Bring the page up to date with what has been seen; what it shows changes all at once."""
        # Before the snapshot: a page of what was known before the server was heard again is an old one.
        now_ms, is_current = self._clocks.now_ms(), self.watch.is_current(LONGEST_SILENCE_S)
        overview = Overview(
            self.watch.snapshot(), self._rules.catalog, self._rules.owner_keys, self._ended.pods()
        )
        made, failed = [], set()
        for part in self._parts:
            try:
                made.append((part, part.facts(overview)))
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
        self._failed, self._shows_current, self.refreshed_ms = frozenset(failed), is_current, now_ms
        return overview

    def _report(self, part: Part) -> None:
        """To be called in an except clause."""
        self._failures[part.name] += 1
        if part.name not in self._failed:  # once, not at every refresh
            logger.exception("the series of %s could not be made; the old ones stay", part.name)

    def answer(self, request: Request) -> Response:
        """The route of /metrics. What the collector says of itself is as of now, not of the last refresh."""
        with self.page.update():
            self._self.update({"self": self._about_itself()})
        return self.page.answer(request)

    @property
    def is_current(self) -> bool:
        """Whether the series show pods and nodes as they are: the heartbeat."""
        longest_ms = LONGEST_SILENCE_S * 1000
        age_ms = None if self.refreshed_ms is None else self._clocks.now_ms() - self.refreshed_ms
        is_fresh = age_ms is not None and age_ms <= longest_ms
        is_shown = is_fresh and self._shows_current and not self._failed & NEEDED
        return is_shown and self.watch.is_current(LONGEST_SILENCE_S)

    def _make_parts(self) -> Iterator[Part]:
        yield Part(PODS, Rows(pod_series.HELD, write_held), self._held_pods)
        yield Part("waiting_pods", Rows(pod_series.WAITING, write_waiting), waiting_pods)
        yield Part(NODES, Rows(node_series.SPECS, write_node), self._nodes)
        yield Part("workloads", Rows(workload_series.SPECS, write_workload), self._shown_workloads)
        yield Part("waiting_jobs", Rows((JOB_WAITING,), write_waiting_job), waiting_jobs)
        yield Part(
            "gangs", Rows(gang_series.SPECS, write_gang), lambda o: {each.uid: each for each in o.gangs}
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
        )
        yield Part(
            "volcano_queues",
            Rows(queue_series.VOLCANO_QUEUE, write_volcano_queue),
            lambda o: o.volcano_queues,
        )
        yield Part("problems", Rows((STATE_PROBLEMS,), write_problems), _problems)

    def _held_pods(self, overview: Overview) -> Mapping[str, HeldPod]:
        self._held = held_pods(overview, self._held)
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
        )


def _problems(overview: Overview) -> Mapping[str, tuple[str, int]]:
    counts = Counter(problem.code.value for problem in overview.problems)
    return {code: (code, counts[code]) for code in ProblemCode}
