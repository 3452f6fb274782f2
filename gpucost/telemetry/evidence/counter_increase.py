"""Increases of the GPU exporter's counters per step: differences of two readings, computed here.

The increase is the last value of a step minus the last value before it, which may be at most ten minutes old;
minus 0 where the counter began in the step, which ``gpucost_pod_gpu_counted_since_timestamp_seconds`` says;
minus its first value in the step where no series says when it began. The server is asked for the readings
alone, for all counters at once; the same in PromQL reads every sample five times. ``increase()`` would leave
out the first sample of a series, with all that a short job ever was, and extrapolate; it is used only where a
counter fell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpucost.contract.gpu_metrics import HOLDER_COUNTERS, POD_COUNTED_SINCE, HolderKind
from gpucost.contract.metric_spec import MetricSpec
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.gauge_runs import Floats, spans
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, points
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    above,
    by,
    equals,
    one_of,
    over_time,
    union,
)
from gpucost.telemetry.prometheus.query_response import BEYOND, ResultSeries, instant_place

CounterKey: TypeAlias = tuple[str, ...]
PLACE = ("pod_uid", "node", "gpu_uuid", "gpu_instance")
"""The labels of one counter: one GPU for one pod."""
# The greatest age of the last value before a step: longer than any pause between scrapes that is not a gap.
LOOK_BACK_MS = 10 * MINUTE_MS
_POD = PLACE[:2]
# Rows of one GPU and pod that differ in the split method are separate counters.
_KEY = (*PLACE, "method")
_PODS_PER_MATCHER = 200


@dataclass(frozen=True)
class SampleGrid:
    """Values of series at instants, ``(series, instants)``, NaN where there is none."""

    keys: Mapping[CounterKey, int]
    values: Floats

    def of(self, keys: Iterable[CounterKey]) -> Floats:
        """The rows of ``keys``, in their order."""
        at = np.array([self.keys.get(key, -1) for key in keys], dtype=np.int64)
        found = np.vstack([self.values, np.full((1, self.values.shape[1]), np.nan)])
        rows: Floats = found[at]
        return rows

    def summed(self, labels: int) -> SampleGrid:
        """Sums by the first so many labels of the keys, NaN where all of them are."""
        keys: dict[CounterKey, int] = {}
        at = np.array([keys.setdefault(key[:labels], len(keys)) for key in self.keys], dtype=np.int64)
        known = np.isfinite(self.values)
        sums = np.zeros((len(keys), self.values.shape[1]))
        np.add.at(sums, at, np.where(known, self.values, 0.0))
        seen = np.zeros(sums.shape, dtype=bool)
        np.logical_or.at(seen, at, known)
        return SampleGrid(keys, np.where(seen, sums, np.nan))


class CounterIncrease:
    """Increases of the counters ``specs`` in ``steps``, which are equally long and consecutive."""

    def __init__(self, reader: ClusterReader, specs: Collection[MetricSpec], steps: Sequence[Window]) -> None:
        self._names = tuple(dict.fromkeys(spec.name for spec in specs))
        own = () if "holder" in reader.renames else (equals("holder", HolderKind.POD),)
        self._reader = reader
        self._own = own
        self._steps = steps
        self._length = steps[0].length_ms
        self._ends = np.array([step.end_ms for step in steps], dtype=np.int64)
        self._parts = [*spans(reader, reader.select(self._names, *own), _whole(steps), self._length)]

    def of(self, spec: MetricSpec) -> SampleGrid:
        """By PLACE; NaN in steps without a reading."""
        return self._of(spec.name).summed(len(PLACE))

    def _of(self, name: str) -> SampleGrid:
        keys, last, before = self._readings[name]
        pod = _codes(key[: len(_POD)] for key in keys)
        # A row that appears beside other rows of its pod, such as one of another split method, also began at
        # 0.
        beside = np.zeros((max(pod.values(), default=-1) + 1, last.shape[1]), dtype=bool)
        pods = np.array([pod[key[: len(_POD)]] for key in keys], dtype=np.int64)
        np.logical_or.at(beside, pods, np.isfinite(before))
        fresh = np.isfinite(last) & np.isnan(before)
        base = np.where(fresh & (beside[pods] | self._begun(keys, fresh)), 0.0, before)
        unknown = np.isfinite(last) & np.isnan(base)
        if unknown.any():
            base = np.where(unknown, self._first(name).of(keys), base)
        rise = last - base
        # A lower value without a reset inside the step: the reset was at the edge, so all of it is of this
        # step.
        return self._fallen(name, keys, np.where(rise < 0, last, rise))

    @cached_property
    def _readings(self) -> Mapping[str, tuple[dict[CounterKey, int], Floats, Floats]]:
        """By counter: its rows, the last value of each step, and the last before it."""
        counters = self._reader.select(self._names, *self._own)
        range_ms = max(self._length, LOOK_BACK_MS)
        edges = self._grid(counters, "last_over_time", range_ms, ("__name__", *_KEY), with_start=True)
        if range_ms == LOOK_BACK_MS:
            last, before = edges.values[:, 1:], edges.values[:, :-1]
        else:
            earlier = self._grid(
                counters, "last_over_time", LOOK_BACK_MS, ("__name__", *_KEY), offset_ms=self._length
            )
            last, before = edges.values[:, 1:], earlier.of(edges.keys)
        found: dict[str, tuple[dict[CounterKey, int], Floats, Floats]] = {}
        for name in self._names:
            rows = {key[1:]: at for key, at in edges.keys.items() if key[0] == name and key[1]}
            at = np.array(list(rows.values()), dtype=np.int64)
            found[name] = {key: n for n, key in enumerate(rows)}, last[at], before[at]
        return found

    def _begun(self, keys: Iterable[CounterKey], fresh: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Where the pod's counters began in the step, or so shortly before it that no earlier sample
        exists."""
        if not fresh.any():
            return fresh
        since_ms = self._since.of(key[: len(_POD)] for key in keys) * 1000
        begun: npt.NDArray[np.bool_] = since_ms > self._ends - (self._length + LOOK_BACK_MS)
        return begun

    @cached_property
    def _since(self) -> SampleGrid:
        selector = self._reader.select(POD_COUNTED_SINCE.name)
        return self._grid(selector, "last_over_time", max(self._length, LOOK_BACK_MS), _POD)

    def _first(self, name: str) -> SampleGrid:
        """The first value of each step."""
        selector = self._reader.select(name, *self._own)
        return self._grid(selector, "min_over_time", self._length, _KEY, operator="min")

    def _fallen(self, name: str, keys: Mapping[CounterKey, int], rise: Floats) -> SampleGrid:
        """Adds Prometheus' ``increase()`` for counters that fell in a step: the exporter lost its state."""
        pods = sorted({key[0] for key in keys} & self._reset)
        for at in range(0, len(pods), _PODS_PER_MATCHER):
            own = (
                ()
                if "pod_uid" in self._reader.renames
                else (one_of("pod_uid", pods[at : at + _PODS_PER_MATCHER]),)
            )
            selector = self._reader.select(name, *self._own, *own)
            fell = self._grid(selector, "resets", self._length, _KEY).of(keys) > 0
            if fell.any():
                rise = np.where(fell, self._grid(selector, "increase", self._length, _KEY).of(keys), rise)
        return SampleGrid(keys, rise)

    @property
    def _reset(self) -> frozenset[str]:
        """Pods of which some counter fell; one query per range of steps."""
        whole = _whole(self._steps)
        return self._reader.once(("reset", whole.start_ms, whole.end_ms), self._ask_for_reset)

    def _ask_for_reset(self) -> frozenset[str]:
        whole = _whole(self._steps)
        counters = (self._reader.select(spec.name, *self._own) for spec in HOLDER_COUNTERS.values())
        range_ms = whole.length_ms + LOOK_BACK_MS
        fell = [above(self._largest("max", "resets", each, range_ms, _POD[:1]), 0) for each in counters]
        found = self._reader.vector(union(*fell), whole.end_ms)
        return frozenset(str(each["metric"].get("pod_uid", "")) for each in found)

    def _grid(
        self,
        selector: PromQL,
        function: str,
        range_ms: int,
        labels: Sequence[str],
        *,
        operator: str = "max",
        offset_ms: int = 0,
        with_start: bool = False,
    ) -> SampleGrid:
        """The values at the end of each step; with ``with_start`` also at the start of the first one."""
        expression = self._largest(operator, function, selector, range_ms, labels, offset_ms)
        return _read(self._reader, expression, labels, self._steps, self._parts, with_start)

    def _largest(
        self,
        operator: str,
        function: str,
        selector: PromQL,
        range_ms: int,
        labels: Sequence[str],
        offset_ms: int = 0,
    ) -> PromQL:
        """One counter may come from several targets, one after the other (a restarted exporter) or at once
        (an HA pair, two jobs scraping one exporter): as counters only rise, the largest is the newest."""
        read = over_time(function, selector, range_ms, offset_ms)
        return by(operator, labels, self._reader.as_exported(read, labels))


def levels(
    reader: ClusterReader, spec: MetricSpec, labels: Sequence[str], steps: Sequence[Window]
) -> SampleGrid:
    """The largest value of a gauge in each of ``steps``, by ``labels``; a reading exactly at the end of a
    step belongs to the next one."""
    length = steps[0].length_ms
    selector = reader.select(spec.name)
    most = reader.as_exported(over_time("max_over_time", selector, length, 1), labels)
    parts = [*spans(reader, selector, _whole(steps), length)]
    return _read(reader, by("max", labels, most), labels, steps, parts)


def _read(
    reader: ClusterReader,
    expression: PromQL,
    labels: Sequence[str],
    steps: Sequence[Window],
    parts: Sequence[Window],
    with_start: bool = False,
) -> SampleGrid:
    """Values of ``expression`` at the steps' ends, queried in ``parts``."""
    length = steps[0].length_ms
    first = steps[0].start_ms + (0 if with_start else length)
    keys: dict[CounterKey, int] = {}
    found: list[tuple[int, ResultSeries]] = []
    for number, part in enumerate(parts):
        start = part.start_ms + length if number else first
        for each in reader.matrix(expression, start, part.end_ms, length):
            key = tuple(each["metric"].get(label, "") for label in labels)
            found.append((keys.setdefault(key, len(keys)), each))
    values = np.full((len(keys), len(steps) + with_start), np.nan)
    for row, each in found:
        for at, value in zip(*points(each), strict=True):
            values[row, instant_place(at, first, length, values.shape[1])] = value
    # No counter or gauge of the exporter is below 0.
    return SampleGrid(keys, np.where((values >= 0) & (values < BEYOND), values, np.nan))


def _whole(steps: Sequence[Window]) -> Window:
    return Window(steps[0].start_ms, steps[-1].end_ms)


def _codes(keys: Iterable[CounterKey]) -> dict[CounterKey, int]:
    found: dict[CounterKey, int] = {}
    for key in keys:
        found.setdefault(key, len(found))
    return found
