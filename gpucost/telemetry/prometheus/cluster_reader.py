"""Queries for the series of one cluster: warnings become errors, and JSON becomes columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import TypeVar, cast

import numpy as np

from gpucost.contract.metrics import STATE_UP
from gpucost.domain.errors import PartialResponse
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.prometheus import trust
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    equals,
    named_like,
    none_of,
    one_of,
    select,
    taken,
)
from gpucost.telemetry.prometheus.query_response import (
    QueryResponse,
    ResultSeries,
    columns_of,
    holding,
    instant_place,
)
from gpucost.telemetry.prometheus.request_turns import QuestionBatch
from gpucost.telemetry.prometheus.sample_expressions import SeriesGrid, longest_range_ms
from gpucost.telemetry.prometheus.scrape_claimants import ClaimantChoice
from gpucost.telemetry.prometheus.series_labels import LabelTable
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings

_VALUES_PER_MATCHER = 200
_CHARACTERS_PER_MATCHER = 50_000
# Prometheus renames a series' own label when its scrape target has one of the same name.
_RENAMED = "exported_"
_OURS = "gpucost_"
_NOBODY = " "
"""A value that no label has, so that a matcher of it matches nothing."""
# How far outside the window series are searched for their labels: an error of an hour before may go on.
_AROUND_MS = 2 * HOUR_MS
_LEAST_SAMPLED_MS = HOUR_MS // 2
_Known = TypeVar("_Known")


class ClusterReader:
    """Queries the series of one cluster in ``window``. Raises SourceError; PartialResponse when the server
    warns."""

    def __init__(
        self, client: PrometheusClient, settings: PrometheusSourceSettings, cluster: str, window: Window
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self._client = client
        self._window = window
        self._known: dict[object, object] = {}  # shared with narrowed readers
        self._believes_all = False
        self.by_samples = False
        self.outer: ClusterReader | None = None
        """The reader of the longer window of which this one's is a part: it asks once which labels and
        metrics there are at all."""
        self._matchers = self._cluster_matchers()
        self._narrowed: Mapping[str, PromQL] = {}

    def select(self, names: str | Sequence[str], *matchers: PromQL) -> PromQL:
        """The believed series of these metrics in this cluster. Names of one kind are selected together."""
        narrow = self._narrowed.get(names) if isinstance(names, str) else None
        believed = self._believed(names if isinstance(names, str) else next(iter(names), ""))
        return select(names, (*self._matchers, *believed, *matchers, *([narrow] if narrow else [])))

    def select_of_all(self, names: str | Sequence[str], *matchers: PromQL) -> PromQL:
        """The series of these metrics in this cluster, from all scrape jobs."""
        return select(names, (*self._matchers, *matchers))

    def named_like(self, start: str, *matchers: PromQL) -> PromQL:
        """All series in this cluster whose names begin with the prefix, from all scrape jobs."""
        return named_like(start, (*self._matchers, *matchers))

    @property
    def false_hearts(self) -> list[str]:
        """Jobs with heartbeats near the window that are not believed."""
        kind = trust.kind_of(self.heartbeat_name) or trust.KUBE
        return sorted({each.job for each in self.choice(kind).refused if each.instances})

    @property
    def not_believed(self) -> str:
        """The jobs with heartbeats that are not believed, for a message; empty where there are none."""
        kind, false = trust.kind_of(self.heartbeat_name) or trust.KUBE, ", ".join(self.false_hearts)
        words = f" of a job that is believed. {false} is not: name yours in prometheus.{kind.setting}"
        return words if false else ""

    @property
    def of_gpus(self) -> tuple[PromQL, ...]:
        """Matchers of GPU resources among requests of any resource."""
        return ()

    def of_anybody(self) -> ClusterReader:
        """The same reader, which believes every job that the settings allow: for searches."""
        found = self.near(self._window)
        found._known, found._believes_all = self._known, True
        return found

    def near(self, window: Window) -> ClusterReader:
        """The same reader for another window; other jobs may be believed there."""
        found = copy(self)
        found._window, found._known, found._believes_all, found.outer = window, {}, False, None
        vars(found).pop("heartbeat", None)  # cached by some subclasses
        return found

    def settings_jobs(self, name: str) -> Sequence[str]:
        """The scrape jobs that the settings name for series whose names begin so; none for all."""
        return next((jobs for start, jobs in self.settings.jobs.items() if name.startswith(start)), ())

    def choice(self, kind: trust.SeriesKind) -> ClaimantChoice:
        """Which jobs' series of a kind are believed around the window; queried once. Raises SourceError."""
        return self.once(("choice", kind.what), lambda: trust.chosen(self, kind))

    def _believed(self, name: str) -> list[PromQL]:
        """Matchers of the believed series of a metric."""
        jobs, kind = self.settings_jobs(name), trust.kind_of(name)
        found = [one_of("job", jobs)] if jobs else []
        if kind is None or self._believes_all:
            return found
        choice = self.choice(kind)
        if not jobs and (kind is trust.OTEL or (kind is trust.KUBE and choice.believed)):
            # Power and energy of other hardware prove nothing: only who gives use of GPUs is believed.
            believed = sorted({each.job for each in choice.believed})
            found.append(one_of("job", believed or [_NOBODY]))
        elif not jobs and choice.jobs:
            # A job of gpucost's own that was renamed in a long gap may have no series near: it is not among
            # those believed.
            found.append(none_of("job", choice.jobs))
        return [*found, *([none_of("instance", choice.instances)] if choice.instances else [])]

    def narrowed(self, names: Iterable[str], matcher: PromQL) -> ClusterReader:
        """The same reader, with a further matcher whenever one of these metrics is selected alone."""
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

    def once(self, what: object, ask: Callable[[], _Known]) -> _Known:
        """The result of ``ask``, which is called the first time only."""
        if what not in self._known:
            self._known[what] = ask()
        return cast(_Known, self._known[what])

    @property
    def renames(self) -> frozenset[str]:
        """Own labels that a scrape renamed on any series of the query, perhaps at other times of the longer
        window; queried once."""
        reader = self.outer or self
        return reader.once("renames", reader._ask_for_renames)

    def _ask_for_renames(self) -> frozenset[str]:
        found = self._whole(self._client.label_names(self._own, *self.around))
        names = (str(each["label"]) for each in found)
        return frozenset(name.removeprefix(_RENAMED) for name in names if name.startswith(_RENAMED))

    def as_exported(self, expression: PromQL, labels: Iterable[str]) -> PromQL:
        """The exporter's own ``labels`` under their own names, even where the scrape renamed them. Labels
        that were not renamed cost nothing."""
        for label in labels:
            if label in self.renames:
                expression = taken(expression, label, renamed(label))
        return expression

    def batch(self) -> QuestionBatch:
        """For questions that are asked together. Which jobs are believed is to be known before: what is known
        is not guarded against threads."""
        return self._client.batch()

    def vector(self, expression: PromQL, at_ms: int) -> list[ResultSeries]:
        sampled = self._sampled(expression, at_ms, 1, 1)
        if sampled is None:
            return self._whole(holding("value", self._client.query(expression, at_ms)))
        at, values = at_ms / 1000, sampled.values[:, 0].tolist()
        rows = sampled.any_rows.tolist()
        return [{"metric": sampled.table.rows[row], "value": [at, repr(values[row])]} for row in rows]

    def columns(
        self, expression: PromQL, at_ms: int, labels: Sequence[str]
    ) -> tuple[list[list[str]], list[float]]:
        """As ``vector``: of every series these labels, empty where absent, column by column, and values."""
        sampled = self._sampled(expression, at_ms, 1, 1) or self._looked(expression, at_ms)
        if sampled is None:
            result = self._whole(holding("value", self._client.query(expression, at_ms)))
            return [column(result, label) for label in labels], numbers(result)
        rows = sampled.any_rows
        table = sampled.table if len(rows) == len(sampled.table) else sampled.table.of_rows(rows)
        return table.columns(labels), sampled.values[rows, 0].tolist()

    def label_sets(self, selector: PromQL, since_ms: int | None = None) -> list[dict[str, str]]:
        """The labels of all series that ``selector`` matches around the window, or since then."""
        start, end = self.around
        return self._whole(self._client.series(selector, start if since_ms is None else since_ms, end))

    def label_values(
        self, label: str, selector: PromQL, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[str]:
        """The values that a label has in series that ``selector`` matches around the window, or between these
        instants; sorted."""
        start, end = self.around
        since, until = start if since_ms is None else since_ms, end if until_ms is None else until_ms
        found = self._whole(holding("label", self._client.label_values(label, selector, since, until)))
        return sorted(str(each["label"]) for each in found)

    def matrix(self, expression: PromQL, start_ms: int, end_ms: int, step_ms: int) -> list[ResultSeries]:
        return self._whole(self._client.query_range(expression, start_ms, end_ms, step_ms))

    def grid(self, expression: PromQL, first_ms: int, last_ms: int, step_ms: int) -> SeriesGrid:
        """As ``matrix``, in columns; of samples themselves where the server sends them."""
        number = (last_ms - first_ms) // step_ms + 1
        sampled = self._sampled(expression, first_ms, step_ms, number)
        if sampled is not None:
            return sampled
        answer = self._client.query_range(expression, first_ms, last_ms, step_ms)
        self._whole(answer)
        return series_grid(answer, first_ms, step_ms, number)

    @property
    def is_sampled(self) -> bool:
        """Whether long looks read samples, each once, and not the server's answers to queries."""
        return self.by_samples and self._client.has_samples

    def _sampled(self, expression: PromQL, first_ms: int, step_ms: int, number: int) -> SeriesGrid | None:
        """None where a query tells it, or tells it for less: a short look is a chunk of every series."""
        samples = self._client.samples if self.by_samples else None
        if samples is None:
            return None
        form = expression.form
        if longest_range_ms(form) + step_ms * (number - 1) < _LEAST_SAMPLED_MS:
            return None
        return samples.grid(form, first_ms, step_ms, number)

    def _looked(self, expression: PromQL, at_ms: int) -> SeriesGrid | None:
        """A short look at the end of one of the days that are read together, which a server takes at all of
        them at once: it looks through the labels of a block of all those days for each. None for others."""
        samples = self._client.samples if self.by_samples else None
        days = samples.expected_with(at_ms) if samples is not None else None
        is_long = expression.form is None or longest_range_ms(expression.form) >= _LEAST_SAMPLED_MS
        if samples is None or days is None or is_long:
            return None
        asked = expression, days
        if asked not in samples.looks:
            answer = self._client.query_range(expression, days.first_ms, days.last_ms, days.step_ms)
            self._whole(answer)
            times = (answer.columns or columns_of(answer.result)).times
            # A frontend that moves instants to whole steps would move these by hours.
            moved = bool(((times - days.first_ms) % days.step_ms).any())
            grid = None if moved else series_grid(answer, days.first_ms, days.step_ms, days.number)
            samples.looks = {asked: grid}
        known = samples.looks.get(asked)
        if known is None:
            return None
        place = [(at_ms - days.first_ms) // days.step_ms]
        return SeriesGrid(known.table, known.values[:, place], known.present[:, place])

    def raw(self, selector: PromQL, start_ms: int, end_ms: int) -> list[ResultSeries]:
        return self._whole(self._client.raw(selector, start_ms, end_ms))

    def raw_where(
        self,
        names: str | Sequence[str],
        labels: Sequence[str],
        values: Iterable[str],
        start_ms: int,
        end_ms: int,
        *matchers: PromQL,
    ) -> list[ResultSeries]:
        """Raw samples of the series in which any of ``labels`` has one of ``values``; in batches."""
        selections = self.selections(names, labels, values, *matchers)
        return [found for each in selections for found in self.raw(each, start_ms, end_ms)]

    def selections(
        self, names: str | Sequence[str], labels: Sequence[str], values: Iterable[str], *matchers: PromQL
    ) -> Iterator[PromQL]:
        """Selectors of the series in which any of ``labels`` has one of ``values``, in batches."""
        for batch in _batches(sorted(set(values))):
            for label in labels:
                yield self.select(names, one_of(label, batch), *matchers)

    @property
    def _own(self) -> PromQL:
        """All series with a label that a scrape may have renamed."""
        return named_like(_OURS, self._matchers)

    @property
    def around(self) -> tuple[int, int]:
        """The time in which a series of the window has samples, in milliseconds."""
        end_ms = self.settings.upto(self._window.end_ms + _AROUND_MS)
        return max(0, self._window.start_ms - _AROUND_MS), end_ms

    def _cluster_matchers(self) -> tuple[PromQL, ...]:
        settings = self.settings
        own = equals(settings.cluster_label, self.cluster)
        if self.cluster == settings.fallback_cluster:
            own = one_of(settings.cluster_label, ["", self.cluster])
        return (own, *(equals(label, value) for label, value in settings.matchers.items()))

    def _whole(self, answer: QueryResponse) -> list[ResultSeries]:
        return whole(answer, f"cluster {self.cluster}")


def _batches(values: Sequence[str]) -> Iterator[list[str]]:
    """Batches that fit into one query: servers read 1 MiB of it, and values may be of any length."""
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


def whole(answer: QueryResponse, subject: str) -> list[ResultSeries]:
    """The result of ``answer``. Raises PartialResponse when the server returned warnings."""
    if answer.warnings:
        text = f"{subject}: the answer is not the whole truth: {answer.warnings[0]}"
        raise PartialResponse(text, answer.warnings)
    return answer.result


def column(result: Sequence[ResultSeries], label: str) -> list[str]:
    """One label of every series, empty where absent."""
    return [series["metric"].get(label, "") for series in result]


def own_column(result: Sequence[ResultSeries], label: str) -> list[str]:
    """One label of every series as its exporter exported it, whether or not the scrape renamed it."""
    name = renamed(label)
    return [series["metric"].get(name) or series["metric"].get(label, "") for series in result]


def own_label(series: ResultSeries, label: str) -> str:
    return own_value(series["metric"], label)


def own_value(labels: Mapping[str, str], label: str) -> str:
    """One label of a series as its exporter exported it."""
    return labels.get(renamed(label)) or labels.get(label, "")


def renamed(label: str) -> str:
    """The name that a scrape gives a series' own label when its target has one of that name."""
    return _RENAMED + label


def with_renamed(labels: Iterable[str]) -> tuple[str, ...]:
    """``labels`` and the names that a scrape may have given them."""
    return tuple(name for label in labels for name in (label, renamed(label)))


def series_grid(answer: QueryResponse, first_ms: int, step_ms: int, number: int) -> SeriesGrid:
    """A matrix in columns. Raises AnswerRefused for a point outside."""
    found, columns = answer.result, answer.columns or columns_of(answer.result)
    values = np.full((len(found), number), np.nan)
    present = np.zeros(values.shape, dtype=np.bool_)
    places = -(-(columns.times - first_ms) // step_ms)
    for at in columns.times[(places < 0) | (places >= number)][:1].tolist():
        instant_place(at, first_ms, step_ms, number)
    at = np.repeat(np.arange(len(found)), columns.lengths), places
    values[at], present[at] = columns.values, True
    table = LabelTable.of(each["metric"] for each in found) if answer.table is None else answer.table
    return SeriesGrid(table, values, present)


def numbers(result: Sequence[ResultSeries]) -> list[float]:
    """The value of every series of a vector; ``NaN`` and infinities as they are."""
    return [float(series["value"][1]) for series in result]


def points(series: ResultSeries) -> tuple[list[int], list[float]]:
    """The samples of one series of a matrix: times in milliseconds, and values."""
    values = series["values"]
    return [round(at * 1000) for at, _ in values], [float(value) for _, value in values]
