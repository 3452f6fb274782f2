"""Notices of budgets whose thresholds were reached lately. Nothing is sent here.

What was reached when follows from the ledger alone, and the key of a notice is the budget, its period and the
threshold: a restart, or a second replica, tells nothing twice. A threshold is news for a week after it was
reached. Of several that were reached, the highest is told; what is expected is told only where no threshold
of what was spent is news. gpucost's own alerts about a budget are told as these: once, not twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpucost.attribution.budgets import BudgetPlan
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window, parse_instant
from gpucost.notify.alertmanager import AlertmanagerAlert
from gpucost.notify.compose.budget import budget_key, budget_notice, key_tells
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import Conversation, Notice, NoticeKind
from gpucost.reports.month.budget_status import ACTUAL, FORECAST, BudgetReport, BudgetStatus, ThresholdStatus
from gpucost.service.reporting.budget_reports import budget_report
from gpucost.service.reporting.report_service import ReportService

NEWS_MS = 7 * DAY_MS
_ALERTS = {"GpuCostBudgetExceeded": ACTUAL, "GpuCostBudgetProjectedToExceed": FORECAST}
_LOOK_EVERY_MS = MINUTE_MS
_LONGEST_MS = 366 * DAY_MS


class BudgetWatch:
    """How all budgets stand, read again only when the ledger has changed or an hour has passed. Raises
    LedgerError."""

    def __init__(self, reporting: ReportService, plans: Sequence[BudgetPlan]) -> None:
        self.reporting = reporting
        self.plans = tuple(plans)
        self._found: tuple[object, BudgetReport] | None = None

    def report(self, now_ms: int) -> BudgetReport:
        """As of the end of the ledger, where that is before ``now_ms``."""
        extent = self.reporting.ledger.extent()
        at_ms = now_ms if extent is None else min(now_ms, extent.end_ms)
        span = Window(max(0, at_ms - _LONGEST_MS), max(at_ms, 1))
        key = at_ms // HOUR_MS, self.reporting.stand(EVERYTHING, span).digest
        # One attribute: scrapes come in several threads.
        found = self._found
        if found is None or found[0] != key:
            found = key, budget_report(self.reporting, EVERYTHING, self.plans, max(0, at_ms - 1))
            self._found = found
        return found[1]


class BudgetNotices:
    """The source of notices about budgets. ``takes`` says whether any route takes a notice. Raises
    LedgerError."""

    def __init__(
        self, watch: BudgetWatch, links: MessageLinks, takes: Callable[[Notice], bool] = lambda _: True
    ) -> None:
        self._watch = watch
        self._links = links
        self._takes = takes
        self._told: frozenset[str] = frozenset()
        self._looked_ms: int | None = None
        self._made: dict[str, Notice] = {}
        self._seen: BudgetReport | None = None

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Sequence[Notice]:
        if not self._watch.plans:
            return ()
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_EVERY_MS:
            self._looked_ms = now_ms
            found = self._watch.report(now_ms)
            if found is not self._seen:
                self._made = self._notices(found, now_ms)
                self._seen = found
        before = {each.key for each in told if each.kind is NoticeKind.BUDGET}
        self._told = frozenset(before.union(key for key, each in self._made.items() if self._takes(each)))
        return tuple(self._made.values())

    def tells(self, alert: AlertmanagerAlert) -> bool:
        """Whether an alert says what a notice of this source says, or has said."""
        kind, labels = _ALERTS.get(alert.labels.get("alertname", "")), alert.labels
        if kind is None or not any(plan.name == labels.get("budget") for plan in self._watch.plans):
            return False
        return any(key_tells(key, labels["budget"], labels.get("period", ""), kind) for key in self._told)

    def _notices(self, found: BudgetReport, now_ms: int) -> dict[str, Notice]:
        made: dict[str, Notice] = {}
        for status in (*self._ended(found), *found.budgets):
            for threshold in _news(status, now_ms):
                key = budget_key(status, threshold)
                notice = self._made.get(key)
                if notice is None:
                    notice = budget_notice(self._with_causes(status), threshold, self._links)
                made[key] = notice
        return made

    def _ended(self, found: BudgetReport) -> Iterator[BudgetStatus]:
        """The period before, while it is news: its last windows come when the next has begun."""
        for status in found.budgets:
            start_ms = status.window.start_ms
            if parse_instant(status.as_of) - start_ms < NEWS_MS:
                plans = [plan for plan in self._watch.plans if plan.name == status.name]
                yield from budget_report(
                    self._watch.reporting, EVERYTHING, plans, max(0, start_ms - 1)
                ).budgets

    def _with_causes(self, status: BudgetStatus) -> BudgetStatus:
        """The causes are read for what is told only: they cost a read of both spans by job."""
        plans = [plan for plan in self._watch.plans if plan.name == status.name]
        at_ms = parse_instant(status.as_of)
        [found] = budget_report(self._watch.reporting, EVERYTHING, plans, at_ms, causes=True).budgets
        return replace(status, causes=found.causes)


def _news(status: BudgetStatus, now_ms: int) -> list[ThresholdStatus]:
    """The highest threshold that was reached of what was spent, else of what is expected."""
    for kind in (ACTUAL, FORECAST):
        reached = [each for each in status.reached if each.kind == kind]
        if reached:
            top = max(reached, key=lambda each: each.part)
            is_new = parse_instant(top.reached_at or status.as_of) > now_ms - NEWS_MS
            if kind == FORECAST or is_new:
                return [top]
            if top.part >= 1:
                return []
    return []
