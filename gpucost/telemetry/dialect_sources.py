"""Sources that combine both dialects, and a cache for reading past days one after the other.

To compute the waste of a day, the detectors read that day and the days around it, so each day would be read
three times. ``DailyUpstreamSource`` reads a day once and keeps it while its neighbours are worked on; days
that are over come out of the user's cache, where they were read before (``day_cache``).

``FallbackSource`` chooses the dialect: gpucost's own series from when they begin, and kube-state-metrics and
dcgm-exporter before that and where gpucost's series are missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import pandas as pd
from pandas.api.types import union_categoricals

from gpucost.attribution.frames import ClusterFrames, empty_frame
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    HEALTH,
    NODES,
    OBSERVED,
    PROGRESS,
    QUOTAS,
    SIGNALS,
    FrameSpec,
)
from gpucost.contract.kube_state import NODE_CREATED
from gpucost.contract.metrics import STATE_UP
from gpucost.domain.errors import (
    DataProblem,
    InputError,
    NotCovered,
    SourceError,
    SourceTimeout,
    SourceUnreachable,
)
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.telemetry.day_cache import DayCache, DayCounts
from gpucost.telemetry.evidence.frame_rows import (
    FrameRow,
    frame_of,
    in_order,
    joined,
)
from gpucost.telemetry.interval_source import IntervalSource
from gpucost.telemetry.prometheus.api_client import PrometheusClient, QueryStats
from gpucost.telemetry.prometheus.cluster_reader import whole
from gpucost.telemetry.prometheus.promql import equals, select
from gpucost.telemetry.prometheus.request_turns import begun
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_history import with_history
from gpucost.telemetry.upstream.upstream_source import BY_SAMPLES, UpstreamSource

_STRETCHES = (ALLOCATIONS, NODES, CAPACITY, OBSERVED, HEALTH)
_AMOUNTS = (SIGNALS, PROGRESS, ACTIVITY)
_BY_DAY = (ACTIVITY.name, HEALTH.name)
# The day that is assessed, the one before and the one after.
_MOST_DAYS = 3
_DAYS_AHEAD = 2
# Who is believed is decided by what there is this long after a day.
_SETTLED_MS = 2 * HOUR_MS


class CachedCoverageSource(PrometheusSource):
    """Asks for the covered time of each cluster once and keeps the answer."""

    @cached_property
    def _covered(self) -> dict[str, Window | None]:
        return {}

    def covered(self, cluster: str) -> Window | None:
        """As PrometheusSource.covered, as of the first call."""
        if cluster not in self._covered:
            self._covered[cluster] = super().covered(cluster)
        return self._covered[cluster]


@dataclass
class _Day:
    """What was read of a day, or of a part of one; ``whole`` once that includes the frames for detectors."""

    read: ClusterFrames
    whole: ClusterFrames | None = None


@dataclass(frozen=True)
class KeptDays:
    """``cache`` has what was made of some days under keys with ``mark``, which names the days and what the
    server counts of them."""

    cache: DayCache
    mark: str


class DailyUpstreamSource(UpstreamSource):
    """``days`` are those that will be read, whole; days around them are read as far as they are asked for.
    Frames of a few days are kept, not of a month. While one day is worked on, the ``ahead`` next ones are
    read. Days that are over, and will stay as they are, come out of ``cache``."""

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSourceSettings,
        existing: UpstreamSettings,
        *,
        now: Callable[[], int],
        days: Window,
        ahead: int = _DAYS_AHEAD,
        cache: DayCache | None = None,
    ) -> None:
        super().__init__(client, settings, existing, now=now)
        self._days = self._own_days = days
        self._ahead = ahead
        self._cache = cache
        self._counted: dict[str, DayCounts | None] = {}
        self._counting = Lock()
        self._begun: dict[tuple[str, Window], Future[_Day]] = {}
        self._covered: dict[str, Window | None] = {}
        self._most = _MOST_DAYS
        self._kept: dict[tuple[str, Window], _Day] = {}  # least recently used first

    def covered(self, cluster: str) -> Window | None:
        """As UpstreamSource.covered, as of the first call."""
        if cluster not in self._covered:
            self._covered[cluster] = super().covered(cluster)
        return self._covered[cluster]

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """As UpstreamSource.read."""
        if window != _day_of(window):
            return super().read(cluster, window)
        self._begin(cluster, window)
        return self._day(cluster, window).read

    @property
    def by_day(self) -> DailyUpstreamSource:
        """As FallbackSource.by_day."""
        return self

    def share(self, cluster: str, own: Window, node_count: int) -> None:
        """From now on others read some of the days: of ``cluster`` this source reads ``own`` only, in the way
        that fits ``node_count``, as the others do."""
        self._own_days = own
        self._nodes[cluster] = node_count

    def node_count(self, cluster: str) -> int:
        """How many nodes with GPUs there are around the first day that is read. Raises SourceError."""
        covered = self.covered(cluster)
        readable = None if covered is None else covered.intersect(self._days)
        return 0 if readable is None else self._node_count(self._reader(cluster, _day_of(readable)))

    def kept(self, cluster: str, span: Window) -> KeptDays | None:
        """Where to keep what is made of ``span``; None where any of it may still change. Raises
        SourceError."""
        if self._cache is None or not all(self._is_over(cluster, each) for each in span.split(DAY_MS)):
            return None
        counted = self._counts(cluster)
        if counted is None:
            return None
        return KeptDays(self._cache, _mark(cluster, span, counted))

    def remember(self, span: Window, clusters: Sequence[str], *, only: bool) -> None:
        """Keep what ``kept`` says of ``span`` of all ``clusters``, or of the ``only`` one that was asked
        for, so that ``kept_as_before`` need not find out again. Raises SourceError."""
        counted = {cluster: self._counts(cluster) for cluster in clusters}
        known = {cluster: [*each.jobs] for cluster, each in counted.items() if each is not None}
        if self._cache is None or len(known) < len(counted):
            return
        marks = [_mark(cluster, span, each) for cluster, each in counted.items() if each is not None]
        told = {"jobs": known, "marks": marks, "there": self._clusters_in(span)}
        self._cache.put_bytes(_note(span, clusters[0] if only else None), json.dumps(told).encode())

    def kept_as_before(self, span: Window, only: str | None) -> tuple[tuple[str, ...], list[KeptDays]] | None:
        """The clusters of ``span``, or the ``only`` one, and where to find what was made of each, as it was
        remembered: where the server has the same clusters and counts the same as then. A request for each
        cluster and two for all, in the place of some twenty. Raises SourceUnreachable and SourceTimeout."""
        content = None if self._cache is None else self._cache.get_bytes(_note(span, only))
        if self._cache is None or content is None:
            return None
        told = json.loads(content)
        try:
            if told["there"] != self._clusters_in(span):
                return None
            marks = [
                _mark(cluster, span, DayCounts(self._reader(cluster, span), span, jobs))
                for cluster, jobs in told["jobs"].items()
            ]
        except (SourceUnreachable, SourceTimeout):
            raise
        except SourceError:
            return None
        if marks != told["marks"]:
            return None
        return (*told["jobs"],), [KeptDays(self._cache, mark) for mark in marks]

    def _clusters_in(self, span: Window) -> list[list[str]]:
        """The names of clusters within ``span``, in series of this dialect and of gpucost's own."""
        label, matchers = self._settings.cluster_label, self._settings.matchers.items()
        found = []
        for name in (NODE_CREATED, STATE_UP.name):
            selector = select(name, [equals(*each) for each in matchers])
            answer = self._client.label_values(label, selector, span.start_ms, span.end_ms)
            found.append(sorted(str(each["label"]) for each in whole(answer, "clusters")))
        return found

    def _begin(self, cluster: str, window: Window) -> None:
        """Begin to read the days after ``window``. What fails is raised where that day is asked for."""
        covered = self.covered(cluster) if self._ahead else None
        readable = None if covered is None else covered.intersect(self._own_days)
        for after_ms in range(DAY_MS, (self._ahead + 1) * DAY_MS, DAY_MS):
            day = Window(window.start_ms + after_ms, window.end_ms + after_ms)
            is_new = (cluster, day) not in self._kept and (cluster, day) not in self._begun
            if is_new and readable is not None and readable.intersect(day) == day:
                self._begun[cluster, day] = begun(partial(self._read_day, cluster, day))

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As UpstreamSource.history, out of what was read of each day whose activity steps end with the
        day."""
        if only is not None or DAY_MS % self._settings.activity_step_ms:
            return super().history(cluster, window, only)
        parts = [*window.split(DAY_MS)]
        self._most = max(self._most, len(parts))
        found = joined_days([self._around(cluster, part) for part in parts], window)
        # Quotas are cheap to read, and their step depends on the length of the window.
        quotas = with_history(self._reader(cluster, window), window, found, {QUOTAS.name})
        return replace(quotas, lacks={**found.lacks, **quotas.lacks})

    def _around(self, cluster: str, part: Window) -> ClusterFrames:
        """What is read of ``part``, or of its whole day where that will be read anyway."""
        covered, day = self.covered(cluster), _day_of(part)
        readable = None if covered is None else covered.intersect(self._days)
        if readable is None or readable.intersect(day) != day or day == part or not self._begins_steps(part):
            return self._whole(cluster, part)
        try:
            return self._whole(cluster, day)
        except SourceError:
            # Problems of the rest of that day are reported when that part is read.
            return self._whole(cluster, part)

    def _begins_steps(self, part: Window) -> bool:
        """Whether activity steps begin and end where ``part`` does."""
        steps = self._settings.activity_step_ms, self._settings.signal_step_ms
        return not any(edge % step for edge in (part.start_ms, part.end_ms) for step in steps)

    def _whole(self, cluster: str, part: Window) -> ClusterFrames:
        day = self._day(cluster, part)
        if day.whole is None:
            day.whole = self._cached(
                cluster,
                part,
                "whole",
                lambda: with_history(self._sampling(cluster, part), part, day.read, _BY_DAY),
            )
        return day.whole

    def _day(self, cluster: str, part: Window) -> _Day:
        """Reads a day, or takes it from the cache. The cache holds as many days as were ever needed
        together."""
        found = self._kept.pop((cluster, part), None)
        if found is None:
            ahead = self._begun.pop((cluster, part), None)
            found = self._read_day(cluster, part) if ahead is None else ahead.result()
        self._kept[cluster, part] = found
        for key in [*self._kept][: -self._most]:
            del self._kept[key]
        return found

    def _read_day(self, cluster: str, part: Window) -> _Day:
        return _Day(
            self._cached(cluster, part, "read", lambda: self._read_all(self._sampling(cluster, part), part))
        )

    def _to_be_read(self, reader: KubeStateReader, window: Window) -> Window | None:  # noqa: ARG002  all days
        covered = self.covered(reader.cluster) if reader.is_sampled else None
        return None if covered is None else covered.intersect(self._own_days)

    def _cached(
        self, cluster: str, part: Window, kind: str, read: Callable[[], ClusterFrames]
    ) -> ClusterFrames:
        """Out of the cache, or as ``read`` says it, which is kept then: of days that are over."""
        cache = self._cache
        if cache is None or not self._is_over(cluster, part):
            return read()
        # Asked before the day is read: what comes later is noticed the next time.
        counted = self._counts(cluster)
        if counted is None:
            return read()
        counts = counted.of(part)
        found = cache.get(cluster, part, kind, counts)
        if found is not None:
            # The name of the source says how it was read.
            self._sampled.setdefault(cluster, found.source == BY_SAMPLES)
            return replace(found, source="")
        found = read()
        is_sampled = self._sampled.get(cluster, False) and self._client.has_samples
        cache.put(cluster, part, kind, counts, replace(found, source=BY_SAMPLES if is_sampled else ""))
        return found

    def _is_over(self, cluster: str, part: Window) -> bool:
        """Whether ``part`` is a whole day of those that are read, and all that it depends on has been."""
        covered = self.covered(cluster)
        settings = self._settings
        margin = max(settings.lateness_ms + settings.max_gap_ms, _SETTLED_MS)
        is_day = part == _day_of(part) and self._days.intersect(part) == part
        return is_day and covered is not None and part.end_ms + margin <= covered.end_ms

    def _counts(self, cluster: str) -> DayCounts | None:
        """None where the server does not count: then nothing is kept."""
        with self._counting:
            if cluster not in self._counted:
                try:
                    self._counted[cluster] = DayCounts(self._reader(cluster, self._days), self._days)
                except SourceError:
                    self._counted[cluster] = None
            return self._counted[cluster]


def _mark(cluster: str, span: Window, counted: DayCounts) -> str:
    counts = [counted.of(each) for each in span.split(DAY_MS)]
    return json.dumps([cluster, span.start_ms, span.end_ms, counts])


def _note(span: Window, only: str | None) -> str:
    return json.dumps(["counts as they were", span.start_ms, span.end_ms, only])


def joined_days(days: Sequence[ClusterFrames], window: Window) -> ClusterFrames:
    """The frames of ``window`` out of consecutive ``days``: an interval that goes on over midnight becomes
    one row, and a problem of missing data stays only where no day has the data."""
    parts: dict[str, Any] = {}
    for spec in _STRETCHES:
        rows = [row for day in days for row in _clipped(spec, getattr(day, spec.name), window)]
        parts[spec.name] = frame_of(spec, joined(spec, {spec.name: rows}))
    for spec in _AMOUNTS:
        parts[spec.name] = _inside(spec, [getattr(day, spec.name) for day in days], window)
    problems: dict[tuple[DataProblem, int | None], DataProblem] = {
        (each, each.at_ms): each for day in days for each in day.problems
    }
    return ClusterFrames(
        **parts,
        problems=in_order(problems.values()),
        lacks={name: why for name, why in days[0].lacks.items() if all(name in each.lacks for each in days)},
    )


def _clipped(spec: FrameSpec, frame: pd.DataFrame, window: Window) -> Iterator[FrameRow]:
    frame = frame[(frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)]
    starts, ends = frame["start_ms"].clip(lower=window.start_ms), frame["end_ms"].clip(upper=window.end_ms)
    frame = frame.assign(start_ms=starts, end_ms=ends)
    columns = (frame[name].tolist() for name in spec.column_names)
    for row in zip(*columns, strict=True):
        # Two missing values count as equal.
        yield tuple(None if each != each else each for each in row)


def _inside(spec: FrameSpec, frames: Sequence[pd.DataFrame], window: Window) -> pd.DataFrame:
    """Rows of steps in ``window``. Names stay codes: of activity there are hundreds of thousands of rows."""
    found = [
        each[(each["start_ms"] >= window.start_ms) & (each["end_ms"] <= window.end_ms)]
        for each in frames
        if len(each)
    ]
    if not found:
        return empty_frame(spec)
    coded = [name for name in spec.column_names if all(each[name].dtype.name == "category" for each in found)]
    codes = {name: union_categoricals([each[name] for each in found], sort_categories=True) for name in coded}
    rest = pd.concat([each.drop(columns=coded) for each in found], ignore_index=True)
    return rest.assign(**codes)[list(spec.column_names)]


def _day_of(window: Window) -> Window:
    start_ms = window.start_ms - window.start_ms % DAY_MS
    return Window(start_ms, start_ms + DAY_MS)


_ENOUGH = 0.9
_GONE_MS = DAY_MS
"""After this long without gpucost's own series of a window, the other dialect is used instead of waiting."""


class FallbackSource:
    """Two sources over one server. A window is read whole from one of them, and its frames name that one."""

    def __init__(self, own: PrometheusSource, existing: UpstreamSource, now: Callable[[], int]) -> None:
        self._own, self._existing, self._now = own, existing, now
        self._since: dict[str, int] = {}  # when a cluster's own series begin: cached once they exist

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def stats(self) -> QueryStats:
        return self._own.stats

    def clusters(self) -> tuple[str, ...]:
        """The clusters of both sources, sorted. Raises SourceError; InputError where both know one cluster
        under two names, which would be billed twice."""
        own, existing = self._own.clusters(), self._existing.clusters()
        for one, other in ((one, other) for one in own for other in existing if one not in existing):
            mine, theirs = self._own.node_births(one), self._existing.node_births(other)
            if other not in own and mine & theirs:
                allowed = f"{one}, since the nodes of {other} and {one} are the same"
                raise InputError("prometheus.cluster", other, allowed)
        return tuple(sorted({*own, *existing}))

    def covered(self, cluster: str) -> Window | None:
        """From the first scrape of either dialect to the last; while both are scraped, to the last of
        gpucost's own. Raises SourceError."""
        own, existing = self._own.covered(cluster), self._existing.covered(cluster)
        if own is None or existing is None:
            return own or existing
        end_ms = max(own.end_ms, existing.end_ms)
        if end_ms - own.end_ms <= self._own.max_gap_ms:
            end_ms = own.end_ms
        return Window(min(own.start_ms, existing.start_ms), end_ms)

    def kept(self, cluster: str, span: Window) -> KeptDays | None:
        """As DailyUpstreamSource.kept; None where gpucost's own series are there too."""
        existing = self._existing
        if self._own.covered(cluster) is not None or not isinstance(existing, DailyUpstreamSource):
            return None
        return existing.kept(cluster, span)

    @property
    def by_day(self) -> DailyUpstreamSource | None:
        """The source of days that are kept."""
        return self._existing if isinstance(self._existing, DailyUpstreamSource) else None

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """Raises what the source that was read last raises. Where gpucost's own series have a long gap, the
        other dialect is used if it observed more of the window."""
        found = self._either(cluster, window, lambda source: source.read(cluster, window))
        if found.source != self._own.name or _seen_ms(found) >= _ENOUGH * window.length_ms:
            return found
        try:
            other = replace(self._existing.read(cluster, window), source=self._existing.name)
        except NotCovered:
            return found
        return other if _seen_ms(other) > _seen_ms(found) else found

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``."""
        return self._either(cluster, window, lambda source: source.history(cluster, window, only))

    def _either(
        self, cluster: str, window: Window, ask: Callable[[PrometheusSource | UpstreamSource], ClusterFrames]
    ) -> ClusterFrames:
        if self._has_begun(cluster, window.start_ms):
            try:
                return replace(ask(self._own), source=self._own.name)
            except NotCovered:
                # Evidence that is late will still come; evidence that is older than the server's memory will
                # not.
                if window.end_ms + _GONE_MS > self._now():
                    raise
        return replace(ask(self._existing), source=self._existing.name)

    def _has_begun(self, cluster: str, at_ms: int) -> bool:
        """Whether gpucost's own series describe the cluster at that time. The heartbeat alone does not prove
        it: anyone who has a target scraped can write one. So it counts only if it shows at least half of the
        nodes."""
        if cluster not in self._since:
            covered = self._own.covered(cluster)
            if covered is None or 2 * self._own.nodes(cluster) < self._existing.nodes(cluster):
                return False
            self._since[cluster] = covered.start_ms
        return self._since[cluster] <= at_ms


def _seen_ms(frames: ClusterFrames) -> int:
    observed = frames.observed
    return int((observed["end_ms"] - observed["start_ms"]).sum())


def source_by_day(source: IntervalSource) -> DailyUpstreamSource | None:
    """The source of days that are kept, where ``source`` has one."""
    return source.by_day if isinstance(source, (FallbackSource, DailyUpstreamSource)) else None
