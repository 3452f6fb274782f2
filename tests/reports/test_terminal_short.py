"""Reports on one screen: 80 columns by 24 lines, one of which is the shell's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from gpucost.reports.base import display
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.model import MonthReport
from gpucost.reports.render.terminal_month import print_month
from gpucost.reports.render.terminal_short import NOTHING_GOES_ON, print_short_month, print_short_waste
from tests.reports.builders import small_month, windows
from tests.reports.test_terminal import shown
from tests.reports.waste_builders import known, small_waste

LINES = 23


def month(count: int = 9) -> MonthReport:
    findings = tuple(known(n, job=f"a-job-of-a-rather-long-name-{n}") for n in range(1, count + 1))
    return build_month(small_month(waste=small_waste(findings=findings)))


@pytest.mark.parametrize("teams", [1, 2, 40])
def test_the_month_fits_one_screen(teams: int) -> None:
    report = month()
    report = replace(report, teams=(report.teams * 40)[:teams])
    text = shown(lambda console: print_short_month(report, console), 80)
    lines = text.splitlines()
    assert len(lines) <= LINES, text
    assert max(map(cell_len, lines)) <= 80, text
    assert ("33 more teams." in text) == (teams == 40)
    assert display.money(report.totals.held.nano) in text
    assert "What to do first" in text


def test_what_was_not_read_and_what_was_adjusted_is_said() -> None:
    report = build_month(small_month(windows=windows(days=3), previous=None))
    text = shown(lambda console: print_short_month(report, console), 80)
    assert "3 days of the month's 31 days were read: the rest is in no figure here" in text
    net = display.money(report.totals.adjusted.nano)
    assert f"−5.00 USD of adjustments, {net} USD net" in text


def test_the_waste_fits_one_screen() -> None:
    report = month().waste
    assert report is not None
    text = shown(lambda console: print_short_waste(report, console), 80)
    lines = text.splitlines()
    assert len(lines) <= LINES, text
    assert max(map(cell_len, lines)) <= 80, text
    assert "difference 0 GPU-ms, 0 nano-USD" in text


def test_the_long_report_begins_with_who_pays_and_what_to_do() -> None:
    text = shown(lambda console: print_month(month(), console), 120)
    heads = ("Teams", "What to do first", "Costliest jobs", "Where the capacity went", "How exact this is")
    assert sorted(map(text.index, heads)) == [*map(text.index, heads)]


def test_without_findings_it_says_so() -> None:
    text = shown(lambda console: print_short_month(month(0), console), 80)
    assert NOTHING_GOES_ON in text
