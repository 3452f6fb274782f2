"""What ``gpucost state show`` says of a cluster, as plain facts: the screen and the JSON are made from these.

Units are GPU units by resource name. Times are ms UTC in fields that end in ``_ms``; in JSON they are RFC
3339 under the name without it. Names are as the cluster has them: whoever shows them makes them safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from gpucost.cli.state_queues import Loan, QueueRow, VolcanoRow, loans, queue_rows, volcano_rows
from gpucost.cli.state_waiting import WaitingRow, waiting_rows
from gpucost.cluster.nodes import Node
from gpucost.cluster.objects import Resources, added
from gpucost.cluster.overview import Overview
from gpucost.cluster.problems import StateProblem
from gpucost.cluster.units import of_node
from gpucost.domain.time import iso
from gpucost.kube.dump import FORBIDDEN


@dataclass(frozen=True, slots=True)
class GpuTotal:
    """Of one resource: what pods hold, what nodes advertise, and what they should (None: no node says)."""

    resource: str
    held: int
    advertised: int
    expected: int | None


@dataclass(frozen=True, slots=True)
class GangRow:
    """A gang of which a part runs since ``since_ms`` while the rest does not; ``held`` by those that run."""

    kind: str
    namespace: str
    name: str
    queue: str
    min_members: int
    running: int
    pending: int
    held: Resources
    since_ms: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that advertises fewer units of a resource than its hardware and sharing should give."""

    name: str
    pool: str
    product: str
    resource: str
    advertised: int
    expected: int
    held: int
    is_ready: bool
    is_cordoned: bool


@dataclass(frozen=True, slots=True)
class ProblemCount:
    code: str
    meaning: str
    count: int


@dataclass(frozen=True, slots=True)
class Facts:
    """``is_dated`` is whether the dump says when it was taken; if not, ``at_ms`` is when it was read.
    ``absent`` collections are not installed, ``forbidden`` ones may not be listed. Order: queues as a tree,
    parents first; what waits and what is partial, the longest first; the rest by name."""

    at_ms: int
    is_dated: bool
    nodes: int
    gpu_nodes: int
    pods: int
    gpu_pods: int
    workloads: int
    gpus: Sequence[GpuTotal]
    absent: Sequence[str]
    forbidden: Sequence[str]
    left_out: Mapping[str, int]
    queues: Sequence[QueueRow]
    loans: Sequence[Loan]
    volcano_queues: Sequence[VolcanoRow]
    waiting: Sequence[WaitingRow]
    partial_gangs: Sequence[GangRow]
    short_nodes: Sequence[NodeRow]
    problem_counts: Sequence[ProblemCount]
    problems: Sequence[StateProblem]


def facts(overview: Overview, *, is_dated: bool = True, left_out: Mapping[str, int] | None = None) -> Facts:
    """All of them, of one state."""
    state = overview.state
    held = _held_by_node(overview)
    advertised = {
        node.meta.name: of_node(node, overview.published.get(node.meta.name, {}), overview.catalog)[1]
        for node in state.nodes.values()
    }
    collections = sorted(state.collections.items())
    return Facts(
        state.at_ms,
        is_dated,
        len(state.nodes),
        sum(bool(advertised[node.meta.name] or node.expected) for node in state.nodes.values()),
        len(state.pods),
        sum(bool(overview.units.of(pod)) for pod in state.pods.values() if pod.is_bound),
        len(state.workloads),
        _totals(held, advertised, state.nodes.values()),
        [name for name, status in collections if status.absent],
        [name for name, status in collections if status.problem == FORBIDDEN],
        left_out or {},
        queue_rows(overview),
        loans(overview.queues),
        volcano_rows(overview),
        waiting_rows(overview),
        _partial_gangs(overview),
        _short_nodes(held, advertised, state.nodes.values()),
        _counts(overview.problems),
        overview.problems,
    )


def as_data(value: Any) -> Any:
    """Facts as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_field(each.name, getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: as_data(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(each) for each in value]
    return value


def _field(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_ms"):
        return name.removesuffix("_ms"), None if value is None else iso(value)
    return name, as_data(value)


def _held_by_node(overview: Overview) -> dict[str, Resources]:
    pods = overview.state.pods_by_node.items()
    return {name: added(*(overview.units.of(pod) for pod in bound)) for name, bound in pods}


def _totals(
    held: Mapping[str, Resources], advertised: Mapping[str, Resources], nodes: Iterable[Node]
) -> list[GpuTotal]:
    in_use, offered = added(*held.values()), added(*advertised.values())
    says = {resource for node in nodes for resource in node.expected}
    should: Counter[str] = Counter()
    for node in nodes:
        should.update(node.expected or advertised[node.meta.name])
    return [
        GpuTotal(
            resource,
            in_use.get(resource, 0),
            offered.get(resource, 0),
            should[resource] if resource in says else None,
        )
        for resource in sorted(in_use.keys() | offered.keys() | says)
        if in_use.get(resource) or offered.get(resource) or should[resource]
    ]


def _partial_gangs(overview: Overview) -> list[GangRow]:
    rows = [
        GangRow(
            gang.kind.value,
            gang.namespace,
            gang.name,
            gang.queue,
            gang.min_members,
            gang.running,
            gang.pending,
            gang.held,
            gang.partial_since_ms,
        )
        for gang in overview.gangs
        if gang.partial_since_ms is not None
    ]
    return sorted(rows, key=lambda row: (row.since_ms, row.namespace, row.name))


def _short_nodes(
    held: Mapping[str, Resources], advertised: Mapping[str, Resources], nodes: Iterable[Node]
) -> list[NodeRow]:
    rows = [
        NodeRow(
            node.meta.name,
            node.pool,
            node.product,
            resource,
            offered,
            expected,
            held.get(node.meta.name, {}).get(resource, 0),
            node.is_ready,
            node.is_cordoned,
        )
        for node in nodes
        for resource, expected in node.expected.items()
        if (offered := advertised[node.meta.name].get(resource, 0)) < expected
    ]
    return sorted(rows, key=lambda row: (row.name, row.resource))


def _counts(problems: Iterable[StateProblem]) -> list[ProblemCount]:
    counts = Counter(problem.code for problem in problems)
    return [ProblemCount(code.value, code.meaning, count) for code, count in sorted(counts.items())]
