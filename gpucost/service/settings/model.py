"""Every setting of gpucost, grouped by topic; docs/settings.md is generated from these docstrings.

A setting stands in a YAML file (``ingest: {window: 1h}``) or in the environment
(``GPUCOST_INGEST__WINDOW=1h``), which wins. Durations are text with a unit. Unknown keys are refused.

The groups of how the service runs stand here too: its log, reloading, and retention.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.domain.configfile import Instant, wrong
from gpucost.domain.errors import ErrorRemark
from gpucost.domain.gpu import DEFAULT_RESOURCES, ResourceCatalog, ShareBasis
from gpucost.domain.time import DAY_MS, MINUTE_MS
from gpucost.pricing.opencost_prices import ObservedPriceBasis, ObservedPriceMode
from gpucost.service.settings.access import AccessSettings
from gpucost.service.settings.advisor import AdvisingSettings, WebhookSettings
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.service.settings.inner_schedulers import InnerSchedulers
from gpucost.service.settings.notifications import NotifySettings
from gpucost.settings.types import (
    Duration,
    DurationOrZero,
    ExistingFile,
    LogLevel,
    SettingsGroup,
    Share,
    base_url,
    between,
    groups_in,
    milliseconds,
    one_line,
    secret,
)


class LogSettings(SettingsGroup):
    """What the service writes to stderr."""

    format: Literal["text", "json"] = "text"
    """``text`` for people, ``json`` for a log store: one object a line, with time, level, logger and message,
    and for requests their id, route, status, duration and principal.
    """

    level: LogLevel = "info"
    """``debug``, ``info``, ``warning`` or ``error``."""

    requests: bool = True
    """Whether every request of the API is a line: method, route (never its query), status, milliseconds, who
    asked. Probes are left out.
    """


class ReloadSettings(SettingsGroup):
    """Reading the settings, the price book, the team rules and the charge policy again, without a restart."""

    watch: Annotated[
        DurationOrZero, between(timedelta(0), timedelta(hours=1), "a duration from 0 to 1h; 0 is never")
    ] = timedelta(seconds=30)
    """How often the files are looked at, from 0 to an hour; 0 is never, and SIGHUP still reloads. What is
    wrong is logged, counted and not taken: the service goes on with what it has.
    """


def _kept(least_days: int) -> WrapValidator:
    """For ever, or long enough for the readers of old data."""
    bounds = timedelta(days=least_days), timedelta(days=3650)
    allowed = f"a duration from {least_days}d to 3650d; 0 is for ever"

    def check(value: object, duration: ValidatorFunctionWrapHandler) -> object:
        found = duration(value)
        if found and not bounds[0] <= found <= bounds[1]:
            raise wrong(value, allowed)
        return found

    return WrapValidator(check)


class RetentionSettings(SettingsGroup):
    """How long what is kept. Totals of closed months never change, whatever is set here."""

    detail: Annotated[DurationOrZero, _kept(100)] = timedelta(days=400)
    """How long after its end a closed month keeps its windows as they were written; then its lines are added
    up by day. 400 days leave a year, and its comparison month, in full detail. The advisor looks back 90 from
    the last window that the ledger has of its cluster, and reads no run times out of days that were added
    up. From 100d to 3650d; 0 is for ever.
    """

    seal: Annotated[DurationOrZero, _kept(1)] = timedelta(0)
    """How long after its end a closed month keeps its lines in the database; then ``gpucost serve`` seals it,
    as ``gpucost ledger seal`` does, into ``ledger.sealed``, which must be set. A month that was unsealed is
    left alone. From 1d to 3650d; 0 is for ever.
    """

    findings: Annotated[DurationOrZero, _kept(30)] = timedelta(days=400)
    """How long a resolved finding, with its events, and what was told of it are kept: from 30d to 3650d; 0 is
    for ever. Messages that were sent go after 30 days, those given up after 90, whatever is set here.
    """


ENV_PREFIX = "GPUCOST_"
ENV_DELIMITER = "__"


class LedgerSettings(SettingsGroup):
    """Where the numbers are kept."""

    url: SecretStr = SecretStr("sqlite:///gpucost.db")
    """Database URL: ``sqlite:///FILE`` or ``postgresql+psycopg://USER:PASSWORD@HOST/DATABASE``. SQLite by
    default, since it needs no server; one file holds years of a cluster. A secret: it may hold a password.
    """

    url_file: ExistingFile | None = None
    """File whose content is the URL, for mounted secrets. Leave ``url`` out then."""

    sealed: str = ""
    """Folder, or URL of an object store (``s3://BUCKET/PATH``), that ``gpucost ledger seal`` moves closed
    months to, as Parquet files; reports read them there. Empty: no month is sealed. Every process that reads
    this ledger needs the same. Credentials are those of the store's own tools; the URL has none.
    """

    close_coverage: Annotated[Decimal, Field(ge=0, le=1)] = Decimal("0.99")
    """A number from 0 to 1: the part of a month that must have been observed before it can be closed. 0.99
    lets seven hours be missing; below it, closing needs a reason.
    """

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if self.url_file is not None and "url" in self.model_fields_set:
            raise wrong(ErrorRemark("both are given"), "url or url_file, not both", "url")
        self.database_url()
        return self

    def may_exist(self) -> bool:
        """False where no ledger has been made: the URL names a plain file, and there is none."""
        file = self.database_url().partition("sqlite:///")[2]
        return not file or any(sign in file for sign in "?:#%") or Path(file).exists()

    def database_url(self) -> str:
        if self.url_file is not None:
            return one_line(self.url_file, "url")
        return self.url.get_secret_value()


class SourceSettings(SettingsGroup):
    """Where intervals come from."""

    kind: Literal["prometheus", "recorded"] = "prometheus"
    """``prometheus`` (or anything that speaks its HTTP API), or ``recorded``: Parquet files in ``path``."""

    path: Path | None = None
    """Folder of the recorded source. Needed when ``kind`` is ``recorded``, refused otherwise."""

    cache: Path | None = None
    """Folder in which reports straight from Prometheus keep days that are over. By default ``gpucost`` in the
    cache folder of the user: ``$XDG_CACHE_HOME``, ``~/.cache`` or ``~/Library/Caches``.
    """

    cache_mib: Annotated[int, Field(ge=0)] = 2048
    """The most that is kept there, in MiB: what was not used for longest is removed first. 0: nothing is."""

    inner_schedulers: InnerSchedulers = ()
    """Slurm and Ray in pods, whose jobs are billed in place of the pods. Of several that may divide a pod,
    the first does.
    """

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [each.name for each in self.inner_schedulers]
        for n, name in enumerate(names):
            if name in names[:n]:
                raise wrong(name, "a name once", "inner_schedulers", n, "name")
        return self

    @model_validator(mode="after")
    def _path_with_recorded(self) -> Self:
        if (self.kind == "recorded") != (self.path is not None):
            found = ErrorRemark("missing") if self.path is None else str(self.path)
            raise wrong(found, "a folder when kind is recorded, and nothing otherwise", "path")
        return self


class ProgressSettings(SettingsGroup):
    """One series that says how far jobs came, so that a step, an epoch or a token has a cost."""

    name: str
    """Name in reports and in ``?progress=``, such as ``steps``."""

    metric: str
    """Name of the series in Prometheus; a counter."""

    pod_label: str = "pod"
    """Label that holds the pod's name, or its uid when ``namespace_label`` is empty."""

    namespace_label: str = "namespace"
    """Label that holds the pod's namespace."""

    from_namespaces: tuple[str, ...] = ()
    """Namespaces whose exporters may count for other pods. Without any, a series is about the pod that it was
    scraped from."""


class ServingSettings(SettingsGroup):
    """One counter of what reaches servers, so that one that nobody calls can be told."""

    metric: str
    """Name of the counter in Prometheus."""

    by: Literal["pod", "workload"] = "pod"
    """Whether ``name_label`` names a pod or a workload. One of workloads only speaks against idleness."""

    name_label: str = "pod"
    """Label that holds the name: by pod that of the scrape's target, by workload the series' own."""

    namespace_label: str = "namespace"
    """Label that holds the namespace, in the same way."""

    only: dict[str, str] = Field(default_factory=dict)
    """Labels that a series must have, such as ``reporter: destination``."""

    from_namespaces: tuple[str, ...] = ()
    """Where series by workload may be scraped: the namespaces of ingress controllers."""

    is_bytes: bool = False
    """Whether it counts bytes received, and not requests."""


class CustomResourceSettings(SettingsGroup):
    """One series of kube-state-metrics' custom-resource state that carries the labels of owners of pods."""

    kind: str
    """Kind of the owner, such as ``PyTorchJob``."""

    metric: str
    """Name of the series, such as ``kube_customresource_pytorchjob_labels``."""

    name_label: str = "name"
    """Label that holds the owner's name. ``namespace`` holds its namespace."""


class PrometheusSettings(SettingsGroup):
    """How Prometheus (or Thanos, Mimir, VictoriaMetrics) is asked."""

    url: Annotated[str, AfterValidator(base_url)] = "http://localhost:9090"
    """Base URL with http or https, a path prefix allowed, without user info, query or fragment. Prometheus'
    own default address.
    """

    timeout: Duration = timedelta(minutes=2)
    """Longest wait for one answer. As long as Prometheus' own limit for a query; after it, nobody answers."""

    username: str = ""
    """User name of HTTP basic authentication. Not used when empty."""

    password: SecretStr | None = None
    """Password of ``username``."""

    password_file: ExistingFile | None = None
    """File whose content is the password, for mounted secrets."""

    bearer_token: SecretStr | None = None
    """Token sent as ``Authorization: Bearer``. Nothing is sent when it is not set."""

    bearer_token_file: ExistingFile | None = None
    """File whose content is the token, for mounted secrets."""

    ca_file: ExistingFile | None = None
    """PEM file of the certificate authorities to trust instead of the system's."""

    cluster_label: str = "cluster"
    """Label that names the cluster of a series."""

    cluster: str = "default"
    """Name of the cluster of series without that label, as in a Prometheus of one cluster."""

    replica_labels: tuple[str, ...] = ()
    """Labels that tell the members of an HA pair apart, such as ``prometheus_replica``. They are collapsed
    before anything is added up; leave it empty where the querier (Thanos, Mimir) does so.
    """

    matchers: dict[str, str] = Field(default_factory=dict)
    """Labels and values that every series must have, for a server that also holds others' series."""

    max_gap: Duration = timedelta(minutes=5)
    """Longest time between two heartbeats that is no gap. Prometheus' own look-back; longer ones are unknown
    time.
    """

    lateness: Duration = timedelta(minutes=5)
    """How late the collector may learn of a start or an end, at least ``max_gap``. A window is read that
    long after its end.
    """

    samples: Literal["auto", "always", "never"] = "auto"
    """Whether samples themselves are read (Prometheus' remote read) instead of asking queries of them: the
    same numbers for a fraction of the server's time. ``auto``: of clusters of 16 GPU nodes or more, where the
    server sends them and the extra ``fast`` is installed.
    """

    activity_step: Annotated[
        Duration, between(timedelta(minutes=1), timedelta(hours=1), "a duration from 1m to 1h")
    ] = timedelta(minutes=5)
    """Length of the steps in which detectors see what each GPU did, from a minute to an hour. Ten scrapes of
    30 seconds: short enough for a pause of a quarter of an hour; a day of 1,000 GPUs is 300,000 rows.
    """

    node_labels: tuple[str, ...] = ()
    """Kubernetes node labels that the collector exports. Those the price book looks at are added."""

    progress: tuple[ProgressSettings, ...] = ()
    """Series that say how far jobs came."""

    serving: tuple[ServingSettings, ...] | None = None
    """Counters of what reaches servers. Unset: those of vLLM, SGLang, TGI, Triton, KServe, Knative, Ray
    Serve, Istio and ingress-nginx, and the bytes a pod received by cAdvisor; see
    [sources](sources.md). Empty: none.
    """

    dialect: Literal["auto", "gpucost", "existing"] = "auto"
    """Whose series are read: ``gpucost``'s own exporters, what is there without them (``existing``:
    kube-state-metrics and dcgm-exporter), or whichever covers a window (``auto``), gpucost's first.
    """

    team_labels: tuple[str, ...] = OwnerKeys().team
    """Labels and annotations of pods that name their team, in order of preference; read of kube-state-metrics
    only, since gpucost's queue collector has settings of its own. The same for the next two.
    """

    project_labels: tuple[str, ...] = OwnerKeys().project
    """Labels and annotations of pods that name their project."""

    user_labels: tuple[str, ...] = OwnerKeys().user
    """Labels and annotations of pods that name their user."""

    kube_state_metrics_jobs: tuple[str, ...] = ()
    """Scrape jobs of kube-state-metrics. Only their ``kube_*`` series are believed then: set it where tenants
    may have targets of their own scraped.
    """

    dcgm_exporter_jobs: tuple[str, ...] = ()
    """The same of dcgm-exporter and its ``DCGM_*`` series."""

    amd_exporter_jobs: tuple[str, ...] = ()
    """The same of AMD's device-metrics-exporter and its ``gpu_*`` (or ``amd_gpu_*``) series."""

    otel_gpu_jobs: tuple[str, ...] = ()
    """The same of OpenTelemetry collectors and their ``hw_gpu_*``, ``hw_energy_*`` and ``hw_power_*`` series.
    """

    gpucost_jobs: tuple[str, ...] = ()
    """The same of gpucost's own exporters and their ``gpucost_*`` series. Unset, as for those above: jobs
    that are called like them, and of several the one that was there first; see [existing](existing.md).
    """

    gpucost_namespace: str = ""
    """Where gpucost's exporters run. Targets that are elsewhere, as the label ``namespace`` of ``up`` says,
    are not believed, whatever their job is called: a Service of a tenant may be called like ours.
    """

    opencost_jobs: tuple[str, ...] = ()
    """The same of OpenCost's prices."""

    custom_resources: tuple[CustomResourceSettings, ...] = ()
    """Series of owners of other kinds, such as PyTorchJobs, that kube-state-metrics was told to give."""

    @model_validator(mode="after")
    def _onesecret(self) -> Self:
        self.token()
        if bool(self.username) != (self.basic_password() is not None):
            raise wrong(self.username, "username and password together", "username")
        return self

    def token(self) -> str | None:
        token = secret(self.bearer_token, self.bearer_token_file, "bearer_token")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise wrong(ErrorRemark("not fit for a header"), "printable ASCII on one line", "bearer_token")
        return token

    def basic_password(self) -> str | None:
        return secret(self.password, self.password_file, "password")


class PricingSettings(SettingsGroup):
    """What a GPU-hour costs."""

    book: ExistingFile | None = None
    """Price book (YAML). The dated table that ships with gpucost is used when it is not set; its list prices
    are public, so set your own before anybody is billed.
    """

    opencost: ObservedPriceMode = ObservedPriceMode.OFF
    """``off``, ``fallback`` or ``first``: whether prices that OpenCost's series in Prometheus say a node has
    are looked at never, where the book has none, or before the book; then what is more than five times from
    the book's price is told. ``gpucost report --prometheus`` falls back on them unless this is set.
    """

    opencost_basis: ObservedPriceBasis = ObservedPriceBasis.TOTAL
    """``total``: what OpenCost says the whole node costs, divided by its boards. ``gpu``: what its split of
    that leaves for one GPU, which on some clouds is a third of it.
    """

    opencost_default: Annotated[Decimal | None, Field(ge=0, le=1_000_000)] = None
    """What OpenCost is configured to bill for an hour of a GPU of a node of which it has no price (``GPU`` of
    its price settings), for ``gpucost compare opencost``: no series says it. Else it is what all other nodes
    cost where all prices are configured ones, or what OpenCost is shipped with.
    """


class TeamSettings(SettingsGroup):
    """Whose a pod is."""

    rules: ExistingFile | None = None
    """Team rules (YAML). Without them, a pod belongs to the team its team label names, else to nobody."""


class ChargeSettings(SettingsGroup):
    """What teams pay."""

    policy: ExistingFile | None = None
    """Charge policy (YAML) of statements: see [charges](charges.md). Without it, teams pay what their pods
    held, and the platform keeps the rest.
    """


class AttributionSettings(SettingsGroup):
    """How a unit becomes a part of a GPU."""

    basis: ShareBasis = ShareBasis.COMPUTE
    """``compute`` or ``memory``: what a MIG slice is measured by. Compute slices, of seven, are what NVIDIA
    sells; memory slices are of eight. Reports name the basis.
    """

    resources: dict[str, Share] = Field(default_factory=dict)
    """Further GPU resource names and the share of a GPU of one unit, such as ``{"vendor.example/gpu":
    "1"}``. They are added to the known ones.
    """

    def catalog(self) -> ResourceCatalog:
        return ResourceCatalog({**DEFAULT_RESOURCES, **self.resources})


class IngestSettings(SettingsGroup):
    """How closed windows flow into the ledger."""

    window: Duration = timedelta(hours=1)
    """Length of a window; it divides a day. Totals do not depend on it; an hour keeps a month of 1,000 GPUs
    small and a day's detail visible.
    """

    batch: Duration = timedelta(days=1)
    """How much is read at once when there is a backlog. A day means a few queries per day of back-fill; a
    batch that fails is halved.
    """

    lateness: Duration = timedelta(minutes=15)
    """How long after its end a window still changes by late data. It is read once when it ends and once more
    after this, then settled. Three scrapes of five minutes.
    """

    backfill: Duration = timedelta(days=15)
    """How far back a new ledger begins, when ``start`` is not set: Prometheus' default retention. Never
    longer than what the source holds.
    """

    start: Instant | None = None
    """First instant that counts (RFC 3339), such as the day the price book begins. Nothing before it is read.
    """

    poll: Duration = timedelta(minutes=1)
    """Pause between looks for a window that has ended."""

    retry_min: Duration = timedelta(seconds=5)
    """First pause after the source failed; it doubles with each failure, with full jitter."""

    retry_max: Duration = timedelta(minutes=10)
    """Longest pause after failures. Ten minutes are a sixth of a default window, so an outage's end is
    noticed before the next window.
    """

    @model_validator(mode="after")
    def _fit(self) -> Self:
        window = milliseconds(self.window)
        if window < MINUTE_MS or DAY_MS % window:
            raise wrong(str(self.window), "a part of a day: 1m, 5m, 15m, 1h, 6h, 1d", "window")
        if milliseconds(self.batch) % window:
            raise wrong(str(self.batch), f"a multiple of the window, {self.window}", "batch")
        if self.retry_min > self.retry_max:
            raise wrong(str(self.retry_min), f"no longer than retry_max, {self.retry_max}", "retry_min")
        return self


class Settings(BaseSettings):
    """All groups. Made by ``loader.load_settings``; tests may construct it directly."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    ledger: LedgerSettings = LedgerSettings()
    source: SourceSettings = SourceSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    pricing: PricingSettings = PricingSettings()
    teams: TeamSettings = TeamSettings()
    charges: ChargeSettings = ChargeSettings()
    attribution: AttributionSettings = AttributionSettings()
    ingest: IngestSettings = IngestSettings()
    api: ApiSettings = ApiSettings()
    access: AccessSettings = AccessSettings()
    log: LogSettings = LogSettings()
    reload: ReloadSettings = ReloadSettings()
    retention: RetentionSettings = RetentionSettings()
    detectors: DetectorsSettings = DetectorsSettings()
    advisor: AdvisingSettings = AdvisingSettings()
    webhook: WebhookSettings = WebhookSettings()
    notify: NotifySettings = NotifySettings()

    @model_validator(mode="after")
    def _a_place_for_seals(self) -> Self:
        if self.retention.seal and not self.ledger.sealed:
            allowed = "0, or ledger.sealed set: the folder that months move to"
            raise wrong(f"{self.retention.seal.days}d", allowed, "retention", "seal")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file; nothing else is read."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @classmethod
    def groups(cls) -> dict[str, type[SettingsGroup]]:
        """Group name -> its model, in the order of the documentation."""
        return groups_in(cls)
