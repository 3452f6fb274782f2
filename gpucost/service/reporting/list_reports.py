"""Jobs, teams, budgets and prices as lists, of what a scope may see."""

from __future__ import annotations

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.text import did_you_mean
from gpucost.domain.time import DAY_MS, Month, Window, iso
from gpucost.ledger.usage.job_index import MOST_NAMED, JobQuery, NamedJob
from gpucost.ledger.usage.name_search import LEAST_TEXT
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.base.values import CostAmount
from gpucost.reports.job.job_report import JobMatch, JobMatches
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

_JOB_NAMES = "the uid, the name or the namespace/name of a job with usage in the ledger"
_LATELY_MS = 30 * DAY_MS


def jobs_named(reporting: ReportService, scope: Scope, name: str) -> JobMatches:
    """The jobs called ``name``, or ``namespace/name``, that ``scope`` sees. Raises InputError for text that
    no database holds."""
    return job_list(reporting, scope, JobQuery(name), limit=MOST_NAMED)


def allowed_jobs(reporting: ReportService, scope: Scope, name: str) -> str:
    """What may stand in place of ``name``, of which the ledger has no job: first the one that is meant, of
    the newest that ``scope`` sees and that begin alike."""
    wanted = name.rpartition("/")[2]
    try:
        hits = reporting.ledger.find_names(scope, wanted[: max(LEAST_TEXT, len(wanted) // 3)])
    except InputError:
        return _JOB_NAMES
    meant = did_you_mean(wanted, {each.job for each in hits.jobs}, cutoff=0.75)
    return f"{meant}, or else {_JOB_NAMES}" if meant else _JOB_NAMES


def job_list(
    reporting: ReportService,
    scope: Scope,
    query: JobQuery,
    *,
    limit: int,
    offset: int = 0,
    running: tuple[str, frozenset[str]] | None = None,
) -> JobMatches:
    """The jobs that ``query`` is about, after the first ``offset``, at most ``limit``. ``running`` is a
    watched cluster, and the uids of jobs that hold GPUs there now."""
    ledger = reporting.ledger
    found = ledger.jobs(scope, query, limit=limit, offset=offset)
    ends = {name: ledger.extent(name, scope=scope) for name in {each.cluster for each in found}}

    def is_running(each: NamedJob) -> bool:
        if running is not None and each.cluster == running[0]:
            return each.job_uid in running[1]
        end = ends[each.cluster]
        return end is not None and each.held.end_ms >= end.end_ms

    jobs = tuple(
        JobMatch(
            cluster=each.cluster,
            namespace=each.namespace,
            job=each.job,
            job_kind=each.job_kind,
            job_uid=each.job_uid,
            team=each.team,
            held=each.held,
            amount=CostAmount(each.board_ms, each.nano, each.unpriced_ms),
            user=each.user,
            state="running" if is_running(each) else "done",
        )
        for each in found
    )
    return JobMatches(
        query.name or "",
        reporting.currency,
        jobs,
        cut=len(found) == limit,
        users=None if query.users is None else tuple(sorted(query.users)),
        since=None if query.since_ms is None else iso(query.since_ms),
    )


def lately_ms(reporting: ReportService, scope: Scope) -> int:
    """Where the last 30 days of the ledger begin."""
    extent = reporting.ledger.extent(scope=scope)
    return 0 if extent is None else max(0, extent.end_ms - _LATELY_MS)


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
