"""OpenCost's figures beside ours: each cause by hand, and that causes always add up."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpucost.contract.opencost import BilledNode, BilledPod, DefaultPrice, OpenCostRelease
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import NANO
from gpucost.domain.rates import Rate
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month
from gpucost.reports.opencost.causes import TEXTS, ComparisonCause
from gpucost.reports.opencost.compare import CompareBy, ComparedKind, ComparedRow, OpenCostComparison, compare
from gpucost.reports.opencost.held_time import (
    COMPARED_DIMS,
    OpenCostDay,
    OurLine,
    lines_of,
)
from gpucost.reports.opencost.output import print_comparison

MONTH = Month(2026, 10)
DAY = MONTH.window.start_ms
GPU = "nvidia.com/gpu"


def line(
    pod: str,
    board_hours: float | Fraction,
    price: str | None = "2.50",
    *,
    units_per_board: int = 1,
    bucket: Bucket = Bucket.HELD,
    wall_hours: float | Fraction = 24,
    list_price: str | None = None,
    **columns: object,
) -> OurLine:
    board_ms = round(board_hours * HOUR_MS)
    nano = 0 if price is None else round(Fraction(price) * NANO * board_ms / HOUR_MS)
    listed = nano if list_price is None else round(Fraction(list_price) * NANO * board_ms / HOUR_MS)
    if bucket is Bucket.OVERCOMMITTED:
        nano = listed = 0
    values: dict[str, object] = {
        "cluster": "east",
        "day_ms": DAY,
        "node": "n1",
        "resource": GPU,
        "bucket": bucket,
        "namespace": f"ns-{pod}" if pod else "",
        "pod": pod,
        "team": f"team-{pod}" if pod else "",
        "unit_ms": board_ms * units_per_board,
        "board_ms": board_ms,
        "list_nano": listed,
        "nano": nano,
        "unpriced_ms": board_ms if price is None else 0,
        "first_ms": DAY,
        "last_ms": DAY + round(wall_hours * HOUR_MS),
    }
    return OurLine(**{**values, **columns})  # type: ignore[arg-type]


def clock(minutes: float) -> int:
    return DAY + round(minutes * MINUTE_MS)


def idle(board_hours: float | Fraction, price: str | None = "2.50", **columns: object) -> OurLine:
    return line("", board_hours, price, bucket=Bucket.UNALLOCATED, **columns)  # type: ignore[arg-type]


def billed(
    pod: str, unit_hours: float | Fraction, hours: float | Fraction = 24, active: float | None = None
) -> BilledPod:
    end = DAY + round(hours * HOUR_MS)
    return BilledPod("n1", f"ns-{pod}", pod, DAY, end, round(unit_hours * HOUR_MS), active)


def node(gpu: float | None = 2.5, total: float | None = None, count: float | None = 8) -> BilledNode:
    return BilledNode("n1", gpu, total, count, DAY_MS)


def compared(
    theirs: BilledNode,
    pods: Sequence[BilledPod],
    ours: Sequence[OurLine],
    by: CompareBy = CompareBy.NAMESPACE,
) -> OpenCostComparison:
    return compare(MONTH, "USD", by, [OpenCostDay("east", DAY, [theirs], pods)], ours)


def row(found: OpenCostComparison, name: str) -> ComparedRow:
    (it,) = (each for each in found.rows if each.name == name)
    return it


def made(it: ComparedRow) -> dict[ComparisonCause, float]:
    assert it.opencost_nano + sum(each.nano for each in it.causes) == it.ours_nano
    return {each.cause: each.nano / NANO for each in it.causes}


@pytest.mark.vector("V15")
def test_equal_inputs_give_equal_figures_and_nothing_to_explain() -> None:
    ours = [line("a", 120), line("b", 24), idle(48)]
    found = compared(node(), [billed("a", 120), billed("b", 24)], ours)
    figures = {each.name: (each.opencost_nano, each.ours_nano) for each in found.rows}
    assert figures == {"ns-a": (300 * NANO,) * 2, "ns-b": (60 * NANO,) * 2, "": (120 * NANO,) * 2}
    assert found.total.ours_nano == found.total.opencost_nano == 480 * NANO
    assert all(not each.causes for each in (*found.rows, found.total))
    assert found.causes == ()


@pytest.mark.vector("V2")
def test_d1_the_whole_price_of_the_node_follows_its_gpus() -> None:
    ours = [line("a", 192, "6.88")]
    found = compared(node(2.33985, 55.04), [billed("a", 192)], ours)
    it = row(found, "ns-a")
    assert it.opencost_nano == 192 * 2_339_850_000
    assert made(it) == {ComparisonCause.NODE_PRICE: pytest.approx(192 * (6.88 - 2.33985))}
    assert it.causes[0].defect == "D1"


@pytest.mark.vector("V1")
def test_of_a_split_that_keeps_the_ratio_we_bill_the_sum() -> None:
    """35 for a node of one GPU, one CPU and one GB, split 15 : 15 : 5."""
    it = row(compared(node(15.0, 35.0, 1), [billed("a", 24)], [line("a", 24, "35")]), "ns-a")
    assert (it.opencost_nano, it.ours_nano) == (24 * 15 * NANO, 24 * 35 * NANO)
    assert made(it) == {ComparisonCause.NODE_PRICE: 24 * 20.0}


@pytest.mark.vector("V27")
def test_d2_and_d6_a_default_price_and_a_discount() -> None:
    it = row(compared(node(0.95), [billed("a", 24)], [line("a", 24, "4.816", list_price="6.88")]), "ns-a")
    assert made(it) == {
        ComparisonCause.PRICE: pytest.approx(24 * (6.88 - 0.95)),
        ComparisonCause.DISCOUNT: pytest.approx(24 * (4.816 - 6.88)),
    }
    assert [each.defect for each in it.causes] == ["D2", "D6"]


@pytest.mark.vector("V18")
def test_d3_slices_are_billed_like_boards() -> None:
    pods = [f"p{n}" for n in range(7)]
    ours = [line(pod, Fraction(24, 7), units_per_board=7) for pod in pods]
    found = compared(node(count=7), [billed(pod, 24) for pod in pods], ours)
    assert found.total.opencost_nano == 7 * 60 * NANO
    assert row(found, "ns-p0").opencost_nano == 60 * NANO
    assert made(row(found, "ns-p0"))[ComparisonCause.UNITS] == pytest.approx(-60 * 6 / 7)
    assert found.total.ours_nano / NANO == pytest.approx(60)


@pytest.mark.vector("V19")
def test_slices_by_profile_cost_nothing_in_opencost() -> None:
    big, small = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-2g.20gb"
    ours = [
        line("a", Fraction(24 * 3, 7), units_per_board=1, resource=big),
        line("b", Fraction(24 * 2, 7), resource=small),
        idle(Fraction(24 * 2, 7), resource=small),
    ]
    found = compared(node(count=0), [], ours)
    assert found.total.opencost_nano == 0
    assert found.total.ours_nano / NANO == pytest.approx(60, abs=1e-5)
    for name, part in (("ns-a", Fraction(3, 7)), ("ns-b", Fraction(2, 7)), ("", Fraction(2, 7))):
        assert made(row(found, name))[ComparisonCause.NOT_COUNTED] == pytest.approx(
            float(60 * part), abs=1e-6
        )


@pytest.mark.vector("V20")
def test_time_slices_cost_a_board_each_or_nothing() -> None:
    names = ("a", "b", "c")
    slices = [line(pod, 6, units_per_board=4) for pod in names]
    found = compared(node(count=1), [billed(pod, 24) for pod in names], [*slices, idle(6)])
    assert {each.name: each.opencost_nano // NANO for each in found.rows} == {
        "ns-a": 60, "ns-b": 60, "ns-c": 60, "": -120,
    }  # fmt: skip
    assert "D8" in row(found, "").notes[0]
    assert made(row(found, "ns-a")) == {ComparisonCause.UNITS: -45.0}
    assert {each.ours_nano for each in found.rows} == {15 * NANO}
    shared = [line(pod, 6, units_per_board=4, resource="nvidia.com/gpu.shared") for pod in names]
    left = idle(6, resource="nvidia.com/gpu.shared")
    renamed = compared(node(count=0), [], [*shared, left])
    assert {each.opencost_nano for each in renamed.rows} == {0}
    assert made(row(renamed, "ns-a")) == {ComparisonCause.NOT_COUNTED: 15.0}


@pytest.mark.vector("V21")
def test_hami_cores_are_billed_like_boards() -> None:
    ours = [line(f"p{n}", 6, resource="nvidia.com/gpucores", units_per_board=100) for n in range(4)]
    found = compared(node(count=1), [billed(f"p{n}", 24) for n in range(4)], ours)
    assert found.total.ours_nano == 60 * NANO
    assert made(row(found, "ns-p1")) == {ComparisonCause.UNITS: -45.0}


@pytest.mark.vector("V7")
def test_d9_without_a_count_the_capacity_costs_nothing_there() -> None:
    found = compared(node(count=None), [billed("a", 24)], [line("a", 24), idle(168)])
    left = row(found, "")
    assert (left.opencost_nano, left.ours_nano) == (-60 * NANO, 420 * NANO)
    assert made(left) == {ComparisonCause.COUNT_MISSING: 480.0}
    assert left.causes[0].defect == "D9"


@pytest.mark.vector("V8")
def test_idle_is_what_pods_leave_of_each_cluster() -> None:
    days, ours = [], []
    for cluster, capacity in (("c1", Fraction(10)), ("c2", Fraction(10))):
        days.append(OpenCostDay(cluster, DAY, [node(1.0, count=capacity / 24)], [billed("a", 6)]))
        ours += [line("a", 6, "1", cluster=cluster), idle(4, "1", cluster=cluster)]
    found = compare(MONTH, "USD", CompareBy.NAMESPACE, days, ours)
    left = [each for each in found.rows if each.kind is ComparedKind.IDLE]
    assert [each.ours_nano for each in left] == [4 * NANO] * 2
    assert [round(each.opencost_nano / NANO) for each in left] == [4, 4]


def test_d8_overcommitted_time_is_paid_for_once() -> None:
    ours = [line("a", 24), line("b", 24, bucket=Bucket.OVERCOMMITTED)]
    found = compared(node(count=1), [billed("a", 24), billed("b", 24)], ours)
    assert made(row(found, "ns-b")) == {ComparisonCause.OVERCOMMITTED: -60.0}
    assert row(found, "").opencost_nano == -60 * NANO
    assert made(row(found, "")) == {ComparisonCause.OVERCOMMITTED: 60.0}


def test_d16_short_jobs_and_rounding() -> None:
    minute = Fraction(1, 60)
    ours = [
        line("short", 8 * 4 * minute, wall_hours=4 * minute),
        line("rounded", 63 * minute, wall_hours=63 * minute),
    ]
    found = compared(node(), [billed("rounded", 1, 1)], ours)
    assert row(found, "ns-short").opencost_nano == 0
    assert made(row(found, "ns-short")) == {ComparisonCause.SAMPLING: pytest.approx(2.5 * 32 / 60)}
    assert made(row(found, "ns-rounded")) == {ComparisonCause.SAMPLING: pytest.approx(2.5 * 3 / 60)}


def test_time_before_containers_run_and_pods_that_hold_nothing() -> None:
    ours = [line("pulls", 2, wall_hours=2), line("never-ran", 3, wall_hours=3), line("less", 1, wall_hours=1)]
    found = compared(node(), [billed("pulls", 1, 1), billed("ghost", 5, 5), billed("less", 2, 2)], ours)
    five = 2.5 * 5 / 60
    assert made(row(found, "ns-pulls")) == {
        ComparisonCause.SAMPLING: pytest.approx(five),
        ComparisonCause.NOT_SEEN: pytest.approx(2.5 - five),
    }
    assert made(row(found, "ns-never-ran")) == {ComparisonCause.NOT_SEEN: 7.5}
    assert made(row(found, "ns-ghost")) == {ComparisonCause.HELD_NOTHING: -12.5}
    assert made(row(found, "ns-less")) == {
        ComparisonCause.SAMPLING: pytest.approx(-five),
        ComparisonCause.LINGERED: pytest.approx(five - 2.5),
    }


def test_d16_has_the_sign_of_what_the_looks_left_out() -> None:
    """Held from 00:02 to 01:03; looked at from 00:05 to 01:00, and once from 00:07:30 to 00:12:30."""
    minutes = [(2, 63, 5, 60), (9, 11, 7.5, 12.5)]
    ours, theirs = [], []
    for pod, (first, last, start, end) in zip("ab", minutes, strict=True):
        times = {"first_ms": clock(first), "last_ms": clock(last)}
        ours.append(line(pod, Fraction(last - first, 60), **times))
        length = round((end - start) * MINUTE_MS)
        theirs.append(BilledPod("n1", f"ns-{pod}", pod, clock(start), clock(end), length))
    found = compared(node(), theirs, ours)
    assert made(row(found, "ns-a")) == {ComparisonCause.SAMPLING: pytest.approx(2.5 * 6 / 60)}
    assert made(row(found, "ns-b")) == {ComparisonCause.SAMPLING: pytest.approx(-2.5 * 3 / 60)}


def test_what_looks_round_off_is_a_resolution_at_either_end() -> None:
    held = {"first_ms": clock(0), "last_ms": clock(60)}
    bill = BilledPod("n1", "ns-a", "a", clock(10), clock(50), 40 * MINUTE_MS)
    for resolution, sampled in ((5, 10), (1, 2)):
        days = [OpenCostDay("east", DAY, [node()], [bill])]
        found = compare(
            MONTH, "USD", CompareBy.POD, days, [line("a", 1, **held)], resolution_ms=resolution * MINUTE_MS
        )
        assert made(row(found, "ns-a/a")) == {
            ComparisonCause.SAMPLING: pytest.approx(2.5 * sampled / 60),
            ComparisonCause.NOT_SEEN: pytest.approx(2.5 * (20 - sampled) / 60),
        }
        assert (row(found, "ns-a/a").opencost_board_ms, row(found, "ns-a/a").ours_board_ms) == (
            40 * MINUTE_MS,
            60 * MINUTE_MS,
        )


def test_units_that_opencost_sees_other_than_they_are_held() -> None:
    """None of its own series of a pod, though others have it; an init container with more; a mean."""
    ours = [line("none", 24), line("init", 48), line("mean", 24)]
    found = compared(node(), [billed("none", 0), billed("init", 24), billed("mean", 36)], ours)
    assert made(row(found, "ns-none")) == {ComparisonCause.ALLOCATION: 60.0}
    assert made(row(found, "ns-init")) == {ComparisonCause.ALLOCATION: 60.0}
    assert made(row(found, "ns-mean")) == {ComparisonCause.ALLOCATION: -30.0}


def test_pods_of_one_name_are_one_pod_to_opencost_on_the_node_of_the_last() -> None:
    """On n2 for an hour, gone for half an hour, then on n1 for two; all of it billed on n1."""
    first = line("a", 1, node="n2", uid="1", first_ms=clock(0), last_ms=clock(60))
    second = line("a", 2, uid="2", first_ms=clock(90), last_ms=clock(210))
    bill = BilledPod("n1", "ns-a", "a", clock(0), clock(210), 210 * MINUTE_MS)
    other = BilledNode("n2", 2.5, None, 8, DAY_MS)
    days = [OpenCostDay("east", DAY, [node(), other], [bill])]
    ours = [first, second, idle(189), idle(191, node="n2")]
    found = compare(MONTH, "USD", CompareBy.NAMESPACE, days, ours)
    assert row(found, "ns-a").opencost_nano == round(3.5 * 2.5 * NANO)
    assert made(row(found, "ns-a")) == {ComparisonCause.RECREATED: -1.25}
    by_node = compare(MONTH, "USD", CompareBy.NODE, days, ours)
    parts = {each.name: made(each) for each in by_node.rows if each.kind is ComparedKind.HELD}
    assert parts == {"n1": {ComparisonCause.RECREATED: -3.75}, "n2": {ComparisonCause.RECREATED: 2.5}}


def test_a_node_that_opencost_has_no_price_of_costs_its_default_and_has_no_idle_time() -> None:
    release = OpenCostRelease(default=DefaultPrice(0.95, "a test"))
    ours = [line("a", 24), line("b", 24, "2.50", node="gone"), idle(168), idle(24, node="gone")]
    bill = BilledPod("gone", "ns-b", "b", DAY, DAY + DAY_MS, DAY_MS)
    days = [OpenCostDay("east", DAY, [node()], [billed("a", 24), bill], release)]
    found = compare(MONTH, "USD", CompareBy.NODE, days, ours)
    (held,) = (each for each in found.rows if (each.name, each.kind) == ("gone", ComparedKind.HELD))
    assert held.opencost_nano == round(24 * 0.95 * NANO)
    assert made(held) == {ComparisonCause.DEFAULT_PRICE: pytest.approx(24 * (2.5 - 0.95))}
    (left,) = (each for each in found.rows if (each.name, each.kind) == ("gone", ComparedKind.IDLE))
    assert (left.opencost_nano, made(left)) == (0, {ComparisonCause.DEFAULT_PRICE: 60.0})
    (release_told,) = found.releases
    assert (release_told.default_nano, release_told.default_source) == (950_000_000, "a test")


def test_a_pod_of_which_opencost_finds_no_node_costs_its_default_too() -> None:
    release = OpenCostRelease(default=DefaultPrice(1.0, "a test"))
    lost = replace(billed("a", 24), is_placed=False)
    days = [OpenCostDay("east", DAY, [node()], [lost])]
    days = [replace(day, release=release) for day in days]
    found = compare(MONTH, "USD", CompareBy.NAMESPACE, days, [line("a", 24), idle(168)])
    assert made(row(found, "ns-a")) == {ComparisonCause.DEFAULT_PRICE: 36.0}
    # All eight GPUs are idle to it: nothing is taken off.
    assert row(found, "").opencost_nano == 480 * NANO
    assert made(row(found, "")) == {ComparisonCause.DEFAULT_PRICE: -60.0}


def test_which_opencost_it_is_stands_in_the_head() -> None:
    release = OpenCostRelease(("1.117.2",), by_uid=True)
    days = [OpenCostDay("east", DAY, [node()], [billed("a", 24)], release)]
    found = compare(MONTH, "USD", CompareBy.NAMESPACE, days, [line("a", 24)])
    console = Console(file=io.StringIO(), width=140, color_system=None)
    print_comparison(found, console)
    assert isinstance(console.file, io.StringIO)
    words = " ".join(console.file.getvalue().split())
    assert "OpenCost 1.117.2: pods by uid, added up by name, from the first look at them to the last" in words
    assert "a look every 5 min." in words
    assert "the collector source, which does not read Prometheus" in words


@pytest.mark.parametrize(
    ("hours", "made_of"), [(18, ComparisonCause.NOT_SEEN), (30, ComparisonCause.LINGERED)]
)
def test_time_of_a_node_that_the_samples_of_its_prices_do_not_show(
    hours: int, made_of: ComparisonCause
) -> None:
    theirs = BilledNode("n1", 2.5, None, 8.0, hours * HOUR_MS)
    left = row(compared(theirs, [], [idle(192)]), "")
    ten, whole = 8 * 2.5 * 10 / 60, 8 * 2.5 * (24 - hours)  # five minutes at either end
    sampled = ten if whole > 0 else -ten
    assert made(left) == {
        ComparisonCause.SAMPLING: pytest.approx(sampled),
        made_of: pytest.approx(whole - sampled),
    }


def test_no_price_there_and_no_price_here() -> None:
    found = compared(node(None, 20.0), [billed("a", 24)], [line("a", 24, "2.50"), idle(168)])
    assert made(row(found, "ns-a")) == {ComparisonCause.NO_OPENCOST_PRICE: 60.0}
    ours = [line("a", 24, None), idle(168)]
    assert made(row(compared(node(), [billed("a", 24)], ours), "ns-a")) == {ComparisonCause.NO_PRICE: -60.0}


def test_what_has_no_price_is_no_zero_on_a_terminal() -> None:
    ours = [line("a", 24, None), line("b", 24), idle(72, None), idle(72, None)]
    found = compared(node(), [billed("a", 24), billed("b", 24)], ours)
    console = Console(file=io.StringIO(), width=140, color_system=None)
    print_comparison(found, console)
    assert isinstance(console.file, io.StringIO)
    lines = {words[0]: words for words in map(str.split, console.file.getvalue().splitlines()) if words}
    assert lines["ns-a"][:6] == ["ns-a", "(no-price,", "D7)", "60.00", "no", "price"]
    assert lines["idle"][:5] == ["idle", "(no-price)", "360.00", "no", "price"]
    assert "60.00" in lines["ns-b"]
    assert "no price" not in " ".join(lines["ns-b"])
    # Part of it has a price: an amount, and a mark.
    assert "60.00" in lines["total"]
    assert "no-price" in " ".join(lines["total"])


def test_the_head_says_how_much_was_read_and_each_note_stands_once() -> None:
    ours = [line("a", 12, None), line("b", 12, None), idle(72)]
    days = [OpenCostDay("east", DAY, [node()], [billed("a", 12), billed("b", 12)])]
    found = compare(MONTH, "USD", CompareBy.NAMESPACE, days, ours, read_ms={("east", DAY): 13 * HOUR_MS})
    console = Console(file=io.StringIO(), width=140, color_system=None)
    print_comparison(found, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "OpenCost and gpucost, October 2026, USD, 1 day, of which 13 h were read"
    (note,) = (each for each in lines if each.startswith("(no-price) "))
    assert note == "(no-price) 24.0 GPU-hours of ours have none: they count as 0."


@pytest.mark.vector("V17")
def test_d4_and_d7_efficiency_as_opencost_shows_it() -> None:
    measured = {"busy_ms": 192 * HOUR_MS, "observed_ms": 192 * HOUR_MS}
    found = compared(node(), [billed("a", 192, 24, 1.0)], [line("a", 192, **measured)])
    seen = row(found, "ns-a").efficiency
    assert (seen.opencost, seen.ours, seen.coverage) == (Fraction(1, 8), 1, 1)
    assert row(found, "ns-a").notes[0].startswith("D4")
    eight = [line(f"p{n}", 24, namespace="x", busy_ms=DAY_MS, observed_ms=DAY_MS) for n in range(8)]
    singles = [BilledPod("n1", "x", f"p{n}", DAY, DAY + DAY_MS, DAY_MS, 1.0) for n in range(8)]
    both = row(compared(node(), singles, eight), "x").efficiency
    assert (both.opencost, both.ours) == (1, 1)
    dark = row(compared(node(), [billed("a", 192)], [line("a", 192)]), "ns-a")
    assert (dark.efficiency.opencost, dark.efficiency.ours, dark.efficiency.coverage) == (0, None, 0)
    assert dark.notes[0].startswith("D7")


@pytest.mark.vector("V23")
def test_a_price_that_changed_at_noon_is_in_theirs_a_mean_of_samples() -> None:
    """Their mean of a day's samples leans to whichever half has more of them; ours is 24 + 36."""
    ours = [line("a", 12, "2.00"), line("a", 12, "3.00"), idle(168, "2.50")]
    found = compared(node(2.6), [billed("a", 24)], ours)
    assert row(found, "ns-a").ours_nano == 60 * NANO
    assert made(row(found, "ns-a")) == {ComparisonCause.PRICE: pytest.approx(60 - 24 * 2.6)}


def test_a_pod_of_two_teams_is_split_by_what_each_held() -> None:
    ours = [line("a", 18, team="x"), line("a", 6, team="y")]
    found = compared(node(), [billed("a", 24)], ours, CompareBy.TEAM)
    assert {each.name: each.opencost_nano for each in found.rows if each.name} == {
        "x": 45 * NANO, "y": 15 * NANO,
    }  # fmt: skip


def test_days_of_which_one_side_has_nothing_are_left_out_and_counted() -> None:
    other = DAY + DAY_MS
    ours = [line("a", 24), line("a", 24, day_ms=other, first_ms=other, last_ms=other + DAY_MS)]
    days = [
        OpenCostDay("east", DAY, [node()], [billed("a", 24)]),
        OpenCostDay("east", other, [], [billed("a", 24)]),  # asked for, but no price of OpenCost's anywhere
        OpenCostDay("east", other + DAY_MS, [node()], [billed("a", 24)]),
    ]
    found = compare(MONTH, "USD", CompareBy.NODE, days, ours)
    assert (found.days, found.missing_days) == (1, 1)
    assert {(each.name, each.kind) for each in found.rows} == {
        ("n1", ComparedKind.HELD),
        ("n1", ComparedKind.IDLE),
    }
    assert row(compare(MONTH, "USD", CompareBy.TEAM, days, ours), "team-a").ours_nano == 60 * NANO


def test_every_cause_has_its_words() -> None:
    assert set(TEXTS) == set(ComparisonCause)
    assert all(text.title and text.sentence.endswith(".") for text in TEXTS.values())


def test_lines_are_those_of_the_ledger() -> None:
    rate = Rate("r@1", 3 * NANO, "USD", 4 * NANO, "model", "a test", "2026-10-01")
    values = {**dict.fromkeys(COMPARED_DIMS, "x"), "share_num": 1, "share_den": 7, "rate_id": "r@1"}
    values |= {"bucket": "held", "step_start_ms": DAY, "board_ms": 2 * HOUR_MS, "nano": 6 * NANO}
    values |= {"unpriced_ms": 0, "first_ms": DAY, "last_ms": DAY + 1, "busy_ms": pd.NA, "observed_ms": pd.NA}
    (found,) = lines_of(pd.DataFrame([values]), {"r@1": rate})
    assert (found.unit_ms, found.list_nano, found.nano, found.busy_ms) == (
        14 * HOUR_MS, 8 * NANO, 6 * NANO, 0,
    )  # fmt: skip
    over = {**values, "bucket": "overcommitted", "nano": 0}
    assert lines_of(pd.DataFrame([over]), {"r@1": rate})[0].list_nano == 0


HOURS = st.integers(0, 24 * 60).map(lambda minutes: Fraction(minutes, 60))
PRICES = st.none() | st.sampled_from(["0", "0.042892500", "2.50", "6.88"])
PODS = st.sampled_from(["a", "b", "c"])
LINES = st.builds(
    line,
    PODS,
    HOURS,
    PRICES,
    units_per_board=st.sampled_from([1, 4, 7]),
    bucket=st.sampled_from([Bucket.HELD, Bucket.OVERCOMMITTED, Bucket.UNALLOCATED, Bucket.UNKNOWN]),
    wall_hours=HOURS,
    list_price=st.none() | st.sampled_from(["2.50", "9"]),
    resource=st.sampled_from([GPU, "amd.com/gpu", "nvidia.com/gpucores"]),
    team=st.sampled_from(["x", "y"]),
)
NUMBERS = st.none() | st.sampled_from([0.0, 0.95, 2.33985, 7.0, 55.04])


@given(
    st.builds(node, NUMBERS, NUMBERS, NUMBERS),
    st.lists(st.builds(billed, PODS, HOURS, HOURS, st.none() | st.floats(0, 1)), max_size=4),
    st.lists(LINES, min_size=1, max_size=8),
    st.sampled_from(CompareBy),
)
def test_causes_add_up_to_the_difference_whatever_the_figures(
    theirs: BilledNode, pods: list[BilledPod], ours: list[OurLine], by: CompareBy
) -> None:
    found = compared(theirs, pods, ours, by)
    for each in (*found.rows, found.total):
        assert each.opencost_nano + sum(amount.nano for amount in each.causes) == each.ours_nano
    assert sum(each.ours_nano for each in found.rows) == found.total.ours_nano
    assert sum(each.opencost_nano for each in found.rows) == found.total.opencost_nano
    assert found.total.ours_nano == sum(one.nano for one in ours if one.bucket.is_capacity)
    shown = {amount.cause for each in found.rows for amount in each.causes}
    assert {each.cause for each in found.causes} == shown
