"""Settings -> a running collector: the only place that knows all parts and the real clocks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import OwnerKeys
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
from gpucost_queue_collector.journal import CollectionJournal
from gpucost_queue_collector.rows import SeriesRows
from gpucost_queue_collector.scheduler_metrics import (
    SCHEDULER_SPECS,
    SchedulerEndpoint,
    SchedulerFacts,
    SchedulerKind,
    SchedulerMetrics,
    write_scheduler,
)
from gpucost_queue_collector.settings import CollectorSettings

# The first series are complete where the API server answers in time; else they are completed when it does.
FIRST_STATE_S = 60.0


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
