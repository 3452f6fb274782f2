"""JSON, CSV and Parquet: golden files, numbers that survive, text that does no harm."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zipfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.buckets import Waste
from gpucost.domain.money import NANO
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.reports.base.document import document, to_json
from gpucost.reports.job.job_report import build_job, live_view
from gpucost.reports.month.allocations import AllocationQuery, IdlePolicy, allocate
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import TeamAccount
from gpucost.reports.month.model import StatementSummary, SummaryTeam, jobs_of_several
from gpucost.reports.render.files import quote, to_csv, to_parquet, to_xlsx
from gpucost.reports.render.html import to_html
from gpucost.reports.render.tables import (
    CellType,
    ReportTable,
    TableColumn,
    allocations_table,
    job_table,
    month_table,
)
from gpucost.reports.render.terminal_month import print_month
from gpucost.reports.waste.waste_report import WasteAssessment
from tests.detectors.worlds import GIB, T0, World, at
from tests.reports.builders import MONTH, frame, row, small_lines, small_month
from tests.reports.test_job import job_inputs, part
from tests.reports.test_terminal import shown
from tests.reports.test_waste import PRICE, known
from tests.reports.test_waste import frame as waste_lines
from tests.reports.test_waste import line as waste_line
from tests.reports.waste_builders import small_waste
from tests.support.poison import a_table

GOLDEN = Path(__file__).parent / "golden"
FORMULA_STARTS = "=+-@\t\r\n＝＋－＠"


def month() -> Any:
    return build_month(small_month(waste=small_waste()), every_job=True)


def allocations() -> Any:
    query = AllocationQuery(Month(2026, 10).window, ("team", "model"), idle=IdlePolicy.PROPORTIONAL)
    lines = [line | {"step_start_ms": query.window.start_ms} for line in small_lines()]
    return allocate(query, frame(lines), "USD")


def job() -> Any:
    """29 GPU-hours, of which 6 idled; what two GPUs did in an hour that the source still has."""
    world = World(end=60).node("n1").pod("train-0", "n1", 0, units=2, job="train")
    world.work("train-0", "n1", "GPU-a", [0.5] * 12, memory=20 * GIB).work(
        "train-0", "n1", "GPU-b", [0.0] * 12
    )
    world.waits("train", 0, 30, units=2, cluster_queue="gpu", reason="no quota left")
    report = build_job(
        job_inputs(
            part(28, 0, 3.5, seen=20, busy=0.5),
            part(1, 4, 5, None, node="n2"),
            waste=waste_lines(
                waste_line(Waste.IDLE, 6),
                waste_line(Waste.PRODUCTIVE, 22),
                waste_line(Waste.UNKNOWN, 1, price=None),
            ),
            assessment=WasteAssessment(final=4, provisional=1, missing=0),
            findings=(known(7, PRICE),),
        )
    )
    looks = [(Window(T0, at(60)), world.frames())]
    return replace(report, seen=live_view("uid-train", looks, ["GPU by GPU: 1 h of 5 h"]))


RENDERED = {
    "month.json": lambda: to_json(month()),
    "month.csv": lambda: to_csv(month_table(month())),
    "allocations.json": lambda: to_json(allocations()),
    "allocations.csv": lambda: to_csv(allocations_table(allocations())),
    "job.json": lambda: to_json(job()),
    "job.csv": lambda: to_csv(job_table(job())),
}


@pytest.mark.parametrize("name", RENDERED)
def test_golden_files(name: str) -> None:
    """Set GPUCOST_UPDATE_GOLDEN=1 to write them anew, and read the difference before you commit it."""
    rendered = RENDERED[name]().encode()
    if os.environ.get("GPUCOST_UPDATE_GOLDEN"):
        (GOLDEN / name).write_bytes(rendered)
    assert rendered == (GOLDEN / name).read_bytes()


def test_json_has_money_and_hours_as_text_beside_the_integers() -> None:
    held = json.loads(to_json(month()))["totals"]["held"]
    assert held == {
        "nano": 584_530_000_000,
        "cost": "584.530000000",
        "board_ms": 360_000_000,
        "gpu_hours": "100.000000000",
        "unpriced_board_ms": 0,
        "unpriced_gpu_hours": "0.000000000",
    }


def test_the_list_of_jobs_is_null_unless_it_was_asked_for() -> None:
    assert document(build_month(small_month()))["jobs"] is None
    assert document(build_month(small_month(lines=frame([])), every_job=True))["jobs"] == []


def test_json_says_null_for_what_is_missing() -> None:
    lines = frame([row(1, None, team="nlp", job="a")])
    found = document(build_month(small_month(lines=lines, previous=None)))
    assert isinstance(found["totals"], dict)
    assert found["totals"]["held"]["nano"] is found["totals"]["held"]["cost"] is None  # type: ignore[index,call-overload]
    assert found["totals"]["change"] is None


def test_csv_columns_agree_with_each_other() -> None:
    for line in csv.DictReader(io.StringIO(to_csv(month_table(month())))):
        if line["nano"]:
            assert Decimal(line["cost"]) * NANO == int(line["nano"])
        assert abs(Decimal(line["gpu_hours"]) * HOUR_MS - int(line["board_ms"])) < Decimal("0.01")


def test_the_first_column_says_which_cut_a_row_is() -> None:
    """Rows of two sections tell the same money twice; docs/reports.md lists all sections."""
    pays = SummaryTeam("nlp", None, 1, 2, 0, 2)
    charges = StatementSummary(MONTH, "EUR", "by quota", "open", "d", None, (pays,), None)
    whole = replace(month(), charges=charges)
    head, *lines = list(csv.reader(io.StringIO(to_csv(month_table(whole)))))
    scoped = small_month(scope=Scope(frozenset({"nlp"})), lines=frame(small_lines()[:2]))
    found = {line[0] for line in lines} | {str(row[0]) for row in month_table(build_month(scoped)).rows}
    assert head[0] == "section"
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    table = page.split("### Sections of the month's table")[1].split("\n## ")[0]
    names = re.findall(r"^- (.*?):", table, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(names))) == found


def test_csv_sections_add_up() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(month_table(month())))))
    sums = {
        section: sum(int(line["nano"]) for line in lines if line["section"] == section)
        for section in ("team", "project", "job_kind", "queue", "model", "cluster", "job")
    }
    assert set(sums.values()) == {584_530_000_000}


def test_what_is_beyond_capacity_is_in_no_section_of_it() -> None:
    """Capacity: 100 held + 30 unallocated + 5 unavailable + 5 not observed = 140 h; 3 h more made 143."""
    lines = list(csv.DictReader(io.StringIO(to_csv(month_table(month())))))
    hours = {
        section: sum(int(line["board_ms"]) for line in lines if line["section"] == section) / HOUR_MS
        for section in ("capacity", "model_capacity", "waste", "overcommitted")
    }
    assert hours == {"capacity": 140, "model_capacity": 140, "waste": 140, "overcommitted": 3}


def test_the_jobs_of_every_section_are_counted_alike() -> None:
    """Four jobs; seg-1 was of vision and then of nlp, which makes five rows of jobs and of teams' jobs."""
    lines = small_lines()
    other = next(line for line in lines if line["job"] == "seg-1") | {"team": "nlp"}
    report = build_month(small_month(lines=frame([*lines, other])), every_job=True)
    rows = list(csv.DictReader(io.StringIO(to_csv(month_table(report)))))
    by_section = {
        section: [int(row["jobs"]) for row in rows if row["section"] == section]
        for section in ("job", "cluster", "team")
    }
    assert (report.totals.jobs, sum(by_section["job"]), sum(by_section["cluster"])) == (4, 4, 4)
    assert (len(by_section["job"]), sum(by_section["team"])) == (5, 5)
    words = jobs_of_several(report)
    assert words == "A job that was of several teams counts for each: the teams' jobs add up to 5, of 4."
    assert words in to_html(report).replace("&#39;", "'")
    assert jobs_of_several(month()) == ""


def test_cost_centres_and_budgets_stand_in_every_form() -> None:
    """nlp held 70 h at 6.88 = 481.60 of 1,000 a month = 48.16 %; of the month 30 of 31 days are there. vision
    has no budget, which is not one of 0."""
    accounts = {
        "nlp": TeamAccount("CC-1", 1_000 * NANO),
        "vision": TeamAccount("CC-2"),
        "gone": TeamAccount("X"),
    }
    report = build_month(small_month(accounts=accounts), every_job=True)
    rows = {row["row"]["group"]["team"]: row for row in json.loads(to_json(report))["teams"]}
    assert rows["nlp"]["cost_centre"] == "CC-1"
    assert rows["nlp"]["budget"] == {
        "currency": "USD",
        "monthly_nano": 1_000 * NANO,
        "monthly": "1000.000000000",
        "part": 0.4816,
        "covered": 0.967742,
        "provisional": True,
    }
    assert (rows["vision"]["cost_centre"], rows["vision"]["budget"]) == ("CC-2", None)
    assert (rows["robotics"]["cost_centre"], rows["robotics"]["budget"]) == (None, None)
    found = list(csv.DictReader(io.StringIO(to_csv(month_table(report)))))
    names = ("team", "cost_centre", "monthly_budget", "budget_used", "budget_covered")
    cells = {tuple(row[name] for name in names) for row in found if row["section"] == "team"}
    assert cells == {
        ("nlp", "CC-1", "1000.000000000", "0.481600", "0.967742"),
        ("vision", "CC-2", "", "", ""),
        ("robotics", "", "", "", ""),
    }
    words = "Used: what was held, of the budget, in USD; 96.8% of the month is in the ledger, provisional."
    page = to_html(report)
    text = shown(lambda console: print_month(report, console), 120)
    assert re.search(r"<bdi>nlp</bdi></th>.*CC-1.*<td>1,000.00</td><td>48.2%</td>", page)
    assert re.search(r"<bdi>vision</bdi></th>.*CC-2.*<td>–</td><td>–</td>", page)
    assert words in page
    assert words in " ".join(text.split())
    lines = [line.split() for line in text.splitlines()]
    assert ["nlp", "CC-1", "481.60", "1,000.00", "48.2%"] in lines
    assert ["vision", "CC-2", "102.93", "–", "–"] in lines


def test_of_some_clusters_no_part_of_a_budget_is_said() -> None:
    scope = Scope(None, frozenset({"east"}))
    report = build_month(small_month(accounts={"nlp": TeamAccount(None, NANO)}, scope=scope))
    [budget] = [team.budget for team in report.teams if team.budget]
    assert (budget.monthly_nano, budget.part) == (NANO, None)
    assert "Budgets are for all clusters together" in to_html(report)


def test_parquet_has_the_integers_and_says_what_it_is() -> None:
    table = month_table(month())
    raw = to_parquet(table)
    read = pq.read_table(io.BytesIO(raw))
    assert read.column_names == [column.name for column in table.columns]
    assert read["nano"].to_pylist() == [line[read.column_names.index("nano")] for line in table.rows]
    assert str(read.schema.field("nano").type) == "int64"
    assert read.schema.metadata[b"month"] == b"2026-10"
    assert raw == to_parquet(month_table(month()))


def test_parquet_of_no_rows_keeps_its_columns() -> None:
    empty = month_table(build_month(small_month(lines=frame([]), previous=None, adjustments=())))
    table = ReportTable(empty.facts, empty.columns, ())
    assert pq.read_table(io.BytesIO(to_parquet(table))).num_rows == 0


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
HOSTILE = st.builds(
    str.__add__,
    st.sampled_from(
        [
            "",
            *FORMULA_STARTS,
            "=cmd|' /C calc'!A0",
            '";=1+1',
            "-2+3",
            "+1",
            'x;"=1',
            "x\n@",
            'x";\t""=1',
            "x;y",
        ]
    ),
    TEXT,
)


@pytest.mark.fault(53)
@given(st.lists(st.tuples(HOSTILE, st.integers(-(2**63), 2**63 - 1)), max_size=5))
def test_csv_text_is_text_and_numbers_are_numbers(rows: list[tuple[str, int]]) -> None:
    columns = (TableColumn("name", CellType.TEXT), TableColumn("jobs", CellType.INTEGER))
    rendered = to_csv(ReportTable({}, columns, tuple(rows)))
    a_table(rendered)
    read = list(csv.reader(io.StringIO(rendered, newline=""), strict=True))
    assert read[0] == ["name", "jobs"]
    for (text, number), (cell, bare) in zip(rows, read[1:], strict=True):
        assert cell[:1] not in FORMULA_STARTS or not cell
        assert cell.startswith("'") or text[:1] not in FORMULA_STARTS or not text
        assert cell.replace("'", "") == text.replace("'", ""), "nothing but apostrophes is added"
        assert cell == text or set(text) & set(FORMULA_STARTS)
        assert int(bare) == number


@pytest.mark.fault(53)
def test_a_negative_amount_stays_a_number() -> None:
    rendered = to_csv(month_table(build_month(small_month())))
    assert ",-5.000000000,-5000000000," in rendered
    assert quote("-5") == '"\'-5"'


@pytest.mark.fault(53)
def test_hostile_names_in_every_text_column() -> None:
    hostile = '=cmd|" /C calc"!A0'
    names = {"team": hostile, "job": hostile, "project": hostile, "namespace": hostile, "queue": hostile}
    rendered = to_csv(month_table(build_month(small_month(lines=frame([row(1, **names)])), every_job=True)))
    for line in csv.reader(io.StringIO(rendered)):
        assert not any(cell.startswith("=") for cell in line)
    assert to_csv(month_table(build_month(small_month()))).count("'=") == 0


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "http://a.example/x", "<b>&", "\x01", "x" * 40_000, ""])
def test_a_workbook_holds_text_as_text_and_rounds_no_integer(text: str) -> None:
    """2^53 + 1 is no double: it is text, beside the number that it is near to."""
    columns = (TableColumn("team", CellType.TEXT), TableColumn("nano", CellType.INTEGER))
    table = ReportTable({}, columns, ((text, 2**53 + 1), ("b", -5), ("c", None)))
    content = to_xlsx({"Charges": table})
    assert content == to_xlsx({"Charges": table})
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        cells = book.read("xl/worksheets/sheet1.xml").decode()
        texts = book.read("xl/sharedStrings.xml").decode()
        assert not [name for name in book.namelist() if "hyperlink" in name or "externalLink" in name]
    assert "<f>" not in cells
    assert "<hyperlink" not in cells
    assert ">9007199254740993<" in texts
    assert "<v>9007199.254740993</v>" in cells
    assert "<v>-5</v>" in cells
    assert not re.search(r'<c r="[BC]4"', cells)  # what is missing is no cell
