"""What contracts were worth: utilisation, coverage, what was not used, and three views of the same use.

The views are sums over one set of entries (``commitment_drawdown``), by team: ``list_nano`` by list prices,
``contracted_nano`` by the prices of usage lines (the price book with its discounts), and ``effective_nano``,
what contracts and on-demand use really cost. The last adds up to what contracts charge in the window plus
what is beyond them; for prepaid pools that is less than was paid, until they end (``left_nano``).

``corrections`` are what late use changes in hours that were closed: differences of two drawdowns, to be filed
as adjustments, so that a closed month stays as it was. ``spot_summaries`` put interruptions into a price.

``break_even``: whether a planned contract would have paid. The use of a window is drawn down twice, with and
without the planned contract, as if its term had begun with the window: of an amount paid once, the window
bears its part of the term. Whatever the contract would have taken from others is theirs to lose, so savings
count what all teams and the platform pay. Use without a price is left out on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gpucost.charges.commitment_drawdown import (
    OF_COMMITMENT,
    CommitmentTotals,
    ContractDrawdown,
    DrawEntry,
    DrawKind,
    DrawnPeriod,
    UsageCell,
    draw_down,
    part_of_hour,
    schedules_of,
)
from gpucost.charges.contract_schedule import ContractSchedule, months_of
from gpucost.charges.contract_terms import ContractBook, ContractTerms
from gpucost.domain.money import round_half_even
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window


@dataclass(frozen=True, slots=True)
class CommitmentQuantity:
    """A quantity in the unit of its contract: GPU time, or money that use is drawn from."""

    board_ms: int | None
    spend_nano: int | None


@dataclass(frozen=True, slots=True)
class CommitmentSummary:
    """One contract over a window. Quantities and amounts: see ``CommitmentTotals``.

    ``beyond_*`` is use at the contract's price beyond what is committed. ``price_nano`` is what all that the
    contract paid for would have cost without it, ``saved_nano`` the difference; None where a price is
    missing.
    ``nano_per_board_hour`` is what a GPU-hour of teams cost, what was not used included.
    """

    contract: str
    kind: str
    owner: str
    unused_policy: str
    per: str
    term: Window
    committed_quantity: CommitmentQuantity
    before_quantity: CommitmentQuantity
    used_quantity: CommitmentQuantity
    idle_quantity: CommitmentQuantity
    unused_quantity: CommitmentQuantity
    left_quantity: CommitmentQuantity
    due_nano: int
    paid_nano: int
    before_nano: int
    used_nano: int
    idle_nano: int
    unused_nano: int
    left_nano: int
    eligible_board_ms: int
    covered_board_ms: int
    beyond_board_ms: int
    beyond_nano: int
    price_nano: int | None
    saved_nano: int | None
    nano_per_board_hour: int | None
    utilisation: Fraction | None
    coverage: Fraction | None

    @property
    def charged_nano(self) -> int:
        """What the window is charged for the commitment: used, idle and unused."""
        return self.used_nano + self.idle_nano + self.unused_nano


@dataclass(frozen=True, slots=True)
class TeamViews:
    """One team's use and cost in three views; the platform has no name. ``effective_nano`` is
    ``commitment_nano`` (used) + ``unused_nano`` (idle and unused) + ``beyond_nano`` + ``on_demand_nano``.
    ``unpriced_board_ms`` is use without a price: in no amount, but where a contract paid for it."""

    team: str
    board_ms: int
    list_nano: int
    contracted_nano: int
    effective_nano: int
    commitment_nano: int
    unused_nano: int
    beyond_nano: int
    on_demand_nano: int
    unpriced_board_ms: int


@dataclass(frozen=True, slots=True)
class SpotSummary:
    """Spot use with the cost of its interruptions: what a GPU-hour cost that was not lost."""

    contract: str
    board_ms: int
    lost_board_ms: int
    nano: int
    unpriced_board_ms: int
    nano_per_board_hour: int | None
    nano_per_useful_board_hour: int | None


@dataclass(frozen=True, slots=True)
class UsageGaps:
    """Use that is not known, and counts as not used: capacity that was not observed (``unknown_board_ms``),
    ``missing_ms`` of the window for which a cluster has no lines, added up over clusters, and the time before
    the first line in which a period of the window had begun (``unread``)."""

    unknown_board_ms: int = 0
    missing_ms: int = 0
    unread: Window | None = None


@dataclass(frozen=True, slots=True)
class CommitmentReport:
    """``difference_nano`` is what the periods of all contracts cost, by their schedules alone, less what
    became of it: 0. ``gaps`` says what of the use is not known."""

    window: Window
    currency: str
    contracts: tuple[CommitmentSummary, ...]
    teams: tuple[TeamViews, ...]
    total: TeamViews
    spot: tuple[SpotSummary, ...]
    planned: tuple[BreakEven, ...]
    difference_nano: int
    gaps: UsageGaps


_ALL_KNOWN = UsageGaps()


def report_commitments(
    book: ContractBook,
    cells: Sequence[UsageCell],
    window: Window,
    gaps: UsageGaps = _ALL_KNOWN,
    before: Mapping[str, DrawnPeriod] | None = None,
    billed: Window | None = None,
    drawn: ContractDrawdown | None = None,
) -> CommitmentReport:
    """The report of ``window``; ``cells`` and ``before`` are as ``draw_down`` needs them, and ``drawn`` is
    what it made of them, where the caller has it. What is due is that of ``billed``, by default of
    ``window``."""
    schedules = schedules_of(book.in_force)
    found = drawn or draw_down(book.file, schedules, cells, window, before)
    due = [schedule.due(billed or window) for schedule in schedules]
    contracts = tuple(
        _summary(terms, total, [entry for entry in found.entries if entry.contract == terms.id], due_nano)
        for terms, total, due_nano in zip(book.in_force, found.totals, due, strict=True)
        if due_nano or terms.term.intersect(window)
    )
    teams = team_views(found.entries)
    return CommitmentReport(
        window=window,
        currency=book.currency,
        contracts=contracts,
        teams=teams,
        total=_added(teams),
        spot=spot_summaries(book, cells, window),
        planned=tuple(break_even(book, terms, cells, window, before) for terms in book.planned),
        difference_nano=sum(_cost(schedule, window) for schedule in schedules)
        - sum(one.before_nano + one.charged_nano + one.left_nano for one in contracts),
        gaps=gaps,
    )


def _summary(
    terms: ContractTerms, total: CommitmentTotals, entries: Sequence[DrawEntry], due_nano: int
) -> CommitmentSummary:
    def quantity(value: int) -> CommitmentQuantity:
        return CommitmentQuantity(None, value) if terms.is_spend else CommitmentQuantity(value, None)

    beyond = [entry for entry in entries if entry.kind not in OF_COMMITMENT]
    beyond_nano = sum(entry.nano or 0 for entry in beyond)
    prices = [entry.price_nano for entry in entries]
    price = None if None in prices else sum(nano or 0 for nano in prices)
    charged = total.used_nano + total.idle_nano + total.unused_nano
    gone = total.used + total.idle + total.unused
    return CommitmentSummary(
        contract=terms.id,
        kind=terms.kind,
        owner=terms.owner,
        unused_policy=terms.payer_of_unused,
        per=terms.per,
        term=terms.term,
        committed_quantity=quantity(total.committed),
        before_quantity=quantity(total.before),
        used_quantity=quantity(total.used),
        idle_quantity=quantity(total.idle),
        unused_quantity=quantity(total.unused),
        left_quantity=quantity(total.left),
        due_nano=due_nano,
        paid_nano=total.paid_nano,
        before_nano=total.before_nano,
        used_nano=total.used_nano,
        idle_nano=total.idle_nano,
        unused_nano=total.unused_nano,
        left_nano=total.left_nano,
        eligible_board_ms=total.eligible_board_ms,
        covered_board_ms=total.covered_board_ms,
        beyond_board_ms=sum(entry.board_ms for entry in beyond),
        beyond_nano=beyond_nano,
        price_nano=price,
        saved_nano=None if price is None else price - charged - beyond_nano,
        nano_per_board_hour=_per_hour(charged, total.covered_board_ms),
        utilisation=Fraction(total.used, gone) if gone else None,
        coverage=Fraction(total.covered_board_ms, total.eligible_board_ms)
        if total.eligible_board_ms
        else None,
    )


def _cost(schedule: ContractSchedule, window: Window) -> int:
    """What the periods that touch the window cost."""
    cut = window.intersect(schedule.term)
    return 0 if cut is None else sum(schedule.cost(period) for period in schedule.periods(cut))


def _per_hour(nano: int, board_ms: int) -> int | None:
    return round_half_even(nano * HOUR_MS, board_ms) if board_ms else None


def team_views(entries: Iterable[DrawEntry]) -> tuple[TeamViews, ...]:
    """The views of every team, by name; the platform, which has none, comes first."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for entry in entries:
        held, paid = found[entry.holder], found[entry.payer]
        if entry.kind is not DrawKind.UNUSED:
            held["board_ms"] += entry.board_ms
            held["list_nano"] += entry.list_nano or 0
            held["contracted_nano"] += entry.price_nano or 0
            held["unpriced_board_ms"] += entry.board_ms if entry.price_nano is None else 0
        paid[_COLUMN[entry.kind]] += entry.nano or 0
        paid["effective_nano"] += entry.nano or 0
    return tuple(replace(_NOTHING, team=team, **found[team]) for team in sorted(found))


_COLUMN = {
    DrawKind.USED: "commitment_nano",
    DrawKind.IDLE: "unused_nano",
    DrawKind.UNUSED: "unused_nano",
    DrawKind.AT_PRICE: "beyond_nano",
    DrawKind.OVERAGE: "beyond_nano",
    DrawKind.ON_DEMAND: "on_demand_nano",
}
_NOTHING = TeamViews("", 0, 0, 0, 0, 0, 0, 0, 0, 0)


def _added(teams: Sequence[TeamViews]) -> TeamViews:
    return TeamViews(
        "",
        sum(team.board_ms for team in teams),
        sum(team.list_nano for team in teams),
        sum(team.contracted_nano for team in teams),
        sum(team.effective_nano for team in teams),
        sum(team.commitment_nano for team in teams),
        sum(team.unused_nano for team in teams),
        sum(team.beyond_nano for team in teams),
        sum(team.on_demand_nano for team in teams),
        sum(team.unpriced_board_ms for team in teams),
    )


def spot_summaries(book: ContractBook, cells: Iterable[UsageCell], window: Window) -> tuple[SpotSummary, ...]:
    """Spot use of teams in the window, for every contract of the kind ``spot``."""
    held = [cell for cell in cells if cell.team and window.start_ms <= cell.hour_ms < window.end_ms]
    found = []
    for terms in book.spot:
        reach = book.file.reach(terms)
        of = [
            part
            for cell in held
            if any(r.covers(cell.cluster, cell.pool, cell.model, cell.capacity_type) for r in reach)
            and (part := _within(cell, terms.term)) is not None
        ]
        priced = [cell for cell in of if cell.nano is not None]
        nano = sum(cell.nano or 0 for cell in priced)
        board_ms = sum(cell.board_ms for cell in priced)
        lost_ms = sum(cell.lost_board_ms for cell in priced)
        found.append(
            SpotSummary(
                terms.id,
                sum(cell.board_ms for cell in of),
                sum(cell.lost_board_ms for cell in of),
                nano,
                sum(cell.board_ms for cell in of if cell.nano is None),
                _per_hour(nano, board_ms),
                _per_hour(nano, board_ms - lost_ms),
            )
        )
    return tuple(found)


def _within(cell: UsageCell, term: Window) -> UsageCell | None:
    """The part of a cell while a contract is in force; None where it is not."""
    span = Window(cell.hour_ms, cell.hour_ms + HOUR_MS).intersect(term)
    if span is None:
        return None
    return replace(
        cell,
        board_ms=part_of_hour(cell.board_ms, span),
        list_nano=None if cell.list_nano is None else part_of_hour(cell.list_nano, span),
        nano=None if cell.nano is None else part_of_hour(cell.nano, span),
        lost_board_ms=part_of_hour(cell.lost_board_ms, span),
    )


@dataclass(frozen=True, slots=True, order=True)
class CommitmentCorrection:
    """What a payer of a closed month gets or owes: the difference of a drawdown with late use to the one that
    was closed. ``contract`` is empty for use on demand."""

    payer: str
    contract: str
    kind: str
    board_ms: int
    nano: int


def corrections(closed: ContractDrawdown, anew: ContractDrawdown) -> tuple[CommitmentCorrection, ...]:
    """The differences of the closed window, by payer, contract and kind. Of a commitment they add up to what
    it charges more or less in the window: nothing, for what is lost at the end of its hour."""
    found: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for sign, drawdown in ((-1, closed), (1, anew)):
        for entry in drawdown.entries:
            amounts = found[(entry.payer, entry.contract, entry.kind.value)]
            amounts[0] += sign * entry.board_ms
            amounts[1] += sign * (entry.nano or 0)
    return tuple(
        CommitmentCorrection(*key, board_ms, nano)
        for key, (board_ms, nano) in sorted(found.items())
        if board_ms or nano
    )


@dataclass(frozen=True, slots=True)
class MonthSaving:
    """What a month, or the part of it that is in the window, would have cost less; negative: more."""

    month: Month
    saved_nano: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A planned contract on the use of ``window``.

    ``saved_nano`` is what all would have paid less, ``paid_nano`` what the contract would have cost.
    ``p10_day_nano``, ``p50_day_nano`` and ``p90_day_nano`` are the savings of the tenth, the middle and the
    ninetieth of a hundred days. ``utilisation`` is how much of it teams would have used, ``drawn`` how much
    with idle capacity, which costs its price, too; ``needed`` is from how much drawn on it pays, at the
    prices of what it would have covered; None where it would have covered nothing.
    """

    contract: str
    window: Window
    saved_nano: int
    paid_nano: int
    covered_board_ms: int
    unpriced_board_ms: int
    months: tuple[MonthSaving, ...]
    p10_day_nano: int
    p50_day_nano: int
    p90_day_nano: int
    utilisation: Fraction | None
    drawn: Fraction | None
    needed: Fraction | None


def break_even(
    book: ContractBook,
    terms: ContractTerms,
    cells: Iterable[UsageCell],
    window: Window,
    before: Mapping[str, DrawnPeriod] | None = None,
) -> BreakEven:
    """``terms``, a planned contract of ``book``, on the use of ``window`` (whole hours); ``before`` is what
    was drawn of the others until then."""
    known = tuple(cells)
    priced = [cell for cell in known if cell.nano is not None]
    others = schedules_of(book.in_force)
    length = terms.term.length_ms
    tried = ContractSchedule(terms, Window(window.start_ms, window.start_ms + length))
    without = draw_down(book.file, others, priced, window, before)
    beside = draw_down(book.file, (*others, tried), priced, window, before)
    total = beside.totals[-1]
    days = _by_day(without, beside)
    own = [entry for entry in beside.entries if entry.contract == terms.id and entry.kind in OF_COMMITMENT]
    worth = sum(entry.price_nano or 0 for entry in own if entry.kind is not DrawKind.UNUSED)
    drawn, gone = total.used + total.idle, total.used + total.idle + total.unused
    return BreakEven(
        contract=terms.id,
        window=window,
        saved_nano=sum(days.values()),
        paid_nano=total.paid_nano,
        covered_board_ms=sum(entry.board_ms for entry in own if entry.kind is not DrawKind.UNUSED),
        unpriced_board_ms=sum(
            cell.board_ms
            for cell in known
            if cell.nano is None and window.start_ms <= cell.hour_ms < window.end_ms
        ),
        months=tuple(
            MonthSaving(
                Month.of(month.start_ms),
                sum(nano for day, nano in days.items() if month.start_ms <= day < month.end_ms),
            )
            for month in months_of(window)
        ),
        p10_day_nano=_percentile(list(days.values()), 10),
        p50_day_nano=_percentile(list(days.values()), 50),
        p90_day_nano=_percentile(list(days.values()), 90),
        utilisation=Fraction(total.used, gone) if gone else None,
        drawn=Fraction(drawn, gone) if gone else None,
        needed=Fraction(total.paid_nano * drawn, worth * gone) if worth and gone else None,
    )


def _by_day(without: ContractDrawdown, beside: ContractDrawdown) -> dict[int, int]:
    """The instant of a day, or of the window's start in it -> what it saves."""
    window = without.window
    found: dict[int, int] = defaultdict(int)
    for day in window.split(DAY_MS):
        found[day.start_ms] = 0
    for sign, drawdown in ((1, without), (-1, beside)):
        for entry in drawdown.entries:
            day_ms = max(entry.hour_ms // DAY_MS * DAY_MS, window.start_ms)
            found[day_ms] += sign * (entry.nano or 0)
    return found


def _percentile(values: Sequence[int], percent: int) -> int:
    """The value of which ``percent`` of them are at most as large: the nearest rank."""
    rank = max(1, -(-len(values) * percent // 100))
    return sorted(values)[rank - 1]
