"""Nodes of one window: their properties and their capacity, constant between changes.

As with pods, nodes whose series are complete and unchanged come from a few aggregated queries for all of
them; the others are read scrape by scrape. The rows are those of frames.NODES and frames.CAPACITY.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpucost.contract.metrics import (
    NODE_BOARDS,
    NODE_END,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_INFO,
    NODE_INFO_LABELS,
    NODE_METRICS,
    NODE_SCHEDULABLE,
    NODE_START,
    node_label_name,
)
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import Window
from gpucost.telemetry.evidence.evidence_rule import (
    NONE,
    ScrapeEvidence,
    as_expected,
    in_force,
    lives,
)
from gpucost.telemetry.evidence.frame_rows import (
    instants,
    timeline,
    to_millis,
    unit_count,
)
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    column,
    numbers,
    own_column,
    own_label,
    points,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    differing,
    differing_within,
    over_time,
    tagged,
    union,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, needed

_UNITS = (NODE_GPU_ALLOCATABLE.name, NODE_GPU_CAPACITY.name, NODE_GPU_EXPECTED.name)

_COUNTED = {*_UNITS, NODE_BOARDS.name, NODE_GPU_REPLICAS.name, NODE_SCHEDULABLE.name}

NodeFrameRow = tuple[object, ...]
# Values of the labels in contract.metrics.NODE_INFO_LABELS, then of the node labels in the settings.
NodeInfoLabels = tuple[str, ...]
# (metric, resource or empty) -> value: a node at one instant, or its numbers of samples.
NodeNumbers = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """A node from ``start_ms`` to ``end_ms``, with the same labels and numbers throughout."""

    node: str
    start_ms: int
    end_ms: int
    info: NodeInfoLabels
    state: Mapping[tuple[str, str], float]


def properties(span: NodeSpan, node_labels: Sequence[str]) -> NodeFrameRow:
    """From ``product`` to ``labels`` of frames.NODES; ``node_labels`` are those that ``info`` ends with."""
    fixed, extra = span.info[: len(NODE_INFO_LABELS)], span.info[len(NODE_INFO_LABELS) :]
    values = dict(zip(NODE_INFO_LABELS.values(), fixed, strict=True))
    labels = {name: value for name, value in zip(node_labels, extra, strict=True) if value}
    return (
        values["product"],
        _number(span.state, NODE_BOARDS.name, "", NONE),
        *(values[name] for name in ("instance_type", "capacity_type", "region", "zone", "pool")),
        json.dumps(labels, sort_keys=True),
    )


def capacity_rows(span: NodeSpan) -> Iterable[tuple[str, NodeFrameRow]]:
    """Resource, and from ``expected`` to ``schedulable`` of frames.CAPACITY.

    A resource that is not advertised has 0 allocatable units: that is what was observed. A resource whose
    number is not a valid number of units is unknown.
    """
    state = span.state
    wrong = {resource for _, resource, _ in nonsense(span)}
    for resource in sorted({resource for name, resource in state if name in _UNITS} - wrong):
        yield (
            resource,
            (
                _number(state, NODE_GPU_EXPECTED.name, resource, NONE),
                _number(state, NODE_GPU_CAPACITY.name, resource, NONE),
                _number(state, NODE_GPU_ALLOCATABLE.name, resource, 0),
                _number(state, NODE_GPU_REPLICAS.name, resource, 1),
                min(_number(state, NODE_SCHEDULABLE.name, "", 1), 1),
            ),
        )


def nonsense(span: NodeSpan) -> list[tuple[str, str, float]]:
    """Metric, resource and value of each number that is not a valid number of units."""
    found = [(*key, value) for key, value in span.state.items() if key[0] in _COUNTED]
    return sorted(each for each in found if unit_count(each[2]) is None)


def _number(state: Mapping[tuple[str, str], float], name: str, resource: str, missing: int) -> int:
    value = unit_count(state.get((name, resource), float(missing)))
    return missing if value is None else value


_NODE = with_renamed(("node",))
_INFO = NODE_INFO.name
_NUMERIC = tuple(spec.name for spec in NODE_METRICS if spec is not NODE_INFO)
_CONSTANT = tuple(name for name in _NUMERIC if name != NODE_END.name)
_TAG = "metric"


def read_nodes(
    reader: ClusterReader, evidence: ScrapeEvidence
) -> tuple[list[NodeFrameRow], list[NodeFrameRow], list[DataProblem]]:
    """Rows of frames.NODES and of frames.CAPACITY, clipped to the window, and problems."""
    infos = _infos(reader, evidence)
    latest = over_time("last_over_time", reader.select(_NUMERIC), evidence.range_ms)
    states, ambiguous = _states(
        reader.vector(by("max", ("__name__", *_NODE, "resource"), latest), evidence.end_ms)
    )
    garbled = {node for node, state in states.items() if nonsense(NodeSpan(node, 0, 0, (), state))}
    odd = garbled | ambiguous | _changed(reader, evidence) | _incomplete(reader, evidence, infos, states)
    spans, problems = _odd_spans(reader, evidence, odd)
    for node in sorted(states.keys() - odd):
        state = states[node]
        start, end = to_millis([state.get((NODE_START.name, "")), state.get((NODE_END.name, ""))]).tolist()
        until = evidence.window.end_ms if end == NONE else end
        spans.append(NodeSpan(node, start, until, min(infos[node]), state))
    nodes, capacity, found = rows_of(reader, spans, evidence.window)
    return nodes, capacity, [*problems, *found]


def rows_of(
    reader: ClusterReader, spans: Iterable[NodeSpan], window: Window
) -> tuple[list[NodeFrameRow], list[NodeFrameRow], list[DataProblem]]:
    """Rows of frames.NODES and of frames.CAPACITY, clipped to the window, and the numbers that were not
    valid."""
    nodes: list[NodeFrameRow] = []
    capacity: list[NodeFrameRow] = []
    problems: dict[DataProblem, None] = {}
    for span in spans:
        start, end = max(span.start_ms, window.start_ms), min(span.end_ms, window.end_ms)
        if start < end:
            facts = properties(span, reader.settings.node_labels)
            nodes.append((reader.cluster, span.node, start, end, *facts))
            capacity += [
                (reader.cluster, span.node, resource, start, end, *counts)
                for resource, counts in capacity_rows(span)
            ]
            for name, resource, value in nonsense(span):
                why = f"node: {value!r} is not allowed for {name} {resource}".rstrip()
                why += "; allowed: a whole number from 0 to 1000000"
                problems[DataProblem(DataProblemCode.INTERVAL_REFUSED, reader.cluster, span.node, why)] = None
    return nodes, capacity, [*problems]


def _infos(reader: ClusterReader, evidence: ScrapeEvidence) -> dict[str, set[NodeInfoLabels]]:
    """The label sets of gpucost_node_info that each node had."""
    latest = over_time("last_over_time", reader.select(_INFO), evidence.range_ms)
    result = reader.vector(by("group", (*_NODE, *_info_labels(reader)), latest), evidence.end_ms)
    infos: dict[str, set[NodeInfoLabels]] = defaultdict(set)
    for node, info in zip(own_column(result, "node"), _info_rows(reader, result), strict=True):
        infos[node].add(info)
    return infos


def _info_labels(reader: ClusterReader) -> tuple[str, ...]:
    return (*NODE_INFO_LABELS, *(node_label_name(label) for label in reader.settings.node_labels))


def _info_rows(reader: ClusterReader, result: Sequence[ResultSeries]) -> Iterable[NodeInfoLabels]:
    return zip(*(column(result, label) for label in _info_labels(reader)), strict=True)


def _states(result: Sequence[ResultSeries], tag: str = "__name__") -> tuple[dict[str, NodeNumbers], set[str]]:
    """Values by node; and the nodes that were found twice, once under a label that the scrape renamed."""
    states: dict[str, NodeNumbers] = defaultdict(dict)
    twice: set[str] = set()
    keys = zip(own_column(result, "node"), column(result, tag), column(result, "resource"), strict=True)
    for (node, name, resource), value in zip(keys, numbers(result), strict=True):
        state = states[node]
        if (name, resource) in state:
            twice.add(node)
        state[name, resource] = state.get((name, resource), 0) + value
    return states, twice


def _changed(reader: ClusterReader, evidence: ScrapeEvidence) -> set[str]:
    """Nodes with any number that is not the same in all samples of the evidence."""
    parts = []
    for name in _CONSTANT:
        highest, lowest = (
            by(extreme, (*_NODE, "resource"), _over(reader, evidence, f"{extreme}_over_time", name))
            for extreme in ("max", "min")
        )
        parts.append(differing(highest, lowest))
    return set(own_column(reader.vector(by("count", _NODE, union(*parts)), evidence.end_ms), "node"))


def _incomplete(
    reader: ClusterReader,
    evidence: ScrapeEvidence,
    infos: Mapping[str, set[NodeInfoLabels]],
    states: Mapping[str, NodeNumbers],
) -> set[str]:
    """Nodes whose series do not cover the time from their start to their end, or whose labels changed."""
    info = by("sum", _NODE, _over(reader, evidence, "count_over_time", _INFO))
    ended = by("sum", _NODE, _over(reader, evidence, "count_over_time", NODE_END.name))
    result = reader.vector(
        union(tagged(info, _TAG, _INFO), tagged(ended, _TAG, NODE_END.name)), evidence.end_ms
    )
    counts, _ = _states(result, _TAG)
    nodes = sorted(counts)
    samples = np.array([counts[node].get((_INFO, ""), 0) for node in nodes])
    ended_samples = np.array([counts[node].get((NODE_END.name, ""), 0) for node in nodes])
    start_ms, end_ms = (
        to_millis([states.get(node, {}).get((name, "")) for node in nodes])
        for name in (NODE_START.name, NODE_END.name)
    )
    complete = as_expected(start_ms, end_ms, samples, ended_samples, evidence)
    whole = {
        node
        for node, is_complete in zip(nodes, complete.tolist(), strict=True)
        if is_complete and len(infos.get(node, ())) == 1
    }
    return (counts.keys() | states.keys()) - whole | _patchy(reader, evidence, info)


def _patchy(reader: ClusterReader, evidence: ScrapeEvidence, info: PromQL) -> set[str]:
    """Nodes with a series that has fewer or more samples than ``info``, the number of the node's scrapes."""
    parts = [
        differing_within(
            by("sum", (*_NODE, "resource"), _over(reader, evidence, "count_over_time", name)), info, _NODE
        )
        for name in _CONSTANT
    ]
    return set(own_column(reader.vector(by("count", _NODE, union(*parts)), evidence.end_ms), "node"))


def _over(reader: ClusterReader, evidence: ScrapeEvidence, function: str, name: str) -> PromQL:
    return over_time(function, reader.select(name), evidence.range_ms)


def _odd_spans(
    reader: ClusterReader, evidence: ScrapeEvidence, odd: set[str]
) -> tuple[list[NodeSpan], list[DataProblem]]:
    raw = reader.raw_where((_INFO, *_NUMERIC), _NODE, odd, evidence.start_ms, evidence.end_ms)
    by_node: dict[str, list[ResultSeries]] = defaultdict(list)
    for series in raw:
        by_node[own_label(series, "node")].append(series)
    spans: list[NodeSpan] = []
    problems: list[DataProblem] = []
    for node in sorted(odd & by_node.keys()):
        group = by_node[node]
        infos, states = _by_scrape(reader, group, evidence)
        seen = sorted(states)
        starts, ends = (timeline(group, name, evidence.stale) for name in (NODE_START.name, NODE_END.name))
        values = [(infos[at], states[at]) for at in seen]
        for life in lives(seen, instants(starts, seen), instants(ends, seen), evidence):
            if life.doubt is not None:
                problems.append(DataProblem(life.doubt, reader.cluster, node, f"node: {life.why}"))
            for start, end, (info, state) in in_force(seen, values, life):
                spans.append(NodeSpan(node, start, end, info, state))
    return spans, problems


def _by_scrape(
    reader: ClusterReader, group: Sequence[ResultSeries], evidence: ScrapeEvidence
) -> tuple[dict[int, NodeInfoLabels], dict[int, NodeNumbers]]:
    """Labels and numbers of one node at each instant it was seen; labels hold until others are seen."""
    states: dict[int, NodeNumbers] = defaultdict(dict)
    seen_infos: dict[int, NodeInfoLabels] = {}
    for series, info in zip(group, _info_rows(reader, group), strict=True):
        name, resource = needed(series, "__name__"), series["metric"].get("resource", "")
        for at, value in zip(*points(series), strict=True):
            if at in evidence.stale:
                continue
            state = states[at]
            if name == _INFO:
                seen_infos[at] = min(seen_infos.get(at, info), info)
            elif name != NODE_END.name:
                state[name, resource] = max(state.get((name, resource), value), value)
    nothing = ("",) * len(_info_labels(reader))
    current = seen_infos[min(seen_infos)] if seen_infos else nothing
    infos = {}
    for at in sorted(states):
        current = infos[at] = seen_infos.get(at, current)
    return infos, states
