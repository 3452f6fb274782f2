"""The facts of ``gpucost state show`` about a cluster: the screen and the JSON are made from these.

Units are GPU units by resource name. Times are ms UTC in fields that end in ``_ms``; in JSON they are RFC
3339 under the name without it. Names are those of the cluster: the screen makes them safe.

Filters narrow the facts to a namespace, a team, a queue, a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.cluster.objects.metadata import Resources, added
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.gangs import PodGang
from gpucost.cluster.views.gpu_units import expected_units, of_node
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.problems import StateProblem
from gpucost.reports.live.cluster_reader import ClusterReader, label_reader
from gpucost.reports.live.kueue_rows import DispatchRow, FairUsageRow, dispatch_rows, usage_rows
from gpucost.reports.live.queue_rows import (
    QueueRow,
    QuotaLoan,
    VolcanoRow,
    WaitingRow,
    loans,
    queue_rows,
    volcano_rows,
    waiting_rows,
)

PODS, NODES = "pods", "nodes"
_FORBIDDEN = ("forbidden", "http_403")
"""The problem of a collection that may not be listed: in a dump, and of a watch."""
CLUSTER_QUEUES, WORKLOADS = "clusterqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"
NOT_EXPECTED = frozenset(
    {
        *("workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io", "podgroups.scheduling.x-k8s.io"),
        "compositepodgroups.scheduling.k8s.io",
    }
)
"""Collections that hardly any cluster has: their absence is not reported."""


@dataclass(frozen=True, slots=True)
class GpuTotal:
    """Of one resource: what pods hold and what nodes advertise (None: they could not be read), and what nodes
    should advertise (None: no node says)."""

    resource: str
    held: int | None
    advertised: int | None
    expected: int | None


@dataclass(frozen=True, slots=True)
class GangRow:
    """A gang of which a part runs since ``since_ms`` (None: unknown) while the rest does not; ``held`` by
    those that run."""

    kind: str
    namespace: str
    name: str
    job: str
    queue: str
    min_members: int
    running: int
    pending: int
    held: Resources
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that advertises fewer units of a resource than its hardware and sharing should give."""

    name: str
    pool: str
    product: str
    resource: str
    advertised: int
    expected: int
    held: int | None
    is_ready: bool
    is_cordoned: bool
    drain: str
    maintenance: str


@dataclass(frozen=True, slots=True)
class ProblemCount:
    code: str
    meaning: str
    count: int


@dataclass(frozen=True, slots=True)
class StateFacts:
    """``is_dated`` is whether the dump has its time; if not, ``at_ms`` is when it was read. ``absent``
    collections are not installed, ``forbidden`` ones may not be listed, ``unread`` ones are not in the dump
    or failed: lists lack their objects, and counts of them are None. Order: queues as a tree, parents first;
    waiting jobs and partial gangs, the longest first; the rest by name.

    Of a reader who is bound to ``teams_in_scope`` everything is about the objects of these teams: nodes,
    problems, loans, cohorts, positions and who comes first by usage are left out, and what is of a whole
    queue is None.
    """

    at_ms: int
    is_dated: bool
    nodes: int | None
    gpu_nodes: int | None
    pods: int | None
    gpu_pods: int | None
    workloads: int | None
    gpus: Sequence[GpuTotal]
    absent: Sequence[str]
    forbidden: Sequence[str]
    unread: Sequence[str]
    left_out: Mapping[str, int]
    queues: Sequence[QueueRow]
    loans: Sequence[QuotaLoan]
    volcano_queues: Sequence[VolcanoRow]
    waiting: Sequence[WaitingRow]
    partial_gangs: Sequence[GangRow]
    short_nodes: Sequence[NodeRow]
    problem_counts: Sequence[ProblemCount]
    problems: Sequence[StateProblem]
    usage: Sequence[FairUsageRow] = ()
    sent: Sequence[DispatchRow] = ()
    teams_in_scope: Sequence[str] | None = None

    def knows(self, *names: str) -> bool:
        """Whether all of these collections have been read, or are not installed."""
        return not {*self.forbidden, *self.unread}.intersection(names)


def facts(
    overview: ClusterOverview,
    reader: ClusterReader | None = None,
    *,
    expected: Iterable[str] = (),
    is_dated: bool = True,
    left_out: Mapping[str, int] | None = None,
) -> StateFacts:
    """All facts of one state that ``reader`` may see; without one, all. ``expected`` are the names of the
    collections that are read of a cluster: those that were not are in ``unread``."""
    reads = reader or label_reader(overview)
    statuses = sorted(overview.state.collections.items())
    known = _KnownCollections(
        [name for name, status in statuses if status.absent],
        [name for name, status in statuses if status.problem in _FORBIDDEN],
        _unread(overview.state, expected),
    )
    found = _of_all(overview, known) if reads.sees_every_team else _of_teams(overview, known, reads)
    return replace(
        found,
        is_dated=is_dated,
        left_out=left_out or {},
        queues=queue_rows(overview, reads),
        volcano_queues=volcano_rows(overview, reads),
        waiting=waiting_rows(overview, reads),
        sent=dispatch_rows(overview, reads),
    )


@dataclass(frozen=True, slots=True)
class _KnownCollections:
    """Names of collections that are not installed, that may not be listed, and that were not read."""

    absent: Sequence[str]
    forbidden: Sequence[str]
    unread: Sequence[str]

    def counted(self, name: str, count: int) -> int | None:
        """None where the collection could not be read."""
        return None if name in self.unread or name in self.forbidden else count


def _of_all(overview: ClusterOverview, known: _KnownCollections) -> StateFacts:
    """What only who sees every team is told."""
    state = overview.state
    held = _held_by_node(overview)
    advertised = {
        node.meta.name: of_node(node, overview.published_on(node), overview.catalog)[1]
        for node in state.nodes.values()
    }
    expected = {
        node.meta.name: expected_units(node, overview.published_on(node), overview.catalog)
        for node in state.nodes.values()
    }
    gpu_nodes = sum(bool(advertised[node.meta.name] or node.expected) for node in state.nodes.values())
    gpu_pods = sum(bool(overview.units.held(pod)) for pod in state.pods.values() if pod.is_bound)
    pods, nodes = known.counted(PODS, len(state.pods)), known.counted(NODES, len(state.nodes))
    return StateFacts(
        state.at_ms,
        True,
        nodes,
        known.counted(NODES, gpu_nodes),
        pods,
        known.counted(PODS, gpu_pods),
        known.counted(WORKLOADS, len(state.workloads)),
        _totals(held, advertised, expected, pods is not None, nodes is not None),
        known.absent,
        known.forbidden,
        known.unread,
        {},
        (),
        loans(overview.queues),
        (),
        (),
        _partial_gangs(overview.gangs),
        _short_nodes(held if pods is not None else None, advertised, expected, state.nodes.values()),
        _counts(overview.problems),
        overview.problems,
        usage_rows(overview),
    )


def _of_teams(overview: ClusterOverview, known: _KnownCollections, reader: ClusterReader) -> StateFacts:
    """Counts and gangs of the reader's teams."""
    state = overview.state
    pods = [pod for pod in state.pods.values() if reader.sees(pod)]
    bound = [pod for pod in pods if pod.is_bound]
    workloads = sum(reader.sees(each) for each in state.workloads.values())
    held = added(*(overview.units.of(pod) for pod in bound))
    gpu_pods = sum(bool(overview.units.held(pod)) for pod in bound)
    knows_pods = known.counted(PODS, 1) is not None
    # A gang is a team's if every pod that is in it is.
    others = {
        (pod.meta.namespace, overview.ownership.of(pod).job)
        for pod in state.pods.values()
        if not reader.sees(pod)
    }
    own = {(pod.meta.namespace, overview.ownership.of(pod).job) for pod in pods} - others
    seen = [gang for gang in overview.gangs if (gang.namespace, gang.job) in own]
    return StateFacts(
        state.at_ms,
        True,
        None,
        None,
        known.counted(PODS, len(pods)),
        known.counted(PODS, gpu_pods),
        known.counted(WORKLOADS, workloads),
        [
            GpuTotal(resource, amount if knows_pods else None, None, None)
            for resource, amount in held.items()
            if amount
        ],
        known.absent,
        known.forbidden,
        known.unread,
        {},
        (),
        (),
        (),
        (),
        _partial_gangs(seen),
        (),
        (),
        (),
        teams_in_scope=sorted(reader.teams or ()),
    )


def _unread(state: ClusterState, expected: Iterable[str]) -> list[str]:
    """Collections that were not read, though the screen would use them."""
    if not state.collections:
        return []
    names = [name for name in expected if name not in NOT_EXPECTED]
    statuses = ((name, state.collections.get(name)) for name in names)
    return [
        name
        for name, status in statuses
        if status is None or not (status.synced or status.problem in _FORBIDDEN)
    ]


def _held_by_node(overview: ClusterOverview) -> dict[str, Resources]:
    pods = overview.state.pods_by_node.items()
    return {name: added(*(overview.units.of(pod) for pod in bound)) for name, bound in pods}


def _totals(
    held: Mapping[str, Resources],
    advertised: Mapping[str, Resources],
    expected: Mapping[str, Resources],
    knows_pods: bool,
    knows_nodes: bool,
) -> list[GpuTotal]:
    in_use, offered = added(*held.values()), added(*advertised.values())
    says = {resource for units in expected.values() for resource in units}
    should: Counter[str] = Counter()
    for name, units in expected.items():
        should.update(units or advertised[name])
    return [
        GpuTotal(
            resource,
            in_use.get(resource, 0) if knows_pods else None,
            offered.get(resource, 0) if knows_nodes else None,
            should[resource] if resource in says else None,
        )
        for resource in sorted(in_use.keys() | offered.keys() | says)
        if in_use.get(resource) or offered.get(resource) or should[resource]
    ]


def _partial_gangs(gangs: Iterable[PodGang]) -> list[GangRow]:
    rows = [
        GangRow(
            gang.kind.value,
            gang.namespace,
            gang.name,
            gang.job.name,
            gang.queue,
            gang.min_members,
            gang.running,
            gang.pending,
            gang.held,
            gang.partial_since_ms,
        )
        for gang in gangs
        if gang.is_partial
    ]
    return sorted(rows, key=lambda row: (row.since_ms is None, row.since_ms or 0, row.namespace, row.name))


def _short_nodes(
    held: Mapping[str, Resources] | None,
    advertised: Mapping[str, Resources],
    should: Mapping[str, Resources],
    nodes: Iterable[Node],
) -> list[NodeRow]:
    rows = [
        NodeRow(
            node.meta.name,
            node.pool,
            node.product,
            resource,
            offered,
            expected,
            None if held is None else held.get(node.meta.name, {}).get(resource, 0),
            node.is_ready,
            node.is_cordoned,
            node.drain,
            node.maintenance,
        )
        for node in nodes
        for resource, expected in should[node.meta.name].items()
        if (offered := advertised[node.meta.name].get(resource, 0)) < expected
    ]
    return sorted(rows, key=lambda row: (row.name, row.resource))


def _counts(problems: Iterable[StateProblem]) -> list[ProblemCount]:
    counts = Counter(problem.code for problem in problems)
    return [ProblemCount(code.value, code.meaning, count) for code, count in sorted(counts.items())]


@dataclass(frozen=True, slots=True)
class StateFilter:
    """Exact names; an empty one filters nothing. ``job`` may be the name of a workload."""

    namespace: str = ""
    team: str = ""
    queue: str = ""
    job: str = ""

    def __bool__(self) -> bool:
        return bool(self.words)

    @property
    def words(self) -> str:
        """As the options were written: ``--namespace a, --job b``."""
        given = (("namespace", self.namespace), ("team", self.team), ("queue", self.queue), ("job", self.job))
        return ", ".join(f"--{name} {value}" for name, value in given if value)

    def has_waiter(self, row: WaitingRow | DispatchRow) -> bool:
        """Whether a row of a job passes."""
        return (
            self.namespace in ("", row.namespace)
            and self.team in ("", row.team)
            and self.queue in ("", row.queue)
            and self.job in ("", row.job, row.workload)
        )

    def has_gang(self, row: GangRow) -> bool:
        """Whether a partial gang passes, whatever its team."""
        return (
            self.namespace in ("", row.namespace)
            and self.queue in ("", row.queue)
            and self.job in ("", row.job, row.name)
        )


def narrowed(facts: StateFacts, wanted: StateFilter) -> StateFacts:
    """The waiting jobs and partial gangs that pass, and the queues they are in. Totals stay those of the
    cluster; nodes and problems are left out."""
    waiting = [row for row in facts.waiting if wanted.has_waiter(row)]
    own = {(row.namespace, row.job) for row in waiting}
    gangs = [
        row
        for row in facts.partial_gangs
        if wanted.has_gang(row) and (not wanted.team or (row.namespace, row.job) in own)
    ]
    sent = [row for row in facts.sent if wanted.has_waiter(row)]
    queues = {row.queue for row in waiting} | {row.queue for row in gangs} | {wanted.queue}
    queues |= {row.queue for row in sent}
    return replace(
        facts,
        waiting=waiting,
        partial_gangs=gangs,
        queues=with_parents(facts.queues, lambda row: row.is_queue and row.name in queues),
        loans=[loan for loan in facts.loans if loan.borrower in queues],
        volcano_queues=[row for row in facts.volcano_queues if row.name in queues],
        short_nodes=[],
        problem_counts=[],
        problems=[],
        usage=[row for row in facts.usage if row.cluster_queue in queues],
        sent=sent,
    )


def with_parents(rows: Sequence[QueueRow], is_wanted: Callable[[QueueRow], bool]) -> list[QueueRow]:
    """The rows that are wanted, and the cohorts above them."""
    kept: list[QueueRow] = []
    lowest = 0
    for row in reversed(rows):  # rows below a cohort come before it
        if is_wanted(row) or (not row.is_queue and row.depth < lowest):
            kept.append(row)
            lowest = row.depth
    return kept[::-1]


def most_urgent(rows: Sequence[QueueRow], most: int) -> list[QueueRow]:
    """As many as fit into ``most`` lines with the cohorts above them, in the order of the tree: first queues
    with waiting jobs, the longest wait first, then those that borrow, then the rest."""
    parents = _parents(rows)
    kept: set[int] = set()
    lines = 0
    for index in sorted(range(len(rows)), key=lambda index: _urgency(rows[index])):
        needed = {index, *parents[index]} - kept
        cost = sum(max(1, len(rows[each].quotas)) for each in needed)
        if lines + cost > most and kept:
            continue
        kept |= needed
        lines += cost
    return [row for index, row in enumerate(rows) if index in kept]


def _urgency(row: QueueRow) -> tuple[int, int]:
    """The lower, the more urgent; cohorts come with what is below them."""
    if not row.is_queue:
        return 4, 0
    if row.pending_units:
        return 0, row.oldest_ms or 0
    if any(quota.borrowed for quota in row.quotas):
        return 1, 0
    return (2 if row.trouble else 3), 0


def _parents(rows: Sequence[QueueRow]) -> list[tuple[int, ...]]:
    """Of each row the places of the cohorts above it."""
    found: list[tuple[int, ...]] = []
    above: list[int] = []
    for index, row in enumerate(rows):
        del above[row.depth :]
        found.append(tuple(above))
        above.append(index)
    return found
