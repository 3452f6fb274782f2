"""What is charged in a cell under one policy: every amount a part of what usage lines cost, in whole
nano-units.

Cost is never priced anew. What was held costs what its lines say; what was idle is dealt out of the cost of
the unallocated lines of the cell by GPU time, lent quota out of the cost of what was borrowed; each by
largest remainder, ties to the key that sorts first. So charges and what the platform keeps add up to the
capacity, whatever the policy.

Idle time of nobody, unavailable time, unknown time and overhead are pots: each stays with the platform or is
spread over teams by quota, by use or equally. Equally is Slurm's rule for what no job used of a reservation
(as_mysql_rollup.c of its accounting storage: unused time goes evenly to the reservation's associations): with
a reservation of R GPUs for H hours, a use U and k accounts it is (R x H - U) / k each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.charges.policy_file import ChargePolicy, SpreadRule
from gpucost.charges.quota_balance import AccountBalance, CellBalance, PoolQuota, QuotaCohort, balance
from gpucost.charges.quota_history import QueueReservation
from gpucost.domain.buckets import RESERVED, Bucket
from gpucost.domain.money import NANO, split_by_weight


class ChargeKind(StrEnum):
    """What a charge is for."""

    USED = "used"
    """Held within the quota, or without any quota in the pool."""
    BORROWED = "borrowed"
    """Held beyond the quota; times ``borrowed_factor``."""
    RESERVED_IDLE = "reserved_idle"
    """Quota that nobody held."""
    ADMITTED_NOT_RUNNING = "admitted_not_running"
    """The part of it that was reserved for admitted work whose pods did not hold it."""
    QUOTA_LENT = "quota_lent"
    """Quota that others held, paid by its owner."""
    LENT_CREDIT = "lent_credit"
    """What the owner gets back for it: negative, GPU time too."""
    NOBODYS_IDLE = "nobodys_idle"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    OVERHEAD = "overhead"
    """A share of what teams of the platform held."""
    COMMITMENT = "commitment"
    """What contracts made of the cost of what the team held, more or less; without GPU time."""
    UNUSED_COMMITMENT = "unused_commitment"
    """Its share of what contracts cost and nobody used; without GPU time."""
    DISCOUNT = "discount"
    """Negative, without GPU time."""
    MARK_UP = "mark_up"
    FLOOR = "floor"
    CAP = "cap"
    """Negative, without GPU time."""


class ChargeKey(NamedTuple):
    """What a charge is summed by; queue and job are empty where a charge is of none. A tuple,
    since a month has a key for each job and hour."""

    team: str
    kind: ChargeKind
    queue: str = ""
    namespace: str = ""
    job: str = ""
    job_uid: str = ""


@dataclass(slots=True)
class ChargeAmount:
    """GPU-milliseconds, and nano-units of the currency of the charges."""

    board_ms: int = 0
    nano: int = 0

    def add(self, board_ms: int, nano: int) -> None:
        self.board_ms += board_ms
        self.nano += nano


CellCharges = dict[ChargeKey, ChargeAmount]

PLATFORM = f"{RESERVED}platform__"
"""The team of what no team pays. Every amount that is not charged in full is entered here too, by the same
kind, so that the sum of a cell is a check and no definition."""


class QuotaKey(NamedTuple):
    """A quota that a team pays for, over all dates at which it was changed; ``queue`` is empty where it is
    the team's, and ``cohort`` where it neither lends nor borrows."""

    team: str
    cluster: str
    model: str
    queue: str
    cohort: str


@dataclass(slots=True)
class QuotaUse:
    """What became of a quota: ``used + idle + lent = nominal``, whoever used it. ``borrowed`` is use beyond
    it. Costs are of the time that stood idle, and of what others held of it, before any factor.

    ``asked`` is the quota before it was scaled to the GPUs that were there. Within a tree of cohorts the sum
    of ``lent - taken`` is that of ``borrowed - unlent``: ``taken`` went to pods past all quotas, ``unlent``
    came out of GPUs in no quota of the tree.
    """

    asked_board_ms: int = 0
    nominal_board_ms: int = 0
    used_board_ms: int = 0
    idle_board_ms: int = 0
    lent_board_ms: int = 0
    borrowed_board_ms: int = 0
    taken_board_ms: int = 0
    unlent_board_ms: int = 0
    idle_nano: int = 0
    lent_nano: int = 0

    def add(self, account: AccountBalance, idle_nano: int, lent_nano: int) -> None:
        self.asked_board_ms += account.asked
        self.nominal_board_ms += account.nominal
        self.used_board_ms += account.reserved_used
        self.idle_board_ms += account.reserved_idle
        self.lent_board_ms += account.lent
        self.borrowed_board_ms += account.borrowed
        self.taken_board_ms += account.taken
        self.unlent_board_ms += account.from_nobody
        self.idle_nano += idle_nano
        self.lent_nano += lent_nano


QuotaUses = dict[QuotaKey, QuotaUse]
"""A defaultdict, too."""


def part(nano: int, factor: int) -> int:
    """``nano`` times ``factor`` (nano-units of 1), rounded half up."""
    return nano if factor == NANO else (2 * nano * factor + NANO) // (2 * NANO)


class SpreadKey(NamedTuple):
    """Time of nobody in a pool that is spread over teams by one rule. ``seen_by`` is as in the policy."""

    cluster: str
    model: str
    kind: ChargeKind
    rule: SpreadRule
    seen_by: str


@dataclass(slots=True)
class SpreadShare:
    """What one team bears of it, and its weight: GPU-milliseconds of its use or quota; with ``equally``, of
    one GPU while it is one of those that share."""

    amount: ChargeAmount = field(default_factory=ChargeAmount)
    weight_ms: int | Fraction = 0


@dataclass(slots=True)
class SpreadUse:
    """All of it, and who bears it. It was dealt out in ``parts``, one for each policy and hour, or month: in
    each of them a team's share is ``amount x its weight / all weights``, by largest remainder."""

    parts: int = 0
    amount: ChargeAmount = field(default_factory=ChargeAmount)
    weight_ms: int | Fraction = 0
    teams: dict[str, SpreadShare] = field(default_factory=lambda: defaultdict(SpreadShare))


SpreadUses = dict[SpreadKey, SpreadUse]
"""A defaultdict, too. What the platform keeps of nobody's time, because a policy says so or since nobody had
any weight, is in none of them."""


@dataclass(slots=True)
class SpreadPot:
    """Time that is nobody's, and the weights of the teams that bear it; PLATFORM does where there are
    none."""

    key: SpreadKey
    amount: ChargeAmount
    shares: dict[str, int | Fraction]

    @property
    def kind(self) -> ChargeKind:
        return self.key.kind

    def add(self, other: SpreadPot) -> None:
        self.amount.add(other.amount.board_ms, other.amount.nano)
        for team, share in other.shares.items():
            self.shares[team] = self.shares.get(team, 0) + share

    def deal(self, found: CellCharges, spread: SpreadUses) -> None:
        """Enters the part of every team, by largest remainder, and in ``spread`` what it is a part of."""
        if not (self.amount.board_ms or self.amount.nano):
            return
        shares = self.shares if sum(self.shares.values()) > 0 else {PLATFORM: 1}
        board_ms = split_by_weight(self.amount.board_ms, shares)
        nano = split_by_weight(self.amount.nano, shares)
        whole = None if PLATFORM in shares else spread[self.key]
        if whole is not None:
            whole.parts += 1
            whole.amount.add(self.amount.board_ms, self.amount.nano)
            whole.weight_ms += sum(shares.values())
        for team in shares:
            if board_ms[team] or nano[team]:
                found[ChargeKey(team, self.kind)].add(board_ms[team], nano[team])
            if whole is not None:
                whole.teams[team].amount.add(board_ms[team], nano[team])
                whole.teams[team].weight_ms += shares[team]


def charge_cell(
    cell: CapacityCell,
    policy: ChargePolicy,
    quotas: tuple[PoolQuota, ...],
    cohorts: Mapping[str, QuotaCohort],
    weights: Mapping[str, Fraction],
    found: CellCharges,
    uses: QuotaUses,
    reservations: tuple[QueueReservation, ...] = (),
) -> list[SpreadPot]:
    """Enters in ``found`` the charges of a cell in which one policy holds, with what PLATFORM keeps of it, in
    ``uses`` what became of quotas; and gives what is still to be dealt (``SpreadPot.deal``, then
    ``mark_up``).

    ``weights`` of teams are for ``by_quota`` in a cell without quotas. GPU time and cost of charges and pots
    add up to the cell's.
    """
    balanced = balance(cell, quotas, cohorts, reservations)
    overhead = _held(cell, policy, balanced, found)
    idle = _quotas(cell, policy, balanced, found, uses)
    pots = (
        (ChargeKind.NOBODYS_IDLE, policy.idle_of_nobody, idle),
        (ChargeKind.UNAVAILABLE, policy.unavailable, _total(cell.of_bucket(Bucket.UNAVAILABLE))),
        (ChargeKind.UNKNOWN, policy.unknown, _total(cell.of_bucket(Bucket.UNKNOWN))),
        (ChargeKind.OVERHEAD, policy.overhead, overhead),
    )
    return [
        SpreadPot(
            SpreadKey(cell.cluster, cell.model, kind, rule, policy.spread_seen_by),
            amount,
            _shares(rule, cell, policy, balanced, weights),
        )
        for kind, rule, amount in pots
    ]


def _total(rows: tuple[CellRow, ...]) -> ChargeAmount:
    return ChargeAmount(sum(row.board_ms for row in rows), sum(row.nano for row in rows))


def _held(
    cell: CapacityCell, policy: ChargePolicy, balanced: CellBalance, found: CellCharges
) -> ChargeAmount:
    """Charges what was held, and gives what overhead teams held, which is charged to none of them."""
    overhead, factor, has_discounts = ChargeAmount(), policy.use_factor, bool(policy.discounts)
    used, beyond = ChargeKind.USED, ChargeKind.BORROWED
    for n, row in enumerate(cell.of_bucket(Bucket.HELD)):
        if row.team in policy.overhead_teams:
            overhead.add(row.board_ms, row.nano)
            continue
        borrowed_ms = balanced.borrowed_of.get(n, 0)
        borrowed = cost = 0
        if borrowed_ms:
            borrowed = _borrowed_nano(row, borrowed_ms)
            cost = part(borrowed, factor)
            found[_key(row, beyond)].add(borrowed_ms, cost)
            if cost != borrowed:
                found[ChargeKey(PLATFORM, beyond)].add(0, borrowed - cost)
        if borrowed_ms < row.board_ms or not borrowed_ms:
            found[_key(row, used)].add(row.board_ms - borrowed_ms, row.nano - borrowed)
        if has_discounts:
            off = part(row.nano - borrowed + cost, policy.discount_of(row.capacity_type, row.queue))
            if off:
                found[_key(row, ChargeKind.DISCOUNT)].add(0, -off)
                found[ChargeKey(PLATFORM, ChargeKind.DISCOUNT)].add(0, off)
    return overhead


def _key(row: CellRow, kind: ChargeKind) -> ChargeKey:
    return ChargeKey(row.team, kind, row.queue, row.namespace, row.job, row.job_uid)


def _borrowed_nano(row: CellRow, borrowed_ms: int) -> int:
    """The cost of the borrowed part of a row, rounded down."""
    return row.nano * borrowed_ms // row.board_ms if row.board_ms else 0


def _quotas(
    cell: CapacityCell, policy: ChargePolicy, balanced: CellBalance, found: CellCharges, uses: QuotaUses
) -> ChargeAmount:
    """Charges owners for quota that they did not use, and gives the idle capacity that is nobody's."""
    accounts, own = balanced.accounts, policy.own_factor
    free = _total(cell.of_bucket(Bucket.UNALLOCATED))
    idle_ms = {n: account.reserved_idle for n, account in enumerate(accounts)} | {-1: balanced.nobody_idle}
    idle = split_by_weight(free.nano, idle_ms) if free.board_ms else {-1: free.nano}
    borrowed_ms = sum(balanced.borrowed_of.values())
    held = cell.of_bucket(Bucket.HELD)
    borrowed = sum(_borrowed_nano(held[n], board_ms) for n, board_ms in balanced.borrowed_of.items())
    lent_ms = {n: account.lent for n, account in enumerate(accounts)}
    lent_ms[-1] = borrowed_ms - sum(lent_ms.values())
    lent = split_by_weight(borrowed, lent_ms) if borrowed_ms else {}
    nobodys = ChargeAmount(balanced.nobody_idle, idle[-1])
    for n, account in enumerate(accounts):
        team, queue = account.quota.team, account.quota.queue or ""
        if team is None:
            nobodys.add(account.reserved_idle, idle.get(n, 0))
            continue
        place = QuotaKey(team, cell.cluster, cell.model, queue, account.quota.cohort or "")
        uses[place].add(account, idle.get(n, 0), lent.get(n, 0))
        if account.reserved_idle:
            rest_ms, rest, cost = account.reserved_idle, idle[n], part(idle[n], own)
            payer = team if own else PLATFORM
            if account.admitted:
                # A part of both amounts, so that what the owner pays for idle quota stays what it was.
                own_ms, whole_ms = account.admitted, account.reserved_idle
                own_idle, own_cost = rest * own_ms // whole_ms, cost * own_ms // whole_ms
                found[ChargeKey(payer, ChargeKind.ADMITTED_NOT_RUNNING, queue)].add(own_ms, own_cost)
                kept = ChargeKey(PLATFORM, ChargeKind.ADMITTED_NOT_RUNNING, queue)
                found[kept].add(0, own_idle - own_cost)
                rest_ms, rest, cost = rest_ms - own_ms, rest - own_idle, cost - own_cost
            found[ChargeKey(payer, ChargeKind.RESERVED_IDLE, queue)].add(rest_ms, cost)
            found[ChargeKey(PLATFORM, ChargeKind.RESERVED_IDLE, queue)].add(0, rest - cost)
        if account.lent and own:
            cost = part(lent[n], own)
            credit = part(cost, policy.credit_factor)
            found[ChargeKey(team, ChargeKind.QUOTA_LENT, queue)].add(account.lent, cost)
            found[ChargeKey(team, ChargeKind.LENT_CREDIT, queue)].add(-account.lent, -credit)
            found[ChargeKey(PLATFORM, ChargeKind.QUOTA_LENT, queue)].add(0, credit - cost)
    return nobodys


def _shares(
    rule: SpreadRule,
    cell: CapacityCell,
    policy: ChargePolicy,
    balanced: CellBalance,
    weights: Mapping[str, Fraction],
) -> dict[str, int | Fraction]:
    """Weights that add up over cells: GPU-milliseconds, or GPUs and teams times milliseconds."""
    if rule is SpreadRule.PLATFORM:
        return {}
    length_ms = cell.window.length_ms
    if rule is SpreadRule.EQUALLY:
        return dict.fromkeys(policy.access, length_ms)
    shares: dict[str, int | Fraction] = defaultdict(int)
    if rule is SpreadRule.BY_USE:
        for row in cell.of_bucket(Bucket.HELD):
            shares[row.team] += row.board_ms
    elif balanced.accounts:
        for account in balanced.accounts:
            if account.quota.team is not None:
                shares[account.quota.team] += account.nominal
    else:
        shares.update({team: weight * length_ms for team, weight in weights.items()})
    return {team: share for team, share in shares.items() if share and team not in policy.overhead_teams}


def mark_up(found: CellCharges, percent: int | None) -> None:
    """One line for each team, on the sum of its charges: below 0 where that is."""
    if percent is None:
        return
    factor = percent // 100
    sums: dict[str, int] = defaultdict(int)
    for key, amount in found.items():
        sums[key.team] += amount.nano
    for team, nano in sorted(sums.items()):
        if nano and team != PLATFORM:
            found[ChargeKey(team, ChargeKind.MARK_UP)].add(0, part(nano, factor))
            found[ChargeKey(PLATFORM, ChargeKind.MARK_UP)].add(0, -part(nano, factor))
