"""The page of a month's data: what the report says of it, by the day too, and who sees how the service is."""

from __future__ import annotations

import re
from fractions import Fraction
from html import unescape
from pathlib import Path

import pytest
from httpx2 import Response

from gpucost.api.app import create_app
from gpucost.api.pages.data_pages import DayCoverage, coverage_strips, least_observed
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.db.records import LedgerState, WindowInfo
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base import display
from tests.api.conftest import SETTINGS, Clients
from tests.ledger.builders import CLUSTER, NOW_MS, hour, ingest, line
from tests.ledger.builders import MONTH as BUILT
from tests.support.ledgers import new_ledger

MONTH = Month.parse("2026-10")
START = MONTH.window.start_ms
DATA = "/month/2026-10/data"


def info(start_ms: int, end_ms: int, observed_ms: int, cluster: str = "c") -> WindowInfo:
    """A settled window."""
    window = Window(start_ms, end_ms)
    return WindowInfo(cluster, window, LedgerState.SETTLED, 1, "d", observed_ms, "s", "v", 0, 0, 0, 0)


def texts(page: Response) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def test_days_add_up_and_say_what_is_missing_and_what_is_ahead() -> None:
    windows = (
        info(START, START + HOUR_MS, HOUR_MS),
        info(START + 2 * HOUR_MS, START + 3 * HOUR_MS, HOUR_MS // 2),
        info(START + DAY_MS, START + 3 * DAY_MS, DAY_MS),  # longer than a day
        info(START, START + DAY_MS, DAY_MS, "other"),
    )
    now_ms = START + 4 * DAY_MS + 6 * HOUR_MS
    found = coverage_strips(("c", "empty", "other"), windows, MONTH.window, now_ms)
    strips = {strip.cluster: strip for strip in found}
    assert list(strips) == ["c", "empty", "other"]
    for strip in strips.values():
        for day in strip.days:
            assert day.observed + day.unobserved + day.missing + day.ahead == DAY_MS
            assert min(day.observed, day.unobserved, day.missing, day.ahead) >= 0
        assert len(strip.days) == 31
    days = strips["c"].days
    half = HOUR_MS // 2
    assert days[0] == DayCoverage("2026-10-01", HOUR_MS + half, half, 22 * HOUR_MS, 0)
    assert [each.observed for each in days[1:4]] == [DAY_MS // 2, DAY_MS // 2, 0]
    assert (days[3].missing, days[3].part) == (DAY_MS, 0)
    assert (days[4].missing, days[4].ahead) == (6 * HOUR_MS, 18 * HOUR_MS)
    assert (days[5].ahead, days[5].part) == (DAY_MS, None)
    chosen = [strip.cluster for strip in least_observed(found * 3)]
    assert chosen == [*["c"] * 2, *["empty"] * 3, *["other"] * 3], (
        "one of those that were seen most is left out"
    )
    assert strips["empty"].days[0].missing == DAY_MS
    assert sum(rect.height for rect in strips["other"].rects if rect.css == "held") == 26


def test_the_page_says_what_the_report_says(clients: Clients) -> None:
    page, report = clients.fin.get(DATA), clients.fin.get("/v1/reports/2026-10").json()
    said, facts = texts(page), report["provenance"]
    for each in (facts["digest"], *facts["sources"], *(rate["rate_id"] for rate in facts["rates"])):
        assert each in said
    for rate in facts["rates"]:
        assert f">{display.money(rate['rated']['nano'])}<" in page.text
    (cluster,) = facts["clusters"]
    covered = Fraction(cluster["covered_ms"], MONTH.window.length_ms)
    assert f"{display.percent(covered, 1)} of the month is in the ledger" in said
    for gap in (*cluster["gaps"], *(each["span"] for each in facts["unobserved"])):
        assert f"{gap['start']} {gap['end']}" in said
    for problem in report["problems"]:
        assert problem["detail"][:100] in said
    blockers = clients.fin.get("/v1/months/2026-10").json()["months"][0]["blockers"]
    assert blockers
    for blocker in blockers:
        assert blocker in said
    assert said.count("2026-10-01 23 h 1 h – – 95.8%") == 1, "23 of 24 hours, and one that was not observed"
    assert said.count("2026-10-02 – – 1 h 23 h 0.0%") == 1, "an hour of it is over"
    assert "2026-10-31 – – – 24 h –" in said


def test_a_team_sees_what_its_report_says(clients: Clients) -> None:
    page = texts(clients.ada.get(DATA))
    report = clients.ada.get("/v1/reports/2026-10").json()
    for foreign in ("vision", "detect", "uid-detect", "batch"):
        assert foreign not in page.split()
    for problem in report["problems"]:
        assert problem["detail"][:100] in page
    assert report["provenance"]["digest"] in page


@pytest.mark.parametrize(("who", "sees"), [("fin", True), ("root", True), ("ada", False), ("vera", False)])
def test_how_the_service_is_is_for_who_may_ask_readyz(who: str, sees: bool, clients: Clients) -> None:
    client = getattr(clients, who)
    for _ in range(2):  # kept the second time
        assert ("The service now" in client.get(DATA).text) is sees
    assert (client.get("/readyz").status_code == 200) is sees


def test_a_month_without_data_and_one_that_is_none(clients: Clients) -> None:
    page = {"Accept": "text/html"}
    for url, status in (("/month/2031-01/data", 404), ("/month/2026-13/data", 422), (f"{DATA}?x=1", 400)):
        refused = clients.fin.get(url, headers=page)
        assert (refused.status_code, refused.headers["content-type"]) == (status, "text/html; charset=utf-8")


def test_a_closed_month_with_what_has_no_price_and_hostile_words(tmp_path: Path) -> None:
    """How it was closed, which GPUs have no price, and text from outside as text."""
    bad = '<script>alert("x")</script>\u202e' + "y" * 20_000
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: NOW_MS) as ledger:
        window = hour(0)
        problems = [DataProblem(DataProblemCode.PRICE_MISSING, CLUSTER, bad[:200], bad, HOUR_MS)]
        ingest(
            ledger,
            window,
            line(window, team="red", pod_uid="a"),
            line(window, team="red", pod_uid="b", model="B200", node="n2", nano=None, rate_id=""),
            source=bad[:200],
            problems=problems,
        )
        ledger.close_month(BUILT, author="root", min_coverage=Fraction(0), reason=bad[:900])
        clients = Clients(create_app(ledger, SETTINGS, now=lambda: NOW_MS))
        page = clients.fin.get(f"/month/{BUILT}/data")
        report = clients.fin.get(f"/v1/reports/{BUILT}").json()
        said = texts(page)
    assert "Closed at" in said
    assert "by root , in spite of what was missing" in said
    assert report["provenance"]["month_digest"] in said
    assert f"gpucost month verify {BUILT}" in said
    assert report["totals"]["held"]["unpriced_board_ms"] == HOUR_MS
    assert "Without a price 1.0 GPU-hours" in said
    assert "B200 1.0 1.0" in said
    assert "the problem price missing above says which" in said
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    assert len(page.text) < 40_000
