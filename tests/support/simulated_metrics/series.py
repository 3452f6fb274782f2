"""Series of samples, as Prometheus would have scraped them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.metric_spec import MetricSpec, series_name
from gpucost.contract.metrics import LINGER_MS
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import Window
from gpucost.simulator.history import CounterCurve
from gpucost.simulator.workloads import DrawnFloats, DrawnInts


@dataclass(frozen=True, slots=True)
class GaugeLevels:
    """A gauge that has a value in each of some stretches, and none between them."""

    start_ms: DrawnInts
    end_ms: DrawnInts
    value: DrawnFloats


SeriesValue: TypeAlias = float | CounterCurve | GaugeLevels


@dataclass(frozen=True, slots=True)
class SeriesRun:
    """One series, there during ``[start_ms, end_ms)``, with a value or with a curve of values."""

    spec: MetricSpec
    labels: Mapping[str, str]
    cluster: str
    value: SeriesValue
    start_ms: int
    end_ms: int


class SeriesLife:
    """When series end. An object that was seen to end keeps them for a while, together with its end."""

    def __init__(self, frames: ClusterFrames) -> None:
        self._horizon_ms = int(frames.observed["end_ms"].max())
        unseen = (p.subject for p in frames.problems if p.code is DataProblemCode.END_UNKNOWN)
        self._unseen = frozenset(unseen)

    def has_ended(self, end_ms: int, subject: str = "") -> bool:
        return end_ms < self._horizon_ms and subject not in self._unseen

    def gone_ms(self, end_ms: int, subject: str = "") -> int:
        return end_ms + LINGER_MS if self.has_ended(end_ms, subject) else end_ms


class ScrapeTimes:
    """The instants of all scrapes, in milliseconds and as text."""

    def __init__(self, observed: pd.DataFrame, scrape_ms: int, window: Window | None) -> None:
        self.window = window or Window(int(observed["start_ms"].min()), int(observed["end_ms"].max()))
        first = -(-self.window.start_ms // scrape_ms) * scrape_ms
        instants = np.arange(first, self.window.end_ms, scrape_ms, dtype=np.int64)
        seen = np.zeros(len(instants), dtype=bool)
        for start_ms, end_ms in zip(observed["start_ms"], observed["end_ms"], strict=True):
            seen |= (instants >= start_ms) & (instants < end_ms)
        self._at = instants[seen]
        self._text = [f" {ms // 1000}.{ms % 1000:03d}\n" for ms in self._at.tolist()]

    def near(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows whose series may be seen in these scrapes."""
        begun = frame["start_ms"] < self.window.end_ms
        return frame[begun & (frame["end_ms"] + LINGER_MS > self.window.start_ms)]

    def lines(self, run: SeriesRun) -> str:
        """One line per scrape that sees the run."""
        series = series_name(run.spec, run.labels, {"cluster": run.cluster})
        return self.samples(series, run.value, run.start_ms, run.end_ms)

    def samples(
        self, series: str, value: SeriesValue, start_ms: int, end_ms: int, *, is_whole: bool = False
    ) -> str:
        """One line per scrape in ``[start_ms, end_ms)``; ``is_whole`` where a counter counts things."""
        low, high = np.searchsorted(self._at, [start_ms, end_ms])
        if low >= high:
            return ""
        if isinstance(value, CounterCurve):
            found = np.interp(self._at[low:high], value.at_ms, value.total)
            values = (np.floor(found) if is_whole else found.round(3)).tolist()
            return "".join(f"{series} {v!r}{t}" for v, t in zip(values, self._text[low:high], strict=True))
        if isinstance(value, GaugeLevels):
            at = np.searchsorted(value.start_ms, self._at[low:high], "right") - 1
            there = (at >= 0) & (self._at[low:high] < value.end_ms[at])
            pairs = zip(value.value[at[there]].tolist(), np.flatnonzero(there) + low, strict=True)
            return "".join(f"{series} {level!r}{self._text[n]}" for level, n in pairs)
        line = f"{series} {value!r}"
        return line + line.join(self._text[low:high])
