"""Sources for one look at time that is over, day after day: nothing is asked twice.

The waste of a day is told from it and from what is around it, so that each day is looked at for itself, for
the one before and for the one after. Here it is read once, and kept while the look is near.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from pandas.api.types import union_categoricals

from gpucost.attribution.frames import Frames, empty_frame
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
from gpucost.domain.errors import SourceError
from gpucost.domain.problems import Problem
from gpucost.domain.time import DAY_MS, Window
from gpucost.telemetry.assembling import in_order, joined
from gpucost.telemetry.existing.history import with_history
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.settings import ExistingSettings
from gpucost.telemetry.existing.source import ExistingSource
from gpucost.telemetry.promapi import PrometheusClient
from gpucost.telemetry.prometheus import PrometheusSource
from gpucost.telemetry.rows import Row, frame_of
from gpucost.telemetry.settings import PrometheusSettings

_STRETCHES = (ALLOCATIONS, NODES, CAPACITY, OBSERVED, HEALTH)
_AMOUNTS = (SIGNALS, PROGRESS, ACTIVITY)
_BY_DAY = (ACTIVITY.name, HEALTH.name)
# The day that is assessed, the one before and the one after.
_MOST_DAYS = 3


class OwnOnce(PrometheusSource):
    """What is covered is asked for once."""

    @cached_property
    def _covered(self) -> dict[str, Window | None]:
        return {}

    def covered(self, cluster: str) -> Window | None:
        """As PrometheusSource.covered, when it was first asked for."""
        if cluster not in self._covered:
            self._covered[cluster] = super().covered(cluster)
        return self._covered[cluster]


@dataclass
class _Day:
    """What was read of a day, or of a part of one; ``whole`` once that has what detectors look at."""

    reader: ExistingReader
    read: Frames
    whole: Frames | None = None


class ExistingByDay(ExistingSource):
    """``days`` are those that will be read, whole; days around them are read as far as they are asked for.
    Frames of a few days are kept, not of a month."""

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSettings,
        existing: ExistingSettings,
        *,
        now: Callable[[], int],
        days: Window,
    ) -> None:
        super().__init__(client, settings, existing, now=now)
        self._days = days
        self._covered: dict[str, Window | None] = {}
        self._most = _MOST_DAYS
        self._kept: dict[tuple[str, Window], _Day] = {}  # what was used last is last

    def covered(self, cluster: str) -> Window | None:
        """As ExistingSource.covered, when it was first asked for."""
        if cluster not in self._covered:
            self._covered[cluster] = super().covered(cluster)
        return self._covered[cluster]

    def read(self, cluster: str, window: Window) -> Frames:
        """As ExistingSource.read."""
        if window != _day_of(window):
            return super().read(cluster, window)
        return self._day(cluster, window).read

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> Frames:
        """As ExistingSource.history, out of what is read of each day where steps of activity end with it."""
        if only is not None or DAY_MS % self._settings.activity_step_ms:
            return super().history(cluster, window, only)
        parts = [*window.split(DAY_MS)]
        self._most = max(self._most, len(parts))
        found = joined_days([self._around(cluster, part) for part in parts], window)
        # Quotas cost little, and how closely they are looked at depends on the window.
        quotas = with_history(self._reader(cluster, window), window, found, {QUOTAS.name})
        return replace(quotas, lacks={**found.lacks, **quotas.lacks})

    def _around(self, cluster: str, part: Window) -> Frames:
        """What is read of ``part``, or of its whole day where that will be read anyway."""
        covered, day = self.covered(cluster), _day_of(part)
        readable = None if covered is None else covered.intersect(self._days)
        if readable is None or readable.intersect(day) != day or day == part or not self._begins_steps(part):
            return self._whole(cluster, part)
        try:
            return self._whole(cluster, day)
        except SourceError:
            # What is wrong with the rest of that day is for its own reading to say.
            return self._whole(cluster, part)

    def _begins_steps(self, part: Window) -> bool:
        """Whether steps of its day begin and end where ``part`` does."""
        steps = self._settings.activity_step_ms, self._settings.signal_step_ms
        return not any(edge % step for edge in (part.start_ms, part.end_ms) for step in steps)

    def _whole(self, cluster: str, part: Window) -> Frames:
        day = self._day(cluster, part)
        if day.whole is None:
            day.whole = with_history(day.reader, part, day.read, _BY_DAY)
        return day.whole

    def _day(self, cluster: str, part: Window) -> _Day:
        """Of all that was read, as many days are kept as were ever looked at together."""
        found = self._kept.pop((cluster, part), None)
        if found is None:
            reader = self._reader(cluster, part)
            found = _Day(reader, self._read_all(reader, part))
        self._kept[cluster, part] = found
        for key in [*self._kept][: -self._most]:
            del self._kept[key]
        return found


def joined_days(days: Sequence[Frames], window: Window) -> Frames:
    """What ``days``, which follow one another, tell of ``window``: what goes on from one into the next is
    one row, and only what none of them can tell is lacking."""
    parts: dict[str, Any] = {}
    for spec in _STRETCHES:
        rows = [row for day in days for row in _clipped(spec, getattr(day, spec.name), window)]
        parts[spec.name] = frame_of(spec, joined(spec, {spec.name: rows}))
    for spec in _AMOUNTS:
        parts[spec.name] = _inside(spec, [getattr(day, spec.name) for day in days], window)
    problems: dict[tuple[Problem, int | None], Problem] = {
        (each, each.at_ms): each for day in days for each in day.problems
    }
    return Frames(
        **parts,
        problems=in_order(problems.values()),
        lacks={name: why for name, why in days[0].lacks.items() if all(name in each.lacks for each in days)},
    )


def _clipped(spec: FrameSpec, frame: pd.DataFrame, window: Window) -> Iterator[Row]:
    frame = frame[(frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)]
    starts, ends = frame["start_ms"].clip(lower=window.start_ms), frame["end_ms"].clip(upper=window.end_ms)
    frame = frame.assign(start_ms=starts, end_ms=ends)
    columns = (frame[name].tolist() for name in spec.column_names)
    for row in zip(*columns, strict=True):
        # What is missing is equal to what is missing.
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
