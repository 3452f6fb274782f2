"""Questions to one cluster's series: where warnings become an error, and JSON becomes columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpucost.domain.errors import PartialResponse
from gpucost.telemetry.answers import Answer, Series, holding
from gpucost.telemetry.promapi import PrometheusClient
from gpucost.telemetry.promql import PromQL, equals, one_of, select
from gpucost.telemetry.settings import PrometheusSettings

_VALUES_PER_MATCHER = 200
# Prometheus renames a series' own label when its scrape target has one of the same name.
_RENAMED = "exported_"


class ClusterReader:
    """Asks for the series of one cluster. Raises SourceError; PartialResponse when the server warns."""

    def __init__(self, client: PrometheusClient, settings: PrometheusSettings, cluster: str) -> None:
        self.settings = settings
        self.cluster = cluster
        self._client = client
        self._matchers = self._cluster_matchers()

    def select(self, names: str | Sequence[str], *matchers: PromQL) -> PromQL:
        """The series of these metrics in this cluster."""
        return select(names, (*self._matchers, *matchers))

    def vector(self, expression: PromQL, at_ms: int) -> list[Series]:
        return self._whole(holding("value", self._client.query(expression, at_ms)))

    def matrix(self, expression: PromQL, start_ms: int, end_ms: int, step_ms: int) -> list[Series]:
        return self._whole(self._client.query_range(expression, start_ms, end_ms, step_ms))

    def raw(self, selector: PromQL, start_ms: int, end_ms: int) -> list[Series]:
        return self._whole(self._client.raw(selector, start_ms, end_ms))

    def raw_where(
        self,
        names: str | Sequence[str],
        labels: Sequence[str],
        values: Iterable[str],
        start_ms: int,
        end_ms: int,
    ) -> list[Series]:
        """Raw samples of the series in which any of ``labels`` has one of ``values``; in batches."""
        found: list[Series] = []
        listed = sorted(set(values))
        for at in range(0, len(listed), _VALUES_PER_MATCHER):
            for label in labels:
                matcher = one_of(label, listed[at : at + _VALUES_PER_MATCHER])
                found += self.raw(self.select(names, matcher), start_ms, end_ms)
        return found

    def _cluster_matchers(self) -> tuple[PromQL, ...]:
        settings = self.settings
        own = equals(settings.cluster_label, self.cluster)
        if self.cluster == settings.fallback_cluster:
            own = one_of(settings.cluster_label, ["", self.cluster])
        return (own, *(equals(label, value) for label, value in settings.matchers.items()))

    def _whole(self, answer: Answer) -> list[Series]:
        return whole(answer, f"cluster {self.cluster}")


def whole(answer: Answer, subject: str) -> list[Series]:
    """The result of ``answer``. Raises PartialResponse when the server had something to warn of."""
    if answer.warnings:
        text = f"{subject}: the answer is not the whole truth: {answer.warnings[0]}"
        raise PartialResponse(text, answer.warnings)
    return answer.result


def column(result: Sequence[Series], label: str) -> list[str]:
    """One label of every series, empty where absent."""
    return [series["metric"].get(label, "") for series in result]


def own_column(result: Sequence[Series], label: str) -> list[str]:
    """One label of every series as its exporter gave it, whether or not the scrape renamed it."""
    return [own_label(series, label) for series in result]


def own_label(series: Series, label: str) -> str:
    labels: dict[str, str] = series["metric"]
    return labels.get(renamed(label)) or labels.get(label, "")


def renamed(label: str) -> str:
    """The name that a scrape gives a series' own label when its target has one of that name."""
    return _RENAMED + label


def with_renamed(labels: Iterable[str]) -> tuple[str, ...]:
    """``labels`` and the names that a scrape may have given them."""
    return tuple(name for label in labels for name in (label, renamed(label)))


def numbers(result: Sequence[Series]) -> list[float]:
    """The value of every series of a vector; ``NaN`` and infinities as they are."""
    return [float(series["value"][1]) for series in result]


def points(series: Series) -> tuple[list[int], list[float]]:
    """The samples of one series of a matrix: times in milliseconds, and values."""
    values = series["values"]
    return [round(at * 1000) for at, _ in values], [float(value) for _, value in values]
