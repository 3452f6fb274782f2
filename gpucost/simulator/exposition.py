"""Frames as the metric contract's OpenMetrics text: what Prometheus would hold after scraping the exporters.

Any stretch of time can be written on its own, so that months of samples need little memory; stretches
that follow one another add up to the whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.contract.gpu_metrics import HOLDER_LABELS, POD_COUNTED_SINCE, POD_LABELS, Holder, Method
from gpucost.contract.metrics import (
    LINGER_MS,
    METRICS,
    NODE_BOARDS,
    NODE_END,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_INFO,
    NODE_INFO_LABELS,
    NODE_SCHEDULABLE,
    NODE_START,
    OWNER_LABELS,
    POD_GPU_END,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    POD_RESOURCE_LABELS,
    SIGNAL_METRICS,
    STATE_UP,
)
from gpucost.contract.openmetrics import EOF, header, series_name
from gpucost.contract.spec import MetricSpec
from gpucost.domain.problems import ProblemCode
from gpucost.domain.time import Window
from gpucost.simulator.workloads import Floats, Ints

_UNIT_METRICS = {
    "capacity": NODE_GPU_CAPACITY,
    "allocatable": NODE_GPU_ALLOCATABLE,
    "expected": NODE_GPU_EXPECTED,
    "replicas": NODE_GPU_REPLICAS,
}
_Row: TypeAlias = dict[Hashable, Any]


@dataclass(frozen=True, slots=True)
class _Curve:
    """A counter that rises evenly between known points."""

    at_ms: Ints
    seconds: Floats


@dataclass(frozen=True, slots=True)
class _Run:
    """One series, there during ``[start_ms, end_ms)``, with a value or with a curve of values."""

    spec: MetricSpec
    labels: Mapping[str, str]
    cluster: str
    value: float | _Curve
    start_ms: int
    end_ms: int


def exposition(frames: Frames, scrape_ms: int, window: Window | None = None) -> Iterator[str]:
    """OpenMetrics text of all scrapes in ``window``, which fall on multiples of ``scrape_ms``.

    Scrapes happen only while the cluster was observed; ``window`` is all of that time unless given. Pods
    and nodes that end where observation ends have not ended; a pod with an END_UNKNOWN problem was only not
    seen any more. Each piece of text is the lines of one series; the last is the closing EOF.
    """
    scrapes = _Scrapes(frames.observed, scrape_ms, window)
    life = _Life(frames)
    by_metric: dict[str, list[_Run]] = {spec.name: [] for spec in METRICS}
    for run in chain(_heartbeat(frames), _pods(frames, scrapes, life), _nodes(frames, scrapes, life)):
        by_metric[run.spec.name].append(run)
    for run in _signals(frames, scrapes, life):
        by_metric[run.spec.name].append(run)
    for spec in METRICS:
        texts = (text for run in by_metric[spec.name] if (text := scrapes.lines(run)))
        first = next(texts, None)
        if first is not None:
            yield from chain((header(spec), first), texts)
    yield EOF


class _Life:
    """When series go. Something seen to end keeps them for a while, together with its end."""

    def __init__(self, frames: Frames) -> None:
        self._horizon_ms = int(frames.observed["end_ms"].max())
        unseen = (p.subject for p in frames.problems if p.code is ProblemCode.END_UNKNOWN)
        self._unseen = frozenset(unseen)

    def has_ended(self, end_ms: int, subject: str = "") -> bool:
        return end_ms < self._horizon_ms and subject not in self._unseen

    def gone_ms(self, end_ms: int, subject: str = "") -> int:
        return end_ms + LINGER_MS if self.has_ended(end_ms, subject) else end_ms


class _Scrapes:
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

    def lines(self, run: _Run) -> str:
        """One line per scrape that sees the run."""
        low, high = np.searchsorted(self._at, [run.start_ms, run.end_ms])
        if low >= high:
            return ""
        series = series_name(run.spec, run.labels, {"cluster": run.cluster})
        if isinstance(run.value, _Curve):
            values = np.interp(self._at[low:high], run.value.at_ms, run.value.seconds).round(3).tolist()
            return "".join(f"{series} {v!r}{t}" for v, t in zip(values, self._text[low:high], strict=True))
        line = f"{series} {run.value!r}"
        return line + line.join(self._text[low:high])


def _heartbeat(frames: Frames) -> Iterator[_Run]:
    for row in frames.observed.to_dict("records"):
        yield _Run(STATE_UP, {}, row["cluster"], 1, row["start_ms"], row["end_ms"])


def _pods(frames: Frames, scrapes: _Scrapes, life: _Life) -> Iterator[_Run]:
    rows = scrapes.near(frames.allocations).sort_values(["cluster", "pod_uid", "resource", "start_ms"])
    lives = rows.groupby(["cluster", *POD_RESOURCE_LABELS], as_index=False, sort=False).agg(
        {"count": "max", "start_ms": "min", "end_ms": "max"}
    )
    for row in lives.to_dict("records"):
        labels = {name: row[name] for name in POD_RESOURCE_LABELS}
        start_ms, end_ms = row["start_ms"], row["end_ms"]
        gone_ms = life.gone_ms(end_ms, row["pod_uid"])
        yield _Run(POD_GPU_REQUEST, labels, row["cluster"], row["count"], start_ms, gone_ms)
        yield _Run(POD_GPU_START, labels, row["cluster"], start_ms / 1000, start_ms, gone_ms)
        if life.has_ended(end_ms, row["pod_uid"]):
            yield _Run(POD_GPU_END, labels, row["cluster"], end_ms / 1000, end_ms, gone_ms)
    last = ~rows.duplicated(["cluster", "pod_uid"], keep="last")
    for row, is_last in zip(rows.to_dict("records"), last, strict=True):
        labels = {label: row[column] for label, column in OWNER_LABELS.items()} | {"node": row["node"]}
        gone_ms = life.gone_ms(row["end_ms"], row["pod_uid"]) if is_last else row["end_ms"]
        yield _Run(POD_OWNER_INFO, labels, row["cluster"], 1, row["start_ms"], gone_ms)


def _nodes(frames: Frames, scrapes: _Scrapes, life: _Life) -> Iterator[_Run]:
    ends = set(zip(frames.nodes["cluster"], frames.nodes["node"], frames.nodes["end_ms"], strict=True))

    def run(spec: MetricSpec, row: _Row, value: float, labels: Mapping[str, str]) -> _Run:
        start_ms, end_ms = row["start_ms"], row["end_ms"]
        is_last = (row["cluster"], row["node"], end_ms) in ends
        gone_ms = life.gone_ms(end_ms) if is_last else end_ms
        since_ms = end_ms if spec is NODE_END else start_ms
        return _Run(spec, {"node": row["node"], **labels}, row["cluster"], value, since_ms, gone_ms)

    for row in scrapes.near(frames.nodes).to_dict("records"):
        yield run(NODE_INFO, row, 1, {label: row[column] for label, column in NODE_INFO_LABELS.items()})
        yield run(NODE_START, row, row["start_ms"] / 1000, {})
        if row["boards"] >= 0:
            yield run(NODE_BOARDS, row, row["boards"], {})
        if life.has_ended(row["end_ms"]):
            yield run(NODE_END, row, row["end_ms"] / 1000, {})
    capacity = scrapes.near(frames.capacity).sort_values(["cluster", "node", "resource", "start_ms"])
    for row in capacity.to_dict("records"):
        for column, spec in _UNIT_METRICS.items():
            if row[column] >= 0:
                yield run(spec, row, row[column], {"resource": row["resource"]})
    for row in capacity.drop_duplicates(["cluster", "node", "start_ms"]).to_dict("records"):
        yield run(NODE_SCHEDULABLE, row, row["schedulable"], {})


def _signals(frames: Frames, scrapes: _Scrapes, life: _Life) -> Iterator[_Run]:
    """Counters that rise from 0 at the pod's start, as the rows of the signals frame say."""
    here = scrapes.near(frames.signals)["pod_uid"].unique()
    rows = frames.signals[frames.signals["pod_uid"].isin(here)].sort_values("start_ms")
    lives = frames.allocations[frames.allocations["pod_uid"].isin(here)].sort_values("start_ms")
    pods = lives.drop_duplicates("pod_uid", keep="last").set_index("pod_uid")
    for uid, group in rows.groupby("pod_uid"):
        pod = pods.loc[uid].to_dict() | {"pod_uid": uid}
        place = {name: pod[name] for name in POD_LABELS}
        labels = {**dict.fromkeys(HOLDER_LABELS, ""), **place, "holder": Holder.POD, "method": Method.EXACT}
        at_ms = np.append(group["start_ms"].to_numpy()[:1], group["end_ms"].to_numpy())
        start_ms, gone_ms = int(at_ms[0]), life.gone_ms(pod["end_ms"], str(uid))
        yield _Run(POD_COUNTED_SINCE, place, pod["cluster"], start_ms / 1000, start_ms, gone_ms)
        for column, spec in SIGNAL_METRICS.items():
            if group[column].notna().all():
                seconds = np.append(0.0, np.cumsum(group[column].to_numpy()) / 1000)
                curve = _Curve(at_ms, seconds)
                yield _Run(spec, labels, pod["cluster"], curve, start_ms, gone_ms)
