"""Notices of money: a threshold of a budget that was reached, by what was spent or by what is expected; and
incidents, when a team costs more than usual for a named cause."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from gpucost.domain.time import DAY_MS, Month, iso, parse_instant
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import brief, cost
from gpucost.notify.message import MessageFact, MessageSection, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage, short_hash
from gpucost.reports.base import display
from gpucost.reports.month.budget_status import (
    ACTUAL,
    BudgetStatus,
    ThresholdStatus,
    exceed_words,
)
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.month.cost_incidents import CostIncident, IncidentRule, IncidentSign


def budget_key(status: BudgetStatus, threshold: ThresholdStatus) -> str:
    """``budget:HASH of the name:2026-10:actual:80%``: the same for ever, so that each is told once."""
    part = display.percent(threshold.part, 2)
    return f"budget:{short_hash(status.name)}:{status.period}:{threshold.kind}:{part}"


def key_tells(key: str, name: str, period: str, kind: str) -> bool:
    """Whether the notice of ``key`` says that more than all of a budget is spent, or expected: any of its
    notices says when it is expected to be exceeded."""
    head = f"budget:{short_hash(name)}:{period}:"
    if not key.startswith(head):
        return False
    told, _, part = key.removeprefix(head).partition(":")
    return kind != ACTUAL or (told == ACTUAL and float(part.rstrip("%")) >= 100)


def budget_notice(status: BudgetStatus, threshold: ThresholdStatus, links: MessageLinks) -> Notice:
    """A notice that is sent once, when ``threshold`` is reached."""
    team = status.of if status.subject == "team" else ""
    is_over = threshold.kind == ACTUAL and threshold.part >= 1
    return Notice(
        key=budget_key(status, threshold),
        group=f"budget:{short_hash(status.name)}",
        kind=NoticeKind.BUDGET,
        stage=NoticeStage.ONCE,
        rank=NoticeRank.HIGH if is_over else NoticeRank.MEDIUM,
        team=team,
        cluster=status.of if status.subject == "cluster" else "",
        since_ms=parse_instant(threshold.reached_at or status.as_of),
        version="once",
        message=budget_message(status, threshold, links),
    )


def budget_message(
    status: BudgetStatus, threshold: ThresholdStatus, links: MessageLinks
) -> NotificationMessage:
    """What was reached when, what is left, when it will be exceeded, and the two dearest causes."""
    part, name = display.percent(threshold.part), display.name(status.name, 60)
    team = status.of if status.subject == "team" else ""
    month = Month.of(parse_instant(status.as_of) - 1)
    reached = f"{part} reached" if threshold.kind == ACTUAL else f"expected to reach {part}"
    return NotificationMessage(
        title=f"Budget {name}: {reached} in {status.period}",
        summary=_summary(status, threshold),
        facts=tuple(_facts(status)),
        sections=tuple(_sections(status)),
        links=links.month(month, team),
        footer=f"gpucost budget show {quote(display.visible(status.name))}",
    )


def _summary(status: BudgetStatus, threshold: ThresholdStatus) -> str:
    of = f"{status.subject.replace('_', ' ')} {display.name(status.of, 60)}"
    spent, total = cost(status.spent_nano, status.currency), cost(status.total_nano, status.currency)
    if threshold.kind == ACTUAL:
        at = (threshold.reached_at or "")[:16].replace("T", " ")
        words = f"{spent} of {total} spent by {of}; {display.percent(threshold.part)} was reached by {at} UTC"
    else:
        expected = None if status.forecast is None else status.forecast.expected_nano
        words = f"{cost(expected, status.currency)} expected of {total} for {of}; {spent} spent so far"
    return f"{words}."


def _facts(status: BudgetStatus) -> Iterator[MessageFact]:
    if status.left_nano is not None:
        yield MessageFact("Left", cost(status.left_nano, status.currency).replace("-", "−"))
    if status.carried_nano:
        yield MessageFact("Carried over", f"{status.currency} {display.signed_money(status.carried_nano)}")
    words = exceed_words(status)
    if words:
        yield MessageFact("Exceedance", words)


def _sections(status: BudgetStatus) -> Iterator[MessageSection]:
    if status.causes:
        items = tuple(f"{cost(each.nano, status.currency)}: {brief(each.words)}" for each in status.causes)
        yield MessageSection("Dearest causes", items=items)


def incident_key(team: str, day: str) -> str:
    """``incident:HASH of the team:2026-10-17``, by the day on which its first sign was whole."""
    return f"incident:{short_hash(team)}:{day}"


def incident_notice(incident: CostIncident, sign: IncidentSign, currency: str, links: MessageLinks) -> Notice:
    """One conversation for an incident: it grows with each quarter of the usual week, and ends."""
    is_over = incident.ended_ms is not None
    step = max(1, sign.base_nano // 4)
    return Notice(
        key=incident_key(incident.team, iso(incident.began_ms)[:10]),
        group=f"incident:{short_hash(incident.team)}",
        kind=NoticeKind.INCIDENT,
        stage=NoticeStage.RESOLVED if is_over else NoticeStage.OPEN,
        rank=NoticeRank.MEDIUM,
        team=incident.team,
        cluster="",
        since_ms=incident.began_ms,
        version="over" if is_over else f"{incident.excess_nano // step}",
        message=incident_message(incident, sign, currency, links),
        costs_nano=incident.excess_nano // 7,
    )


def incident_message(
    incident: CostIncident, sign: IncidentSign, currency: str, links: MessageLinks
) -> NotificationMessage:
    """How much more than usual the last week cost, and why."""
    who, more = display.name(incident.team, 60), cost(max(0, sign.excess_nano), currency)
    usual = cost(sign.base_nano, currency)
    day = iso(incident.began_ms - DAY_MS)[:10]
    cause = incident.cause or sign.cause
    why = "" if cause is None else f" Most of it: {cause_words(cause)}."
    week, base = IncidentRule().spans(sign.day_ms)
    title = f"{who} costs more than usual" if incident.ended_ms is None else f"{who} costs as usual again"
    return NotificationMessage(
        title=title,
        summary=f"{more} more in a week than the usual {usual}, since the week up to {day}.{why}",
        links=links.month(Month.of(incident.began_ms - 1), incident.team),
        footer=f"gpucost compare {week} {base} --team {quote(display.visible(incident.team))}",
    )
