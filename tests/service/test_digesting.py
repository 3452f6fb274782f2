"""When weeks and months are sent, over real ledgers; and a week's sums against the database itself."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import UNALLOCATED
from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso, parse_instant
from gpucost.ledger.db.records import WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import MOST_FORETOLD, WaitPrediction
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.notifications.digests import (
    DigestSchedule,
    DigestScheduler,
    DueMonth,
    DueWeek,
    due,
)
from gpucost.service.reporting.charge_reports import PolicyCharging, close_month, team_statements
from gpucost.service.reporting.report_service import ReportService
from tests.ledger.builders import CLUSTER, MONTH, PRICE, ingest, line
from tests.support.ledgers import new_ledger

WEEK = IsoWeek(2026, 43)
BEFORE = WEEK.previous()
MONDAY_MS = WEEK.window.end_ms
TOLD_MS = MONDAY_MS + 9 * HOUR_MS
UTC_NINE = DigestSchedule(assesses=False)
NOW_MS = Month(2026, 12).window.start_ms


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[Ledger]:
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A settled week, written once."""
    path = tmp_path_factory.mktemp("digesting") / "ledger.db"
    with Ledger.open(new_ledger(path), now=lambda: NOW_MS) as opened:
        fill(opened)
    return path


@pytest.fixture
def filled(written: Path, sqlite_url: str) -> Iterator[Ledger]:
    """A copy of the settled week."""
    shutil.copy(written, sqlite_url.removeprefix("sqlite:///"))
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as opened:
        yield opened


def day(number: int, week: IsoWeek = WEEK) -> Window:
    start_ms = week.window.start_ms + number * DAY_MS
    return Window(start_ms, start_ms + DAY_MS)


def fill(
    ledger: Ledger,
    days: range = range(7),
    week: IsoWeek = WEEK,
    *,
    settle: bool = True,
    cluster: str = CLUSTER,
) -> None:
    """Days of red and blue with a whole GPU each, and a free one."""
    for number in days:
        window = day(number, week)
        ingest(
            ledger,
            window,
            line(window, nano=PRICE * 24, cluster=cluster),
            line(
                window,
                nano=PRICE * 24,
                cluster=cluster,
                team="blue",
                pod_uid="p2",
                job_uid="j2",
                job="other",
                node="n2",
            ),
            line(window, nano=PRICE * 24, cluster=cluster, bucket="unallocated", node="n3"),
            settle=settle,
            cluster=cluster,
        )


def look(ledger: Ledger, days: range = range(7)) -> None:
    """Every day; on the first, red's GPU was idle for six hours."""
    for number in days:
        window = day(number)
        row = line(window, nano=PRICE * 24)
        keys = [name for name in WASTE_LINES.column_names if name not in ("waste", "board_ms", "nano")]
        part = {name: row[name] for name in keys}
        part |= {"waste": "idle", "board_ms": 6 * HOUR_MS, "nano": PRICE * 6}
        parts = pd.DataFrame([part] if number == 0 else [], columns=list(WASTE_LINES.column_names))
        [info] = ledger.windows(window, CLUSTER)
        found = WasteOfWindow(window, info.digest, parts.astype(object), True)
        ledger.write_waste(CLUSTER, [found], code_version="1")


def digesting(ledger: Ledger, **budgets: int) -> DigestScheduler:
    return DigestScheduler(ReportService(ledger, "test", {}), budgets)


# --- when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (DigestSchedule(), "2026-10-26T09:00:00Z"),
        (DigestSchedule(weekday=5, hour=16), "2026-10-30T16:00:00Z"),
        # Monday of a zone east of UTC begins on Sunday in UTC, before the week has ended.
        (DigestSchedule(hour=9, zone=ZoneInfo("Asia/Tokyo")), "2026-10-26T00:00:00Z"),
        (DigestSchedule(hour=8, zone=ZoneInfo("Asia/Tokyo")), "2026-10-26T00:00:00Z"),
        (DigestSchedule(zone=ZoneInfo("Australia/Sydney")), "2026-10-26T00:00:00Z"),
        (DigestSchedule(hour=12, zone=ZoneInfo("Australia/Sydney")), "2026-10-26T01:00:00Z"),
        (DigestSchedule(zone=ZoneInfo("Pacific/Auckland")), "2026-10-26T00:00:00Z"),
        (DigestSchedule(zone=ZoneInfo("Pacific/Honolulu")), "2026-10-26T19:00:00Z"),
        (DigestSchedule(weekday=7, hour=23, zone=ZoneInfo("America/Los_Angeles")), "2026-10-26T06:00:00Z"),
        (DigestSchedule(hour=9, zone=ZoneInfo("America/Los_Angeles")), "2026-10-26T16:00:00Z"),
        # The clocks of Berlin went back on the day before.
        (DigestSchedule(hour=9, zone=ZoneInfo("Europe/Berlin")), "2026-10-26T08:00:00Z"),
        (DigestSchedule(weekday=7, hour=0), "2026-11-01T00:00:00Z"),
    ],
)
def test_a_week_is_told_on_a_weekday_and_hour_of_a_zone(schedule: DigestSchedule, told: str) -> None:
    assert iso(schedule.tell_ms(WEEK)) == told


def test_an_hour_that_a_zone_skips_is_the_one_after_it() -> None:
    berlin = DigestSchedule(weekday=7, hour=2, zone=ZoneInfo("Europe/Berlin"))
    assert iso(berlin.tell_ms(IsoWeek(2026, 12))) == "2026-03-29T01:00:00Z"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weekday": 0}, "weekday: 0 is not allowed; allowed: 1 to 7"),
        ({"hour": 24}, "hour: 24 is not allowed; allowed: 0 to 23"),
        ({"longest_wait_ms": 7 * DAY_MS}, "longest_wait: .* less than a week"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DigestSchedule(**values)


def test_a_settled_week_is_due_from_its_hour_until_the_next_is(filled: Ledger) -> None:
    found = (DueWeek(WEEK, TOLD_MS, whole=True),)
    assert due(TOLD_MS - 1, UTC_NINE, filled) == ()
    assert due(TOLD_MS, UTC_NINE, filled) == found
    assert due(TOLD_MS + 7 * DAY_MS - 1, UTC_NINE, filled) == found
    assert due(TOLD_MS + 7 * DAY_MS, UTC_NINE, filled) == ()


def test_nothing_is_due_of_an_empty_ledger(ledger: Ledger) -> None:
    assert due(TOLD_MS, UTC_NINE, ledger) == ()


@pytest.mark.parametrize("lack", ["missing", "open", "unseen", "silent"])
def test_a_week_that_is_not_settled_waits_and_is_told_in_the_end(lack: str, ledger: Ledger) -> None:
    fill(ledger, range(6))
    if lack != "missing":
        fill(ledger, range(6, 7), settle=lack != "open")
    if lack == "silent":
        fill(ledger, week=BEFORE, cluster="west")
    schedule = DigestSchedule(assesses=lack == "unseen", longest_wait_ms=DAY_MS)
    assert due(TOLD_MS + DAY_MS - 1, schedule, ledger) == ()
    assert due(TOLD_MS + DAY_MS, schedule, ledger) == (DueWeek(WEEK, TOLD_MS, whole=False),)


def test_once_the_detectors_have_looked_nothing_is_waited_for(filled: Ledger) -> None:
    schedule = DigestSchedule(assesses=True)
    look(filled, range(6))
    assert due(TOLD_MS, schedule, filled) == ()
    look(filled, range(6, 7))
    assert due(TOLD_MS, schedule, filled) == (DueWeek(WEEK, TOLD_MS, whole=True),)


def test_time_before_a_clusters_first_window_is_not_waited_for(ledger: Ledger) -> None:
    fill(ledger, range(3, 7))
    assert due(TOLD_MS, UTC_NINE, ledger) == (DueWeek(WEEK, TOLD_MS, whole=True),)
    [platform, *_] = digesting(ledger).notices(due(TOLD_MS, UTC_NINE, ledger)[0])
    assert "3 days of the week are not in the ledger" in platform.message.summary
    assert platform.version == "partial"


def test_a_cluster_that_left_before_the_week_before_is_not_waited_for(filled: Ledger) -> None:
    fill(filled, week=BEFORE.previous(), cluster="west")
    assert due(TOLD_MS, UTC_NINE, filled) == (DueWeek(WEEK, TOLD_MS, whole=True),)


# --- months -------------------------------------------------------------------------------------------------


def close(ledger: Ledger) -> int:
    info = ledger.close_month(Month(2026, 10), author="ada", min_coverage=0, reason="test")  # type: ignore[arg-type]
    assert info.closed_at_ms is not None
    return info.closed_at_ms


def test_a_closed_month_is_due_for_a_week_and_an_open_one_is_not(filled: Ledger) -> None:
    assert due(NOW_MS, UTC_NINE, filled) == ()
    closed_ms = close(filled)
    found = (DueMonth(Month(2026, 10), closed_ms),)
    assert due(closed_ms, UTC_NINE, filled) == found
    assert due(closed_ms + 7 * DAY_MS - 1, UTC_NINE, filled) == found
    assert due(closed_ms + 7 * DAY_MS, UTC_NINE, filled) == ()


def test_an_adjustment_makes_a_month_news_again(sqlite_url: str) -> None:
    clock = [NOW_MS]
    with Ledger.open(sqlite_url, now=lambda: clock[0]) as ledger:
        fill(ledger)
        close(ledger)
        clock[0] += 30 * DAY_MS
        assert due(clock[0], UTC_NINE, ledger) == ()
        ledger.adjust(Month(2026, 10), "green", -PRICE, 0, "outage", "eve", "T-1")
        assert due(clock[0], UTC_NINE, ledger) == (DueMonth(Month(2026, 10), clock[0]),)


def test_notices_of_a_month_are_of_the_platform_and_of_every_team(filled: Ledger) -> None:
    close(filled)
    filled.adjust(Month(2026, 10), "green", -PRICE, 0, "outage", "eve", "T-1")
    filled.adjust(Month(2026, 10), UNALLOCATED, PRICE, 0, "invoice", "eve", "T-2")
    [found] = due(NOW_MS, UTC_NINE, filled)
    notices = list(digesting(filled).notices(found))
    assert [notice.key for notice in notices] == [
        f"month:2026-10:{team}" for team in ("", "blue", "green", "red")
    ]
    by_team = {notice.team: notice.message.summary for notice in notices}
    assert by_team["red"] == "red pays USD 420 for October 2026."
    assert by_team["green"].startswith("green pays USD -2.50 for October 2026, with corrections of USD −2.50")
    assert by_team[""].startswith("The teams pay USD 838 for October 2026")
    assert [
        each.key for each in digesting(filled).notices(found, {notice.key for notice in notices[1:]})
    ] == ["month:2026-10:"]


def test_a_closed_month_says_what_statements_say(filled: Ledger) -> None:
    """Green holds nothing, and pays a third of what nobody held; the shares of red and blue are on top."""
    names = ("blue", "green", "red")
    policy = "version: 1\nname: thirds\npolicies: [{idle_of_nobody: equally, access: [blue, green, red]}]"
    book = PolicyBook.parse(policy, "policy.yaml", {})
    accounts = {name: TeamAccount(None, None) for name in names}
    reporting = ReportService(filled, "test", {}, accounts=accounts, charging=PolicyCharging(book))
    close_month(reporting, MONTH, book, author="ada", min_coverage=Fraction(0), reason="test")
    [found] = due(NOW_MS, UTC_NINE, filled)
    notices = {each.team: each.message for each in DigestScheduler(reporting).notices(found)}
    assert sorted(notices) == ["", *names]
    made = team_statements(reporting, EVERYTHING, MONTH, book, {}, names)
    for each in made.statements:
        assert each.total_nano > 0
        paid = f"USD {each.total_nano / NANO:,.2f}"
        assert f"{each.team}: {paid}" in notices[""].sections[0].items
        assert notices[each.team].summary.startswith(f"{each.team} pays {paid} for October 2026.")


# --- what -----------------------------------------------------------------------------------------------


def test_notices_of_a_week_are_of_the_platform_and_of_every_team(filled: Ledger) -> None:
    fill(filled, week=BEFORE)
    look(filled)
    notices = list(digesting(filled).notices(DueWeek(WEEK, TOLD_MS, whole=True)))
    assert [notice.key for notice in notices] == [
        f"digest:week:2026-W43:{team}" for team in ("", "blue", "red")
    ]
    assert {notice.since_ms for notice in notices} == {TOLD_MS}
    assert [notice.message.summary for notice in notices] == [
        "The clusters cost USD 1,260 in week 43, as much as the week before; 1% of the cost was wasted.",
        "blue cost USD 420 in week 43, as much as the week before; none of the cost was wasted.",
        "red cost USD 420 in week 43, as much as the week before; 4% of the cost was wasted.",
    ]
    left = digesting(filled).notices(DueWeek(WEEK, TOLD_MS, whole=True), {"digest:week:2026-W43:red"})
    assert [notice.team for notice in left] == ["", "blue"]


def test_a_week_without_any_window_is_none(ledger: Ledger) -> None:
    fill(ledger, week=BEFORE)
    assert digesting(ledger).week(WEEK) is None


def test_a_week_that_cuts_a_window_is_refused_by_name(ledger: Ledger) -> None:
    window = Window(MONDAY_MS - DAY_MS, MONDAY_MS + DAY_MS)
    ingest(ledger, window, line(window, nano=PRICE))
    with pytest.raises(InputError, match=r"window: .* cut: alpha 2026-10-25"):
        digesting(ledger).week(WEEK)


def test_a_weeks_sums_are_those_of_the_database(filled: Ledger, sqlite_url: str) -> None:
    look(filled)
    query = (
        "select l.bucket, h.team, sum(l.board_ms), sum(l.nano) from usage_line l"
        " join ledger_window w on w.id = l.window_id join holder h on h.id = l.holder_id"
        " where w.start_ms >= ? and w.end_ms <= ? group by 1, 2"
    )
    with sqlite3.connect(Path(sqlite_url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(query, (WEEK.window.start_ms, WEEK.window.end_ms)).fetchall()
    connection.close()
    found = digesting(filled, red=31 * PRICE).week(WEEK)
    assert found is not None
    assert (found.cost.board_ms, found.cost.nano) == (
        sum(row[2] for row in rows),
        sum(row[3] for row in rows),
    )
    teams = {each.row.group["team"]: each.row.held for each in found.teams}
    assert {team: (held.board_ms, held.nano) for team, held in teams.items()} == {
        team: (board_ms, nano) for bucket, team, board_ms, nano in rows if bucket == "held"
    }
    assert found.budget is not None
    assert found.budget.week_nano == 7 * PRICE


def test_waits_come_from_what_was_foretold(filled: Ledger) -> None:
    at = parse_instant("2026-10-20T00:00:00Z")
    waiting = WaitPrediction("u2", "ml", "b", "cq", "blue", at, None, None, DAY_MS)
    started = WaitPrediction("u1", "ml", "a", "cq", "red", at, None, None, DAY_MS, started_ms=at + HOUR_MS)
    filled.foretell(CLUSTER, [started, waiting])
    red, blue = (digesting(filled).week(WEEK, team) for team in ("red", "blue"))
    assert red is not None
    assert blue is not None
    assert red.waits is not None
    assert blue.waits is not None
    assert (red.waits.started, red.waits.p50_ms, red.waits.waiting) == (1, HOUR_MS, 0)
    assert (blue.waits.started, blue.waits.p50_ms, blue.waits.waiting) == (0, None, 1)


def test_waits_of_others_hide_none_of_a_teams(filled: Ledger) -> None:
    """Of so many only the latest are read, and these are the other team's."""
    at = parse_instant("2026-10-20T00:00:00Z")
    told = [
        WaitPrediction(
            f"u{uid}", "ml", "a", "cq", team, at + uid, None, None, DAY_MS, started_ms=at + HOUR_MS
        )
        for uid, team in enumerate(["red", *["blue"] * MOST_FORETOLD])
    ]
    filled.foretell(CLUSTER, told)
    red, blue = (digesting(filled).week(WEEK, team) for team in ("red", "blue"))
    assert red is not None
    assert blue is not None
    assert red.waits is not None
    assert blue.waits is not None
    assert (red.waits.started, red.waits.p50_ms, red.waits.cut) == (1, HOUR_MS, False)
    assert (blue.waits.started, blue.waits.cut) == (MOST_FORETOLD, True)
