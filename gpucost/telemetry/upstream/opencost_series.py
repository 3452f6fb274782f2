"""OpenCost's series: the prices of nodes, the figures that OpenCost computes from them, and what it bills.

Prices hardly ever change, so each hour's least and most are queried, and raw samples only of the hours in
which something did change. A change takes effect at the first sample that shows it. A price holds until
another is seen, for ``CARRY_MS`` at most, and for ``REACH_MS`` before the first: OpenCost sees a node later
than the node exists. Of members of an HA pair the one whose labels sort first is followed.

What OpenCost bills are its own queries to Prometheus, and what it computes from the answers, as
opencost/opencost v1.112.0 has it in pkg/costmodel: ``computeAllocation`` of allocation.go with its
``queryFmtPods``, ``queryFmtGPUsAllocated``, ``queryFmtGPUsRequested``; ``calculateStartAndEnd``,
``applyPodResults`` and ``applyGPUsAllocated`` of allocation_helpers.go; ``ClusterNodes`` of cluster.go. Later
releases (modules/prometheus-source/pkg/prom/metricsquerier.go) query the same by uid.

OpenCost believes every scrape job, so this module does too.

``read_release`` finds which release of OpenCost wrote a cluster's series, and how that release reads them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpucost.contract.kube_state import REQUESTS
from gpucost.contract.opencost import (
    ALLOCATED,
    BUILD_INFO,
    CLUSTER_INFO,
    CONTAINER_RUNNING,
    CPU_AND_MEMORY,
    CUSTOM_PROVIDER,
    GPU_ACTIVE,
    GPU_RESOURCE,
    NODE_GPU,
    NODE_GPU_COUNT,
    NODE_IS_SPOT,
    NODE_LABELS,
    NODE_TOTAL,
    RESOLUTION_MS,
    SHIPPED_GPU_PRICES,
    BilledNode,
    BilledPod,
    DefaultPrice,
    OpenCostRelease,
)
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.pricing.opencost_prices import ObservedNode, ObservedPrices, PriceStep
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    numbers,
    own_label,
    points,
    renamed,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    always,
    by,
    equals,
    instants,
    not_zero,
    one_of,
    other_than,
    over_instants,
    over_time,
    taken,
    union,
    where_any,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries

CARRY_MS = 6 * HOUR_MS
REACH_MS = 5 * MINUTE_MS

_Labels = tuple[tuple[str, str], ...]
_Point = tuple[int, float]
_POD = ("namespace", "pod")
_CONTAINER = ("namespace", "pod", "container", "node")
_OF_CONTAINERS = (other_than("container", ""), other_than("container", "POD"), other_than("node", ""))

_Key = tuple[str, str]  # namespace, pod
_Containers = Mapping[str, tuple[str, float]]
"""By container: its node, and its units."""


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


def read_billed(
    reader: ClusterReader,
    window: Window,
    release: OpenCostRelease | None = None,
    resolution_ms: int = RESOLUTION_MS,
) -> tuple[list[BilledNode], list[BilledPod]]:
    """Nodes and pods of ``window``, a UTC day or a part of one: OpenCost itself queries a day at a time, and
    adds days up. ``release`` decides how it reads (by name, if None), and ``resolution_ms`` how often it
    samples. Raises SourceError."""
    looks = _Looks(reader, window, release or OpenCostRelease(), resolution_ms)
    return _nodes(looks), _pods(looks)


@dataclass(frozen=True, slots=True)
class _Looks:
    """How OpenCost samples a window."""

    reader: ClusterReader
    window: Window
    release: OpenCostRelease
    resolution_ms: int

    def first_and_last(
        self, seen: PromQL, only: Callable[[PromQL], PromQL] = lambda found: found
    ) -> list[tuple[ResultSeries, int, int]]:
        """Each of ``seen`` (as far as it is in ``only``) with its first and its last sample, a single sample
        counting as one resolution, half of it on each side; clipped to the window."""
        # The left edge of a range counts below Prometheus 3 only, so the query avoids samples at the edge.
        range_ms = self.window.length_ms + (2 if self.release.sees_start else 0)
        asked = (
            over_instants(function, instants(seen), range_ms, self.resolution_ms)
            for function in ("min_over_time", "max_over_time")
        )
        first, last = (self.reader.vector(only(each), self.window.end_ms) for each in asked)
        ends = {_labels(series): round(value * 1000) for series, value in _valued(last)}
        found = []
        for series, value in _valued(first):
            start = round(value * 1000)
            end = ends.get(_labels(series), start)
            if start == end:
                start, end = start - self.resolution_ms // 2, end + self.resolution_ms // 2
            start, end = max(start, self.window.start_ms), min(end, self.window.end_ms)
            found.append((series, start, end))
        return found

    def mean(self, selector: PromQL) -> PromQL:
        """The mean of all samples in the window, however many there are."""
        return over_time("avg_over_time", selector, self.window.length_ms)

    def vector(self, expression: PromQL) -> list[ResultSeries]:
        return self.reader.vector(expression, self.window.end_ms)


def _pods(looks: _Looks) -> list[BilledPod]:
    found = _Requests.of(looks)
    asked = found.units(found.requested)
    billed = found.units(found.allocated) if found.mixed else {}
    spans = _running(looks, found)
    placed = found.placed()
    active = _active(looks)
    pods = []
    for key in sorted((asked.keys() | billed.keys()) & spans.keys()):
        # As soon as any container has the one series, OpenCost does not use the other for any of them.
        units = billed.get(key, {}) if found.mixed else asked[key]
        start, end = spans[key]
        of_all = units or asked[key]
        node = [place for place, _ in of_all.values()][-1]
        unit_ms = round(sum(value for _, value in units.values()) * (end - start))
        is_placed = all((*key, container) in placed for container in of_all)
        pods.append(BilledPod(node, key[0], key[1], start, end, unit_ms, active.get(key), is_placed))
    return pods


@dataclass(frozen=True, slots=True)
class _Requests:
    """The series that say how many units containers asked for.

    They are kube-state-metrics' unless OpenCost exports ``container_gpu_allocation``: then a scrape may have
    renamed the labels of one and not of the other, and all are brought back (``mixed``), which costs time.
    """

    looks: _Looks
    allocated: PromQL
    requested: PromQL
    mixed: bool

    @classmethod
    def of(cls, looks: _Looks) -> _Requests:
        reader = looks.reader
        allocated = reader.select_of_all(ALLOCATED, *_OF_CONTAINERS)
        requested = reader.select_of_all(REQUESTS, equals("resource", GPU_RESOURCE), *_OF_CONTAINERS)
        return cls(looks, allocated, requested, bool(looks.vector(by("count", (), looks.mean(allocated)))))

    def units(self, selector: PromQL) -> Mapping[_Key, _Containers]:
        """Units of each container by namespace and pod. For a container that was on several nodes, or had
        several uids, the last of the answer counts, as OpenCost overwrites the former by the latter."""
        found: dict[_Key, dict[str, tuple[str, float]]] = {}
        each = by("avg", self._names((*_CONTAINER, *self._uid)), self._own(self.looks.mean(selector)))
        for series, value in _valued(self.looks.vector(each)):
            namespace, pod, container, node = (own_label(series, label) for label in _CONTAINER)
            found.setdefault((namespace, pod), {})[container] = node, value
        return found

    def running(self) -> PromQL:
        """A series for each pod of which any container runs."""
        running = self._own(not_zero(self.looks.reader.select_of_all(CONTAINER_RUNNING)))
        return by("group", self._names((*_POD, *self._uid)), running)

    def of_pods_with_gpus(self, found: PromQL) -> PromQL:
        asking = union(*(self._own(self.looks.mean(each)) for each in (self.allocated, self.requested)))
        return where_any(found, asking, self._names(_POD))

    def placed(self) -> Collection[tuple[str, ...]]:
        """Namespace, pod and name of the containers for which OpenCost has a node: those that request CPUs or
        memory, or that it saw itself."""
        reader, length_ms = self.looks.reader, self.looks.window.length_ms
        resources = one_of("resource", ("cpu", "memory"))
        series = [reader.select_of_all(REQUESTS, resources, *_OF_CONTAINERS)]
        series += [reader.select_of_all(name, *_OF_CONTAINERS) for name in CPU_AND_MEMORY]
        there = union(*(self._own(over_time("last_over_time", each, length_ms)) for each in series))
        names = (*_POD, "container")
        found = by("group", self._names(names), self.of_pods_with_gpus(there))
        return {tuple(own_label(each, label) for label in names) for each in self.looks.vector(found)}

    @property
    def _uid(self) -> Sequence[str]:
        return ("uid",) if self.looks.release.by_uid else ()

    def _names(self, labels: Sequence[str]) -> Sequence[str]:
        return labels if self.mixed else with_renamed(labels)

    def _own(self, expression: PromQL) -> PromQL:
        for label in (*_CONTAINER, *self._uid) if self.mixed else ():
            expression = taken(expression, label, renamed(label))
        return expression


def _running(looks: _Looks, requests: _Requests) -> dict[_Key, tuple[int, int]]:
    """By namespace and pod, from the first sample of any pod of that name to the last."""
    found: dict[_Key, tuple[int, int]] = {}
    for series, start, end in looks.first_and_last(requests.running(), requests.of_pods_with_gpus):
        key = own_label(series, "namespace"), own_label(series, "pod")
        known = found.get(key, (start, end))
        found[key] = min(start, known[0]), max(end, known[1])
    return found


def _active(looks: _Looks) -> Mapping[_Key, float]:
    mean = by("avg", with_renamed(_POD), looks.mean(looks.reader.select(GPU_ACTIVE)))
    valued = _valued(looks.vector(mean))
    found = {(own_label(each, "namespace"), own_label(each, "pod")): value for each, value in valued}
    return {key: value for key, value in found.items() if any(key)}


def _nodes(looks: _Looks) -> list[BilledNode]:
    select = looks.reader.select_of_all
    gpu, total, count = (
        _by_node(looks.vector(looks.mean(select(name)))) for name in (NODE_GPU, NODE_TOTAL, NODE_GPU_COUNT)
    )
    seen: dict[str, int] = {}
    # A node that came back under its name is another node to OpenCost if its provider's id changed.
    there = by("group", (*with_renamed(NODE_LABELS), "provider_id"), select(NODE_TOTAL))
    for series, start, end in looks.first_and_last(there):
        seen[node_of(series)] = seen.get(node_of(series), 0) + end - start
    # Where no look fell on its series, the price of an hour is left as it is (costTimesMinute, cluster.go).
    return [
        BilledNode(node, gpu.get(node), total.get(node), count.get(node), seen.get(node, HOUR_MS))
        for node in sorted({*gpu, *total} - {""})
    ]


def _by_node(result: Sequence[ResultSeries]) -> dict[str, float]:
    """One value per node; of several series of a node their mean, as OpenCost takes it."""
    found: dict[str, list[float]] = {}
    for series, value in _valued(result):
        found.setdefault(node_of(series), []).append(value)
    return {node: fmean(values) for node, values in found.items()}


def _labels(series: ResultSeries) -> tuple[str, ...]:
    return tuple(sorted(f"{name}={value}" for name, value in series["metric"].items()))


def _valued(result: Sequence[ResultSeries]) -> list[tuple[ResultSeries, float]]:
    """Each series with its value, those without a finite one left out."""
    return [pair for pair in zip(result, numbers(result), strict=True) if math.isfinite(pair[1])]


_VERSION = re.compile(r"v?(\d+)\.(\d+)")
# The first release after opencost/opencost pull 3094, which samples the start of a window on Prometheus 3.
_SEES_START = (1, 115)


def read_release(
    reader: ClusterReader, window: Window, default_price: float | None = None
) -> OpenCostRelease:
    """The OpenCost of ``window``. ``default_price`` is the configured price of a GPU of a node without a
    price series; if None, it is derived. Raises SourceError."""
    versions = tuple(filter(None, _label_values(reader, window, BUILD_INFO, "version")))
    uids = reader.select_of_all(NODE_TOTAL, other_than("uid", ""))
    by_uid = bool(reader.vector(by("count", (), _last(uids, window)), window.end_ms))
    numbered = [(int(found[1]), int(found[2])) for each in versions if (found := _VERSION.match(each))]
    is_late = min(numbered) >= _SEES_START if numbered else by_uid
    return OpenCostRelease(
        versions,
        by_uid,
        is_late or not _is_left_open(reader, window.end_ms),
        _default(reader, window) if default_price is None else DefaultPrice(default_price, "as you say"),
    )


def _default(reader: ClusterReader, window: Window) -> DefaultPrice:
    """``getCustomNodePricing`` of allocation_helpers.go: the configured price, which no series has. Where all
    prices are configured ones, every other node's is the same."""
    found = {value for value in _prices(reader, window) if value > 0}
    providers = _label_values(reader, window, CLUSTER_INFO, "provider")
    if CUSTOM_PROVIDER in providers and len(found) == 1:
        return DefaultPrice(found.pop(), "the configured price that all other nodes have")
    provider = next(iter(providers), "").lower()
    name = provider if provider in SHIPPED_GPU_PRICES else "its default"
    price = SHIPPED_GPU_PRICES.get(provider, SHIPPED_GPU_PRICES["aws"])
    return DefaultPrice(price, f"what OpenCost is shipped with for {name}, unless yours is set otherwise")


def _prices(reader: ClusterReader, window: Window) -> Sequence[float]:
    mean = over_time("avg_over_time", reader.select_of_all(NODE_GPU), window.length_ms)
    return numbers(reader.vector(mean, window.end_ms))


def _label_values(reader: ClusterReader, window: Window, metric: str, label: str) -> list[str]:
    asked = by("group", (label,), _last(reader.select_of_all(metric), window))
    return sorted(each["metric"].get(label, "") for each in reader.vector(asked, window.end_ms))


def _last(selector: PromQL, window: Window) -> PromQL:
    return over_time("last_over_time", selector, window.length_ms)


def _is_left_open(reader: ClusterReader, at_ms: int) -> bool:
    """Whether the server excludes samples exactly at the start of a range, as Prometheus 3 does."""
    on_the_minute = at_ms // MINUTE_MS * MINUTE_MS
    probe = over_instants("count_over_time", always(), MINUTE_MS + 1, MINUTE_MS)
    return numbers(reader.vector(probe, on_the_minute)) == [1.0]
