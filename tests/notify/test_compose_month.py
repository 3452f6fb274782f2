"""A closed month as people read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucost.domain.money import NANO
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.month import month_message, month_notice
from gpucost.notify.compose.wording import cost
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import NoticeKind, NoticeStage
from gpucost.notify.render import plain
from gpucost.reports.base import display
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import AdjustmentFacts, MonthFacts
from gpucost.reports.month.model import MonthReport
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


def test_the_platform_reads_what_every_team_pays() -> None:
    made = report()
    found = month_message(made, NO_LINKS)
    assert found.title == "October 2026 is closed: All teams"
    paid = sum(row.adjusted.nano or 0 for row in made.teams)
    assert paid == made.totals.adjusted.nano
    assert found.summary.startswith(f"The teams pay {cost(paid, 'USD')} for October 2026")
    [teams] = found.sections
    first = made.teams[0]
    assert teams.items[0] == f"{first.row.group['team']}: USD {display.money(first.adjusted.nano)}"
    assert len(teams.items) == min(len(made.teams), 4)
    assert found.footer == "gpucost month verify 2026-10"


def test_teams_beyond_three_are_added_up() -> None:
    made = report()
    more = replace(made, teams=made.teams * 4)
    *_, rest = month_message(more, NO_LINKS).sections[0].items
    nano = sum(each.adjusted.nano or 0 for each in more.teams[3:])
    assert rest == f"{len(more.teams) - 3} more teams: USD {display.money(nano)}"


def test_corrections_after_the_close_are_told_and_change_the_version() -> None:
    made, corrected = report(), report(adjustments=(credit("nlp", -50, -5), credit("vision", 7)))
    found = month_message(corrected, NO_LINKS)
    assert ", with corrections of USD −43.00; " in found.summary
    first, then = (month_notice(each, NO_LINKS, since_ms=1) for each in (made, corrected))
    assert first.key == then.key == "month:2026-10:"
    assert first.version != then.version
    assert (first.kind, first.stage) == (NoticeKind.MONTH, NoticeStage.ONCE)


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
        "https://g.example.com/month/2026-10/team?team=nlp"
    ]


def test_what_was_not_measured_stands_beside_what_was_wasted() -> None:
    made = report(waste=small_waste())
    assert made.waste is not None
    [unknown] = [row for row in made.waste.buckets if row.waste == "unknown"]
    words = facts(month_message(made, NO_LINKS))["Wasted"]
    assert words.startswith(f"{cost(made.waste.wasted.nano, 'USD')}, ")
    assert words.endswith(f"; {display.percent(unknown.share)} not measured)")


def test_a_month_at_which_nobody_looked_says_so() -> None:
    found = month_message(replace(report(), waste=None), NO_LINKS)
    assert facts(found)["Wasted"] == "not known: no detector has looked at it"


def test_why_it_is_not_known_who_pays_is_said() -> None:
    found = month_message(replace(report(), uncharged="no quota file"), NO_LINKS)
    assert facts(found)["To pay"] == "not known: no quota file"
    assert " used USD " in found.summary
