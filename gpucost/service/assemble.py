"""Settings -> the parts they describe, wired together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import gpucost
from gpucost.access.authenticator import Authenticator, FixedKeys, TokenChecker
from gpucost.access.grants import Grants
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.ownership import OwnerKeys
from gpucost.detectors.findings import Pattern
from gpucost.domain.errors import InputError, Remark
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.rates import RateLookup
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.kube.connect.connection import connect
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.connect.secure import SERVICE_ACCOUNT
from gpucost.ledger import Ledger
from gpucost.ledger.database import place_of
from gpucost.ledger.key_ring import LedgerKeys
from gpucost.pricing.book import PriceBook
from gpucost.pricing.defaults import DEFAULT_BOOK_FILE, default_book_text
from gpucost.pricing.observed import Mode, OpenCostRates
from gpucost.reports.inputs import TeamAccount
from gpucost.service.advising import Advising, Engine, Watched
from gpucost.service.advising_status import AdvisingStatus
from gpucost.service.assessing import Assessing
from gpucost.service.detect_loop import DetectLoop, State
from gpucost.service.detect_status import DetectStatus
from gpucost.service.detecting import SLOW, Detecting
from gpucost.service.past_runs import History
from gpucost.service.past_work import PastServers
from gpucost.service.pipeline import Pipeline, Rules, attribute_windows
from gpucost.service.rehearsing import Rehearsing
from gpucost.service.reporting import Reporting
from gpucost.service.settings import (
    AttributionSettings,
    IngestSettings,
    PrometheusSettings,
    Settings,
    SourceSettings,
)
from gpucost.service.settings_api import is_loopback
from gpucost.service.settings_detectors import DetectorsSettings
from gpucost.service.settings_load import checked, read_config
from gpucost.service.settings_notify import DAYS, WeeklySettings, check_teams
from gpucost.service.watching import Watching
from gpucost.settings.types import milliseconds
from gpucost.telemetry.existing.settings import ExistingSettings
from gpucost.telemetry.promapi import ClientSettings, PrometheusClient
from gpucost.telemetry.prometheus import PrometheusSource
from gpucost.telemetry.reader import ClusterReader
from gpucost.telemetry.recorded import RecordedSource
from gpucost.telemetry.settings import SERVING_COUNTERS, ProgressMetric, ServingCounter
from gpucost.telemetry.settings import PrometheusSettings as SourceOptions
from gpucost.telemetry.source import Source
from gpucost.telemetry.trust import kinds_read, strangers

if TYPE_CHECKING:
    from gpucost.contract.probe import Stranger, TrialReading
    from gpucost.kube.certificates.keeper import Keeper
    from gpucost.service.digesting import Schedule
    from gpucost.service.foretelling import Foretelling
    from gpucost.service.telling.loop import Source as NewsSource
    from gpucost.service.telling.news import News

Now = Callable[[], int]
# How late a source may learn of what happened: the last of a cluster's history is read again each time.
_OVERLAP_MS = 15 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Look:
    """One look, ``at_ms``, at ``days``, each with what is around it."""

    at_ms: int
    days: Window


def open_ledger(settings: Settings, now: Now, *, create: bool = True) -> Ledger:
    """The ledger of the settings, migrated, and created if ``create``. Raises LedgerError and InputError."""
    return Ledger.open(settings.ledger.database_url(), now=now, create=create)


def build_authenticator(settings: Settings, ledger: Ledger, now: Now) -> Authenticator:
    """Who asks: keys of the settings and of the ledger, and tokens of whom the settings trust."""
    stores = FixedKeys([key.record() for key in settings.api.keys]), LedgerKeys(ledger, now)
    return Authenticator(stores, build_checkers(settings), now)


def build_checkers(settings: Settings) -> list[TokenChecker]:
    """Who knows tokens. The issuer comes first: what is not its own is asked of the API server. Nothing is
    asked of either yet. Raises InputError for an API server that cannot be found."""
    found, checkers = settings.access, list[TokenChecker]()
    grants = Grants(tuple(grant.grant() for grant in found.grants))
    if found.oidc.issuer:
        # Here, since most commands check no tokens.
        from gpucost.access.fetching import Fetcher, IssuerKeys
        from gpucost.access.oidc import OidcTokens

        # As for a kubeconfig: the proxies of the environment are not for this machine.
        proxies = not is_loopback(urlsplit(found.oidc.issuer).hostname or "")
        fetcher = Fetcher(found.oidc.ca_file, found.oidc.allow_http, proxies)
        keys = IssuerKeys(found.oidc.issuer, fetcher, found.oidc.jwks_url)
        checkers.append(OidcTokens(found.oidc.rules(), grants, keys))
    if found.kubernetes.enabled:
        from gpucost.kube.token_review import KubernetesTokens

        keep_ms = milliseconds(found.kubernetes.cache)
        transport = _api_server(settings.detectors)
        checkers.append(KubernetesTokens(transport, found.kubernetes.audiences, grants, keep_ms))
    return checkers


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


def build_client(
    settings: PrometheusSettings, *, stopped: threading.Event | None = None, attempts: int | None = None
) -> PrometheusClient:
    """The way to the Prometheus of the settings; nothing is asked yet. ``attempts`` is how often at most one
    question is asked, while somebody waits for the answer."""
    token = settings.token()
    limits = ClientSettings(read_timeout_s=settings.timeout.total_seconds())
    return PrometheusClient(
        _with_login(settings),
        settings=limits if attempts is None else replace(limits, attempts=attempts),
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        verify=True if settings.ca_file is None else str(settings.ca_file),
        sleep=time.sleep if stopped is None else stopped.wait,
        stopped=(lambda: False) if stopped is None else stopped.is_set,
    )


def open_source(
    settings: Settings,
    book: PriceBook,
    now: Now,
    *,
    stopped: threading.Event | None = None,
    look: Look | None = None,
) -> Source:
    """The source of the settings. Nothing is asked yet. Raises InputError for a folder that is none.

    Once ``stopped`` is set, nothing that failed is asked again. With ``look`` nothing is asked twice, and
    windows are read up to its instant: what comes of it must not be kept.
    """
    if settings.source.path is not None:
        return RecordedSource(settings.source.path)
    found = settings.prometheus
    client = build_client(found, stopped=stopped)
    options = source_options(found, book.label_names)
    if look is not None:
        options = replace(options, as_of_ms=look.at_ms)
    # Here, since a cluster with gpucost's own exporters may have no need of it.
    from gpucost.telemetry.existing.by_day import ExistingByDay, OwnOnce

    own = (PrometheusSource if look is None else OwnOnce)(client, options, now=now)
    if found.dialect == "gpucost":
        return own
    from gpucost.telemetry.existing.choice import EitherSource
    from gpucost.telemetry.existing.source import ExistingSource

    existing = ExistingSource(client, options, _existing(settings), now=now)
    if look is not None:
        existing = ExistingByDay(client, options, _existing(settings), now=now, days=look.days)
    return existing if found.dialect == "existing" else EitherSource(own, existing, now)


def believed_jobs(settings: PrometheusSettings) -> Mapping[str, tuple[str, ...]]:
    """Scrape jobs by beginnings of names of series; names of which any job is believed are not there."""
    found = {
        "gpucost_": settings.gpucost_jobs,
        "kube_": settings.kube_state_metrics_jobs,
        "DCGM_": settings.dcgm_exporter_jobs,
        "dcgm_": settings.dcgm_exporter_jobs,
        "node_gpu_": settings.opencost_jobs,
        "node_total_hourly_cost": settings.opencost_jobs,
        "kubecost_": settings.opencost_jobs,
    }
    return {name: jobs for name, jobs in found.items() if jobs}


def _existing(settings: Settings) -> ExistingSettings:
    found = settings.prometheus
    return ExistingSettings(
        settings.attribution.catalog(),
        OwnerKeys(found.team_labels, found.project_labels, found.user_labels),
        settings.attribution.basis,
        tuple((each.kind, each.metric, each.name_label) for each in found.custom_resources),
    )


def build_strangers(
    settings: Settings, now: Now, stopped: threading.Event
) -> Callable[[str], Sequence[Stranger]]:
    """Who gave series in the last hour that are not believed, by cluster; it raises SourceError. Nobody in a
    recording."""
    found = settings.prometheus
    if settings.source.path is not None:
        return lambda cluster: ()  # noqa: ARG005  a recording has no jobs
    # Here, since only the service asks for it.
    from gpucost.telemetry.existing.reader import ExistingReader

    client, options = build_client(found, stopped=stopped, attempts=1), source_options(found)

    def look(cluster: str) -> Sequence[Stranger]:
        until = now()
        window = Window(until - HOUR_MS, until)
        reader = ExistingReader(client, options, cluster, window, _existing(settings))
        return strangers(reader, window, kinds_read(reader, found.dialect))

    return look


def build_trial(
    settings: Settings, book: PriceBook, teams: TeamRules, *, attempts: int | None = None
) -> Callable[[str, int], TrialReading | None]:
    """What a report says of the minutes of a cluster before an instant, for ``gpucost doctor``; it raises
    SourceError."""
    # Here, since only the doctor asks for it.
    from gpucost.telemetry.doctor.trial import read_trial
    from gpucost.telemetry.existing.source import ExistingSource

    client = build_client(settings.prometheus, attempts=attempts)
    options = replace(source_options(settings.prometheus, book.label_names), history_ms=DAY_MS)
    rules = rules_of(settings, book, teams)

    def read(cluster: str, at_ms: int) -> TrialReading | None:
        at = replace(options, as_of_ms=at_ms)
        source = ExistingSource(client, at, _existing(settings), now=lambda: at_ms)
        return read_trial(source, cluster, lambda frames, span: attribute_windows(frames, [span], rules))

    return read


def build_rules(
    settings: AttributionSettings, book: PriceBook, teams: TeamRules, prices: RateLookup | None = None
) -> Rules:
    """``prices`` are those of ``build_prices``; the book's alone where they are not given."""
    return Rules(prices or book.rates, teams, settings.catalog(), settings.basis)


def rules_of(
    settings: Settings, book: PriceBook, teams: TeamRules, *, stopped: threading.Event | None = None
) -> Rules:
    """``build_rules`` with the prices of ``build_prices``."""
    return build_rules(settings.attribution, book, teams, build_prices(settings, book, stopped=stopped))


def build_prices(
    settings: Settings, book: PriceBook, *, stopped: threading.Event | None = None
) -> RateLookup:
    """The book's prices, and OpenCost's as the settings say. Nothing is asked yet; the source may be later,
    and what it raises then is what a call raises."""
    found = settings.pricing
    if found.opencost is Mode.OFF or settings.source.path is not None:
        return book.rates
    # Here, since few have it.
    from gpucost.telemetry.existing.opencost import read_prices

    client, options = (
        build_client(settings.prometheus, stopped=stopped),
        source_options(settings.prometheus, book.label_names),
    )
    return OpenCostRates(
        lambda cluster, window: read_prices(ClusterReader(client, options, cluster, window), window),
        book.rates,
        found.opencost,
        book.currency,
        found.opencost_basis,
    )


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
        past=_past(settings, pipeline),
    )


def _past(settings: DetectorsSettings, pipeline: Pipeline) -> PastServers:
    return PastServers(pipeline.ledger, milliseconds(settings.past), max(pipeline.window_ms, HOUR_MS))


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
        past=_past(settings, pipeline),
        recent=lambda cluster: None if detecting is None else detecting.rolling(cluster).known,
    )


def build_watching(settings: Settings, catalog: ResourceCatalog) -> Watching | None:
    """The cluster that the settings have the service watch; None for none. Raises InputError."""
    found = settings.detectors
    if found.state == "none":
        return None
    transport = _api_server(found)
    cluster = found.cluster or settings.prometheus.cluster
    names, assumed = settings.advisor.names, settings.advisor.assumed
    return Watching.of(cluster, transport, catalog, OwnerKeys(), names, assumed)


def _api_server(settings: DetectorsSettings) -> HttpxTransport:
    """The way to the API server that the settings mean. Raises InputError."""
    kubeconfig = settings.kubeconfig if settings.state == "kubeconfig" else None
    return connect(os.environ, kubeconfig, settings.context)


def build_certificates(
    settings: Settings, status: AdvisingStatus, now: Now
) -> Callable[[Callable[[str], None]], Keeper] | None:
    """Who keeps the webhook's certificate, of who is to be told each one; None where others keep it. Nothing
    is asked yet. Raises InputError."""
    found = settings.webhook.certificates
    if not found.is_managed:
        return None
    # Here, since no other command makes certificates.
    from gpucost.kube.certificates.keeper import Keeper
    from gpucost.kube.certificates.kept import Wanted
    from gpucost.kube.certificates.objects import Objects

    kubeconfig = settings.detectors.kubeconfig if settings.detectors.state == "kubeconfig" else None
    transport = connect(os.environ, kubeconfig, settings.detectors.context)
    objects = Objects(
        transport, found.namespace or _own_namespace(), found.secret_name, found.webhook_configuration
    )
    lengths = milliseconds(found.lifetime), milliseconds(found.renew_before)
    wanted = Wanted(frozenset(found.dns_names), *lengths)
    return lambda show: Keeper(objects, wanted, now, show, status.certificate_failed)


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        allowed = "a namespace, where no service account is mounted"
        raise InputError("webhook.certificates.namespace", Remark("missing"), allowed) from None


def build_advising(
    settings: Settings,
    watching: Watched,
    book: PriceBook,
    teams: TeamRules,
    ledger: Ledger,
    status: AdvisingStatus | None = None,
) -> Advising:
    """The advisor over the watched cluster. Nothing is worked out yet: see ``start``. ``status`` is one that
    goes on counting."""
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
        status=status or AdvisingStatus(),
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
    return Reporting(ledger, gpucost.__version__, teams.quotas, accounts=accounts_of(teams))


def accounts_of(teams: TeamRules) -> dict[str, TeamAccount]:
    """What the team rules say of each team, as reports take it."""
    return {team.name: TeamAccount(team.cost_centre, team.monthly_budget) for team in teams.teams}


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


def source_options(settings: PrometheusSettings, node_labels: Collection[str] = ()) -> SourceOptions:
    """What a source, or whoever reads its series, is told; ``node_labels`` are those of prices."""
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
        progress=tuple(
            ProgressMetric(item.name, item.metric, item.pod_label, item.namespace_label)
            for item in settings.progress
        ),
        serving=SERVING_COUNTERS
        if settings.serving is None
        else tuple(ServingCounter(**item.model_dump()) for item in settings.serving),
    )
