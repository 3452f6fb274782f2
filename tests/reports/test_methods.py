"""How numbers were made: coverage, bounds, and what is left out rather than 0."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pandas as pd

from gpucost.domain.buckets import Waste
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import HOUR_MS, Month
from gpucost.reports.base.values import (
    NOTHING,
    EnergyUsage,
    GpuUtilisation,
    MemoryUsage,
    UsageSignal,
)
from gpucost.reports.month.provenance import (
    EXISTING_SOURCES,
    method_rows,
    unreported_buckets,
    without_bounds,
)
from gpucost.reports.waste.waste_report import (
    WASTE_DIMS,
    WasteAssessment,
    WasteInputs,
    build_waste,
)
from gpucost.reports.waste.waste_table import not_told_words, unknown_words
from gpucost.telemetry.upstream.upstream_source import COST_ONLY_NAME, NAME

EXISTING, OWN = f"{EXISTING_SOURCES[0]}prometheus http://p:9090", "prometheus http://p:9090"
SEEN = GpuUtilisation(UsageSignal(Fraction(1, 2), Fraction(9, 10), 45, 90, 0), None, None, None, None)
PROBLEMS = (
    DataProblem(DataProblemCode.END_BOUNDED, "c", "kube-state-metrics", "ends", HOUR_MS),
    DataProblem(DataProblemCode.END_BOUNDED, "c", "kube-state-metrics", "ends", 2 * HOUR_MS),
    DataProblem(DataProblemCode.SHORT_UNSEEN, "c", "kube-state-metrics", "short ones", None),
    DataProblem(DataProblemCode.USE_SAMPLED, "c", "c", "edges", HOUR_MS),
    DataProblem(DataProblemCode.PRICE_MISSING, "c", "L4", "no price", HOUR_MS),
)


def test_the_source_is_told_by_its_name() -> None:
    assert (f"{NAME} ", f"{COST_ONLY_NAME} ") == EXISTING_SOURCES


def test_bounds_of_all_windows_add_up() -> None:
    rows = {row.number: row for row in method_rows([EXISTING], SEEN, 100 * HOUR_MS, Fraction(1), PROBLEMS)}
    held = rows["held time and cost"]
    assert (held.off_board_ms, held.off, held.coverage) == (3 * HOUR_MS, Fraction(3, 100), Fraction(1))
    assert held.notes == ("ends", "short ones")
    assert rows["busy time"].coverage == Fraction(9, 10)
    assert rows["busy time"].off_board_ms == HOUR_MS
    # Not measured at all, and nothing says by how much it is off: neither is 0.
    assert (rows["energy"].coverage, rows["energy"].off_board_ms) == (None, None)
    assert "kube-state-metrics" in held.method


def test_what_is_about_some_numbers_counts_for_those_only() -> None:
    split = "busy time, SM activity, tensor activity"
    problems = [
        DataProblem(DataProblemCode.USE_UNSPLIT, "c", split, "by what was held", HOUR_MS),
        DataProblem(DataProblemCode.USE_UNSPLIT, "c", "energy", "whoever worked", 2 * HOUR_MS),
        DataProblem(DataProblemCode.USE_DROPPED, "c", "c", "left out", 4 * HOUR_MS),
    ]
    rows = method_rows([EXISTING], SEEN, 100 * HOUR_MS, None, problems)
    hours = {row.number: row.off_board_ms // HOUR_MS for row in rows if row.off_board_ms is not None}
    activity = dict.fromkeys(("busy time", "SM activity", "tensor activity"), 5)
    assert hours == {**activity, "memory": 4, "energy": 6}
    # They can be mended, so they stand among the problems too.
    assert without_bounds(problems) == problems


def test_levels_are_sampled_too_where_they_were_read() -> None:
    levels = replace(
        SEEN, memory=MemoryUsage(1, 2, 1, Fraction(9, 10)), energy=EnergyUsage(5, None, Fraction(9, 10), 1)
    )
    rows = {row.number: row for row in method_rows([EXISTING], levels, 100 * HOUR_MS, None, PROBLEMS)}
    sampled = {number for number, row in rows.items() if row.notes == ("edges",)}
    assert sampled == {"busy time", "memory", "energy"}


def test_notes_of_some_clusters_say_whose_they_are() -> None:
    def note(cluster: str, detail: str) -> DataProblem:
        return DataProblem(DataProblemCode.END_BOUNDED, cluster, "k", detail, HOUR_MS)

    problems = [note("east", "60 s"), note("west", "120 s"), note("east", "both"), note("west", "both")]
    two, one = (
        method_rows([EXISTING], SEEN, HOUR_MS, None, problems[: 4 if len(of) > 1 else 1], of)[0].notes
        for of in (("east", "west"), ("east",))
    )
    assert two == ("west: 120 s", "east: 60 s", "both")
    assert one == ("60 s",)


def test_own_series_have_no_bounds_and_both_are_named() -> None:
    own = method_rows([OWN], SEEN, HOUR_MS, Fraction(1), ())
    assert all(row.off_board_ms is None and not row.notes for row in own)
    both = method_rows([OWN, EXISTING], SEEN, HOUR_MS, Fraction(1), ())
    assert both[0].method == f"{own[0].method}; {method_rows([EXISTING], SEEN, 1, None, ())[0].method}"
    assert method_rows([], SEEN, 0, None, ()) == ()


def test_what_cannot_be_mended_is_no_problem() -> None:
    assert [each.code for each in without_bounds(PROBLEMS)] == [DataProblemCode.PRICE_MISSING]


def test_buckets_that_nothing_tells_are_left_out() -> None:
    assert unreported_buckets([EXISTING, EXISTING]) >= {Waste.STARVED, Waste.PREEMPTED, Waste.NO_DEMAND}
    assert unreported_buckets([EXISTING, OWN]) == unreported_buckets([]) == frozenset()
    row = dict.fromkeys(WASTE_DIMS, "")
    lines = pd.DataFrame(
        [
            {**row, "bucket": "unallocated", "waste": "unknown", "board_ms": HOUR_MS, "nano": 5},
            {**row, "bucket": "held", "waste": "preempted", "board_ms": HOUR_MS, "nano": 5},
        ]
    ).assign(unpriced_ms=0)
    found = build_waste(
        WasteInputs(
            Month(2026, 10).window,
            "USD",
            lines,
            None,
            WasteAssessment(1, 0, 0),
            not_told=unreported_buckets([EXISTING]),
        )
    )
    shown = {row.waste for row in found.buckets}
    # A bucket with time in it stands, whoever told it.
    assert "preempted" in shown
    assert shown.isdisjoint(found.not_told)
    untold = {"gang_stall", "starved", "stranded", "fragmented", "no_demand"}
    # No use was seen either: neither idle nor productive is 0.
    assert set(found.not_told) == untold | {"idle", "oversized", "productive"}
    assert "gang stall, idle, oversized, starved, stranded, fragmented, no demand" in not_told_words(found)
    assert "no series says what GPUs did" in not_told_words(found)
    assert "whether anybody waited" in unknown_words(found)
    assert sum((row.amount for row in found.buckets), NOTHING) == found.capacity
