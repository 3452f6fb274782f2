"""Budgets: what a team, a cost centre, a queue, a cluster or a project may cost in a month, a quarter or a
year. They stand in the team rules (``budgets``), and beside them each team's ``monthly_budget``.

Several entries of one name that follow each other are the history of one budget: each counts for its part of
a period, so that a change in the middle of a month is worth half of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpucost.domain.configfile import MISSING, DatedConfigModel, NanoAmount, Text, wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.money import check_currency, plain, round_half_even
from gpucost.domain.time import Month, Window

MOST_PERIODS = 24
"""Periods before one whose rest is carried over into it, at most."""
_LEAST, _LARGEST = 1, 1000
_FAR_MS = 2**53


class BudgetPeriod(StrEnum):
    """A calendar period in UTC."""

    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"

    @property
    def months(self) -> int:
        return {"month": 1, "quarter": 3, "year": 12}[self.value]

    def at(self, instant_ms: int) -> PeriodSpan:
        """The period that contains an instant."""
        month = Month.of(instant_ms)
        return PeriodSpan(self, Month(month.year, (month.month - 1) // self.months * self.months + 1))


@dataclass(frozen=True, slots=True, order=True)
class PeriodSpan:
    """One period, by its first month: ``2026-10``, ``2026-Q4`` or ``2026``."""

    period: BudgetPeriod
    first: Month

    @property
    def window(self) -> Window:
        last = self.first
        for _ in range(self.period.months - 1):
            last = last.next()
        return Window(self.first.window.start_ms, last.window.end_ms)

    def previous(self) -> PeriodSpan:
        return self.period.at(self.window.start_ms - 1)

    def __str__(self) -> str:
        match self.period:
            case BudgetPeriod.MONTH:
                return str(self.first)
            case BudgetPeriod.QUARTER:
                return f"{self.first.year}-Q{(self.first.month + 2) // 3}"
        return str(self.first.year)


class BudgetSubject(StrEnum):
    """What a budget is of."""

    TEAM = "team"
    COST_CENTRE = "cost_centre"
    QUEUE = "queue"
    CLUSTER = "cluster"
    PROJECT = "project"


def _percents(value: object) -> object:
    listed = value if isinstance(value, list | tuple) else (value,)
    for each in listed:
        is_number = isinstance(each, int | Decimal) and not isinstance(each, bool)
        if not is_number or not _LEAST <= each <= _LARGEST:
            raise wrong(each, f"percents of the budget, {_LEAST} to {_LARGEST}, such as [80, 100]")
    return tuple(sorted({Fraction(each) / 100 for each in listed}))


def _currency(code: str) -> str:
    try:
        return check_currency(code)
    except InputError as error:
        raise wrong(code, error.allowed) from None


Percents = Annotated[tuple[Any, ...], BeforeValidator(_percents)]


class SpendingBudget(DatedConfigModel):
    """One budget, or one stretch of its history. ``thresholds`` and ``forecast_thresholds`` are parts of it,
    each told once a period: of what was spent, and of what the period is expected to cost."""

    name: Text = Field(description="text, the budget's name; entries of one name are its history")
    team: Text | None = Field(None, description="text, the team that it is of")
    cost_centre: Text | None = Field(None, description="text, the cost centre that it is of")
    queue: Text | None = Field(None, description="text, the ClusterQueue or Volcano queue that it is of")
    cluster: Text | None = Field(None, description="text, the cluster that it is of")
    project: Text | None = Field(None, description="text, the project that it is of")
    period: Literal["month", "quarter", "year"] = Field("month", description="month, quarter or year")
    amount: NanoAmount = Field(description="what a period may cost, such as 120000")
    currency: Annotated[Text, AfterValidator(_currency)] | None = Field(
        None, description="the currency of the amount, such as USD; that of the ledger where left out"
    )
    thresholds: Percents = Field(
        (Fraction(8, 10), Fraction(1)),
        description="percents of it that are told when spent, as [80, 100]",
    )
    forecast_thresholds: Percents = Field(
        (Fraction(1),),
        description="percents of it that are told when expected: [100], or none where thresholds has none",
    )
    carry_over: bool = Field(
        False, description="true: what is left of a period is added to the next, what is overspent taken off"
    )

    @model_validator(mode="before")
    @classmethod
    def _expected_too(cls, given: object) -> object:
        """Who wants nothing told of what was spent wants nothing told of what is expected."""
        if isinstance(given, dict) and given.get("thresholds") in ([], ()):
            return {"forecast_thresholds": (), **given}
        return given

    @model_validator(mode="after")
    def _of_one(self) -> Self:
        named = [each.value for each in BudgetSubject if getattr(self, each.value) is not None]
        if len(named) != 1:
            found = ErrorRemark(f"{', '.join(named)} are given") if named else MISSING
            raise wrong(found, f"exactly one of {', '.join(BudgetSubject)}", "team")
        if self.amount < 0:
            raise wrong(str(self.amount), "an amount of 0 or more", "amount")
        return self

    @property
    def subject(self) -> tuple[BudgetSubject, str]:
        """What it is of, and its name."""
        return next(
            (each, str(name)) for each in BudgetSubject if (name := getattr(self, each.value)) is not None
        )


class ExpectedSpending(DatedConfigModel):
    """More spending that a team announced: in that time it is no incident."""

    team: Text = Field(description="text, the team that announced it")
    reason: Text | None = Field(None, description="text, why it is expected")

    @property
    def window(self) -> Window:
        return Window(max(0, self.start_ms), min(self.end_ms, _FAR_MS))


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """All entries of one budget, by time. Those in force last say what it is of."""

    entries: tuple[SpendingBudget, ...]

    @property
    def name(self) -> str:
        return self.entries[0].name

    def at(self, instant_ms: int) -> SpendingBudget | None:
        """The entry in force at an instant."""
        return next((each for each in self.entries if each.holds_at(instant_ms)), None)

    def lately(self, instant_ms: int) -> SpendingBudget | None:
        """The entry in force at an instant; else the last one that was, where that was in the same period."""
        found = self.at(instant_ms)
        if found is not None:
            return found
        ended = [each for each in self.entries if each.end_ms <= instant_ms]
        if ended and BudgetPeriod(ended[-1].period).at(instant_ms).window.start_ms < ended[-1].end_ms:
            return ended[-1]
        return None

    def entries_in(self, span: PeriodSpan) -> tuple[tuple[SpendingBudget, Window], ...]:
        """The entries of such periods that are in force in ``span``, in order, each with that part of it."""
        cut = (
            (each, span.window.intersect(Window(max(each.start_ms, 0), max(each.end_ms, 1))))
            for each in self.entries
            if each.period == span.period
        )
        return tuple((each, own) for each, own in cut if own is not None)

    def in_force(self, span: PeriodSpan) -> tuple[Window, ...]:
        """The parts of a period in which the budget is in force, in order: only what is spent in them
        counts."""
        found: list[Window] = []
        for _, own in self.entries_in(span):
            if found and found[-1].end_ms == own.start_ms:
                own = Window(found.pop().start_ms, own.end_ms)
            found.append(own)
        return tuple(found)

    def of_period(self, span: PeriodSpan) -> SpendingBudget | None:
        """The last entry of such a period that is in force in ``span``; None where none is."""
        found = self.entries_in(span)
        return found[-1][0] if found else None

    def amount(self, span: PeriodSpan) -> int:
        """Nano-units for a period: each entry's part of its time, rounded half-even once."""
        whole_ms = span.window.length_ms
        part = sum(
            (Fraction(each.amount * own.length_ms, whole_ms) for each, own in self.entries_in(span)),
            Fraction(0),
        )
        return round_half_even(part.numerator, part.denominator)


def budget_plans(entries: Iterable[SpendingBudget]) -> tuple[BudgetPlan, ...]:
    """By name; entries of a name by time."""
    by_name: dict[str, list[SpendingBudget]] = {}
    for each in entries:
        by_name.setdefault(each.name, []).append(each)
    return tuple(
        BudgetPlan(tuple(sorted(found, key=lambda each: each.start_ms)))
        for _, found in sorted(by_name.items())
    )


def monthly_budgets(
    by_team: Mapping[str, int], others: Iterable[SpendingBudget] = ()
) -> tuple[BudgetPlan, ...]:
    """Each team's ``monthly_budget`` in nano-units, under the team's name, and ``others``."""
    made = (
        SpendingBudget.model_validate({"name": team, "team": team, "amount": plain(nano)})
        for team, nano in by_team.items()
    )
    return budget_plans((*others, *made))


def refuse_overlaps(entries: Sequence[SpendingBudget]) -> None:
    """Raises a validation error for two entries of one name that are in force at the same time, or that are
    of different things or in different currencies."""
    for (m, first), (n, second) in combinations(enumerate(entries), 2):
        if first.name != second.name:
            continue
        if first.coincides(second):
            found = ErrorRemark(f"the same name as budgets[{m}] at the same time")
            raise wrong(found, "another name, or validities that do not overlap", "budgets", n, "name")
        if first.currency and second.currency and first.currency != second.currency:
            found = ErrorRemark(f"another currency than budgets[{m}] of that name")
            raise wrong(found, f"{first.currency}, or another name", "budgets", n, "currency")
        if first.subject != second.subject:
            found = ErrorRemark(f"another subject than budgets[{m}] of that name")
            raise wrong(found, "the same subject in all entries of a name", "budgets", n, "name")
