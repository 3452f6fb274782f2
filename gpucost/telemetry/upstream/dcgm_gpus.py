"""The physical GPUs of each node, from dcgm-exporter's rows, whatever Kubernetes reports of the node.

The node label of a row holds the node, the exporter's own pod or ``localhost``, so a name counts only if
Kubernetes has a node of that name; else the node is the one where the exporter's pod runs, by name or
address, or the one of the pod that uses the GPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import BLANK_TEXTS, MODEL_LABELS, PROFILE_LABELS, UUID_LABELS, DcgmField
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.evidence.evidence_rule import BoolArray
from gpucost.telemetry.prometheus.cluster_reader import own_label, with_renamed
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    above,
    by,
    one_of,
    over_time,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries
from gpucost.telemetry.prometheus.series_labels import LabelKey
from gpucost.telemetry.upstream.device_subjects import (
    ClusterHoldings,
    SeriesLabels,
    field_names,
    first_of,
    pod_of,
)
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

_NODE_LABELS = ("node", "kubernetes_node", "exported_node", "Hostname", "hostname")
_POD_LABELS = ("pod", "namespace", "pod_name", "pod_namespace", "pod_uid")
_PLACE = (
    *(*UUID_LABELS, *MODEL_LABELS, *PROFILE_LABELS, "instance", *_NODE_LABELS),
    *with_renamed(_POD_LABELS),
)
# Each kind of device and each release has at least one of these fields.
_SHOWN = (DcgmField.BUSY, DcgmField.GRAPHICS, DcgmField.MEMORY_USED, DcgmField.POWER, DcgmField.ENERGY)
_VALUES_PER_MATCHER = 200
_NODE = ("node", "exported_node")
_NO_PROFILE = {"", *BLANK_TEXTS}
_NOWHERE = "nothing says which node a GPU of dcgm-exporter's is in: it is left out"


_Row = tuple[SeriesLabels, list[int]]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ObservedGpus:
    """``boards_of`` is the most GPUs that a node showed at once, ``product_of`` their model name (``NVIDIA
    H100 80GB HBM3``), ``profile_of`` the MIG profile if all instances of a node have the same one,
    ``node_of`` the last node of each GPU, by its UUID."""

    boards_of: Mapping[str, int]
    product_of: Mapping[str, str]
    profile_of: Mapping[str, str]
    node_of: Mapping[str, str]
    problems: Sequence[DataProblem] = ()


NO_GPUS = ObservedGpus({}, {}, {}, {})


def read_gpus(reader: KubeStateReader, window: Window, holdings: ClusterHoldings) -> ObservedGpus:
    """Sampled every hour, and at the window's end; for nodes that existed for a shorter time, whatever was
    seen of them in an hour."""
    rows, further = _rows(reader, window), list[_Row]()
    brief = _brief_nodes(reader, window)
    if brief:
        further = _rows(reader, window, between=True)
    places = _Places(reader, window, holdings, [labels for labels, _ in (*rows, *further)])
    found = _gpus_of_rows(rows, places)
    brief -= found.boards_of.keys()
    if brief:
        found = _with(found, _gpus_of_rows(further, places), brief)
    lost = {first_of(labels, UUID_LABELS) for labels, _ in rows} - found.node_of.keys() - {""}
    start_ms = window.start_ms
    problems = [
        DataProblem(DataProblemCode.NODE_UNKNOWN, reader.cluster, uuid, _NOWHERE, None, start_ms)
        for uuid in sorted(lost)
    ]
    return replace(found, problems=problems)


def _gpus_of_rows(rows: Sequence[_Row], places: _Places) -> ObservedGpus:
    named = [places.of(labels) for labels, _ in rows]
    seen: dict[tuple[str, int], set[str]] = defaultdict(set)
    last: dict[str, tuple[int, str]] = {}
    products: dict[str, Counter[str]] = defaultdict(Counter)
    profiles: dict[str, set[str]] = defaultdict(set)
    # A row without a node is of the node that other rows of its GPU name.
    for (labels, times), node in zip(rows, named, strict=True):
        uuid = first_of(labels, UUID_LABELS)
        if node and uuid:
            last[uuid] = max(last.get(uuid, (0, "")), (times[-1], node))
    for (labels, times), node in zip(rows, named, strict=True):
        uuid = first_of(labels, UUID_LABELS)
        where = node or last.get(uuid, (0, ""))[1]
        if not where or not uuid:
            continue
        products[where][first_of(labels, MODEL_LABELS)] += len(times)
        profiles[where].add(first_of(labels, PROFILE_LABELS))
        for at in times:
            seen[where, at].add(uuid)
    boards: dict[str, int] = {}
    for (node, _), uuids in seen.items():
        boards[node] = max(boards.get(node, 0), len(uuids))
    return ObservedGpus(
        boards,
        {node: found.most_common(1)[0][0] for node, found in products.items()},
        {
            node: each
            for node, found in profiles.items()
            if len(found) == 1 and (each := min(found)) not in _NO_PROFILE
        },
        {uuid: node for uuid, (_, node) in last.items()},
    )


def _with(found: ObservedGpus, further: ObservedGpus, nodes: Collection[str]) -> ObservedGpus:
    """``found``, with the facts of ``further`` for ``nodes``."""

    def of(each: Mapping[str, _Value]) -> dict[str, _Value]:
        return {node: value for node, value in each.items() if node in nodes}

    return ObservedGpus(
        {**found.boards_of, **of(further.boards_of)},
        {**found.product_of, **of(further.product_of)},
        {**found.profile_of, **of(further.profile_of)},
        {**{uuid: node for uuid, node in further.node_of.items() if node in nodes}, **found.node_of},
    )


def _looks(window: Window) -> tuple[int, int, int]:
    """The first and the last sampled instant, and the distance between two."""
    every = min(HOUR_MS, window.length_ms)
    return window.end_ms - (window.length_ms - 1) // every * every, window.end_ms, every


def _rows(reader: KubeStateReader, window: Window, *, between: bool = False) -> list[_Row]:
    """Labels of GPUs, and the instants at which they were seen, or seen since the instant before."""
    names = _showing(reader, window)
    if not names:
        return []
    first, last, every = _looks(window)
    # Names one by one where samples are read: their use is read by name too.
    asked = [reader.select(name) for name in names] if reader.is_sampled else [reader.select(names)]
    if between:
        asked = [over_time("last_over_time", reader.select(names), every)]
    batch = reader.batch()
    grids = [batch.add(partial(reader.grid, by("count", _PLACE, each), first, last, every)) for each in asked]
    batch.ask()
    seen: dict[LabelKey, BoolArray] = {}
    for grid in (each.result() for each in grids):
        for row in grid.any_rows.tolist():
            key = grid.table.keys[row]
            seen[key] = grid.present[row] | seen[key] if key in seen else grid.present[row]
    times = np.arange(first, last + 1, every)
    by_labels = sorted(([*zip(*key, strict=True)], key) for key in seen)
    return [(dict(labels), times[seen[key]].tolist()) for labels, key in by_labels]


def _showing(reader: KubeStateReader, window: Window) -> list[str]:
    """Names that every GPU has series of; asked once."""
    span = window.start_ms, window.end_ms
    return reader.once(("showing", *span), lambda: _shown_by(reader, window))


def _shown_by(reader: KubeStateReader, window: Window) -> list[str]:
    """As many fields, out of the server's index, as it takes for all GPUs."""
    fields = field_names(reader, window)
    by_field = [fields[field] for field in _SHOWN if fields.get(field)]

    def uuids(names: Sequence[str]) -> set[str]:
        span = window.start_ms, window.end_ms
        return {
            each for label in UUID_LABELS for each in reader.label_values(label, reader.select(names), *span)
        }

    names: list[str] = []
    missing = uuids([name for each in by_field for name in each]) if len(by_field) > 1 else set[str]()
    for each in by_field:
        names += each
        if len(by_field) > 1:
            missing -= uuids(each)
            if not missing:
                break
    return names


def _brief_nodes(reader: KubeStateReader, window: Window) -> set[str]:
    """Nodes with GPUs that existed at one sampled instant at the most: their exporter may have been seen at
    none."""
    units = reader.select(ksm.NODE_CAPACITY, reader.is_gpu)
    ever = by("max", _NODE, over_time("max_over_time", units, window.length_ms))
    result = reader.vector(above(ever, 0), window.end_ms)
    looks = reader.grid(by("max", _NODE, units), *_looks(window))
    lasting = np.flatnonzero(looks.present.sum(axis=1) > 1).tolist()
    names = {own_label({"metric": looks.table.rows[row]}, "node") for row in lasting}
    return {own_label(each, "node") for each in result} - names


class _Places:
    """Which node a row belongs to."""

    def __init__(
        self, reader: KubeStateReader, window: Window, holdings: ClusterHoldings, rows: Sequence[SeriesLabels]
    ) -> None:
        self._reader = reader
        self._window = window
        self._holdings = holdings
        self._nodes = {own_label(each, "node") for each in self._asked(by("count", _NODE, self._infos()))}
        unnamed = [labels for labels in rows if not self._named(labels)]
        self._of_pod = self._pods(pod for labels in unnamed for pod in _targets(labels))
        hosts = {_host(labels) for labels in unnamed if not self._exporters(labels)} - {""}
        self._of_address = self._addresses(hosts)

    def of(self, labels: SeriesLabels) -> str:
        """Empty when no label or pod gives it."""
        ways: tuple[Callable[[SeriesLabels], str], ...] = (
            self._named,
            self._exporters,
            lambda each: self._of_address.get(_host(each), ""),
            self._users,
        )
        return next((node for way in ways if (node := way(labels))), "")

    def _named(self, labels: SeriesLabels) -> str:
        return next((labels[name] for name in _NODE_LABELS if labels.get(name) in self._nodes), "")

    def _exporters(self, labels: SeriesLabels) -> str:
        """For a pod that holds no GPU: the exporter's node, by its target's labels."""
        return next((self._of_pod[pod] for pod in _targets(labels) if pod in self._of_pod), "")

    def _users(self, labels: SeriesLabels) -> str:
        held = self._holdings.named(*pod_of(labels), self._window)
        nodes = {hold.node for hold in held}
        return nodes.pop() if len(nodes) == 1 else ""

    def _infos(self) -> PromQL:
        return over_time("last_over_time", self._reader.select(ksm.NODE_INFO), self._window.length_ms)

    def _asked(self, expression: PromQL) -> list[ResultSeries]:
        return self._reader.vector(expression, self._window.end_ms)

    def _pods(self, wanted: Iterator[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        pods = {pod for pod in wanted if not self._holdings.named(*pod, self._window)}
        found = self._infos_where(("pod", "exported_pod"), {name for _, name in pods})
        nodes = {
            (own_label(each, "namespace"), own_label(each, "pod")): own_label(each, "node") for each in found
        }
        return {pod: nodes[pod] for pod in pods if nodes.get(pod)}

    def _addresses(self, hosts: Collection[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for label in ("host_ip", "pod_ip"):
            for each in self._infos_where((label,), hosts):
                if own_label(each, "node"):
                    found[each["metric"].get(label, "")] = own_label(each, "node")
        return found

    def _infos_where(self, labels: Sequence[str], values: Collection[str]) -> Iterator[ResultSeries]:
        listed = sorted(values)
        for at in range(0, len(listed), _VALUES_PER_MATCHER):
            for label in labels:
                matcher = one_of(label, listed[at : at + _VALUES_PER_MATCHER])
                selector = self._reader.select(ksm.POD_INFO, matcher)
                yield from self._asked(over_time("last_over_time", selector, self._window.length_ms))


def _targets(labels: SeriesLabels) -> list[tuple[str, str]]:
    """Pods that may be the exporter's: named by the scrape's target, or by the row's host name."""
    namespace = labels.get("namespace", "")
    names = (labels.get(name, "") for name in ("pod", "Hostname", "hostname"))
    return [(namespace, name) for name in names if name]


def _host(labels: SeriesLabels) -> str:
    """``10.0.0.7:9400`` -> ``10.0.0.7``; ``[fd00::7]:9400`` -> ``fd00::7``."""
    host = labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")
    return host.strip("[]")
