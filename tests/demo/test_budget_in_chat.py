"""A budget from its first threshold into the next month: a ledger, the notifications of the service, and a
chat room that takes posts over HTTP. The clock alone is the test's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.report import PRICE, lines_of
from gpucost.attribution.teams import TeamRules
from gpucost.demo.chat import ROOM, ChatRoom, ChatServer
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.notifications import build_news
from gpucost.telemetry.recorded_source import RecordedSource
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

OCTOBER = Month(2026, 10)
AUGUST_MS, OCTOBER_MS = Month(2026, 8).window.start_ms, OCTOBER.window.start_ms
DAY_17_MS = OCTOBER_MS + 16 * DAY_MS
AT_TWO_MS = DAY_17_MS + 14 * HOUR_MS
BOARDS = 48
DAY_NANO = BOARDS * PRICE.nano_per_board_hour
"""A day of August and September; one of October is twice that."""
SPENT = 2 * DAY_NANO * 16 + 2 * DAY_NANO * 14 // 24
"""Of October by 14:00 on the 17th: four fifths of the budget."""
BUDGET = SPENT * 5 // 4


def write(ledger: Ledger, window: Window, boards: int) -> None:
    lines = lines_of(window, boards, 0, 1)
    rates = {PRICE.rate_id: PRICE}
    made = {"source": "test", "code_version": "test"}
    ledger.ingest("c", window, lines, observed_ms=window.length_ms, rates=rates, settle=True, **made)


def spend(ledger: Ledger, days: Window, boards: int) -> None:
    for day in days.split(DAY_MS):
        write(ledger, day, boards)


@contextmanager
def chat() -> Iterator[ChatServer]:
    server = ChatServer(ChatRoom("s3cret"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def run_service(ledger: Ledger, server: ChatServer, folder: Path, clock: Clock) -> None:
    """A service that is started, looks twice, sends, and is stopped."""
    amount = f"{BUDGET / NANO:.9f}"
    rules = TeamRules.parse(
        f"version: 1\nteams: [{{name: team-00}}]\nrules: [{{team_from: team_label}}]\nbudgets:\n"
        f"- {{name: research, team: team-00, amount: '{amount}', carry_over: true, "
        "valid_from: 2026-10-01, thresholds: [80, 149]}\n",
        "teams.yaml",
    )
    channel = {"name": "costs", "service": "slack", "url": server.url, "token": "s3cret", "room": ROOM}
    channel |= {"sees_all": True, "allow_http": True, "allow_private": True}
    notify = {"channels": [channel], "routes": [{"channels": ["costs"]}], "incidents": False}
    notify |= {"weekly": {"enabled": False}, "month_closed": False}
    settings = Settings.model_validate({"notify": notify})
    news = build_news(settings, ledger, rules, None, None, RecordedSource(folder), clock, threading.Event())
    assert news is not None
    for _ in range(2):
        clock.now_ms += 2 * 60_000
        news.telling.turn()
        news.sender.turn(patience_s=30)
    news.close()


@pytest.mark.slow
def test_a_budget_that_is_crossed_on_the_17th_is_told_once_and_carried_into_november(tmp_path: Path) -> None:
    """By hand: a day of October costs 660.48. As of the 17th, 16 days are known; a day to come is half 660.48
    and half the mean of the last 28 days, (16 x 660.48 + 12 x 330.24) / 28: 589.71. So October is expected to
    cost 16 x 660.48 + 15 x 589.71 = 19,413, and the 13,691.20 of the budget are passed after 5.3 of these
    days; at the most that all GPUs cost, 660.48, after 4.7. In the end it cost 31 x 660.48 = 20,474.88, which
    is 6,783.68 too much."""
    clock = Clock(AT_TWO_MS)
    url = new_ledger(tmp_path / "ledger.db")
    november_ms = OCTOBER.window.end_ms
    with Ledger.open(url, now=lambda: clock.now_ms + HOUR_MS) as ledger, chat() as server:

        def told() -> list[str]:
            for _ in range(2):  # the second is a restart, which tells nothing
                run_service(ledger, server, tmp_path, clock)
            return ["\n".join(each.lines) for each in server.room.said]

        spend(ledger, Window(AUGUST_MS, OCTOBER_MS), BOARDS)
        spend(ledger, Window(OCTOBER_MS, DAY_17_MS), 2 * BOARDS)
        hours = list(Window(DAY_17_MS, DAY_17_MS + DAY_MS).split(HOUR_MS))
        for hour in hours[:13]:
            write(ledger, hour, 2 * BOARDS // 24)
        [expected] = told()
        assert "Budget research: expected to reach 100% in 2026-10" in expected
        assert "USD 19,413 expected of USD 13,691 for team team-00" in expected

        write(ledger, hours[13], 2 * BOARDS // 24)
        [_, crossed] = told()
        assert "USD 10,953 of USD 13,691 spent by team team-00" in crossed
        assert "80% was reached by 2026-10-17 14:00 UTC" in crossed
        assert "will exceed on 2026-10-22 (80%: 2026-10-21 to never)" in crossed
        assert crossed.count("• USD ") == 2

        for hour in hours[14:]:
            write(ledger, hour, 2 * BOARDS // 24)
        spend(ledger, Window(DAY_17_MS + DAY_MS, november_ms + DAY_MS), 2 * BOARDS)
        clock.now_ms = november_ms + DAY_MS
        [_, _, over, next_month] = told()
        assert "149% was reached by 2026-11-01 00:00 UTC" in over
        assert "exceeded" in over
        assert "*Carried over*\nUSD −6,783.68" in next_month
        assert "expected of USD 6,908 for team team-00" in next_month
