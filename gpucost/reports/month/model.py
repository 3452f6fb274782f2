"""What a month's report consists of: dataclasses that the renderers and docs/reports.md follow.

``GroupTables`` fills its tables over held lines: one row per group, and rankings of jobs. Costliest first,
ties by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from gpucost.domain.buckets import Bucket
from gpucost.domain.time import Month, Window
from gpucost.reports.base.display import percent
from gpucost.reports.base.frame_sums import (
    group_numbers,
    integers,
    records,
    summed,
    sums,
    total,
)
from gpucost.reports.base.values import (
    EMPTY,
    NOTHING,
    CostAmount,
    CostChange,
    GpuUtilisation,
    costliest_first,
    named,
    ratio,
)
from gpucost.reports.month.budget_status import BudgetStatus
from gpucost.reports.month.change_causes import ChangeCause
from gpucost.reports.month.inputs import JOB_KEY, AdjustmentFacts, MonthComparison
from gpucost.reports.month.provenance import CloseWarning, MethodRow, ProblemRow, ReportProvenance
from gpucost.reports.waste.waste_report import WasteReport

CAPACITY_BUCKETS = (Bucket.HELD, Bucket.UNALLOCATED, Bucket.UNAVAILABLE, Bucket.UNKNOWN)
"""The parts of capacity, in the order in which they are shown."""
NO_ADJUSTMENTS = "Adjustments are of no cluster, and no part of this."
"""The note on every report of some clusters."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One row of a table. ``share_of_cost`` is of the cost of all teams; ``change`` None where the months
    cannot be compared.
    """

    group: Mapping[str, str]
    held: CostAmount
    jobs: int
    share_of_cost: Fraction | None
    utilisation: GpuUtilisation
    change: CostChange | None


@dataclass(frozen=True, slots=True)
class JobCostRow:
    """One job; ``teams`` has several where its team changed. ``span`` is from first to last held instant."""

    cluster: str
    namespace: str
    job_kind: str
    job: str
    job_uid: str
    teams: tuple[str, ...]
    held: CostAmount
    utilisation: GpuUtilisation
    span: Window | None


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """What a team may cost in the month, in ``currency``, of all clusters. ``part`` is the part of it that
    the team has held so far, without adjustments, as in the alerts; None without a price, from a budget of 0,
    and in a report of some clusters only. ``covered`` is the part of the month that the ledger has windows
    of; ``provisional``: the month is not over, or some of it may still change.
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
    adjustments: CostAmount
    adjusted: CostAmount
    top_jobs: tuple[JobCostRow, ...]
    cost_centre: str | None = None
    budget: TeamBudget | None = None

    @property
    def has_account(self) -> bool:
        """Whether the team rules say more of it than its name."""
        return self.cost_centre is not None or self.budget is not None


@dataclass(frozen=True, slots=True)
class CapacityBuckets:
    """Where capacity went: held + unallocated + unavailable + unknown. Over-commitment stands beside it."""

    held: CostAmount
    unallocated: CostAmount
    unavailable: CostAmount
    unknown: CostAmount
    overcommitted: CostAmount

    @property
    def capacity(self) -> CostAmount:
        return self.held + self.unallocated + self.unavailable + self.unknown


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    model: str
    capacity: CostAmount
    buckets: CapacityBuckets


@dataclass(frozen=True, slots=True)
class CapacitySummary:
    """``measured_by`` says what ``capacity`` is: ``windows`` (totals the ledger wrote with them), ``days``
    (another sum over the ledger) or ``lines``. The differences to the sum of the buckets must be 0.
    """

    measured_by: str
    capacity: CostAmount
    buckets: CapacityBuckets
    difference_board_ms: int
    difference_nano: int
    models: tuple[ModelCapacity, ...]


@dataclass(frozen=True, slots=True)
class MonthTotals:
    """``adjusted`` = held + adjustments: what the teams pay in the end."""

    held: CostAmount
    adjustments: CostAmount
    adjusted: CostAmount
    overcommitted: CostAmount
    jobs: int
    utilisation: GpuUtilisation
    change: CostChange | None


@dataclass(frozen=True, slots=True)
class MonthStatus:
    """How a month stands: ``state`` is closed, open or empty (no windows of it). ``version`` counts the
    window versions that were written.

    ``blockers`` keep an open month from being closed without a reason. Of a closed one: when, by whom, why in
    spite of blockers (else empty), its digest; the same of its lines added up by day, where they were; and
    when its lines were sealed in files, where they are. Digests, reason and seal are None for a reader of
    some clusters, since they are of all.
    """

    month: Month
    state: str
    version: int
    closed_at: str | None = None
    author: str | None = None
    reason: str | None = None
    digest: str | None = None
    folded_at: str | None = None
    folded_digest: str | None = None
    sealed_at: str | None = None
    blockers: tuple[str, ...] = ()

    @property
    def is_closed(self) -> bool:
        return self.state == "closed"


@dataclass(frozen=True, slots=True)
class MonthStatuses:
    """Months, oldest first; ``held`` is from the first to the last window of the ledger, None of an empty
    one."""

    held: Window | None
    months: tuple[MonthStatus, ...]


@dataclass(frozen=True, slots=True)
class CloseAmount:
    """What a team pays for the month, adjustments included."""

    team: str
    amount: CostAmount


@dataclass(frozen=True, slots=True)
class ClosePreview:
    """What closing a month makes final, and what speaks against it. ``total`` is of all teams; it and
    ``capacity`` are None for a month of which the ledger holds nothing.

    ``warnings`` cannot be put right later, ``status.blockers`` not even be closed over without a reason.
    Under a charge policy, whose name is ``policy``, teams have what they pay, and ``kept`` is what the
    platform keeps; without one they have what they held.
    """

    status: MonthStatus
    currency: str
    teams: tuple[CloseAmount, ...]
    total: CostAmount | None
    capacity: CostAmount | None
    warnings: tuple[CloseWarning, ...]
    policy: str = ""
    kept: CostAmount | None = None
    charges_digest: str = ""

    def is_confirmed(self, *, reason: str | None, yes: bool) -> bool:
        """Whether ``yes`` or a ``reason`` answers its warnings. Blockers are the ledger's to refuse."""
        return not self.warnings or bool(self.status.blockers) or yes or bool(reason and reason.strip())


@dataclass(frozen=True, slots=True)
class ShareBasisTime:
    """Held time of MIG slices, by what a slice was measured by: compute slices or memory slices."""

    basis: str
    held: CostAmount


@dataclass(frozen=True, slots=True)
class DayCost:
    """One day, bucket and team; ``team`` is empty for time that no pod held."""

    day: str
    bucket: str
    team: str
    amount: CostAmount


@dataclass(frozen=True, slots=True)
class SummaryTeam:
    """What one team pays: the same amounts as in its statement."""

    team: str
    cost_centre: str | None
    board_ms: int
    charged_nano: int
    adjusted_nano: int
    total_nano: int


@dataclass(frozen=True, slots=True)
class SummaryProof:
    """That charges leave nothing out: what all teams are charged, before adjustments, and what the platform
    keeps (below 0 where they pay more than the capacity cost), less the ``capacity``, which is summed
    apart from them, is the ``difference``: 0, or the charges are wrong."""

    charged_board_ms: int
    charged_nano: int
    kept_board_ms: int
    kept_nano: int
    capacity_board_ms: int
    capacity_nano: int
    difference_board_ms: int
    difference_nano: int


@dataclass(frozen=True, slots=True)
class SummarySpread:
    """Time that is nobody's in one pool, as it was dealt out over teams in ``parts`` (hours, months,
    policies): all of it, and the sum of the weights by which it went."""

    kind: str
    cluster: str
    model: str
    rule: str
    parts: int
    weight_ms: int
    board_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class StatementSummary:
    """What every team pays for a month, the dearest first; those with nothing to pay are left out. Who sees
    some teams only has these, and neither ``proof``, ``spreads`` nor the digest of all charges.
    ``as_closed``: by the policy that the month was closed with, to the byte what was charged then.
    ``remarks`` are what in the policy nothing in the month belongs to. In another currency than
    ``ledger_currency`` the capacity of the proof is that of the charges."""

    month: Month
    currency: str
    policy: str
    state: str
    digest: str
    charges_digest: str | None
    teams: tuple[SummaryTeam, ...]
    proof: SummaryProof | None
    as_closed: bool = False
    remarks: tuple[str, ...] = ()
    ledger_currency: str = ""
    spreads: tuple[SummarySpread, ...] = ()

    def seen_by(self, teams: Set[str] | None) -> StatementSummary:
        """The same with ``teams`` alone; None sees all."""
        if teams is None:
            return self
        own = tuple(each for each in self.teams if each.team in teams)
        return replace(self, teams=own, proof=None, charges_digest=None, remarks=(), spreads=())


@dataclass(frozen=True, slots=True)
class MonthReport:
    """A month as a reader sees it. ``teams_in_scope`` None: everybody. Every tuple is in a fixed order.

    ``clusters_in_scope`` None: every cluster. A report of some clusters has no adjustments in it, which are
    of no cluster, and neither the digest of the month nor why it was closed, which are of all.

    ``waste`` is None where no detector has looked at any window of the month. ``charges`` are what teams pay
    under the charge policy of the settings; None without one, when they pay what they held, and in a report
    of some clusters. ``uncharged`` is why the policy could not be applied. ``causes`` add up to the change of
    ``totals``; None where there is none. ``budgets`` are those of the list in the team rules, as the month
    left them; each team's ``monthly_budget`` is in its row.
    """

    month: Month
    currency: str
    teams_in_scope: tuple[str, ...] | None
    clusters_in_scope: tuple[str, ...] | None
    totals: MonthTotals
    comparison: MonthComparison
    capacity: CapacitySummary | None
    waste: WasteReport | None
    teams: tuple[TeamRow, ...]
    projects: tuple[GroupRow, ...]
    job_kinds: tuple[GroupRow, ...]
    queues: tuple[GroupRow, ...]
    models: tuple[GroupRow, ...]
    clusters: tuple[GroupRow, ...]
    top_jobs: tuple[JobCostRow, ...]
    jobs: tuple[JobCostRow, ...] | None
    adjustments: tuple[AdjustmentFacts, ...]
    share_bases: tuple[ShareBasisTime, ...]
    days: tuple[DayCost, ...]
    methods: tuple[MethodRow, ...]
    problems: tuple[ProblemRow, ...]
    provenance: ReportProvenance
    charges: StatementSummary | None = None
    uncharged: str = ""
    causes: tuple[ChangeCause, ...] | None = None
    budgets: tuple[BudgetStatus, ...] = ()


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
    """The time that the used parts of budgets refer to; empty where no team has a budget."""
    budget = next((team.budget for team in report.teams if team.budget is not None), None)
    if budget is None:
        return ""
    if report.clusters_in_scope is not None:
        return "Budgets are for all clusters together: of some, no part is said to be used."
    covered = percent(budget.covered, 1)
    state = "provisional" if budget.provisional else "all of it settled"
    what = f"Used: what was held, of the budget, in {budget.currency}"
    return f"{what}; {covered} of the month is in the ledger, {state}."


class GroupTables:
    """Group tables over the held lines, with the previous month beside them; ``few`` sums the lines up by all
    that is no name of a job."""

    def __init__(self, held: pd.DataFrame, few: pd.DataFrame, previous: pd.DataFrame | None) -> None:
        self.held = held
        self.few = few
        self.previous = previous
        self.total = total(few)
        self._job = group_numbers(held, JOB_KEY)
        self.jobs = len(np.unique(self._job))

    def by(self, *keys: str) -> tuple[GroupRow, ...]:
        """One row per value of ``keys``, in this month or the previous one, costliest first."""
        now = sums(self.few, keys)
        before = {} if self.previous is None else sums(self.previous, keys)
        jobs = self._job_counts(keys)
        rows = []
        for key in {*now, *before}:
            found = now.get(key, EMPTY)
            rows.append(
                GroupRow(
                    group=named(keys, key),
                    held=found.amount,
                    jobs=jobs.get(key, 0),
                    share_of_cost=ratio(found.nano, self.total.nano),
                    utilisation=found.utilisation,
                    change=self._change(found.amount, before.get(key, EMPTY).amount),
                )
            )
        return tuple(sorted(rows, key=lambda row: costliest_first(row.held, tuple(row.group.values()))))

    def change_of_total(self) -> CostChange | None:
        before = NOTHING if self.previous is None else total(self.previous).amount
        return self._change(self.total.amount, before)

    def _change(self, now: CostAmount, before: CostAmount) -> CostChange | None:
        return None if self.previous is None else CostChange.between(now, before)

    def _job_counts(self, keys: Sequence[str]) -> dict[tuple[Any, ...], int]:
        distinct = self.held[list(keys)].assign(_job=self._job).drop_duplicates()
        counts = distinct.groupby(list(keys), sort=False, observed=True).size()
        return {
            (key if isinstance(key, tuple) else (key,)): int(count)
            for key, count in zip(counts.index.tolist(), counts.tolist(), strict=True)
        }


def ranked(held: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Sums per key, costliest first: the order of ``costliest_first``."""
    frame = summed(held, keys)
    frame = frame.assign(_cost=frame["nano"].fillna(0))
    return frame.sort_values(["_cost", "board_ms", *keys], ascending=[False, False, *[True] * len(keys)])


def job_rows(ranking: pd.DataFrame) -> tuple[JobCostRow, ...]:
    """``ranking`` has the job's key and its ``team``."""
    spans = zip(integers(ranking["first_ms"]), integers(ranking["last_ms"]), strict=True)
    identities = zip(*(ranking[column].tolist() for column in JOB_KEY), strict=True)
    return tuple(
        JobCostRow(
            cluster,
            namespace,
            job_kind,
            job,
            job_uid,
            teams=(team,),
            held=found.amount,
            utilisation=found.utilisation,
            span=Window(first, last) if first is not None and last is not None and first < last else None,
        )
        for (cluster, namespace, job_kind, job, job_uid), team, found, (first, last) in zip(
            identities, ranking["team"].tolist(), records(ranking), spans, strict=True
        )
    )


def job_rows_with_teams(ranking: pd.DataFrame, held: pd.DataFrame) -> tuple[JobCostRow, ...]:
    """Job rows of a ranking without teams, with all teams that held the job."""
    keys = list(JOB_KEY)
    some = held.loc[held["job_uid"].isin(ranking["job_uid"]), [*keys, "team"]]
    teams = some.merge(ranking[keys], on=keys).drop_duplicates()
    by_job: dict[tuple[str, ...], list[str]] = {}
    for *identity, team in teams.itertuples(index=False, name=None):
        by_job.setdefault(tuple(identity), []).append(team)
    return tuple(
        replace(
            row, teams=tuple(sorted(by_job[(row.cluster, row.namespace, row.job_kind, row.job, row.job_uid)]))
        )
        for row in job_rows(ranking.assign(team=""))
    )
