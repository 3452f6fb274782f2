"""From the ledger to reports: the queries that each report needs, so that reports do not know the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pandas as pd

from gpucost.detectors.engine.lifecycle import LIVE
from gpucost.domain.buckets import HOLDERS_OF_NONE, Bucket
from gpucost.domain.errors import ChargesChanged, ErrorRemark, InputError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Month, Window, parse_instant
from gpucost.ledger.db.records import (
    Adjustment,
    AssessmentCounts,
    FindingRecord,
    LedgerState,
    MonthInfo,
    WindowInfo,
)
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base.frame_sums import prepare, total
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.allocations import (
    AllocationQuery,
    Allocations,
    IdlePolicy,
    allocate,
)
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import (
    JOB_DIMS,
    MONTH_DIMS,
    PREVIOUS_DIMS,
    AdjustmentFacts,
    JobInputs,
    MonthFacts,
    MonthInputs,
    TeamAccount,
    WindowFacts,
)
from gpucost.reports.month.model import MonthReport, StatementSummary
from gpucost.reports.month.provenance import digest_of, unreported_buckets
from gpucost.reports.waste.recommendations import KnownFinding
from gpucost.reports.waste.waste_report import (
    TOP,
    WASTE_DIMS,
    WasteAssessment,
    WasteInputs,
    WasteReport,
    build_waste,
)
from gpucost.service.detection.finding_records import from_json, is_readable
from gpucost.service.reporting.report_cache import ReportCache
from gpucost.service.reporting.team_names import check_teams
from gpucost.service.reporting.unit_reports import job_progress

if TYPE_CHECKING:
    from gpucost.reports.job.job_receipt import JobEndFacts, JobReceipt
    from gpucost.reports.job.job_report import JobReport
    from gpucost.reports.month.budget_status import BudgetStatus
    from gpucost.service.reporting.job_endings import EndLookup

R = TypeVar("R")

# Before the first priced window a ledger has no currency; ISO 4217 has a code for that.
NO_CURRENCY = "XXX"
WINDOW_FORMS = (
    "a month such as 2026-10, or START/END in RFC 3339 with a zone, half-open, START before END, "
    "such as 2026-10-01T00:00:00Z/2026-10-08T00:00:00Z, from 2010 to 2099"
)
_LOOKS = 5
# More than a person reads; the API pages through all of them.
_MOST_FINDINGS = 500
_NO_FILTERS: Mapping[str, frozenset[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LedgerStand:
    """State of the ledger over a window; ``digest`` changes whenever a number of it could.

    ``settled``: every window is there and settled, of ``clusters`` and of those that had some right before.
    """

    digest: str
    windows: int
    settled: bool
    covered_ms: int
    observed_ms: int
    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportAnswer(Generic[R]):
    """A report, and the state of the ledger while it was made."""

    report: R
    stand: LedgerStand


class MonthCharging(Protocol):
    """What teams pay under a charge policy; ``digest`` is of the policy."""

    @property
    def digest(self) -> str: ...

    def beside(self, reporting: ReportService, month: Month) -> Hashable:
        """What that is made from, besides the report of the month."""

    def blockers(self, reporting: ReportService, month: Month) -> tuple[str, ...]:
        """Why the month should not be closed yet, a sentence each."""

    def summary(self, reporting: ReportService, month: Month, report: MonthReport) -> StatementSummary | None:
        """What every team pays for the month of ``report``; None where that is what it held. Raises
        InputError where the policy does not fit the ledger, and ChargesChanged."""


class SpanBudgeting(Protocol):
    """How the budgets of the list in the team rules stand."""

    def at(self, reporting: ReportService, scope: Scope, until_ms: int) -> tuple[BudgetStatus, ...]:
        """Those that ``scope`` may see, in the periods that go on right before ``until_ms``."""

    def beside(self, reporting: ReportService, until_ms: int) -> Hashable:
        """What that is made from."""


@dataclass(frozen=True)
class ReportService:
    """Reports over one ledger. ``quotas`` are the weights of ``idle=by_quota``, GPUs per team.

    ``team_idle_sharing`` lets a scope with teams ask for its part of the idle time, from which it can compute
    what the others hold. ``accounts`` are what the team rules say of teams. ``charging`` is None where teams
    pay what they held, ``budgeting`` where the list of budgets is empty. ``kept`` is the cache of reports.
    """

    ledger: Ledger
    code_version: str
    quotas: Mapping[str, Fraction]
    team_idle_sharing: bool = False
    accounts: Mapping[str, TeamAccount] = field(default_factory=dict)
    charging: MonthCharging | None = None
    budgeting: SpanBudgeting | None = None
    kept: ReportCache = field(default_factory=ReportCache, compare=False, repr=False)

    @property
    def currency(self) -> str:
        return self.ledger.currency or NO_CURRENCY

    def month(
        self, scope: Scope, month: Month, *, every_job: bool = False
    ) -> ReportAnswer[MonthReport] | None:
        """The report of a month; None for a month of which the ledger holds nothing.

        ``every_job`` lists every job, for CSV and Parquet.
        """
        if not self.stand(scope, month.window).windows:
            return None
        return self.steady(
            scope,
            month.window,
            lambda: self._charged(
                self._budgeted(scope, build_month(self._month_inputs(scope, month), every_job=every_job))
            ),
            asked=("month", every_job, "" if self.charging is None else self.charging.digest),
            beside=lambda: (
                self.beside_month(scope, month),
                None if self.charging is None else self.charging.beside(self, month),
            ),
        )

    def budgets(self, scope: Scope, window: Window) -> tuple[BudgetStatus, ...]:
        """The budgets of the list, as of the end of ``window`` or of the ledger, whichever is first."""
        if self.budgeting is None:
            return ()
        return self.budgeting.at(self, scope, self._until(scope, window))

    def _until(self, scope: Scope, window: Window) -> int:
        extent = self.ledger.extent(scope=scope)
        return (
            window.end_ms if extent is None else min(window.end_ms, max(extent.end_ms, window.start_ms + 1))
        )

    def _budgeted(self, scope: Scope, report: MonthReport) -> MonthReport:
        return replace(report, budgets=self.budgets(scope, report.month.window))

    def _charged(self, report: MonthReport) -> MonthReport:
        """With what teams pay, of those in the scope of the report."""
        if self.charging is None or report.clusters_in_scope is not None:
            return report
        teams = report.teams_in_scope
        try:
            found = self.charging.summary(self, report.month, report)
        except InputError as error:
            # The reason may name teams.
            why = str(error) if teams is None else "the charge policy does not fit the ledger"
            return replace(report, uncharged=why)
        except ChargesChanged as error:
            return replace(report, uncharged=error.whole if teams is None else str(error))
        if found is None:
            return report
        return replace(report, charges=found.seen_by(None if teams is None else frozenset(teams)))

    def month_adjustments(self, month: Month) -> tuple[AdjustmentFacts, ...]:
        """The adjustments of every team."""
        return tuple(_adjustment_facts(item) for item in self.ledger.adjustments(EVERYTHING, month))

    def allocations(
        self,
        scope: Scope,
        window: Window,
        group_by: tuple[str, ...],
        *,
        step_ms: int | None = None,
        idle: IdlePolicy = IdlePolicy.SEPARATE,
        filters: Mapping[str, frozenset[str]] = _NO_FILTERS,
    ) -> ReportAnswer[Allocations]:
        """Who held what in ``window``.

        Raises InputError for a wrong dimension, a cluster or team that is not known, a window cut in two, and
        a policy that shares idle time where the scope may not know its part.
        """
        for cluster in sorted(filters.get("cluster", ())):
            self.of_cluster(scope, cluster)
        self.check_teams(scope, filters.get("team", ()), nobody=True)
        if idle is not IdlePolicy.SEPARATE and scope.teams is not None and not self.team_idle_sharing:
            allowed = "separate for some teams only: a part of what is idle would tell what the others hold"
            raise InputError("idle", idle.value, f"{allowed} (setting api.team_idle_sharing)")
        if idle is IdlePolicy.BY_QUOTA and not self.quotas:
            raise InputError("idle", idle.value, "separate or proportional: no team has a quota_gpus")
        query = AllocationQuery(window, group_by, step_ms, idle, self.quotas, filters, scope)
        named = tuple(sorted((name, values) for name, values in filters.items()))
        return self.steady(
            scope,
            window,
            lambda: allocate(query, self._allocation_lines(query), self.currency),
            asked=("allocations", group_by, step_ms, idle, named),
        )

    def of_cluster(self, scope: Scope, cluster: str | None) -> Scope:
        """What ``scope`` sees of one cluster; all that it sees where ``cluster`` is None.

        Raises InputError, with the clusters that the scope sees, for one that is not among them.
        """
        if cluster is None:
            return scope
        known = self.ledger.clusters(scope=scope)
        if cluster not in known:
            raise InputError("cluster", cluster, ", ".join(known) or "nothing yet: the ledger has no cluster")
        return scope.within((cluster,))

    def check_teams(self, scope: Scope, names: Collection[str], *, nobody: bool = False) -> None:
        """Raises InputError for the first team that ``scope`` may not know of, with those that it does.
        ``nobody``: who sees every team may name what stands for no team, too."""
        check_teams(self.ledger, self.accounts, scope, names, nobody=nobody)

    def of_team(self, scope: Scope, team: str | None) -> Scope:
        """What ``scope`` sees of one team, as that team does; all that it sees where ``team`` is None. Raises
        InputError as ``check_teams``."""
        if team is None:
            return scope
        self.check_teams(scope, (team,))
        return Scope(frozenset({team}), scope.clusters)

    def job(self, scope: Scope, job_uid: str, progress: str | None = None) -> ReportAnswer[JobReport] | None:
        """One job so far; None when the scope sees no such job. ``progress`` names one progress metric.

        Raises InputError when the job has no progress of that name, and where several clusters of the scope
        have a job of this uid, as clones of a cluster do: these are several jobs.
        """
        from gpucost.reports.job.job_report import build_job

        clusters = self.ledger.job_clusters(scope, job_uid)
        if len(clusters) > 1:
            allowed = f"one of {', '.join(clusters)}: each has a job of this uid"
            raise InputError("cluster", ErrorRemark("missing"), allowed)
        only = scope.within(clusters)
        window = self.ledger.job_window(only, job_uid)
        if window is None:
            return None
        return self.steady(only, window, lambda: build_job(self._job_inputs(only, job_uid, window, progress)))

    def receipt(
        self, scope: Scope, job_uid: str, ends: EndLookup | None = None
    ) -> ReportAnswer[JobReceipt] | None:
        """The receipt of one job; ``ends`` looks up how it ended, where a cluster is watched. As ``job``
        otherwise."""
        found = self.job(scope, job_uid)
        if found is None:
            return None
        report, clusters = found.report, ", ".join(found.report.clusters)
        end = None if ends is None else ends(clusters, report.namespace, job_uid, report.job_kind)
        return ReportAnswer(self.receipt_of(report, end), found.stand)

    def receipt_of(self, report: JobReport, end: JobEndFacts | None = None) -> JobReceipt:
        """The receipt that goes with a report of this ledger."""
        from gpucost.reports.job.job_receipt import NO_END, build_receipt

        extents = (self.ledger.extent(cluster) for cluster in report.clusters)
        holds = any(extent is not None and extent.end_ms <= report.span.end_ms for extent in extents)
        return build_receipt(report, end or NO_END, holds=holds)

    def waste(self, scope: Scope, window: Window, *, top: int = TOP) -> ReportAnswer[WasteReport] | None:
        """Where the capacity of ``window`` went; None where the ledger holds nothing of it.

        Raises InputError for a window cut in two.
        """
        if not self.stand(scope, window).windows:
            return None
        return self.steady(
            scope,
            window,
            lambda: build_waste(self._seen_waste(scope, window), top=top),
            asked=("waste", top),
            beside=lambda: _digest_of_findings(self._live_findings(scope)),
        )

    def stand(self, scope: Scope, window: Window) -> LedgerStand:
        """The state of the clusters of ``scope`` over ``window``, from which every answer is made."""
        ledger = self.ledger
        infos, assessed = ledger.windows(window, scope=scope), ledger.assessed(window, scope=scope)
        clusters = {info.cluster for info in infos}
        absent = self._absent(scope, window, clusters)
        covered_ms = sum(window.overlap_ms(info.window.start_ms, info.window.end_ms) for info in infos)
        digest = digest_of(window_facts(info) for info in infos)
        return LedgerStand(
            digest=hashlib.sha256(f"{digest} {assessed.digest}".encode()).hexdigest()
            if assessed.digest
            else digest,
            windows=len(infos),
            settled=covered_ms == len(clusters | absent) * window.length_ms
            and bool(infos)
            and all(info.state is not LedgerState.OPEN for info in infos),
            covered_ms=covered_ms,
            observed_ms=sum(info.observed_ms for info in infos),
            clusters=tuple(sorted(clusters)),
        )

    def _absent(self, scope: Scope, window: Window, there: Collection[str]) -> frozenset[str]:
        """Clusters without a window in ``window``, but with some in the month or stretch of time right
        before."""
        others, before = set(self.ledger.clusters(scope=scope)).difference(there), _before(window)
        return frozenset(each for each in others if self.ledger.windows(before, each, scope=scope))

    def is_whole(self, scope: Scope, window: Window) -> bool:
        """Whether no window of the scope's clusters is cut by the edges of ``window``."""
        infos = self.ledger.windows(window, scope=scope)
        return all(info.window.intersect(window) == info.window for info in infos)

    def months(self, scope: Scope) -> tuple[Month, ...]:
        """The months that the ledger has windows of, of the scope's clusters, oldest first."""
        extent = self.ledger.extent(scope=scope)
        infos = () if extent is None else self.ledger.windows(extent, scope=scope)
        return tuple(sorted({Month.of(info.window.start_ms) for info in infos}))

    def steady(
        self,
        scope: Scope,
        window: Window,
        read: Callable[[], R],
        *,
        asked: tuple[Hashable, ...] | None = None,
        beside: Callable[[], Hashable] = tuple,
    ) -> ReportAnswer[R]:
        """The result of ``read`` between two states of the ledger that are equal: a report is made of several
        reads, and the loop writes all the time. Raises LedgerUnavailable when the ledger keeps changing.

        With ``asked``, which distinguishes this question from others of the scope and window, the answer is
        kept for as long as the ledger does not change; ``beside`` is what the answer is made from besides
        what ``stand`` covers.
        """

        def look() -> tuple[LedgerStand, *tuple[Hashable, ...]]:
            # A rollup changes no digest of a window, and the first price may be of another window.
            folded = self.ledger.folded_days(scope, window)
            return self.stand(scope, window), folded, self.ledger.currency, beside()

        def once() -> tuple[R, tuple[LedgerStand, *tuple[Hashable, ...]]]:
            return read(), look()

        before = look()
        for _ in range(_LOOKS):
            if asked is None:
                report, after = once()
            else:
                key = asked, scope, window, before
                report, after = self.kept.get(key, once, keeps=partial(_stands, before))
            if after == before:
                return ReportAnswer(report, after[0])
            before = after
        raise LedgerUnavailable(f"{window} was written to while it was being read; try again")

    def beside_month(self, scope: Scope, month: Month) -> Hashable:
        """What the report of a month is made from, besides its own windows."""
        ledger, before = self.ledger, self.stand(scope, month.previous().window)
        adjustments, findings = ledger.adjustments(scope, month), self._live_findings(scope)
        budgets = (
            None if self.budgeting is None else self.budgeting.beside(self, self._until(scope, month.window))
        )
        return before, ledger.month(month, scope=scope), adjustments, _digest_of_findings(findings), budgets

    def _live_findings(self, scope: Scope) -> tuple[FindingRecord, ...]:
        return tuple(self.ledger.findings(scope, states=LIVE, limit=_MOST_FINDINGS))

    def _month_inputs(self, scope: Scope, month: Month) -> MonthInputs:
        """One aggregate over the month's lines, by day: they are many, and read once."""
        ledger, window, before = self.ledger, month.window, month.previous().window
        lines = ledger.aggregate(scope, window, MONTH_DIMS, step_ms=DAY_MS, categories=True)
        infos, infos_before = ledger.windows(window, scope=scope), ledger.windows(before, scope=scope)
        return MonthInputs(
            month=month,
            currency=self.currency,
            code_version=self.code_version,
            lines=lines,
            previous=ledger.aggregate(scope, before, PREVIOUS_DIMS) if infos_before else None,
            days=lines,
            scope=scope,
            facts=_month_facts(ledger.month(month, scope=scope)),
            windows=tuple(window_facts(info) for info in infos),
            previous_windows=tuple(window_facts(info) for info in infos_before),
            rates=ledger.rates(frozenset(lines["rate_id"])),
            problems=ledger.problems(scope, window),
            adjustments=tuple(_adjustment_facts(item) for item in ledger.adjustments(scope, month)),
            capacity=_capacity(infos),
            waste=self._month_waste(scope, window),
            accounts=self.accounts,
        )

    def _month_waste(self, scope: Scope, window: Window) -> WasteInputs | None:
        """None where no window has been assessed: then there is nothing to read. A finding that began after
        the month does not belong to it."""
        assessed = self.ledger.assessed(window, scope=scope)
        if not assessed.final + assessed.provisional:
            return None
        found = self.waste_inputs(scope, window)
        return replace(found, findings=[each for each in found.findings if each.since_ms < window.end_ms])

    def _seen_waste(self, scope: Scope, window: Window) -> WasteInputs:
        """With how busy the held GPUs were; the reports of months and weeks have lines with that."""
        lines = prepare(self.ledger.aggregate(scope, window, ("bucket",)), ("bucket",), "lines")
        busy = total(lines[lines["bucket"] == Bucket.HELD]).utilisation.busy
        return replace(self.waste_inputs(scope, window), held_busy=busy)

    def waste_inputs(self, scope: Scope, window: Window) -> WasteInputs:
        ledger = self.ledger
        infos, assessed = ledger.windows(window, scope=scope), ledger.assessed(window, scope=scope)
        return WasteInputs(
            window=window,
            currency=self.currency,
            lines=ledger.waste(scope, window, WASTE_DIMS, step_ms=DAY_MS),
            capacity=_capacity(infos) if scope.sees_every_team else None,
            assessment=_assessment(assessed),
            findings=known_findings(self._live_findings(scope)),
            scope=scope,
            not_told=unreported_buckets(info.source for info in infos),
        )

    def _allocation_lines(self, query: AllocationQuery) -> pd.DataFrame:
        scope, filters = query.scope, query.filters
        if query.shares:
            # Idle time is shared among all teams, so a team's share needs the others' lines; ``allocate``
            # applies the scope and the filters afterwards.
            scope, filters = Scope(None, scope.clusters), {}
        elif _names_nobody(filters):
            # The ledger has fewer columns for "no holder" than ``allocate``, which filters once more.
            filters = {}
        return self.ledger.aggregate(
            scope, query.window, query.dims, filters=filters, step_ms=query.read_step_ms
        )

    def _job_inputs(self, scope: Scope, job_uid: str, window: Window, progress: str | None) -> JobInputs:
        ledger = self.ledger
        lines = ledger.aggregate(scope, window, JOB_DIMS, filters={"job_uid": [job_uid]})
        own = {job_uid, *lines["pod_uid"]}
        return JobInputs(
            job_uid=job_uid,
            currency=self.currency,
            code_version=self.code_version,
            window=window,
            lines=lines,
            rates=ledger.rates(frozenset(lines["rate_id"])),
            progress=job_progress(ledger, scope, window, job_uid, progress),
            problems=tuple(found for found in ledger.problems(scope, window) if found.subject in own),
            waste=ledger.waste(scope, window, ("bucket",), filters={"job_uid": [job_uid]}),
            assessment=_assessment(ledger.assessed(window, scope=scope)),
            findings=self._findings_about(scope, job_uid, window),
            scope=scope,
            folded_days=ledger.folded_days(scope, window),
        )

    def _findings_about(self, scope: Scope, job_uid: str, window: Window) -> tuple[KnownFinding, ...]:
        """Those seen since ``window`` began, whatever their state, the dearest first."""
        records = self.ledger.findings(
            scope, since_ms=window.start_ms, subject_uid=job_uid, limit=_MOST_FINDINGS
        )
        return known_findings(records)


def _stands(before: Hashable, made: tuple[object, Hashable]) -> bool:
    """Whether the ledger did not change while an answer was made."""
    return made[1] == before


def _digest_of_findings(records: Iterable[FindingRecord]) -> str:
    return hashlib.sha256(repr(tuple(records)).encode()).hexdigest()


def known_findings(records: Iterable[FindingRecord]) -> tuple[KnownFinding, ...]:
    """Findings of the ledger as reports take them."""
    return tuple(
        KnownFinding(
            record.id, record.state.value, from_json(record.content), record.since_ms, record.closed_at_ms
        )
        for record in records
        if record.id is not None and is_readable(record)
    )


def parse_window(text: str) -> Window:
    """``2026-10`` or ``START/END`` in RFC 3339 -> Window. Raises InputError."""
    start, slash, end = text.partition("/")
    try:
        if not slash:
            return Month.parse(text).window
        return Window(parse_instant(start), parse_instant(end))
    except InputError:
        raise InputError("window", text, WINDOW_FORMS) from None


def _before(window: Window) -> Window:
    """The month before a month; before anything else as much time as it has."""
    month = Month.of(window.start_ms)
    if window == month.window:
        return month.previous().window
    return Window(max(0, window.start_ms - window.length_ms), window.start_ms)


def _names_nobody(filters: Mapping[str, frozenset[str]]) -> bool:
    return any(value in HOLDERS_OF_NONE for values in filters.values() for value in values)


def _capacity(infos: Sequence[WindowInfo]) -> CostAmount:
    """As stored with the windows; without a price anywhere the cost is null, not 0."""
    board_ms, unpriced_ms = sum(info.board_ms for info in infos), sum(info.unpriced_ms for info in infos)
    nano = sum(info.nano for info in infos)
    return CostAmount(board_ms, None if board_ms and unpriced_ms == board_ms else nano, unpriced_ms)


def window_facts(info: WindowInfo) -> WindowFacts:
    return WindowFacts(
        cluster=info.cluster,
        start_ms=info.window.start_ms,
        end_ms=info.window.end_ms,
        version=info.version,
        digest=info.digest,
        observed_ms=info.observed_ms,
        settled=info.state is not LedgerState.OPEN,
        source=info.source,
        code_version=info.code_version,
    )


def _assessment(found: AssessmentCounts) -> WasteAssessment:
    return WasteAssessment(found.final, found.provisional, found.missing)


def _month_facts(info: MonthInfo) -> MonthFacts:
    if info.state is not LedgerState.CLOSED:
        return MonthFacts(version=info.version)
    return MonthFacts(
        closed=True,
        version=info.version,
        digest=info.digest or "",
        previous_digest=info.previous_digest or "",
        closed_at_ms=info.closed_at_ms,
        author=info.author or "",
        reason=info.reason or "",
    )


def _adjustment_facts(item: Adjustment) -> AdjustmentFacts:
    return AdjustmentFacts(
        item.team, item.nano, item.board_ms, item.reason, item.author, item.reference, item.job_uid
    )
