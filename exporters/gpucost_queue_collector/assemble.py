"""Settings -> a running collector, and its log: the only place that knows all parts and the real clocks.

The log about the API server is a few lines for an outage, not one for each of forty collections
(``CollectionJournal``).
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.sharing_rules import SharingRules, share_dimensions
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.connect.connection import connect, connect_url
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.parse.collections import ApiCollection, collections
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost_exporter_base.endpoint import HealthChecks, HttpEndpoint
from gpucost_exporter_base.scrape_access import METRICS, listening
from gpucost_queue_collector.collector import (
    LONGEST_SILENCE_S,
    QueueCollector,
    SeriesPart,
    SeriesRules,
)
from gpucost_queue_collector.page import SeriesRows
from gpucost_queue_collector.scheduler_metrics import (
    SCHEDULER_SPECS,
    SchedulerEndpoint,
    SchedulerFacts,
    SchedulerKind,
    SchedulerMetrics,
    write_scheduler,
)
from gpucost_queue_collector.settings import CollectorSettings

logger = logging.getLogger(__name__)

REFLECTORS = logging.getLogger("gpucost.kube.watch.reflector")
ONE_OUTAGE_S = 60.0
NAMED = 6
"""Collections that are named for each reason; the others are counted."""
# The first series are complete where the API server answers in time; else they are completed when it does.
FIRST_STATE_S = 60.0


class FirstFailureFilter(logging.Filter):
    """Of the reflectors' messages, the first failure for each reason within ``ONE_OUTAGE_S``, with the
    server's words, and errors of our own. The rest is in the journal's summary."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return record.levelno > logging.WARNING
        reason, now_s = str(getattr(record, "reason", record.msg)), self._monotonic()
        said_s = self._said_s.get(reason)
        if said_s is not None and now_s - said_s < ONE_OUTAGE_S:
            return False
        self._said_s[reason] = now_s
        return True


class CollectionJournal:
    """Logs what has changed since the last call of ``tell``; for one thread."""

    def __init__(self, collector: QueueCollector) -> None:
        self._collector = collector
        self._told: object = None
        self._is_current: bool | None = None

    def tell(self) -> None:
        """Log changes. To be called after every refresh."""
        statuses = self._collector.watch.statuses()
        stand = {name: (bool(each.problem), each.absent, each.synced) for name, each in statuses.items()}
        if stand != self._told:
            is_down = any(each.problem for each in statuses.values())
            logger.log(logging.WARNING if is_down else logging.INFO, "%s", summary(statuses))
        self._told = stand
        self._tell_heartbeat(self._collector.is_current)

    def _tell_heartbeat(self, is_current: bool) -> None:
        if is_current and not self._is_current:
            logger.info("the view of pods and nodes is current: gpucost_state_up is 1")
        elif not is_current and self._is_current is not False:
            logger.warning("the view of pods and nodes is not current: gpucost_state_up is 0")
        self._is_current = is_current


def summary(statuses: Mapping[str, CollectionStatus]) -> str:
    """How many collections are read, are not installed, and cannot be read, and why."""
    absent = sum(each.absent and not each.problem for each in statuses.values())
    read = sum(each.synced and not each.absent and not each.problem for each in statuses.values())
    by_reason: dict[str, list[str]] = {}
    for name, each in statuses.items():
        if each.problem:
            by_reason.setdefault(each.problem, []).append(name)
    parts = [f"{read} collections are read, {absent} are not installed"]
    pending = len(statuses) - read - absent - sum(map(len, by_reason.values()))
    if pending:
        parts.append(f"{pending} have not been read yet")
    parts += [
        f"{len(names)} cannot be read: {reason} ({_named(names)})" for reason, names in by_reason.items()
    ]
    return "; ".join(parts)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(slots=True)
class QueueCollectorProcess:
    """A collector with its thread and its endpoint. ``start`` and ``close`` each once."""

    transport: HttpxTransport
    collector: QueueCollector
    endpoint: HttpEndpoint
    settings: CollectorSettings
    schedulers: tuple[SchedulerMetrics, ...] = ()
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> int:
        """Start everything; returns the port that is listened on. Raises InputError when it is taken."""
        port = self.endpoint.start()
        self.collector.start()
        for scheduler in self.schedulers:
            scheduler.start()
        thread = threading.Thread(target=self._refresh, name="refresh", daemon=True)
        self.threads.append(thread)
        thread.start()
        return port

    def close(self) -> None:
        """Stop in order."""
        self.collector.close()
        for scheduler in self.schedulers:
            scheduler.close()
        for thread in self.threads:
            thread.join(LONGEST_SILENCE_S)
        self.endpoint.close()
        self.transport.close()

    def _refresh(self) -> None:
        self.collector.watch.wait(FIRST_STATE_S)
        # Most objects made until now will stay: the garbage collector need not examine them again and again.
        gc.collect()
        gc.freeze()
        self.collector.run(self.settings.refresh.total_seconds(), CollectionJournal(self.collector).tell)


def assemble(settings: CollectorSettings, environ: Mapping[str, str]) -> QueueCollectorProcess:
    """All parts of a collector with these settings, none started yet. Raises InputError."""
    keys = owner_keys(settings)
    catalog = ResourceCatalog.with_whole(settings.extra_resources)
    sharing = SharingRules(share_dimensions(settings.share_dimensions), settings.kai_namespace)
    rules = SeriesRules(
        *(catalog, keys, settings.node_labels, settings.replicas, settings.most_per_namespace, sharing)
    )
    way = transport(settings, environ)
    schedulers = tuple(SchedulerMetrics(endpoint) for endpoint in _scheduler_endpoints(settings))
    further = [_part(schedulers)] if schedulers else []
    collector = QueueCollector(way, collections(keys.all), rules, further=further)
    health = {"series": lambda: _staleness(collector)}
    routes = {
        METRICS: collector.answer,
        "/healthz": HealthChecks({}).answer,
        "/readyz": HealthChecks(health).answer,
    }
    endpoint = listening(settings, settings.listen_port, routes)
    return QueueCollectorProcess(way, collector, endpoint, settings, schedulers)


@contextmanager
def watching(settings: CollectorSettings, environ: Mapping[str, str]) -> Iterator[ClusterWatch]:
    """Every collection that a collector with these settings reads, watched, and no object kept: it may run
    beside a collector, in the same pod."""
    with closing(transport(settings, environ)) as way:
        watch = ClusterWatch(way, map(_parsed_only, collections(owner_keys(settings).all)))
        watch.start()
        try:
            yield watch
        finally:
            watch.close()


def _parsed_only(collection: ApiCollection) -> ApiCollection:
    def parse(found: Mapping[str, Any]) -> None:
        collection.parse(found)

    return replace(collection, parse=parse)


def owner_keys(settings: CollectorSettings) -> OwnerKeys:
    """Which labels name teams, projects and users."""
    return OwnerKeys(settings.team_labels, settings.project_labels, settings.user_labels)


def transport(settings: CollectorSettings, environ: Mapping[str, str]) -> HttpxTransport:
    """The way to the API server. Raises InputError."""
    if settings.kubernetes_url:
        return connect_url(settings.kubernetes_url)
    return connect(environ, settings.kubeconfig, settings.context)


def _scheduler_endpoints(settings: CollectorSettings) -> Iterator[SchedulerEndpoint]:
    urls = (
        (SchedulerKind.KUEUE, settings.kueue_metrics_url),
        (SchedulerKind.VOLCANO, settings.volcano_metrics_url),
    )
    for scheduler, url in urls:
        if url:
            yield SchedulerEndpoint(
                scheduler,
                url,
                settings.metrics_token_file,
                settings.metrics_ca_file,
                settings.metrics_insecure,
            )


def _part(schedulers: Sequence[SchedulerMetrics]) -> SeriesPart:
    def facts(overview: ClusterOverview) -> Mapping[str, SchedulerFacts]:
        queues = overview.state.cluster_queue_by_name
        found = (each.facts for each in schedulers)
        return {each.scheduler.value: each.within(queues) for each in found}

    return SeriesPart("schedulers", SeriesRows(SCHEDULER_SPECS, write_scheduler), facts)


def _staleness(collector: QueueCollector) -> str:
    return "" if collector.is_current else "the view of pods and nodes is not current"
