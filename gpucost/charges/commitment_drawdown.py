"""Who uses up which commitment, hour by hour, and what that costs whom.

In every hour of UTC, in this order, each step over the contracts in their order (``order``, then id):

1. the owner's use draws on its contract;
2. the use of all other teams, together: where not enough is left, each gets a part in proportion to its use;
3. capacity that no pod held, so that a node that stands idle is paid once, by its contract;
4. of take-or-pay contracts, what is beyond the floor and within the quantity, at the contract's price;
5. what is beyond, at the overage price of the first contract that has one;
6. the rest, at the price of its usage line.

A period (hour, day, month, term) costs ``cost`` and commits ``committed``. Drawing x of it costs
floor(cost * x / committed), so used + idle + unused = cost at the end of the period, to the nano-unit, and no
more is drawn than was committed or used. What was not drawn is charged in the last hour of its period.

All of it is a pure function of the contracts and of the use since the beginning of the periods that touch
the window (``reads_from``), or of what is said to have been drawn before it: the order of cells makes no
difference, and the windows of any partition give the same entries as the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpucost.charges.contract_schedule import ContractSchedule
from gpucost.charges.contract_terms import ContractFile, ContractTerms, ScopeReach
from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, split_by_weight
from gpucost.domain.time import HOUR_MS, Window

CellKey = tuple[str, str, str, str, str, str]


@dataclass(frozen=True, slots=True, order=True)
class UsageCell:
    """Use of one team in one hour of one pool at one rate; capacity that no pod held has no team.

    ``board_ms`` is GPU time in ms, ``nano`` its price by the usage lines, ``list_nano`` by the list; None
    where there is no price. ``lost_board_ms`` is the part of it that interruptions made worthless.
    """

    hour_ms: int
    cluster: str
    pool: str
    model: str
    capacity_type: str
    team: str
    rate_id: str
    board_ms: int
    list_nano: int | None
    nano: int | None
    lost_board_ms: int = 0

    @property
    def key(self) -> CellKey:
        return (self.cluster, self.pool, self.model, self.capacity_type, self.team, self.rate_id)


class DrawKind(StrEnum):
    USED = "used"
    """Drawn from what is committed by a team's use."""
    IDLE = "idle"
    """Drawn from what is committed by capacity that no pod held: a part of what is unused."""
    UNUSED = "unused"
    """Committed and never drawn."""
    AT_PRICE = "at_price"
    """Beyond the floor of take-or-pay, within the quantity."""
    OVERAGE = "overage"
    """Beyond the quantity, at the contract's overage price."""
    ON_DEMAND = "on_demand"
    """In no contract: at the price of its usage line."""


OF_COMMITMENT = frozenset({DrawKind.USED, DrawKind.IDLE, DrawKind.UNUSED})
"""What is paid by the commitment, and not by use."""


@dataclass(frozen=True, slots=True)
class DrawEntry:
    """One line of the derived ledger.

    ``holder`` is the team that held the GPUs and ``payer`` the one that pays; both empty for the platform.
    ``quantity`` is in the contract's unit (GPU-ms, or nano-units for spend). ``nano`` is what it costs,
    ``price_nano`` what it would at the price of the usage line, ``list_nano`` by the list: None where that is
    not known. ``capacity_type`` and ``rate_id`` are those of the cell.
    """

    hour_ms: int
    contract: str
    kind: DrawKind
    holder: str
    payer: str
    cluster: str
    pool: str
    model: str
    board_ms: int
    quantity: int
    nano: int | None
    price_nano: int | None
    list_nano: int | None
    capacity_type: str = ""
    rate_id: str = ""


@dataclass(frozen=True, slots=True)
class CommitmentTotals:
    """One contract over a window; quantities are GPU-ms, or nano-units for spend.

    Of every period that touches the window, ``before`` was drawn before it, and ``left`` can still be drawn
    after it: ``committed`` = before + used + idle + unused + left, and ``paid`` the same in money.
    ``eligible_board_ms`` is what teams used in its scope, ``covered_board_ms`` what of it the commitment paid
    for.
    """

    contract: str
    committed: int = 0
    before: int = 0
    used: int = 0
    idle: int = 0
    unused: int = 0
    left: int = 0
    paid_nano: int = 0
    before_nano: int = 0
    used_nano: int = 0
    idle_nano: int = 0
    unused_nano: int = 0
    left_nano: int = 0
    eligible_board_ms: int = 0
    covered_board_ms: int = 0


@dataclass(frozen=True, slots=True)
class DrawnPeriod:
    """What was drawn of a period that goes on: of what is committed, beyond it, and by each team."""

    drawn: int
    beyond: int
    by_team: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ContractDrawdown:
    """The entries of ``window`` by hour, and what became of each contract in it. ``before`` is what was drawn
    before it of periods that go on in it, by contract."""

    window: Window
    entries: tuple[DrawEntry, ...]
    totals: tuple[CommitmentTotals, ...]
    before: Mapping[str, DrawnPeriod]


def schedules_of(contracts: Iterable[ContractTerms]) -> tuple[ContractSchedule, ...]:
    return tuple(ContractSchedule.of(terms) for terms in contracts)


def reads_from(schedules: Iterable[ContractSchedule], window: Window) -> int:
    """The instant from which use must be known, to say what ``window`` draws: an hour at which no period is
    open that began before it. What one contract drew last week decides what was left for another."""
    known, first = tuple(schedules), window.start_ms
    while True:
        cuts = ((schedule, Window(first, window.end_ms).intersect(schedule.term)) for schedule in known)
        starts = [schedule.period(cut.start_ms).start_ms for schedule, cut in cuts if cut is not None]
        before = min([first, *starts]) // HOUR_MS * HOUR_MS
        if before == first:
            return first
        first = before


def part_of_hour(amount: int, span: Window) -> int:
    """What of an amount of an hour falls into ``span``, which is in the hour: in proportion, as when in the
    hour the use was, is not known. Parts of an hour add up to it."""
    before = span.start_ms % HOUR_MS
    return amount * (before + span.length_ms) // HOUR_MS - amount * before // HOUR_MS


def draw_down(
    file: ContractFile,
    schedules: Sequence[ContractSchedule],
    cells: Iterable[UsageCell],
    window: Window,
    before: Mapping[str, DrawnPeriod] | None = None,
) -> ContractDrawdown:
    """What ``window`` (whole hours) draws; ``cells`` must reach back to ``reads_from``, or to the window
    alone with ``before``, what was drawn until then. Cells before that, and after the window, make no
    difference. Raises InputError for a window or cell that cuts an hour."""
    if window.start_ms % HOUR_MS or window.end_ms % HOUR_MS:
        raise InputError("window", str(window), "whole hours in UTC")
    first = reads_from(schedules, window) if before is None else window.start_ms
    by_hour = _by_hour(cells, first, window.end_ms)
    drawers = [_Drawer(schedule, file.reach(schedule.terms)) for schedule in schedules]
    for hour_ms in range(first, window.start_ms, HOUR_MS):
        for _ in _hour(hour_ms, by_hour.get(hour_ms, ()), drawers, counts=False):
            pass
    if before is not None:
        for drawer in drawers:
            if drawer.terms.id in before:
                drawer.resume(window.start_ms, before[drawer.terms.id])
    drawn = {drawer.terms.id: drawer.stand() for drawer in drawers if drawer.goes_on(window.start_ms)}
    entries = [
        entry
        for hour_ms in range(window.start_ms, window.end_ms, HOUR_MS)
        for entry in _hour(hour_ms, by_hour.get(hour_ms, ()), drawers, counts=True)
    ]
    totals = tuple(drawer.total() for drawer in drawers)
    return ContractDrawdown(window, tuple(entries), totals, drawn)


def _by_hour(cells: Iterable[UsageCell], first_ms: int, end_ms: int) -> dict[int, list[UsageCell]]:
    """The cells of each hour in one order, those of one key added up."""
    merged: dict[tuple[int, CellKey], UsageCell] = {}
    for cell in cells:
        if cell.hour_ms % HOUR_MS or cell.board_ms < 0:
            raise InputError("usage", repr(cell), "whole hours in UTC and GPU time of at least 0")
        if first_ms <= cell.hour_ms < end_ms and cell.board_ms:
            at = (cell.hour_ms, cell.key)
            merged[at] = _added(merged[at], cell) if at in merged else cell
    found: dict[int, list[UsageCell]] = defaultdict(list)
    for at in sorted(merged):
        found[at[0]].append(merged[at])
    return found


def _added(one: UsageCell, two: UsageCell) -> UsageCell:
    return replace(
        one,
        board_ms=one.board_ms + two.board_ms,
        list_nano=_sum(one.list_nano, two.list_nano),
        nano=_sum(one.nano, two.nano),
        lost_board_ms=one.lost_board_ms + two.lost_board_ms,
    )


def _sum(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one + two


@dataclass
class _OpenCell:
    """A cell while contracts take from it; ``taken`` is in GPU-ms, by all of them and by each."""

    cell: UsageCell
    taken: int = 0
    by: dict[str, int] = field(default_factory=dict)

    def part(self, board_ms: int) -> tuple[int | None, int | None]:
        """The price and the list price of the next ``board_ms``: parts of a cell add up to the cell."""

        def share(nano: int | None) -> int | None:
            if nano is None:
                return None
            whole, end = self.cell.board_ms, self.taken + board_ms
            return nano * end // whole - nano * self.taken // whole

        return share(self.cell.nano), share(self.cell.list_nano)


@dataclass
class _Drawer:
    """A contract while it is drawn from: the period, and what was drawn of it."""

    schedule: ContractSchedule
    reach: tuple[ScopeReach, ...]
    period: Window | None = None
    committed: int = 0
    promised: int = 0
    cost: int = 0
    drawn: int = 0
    beyond: int = 0
    by_team: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    counted: Window | None = None
    known: dict[tuple[str, str, str, str], bool] = field(default_factory=dict)

    @property
    def terms(self) -> ContractTerms:
        return self.schedule.terms

    def begin(self, hour: Window) -> Window | None:
        """The part of ``hour`` that the contract is in force; opens its period."""
        span = hour.intersect(self.schedule.term)
        if span is not None and (self.period is None or span.start_ms >= self.period.end_ms):
            self.resume(span.start_ms, DrawnPeriod(0, 0, {}))
        return span

    def resume(self, at_ms: int, before: DrawnPeriod) -> None:
        """Opens the period that ``at_ms`` belongs to, of which ``before`` was drawn."""
        self.period = self.schedule.period(at_ms)
        self.committed = self.schedule.committed(self.period)
        self.promised = self.schedule.promised(self.period)
        self.cost = self.schedule.cost(self.period)
        self.drawn, self.beyond, self.by_team = before.drawn, before.beyond, dict(before.by_team)

    def goes_on(self, at_ms: int) -> bool:
        """Whether a period is open that ends after ``at_ms``."""
        return self.period is not None and self.period.end_ms > at_ms

    def stand(self) -> DrawnPeriod:
        return DrawnPeriod(self.drawn, self.beyond, dict(self.by_team))

    def covers(self, cell: UsageCell) -> bool:
        place = (cell.cluster, cell.pool, cell.model, cell.capacity_type)
        if place not in self.known:
            self.known[place] = any(reach.covers(*place) for reach in self.reach)
        return self.known[place]

    def charged(self, quantity: int) -> int:
        """What ``quantity`` more of the period costs."""
        before = self.cost * self.drawn // self.committed
        self.drawn += quantity
        return self.cost * self.drawn // self.committed - before

    def open(self) -> None:
        """Called in hours that count: what a period holds, once, and what of it is gone."""
        if self.counted == self.period:
            return
        self.counted = self.period
        gone = self.cost * self.drawn // self.committed if self.committed else 0
        self.count(committed=self.committed, before=self.drawn, paid_nano=self.cost, before_nano=gone)

    def count(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            self.sums[name] += amount

    def total(self) -> CommitmentTotals:
        return CommitmentTotals(self.terms.id, **self.sums)


def _hour(
    hour_ms: int, cells: Sequence[UsageCell], drawers: Sequence[_Drawer], *, counts: bool
) -> Iterator[DrawEntry]:
    hour = Window(hour_ms, hour_ms + HOUR_MS)
    opened = [_OpenCell(cell) for cell in cells]
    held = [each for each in opened if each.cell.team]
    nobody = [each for each in opened if not each.cell.team]
    turns: list[_Turn] = []
    for drawer in drawers:
        span = drawer.begin(hour)
        if span is None:
            continue
        turn = _Turn(hour, span, drawer, counts)
        if counts:
            drawer.open()
            reached = sum(turn.within(each) for each in held if drawer.covers(each.cell))
            drawer.count(eligible_board_ms=reached)
        turns.append(turn)
    for turn in turns:
        team = turn.drawer.terms.team
        yield from turn.commit([each for each in held if team and each.cell.team == team], DrawKind.USED)
    for turn in turns:
        yield from turn.commit(held, DrawKind.USED)
    for turn in turns:
        yield from turn.commit(nobody, DrawKind.IDLE)
    for cells_in_turn in (held, nobody):
        for turn in turns:
            yield from turn.at_price(cells_in_turn)
    for turn in turns:
        yield from turn.overage(opened)
    for each in opened:
        yield from _on_demand(hour_ms, each)
    for turn in turns:
        yield from turn.close()


@dataclass
class _Turn:
    """One contract in one hour."""

    hour: Window
    span: Window
    drawer: _Drawer
    counts: bool

    def within(self, each: _OpenCell) -> int:
        """The use of a cell while the contract is in force."""
        return part_of_hour(each.cell.board_ms, self.span)

    def _free(self, each: _OpenCell) -> int:
        gone = each.by.get(self.drawer.terms.id, 0)
        return max(0, min(each.cell.board_ms - each.taken, self.within(each) - gone))

    def _reached(self, cells: Sequence[_OpenCell]) -> list[tuple[_OpenCell, int]]:
        covered = ((each, self._free(each)) for each in cells if self.drawer.covers(each.cell))
        return [(each, free) for each, free in covered if free]

    def commit(self, cells: Sequence[_OpenCell], kind: DrawKind) -> Iterator[DrawEntry]:
        """Draws on what is committed, as far as it goes."""
        drawer = self.drawer
        left = drawer.committed - drawer.drawn
        if left <= 0:
            return
        wanted = [
            (each, free, need)
            for each, free in self._reached(cells)
            if (need := self._need(each, free)) is not None
        ]
        parts = _dealt([(free, need) for _, free, need in wanted], left)
        costs = _split(drawer.charged(sum(drawn for _, drawn in parts)), [drawn for _, drawn in parts])
        for (each, _, _), (_, drawn) in zip(wanted, parts, strict=True):
            if each.cell.team:
                drawer.by_team[each.cell.team] = drawer.by_team.get(each.cell.team, 0) + drawn
        for (each, _, _), (board_ms, drawn), cost in zip(wanted, parts, costs, strict=True):
            if board_ms or drawn:
                yield from self._entries(each, kind, board_ms, drawn, cost)

    def _need(self, each: _OpenCell, board_ms: int) -> int | None:
        """How much of the commitment ``board_ms`` of a cell would draw; None where that cannot be known."""
        terms = self.drawer.terms
        if not terms.is_spend:
            return board_ms
        if terms.price is not None:
            return board_ms * terms.price // HOUR_MS
        _, listed = each.part(board_ms)
        return None if listed is None else listed * (100 * NANO - (terms.percent_off or 0)) // (100 * NANO)

    def at_price(self, cells: Sequence[_OpenCell]) -> Iterator[DrawEntry]:
        drawer = self.drawer
        left = drawer.promised - drawer.committed - drawer.beyond
        if left <= 0 or drawer.terms.price is None or drawer.terms.is_spend:
            return
        reached = self._reached(cells)
        for (each, _), (board_ms, _) in zip(reached, _dealt([(f, f) for _, f in reached], left), strict=True):
            drawer.beyond += board_ms
            yield from self._beyond(each, DrawKind.AT_PRICE, board_ms, drawer.terms.price)

    def overage(self, cells: Sequence[_OpenCell]) -> Iterator[DrawEntry]:
        price = self.drawer.terms.overage_price
        if price is not None:
            for each, free in self._reached(cells):
                yield from self._beyond(each, DrawKind.OVERAGE, free, price)

    def _beyond(self, each: _OpenCell, kind: DrawKind, board_ms: int, price: int) -> Iterator[DrawEntry]:
        if board_ms:
            # Parts of a cell at one price add up to the cell, as with prices of lines.
            cost = price * (each.taken + board_ms) // HOUR_MS - price * each.taken // HOUR_MS
            yield from self._entries(each, kind, board_ms, board_ms, cost)

    def _entries(
        self, each: _OpenCell, kind: DrawKind, board_ms: int, quantity: int, cost: int
    ) -> Iterator[DrawEntry]:
        """The entry of a draw; idle capacity is dealt to those who pay for what is unused."""
        cell, terms = each.cell, self.drawer.terms
        price, listed = each.part(board_ms)
        each.taken += board_ms
        each.by[terms.id] = each.by.get(terms.id, 0) + board_ms
        if self.counts:
            self._count(kind, board_ms, quantity, cost)
        whole = DrawEntry(
            self.hour.start_ms,
            terms.id,
            kind,
            cell.team,
            cell.team,
            cell.cluster,
            cell.pool,
            cell.model,
            board_ms,
            quantity,
            cost,
            price,
            listed,
            cell.capacity_type,
            cell.rate_id,
        )
        yield from self._paid(whole) if kind is DrawKind.IDLE else (whole,)

    def _count(self, kind: DrawKind, board_ms: int, quantity: int, cost: int) -> None:
        if kind is DrawKind.USED:
            self.drawer.count(used=quantity, used_nano=cost, covered_board_ms=board_ms)
        elif kind is DrawKind.IDLE:
            self.drawer.count(idle=quantity, idle_nano=cost)

    def _paid(self, entry: DrawEntry) -> Iterator[DrawEntry]:
        """``entry`` with who pays for it, by the contract's policy for what is unused."""
        terms, by_team = self.drawer.terms, {t: n for t, n in self.drawer.by_team.items() if n}
        if terms.payer_of_unused == "owner":
            yield replace(entry, payer=terms.team)
        elif terms.payer_of_unused == "platform" or not by_team:
            yield entry
        else:
            teams = sorted(by_team)
            weights = [by_team[team] for team in teams]

            def dealt(amount: int | None) -> list[int] | list[None]:
                return [None] * len(teams) if amount is None else _split(amount, weights)

            boards, drawn = _split(entry.board_ms, weights), _split(entry.quantity, weights)
            money = (dealt(entry.nano), dealt(entry.price_nano), dealt(entry.list_nano))
            for team, board_ms, quantity, nano, price, listed in zip(
                teams, boards, drawn, *money, strict=True
            ):
                yield replace(
                    entry,
                    payer=team,
                    board_ms=board_ms,
                    quantity=quantity,
                    nano=nano,
                    price_nano=price,
                    list_nano=listed,
                )

    def close(self) -> Iterator[DrawEntry]:
        """What was not drawn, in the last hour of its period; before that, what can still be drawn."""
        drawer, period = self.drawer, self.drawer.period
        assert period is not None
        left = drawer.committed - drawer.drawn
        gone = drawer.cost * drawer.drawn // drawer.committed if drawer.committed else 0
        if self.span.end_ms < period.end_ms:
            drawer.sums["left"], drawer.sums["left_nano"] = left, drawer.cost - gone
            return
        drawer.sums["left"] = drawer.sums["left_nano"] = 0
        if self.counts:
            drawer.count(unused=left, unused_nano=drawer.cost - gone)
        if left or drawer.cost - gone:
            board_ms = 0 if drawer.terms.is_spend else left
            yield from self._paid(
                DrawEntry(
                    self.hour.start_ms,
                    drawer.terms.id,
                    DrawKind.UNUSED,
                    "",
                    "",
                    "",
                    "",
                    "",
                    board_ms,
                    left,
                    drawer.cost - gone,
                    0,
                    0,
                )
            )


def _on_demand(hour_ms: int, each: _OpenCell) -> Iterator[DrawEntry]:
    cell, rest = each.cell, each.cell.board_ms - each.taken
    if rest:
        price, listed = each.part(rest)
        yield DrawEntry(
            hour_ms,
            "",
            DrawKind.ON_DEMAND,
            cell.team,
            cell.team,
            cell.cluster,
            cell.pool,
            cell.model,
            rest,
            0,
            price,
            price,
            listed,
            cell.capacity_type,
            cell.rate_id,
        )


def _dealt(wanted: Sequence[tuple[int, int]], left: int) -> list[tuple[int, int]]:
    """GPU-ms and quantity of each, of those that want (GPU-ms, quantity): all of it, or, where ``left`` is
    not enough, parts in proportion to the quantity."""
    whole = sum(need for _, need in wanted)
    if whole <= left:
        return list(wanted)
    quantities = _split(left, [need for _, need in wanted])
    return [
        (board_ms * quantity // need if need else 0, quantity)
        for (board_ms, need), quantity in zip(wanted, quantities, strict=True)
    ]


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` in parts proportional to ``weights``, by largest remainder."""
    if not any(weights):
        return [0] * len(weights)
    if len(weights) == 1:
        return [total]
    by_place = split_by_weight(total, dict(enumerate(weights)))
    return [by_place[n] for n in range(len(weights))]
