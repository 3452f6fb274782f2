"""The ledger of the settings, and reports over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpucost
from gpucost.ledger.db.database import place_of
from gpucost.ledger.ledger import Ledger
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.reporting.budget_reports import budgeting_of
from gpucost.service.reporting.report_cache import ReportCache
from gpucost.service.reporting.report_service import ReportService

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.service.settings.model import Settings


def open_ledger(settings: Settings, now: Callable[[], int], *, create: bool = True) -> Ledger:
    """The ledger of the settings, migrated, and created if ``create``. Raises LedgerError and InputError."""
    url, sealed = settings.ledger.database_url(), settings.ledger.sealed
    return Ledger.open(url, now=now, create=create, sealed=sealed)


def ledger_place(settings: Settings) -> str:
    """Where the ledger of the settings is, for messages: holds no secrets."""
    return place_of(settings.ledger.database_url())


def build_reporting(
    ledger: Ledger, teams: TeamRules, policy: PolicyBook | None = None, *, keeps: bool = True
) -> ReportService:
    """Reports over ``ledger``; those of months say what teams pay under ``policy``. A command, which asks
    each once, does not keep them."""
    charging = None
    if policy is not None:
        from gpucost.service.reporting.charge_reports import PolicyCharging

        charging = PolicyCharging(policy)
    return ReportService(
        ledger,
        gpucost.__version__,
        teams.quotas,
        accounts=accounts_of(teams),
        charging=charging,
        budgeting=budgeting_of(teams.budget_plans, teams.budgets),
        kept=ReportCache() if keeps else ReportCache(0),
    )


def accounts_of(teams: TeamRules) -> dict[str, TeamAccount]:
    """What the team rules say of each team, as reports take it."""
    return {team.name: TeamAccount(team.cost_centre, team.monthly_budget) for team in teams.teams}
