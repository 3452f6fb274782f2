"""OpenCost's series: the prices of nodes, and the figures that OpenCost computes from them.

Prices hardly ever change, so each hour's least and most are queried, and raw samples only of the hours in
which something did change. A change takes effect at the first sample that shows it. A price holds until
another is seen, for ``CARRY_MS`` at most, and for ``REACH_MS`` before the first: OpenCost sees a node later
than the node exists. Of members of an HA pair the one whose labels sort first is followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.contract.opencost import NODE_GPU, NODE_IS_SPOT, NODE_LABELS, NODE_TOTAL
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.pricing.opencost_prices import ObservedNode, ObservedPrices, PriceStep
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, own_label, points
from gpucost.telemetry.prometheus.promql import over_time
from gpucost.telemetry.prometheus.query_response import ResultSeries

CARRY_MS = 6 * HOUR_MS
REACH_MS = 5 * MINUTE_MS

_Labels = tuple[tuple[str, str], ...]
_Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class _Slot:
    """What the followed series of a node showed in one hour."""

    least: float
    most: float
    labels: _Labels

    @property
    def is_constant(self) -> bool:
        return _same(self.least, self.most)


def read_prices(reader: ClusterReader, window: Window, step_ms: int = HOUR_MS) -> ObservedPrices:
    """The prices of every node that OpenCost has a price for, over ``window``. Raises SourceError."""
    found = {
        field: _steps_of(reader, metric, window, step_ms)
        for field, metric in (("total", NODE_TOTAL), ("gpu", NODE_GPU), ("spot", NODE_IS_SPOT))
    }
    nodes = sorted({node for steps in found.values() for node in steps})
    return {
        (reader.cluster, node): ObservedNode(**{field: steps.get(node, ()) for field, steps in found.items()})
        for node in nodes
    }


def _steps_of(
    reader: ClusterReader, metric: str, window: Window, step_ms: int
) -> Mapping[str, tuple[PriceStep, ...]]:
    start = (window.start_ms - CARRY_MS) // step_ms * step_ms
    # One slot more: a node that came at the window's end has its first price after it.
    end = -(-window.end_ms // step_ms) * step_ms + step_ms
    slots = _slots(reader, metric, start, end, step_ms)
    wanted = sorted({at for by_hour in slots.values() for at in _in_detail(by_hour, start, step_ms)})
    raw = {at: _raw(reader, metric, at, step_ms) for at in wanted}
    found = {}
    for node, by_hour in slots.items():
        steps = _steps(by_hour, raw, start, end, step_ms)
        clipped = (_clipped(step, window) for step in steps)
        found[node] = tuple(step for step in clipped if step.start_ms < step.end_ms)
    return {node: steps for node, steps in found.items() if steps}


def _slots(
    reader: ClusterReader, metric: str, start: int, end: int, step_ms: int
) -> dict[str, dict[int, _Slot]]:
    """By node and start of the slot."""
    asked = [
        reader.matrix(
            over_time(function, reader.select(metric), step_ms), start + step_ms - 1, end - 1, step_ms
        )
        for function in ("min_over_time", "max_over_time")
    ]
    least, most = ({_key(series): series for series in answer} for answer in asked)
    found: dict[str, dict[int, _Slot]] = {}
    believed = _believed(least.values())
    for labels in sorted(least.keys() & most.keys()):
        node = node_of(least[labels])
        highest = dict(zip(*points(most[labels]), strict=True))
        for at, value in zip(*points(least[labels]), strict=True):
            slot = at + 1 - step_ms
            if _job(least[labels]) != believed[at]:
                continue
            found.setdefault(node, {}).setdefault(slot, _Slot(value, highest.get(at, value), labels))
    found.pop("", None)
    return found


def _believed(every: Iterable[ResultSeries]) -> Mapping[int, str]:
    """At each instant the job that prices most nodes: anyone who has a target scraped could write prices."""
    nodes: dict[int, dict[str, set[str]]] = {}
    for series in every:
        for at in points(series)[0]:
            nodes.setdefault(at, {}).setdefault(_job(series), set()).add(node_of(series))
    return {at: max(jobs, key=lambda job: (len(jobs[job]), job)) for at, jobs in nodes.items()}


def _job(series: ResultSeries) -> str:
    return str(series["metric"].get("job", ""))


def _in_detail(slots: Mapping[int, _Slot], start: int, step_ms: int) -> Iterable[int]:
    """The slots in which a value begins, or differs from the one before."""
    for at, slot in slots.items():
        before = slots.get(at - step_ms)
        if not slot.is_constant or (at > start and (before is None or not _same(before.most, slot.least))):
            yield at


def _raw(reader: ClusterReader, metric: str, at: int, step_ms: int) -> dict[_Labels, list[_Point]]:
    answer = reader.raw(reader.select(metric), at, at + step_ms)
    found: dict[_Labels, list[_Point]] = {}
    for series in answer:
        samples = zip(*points(series), strict=True)
        found.setdefault(_key(series), []).extend(point for point in samples if at <= point[0] < at + step_ms)
    return found


def _steps(
    slots: Mapping[int, _Slot],
    raw: Mapping[int, Mapping[_Labels, Sequence[_Point]]],
    start: int,
    end: int,
    step_ms: int,
) -> list[PriceStep]:
    steps: list[PriceStep] = []
    seen_until = start
    for at in range(start, end, step_ms):
        slot = slots.get(at)
        if slot is None:
            continue
        fallen = not steps or at - seen_until >= CARRY_MS
        if at in raw and (not slot.is_constant or fallen or not _same(steps[-1].value, slot.least)):
            shown = raw[at].get(slot.labels, ())
        else:
            shown = [(at, slot.least)]
        for when, value in shown:
            _extend(steps, when, value, seen_until, reaches_back=at > start)
            seen_until = when
        if steps and shown:
            seen_until = at + step_ms
    if steps:
        steps[-1] = PriceStep(steps[-1].start_ms, min(end, seen_until + CARRY_MS), steps[-1].value)
    return steps


def _extend(steps: list[PriceStep], when: int, value: float, seen_until: int, *, reaches_back: bool) -> None:
    """``value`` from ``when`` on; the value before holds until then, or for as long as it is carried."""
    if steps:
        last = steps[-1]
        held_until = min(when, seen_until + CARRY_MS)
        if held_until == when and _same(last.value, value):
            return
        steps[-1] = PriceStep(last.start_ms, held_until, last.value)
        if held_until == when:
            steps.append(PriceStep(when, when, value))
            return
    begin = when - REACH_MS if reaches_back else when
    steps.append(PriceStep(max(begin, steps[-1].end_ms) if steps else begin, when, value))


def _clipped(step: PriceStep, window: Window) -> PriceStep:
    return PriceStep(max(step.start_ms, window.start_ms), min(step.end_ms, window.end_ms), step.value)


def node_of(series: ResultSeries) -> str:
    return next(filter(None, (own_label(series, label) for label in NODE_LABELS)), "")


def _key(series: ResultSeries) -> _Labels:
    labels: dict[str, str] = series["metric"]
    return tuple(sorted(item for item in labels.items() if item[0] != "__name__"))


def _same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))
