"""The pages of the demo in a real browser: every one by its links, what it asks for, and that it adds up."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from tests.support.browser import BrowserVisit, running_browser, visit
from tests.support.chromium import needs_chromium
from tests.support.demo_site import DemoSite, running_demo

pytestmark = [pytest.mark.slow, pytest.mark.chromium, needs_chromium]

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages.md"
MONTH = "2026-10"
TEAM = "vision"
EACH = 2
"""Pages of one kind that are looked at."""
KINDS = {
    *("/month/{month}", "/month/{month}/team", "/month/{month}/change", "/month/{month}/data"),
    *(
        "/month/{month}/preview",
        "/month/{month}/what-if",
        "/job",
        "/queues",
        "/nodes",
        "/findings",
        "/finding/{id}",
        "/advise",
    ),
    *("/method", "/method/{page}", "/search"),
}
_UNSEEN = re.compile(r"^/(v1|static|logout|login|readyz|metrics)\b|format=")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoSite]:
    with running_demo(tmp_path_factory.mktemp("demo")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture
def person(site: DemoSite, browser: Browser) -> Iterator[BrowserVisit]:
    with visit(browser, site.base) as found:
        yield found


def kind(path: str) -> str:
    """``/month/2026-10/team?team=x`` -> ``/month/{month}/team``."""
    plain = urlsplit(path).path
    plain = re.sub(r"^/month/[^/]+", "/month/{month}", plain)
    plain = re.sub(r"^/finding/\d+", "/finding/{id}", plain)
    return re.sub(r"^/method/.+", "/method/{page}", plain)


def walked(person: BrowserVisit) -> dict[str, list[str]]:
    """Pages that links lead to from the first one, by kind, a few of each; each is opened once."""
    seen: dict[str, list[str]] = {}
    waiting = ["/", f"/search?q={TEAM}"]
    while waiting:
        path = waiting.pop(0)
        if path != "/" and (_UNSEEN.search(path) or path in seen.get(kind(path), ())):
            continue
        if path != "/" and len(seen.get(kind(path), ())) >= EACH:
            continue
        answer = person.go(path)
        assert answer.status == 200, path
        here = person.here()
        if here not in seen.setdefault(kind(here), []):
            seen[kind(here)].append(here)
            waiting += person.links()
    return seen


@pytest.fixture(scope="module")
def paths(site: DemoSite, browser: Browser) -> dict[str, list[str]]:
    with visit(browser, site.base) as person:
        found = walked(person)
        assert person.foreign == []
        assert person.complaints == []
    return found


def test_every_page_is_reached_by_links(paths: dict[str, list[str]]) -> None:
    assert set(paths) >= KINDS


def test_every_page_is_accessible_in_light_and_dark(
    paths: dict[str, list[str]], site: DemoSite, browser: Browser
) -> None:
    wrong = []
    for dark in (False, True):
        with visit(browser, site.base, dark=dark) as person:
            for each in paths.values():
                person.go(each[0])
                wrong += [
                    f"{each[0]} {'dark' if dark else 'light'}: {found}" for found in person.violations()
                ]
    assert wrong == []


def test_no_page_needs_a_script_or_has_one_inline(
    paths: dict[str, list[str]], site: DemoSite, browser: Browser, person: BrowserVisit
) -> None:
    with visit(browser, site.base, script=False) as plain:
        for [path, *_] in paths.values():
            answer = plain.go(path)
            policy = answer.headers["content-security-policy"]
            assert "unsafe" not in policy, path
            assert "default-src 'none'" in policy, path
            text = plain.page.locator("main").inner_text()
            person.go(path)
            with_script = person.page.locator("main").inner_text()
            assert without_copy(with_script) == without_copy(text), path
            assert plain.page.locator("[style], script:not([src]), style").count() == 0, path
    assert person.complaints == []


def without_copy(text: str) -> list[str]:
    """Lines of a page, without the buttons that a script adds."""
    return [line.strip() for line in text.splitlines() if line.strip() not in ("", "Copy")]


def test_every_link_to_rows_and_files_answers(
    paths: dict[str, list[str]], site: DemoSite, person: BrowserVisit
) -> None:
    rows: dict[str, str] = {}
    for each in paths.values():
        person.go(each[0])
        for link in person.links():
            if link.startswith("/v1/"):
                rows.setdefault(re.sub(r"[?].*", "", link) + str("format=csv" in link), link)
    assert len(rows) > 8
    for link in rows.values():
        with urllib.request.urlopen(f"{site.base}{link}", timeout=120) as answer:
            assert answer.status == 200, link


def test_from_the_month_down_to_one_interval_of_one_job_and_back(person: BrowserVisit) -> None:
    person.go("/")
    page = person.page
    page.locator("table").first.get_by_role("link", name=TEAM, exact=True).click()
    assert f"team={TEAM}" in person.here()
    page.locator("#jobs ~ .scroll tbody th a").first.click()
    assert person.here().startswith("/job?job=")
    page.locator('a[href*="#interval-"]').first.click()
    interval = page.locator(":target")
    assert interval.count() == 1
    assert re.search(r"2026-10-\d\d", interval.inner_text())
    page.locator(".crumbs").get_by_role("link", name=TEAM, exact=True).click()
    assert f"team={TEAM}" in person.here()
    page.locator(".crumbs").get_by_role("link").first.click()
    assert person.here() == f"/month/{MONTH}"


def amount(text: str) -> Decimal:
    return Decimal(text.replace(",", "").strip())


def test_totals_are_those_of_the_api_and_of_the_ledger_to_the_cent(
    site: DemoSite, person: BrowserVisit
) -> None:
    report = site.api(f"/v1/reports/{MONTH}")
    with sqlite3.connect(f"file:{site.folder / 'ledger.db'}?mode=ro", uri=True) as ledger:
        rows = ledger.execute(
            "SELECT h.team, SUM(l.nano) FROM usage_line l JOIN holder h ON h.id = l.holder_id"
            " JOIN ledger_window w ON w.id = l.window_id WHERE w.month = ? AND l.bucket = 'held'"
            " GROUP BY h.team",
            (MONTH,),
        ).fetchall()
    of_ledger = {team: round(Decimal(nano) / 10**9, 2) for team, nano in rows}
    of_api = {
        each["row"]["group"]["team"]: round(Decimal(each["adjusted"]["cost"]), 2) for each in report["teams"]
    }
    assert of_api == of_ledger
    person.go(f"/month/{MONTH}")
    shown = {}
    for row in person.page.locator("#teams ~ .scroll tbody tr").all():
        name = row.locator("th bdi").first.inner_text()
        shown[name] = amount(row.locator("td").first.locator(".money").inner_text())
    assert shown == {"no team" if team.startswith("__") else team: cost for team, cost in of_api.items()}
    total = person.page.locator("#teams ~ .scroll tfoot td").first.inner_text()
    assert amount(total) == round(Decimal(report["totals"]["adjusted"]["cost"]), 2)
    assert "0 GPU-ms, 0 nano-USD" in person.page.locator(".proof").inner_text()
    person.go(f"/month/{MONTH}/team?team={TEAM}")
    assert f"{of_api[TEAM]:,}" in person.page.locator(".lead").inner_text()


def test_the_table_of_a_chart_equals_its_picture(person: BrowserVisit) -> None:
    person.go(f"/month/{MONTH}")
    page = person.page
    page.locator("details.data summary").first.click()
    heads = page.locator("#trend-table thead th").all_inner_texts()[1:]
    table = {}
    for row in page.locator("#trend-table tbody tr").all():
        day, values = row.locator("th").inner_text(), row.locator("td").all_inner_texts()
        table |= {(day, head): amount(value) for head, value in zip(heads, values, strict=True)}
    drawn = page.eval_on_selector_all(
        "#waste ~ figure svg.day rect, section[aria-labelledby=waste] svg.day rect",
        "all => all.map(each => [each.querySelector('title').textContent, +each.getAttribute('height')])",
    )
    picture = {}
    for title, height in drawn:
        [(day, head, value)] = re.findall(r"^(\S+), (.+): ([0-9.,]+) GPU-hours$", title)
        picture[day, head] = amount(value), height
    assert {key: value for key, (value, _) in picture.items()} == {
        key: value for key, value in table.items() if value or key in picture
    }
    assert len({day for day, _ in table}) == 31
    whole, tallest = max((value, height) for value, height in picture.values())
    for value, height in picture.values():
        assert height == pytest.approx(tallest * float(value / whole), abs=0.02)


def questions() -> list[tuple[str, list[str]]]:
    """Of docs/pages.md: each question with the links to click, from the first page."""
    rows = re.findall(r"^\| \d \| (.+?) \| (.+?) \| .+? \|$", PAGES.read_text("utf-8"), re.MULTILINE)
    return [(question, re.findall(r"`([^`]+)`", clicks)) for question, clicks in rows]


@pytest.mark.parametrize(("question", "clicks"), questions(), ids=lambda each: str(each)[:40])
def test_the_first_questions_are_answered_in_three_clicks(
    question: str, clicks: list[str], person: BrowserVisit
) -> None:
    assert len(clicks) <= 3, question
    person.go("/")
    for click in clicks:
        link = person.page.get_by_role("link", name=click, exact=True)
        (link if link.count() else person.page.get_by_role("button", name=click, exact=True)).first.click()
    row = next(line for line in PAGES.read_text("utf-8").splitlines() if f"| {question} |" in line)
    [said] = re.findall(r"\*“(.+?)”\*", row)
    assert said in person.page.locator("main").inner_text(), question


def test_the_change_to_make_is_seen_in_whole(person: BrowserVisit) -> None:
    person.go("/findings?pattern=idle_allocation")
    person.page.get_by_role("row").filter(has_text="finetune-five-of-eight").get_by_role("link").first.click()
    change = person.page.get_by_label("the change", exact=True)
    assert change.inner_text().strip().splitlines()[-1].strip() == '"nvidia.com/gpu": 5'
    assert change.evaluate("it => it.scrollHeight <= it.clientHeight")


def test_nodes_of_every_kind_have_the_price_that_the_month_has(person: BrowserVisit) -> None:
    person.go("/nodes?node=a100-owned-01")
    assert "0.772174543 USD a GPU-hour" in person.page.locator("main").inner_text()


def test_the_first_page_is_the_month(person: BrowserVisit) -> None:
    person.go("/")
    assert person.here() == f"/month/{MONTH}"


def test_a_page_prints(person: BrowserVisit, tmp_path: Path) -> None:
    person.go(f"/month/{MONTH}")
    file = tmp_path / "month.pdf"
    person.page.pdf(path=file)
    text = subprocess.run(["pdftotext", str(file), "-"], capture_output=True, text=True, check=True).stdout
    assert "Who pays what" in text
    assert "Search" not in text
