"""Nodes of one window: their properties and their capacity, constant between changes.

As with pods, nodes whose series are complete and unchanged come from a few aggregated queries for all of
them; the others are read scrape by scrape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpucost.contract.metrics import (
    NODE_END,
    NODE_INFO,
    NODE_INFO_LABELS,
    NODE_METRICS,
    NODE_START,
    node_label_name,
)
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.time import Window
from gpucost.telemetry.answers import Series, needed
from gpucost.telemetry.evidence import NONE, Evidence, as_expected, in_force, lives
from gpucost.telemetry.node_rows import Info, NodeSpan, Row, State, capacity_rows, nonsense, properties
from gpucost.telemetry.promql import PromQL, by, differing, differing_within, over_time, tagged, union
from gpucost.telemetry.reader import (
    ClusterReader,
    column,
    numbers,
    own_column,
    own_label,
    points,
    with_renamed,
)
from gpucost.telemetry.samples import instants, timeline, to_millis

_NODE = with_renamed(("node",))
_INFO = NODE_INFO.name
_NUMERIC = tuple(spec.name for spec in NODE_METRICS if spec is not NODE_INFO)
_CONSTANT = tuple(name for name in _NUMERIC if name != NODE_END.name)
_TAG = "metric"


def read_nodes(reader: ClusterReader, evidence: Evidence) -> tuple[list[Row], list[Row], list[Problem]]:
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
) -> tuple[list[Row], list[Row], list[Problem]]:
    """Rows of frames.NODES and of frames.CAPACITY, clipped to the window, and which numbers made no sense."""
    nodes: list[Row] = []
    capacity: list[Row] = []
    problems: dict[Problem, None] = {}
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
                problems[Problem(ProblemCode.INTERVAL_REFUSED, reader.cluster, span.node, why)] = None
    return nodes, capacity, [*problems]


def _infos(reader: ClusterReader, evidence: Evidence) -> dict[str, set[Info]]:
    """The label sets of gpucost_node_info that each node had."""
    latest = over_time("last_over_time", reader.select(_INFO), evidence.range_ms)
    result = reader.vector(by("group", (*_NODE, *_info_labels(reader)), latest), evidence.end_ms)
    infos: dict[str, set[Info]] = defaultdict(set)
    for node, info in zip(own_column(result, "node"), _info_rows(reader, result), strict=True):
        infos[node].add(info)
    return infos


def _info_labels(reader: ClusterReader) -> tuple[str, ...]:
    return (*NODE_INFO_LABELS, *(node_label_name(label) for label in reader.settings.node_labels))


def _info_rows(reader: ClusterReader, result: Sequence[Series]) -> Iterable[Info]:
    return zip(*(column(result, label) for label in _info_labels(reader)), strict=True)


def _states(result: Sequence[Series], tag: str = "__name__") -> tuple[dict[str, State], set[str]]:
    """Values by node; and the nodes that were found twice, under their own label and a renamed one."""
    states: dict[str, State] = defaultdict(dict)
    twice: set[str] = set()
    keys = zip(own_column(result, "node"), column(result, tag), column(result, "resource"), strict=True)
    for (node, name, resource), value in zip(keys, numbers(result), strict=True):
        state = states[node]
        if (name, resource) in state:
            twice.add(node)
        state[name, resource] = state.get((name, resource), 0) + value
    return states, twice


def _changed(reader: ClusterReader, evidence: Evidence) -> set[str]:
    """Nodes of which any number is not the same in all samples of the evidence."""
    parts = []
    for name in _CONSTANT:
        highest, lowest = (
            by(extreme, (*_NODE, "resource"), _over(reader, evidence, f"{extreme}_over_time", name))
            for extreme in ("max", "min")
        )
        parts.append(differing(highest, lowest))
    return set(own_column(reader.vector(by("count", _NODE, union(*parts)), evidence.end_ms), "node"))


def _incomplete(
    reader: ClusterReader, evidence: Evidence, infos: Mapping[str, set[Info]], states: Mapping[str, State]
) -> set[str]:
    """Nodes whose series are not all there from their start to their end, or whose labels changed."""
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


def _patchy(reader: ClusterReader, evidence: Evidence, info: PromQL) -> set[str]:
    """Nodes of which some series has not as many samples as ``info``, the number of the node's scrapes."""
    parts = [
        differing_within(
            by("sum", (*_NODE, "resource"), _over(reader, evidence, "count_over_time", name)), info, _NODE
        )
        for name in _CONSTANT
    ]
    return set(own_column(reader.vector(by("count", _NODE, union(*parts)), evidence.end_ms), "node"))


def _over(reader: ClusterReader, evidence: Evidence, function: str, name: str) -> PromQL:
    return over_time(function, reader.select(name), evidence.range_ms)


def _odd_spans(
    reader: ClusterReader, evidence: Evidence, odd: set[str]
) -> tuple[list[NodeSpan], list[Problem]]:
    raw = reader.raw_where((_INFO, *_NUMERIC), _NODE, odd, evidence.start_ms, evidence.end_ms)
    by_node: dict[str, list[Series]] = defaultdict(list)
    for series in raw:
        by_node[own_label(series, "node")].append(series)
    spans: list[NodeSpan] = []
    problems: list[Problem] = []
    for node in sorted(odd & by_node.keys()):
        group = by_node[node]
        infos, states = _by_scrape(reader, group, evidence)
        seen = sorted(states)
        starts, ends = (timeline(group, name, evidence.stale) for name in (NODE_START.name, NODE_END.name))
        values = [(infos[at], states[at]) for at in seen]
        for life in lives(seen, instants(starts, seen), instants(ends, seen), evidence):
            if life.doubt is not None:
                problems.append(Problem(life.doubt, reader.cluster, node, f"node: {life.why}"))
            for start, end, (info, state) in in_force(seen, values, life):
                spans.append(NodeSpan(node, start, end, info, state))
    return spans, problems


def _by_scrape(
    reader: ClusterReader, group: Sequence[Series], evidence: Evidence
) -> tuple[dict[int, Info], dict[int, State]]:
    """Labels and numbers of one node at each instant it was seen; labels last until others are seen."""
    states: dict[int, State] = defaultdict(dict)
    seen_infos: dict[int, Info] = {}
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
