"""/metrics of the last window, of the last day, of budgets and of the last month."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from gpucost.api.app import create_app
from gpucost.api.server.services import PLAIN_BOOK
from gpucost.attribution.teams import TeamRules
from gpucost.charges.cell_charges import PLATFORM
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import UNALLOCATED
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, Month
from gpucost.ledger.ledger import Ledger
from gpucost.service.reporting.charge_reports import close_month
from gpucost.service.settings.api import ApiSettings
from gpucost.service.wiring.ledger import build_reporting
from tests.api.conftest import Clients
from tests.api.test_routes import samples
from tests.service.worlds import DAY, Clock, MemorySource, filled_ledger, frames, pipeline
from tests.support.ledgers import new_ledger

LOCAL = {"Host": "localhost"}
HOUR_S = 3600.0


def scrape(
    ledger: Ledger, clock: Clock, budgets: dict[str, int] | None = None
) -> dict[str, dict[tuple[str, ...], float]]:
    app = create_app(ledger, ApiSettings(auth="off"), now=clock, budgets=budgets or {})
    return samples(Clients(app).anybody.get("/metrics", headers=LOCAL).text)


def test_the_last_day_by_hand(ledger: Ledger) -> None:
    found = scrape(ledger, Clock(), {"vision": 1_500 * NANO})
    # 16 H100 at 2.50; from 20:00 on no pod holds any of them.
    assert found["gpucost_capacity_gpus"] == {
        ("held", "c"): 0,
        ("unallocated", "c"): 16,
        ("unavailable", "c"): 0,
        ("unknown", "c"): 0,
    }
    assert found["gpucost_team_cost_per_hour_usd"] == {("c", "__unallocated__"): 40.0}
    assert "gpucost_team_gpus" not in found
    day = found["gpucost_team_last_day_gpu_seconds"]
    assert day["c", "research", "held"] == 32.75 * HOUR_S
    assert day["c", "research", "observed"] == 30 * HOUR_S
    assert day["c", "research", "busy"] == 20 * HOUR_S
    # It was not measured: absent, and not 0.
    assert ("c", "vision", "busy") not in day
    assert found["gpucost_ledger_observed_ratio"] == {("c",): 23 / 24}
    assert found["gpucost_team_budget_usd"] == {("vision",): 1500.0}
    assert "gpucost_month_closed" not in found


def test_a_window_in_which_gpus_are_held(tmp_path: Path) -> None:
    clock = Clock(DAY.start_ms + 6 * HOUR_MS)
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=clock) as ledger:
        lines = pipeline(ledger, MemorySource(frames()), clock)
        lines.ingest("c", lines.pending("c", DAY))
        found = scrape(ledger, clock)
        # 04:00 to 05:00, the last that is settled: train has 4, detect 3, of 16.
        assert found["gpucost_team_gpus"] == {("c", "research"): 4, ("c", "vision"): 3}
        assert found["gpucost_capacity_gpus"]["held", "c"] == 7
        assert found["gpucost_capacity_gpus"]["unallocated", "c"] == 9
        assert found["gpucost_team_cost_per_hour_usd"]["c", "research"] == 10.0
        assert sum(found["gpucost_team_cost_per_hour_usd"].values()) == 40.0
        # Of five hours, all were watched.
        assert found["gpucost_ledger_observed_ratio"] == {("c",): 1.0}
        clock.now_ms = DAY.start_ms + 8 * HOUR_MS
        lines.ingest("c", lines.pending("c", DAY))
        assert (
            scrape(ledger, clock)["gpucost_team_last_day_gpu_seconds"]["c", "vision", "held"] == 21 * HOUR_S
        )


def test_a_window_that_is_missing_stops_nothing(tmp_path: Path) -> None:
    clock = Clock()
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=clock) as ledger:
        lines = pipeline(ledger, MemorySource(frames()), clock)
        whole = lines.pending("c", DAY)
        lines.ingest("c", [window for window in whole if window.start_ms != DAY.start_ms + 2 * HOUR_MS])
        found = scrape(ledger, clock)
        assert found["gpucost_ledger_lag_seconds"]["c",] == (24 - 2 + 1) * HOUR_S, "it says so"
        assert found["gpucost_ledger_settled_end_timestamp_seconds"]["c",] == DAY.end_ms / 1000
        assert found["gpucost_capacity_gpus"]["unallocated", "c"] == 16, "of 23:00, when nobody held any"
        missing = found["gpucost_team_last_day_gpu_seconds"]["c", "research", "held"]
        lines.ingest("c", lines.pending("c", DAY))
        day = scrape(ledger, clock)["gpucost_team_last_day_gpu_seconds"]
        assert missing < day["c", "research", "held"] == 32.75 * HOUR_S


def test_windows_that_are_open_do_not_count(tmp_path: Path) -> None:
    """Of 05:00 to 06:00 lines may still come."""
    clock = Clock(DAY.start_ms + 6 * HOUR_MS)
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=clock) as ledger:
        lines = pipeline(ledger, MemorySource(frames()), clock)
        lines.ingest("c", lines.pending("c", DAY))
        assert ledger.windows(DAY, "c")[-1].window.end_ms == clock.now_ms
        settled = scrape(ledger, clock)["gpucost_ledger_settled_end_timestamp_seconds"]
        assert settled["c",] == DAY.start_ms / 1000 + 5 * HOUR_S


def test_a_cluster_that_was_given_up_is_forgotten_after_a_week(ledger: Ledger) -> None:
    """And one that is ahead of the clock is not."""
    clock = Clock(DAY.end_ms + 7 * DAY_MS)
    names = {"gpucost_capacity_gpus", "gpucost_team_cost_per_hour_usd", "gpucost_team_last_day_gpu_seconds"}
    assert names <= scrape(ledger, clock).keys()
    clock.now_ms += 1
    found = scrape(ledger, clock)
    assert not names & found.keys()
    assert "gpucost_ledger_lag_seconds" in found, "that it is behind is still said"
    assert names <= scrape(ledger, Clock(DAY.start_ms - 30 * DAY_MS)).keys()


def test_the_last_month_is_open_until_it_is_closed(tmp_path: Path) -> None:
    clock = Clock(Month(2026, 11).window.start_ms + DAY_MS)
    with filled_ledger(tmp_path, clock) as ledger:
        assert scrape(ledger, clock)["gpucost_month_closed"] == {("2026-10",): 0.0}
        ledger.close_month(Month(2026, 10), author="ada", reason="a test", min_coverage=Fraction(0))
        assert scrape(ledger, clock)["gpucost_month_closed"] == {("2026-10",): 1.0}


def test_what_teams_pay_for_the_last_month_is_as_it_was_closed(tmp_path: Path) -> None:
    """What they held, less an adjustment of 1 dollar; the platform has what no team pays."""
    clock, october = Clock(Month(2026, 11).window.start_ms + DAY_MS), Month(2026, 10)
    with filled_ledger(tmp_path, clock) as ledger:
        assert "gpucost_team_month_charge_usd" not in scrape(ledger, clock)
        reporting = build_reporting(ledger, TeamRules.default(), PLAIN_BOOK)
        answer = reporting.month(EVERYTHING, october)
        assert answer is not None
        held = {each.row.group["team"]: each.row.held.nano for each in answer.report.teams}
        close_month(reporting, october, PLAIN_BOOK, author="ada", min_coverage=Fraction(0), reason="a test")
        ledger.adjust(october, "vision", -(10**9), 0, "a test", "ada", "OPS-1")
        found = scrape(ledger, clock)["gpucost_team_month_charge_usd"]
        kept = found.pop(("2026-10", "__platform__"))
        wanted = {team: (nano or 0) / 10**9 - (team == "vision") for team, nano in held.items()}
        assert found == pytest.approx({("2026-10", team): amount for team, amount in wanted.items()})
        capacity = sum(info.nano for info in ledger.windows(october.window)) / 10**9
        assert kept == pytest.approx(capacity - sum(wanted.values()) - 1)


def test_adjustments_of_the_last_month_are_in_the_currency_of_its_charges(tmp_path: Path) -> None:
    """2 dollars back are 1 euro at the rate of the policy that the month was closed with."""
    clock, october = Clock(Month(2026, 11).window.start_ms + DAY_MS), Month(2026, 10)
    text = "version: 1\nname: euros\ncurrency: EUR\nrates: [{from: USD, rate: 0.5}]\n"
    book = PolicyBook.parse(text, "policy.yaml")
    with filled_ledger(tmp_path, clock) as ledger:
        reporting = build_reporting(ledger, TeamRules.default(), book)
        close_month(reporting, october, book, author="ada", min_coverage=Fraction(0), reason="a test")
        paid = ("EUR", "2026-10", "vision")
        before = scrape(ledger, clock)["gpucost_team_month_charge"][paid]
        ledger.adjust(october, "vision", -2 * 10**9, 0, "a test", "ada", "OPS-1")
        found = scrape(ledger, clock)["gpucost_team_month_charge"]
        assert found[paid] == pytest.approx(before - 1)
        # What is booked for idle GPUs is the platform's, not a team's.
        ledger.adjust(october, UNALLOCATED, 4 * 10**9, 0, "a test", "ada", "OPS-2")
        platform, again = (*paid[:2], PLATFORM), scrape(ledger, clock)["gpucost_team_month_charge"]
    assert again == pytest.approx(found | {platform: found[platform] + 2})
