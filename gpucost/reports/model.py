"""What a month's report consists of. The renderers and docs/reports.md follow these declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.holders import Bucket
from gpucost.domain.time import Month, Window
from gpucost.reports.comparison import Comparison
from gpucost.reports.display import percent
from gpucost.reports.inputs import AdjustmentFacts
from gpucost.reports.methods import MethodRow
from gpucost.reports.provenance import ProblemRow, Provenance
from gpucost.reports.values import Amount, Change, Utilisation
from gpucost.reports.waste import WasteReport

CAPACITY_BUCKETS = (Bucket.HELD, Bucket.UNALLOCATED, Bucket.UNAVAILABLE, Bucket.UNKNOWN)
"""The parts of capacity, in the order in which they are shown."""
NO_ADJUSTMENTS = "Adjustments are of no cluster, and no part of this."
"""What has to stand on a report of some clusters."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One row of a table. ``share_of_cost`` is of the cost of all teams; ``change`` None where the months
    cannot be compared.
    """

    group: Mapping[str, str]
    held: Amount
    jobs: int
    share_of_cost: Fraction | None
    utilisation: Utilisation
    change: Change | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job; ``teams`` has several where its team changed. ``span`` is from first to last held instant."""

    cluster: str
    namespace: str
    job_kind: str
    job: str
    job_uid: str
    teams: tuple[str, ...]
    held: Amount
    utilisation: Utilisation
    span: Window | None


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """What a team may cost in the month, in ``currency``, of all clusters. ``part`` is what it held of that
    so far, without adjustments, as the alerts have it; None without a price, from a budget of 0, and in a
    report of some clusters only. ``covered`` is the part of the month that the ledger has windows of;
    ``provisional``: the month is not over, or some of it may still change.
    """

    currency: str
    monthly_nano: int
    part: Fraction | None
    covered: Fraction
    provisional: bool


@dataclass(frozen=True, slots=True)
class TeamRow:
    """A team: its row, its adjustments (no part of ``row.held``), both together, and its costliest jobs.
    ``cost_centre`` and ``budget`` are None where the team rules give none."""

    row: GroupRow
    adjustments: Amount
    adjusted: Amount
    top_jobs: tuple[JobRow, ...]
    cost_centre: str | None = None
    budget: TeamBudget | None = None

    @property
    def has_account(self) -> bool:
        """Whether the team rules say more of it than its name."""
        return self.cost_centre is not None or self.budget is not None


@dataclass(frozen=True, slots=True)
class Buckets:
    """Where capacity went: held + unallocated + unavailable + unknown. Over-commitment stands beside it."""

    held: Amount
    unallocated: Amount
    unavailable: Amount
    unknown: Amount
    overcommitted: Amount

    @property
    def capacity(self) -> Amount:
        return self.held + self.unallocated + self.unavailable + self.unknown


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    model: str
    capacity: Amount
    buckets: Buckets


@dataclass(frozen=True, slots=True)
class Capacity:
    """``measured_by`` says what ``capacity`` is: ``windows`` (totals the ledger wrote with them), ``days``
    (another sum over the ledger) or ``lines``. The differences to the sum of the buckets must be 0.
    """

    measured_by: str
    capacity: Amount
    buckets: Buckets
    difference_board_ms: int
    difference_nano: int
    models: tuple[ModelCapacity, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """``adjusted`` = held + adjustments: what the teams pay in the end."""

    held: Amount
    adjustments: Amount
    adjusted: Amount
    overcommitted: Amount
    jobs: int
    utilisation: Utilisation
    change: Change | None


@dataclass(frozen=True, slots=True)
class ShareBasis:
    """Held time of MIG slices, by what a slice was measured by: compute slices or memory slices."""

    basis: str
    held: Amount


@dataclass(frozen=True, slots=True)
class DayCost:
    """One day, bucket and team; ``team`` is empty for what nobody held."""

    day: str
    bucket: str
    team: str
    amount: Amount


@dataclass(frozen=True, slots=True)
class MonthReport:
    """A month as a reader sees it. ``teams_in_scope`` None: everybody. Every tuple is in a fixed order.

    ``clusters_in_scope`` None: every cluster. A report of some clusters has no adjustments in it, which are
    of no cluster, and neither the digest of the month nor why it was closed, which are of all.

    ``waste`` is None where no detector has looked at any window of the month.
    """

    month: Month
    currency: str
    teams_in_scope: tuple[str, ...] | None
    clusters_in_scope: tuple[str, ...] | None
    totals: Totals
    comparison: Comparison
    capacity: Capacity | None
    waste: WasteReport | None
    teams: tuple[TeamRow, ...]
    projects: tuple[GroupRow, ...]
    job_kinds: tuple[GroupRow, ...]
    queues: tuple[GroupRow, ...]
    models: tuple[GroupRow, ...]
    clusters: tuple[GroupRow, ...]
    top_jobs: tuple[JobRow, ...]
    jobs: tuple[JobRow, ...] | None
    adjustments: tuple[AdjustmentFacts, ...]
    share_bases: tuple[ShareBasis, ...]
    days: tuple[DayCost, ...]
    methods: tuple[MethodRow, ...]
    problems: tuple[ProblemRow, ...]
    provenance: Provenance


def jobs_of_several(report: MonthReport) -> str:
    """Why the jobs of the teams add up to more than the jobs of the report; empty where they do not."""
    counted_by_team = sum(team.row.jobs for team in report.teams)
    if counted_by_team == report.totals.jobs:
        return ""
    return (
        "A job that was of several teams counts for each: the teams' jobs add up to "
        f"{counted_by_team:,}, of {report.totals.jobs:,}."
    )


def budget_words(report: MonthReport) -> str:
    """Of what time the used parts of budgets are; empty where no team has a budget."""
    budget = next((team.budget for team in report.teams if team.budget is not None), None)
    if budget is None:
        return ""
    if report.clusters_in_scope is not None:
        return "Budgets are for all clusters together: of some, no part is said to be used."
    covered = percent(budget.covered, 1)
    state = "provisional" if budget.provisional else "all of it settled"
    what = f"Used: what was held, of the budget, in {budget.currency}"
    return f"{what}; {covered} of the month is in the ledger, {state}."
