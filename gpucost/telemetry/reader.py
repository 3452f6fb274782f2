"""Questions to one cluster's series: where warnings become an error, and JSON becomes columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy

from gpucost.contract.metrics import STATE_UP
from gpucost.domain.errors import PartialResponse
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.answers import Answer, Series, holding
from gpucost.telemetry.promapi import PrometheusClient
from gpucost.telemetry.promql import PromQL, equals, named_like, one_of, select, taken
from gpucost.telemetry.settings import PrometheusSettings

_VALUES_PER_MATCHER = 200
_CHARACTERS_PER_MATCHER = 50_000
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
        jobs = self.jobs(names if isinstance(names, str) else next(iter(names), ""))
        believed = [one_of("job", jobs)] if jobs else []
        return select(names, (*self._matchers, *believed, *matchers, *([narrow] if narrow else [])))

    def select_of_all(self, name: str, *matchers: PromQL) -> PromQL:
        """The series of a metric in this cluster, of whatever job: what a tool reads that believes any."""
        return select(name, (*self._matchers, *matchers))

    def jobs(self, name: str) -> Sequence[str]:
        """The scrape jobs whose series of that name are believed; none for all. Names of one kind are
        selected together."""
        return next((jobs for start, jobs in self.settings.jobs.items() if name.startswith(start)), ())

    def narrowed(self, names: Iterable[str], matcher: PromQL) -> ClusterReader:
        """The same reader, with a further matcher where one of these metrics is selected alone."""
        found = copy(self)
        found._narrowed = {**self._narrowed, **dict.fromkeys(names, matcher)}
        return found

    @property
    def heartbeat(self) -> PromQL:
        """Series with a sample of 1 for each scrape that shows what exists."""
        return self.select(STATE_UP.name)

    @property
    def heartbeat_name(self) -> str:
        return STATE_UP.name

    def once(self, what: object, ask: Callable[[], frozenset[str]]) -> frozenset[str]:
        """What ``ask`` answers, asked for the first time only."""
        if what not in self._known:
            self._known[what] = ask()
        return self._known[what]

    @property
    def renames(self) -> frozenset[str]:
        """Own labels of what is asked for that a scrape renamed on any series; asked for once."""
        return self.once("renames", self._ask_for_renames)

    def _ask_for_renames(self) -> frozenset[str]:
        found = self._whole(self._client.label_names(self._own, *self._around))
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

    def label_sets(self, selector: PromQL) -> list[dict[str, str]]:
        """The labels of all series that ``selector`` matches around the window."""
        return self._whole(self._client.series(selector, *self._around))

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
        for batch in _batches(sorted(set(values))):
            for label in labels:
                found += self.raw(self.select(names, one_of(label, batch)), start_ms, end_ms)
        return found

    @property
    def _own(self) -> PromQL:
        """All series whose labels a scrape may have renamed."""
        return named_like(_OURS, self._matchers)

    @property
    def _around(self) -> tuple[int, int]:
        """Within which a series of the window has samples, in milliseconds."""
        end_ms = self.settings.upto(self._window.end_ms + _AROUND_MS)
        return max(0, self._window.start_ms - _AROUND_MS), end_ms

    def _cluster_matchers(self) -> tuple[PromQL, ...]:
        settings = self.settings
        own = equals(settings.cluster_label, self.cluster)
        if self.cluster == settings.fallback_cluster:
            own = one_of(settings.cluster_label, ["", self.cluster])
        return (own, *(equals(label, value) for label, value in settings.matchers.items()))

    def _whole(self, answer: Answer) -> list[Series]:
        return whole(answer, f"cluster {self.cluster}")


def _batches(values: Sequence[str]) -> Iterator[list[str]]:
    """What fits into one question: servers read 1 MiB of it, and values are anybody's."""
    batch: list[str] = []
    size = 0
    for value in values:
        if batch and (len(batch) == _VALUES_PER_MATCHER or size + len(value) > _CHARACTERS_PER_MATCHER):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    if batch:
        yield batch


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
