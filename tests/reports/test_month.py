"""The month's report from frames built by hand: every number here was computed on paper."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pandas as pd
import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.reports.base.document import to_json
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import MonthFacts, WindowFacts
from gpucost.reports.month.model import GroupRow, MonthReport
from gpucost.reports.month.provenance import UnobservedSpan
from gpucost.reports.render.files import to_csv, to_parquet
from gpucost.reports.render.html import to_html
from gpucost.reports.render.tables import month_table
from tests.reports.builders import (
    A100,
    H100,
    RATES,
    START_MS,
    frame,
    holed,
    realistic_month,
    row,
    september,
    small_lines,
    small_month,
    windows,
)


def month_of(*lines: dict[str, Any], **changes: Any) -> MonthReport:
    return build_month(small_month(lines=frame(lines), **changes))


def usd(text: str) -> int:
    return int(Fraction(text) * 10**9)


def team(report: MonthReport, name: str) -> GroupRow:
    return next(item.row for item in report.teams if item.row.group["team"] == name)


def test_capacity_and_its_four_parts() -> None:
    capacity = build_month(small_month()).capacity
    assert capacity is not None
    assert capacity.capacity == CostAmount(140 * HOUR_MS, usd("825.24"))  # 100 x 6.88 + 40 x 3.431
    assert capacity.buckets.held == CostAmount(100 * HOUR_MS, usd("584.53"))
    assert capacity.buckets.unallocated == CostAmount(30 * HOUR_MS, usd("171.91"))
    assert capacity.buckets.unavailable == CostAmount(5 * HOUR_MS, usd("34.4"))
    assert capacity.buckets.unknown == CostAmount(5 * HOUR_MS, usd("34.4"))
    assert (capacity.difference_board_ms, capacity.difference_nano) == (0, 0)
    assert [item.model for item in capacity.models] == ["H100", "A100-80GB"]
    assert capacity.models[1].capacity == CostAmount(40 * HOUR_MS, usd("137.24"))
    assert capacity.models[1].buckets.unknown == NOTHING


def test_overcommitted_time_stands_beside_capacity() -> None:
    report = build_month(small_month())
    assert report.totals.overcommitted == CostAmount(3 * HOUR_MS, 0)
    assert report.totals.held.board_ms == 100 * HOUR_MS


@pytest.mark.vector("V4")
def test_identities_hold_in_every_table() -> None:
    report = build_month(realistic_month(), every_job=True)
    capacity = report.capacity
    assert capacity is not None
    buckets = capacity.buckets
    nobody = buckets.unallocated + buckets.unavailable + buckets.unknown
    assert capacity.capacity.nano is not None
    assert capacity.capacity.nano - (buckets.held.nano or 0) == nobody.nano
    assert capacity.capacity == buckets.held + nobody
    rows = [item.row for item in report.teams]
    tables = (rows, report.projects, report.job_kinds, report.queues, report.models, report.clusters)
    for table in (*tables, report.jobs):
        assert sum((item.held for item in table), NOTHING) == report.totals.held
    for table in tables:
        assert sum(item.share_of_cost or 0 for item in table) == 1
    for bucket in ("held", "unallocated", "unavailable", "unknown"):
        by_model = [getattr(item.buckets, bucket) for item in capacity.models]
        assert sum(by_model, NOTHING) == getattr(buckets, bucket)
    assert sum((day.amount for day in report.days), NOTHING) == capacity.capacity


@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_difference_to_what_the_ledger_wrote_is_shown(off_by: int) -> None:
    written = CostAmount(140 * HOUR_MS + off_by, usd("825.24") - off_by)
    capacity = build_month(small_month(capacity=written)).capacity
    assert capacity is not None
    assert capacity.measured_by == "windows"
    assert (capacity.difference_board_ms, capacity.difference_nano) == (off_by, -off_by)


def test_days_that_lack_a_line_are_a_difference() -> None:
    inputs = realistic_month()
    assert inputs.days is not None
    capacity = build_month(replace(inputs, days=inputs.days.iloc[1:])).capacity
    assert capacity is not None
    assert capacity.measured_by == "days"
    assert capacity.difference_board_ms == -int(inputs.days.iloc[0]["board_ms"])


def test_team_rows() -> None:
    report = build_month(small_month())
    assert [item.row.group["team"] for item in report.teams] == ["nlp", "vision", "robotics"]
    nlp = team(report, "nlp")
    assert nlp.held == CostAmount(70 * HOUR_MS, usd("481.6"))
    assert nlp.jobs == 2
    assert nlp.share_of_cost == Fraction(48160, 58453)
    assert report.totals.jobs == 4
    assert [item.group for item in report.projects] == [
        {"team": "nlp", "project": "llm"},
        {"team": "vision", "project": "seg"},
        {"team": "nlp", "project": "eval"},
        {"team": "robotics", "project": "arm"},
    ]
    assert [(row_.group["job_kind"], row_.jobs) for row_ in report.job_kinds] == [
        ("Job", 3),
        ("PyTorchJob", 1),
    ]


def test_change_against_the_previous_month() -> None:
    report = build_month(small_month())
    grown, new, gone = (team(report, name).change for name in ("nlp", "vision", "robotics"))
    assert grown is not None
    assert (grown.nano, grown.relative, grown.board_ms) == (usd("137.6"), Fraction(2, 5), 20 * HOUR_MS)
    assert new is not None
    assert (new.nano, new.relative, new.previous) == (usd("102.93"), None, NOTHING)
    assert gone is not None
    assert (gone.nano, gone.relative) == (-usd("137.24"), -1)
    assert report.totals.change is not None
    assert report.totals.change.previous == CostAmount(90 * HOUR_MS, usd("481.24"))


def test_a_previous_month_without_usage_is_a_change_from_nothing() -> None:
    change = build_month(small_month(previous=frame([]))).totals.change
    assert change is not None
    assert (change.nano, change.relative) == (usd("584.53"), None)


def test_no_previous_month_is_no_change() -> None:
    report = build_month(small_month(previous=None))
    assert report.totals.change is None
    assert {item.row.change for item in report.teams} == {None}


def test_an_hour_of_the_previous_month_is_not_compared_with() -> None:
    hour = september(days=1)
    hour = (replace(hour[0], start_ms=START_MS - HOUR_MS),)
    report = build_month(small_month(windows=windows(), previous_windows=hour))
    assert report.totals.change is None
    assert {item.row.change for item in report.teams} == {None}
    assert [item.row.group["team"] for item in report.teams] == ["nlp", "vision"]
    comparison = report.comparison
    assert (comparison.covered, comparison.previous_covered) == (1, Fraction(1, 720))
    assert comparison.reason == comparison.note == "previous month covered 0.1%"
    text = to_html(report)
    assert '<dd class="figure">–</dd>' in text
    assert '<dd class="more">previous month covered 0.1%</dd>' in text


NOTHING_BEFORE = "nothing of the previous month was read"
HOUR_SHORT = (*september()[1:], replace(september()[0], start_ms=september()[0].start_ms + 8 * HOUR_MS))
LATE = tuple(item for item in windows() if item.start_ms >= START_MS + 3 * DAY_MS)


@pytest.mark.parametrize(
    ("now", "before", "is_compared", "note"),
    [
        (windows(), september(), True, ""),
        (windows(), (), False, NOTHING_BEFORE),
        (windows(), september(days=29), False, "previous month covered 96.7%"),
        (windows(), HOUR_SHORT, False, "previous month covered 98.9%"),
        (windows(days=3), september(), True, "so far: this month covered 9.7%, previous 100.0%"),
        (LATE, september(), False, "this month covered 90.3%"),
        (windows(days=10)[5:], september(), False, "this month covered 16.1%"),
        ((), september(), False, "this month covered 0.0%"),
        (
            (*windows(), *windows("west")),
            (*september(), *september(3, "west")),
            False,
            "previous month covered 10.0% of cluster west",
        ),
        (
            windows(),
            (*september(), *september(cluster="west")),
            False,
            "this month covered 0.0% of cluster west",
        ),
    ],
    ids=[
        *("whole", "none before", "a day is missing", "eight hours are missing", "in progress"),
        *("began late", "began late and ended", "nothing now", "a cluster came", "a cluster went"),
    ],
)
def test_months_are_compared_only_where_both_are_there(
    now: tuple[WindowFacts, ...], before: tuple[WindowFacts, ...], is_compared: bool, note: str
) -> None:
    report = build_month(small_month(windows=now, previous_windows=before))
    assert report.comparison.note == note
    assert (report.totals.change is not None) is is_compared
    assert {item.row.change is not None for item in report.teams} == {is_compared}
    assert report.comparison.in_progress is note.startswith("so far")


def test_change_is_unknown_where_a_cost_is() -> None:
    report = month_of(row(1, None, team="nlp", job="a"))
    change = team(report, "nlp").change
    assert change is not None
    assert (change.nano, change.relative) == (None, None)


@pytest.mark.vector("V25")
def test_utilisation_is_over_what_was_observed_and_cost_is_not() -> None:
    whole = month_of(row(24, H100, seen=24, busy=0.5, team="nlp", job="a"))
    partly = month_of(row(24, H100, seen=22, busy=0.5, team="nlp", job="a"))
    signal = team(partly, "nlp").utilisation.busy
    assert signal is not None
    assert (signal.mean, signal.coverage) == (Fraction(1, 2), Fraction(22, 24))
    assert partly.totals.held == whole.totals.held == CostAmount(24 * HOUR_MS, usd("165.12"))


@pytest.mark.vector("V17")
def test_a_pod_with_eight_busy_gpus_is_as_busy_as_eight_pods_with_one() -> None:
    together = month_of(row(8, H100, seen=8, busy=1.0, sm=1.0, team="nlp", job="a"))
    apart = month_of(*(row(1, H100, seen=1, busy=1.0, sm=1.0, team="nlp", job=f"a{i}") for i in range(8)))
    for report in (together, apart):
        busy, sm = report.totals.utilisation.busy, report.totals.utilisation.sm
        assert busy is not None
        assert sm is not None
        assert busy.mean == sm.mean == busy.coverage == 1


def test_a_signal_never_observed_is_none_and_not_zero() -> None:
    report = month_of(
        row(10, seen=10, busy=0.0, team="nlp", job="idle"),
        row(10, team="vision", job="dark"),
        row(10, seen=0, busy=0.0, team="blind", job="b"),
    )
    busy = team(report, "nlp").utilisation.busy
    assert busy is not None
    assert busy.mean == 0
    for name in ("vision", "blind"):
        assert team(report, name).utilisation.busy is None
    assert report.totals.utilisation.busy is not None
    assert report.totals.utilisation.busy.coverage == Fraction(1, 3)
    assert report.totals.utilisation.sm is None


def test_the_tensor_mean_is_over_the_time_that_has_a_tensor_signal() -> None:
    report = month_of(
        row(10, seen=10, sm=0.5, tensor=0.4, team="nlp", job="a"),
        row(30, seen=30, sm=0.5, team="nlp", job="b"),
    )
    tensor, sm = report.totals.utilisation.tensor, report.totals.utilisation.sm
    assert tensor is not None
    assert sm is not None
    assert (tensor.mean, tensor.coverage) == (Fraction(2, 5), Fraction(1, 4))
    assert (sm.mean, sm.coverage) == (Fraction(1, 2), 1)


def test_what_has_no_price_is_none_and_stands_apart() -> None:
    report = month_of(
        row(2, H100, team="nlp", job="a"),
        row(3, None, team="nlp", job="a", model="L4"),
        row(5, None, team="vision", job="b", model="L4"),
    )
    assert team(report, "nlp").held == CostAmount(5 * HOUR_MS, usd("13.76"), 3 * HOUR_MS)
    assert team(report, "vision").held == CostAmount(5 * HOUR_MS, None, 5 * HOUR_MS)
    assert team(report, "vision").share_of_cost is None
    assert report.totals.held == CostAmount(10 * HOUR_MS, usd("13.76"), 8 * HOUR_MS)


def test_adjustments_stand_apart_and_add_up() -> None:
    report = build_month(small_month())
    assert report.totals.adjustments == CostAmount(0, -usd("5"))
    assert report.totals.adjusted == CostAmount(100 * HOUR_MS, usd("579.53"))
    assert [item.adjustments.nano for item in report.teams] == [-usd("5"), 0, 0]


def test_a_team_with_an_adjustment_only_is_listed() -> None:
    report = build_month(small_month(lines=frame(small_lines()[2:4])))
    assert [item.row.group["team"] for item in report.teams] == ["vision", "nlp", "robotics"]
    assert team(report, "nlp").held == NOTHING
    only = build_month(small_month(lines=frame([]), previous=None))
    assert [(item.row.group["team"], item.row.change) for item in only.teams] == [("nlp", None)]


def test_costliest_jobs_break_ties_by_name() -> None:
    lines = [row(2, team=f"t{i % 2}", job=f"job-{i}", namespace="ns") for i in range(12)]
    lines.append(row(9, None, team="t0", job="unpriced", namespace="ns"))
    report = month_of(*lines)
    assert [job.job for job in report.top_jobs] == ["job-0", "job-1", "job-10", "job-11", "job-2"]
    assert [job.job for job in report.teams[0].top_jobs] == ["job-0", "job-10", "job-2", "job-4", "job-6"]
    assert report.jobs is None


@pytest.mark.vector("V26")
def test_a_job_that_changes_its_team_is_one_job_and_two_charges() -> None:
    lines = [row(2, team="nlp", job="a"), row(3, team="vision", job="a")]
    report = build_month(small_month(lines=frame(lines), previous=None), every_job=True)
    assert [(job.teams, job.held.board_ms) for job in report.top_jobs] == [(("nlp", "vision"), 5 * HOUR_MS)]
    assert [(job.teams, job.held.board_ms) for job in report.jobs or ()] == [
        (("vision",), 3 * HOUR_MS),
        (("nlp",), 2 * HOUR_MS),
    ]
    assert [len(item.top_jobs) for item in report.teams] == [1, 1]
    assert report.totals.jobs == 1


def test_the_span_of_a_job_is_from_its_first_to_its_last_instant() -> None:
    report = month_of(
        row(1, team="nlp", job="a", first_ms=START_MS + 5, last_ms=START_MS + 9),
        row(1, team="nlp", job="a", first_ms=START_MS + 2, last_ms=START_MS + 7, model="L4"),
    )
    assert report.top_jobs[0].span == Window(START_MS + 2, START_MS + 9)


@pytest.mark.fault(31)
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_changes_no_byte(seed: int) -> None:
    inputs = realistic_month()
    shuffled = replace(
        inputs,
        lines=inputs.lines.sample(frac=1, random_state=seed),
        previous=None if inputs.previous is None else inputs.previous.sample(frac=1, random_state=seed),
        days=None if inputs.days is None else inputs.days.sample(frac=1, random_state=seed),
        windows=tuple(Random(seed).sample(inputs.windows, len(inputs.windows))),
        problems=inputs.problems[::-1],
        rates=dict(reversed(inputs.rates.items())),
    )
    first, second = (build_month(item, every_job=True) for item in (inputs, shuffled))
    assert to_json(first) == to_json(second)
    assert to_html(first) == to_html(second)
    assert to_csv(month_table(first)) == to_csv(month_table(second))
    assert to_parquet(month_table(first)) == to_parquet(month_table(second))


def test_sums_beyond_the_precision_of_floats_are_exact() -> None:
    big = 2**53
    lines = [row(1, team="nlp", job="a", nano=big + 1), row(1, team="nlp", job="b", nano=big + 2)]
    report = month_of(*lines, row(1, team="nlp", job="c", nano=None, unpriced_ms=HOUR_MS))
    assert report.totals.held.nano == 2 * big + 3
    assert team(report, "nlp").held.nano == 2 * big + 3


def test_a_sum_beyond_64_bits_is_refused() -> None:
    lines = [row(1, team="nlp", job=f"{i}", nano=2**62) for i in range(3)]
    with pytest.raises(InputError, match=r"lines\.nano"):
        month_of(*lines)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match=r"lines\.team"):
        build_month(small_month(lines=frame(small_lines()).drop(columns="team")))


def test_a_rate_id_without_a_rate_is_refused() -> None:
    with pytest.raises(InputError, match="aws-p4de@1"):
        build_month(small_month(rates={"aws-p5@1": H100}))


def test_rates_carry_their_source_and_what_they_rated() -> None:
    used = {rate.rate_id: rate for rate in build_month(small_month()).provenance.rates}
    assert list(used) == sorted(RATES)
    assert used["aws-p5@1"].rated == CostAmount(100 * HOUR_MS, usd("688")), "3 h over-committed cost nothing"
    assert (used["aws-p4de@1"].source, used["aws-p4de@1"].discount) == (A100.source, "14.2%")


@pytest.mark.fault(35)
def test_a_pod_without_a_team_is_listed() -> None:
    report = month_of(row(1, team="__no_team__", job="a"), row(1, team="nlp", job="b"))
    assert {item.row.group["team"] for item in report.teams} >= {"__no_team__"}


def test_a_report_for_a_team_has_no_capacity() -> None:
    report = build_month(
        small_month(scope=Scope(frozenset({"nlp"})), lines=frame(small_lines()[:2]), adjustments=())
    )
    assert report.capacity is None
    assert report.teams_in_scope == ("nlp",)
    for text in (to_json(report), to_csv(month_table(report))):
        assert "unallocated" not in text
    assert "Where the capacity went" in to_html(build_month(small_month()))
    assert "Where the capacity went" not in to_html(report)


def test_a_problem_of_two_windows_is_one_row() -> None:
    (problem,) = build_month(small_month()).problems
    assert (problem.subject, problem.board_ms) == ("uid-eval-1", 2 * HOUR_MS)


@pytest.mark.fault(26)
def test_gaps_in_the_ledger_are_listed() -> None:
    holed = tuple(item for i, item in enumerate(windows(observed=0.5)) if i not in (3, 4, 9))
    (east,) = build_month(small_month(windows=holed)).provenance.clusters
    assert east.gaps == (
        Window(START_MS + 3 * DAY_MS, START_MS + 5 * DAY_MS),
        Window(START_MS + 9 * DAY_MS, START_MS + 10 * DAY_MS),
    )
    assert (east.windows, east.missing_ms, east.observed) == (28, 3 * DAY_MS, Fraction(1, 2))


@pytest.mark.fault(26)
def test_spans_that_were_not_observed_are_listed_longest_first() -> None:
    facts = build_month(small_month(windows=holed())).provenance
    both, *others = facts.unobserved
    assert both == UnobservedSpan("east", Window(START_MS + 3 * DAY_MS, START_MS + 5 * DAY_MS), 2 * DAY_MS), (
        "a run of windows in which nothing was seen is one span"
    )
    assert [item.unobserved_ms for item in others] == [day * MINUTE_MS for day in range(27, 8, -1)]
    assert facts.unobserved_more == 6, "days 1, 2, 5, 6, 7 and 8"
    assert build_month(small_month(windows=windows())).provenance.unobserved == ()


def test_adjustments_are_in_the_net_amounts() -> None:
    report = build_month(small_month())
    nlp, vision = (
        next(row for row in report.teams if row.row.group["team"] == name) for name in ("nlp", "vision")
    )
    assert (nlp.row.held.nano, nlp.adjusted.nano) == (usd("481.6"), usd("476.6"))
    assert vision.adjusted == vision.row.held
    net = sum(row.adjusted.nano or 0 for row in report.teams)
    assert net == report.totals.adjusted.nano == usd("579.53")


def test_state_of_the_month() -> None:
    unsettled = (*windows()[:-1], replace(windows()[-1], settled=False))
    closed = MonthFacts(True, 3, "d", "p", START_MS, "ada", "late data accepted")
    cases = {
        "open": [small_month(), small_month(windows=()), small_month(windows=unsettled)],
        "settled": [small_month(windows=windows())],
        "closed": [small_month(facts=closed)],
    }
    for state, inputs in cases.items():
        assert {build_month(item).provenance.state for item in inputs} == {state}
    facts = build_month(small_month(facts=closed)).provenance
    assert (facts.closed_at, facts.closed_by, facts.month_digest) == ("2026-10-01T00:00:00Z", "ada", "d")


def test_a_cluster_that_went_missing_is_listed_and_keeps_the_month_open() -> None:
    before = (*september(), *september(cluster="west"))
    facts = build_month(small_month(windows=windows(), previous_windows=before)).provenance
    assert facts.state == "open"
    assert [(item.cluster, item.missing_ms) for item in facts.clusters] == [
        ("east", 0),
        ("west", 31 * DAY_MS),
    ]
    gone = facts.clusters[1]
    assert (gone.windows, gone.observed, gone.gaps, gone.until) == (0, None, (), "2026-10-01T00:00:00Z")


@pytest.mark.fault(43)
def test_the_digest_names_the_state_of_the_windows() -> None:
    first = build_month(small_month()).provenance.digest
    assert first == build_month(small_month(windows=windows(days=30, observed=0.99)[::-1])).provenance.digest
    changed = (replace(windows(days=30)[0], version=2), *windows(days=30)[1:])
    assert first != build_month(small_month(windows=changed)).provenance.digest


def test_basis_of_mig_shares_is_named() -> None:
    report = month_of(
        row(3, team="nlp", job="a", profile="3g.40gb"), row(4, team="nlp", job="b", basis="memory")
    )
    assert [(item.basis, item.held.board_ms) for item in report.share_bases] == [("compute", 3 * HOUR_MS)]


def test_a_month_without_usage_is_a_report_of_nothing() -> None:
    nothing = frame([])
    days = nothing.assign(step_start_ms=pd.Series(dtype="int64"))
    report = build_month(
        small_month(lines=nothing, previous=None, days=days, windows=(), problems=(), adjustments=())
    )
    assert report.totals.held == NOTHING
    assert report.totals.utilisation.busy is None
    assert report.capacity is not None
    assert report.capacity.capacity == NOTHING
    assert (report.teams, report.top_jobs, report.days) == ((), (), ())
    assert "October 2026" in to_html(report)
    assert to_json(report)
