"""Whether a contract would have paid: it is tried on use of the past, beside the contracts that there were.

The use of a window is drawn down twice, with and without the planned contract, as if its term had begun with
the window: of an amount paid once, the window bears its part of the term. Whatever the contract would have
taken from others is theirs to lose, so savings count what all teams and the platform pay. Use without a
price is left out on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucost.charges.commitment_drawdown import (
    OF_COMMITMENT,
    ContractDrawdown,
    DrawKind,
    UsageCell,
    draw_down,
    schedules_of,
)
from gpucost.charges.contract_schedule import ContractSchedule, months_of
from gpucost.charges.contract_terms import ContractBook, ContractTerms
from gpucost.domain.time import DAY_MS, Month, Window


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
    ninetieth of a hundred days. ``utilisation`` is how much of it would have been used by teams and idle
    capacity, ``needed`` from how much on it pays, at the prices of the use that it would have covered; None
    where it would have covered nothing.
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
    needed: Fraction | None


def break_even(
    book: ContractBook, terms: ContractTerms, cells: Iterable[UsageCell], window: Window
) -> BreakEven:
    """``terms``, a planned contract of ``book``, on the use of ``window`` (whole hours)."""
    known = tuple(cells)
    priced = [cell for cell in known if cell.nano is not None]
    others = schedules_of(book.in_force)
    length = terms.term.length_ms
    tried = ContractSchedule(terms, Window(window.start_ms, window.start_ms + length))
    without = draw_down(book.file, others, priced, window)
    beside = draw_down(book.file, (*others, tried), priced, window)
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
        utilisation=Fraction(drawn, gone) if gone else None,
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
