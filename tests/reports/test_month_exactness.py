"""What a month says of how exact it is, of several clusters, and of where its prices are from."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import MonthFacts, WindowFacts
from gpucost.reports.month.model import MonthReport
from gpucost.reports.render.html import to_html
from gpucost.reports.render.terminal_month import print_month
from tests.reports.builders import A100, RATES, START_MS, frame, row, september, small_month, windows
from tests.reports.test_terminal import shown
from tests.reports.waste_builders import CAPACITY, part, small_waste, waste_frame

DAY_MS = 86_400_000
SOURCE = "kube-state-metrics and dcgm-exporter in prometheus http://prometheus-operated.monitoring.svc:9090"


def terminal(report: MonthReport, width: int = 120) -> str:
    return shown(lambda console: print_month(report, console), width)


def covered(found: tuple[WindowFacts, ...], **changes: object) -> Fraction | None:
    report = build_month(small_month(windows=found, previous=None, **changes))
    held, capacity = report.methods[:2]
    assert held.coverage == capacity.coverage
    return held.coverage


UNSETTLED = tuple(replace(item, settled=item.start_ms < START_MS + 4 * DAY_MS) for item in windows(days=10))


@pytest.mark.parametrize(
    ("found", "share"),
    [
        (windows(), Fraction(1)),
        (windows(observed=0.5), Fraction(1, 2)),
        # Prometheus no longer had the first 28 days.
        (windows(days=3, start_ms=START_MS + 28 * DAY_MS), Fraction(3, 31)),
        # It goes on: whole so far, and with a hole in it.
        (windows(days=10), Fraction(1)),
        (UNSETTLED[5:], Fraction(1, 2)),
        # Of two clusters, one is there for a part.
        (windows() + windows("west", 15, start_ms=START_MS + 16 * DAY_MS), Fraction(46, 62)),
    ],
)
def test_what_no_window_covers_is_not_covered(found: tuple[WindowFacts, ...], share: Fraction) -> None:
    assert covered(found, previous_windows=()) == share


def test_of_a_month_that_was_read_up_to_a_day_it_is_said_which() -> None:
    """The whole of ten days is no coverage of a month; a report does not know whether the month is over."""
    held, capacity, *others = build_month(small_month(windows=windows(days=10), previous=None)).methods
    words = "up to 2026-10-11T00:00:00Z; of 21 days of the month after that, nothing was read"
    assert words in held.notes
    assert words in capacity.notes
    assert not any(words in other.notes for other in others)
    whole = build_month(small_month(windows=windows(), previous=None))
    assert not any("nothing was read" in note for row in whole.methods for note in row.notes)


def test_a_cluster_of_the_month_before_that_is_gone_is_missing() -> None:
    assert covered(windows(), previous_windows=september() + september(cluster="west")) == Fraction(1, 2)


def test_a_closed_month_is_over() -> None:
    facts = MonthFacts(closed=True, closed_at_ms=START_MS + 40 * DAY_MS)
    assert covered(windows(days=10), previous_windows=(), facts=facts) == Fraction(10, 31)


def test_a_report_says_how_much_opencost_priced() -> None:
    node = replace(A100, matched_by="node")
    report = build_month(small_month(rates={**RATES, A100.rate_id: node}))
    words = "102.93 USD of the cost is by OpenCost's prices"
    assert words in report.methods[0].notes
    assert words in terminal(report)
    assert words in to_html(report).replace("&#39;", "'")
    assert "OpenCost" not in terminal(build_month(small_month()))


def test_sources_stand_whole() -> None:
    report = build_month(small_month(windows=tuple(replace(item, source=SOURCE) for item in windows())))
    assert SOURCE in terminal(report, 200)
    assert SOURCE in to_html(report)
    assert ">SM activity<" in to_html(report)


def test_jobs_of_the_same_name_say_their_cluster() -> None:
    same = {"team": "nlp", "job": "train", "namespace": "nlp"}
    lines = frame([row(9, cluster=cluster, **same) for cluster in ("east", "west")])
    wasted = waste_frame([part("idle", 9, cluster=cluster, **same) for cluster in ("east", "west")])
    waste = small_waste(lines=wasted, findings=(), capacity=None)
    report = build_month(small_month(lines=lines, previous=None, waste=waste))
    for width in (80, 120):
        text = terminal(report, width)
        for title in ("Costliest jobs", "Jobs that wasted most"):
            head, _, *jobs = [line.split() for line in text.split(title)[1].splitlines() if line.strip()][:4]
            assert head[:2] == ["job", "cluster"]
            assert {job[1] for job in jobs} == {"east", "west"}, title
    assert to_html(report).count("<bdi>west</bdi> · <bdi>nlp</bdi>") == 2
    long = frame(
        [row(1234, cluster=f"gpu-{where}-2.example.org", seen=900, busy=0.7, **same) for where in "ab"]
    )
    text = terminal(build_month(small_month(lines=long, previous=None)), 80)
    assert text.count("8,489.92") == text.split("Costliest jobs")[0].count("8,489.92") + 4, (
        "numbers are whole"
    )
    one = build_month(small_month(waste=small_waste()))
    assert "cluster  " not in terminal(one)
    assert "<bdi>east</bdi> · " not in to_html(one)


def test_waste_without_a_price_is_said_in_hours() -> None:
    unpriced = waste_frame([part("idle", 12, None, team="nlp", job="a"), part("productive", 128, team="nlp")])
    report = build_month(small_month(waste=small_waste(lines=unpriced, findings=(), capacity=CAPACITY)))
    words = "12.0 GPU-hours wasted, without a price, 8.6% of capacity"
    assert words in terminal(report)
    page = to_html(report).replace("<strong>", "").replace("</strong>", "").replace("<span>", "")
    assert words in page


def test_who_can_look_is_said() -> None:
    report = build_month(small_month())
    for form in (terminal(report), to_html(report)):
        assert "gpucost report --prometheus URL --waste looks at a month" in " ".join(form.split())


def test_the_head_says_how_much_of_the_month_its_figures_are_of() -> None:
    """A sum of ten days is no month's bill, and coverage stands far below it."""
    report = build_month(small_month(windows=windows(days=10), previous=None))
    words = "10 days of the month's 31 days were read: the rest is in no figure "
    assert f"{words}here" in terminal(report)
    assert f"{words}on this page." in to_html(report).replace("&#39;", "'")
    two = build_month(small_month(windows=windows() + windows("west", 15), previous=None))
    assert "74% of the month of 2 clusters was read (least of west: 15 days)" in terminal(two)
    whole = build_month(small_month(windows=windows(), previous=None))
    assert "in no figure" not in terminal(whole) + to_html(whole)


def test_problems_of_several_clusters_are_told_apart() -> None:
    east = DataProblem(DataProblemCode.END_UNKNOWN, "east", "uid-eval-1", "no end seen", 3_600_000)
    both = build_month(small_month(problems=(east, replace(east, cluster="west"))))
    table = " ".join(terminal(both).split())
    assert "end_unknown east uid-eval-1: no end seen" in table
    assert "end_unknown west uid-eval-1: no end seen" in table


def test_where_nothing_has_a_price_the_head_names_no_currency() -> None:
    lines = frame([row(1.0, None, team="nlp")])
    assert "No price for 1.0 GPU-hours held by" in terminal(build_month(small_month(lines=lines)))


def test_a_bound_that_is_small_is_not_none() -> None:
    off = DataProblem(DataProblemCode.END_BOUNDED, "east", "pods", "between two scrapes", 60_000)
    assert "± <0.1 h (" in terminal(build_month(small_month(problems=(off,))))
