"""Where the capacity went, in every form of the month's report: sums, scopes, names, and hours that were not
assessed."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from gpucost.domain.buckets import Waste
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS
from gpucost.reports.base import display
from gpucost.reports.base.display import PARTS
from gpucost.reports.base.document import to_json
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.model import CAPACITY_BUCKETS, MonthReport
from gpucost.reports.render.files import to_csv
from gpucost.reports.render.html import to_html, waste_bar, waste_chart
from gpucost.reports.render.tables import month_table
from gpucost.reports.render.terminal_month import print_month
from gpucost.reports.waste.waste_report import WasteAssessment
from gpucost.reports.waste.waste_table import (
    LABELS,
    MEANINGS,
    looked_at,
    mostly,
    patch_text,
)
from tests.reports.builders import H100, frame, small_lines, small_month
from tests.reports.test_html import HOSTILE, Elements
from tests.reports.test_terminal import shown
from tests.reports.waste_builders import (
    CAPACITY,
    NLP,
    known,
    part,
    small_waste,
    waste_frame,
    waste_lines,
    waste_of_nlp,
)
from tests.support.chromium import console_messages, dump_dom, needs_chromium

UNLOOKED = WasteAssessment(0, 0, 30)
# By hand: H100 at 6.88, A100 at 3.431 an hour.
HOURS = {
    "unavailable": 5, "gang_stall": 4, "preempted": 2, "idle": 10, "oversized": 5, "starved": 8,
    "stranded": 0, "fragmented": 7, "no_demand": 15, "productive": 75, "unknown": 9,
}  # fmt: skip
COSTS = {
    "unavailable": "34.40", "gang_stall": "27.52", "preempted": "13.76", "idle": "68.80",
    "oversized": "17.155", "starved": "55.04", "stranded": "0", "fragmented": "24.017", "no_demand": "92.853",
    "productive": "429.775", "unknown": "61.92",
}  # fmt: skip


def month(**changes: Any) -> MonthReport:
    return build_month(small_month(waste=small_waste(**changes)))


def of_nlp(**changes: Any) -> MonthReport:
    own = frame(small_lines()[:2])
    waste = waste_of_nlp(**changes)
    return build_month(small_month(scope=NLP, lines=own, previous=None, problems=(), waste=waste))


def terminal(report: MonthReport, width: int = 120) -> str:
    return shown(lambda console: print_month(report, console), width)


def table_rows(report: MonthReport, section: str) -> list[dict[str, str]]:
    lines = csv.DictReader(io.StringIO(to_csv(month_table(report))))
    return [line for line in lines if line["section"] == section]


def html_buckets(page: str) -> dict[str, tuple[str, str]]:
    """Label -> (hours, cost) of the table of buckets, as a reader sees it."""
    body = page.split('<table class="short buckets">')[1].split("</table>")[0]
    body = body.split("<tbody>")[1]
    rows = re.findall(r"<tr[^>]*><th[^>]*>(.*?)</th><td>(.*?)</td><td>(.*?)</td>", body, re.DOTALL)
    names = [
        re.sub(r"<svg.*?</svg>|<span.*|<small.*", "", name, flags=re.DOTALL).strip() for name, *_ in rows
    ]
    cells = [[re.sub(r"<.*?>", "", cell) for cell in rest] for _, *rest in rows]
    return {name: (hours, cost) for name, (hours, cost) in zip(names, cells, strict=True)}


def test_every_bucket_has_its_words() -> None:
    assert set(LABELS) == set(MEANINGS) == set(Waste)
    assert len(set(LABELS.values())) == len(Waste)


def test_the_numbers_are_those_of_the_lines() -> None:
    waste = month().waste
    assert waste is not None
    assert {row.waste: row.amount.board_ms for row in waste.buckets} == {
        name: hours * HOUR_MS for name, hours in HOURS.items()
    }
    assert {row.waste: Decimal(row.amount.nano or 0) / NANO for row in waste.buckets} == {
        name: Decimal(cost) for name, cost in COSTS.items()
    }
    assert (waste.wasted.board_ms, waste.share) == (41 * HOUR_MS, Fraction(41, 140))
    assert (waste.difference_board_ms, waste.difference_nano) == (0, 0)


def test_the_buckets_add_up_to_capacity_in_every_form() -> None:
    report = month()
    buckets = json.loads(to_json(report))["waste"]["buckets"]
    assert sum(row["amount"]["board_ms"] for row in buckets) == CAPACITY.board_ms
    assert sum(Decimal(row["amount"]["cost"]) for row in buckets) == Decimal("825.24")
    for section in ("waste", "day_waste"):
        rows = table_rows(report, section)
        assert sum(int(row["board_ms"]) for row in rows) == CAPACITY.board_ms, section
        assert sum(int(row["nano"]) for row in rows) == CAPACITY.nano, section
    assert abs(sum(float(row["share_of_time"]) for row in table_rows(report, "waste")) - 1) < 1e-5
    page = html_buckets(to_html(report))
    assert list(page) == [*LABELS.values(), "Sum of the 11 buckets", "Capacity"]
    text = terminal(report).split("Where the capacity went")[1]
    lines = [line.split() for line in text.splitlines()]
    for name, hours in HOURS.items():
        label, cost = LABELS[Waste(name)], f"{Decimal(COSTS[name]):.2f}"
        assert page[label][0] == f"{hours}.0"
        line = next(
            cells for cells in lines if " ".join(cells).lstrip("!? ").startswith(f"{label} {hours}.0")
        )
        assert page[label][1] in line
        assert abs(Decimal(page[label][1]) - Decimal(cost)) <= Decimal("0.01")
    for label in ("Sum of the 11 buckets", "Capacity"):
        assert page[label] == ("140.0", "825.24")
    assert "Sum of the 11 buckets 140.0 100.0% 825.24" in [" ".join(line) for line in lines]


def test_the_section_says_the_whole_and_how_much_was_looked_at() -> None:
    page, text = to_html(month()), terminal(month())
    assert "41.0 GPU-hours wasted, 29.3% of capacity" in page
    assert "240.69 USD wasted: 41.0 GPU-hours, 29.3% of capacity" in text
    for form in (page, text):
        assert "Sum of the buckets against capacity: difference 0 GPU-ms, 0 nano-USD." in form
        assert "Of 30 windows: 29 final, 1 provisional until more is known, 0 not looked at." in form


def test_what_was_not_looked_at_is_said_and_stands_out() -> None:
    assert looked_at(WasteAssessment(700, 0, 44)) == (
        "Of 744 windows: 700 final, 0 provisional, 44 not looked at, which count as unknown."
    )
    page = to_html(month(assessment=WasteAssessment(20, 0, 10)))
    assert '<p class="note warning">Of 30 windows: 20 final' in page


def test_a_sum_that_is_wrong_is_not_hidden() -> None:
    page = to_html(month(capacity=CostAmount(CAPACITY.board_ms + 1, (CAPACITY.nano or 0) - 2)))
    assert (
        '<p class="note warning">Sum of the buckets against capacity: difference 1 GPU-ms, -2 nano-USD'
        in page
    )


@pytest.mark.parametrize("waste", [None, small_waste(assessment=UNLOOKED, findings=())])
def test_a_month_that_nobody_looked_at_has_no_zeros(waste: Any) -> None:
    report = build_month(small_month(waste=waste))
    assert report.waste is None
    assert json.loads(to_json(report))["waste"] is None
    assert not any(table_rows(report, f"{name}waste") for name in ("", "team_", "day_", "top_job_"))
    for form in (to_html(report), " ".join(terminal(report).split())):
        assert "No detector has looked at this month" in form
        assert "detectors.enabled" in form
        assert "In use" not in form
        assert "What to do first" not in form


def test_an_empty_month_that_was_looked_at_renders() -> None:
    inputs = small_month(
        lines=frame([]), previous=None, adjustments=(), waste=small_waste(lines=waste_frame([]), findings=())
    )
    empty = build_month(inputs)
    assert waste_chart(empty) is None
    for form in (to_html(empty), terminal(empty), to_csv(month_table(empty)), to_json(empty)):
        assert not re.search(r"\bnan\b", form.lower())
    assert "difference 504000000 GPU-ms" in to_html(
        empty
    )  # its capacity was written down; its lines are gone


def test_a_team_sees_its_own_held_time_and_nothing_of_others() -> None:
    report = of_nlp()
    assert report.waste is not None
    assert report.waste.capacity == CostAmount(70 * HOUR_MS, 70 * H100.nano_per_board_hour)
    assert report.waste.share == Fraction(16, 70)
    forms = (to_html(report), terminal(report), to_csv(month_table(report)), to_json(report))
    for form in forms:
        assert not re.search(r"\bvision\b|seg-\d", form)
    for form in forms[:3]:
        words = form.split("</style>")[-1].lower()
        assert not re.search(r"starved|fragmented|no.demand|825\.24|>140\.0| 140\.0", words)
    assert html_buckets(forms[0])["Held"] == ("70.0", "481.60")
    assert "of what was held" in forms[0]
    assert "Sum of the buckets against held time: difference 0 GPU-ms, 0 nano-USD." in forms[0]
    assert sum(int(row["board_ms"]) for row in table_rows(report, "waste")) == 70 * HOUR_MS


def test_the_buckets_of_a_team_are_held_against_its_lines() -> None:
    short = [row for row in waste_lines() if row["team"] == "nlp"][1:]
    report = of_nlp(lines=waste_frame(short))
    assert report.waste is not None
    assert report.waste.difference_board_ms == 50 * HOUR_MS


def test_teams_by_what_they_wasted() -> None:
    waste = month().waste
    assert waste is not None
    assert [(team.team, team.share, mostly(team)) for team in waste.teams] == [
        ("nlp", Fraction(16, 70), "Idle 10.0 h"),
        ("vision", Fraction(5, 30), "Oversized 5.0 h"),
    ]
    for team in waste.teams:
        rows = [row for row in table_rows(month(), "team_waste") if row["team"] == team.team]
        assert sum(int(row["board_ms"]) for row in rows) == team.held.board_ms
    bar = waste_bar(waste.teams[0].buckets, waste.teams[0].held.board_ms)
    assert [rect.css for rect in bar] == ["w-gang_stall", "w-preempted", "w-idle"]
    assert bar[-1].x + bar[-1].width == pytest.approx(100 * 16 / 70, abs=0.02)


def test_a_team_that_wasted_nothing_has_a_dash() -> None:
    report = month(lines=waste_frame([part("productive", 1, team="nlp", job="a")]), capacity=None)
    assert report.waste is not None
    (team,) = report.waste.teams
    assert mostly(team) == "–"
    assert "Per day" not in terminal(report)


def test_the_trend_is_as_high_as_the_hours_and_the_unknown_lies_on_top() -> None:
    chart = waste_chart(month())
    assert chart is not None
    assert (chart.unit, chart.series[0][1]) == ("GPU-hours", "In use")
    assert [css for css, _ in chart.series][-2:] == ["w-no_demand", "w-unknown"]
    first = [rect for rect in chart.rects if rect.title.startswith("2026-10-01")]
    second = [rect for rect in chart.rects if rect.title.startswith("2026-10-02")]
    assert len(first) + len(second) == len(chart.rects)
    assert sum(rect.height for rect in first) == pytest.approx(
        126 / 14 * sum(r.height for r in second), rel=0.01
    )
    assert min(first, key=lambda rect: rect.y).css == "w-unknown"
    assert max(first, key=lambda rect: rect.y).title == "2026-10-01, In use: 75.00 GPU-hours"
    assert "Per day ▃█ at most 78.6%, on 2026-10-02" in terminal(month())


def test_every_bucket_has_a_colour_of_its_own_in_light_dark_and_print() -> None:
    page = to_html(month())
    for waste in Waste:
        values = re.findall(rf"--w-{waste.value}: (#\w+)", page)
        assert len(values) == (0 if waste is Waste.UNKNOWN else 3), waste
        assert f".w-{waste.value} {{ fill: " in page
    assert ".w-unknown { fill: url(#hatch); }" in page
    for report in (month(), of_nlp()):
        assert to_html(report).count('<pattern id="hatch"') == 1


def test_what_to_do_first_is_ranked_by_the_money_that_comes_back() -> None:
    report = month()
    page, text = to_html(report), terminal(report)
    assert re.findall(r'<p class="money-back"><strong>(.*?)</strong>', page) == [
        "165 USD a day at its rate of now",
        "82 USD a day at its rate of now",
    ]
    for form in (page, text):
        assert form.index("Job nlp/train-1 holds 1 GPU") < form.index("Job nlp/seg-1 holds 1 GPU")
    assert "1. low  nlp  165 USD a day at its rate of now; " in text
    job = next(line for line in text.splitlines() if line.split()[:3] == ["train-1", "Idle", "4.0"])
    assert job.split() == ["train-1", "Idle", "4.0", "27.52", "nlp", "#7"]


def test_what_it_cost_by_cause_stands_in_every_form() -> None:
    report = month()
    page, text = to_html(report), terminal(report)
    assert page.index("What it cost, by cause") < page.index("What to do first")
    assert text.index("Teams") < text.index("What to do first") < text.index("What it cost, by cause")
    rows = [line.split() for line in text.splitlines() if line.rstrip().endswith(".md")]
    assert [(row[0], row[-2], row[-1].removeprefix("docs/detectors/")) for row in rows[:3]] == [
        ("Idle", "nlp", "idle_allocation.md"),
        ("Starved", "nobody", "quota_starvation.md"),
        ("Unusable", "nobody", "not_advertised.md"),
    ]
    assert "<code>docs/detectors/fragmentation.md</code>" in page
    assert re.search(r"<bdi>nobody</bdi></td><td>8.0</td>", page)


def test_findings_that_are_alike_take_one_place_of_the_list() -> None:
    report = month(findings=tuple(known(n, job=f"note-{n}") for n in range(1, 10)))
    page, text = to_html(report), terminal(report)
    words = "and 8 more jobs of nlp: 1,321 USD a day at their rate of now; findings 2, 3, 4, 5, 6, 7, 8, 9"
    assert page.count('<p class="money-back">') == 1
    for form in (page, text):
        assert words in form
        assert "gpucost findings show 1" in form


def test_a_finding_that_somebody_knows_of_says_so() -> None:
    report = month(findings=(replace(known(), state="acknowledged"),))
    assert "finding 7 · acknowledged" in to_html(report)
    assert "finding 7, acknowledged, since" in terminal(report)


def test_unknown_hours_of_teams_stand_beside_their_waste() -> None:
    words = "Unknown: 5.0 h not observed at all; 4.0 h held, and not measured."
    for form in (to_html(month()), terminal(month())):
        assert words in form
    row = next(line.split() for line in terminal(month()).splitlines() if line.split()[:2] == ["nlp", "16.0"])
    assert row == ["nlp", "16.0", "110.08", "22.9%", "4.0", "70.0", "Idle", "10.0", "h"]


def test_on_a_phone_waste_keeps_its_mark_and_what_is_wider_says_so() -> None:
    style = to_html(month()).split("</style>")[0]
    phone = style.split("@media (max-width: 720px)")[1].split("@page")[0]
    assert "display: none" not in phone.split(".tag")[1].split("}")[0]
    narrow = style.split("@media (max-width: 1020px)")[1].split("@media")[0]
    assert "position: sticky" in narrow, "the first column stays"
    assert "linear-gradient" in style.split(".scroll {")[1].split("}")[0], "a shadow where there is more"


def test_nothing_to_do_is_said() -> None:
    assert "No finding of this month goes on." in to_html(month(findings=()))
    assert "No finding goes on." in terminal(month(findings=()))


def test_a_finding_without_a_price_or_a_team_is_no_zero() -> None:
    report = month(findings=(known(team="", hourly=None),))
    assert "<strong>not in money</strong>" in to_html(report)
    assert "1. low  platform, no team  not in money" in terminal(report)


PATCH = 'kubectl patch job x -p \'{"spec": {"a": "<b>&"}}\' ' + "--long " * 30 + "\n  - second: line"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_patch_can_be_copied_whole(width: int) -> None:
    report = month(findings=(known(patch=PATCH),))
    (shown_patch,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", to_html(report), re.DOTALL)
    assert html.unescape(shown_patch) == PATCH
    text = terminal(report, width)
    for line in PATCH.splitlines():
        assert f"    {line}" in text.splitlines() or f"    {line}".rstrip() in map(
            str.rstrip, text.splitlines()
        )
    others = [line for line in text.splitlines() if "--long" not in line]
    assert max(map(cell_len, others)) <= width


def test_absurd_patches_are_cut_and_say_so() -> None:
    assert patch_text("a\u202eb\n") == "a\\u202eb"
    long = patch_text("x: 1\n" * 5_000).splitlines()
    assert (len(long), long[-1]) == (61, "# …")


@pytest.mark.parametrize("width", [60, 80, 130])
def test_no_number_is_cut_however_narrow(width: int) -> None:
    report = month(lines=waste_frame([row | {"nano": row["nano"] * 10_000} for row in waste_lines()]))
    text = terminal(report, width).split("Where the capacity went")[1].split("What it cost")[0]
    assert "8,252,400.00" in text
    assert "4,297,750.00" in text
    assert "…" not in text


@pytest.mark.fault(31)
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_changes_no_byte(seed: int) -> None:
    lines = small_waste().lines.sample(frac=1, random_state=seed)
    first, second = month(), month(lines=lines, findings=small_waste().findings[::-1])
    assert to_json(first) == to_json(second)
    assert to_html(first) == to_html(second)
    assert to_csv(month_table(first)) == to_csv(month_table(second))


def hostile() -> MonthReport:
    """Hostile text wherever the waste ledger and findings have names."""
    lines = [
        part("idle", 1 + n, team=name, job=name, namespace=name, job_kind=name, cluster=name, job_uid=name)
        for n, name in enumerate(HOSTILE)
    ]
    findings = tuple(
        known(n, job=name, team=name, summary=name, action=name, patch=f"a: 1\n{name}")
        for n, name in enumerate(HOSTILE)
    )
    return month(lines=waste_frame(lines), capacity=None, findings=findings)


@pytest.mark.fault(63)
def test_hostile_names_are_text() -> None:
    page = to_html(hostile())
    assert not {tag for tag, _ in Elements(page).found} & {"script", "img", "b"}
    assert "\u202e" not in page
    assert "\\u202egnp.exe" in page
    text = terminal(hostile())
    assert not {"\x1b", "\u202e"} & set(text)
    assert "<script>document.title='owned'</script>" in text
    for line in csv.reader(io.StringIO(to_csv(month_table(hostile())))):
        assert not any(cell.startswith("=") for cell in line)


@needs_chromium
@pytest.mark.chromium
@pytest.mark.fault(63)
def test_chromium_runs_no_hostile_name_and_complains_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(to_html(hostile()), encoding="utf-8")
    document = dump_dom(path)
    assert "<title>GPU cost, October 2026</title>" in document
    assert not re.search(r"<(script|img)\b", document)
    path.write_text(to_html(month()), encoding="utf-8")
    assert console_messages(path) == []


def test_the_section_can_be_read_without_seeing() -> None:
    elements = Elements(to_html(month()))
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(attributes.get("scope") for attributes in elements.all("th"))
    for _, attributes in elements.found:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(ids)
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attributes)


def test_no_printed_word_stands_for_two_numbers() -> None:
    """Every line of the terminal's capacity and waste tables, and the CSV rows behind them: the same word has
    the same hours and money wherever it stands. "unknown" was 5.0 h in the one table, and more in the other.
    """
    report = month()
    assert report.capacity is not None
    assert report.waste is not None
    parts = {part: getattr(report.capacity.buckets, part.value) for part in CAPACITY_BUCKETS}
    printed = [(PARTS[part], amount) for part, amount in parts.items()]
    printed += [(LABELS[Waste(row.waste)].lower(), row.amount) for row in report.waste.buckets]
    words = [word for word, _ in printed]
    assert len(words) == len({*words}) == 15
    text = terminal(report)
    amounts: dict[str, set[tuple[str, ...]]] = {}
    for line in text.split("Wasted by team")[0].splitlines():
        found = re.match(r"^\W*([A-Za-z][a-z ]*?) {2,}([\d,.]+) +[<>]?[\d.]+%? *([\d,.]+)", line)
        if found:
            amounts.setdefault(found[1].strip().lower(), set()).add((found[2], found[3]))
    for word, amount in printed:
        assert amounts[word] == {(display.hours(amount.board_ms), display.money(amount.nano))}, word
    rows = {
        (row["section"], row["waste"] or row["bucket"]): int(row["nano"])
        for section in ("capacity", "waste")
        for row in table_rows(report, section)
    }
    assert rows == {
        **{("capacity", part.value): amount.nano for part, amount in parts.items()},
        **{("waste", row.waste): row.amount.nano for row in report.waste.buckets},
    }
