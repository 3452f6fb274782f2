"""Queues as they are now: quota, use, loans, who waits and why, money an hour, and when a job may start.

Live estimates, never amounts of a month: prices are those in force at ``at`` on the nodes where GPUs are held
now. Amounts of quota are GPU units by flavor and resource; what is not known is None. For a reader who is
bound to teams ``cluster_reader`` says what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.volcano import GroupKind
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.volcano_queues import queue_of
from gpucost.domain.time import iso
from gpucost.pricing.node_rates import boards_on, rate_on
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.live.cluster_reader import ClusterReader
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

MOST_WAITING = 1_000
"""Waiting jobs that are listed, the longest waits first; counts of queues are of all."""
KUEUE, VOLCANO = "kueue", "volcano"


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a waiting job starts, as it was predicted at ``asked_at``: half of such jobs by ``p50``, nine of
    ten by ``p90``; None where that lay beyond what was simulated."""

    asked_at: str
    p50: str | None
    p90: str | None


@dataclass(frozen=True, slots=True)
class LiveQuota:
    """GPU quota of a queue or cohort by flavor and resource; of Volcano's by resource, ``flavor`` empty.

    ``nominal`` is what it has (Volcano: deserves), ``guarantee`` and ``capability`` are Volcano's.
    ``reserved`` is quota that workloads have, ``used`` that of admitted ones, ``borrowed`` what is above the
    nominal quota; ``lendable`` is what others may still borrow. Kueue does not record whose quota is
    borrowed: of its own the queue lends between ``lent_at_least`` and ``lent_at_most`` now, which are equal
    where it is the only lender. ``per_hour_nano`` is what held GPUs of the flavor cost an hour, None where
    none is held or none has a price.
    """

    flavor: str
    resource: str
    nominal: int | None
    reserved: int | None
    used: int | None
    borrowed: int | None
    lendable: int | None
    lent_at_least: int | None
    lent_at_most: int | None
    guarantee: int | None
    capability: int | None
    per_hour_nano: int | None


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """A queue of ``scheduler`` (``kueue``, ``volcano``), or a cohort (``is_queue`` false), ``depth`` below
    its root. ``parent`` is its cohort or parent queue, empty for none. ``trouble`` says why it admits
    nothing, empty while it does.

    ``admitted`` counts workloads; ``waiting`` jobs wait for ``waiting_gpus``, the longest since ``oldest``.
    ``per_hour_nano`` is what GPUs that are held through it cost an hour now; ``unpriced_pods`` hold GPUs that
    are not in it.
    """

    scheduler: str
    name: str
    is_queue: bool
    depth: int
    parent: str
    trouble: str
    quotas: tuple[LiveQuota, ...]
    admitted: int | None
    waiting: int | None
    waiting_gpus: Mapping[str, int] | None
    oldest: str | None
    per_hour_nano: int | None
    unpriced_pods: int


@dataclass(frozen=True, slots=True)
class LiveLender:
    """A queue, or cohort, with quota that it does not use itself: a loan may be of it, or more be lent."""

    name: str
    is_queue: bool
    unused: int


@dataclass(frozen=True, slots=True)
class LiveLoan:
    """GPU quota that ``borrower`` uses above its own; ``lenders``, the largest first, are those it may be of.
    With one lender it is that one's."""

    borrower: str
    cohort: str
    flavor: str
    resource: str
    borrowed: int
    lenders: tuple[LiveLender, ...]


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits since ``since`` for ``gpus``: a workload of Kueue, or a job without one (``workload``
    empty). ``position`` in ``queue`` counts from 1, None without an order, and for who sees some teams.

    ``user`` is whose it is by its labels, empty where they name nobody. ``layer``, ``reason`` and ``message``
    are the cause of the wait, in the scheduler's words.
    ``per_hour_nano`` is what it would cost an hour, None unless all nodes that it may get have one price.
    ``start`` is the prediction, None where there is none.
    """

    namespace: str
    workload: str
    job_kind: str
    job: str
    team: str
    user: str
    queue: str
    position: int | None
    priority: int
    gpus: Mapping[str, int]
    since: str
    layer: str
    reason: str
    message: str
    per_hour_nano: int | None
    start: StartEstimate | None


@dataclass(frozen=True, slots=True)
class QueuesNow:
    """The queues of a cluster at ``at``, cohorts first and what is below them after them, by name; then
    Volcano's. ``waiting`` are the jobs that wait, the longest first, at most 1,000 (``waiting_cut``: there
    are more).

    A caller bound to teams (``teams_in_scope``; null: all) sees the queues that these may use, with what
    their own jobs hold and wait for: loans, cohorts, positions and what is of the whole queue are left out.
    ``unread`` are collections that could not be read: lists lack their objects.
    """

    cluster: str
    at: str
    currency: str | None
    teams_in_scope: tuple[str, ...] | None
    queues: tuple[LiveQueue, ...]
    loans: tuple[LiveLoan, ...]
    waiting: tuple[WaitingJob, ...]
    waiting_cut: bool
    unread: tuple[str, ...]


def build_queues(
    cluster: str,
    overview: ClusterOverview,
    reader: ClusterReader,
    prices: PriceBook | None,
    foretold: Mapping[str, StartEstimate],
) -> QueuesNow:
    """``foretold`` are predicted starts by uid of the Kueue workload."""
    rows = waiting_rows(overview, reader)
    of_queues = queue_rows(overview, reader)
    held = _HeldMoney(overview, LivePrices(overview, cluster, prices), reader)
    gpu_loans = [
        loan for loan in loans(overview.queues, lent_too=True) if overview.catalog.is_gpu(loan.resource)
    ]
    seen_loans = gpu_loans if reader.sees_every_team else []
    uids = overview.state.workload_by_name

    def waiting(row: WaitingRow) -> WaitingJob:
        workload = uids.get((row.namespace, row.workload))
        start = None if workload is None else foretold.get(workload.meta.uid)
        return _waiting_job(row, held.asked(row.queue, row.units), start)

    return QueuesNow(
        cluster,
        iso(overview.state.at_ms),
        None if prices is None else prices.currency,
        None if reader.teams is None else tuple(sorted(reader.teams)),
        (
            *_of_kueue(of_queues, seen_loans, held),
            *(_of_volcano(row, held) for row in volcano_rows(overview, reader)),
        ),
        tuple(map(_loan, seen_loans)),
        tuple(map(waiting, rows[:MOST_WAITING])),
        len(rows) > MOST_WAITING,
        unread_of(overview),
    )


def unread_of(overview: ClusterOverview) -> tuple[str, ...]:
    """Collections that are there and have not been read."""
    statuses = overview.state.collections.items()
    return tuple(sorted(name for name, status in statuses if not (status.absent or status.synced)))


def only_queue(found: QueuesNow, name: str) -> QueuesNow | None:
    """What is of the queue or cohort ``name``; None where there is none of that name."""
    queues = tuple(each for each in found.queues if each.name == name)
    if not queues:
        return None
    return QueuesNow(
        found.cluster,
        found.at,
        found.currency,
        found.teams_in_scope,
        queues,
        tuple(
            loan
            for loan in found.loans
            if loan.borrower == name or any(each.name == name for each in loan.lenders)
        ),
        tuple(each for each in found.waiting if each.queue == name),
        found.waiting_cut,
        found.unread,
    )


@dataclass(frozen=True)
class LivePrices:
    """What GPUs of the nodes cost now, each node looked up once."""

    overview: ClusterOverview
    cluster: str
    prices: PriceBook | None
    _rates: dict[str, int | None] = field(default_factory=dict)

    def gpu_hour(self, node: Node) -> int | None:
        """Nano-units of a GPU-hour there; None without a price."""
        name = node.meta.name
        if name not in self._rates:
            at_ms = self.overview.state.at_ms
            rate = None if self.prices is None else rate_on(node, self.cluster, self.prices, at_ms)[0]
            self._rates[name] = None if rate is None else rate.nano_per_board_hour
        return self._rates[name]

    def per_hour(self, node: Node | None, units: Resources) -> Fraction | None:
        """Of GPU units there, exact; None where part of it is not known."""
        rate = None if node is None else self.gpu_hour(node)
        boards = None if node is None else boards_on(node, units, self.overview.catalog)[0]
        return None if rate is None or boards is None else rate * boards

    def of_pod(self, pod: Pod) -> Fraction | None:
        """Of a bound pod; None where it has parts of GPUs that a scheduler gave it."""
        units = self.overview.units.of(pod)
        if not units or self.overview.units.uses(pod):
            return None
        return self.per_hour(self.overview.state.node_by_name.get(pod.node), units)


@dataclass(slots=True)
class _MoneySum:
    """An hour's money of several pods, and how many have no price."""

    nano: Fraction | None = None
    unpriced: int = 0

    def add(self, per_hour: Fraction | None) -> None:
        if per_hour is None:
            self.unpriced += 1
        else:
            self.nano = (self.nano or Fraction(0)) + per_hour

    @property
    def whole(self) -> int | None:
        return None if self.nano is None else round(self.nano)


@dataclass(frozen=True)
class _HeldMoney:
    """What the pods that the reader sees cost an hour, by queue."""

    overview: ClusterOverview
    prices: LivePrices
    reader: ClusterReader
    _asked: dict[tuple[str, frozenset[tuple[str, int]]], int | None] = field(default_factory=dict)

    @cached_property
    def sums(self) -> Mapping[tuple[str, str, str], _MoneySum]:
        """By scheduler, queue and flavor; by queue alone under the flavor ``*``."""
        found: dict[tuple[str, str, str], _MoneySum] = {}
        for pod in self.overview.state.pods.values():
            if not pod.is_bound or not self.overview.units.having(pod) or not self.reader.sees(pod):
                continue
            scheduler, queue, flavor = self._place(pod)
            per_hour = self.prices.of_pod(pod)
            for key in {(scheduler, queue, flavor), (scheduler, queue, "*")}:
                found.setdefault(key, _MoneySum()).add(per_hour)
        return found

    def _place(self, pod: Pod) -> tuple[str, str, str]:
        known = self.overview.ownership.of(pod)
        if known.cluster_queue:
            return KUEUE, known.cluster_queue, known.flavor
        group = self.overview.ownership.pod_group_of(pod)
        if group is not None and group.group_kind is GroupKind.VOLCANO:
            return VOLCANO, queue_of(group), ""
        return "", known.queue, ""

    def of(self, scheduler: str, queue: str, flavor: str = "*") -> _MoneySum:
        return self.sums.get((scheduler, queue, flavor)) or _MoneySum()

    def asked(self, queue: str, units: Resources) -> int | None:
        """An hour of ``units`` on the nodes that workloads of ``queue`` get, where these have one price."""
        key = queue, frozenset(units.items())
        if key not in self._asked:
            offering = (node for node in self._nodes(queue) if all(map(node.allocatable.get, units)))
            found = {self.prices.per_hour(node, units) for node in offering}
            only = found.pop() if len(found) == 1 else None
            self._asked[key] = None if only is None else round(only)
        return self._asked[key]

    def _nodes(self, queue: str) -> Iterator[Node]:
        """Those of the flavors of a ClusterQueue; every node for other queues."""
        state = self.overview.state
        known = state.cluster_queue_by_name.get(queue)
        names = None if known is None else {key.flavor for key in known.quotas}
        flavors = (
            [] if names is None else [each for name, each in state.flavor_by_name.items() if name in names]
        )
        for node in state.nodes.values():
            labels = node.labels
            if names is None or any(
                all(labels.get(key) == value for key, value in flavor.node_labels.items())
                for flavor in flavors
            ):
                yield node


def _of_kueue(
    rows: Sequence[QueueRow], borrowings: Sequence[QuotaLoan], held: _HeldMoney
) -> Iterator[LiveQueue]:
    above: list[str] = []
    for row in rows:
        del above[row.depth :]
        parent = above[-1] if above else ""
        above.append(row.name)
        money = held.of(KUEUE, row.name) if row.is_queue else _MoneySum()
        yield LiveQueue(
            KUEUE,
            row.name,
            row.is_queue,
            row.depth,
            parent,
            row.trouble,
            tuple(_kueue_quotas(row, borrowings, held)),
            row.admitted,
            row.pending,
            row.pending_units,
            _when(row.oldest_ms),
            money.whole,
            money.unpriced,
        )


def _kueue_quotas(row: QueueRow, borrowings: Sequence[QuotaLoan], held: _HeldMoney) -> Iterator[LiveQuota]:
    for each in row.quotas:
        least, most = (
            _lent(row, each.flavor, each.resource, borrowings)
            if held.reader.sees_every_team and each.reserved is not None
            else (None, None)
        )
        yield LiveQuota(
            each.flavor,
            each.resource,
            each.nominal,
            each.reserved,
            each.used,
            each.borrowed,
            each.lendable,
            least,
            most,
            None,
            None,
            held.of(KUEUE, row.name, each.flavor).whole if row.is_queue else None,
        )


def _lent(row: QueueRow, flavor: str, resource: str, borrowings: Iterable[QuotaLoan]) -> tuple[int, int]:
    """How much of its own quota it lends now: at least what the other lenders of a loan cannot have lent, at
    most what it does not use itself."""
    least = borrowed = own = 0
    for loan in borrowings:
        if (loan.flavor, loan.resource) != (flavor, resource):
            continue
        unused = {(each.name, each.is_queue): int(each.unused) for each in loan.lenders}
        mine = unused.pop((row.name, row.is_queue), None)
        if mine is not None:
            own = mine
            borrowed += int(loan.borrowed)
            least += max(0, int(loan.borrowed) - sum(unused.values()))
    return min(least, own), min(own, borrowed)


def _of_volcano(row: VolcanoRow, held: _HeldMoney) -> LiveQueue:
    money = held.of(VOLCANO, row.name)
    named = {
        resource
        for units in (row.deserved, row.guarantee, row.capability, row.allocated)
        for resource in units or ()
    }
    quotas = tuple(
        LiveQuota(
            "",
            resource,
            _amount(row.deserved, resource),
            _amount(row.allocated, resource),
            _amount(row.allocated, resource),
            None,
            None,
            None,
            None,
            _amount(row.guarantee, resource),
            _amount(row.capability, resource),
            money.whole if len(named) == 1 else None,
        )
        for resource in sorted(named)
    )
    trouble = "" if row.state in ("", "Open") else f"state {row.state}"
    return LiveQueue(
        VOLCANO,
        row.name,
        True,
        0,
        row.parent,
        trouble,
        quotas,
        None,
        row.pending,
        row.pending_units,
        _when(row.oldest_ms),
        money.whole,
        money.unpriced,
    )


def _amount(units: Resources | None, resource: str) -> int | None:
    return None if units is None else units.get(resource, 0)


def _loan(loan: QuotaLoan) -> LiveLoan:
    return LiveLoan(
        loan.borrower,
        loan.cohort,
        loan.flavor,
        loan.resource,
        int(loan.borrowed),
        tuple(LiveLender(each.name, each.is_queue, int(each.unused)) for each in loan.lenders),
    )


def _waiting_job(row: WaitingRow, per_hour_nano: int | None, start: StartEstimate | None) -> WaitingJob:
    return WaitingJob(
        row.namespace,
        row.workload,
        row.job_kind,
        row.job,
        row.team,
        row.user,
        row.queue,
        row.position,
        row.priority,
        row.units,
        iso(row.since_ms),
        row.layer,
        row.reason,
        row.message,
        per_hour_nano,
        start,
    )


def _when(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)
