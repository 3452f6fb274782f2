"""One month, two databases, two times: the same bytes in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.reporting.rendering import ReportFormat, render_month
from gpucost.service.settings.model import AttributionSettings, IngestSettings
from gpucost.service.wiring.ledger import build_reporting
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.simulator.cluster import DEMO_MONTH, demo_prices_text, demo_teams_text
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.support.simulated import simulated

START = DEMO_MONTH.window.start_ms
# The price change of the 16th lies in here; a whole month would take longer and show nothing more.
DAYS = Window(START + 14 * DAY_MS, START + 17 * DAY_MS)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    record(folder, simulated().frames)
    return folder


def reports(url: str, recording: Path, backwards: bool) -> dict[ReportFormat, str | bytes]:
    """The month's report in every format, from a ledger filled from either end."""
    book = PriceBook.parse(demo_prices_text(), "prices.yaml")
    teams = TeamRules.parse(demo_teams_text(), "teams.yaml")
    rules = build_rules(AttributionSettings(), book, teams)

    def now() -> int:
        return DEMO_MONTH.window.end_ms + DAY_MS

    with Ledger.open(url, now=now) as ledger:
        pipeline = build_pipeline(IngestSettings(), RecordedSource(recording), ledger, rules, now)
        windows = list(DAYS.split(HOUR_MS))
        halves = [windows[:31], windows[31:]]
        for half in reversed(halves) if backwards else halves:
            assert not pipeline.ingest("demo", half).failures
        answer = build_reporting(ledger, teams).month(EVERYTHING, DEMO_MONTH)
    assert answer is not None
    return {format_: render_month(answer.report, format_) for format_ in ReportFormat}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.fault(43)
def test_sqlite_and_postgresql_give_the_same_bytes(
    recording: Path, sqlite_url: str, postgres_url: str
) -> None:
    one = reports(sqlite_url, recording, backwards=False)
    again = reports(sqlite_url, recording, backwards=False)
    other = reports(postgres_url, recording, backwards=True)
    assert set(one) >= {ReportFormat.JSON, ReportFormat.CSV, ReportFormat.PARQUET, ReportFormat.HTML}
    for format_, content in one.items():
        assert len(content) > 1000
        assert again[format_] == content, format_
        assert other[format_] == content, format_
