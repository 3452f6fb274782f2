"""Budgets out of the ledger: what each has spent in its period, when it reached its thresholds, what is
carried over, and what is expected.

Spent is what was held, adjustments left out, as in the alerts. A reader of some teams sees the budgets of
these, one of some clusters those of these clusters: any other is of what they may not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from gpucost.attribution.budgets import (
    MOST_PERIODS,
    BudgetPeriod,
    BudgetPlan,
    BudgetSubject,
    PeriodSpan,
    SpendingBudget,
)
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.text import named_first
from gpucost.domain.time import DAY_MS, HOUR_MS, Window, iso
from gpucost.ledger.db.records import WindowInfo
from gpucost.reports.base import display
from gpucost.reports.base.values import STEP
from gpucost.reports.month.budget_status import (
    ACTUAL,
    FORECAST,
    BudgetCause,
    BudgetEntry,
    BudgetForecast,
    BudgetReport,
    BudgetStatus,
    ThresholdStatus,
    budget_forecast,
    reached_at,
)
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.month.month_end import COVERAGE, MonthEnd, month_ends
from gpucost.reports.month.work_ahead import AheadJob, daily_cost
from gpucost.service.reporting.jobs_ahead import WorkAhead, waits_ahead, work_ahead
from gpucost.service.reporting.month_forecasts import HISTORY_DAYS, DailyCosts, daily_costs, known_days
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.reporting.span_changes import compare_spans

_DIMS: Mapping[BudgetSubject, str] = {
    BudgetSubject.TEAM: "team",
    BudgetSubject.COST_CENTRE: "team",
    BudgetSubject.QUEUE: "cluster_queue",
    BudgetSubject.CLUSTER: "cluster",
    BudgetSubject.PROJECT: "project",
}
_HELD: Mapping[str, frozenset[str]] = {"bucket": frozenset({Bucket.HELD.value})}
_MOST_CAUSES = 2


def budget_report(
    reporting: ReportService, scope: Scope, plans: Sequence[BudgetPlan], at_ms: int, *, causes: bool = False
) -> BudgetReport:
    """The budgets that ``scope`` may see, in the periods that contain ``at_ms``, as the ledger has them up to
    then. ``causes`` are read only where wanted: each reads both spans by job."""
    seen = [plan for plan in plans if _sees(scope, plan)]
    reads = _SharedReads(reporting, scope)
    found = [_BudgetReader(reads, plan, at_ms) for plan in seen]
    teams = None if scope.teams is None else tuple(sorted(scope.teams))
    return BudgetReport(
        iso(at_ms),
        reporting.currency,
        teams,
        tuple(status for each in found if (status := each.status(causes=causes)) is not None),
        tuple(_entry(each, reporting.currency) for plan in seen for each in plan.entries),
    )


@dataclass(frozen=True)
class ListedBudgets:
    """How the budgets of the list in the team rules stand, for reports: each team's ``monthly_budget`` is in
    its row there."""

    plans: tuple[BudgetPlan, ...]

    def at(self, reporting: ReportService, scope: Scope, until_ms: int) -> tuple[BudgetStatus, ...]:
        return budget_report(reporting, scope, self.plans, max(0, until_ms - 1)).budgets

    def beside(self, reporting: ReportService, until_ms: int) -> Hashable:
        """Changes with what the windows before ``until_ms`` hold, as far back as a budget reads, and with the
        jobs that wait."""
        months = max(BudgetPeriod(each.period).months for plan in self.plans for each in plan.entries)
        back_ms = max(HISTORY_DAYS, 31 * months) * DAY_MS
        if any(each.carry_over for plan in self.plans for each in plan.entries):
            back_ms += MOST_PERIODS * 31 * months * DAY_MS
        span = Window(max(0, until_ms - back_ms), until_ms)
        return reporting.stand(EVERYTHING, span).digest, waits_ahead(reporting)


def budgeting_of(plans: Sequence[BudgetPlan], monthly: Collection[str]) -> ListedBudgets | None:
    """Of ``plans`` without those that are a team's ``monthly_budget``; None for none."""
    listed = tuple(plan for plan in plans if plan.name not in monthly)
    return ListedBudgets(listed) if listed else None


def named_plans(plans: Sequence[BudgetPlan], name: str | None, scope: Scope = EVERYTHING) -> list[BudgetPlan]:
    """The budget called ``name``; all without one. Raises InputError, with those that ``scope`` sees."""
    seen = [plan for plan in plans if _sees(scope, plan)]
    found = [plan for plan in seen if name in (None, plan.name)]
    if name is not None and not found:
        names = [plan.name for plan in seen]
        allowed = f"{named_first(name, names)}{', '.join(names)}" or "none: no budget is set"
        raise InputError("name", name, allowed)
    return found


def _sees(scope: Scope, plan: BudgetPlan) -> bool:
    subject, of = plan.entries[-1].subject
    if scope.teams is not None:
        return scope.clusters is None and subject is BudgetSubject.TEAM and of in scope.teams
    if scope.clusters is not None:
        return subject is BudgetSubject.CLUSTER and of in scope.clusters
    return True


def _entry(entry: SpendingBudget, currency: str) -> BudgetEntry:
    subject, of = entry.subject
    return BudgetEntry(
        entry.name,
        subject.value,
        of,
        entry.period,
        entry.amount,
        entry.currency or currency,
        entry.thresholds,
        entry.forecast_thresholds,
        entry.carry_over,
        entry.validity,
    )


class _DailySpend(NamedTuple):
    """Nano-units by the beginning of a day; how much GPU time has no price; and days of which too much has
    none."""

    nano: Mapping[int, int]
    unpriced_ms: int
    unknown: frozenset[int]


_NOTHING = _DailySpend({}, 0, frozenset())


def _in_force_words(parts: Sequence[Window]) -> str:
    spans = " and ".join(f"{iso(each.start_ms)[:16]} to {iso(each.end_ms)[:16]}" for each in parts)
    return f"in force {spans.replace('T', ' ')} UTC: only that is counted, with its part of the amount"


def _unpriced_words(board_ms: int) -> str:
    return f"{display.hours(board_ms)} GPU-hours without a price are in no amount" if board_ms else ""


@dataclass(frozen=True)
class _SharedReads:
    """What budgets of one report read alike, read once."""

    reporting: ReportService
    scope: Scope
    _windows: dict[Window, tuple[WindowInfo, ...]] = field(default_factory=dict)
    _teams: dict[Window, DailyCosts] = field(default_factory=dict)

    @cached_property
    def work(self) -> WorkAhead:
        return work_ahead(self.reporting, self.scope)

    def windows(self, span: Window) -> tuple[WindowInfo, ...]:
        if span not in self._windows:
            self._windows[span] = self.reporting.ledger.windows(span, scope=self.scope)
        return self._windows[span]

    def teams(self, span: Window) -> DailyCosts:
        """What each team held, by the beginning of a day."""
        if span not in self._teams:
            self._teams[span] = daily_costs(self.reporting, self.scope, span, _HELD)
        return self._teams[span]


@dataclass(frozen=True)
class _BudgetReader:
    """One budget at an instant."""

    reads: _SharedReads
    plan: BudgetPlan
    at_ms: int

    @property
    def reporting(self) -> ReportService:
        return self.reads.reporting

    @property
    def scope(self) -> Scope:
        return self.reads.scope

    def status(self, *, causes: bool) -> BudgetStatus | None:
        entry = self.plan.lately(self.at_ms)
        if entry is None:
            return None
        span = BudgetPeriod(entry.period).at(self.at_ms)
        parts, currency = self.plan.in_force(span), entry.currency or self.reporting.currency
        window = Window(parts[0].start_ms, parts[-1].end_ms)
        amount = self.plan.amount(span)
        carried, note = self._carried(span, MOST_PERIODS) if entry.carry_over else (0, "")
        total = amount + (carried or 0)
        subject, of = entry.subject
        is_ours = self._is_ours(span)
        if not is_ours:
            note = f"the ledger is in {self.reporting.currency}: what is spent in {currency} is not known"
        until_ms = self._until(window)
        covered, missing = self._covered(window)
        lacks = f"{missing} {span} is in the ledger" if is_ours and missing else ""
        found = self._counted(parts, until_ms) if is_ours else _NOTHING
        days = sorted(found.nano.items())
        spent = sum(found.nano.values()) if is_ours and covered else None
        forecast, as_of_ms = self._forecast(parts, total, lacks) if is_ours else (None, 0)
        thresholds = (
            *(self._actual(part, total, days, window) for part in entry.thresholds),
            *(_expected(part, total, forecast, as_of_ms) for part in entry.forecast_thresholds),
        )
        notes = (
            note,
            f"{lacks}{'' if covered else self._ledger_ends(window)}" if lacks else "",
            _in_force_words(parts) if parts != (span.window,) else "",
            _unpriced_words(found.unpriced_ms),
        )
        return BudgetStatus(
            name=entry.name,
            subject=subject.value,
            of=of,
            period=str(span),
            window=span.window,
            as_of=iso(self.at_ms),
            currency=currency,
            amount_nano=amount,
            carried_nano=carried,
            total_nano=total,
            spent_nano=spent,
            left_nano=None if spent is None else total - spent,
            part=None if spent is None or total <= 0 else Fraction(spent, total),
            covered=covered,
            thresholds=thresholds,
            forecast=forecast,
            causes=self._causes(entry, Window(window.start_ms, until_ms)) if causes and spent else (),
            note="; ".join(filter(None, notes)),
        )

    def _is_ours(self, span: PeriodSpan) -> bool:
        """Whether all of what is in force in a period is in the ledger's currency."""
        ours = (None, self.reporting.currency)
        return all(each.currency in ours for each, _ in self.plan.entries_in(span))

    def _ledger_ends(self, window: Window) -> str:
        """Where it has nothing of ``window``, since it ends before."""
        extent = self.reporting.ledger.extent(scope=self.scope)
        if extent is None or extent.end_ms > window.start_ms:
            return ""
        return f", which ends at {iso(extent.end_ms)[:16].replace('T', ' ')} UTC"

    def _covered(self, window: Window) -> tuple[Fraction, str]:
        """The part of the period so far that the ledger has; and how little that is, where a day or all of it
        is missing."""
        so_far = max(1, min(self.at_ms, window.end_ms) - window.start_ms)
        infos = self.reads.windows(window)
        clusters = max(1, len({info.cluster for info in infos}))
        known_ms = sum(window.overlap_ms(info.window.start_ms, info.window.end_ms) for info in infos)
        covered = min(Fraction(1), Fraction(known_ms, clusters * so_far))
        if not covered:
            return covered, "nothing of"
        is_late = (1 - covered) * so_far >= DAY_MS
        return covered, f"only {display.percent(covered)} of the time so far of" if is_late else ""

    def _until(self, window: Window) -> int:
        """Up to where the ledger counts: the instant asked for, in whole hours, or the end of the period."""
        return max(window.start_ms + HOUR_MS, min(self._hour_ms, window.end_ms))

    @property
    def _hour_ms(self) -> int:
        return -(-self.at_ms // HOUR_MS) * HOUR_MS

    def _filters(self) -> Mapping[str, frozenset[str]]:
        subject, of = self.plan.entries[-1].subject
        names = frozenset({of})
        if subject is BudgetSubject.COST_CENTRE:
            accounts = self.reporting.accounts
            names = frozenset(team for team, each in accounts.items() if each.cost_centre == of)
        return {_DIMS[subject]: names, **_HELD}

    def _daily(self, span: Window) -> _DailySpend:
        """What was spent, by the beginning of a day."""
        if not all(self._filters().values()):
            return _NOTHING
        found: dict[int, int] = defaultdict(int)
        unpriced_ms, unknown = 0, set[int]()
        # The hour that is asked for may cut a window: then what is settled up to its day counts.
        whole, filters = self._whole(span), self._filters()
        if whole.start_ms >= span.end_ms:
            return _NOTHING
        if "team" in filters:
            read = self.reads.teams(whole)
            teams: Collection[str] = filters["team"] & read.nano.keys()
        else:
            read = daily_costs(self.reporting, self.scope, whole, filters)
            teams = read.nano.keys()
        for team in teams:
            for day_ms, nano in read.nano[team].items():
                found[day_ms // DAY_MS * DAY_MS] += nano
            unpriced_ms += sum(read.unpriced_ms.get(team, {}).values())
            unknown |= read.unknown.get(team, frozenset())
        return _DailySpend(dict(found), unpriced_ms, frozenset(unknown))

    def _counted(self, parts: Sequence[Window], until_ms: int) -> _DailySpend:
        """What was spent in the parts of a period in which the budget is in force, up to an instant."""
        found: dict[int, int] = defaultdict(int)
        unpriced_ms = 0
        for part in parts:
            # Up to midnight first: days are counted from the begin of what is asked for.
            first = min(part.end_ms, -(-part.start_ms // DAY_MS) * DAY_MS)
            for start_ms, end_ms in ((part.start_ms, first), (first, part.end_ms)):
                if start_ms < min(end_ms, until_ms):
                    own = self._daily(Window(start_ms, min(end_ms, until_ms)))
                    unpriced_ms += own.unpriced_ms
                    for day_ms, nano in own.nano.items():
                        found[day_ms] += nano
        return _DailySpend(dict(found), unpriced_ms, frozenset())

    def _whole(self, span: Window) -> Window:
        """``span`` from the first window of the ledger that begins in it up to the last that ends in it."""
        infos = self.reads.windows(span)
        begun = [info.window.end_ms for info in infos if info.window.start_ms < span.start_ms]
        if begun:
            span = Window(max(begun), max(span.end_ms, max(begun) + 1))
        ends = [info.window.end_ms for info in infos if info.window.end_ms <= span.end_ms]
        cut = [info.window.start_ms for info in infos if info.window.end_ms > span.end_ms]
        end_ms = min([span.end_ms, *cut]) if cut else max(ends, default=span.end_ms)
        return Window(span.start_ms, max(end_ms, span.start_ms + 1)) if end_ms > span.start_ms else span

    def _hours(self, day_ms: int) -> list[tuple[int, int]]:
        day = Window(day_ms, day_ms + DAY_MS)
        try:
            lines = self.reporting.ledger.aggregate(
                self.scope, self._whole(day), ("bucket",), filters=self._filters(), step_ms=HOUR_MS
            )
        except InputError:  # longer windows than an hour
            return []
        found: dict[int, int] = defaultdict(int)
        for start_ms, nano in lines[[STEP, "nano"]].dropna().itertuples(index=False, name=None):
            found[int(start_ms) + HOUR_MS] += int(nano)
        return sorted(found.items())

    def _actual(
        self, part: Fraction, total: int, days: Sequence[tuple[int, int]], window: Window
    ) -> ThresholdStatus:
        at = self._reached(part * total, days, window)
        return ThresholdStatus(ACTUAL, part, None if at is None else iso(at))

    def _reached(self, limit: Fraction, days: Sequence[tuple[int, int]], window: Window) -> int | None:
        """Of a budget that is overspent before it begins, all is reached at its begin; of one of nothing,
        with the first that is spent."""
        if limit < 0:
            return window.start_ms

        def hours(day_ms: int) -> list[tuple[int, int]]:
            return [each for each in self._hours(day_ms) if window.start_ms < each[0] <= window.end_ms]

        return reached_at(max(limit, Fraction(1)), days, hours)

    def _forecast(self, parts: Sequence[Window], total: int, lacks: str) -> tuple[BudgetForecast | None, int]:
        """None where the period is over, or no whole day of it is known; without amounts where ``lacks`` says
        what of the time so far is not."""
        window = Window(parts[0].start_ms, parts[-1].end_ms)
        if self._hour_ms >= window.end_ms:
            return None, 0
        begin_ms = window.start_ms // DAY_MS * DAY_MS
        span = Window(max(0, begin_ms - HISTORY_DAYS * DAY_MS), self._hour_ms // DAY_MS * DAY_MS)
        if span.end_ms <= begin_ms:
            return None, 0
        known = known_days(self.reads.windows(span))
        whole = [day for day in range(begin_ms, span.end_ms, DAY_MS) if day in known]
        if not whole:
            return None, 0
        until_ms = whole[-1] + DAY_MS
        left = -(-sum(each.overlap_ms(until_ms, window.end_ms) for each in parts) // DAY_MS)
        if lacks:
            unknown = MonthEnd("", None, None, None, left, lacks)
            return budget_forecast(unknown, COVERAGE, 0, total, until_ms), until_ms
        span = Window(max(span.start_ms, until_ms - HISTORY_DAYS * DAY_MS), until_ms)
        costs = self._daily(Window(min(span.start_ms, begin_ms), until_ms))
        begun = min(costs.nano, default=until_ms)
        days = range(max(span.start_ms, begun), until_ms, DAY_MS)
        priced = known - costs.unknown
        history = [costs.nano.get(day, 0) if day in priced else None for day in days]
        so_far = costs.nano.items()
        if any(edge % DAY_MS for each in parts for edge in (each.start_ms, each.end_ms)):
            so_far = self._counted(parts, until_ms).nano.items()
        inside = sorted(
            (day, nano) for day, nano in so_far if any(each.overlap_ms(day, day + DAY_MS) for each in parts)
        )
        spent = sum(nano for _, nano in inside)
        held = sum(self._counted(parts, self._until(window)).nano.values())
        most_a_day = self._most_a_day(until_ms)
        ahead = {"": daily_cost(self._ahead(), until_ms, left)}
        end = month_ends(
            *({**self._others(span, known), "": history}, {"": spent}, left, most_a_day, {"": held}),
            ahead=ahead,
            of_shorter=True,
        )[""]
        passed = self._reached(Fraction(total), inside, window) if spent > total else None
        return budget_forecast(end, COVERAGE, spent, total, until_ms, passed), until_ms

    def _ahead(self) -> tuple[AheadJob, ...]:
        """The jobs of this budget that run or wait; none at an instant before the ledger's end."""
        work = self.reads.work
        ((dim, names),) = ((dim, names) for dim, names in self._filters().items() if dim != "bucket")
        if self._hour_ms < work.end_ms:
            return ()
        return tuple(job for job in work.jobs if getattr(job, dim) in names)

    def _most_a_day(self, until_ms: int) -> int | None:
        """What all GPUs cost on the last day that is known, as for the end of a month; of one cluster, its
        own. Who sees some teams is not told."""
        if not self.scope.sees_every_team:
            return None
        subject, of = self.plan.entries[-1].subject
        infos = self.reads.windows(Window(until_ms - DAY_MS, until_ms))
        is_all = subject is not BudgetSubject.CLUSTER
        return sum(info.nano for info in infos if is_all or info.cluster == of)

    def _others(self, span: Window, known: frozenset[int]) -> dict[str, list[int | None]]:
        """The histories of all other teams in scope: how far forecasts were off is said by all of them."""
        subject, of = self.plan.entries[-1].subject
        costs = self.reads.teams(span)
        return {
            f"team {team}": costs.history(team, span, known)
            for team in costs.nano
            if (subject, of) != (BudgetSubject.TEAM, team)
        }

    def _carried(self, span: PeriodSpan, most: int) -> tuple[int | None, str]:
        """What the period before left; with what it had carried over itself."""
        before = span.previous()
        entry, parts = self.plan.of_period(before), self.plan.in_force(before)
        if entry is None or not most:
            return 0, ""
        infos = self.reads.windows(before.window)
        if not infos:
            return 0, ""  # before the ledger begins there was no budget to leave anything of
        if not self._is_ours(before):
            ours = self.reporting.currency
            return None, f"what {before} left is in another currency than the ledger's, {ours}"
        known = known_days(infos)
        days = (range(each.start_ms // DAY_MS * DAY_MS, each.end_ms, DAY_MS) for each in parts)
        if not all(day in known for own in days for day in own):
            return None, f"what {before} left is not known: the ledger has not all of it"
        own, note = self._carried(before, most - 1) if entry.carry_over else (0, "")
        found = self._counted(parts, before.window.end_ms)
        if found.unpriced_ms:
            return None, f"what {before} left is not known: {_unpriced_words(found.unpriced_ms)}"
        return self.plan.amount(before) + (own or 0) - sum(found.nano.values()), note

    def _causes(self, entry: SpendingBudget, span: Window) -> tuple[BudgetCause, ...]:
        """The dearest causes of the change against as much time right before; else the dearest jobs."""
        span = self._whole(span)
        subject, of = entry.subject
        if subject in (BudgetSubject.TEAM, BudgetSubject.CLUSTER):
            own = Scope(frozenset({of}), self.scope.clusters)
            if subject is BudgetSubject.CLUSTER:
                own = Scope(self.scope.teams, frozenset({of}))
            before = Window(max(0, span.start_ms - span.length_ms), span.start_ms)
            try:
                found = compare_spans(self.reporting, own, span, before)
            except InputError:  # an edge of the span before cuts a window
                found = None
            if found is not None and found.report.change_nano > 0:
                up = [each for each in found.report.causes if each.nano > 0][:_MOST_CAUSES]
                return tuple(BudgetCause(cause_words(each), each.nano) for each in up)
        lines = self.reporting.ledger.aggregate(
            self.scope, span, ("namespace", "job"), filters=self._filters()
        )
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for namespace, job, nano in (
            lines[["namespace", "job", "nano"]].dropna().itertuples(index=False, name=None)
        ):
            sums[str(namespace), str(job)] += int(nano)
        dearest = sorted(((nano, *key) for key, nano in sums.items()), reverse=True)[:_MOST_CAUSES]
        return tuple(
            BudgetCause(f"job {display.name(f'{namespace}/{job}' if job else namespace)}", nano)
            for nano, namespace, job in dearest
        )


def _expected(part: Fraction, total: int, forecast: BudgetForecast | None, as_of_ms: int) -> ThresholdStatus:
    """A forecast of what is reached already is none: what was spent says so."""
    nano = None if forecast is None else forecast.expected_nano
    is_reached = nano is not None and nano >= (part * total or 1)
    return ThresholdStatus(FORECAST, part, iso(as_of_ms) if is_reached else None)
