"""News: who is told, of what, and the loop that tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from gpucost.service.digesting import Digesting, Schedule
from gpucost.service.reporting import NO_CURRENCY
from gpucost.service.settings_notify import DAYS
from gpucost.service.telling.advice import AdviceNews
from gpucost.service.telling.alerts import AlertGroups
from gpucost.service.telling.digests import DigestNews
from gpucost.service.telling.findings import FindingNews
from gpucost.service.telling.news import News
from gpucost.service.wiring.ledger import build_reporting

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.ledger import Ledger
    from gpucost.service.advising import Advising
    from gpucost.service.settings import Settings
    from gpucost.service.settings_notify import WeeklySettings
    from gpucost.service.telling.loop import Source as NewsSource


def build_news(
    settings: Settings,
    ledger: Ledger,
    teams: TeamRules,
    advising: Advising | None,
    now: Callable[[], int],
    stop: threading.Event,
) -> News | None:
    """The loop of news and the sender; None where nobody is to be told. Raises InputError."""
    found = settings.notify
    rules = found.rules()
    if not rules.channels or not rules.routes:
        return None

    digesting = Digesting(build_reporting(ledger, teams), teams.budgets, found.links)
    groups = AlertGroups(ledger, found.links)
    about = FindingNews(ledger, found.links, groups, lambda notice: any(rules.routes_of(notice)))
    sources: dict[str, NewsSource] = {
        "findings": about.findings,
        "alerts": about.alerts,
        "digests": DigestNews(
            ledger,
            digesting,
            _schedule(found.weekly, assesses=settings.detectors.enabled),
            weekly=found.weekly.enabled,
            months=found.month_closed,
        ),
    }
    if advising is not None:
        sources["advice"] = AdviceNews(advising, found.links, lambda: ledger.currency or NO_CURRENCY)
    return News.of(ledger, rules, sources, now=now, stop=stop)


def _schedule(weekly: WeeklySettings, *, assesses: bool) -> Schedule:

    weekday = DAYS.index(weekly.weekday) + 1
    return Schedule(weekday, weekly.hour, ZoneInfo(weekly.zone), assesses=assesses)
