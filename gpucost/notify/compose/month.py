"""Notices of a closed month: its cost, later corrections, and the digest that proves it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpucost.domain.buckets import Waste
from gpucost.domain.time import Month, parse_instant
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import (
    amount,
    change_words,
    cost,
    instant,
)
from gpucost.notify.message import MessageFact, MessageLink, MessageSection, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage, short_hash
from gpucost.reports.base import display
from gpucost.reports.base.display import month_name
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.model import MonthReport, StatementSummary, SummaryTeam
from gpucost.reports.waste.waste_table import looked_at

_TOP_TEAMS = 10
_MOST_ADJUSTMENTS = 10


def month_key(month: Month, team: str) -> str:
    """``month:2026-10:vision``; the platform's ends with the colon."""
    return f"month:{month}:{team}"


def month_notice(report: MonthReport, links: MessageLinks, *, since_ms: int) -> Notice:
    """Of a closed month, for the one team in the report's scope or, with all of them, for the platform.

    Its version changes with each adjustment. ``since_ms`` is when it was closed or adjusted last.
    """
    team = _team(report)
    return Notice(
        key=month_key(report.month, team),
        group=f"month:{team}",
        kind=NoticeKind.MONTH,
        stage=NoticeStage.ONCE,
        rank=NoticeRank.INFO,
        team=team,
        cluster="",
        since_ms=since_ms,
        version=_version(report),
        message=month_message(report, links),
    )


def month_message(report: MonthReport, links: MessageLinks) -> NotificationMessage:
    """The message of a closed month; that of a team names no other team. What is to pay are the totals of
    the statements."""
    who = display.name(_team(report)) if _team(report) else "All teams"
    return NotificationMessage(
        title=f"{month_name(report.month)} is closed: {who}",
        summary=_summary(report),
        facts=tuple(_facts(report)),
        sections=tuple(_sections(report)),
        links=_links(report, links),
        footer=f"gpucost {report.provenance.code_version}, {report.month}, months in UTC; "
        f"the report: gpucost report {report.month}",
    )


def _team(report: MonthReport) -> str:
    return report.teams_in_scope[0] if report.teams_in_scope else ""


def _version(report: MonthReport) -> str:
    """Made from the digest of the month, and its adjustments."""
    return short_hash(report.provenance.month_digest, *map(repr, report.adjustments))


def _before(report: MonthReport) -> str:
    return month_name(report.month.previous())


def _summary(report: MonthReport) -> str:
    team, totals = _team(report), report.totals
    who = display.name(team) if team else "The teams"
    change = change_words(totals.change, _before(report))
    what = f"used {amount(totals.held, report.currency)}"
    if report.charges is not None:
        paid = display.money(_all_teams(report.charges).total_nano).replace("-", "−")
        what = f"pay{'s' if team else ''} {report.charges.currency} {paid}"
    elif totals.adjusted.nano is not None and not report.uncharged:
        what = f"pay{'s' if team else ''} {cost(totals.adjusted.nano, report.currency)}"
    corrected = f", with {_corrected(totals.adjustments.nano, report)}" if report.adjustments else ""
    held = f"; what was held cost {change}" if change else ""
    return f"{who} {what} for {month_name(report.month)}{corrected}{held}."


def _all_teams(charges: StatementSummary) -> SummaryTeam:
    """What all teams pay that the reader sees, as the row of one."""
    names = ("board_ms", "charged_nano", "adjusted_nano", "total_nano")
    return SummaryTeam("", None, *(sum(getattr(each, name) for each in charges.teams) for name in names))


def _paid(row: SummaryTeam, currency: str) -> str:
    """To the cent, as a statement has it; what was held is rounded, as in all messages."""
    money = display.money(row.total_nano).replace("-", "−")
    return f"{currency} {money}, {display.hours(row.board_ms)} GPU-hours"


def _corrected(nano: int | None, report: MonthReport) -> str:
    return f"corrections of {report.currency} {display.signed_money(nano)}"


def _facts(report: MonthReport) -> Iterator[MessageFact]:
    totals, currency = report.totals, report.currency
    yield MessageFact("Held", amount(totals.held, currency))
    if report.adjustments:
        yield MessageFact(
            "Corrections", _signed(totals.adjustments.nano, totals.adjustments.board_ms, report)
        )
        if report.charges is None and not report.uncharged:
            yield MessageFact("To pay", amount(totals.adjusted, currency))
    if report.charges is not None:
        yield MessageFact("To pay", _paid(_all_teams(report.charges), report.charges.currency))
        yield MessageFact("Charge policy", report.charges.policy)
        if report.charges.proof is not None:
            kept = CostAmount(report.charges.proof.kept_board_ms, report.charges.proof.kept_nano)
            yield MessageFact("Kept by the platform", amount(kept, report.charges.currency))
    if report.uncharged:
        yield MessageFact("To pay", f"not known: {report.uncharged}")
    if report.capacity is not None:
        yield MessageFact("Capacity", amount(report.capacity.capacity, currency))
    if totals.change is None:
        yield MessageFact(_before(report), f"not compared: {report.comparison.note}")
    else:
        words = change_words(totals.change, _before(report))
        note = f" ({words})" if words else ""
        yield MessageFact(_before(report), f"{amount(totals.change.previous, currency)}{note}")
    if report.waste is not None:
        wasted, share = report.waste.wasted, display.percent(report.waste.share, 1)
        yield MessageFact("Wasted", f"{amount(wasted, currency)} ({share} of the GPU-hours)")
        unknown = next((row for row in report.waste.buckets if row.waste == Waste.UNKNOWN), None)
        if unknown is not None:
            share = display.percent(unknown.share, 1)
            yield MessageFact("Unknown", f"{amount(unknown.amount, currency)} ({share} of the GPU-hours)")
    else:
        yield MessageFact("Wasted", "not known: no detector has looked at this month")
    yield MessageFact("Jobs", f"{totals.jobs:,}")


def _sections(report: MonthReport) -> Iterator[MessageSection]:
    if not _team(report) and (report.teams or report.charges is not None):
        yield MessageSection("By team", items=tuple(_teams(report)))
    if report.adjustments:
        yield MessageSection("Corrections since it was closed", items=tuple(_adjustments(report)))
    if report.waste is not None:
        yield MessageSection("What this rests on", items=(looked_at(report.waste.assessment),))
    yield MessageSection(
        "Proof", facts=tuple(_proof(report)), text="Recompute it: gpucost month verify " + str(report.month)
    )


def _teams(report: MonthReport) -> Iterator[str]:
    currency, before = report.currency, _before(report)
    if report.charges is not None:
        rows, of_charges = report.charges.teams, report.charges.currency
        yield from (f"{display.name(row.team)}: {_paid(row, of_charges)}" for row in rows[:_TOP_TEAMS])
        others = replace(report.charges, teams=rows[_TOP_TEAMS:])
        if others.teams:
            words = display.counted(len(others.teams), "more team")
            yield f"{words}: {_paid(_all_teams(others), of_charges)}"
        return
    for each in report.teams[:_TOP_TEAMS]:
        change = change_words(each.row.change, before)
        than = f", {change}" if change else ""
        corrected = each.adjustments.nano
        of = f", with {_corrected(corrected, report)}" if corrected else ""
        yield f"{display.name(each.row.group['team'])}: {amount(each.adjusted, currency)}{of}{than}"
    rest = report.teams[_TOP_TEAMS:]
    if rest:
        paid = sum((each.adjusted for each in rest), NOTHING)
        yield f"{display.counted(len(rest), 'more team')}: {amount(paid, currency)}"


def _adjustments(report: MonthReport) -> Iterator[str]:
    for item in report.adjustments[:_MOST_ADJUSTMENTS]:
        team = "" if _team(report) else f"{display.name(item.team)}: "
        corrected = _signed(item.nano, item.board_ms, report)
        yield f"{team}{corrected}: {item.reason} ({item.reference}, by {item.author})"
    rest = report.adjustments[_MOST_ADJUSTMENTS:]
    if rest:
        paid, board_ms = sum(item.nano for item in rest), sum(item.board_ms for item in rest)
        yield f"{display.counted(len(rest), 'more correction')}: {_signed(paid, board_ms, report)}"


def _signed(nano: int | None, board_ms: int, report: MonthReport) -> str:
    """``USD −50.00, −5.0 GPU-hours``."""
    hours = display.hours(board_ms).replace("-", "−")
    return f"{report.currency} {display.signed_money(nano)}, {'+' if board_ms > 0 else ''}{hours} GPU-hours"


def _proof(report: MonthReport) -> Iterator[MessageFact]:
    """The digests of the chain, uncut, so that they can be compared."""
    found = report.provenance
    yield MessageFact("Digest", found.month_digest)
    yield MessageFact(
        "Digest of the month closed before", found.previous_digest or "none: the first of the chain"
    )
    if found.closed_at is not None:
        yield MessageFact("Closed", f"{instant(parse_instant(found.closed_at))} by {found.closed_by}")
    if found.close_reason:
        yield MessageFact("Reason", found.close_reason)


def _links(report: MonthReport, links: MessageLinks) -> tuple[MessageLink, ...]:
    then = report.month.window
    boards = links.team(_team(report), window=then) or links.fleet(window=then)
    page = f"{links.service}/v1/reports/{report.month}?format=html"
    return (*boards, *((MessageLink("Report", page),) if links.service else ()))
