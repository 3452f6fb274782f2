"""How budgets stand in a period: what is spent, what is left, which thresholds were reached when, and when
more than all of it will be.

Pure: amounts of days and hours come in. What is expected is the forecast of ``month_end``, so that a budget
and the page of the month say the same; the day of exceedance is the first on which it passes the budget, at
the pace of the forecast and at both edges of its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.time import DAY_MS, Window, iso
from gpucost.reports.base import display
from gpucost.reports.month.month_end import MonthEnd

ACTUAL, FORECAST = "actual", "forecast"


@dataclass(frozen=True, slots=True)
class ThresholdStatus:
    """A threshold, as a part of the budget: of what was spent (actual) or is expected (forecast).
    ``reached_at`` is the end of the hour in which spending reached it, RFC 3339; of a forecast, up to when it
    was made. None where it is not reached."""

    kind: str
    part: Fraction
    reached_at: str | None


@dataclass(frozen=True, slots=True)
class BudgetForecast:
    """What a period will have cost, in nano-units, with an interval; ``exceeds_on`` is the day (UTC) on which
    it passes the budget, ``earliest`` and ``latest`` those at the edges of the interval; None is never.
    Without a forecast amounts are None, and ``reason`` says why."""

    expected_nano: int | None
    low_nano: int | None
    high_nano: int | None
    coverage: Fraction
    days_left: int
    exceeds_on: str | None
    earliest: str | None
    latest: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BudgetCause:
    """Why a budget is spent as it is: words and nano-units."""

    words: str
    nano: int


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """One budget in one period. ``total_nano`` is ``amount_nano`` and what was ``carried_nano`` over from the
    period before (None: the ledger has not all of that). ``spent_nano`` is what was held, adjustments left
    out; None in another currency than the ledger's. ``covered`` is the part of the period so far that the
    ledger has; ``note`` says what is missing. ``causes`` are the dearest of the change against the time
    before, or what the period paid for."""

    name: str
    subject: str
    of: str
    period: str
    window: Window
    as_of: str
    currency: str
    amount_nano: int
    carried_nano: int | None
    total_nano: int
    spent_nano: int | None
    left_nano: int | None
    part: Fraction | None
    covered: Fraction
    thresholds: tuple[ThresholdStatus, ...]
    forecast: BudgetForecast | None
    causes: tuple[BudgetCause, ...] = ()
    note: str = ""

    @property
    def reached(self) -> tuple[ThresholdStatus, ...]:
        return tuple(each for each in self.thresholds if each.reached_at is not None)

    @property
    def words(self) -> str:
        """``Budget NAME, 2026-Q4: 84% of 120,000.00 USD were held; will exceed on …``, with the note."""
        total, of_it = display.money(self.total_nano), display.percent(self.part)
        if self.part is None and self.spent_nano is not None:
            of_it = display.money(self.spent_nano)
        held = f"{of_it} of {total} {self.currency} were held"
        words = f"Budget {display.name(self.name)}, {self.period}: {held}"
        return "; ".join(filter(None, (words, self.exceedance, self.note))) + "."

    @property
    def exceedance(self) -> str:
        """When it is exceeded, as ``exceed_words``."""
        return exceed_words(self)


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """A stretch of the history of a budget, as the team rules have it."""

    name: str
    subject: str
    of: str
    period: str
    amount_nano: int
    currency: str
    thresholds: tuple[Fraction, ...]
    forecast_thresholds: tuple[Fraction, ...]
    carry_over: bool
    validity: str


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """The budgets that the reader may see, as of an instant; ``entries`` are all of their history."""

    as_of: str
    currency: str
    teams_in_scope: tuple[str, ...] | None
    budgets: tuple[BudgetStatus, ...]
    entries: tuple[BudgetEntry, ...]


def reached_at(
    limit_nano: Fraction,
    days: Iterable[tuple[int, int]],
    hours_of: Callable[[int], Sequence[tuple[int, int]]],
) -> int | None:
    """The end of the hour in which the sum of ``days`` (start, nano-units; in order) reaches a limit; None
    where it does not. ``hours_of`` a day are (end, nano-units) in order; one entry where hours are not known.
    """
    spent = 0
    for day_ms, nano in days:
        if spent + nano >= limit_nano:
            for end_ms, part in hours_of(day_ms):
                spent += part
                if spent >= limit_nano:
                    return end_ms
            return day_ms + DAY_MS
        spent += nano
    return None


def budget_forecast(
    end: MonthEnd,
    coverage: Fraction,
    spent_nano: int,
    total_nano: int,
    until_ms: int,
    passed_ms: int | None = None,
) -> BudgetForecast:
    """``spent_nano`` is known up to ``until_ms``, from where ``end`` forecasts; where it is more than all of
    the budget, it became so by ``passed_ms``."""
    expected, low, high = end.expected_nano, end.low_nano, end.high_nano
    if expected is None or low is None or high is None:
        return BudgetForecast(None, None, None, coverage, end.days_left, None, None, None, end.reason)
    exceeds, earliest, latest = (
        _passes(total_nano - spent_nano, each - spent_nano, end.days_left, until_ms, passed_ms or until_ms)
        for each in (expected, high, low)
    )
    return BudgetForecast(expected, low, high, coverage, end.days_left, exceeds, earliest, latest, end.reason)


def _passes(room_nano: int, rest_nano: int, days: int, until_ms: int, passed_ms: int) -> str | None:
    """The day on which ``rest_nano``, spread evenly over ``days``, is more than ``room_nano``."""
    if room_nano < 0:
        return iso(passed_ms - 1)[:10]
    if rest_nano <= room_nano or not days:
        return None
    at = room_nano * days // rest_nano
    return iso(until_ms + min(at, days - 1) * DAY_MS)[:10]


def exceed_words(status: BudgetStatus) -> str:
    """``will exceed on 2026-10-23 (80%: 2026-10-19 to never)``; empty where nothing is expected."""
    found = status.forecast
    over = next(
        (each.reached_at for each in status.thresholds if each.kind == ACTUAL and each.part == 1), None
    )
    if over is not None or (status.left_nano is not None and status.left_nano < 0):
        return "exceeded" if over is None else f"exceeded on {over[:16].replace('T', ' ')} UTC"
    if found is None:
        return ""
    if found.expected_nano is None:
        return f"no forecast: {found.reason}"
    if found.earliest is None:
        return "is not expected to exceed"
    interval = f"{display.percent(found.coverage)}: {found.earliest} to {found.latest or 'never'}"
    if found.exceeds_on is None:
        return f"is not expected to exceed ({interval})"
    return f"will exceed on {found.exceeds_on} ({interval})"
