"""What a node was, as rows of frames.NODES and frames.CAPACITY."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.contract.metrics import (
    NODE_BOARDS,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_INFO_LABELS,
    NODE_SCHEDULABLE,
)
from gpucost.telemetry.evidence import NONE
from gpucost.telemetry.samples import unit_count

_UNITS = (NODE_GPU_ALLOCATABLE.name, NODE_GPU_CAPACITY.name, NODE_GPU_EXPECTED.name)

_COUNTED = {*_UNITS, NODE_BOARDS.name, NODE_GPU_REPLICAS.name, NODE_SCHEDULABLE.name}

Row = tuple[object, ...]
# Values of the labels in contract.metrics.NODE_INFO_LABELS, then of the node labels in the settings.
Info = tuple[str, ...]
# (metric, resource or empty) -> value: a node at one instant, or its numbers of samples.
State = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """A node from ``start_ms`` to ``end_ms``, with the same labels and numbers throughout."""

    node: str
    start_ms: int
    end_ms: int
    info: Info
    state: Mapping[tuple[str, str], float]


def properties(span: NodeSpan, node_labels: Sequence[str]) -> Row:
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


def capacity_rows(span: NodeSpan) -> Iterable[tuple[str, Row]]:
    """Resource, and from ``expected`` to ``schedulable`` of frames.CAPACITY.

    A resource that is not advertised has 0 allocatable units: that is what was observed. Of one with a number
    that is none, nothing is known.
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
    """Metric, resource and value of each number that no number of units can be."""
    found = [(*key, value) for key, value in span.state.items() if key[0] in _COUNTED]
    return sorted(each for each in found if unit_count(each[2]) is None)


def _number(state: Mapping[tuple[str, str], float], name: str, resource: str, missing: int) -> int:
    value = unit_count(state.get((name, resource), float(missing)))
    return missing if value is None else value
