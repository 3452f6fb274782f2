"""Queries that may fail: a failed query makes a fact unknown and does not end the probe.

Of names that kube-state-metrics uses, only series of the scrape jobs that a report would believe are read.
The module also counts subjects that have more than one series: two members of an HA pair, or two jobs that
scrape one exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from gpucost.contract.probe import DuplicateSeries, UnansweredQuery, UnbelievedJob
from gpucost.domain.errors import SourceError
from gpucost.domain.time import Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    equals,
    one_of,
    select,
)
from gpucost.telemetry.prometheus.query_response import QueryResponse, ResultSeries, holding
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings

KUBE = "kube_"
"""The prefixes of the names of kube-state-metrics' series."""
SAMPLED = 40
"""How many pods and nodes of each cluster are examined in detail."""
LONGEST = 300
T = TypeVar("T")


class ProbeReader:
    """Queries one server, for one cluster where ``cluster`` names it. ``unread`` lists the queries that
    failed."""

    def __init__(
        self, client: PrometheusClient, settings: PrometheusSourceSettings, cluster: str | None
    ) -> None:
        self.settings = settings
        self.unread: list[UnansweredQuery] = []
        self.believed: dict[str, Sequence[str]] = {}
        """By cluster, the scrape jobs of kube-state-metrics, once they are known."""
        self.unbelieved: dict[str, tuple[UnbelievedJob, ...]] = {}
        self._client = client
        self._only = cluster

    def select(self, names: str | Sequence[str], *matchers: PromQL, cluster: str | None = None) -> PromQL:
        """A selector of these metrics in the cluster that is probed. Raises ValueError for metrics of which
        different jobs are believed, since one selector cannot express that. When several clusters are probed,
        apply ``of_believed`` to the answer: it drops series of a job that is believed only for another
        cluster."""
        return self._of_jobs(self._jobs_in(cluster), names, *matchers, cluster=cluster)

    def given(self, names: str | Sequence[str], *matchers: PromQL, cluster: str | None = None) -> PromQL:
        """As ``select``, limited to the jobs that the settings name."""
        return self._of_jobs(self.jobs, names, *matchers, cluster=cluster)

    def _of_jobs(
        self,
        jobs_of: Callable[[str], Sequence[str]],
        names: str | Sequence[str],
        *matchers: PromQL,
        cluster: str | None,
    ) -> PromQL:
        found = {tuple(jobs_of(name)) for name in ([names] if isinstance(names, str) else names)}
        if len(found) > 1:
            raise ValueError(f"of some of {names} other jobs are believed")
        jobs = next(iter(found), ())
        return self.whosoever(names, *([one_of("job", jobs)] if jobs else []), *matchers, cluster=cluster)

    def _jobs_in(self, cluster: str | None) -> Callable[[str], Sequence[str]]:
        """The jobs that the settings name; for kube-state-metrics else the believed ones, of that cluster or
        of any."""

        def jobs(name: str) -> Sequence[str]:
            found = self.jobs(name)
            if found or not name.startswith(KUBE):
                return found
            wanted = self._only if cluster is None else cluster
            if wanted is not None:
                return self.believed.get(wanted, ())
            return sorted({job for each in self.believed.values() for job in each})

        return jobs

    def believes(self, cluster: str, job: str) -> bool:
        """Whether series of kube-state-metrics are taken from ``job``."""
        believed = self.believed.get(cluster, ())
        return not believed or job in believed

    def of_believed(self, result: Iterable[ResultSeries]) -> list[ResultSeries]:
        """Those of the rows that come from the job believed for their own cluster."""
        return [
            series
            for series in result
            if self.believes(self.cluster_of(series), series["metric"].get("job", ""))
        ]

    def alike(self, names: Iterable[str]) -> list[list[str]]:
        """These metrics in groups of which the same scrape jobs are believed."""
        found: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            found.setdefault(tuple(self.jobs(name)), []).append(name)
        return list(found.values())

    def whosoever(self, names: str | Sequence[str], *matchers: PromQL, cluster: str | None = None) -> PromQL:
        """As ``select``, of all scrape jobs, believed or not."""
        wanted = self._only if cluster is None else cluster
        fixed = [equals(label, value) for label, value in self.settings.matchers.items()]
        if wanted is not None:
            fixed.append(self._in(wanted))
        return select(names, (*fixed, *matchers))

    def jobs(self, name: str) -> Sequence[str]:
        """The scrape jobs that the settings name for series of this name; none for all."""
        return next((jobs for start, jobs in self.settings.jobs.items() if name.startswith(start)), ())

    def _in(self, cluster: str) -> PromQL:
        label = self.settings.cluster_label
        is_fallback = cluster == self.settings.fallback_cluster
        return one_of(label, ["", cluster]) if is_fallback else equals(label, cluster)

    def cluster_of(self, series: ResultSeries) -> str:
        named: str = series["metric"].get(self.settings.cluster_label, "")
        return named or self.settings.fallback_cluster

    def first(self, expression: PromQL, at_ms: int) -> list[ResultSeries]:
        """A vector that must be answered: raises SourceError where the server cannot be asked at all."""
        return self._whole("series", holding("value", self._client.query(expression, at_ms)))

    def vector(self, what: str, expression: PromQL, at_ms: int) -> list[ResultSeries] | None:
        return self._tried(what, lambda: holding("value", self._client.query(expression, at_ms)))

    def matrix(
        self, what: str, expression: PromQL, start_ms: int, end_ms: int, step_ms: int
    ) -> list[ResultSeries] | None:
        return self._tried(what, lambda: self._client.query_range(expression, start_ms, end_ms, step_ms))

    def raw(self, what: str, selector: PromQL, start_ms: int, end_ms: int) -> list[ResultSeries] | None:
        return self._tried(what, lambda: self._client.raw(selector, start_ms, end_ms))

    def label_sets(
        self, what: str, selector: PromQL, start_ms: int, end_ms: int
    ) -> list[ResultSeries] | None:
        return self._tried(what, lambda: self._client.series(selector, start_ms, end_ms))

    def label_names(
        self, what: str, selector: PromQL, start_ms: int, end_ms: int, prefix: str
    ) -> frozenset[str] | None:
        """The labels that begin with ``prefix``, over all series of ``selector``."""
        found = self._tried(what, lambda: self._client.label_names(selector, start_ms, end_ms))
        if found is None:
            return None
        names = (str(each["label"]) for each in found)
        return frozenset(name for name in names if name.startswith(prefix))

    def status(self, key: str, page: str) -> str | None:
        """What the server reports about itself; many servers do not support this."""
        try:
            return self._client.status(page).get(key) or None
        except SourceError:
            return None

    def reader(self, cluster: str, window: Window) -> KubeStateReader:
        """The reader that a report uses for a window; it raises SourceError."""
        return KubeStateReader(self._client, self.settings, cluster, window, UpstreamSettings())

    def tried(self, what: str, ask: Callable[[], T]) -> T | None:
        """The answer; on a SourceError None, and the fact is recorded as unknown."""
        try:
            return ask()
        except SourceError as error:
            self.unread.append(UnansweredQuery(what, str(error)[:LONGEST]))
            return None

    def _tried(self, what: str, ask: Callable[[], QueryResponse]) -> list[ResultSeries] | None:
        return self.tried(what, lambda: self._whole(what, ask()))

    def _whole(self, what: str, answer: QueryResponse) -> list[ResultSeries]:
        """The answer; one with warnings is accepted and recorded as partial."""
        if answer.warnings:
            self.unread.append(UnansweredQuery(what, f"answered in part: {answer.warnings[0]}"[:LONGEST]))
        return answer.result


def grouped(asker: ProbeReader, result: Iterable[ResultSeries] | None) -> dict[str, list[ResultSeries]]:
    """Rows by cluster."""
    found: dict[str, list[ResultSeries]] = {}
    for series in result or ():
        found.setdefault(asker.cluster_of(series), []).append(series)
    return found


def some(values: Iterable[str]) -> list[str]:
    """A few of them, always the same ones."""
    return sorted({value for value in values if value})[:SAMPLED]


def ratio_of(counts: Iterable[int], of: int, rows: int) -> int:
    """The share of ``rows`` that have what is counted, where copies of ``rows`` count once (``of``)."""
    return min(rows, round(rows * sum(counts) / of)) if of else 0


ProbeSubjectKey = tuple[str, ...]


def duplicate_series(
    exporter: str,
    result: Iterable[ResultSeries],
    key: Callable[[ResultSeries], ProbeSubjectKey],
    replica_labels: Collection[str],
) -> DuplicateSeries | None:
    """Subjects with more than one series, once the labels that tell HA members apart are left out."""
    by_subject: dict[ProbeSubjectKey, list[dict[str, str]]] = {}
    for series in result:
        labels = {name: value for name, value in series["metric"].items() if name not in replica_labels}
        known = by_subject.setdefault(key(series), [])
        if labels not in known:
            known.append(labels)
    several = [sets for sets in by_subject.values() if len(sets) > 1]
    if not several:
        return None
    differing = {
        name
        for sets in several
        for name in {label for labels in sets for label in labels}
        if len({labels.get(name, "") for labels in sets}) > 1
    }
    return DuplicateSeries(exporter, len(several), tuple(sorted(differing)))
