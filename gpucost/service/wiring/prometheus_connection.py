"""Builders of the client of a Prometheus, of what is read there and how, and of the source over it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.domain.errors import InputError
from gpucost.settings.types import milliseconds
from gpucost.telemetry.prometheus.api_client import ClientSettings, PrometheusClient
from gpucost.telemetry.prometheus.remote_read import LEAST_NODES, RemoteReader, is_installed
from gpucost.telemetry.prometheus.source_settings import SERVING_COUNTERS, ProgressMetric, ServingCounter
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings as SourceOptions
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Mapping

    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.settings.model import PrometheusSettings, Settings
    from gpucost.service.wiring.source import TrialLook
    from gpucost.telemetry.day_cache import DayCache
    from gpucost.telemetry.interval_source import IntervalSource


_KEPT_S = 60.0


def build_client(
    settings: PrometheusSettings,
    *,
    stopped: threading.Event | None = None,
    attempts: int | None = None,
    at_once: int | None = None,
) -> PrometheusClient:
    """A client of the Prometheus of the settings; no request is made yet. ``attempts`` limits how often one
    query is tried, where a person waits for the answer, and ``at_once`` how many are under way."""
    token = settings.token()
    limits = ClientSettings(read_timeout_s=settings.timeout.total_seconds())
    limits = limits if attempts is None else replace(limits, attempts=attempts)
    client = PrometheusClient(
        _with_login(settings),
        settings=limits if at_once is None else replace(limits, most_at_once=at_once),
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        verify=True if settings.ca_file is None else str(settings.ca_file),
        sleep=time.sleep if stopped is None else stopped.wait,
        stopped=(lambda: False) if stopped is None else stopped.is_set,
    )
    if settings.samples != "never" and is_installed():
        least = LEAST_NODES if settings.samples == "auto" else 0
        # What is stopped goes on for long, and looks at one hour several times.
        kept_s = math.inf if stopped is None else _KEPT_S
        client.samples = RemoteReader(client, least_nodes=least, kept_s=kept_s)
    elif settings.samples == "always":
        allowed = "auto or never, where the extra is not installed: pip install 'gpucost[fast]'"
        raise InputError("prometheus.samples", settings.samples, allowed)
    return client


def _with_login(settings: PrometheusSettings) -> str:
    """The URL with user info, which the client removes before the URL is shown anywhere."""
    password = settings.basic_password()
    if password is None:
        return settings.url
    parts = urlsplit(settings.url)
    login = f"{quote(settings.username, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))


def open_prometheus(
    settings: Settings,
    book: PriceBook,
    now: Callable[[], int],
    stopped: threading.Event | None,
    look: TrialLook | None,
) -> IntervalSource:
    """As ``wiring.source.open_source``."""
    found = settings.prometheus
    client = build_client(found, stopped=stopped, at_once=None if look is None else look.at_once)
    options = source_options(found, book.label_names)
    if look is not None:
        options = replace(options, as_of_ms=look.at_ms, reads_use=look.reads_use)
    # Imported here, since a cluster with gpucost's own exporters may not need it.
    from gpucost.telemetry.dialect_sources import CachedCoverageSource, DailyUpstreamSource

    beside = existing_options(settings)
    own = (PrometheusSource if look is None else CachedCoverageSource)(
        client, options, now=now, existing=beside
    )
    if found.dialect == "gpucost":
        return own
    from gpucost.telemetry.dialect_sources import FallbackSource
    from gpucost.telemetry.upstream.upstream_source import UpstreamSource

    existing = UpstreamSource(client, options, beside, now=now)
    if look is not None:
        cache = _day_cache(settings, client, options, beside, refreshes=look.refreshes)
        existing = DailyUpstreamSource(client, options, beside, now=now, days=look.days, cache=cache)
    return existing if found.dialect == "existing" else FallbackSource(own, existing, now)


def _day_cache(
    settings: Settings,
    client: PrometheusClient,
    options: SourceOptions,
    existing: UpstreamSettings,
    *,
    refreshes: bool,
) -> DayCache | None:
    """What is kept of days that are over; None where nothing is to be."""
    from gpucost.telemetry.day_cache import CacheFiles, DayCache, cache_folder

    folder = settings.source.cache or cache_folder(os.environ)
    if folder is None or not settings.source.cache_mib:
        return None
    # How it is asked does not matter for the numbers, but is said with them.
    how = client.url, replace(options, as_of_ms=None), existing, client.samples is None
    identity = repr((*how, _login_digest(settings.prometheus)))
    files = CacheFiles(folder, settings.source.cache_mib << 20)
    return DayCache(files, identity, refreshes=refreshes)


def _login_digest(settings: PrometheusSettings) -> str:
    """Behind one address there may be a server for each tenant, told apart by who is logged in."""
    login = settings.username, settings.basic_password(), settings.token()
    return hashlib.sha256(json.dumps(login).encode()).hexdigest()


def source_options(settings: PrometheusSettings, node_labels: Collection[str] = ()) -> SourceOptions:
    """The options of a source, or of another reader of its series; ``node_labels`` are those that prices
    need."""
    return SourceOptions(
        cluster_label=settings.cluster_label,
        fallback_cluster=settings.cluster,
        replica_labels=settings.replica_labels,
        matchers=settings.matchers,
        max_gap_ms=milliseconds(settings.max_gap),
        lateness_ms=milliseconds(settings.lateness),
        activity_step_ms=milliseconds(settings.activity_step),
        node_labels=tuple(sorted({*settings.node_labels, *node_labels})),
        jobs=believed_jobs(settings),
        own_namespace=settings.gpucost_namespace,
        progress=tuple(ProgressMetric(**item.model_dump()) for item in settings.progress),
        serving=SERVING_COUNTERS
        if settings.serving is None
        else tuple(ServingCounter(**item.model_dump()) for item in settings.serving),
    )


def believed_jobs(settings: PrometheusSettings) -> Mapping[str, tuple[str, ...]]:
    """Trusted scrape jobs by prefixes of series names; prefixes for which every job is trusted are absent."""
    found = {
        "gpucost_": settings.gpucost_jobs,
        "kube_": settings.kube_state_metrics_jobs,
        "DCGM_": settings.dcgm_exporter_jobs,
        "dcgm_": settings.dcgm_exporter_jobs,
        "gpu_": settings.amd_exporter_jobs,
        "amd_gpu_": settings.amd_exporter_jobs,
        "hw_": settings.otel_gpu_jobs,
        "node_gpu_": settings.opencost_jobs,
        "node_total_hourly_cost": settings.opencost_jobs,
        "kubecost_": settings.opencost_jobs,
    }
    return {name: jobs for name, jobs in found.items() if jobs}


def existing_options(settings: Settings) -> UpstreamSettings:
    """What is read of the series of other exporters."""
    found = settings.prometheus
    return UpstreamSettings(
        settings.attribution.catalog(),
        OwnerKeys(found.team_labels, found.project_labels, found.user_labels),
        settings.attribution.basis,
        tuple((each.kind, each.metric, each.name_label) for each in found.custom_resources),
    )
