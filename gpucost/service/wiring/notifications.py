"""Builders of notifications: routes, sources of notices, and the loop that sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from gpucost.notify.notices import NoticeKind
from gpucost.service.notifications.advice import AdviceNotices
from gpucost.service.notifications.budgets import BudgetNotices, BudgetWatch
from gpucost.service.notifications.digests import DigestNotices, DigestSchedule, DigestScheduler
from gpucost.service.notifications.findings_and_alerts import AlertNotices, FindingNotices
from gpucost.service.notifications.incidents import IncidentNotices
from gpucost.service.notifications.notification_service import NotificationService
from gpucost.service.notifications.receipts import JobEndings, ReceiptNotices
from gpucost.service.reporting.report_service import NO_CURRENCY
from gpucost.service.settings.notifications import DAYS
from gpucost.service.wiring.ledger import build_reporting

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.ledger.ledger import Ledger
    from gpucost.notify.notices import Notice
    from gpucost.service.advisor.advisor_service import AdvisorService
    from gpucost.service.notifications.loop import NoticeSource as NewsSource
    from gpucost.service.settings.model import Settings
    from gpucost.service.settings.notifications import WeeklySettings
    from gpucost.telemetry.interval_source import IntervalSource


def build_news(
    settings: Settings,
    ledger: Ledger,
    teams: TeamRules,
    policy: PolicyBook | None,
    advising: AdvisorService | None,
    source: IntervalSource,
    now: Callable[[], int],
    stop: threading.Event,
) -> NotificationService | None:
    """The loop of notifications and the sender; None where no channel gets messages. ``source`` says how jobs
    ended. Raises InputError."""
    found = settings.notify
    rules = found.rules()
    if not rules.channels or not rules.routes:
        return None

    reporting = build_reporting(ledger, teams, policy)
    digesting = DigestScheduler(reporting, teams.budgets, found.links)
    groups = AlertNotices(ledger, found.links)

    def takes(notice: Notice) -> bool:
        return any(rules.routes_of(notice))

    budgets = BudgetNotices(BudgetWatch(reporting, teams.budget_plans), found.links, takes)
    # Before alerts, some of which say the same.
    sources: dict[str, NewsSource] = {"budgets": budgets} if found.budgets else {}
    about = FindingNotices(ledger, found.links, groups, takes, budgets.tells)
    sources |= {
        "findings": about.findings,
        "alerts": about.alerts,
        "digests": DigestNotices(
            ledger,
            digesting,
            _schedule(found.weekly, assesses=settings.detectors.enabled),
            weekly=found.weekly.enabled,
            months=found.month_closed,
        ),
    }
    if found.incidents:
        sources["incidents"] = IncidentNotices(reporting, found.links, teams.expected)
    if advising is not None:
        sources["advice"] = AdviceNotices(advising, found.links, lambda: ledger.currency or NO_CURRENCY)
    if found.receipts != "off":
        endings = JobEndings(source=source)
        if advising is not None:
            endings = JobEndings(advising.watched.cluster, lambda: advising.state, source)
        takers = [route for route in rules.routes if not route.kinds or NoticeKind.RECEIPT in route.kinds]
        sources["receipts"] = ReceiptNotices(
            reporting,
            found.links,
            endings,
            daily=found.receipts == "daily",
            least_nano=min((route.floor_nano for route in takers), default=0),
            users=frozenset().union(*(route.users for route in takers)),
        )
    return NotificationService.of(ledger, rules, sources, now=now, stop=stop)


def _schedule(weekly: WeeklySettings, *, assesses: bool) -> DigestSchedule:

    weekday = DAYS.index(weekly.weekday) + 1
    return DigestSchedule(weekday, weekly.hour, ZoneInfo(weekly.zone), assesses=assesses)
