"""The HTML page: what it says, what it refuses to run, and how a real browser sees it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import zlib
from base64 import b64encode
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import DAY_MS
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.builder import build_month
from gpucost.reports.month.inputs import AdjustmentFacts
from gpucost.reports.month.model import CapacityBuckets
from gpucost.reports.render.html import (
    MOST_ROWS,
    capacity_bar,
    day_chart,
    to_html,
)
from tests.reports.builders import H100, frame, holed, realistic_month, row, small_month, windows
from tests.support.chromium import console_messages, dump_dom, needs_chromium, print_to_pdf, screenshot

HOSTILE = (
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=document.title='owned'>",
    "</style></svg><b>",
    "{{ 7 * 7 }}",
    "=cmd|' /C calc'!A0",
    "\u202egnp.exe",
    "x" * 20_000,
)


class Elements(HTMLParser):
    """Every start tag with its attributes, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.found if found == tag]


def hostile_page() -> str:
    lines = [
        row(
            1 + i,
            H100,
            **dict.fromkeys(("team", "job", "project", "namespace", "queue", "cluster_queue", "model"), name),
            job_uid=name,
            cluster=name,
        )
        for i, name in enumerate(HOSTILE)
    ]
    name = HOSTILE[0]
    return to_html(
        build_month(
            small_month(
                lines=frame(lines),
                days=frame([line | {"step_start_ms": small_month().month.window.start_ms} for line in lines]),
                windows=windows(name),
                problems=(DataProblem(DataProblemCode.END_UNKNOWN, name, name, name),),
                adjustments=(AdjustmentFacts(name, 1, 0, name, name, name),),
            )
        )
    )


@cache
def realistic_page() -> str:
    return to_html(build_month(realistic_month()))


def test_the_page_says_the_numbers() -> None:
    page = to_html(build_month(small_month()))
    for text in ("October 2026", "584.53", "825.24", "100.0 GPU-hours, 4 jobs", "+21.5%", "71.4%"):
        assert text in page
    assert "difference 0 GPU-ms, 0 nano-USD" in page
    assert "AWS price list" in page
    assert "2026-10-31T00:00:00Z/" not in page  # the tail is missing, no gap
    assert "24 h" in page


def test_adjustments_reach_the_totals() -> None:
    page = to_html(build_month(small_month()))
    assert "−5.00 adjustments, net <strong>579.53</strong>" in page
    for net in ("476.60", "579.53"):
        assert f'<td><span class="money">{net}</span><small>−5.00</small></td>' in page
    assert "net" not in to_html(build_month(small_month(adjustments=()))).split("<main>")[1].lower().split()


def test_what_has_no_name_is_called_so() -> None:
    page = to_html(build_month(small_month(lines=frame([row(1, team="nlp", job="a", job_kind="")]))))
    for words in ("no project", "no queue", "no kind"):
        assert f'<th scope="row">{words}' in page


def test_the_spans_that_were_not_observed_are_listed() -> None:
    page = to_html(build_month(small_month(windows=holed())))
    assert "2026-10-04T00:00:00Z/2026-10-06T00:00:00Z</td><td>48 h</td>" in page
    assert "6 more spans were not wholly observed" in page


def test_short_tables_are_not_divided_between_pages() -> None:
    many = [row(1, team=f"team-{i:03}", job=f"j{i}") for i in range(MOST_ROWS)]
    short, long = (
        to_html(build_month(small_month(lines=frame(lines), previous=None)))
        for lines in ([row(1, team="nlp", job="a")], many)
    )
    teams = 'aria-labelledby="teams">\n<table class="dense{}">'
    assert teams.format(" short") in short
    assert teams.format("") in long
    assert ".short { break-inside: avoid; }" in short


def test_the_page_runs_nothing_and_fetches_nothing() -> None:
    elements = Elements(realistic_page())
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "a"}
    for _, attributes in elements.found:
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attributes)
    assert not re.search(r"https?://|@import|url\((?!#)", realistic_page())


def test_the_policy_allows_this_style_only() -> None:
    page = realistic_page()
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(meta for meta in Elements(page).all("meta") if "http-equiv" in meta)["content"]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_tables_and_charts_can_be_read_without_seeing() -> None:
    page = realistic_page()
    elements = Elements(page)
    assert all(attributes.get("scope") for attributes in elements.all("th"))
    drawn = [svg for svg in elements.all("svg") if svg.get("aria-hidden") != "true"]
    assert len(drawn) == 2
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements.found:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(ids)
    assert page.count("<desc") == 2


@pytest.mark.fault(63)
def test_hostile_names_are_text() -> None:
    page = hostile_page()
    tags = {tag for tag, _ in Elements(page).found}
    assert not tags & {"script", "img", "b"}
    assert "49" not in re.findall(r"<bdi>(.*?)</bdi>", page)
    assert "\u202e" not in page
    assert "\\u202egnp.exe" in page
    assert "x" * 100 not in page


def test_long_tables_are_cut_and_say_so() -> None:
    lines = [row(1, team=f"team-{i:03}", job=f"j{i}") for i in range(MOST_ROWS + 7)]
    page = to_html(build_month(small_month(lines=frame(lines), previous=None, adjustments=())))
    assert "7 more rows in the JSON, CSV and Parquet form" in page
    assert f"team-{MOST_ROWS:03}" not in page


def test_what_has_no_price_is_said_at_the_top() -> None:
    page = to_html(build_month(small_month(lines=frame([row(2, None, team="nlp", job="a")]))))
    assert "2.0 of the GPU-hours held have no price" in page


def test_the_capacity_bar_shows_what_is_small_and_fills_its_width() -> None:
    buckets = CapacityBuckets(CostAmount(10**9, 1), NOTHING, CostAmount(1, 0), CostAmount(10**9, 1), NOTHING)
    rects = capacity_bar(buckets)
    assert [rect.css for rect in rects] == ["held", "unavailable", "unknown"]
    assert all(rect.width >= 2 for rect in rects)
    assert rects[-1].x + rects[-1].width == pytest.approx(1000, abs=0.05)
    assert capacity_bar(CapacityBuckets(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)) == ()


def test_the_bars_of_the_chart_are_as_high_as_the_cost() -> None:
    start_ms = small_month().month.window.start_ms
    lines = [row(hours, team="nlp", job="a", step_start_ms=start_ms) for hours in (1, 3)]
    lines.append(row(2, team="vision", job="b", step_start_ms=start_ms + DAY_MS))
    chart = day_chart(build_month(small_month(lines=frame(lines), days=frame(lines), previous=None)))
    assert chart is not None
    high, low = chart.rects
    assert high.height == pytest.approx(2 * low.height, abs=0.02)
    assert high.y + high.height == pytest.approx(chart.baseline, abs=0.02)
    assert [tick.label for tick in chart.y_ticks] == ["0", "10", "20", "30"]  # 4 x 6.88 = 27.52
    assert high.title == "2026-10-01, nlp: 27.52 USD"
    assert [label for _, label in chart.series] == ["nlp", "vision"]


def test_many_teams_share_the_last_colour() -> None:
    start_ms = small_month().month.window.start_ms
    lines = frame([row(20 - i, team=f"t{i:02}", job="a", step_start_ms=start_ms) for i in range(12)])
    chart = day_chart(build_month(small_month(lines=lines, days=lines, previous=None, adjustments=())))
    assert chart is not None
    assert [label for _, label in chart.series] == [*(f"t{i:02}" for i in range(6)), "other teams"]


def test_without_any_price_the_chart_shows_hours() -> None:
    start_ms = small_month().month.window.start_ms
    lines = frame([row(5, None, team="nlp", job="a", step_start_ms=start_ms)])
    chart = day_chart(build_month(small_month(lines=lines, days=lines)))
    assert chart is not None
    assert (chart.unit, chart.rects[0].title) == ("GPU-hours", "2026-10-01, nlp: 5.00 GPU-hours")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(realistic_page(), encoding="utf-8")
    return path


@needs_chromium
@pytest.mark.chromium
def test_chromium_shows_the_page_at_desktop_width(page: Path, tmp_path: Path) -> None:
    raw = screenshot(page, tmp_path / "page.png", width=1280, height=1000).read_bytes()
    assert (int.from_bytes(raw[16:20]), int.from_bytes(raw[20:24])) == (1280, 1000)
    assert len(set(pixels(raw))) > 100  # a blank page has a handful


@needs_chromium
@pytest.mark.chromium
def test_chromium_applies_the_style_and_complains_of_nothing(page: Path) -> None:
    assert console_messages(page) == []


@needs_chromium
@pytest.mark.chromium
def test_the_printed_page_has_its_text(page: Path, tmp_path: Path) -> None:
    if shutil.which("pdftotext") is None:
        pytest.skip("the pdftotext binary (poppler-utils) is not installed")
    pdf = print_to_pdf(page, tmp_path / "page.pdf")
    done = subprocess.run(
        ["pdftotext", "-layout", str(pdf), "-"], capture_output=True, timeout=60, check=True
    )
    pages = done.stdout.decode().split("\f")[:-1]
    assert len(pages) > 2
    for text in ("October 2026", "Where the capacity went", "203,653.78", "vision", "Settled"):
        assert text in pages[0]
    assert "Where these numbers come from" in "".join(pages)
    assert f"{len(pages)}/{len(pages)}" in pages[-1].replace(" ", "")
    heads = [text for text in pages if re.search(r"Job +Kind +GPU-hours", text)]
    assert len(heads) >= 2  # the table goes over the page, and its head with it


@needs_chromium
@pytest.mark.chromium
@pytest.mark.fault(63)
def test_chromium_runs_no_hostile_name(tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile_page(), encoding="utf-8")
    document = dump_dom(path)
    assert "<title>GPU cost, October 2026</title>" in document
    assert not re.search(r"<(script|img)\b", document)


def pixels(png: bytes) -> bytes:
    """The inflated picture data of a PNG file."""
    data, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    return zlib.decompress(data)
