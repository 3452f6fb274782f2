"""Whose quota held what: reserved, borrowed, lent and idle, in whole GPU-milliseconds.

``balance`` sweeps over a cell from one instant to the next at which a row or a quota begins or ends. Between
two of them rates are constant, and for every account (a queue, or a team without one):

    reserved used = min(use, nominal)      borrowed = use - reserved used
    reserved used + reserved idle + lent = nominal

What is borrowed in a cohort is lent by quota of the same cohort that is idle at that moment, at most the
lending limits, in proportion to what each could lend; what the members of a cohort do not lend each other is
offered to the cohort above. Quota of a cohort itself is lent to its members in the same way, and holds no
pods; its lending limit is of all that leaves the cohort, as in Kueue. Kueue counts usage of a cohort and
names no lender (pkg/cache/scheduler/resource_node.go: usage is bubbled up from a ClusterQueue to its
cohorts): in proportion is our rule, and the only one that depends on no order. The rest of what is borrowed
is capacity that is in nobody's quota, and beyond that, where pods run past all quotas, idle quota of
everybody.

Nominal quota of more GPUs than are there (capacity less unavailable and unknown time) is scaled to what is
there, so that charges by quota never exceed the invoice. Rows whose rate changes while they last are taken at
their mean rate.

Reserved idle quota that a scheduler had reserved for admitted work at that instant is ``admitted``:

    admitted = min(reserved idle, reservation - use of the queue)

Reservations divide reserved idle, and change no other figure: what others held of it, though Kueue had
reserved it, is lent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import Field, model_validator

from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.charges.quota_history import QueueReservation
from gpucost.domain.buckets import Bucket
from gpucost.domain.configfile import MISSING, ConfigModel, DatedConfigModel, NanoAmount, Text, wrong
from gpucost.domain.money import NANO, split_by_weight
from gpucost.domain.time import Window


class PoolQuota(DatedConfigModel):
    """GPUs of one model that a team is entitled to; with ``queue``, by the use of that ClusterQueue.

    With ``shared`` it is quota of the cohort itself (Kueue: resourceGroups of a Cohort): nothing that is held
    counts against it, it is lent to the members. Without a team nobody pays for it, and what is not lent of
    it is nobody's idle capacity.
    """

    team: Text | None = Field(None, description="text, the team that pays for the quota")
    model: Text = Field(description="text, the GPU model as usage lines name it, such as H100")
    gpus: NanoAmount = Field(description="GPUs in each cluster, such as 16 or 2.5")
    cluster: Text | None = Field(None, description="text, the cluster; left out, every cluster")
    queue: Text | None = Field(
        None, description="text, a ClusterQueue of Kueue; left out, all that the team's pods hold"
    )
    cohort: Text | None = Field(None, description="text, the cohort in which it lends and borrows")
    lending_limit: NanoAmount | None = Field(
        None,
        description="GPUs, the most of the quota that is lent at one moment (with shared: that leaves the "
        "cohort); left out, all of it",
    )
    shared: bool = Field(
        False, description="true or false: whether it is quota of the cohort itself, for all its members"
    )

    @property
    def account(self) -> tuple[str, str]:
        """What its use is counted by: a queue, or else a team. Nothing is counted by a cohort."""
        if self.shared:
            return "cohort", self.cohort or ""
        return ("team", self.team or "") if self.queue is None else ("queue", self.queue)

    @model_validator(mode="after")
    def _has_an_owner(self) -> PoolQuota:
        if not self.shared and self.team is None:
            raise wrong(MISSING, "text, the team that pays for the quota", "team")
        if self.shared and self.cohort is None:
            raise wrong(MISSING, "with shared: text, the cohort that the quota is of", "cohort")
        if self.shared and self.queue is not None:
            raise wrong(self.queue, "left out: with shared the quota is of the cohort itself", "queue")
        return self


class QuotaCohort(ConfigModel):
    """A cohort below another one: what its members do not lend each other is offered above."""

    name: Text = Field(description="text, the cohort's name")
    parent: Text | None = Field(None, description="text, the cohort above it")
    lending_limit: NanoAmount | None = Field(
        None, description="GPUs, the most that leaves the cohort at one moment"
    )


@dataclass(slots=True)
class AccountBalance:
    """One quota in one cell, in GPU-milliseconds: ``reserved_used + reserved_idle + lent = nominal``.

    ``lent`` went to the account's cohort, and ``taken`` of it to pods that ran past all quotas; ``borrowed``
    is its own use beyond the quota, of which ``from_nobody`` was lent by no quota of a cohort. ``admitted``
    is the part of ``reserved_idle`` that was reserved for admitted work, and that no pod of it held.
    ``asked`` is what the quota asks for: ``nominal``, before that is scaled to the GPUs that are there.
    """

    quota: PoolQuota
    asked: int = 0
    nominal: int = 0
    reserved_used: int = 0
    reserved_idle: int = 0
    admitted: int = 0
    lent: int = 0
    taken: int = 0
    borrowed: int = 0
    from_nobody: int = 0


@dataclass(slots=True)
class CellBalance:
    """All quotas of a cell. ``borrowed_of`` is the borrowed part of each held row, by its position among
    those; rows that it does not have are reserved. ``outside`` is use that no account counts;
    ``nobody_idle`` is idle capacity in no quota: ``nobody_idle`` + all reserved idle = unallocated time."""

    accounts: list[AccountBalance]
    borrowed_of: dict[int, int] = field(default_factory=dict)
    outside: int = 0
    nobody_idle: int = 0


def balance(
    cell: CapacityCell,
    quotas: Sequence[PoolQuota],
    cohorts: Mapping[str, QuotaCohort],
    reservations: Sequence[QueueReservation] = (),
) -> CellBalance:
    """The balance of ``cell`` under those of ``quotas`` that hold in it; ``reservations`` are those of the
    pool. Without any quota, all use is reserved and all unallocated time is nobody's."""
    held = cell.of_bucket(Bucket.HELD)
    free = sum(row.board_ms for row in cell.of_bucket(Bucket.UNALLOCATED))
    if not quotas:
        return CellBalance([], nobody_idle=free)
    physical = free + sum(row.board_ms for row in held)
    found = CellBalance([AccountBalance(quota) for quota in quotas])
    edges = _edges(cell, held, quotas)
    asked, nominal = _nominal(quotas, edges, physical)
    for account, whole, by_span in zip(found.accounts, asked, nominal, strict=True):
        account.asked, account.nominal = whole, sum(by_span)
    for span, use in enumerate(_use(held, edges)):
        idle = _sweep(found, span, edges, nominal, use, held, cohorts)
        if reservations:
            _admit(found, Window(edges[span], edges[span + 1]), use, held, idle, reservations)
    _settle_nobody(found, physical)
    return found


def _edges(cell: CapacityCell, held: Sequence[CellRow], quotas: Sequence[PoolQuota]) -> list[int]:
    window = cell.window
    found = {window.start_ms, window.end_ms}
    found |= {row.first_ms for row in held} | {row.last_ms for row in held}
    found.update(at for quota in quotas for at in quota.edges if window.start_ms < at < window.end_ms)
    return sorted(found)


def _nominal(
    quotas: Sequence[PoolQuota], edges: Sequence[int], physical: int
) -> tuple[list[int], list[list[int]]]:
    """Nominal GPU-milliseconds by quota, as asked for; and by quota and span: the integral, scaled to
    ``physical`` where it is more.

    The integral up to an instant is rounded down from 1970, so that spans add up however they are cut.
    """
    integrals = [
        [min(max(at, quota.start_ms), quota.end_ms) * quota.gpus // NANO if quota.gpus else 0 for at in edges]
        for quota in quotas
    ]
    totals = {n: sums[-1] - sums[0] for n, sums in enumerate(integrals)}
    if sum(totals.values()) > physical:
        scaled = split_by_weight(physical, totals)
        integrals = [
            [(at - sums[0]) * scaled[n] // totals[n] if totals[n] else 0 for at in sums]
            for n, sums in enumerate(integrals)
        ]
    return [*totals.values()], [[after - before for before, after in pairwise(sums)] for sums in integrals]


def _use(held: Sequence[CellRow], edges: Sequence[int]) -> list[dict[int, int]]:
    """By span: the rows (by position) that lie in it, and their GPU-milliseconds there."""
    found: list[dict[int, int]] = [{} for _ in edges[1:]]
    at = {edge: n for n, edge in enumerate(edges)}
    for n, row in enumerate(held):
        first, last = at[row.first_ms], at[row.last_ms]
        if last == first + 1 and row.board_ms:
            found[first][n] = row.board_ms
            continue
        before = 0
        for span in range(first, last):
            until = row.before(edges[span + 1], row.board_ms)
            if until > before:
                found[span][n] = until - before
            before = until
    return found


def _sweep(
    found: CellBalance,
    span: int,
    edges: Sequence[int],
    nominal: Sequence[Sequence[int]],
    use: Mapping[int, int],
    held: Sequence[CellRow],
    cohorts: Mapping[str, QuotaCohort],
) -> dict[int, int]:
    """Enters a span, and gives the reserved idle time of each account in it."""
    start = edges[span]
    length = edges[span + 1] - start
    holding = [n for n, account in enumerate(found.accounts) if account.quota.holds_at(start)]
    queues, teams = _owners(found.accounts, holding)
    used: dict[int, dict[int, int]] = defaultdict(dict)
    for n, board_ms in use.items():
        row = held[n]
        owner = queues.get(row.queue)
        owner = teams.get(row.team) if owner is None else owner
        if owner is None:
            found.outside += board_ms
            found.borrowed_of[n] = found.borrowed_of.get(n, 0) + board_ms
        else:
            used[owner][n] = board_ms
    idle: dict[int, int] = {}
    wanted: dict[int, int] = {}
    for n in holding:
        account, total = found.accounts[n], sum(used[n].values())
        reserved = min(total, nominal[n][span])
        account.reserved_used += reserved
        account.borrowed += total - reserved
        idle[n], wanted[n] = nominal[n][span] - reserved, total - reserved
        if total > reserved:
            # Nobody says which of an account's pods are within its quota: each in part.
            for row_number, board_ms in split_by_weight(total - reserved, used[n]).items():
                if board_ms:
                    found.borrowed_of[row_number] = found.borrowed_of.get(row_number, 0) + board_ms
    lent = _lend(found.accounts, idle, dict(wanted), length, cohorts)
    for n, board_ms in idle.items():
        found.accounts[n].lent += lent[0].get(n, 0)
        found.accounts[n].reserved_idle += board_ms - lent[0].get(n, 0)
        found.accounts[n].from_nobody += lent[1].get(n, 0)
        idle[n] = board_ms - lent[0].get(n, 0)
    return idle


def _admit(
    found: CellBalance,
    span: Window,
    use: Mapping[int, int],
    held: Sequence[CellRow],
    idle: Mapping[int, int],
    reservations: Sequence[QueueReservation],
) -> None:
    """Enters what of ``idle`` (by account, in ``span``) was reserved and not held. Rates are constant in the
    span, so that a part of it has its part of both."""
    used: dict[str, int] = defaultdict(int)
    for n, board_ms in use.items():
        used[held[n].queue] += board_ms
    of_queue = {found.accounts[n].quota.queue: n for n, board_ms in idle.items() if board_ms}
    for each in reservations:
        account = of_queue.get(each.queue)
        length = min(each.end_ms, span.end_ms) - max(each.start_ms, span.start_ms)
        if account is not None and length > 0:
            reserved = each.gpus * span.length_ms // NANO
            most = min(idle[account], max(0, reserved - used[each.queue]))
            found.accounts[account].admitted += most * length // span.length_ms


def _owners(
    accounts: Sequence[AccountBalance], holding: Sequence[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Whose quota the use of a queue, else of a team, counts against: the number of the account."""
    queues: dict[str, int] = {}
    teams: dict[str, int] = {}
    for n in holding:
        kind, name = accounts[n].quota.account
        if kind == "queue":
            queues[name] = n
        elif kind == "team":
            teams[name] = n
    return queues, teams


def _lend(
    accounts: Sequence[AccountBalance],
    idle: Mapping[int, int],
    wanted: dict[int, int],
    length_ms: int,
    cohorts: Mapping[str, QuotaCohort],
) -> tuple[dict[int, int], dict[int, int]]:
    """What each account lends, and what of its borrowing no cohort lends it: cohort by cohort, the deepest
    first."""
    offers: dict[str, dict[int, int]] = defaultdict(dict)
    wishes: dict[str, dict[int, int]] = defaultdict(dict)
    leaving = {each.name: each.lending_limit for each in cohorts.values() if each.lending_limit is not None}
    for n in idle:
        quota = accounts[n].quota
        if quota.cohort is None:
            continue
        limit = None if quota.shared else quota.lending_limit
        if quota.shared and quota.lending_limit is not None:
            leaving[quota.cohort] = min(quota.lending_limit, leaving.get(quota.cohort, quota.lending_limit))
        offers[quota.cohort][n] = idle[n] if limit is None else min(idle[n], limit * length_ms // NANO)
        wishes[quota.cohort][n] = wanted[n]
    lent: dict[int, int] = defaultdict(int)
    queue = sorted({*offers}, key=lambda name: (-_depth(name, cohorts), name))
    while queue:
        name = queue.pop(0)
        offered, asked = offers[name], wishes[name]
        amount = min(sum(offered.values()), sum(asked.values()))
        if amount:
            for n, board_ms in split_by_weight(amount, offered).items():
                lent[n] += board_ms
                offered[n] -= board_ms
            for n, board_ms in split_by_weight(amount, asked).items():
                wanted[n] -= board_ms
                asked[n] -= board_ms
        cohort = cohorts.get(name)
        if cohort is None or cohort.parent is None:
            continue
        limit = leaving.get(name)
        most = sum(offered.values())
        if limit is not None and most > limit * length_ms // NANO:
            offered = split_by_weight(limit * length_ms // NANO, offered)
        offers[cohort.parent].update(offered)
        wishes[cohort.parent].update(asked)
        if cohort.parent not in queue:
            queue.append(cohort.parent)
            queue.sort(key=lambda each: (-_depth(each, cohorts), each))
    return lent, wanted


def _depth(name: str, cohorts: Mapping[str, QuotaCohort]) -> int:
    depth, cohort = 0, cohorts.get(name)
    while cohort is not None and cohort.parent is not None:
        depth, cohort = depth + 1, cohorts.get(cohort.parent)
    return depth


def _settle_nobody(found: CellBalance, physical: int) -> None:
    """What no cohort lent comes out of capacity in no quota; where that does not suffice, out of idle
    quota."""
    unowned = physical - sum(account.nominal for account in found.accounts)
    past = found.outside + sum(account.from_nobody for account in found.accounts) - unowned
    found.nobody_idle = max(0, -past)
    if past > 0:
        for n, board_ms in split_by_weight(
            past, {n: account.reserved_idle for n, account in enumerate(found.accounts)}
        ).items():
            account = found.accounts[n]
            account.reserved_idle -= board_ms
            account.lent += board_ms
            account.taken += board_ms
            account.admitted = min(account.admitted, account.reserved_idle)
