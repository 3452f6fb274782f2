"""Nodes of one window out of kube-state-metrics, and dcgm-exporter where the nodes' labels lack a fact.

As in gpucost's dialect, nodes without changes come from a few aggregated queries, the others are read scrape
by scrape; the results are put into the terms of gpucost's own contract, from which the rows are made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from gpucost.cluster.objects.node_labels import (
    PLACE_LABELS,
    GpuLabels,
    gpu_labels,
    label_keys,
    node_place,
)
from gpucost.cluster.objects.nodes import CLOSING_CONDITIONS
from gpucost.contract import kube_state as ksm
from gpucost.contract.metrics import (
    NODE_BOARDS,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_SCHEDULABLE,
)
from gpucost.domain.errors import DataProblem
from gpucost.domain.gpu import is_nvidia, parse_product
from gpucost.telemetry.evidence.evidence_rule import (
    NONE,
    ScrapeEvidence,
    as_expected,
    in_force,
    lives,
)
from gpucost.telemetry.evidence.frame_rows import to_millis, unit_count
from gpucost.telemetry.evidence.nodes import NodeInfoLabels, NodeNumbers, NodeSpan
from gpucost.telemetry.prometheus.cluster_reader import (
    own_label,
    points,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    differing,
    equals,
    one_of,
    over_time,
    tagged,
    union,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, needed_value, whole_count
from gpucost.telemetry.upstream.kube_reader import (
    TARGET_LABELS,
    KubeStateReader,
    ScrapeGroups,
    TargetKey,
    endings,
)

_NODE = with_renamed(("node",))
_AMOUNTS = {ksm.NODE_CAPACITY: NODE_GPU_CAPACITY.name, ksm.NODE_ALLOCATABLE: NODE_GPU_ALLOCATABLE.name}
_READY, _CORDONED, _CREATED, _CLOSED = "ready", "cordoned", "created", "closed"
_GPU = "nvidia.com/gpu"
_RENAMED = ".shared"
_SHARED = (_GPU, _GPU + _RENAMED)
_MIG = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class NodeGpuFacts:
    """dcgm-exporter's facts about nodes: physical GPUs, the product's name, and the MIG profile if all
    instances have the same one."""

    count: Mapping[str, int] = field(default_factory=dict)
    product: Mapping[str, str] = field(default_factory=dict)
    profile: Mapping[str, str] = field(default_factory=dict)

    def label(self, node: str, capacity: Mapping[str, float]) -> str:
        """The product's label as feature discovery would write it. Under MIG strategy ``single`` it names the
        instances, which are advertised as GPUs."""
        product, profile = self.product.get(node, ""), self.profile.get(node, "")
        is_single = product and profile and capacity.get(_GPU) and not _has_slices(capacity)
        return f"{product}-MIG-{profile.replace('+', '.')}" if is_single else product


@dataclass(frozen=True, slots=True)
class _SeenNode:
    """A node at one time: units by (metric, resource), flags, and its labels."""

    units: Mapping[tuple[str, str], float]
    is_schedulable: bool
    labels: tuple[tuple[str, str], ...]


def read_nodes(
    reader: KubeStateReader, groups: ScrapeGroups, boards: NodeGpuFacts
) -> tuple[list[NodeSpan], list[DataProblem]]:
    """Spans of all nodes that have or should have GPUs, not clipped, and problems."""
    evidence = groups.evidence
    batch = reader.batch()
    of_units, of_flags, of_labels = (
        batch.add(partial(_units, reader, evidence)),
        batch.add(partial(_flags, reader, evidence)),
        batch.add(partial(_labels, reader, evidence)),
    )
    of_samples = batch.add(partial(_samples, reader, groups))
    of_changes = batch.add(partial(_changed, reader, evidence))
    batch.ask()
    units, flags, labels = of_units.result(), of_flags.result(), of_labels.result()
    named = {node for node, sets in labels.items() if any(_counts_gpus(each) for each in sets)}
    nodes = (units.keys() | boards.count.keys() | named) & flags[_CREATED].keys()
    counts, targets = of_samples.result()
    changed = of_changes.result() | {node for node, sets in labels.items() if len(sets) > 1}
    rows: dict[frozenset[TargetKey], list[str]] = defaultdict(list)
    for node in sorted(nodes):
        rows[frozenset(targets.get(node, ()))].append(node)
    spans: list[NodeSpan] = []
    problems: list[DataProblem] = []
    for shown_by, own in rows.items():
        group = groups.of(shown_by)
        start_ms = to_millis([flags[_CREATED].get(node) for node in own])
        samples = np.array([counts.get(node, 0) for node in own], dtype=np.int64)
        none = np.zeros(len(own), dtype=np.int64)
        stands = as_expected(start_ms, none + NONE, samples, none, group.evidence)
        gone = endings(start_ms, samples, group.evidence, whole=group.is_whole)
        odd: set[str] = set()
        for at, node in enumerate(own):
            if node in changed or not (stands[at] or gone.told[at]):
                odd.add(node)
                continue
            until = evidence.window.end_ms if stands[at] else int(gone.end_ms[at])
            is_closed = flags[_CORDONED].get(node, 0) != 0 or flags[_CLOSED].get(node, 0) != 0
            is_schedulable = flags[_READY].get(node, 1) == 1 and not is_closed
            seen = _SeenNode(units.get(node, {}), is_schedulable, _only(labels.get(node, set())))
            spans.append(_span(reader, boards, node, int(start_ms[at]), until, seen))
        odd_spans, found = _odd_spans(reader, group.evidence, boards, odd)
        spans += odd_spans
        problems += found
    return spans, problems


def lack_labels(reader: KubeStateReader, evidence: ScrapeEvidence) -> bool:
    """Whether any node offers NVIDIA's GPUs, or parts of them, and no label tells their number or model."""
    batch = reader.batch()
    of_units = batch.add(partial(_units, reader, evidence))
    of_labels = batch.add(partial(_labels, reader, evidence))
    batch.ask()
    labels = of_labels.result()
    offers = {
        node
        for node, units in of_units.result().items()
        if any(value and is_nvidia(resource) for (_, resource), value in units.items())
    }
    return any(not labels.get(node) or not all(map(_tells, labels[node])) for node in offers)


def _tells(labels: Sequence[tuple[str, str]]) -> bool:
    said = gpu_labels(dict(labels), _nobody)
    return bool(said.product) and said.boards is not None


def _only(sets: Set[tuple[tuple[str, str], ...]]) -> tuple[tuple[str, str], ...]:
    return min(sets, default=())


def _units(reader: KubeStateReader, evidence: ScrapeEvidence) -> Mapping[str, dict[tuple[str, str], float]]:
    """By node: units by (metric of the contract, resource). Of one evidence they are asked once."""
    asked = "units", evidence.start_ms, evidence.end_ms
    return reader.once(asked, lambda: _ask_for_units(reader, evidence))


def _ask_for_units(
    reader: KubeStateReader, evidence: ScrapeEvidence
) -> Mapping[str, dict[tuple[str, str], float]]:
    # One by one, as ``_changed`` looks at them: of samples, each is read once.
    parts = (
        tagged(
            by(
                "max",
                (*_NODE, "resource"),
                over_time("last_over_time", reader.select(name, reader.is_gpu), evidence.range_ms),
            ),
            "amount",
            name,
        )
        for name in _AMOUNTS
    )
    asked = *_NODE, "resource", "amount"
    columns, values = reader.columns(union(*parts), evidence.end_ms, asked)
    found: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for node, told, amount, value in zip(_own_nodes(columns), *columns[len(_NODE) :], values, strict=True):
        resource = reader.resource(told)
        if resource is not None:
            found[node][_AMOUNTS[needed_value("label amount", amount, _AMOUNTS)], resource] = value
    return found


def _flag_queries(reader: KubeStateReader) -> Mapping[str, PromQL]:
    ready = equals("condition", "Ready"), equals("status", "true")
    return {
        _READY: reader.select(ksm.NODE_CONDITION, *ready),
        _CORDONED: reader.select(ksm.NODE_UNSCHEDULABLE),
        _CREATED: reader.select(ksm.NODE_CREATED),
        _CLOSED: _closed(reader),
    }


def _closed(reader: KubeStateReader) -> PromQL:
    """Conditions under which a node takes no pods: a node has them only once somebody has set them."""
    return reader.select(
        ksm.NODE_CONDITION, one_of("condition", CLOSING_CONDITIONS), equals("status", "true")
    )


def _flags(reader: KubeStateReader, evidence: ScrapeEvidence) -> Mapping[str, dict[str, float]]:
    """By flag and node, the last value."""
    parts = [
        tagged(by("max", _NODE, over_time("last_over_time", selector, evidence.range_ms)), "flag", flag)
        for flag, selector in _flag_queries(reader).items()
    ]
    columns, values = reader.columns(union(*parts), evidence.end_ms, (*_NODE, "flag"))
    found: dict[str, dict[str, float]] = {flag: {} for flag in (_READY, _CORDONED, _CREATED, _CLOSED)}
    for node, flag, value in zip(_own_nodes(columns), columns[len(_NODE)], values, strict=True):
        found[needed_value("label flag", flag, found)][node] = value
    return found


def _label_keys(reader: KubeStateReader) -> Mapping[str, str]:
    """Name of a series' label -> the node label it was made from."""
    keys = (*label_keys(), *PLACE_LABELS, *reader.settings.node_labels)
    return {ksm.label_name(key): key for key in keys}


def _labels(
    reader: KubeStateReader, evidence: ScrapeEvidence
) -> Mapping[str, set[tuple[tuple[str, str], ...]]]:
    """By node: each set of labels that it had. Of one evidence they are asked once."""
    asked = "labels", evidence.start_ms, evidence.end_ms
    return reader.once(asked, lambda: _ask_for_labels(reader, evidence))


def _ask_for_labels(
    reader: KubeStateReader, evidence: ScrapeEvidence
) -> Mapping[str, set[tuple[tuple[str, str], ...]]]:
    latest = over_time("last_over_time", reader.select(ksm.NODE_LABELS), evidence.range_ms)
    keys = _label_keys(reader)
    asked = *_NODE, *keys
    columns, _ = reader.columns(by("group", asked, latest), evidence.end_ms, asked)
    # Nodes of a pool have the same labels.
    labels_of = cache(partial(_labels_of, tuple(keys.values())))
    found: dict[str, set[tuple[tuple[str, str], ...]]] = defaultdict(set)
    for node, *values in zip(_own_nodes(columns), *columns[len(_NODE) :], strict=True):
        found[node].add(labels_of((*values,)))
    return found


def _labels_of(keys: Sequence[str], values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in zip(keys, values, strict=True) if value))


def _own_nodes(columns: Sequence[Sequence[str]]) -> list[str]:
    """The name of the node by row, of columns that begin with _NODE's, as its exporter exported it."""
    return [own or plain for plain, own in zip(*columns[: len(_NODE)], strict=True)]


def _counts_gpus(labels: Sequence[tuple[str, str]]) -> bool:
    return bool(gpu_labels(dict(labels), _nobody).expected)


def _nobody(label: str, found: object, allowed: str) -> None:
    """Invalid labels count as missing here; they are reported on the collector's page."""


def _samples(
    reader: KubeStateReader, groups: ScrapeGroups
) -> tuple[Mapping[str, int], Mapping[str, set[TargetKey]]]:
    """By node: how many samples, and with shards, of which targets."""
    further = TARGET_LABELS if groups.is_sharded else ()
    counted = over_time("count_over_time", reader.select(ksm.NODE_CREATED), groups.evidence.range_ms)
    asked = *_NODE, *further
    columns, values = reader.columns(by("sum", asked, counted), groups.evidence.end_ms, asked)
    samples: dict[str, int] = defaultdict(int)
    targets: dict[str, set[TargetKey]] = defaultdict(set)
    for node, value, *target in zip(_own_nodes(columns), values, *columns[len(_NODE) :], strict=True):
        samples[node] += whole_count(value)
        if target:
            targets[node].add((*target,))
    return samples, targets


def _changed(reader: KubeStateReader, evidence: ScrapeEvidence) -> set[str]:
    """Nodes with any number that is not the same in all samples of the evidence, or that has fewer samples
    than others."""
    selectors = [
        reader.select(ksm.NODE_CAPACITY, reader.is_gpu),
        reader.select(ksm.NODE_ALLOCATABLE, reader.is_gpu),
        *_flag_queries(reader).values(),
    ]
    parts = [
        differing(
            *(
                by(extreme, (*_NODE, "resource"), over_time(f"{extreme}_over_time", each, evidence.range_ms))
                for extreme in ("max", "min")
            )
        )
        for each in selectors
    ]
    amounts = reader.select(ksm.NODE_ALLOCATABLE, reader.is_gpu)
    counted = by("sum", (*_NODE, "resource"), over_time("count_over_time", amounts, evidence.range_ms))
    created = over_time("count_over_time", reader.select(ksm.NODE_CREATED), evidence.range_ms)
    # Of two resources, one may come or go while the other stays.
    parts += [differing(by(each, _NODE, counted), by("sum", _NODE, created)) for each in ("max", "min")]
    closed = over_time("count_over_time", _closed(reader), evidence.range_ms)
    each_closed = by("sum", (*_NODE, "condition"), closed)
    parts.append(differing(by("min", _NODE, each_closed), by("sum", _NODE, created)))
    columns, _ = reader.columns(by("count", _NODE, union(*parts)), evidence.end_ms, _NODE)
    return {*_own_nodes(columns)}


def _span(
    reader: KubeStateReader, boards: NodeGpuFacts, node: str, start_ms: int, end_ms: int, seen: _SeenNode
) -> NodeSpan:
    return NodeSpan(node, start_ms, end_ms, *_facts(reader, boards, node, seen))


def _facts(
    reader: KubeStateReader, boards: NodeGpuFacts, node: str, seen: _SeenNode
) -> tuple[NodeInfoLabels, Mapping[tuple[str, str], float]]:
    """In the terms of the contract: labels first, and dcgm-exporter where they lack a fact."""
    labels = dict(seen.labels)
    capacity = {key[1]: units for key, units in seen.units.items() if key[0] == NODE_GPU_CAPACITY.name}
    said, place = gpu_labels(labels, _nobody, capacity), node_place(labels, _nobody)
    if not said.product and (observed := boards.label(node, capacity)):
        said = gpu_labels({**labels, f"{_GPU}.product": observed}, _nobody, capacity)
    product = said.product
    info = (product, place.instance_type, place.capacity_type, place.region, place.zone, place.pool)
    further = tuple(labels.get(name, "") for name in reader.settings.node_labels)
    state: NodeNumbers = dict(seen.units)
    count = said.boards if said.boards is not None else boards.count.get(node)
    if count:
        state[NODE_BOARDS.name, ""] = count
    expected, replicas = _shares(said, capacity, count or 0, tells_replicas=f"{_GPU}.replicas" in labels)
    state |= {(NODE_GPU_EXPECTED.name, resource): units for resource, units in expected.items()}
    state |= {(NODE_GPU_REPLICAS.name, resource): times for resource, times in replicas.items()}
    state[NODE_SCHEDULABLE.name, ""] = int(seen.is_schedulable)
    return (*info, *further), state


def _shares(
    said: GpuLabels, capacity: Mapping[str, float], boards: int, *, tells_replicas: bool
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Units that should exist and how often each is shared, by resource: from labels, any of which may be
    missing, for the resources that the node has, and without labels from its GPUs."""
    expected = {_as_advertised(resource, capacity): units for resource, units in said.expected.items()}
    replicas = {_as_advertised(resource, capacity): times for resource, times in said.replicas.items()}
    if _has_slices(capacity):
        # The label counts all GPUs, sliced ones too; only the capacity shows how many are whole.
        return {name: units for name, units in expected.items() if name not in _SHARED}, replicas
    is_sliced = bool(parse_product(said.product).profile)
    is_whole = boards > 0 and capacity.keys() == {_GPU} and not is_sliced
    for resource in sorted(capacity.keys() & set(_SHARED)):
        units = unit_count(capacity[resource])
        if units is None:
            continue  # reported as a problem; the count is unknown
        counted = expected.get(resource, 0 if is_sliced else boards)
        times = 1 if resource in replicas or tells_replicas or not counted else units // counted
        if times > 1 and units == times * counted:
            replicas[resource], expected[resource] = times, units
        elif is_whole and not expected and units <= boards:
            expected[resource] = boards
    return expected, replicas


def _has_slices(capacity: Mapping[str, float]) -> bool:
    return any(units for resource, units in capacity.items() if resource.startswith(_MIG))


def _as_advertised(resource: str, capacity: Mapping[str, float]) -> str:
    """Only the product's label shows whether shared units have a name of their own: the node has them under
    one of the two."""
    other = resource.removesuffix(_RENAMED) if resource.endswith(_RENAMED) else resource + _RENAMED
    return other if capacity.get(other) and not capacity.get(resource) else resource


def _odd_spans(
    reader: KubeStateReader, evidence: ScrapeEvidence, boards: NodeGpuFacts, odd: set[str]
) -> tuple[list[NodeSpan], list[DataProblem]]:
    names = (*_AMOUNTS, ksm.NODE_CONDITION, ksm.NODE_UNSCHEDULABLE, ksm.NODE_CREATED, ksm.NODE_LABELS)
    raw = reader.raw_where(names, _NODE, odd, evidence.start_ms, evidence.end_ms)
    by_node: dict[str, list[ResultSeries]] = defaultdict(list)
    for series in raw:
        by_node[own_label(series, "node")].append(series)
    spans: list[NodeSpan] = []
    problems: list[DataProblem] = []
    for node in sorted(odd & by_node.keys()):
        created, seen = _by_scrape(reader, by_node[node], evidence)
        times = sorted(created)
        starts = to_millis([created[at] for at in times]).tolist()
        found = lives(times, starts, [NONE] * len(times), evidence)
        following = [*(life.start_ms for life in found[1:]), evidence.end_ms]
        for life, until in zip(found, following, strict=True):
            if life.doubt is not None:
                problems.append(DataProblem(life.doubt, reader.cluster, node, f"node: {life.why}"))
            # As where samples are counted: half-way to the first scrape that did not show it.
            after = evidence.beat_after(life.end_ms) if life.end_ms in created else None
            if after is not None and life.doubt is None and after - life.end_ms <= evidence.max_gap_ms:
                life = replace(life, end_ms=min(until, life.end_ms + (after - life.end_ms) // 2))
            for start, end, value in in_force(times, [seen[at] for at in times], life):
                spans.append(_span(reader, boards, node, start, end, value))
    return spans, problems


def _by_scrape(
    reader: KubeStateReader, group: Iterable[ResultSeries], evidence: ScrapeEvidence
) -> tuple[dict[int, float], dict[int, _SeenNode]]:
    """When the node was created, and its facts, at each scrape that showed it; labels hold until others are
    seen."""
    keys = _label_keys(reader)
    created: dict[int, float] = {}
    units: dict[int, dict[tuple[str, str], float]] = defaultdict(dict)
    labels: dict[int, tuple[tuple[str, str], ...]] = {}
    blocked: set[int] = set()
    for series in group:
        found = series["metric"]
        name = found.get("__name__", "")
        times, values = points(series)
        resource = reader.resource(found.get("resource", "")) if name in _AMOUNTS else None
        is_true = name == ksm.NODE_CONDITION and found.get("status") == "true"
        if name == ksm.NODE_CREATED:
            created |= {
                at: value for at, value in zip(times, values, strict=True) if at not in evidence.stale
            }
        elif resource is not None:
            for at, value in zip(times, values, strict=True):
                units[at][_AMOUNTS[name], resource] = value
        elif name == ksm.NODE_LABELS:
            said = _labels_of((*keys.values(),), [found.get(label, "") for label in keys])
            labels |= dict.fromkeys(times, said)
        elif name == ksm.NODE_UNSCHEDULABLE or (is_true and found.get("condition") in CLOSING_CONDITIONS):
            blocked |= {at for at, value in zip(times, values, strict=True) if value != 0}
        elif is_true and found.get("condition") == "Ready":
            blocked |= {at for at, value in zip(times, values, strict=True) if value != 1}
    current = labels[min(labels)] if labels else ()
    seen: dict[int, _SeenNode] = {}
    for at in sorted(created):
        current = labels.get(at, current)
        seen[at] = _SeenNode(units.get(at, {}), at not in blocked, current)
    return created, seen
