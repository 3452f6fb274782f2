"""The forecast of a month that goes on, from a ledger, and on its page and in the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from fastapi.testclient import TestClient

from benchmarks.report import PRICE, lines_of
from gpucost.api.app import create_app
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.reports.month.month_end import cost_ahead
from gpucost.reports.month.work_ahead import daily_cost
from gpucost.service.reporting.jobs_ahead import work_ahead
from gpucost.service.reporting.month_forecasts import forecast_score, keep_forecasts, month_forecast
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from tests.support.ledgers import new_ledger

MONTH = Month(2026, 10)
FIRST_MS = MONTH.window.start_ms - 30 * DAY_MS
UNTIL_MS = MONTH.window.start_ms + 10 * DAY_MS
DAILY = 8 * PRICE.nano_per_board_hour
"""Eight GPUs of one team, for an hour of each day, each day by another job."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Forty days of one team, the last ten of them of a month that goes on."""
    with filled(tmp_path_factory.mktemp("forecast"), Window(FIRST_MS, UNTIL_MS)) as found:
        yield found


@contextmanager
def filled(folder: Path, span: Window, rate: Rate = PRICE) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(folder / "ledger.db"), now=lambda: span.end_ms + HOUR_MS) as found:
        for day, window in enumerate(span.split(DAY_MS)):
            ingest(found, window, lines_of(window, 8, 6 * day, 1).assign(rate_id=rate.rate_id), rate)
        yield found


def ingest(ledger: Ledger, window: Window, lines: pd.DataFrame, rate: Rate = PRICE) -> None:
    ledger.ingest(
        *("c", window, lines),
        observed_ms=DAY_MS,
        rates={rate.rate_id: rate},
        source="test",
        code_version="test",
        settle=True,
    )


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


def test_what_was_said_is_kept_once_and_scored_by_what_came(tmp_path: Path) -> None:
    """On the 11th 31 days are expected, 10 have passed. The last 21 days cost twice as much: 52 come."""
    end_ms = MONTH.window.end_ms
    with filled(tmp_path, Window(FIRST_MS, UNTIL_MS)) as ledger:
        reporting = ReportService(ledger, "test", {})
        assert keep_forecasts(reporting, UNTIL_MS) == 1
        assert keep_forecasts(reporting, UNTIL_MS + HOUR_MS) == 0, "what was said first stays"
        [kept] = ledger.kept_forecasts()
        assert (kept.month, kept.team, kept.as_of_ms, kept.days_left) == ("2026-10", "team-00", UNTIL_MS, 21)
        assert kept.expected_nano == 31 * DAILY
        assert forecast_score(reporting, EVERYTHING).kept == (), "the month goes on"
        for day, window in enumerate(Window(UNTIL_MS, end_ms).split(DAY_MS), 40):
            lines = lines_of(window, 8, 6 * day, 1)
            lines["nano"] *= 2
            ingest(ledger, window, lines)
        assert keep_forecasts(reporting, end_ms - 1) == 0, "nothing is left to expect"
        [found] = forecast_score(reporting, EVERYTHING).kept
        own = Scope(frozenset({"team-00"}))
        assert forecast_score(reporting, own).kept == (found,)
        assert forecast_score(reporting, Scope(frozenset({"others"}))).kept == ()
        assert ledger.kept_forecasts(scope=Scope(None, frozenset({"c"}))) == ()
    assert (found.days_left, found.forecasts, found.coverage, found.wape) == (21, 1, 0, Fraction(21, 52))


def test_jobs_that_run_or_wait_at_the_ledgers_end_are_counted(tmp_path: Path) -> None:
    """All runs took an hour, but one that holds eight GPUs all of the last day: it costs as much an hour yet.
    24 GPUs wait; their job begins after two days, and takes an hour."""
    last = Window(UNTIL_MS - DAY_MS, UNTIL_MS)
    with filled(tmp_path, Window(FIRST_MS, last.start_ms)) as ledger:
        lines = lines_of(last, 8, 6 * 39, 1)
        lines["last_ms"], lines["board_ms"], lines["nano"] = last.end_ms, DAY_MS, lines["nano"] * 24
        ingest(ledger, last, lines)
        reporting = ReportService(ledger, "test", {})
        before = month_forecast(reporting, EVERYTHING, MONTH, UNTIL_MS)
        asked_ms, p50_ms = UNTIL_MS - HOUR_MS, 2 * DAY_MS + HOUR_MS
        wait = WaitPrediction("w", "n", "job-x", "q", "team-00", asked_ms, p50_ms, None, 7 * DAY_MS, gpus=24)
        ledger.foretell("c", [wait])
        found = month_forecast(reporting, EVERYTHING, MONTH, UNTIL_MS)
        hidden = month_forecast(reporting, Scope(frozenset({"others"})), MONTH, UNTIL_MS)
        jobs = work_ahead(reporting, EVERYTHING).jobs
    assert before is not None
    assert found is not None
    assert hidden is not None
    assert (before.running_jobs, before.waiting_jobs) == (1, 0)
    assert before.not_counted == "waiting jobs: no start is foretold"
    assert (found.running_jobs, found.waiting_jobs, found.not_counted) == (1, 1, "")
    assert (hidden.running_jobs, hidden.waiting_jobs) == (0, 0)
    running, waiting = (daily_cost([job], UNTIL_MS, 21) for job in jobs)
    assert waiting == [0, 0, 3 * DAILY, *[0] * 18]
    assert running[0] > 12 * DAILY, "it has run for a day: as likely as not it runs for a day more"
    ahead = [float(a + b) for a, b in zip(running, waiting, strict=True)]
    rest = cost_ahead([float(DAILY)] * 39 + [24.0 * DAILY], 21, ahead)
    assert found.total.expected_nano == found.teams[0].expected_nano == 33 * DAILY + round(rest)
    assert (before.total.expected_nano or 0) < 33 * DAILY + round(rest)


@pytest.mark.parametrize("own_gpus", [0, 8])
def test_what_another_team_does_changes_no_forecast_of_a_team(tmp_path: Path, own_gpus: int) -> None:
    """Teams go by namespace: the other one labels its pods and jobs as it likes, also as this team does."""
    asked_ms, own, found = UNTIL_MS - HOUR_MS, Scope(frozenset({"team-00"})), []
    waits = [
        WaitPrediction(team, team, "job-x", "q", team, asked_ms, DAY_MS, None, 7 * DAY_MS, gpus=gpus)
        for team, gpus in (("team-00", own_gpus), ("team-01", 800))
        if gpus
    ]
    for name, label, kept in (("apart", "one", waits[:-1]), ("alike", "zero", waits)):
        (tmp_path / name).mkdir()
        with filled(tmp_path / name, Window(FIRST_MS, FIRST_MS + DAY_MS)) as ledger:
            for day, window in enumerate(Window(FIRST_MS + DAY_MS, UNTIL_MS).split(DAY_MS), 1):
                lines = lines_of(window, 16, 6 * day, 2)
                ingest(
                    ledger,
                    window,
                    lines.assign(team_label=lines["team"].map({"team-00": "zero"}).fillna(label)),
                )
            ledger.foretell("c", kept)
            found.append(month_forecast(ReportService(ledger, "test", {}), own, MONTH, UNTIL_MS))
    apart, alike = found
    assert apart == alike
    assert apart is not None
    assert (apart.waiting_jobs, apart.not_counted) == (
        (1, "") if own_gpus else (0, "waiting jobs: no start is foretold")
    )


def test_what_a_team_waits_for_without_a_price_is_said_to_that_team(tmp_path: Path) -> None:
    """It has held nothing of late, so that nothing says what its GPUs cost."""
    with filled(tmp_path, Window(FIRST_MS, UNTIL_MS)) as ledger:
        asked_ms = UNTIL_MS - HOUR_MS
        ledger.foretell(
            "c", [WaitPrediction("w", "n", "j", "q", "new", asked_ms, DAY_MS, None, 7 * DAY_MS, gpus=8)]
        )
        reporting = ReportService(ledger, "test", {})
        found = [work_ahead(reporting, Scope(frozenset({team}))).not_counted for team in ("new", "team-00")]
    assert found[0] == "1 waiting jobs: their team has held nothing of late"
    assert found[1] == "waiting jobs: no start is foretold"


def test_what_owned_gpus_cost_is_known(tmp_path: Path) -> None:
    owned = replace(PRICE, rate_id="owned", pricing_category="Other")
    span = Window(MONTH.window.start_ms - DAY_MS, MONTH.window.start_ms + 2 * DAY_MS)
    with filled(tmp_path, span, owned) as ledger:
        reporting = ReportService(ledger, "test", {})
        found = month_forecast(reporting, EVERYTHING, MONTH, span.end_ms)
        scoped = month_forecast(reporting, Scope(frozenset({"team-00"})), MONTH, span.end_ms)
    assert found is not None
    assert scoped is not None
    assert (found.committed_nano, scoped.committed_nano) == (31 * DAILY, None)
    assert found.total.expected_nano is None, "what is known is said without a forecast"


def test_a_forecast_is_of_the_time_at_which_it_is_asked_for(tmp_path: Path) -> None:
    """Also where nothing is written any more: what was said ten days ago is not said again."""
    now_ms = [MONTH.window.start_ms + 5 * DAY_MS]
    span = Window(FIRST_MS, MONTH.window.start_ms + 20 * DAY_MS)
    with filled(tmp_path, span) as ledger:
        app = create_app(ledger, ApiSettings(auth="off"), now=lambda: now_ms[0])
        asking = TestClient(app, base_url="http://localhost")
        first = asking.get(f"/v1/months/{MONTH}/forecast").json()
        now_ms[0] += 10 * DAY_MS
        later = asking.get(f"/v1/months/{MONTH}/forecast").json()
        assert later["days_left"] == first["days_left"] - 10
        assert asking.get(f"/month/{MONTH}").status_code == 200
        now_ms[0] = MONTH.window.end_ms + DAY_MS
        assert asking.get(f"/v1/months/{MONTH}/forecast").status_code == 404
        said = [
            asking.get(f"/v1/incidents?at=2026-08-03T10:{minute}:00Z").json()["as_of"]
            for minute in ("01", "59")
        ]
        assert said == ["2026-08-03T10:01:00Z", "2026-08-03T10:59:00Z"]
