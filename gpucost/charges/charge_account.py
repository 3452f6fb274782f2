"""The charges of many cells under one policy book, and the proof that they add up to the capacity.

``charges_by_policy`` takes cells in any order and gives the same lines, in the same order, with the same
digest: cells are divided where policies and rates change, charged one by one and added up by day, pool, team,
queue, job and kind. Floors and caps of teams come last, by calendar month: charge whole months where a file
has them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from gpucost.charges.capacity_cells import CapacityCell, cut
from gpucost.charges.cell_charges import (
    PLATFORM,
    CellCharges,
    ChargeAmount,
    ChargeKey,
    ChargeKind,
    QuotaKey,
    QuotaUse,
    QuotaUses,
    SpreadKey,
    SpreadPot,
    SpreadUse,
    SpreadUses,
    charge_cell,
    mark_up,
    part,
)
from gpucost.charges.commitment_drawdown import DrawEntry, DrawKind, part_of_hour
from gpucost.charges.contract_terms import ContractBook, ScopeReach
from gpucost.charges.policy_file import ChargePolicy, PolicyBook
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso


class ChargePlace(NamedTuple):
    """Where a charge falls: the UTC day (its first instant), and the pool. What is spread over a month is of
    its first day; so are floors and caps, which are of no pool."""

    day_ms: int
    cluster: str
    model: str


class ChargeLine(NamedTuple):
    """One line of the charge ledger: GPU-milliseconds and nano-units; credits and discounts are negative."""

    place: ChargePlace
    key: ChargeKey
    board_ms: int
    nano: int


@dataclass(frozen=True)
class ChargeAccount:
    """All charges of some cells. ``capacity`` is what the cells cost, in the currency of the charges;
    ``unpriced_ms`` of it have no price and are in no amount. ``quotas`` say what became of the quotas that
    teams pay for, ``spreads`` of the time of nobody that teams share, both in order."""

    currency: str
    lines: tuple[ChargeLine, ...]
    capacity: ChargeAmount
    unpriced_ms: int
    quotas: tuple[tuple[QuotaKey, QuotaUse], ...] = ()
    spreads: tuple[tuple[SpreadKey, SpreadUse], ...] = ()

    @property
    def charged(self) -> ChargeAmount:
        """What all teams pay together."""
        return _sum(line for line in self.lines if line.key.team != PLATFORM)

    @property
    def kept(self) -> ChargeAmount:
        """What the platform keeps; below 0 where teams pay more than the capacity cost."""
        return _sum(line for line in self.lines if line.key.team == PLATFORM)

    @property
    def difference(self) -> ChargeAmount:
        """Charges and what is kept, less the capacity: 0, or the charges are wrong."""
        charged, kept = self.charged, self.kept
        return ChargeAmount(
            charged.board_ms + kept.board_ms - self.capacity.board_ms,
            charged.nano + kept.nano - self.capacity.nano,
        )

    def by_team(self) -> Mapping[str, Mapping[ChargeKind, ChargeAmount]]:
        """Sums by team and kind, teams and kinds in order; PLATFORM is one of the teams."""
        found: dict[str, dict[ChargeKind, ChargeAmount]] = defaultdict(dict)
        for line in self.lines:
            found[line.key.team].setdefault(line.key.kind, ChargeAmount()).add(line.board_ms, line.nano)
        return {
            team: {kind: found[team][kind] for kind in ChargeKind if kind in found[team]}
            for team in sorted(found)
        }

    @property
    def digest(self) -> str:
        """SHA-256 over every line: the same charges have the same digest."""
        state, day = hashlib.sha256(), cache(iso)
        for line in self.lines:
            place, key = line.place, line.key
            fields = (day(place.day_ms), place.cluster, place.model, key.team, key.kind.value, key.queue)
            rest = (key.namespace, key.job, key.job_uid, str(line.board_ms), str(line.nano), self.currency)
            state.update("\x1f".join((*fields, *rest)).encode() + b"\n")
        return state.hexdigest()


def _sum(lines: Iterable[ChargeLine]) -> ChargeAmount:
    found = ChargeAmount()
    for line in lines:
        found.add(line.board_ms, line.nano)
    return found


def charges(
    cells: Iterable[CapacityCell],
    book: PolicyBook,
    ledger_currency: str,
    commitments: Sequence[ChargeLine] = (),
) -> ChargeAccount:
    """The charges of ``cells`` by ``book``: see ``charges_by_policy``."""
    return charges_by_policy(cells, [book], ledger_currency, [commitments])[0]


def commitment_lines(
    month: Month,
    entries: Sequence[DrawEntry],
    contracts: ContractBook,
    book: PolicyBook,
    without: Collection[str] = (),
) -> tuple[ChargeLine, ...]:
    """What contracts change of the charges of a month: for each team what its use costs by the contracts less
    what it costs by its usage lines, and its share of what was not used. ``entries`` are what ``contracts``
    made of the month.

    Each is entered for the platform with the other sign: what is charged and what is kept still add up to
    the capacity. Nothing is entered while the policy in force has a team among its overhead teams, which pay
    for nothing that they hold. Capacity that was never drawn is of no cluster: of that, where it does in
    every cluster that the contract covers. Nothing is entered for the teams ``without`` either.
    """
    sums: dict[tuple[str, ChargeKind], int] = defaultdict(int)
    for team, kind, nano in _paid(entries, contracts, book):
        if team not in without:
            sums[team, kind] += nano
    place = ChargePlace(month.window.start_ms, "", "")
    found = []
    for (team, kind), nano in sums.items():
        if nano:
            found.append(ChargeLine(place, ChargeKey(team, kind), 0, nano))
            found.append(ChargeLine(place, ChargeKey(PLATFORM, kind), 0, -nano))
    return tuple(found)


def _paid(
    entries: Sequence[DrawEntry], contracts: ContractBook, book: PolicyBook
) -> Iterator[tuple[str, ChargeKind, int]]:
    """What of each entry its payer pays beside its usage lines: nothing while it is an overhead team."""
    seen = frozenset(entry.cluster for entry in entries if entry.cluster)
    covered = {terms.id: _clusters(contracts.file.reach(terms), seen) for terms in contracts.in_force}

    @cache
    def spans(hour_ms: int) -> tuple[Window, ...]:
        edges = (at for at in book.edges if hour_ms < at < hour_ms + HOUR_MS)
        return tuple(Window(*pair) for pair in pairwise((hour_ms, *edges, hour_ms + HOUR_MS)))

    @cache
    def pays(team: str, clusters: frozenset[str], at_ms: int) -> bool:
        return any(team not in book.rule_at(cluster, at_ms).overhead_teams for cluster in clusters)

    for entry in entries:
        if not entry.payer:
            continue
        unused = entry.kind in (DrawKind.IDLE, DrawKind.UNUSED)
        kind = ChargeKind.UNUSED_COMMITMENT if unused else ChargeKind.COMMITMENT
        nano = (entry.nano or 0) - (0 if unused else entry.price_nano or 0)
        clusters = frozenset({entry.cluster}) if entry.cluster else covered[entry.contract]
        parts = (
            part_of_hour(nano, span)
            for span in spans(entry.hour_ms)
            if pays(entry.payer, clusters, span.start_ms)
        )
        yield entry.payer, kind, sum(parts)


def _clusters(reach: Iterable[ScopeReach], seen: frozenset[str]) -> frozenset[str]:
    """The clusters that a contract covers: those that are named, else those ``seen``; where there was no use
    at all, one of no name, which the policy for all clusters is of."""
    named = [each.clusters for each in reach]
    found = seen if None in named else frozenset[str]().union(*(each for each in named if each))
    return found or frozenset({""})


def charges_by_policy(
    cells: Iterable[CapacityCell],
    books: Sequence[PolicyBook],
    ledger_currency: str,
    commitments: Sequence[Sequence[ChargeLine]] = (),
) -> list[ChargeAccount]:
    """The charges of ``cells`` (whose amounts are in ``ledger_currency``) by each of ``books``. Every cell is
    asked for once, and none is kept. ``commitments`` are what contracts change, for each of ``books``.

    The caller has asked ``book.currency_of`` for the time of the cells, so that a rate is known for every
    instant.
    """
    open_accounts = [OpenAccount(book, ledger_currency) for book in books]
    for cell in cells:
        for account in open_accounts:
            account.enter(cell)
    more = commitments or [()] * len(books)
    return [account.closed(lines) for account, lines in zip(open_accounts, more, strict=True)]


class OpenAccount:
    """Charges by one policy book that cells are still entered in."""

    def __init__(self, book: PolicyBook, ledger_currency: str) -> None:
        self._book, self._currency = book, ledger_currency
        self._found: dict[ChargePlace, CellCharges] = defaultdict(lambda: defaultdict(ChargeAmount))
        self._later: dict[tuple[ChargePlace, ChargePolicy], dict[ChargeKind, SpreadPot]] = defaultdict(dict)
        self._capacity, self._unpriced_ms = ChargeAmount(), 0
        self._uses: QuotaUses = defaultdict(QuotaUse)
        self._spread: SpreadUses = defaultdict(SpreadUse)

    def enter(self, cell: CapacityCell) -> None:
        """Charges a cell: each once, in any order."""
        for piece in _pieces(cell, self._book, self._currency):
            self._capacity.add(piece.board_ms, piece.nano)
            self._unpriced_ms += sum(row.unpriced_ms for row in piece.rows)
            self._charge(piece)

    def _charge(self, cell: CapacityCell) -> None:
        book, start = self._book, cell.window.start_ms
        rule = book.rule_at(cell.cluster, start)
        quotas = book.quotas_of(cell.cluster, cell.model, cell.window)
        day = self._found[ChargePlace(start // DAY_MS * DAY_MS, cell.cluster, cell.model)]
        # Straight into the sums of the day, unless a mark-up asks what each team pays in this cell.
        made = day if rule.mark_up is None else defaultdict(ChargeAmount)
        reserved = book.reservations_of(cell.cluster, cell.model, cell.window)
        pots = charge_cell(cell, rule, quotas, book.cohorts, book.team_quotas, made, self._uses, reserved)
        if rule.spread_over == "month":
            # By policy: one that ends inside the month spreads what is nobody's until then.
            place = ChargePlace(Month.of(start).window.start_ms, cell.cluster, cell.model)
            month = self._later[place, rule]
            for pot in pots:
                if pot.kind in month:
                    month[pot.kind].add(pot)
                else:
                    month[pot.kind] = pot
        else:
            for pot in pots:
                pot.deal(made, self._spread)
        if made is not day:
            mark_up(made, rule.mark_up)
            _enter(made, day)

    def closed(self, commitments: Sequence[ChargeLine] = ()) -> ChargeAccount:
        """The account, with what is spread over months, what contracts change, floors and caps; nothing is
        entered after it."""
        for (place, rule), month in self._later.items():
            made: CellCharges = defaultdict(ChargeAmount)
            for pot in month.values():
                pot.deal(made, self._spread)
            mark_up(made, rule.mark_up)
            _enter(made, self._found[place])
        lines = [
            ChargeLine(place, key, each.board_ms, each.nano)
            for place, made in self._found.items()
            for key, each in made.items()
        ]
        lines += _platform_once(commitments)
        lines += _limits(lines, self._book)
        kept = sorted(line for line in lines if line.board_ms or line.nano)
        currency = self._book.file.currency or self._currency
        quotas = tuple(sorted(self._uses.items(), key=lambda each: each[0]))
        spreads = tuple(sorted(self._spread.items(), key=lambda each: each[0]))
        return ChargeAccount(currency, tuple(kept), self._capacity, self._unpriced_ms, quotas, spreads)


def _platform_once(lines: Iterable[ChargeLine]) -> list[ChargeLine]:
    """One line for each place and key: what the platform keeps has many."""
    sums: CellCharges = defaultdict(ChargeAmount)
    places = {}
    for line in lines:
        sums[line.key].add(line.board_ms, line.nano)
        places[line.key] = line.place
    return [ChargeLine(places[key], key, each.board_ms, each.nano) for key, each in sums.items()]


def _pieces(whole: CapacityCell, book: PolicyBook, ledger_currency: str) -> Iterator[CapacityCell]:
    """Cells in which one policy and one rate hold, in the currency of the charges."""
    for cell in cut(whole, book.edges_of(whole.cluster, whole.model, whole.window)):
        rate = book.rate_at(ledger_currency, cell.window.start_ms)
        if rate == NANO:
            yield cell
        else:
            rows = (row._replace(nano=part(row.nano, rate)) for row in cell.rows)
            yield replace(cell, rows=tuple(sorted(rows)))


def _enter(made: CellCharges, found: CellCharges) -> None:
    for key, amount in made.items():
        found[key].add(amount.board_ms, amount.nano)


def _limits(lines: Iterable[ChargeLine], book: PolicyBook) -> list[ChargeLine]:
    sums: dict[tuple[str, Month], int] = defaultdict(int)
    if not book.file.limits:
        return []
    for line in lines:
        month = Month.of(line.place.day_ms)
        sums[line.key.team, month] += line.nano
        for limit in book.file.limits:
            sums.setdefault((limit.team, month), 0)
    found = []
    for (team, month), nano in sums.items():
        own = book.limit_of(team)
        if own is None:
            continue
        place = ChargePlace(month.window.start_ms, "", "")
        if own.floor is not None and nano < own.floor:
            kind, more = ChargeKind.FLOOR, own.floor - nano
        elif own.cap is not None and nano > own.cap:
            kind, more = ChargeKind.CAP, own.cap - nano
        else:
            continue
        found.append(ChargeLine(place, ChargeKey(team, kind), 0, more))
        found.append(ChargeLine(place, ChargeKey(PLATFORM, kind), 0, -more))
    return found


def unmatched_quotas(account: ChargeAccount, book: PolicyBook, span: Window) -> tuple[str, ...]:
    """Quotas of the policy that nothing in a month belongs to, in words: of a GPU model that the clusters
    do not have, or of a queue in which no pod held anything. A misspelt name looks like this."""
    queues = {line.key.queue for line in account.lines if line.key.job_uid}
    found: dict[str, None] = {}
    for quota in book.file.quotas:
        if quota.start_ms >= span.end_ms or quota.end_ms <= span.start_ms or quota.shared:
            continue
        where = "" if quota.cluster is None else f" in cluster {quota.cluster}"
        what = f"quota of {quota.team} for {quota.model}{where}"
        if not any(
            key.model == quota.model and quota.cluster in (None, key.cluster) for key, _ in account.quotas
        ):
            found[f"{what}: there is no such GPU in the month, and nothing is charged by it"] = None
        elif quota.queue is not None and quota.queue not in queues:
            found[f"{what}: no pod held anything in queue {quota.queue} in the month"] = None
    clusters = {line.place.cluster for line in account.lines if line.place.cluster}
    for policy in book.file.policies:
        if policy.start_ms >= span.end_ms or policy.end_ms <= span.start_ms:
            continue
        for name in sorted({*policy.clusters} - clusters):
            found[f"policy for cluster {name}: the ledger has no such cluster in the month"] = None
        named = {name for discount in policy.discounts for name in discount.queue or ()}
        for name in sorted(named - queues):
            found[f"discount for queue {name}: no pod held anything in it in the month"] = None
    return tuple(found)
