"""Months of the ledger: which are closed, what keeps the others open, what closing one would make final, and
what one team sees of one. The ledger itself closes (``Ledger.close_month``)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from fractions import Fraction

from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window, iso
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.model import (
    CloseAmount,
    ClosePreview,
    MonthReport,
    MonthStatus,
    MonthStatuses,
    StatementSummary,
    SummaryProof,
)
from gpucost.reports.month.provenance import CloseWarning, close_warnings
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.reporting.team_names import known_teams, unknown_team


def scope_of_team(reporting: ReportService, scope: Scope, month: Month, team: str | None) -> Scope:
    """What ``scope`` sees of one team, as that team itself does; all that it sees where ``team`` is None.

    Raises InputError for a team that it does not know in ``month``, with those that it does. Who sees some
    teams only is told these, and nothing is read: a team of others is as one that nobody has.
    """
    if team is None:
        return scope
    only = Scope(frozenset({team}), scope.clusters)
    known: AbstractSet[str] | None = scope.teams
    if known is None:
        if not reporting.stand(scope, month.window).windows:
            return only  # what is missing is the month
        # The rules are of all clusters: who sees some is told who held GPUs in these.
        ruled = reporting.accounts.keys() if scope.clusters is None else frozenset[str]()
        known = known_teams(reporting.ledger, ruled, month, scope)
    if team not in known:
        raise unknown_team(team, known, "nothing yet: the month has no team")
    return only


def month_statuses(
    reporting: ReportService, scope: Scope, month: Month | None, min_coverage: Fraction
) -> MonthStatuses:
    """How ``month`` stands; without one, every month between the first and the last window of ``scope``."""
    extent = reporting.ledger.extent(scope=scope)
    months = _all_of(extent) if month is None else (month,)
    return MonthStatuses(extent, tuple(month_status(reporting, scope, each, min_coverage) for each in months))


def _all_of(extent: Window | None) -> Iterator[Month]:
    if extent is None:
        return
    month, last = Month.of(extent.start_ms), Month.of(extent.end_ms - 1)
    while month <= last:
        yield month
        month = month.next()


def month_status(reporting: ReportService, scope: Scope, month: Month, min_coverage: Fraction) -> MonthStatus:
    """How a month stands, as far as ``scope`` may know."""
    ledger = reporting.ledger
    info = ledger.month(month, scope=scope)
    if info.closed_at_ms is None:
        blockers = ledger.close_blockers(month, min_coverage, scope=scope)
        if reporting.charging is not None and info.version and scope == EVERYTHING:
            blockers = (*blockers, *reporting.charging.blockers(reporting, month))
        state = "open" if info.version else "empty"
        return MonthStatus(month, state, info.version, blockers=blockers)
    is_whole = scope.clusters is None
    fold = ledger.folded(month) if is_whole else None
    seal = ledger.sealed(month) if is_whole else None
    return MonthStatus(
        month,
        "closed",
        info.version,
        closed_at=iso(info.closed_at_ms),
        author=info.author,
        reason=(info.reason or "") if is_whole else None,
        digest=info.digest if is_whole else None,
        folded_at=None if fold is None else iso(fold.folded_at_ms),
        folded_digest=None if fold is None else fold.digest,
        sealed_at=None if seal is None else iso(seal.sealed_at_ms),
    )


def preview_close(reporting: ReportService, month: Month, min_coverage: Fraction) -> ClosePreview:
    """What closing ``month`` makes final: nothing is written. Of all teams and clusters, as a close is."""
    status = month_status(reporting, EVERYTHING, month, min_coverage)
    answer = reporting.month(EVERYTHING, month)
    if answer is None:
        return ClosePreview(status, reporting.currency, (), None, None, ())
    report = answer.report
    if report.charges is not None and report.charges.proof is not None:
        return _charged_close(status, report, report.charges, report.charges.proof)
    return ClosePreview(
        status,
        report.currency,
        tuple(CloseAmount(each.row.group["team"], each.adjusted) for each in report.teams),
        report.totals.adjusted,
        None if report.capacity is None else report.capacity.capacity,
        _warnings(report),
    )


def _charged_close(
    status: MonthStatus, report: MonthReport, charges: StatementSummary, proof: SummaryProof
) -> ClosePreview:
    """Under a charge policy: what teams pay, adjustments included."""
    teams = tuple(CloseAmount(each.team, _paid(each.board_ms, each.total_nano)) for each in charges.teams)
    return ClosePreview(
        status,
        charges.currency,
        teams,
        _paid(sum(each.board_ms for each in charges.teams), sum(each.total_nano for each in charges.teams)),
        _paid(proof.capacity_board_ms, proof.capacity_nano),
        _warnings(report),
        policy=charges.policy,
        kept=_paid(proof.kept_board_ms, proof.kept_nano),
        charges_digest=charges.charges_digest or "",
    )


def _paid(board_ms: int, nano: int) -> CostAmount:
    return CostAmount(board_ms, nano, 0)


def _warnings(report: MonthReport) -> tuple[CloseWarning, ...]:
    whole = report.totals.held if report.capacity is None else report.capacity.capacity
    assessment = None if report.waste is None else report.waste.assessment
    return close_warnings(
        report.provenance,
        unpriced_board_ms=whole.unpriced_board_ms,
        waste_provisional=0 if assessment is None else assessment.provisional,
        waste_missing=0 if assessment is None else assessment.missing,
        problems=report.problems,
    )
