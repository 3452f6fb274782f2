"""Runs of a gauge: stretches in which a series had one value, sampled every minute.

In windows of more than two days the step is several minutes (``step_ms``): what lasted less may be missed. A
step ``(t - 1 min, t]`` shows the last sample in it. Steps without a heartbeat count as unknown: a series that
exists before and after them existed all the time, as long as they are no longer than ``max_gap``, as for all
other series of the collector. Series of the GPU exporter have no heartbeat: there, any pause of up to
``max_gap`` is bridged. Starts and ends are multiples of the step, so a second reading of the same time gives
the same runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gpucost.contract.metrics import STATE_UP
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.evidence_rule import IntArray
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, points
from gpucost.telemetry.prometheus.promql import PromQL, by, over_time
from gpucost.telemetry.prometheus.query_response import ResultSeries, instant_place, whole_count

_STEPS_MS = tuple(each * MINUTE_MS for each in (1, 2, 5, 10, 15, 20, 30, 60))
_MOST_STEPS = 3_000
RARE_MS = 10 * MINUTE_MS
"""The step for series that hardly ever change: names of owners and queues."""
# Prometheus holds at most 50 million samples for a query, the results of its parts included, of which the
# query of an increase has a dozen; and it works on a query for two minutes at most.
MOST_POINTS = 500_000
_COUNTED_MS = 10 * MINUTE_MS
Floats: TypeAlias = npt.NDArray[np.float64]


class MetricLike(Protocol):
    """A metric, of the contract or not."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class GaugeRun:
    """``[start_ms, end_ms)`` with one value of the series with these ``labels``."""

    labels: Mapping[str, str]
    value: float
    start_ms: int
    end_ms: int


class StateReader:
    """Runs of the queue collector's series in ``window``; they may exceed it by less than a step."""

    def __init__(self, reader: ClusterReader, window: Window) -> None:
        self.reader = reader
        self.window = window
        self.step_ms = step_ms(window)
        # A step may be longer than a gap; then only steps without any heartbeat form one.
        self._gap_ms = max(reader.settings.max_gap_ms, self.step_ms)
        heartbeat = reader.select(STATE_UP.name)
        looked = by("max", (), over_time("max_over_time", heartbeat, _range_ms(self.step_ms)))
        up = _steps(reader, looked, heartbeat, window, self.step_ms)
        beats = [at for one in up for at, value in zip(*points(one), strict=True) if value == 1]
        self.beats: IntArray = np.unique(np.array(beats, dtype=np.int64))

    def runs(self, spec: MetricLike, labels: Sequence[str]) -> list[GaugeRun]:
        """Runs of the largest value by ``labels``, ordered by start. A heartbeat of 0 counts as none."""
        found = steps_of(self.reader, spec, labels, self.window, self.step_ms)
        return sorted(
            (run for one in found for run in self._of(one)), key=lambda run: (run.start_ms, run.end_ms)
        )

    def rare(self, spec: MetricLike, labels: Sequence[str]) -> list[GaugeRun]:
        """As ``runs``, for series that hardly ever change and regardless of the heartbeat; the step is
        RARE_MS."""
        return bridged_runs(self.reader, spec, labels, self.window, max(self.step_ms, RARE_MS))

    def _of(self, series: ResultSeries) -> Iterator[GaugeRun]:
        times, values = _arrays(series)
        at = np.searchsorted(self.beats, times)
        heard = (at < len(self.beats)) & (self.beats[np.minimum(at, max(len(self.beats) - 1, 0))] == times)
        times, values, at = times[heard], values[heard], at[heard]
        apart = (np.diff(at) > 1) | (np.diff(times) > self._gap_ms)
        yield from _cut(series, times, values, apart, self.step_ms)


def step_ms(window: Window) -> int:
    """The step at which gauges are sampled in ``window``."""
    least = window.length_ms // _MOST_STEPS
    return next((each for each in _STEPS_MS if each >= least), _STEPS_MS[-1])


def bridged_runs(
    reader: ClusterReader, spec: MetricLike, labels: Sequence[str], window: Window, every_ms: int = 0
) -> list[GaugeRun]:
    """As ``StateReader.runs``, for series without a heartbeat; the step is ``every_ms``, or that of the
    window if 0."""
    found: list[GaugeRun] = []
    every_ms = every_ms or step_ms(window)
    gap_ms = max(reader.settings.max_gap_ms, every_ms)
    for series in steps_of(reader, spec, labels, window, every_ms):
        times, values = _arrays(series)
        found += _cut(series, times, values, np.diff(times) > gap_ms, every_ms)
    return sorted(found, key=lambda run: (run.start_ms, run.end_ms))


def steps_of(
    reader: ClusterReader, spec: MetricLike, labels: Sequence[str], window: Window, every_ms: int
) -> list[ResultSeries]:
    """The last sample of each step, the largest by ``labels``."""
    looked = largest(reader, spec, labels, _range_ms(every_ms))
    return _steps(reader, looked, reader.select(spec.name), window, every_ms)


def largest(reader: ClusterReader, spec: MetricLike, labels: Sequence[str], range_ms: int) -> PromQL:
    """The largest of the last samples of a metric by ``labels``, under their own names even if a scrape
    renamed them."""
    last = over_time("last_over_time", reader.select(spec.name), range_ms)
    return by("max", labels, reader.as_exported(last, labels))


def spans(reader: ClusterReader, selector: PromQL, window: Window, step_ms: int) -> Iterator[Window]:
    """``window`` in as few parts as keep the answers for ``selector`` small, judged by the number of its
    series at the start, the middle and the end."""
    each = over_time("last_over_time", selector, min(window.length_ms, _COUNTED_MS))
    half = max(1, window.length_ms // 2)
    found = reader.matrix(by("count", (), each), window.start_ms, window.start_ms + 2 * half, half)
    series = max((whole_count(count) for one in found for count in points(one)[1]), default=0)
    steps = max(1, MOST_POINTS // max(series, 1))
    yield from window.split(max(step_ms, steps * step_ms))


def covering(runs: Iterable[GaugeRun], start_ms: int, end_ms: int) -> list[tuple[int, int, GaugeRun | None]]:
    """``[start_ms, end_ms)`` cut where another of the ``runs`` of one subject holds: the one that began last
    counts."""
    inside = sorted(
        (run for run in runs if run.start_ms < end_ms and run.end_ms > start_ms), key=lambda run: run.start_ms
    )
    cuts = {start_ms, end_ms}
    for run in inside:
        cuts |= {max(start_ms, run.start_ms), min(end_ms, run.end_ms)}
    edges = sorted(cuts)
    found: list[tuple[int, int, GaugeRun | None]] = []
    for low, high in pairwise(edges):
        held = next((each for each in reversed(inside) if each.start_ms <= low < each.end_ms), None)
        found.append((low, high, held))
    return found


def by_labels(runs: Iterable[GaugeRun], labels: Sequence[str]) -> dict[tuple[str, ...], list[GaugeRun]]:
    """Runs by the values of ``labels``; an absent label is the empty text."""
    found: dict[tuple[str, ...], list[GaugeRun]] = {}
    for run in runs:
        found.setdefault(values_of(run, labels), []).append(run)
    return found


def values_of(run: GaugeRun, labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(run.labels.get(label, "") for label in labels)


def equal_steps(window: Window, step_ms: int) -> Iterator[list[Window]]:
    """The window in steps, together while their lengths are equal: one query for each list."""
    for _, group in groupby(window.split(step_ms), key=lambda step: step.length_ms):
        yield list(group)


def step_values(
    reader: ClusterReader, expression: PromQL, steps: Sequence[Window]
) -> Iterator[tuple[ResultSeries, Window, float]]:
    """Series, step and value of ``expression`` at the end of each step; the steps are equal, one after the
    other. ``NaN`` and infinities as they are."""
    length = steps[0].length_ms
    for series in reader.matrix(expression, steps[0].end_ms, steps[-1].end_ms, length):
        for at, value in zip(*points(series), strict=True):
            yield series, steps[instant_place(at, steps[0].end_ms, length, len(steps))], value


def _range_ms(every_ms: int) -> int:
    """Prometheus 2 counts a sample at the very beginning of a range as inside it, Prometheus 3 does not."""
    return every_ms - 1


def _steps(
    reader: ClusterReader, expression: PromQL, selector: PromQL, window: Window, every_ms: int
) -> list[ResultSeries]:
    """The samples of the steps that touch ``window``; one list of points for each series."""
    first = window.start_ms // every_ms * every_ms + every_ms
    last = -(-window.end_ms // every_ms) * every_ms
    joined: dict[tuple[tuple[str, str], ...], ResultSeries] = {}
    for part in spans(reader, selector, Window(first - every_ms, last), every_ms):
        for one in reader.matrix(expression, part.start_ms + every_ms, part.end_ms, every_ms):
            key = tuple(sorted(one["metric"].items()))
            if key in joined:
                joined[key]["values"] += one["values"]
            else:
                joined[key] = one
    return list(joined.values())


def _arrays(series: ResultSeries) -> tuple[IntArray, Floats]:
    times, values = points(series)
    kept = [(at, value) for at, value in zip(times, values, strict=True) if isfinite(value)]
    return (
        np.array([at for at, _ in kept], dtype=np.int64),
        np.array([value for _, value in kept], dtype=np.float64),
    )


def _cut(
    series: ResultSeries,
    times: IntArray,
    values: Floats,
    apart: npt.NDArray[np.bool_],
    every_ms: int,
) -> Iterator[GaugeRun]:
    """A value that changes without a pause holds until the next one was seen."""
    if not len(times):
        return
    changes = apart | (np.diff(values) != 0)
    first = np.flatnonzero(np.append(True, changes))
    last = np.flatnonzero(np.append(changes, True))
    labels = series["metric"]
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        follows = a > 0 and not apart[a - 1]
        start = int(times[a - 1]) if follows else int(times[a]) - every_ms
        yield GaugeRun(labels, float(values[a]), start, int(times[b]))
