"""The probe of ``gpucost doctor``: facts about every cluster that a server has series of. Raises SourceError.

It finds which scrape job is kube-state-metrics, and which other jobs export series of the same names.
OpenCost exports ``kube_*`` of its own by default, labels of nodes and pods among them (opencost 1.112,
pkg/metrics/kubemetrics.go and pkg/env/costmodelenv.go). Reports do not read those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from gpucost.contract import kube_state as ksm
from gpucost.contract.gpu_metrics import POD_BUSY, POD_SM_ACTIVE
from gpucost.contract.probe import (
    GPU_JOBS,
    KUBE_JOBS,
    KUEUE_QUEUES,
    KUEUE_QUOTAS,
    OPENCOST_PRICES,
    OWN_JOBS,
    OWN_STATE,
    VOLCANO_QUEUES,
    VOLCANO_QUOTAS,
    ClusterProbe,
    DuplicateSeries,
    ForeignJob,
    GpuSeries,
    NodeSeries,
    OtherGpus,
    PodSeries,
    ScrapeGaps,
    ScrapeJob,
    SeriesPresence,
    ServerProbe,
    SharingSeries,
    TrialReading,
    UnansweredQuery,
    UnbelievedJob,
)
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.telemetry.doctor import gpus, scrapes, state
from gpucost.telemetry.doctor.gpus import read_others, read_schedulers, read_sharing
from gpucost.telemetry.doctor.probe_reader import (
    KUBE,
    LONGEST,
    ProbeReader,
    grouped,
)
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import column, own_label
from gpucost.telemetry.prometheus.promql import PromQL, by
from gpucost.telemetry.prometheus.query_response import ResultSeries, needed, whole_count
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus.trust import KUBE as KUBE_KIND
from gpucost.telemetry.prometheus.trust import OTHER_KINDS, OWN_KINDS, device_kinds, strangers


def read_believed(asker: ProbeReader, clusters: Iterable[str], asked: Window) -> None:
    """Adds, by cluster, the scrape jobs that a report of that time would believe; entries that exist are
    kept."""
    if asker.jobs(ksm.NODE_CREATED):
        return
    for cluster in set(clusters) - asker.believed.keys():
        reader = asker.reader(cluster, asked)
        choice = asker.tried("jobs of kube-state-metrics", partial(reader.choice, KUBE_KIND))
        if choice is not None:
            asker.believed[cluster] = sorted({each.job for each in choice.believed})


def counts_of(asker: ProbeReader, found: Iterable[ResultSeries]) -> dict[str, dict[str, int]]:
    """By cluster, how many series each name has, from counts by job. For kube-state-metrics' names only the
    believed job counts; other jobs that export them go into ``asker.unbelieved``."""
    counts: dict[str, dict[str, int]] = {}
    for cluster, rows in grouped(asker, found).items():
        names = counts.setdefault(cluster, {})
        others: dict[str, set[str]] = {}
        prices = set()
        for series in rows:
            name, job = needed(series, "__name__"), series["metric"].get("job", "")
            if name in OPENCOST_PRICES:
                prices.add(job)
            if name.startswith(KUBE) and not asker.believes(cluster, job):
                others.setdefault(job, set()).add(name)
            else:
                names[name] = names.get(name, 0) + whole_count(float(series["value"][1]))
        asker.unbelieved[cluster] = tuple(
            UnbelievedJob(job, tuple(sorted(others[job])), is_opencost=job in prices)
            for job in sorted(others)
        )
    return counts


def read_hidden(asker: ProbeReader, clusters: Iterable[str], of_gpus: PromQL, at_ms: int) -> None:
    """For those of ``clusters`` whose believed job shows no pod with GPUs: the other jobs that do show
    some."""
    wanted = set(clusters)
    if not wanted:
        return
    told = by(
        "count",
        ("job", asker.settings.cluster_label),
        asker.given(ksm.REQUESTS, of_gpus),
    )
    for cluster, rows in grouped(asker, asker.vector("jobs that tell of pods", told, at_ms)).items():
        known = {each.job: each for each in asker.unbelieved.get(cluster, ())}
        for job in column(rows, "job"):
            if cluster in wanted and not asker.believes(cluster, job):
                before = known.get(job, UnbelievedJob(job, ()))
                names = (*before.names, ksm.REQUESTS)
                known[job] = UnbelievedJob(job, names, is_opencost=before.is_opencost)
        asker.unbelieved[cluster] = tuple(known[job] for job in sorted(known))


_RETENTION = "storage.tsdb.retention.time"
_COUNTED = (
    *(ksm.NODE_CREATED, ksm.NODE_INFO, ksm.NODE_LABELS, ksm.NODE_ALLOCATABLE, ksm.NODE_CAPACITY, ksm.UP),
    *(ksm.RESOURCE_CLAIMS, OWN_STATE, POD_BUSY.name, POD_SM_ACTIVE.name, *gpus.METRICS),
    *(*KUEUE_QUOTAS, *KUEUE_QUEUES, *VOLCANO_QUOTAS, *VOLCANO_QUEUES, *OPENCOST_PRICES),
)

_MOST_GONE = 8
"""How many past instants at which a cluster ended are probed, the latest first: each costs some twenty
queries."""
ReadTrial = Callable[[str, int], TrialReading | None]
_KINDS = {KUBE_JOBS: "state", OWN_JOBS: "own", GPU_JOBS: "gpus"}
_OF_SETTING = {KUBE_JOBS: (ksm.NODE_CREATED,), OWN_JOBS: (OWN_STATE,), GPU_JOBS: gpus.METRICS}


def probe(
    client: PrometheusClient,
    settings: PrometheusSourceSettings,
    catalog: ResourceCatalog,
    month: Month,
    now_ms: int,
    cluster: str | None = None,
    read_trial: ReadTrial = lambda cluster, at_ms: None,  # noqa: ARG005  a caller may want the facts alone
) -> ServerProbe:
    """The facts of each cluster as of now, or as of its last series, and when it had series in the past part
    of ``month``. ``read_trial`` attributes the last minutes of a cluster before an instant.

    Raises InputError for a future month, and for a cluster that is not among those of the server.
    """
    if month.window.start_ms >= now_ms:
        raise InputError("month", str(month), f"a month that has begun, such as {Month.of(now_ms)}")
    asker = ProbeReader(client, settings, cluster)
    asked = Window(month.window.start_ms, min(month.window.end_ms, now_ms))
    counts, at_ms = _counts(asker, asked, now_ms), now_ms
    seen = scrapes.read_seen(asker, asked, counts.values())
    if not any(_has_more_than_up(series) for series in counts.values()) and seen:
        at_ms = max(each.last_ms for kinds in seen.values() for each in kinds.values())
        counts = _counts(asker, asked, at_ms)
    if cluster is not None and not seen and not any(_has_more_than_up(series) for series in counts.values()):
        _refuse_unknown(ProbeReader(client, settings, None), cluster, asked, now_ms)
    facts = _Facts(asker, ksm.by_sanitised(catalog.shares), read_trial, at_ms, asked, counts, seen)
    clusters = {each.cluster: each for each in facts.clusters()} | _gone(facts)
    return ServerProbe(
        url=client.url,
        now_ms=now_ms,
        at_ms=at_ms,
        month=str(month),
        asked=asked,
        retention=asker.status("storageRetention", "runtimeinfo") or asker.status(_RETENTION, "flags"),
        targets=sum(series.get(ksm.UP, 0) for series in counts.values()),
        clusters=tuple(clusters[name] for name in sorted(clusters)),
        unread=tuple(dict.fromkeys(asker.unread)),
    )


def _gone(facts: _Facts) -> dict[str, ClusterProbe]:
    """Clusters that had series in the month and have none now, each probed at the time of its last series."""
    last: dict[int, set[str]] = {}
    for cluster, kinds in (facts.seen or {}).items():
        ended_ms = max(each.last_ms for each in kinds.values())
        if ended_ms < facts.at_ms and not _has_more_than_up(facts.counts.get(cluster, {})):
            last.setdefault(ended_ms, set()).add(cluster)
    return {
        each.cluster: replace(each, at_ms=at_ms)
        for at_ms, names in sorted(last.items())[-_MOST_GONE:]
        for counts in (_counts(facts.asker, facts.asked, at_ms),)
        for each in replace(facts, at_ms=at_ms, counts=counts, only=names).clusters()
    }


def _refuse_unknown(asker: ProbeReader, cluster: str, asked: Window, now_ms: int) -> None:
    """Raise InputError where the server has other clusters, now or in the month."""
    counts = _counts(asker, asked, now_ms)
    known = {name for name, series in counts.items() if _has_more_than_up(series)}
    known |= set(scrapes.read_seen(asker, asked, counts.values()) or ())
    if known - {cluster}:
        raise InputError("cluster", cluster, ", ".join(sorted(known)))


def _counts(asker: ProbeReader, asked: Window, at_ms: int) -> dict[str, dict[str, int]]:
    """By cluster, how many series of each name."""
    found = asker.first(state.counted(asker, sorted(_COUNTED), "job"), at_ms)
    of_nodes = [series for series in found if needed(series, "__name__") == ksm.NODE_CREATED]
    there = Window(min(asked.start_ms, at_ms - 1), at_ms)
    read_believed(asker, map(asker.cluster_of, of_nodes), there)
    return counts_of(asker, found)


def _jobs(result: list[ResultSeries]) -> dict[str, dict[str, int]]:
    """By setting that names scrape jobs: the believed jobs, and how many nodes (or gpucost targets) each
    shows."""
    shown: dict[str, dict[str, set[str]]] = {}
    for series in result:
        labels = series["metric"]
        name, job = labels.get("__name__", ""), labels.get("job", "")
        setting, subject = (OWN_JOBS, "instance") if name == OWN_STATE else (KUBE_JOBS, "node")
        of_jobs = shown.setdefault(setting, {})
        of_jobs.setdefault(job, set()).add(own_label(series, subject))
    return {setting: {job: len(each) for job, each in found.items()} for setting, found in shown.items()}


def _others(asker: ProbeReader, at_ms: int) -> dict[str, dict[str, tuple[str, ...]]]:
    """By cluster and setting that names jobs, where those jobs have no such series: the jobs that do, most
    series first."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for setting, names in _OF_SETTING.items():
        believed = asker.jobs(names[0])
        if not believed:
            continue
        counted = by("count", ("job", asker.settings.cluster_label), asker.whosoever(names))
        for cluster, series in grouped(asker, asker.vector(f"jobs of {setting}", counted, at_ms)).items():
            sizes = {each["metric"].get("job", ""): float(each["value"][1]) for each in series}
            if not sizes.keys() & set(believed):
                jobs = sorted(sizes, key=lambda job: (-sizes[job], job))
                found.setdefault(cluster, {})[setting] = tuple(jobs)
    return found


def _has_more_than_up(series: Mapping[str, int]) -> bool:
    return any(name != ksm.UP for name in series)


@dataclass
class _Facts:
    """The queries that cover all clusters at once, and the facts of each cluster made of them."""

    asker: ProbeReader
    known: Mapping[str, str]
    read_trial: ReadTrial
    at_ms: int
    asked: Window
    counts: Mapping[str, Mapping[str, int]]
    seen: Mapping[str, Mapping[str, SeriesPresence]] | None
    only: Collection[str] = ()
    """Only these clusters; empty for all."""
    rows: dict[str, list[ResultSeries]] = field(default_factory=dict)
    jobs: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    exporters: set[tuple[str, str]] = field(default_factory=set)
    scraped: dict[str, tuple[ScrapeJob, ...]] = field(default_factory=dict)
    node_of: dict[str, str] = field(default_factory=dict)

    def clusters(self) -> tuple[ClusterProbe, ...]:
        others = _others(self.asker, self.at_ms)
        pods = state.read_pods(self.asker, self.known, self.at_ms)
        nodes = state.read_nodes(self.asker, self.known, self.at_ms)
        named = {cluster for cluster, series in self.counts.items() if _has_more_than_up(series)}
        named |= {*others, *(self.seen or {}), *(pods[0] if pods else ()), *(nodes or {})}
        if pods is not None and nodes is not None:
            of_gpus = state.gpu_matcher(self.known)
            read_hidden(self.asker, nodes.keys() - pods[0].keys(), of_gpus, self.at_ms)
        rows = gpus.read_rows(self.asker, self.counts, self.at_ms)
        self.rows = rows or {}
        unclear = gpus.unclear_units(self.asker, self.counts.values(), self.at_ms)
        self._read_targets()
        no_pods, no_nodes = PodSeries(names=frozenset()), NodeSeries(names=frozenset())
        return tuple(
            ClusterProbe(
                cluster=name,
                series=dict(self.counts.get(name, {})),
                seen=None if self.seen is None else dict(self.seen.get(name, {})),
                pods=None if pods is None else pods[0].get(name, no_pods),
                nodes=None if nodes is None else nodes.get(name, no_nodes),
                gpus=self._gpus(name, unclear.get(name, ())),
                gpus_unread=rows is None and bool(gpus.base_of(self.counts.get(name, {}))),
                doubles=self._doubles(name, None if pods is None else pods[1].get(name)),
                scrapes=self.scraped.get(name, ()),
                gaps=self._gaps(name),
                jobs=self.jobs.get(name, {}),
                others=self._hidden(name, others),
                unbelieved=self.asker.unbelieved.get(name, ()),
                strangers=self._strangers(name),
                trial=self._trial(name),
                sharing=self._sharing(name),
                schedulers=self._schedulers(name),
                other_gpus=self._others(name),
            )
            for name in sorted(named.intersection(self.only) if self.only else named)
        )

    def _trial(self, cluster: str) -> TrialReading | None:
        if not self.asker.believed.get(cluster) and not self.asker.jobs(ksm.NODE_CREATED):
            return None
        try:
            return self.read_trial(cluster, self.at_ms)
        except SourceError as error:
            what = f"what a report says of the last minutes of {cluster}"
            self.asker.unread.append(UnansweredQuery(what, str(error)[:LONGEST]))
            return None

    def _sharing(self, cluster: str) -> SharingSeries | None:
        if not self.counts.get(cluster, {}).get(OWN_STATE):
            return None
        return read_sharing(self.asker, cluster, Window(self.at_ms - HOUR_MS, self.at_ms))

    def _schedulers(self, cluster: str) -> Mapping[str, str]:
        if not self.counts.get(cluster, {}).get(OWN_STATE):
            return {}
        return read_schedulers(self.asker, cluster, Window(self.at_ms - HOUR_MS, self.at_ms))

    def _others(self, cluster: str) -> OtherGpus | None:
        window, series = Window(self.at_ms - HOUR_MS, self.at_ms), self.counts.get(cluster, {})
        return read_others(self.asker, cluster, window, is_own=bool(series.get(OWN_STATE)))

    def _strangers(self, cluster: str) -> tuple[ForeignJob, ...]:
        """Jobs that exported series in the last day and that no report believes."""
        start_ms = min(max(self.asked.start_ms, self.at_ms - DAY_MS), self.at_ms - 1)
        window = Window(start_ms, self.at_ms)
        reader = self.asker.reader(cluster, window)

        def ask() -> list[ForeignJob]:
            return strangers(reader, window, (*OWN_KINDS, *OTHER_KINDS, *device_kinds(reader)))

        return tuple(self.asker.tried("who gives series that are not believed", ask) or ())

    def _hidden(
        self, cluster: str, others: Mapping[str, Mapping[str, tuple[str, ...]]]
    ) -> Mapping[str, tuple[str, ...]]:
        """Jobs that the settings name and that have no series. A job that had series in the month is left
        out: it is down now, and not misspelt."""
        seen = None if self.seen is None else self.seen.get(cluster, {})
        found = others.get(cluster, {})
        return {each: jobs for each, jobs in found.items() if seen is not None and _KINDS[each] not in seen}

    def _gpus(self, cluster: str, unclear: Collection[str]) -> GpuSeries | None:
        rows = self.rows.get(cluster)
        if not rows:
            return None
        return gpus.gpu_series(rows, self.counts.get(cluster, {}), self.exporters, unclear)

    def _doubles(self, cluster: str, of_pods: DuplicateSeries | None) -> tuple[DuplicateSeries, ...]:
        of_gpus = gpus.duplicate_rows(self.rows.get(cluster, []), self.asker.settings.replica_labels)
        return tuple(each for each in (of_pods, of_gpus) if each is not None)

    def _read_targets(self) -> None:
        """The targets of every job with such series: their scrape interval, and which pods the exporters run
        in."""
        asker = self.asker
        own = [name for name in (OWN_STATE,) if any(name in each for each in self.counts.values())]
        asked = [asker.given(names) for names in asker.alike([ksm.NODE_CREATED, *own])]
        beside = [each for one in asked for each in asker.vector("targets", one, self.at_ms) or []]
        for cluster, found in grouped(asker, beside).items():
            self.jobs[cluster] = _jobs(found)
        rows = [row for found in self.rows.values() for row in found]
        jobs = {each["metric"].get("job", "") for each in (*beside, *rows)} - {""}
        up = scrapes.read_up(asker, jobs, self.at_ms) or []
        self.scraped = scrapes.read_scrapes(asker, up, self.at_ms)
        of_rows = scrapes.targets_of(asker, rows)
        self.exporters = {
            (each["metric"].get("namespace", ""), each["metric"].get("pod", ""))
            for each in up
            if scrapes.targets_of(asker, [each]) <= of_rows and each["metric"].get("pod")
        }
        self.node_of = {
            cluster: min(each["metric"].get("node", "") for each in found)
            for cluster, found in grouped(asker, asker.of_believed(beside)).items()
        }

    def _gaps(self, cluster: str) -> ScrapeGaps | None:
        node = self.node_of.get(cluster, "")
        return scrapes.read_gaps(self.asker, cluster, self.asked, node) if node else None
