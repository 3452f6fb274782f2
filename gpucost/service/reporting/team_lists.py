"""Teams, budgets and prices as lists, of what a scope may see."""

from __future__ import annotations

from gpucost.domain.scope import Scope
from gpucost.domain.time import Month, Window
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.month.inputs import TeamAccount
from gpucost.reports.month.reference_lists import (
    MonthBudgets,
    PriceList,
    TeamDirectory,
    TeamEntry,
    month_budgets,
    price_list,
)
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.reporting.team_names import teams_seen


def team_directory(reporting: ReportService, scope: Scope) -> TeamDirectory:
    """Every team that ``scope`` may know of, with what the team rules say of it."""
    entries = []
    for name in sorted(teams_seen(reporting.ledger, reporting.accounts, scope)):
        account = reporting.accounts.get(name, TeamAccount())
        entries.append(TeamEntry(name, account.cost_centre, reporting.quotas.get(name), account.monthly_nano))
    teams = None if scope.teams is None else tuple(sorted(scope.teams))
    return TeamDirectory(reporting.currency, teams, tuple(entries))


def budgets_of(reporting: ReportService, scope: Scope, month: Month) -> MonthBudgets | None:
    """Out of the report of the month; None where the ledger holds nothing of it."""
    found = reporting.month(scope, month)
    return None if found is None else month_budgets(found.report, reporting.accounts)


def prices_of(reporting: ReportService, scope: Scope, book: PriceBook) -> PriceList:
    """All rows of the book; of who sees some teams, those that priced what these held in the ledger's last
    two months: names, pools and labels of other rows may tell of others."""
    if scope.teams is None:
        return price_list(book, book.rows)
    extent = reporting.ledger.extent(scope=scope)
    used: set[str] = set()
    if extent is not None:
        last = Month.of(extent.end_ms - 1)
        lately = Window(last.previous().window.start_ms, last.window.end_ms)
        used = set(reporting.ledger.aggregate(scope, lately, ("rate_id",))["rate_id"])
    return price_list(book, book.rows_of(used), tuple(sorted(scope.teams)))
