"""Settings -> the parts they describe, wired together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import gpucost
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.ownership import OwnerKeys
from gpucost.detectors.findings import Pattern
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import MINUTE_MS
from gpucost.kube.connect.connection import connect
from gpucost.ledger import Ledger
from gpucost.ledger.database import place_of
from gpucost.pricing.book import PriceBook
from gpucost.pricing.defaults import DEFAULT_BOOK_FILE, default_book_text
from gpucost.service.advising import Advising, Engine, Watched
from gpucost.service.assessing import Assessing
from gpucost.service.detect_loop import DetectLoop, State
from gpucost.service.detect_status import DetectStatus
from gpucost.service.detecting import SLOW, Detecting
from gpucost.service.past_runs import History
from gpucost.service.pipeline import Pipeline, Rules
from gpucost.service.rehearsing import Rehearsing
from gpucost.service.reporting import Reporting
from gpucost.service.settings import (
    AttributionSettings,
    IngestSettings,
    PrometheusSettings,
    Settings,
    SourceSettings,
)
from gpucost.service.settings_detectors import DetectorsSettings
from gpucost.service.settings_load import checked, read_config
from gpucost.service.settings_notify import DAYS, WeeklySettings, check_teams
from gpucost.service.watching import Watching
from gpucost.settings.types import milliseconds
from gpucost.telemetry.promapi import ClientSettings, PrometheusClient
from gpucost.telemetry.prometheus import PrometheusSource
from gpucost.telemetry.recorded import RecordedSource
from gpucost.telemetry.settings import ProgressMetric
from gpucost.telemetry.settings import PrometheusSettings as SourceOptions
from gpucost.telemetry.source import Source

if TYPE_CHECKING:
    from gpucost.service.digesting import Schedule
    from gpucost.service.foretelling import Foretelling
    from gpucost.service.telling.loop import Source as NewsSource
    from gpucost.service.telling.news import News

Now = Callable[[], int]
# How late a source may learn of what happened: the last of a cluster's history is read again each time.
_OVERLAP_MS = 15 * MINUTE_MS


def open_ledger(settings: Settings, now: Now, *, create: bool = True) -> Ledger:
    """The ledger of the settings, migrated, and created if ``create``. Raises LedgerError and InputError."""
    return Ledger.open(settings.ledger.database_url(), now=now, create=create)


def ledger_place(settings: Settings) -> str:
    """Where the ledger of the settings is, for messages: holds no secrets."""
    return place_of(settings.ledger.database_url())


def load_book(file: Path | None) -> PriceBook:
    """The price book in ``file``, or the one that ships with gpucost. Raises ConfigError."""
    if file is None:
        return PriceBook.parse(default_book_text(), DEFAULT_BOOK_FILE)
    return PriceBook.parse(read_config(file), str(file))


def load_teams(file: Path | None) -> TeamRules:
    """The team rules in ``file``, or the default ones. Raises ConfigError."""
    return TeamRules.default() if file is None else TeamRules.parse(read_config(file), str(file))


def parse_source(text: str, settings: Settings) -> Settings:
    """``settings`` with the source that ``recorded:DIR`` or ``prometheus:URL`` names. Raises InputError."""
    kind, _, where = text.partition(":")
    if kind == "recorded" and where:
        return settings.model_copy(update={"source": SourceSettings(kind="recorded", path=Path(where))})
    if kind == "prometheus" and where:
        values = {name: getattr(settings.prometheus, name) for name in PrometheusSettings.model_fields}
        prometheus = checked(PrometheusSettings, {**values, "url": where}, "prometheus.")
        return settings.model_copy(update={"source": SourceSettings(), "prometheus": prometheus})
    raise InputError(
        "--source", text, "recorded:DIR or prometheus:URL, such as prometheus:http://localhost:9090"
    )


def open_source(
    settings: Settings, book: PriceBook, now: Now, *, stopped: threading.Event | None = None
) -> Source:
    """The source of the settings. Nothing is asked yet. Raises InputError for a folder that is none.

    Once ``stopped`` is set, nothing that failed is asked again.
    """
    if settings.source.path is not None:
        return RecordedSource(settings.source.path)
    found = settings.prometheus
    token = found.token()
    client = PrometheusClient(
        _with_login(found),
        settings=ClientSettings(read_timeout_s=found.timeout.total_seconds()),
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        verify=True if found.ca_file is None else str(found.ca_file),
        sleep=time.sleep if stopped is None else stopped.wait,
        stopped=(lambda: False) if stopped is None else stopped.is_set,
    )
    return PrometheusSource(client, _options(found, book), now=now)


def build_rules(settings: AttributionSettings, book: PriceBook, teams: TeamRules) -> Rules:
    return Rules(book.rates, teams, settings.catalog(), settings.basis)


def build_pipeline(
    settings: IngestSettings, source: Source, ledger: Ledger, rules: Rules, now: Now
) -> Pipeline:
    """The pipeline of ``gpucost ingest``, ``serve`` and ``demo``: there is only this one."""
    return Pipeline(
        source=source,
        ledger=ledger,
        rules=rules,
        window_ms=milliseconds(settings.window),
        batch_ms=milliseconds(settings.batch),
        lateness_ms=milliseconds(settings.lateness),
        now=now,
        code_version=gpucost.__version__,
    )


def build_detecting(settings: DetectorsSettings, pipeline: Pipeline) -> Detecting:
    """Live findings over the source and ledger of ``pipeline``."""
    around = settings.looks_before + settings.looks_after
    return Detecting(
        source=pipeline.source,
        ledger=pipeline.ledger,
        rules=pipeline.rules,
        detectors=settings.rules,
        exemptions=settings.exempt,
        # Enough for what is assessed as it comes: nothing is read twice.
        history_ms=max(milliseconds(settings.looks_back), milliseconds(around) + pipeline.window_ms),
        slow_ms=milliseconds(settings.quota_history),
        overlap_ms=_OVERLAP_MS,
    )


def build_rehearsing(settings: DetectorsSettings, source: Source, rules: Rules) -> Rehearsing:
    """What the detectors of the settings would have found."""
    lengths = (milliseconds(settings.looks_back), milliseconds(settings.quota_history))
    return Rehearsing(source, rules, settings.rules, *lengths)


def build_assessing(
    settings: DetectorsSettings, pipeline: Pipeline, detecting: Detecting | None = None
) -> Assessing:
    """The waste ledger over the source and ledger of ``pipeline``."""
    return Assessing(
        source=pipeline.source,
        ledger=pipeline.ledger,
        rules=pipeline.rules,
        detectors=settings.rules.only(set(Pattern) - SLOW),
        before_ms=milliseconds(settings.looks_before),
        after_ms=milliseconds(settings.looks_after),
        code_version=pipeline.code_version,
        recent=lambda cluster: None if detecting is None else detecting.rolling(cluster).known,
    )


def build_watching(settings: Settings, catalog: ResourceCatalog) -> Watching | None:
    """The cluster that the settings have the service watch; None for none. Raises InputError."""
    found = settings.detectors
    if found.state == "none":
        return None
    kubeconfig = found.kubeconfig if found.state == "kubeconfig" else None
    transport = connect(os.environ, kubeconfig, found.context)
    cluster = found.cluster or settings.prometheus.cluster
    names, assumed = settings.advisor.names, settings.advisor.assumed
    return Watching.of(cluster, transport, catalog, OwnerKeys(), names, assumed)


def build_advising(
    settings: Settings, watching: Watched, book: PriceBook, teams: TeamRules, ledger: Ledger
) -> Advising:
    """The advisor over the watched cluster. Nothing is worked out yet: see ``start``."""
    # Here, since no other command needs the rules of two schedulers.
    from gpucost.advisor.advise import advise
    from gpucost.advisor.explain import explain
    from gpucost.kube.manifests import manifest_of, reread
    from gpucost.kube.manifests.rebuilt import document_of

    return Advising(
        watching,
        Engine(advise, explain, manifest_of, reread, document_of),
        teams,
        prices=book,
        run_times=History(ledger, watching.cluster),
        settings=settings.advisor.advisor(),
        has_webhook=settings.webhook.enabled,
    )


def build_foretelling(
    settings: Settings, advising: Advising, ledger: Ledger, now: Now, stop: threading.Event
) -> Foretelling:
    """The loop that foretells waits and looks what came of it, which ends when ``stop`` is set."""
    from gpucost.service.foretelling import Foretelling

    return Foretelling(
        advising,
        ledger,
        now=now,
        seconds=time.monotonic,
        sleep=stop.wait,
        stopped=stop.is_set,
        with_findings=settings.detectors.enabled,
    )


def build_detect_loop(
    settings: Settings, pipeline: Pipeline, status: DetectStatus, state: State, stop: threading.Event
) -> DetectLoop:
    """The loop of ``gpucost serve``, which ends when ``stop`` is set."""
    detecting = build_detecting(settings.detectors, pipeline)
    return DetectLoop(
        detecting,
        build_assessing(settings.detectors, pipeline, detecting),
        status,
        interval_s=settings.detectors.interval.total_seconds(),
        state=state,
        now=pipeline.now,
        seconds=time.monotonic,
        sleep=stop.wait,
        stopped=stop.is_set,
    )


def check_notify(settings: Settings, teams: TeamRules) -> None:
    """Raises InputError for routes that could never tell anybody."""
    check_teams(settings.notify, teams)


def build_news(
    settings: Settings,
    ledger: Ledger,
    teams: TeamRules,
    advising: Advising | None,
    now: Now,
    stop: threading.Event,
) -> News | None:
    """The loop of news and the sender; None where nobody is to be told. Raises InputError."""
    found = settings.notify
    rules = found.rules()
    if not rules.channels or not rules.routes:
        return None
    # Here, since most commands need no renderers and no HTTP.
    from gpucost.service.digesting import Digesting
    from gpucost.service.reporting import NO_CURRENCY
    from gpucost.service.telling.advice import AdviceNews
    from gpucost.service.telling.alerts import AlertGroups
    from gpucost.service.telling.digests import DigestNews
    from gpucost.service.telling.findings import FindingNews
    from gpucost.service.telling.news import News

    digesting = Digesting(build_reporting(ledger, teams), teams.budgets, found.links)
    groups = AlertGroups(ledger, found.links)
    about = FindingNews(ledger, found.links, groups, lambda notice: any(rules.routes_of(notice)))
    sources: dict[str, NewsSource] = {
        "findings": about.findings,
        "alerts": about.alerts,
        "digests": DigestNews(
            ledger,
            digesting,
            _schedule(found.weekly, assesses=settings.detectors.enabled),
            weekly=found.weekly.enabled,
            months=found.month_closed,
        ),
    }
    if advising is not None:
        sources["advice"] = AdviceNews(advising, found.links, lambda: ledger.currency or NO_CURRENCY)
    return News.of(ledger, rules, sources, now=now, stop=stop)


def build_reporting(ledger: Ledger, teams: TeamRules) -> Reporting:
    return Reporting(ledger, gpucost.__version__, teams.quotas)


def _schedule(weekly: WeeklySettings, *, assesses: bool) -> Schedule:
    from gpucost.service.digesting import Schedule

    weekday = DAYS.index(weekly.weekday) + 1
    return Schedule(weekday, weekly.hour, ZoneInfo(weekly.zone), assesses=assesses)


def _with_login(settings: PrometheusSettings) -> str:
    """The URL with user info, which the client takes out again before it shows the URL to anybody."""
    password = settings.basic_password()
    if password is None:
        return settings.url
    parts = urlsplit(settings.url)
    login = f"{quote(settings.username, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))


def _options(settings: PrometheusSettings, book: PriceBook) -> SourceOptions:
    return SourceOptions(
        cluster_label=settings.cluster_label,
        fallback_cluster=settings.cluster,
        replica_labels=settings.replica_labels,
        matchers=settings.matchers,
        max_gap_ms=milliseconds(settings.max_gap),
        lateness_ms=milliseconds(settings.lateness),
        activity_step_ms=milliseconds(settings.activity_step),
        node_labels=tuple(sorted({*settings.node_labels, *book.label_names})),
        progress=tuple(
            ProgressMetric(item.name, item.metric, item.pod_label, item.namespace_label)
            for item in settings.progress
        ),
    )
