"""What a weekly digest consists of. docs/digest.md says how each number follows from the ledger.

Weeks of ISO 8601 in UTC: Monday 00:00 to Monday 00:00, half-open, written ``2026-W43``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, Window
from gpucost.reports.base.values import CostAmount, CostChange, GpuUtilisation
from gpucost.reports.month.budget_status import BudgetStatus
from gpucost.reports.month.change_causes import ChangeCause
from gpucost.reports.month.model import GroupRow, JobCostRow
from gpucost.reports.month.provenance import ClusterCoverage
from gpucost.reports.waste.recommendations import Recommendation
from gpucost.reports.waste.waste_report import JobWaste, TeamWaste, WasteReport


@dataclass(frozen=True, slots=True)
class WeekCoverage:
    """How much of the week is in the ledger.

    ``covered`` is the part of the week of all clusters that has a window, ``missing_ms`` the time of clusters
    that has none; ``observed`` is the part of what is covered in which the cluster was observed. A cluster
    counts when it has a window in this week or the one before. ``whole``: nothing is missing, and no window
    can still change by late data.
    """

    covered: Fraction
    missing_ms: int
    observed: Fraction | None
    settled: bool
    whole: bool
    clusters: tuple[ClusterCoverage, ...]


@dataclass(frozen=True, slots=True)
class WeekBudget:
    """``week_nano`` is the part of ``monthly_nano`` that falls by time on what the ledger has of the week,
    ``covered`` of it; ``spent`` is what the teams with a budget held, ``part`` of ``week_nano``. ``part`` is
    None without a price, or from a budget of 0.

    All three are None where clusters lack different parts of the week: which of them a team would have used
    is not known.
    """

    teams: int
    monthly_nano: int
    covered: Fraction | None
    week_nano: int | None
    spent: CostAmount
    part: Fraction | None


@dataclass(frozen=True, slots=True)
class TeamWeek:
    """A team's row of the platform's digest. ``waste`` is None where it was not assessed, or the team held
    nothing."""

    row: GroupRow
    waste: TeamWaste | None
    budget: WeekBudget | None


@dataclass(frozen=True, slots=True)
class DayOfWeek:
    """One day by bucket of waste; ``buckets`` is None for a day without data in the ledger.

    ``covered`` is the part of the day of all clusters that has a window.
    """

    day: str
    covered: Fraction
    buckets: Mapping[str, CostAmount] | None


@dataclass(frozen=True, slots=True)
class WeekWaits:
    """Workloads whose wait was predicted: ``started`` of them in the week, after waits of ``p50_ms`` (half of
    them), ``p90_ms`` and at most ``longest_ms``. ``waiting`` is how many still wait. ``cut``: there were more
    than the ledger returns at once, and these asked last.
    """

    started: int
    p50_ms: int | None
    p90_ms: int | None
    longest_ms: int | None
    waiting: int
    cut: bool


@dataclass(frozen=True, slots=True)
class WeekDigest:
    """A week of a team, or with an empty ``team`` of the platform.

    ``cost`` is what a team held; of the platform, all capacity, with ``held`` as a part of it. ``change`` is
    that of ``cost`` against the week before, None for the reason that ``not_compared`` gives. ``waste`` is
    None where the detectors have not assessed any window of the week. ``actions`` are the first of the
    ongoing findings, ``more_actions`` counts the others, which cost ``more_daily_nano`` a day at their
    current rates, None where none of them has one. ``over`` is what jobs wasted in the week where no finding
    is ongoing any more, the most expensive first, as many as ``actions`` are short of three; ``more_over``
    counts the others. ``jobs`` are the costliest of ``job_count``. ``teams`` and their costs
    are the platform's, empty for a team. ``waits`` is None where none was predicted. ``causes`` add up to
    ``change``, the largest first; none where there is none. ``budgets`` are those of the list in the team
    rules, as the week left them.
    """

    week: str
    window: Window
    currency: str
    code_version: str
    team: str
    cost: CostAmount
    held: CostAmount
    change: CostChange | None
    not_compared: str
    budget: WeekBudget | None
    coverage: WeekCoverage
    waste: WasteReport | None
    days: tuple[DayOfWeek, ...]
    utilisation: GpuUtilisation
    actions: tuple[Recommendation, ...]
    more_actions: int
    more_daily_nano: int | None
    over: tuple[JobWaste, ...]
    more_over: int
    jobs: tuple[JobCostRow, ...]
    job_count: int
    teams: tuple[TeamWeek, ...]
    waits: WeekWaits | None
    causes: tuple[ChangeCause, ...] = ()
    budgets: tuple[BudgetStatus, ...] = ()


_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})\Z")
_LENGTH_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True, order=True)
class IsoWeek:
    """A week. ``year`` is the one of ISO 8601: that of the week's Thursday."""

    year: int
    number: int

    @classmethod
    def parse(cls, text: str) -> IsoWeek:
        """``2026-W43`` -> IsoWeek. Raises InputError for anything else, and for a week that a year does not
        have."""
        match = _WEEK.match(text)
        allowed = "YYYY-Www of ISO 8601, such as 2026-W43, from 2010-W01 to 2099-W52"
        if match is None or not 2010 <= int(match[1]) <= 2099:
            raise InputError("week", text, allowed)
        try:
            date.fromisocalendar(int(match[1]), int(match[2]), 1)
        except ValueError:
            raise InputError("week", text, f"{allowed}; {match[1]} has no such week") from None
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of(cls, instant_ms: int) -> IsoWeek:
        """The week that contains an instant."""
        year, number, _ = datetime.fromtimestamp(instant_ms / 1000, UTC).isocalendar()
        return cls(year, number)

    @property
    def window(self) -> Window:
        monday = datetime.combine(
            date.fromisocalendar(self.year, self.number, 1), datetime.min.time(), tzinfo=UTC
        )
        start_ms = int(monday.timestamp()) * 1000
        return Window(start_ms, start_ms + _LENGTH_MS)

    def next(self) -> IsoWeek:
        return IsoWeek.of(self.window.end_ms)

    def previous(self) -> IsoWeek:
        return IsoWeek.of(self.window.start_ms - 1)

    def __str__(self) -> str:
        return f"{self.year:04d}-W{self.number:02d}"
