"""The forecast of a month that goes on, from a ledger, and on its page and in the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from benchmarks.report import PRICE, lines_of
from gpucost.api.app import create_app
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger import Ledger
from gpucost.service.reporting.month_forecasts import forecast_score, month_forecast
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from tests.support.ledgers import new_ledger

MONTH = Month(2026, 10)
FIRST_MS = MONTH.window.start_ms - 30 * DAY_MS
UNTIL_MS = MONTH.window.start_ms + 10 * DAY_MS
DAILY = 8 * PRICE.nano_per_board_hour
"""Eight GPUs of one team, for an hour of each day."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Forty days of one team, the last ten of them of a month that goes on."""
    with filled(tmp_path_factory.mktemp("forecast"), Window(FIRST_MS, UNTIL_MS)) as found:
        yield found


@contextmanager
def filled(folder: Path, span: Window) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(folder / "ledger.db"), now=lambda: span.end_ms + HOUR_MS) as found:
        for day, window in enumerate(span.split(DAY_MS)):
            found.ingest(
                "c",
                window,
                lines_of(window, 8, day, 1),
                observed_ms=DAY_MS,
                rates={PRICE.rate_id: PRICE},
                source="test",
                code_version="test",
                settle=True,
            )
        yield found


def test_what_is_left_goes_on_as_before(ledger: Ledger) -> None:
    found = month_forecast(ReportService(ledger, "test", {}), EVERYTHING, MONTH, UNTIL_MS)
    assert found is not None
    assert (found.as_of, found.days_left) == ("2026-10-11T00:00:00Z", 21)
    [team] = found.teams
    assert (team.team, team.expected_nano) == ("team-00", 31 * DAILY)
    assert found.total.expected_nano == 31 * DAILY


@pytest.mark.parametrize(
    ("month", "now_ms"),
    [(MONTH, MONTH.window.end_ms), (MONTH.previous(), UNTIL_MS), (Month(2026, 12), UNTIL_MS)],
)
def test_a_month_that_is_over_or_begins_later_has_none(ledger: Ledger, month: Month, now_ms: int) -> None:
    assert month_forecast(ReportService(ledger, "test", {}), EVERYTHING, month, now_ms) is None


def test_a_month_that_begins_where_the_ledger_ends_is_all_forecast(tmp_path: Path) -> None:
    begin_ms = MONTH.window.start_ms
    with filled(tmp_path, Window(begin_ms - 60 * DAY_MS, begin_ms)) as ledger:
        found = month_forecast(ReportService(ledger, "test", {}), EVERYTHING, MONTH, begin_ms)
    assert found is not None
    assert (found.as_of, found.days_left) == ("2026-10-01T00:00:00Z", 31)
    assert found.total.expected_nano == 31 * DAILY


def test_another_team_is_in_nothing_of_it(ledger: Ledger) -> None:
    other = Scope(frozenset({"others"}))
    found = month_forecast(ReportService(ledger, "test", {}), other, MONTH, UNTIL_MS)
    assert found is not None
    assert (found.teams, found.total.expected_nano) == ((), None)


def test_the_page_and_the_api_say_the_same(ledger: Ledger) -> None:
    client = TestClient(
        create_app(ledger, ApiSettings(auth="off"), now=lambda: UNTIL_MS), base_url="http://localhost"
    )
    api = client.get(f"/v1/months/{MONTH}/forecast").json()
    assert api["total"]["expected"] == f"{31 * DAILY / 10**9:.9f}"
    page = client.get(f"/month/{MONTH}", headers={"Accept": "text/html"}).text
    assert "At the end of the month" in page
    assert f"{31 * DAILY // 10**9:,}" in page
    assert client.get(f"/v1/months/{MONTH.previous()}/forecast").status_code == 404


def test_past_forecasts_are_scored_as_they_were_known_then(ledger: Ledger) -> None:
    """September is known whole, and its first day begins the history: before the 25th too few forecasts of as
    many days were there to say how far one may be off. What is the same every day is met exactly."""
    found = forecast_score(ReportService(ledger, "test", {}), EVERYTHING)
    assert found.months == (MONTH.previous(),)
    assert [(each.days_left, each.forecasts, each.coverage, each.wape) for each in found.origins] == [
        (5, 1, 1, 0)
    ]


def test_what_nobody_held_is_forecast_too(ledger: Ledger) -> None:
    found = month_forecast(ReportService(ledger, "test", {}), EVERYTHING, MONTH, UNTIL_MS)
    assert found is not None
    assert found.unallocated is not None
    assert (found.unallocated.team, found.unallocated.expected_nano) == ("__unallocated__", 0)
