"""What a scenario costs, and who pays: whole nano-units that add up to the capacity.

Without a charge policy a team pays what it held, and what nobody held stands beside it. With one, the
capacity is cut into cells of an hour, as the ledger has them, and charged by the same engine as a month; with
contracts their views of the cost are given. Each amount is a part of a pool's cost in a stretch of one price,
by largest remainder: teams and what nobody held add up to it exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from gpucost.advisor.replay.history_record import PoolRecord
from gpucost.advisor.replay.pool_changes import PriceStep
from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.charges.charge_account import ChargeLine, charges, commitment_lines, unmatched_quotas
from gpucost.charges.commitment_drawdown import UsageCell, draw_down, schedules_of
from gpucost.charges.commitment_report import report_commitments
from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import UNALLOCATED, Bucket
from gpucost.domain.money import round_half_even, split_by_weight
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.reports.replay.run_views import RunView, pool_of


class PayerKey(NamedTuple):
    """Who held: ``team`` is UNALLOCATED for time that nobody held."""

    team: str
    queue: str


@dataclass(slots=True)
class PaidTime:
    """GPU-milliseconds, what they cost by the price of their pools, and how many have no price."""

    board_ms: int = 0
    nano: int = 0
    unpriced_ms: int = 0

    def add(self, other: PaidTime) -> None:
        self.board_ms += other.board_ms
        self.nano += other.nano
        self.unpriced_ms += other.unpriced_ms


@dataclass(frozen=True)
class ScenarioMoney:
    """``parts`` and the capacity are the same sum, to the millisecond and the nano-unit. ``over_ms`` was held
    beyond what nodes give, and is counted as capacity. ``charged`` by team is by the charge policy, ``kept``
    what the platform keeps of it; ``effective`` by team is what contracts make of the cost (the platform has
    no name there). These are None without a policy, or contracts; ``remarks`` say what of either belongs to
    nothing here."""

    capacity: PaidTime
    parts: Mapping[PayerKey, PaidTime]
    over_ms: int
    charged: Mapping[str, int] | None = None
    kept: int | None = None
    charge_difference: int = 0
    effective: Mapping[str, int] | None = None
    remarks: tuple[str, ...] = ()

    def of_team(self, team: str) -> PaidTime:
        return _sum(paid for key, paid in self.parts.items() if key.team == team)

    def of_payers(self, kind: str, name: str, by_team: Mapping[str, int] | None) -> int | None:
        """Of amounts by team that of a team, or of all teams together; None of other groups."""
        if by_team is None or kind == "queue":
            return None
        return by_team.get(name, 0) if kind == "team" else sum(nano for team, nano in by_team.items() if team)

    @property
    def held(self) -> PaidTime:
        """Of all teams."""
        return _sum(paid for key, paid in self.parts.items() if key.team != UNALLOCATED)

    def of_queue(self, queue: str) -> PaidTime:
        return _sum(
            paid for key, paid in self.parts.items() if key.queue == queue and key.team != UNALLOCATED
        )

    @property
    def difference(self) -> tuple[int, int]:
        """GPU-milliseconds and nano-units by which the parts differ from the capacity: 0."""
        found = _sum(self.parts.values())
        return found.board_ms - self.capacity.board_ms, found.nano - self.capacity.nano


def _sum(parts: Iterable[PaidTime]) -> PaidTime:
    total = PaidTime()
    for each in parts:
        total.add(each)
    return total


def scenario_money(
    views: Sequence[RunView],
    pools: Mapping[str, PoolRecord],
    prices: Sequence[PriceStep],
    window: Window,
    cluster: str,
    currency: str,
    policy: PolicyBook | None = None,
    contracts: ContractBook | None = None,
) -> ScenarioMoney:
    """Of ``views``. ``policy`` is None, or plain, where nothing is charged; ``contracts`` stand in the place
    of those of the policy, and charge whole hours. What they charged before the window is not known: their
    periods begin in it."""
    held: dict[str, list[tuple[PayerKey, int, int, int]]] = {name: [] for name in pools}
    for view in views:
        name = pool_of(view.job, pools)
        if name:
            key = PayerKey(view.job.team, view.job.queue)
            held[name] += [(key, run.start_ms, run.end_ms, view.job.gpus) for run in view.runs]
    capacity, over_ms = PaidTime(), 0
    parts: dict[PayerKey, PaidTime] = defaultdict(PaidTime)
    for name, pool in sorted(pools.items()):
        for part, price, own in _stretches_of_price(pool, prices, window):
            paid, more_ms = _pool_parts(held[name], own, price, part)
            over_ms += more_ms
            for key, each in paid.items():
                parts[key].add(each)
                capacity.add(each)
    money = ScenarioMoney(capacity, dict(parts), over_ms)

    def cells() -> Iterator[CapacityCell]:
        return hour_cells(views, pools, prices, window, cluster)

    bound = contracts if contracts is not None or policy is None else policy.contracts
    lines: tuple[ChargeLine, ...] = ()
    if bound is not None:
        used, span = usage_cells(cells()), _whole_hours(window)
        drawn = draw_down(bound.file, schedules_of(bound.in_force), used, span)
        found = report_commitments(bound, used, span, drawn=drawn)
        if policy is not None and not policy.is_plain:
            lines = commitment_lines(Month.of(window.start_ms), drawn.entries, bound, policy)
        remarks = tuple(
            f"contract {each.contract}: no team used anything in its scope"
            for each in found.contracts
            if not each.eligible_board_ms
        )
        effective = {each.team: each.effective_nano for each in found.teams}
        money = replace(money, effective=effective, remarks=remarks)
    if policy is None or policy.is_plain:
        return money
    account = charges(cells(), policy, currency_or_its(currency, policy), lines)
    sums = {team: sum(each.nano for each in kinds.values()) for team, kinds in account.by_team().items()}
    return replace(
        money,
        charged={team: nano for team, nano in sums.items() if not team.startswith("__platform")},
        kept=account.kept.nano,
        charge_difference=account.difference.nano,
        remarks=(*unmatched_quotas(account, policy, window), *money.remarks),
    )


def currency_or_its(currency: str, policy: PolicyBook) -> str:
    """That of a history; where it has none (files, traces), its amounts are taken for the policy's."""
    own = policy.file.currency or (policy.contracts.currency if policy.contracts is not None else "")
    return currency or own


def _whole_hours(window: Window) -> Window:
    return Window(window.start_ms // HOUR_MS * HOUR_MS, -(-window.end_ms // HOUR_MS) * HOUR_MS)


def _stretches_of_price(
    pool: PoolRecord, prices: Sequence[PriceStep], window: Window
) -> Iterator[tuple[Window, Fraction | None, PoolRecord]]:
    """In each of them it has one price, and one model. Where nodes of another model stand in it, each model
    is a part of the pool, and of all that is held in it, by its part of the nodes."""
    own = [each for each in prices if each.pool == pool.name]
    changed = {at_ms for at_ms, _ in pool.models}
    if pool.guests:
        changed |= {each.since_ms for each in pool.guests} | {at_ms for at_ms, _ in pool.steps}
    edges = sorted({window.start_ms, window.end_ms, *changed, *(each.at_ms for each in own)})
    inside = [each for each in edges if window.start_ms <= each <= window.end_ms]
    for low, high in pairwise(inside):
        nodes = next((count for at_ms, count in reversed(pool.steps) if at_ms <= low), 0)
        left = nodes
        for model, count in pool.guests_at(low).items():
            if count:
                left -= count
                part = replace(pool, model=model, models=(), share=pool.share * Fraction(count, nodes))
                known = [each.price for each in own if each.at_ms <= low and each.guest == model]
                yield Window(low, high), known[-1] if known else None, part
        if left or not nodes:
            part = pool if left == nodes else replace(pool, share=pool.share * Fraction(left, nodes))
            known = [each.price for each in own if each.at_ms <= low and not each.guest]
            yield Window(low, high), known[-1] if known else None, part


def _pool_parts(
    held: Sequence[tuple[PayerKey, int, int, int]],
    pool: PoolRecord,
    price: Fraction | None,
    part: Window,
) -> tuple[dict[PayerKey, PaidTime], int]:
    """What each held of a pool in a stretch of one price, and what nobody held; and how much was held beyond
    what nodes give."""
    weights: dict[PayerKey, int] = defaultdict(int)
    for key, start_ms, end_ms, gpus in held:
        inside = min(end_ms, part.end_ms) - max(start_ms, part.start_ms)
        if inside > 0:
            weights[key] += inside * gpus
    there = capacity_units_ms(pool, part)
    used = sum(weights.values())
    if there > used:
        weights[PayerKey(UNALLOCATED, "")] = there - used
    whole = max(there, used)
    if not whole:
        return {}, 0
    board_ms = _rounded(whole * pool.share)
    nano = 0 if price is None else _rounded(board_ms * price / HOUR_MS)
    dealt, cost = split_by_weight(board_ms, weights), split_by_weight(nano, weights)
    found = {
        key: PaidTime(dealt[key], cost[key], dealt[key] if price is None else 0) for key in sorted(weights)
    }
    return found, _rounded(max(0, used - there) * pool.share)


def _rounded(value: Fraction | int) -> int:
    return value if isinstance(value, int) else round_half_even(value.numerator, value.denominator)


def capacity_units_ms(pool: PoolRecord, window: Window) -> int:
    """Units times milliseconds that the nodes of a pool give in a window."""
    ends = [at_ms for at_ms, _ in pool.steps[1:]] + [window.end_ms]
    return sum(
        nodes * pool.gpus * max(0, min(end_ms, window.end_ms) - max(at_ms, window.start_ms))
        for (at_ms, nodes), end_ms in zip(pool.steps, ends, strict=True)
    )


def hour_cells(
    views: Sequence[RunView],
    pools: Mapping[str, PoolRecord],
    prices: Sequence[PriceStep],
    window: Window,
    cluster: str,
) -> Iterator[CapacityCell]:
    """The capacity by hour (UTC) and model, as the ledger has it; hours that the window cuts are shorter.
    Parts of GPUs are rounded so that the hours of a stretch of one price are all of it."""
    runs: dict[tuple[str, int], list[tuple[RunView, int, int]]] = defaultdict(list)
    grid = _whole_hours(window)
    for view in views:
        name = pool_of(view.job, pools)
        for run in view.runs if name else ():
            at_ms = max(run.start_ms, window.start_ms)
            end_ms = min(run.end_ms, window.end_ms)
            while at_ms < end_ms:
                place = (at_ms - grid.start_ms) // HOUR_MS
                until = min(end_ms, grid.start_ms + (place + 1) * HOUR_MS)
                runs[name, place].append((view, at_ms, until))
                at_ms = until
    stretches = [
        (name, part, _PricedStretch(own, price))
        for name, pool in sorted(pools.items())
        for part, price, own in _stretches_of_price(pool, prices, window)
    ]
    for number, whole in enumerate(grid.split(HOUR_MS)):
        hour = whole.intersect(window)
        if hour is None:
            continue
        rows: dict[str, list[CellRow]] = defaultdict(list)
        for name, part, stretch in stretches:
            inside = part.intersect(hour)
            if inside is not None:
                own_runs = runs.get((name, number), [])
                rows[stretch.pool.model_at(inside.start_ms)] += _rows(own_runs, stretch, inside)
        for model, found in rows.items():
            if found:
                yield CapacityCell.of(cluster, model, hour, found)


@dataclass(slots=True)
class _PricedStretch:
    """A pool while it has one price (None: none); what its hours were rounded to until now."""

    pool: PoolRecord
    price: Fraction | None
    units_ms: int = 0
    told: PaidTime = field(default_factory=PaidTime)

    def add(self, units_ms: int) -> PaidTime:
        """The next hour: as much as makes all until then what it would be rounded at once."""
        self.units_ms += units_ms
        board_ms = _rounded(self.units_ms * self.pool.share)
        nano = 0 if self.price is None else _rounded(board_ms * self.price / HOUR_MS)
        found = PaidTime(board_ms - self.told.board_ms, nano - self.told.nano)
        self.told = PaidTime(board_ms, nano)
        return found


def _rows(
    own: Sequence[tuple[RunView, int, int]], stretch: _PricedStretch, part: Window
) -> Iterator[CellRow]:
    pool, price = stretch.pool, stretch.price
    weights: dict[int, int] = {}
    spans: dict[int, tuple[int, int]] = {}
    for n, (view, start_ms, end_ms) in enumerate(own):
        first, last = max(start_ms, part.start_ms), min(end_ms, part.end_ms)
        if first < last:
            weights[n], spans[n] = (last - first) * view.job.gpus, (first, last)
    there, used = capacity_units_ms(pool, part), sum(weights.values())
    if there > used:
        weights[-1] = there - used
    whole = max(there, used)
    if not whole:
        return
    paid = stretch.add(whole)
    dealt, cost = split_by_weight(paid.board_ms, weights), split_by_weight(paid.nano, weights)
    for n in weights:
        unpriced = dealt[n] if price is None else 0
        if n < 0:
            free = Bucket.UNALLOCATED
            span = part.start_ms, part.end_ms
            yield CellRow(free, "", "", "", "", "", "", *span, dealt[n], cost[n], unpriced)
            continue
        job = own[n][0].job
        space, _, name = job.name.rpartition("/")
        who = job.team, job.queue, space, name, job.uid, ""
        yield CellRow(Bucket.HELD, *who, *spans[n], dealt[n], cost[n], unpriced)


def usage_cells(cells: Iterable[CapacityCell]) -> list[UsageCell]:
    """Cells as contracts are drawn down on them: by hour, model and team."""
    found = []
    for cell in cells:
        sums: dict[str, PaidTime] = defaultdict(PaidTime)
        for row in cell.rows:
            sums[row.team].add(PaidTime(row.board_ms, row.nano, row.unpriced_ms))
        for team, paid in sorted(sums.items()):
            nano = None if paid.unpriced_ms else paid.nano
            place = cell.window.start_ms // HOUR_MS * HOUR_MS, cell.cluster, "", cell.model, "", team, ""
            found.append(UsageCell(*place, paid.board_ms, nano, nano))
    return found
