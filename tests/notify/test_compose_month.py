"""A closed month as people read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucost.domain.money import NANO
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.month import month_message, month_notice
from gpucost.notify.compose.wording import amount, cost
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import NoticeKind, NoticeStage
from gpucost.notify.render import plain
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import AdjustmentFacts, MonthFacts
from gpucost.reports.month.model import MonthReport
from gpucost.reports.waste.waste_report import WasteAssessment
from tests.reports.builders import small_month
from tests.reports.waste_builders import small_waste

DIGEST, BEFORE = "d" * 64, "b" * 64
CLOSED = MonthFacts(True, 31, DIGEST, BEFORE, Month(2026, 11).window.start_ms + 36 * HOUR_MS, "ada", "audit")
NO_LINKS = MessageLinks()


def report(team: str = "", adjustments: tuple[AdjustmentFacts, ...] = (), **changes: Any) -> MonthReport:
    inputs = replace(small_month(), facts=CLOSED, adjustments=adjustments, **changes)
    if team:
        lines = inputs.lines[(inputs.lines["team"] == team) & (inputs.lines["bucket"] == "held")]
        scope = Scope(frozenset({team}))
        mine = tuple(item for item in adjustments if item.team == team)
        inputs = replace(
            inputs, lines=lines, scope=scope, capacity=None, waste=None, days=None, adjustments=mine
        )
        inputs = replace(inputs, problems=(), previous=None, previous_windows=())
    return build_month(inputs)


def credit(team: str, dollars: int, hours: int = 0) -> AdjustmentFacts:
    return AdjustmentFacts(team, dollars * 10**9, hours * 3_600_000, "outage", "eve", "T-1")


def facts(found: NotificationMessage) -> dict[str, str]:
    return {fact.name: fact.value for each in (found, *found.sections) for fact in each.facts}


def items(found: NotificationMessage, title: str) -> tuple[str, ...]:
    [each] = [each for each in found.sections if each.title == title]
    return each.items


def test_the_platform_reads_what_every_team_pays() -> None:
    made = report()
    found = month_message(made, NO_LINKS)
    assert found.title == "October 2026 is closed: All teams"
    paid = sum(row.adjusted.nano or 0 for row in made.teams)
    assert paid == made.totals.adjusted.nano
    assert found.summary.startswith(f"The teams pay {cost(paid, 'USD')} for October 2026")
    assert len(items(found, "By team")) == len(made.teams)
    assert facts(found)["Digest"] == DIGEST
    assert facts(found)["Digest of the month closed before"] == BEFORE
    assert facts(found)["Closed"] == "2026-11-02 12:00 UTC by ada"
    assert facts(found)["Reason"] == "audit"


def test_corrections_after_the_close_are_told_and_change_the_version() -> None:
    made, corrected = report(), report(adjustments=(credit("nlp", -50, -5), credit("vision", 7)))
    found = month_message(corrected, NO_LINKS)
    assert ", with corrections of USD −43.00; " in found.summary
    assert items(found, "Corrections since it was closed") == (
        "nlp: USD −50.00, −5.0 GPU-hours: outage (T-1, by eve)",
        "vision: USD +7.00, 0.0 GPU-hours: outage (T-1, by eve)",
    )
    assert facts(found)["Corrections"] == "USD −43.00, −5.0 GPU-hours"
    first, then = (month_notice(each, NO_LINKS, since_ms=1) for each in (made, corrected))
    assert first.key == then.key == "month:2026-10:"
    assert first.version != then.version
    assert (first.kind, first.stage) == (NoticeKind.MONTH, NoticeStage.ONCE)


def test_many_corrections_are_cut_in_words() -> None:
    many = tuple(replace(credit("nlp", -1), reference=f"T-{number:02}") for number in range(12))
    *_, rest = items(month_message(report(adjustments=many), NO_LINKS), "Corrections since it was closed")
    assert rest == "2 more corrections: USD −2.00, 0.0 GPU-hours"


def test_a_team_reads_its_own_only() -> None:
    made = report("nlp", (credit("nlp", -50), credit("vision", 7)))
    notice = month_notice(made, MessageLinks("https://g.example.com"), since_ms=1)
    assert (notice.key, notice.team) == ("month:2026-10:nlp", "nlp")
    text = plain.render(notice.message)
    held = made.totals.held.nano
    assert held is not None
    assert "vision" not in text
    assert "Capacity" not in text
    assert notice.message.summary.startswith(f"nlp pays {cost(held - 50 * NANO, 'USD')} for October 2026, ")
    assert [link.url for link in notice.message.links] == [
        "https://g.example.com/v1/reports/2026-10?format=html"
    ]


def test_what_nobody_measured_or_may_still_change_is_said() -> None:
    made = report(waste=small_waste())
    assert made.waste is not None
    found = month_message(made, NO_LINKS)
    [unknown] = [row for row in made.waste.buckets if row.waste == "unknown"]
    assert facts(found)["Unknown"].startswith(amount(unknown.amount, "USD"))
    assert facts(found)["Unknown"].endswith("% of the GPU-hours)")
    provisional = replace(made, waste=replace(made.waste, assessment=WasteAssessment(20, 4, 0)))
    assert items(month_message(provisional, NO_LINKS), "What this rests on") == (
        "Of 24 windows: 20 final, 4 provisional until more is known, 0 not looked at.",
    )


def test_a_month_at_which_nobody_looked_says_so() -> None:
    found = month_message(replace(report(), waste=None), NO_LINKS)
    assert facts(found)["Wasted"] == "not known: no detector has looked at this month"
