"""Reports in a terminal: the words, the widths, and names that stay names."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpucost.domain.scope import Scope
from gpucost.domain.time import Month
from gpucost.reports.job.job_report import build_job
from gpucost.reports.month.allocations import AllocationQuery, allocate
from gpucost.reports.month.builder import build_month
from gpucost.reports.render.terminal_job import print_job
from gpucost.reports.render.terminal_month import print_allocations, print_month
from tests.reports.builders import frame, holed, realistic_month, row, september, small_lines, small_month
from tests.reports.test_job import counted, job_inputs, part


def shown(draw: Callable[[Console], None], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    draw(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_month_in_a_terminal() -> None:
    report = build_month(small_month(adjustments=()))
    text = shown(lambda console: print_month(report, console))
    assert "GPU cost, October 2026  open, all teams" in text
    assert (
        "584.53 USD for 100.0 GPU-hours held by 4 jobs, +103.29 USD, +21.5% against the month before" in text
    )
    assert "difference 0 GPU-ms, 0 nano-USD" in text
    (nlp,) = (line for line in text.splitlines() if line.strip().startswith("nlp") and "█" in line)
    assert nlp.split() == [
        *("nlp", "481.60", "70.0", "2", "████████··", "82.4%", "80%", "(71%)", "50%", "(71%)"),
        *("10%", "(71%)", "+40.0%"),
    ]
    bar = next(line for line in text.splitlines() if "█▒" in line).strip()
    assert [bar.count(block) for block in "█▒▚░"] == [77, 23, 3, 3]  # of 108 cells: 71.4, 21.4, 3.6, 3.6 %


def test_a_month_in_progress_says_what_is_compared() -> None:
    text = shown(lambda console: print_month(build_month(small_month()), console), 200)
    note = "+21.5% against the month before (so far: this month covered 96.8%, previous 100.0%)"
    assert note in text


def test_months_that_are_not_alike_are_a_dash_with_its_reason() -> None:
    report = build_month(small_month(previous_windows=september(days=3)))
    text = shown(lambda console: print_month(report, console), 200)
    assert "– against the month before (previous month covered 10.0%)" in text
    assert "change" not in text
    assert "%+" not in text.replace(" ", "")


MARK = "* part of it has no price."


def test_the_footnote_of_a_mark_stands_only_where_the_mark_does() -> None:
    partly = [row(1, team="nlp", job="a"), row(1, None, team="nlp", job="a")]
    for lines, marks in ((small_lines(), 0), (partly, 1)):
        report = build_month(small_month(lines=frame(lines)))
        month = shown(lambda console, report=report: print_month(report, console))
        query = AllocationQuery(Month(2026, 10).window, ("team",))
        result = allocate(query, frame(lines), "USD")
        table = shown(lambda console, result=result: print_allocations(result, console))
        for text in (month, table):
            assert (MARK in text) == ("*" in text.replace(MARK, "")) == bool(marks)


def test_a_total_of_priced_and_unpriced_rows_is_marked_and_explained() -> None:
    lines = frame([row(1, team="nlp", job="a"), row(1, None, team="vision", job="b")])
    result = allocate(AllocationQuery(Month(2026, 10).window, ("team",)), lines, "USD")
    text = shown(lambda console: print_allocations(result, console))
    assert "6.88*" in text
    assert MARK in text


@pytest.mark.parametrize("width", [80, 100, 160])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    report = build_month(realistic_month())
    text = shown(lambda console: print_month(report, console), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    team = next(line for line in text.splitlines() if line.strip().startswith("vision"))
    assert "62,746.07" in team
    assert "30.8%" in team
    assert "…" not in team


@pytest.mark.parametrize("width", [80, 120])
def test_adjustments_reach_the_totals(width: int) -> None:
    text = shown(lambda console: print_month(build_month(small_month()), console), width)
    assert "−5.00 USD of adjustments, 579.53 USD net" in text
    rows = [line.split() for line in text.splitlines() if line.split()]
    nlp = next(row for row in rows if row[0] == "nlp")
    total = next(row for row in rows if row[0] == "all")
    assert nlp[1:5] == ["481.60", "−5.00", "476.60", "70.0"]
    assert total[1:5] == ["584.53", "−5.00", "579.53", "100.0"]


def test_the_spans_that_were_not_observed_are_listed() -> None:
    text = shown(lambda console: print_month(build_month(small_month(windows=holed())), console))
    assert "not observed: east 2026-10-04T00:00:00Z/2026-10-06T00:00:00Z, 48 h" in text
    assert "not observed: 6 shorter spans more" in text


def test_a_team_sees_no_capacity() -> None:
    inputs = small_month(scope=Scope(frozenset({"nlp"})), lines=frame(small_lines()[:2]))
    text = shown(lambda console: print_month(build_month(inputs), console))
    assert "open, nlp" in text
    assert "unallocated" not in text


@pytest.mark.fault(63)
def test_names_are_not_markup_and_cannot_move_the_cursor() -> None:
    names = ("[bold red]owned[/]", "\x1b[2Jgone", "\u202egnp.exe", "y" * 20_000)
    lines = [row(1, team=name, job=name, namespace=name, project=name) for name in names]
    text = shown(lambda console: print_month(build_month(small_month(lines=frame(lines))), console))
    assert "[bold red]owned[/]" in text
    assert "\\x1b[2Jgone" in text
    assert not {"\x1b", "\u202e"} & set(text)
    assert max(cell_len(line) for line in text.splitlines()) <= 120


def test_allocations_in_a_terminal() -> None:
    result = allocate(AllocationQuery(Month(2026, 10).window, ("team",)), frame(small_lines()), "USD")
    text = shown(lambda console: print_allocations(result, console))
    (nlp,) = (line for line in text.splitlines() if "nlp" in line)
    assert nlp.split() == ["nlp", "70.0", "481.60", "0.00", "0.00", "481.60", "80%", "(71%)"]
    assert text.count("825.24") == 1


def test_a_job_in_a_terminal() -> None:
    inputs = job_inputs(part(28, 0, 3.5), progress=(counted("epochs", 4, 28),))
    text = shown(lambda console: print_job(build_job(inputs), console))
    assert "192.64 USD for 28.0 GPU-hours of H100" in text
    assert "epochs: 48.160000000 USD each" in text
    assert "8 GPUs × 3.5 h × 6.88 USD/h = 192.64 USD" in text
