"""The waste report: what a person can add up by hand, and what must hold for any ledger."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    SubjectKind,
    WastePattern,
)
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.waste.recommendations import KnownFinding, to_do
from gpucost.reports.waste.waste_report import (
    WASTE_DIMS,
    WasteAssessment,
    WasteInputs,
    build_waste,
    held_rows,
)
from gpucost.reports.waste.waste_table import alike as alike_words
from gpucost.reports.waste.waste_table import unknown_words

MONTH = Month(2026, 10)
START_MS = MONTH.window.start_ms
PRICE = 4_000_000_000
LOOKED = WasteAssessment(final=20, provisional=3, missing=1)


def line(
    waste: Waste,
    hours: int,
    *,
    day: int = 0,
    bucket: Bucket = Bucket.HELD,
    price: int | None = PRICE,
    **names: str,
) -> dict[str, Any]:
    nano = None if price is None else hours * price
    unpriced = hours * HOUR_MS if price is None else 0
    found: dict[str, Any] = dict.fromkeys(WASTE_DIMS, "") | {"cluster": "c", "bucket": bucket.value, **names}
    return found | {
        "step_start_ms": START_MS + day * DAY_MS,
        "waste": waste.value,
        "board_ms": hours * HOUR_MS,
        "nano": nano,
        "unpriced_ms": unpriced,
    }


def frame(*lines: dict[str, Any]) -> pd.DataFrame:
    """With the dtypes of Ledger.waste."""
    names = [*WASTE_DIMS, "step_start_ms", "waste", "board_ms", "nano", "unpriced_ms"]
    types = {"step_start_ms": "int64", "board_ms": "int64", "nano": "Int64", "unpriced_ms": "int64"}
    columns = {
        name: pd.Series([each[name] for each in lines], dtype=types.get(name, "str")) for name in names
    }
    return pd.DataFrame(columns)


def inputs(*lines: dict[str, Any], **changes: Any) -> WasteInputs:
    total = sum((each["board_ms"] for each in lines), 0)
    nano = sum((each["nano"] or 0 for each in lines), 0)
    given = WasteInputs(MONTH.window, "USD", frame(*lines), CostAmount(total, nano), LOOKED)
    return replace(given, **changes)


def known(number: int, hourly: int | None, **changes: Any) -> KnownFinding:
    """A finding of team a: one GPU that idles, for ``hourly`` nano an hour."""
    subject = FindingSubject(SubjectKind.JOB, "c", "train", "ns", "uid-train")
    draft = FindingDraft(
        pattern=changes.pop("pattern", WastePattern.IDLE_ALLOCATION),
        variant=changes.pop("variant", "whole"),
        subject=changes.pop("subject", subject),
        since_ms=START_MS,
        summary="it idles",
        evidence=(),
        action=FindingAction("stop it", "kubectl delete pod p"),
        formula="",
        team=changes.pop("team", "a"),
        ended_ms=changes.pop("ended_ms", None),
    )
    finding = Finding(draft, FindingSeverity.HIGH, FindingWaste(HOUR_MS, PRICE, "", True), 1.0, hourly)
    return KnownFinding(number, "open", replace(finding, **changes), START_MS)


def a_day() -> tuple[dict[str, Any], ...]:
    """100 GPU-hours: 60 held (15 idle, 5 oversized), 30 free (10 starved), 4 broken, 6 that were not
    observed."""
    train = {"team": "a", "namespace": "ns", "job_kind": "Job", "job": "train", "job_uid": "uid-train"}
    return (
        line(Waste.IDLE, 15, **train),
        line(Waste.PRODUCTIVE, 25, **train),
        line(Waste.OVERSIZED, 5, day=1, **(train | {"job": "other", "job_uid": "uid-other"})),
        line(Waste.PRODUCTIVE, 15, team="b", job="serve", job_uid="uid-serve"),
        line(Waste.STARVED, 10, bucket=Bucket.UNALLOCATED, team="__unallocated__"),
        line(Waste.NO_DEMAND, 20, bucket=Bucket.UNALLOCATED, team="__unallocated__"),
        line(Waste.UNAVAILABLE, 4, bucket=Bucket.UNAVAILABLE, team="__unavailable__"),
        line(Waste.UNKNOWN, 6, bucket=Bucket.UNKNOWN, team="__unknown__"),
    )


def test_a_day_by_hand() -> None:
    report = build_waste(inputs(*a_day()))
    rows = {row.waste: row for row in report.buckets}
    assert [row.waste for row in report.buckets] == [waste.value for waste in Waste], "all eleven, in order"
    assert rows["idle"].amount == CostAmount(15 * HOUR_MS, 15 * PRICE)
    assert (rows["idle"].share, rows["gang_stall"].amount) == (Fraction(15, 100), NOTHING)
    assert [row.waste for row in report.buckets if row.is_waste] == [
        *("unavailable", "gang_stall", "preempted", "idle", "oversized", "starved", "stranded"),
        "fragmented",
    ]
    # 15 idle, 5 oversized, 10 starved, 4 unavailable; neither what nobody wanted nor what nobody saw.
    assert (report.wasted, report.share) == (CostAmount(34 * HOUR_MS, 34 * PRICE), Fraction(34, 100))
    assert (report.difference_board_ms, report.difference_nano) == (0, 0)
    assert [(team.team, team.held.board_ms // HOUR_MS, team.share) for team in report.teams] == [
        ("a", 45, Fraction(20, 45)),
        ("b", 15, Fraction(0)),
    ]
    assert {row.waste for row in report.teams[0].buckets} == {*Waste} - {
        *(Waste.STARVED, Waste.STRANDED, Waste.FRAGMENTED, Waste.NO_DEMAND)
    }
    assert [(day.day, day.waste, day.amount.board_ms // HOUR_MS) for day in report.days][-1] == (
        "2026-10-02",
        "oversized",
        5,
    )
    assert [(job.job, job.waste, job.amount.board_ms // HOUR_MS) for job in report.jobs] == [
        ("train", "idle", 15),
        ("other", "oversized", 5),
    ]


def test_what_does_not_add_up_is_said_with_its_sign() -> None:
    day = a_day()
    report = build_waste(inputs(*day, capacity=CostAmount(100 * HOUR_MS + 1, 100 * PRICE - 7)))
    assert (report.difference_board_ms, report.difference_nano) == (1, -7)


def test_time_without_a_price_is_apart() -> None:
    day = (*a_day(), line(Waste.IDLE, 2, price=None, team="b", job="new", job_uid="uid-new"))
    idle = next(row for row in build_waste(inputs(*day)).buckets if row.waste == "idle")
    assert idle.amount == CostAmount(17 * HOUR_MS, 15 * PRICE, 2 * HOUR_MS)


def test_a_report_for_some_teams_is_of_what_they_held() -> None:
    held = [each for each in a_day() if each["team"] == "a"]
    report = build_waste(inputs(*held, capacity=None, scope=Scope(frozenset({"a"}))))
    assert (report.teams_in_scope, report.capacity) == (("a",), CostAmount(45 * HOUR_MS, 45 * PRICE))
    assert report.share == Fraction(20, 45)


def test_a_ledger_without_a_line_is_no_error() -> None:
    report = build_waste(inputs())
    assert (report.wasted, report.share, report.teams, report.days, report.jobs) == (
        NOTHING,
        None,
        (),
        (),
        (),
    )


def test_a_job_leads_to_the_finding_about_it() -> None:
    wrong = known(8, PRICE, subject=FindingSubject(SubjectKind.JOB, "c", "other", "ns", "uid-other"))
    report = build_waste(inputs(*a_day(), findings=(known(7, PRICE), wrong)))
    assert [(job.job, job.finding) for job in report.jobs] == [("train", 7), ("other", None)], (
        "an idle finding says nothing of a request that was too large"
    )


def test_what_to_do_first_is_what_brings_most_money_back() -> None:
    cheap, dear, unpriced = known(1, PRICE), known(2, 3 * PRICE, variant="b"), known(3, None, variant="c")
    over = known(4, 100 * PRICE, ended_ms=START_MS + HOUR_MS)
    still = known(5, 100 * PRICE, boards_now=0.0, variant="d")
    rows = to_do([cheap, unpriced, over, still, dear])
    assert [row.finding for row in rows] == [2, 1, 3, 5], "what is over is nothing to do"
    assert [row.daily_nano for row in rows] == [24 * 3 * PRICE, 24 * PRICE, None, None]
    assert (rows[0].action, rows[0].patch, rows[0].subject) == ("stop it", "kubectl delete pod p", "ns/train")


def test_top_limits_jobs_and_what_to_do() -> None:
    report = build_waste(inputs(*a_day(), findings=(known(1, 1), known(2, 2, variant="b"))), top=1)
    assert ([job.job for job in report.jobs], [row.finding for row in report.to_do]) == (["train"], [2])


LINES = st.lists(
    st.builds(
        lambda bucket, waste, hours, day, priced, team: line(
            waste, hours, day=day, bucket=bucket, price=PRICE if priced else None, team=team, job=team,
            job_uid=f"uid-{team}",
        ),
        st.sampled_from([Bucket.HELD, Bucket.UNALLOCATED]),
        st.sampled_from([*Waste]),
        st.integers(1, 10_000),  # the ledger has no line without time
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from(["a", "b", "ü", ""]),
    ),
    max_size=30,
)  # fmt: skip


def only_possible(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ledger never reports held time as without a holder."""
    never = {Waste.STARVED, Waste.STRANDED, Waste.FRAGMENTED, Waste.NO_DEMAND}
    return [each for each in lines if each["bucket"] != Bucket.HELD or each["waste"] not in never]


def added(amounts: Any) -> CostAmount:
    return sum(amounts, NOTHING)


@given(LINES)
def test_buckets_add_up_to_capacity_days_to_the_total_and_teams_to_what_was_held(
    lines: list[dict[str, Any]],
) -> None:
    possible = only_possible(lines)
    report = build_waste(inputs(*possible))
    total = added(CostAmount(each["board_ms"], each["nano"], each["unpriced_ms"]) for each in possible)
    held = [each for each in possible if each["bucket"] == Bucket.HELD]
    assert added(row.amount for row in report.buckets).board_ms == total.board_ms == report.capacity.board_ms
    assert (report.difference_board_ms, report.difference_nano) == (0, 0)
    assert added(row.amount for row in report.causes).board_ms == report.wasted.board_ms
    parts = (report.unknown.unobserved, report.unknown.held, report.unknown.free)
    assert added(parts) == next(row.amount for row in report.buckets if row.waste == Waste.UNKNOWN)
    assert added(day.amount for day in report.days).board_ms == total.board_ms
    assert sum(team.held.board_ms for team in report.teams) == sum(each["board_ms"] for each in held)
    assert sum(team.held.nano or 0 for team in report.teams) == sum(each["nano"] or 0 for each in held)
    for team in report.teams:
        assert added(row.amount for row in team.buckets).board_ms == team.held.board_ms
    assert report.wasted.board_ms == sum(
        each["board_ms"] for each in possible if Waste(each["waste"]).is_waste
    )


@given(LINES, st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(lines: list[dict[str, Any]], rng: Any) -> None:
    possible = only_possible(lines)
    shuffled = rng.sample(possible, len(possible))
    assert build_waste(inputs(*possible)) == build_waste(inputs(*shuffled))


def test_rows_of_held_time_have_no_bucket_of_nobodys_time() -> None:
    rows = held_rows(frame(line(Waste.IDLE, 1, team="a"), line(Waste.PRODUCTIVE, 3, team="a")))
    shares = {row.waste: row.share for row in rows if row.amount != NOTHING}
    assert shares == {"idle": Fraction(1, 4), "productive": Fraction(3, 4)}
    assert len(rows) == len(Waste) - 4


@pytest.mark.parametrize("hourly", [None, 0])
def test_what_costs_nothing_now_is_not_called_dear(hourly: int | None) -> None:
    [row] = to_do([known(1, hourly)])
    assert row.daily_nano == hourly


def test_findings_that_are_alike_are_one_thing_to_do() -> None:
    """Nine notebooks of a team are one line with the dearest, not nine places of the list."""
    alike = [known(n, n * PRICE) for n in (1, 2, 3)]
    answered = replace(known(7, 5 * PRICE), state="muted")
    others = [
        *(known(4, PRICE // 2, team="b"), known(5, 10 * PRICE, variant="partly"), known(6, None)),
        answered,
    ]
    rows = to_do([*alike, *others])
    assert [(row.finding, row.alike and row.alike.findings) for row in rows] == [
        (5, None), (7, None), (3, (2, 1, 6)), (4, None),
    ]  # fmt: skip
    assert rows[2].alike is not None
    assert rows[2].alike.daily_nano == 24 * 3 * PRICE, "2 and 1; what has no price is in no sum"
    assert (
        alike_words(rows[2], "USD")
        == "and 3 more jobs of a: 288 USD a day at their rate of now; findings 2, 1, 6"
    )


def test_what_it_cost_by_cause_has_a_place_for_what_nobody_held() -> None:
    report = build_waste(inputs(*a_day()))
    assert [(row.waste, row.team, row.amount.board_ms // HOUR_MS) for row in report.causes] == [
        ("idle", "a", 15), ("starved", "", 10), ("oversized", "a", 5), ("unavailable", "", 4),
    ]  # fmt: skip
    assert [row.documentation for row in report.causes] == [
        f"docs/detectors/{name}.md"
        for name in ("idle_allocation", "quota_starvation", "oversized_request", "not_advertised")
    ]
    broken = line(Waste.UNAVAILABLE, 1, team="a", job="train", job_uid="uid-train")
    [row] = build_waste(inputs(broken)).causes
    assert (row.team, row.documentation) == ("a", "docs/detectors/unhealthy_allocated.md")


@pytest.mark.parametrize(
    ("looked", "held"),
    [
        (WasteAssessment(0, 0, 3), "held, and no detector has looked"),
        (WasteAssessment(3, 0, 0), "held, and not measured"),
        (WasteAssessment(2, 0, 1), "held, and not measured or in a window that no detector has looked at"),
    ],
)
def test_unknown_hours_say_what_they_are(looked: WasteAssessment, held: str) -> None:
    lines = (
        line(Waste.UNKNOWN, 2, bucket=Bucket.UNKNOWN),
        line(Waste.UNKNOWN, 3, team="a", job="train", job_uid="uid-train"),
        line(Waste.UNKNOWN, 1, bucket=Bucket.UNALLOCATED),
    )
    report = build_waste(inputs(*lines, assessment=looked))
    assert report.teams[0].unknown.board_ms == 3 * HOUR_MS
    assert unknown_words(report) == (
        f"Unknown: 3.0 h {held}; 2.0 h not observed at all; 1.0 h free, and no detector has looked."
    )
    assert unknown_words(build_waste(inputs(line(Waste.IDLE, 1)))) == ""
