"""Builders of notifications: routes, sources of notices, and the loop that sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from gpucost.service.notifications.advice import AdviceNotices
from gpucost.service.notifications.digests import DigestNotices, DigestSchedule, DigestScheduler
from gpucost.service.notifications.findings_and_alerts import AlertNotices, FindingNotices
from gpucost.service.notifications.notification_service import NotificationService
from gpucost.service.reporting.report_service import NO_CURRENCY
from gpucost.service.settings.notifications import DAYS
from gpucost.service.wiring.ledger import build_reporting

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.ledger import Ledger
    from gpucost.service.advisor.advisor_service import AdvisorService
    from gpucost.service.notifications.loop import NoticeSource as NewsSource
    from gpucost.service.settings.model import Settings
    from gpucost.service.settings.notifications import WeeklySettings


def build_news(
    settings: Settings,
    ledger: Ledger,
    teams: TeamRules,
    policy: PolicyBook | None,
    advising: AdvisorService | None,
    now: Callable[[], int],
    stop: threading.Event,
) -> NotificationService | None:
    """The loop of notifications and the sender; None where no channel gets messages. Raises InputError."""
    found = settings.notify
    rules = found.rules()
    if not rules.channels or not rules.routes:
        return None

    digesting = DigestScheduler(build_reporting(ledger, teams, policy), teams.budgets, found.links)
    groups = AlertNotices(ledger, found.links)
    about = FindingNotices(ledger, found.links, groups, lambda notice: any(rules.routes_of(notice)))
    sources: dict[str, NewsSource] = {
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
    if advising is not None:
        sources["advice"] = AdviceNotices(advising, found.links, lambda: ledger.currency or NO_CURRENCY)
    return NotificationService.of(ledger, rules, sources, now=now, stop=stop)


def _schedule(weekly: WeeklySettings, *, assesses: bool) -> DigestSchedule:

    weekday = DAYS.index(weekly.weekday) + 1
    return DigestSchedule(weekday, weekly.hour, ZoneInfo(weekly.zone), assesses=assesses)
