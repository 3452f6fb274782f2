"""The digest of a week: what it cost, what part of that was wasted, and which actions save most.

For one team or for the platform; a team's digest is made from lines of that team only. Every number is a sum
over the ledger, and the parts add up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from math import ceil

import pandas as pd

from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.detectors.findings import SubjectKind
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.money import round_half_even
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Month, Window, iso
from gpucost.reports.base.display import percent
from gpucost.reports.base.frame_sums import prepare, total
from gpucost.reports.base.values import (
    NOTHING,
    CostAmount,
    CostChange,
    UsageSignal,
    ratio,
)
from gpucost.reports.digest.week_model import (
    DayOfWeek,
    IsoWeek,
    TeamWeek,
    WeekBudget,
    WeekCoverage,
    WeekDigest,
    WeekWaits,
)
from gpucost.reports.month.budget_status import BudgetStatus
from gpucost.reports.month.change_causes import ChangeCause, change_causes
from gpucost.reports.month.inputs import (
    ENOUGH,
    JOB_KEY,
    WindowFacts,
    covered_least,
    span_time,
)
from gpucost.reports.month.model import (
    GroupRow,
    GroupTables,
    job_rows_with_teams,
    ranked,
)
from gpucost.reports.month.provenance import coverage_of
from gpucost.reports.waste.recommendations import (
    PATTERN_OF_HELD_WASTE,
    KnownFinding,
    Recommendation,
    to_do,
)
from gpucost.reports.waste.waste_report import (
    JobWaste,
    WasteInputs,
    WasteReport,
    build_waste,
    wasteful_jobs,
)

DIGEST_DIMS = (*JOB_KEY, "team", "bucket", "model")
BEFORE_DIMS = ("team", "bucket", "cluster", "model")
TOP_JOBS = 5
TOP_ACTIONS = 3


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """One workload whose wait was predicted: its team by the team rules, and when it asked, and started or
    went without a start."""

    team: str
    asked_ms: int
    started_ms: int | None
    gone_ms: int | None


@dataclass(frozen=True)
class WeekInputs:
    """Everything a WeekDigest is built from, read in ``scope``: of ``team`` only, or of all teams where that
    is empty.

    ``lines`` are an aggregate by DIGEST_DIMS of the week, ``previous`` one by BEFORE_DIMS of the week before.
    ``waste`` is of the week, with its findings. ``budgets`` are nano-units a month by team,
    ``listed_budgets`` those of the list in the team rules, as the week left them. ``waits`` is None
    where the ledger has no predictions; ``waits_cut`` says that it returned only the latest.
    """

    week: IsoWeek
    team: str
    currency: str
    code_version: str
    lines: pd.DataFrame
    previous: pd.DataFrame
    windows: tuple[WindowFacts, ...]
    previous_windows: tuple[WindowFacts, ...]
    waste: WasteInputs
    budgets: Mapping[str, int] = field(default_factory=dict)
    waits: tuple[WaitFacts, ...] | None = None
    waits_cut: bool = False
    listed_budgets: tuple[BudgetStatus, ...] = ()

    @property
    def scope(self) -> Scope:
        return scope_of(self.team)


def scope_of(team: str) -> Scope:
    """The scope of one team; of everything for the platform, whose team is empty."""
    return Scope(frozenset({team})) if team else EVERYTHING


def build_week(inputs: WeekInputs) -> WeekDigest:
    """The digest of ``inputs``; the same for any order of rows.

    Raises InputError for a frame that lacks a column, and for sums beyond 64 bits.
    """
    lines = prepare(inputs.lines, DIGEST_DIMS, "lines")
    before = prepare(inputs.previous, BEFORE_DIMS, "previous")
    not_compared = _not_compared(inputs)
    held = lines[lines["bucket"] == Bucket.HELD]
    held_before = None if not_compared else before[before["bucket"] == Bucket.HELD]
    tables = GroupTables(held, held, held_before)
    cost = tables.total.amount if inputs.team else _capacity(lines)
    cost_before = _held(before) if inputs.team else _capacity(before)
    waste = _waste(inputs, cost, tables.total.utilisation.busy)
    actions = _actions(inputs)
    over = () if waste is None else tuple(_over(inputs))
    room = max(0, TOP_ACTIONS - len(actions))
    teams, times = tables.by("team"), _budgeted(inputs)
    by_team = {row.group["team"]: row.held for row in teams}
    return WeekDigest(
        week=str(inputs.week),
        window=inputs.week.window,
        currency=inputs.currency,
        code_version=inputs.code_version,
        team=inputs.team,
        cost=cost,
        held=tables.total.amount,
        change=None if not_compared else CostChange.between(cost, cost_before),
        not_compared=not_compared,
        budget=_budget(inputs, times, by_team, sorted(inputs.budgets)),
        coverage=_coverage(inputs),
        waste=waste,
        days=_days(inputs, waste),
        utilisation=tables.total.utilisation,
        actions=actions[:TOP_ACTIONS],
        more_actions=max(0, len(actions) - TOP_ACTIONS),
        more_daily_nano=_daily(actions[TOP_ACTIONS:]),
        over=over[:room],
        more_over=len(over[room:]),
        jobs=job_rows_with_teams(ranked(held, JOB_KEY).head(TOP_JOBS), held),
        job_count=tables.jobs,
        teams=() if inputs.team else _teams(inputs, teams, times, by_team, waste),
        waits=_waits(inputs),
        causes=() if not_compared else _causes(inputs, lines, before),
        budgets=inputs.listed_budgets,
    )


def _causes(inputs: WeekInputs, lines: pd.DataFrame, before: pd.DataFrame) -> tuple[ChangeCause, ...]:
    """Why the week cost another amount than the one before; they add up to ``change``."""
    if inputs.team:
        lines, before = (each[each["bucket"] == Bucket.HELD] for each in (lines, before))
    times = (
        span_time(windows, week.window)
        for windows, week in (
            (inputs.windows, inputs.week),
            (inputs.previous_windows, inputs.week.previous()),
        )
    )
    return change_causes(lines, before, *times)


def budget_of(monthly_nano: int, windows: Iterable[Window]) -> int:
    """The part of a monthly budget that falls on ``windows``, which do not overlap: for each month the
    covered part of its time, rounded half-even once."""
    part = Fraction(0)
    for window in windows:
        month = Month.of(window.start_ms)
        while month.window.start_ms < window.end_ms:
            own = month.window
            part += Fraction(window.overlap_ms(own.start_ms, own.end_ms), own.length_ms)
            month = month.next()
    exact = part * monthly_nano
    return round_half_even(exact.numerator, exact.denominator)


def _budgeted(inputs: WeekInputs) -> tuple[Window, ...] | None:
    """The times for which the ledger has held time, adjacent ones joined. None where clusters lack different
    times, by more than a comparison tolerates: each team may be in another cluster."""
    week, clusters = inputs.week.window, _clusters(inputs)
    covered: dict[str, list[Window]] = {cluster: [] for cluster in clusters}
    for item in sorted(inputs.windows, key=lambda each: each.start_ms):
        start, end = max(item.start_ms, week.start_ms), min(item.end_ms, week.end_ms)
        spans = covered[item.cluster]
        if spans and start <= spans[-1].end_ms:
            start = spans.pop().start_ms
        if start < end:
            spans.append(Window(start, end))
    first, *others = covered.values() or [[]]
    if all(each == first for each in others):
        return tuple(first)
    least, _ = covered_least(week, inputs.windows, clusters)
    return None if least < ENOUGH else (week,)


def _held(lines: pd.DataFrame) -> CostAmount:
    return total(lines[lines["bucket"] == Bucket.HELD]).amount


def _capacity(lines: pd.DataFrame) -> CostAmount:
    return total(lines[lines["bucket"] != Bucket.OVERCOMMITTED]).amount


def _clusters(inputs: WeekInputs) -> list[str]:
    return sorted({item.cluster for item in (*inputs.windows, *inputs.previous_windows)})


def _not_compared(inputs: WeekInputs) -> str:
    """Why no change is given: one of the two weeks is not whole. Empty where both are."""
    if not inputs.previous_windows:
        return "nothing of the week before in the ledger"
    clusters, week = _clusters(inputs), inputs.week
    for words, each, windows in (
        ("week before", week.previous(), inputs.previous_windows),
        ("this week", week, inputs.windows),
    ):
        covered, whose = covered_least(each.window, windows, clusters)
        if covered < ENOUGH:
            return f"{words} covered {percent(covered, 1)}{whose}"
    return ""


def _coverage(inputs: WeekInputs) -> WeekCoverage:
    """A cluster that has no window at all in the week misses all of it."""
    window, found = (
        inputs.week.window,
        dict.fromkeys(_clusters(inputs), coverage_of("", (), inputs.week.window)),
    )
    ordered = sorted(inputs.windows, key=lambda item: (item.cluster, item.start_ms))
    found |= {
        cluster: coverage_of(cluster, list(items), window)
        for cluster, items in groupby(ordered, key=lambda item: item.cluster)
    }
    clusters = tuple(replace(found[cluster], cluster=cluster) for cluster in sorted(found))
    covered_ms = sum(each.covered_ms for each in clusters)
    missing_ms = sum(each.missing_ms for each in clusters)
    settled = all(item.settled for item in inputs.windows)
    return WeekCoverage(
        covered=Fraction(covered_ms, covered_ms + missing_ms) if clusters else Fraction(0),
        missing_ms=missing_ms,
        observed=ratio(sum(each.observed_ms for each in clusters), covered_ms),
        settled=settled,
        whole=bool(clusters) and settled and not missing_ms,
        clusters=clusters,
    )


def _waste(inputs: WeekInputs, cost: CostAmount, busy: UsageSignal | None) -> WasteReport | None:
    """The week's waste; None, not zeros, where the detectors have not assessed any window of the week."""
    found = inputs.waste
    if not found.assessment.final + found.assessment.provisional:
        return None
    # A team's waste is compared with what the lines say it held: a team has no capacity of its own.
    capacity = cost if found.capacity is None else found.capacity
    return build_waste(replace(found, capacity=capacity, held_busy=busy))


def _daily(rows: Sequence[Recommendation]) -> int | None:
    """What they cost in a day, those like them included."""
    costs = [row.daily_nano for row in rows] + [row.alike.daily_nano for row in rows if row.alike is not None]
    known = [nano for nano in costs if nano is not None]
    return sum(known) if known else None


def _actions(inputs: WeekInputs) -> tuple[Recommendation, ...]:
    """Findings that are ongoing, began before the week ended, and are not muted."""
    known: list[KnownFinding] = [
        each
        for each in inputs.waste.findings
        if each.since_ms < inputs.week.window.end_ms and each.state != FindingLifeState.MUTED
    ]
    return to_do(known, inputs.scope)


def _over(inputs: WeekInputs) -> Iterator[JobWaste]:
    """What jobs wasted without an ongoing finding, the most expensive first. A broken GPU has its finding by
    node, whichever job holds it: while a cluster has such a finding, none of its jobs is reported as free of
    one.
    """
    going = [each.finding.draft for each in inputs.waste.findings if each.finding.goes_on]
    shared = {(each.subject.cluster, each.pattern) for each in going if each.subject.kind is SubjectKind.NODE}
    for row in wasteful_jobs(inputs.waste.lines, inputs.waste.findings):
        if (
            row.amount.board_ms
            and row.finding is None
            and (row.cluster, PATTERN_OF_HELD_WASTE[Waste(row.waste)]) not in shared
        ):
            yield row


def _teams(
    inputs: WeekInputs,
    rows: Sequence[GroupRow],
    times: tuple[Window, ...] | None,
    by_team: Mapping[str, CostAmount],
    waste: WasteReport | None,
) -> tuple[TeamWeek, ...]:
    wasted = {} if waste is None else {row.team: row for row in waste.teams}
    return tuple(
        TeamWeek(row, wasted.get(team := row.group["team"]), _budget(inputs, times, by_team, [team]))
        for row in rows
    )


def _budget(
    inputs: WeekInputs,
    times: tuple[Window, ...] | None,
    by_team: Mapping[str, CostAmount],
    teams: Sequence[str],
) -> WeekBudget | None:
    """The budgets of those of ``teams`` that the digest is about and that have one; None where none has."""
    own = [team for team in teams if team in inputs.budgets and inputs.team in ("", team)]
    if not own:
        return None
    spent = sum((by_team.get(team, NOTHING) for team in own), NOTHING)
    monthly_nano = sum(inputs.budgets[team] for team in own)
    if times is None:
        return WeekBudget(len(own), monthly_nano, None, None, spent, None)
    covered = Fraction(sum(each.length_ms for each in times), inputs.week.window.length_ms)
    week_nano = sum(budget_of(inputs.budgets[team], times) for team in own)
    return WeekBudget(len(own), monthly_nano, covered, week_nano, spent, ratio(spent.nano, week_nano))


def _days(inputs: WeekInputs, waste: WasteReport | None) -> tuple[DayOfWeek, ...]:
    """All seven days; none where the waste was not assessed."""
    if waste is None:
        return ()
    clusters = max(1, len(_clusters(inputs)))
    days = []
    for day in inputs.week.window.split(DAY_MS):
        name = iso(day.start_ms)[:10]
        covered_ms = sum(day.overlap_ms(item.start_ms, item.end_ms) for item in inputs.windows)
        found = {row.waste: row.amount for row in waste.days if row.day == name}
        covered = Fraction(covered_ms, clusters * DAY_MS)
        days.append(DayOfWeek(name, covered, found if covered_ms else None))
    return tuple(days)


def _waits(inputs: WeekInputs) -> WeekWaits | None:
    if inputs.waits is None:
        return None
    window = inputs.week.window
    own = [each for each in inputs.waits if inputs.team in ("", each.team)]
    waits = sorted(
        max(0, each.started_ms - each.asked_ms)
        for each in own
        if each.started_ms is not None and window.start_ms <= each.started_ms < window.end_ms
    )
    waiting = sum(
        each.asked_ms < window.end_ms and each.started_ms is None and each.gone_ms is None for each in own
    )
    if not waits and not waiting:
        return None
    longest = waits[-1] if waits else None
    return WeekWaits(len(waits), _rank(waits, 50), _rank(waits, 90), longest, waiting, inputs.waits_cut)


def _rank(ordered: Sequence[int], percentile: int) -> int | None:
    """The nearest rank: the least value that ``percentile`` per cent of them do not exceed."""
    return ordered[ceil(len(ordered) * percentile / 100) - 1] if ordered else None
