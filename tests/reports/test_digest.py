"""The digest of a week: by hand, and against sums made without it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.detectors.findings import FindingSubject, SubjectKind, WastePattern
from gpucost.domain.buckets import Waste
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.reports.base.document import to_json
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.digest.week_builder import WaitFacts, budget_of, build_week
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.reports.waste.waste_report import WasteAssessment
from tests.reports.builders import A100, H100, H100_NANO, START_MS
from tests.reports.waste_builders import known
from tests.reports.week_builders import (
    USES,
    WEEK,
    WEEK_START_MS,
    Use,
    before_windows,
    by_hand,
    week_inputs,
    week_windows,
)

HELD = [use for use in USES if use.bucket == "held"]


# --- weeks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("2026-W43", "2026-10-19T00:00:00Z/2026-10-26T00:00:00Z"),
        ("2026-W01", "2025-12-29T00:00:00Z/2026-01-05T00:00:00Z"),
        ("2026-W53", "2026-12-28T00:00:00Z/2027-01-04T00:00:00Z"),
        ("2010-W01", "2010-01-04T00:00:00Z/2010-01-11T00:00:00Z"),
    ],
)
def test_a_week_is_monday_to_monday_in_utc(text: str, window: str) -> None:
    week = IsoWeek.parse(text)
    assert (str(week), str(week.window)) == (text, window)


@pytest.mark.parametrize(
    "text", ["2026-43", "2026-W4", "2026-W00", "2025-W53", "2009-W52", "2100-W01", "W43", ""]
)
def test_what_is_no_week_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match=r"week: .* allowed: YYYY-Www of ISO 8601, such as 2026-W43"):
        IsoWeek.parse(text)


@given(st.integers(START_MS - 5000 * DAY_MS, START_MS + 20_000 * DAY_MS))
def test_every_instant_is_in_one_week(instant_ms: int) -> None:
    week = IsoWeek.of(instant_ms)
    assert week.window.start_ms <= instant_ms < week.window.end_ms
    assert (week.next().previous(), week.previous().next()) == (week, week)
    assert IsoWeek.parse(str(week)) == week


# --- what it cost --------------------------------------------------------------------------------------


def test_the_platform_pays_for_capacity_and_its_parts_add_up() -> None:
    found = build_week(week_inputs())
    assert found.cost == CostAmount(100 * HOUR_MS, 100 * H100_NANO) == by_hand(USES)
    assert found.held == CostAmount(89 * HOUR_MS, 89 * H100_NANO)
    assert found.waste is not None
    assert (found.waste.difference_board_ms, found.waste.difference_nano) == (0, 0)
    assert found.waste.wasted == CostAmount(23 * HOUR_MS, 23 * H100_NANO)
    assert sum((row.amount for row in found.waste.buckets), NOTHING) == found.cost
    assert [(each.row.group["team"], each.row.held.board_ms // HOUR_MS) for each in found.teams] == [
        ("nlp", 64),
        ("vision", 25),
    ]
    assert [each.waste.wasted.board_ms // HOUR_MS for each in found.teams if each.waste] == [10, 5]


def test_a_team_pays_for_what_it_held() -> None:
    found = build_week(week_inputs(team="nlp"))
    assert found.cost == found.held == CostAmount(64 * HOUR_MS, 64 * H100_NANO)
    assert found.waste is not None
    assert found.waste.wasted == CostAmount(10 * HOUR_MS, 10 * H100_NANO)
    assert found.waste.share == Fraction(10, 64)
    assert (found.teams, found.job_count) == ((), 2)
    assert [(row.job, row.held.board_ms // HOUR_MS) for row in found.jobs] == [("train", 60), ("eval", 4)]
    busy = found.utilisation.busy
    assert busy is not None
    assert (busy.mean, busy.coverage) == (Fraction(40, 60), Fraction(60, 64))


def test_a_team_reads_nothing_of_others() -> None:
    inputs = week_inputs(team="nlp", budgets={"nlp": 10**12, "vision": 7 * 10**12})
    text = to_json(build_week(inputs))
    assert '"vision"' not in text
    assert "__unallocated__" not in text
    assert "7000000000000" not in text


uses = st.lists(
    st.builds(
        Use,
        waste=st.sampled_from(["productive", "idle", "oversized", "gang_stall", "unknown"]),
        hours=st.integers(1, 9_000_000).map(lambda quarter: quarter / 4),
        day=st.integers(0, 6),
        team=st.sampled_from(["nlp", "vision", "__no_team__"]),
        job=st.sampled_from(["a", "b", "c"]),
        rate=st.sampled_from([H100, A100, None]),
    )
    | st.builds(
        Use,
        waste=st.sampled_from(["starved", "no_demand", "unknown"]),
        hours=st.integers(1, 1000),
        day=st.integers(0, 6),
        bucket=st.just("unallocated"),
    )
    | st.builds(Use, waste=st.just("productive"), hours=st.integers(1, 99), bucket=st.just("overcommitted")),
    max_size=8,
)


@settings(max_examples=6)
@given(uses)
def test_parts_add_up_to_totals_for_any_week(week: list[Use]) -> None:
    """Against sums over the lines that were made without the digest."""
    capacity = [use for use in week if use.bucket != "overcommitted"]
    found = build_week(week_inputs(week))
    assert found.waste is not None
    assert found.cost == by_hand(capacity)
    assert found.held == by_hand([use for use in week if use.bucket == "held"])
    days = [day.buckets for day in found.days]
    assert sum((amount for day in days if day for amount in day.values()), NOTHING) == found.cost
    for waste in Waste:
        own = by_hand([use for use in capacity if use.waste == waste])
        [row] = [row for row in found.waste.buckets if row.waste == waste]
        assert row.amount == own
        assert sum((day.get(waste, NOTHING) for day in days if day), NOTHING) == own
    assert sum((each.row.held for each in found.teams), NOTHING) == found.held
    for each in found.teams:
        team = each.row.group["team"]
        own_digest = build_week(week_inputs(week, team=team))
        assert (
            own_digest.cost
            == each.row.held
            == by_hand([u for u in week if (u.team, u.bucket) == (team, "held")])
        )
        assert own_digest.waste is not None
        assert own_digest.waste.wasted == (NOTHING if each.waste is None else each.waste.wasted)


def test_the_order_of_lines_does_not_matter() -> None:
    assert build_week(week_inputs(USES[::-1])) == build_week(week_inputs())


# --- against before, against the budget ------------------------------------------------------------------


def test_change_is_against_the_week_before() -> None:
    found = build_week(week_inputs(before=[replace(use, hours=use.hours / 2) for use in USES])).change
    assert found is not None
    assert (found.previous.board_ms, found.relative) == (50 * HOUR_MS, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"previous_windows": ()}, "nothing of the week before in the ledger"),
        ({"previous_windows": before_windows(6)}, "week before covered 85.7%"),
        ({"windows": week_windows(6)}, "this week covered 85.7%"),
        (
            {
                "previous_windows": (*before_windows(), *before_windows(1)[:0]),
                "windows": week_windows(cluster="west"),
            },
            "week before covered 0.0% of cluster west",
        ),
    ],
)
def test_weeks_that_are_not_whole_are_not_compared(changes: dict[str, object], reason: str) -> None:
    found = build_week(week_inputs(**changes))
    assert (found.change, found.not_compared) == (None, reason)


def test_the_budget_of_a_week_is_by_days() -> None:
    assert budget_of(31 * 10**9, [WEEK.window]) == 7 * 10**9
    # 26 October to 1 November: six days of October, one of November.
    assert budget_of(31 * 30 * 10**9, [IsoWeek(2026, 44).window]) == (6 * 30 + 31) * 10**9
    assert budget_of(100, [WEEK.window]) == 23  # 700 / 31 = 22.58


@settings(max_examples=20)
@given(st.integers(0, 10**16))
def test_the_budgets_of_a_year_are_those_of_its_weeks(monthly_nano: int) -> None:
    """To within half a nano-unit a week; 2026-W01 to W53 are 371 days, nine of them of other years."""
    week, total = IsoWeek(2026, 1), 0
    while week <= IsoWeek(2026, 53):
        total += budget_of(monthly_nano, [week.window])
        week = week.next()
    exact = 12 * monthly_nano + Fraction(monthly_nano * 6, 31)
    assert abs(total - exact) <= Fraction(53, 2)


def test_a_team_is_held_against_its_own_budget_and_the_platform_against_all() -> None:
    budgets = {"nlp": 31 * H100_NANO * 8, "vision": 31 * H100_NANO, "asleep": 31 * H100_NANO}
    own = build_week(week_inputs(team="nlp", budgets=budgets)).budget
    assert own is not None
    assert (own.teams, own.week_nano, own.part) == (1, 56 * H100_NANO, Fraction(64, 56))
    every = build_week(week_inputs(budgets=budgets))
    assert every.budget is not None
    assert (every.budget.teams, every.budget.week_nano) == (3, 70 * H100_NANO)
    assert every.budget.spent == CostAmount(89 * HOUR_MS, 89 * H100_NANO)
    assert sum(each.budget.week_nano for each in every.teams if each.budget) == 63 * H100_NANO
    assert build_week(week_inputs(team="vision", budgets={"nlp": 1})).budget is None
    nothing = build_week(week_inputs(team="nlp", budgets={"nlp": 0})).budget
    assert nothing is not None
    assert nothing.part is None


# --- what is missing is said -----------------------------------------------------------------------------


def test_a_week_that_is_not_whole_says_by_how_much() -> None:
    found = build_week(week_inputs(windows=week_windows(5, observed=0.5))).coverage
    assert (found.whole, found.missing_ms, found.covered) == (False, 2 * DAY_MS, Fraction(5, 7))
    assert found.observed == Fraction(1, 2)


def test_a_cluster_that_has_gone_silent_misses_all_of_the_week() -> None:
    silent = (*before_windows(), *(replace(each, cluster="west") for each in before_windows()))
    found = build_week(week_inputs(previous_windows=silent)).coverage
    assert [(each.cluster, each.missing_ms // DAY_MS) for each in found.clusters] == [
        ("east", 0),
        ("west", 7),
    ]
    assert (found.covered, found.whole) == (Fraction(1, 2), False)


def test_a_window_that_is_open_keeps_a_week_from_being_whole() -> None:
    first, *others = week_windows()
    assert build_week(week_inputs()).coverage.whole
    found = build_week(week_inputs(windows=(replace(first, settled=False), *others))).coverage
    assert (found.whole, found.settled, found.missing_ms) == (False, False, 0)


def test_a_day_without_a_window_is_none_and_one_without_use_is_nothing() -> None:
    found = build_week(week_inputs(USES[:1], windows=week_windows(6)))
    assert [day.buckets is None for day in found.days] == [False] * 6 + [True]
    assert found.days[5].buckets == {}
    assert [day.day for day in found.days][:1] == ["2026-10-19"]


def test_where_nobody_looked_there_is_no_waste_not_none_of_it() -> None:
    inputs = week_inputs()
    found = build_week(replace(inputs, waste=replace(inputs.waste, assessment=WasteAssessment(0, 0, 7))))
    assert (found.waste, found.days) == (None, ())
    assert json.loads(to_json(found))["waste"] is None
    assert [each.waste for each in found.teams] == [None, None]


def test_what_has_no_price_is_not_free() -> None:
    found = build_week(week_inputs([Use("productive", 4, rate=None)]))
    assert found.cost == CostAmount(4 * HOUR_MS, None, 4 * HOUR_MS)


# --- what to do --------------------------------------------------------------------------------------------


def test_three_actions_by_money_and_how_many_there_are_more() -> None:
    prices = {1: 100, 2: 500, 3: None, 4: 300, 5: 400}
    findings = [
        known(number, job=f"j{number}", team=f"t{number}", hourly=price) for number, price in prices.items()
    ]
    found = build_week(week_inputs(findings=findings))
    assert [(row.finding, row.daily_nano) for row in found.actions] == [(2, 12_000), (5, 9_600), (4, 7_200)]
    assert found.more_actions == 2


def test_what_was_muted_or_began_after_the_week_is_no_action() -> None:
    muted = replace(known(1, job="a"), state="muted")
    late = replace(known(2, job="b"), since_ms=WEEK.window.end_ms)
    just = replace(known(3, job="c"), since_ms=WEEK.window.end_ms - 1)
    found = build_week(week_inputs(findings=(muted, late, just)))
    assert [row.finding for row in found.actions] == [3]
    assert found.more_actions == 0


def test_what_is_over_is_the_waste_of_jobs_without_a_finding_that_goes_on() -> None:
    """The free and the broken hours have no team, the unknown ones are no waste."""
    found = build_week(week_inputs())
    assert [(row.job, row.waste, row.amount) for row in found.over] == [
        ("train", "idle", CostAmount(10 * HOUR_MS, 10 * H100_NANO)),
        ("seg", "oversized", CostAmount(5 * HOUR_MS, 5 * H100_NANO)),
    ]
    assert (found.more_over, found.actions) == (0, ())
    own = build_week(week_inputs(team="vision"))
    assert [row.job for row in own.over] == ["seg"]


@pytest.mark.parametrize("state", ["open", "acknowledged", "muted"])
def test_what_goes_on_is_not_over_whatever_was_answered(state: str) -> None:
    going = replace(known(1, job="train"), state=state)
    late = replace(going, since_ms=WEEK.window.end_ms)
    for finding in (going, late):
        assert [row.job for row in build_week(week_inputs(findings=[finding])).over] == ["seg"]


def test_a_broken_gpu_is_not_over_while_any_node_of_the_cluster_has_one() -> None:
    uses = [Use("unavailable", 8)]
    assert [row.waste for row in build_week(week_inputs(uses)).over] == ["unavailable"]
    broken = known(1, job="other", team="platform")
    node = FindingSubject(SubjectKind.NODE, "east", "node-1")
    draft = replace(broken.finding.draft, pattern=WastePattern.UNHEALTHY_ALLOCATED, subject=node)
    going = replace(broken, finding=replace(broken.finding, draft=draft))
    assert build_week(week_inputs(uses, findings=[going])).over == ()
    elsewhere = replace(draft, subject=replace(node, cluster="west"))
    going = replace(broken, finding=replace(broken.finding, draft=elsewhere))
    assert len(build_week(week_inputs(uses, findings=[going])).over) == 1


@pytest.mark.parametrize(("actions", "shown"), [(0, 3), (1, 2), (2, 1), (3, 0), (4, 0)])
def test_what_is_over_fills_the_room_that_actions_leave(actions: int, shown: int) -> None:
    uses = [Use("idle", 1 + number, job=f"j{number}") for number in range(5)]
    findings = [known(number, job=f"f{number}", team=f"t{number}") for number in range(actions)]
    found = build_week(week_inputs(uses, findings=findings))
    assert [row.job for row in found.over] == ["j4", "j3", "j2"][:shown]
    assert found.more_over == 5 - shown


def test_where_nobody_looked_nothing_is_said_to_be_over() -> None:
    inputs = week_inputs()
    assert (
        build_week(replace(inputs, waste=replace(inputs.waste, assessment=WasteAssessment(0, 0, 7)))).over
        == ()
    )


# --- waits --------------------------------------------------------------------------------------------------


def test_waits_are_of_what_started_in_the_week() -> None:
    """Ten starts after 1 to 10 minutes; one before and one after the week, one that left, one that waits."""
    at = WEEK_START_MS + HOUR_MS
    starts = [WaitFacts("nlp", at - minutes * MINUTE_MS, at, None) for minutes in range(1, 11)]
    others = [
        WaitFacts("nlp", at, WEEK.window.end_ms, None),
        WaitFacts("nlp", at, WEEK_START_MS - 1, None),
        WaitFacts("nlp", at, None, at + 1),
        WaitFacts("nlp", at, None, None),
        WaitFacts("vision", at - DAY_MS, at, None),
    ]
    found = build_week(week_inputs(team="nlp", waits=(*starts, *others))).waits
    assert found is not None
    assert (found.started, found.waiting, found.cut) == (10, 1, False)
    assert (found.p50_ms, found.p90_ms, found.longest_ms) == (5 * MINUTE_MS, 9 * MINUTE_MS, 10 * MINUTE_MS)
    every = build_week(week_inputs(waits=(*starts, *others), waits_cut=True)).waits
    assert every is not None
    assert (every.started, every.longest_ms, every.cut) == (11, DAY_MS, True)
    assert build_week(week_inputs(team="asleep", waits=tuple(starts))).waits is None
    assert build_week(week_inputs()).waits is None


def test_the_builders_say_what_they_are() -> None:
    hours = Counter({use.team if use.bucket == "held" else use.bucket: 0.0 for use in USES})
    for use in USES:
        hours[use.team if use.bucket == "held" else use.bucket] += use.hours
    assert hours == {"nlp": 64, "vision": 25, "unallocated": 10, "unavailable": 1}
    assert len(HELD) == 5
    assert Window(WEEK_START_MS, WEEK_START_MS + 7 * DAY_MS) == WEEK.window
