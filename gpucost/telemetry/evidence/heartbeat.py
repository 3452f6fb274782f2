"""Reading the heartbeats: which time is covered, and the evidence that a window needs."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gpucost.contract.metrics import POD_GPU_REQUEST, STATE_UP
from gpucost.domain.errors import DataProblem, DataProblemCode, NotCovered
from gpucost.domain.time import DAY_MS, HOUR_MS, Window, iso
from gpucost.telemetry.evidence.evidence_rule import IntArray, ScrapeEvidence, evidence_for
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, points
from gpucost.telemetry.prometheus.promql import (
    above,
    by,
    over_time,
    without,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries

_MOST_FALSE_DAYS = 31


def covered(reader: ClusterReader, now_ms: int) -> Window | None:
    """From the first heartbeat to the latest time up to which windows can be read; None when there is no such
    time. Which heartbeats are believed is decided near the first and near the last of them."""
    settings, anybody = reader.settings, reader.of_anybody()
    start, end = now_ms - settings.history_ms, settings.upto(now_ms + DAY_MS)
    first = _first_believed(reader, _first_beat(anybody, start, end, DAY_MS), end)
    last = _last_beat(anybody, start, end, DAY_MS)
    if first is None or last is None:
        return None
    near = reader.near(Window(max(first, last - DAY_MS), last + 1))
    if near.false_hearts:
        last = _last_beat(near, first, end, HOUR_MS) or last
    until = last - settings.lateness_ms if settings.as_of_ms is None else _by_every_target(near, last)
    return Window(first, until) if first < until else None


def _first_believed(reader: ClusterReader, first: int | None, end_ms: int) -> int | None:
    """The first believed heartbeat from ``first`` on; ``first`` where for a long time only unbelieved ones
    exist."""
    at = first
    for _ in range(_MOST_FALSE_DAYS):
        if at is None:
            return first
        near = reader.near(Window(at, at + DAY_MS))
        if not near.false_hearts:
            return at
        found = _first_beat(near, at, min(at + DAY_MS, end_ms), HOUR_MS)
        if found is not None:
            return found
        at = _first_beat(reader.of_anybody(), at + DAY_MS, end_ms, DAY_MS)
    return at


def _by_every_target(reader: ClusterReader, last: int) -> int:
    """The last instant by which every target that still runs had been scraped. Of several shards each shows
    some of the pods, so what the others show is as old as their own scrapes."""
    near = _samples(reader, last - reader.settings.max_gap_ms, last)
    return min((int(beats[-1]) for beats in (_beats([one]) for one in near) if len(beats)), default=last)


def read_evidence(reader: ClusterReader, window: Window) -> tuple[ScrapeEvidence, list[ResultSeries]]:
    """The heartbeats that ``window`` needs, and their series.

    Raises NotCovered when the source has no heartbeat at or before the window's start (the window is older
    than the source's memory) or none late enough after its end (it is not yet complete; with ``as_of_ms``,
    none at or after its end).
    """
    settings = reader.settings
    early, late = window.start_ms - settings.lateness_ms, window.end_ms + settings.lateness_ms
    start, end = early - settings.max_gap_ms, settings.upto(late + settings.max_gap_ms)
    series = _samples(reader, start, end)
    beats = _beats(series)
    if not len(beats) or beats[0] > window.start_ms or beats[-1] < late:
        start, end = _wider(reader, window, beats, late)
        series = _samples(reader, start, end)
        beats = _beats(series)
    scrapes = np.sort(np.array([at for one in series for at in points(one)[0]], dtype=np.int64))
    evidence = evidence_for(window, beats, scrapes, settings.max_gap_ms, settings.lateness_ms)
    return evidence, series


def _wider(reader: ClusterReader, window: Window, beats: IntArray, late: int) -> tuple[int, int]:
    """The stretch from the last heartbeat before the window to the first after it, across gaps."""
    outage = reader.settings.max_outage_ms
    has_start = len(beats) > 0 and beats[0] <= window.start_ms
    start = (
        int(beats[0]) if has_start else _last_beat(reader, window.start_ms - outage, window.start_ms, HOUR_MS)
    )
    if start is None:
        raise NotCovered(
            f"cluster {reader.cluster}: {window} is not covered: the source holds no heartbeat "
            f"({reader.heartbeat_name} 1) at or before {iso(window.start_ms)}{reader.not_believed}"
        )
    has_end = len(beats) > 0 and beats[-1] >= late
    until = reader.settings.upto(late + outage)
    end = int(beats[-1]) if has_end else _first_beat(reader, late, until, HOUR_MS)
    is_look = reader.settings.as_of_ms is not None
    if end is None and is_look and len(beats) and beats[-1] >= window.end_ms:
        end = int(beats[-1])  # with as_of_ms, the last heartbeat before it
    if end is None:
        raise NotCovered(
            f"cluster {reader.cluster}: {window} is not yet complete: the source holds no heartbeat "
            f"({reader.heartbeat_name} 1) at or after {iso(late)}{reader.not_believed}"
        )
    return start, end


def _first_beat(reader: ClusterReader, start_ms: int, end_ms: int, step_ms: int) -> int | None:
    if start_ms > end_ms:
        return None
    for at in _beating(reader, start_ms + step_ms, end_ms + step_ms, step_ms):
        beats = _beats(_samples(reader, max(at - step_ms, start_ms), min(at, end_ms)))
        if len(beats):
            return int(beats[0])
    return None


def _last_beat(reader: ClusterReader, start_ms: int, end_ms: int, step_ms: int) -> int | None:
    for at in reversed(_beating(reader, start_ms + step_ms, end_ms + step_ms, step_ms)):
        beats = _beats(_samples(reader, max(at - step_ms, start_ms), min(at, end_ms)))
        if len(beats):
            return int(beats[-1])
    return None


def _beating(reader: ClusterReader, start_ms: int, end_ms: int, step_ms: int) -> list[int]:
    """The ends of the steps that have a heartbeat: a coarse query for long ranges."""
    expression = by("max", (), over_time("max_over_time", reader.heartbeat, step_ms))
    found = reader.matrix(expression, start_ms, end_ms, step_ms)
    return [at for one in found for at, up in zip(*points(one), strict=True) if up >= 1]


def _samples(reader: ClusterReader, start_ms: int, end_ms: int) -> list[ResultSeries]:
    return reader.raw(reader.heartbeat, start_ms, end_ms)


def _beats(series: list[ResultSeries]) -> IntArray:
    times = [at for one in series for at, up in zip(*points(one), strict=True) if up >= 1]
    return np.unique(np.array(times, dtype=np.int64))


def duplicates(
    reader: ClusterReader, series: list[ResultSeries], evidence: ScrapeEvidence
) -> list[DataProblem]:
    """A problem where several collectors run at once, no replica label tells them apart, and they export the
    same pods."""
    replicas = set(reader.settings.replica_labels)
    spans: dict[tuple[tuple[str, str], ...], tuple[int, int]] = {}
    for one in series:
        labels = tuple(sorted(item for item in one["metric"].items() if item[0] not in replicas))
        times, _ = points(one)
        if not times:
            continue  # a server may answer with a series that has no points
        low, high = spans.get(labels, (times[0], times[-1]))
        spans[labels] = min(low, times[0]), max(high, times[-1])
    together = (
        min(one[1], other[1]) - max(one[0], other[0]) for one, other in combinations(spans.values(), 2)
    )
    if all(overlap <= evidence.max_gap_ms for overlap in together):
        return []
    requests = reader.select(POD_GPU_REQUEST.name)
    each = without("group", (*replicas,), requests) if replicas else requests
    doubled = reader.vector(above(by("count", ("pod_uid", "resource"), each), 1), evidence.end_ms)
    if not doubled:
        return []
    detail = (
        f"{len(spans)} collectors without a replica label export the same {len(doubled)} pods; each was "
        "counted once. Name the label that tells them apart in replica_labels, or stop one."
    )
    return [DataProblem(DataProblemCode.DUPLICATE_SOURCE, reader.cluster, STATE_UP.name, detail)]
