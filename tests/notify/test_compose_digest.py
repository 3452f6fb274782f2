"""The digest of a week as people read it: its one sentence, its numbers, its charts, and who it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.notify.compose.digest import digest_message, digest_notice
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import MessageSection, NotificationMessage
from gpucost.notify.notices import NoticeKind, NoticeStage
from gpucost.notify.render import plain
from gpucost.reports.digest.week_builder import WaitFacts, build_week
from gpucost.reports.waste.recommendations import HABITS, PATTERN_OF_HELD_WASTE, page_of
from gpucost.reports.waste.waste_report import WasteAssessment
from tests.reports.builders import H100_NANO
from tests.reports.waste_builders import known
from tests.reports.week_builders import USES, WEEK, WEEK_START_MS, Use, week_inputs, week_windows

LINKS = MessageLinks("https://gpucost.example.com", "https://grafana.example.com")
HALF = [replace(use, hours=use.hours / 2) for use in USES]


def message(links: MessageLinks = LINKS, **changes: Any) -> NotificationMessage:
    return digest_message(build_week(week_inputs(**changes)), links)


def facts(found: NotificationMessage) -> dict[str, str]:
    return {fact.name: fact.value for fact in found.facts}


def section(found: NotificationMessage, title: str) -> MessageSection:
    [each] = [each for each in found.sections if each.title == title]
    return each


# --- the sentence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"team": "nlp", "before": HALF},
            "nlp cost USD 440 in week 43, 100% more than the week before; most of all 32.0 GPU-hours more "
            "(+220.16); 16% of the cost was wasted; 6% was not measured.",
        ),
        (
            {"team": "vision"},
            "vision cost USD 172 in week 43, as much as the week before; 20% of the cost was wasted.",
        ),
        (
            {"previous_windows": ()},
            "The clusters cost USD 688 in week 43; 23% of the cost was wasted; 4% was not measured.",
        ),
        (
            {"uses": [], "team": "nlp", "before": USES},
            "nlp cost USD 0.00 in week 43, 100% less than the week before; most of all held 64.0 GPU-hours "
            "before, nothing seen now (−440.32).",
        ),
        (
            {"uses": [Use("idle", 4, rate=None)], "team": "nlp", "previous_windows": ()},
            "nlp held 4.0 GPU-hours without a price in week 43; 100% of the GPU-hours were wasted.",
        ),
        (
            {"windows": (*week_windows(5), *week_windows(5, cluster="west")), "team": "vision"},
            "vision cost USD 172 in week 43; 20% of the cost was wasted; 4 days of the week of 2 clusters "
            "are not in the ledger, nor in these numbers.",
        ),
    ],
)
def test_the_summary_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert message(**changes).summary == sentence


def test_what_nobody_looked_at_is_not_called_free_of_waste() -> None:
    inputs = week_inputs(team="nlp")
    unseen = replace(inputs, waste=replace(inputs.waste, assessment=WasteAssessment(0, 0, 7)))
    found = digest_message(build_week(unseen), LINKS)
    assert found.summary.endswith("; no detector has looked at it.")
    assert facts(found)["Wasted"] == "not known: no detector has looked at this week"
    assert not [each for each in found.sections if each.chart]


# --- the numbers ----------------------------------------------------------------------------------------


def test_the_facts_of_a_team() -> None:
    found = message(team="nlp", before=HALF, budgets={"nlp": 31 * 8 * H100_NANO})
    assert facts(found) == {
        "Cost": "USD 440, 64.0 GPU-hours",
        "Week before": "USD 220, 32.0 GPU-hours (100% more than the week before)",
        "Budget": "114% of USD 385, the week's part of USD 1,706 a month",
        "Wasted": "USD 68.80 (15.6% of the cost), 10.0 GPU-hours",
        "Unknown": "USD 27.52 (6.2% of the cost), 4.0 GPU-hours",
        "Busy": "67%; use was measured for 94% of what was held",
    }
    assert section(found, "Where it went").items == (
        "Idle: USD 68.80 (15.6% of the cost), 10.0 GPU-hours; held, and seen to do nothing",
        "In use: USD 344 (78.1% of the cost), 50.0 GPU-hours; held, observed, and none of the above"
        "; all that was held was busy 67% of the time (94% of it observed)",
        "Unknown: USD 27.52 (6.2% of the cost), 4.0 GPU-hours; not observed, or no detector has looked at it",
    )
    assert section(found, "Costliest jobs").items == (
        "nlp/train: USD 413, 60.0 GPU-hours, busy 67%",
        "nlp/eval: USD 27.52, 4.0 GPU-hours, not observed",
    )


def test_the_platform_names_its_teams() -> None:
    found = message(budgets={"nlp": 31 * 8 * H100_NANO})
    assert facts(found)["Held by teams"] == "USD 612, 89.0 GPU-hours"
    assert facts(found)["Budget"] == (
        "114% of USD 385, the week's part of USD 1,706 a month of 1 team with a budget; they held USD 440"
    )
    assert section(found, "Costliest teams").items == (
        "nlp: USD 440 (16% of it wasted), 64.0 GPU-hours, 114% of the week's budget, as much as the week "
        "before",
        "vision: USD 172 (20% of it wasted), 25.0 GPU-hours, as much as the week before",
    )


def test_of_many_teams_the_rest_is_one_line() -> None:
    uses = [Use("productive", 10 + number, team=f"t{number}", job=f"j{number}") for number in range(12)]
    found = message(uses=uses, before=[])
    *top, rest = section(found, "Costliest teams").items
    assert (len(top), rest) == (5, "7 more teams: USD 626, 91.0 GPU-hours")
    assert section(found, "Costliest jobs, 5 of 12").items[0].startswith("t11/j11 (t11): ")
    chart = section(found, "Costliest teams").chart
    assert chart is not None
    assert (chart.title, len(chart.bars)) == ("By team, the costliest 10 of 12", 10)


def test_shares_of_a_message_are_of_one_base() -> None:
    uses = [Use("idle", 3), Use("productive", 1, rate=None)]
    found = message(uses=uses, team="nlp", previous_windows=())
    assert "75% of the GPU-hours were wasted" in found.summary
    assert facts(found)["Wasted"] == "USD 20.64, 3.0 GPU-hours (75.0% of the GPU-hours)"
    [row] = section(message(uses=uses, previous_windows=()), "Costliest teams").items
    assert row == "nlp: USD 20.64, 4.0 GPU-hours (75% of it wasted), 1.0 of them without a price"


def test_what_is_unknown_since_nobody_looked_is_not_called_unmeasured_alone() -> None:
    inputs = week_inputs(team="nlp")
    part = replace(inputs, waste=replace(inputs.waste, assessment=WasteAssessment(6, 0, 1)))
    assert digest_message(build_week(part), LINKS).summary.endswith("6% was not measured or not looked at.")


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        (week_windows(6), "133% of USD 330, the part of 6 of 7 days of USD 1,706 a month"),
        (
            (*week_windows(6), *week_windows(6, cluster="west")),
            "133% of USD 330, the part of 6 of 7 days of USD 1,706 a month",
        ),
        (
            (*week_windows(7), *week_windows(5, cluster="west")),
            "USD 1,706 a month: not compared, clusters lack different parts of the week",
        ),
    ],
)
def test_a_budget_of_a_part_of_the_week_says_so(windows: Any, words: str) -> None:
    uses = [use for use in USES if use.day < 5]
    found = message(uses=uses, team="nlp", windows=windows, budgets={"nlp": 31 * 8 * H100_NANO})
    assert facts(found)["Budget"] == words
    platform = message(uses=uses, windows=windows, budgets={"nlp": 31 * 8 * H100_NANO})
    team = section(platform, "Costliest teams").items[0]
    assert ("133% of the budget of 6 of 7 days" in team) == ("133%" in words)
    assert "week's budget" not in team


def test_waits_are_in_words() -> None:
    at = WEEK_START_MS + DAY_MS
    waits = [WaitFacts("nlp", at - minutes * MINUTE_MS, at, None) for minutes in (1, 2, 3, 240)]
    found = message(team="nlp", waits=(*waits, WaitFacts("nlp", at, None, None)), waits_cut=True)
    assert facts(found)["Waited"] == (
        "4 workloads started, half of them within 2 min, nine in ten within 4 h, all within 4 h; "
        "1 still waiting; of those that asked last"
    )


def test_what_the_numbers_rest_on_is_said() -> None:
    inputs = week_inputs(windows=week_windows(5, observed=0.5))
    shaky = replace(inputs, waste=replace(inputs.waste, assessment=WasteAssessment(3, 1, 1)))
    found = digest_message(build_week(shaky), LINKS)
    assert facts(found)["Week before"] == "not compared: this week covered 71.4%"
    assert section(found, "What this rests on").items == (
        "71.4% of the week is in the ledger; the cluster was watched for 50.0% of that.",
        "Use was measured for 67.4% of what was held.",
        "Cluster east: 2 days missing.",
        "Of 5 windows: 3 final, 1 provisional until more is known, 1 not looked at, which count as unknown.",
    )


# --- charts -----------------------------------------------------------------------------------------------


def test_days_stand_side_by_side_and_a_missing_one_is_a_gap() -> None:
    chart = section(message(team="nlp", windows=week_windows(6)), "Where it went").chart
    assert chart is not None
    assert (chart.upright, chart.unit) == (True, "GPU-minutes")
    assert chart.colours == ("productive", "idle", "unknown")
    assert [bar.label for bar in chart.bars] == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    assert [bar.parts for bar in chart.bars] == [
        (3000, 0, 0),
        (0, 600, 0),
        (0, 0, 240),
        *[(0, 0, 0)] * 3,
        (None, None, None),
    ]
    assert (chart.bars[0].shown, chart.bars[6].shown) == ("50 h", "missing")


def test_a_day_that_is_not_whole_says_so() -> None:
    part, *others = week_windows()
    found = message(team="nlp", windows=(replace(part, end_ms=part.start_ms + 6 * HOUR_MS), *others))
    chart = section(found, "Where it went").chart
    assert chart is not None
    assert chart.bars[0].shown == "50 h, 25% of the day"


def test_charts_of_a_large_week_are_in_hours_and_add_up() -> None:
    uses = [Use("productive", 1000, day=day) for day in range(7)] + [Use("idle", 24, day=3)]
    chart = section(message(uses=uses), "Where it went").chart
    assert chart is not None
    assert chart.unit == "GPU-hours"
    assert sum(part or 0 for bar in chart.bars for part in bar.parts) == 7024


# --- what to do ---------------------------------------------------------------------------------------------


def test_three_actions_with_money_job_and_the_one_change() -> None:
    findings = [
        known(1, job="a", hourly=10**9),
        known(
            2,
            job="b",
            team="vision",
            hourly=2 * 10**9,
            summary="b is idle",
            action="Stop b",
            patch="kubectl x\n",
        ),
        known(3, job="c", team="speech", hourly=None),
        known(4, job="d", team="nlp", hourly=10**8),
        known(5, job="e", team="robots", hourly=None),
    ]
    found = message(findings=findings)
    head = section(found, "The 3 actions that bring most back")
    assert (
        head.text == "By the money they bring back in a day, as things stand now. 1 more: gpucost findings."
    )
    first, second, third = [each for each in found.sections if each.title[:2] in ("1.", "2.", "3.")]
    assert (first.title, first.code) == (
        "1. job nlp/b of vision: USD 48.00 a day at its rate of now",
        "kubectl x",
    )
    assert first.text == "b is idle.\nIt wasted 8.00 USD in its last day.\nStop b"
    assert second.title == "2. job nlp/a of nlp: USD 24.00 a day at its rate of now"
    assert second.text.endswith(
        "\nAnd 1 more finding like it: another USD 2.40 a day at their rate of now, USD 26.40 with this one."
    )
    assert third.title == "3. job nlp/c of speech: no amount"


def test_what_is_in_no_sum_says_so() -> None:
    found = known(1, job="a", hourly=10**9)
    outside = replace(found.finding, wasted=replace(found.finding.wasted, counted=False))
    titles = [each.title for each in message(findings=[replace(found, finding=outside)]).sections]
    assert titles[2] == "1. job nlp/a of nlp: USD 24.00 a day at its rate of now, not in the sums above"


def test_the_footer_names_the_command() -> None:
    assert message(team="nlp").footer.endswith("; again: gpucost digest 2026-W43 --team nlp")
    assert message().footer.endswith("; again: gpucost digest 2026-W43")


def test_what_is_posted_is_short_and_adds_up() -> None:
    """Five findings: three lines, of which one stands for another like it, and the rest in one line."""
    hourly = (5 * 10**9, 4 * 10**9, 3 * 10**9, 2 * 10**9)
    findings = [known(n, job=f"j{n}", team=f"t{n}", hourly=each) for n, each in enumerate(hourly)]
    findings.append(known(9, job="j9", team="t0", hourly=10**9))
    notice = digest_notice(build_week(week_inputs(findings=findings)), LINKS, since_ms=0)
    [actions] = notice.message.sections
    assert actions.items == (
        "USD 144 a day: nlp/j0 and 1 like it",
        "USD 96.00 a day: nlp/j1",
        "USD 72.00 a day: nlp/j2",
        "USD 48.00 a day: 1 more",
    )
    assert actions.text == f"What brings most back; first: {findings[0].finding.draft.action.text}"
    assert notice.message.footer == "gpucost digest 2026-W43"
    budget = digest_notice(build_week(week_inputs(team="nlp", budgets={"nlp": 10**12})), LINKS, since_ms=0)
    assert budget.message.summary.endswith(" of the budget.")
    assert budget.message.sections[0].text == "Nothing to do now: no finding goes on."


@pytest.mark.parametrize(
    ("hourly", "count", "text"),
    [
        (3 * 10**9, 1, "By the money it brings back in a day, as things stand now."),
        (3 * 10**9, 2, "By the money they bring back in a day, as things stand now."),
    ],
)
def test_one_action_is_one(hourly: int, count: int, text: str) -> None:
    findings = [known(number, job=f"j{number}", team=f"t{number}", hourly=hourly) for number in range(count)]
    [head] = [each for each in message(findings=findings).sections if "most back" in each.title]
    assert head.text == text


def test_what_is_over_is_told_with_the_habit_that_avoids_it() -> None:
    found = section(message(team="nlp"), "What to do")
    assert found.text == "Nothing now: no finding goes on. What wasted most is over:"
    assert found.items == (
        "nlp/train, idle: USD 68.80, 10.0 GPU-hours; is over. Next time: let it end when its work is done "
        "(docs/detectors/idle_allocation.md)",
    )


def test_what_is_over_fills_up_to_three_and_counts_the_rest() -> None:
    uses = [Use("gang_stall", 9 + number, job=f"j{number}") for number in range(4)]
    found = message(uses=[*uses, Use("idle", 90)], findings=[known(1, job="train", team="nlp")])
    over = section(found, "What else wasted most")
    assert over.text == "It is over. 2 more are not shown."
    assert [item.partition(":")[0] for item in over.items] == [
        "nlp/j3 of nlp, gang stall",
        "nlp/j2 of nlp, gang stall",
    ]
    titles = [each.title for each in found.sections]
    assert titles.index("What else wasted most") == titles.index("The action that brings most back") + 2


def test_what_is_over_and_has_no_price_says_so() -> None:
    [item] = section(message(uses=[Use("idle", 4, rate=None)], team="nlp"), "What to do").items
    assert item.startswith("nlp/train, idle: 4.0 GPU-hours, without a price; is over. Next time: ")


def test_every_bucket_of_held_waste_has_a_habit_and_a_page() -> None:
    assert set(HABITS) == set(PATTERN_OF_HELD_WASTE)
    pages = Path(__file__).parents[2]
    assert all((pages / page_of(pattern)).is_file() for pattern in PATTERN_OF_HELD_WASTE.values())
    assert max(map(len, HABITS.values())) <= 60


@pytest.mark.parametrize(
    "changes", [{"uses": []}, {"uses": [Use("productive", 4), Use("unknown", 1)]}, {"team": "asleep"}]
)
def test_where_nothing_was_wasted_there_is_nothing_to_do(changes: dict[str, Any]) -> None:
    found = section(message(**changes), "What to do")
    assert (found.text, found.items) == ("Nothing: no finding goes on.", ())


# --- notices ---------------------------------------------------------------------------


def test_a_notice_is_told_once_and_again_when_it_is_whole() -> None:
    whole = digest_notice(build_week(week_inputs(team="nlp")), LINKS, since_ms=5)
    assert (whole.key, whole.group, whole.kind) == (
        "digest:week:2026-W43:nlp",
        "digest:week:nlp",
        NoticeKind.DIGEST,
    )
    assert (whole.stage, whole.team, whole.since_ms, whole.version) == (NoticeStage.ONCE, "nlp", 5, "whole")
    partial = digest_notice(build_week(week_inputs(team="nlp", windows=week_windows(6))), LINKS, since_ms=5)
    assert (partial.key, partial.version) == (whole.key, "partial")
    inputs = week_inputs(team="nlp")
    unseen = replace(inputs, waste=replace(inputs.waste, assessment=WasteAssessment(6, 0, 1)))
    assert digest_notice(build_week(unseen), LINKS, since_ms=5).version == "partial"
    assert digest_notice(build_week(week_inputs()), LINKS, since_ms=5).key == "digest:week:2026-W43:"


def test_links_lead_to_the_page_else_to_the_dashboard_at_that_week() -> None:
    pages = [message(team=team).links[0].url for team in ("nlp", "")]
    assert pages == [f"{LINKS.service}/month/2026-10/team?team=nlp", f"{LINKS.service}/month/2026-10"]
    boards = MessageLinks(dashboards=LINKS.dashboards)
    own = message(team="nlp", links=boards).links
    assert [link.url for link in own] == [
        "https://grafana.example.com/d/gpucost-team?var-team=nlp&from=1792368000000&to=1792972800000"
    ]
    assert [link.text for link in message(links=boards).links] == ["Fleet"]
    assert message(links=MessageLinks()).links == ()


def test_a_teams_message_names_nobody_else_and_no_total_of_others() -> None:
    text = plain.render(message(team="nlp", budgets={"vision": 10**15}))
    assert "vision" not in text.replace("provisional", "")
    assert "688" not in text
    assert "USD 440" in text


@pytest.mark.fault(63)
def test_hostile_names_stay_text() -> None:
    uses = [Use("idle", 5, team="nlp", job="<!channel>\u202e" + "x" * 300)]
    [item] = section(message(uses=uses, team="nlp"), "Costliest jobs").items
    assert "\u202e" not in item
    assert len(item) < 200
    assert message(uses=[replace(uses[0], team="a\u202eb")]).title.startswith("All teams: ")
    assert str(WEEK) in message(uses=uses).footer
