"""Lists to look things up in: teams, their budgets of a month, and the rows of the price book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.time import Month
from gpucost.pricing.price_book import PriceBook
from gpucost.pricing.price_rows import PriceRow
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.inputs import TeamAccount
from gpucost.reports.month.model import MonthReport, TeamRow

_VENDORS = ("AWS", "Azure", "Google Cloud", "OCI", "Lambda", "Nebius", "RunPod")
"""Flags of a row that name the vendor."""


@dataclass(frozen=True, slots=True)
class TeamEntry:
    """A team, and what the team rules say of it: its cost centre, the GPUs that it is entitled to, and what
    a calendar month may cost; null where they say nothing."""

    name: str
    cost_centre: str | None
    quota_gpus: Fraction | None
    monthly_budget_nano: int | None


@dataclass(frozen=True, slots=True)
class TeamDirectory:
    """The teams that the reader may see (``teams_in_scope``; null: all), by name: those of the team rules and
    those that ever held anything."""

    currency: str
    teams_in_scope: tuple[str, ...] | None
    teams: tuple[TeamEntry, ...]


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """The budget of a team for the month, what it has ``held`` so far, without adjustments, as in the alerts,
    and what is left of it. ``part`` is held of the budget. Null without a price, and for who sees some
    clusters: a budget is of all."""

    team: str
    cost_centre: str | None
    budget_nano: int
    held: CostAmount
    left_nano: int | None
    part: Fraction | None


@dataclass(frozen=True, slots=True)
class MonthBudgets:
    """The budgets of a month, of the teams that the reader may see and that have one. ``covered`` is the part
    of the month that the ledger has windows of; ``provisional``: it is not over, or may still change."""

    month: Month
    currency: str
    teams_in_scope: tuple[str, ...] | None
    covered: Fraction
    provisional: bool
    budgets: tuple[BudgetRow, ...]


@dataclass(frozen=True, slots=True)
class PriceEntry:
    """A row of the price book: ``gpu_hour_nano`` is a GPU-hour before discounts, on nodes of an instance type
    or a ``model`` (``name``), in a region and by a capacity type (null: any). ``retrieved`` and ``source``
    say when and where it was read, ``validity`` when it holds."""

    title: str
    vendor: str | None
    model: str | None
    name: str
    region: str | None
    capacity_type: str | None
    gpu_hour_nano: int
    category: str
    retrieved: str
    source: str
    provenance: str
    validity: str


@dataclass(frozen=True, slots=True)
class PriceList:
    """The rows of the price book as it is applied, in its order. Who is bound to teams (``teams_in_scope``;
    null: all) sees those by which what these held was priced lately."""

    currency: str
    teams_in_scope: tuple[str, ...] | None
    prices: tuple[PriceEntry, ...]


def month_budgets(report: MonthReport, accounts: Mapping[str, TeamAccount]) -> MonthBudgets:
    """Of the teams in the scope of ``report``. A team that is in no row of it has held nothing."""
    teams, covered = report.teams_in_scope, report.comparison.covered
    rows = {row.row.group["team"]: row for row in report.teams}
    budgets = [row.budget for row in rows.values() if row.budget is not None]
    seen = [team for team in sorted(accounts) if teams is None or team in teams]
    found = (_budget(report, team, accounts[team], rows.get(team)) for team in seen)
    return MonthBudgets(
        report.month,
        report.currency,
        teams,
        covered,
        budgets[0].provisional if budgets else covered < 1,
        tuple(each for each in found if each is not None),
    )


def _budget(report: MonthReport, team: str, account: TeamAccount, row: TeamRow | None) -> BudgetRow | None:
    nano = account.monthly_nano
    if nano is None:
        return None
    held = CostAmount(0, 0, 0) if row is None else row.row.held
    used = held.nano if report.clusters_in_scope is None else None
    part = Fraction(0) if row is None and nano else None
    if row is not None and row.budget is not None:
        part = row.budget.part
    left = None if used is None else nano - used
    return BudgetRow(team, account.cost_centre, nano, held, left, None if used is None else part)


def price_list(
    book: PriceBook, rows: Iterable[PriceRow], teams_in_scope: tuple[str, ...] | None = None
) -> PriceList:
    return PriceList(book.currency, teams_in_scope, tuple(map(price_entry, rows)))


def price_entry(row: PriceRow) -> PriceEntry:
    """The vendor stands in the row's flags, where a source lists several."""
    return PriceEntry(
        row.title,
        next((flag for flag in row.flags if flag in _VENDORS), None),
        row.model,
        row.name or row.key[1],
        row.region,
        row.capacity_type,
        round(row.board_hour),
        row.category,
        row.retrieved.isoformat(),
        row.source,
        row.provenance,
        row.validity,
    )
