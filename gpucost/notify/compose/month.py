"""Notices of a closed month: what is to pay, what was wasted, and who pays most."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.domain.buckets import HOLDERS_OF_NONE, Waste
from gpucost.domain.time import Month
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import (
    amount,
    brief,
    change_words,
    cost,
)
from gpucost.notify.message import MessageFact, MessageSection, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage, short_hash
from gpucost.reports.base import display
from gpucost.reports.base.display import month_name
from gpucost.reports.month.model import MonthReport

_TOP_TEAMS = 3


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
        links=links.month(report.month, _team(report)),
        footer=f"gpucost month verify {report.month}",
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
    of_teams = [each.nano for each in report.adjustments if each.team not in HOLDERS_OF_NONE]
    of_none = sum(each.nano for each in report.adjustments) - sum(of_teams)  # the platform pays it
    what = f"used {amount(totals.held, report.currency)}"
    if report.charges is not None:
        paid = _paid(sum(row.total_nano for row in report.charges.teams), report.charges.currency)
        what = f"pay{'s' if team else ''} {paid}"
    elif totals.adjusted.nano is not None and not report.uncharged:
        what = f"pay{'s' if team else ''} {cost(totals.adjusted.nano - of_none, report.currency)}"
    corrected = f", with {_corrected(sum(of_teams), report)}" if of_teams else ""
    held = f"; what was held cost {change}" if change else ""
    return f"{who} {what} for {month_name(report.month)}{corrected}{held}."


def _paid(nano: int, currency: str) -> str:
    """To the cent, as a statement has it; what was held is rounded, as in all messages."""
    return f"{currency} {display.money(nano).replace('-', '−')}"


def _corrected(nano: int | None, report: MonthReport) -> str:
    return f"corrections of {report.currency} {display.signed_money(nano)}"


def _facts(report: MonthReport) -> Iterator[MessageFact]:
    if report.uncharged:
        yield MessageFact("To pay", f"not known: {brief(report.uncharged)}")
    if report.waste is None:
        yield MessageFact("Wasted", "not known: no detector has looked at it")
    else:
        unknown = next((row for row in report.waste.buckets if row.waste == Waste.UNKNOWN), None)
        unseen = "" if unknown is None else f"; {display.percent(unknown.share)} not measured"
        of = f"{display.percent(report.waste.share)} of all{unseen}"
        yield MessageFact("Wasted", amount(report.waste.wasted, report.currency, of_hours=of))


def _sections(report: MonthReport) -> Iterator[MessageSection]:
    """Who pays most, for readers of all teams."""
    if not _team(report) and (report.teams or report.charges is not None):
        yield MessageSection(items=tuple(_teams(report)))


def _teams(report: MonthReport) -> Iterator[str]:
    if report.charges is not None:
        currency = report.charges.currency
        paid: list[tuple[str, int | None]] = [(row.team, row.total_nano) for row in report.charges.teams]
    else:
        currency = report.currency
        paid = [
            (team, each.adjusted.nano)
            for each in report.teams
            if (team := each.row.group["team"]) not in HOLDERS_OF_NONE
        ]
    for team, nano in paid[:_TOP_TEAMS]:
        yield f"{display.name(team)}: {display.MISSING if nano is None else _paid(nano, currency)}"
    rest = paid[_TOP_TEAMS:]
    if rest:
        known = [nano for _, nano in rest if nano is not None]
        words = display.counted(len(rest), "more team")
        yield f"{words}: {_paid(sum(known), currency) if known else display.MISSING}"
