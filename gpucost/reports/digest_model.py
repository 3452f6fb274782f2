"""What a weekly digest consists of. docs/digest.md says how each number follows from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.time import Window
from gpucost.reports.model import GroupRow, JobRow
from gpucost.reports.provenance import ClusterCoverage
from gpucost.reports.to_do import ToDo
from gpucost.reports.values import Amount, Change, Utilisation
from gpucost.reports.waste import JobWaste, TeamWaste, WasteReport


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
    None without a price, or from 0.

    All three are None where clusters lack different parts of the week: which of them a team
    would have used, nobody can say.
    """

    teams: int
    monthly_nano: int
    covered: Fraction | None
    week_nano: int | None
    spent: Amount
    part: Fraction | None


@dataclass(frozen=True, slots=True)
class TeamWeek:
    """A team's row of the platform's digest. ``waste`` is None where nobody looked, or it held nothing."""

    row: GroupRow
    waste: TeamWaste | None
    budget: WeekBudget | None


@dataclass(frozen=True, slots=True)
class DayOfWeek:
    """One day by bucket of waste; ``buckets`` is None for a day that the ledger has nothing of.

    ``covered`` is the part of the day of all clusters that has a window.
    """

    day: str
    covered: Fraction
    buckets: Mapping[str, Amount] | None


@dataclass(frozen=True, slots=True)
class Waits:
    """Workloads whose wait was foretold: ``started`` of them in the week, after waits of ``p50_ms`` (half of
    them), ``p90_ms`` and at most ``longest_ms``. ``waiting`` is how many wait still. ``cut``: there were more
    than the ledger tells at once, and these asked last.
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
    None where no detector has looked at any window of the week. ``actions`` are the first of what goes on
    now, ``more_actions`` counts the others. ``over`` is what jobs wasted in the week where no finding goes on
    any more, the dearest first, as many as ``actions`` are short of three; ``more_over`` counts the others.
    ``jobs`` are the costliest of ``job_count``. ``teams`` and their costs are the platform's, empty for a
    team. ``waits`` is None where none was foretold.
    """

    week: str
    window: Window
    currency: str
    code_version: str
    team: str
    cost: Amount
    held: Amount
    change: Change | None
    not_compared: str
    budget: WeekBudget | None
    coverage: WeekCoverage
    waste: WasteReport | None
    days: tuple[DayOfWeek, ...]
    utilisation: Utilisation
    actions: tuple[ToDo, ...]
    more_actions: int
    over: tuple[JobWaste, ...]
    more_over: int
    jobs: tuple[JobRow, ...]
    job_count: int
    teams: tuple[TeamWeek, ...]
    waits: Waits | None
