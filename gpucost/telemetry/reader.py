"""Questions to one cluster's series: where warnings become an error, and JSON becomes columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy

from gpucost.domain.errors import PartialResponse
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.answers import Answer, Series, holding
from gpucost.telemetry.promapi import PrometheusClient
from gpucost.telemetry.promql import PromQL, equals, named_like, one_of, select, taken
from gpucost.telemetry.settings import PrometheusSettings

_VALUES_PER_MATCHER = 200
# Prometheus renames a series' own label when its scrape target has one of the same name.
_RENAMED = "exported_"
_OURS = "gpucost_"
# How far outside its window anything is looked at for its labels: an error of an hour before may go on.
_AROUND_MS = 2 * HOUR_MS


class ClusterReader:
    """Asks for the series of one cluster in ``window``. Raises SourceError; PartialResponse when the server
    warns."""

    def __init__(
        self, client: PrometheusClient, settings: PrometheusSettings, cluster: str, window: Window
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self._client = client
        self._window = window
        self._known: dict[object, frozenset[str]] = {}  # shared with narrowed readers
        self._matchers = self._cluster_matchers()
        self._narrowed: Mapping[str, PromQL] = {}

    def select(self, names: str | Sequence[str], *matchers: PromQL) -> PromQL:
        """The series of these metrics in this cluster."""
        narrow = self._narrowed.get(names) if isinstance(names, str) else None
        return select(names, (*self._matchers, *matchers, *([narrow] if narrow else [])))

    def narrowed(self, names: Iterable[str], matcher: PromQL) -> ClusterReader:
        """The same reader, with a further matcher where one of these metrics is selected alone."""
        found = copy(self)
        found._narrowed = {**self._narrowed, **dict.fromkeys(names, matcher)}
        return found

    def once(self, what: object, ask: Callable[[], frozenset[str]]) -> frozenset[str]:
        """What ``ask`` answers, asked for the first time only."""
        if what not in self._known:
            self._known[what] = ask()
        return self._known[what]

    @property
    def renames(self) -> frozenset[str]:
        """Labels of gpucost's exporters that a scrape renamed on any series; asked for once."""
        return self.once("renames", self._ask_for_renames)

    def _ask_for_renames(self) -> frozenset[str]:
        start, end = self._window.start_ms - _AROUND_MS, self._window.end_ms + _AROUND_MS
        ours = named_like(_OURS, self._matchers)
        found = self._whole(self._client.label_names(ours, max(0, start), end))
        names = (str(each["label"]) for each in found)
        return frozenset(name.removeprefix(_RENAMED) for name in names if name.startswith(_RENAMED))

    def as_exported(self, expression: PromQL, labels: Iterable[str]) -> PromQL:
        """The exporter's own ``labels`` under their own names, whatever the scrape renamed. What it did not
        rename costs nothing."""
        for label in labels:
            if label in self.renames:
                expression = taken(expression, label, renamed(label))
        return expression

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
