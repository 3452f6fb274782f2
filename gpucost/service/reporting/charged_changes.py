"""Why teams are charged another amount for a month than for the one before, from the ledger:
``reports.charges.charge_changes``."""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import HOLDERS_OF_NONE
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.reports.charges.charge_changes import ChargedMonth, charged_change
from gpucost.reports.month.span_change import SpanChange
from gpucost.service.reporting.charge_reports import (
    charges_beside,
    check_chargeable,
    month_account,
    policy_digest,
)
from gpucost.service.reporting.closed_charges import policy_in_force
from gpucost.service.reporting.report_service import ReportAnswer, ReportService
from gpucost.service.reporting.span_changes import compare_spans, span_adjustments

_CHARGED = ("charged", "true")


def compare_charges(
    reporting: ReportService, scope: Scope, now: Window, before: Window, book: PolicyBook, by: str = "team"
) -> ReportAnswer[SpanChange] | None:
    """What teams of ``scope`` are charged in ``now`` beside ``before``, by cause; None where the ledger holds
    nothing of one of them. A closed month is charged by the policy that it was closed with, others by
    ``book``.

    Raises InputError for spans that are no months, rows that are no teams, for clusters (charges are of all
    of them), and where no policy charges more than what was held, or one in another currency than the
    ledger's; else as ``compare_spans`` and ``preview_charges``.
    """
    if by != "team":
        raise InputError("by", by, "team, as charges are of teams")
    months = [_month(name, span) for name, span in (("window", now), ("before", before))]
    if scope.clusters is not None:
        raise InputError("cluster", ", ".join(sorted(scope.clusters)), "all clusters, as charges are of all")
    if not all(reporting.stand(EVERYTHING, month.window).windows for month in months):
        return None
    policies = _policies(reporting, months, book)
    if all(each.is_plain for each in policies):
        allowed = "a charge policy (charges.policy): without one teams are charged what they held"
        raise InputError(*_CHARGED, allowed)
    for month, own in zip(months, policies, strict=True):
        check_chargeable(reporting, EVERYTHING, month, [own])
        if own.file.currency not in (None, reporting.currency):
            theirs = f"those of {month} are in {own.file.currency}"
            raise InputError(*_CHARGED, f"charges in {reporting.currency}, as the ledger is: {theirs}")

    def made() -> SpanChange | None:
        used = compare_spans(reporting, scope, now, before)
        if used is None:
            return None
        sides = [_charged(reporting, month, book) for month in months]
        return charged_change(used.report, *sides)

    answer = reporting.steady(
        EVERYTHING,
        Window(min(now.start_ms, before.start_ms), max(now.end_ms, before.end_ms)),
        made,
        asked=("charged change", scope, now, before, policy_digest(book)),
        beside=lambda: tuple(
            (reporting.beside_month(EVERYTHING, month), charges_beside(reporting, month, book))
            for month in months
        ),
    )
    return None if answer.report is None else ReportAnswer(answer.report, answer.stand)


def charges_apart(reporting: ReportService, months: Sequence[Month], book: PolicyBook) -> bool:
    """Whether teams are charged another amount than what they held in one of ``months``, by the policy that
    it was closed with or else by ``book``."""
    return not all(each.is_plain for each in _policies(reporting, months, book))


def _policies(reporting: ReportService, months: Sequence[Month], book: PolicyBook) -> list[PolicyBook]:
    return [policy_in_force(reporting.ledger, month, book)[0] for month in months]


def _month(field: str, span: Window) -> Month:
    month = Month.of(span.start_ms)
    if span != month.window:
        raise InputError(field, str(span), "a month, as what is charged is of months")
    return month


def _charged(reporting: ReportService, month: Month, book: PolicyBook) -> ChargedMonth:
    book, kept = policy_in_force(reporting.ledger, month, book)
    try:
        account = month_account(reporting, EVERYTHING, month, book, kept)
    except InputError as error:  # of contracts, which are drawn hour by hour
        raise InputError(*_CHARGED, f"{error.allowed}; so are contracts charged, in {month}") from None
    booked = span_adjustments(reporting, EVERYTHING, month.window, "team")
    adjusted = {team: nano for team, nano in booked if team not in HOLDERS_OF_NONE}
    extent = reporting.ledger.extent(scope=EVERYTHING)
    known = None if extent is None else month.window.intersect(extent)
    return ChargedMonth(book.title, account, known or month.window, adjusted)
