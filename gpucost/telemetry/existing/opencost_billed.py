"""What OpenCost bills: its own inputs, asked for as it asks for them, at its resolution of five minutes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpucost.contract.kube_state import REQUESTS
from gpucost.contract.opencost import (
    ALLOCATED,
    CONTAINER_RUNNING,
    GPU_ACTIVE,
    GPU_RESOURCE,
    NODE_GPU,
    NODE_GPU_COUNT,
    NODE_LABELS,
    NODE_TOTAL,
    RESOLUTION_MS,
    BilledNode,
    BilledPod,
)
from gpucost.domain.time import Window
from gpucost.telemetry.answers import Series
from gpucost.telemetry.promql import (
    PromQL,
    above,
    by,
    equals,
    over_instants,
    over_time,
    taken,
    union,
    where_any,
)
from gpucost.telemetry.reader import ClusterReader, numbers, own_label, renamed, with_renamed

_POD = ("namespace", "pod")
_CONTAINER = ("namespace", "pod", "container", "node")
_PLACE = ("namespace", "pod", "node")


def read_billed(reader: ClusterReader, window: Window) -> tuple[list[BilledNode], list[BilledPod]]:
    """Nodes and pods of ``window``, a UTC day or a part of one: OpenCost itself asks for a day at a time, and
    adds days up. Raises SourceError."""
    return _nodes(reader, window), _pods(reader, window)


def _pods(reader: ClusterReader, window: Window) -> list[BilledPod]:
    found = _Requests.of(reader, window)
    units = _by_labels(reader.vector(found.mean_units(window), window.end_ms - 1), _PLACE)
    looks = over_instants("count_over_time", found.running(), window.length_ms, RESOLUTION_MS)
    seen = _by_labels(reader.vector(looks, window.end_ms), _PLACE)
    active = _active(reader, window)
    pods = []
    for namespace, pod, node in sorted(units.keys() & seen.keys()):
        running_ms = round(seen[namespace, pod, node] * RESOLUTION_MS)
        unit_ms = round(units[namespace, pod, node] * running_ms)
        if node and unit_ms > 0:
            pods.append(BilledPod(node, namespace, pod, unit_ms, running_ms, active.get((namespace, pod))))
    return pods


@dataclass(frozen=True, slots=True)
class _Requests:
    """The series that say how many units containers asked for, and when they ran.

    Both are kube-state-metrics' unless OpenCost exports ``container_gpu_allocation``: then a scrape may have
    renamed the labels of one and not of the other, and all are brought back (``mixed``), which costs time.
    """

    reader: ClusterReader
    units: PromQL
    mixed: bool
    says_running: bool

    @classmethod
    def of(cls, reader: ClusterReader, window: Window) -> _Requests:
        allocated = reader.select(ALLOCATED)
        mixed = _is_there(reader, allocated, window)
        units = allocated if mixed else reader.select(REQUESTS, equals("resource", GPU_RESOURCE))
        return cls(reader, units, mixed, _is_there(reader, reader.select(CONTAINER_RUNNING), window))

    def mean_units(self, window: Window) -> PromQL:
        """Units of each pod on each node: the mean of all samples, as OpenCost takes it."""
        return self._of_pods(over_time("avg_over_time", self.units, window.length_ms))

    def running(self) -> PromQL:
        """As many series, where and when a container runs; where nothing says, as long as they ask."""
        held = self._of_pods(self.units)
        if not self.says_running:
            return held
        labels = self._labels(_POD)
        running = by("max", labels, self._own(self.reader.select(CONTAINER_RUNNING), _POD))
        return where_any(held, above(running, 0), labels)

    def _of_pods(self, units: PromQL) -> PromQL:
        each = by("avg", self._labels(_CONTAINER), self._own(units, _CONTAINER))
        return by("sum", self._labels(_PLACE), each)

    def _labels(self, labels: Sequence[str]) -> Sequence[str]:
        return labels if self.mixed else with_renamed(labels)

    def _own(self, expression: PromQL, labels: Iterable[str]) -> PromQL:
        for label in labels if self.mixed else ():
            expression = taken(expression, label, renamed(label))
        return expression


def _active(reader: ClusterReader, window: Window) -> Mapping[tuple[str, ...], float]:
    mean = over_time("avg_over_time", reader.select(GPU_ACTIVE), window.length_ms)
    return _by_labels(reader.vector(by("avg", with_renamed(_POD), mean), window.end_ms - 1), _POD)


def _nodes(reader: ClusterReader, window: Window) -> list[BilledNode]:
    gpu, total, count = (
        _by_node(
            reader.vector(
                over_time("avg_over_time", reader.select(name), window.length_ms), window.end_ms - 1
            )
        )
        for name in (NODE_GPU, NODE_TOTAL, NODE_GPU_COUNT)
    )
    both = union(reader.select(NODE_GPU), reader.select(NODE_TOTAL))
    there = by("max", with_renamed(NODE_LABELS), both)
    instants = over_instants("count_over_time", there, window.length_ms, RESOLUTION_MS)
    shown = _by_node(reader.vector(instants, window.end_ms), max)
    return [
        BilledNode(
            node, gpu.get(node), total.get(node), count.get(node), round(shown.get(node, 0) * RESOLUTION_MS)
        )
        for node in sorted({*gpu, *total, *count} - {""})
    ]


def _is_there(reader: ClusterReader, selector: PromQL, window: Window) -> bool:
    newest = over_time("last_over_time", selector, window.length_ms)
    return bool(reader.vector(by("count", (), newest), window.end_ms - 1))


def _by_labels(result: Sequence[Series], labels: Sequence[str]) -> dict[tuple[str, ...], float]:
    keys = [tuple(own_label(series, label) for label in labels) for series in result]
    found = zip(keys, numbers(result), strict=True)
    return {key: value for key, value in found if math.isfinite(value) and any(key)}


def _by_node(result: Sequence[Series], fold: Callable[[list[float]], float] = fmean) -> dict[str, float]:
    """One value per node; of several series of a node their mean, as OpenCost takes it."""
    found: dict[str, list[float]] = {}
    for series, value in zip(result, numbers(result), strict=True):
        node = next(filter(None, (own_label(series, label) for label in NODE_LABELS)), "")
        if math.isfinite(value):
            found.setdefault(node, []).append(value)
    return {node: fold(values) for node, values in found.items()}
