"""Months: closing, late data, adjustments, tampering, and reading a closed month much later."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from gpucost.domain.errors import (
    DataProblem,
    DataProblemCode,
    InputError,
    LedgerConflict,
    LedgerError,
    MonthClosed,
)
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.records import (
    CloseRefused,
    LateLines,
    LedgerState,
    MonthCharges,
    MonthInfo,
    MonthOpen,
    ProposedAdjustment,
)
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import CLUSTER, MONTH, NOW_MS, ingest, line, progress, random_rows
from tests.support.ledgers import Prepare, new_ledger

DAYS = list(MONTH.window.split(DAY_MS))
FIRST = DAYS[0]
FULL = Fraction(1)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def fill(ledger: Ledger, month: Month = MONTH, cluster: str = CLUSTER) -> None:
    """A whole month in windows of a day, with what a window can hold."""
    fill_days(ledger, month.window.split(DAY_MS), cluster)


def fill_days(ledger: Ledger, days: Iterable[Window], cluster: str) -> None:
    for day in days:
        rows = random_rows(1, day, count=3, cluster=cluster)
        problem = DataProblem(
            DataProblemCode.COUNT_UNKNOWN, cluster, "node-1", "nothing says how many boards"
        )
        steps = progress(("pod-1", day, "steps", 0.1)).assign(cluster=cluster)
        ingest(ledger, day, *rows, cluster=cluster, problems=[problem], progress=steps)


def fill_october(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        fill(ledger)


@pytest.fixture
def october_url(copy_of: Callable[[Prepare], str]) -> str:
    """A ledger with a whole month."""
    return copy_of(fill_october)


@pytest.fixture
def october(october_url: str) -> Iterator[Ledger]:
    with Ledger.open(october_url, now=lambda: NOW_MS) as opened:
        yield opened


def close(ledger: Ledger, month: Month = MONTH, reason: str | None = None) -> MonthInfo:
    return ledger.close_month(month, author="ann", min_coverage=FULL, reason=reason)


def test_closing_a_complete_month(october: Ledger) -> None:
    assert october.month(MONTH) == MonthInfo(MONTH, LedgerState.OPEN, version=31)
    info = close(october)
    assert (info.state, info.version, info.previous_digest) == (LedgerState.CLOSED, 31, "")
    assert (info.closed_at_ms, info.author, info.reason) == (NOW_MS, "ann", "")
    assert october.month(MONTH) == info
    assert {window.state for window in october.windows(MONTH.window)} == {LedgerState.CLOSED}
    assert [entry.action for entry in october.audit(EVERYTHING)] == ["month close"]
    assert october.verify() == ()
    assert close(october, reason="again") == info, "closing again changes nothing"


def test_digests_are_chained_and_the_same_on_both_databases(sqlite_url: str, postgres_url: str) -> None:
    digests = []
    for url in (sqlite_url, postgres_url):
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            fill(ledger)
            fill(ledger, MONTH.previous())
            fill(ledger, cluster="béta")
            october, september = close(ledger), close(ledger, MONTH.previous())
            assert september.previous_digest == october.digest
            assert ledger.verify() == ()
            digests.append((october, september))
    assert digests[0] == digests[1]


def test_the_digest_of_a_month_is_as_documented(ledger: Ledger) -> None:
    ingest(ledger, FIRST, line(FIRST))
    content = (
        f'["gpucost window 1","alpha",{FIRST.start_ms},{FIRST.end_ms},{DAY_MS}]\n'
        '["line",1]\n'
        '["{unit}","{holder}","{rate}",'
        f'"held",{DAY_MS},2500000000,{FIRST.start_ms},{FIRST.end_ms},null,null,null,null,null]\n'
        '["progress",0]\n["problem",0]\n'
    )
    keys = {
        "unit": '["alpha","node-1","nvidia.com/gpu","H100","",1,1,"compute","","","","",""]',
        "holder": '["ml","train-0","pod-1","Job","train","job-1","","","","","","","","red"]',
        "rate": '["h100@1",3000000000,"USD",3000000000,"model","list","2026-09-01","Standard",""]',
    }
    for name, value in keys.items():
        content = content.replace(f"{{{name}}}", hashlib.sha256(value.encode()).hexdigest())
    [window] = ledger.windows(FIRST)
    assert window.digest == hashlib.sha256(content.encode()).hexdigest()
    info = close(ledger, reason="one day only")
    month = (
        '["gpucost month 1","2026-10",""]\n'
        f'["alpha",{FIRST.start_ms},{FIRST.end_ms},"{window.digest}",1,{DAY_MS},0,0,2500000000]\n'
        f'["sums",1,1,{DAY_MS},0,0,2500000000]\n'
    )
    assert info.digest == hashlib.sha256(month.encode()).hexdigest()


@pytest.mark.fault(42)
def test_a_month_with_gaps_open_windows_or_low_coverage_is_not_closed(ledger: Ledger) -> None:
    for day in (*DAYS[:3], *DAYS[5:]):
        ingest(ledger, day, settle=day not in (DAYS[7], DAYS[8]))
    for day in DAYS:
        ingest(ledger, day, cluster="beta", observed_ms=DAY_MS // 2)
    for day in MONTH.previous().window.split(DAY_MS):
        ingest(ledger, day, cluster="gone")
    expected = (
        "alpha: no window in 2026-10-04T00:00:00Z/2026-10-06T00:00:00Z",
        "alpha: 2026-10-08T00:00:00Z/2026-10-10T00:00:00Z is open",
        "alpha: coverage 0.9355 is below 0.9900",
        "beta: coverage 0.5000 is below 0.9900",
        "gone: no window in 2026-10-01T00:00:00Z/2026-11-01T00:00:00Z",
        "gone: coverage 0.0000 is below 0.9900",
    )
    threshold = Fraction(99, 100)
    assert ledger.close_blockers(MONTH, threshold) == expected
    for reason in (None, "", "  "):
        with pytest.raises(CloseRefused, match="cannot be closed") as refused:
            ledger.close_month(MONTH, author="ann", min_coverage=threshold, reason=reason)
        assert refused.value.blockers == expected
    assert ledger.month(MONTH).state is LedgerState.OPEN
    assert ledger.audit(EVERYTHING) == ()

    info = ledger.close_month(MONTH, author="ann", min_coverage=threshold, reason="outage, see OPS-7")
    assert (info.state, info.reason) == (LedgerState.CLOSED, "outage, see OPS-7")
    [entry] = ledger.audit(EVERYTHING)
    assert (entry.author, entry.action, entry.reason) == ("ann", "month close override", "outage, see OPS-7")
    assert all(blocker in entry.detail for blocker in expected)
    assert ledger.frontier(CLUSTER) == MONTH.window.end_ms, "the service does not wait for the gaps any more"


@pytest.mark.fault(42)
def test_a_month_that_has_not_ended_or_has_no_windows_is_not_closed(ledger: Ledger) -> None:
    with pytest.raises(CloseRefused, match="no cluster has a window in 2026-10"):
        close(ledger)
    with pytest.raises(InputError, match="a month that has ended"):
        close(ledger, Month.of(NOW_MS), reason="early")
    with pytest.raises(InputError, match="author"):
        ledger.close_month(MONTH, author=" ", min_coverage=FULL)
    with pytest.raises(InputError, match="min_coverage"):
        ledger.close_month(MONTH, author="ann", min_coverage=Fraction(3, 2))


@pytest.mark.fault(40)
def test_late_lines_for_a_closed_month_are_a_proposal(ledger: Ledger) -> None:
    stored = (
        line(FIRST, board_ms=100, nano=1000),
        line(FIRST, pod_uid="b", team="blue", board_ms=50, nano=500),
        line(FIRST, pod_uid="z", team="zebra", board_ms=5, nano=5),
        line(FIRST, bucket="unallocated", board_ms=30, nano=300),
        line(FIRST, bucket="overcommitted", pod_uid="o", team="over", board_ms=9, nano=0),
    )
    for day in DAYS:
        ingest(ledger, day, *(stored if day == FIRST else ()))
    close(ledger)
    before = ledger.aggregate(EVERYTHING, MONTH.window, ["team", "pod_uid", "bucket"])

    late = (
        line(FIRST, board_ms=120, nano=1200),
        line(FIRST, pod_uid="b", team="blue", board_ms=50, nano=None, rate_id=""),
        line(FIRST, pod_uid="z", team="zebra", board_ms=5, nano=5),
        line(FIRST, bucket="unallocated", board_ms=10, nano=100),
        line(FIRST, bucket="overcommitted", pod_uid="o", team="over", board_ms=1, nano=0),
    )
    with pytest.raises(LateLines, match="2026-10 is closed: alpha 2026-10-01") as refused:
        ingest(ledger, FIRST, *late, reason="late data")
    assert isinstance(refused.value, MonthClosed)
    assert refused.value.proposal == (
        ProposedAdjustment("__unallocated__", -20, -200),
        ProposedAdjustment("blue", 0, None),
        ProposedAdjustment("red", 20, 200),
    )
    assert ledger.aggregate(EVERYTHING, MONTH.window, ["team", "pod_uid", "bucket"]).equals(before)
    assert ledger.month(MONTH).version == 31
    assert len(ledger.audit(EVERYTHING)) == 1
    assert ledger.verify() == ()
    assert not ingest(ledger, FIRST, *stored).changed, "the same lines again are no correction"


@pytest.mark.fault(40)
def test_a_window_that_was_missing_at_the_close_is_a_proposal_too(ledger: Ledger) -> None:
    ingest(ledger, FIRST, line(FIRST))
    close(ledger, reason="started late")
    with pytest.raises(LateLines) as refused:
        ingest(ledger, DAYS[1], line(DAYS[1], board_ms=7, nano=8))
    assert refused.value.proposal == (ProposedAdjustment("red", 7, 8),)
    assert len(ledger.windows(MONTH.window)) == 1


def test_adjustments_correct_a_closed_month(october: Ledger) -> None:
    correction = {"reason": "late data", "author": "ann", "reference": "FIN-1"}
    with pytest.raises(MonthOpen, match="a closed month"):
        october.adjust(MONTH, "red", 200, 20, **correction)
    close(october)
    made = october.adjust(MONTH, "red", 200, 20, **correction)
    assert (made.month, made.nano, made.currency, made.created_at_ms) == (MONTH, 200, "USD", NOW_MS)
    assert october.adjust(MONTH, "red", 200, 20, **correction) == made, "retrying is safe"
    with pytest.raises(LedgerConflict, match="FIN-1"):
        october.adjust(MONTH, "red", 201, 20, **correction)
    other = october.adjust(MONTH, "blue", -5, -1, job_uid="job-1", **correction)
    assert october.adjustments(EVERYTHING, MONTH) == (made, other)
    assert october.adjustments(Scope(frozenset({"blue"})), MONTH) == (other,)
    assert october.adjustments(EVERYTHING, MONTH.next()) == ()
    assert [entry.action for entry in october.audit(EVERYTHING)] == [
        "month close",
        "adjustment",
        "adjustment",
    ]
    assert october.verify() == ()


def test_an_adjustment_says_who_and_why(ledger: Ledger) -> None:
    close_a_week(ledger)
    before = ledger.adjustments(EVERYTHING, MONTH)
    good = {"team": "red", "nano": 1, "board_ms": 1, "reason": "x", "author": "ann", "reference": "FIN-2"}
    wrong = {"team": "", "reason": " ", "author": "", "reference": "", "nano": 2**63, "job_uid": "\0"}
    for field, value in wrong.items():
        with pytest.raises(InputError, match=field):
            ledger.adjust(MONTH, **(good | {field: value}))
    assert ledger.adjustments(EVERYTHING, MONTH) == before


def raw(url: str, *statements: str) -> None:
    """A connection with the database's password, past the ledger's code."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


TAMPERING = {
    "edit a line": "UPDATE usage_line SET nano = nano + 1",
    "delete a line": "DELETE FROM usage_line",
    "move a line": "UPDATE usage_line SET window_id = 8 WHERE window_id = 1",
    "add a line": "INSERT INTO usage_line (window_id, unit_id, holder_id, rate_id, bucket, board_ms,"
    " first_ms, last_ms) VALUES (1, 1, 1, 0, 'unknown', 1, 1, 1)",
    "edit progress": "UPDATE progress_line SET amount = 9",
    "delete progress": "DELETE FROM progress_line",
    "edit a problem": "UPDATE window_problem SET detail = 'all is well'",
    "delete a problem": "DELETE FROM window_problem",
    "reopen a window": "UPDATE ledger_window SET state = 'open'",
    "delete a window": "DELETE FROM ledger_window WHERE state = 'closed'",
    "move a window": "UPDATE ledger_window SET cluster = 'beta'",
    "add a window": "INSERT INTO ledger_window (cluster, start_ms, end_ms, month, state, version)"
    " VALUES ('beta', 1, 2, '2026-10', 'open', 1)",
    "edit a version": "UPDATE window_version SET digest = 'x'",
    "delete a version": "DELETE FROM window_version",
    "edit a month": "UPDATE month SET digest = 'x'",
    "delete a month": "DELETE FROM month",
    "edit a holder": "UPDATE holder SET team = 'blue'",
    "delete a holder": "DELETE FROM holder",
    "edit a unit": "UPDATE unit SET model = 'T4'",
    "edit a rate": "UPDATE rate SET nano_per_board_hour = 1",
    "edit an adjustment": "UPDATE adjustment SET nano = 1",
    "delete an adjustment": "DELETE FROM adjustment",
    "edit the audit trail": "UPDATE audit SET author = 'bob'",
    "delete the audit trail": "DELETE FROM audit",
    "change the currency": "UPDATE ledger_meta SET currency = 'EUR'",
    "edit the sums of a day": "UPDATE day_line SET nano = nano + 1",
    "delete the sums of a day": "DELETE FROM day_line",
    "add to the sums of a day": "INSERT INTO day_line (day_id, unit_id, holder_id, rate_id, bucket, board_ms,"
    " unpriced_ms, first_ms, last_ms) VALUES (1, 1, 1, 0, 'unknown', 1, 1, 1, 1)",
    "edit a day": "UPDATE usage_day SET digest = ''",
    "delete a day": "DELETE FROM usage_day",
}
ON_SQLITE = {
    "replace a line": "INSERT OR REPLACE INTO usage_line SELECT * FROM usage_line",
    "replace a month": "INSERT OR REPLACE INTO month SELECT * FROM month",
    "replace a holder": "INSERT OR REPLACE INTO holder SELECT * FROM holder",
    "replace a rate": "INSERT OR REPLACE INTO rate SELECT * FROM rate",
    "replace a window": "INSERT OR REPLACE INTO ledger_window SELECT * FROM ledger_window",
    "replace an adjustment": "INSERT OR REPLACE INTO adjustment SELECT * FROM adjustment",
    "replace the sums of a day": "INSERT OR REPLACE INTO day_line SELECT * FROM day_line",
    "replace a day": "INSERT OR REPLACE INTO usage_day SELECT * FROM usage_day",
}
ON_POSTGRES = {
    f"empty {table}": f"TRUNCATE {table} CASCADE"
    for table in (
        *("usage_line", "progress_line", "ledger_window", "month", "holder", "audit", "adjustment"),
        *("usage_day", "day_line"),
    )
}


def write_closed(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        close_a_week(ledger)
        ingest(ledger, Window(MONTH.window.end_ms, MONTH.window.end_ms + DAY_MS), settle=False)


@pytest.fixture
def closed_url(copy_of: Callable[[Prepare], str]) -> str:
    """A ledger whose October is closed and has an adjustment, with an open window in November."""
    return copy_of(write_closed)


def close_a_week(ledger: Ledger) -> None:
    fill_days(ledger, DAYS[:7], CLUSTER)
    close(ledger, reason="one week is enough")
    ledger.adjust(MONTH, "red", 200, 20, reason="late", author="ann", reference="FIN-1")


@pytest.mark.fault(41)
def test_rows_of_a_closed_month_cannot_be_changed(closed_url: str) -> None:
    special = ON_SQLITE if closed_url.startswith("sqlite") else ON_POSTGRES
    for statement in (TAMPERING | special).values():
        with pytest.raises(DBAPIError, match="gpucost: "):
            raw(closed_url, statement)
    with Ledger.open(closed_url, now=lambda: NOW_MS) as ledger:
        assert ledger.verify() == ()


def tamper(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        drop_triggers(connection)
        connection.execute(text(statement))
    engine.dispose()


def drop_triggers(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        names = (
            connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
        )
        for name in names:
            connection.execute(text(f"DROP TRIGGER {name}"))
        connection.execute(text("PRAGMA foreign_keys = OFF"))
    else:
        connection.execute(text("SET session_replication_role = replica"))


ONE_LINE = "WHERE window_id = (SELECT min(id) FROM ledger_window) AND nano IS NOT NULL"
DETECTED = {
    f"UPDATE usage_line SET nano = nano + 1 {ONE_LINE}": "alpha 2026-10-01T00:00:00Z",
    f"DELETE FROM usage_line {ONE_LINE}": "alpha 2026-10-01T00:00:00Z",
    "UPDATE progress_line SET amount = 9 WHERE window_id = 2": "alpha 2026-10-02T00:00:00Z",
    "DELETE FROM window_problem WHERE window_id = 3": "alpha 2026-10-03T00:00:00Z",
    "UPDATE window_version SET nano = nano + 1 WHERE window_id = 4": "alpha 2026-10-04T00:00:00Z",
    "UPDATE ledger_window SET state = 'open' WHERE id = 5": "alpha 2026-10-05T00:00:00Z",
    "DELETE FROM ledger_window WHERE id = 6": "2026-10",
    "UPDATE month SET digest = 'x'": "2026-10",
    "UPDATE month SET previous_digest = 'x'": "2026-10",
    "DELETE FROM month": "alpha 2026-10-01T00:00:00Z",
    "UPDATE holder SET team = 'somebody else' WHERE id = 1": "holder 1",
    "UPDATE unit SET model = 'T4' WHERE id = 2": "unit 2",
    "UPDATE rate SET currency = 'EUR' WHERE id = 1": "rate 1",
    "UPDATE adjustment SET nano = nano - 1": "adjustment of red, FIN-1",
    "DELETE FROM adjustment": "2026-10 red",
    "UPDATE month SET author = 'bob'": "2026-10",
    "UPDATE month SET reason = 'because'": "2026-10",
    "UPDATE month SET closed_at_ms = closed_at_ms + 1": "2026-10",
    "DELETE FROM audit": "2026-10",
    "UPDATE audit SET author = 'bob'": "2026-10",
    "UPDATE ledger_meta SET currency = 'EUR'": "currency",
    "UPDATE day_line SET nano = nano + 1 WHERE day_id = 2": "alpha 2026-10-02T00:00:00Z",
    "DELETE FROM day_line WHERE day_id = 3": "alpha 2026-10-03T00:00:00Z",
    "UPDATE usage_day SET digest = 'x' WHERE id = 4": "alpha 2026-10-04T00:00:00Z",
}
REOPENED = (
    "DELETE FROM adjustment",
    "DELETE FROM month",
    "UPDATE ledger_window SET state = 'settled' WHERE state = 'closed'",
)


@pytest.mark.fault(41)
def test_a_month_that_was_quietly_opened_again_is_found(sqlite_url: str) -> None:
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        close_a_week(ledger)
    for statement in REOPENED:
        tamper(sqlite_url, statement)
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        found = [(finding.subject, finding.detail.split(" of ")[0]) for finding in ledger.verify()]
    days = found[:7]
    assert all("day sums changed" in detail for _, detail in days), "their digest says that they were closed"
    assert found[7:] == [("2026-10", "month close"), ("2026-10 red", "adjustment")]


@pytest.mark.fault(41)
def test_the_digests_find_what_somebody_did_without_the_triggers(tmp_path: Path) -> None:
    """Verification is the same code on both databases; each forgery starts from a copy of one file."""
    original = tmp_path / "original.db"
    with Ledger.open(new_ledger(original), now=lambda: NOW_MS) as ledger:
        close_a_week(ledger)
    for number, (statement, subject) in enumerate(DETECTED.items()):
        forged = tmp_path / f"{number}.db"
        shutil.copy(original, forged)
        tamper(f"sqlite:///{forged}", statement)
        with Ledger.open(f"sqlite:///{forged}", now=lambda: NOW_MS) as ledger:
            findings = ledger.verify(MONTH)
        assert any(finding.subject.startswith(subject) for finding in findings), (statement, findings)
        assert {finding.month for finding in findings} <= {MONTH, None}


@pytest.mark.fault(41)
def test_the_digests_find_a_forgery_on_both_databases(closed_url: str) -> None:
    for statement in ("DELETE FROM progress_line WHERE window_id = 3", f"DELETE FROM usage_line {ONE_LINE}"):
        tamper(closed_url, statement)
    with Ledger.open(closed_url, now=lambda: NOW_MS) as ledger:
        assert [finding.subject[:16] for finding in ledger.verify()] == [
            "alpha 2026-10-01",
            "alpha 2026-10-03",
            "2026-10",
            "alpha 2026-10-01",
        ]


@pytest.mark.fault(41)
def test_rewriting_a_window_with_its_digest_breaks_the_month_and_rewriting_that_breaks_the_chain(
    sqlite_url: str,
) -> None:
    following = MONTH.next()
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        fill(ledger)
        fill(ledger, following)
        close(ledger)
        close(ledger, following)
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        drop_triggers(connection)
    forged = [
        "UPDATE ledger_window SET state = 'settled' WHERE month = '2026-10'",
        "DELETE FROM month WHERE month = '2026-10'",
    ]
    raw(sqlite_url, *forged)
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        ingest(ledger, FIRST, line(FIRST, nano=1))
        close(ledger)
        found = ledger.verify()
    day, *others = found
    assert "day sums changed" in day.detail, "the digest of a closed day"
    assert [finding.month for finding in others] == [following, MONTH], "the chain's next link, and the trail"
    assert "in the audit trail only" in others[1].detail
    engine.dispose()


@pytest.mark.fault(43)
def test_a_closed_month_reads_the_same_a_year_later(october_url: str) -> None:
    dims = ["team", "job_uid", "model", "bucket"]

    def read(ledger: Ledger) -> tuple[str, MonthInfo, object, object]:
        frame: pd.DataFrame = ledger.aggregate(EVERYTHING, MONTH.window, dims)
        return frame.to_csv(), ledger.month(MONTH), ledger.windows(MONTH.window), ledger.rates(["h100@1"])

    with Ledger.open(october_url, now=lambda: NOW_MS) as ledger:
        close(ledger)
        before = read(ledger)
    later = Month(2027, 11).window.start_ms
    with Ledger.open(october_url, now=lambda: later) as ledger:
        for month in (MONTH.next(), MONTH.previous()):
            for day in month.window.split(DAY_MS):
                rows = random_rows(7, day, count=3, cluster=CLUSTER)
                ingest(ledger, day, *rows, code_version="99", source="newer code")
            close(ledger, month)
        with pytest.raises(LateLines):
            ingest(ledger, FIRST, line(FIRST), code_version="99")
        assert read(ledger) == before
        assert {window.code_version for window in ledger.windows(MONTH.window)} == {"1"}
        assert ledger.verify() == ()


def test_history_and_audit_are_for_those_who_see_everything(ledger: Ledger) -> None:
    team = Scope(frozenset({"red"}))
    for read in (lambda: ledger.audit(team), lambda: ledger.history(team, CLUSTER, FIRST)):
        with pytest.raises(LedgerError, match="sees every team"):
            read()


def test_a_new_cluster_is_not_held_up_by_a_closed_month(october: Ledger) -> None:
    close(october)
    following = list(MONTH.next().window.split(DAY_MS))
    assert october.frontier(CLUSTER) == following[0].start_ms
    ingest(october, following[3], cluster="beta")
    assert october.frontier("beta") == following[3].end_ms
    ingest(october, following[1])
    assert october.frontier(CLUSTER) == following[0].start_ms
    ingest(october, following[0])
    assert october.frontier(CLUSTER) == following[1].end_ms


CHARGED = MonthCharges(
    policy_name="a.yaml",
    policy="version: 1\nname: a\n",
    files='{"q.yaml": "version: 1"}',
    weights='{"red": "1/3"}',
    currency="USD",
    digest="abc",
    amounts=(("platform", 5, -7), ("red \u2603", 1, 2)),
)


def close_charged(ledger: Ledger, charges: MonthCharges, state: str | None) -> MonthInfo:
    return ledger.close_month(
        MONTH, author="ann", min_coverage=Fraction(0), reason="x", charges=charges, state=state
    )


@pytest.mark.fault(43)
def test_what_teams_were_charged_is_kept_with_a_close(ledger: Ledger) -> None:
    """Closing again, with other charges, changes nothing; what has changed meanwhile is not closed."""
    ingest(ledger, FIRST, line(FIRST))
    before = ledger.month_state(MONTH)
    ingest(ledger, DAYS[1], line(DAYS[1]))
    with pytest.raises(LedgerConflict, match="was written to while it was being closed"):
        close_charged(ledger, CHARGED, before)
    assert (ledger.month(MONTH).state, ledger.month_charges(MONTH)) == (LedgerState.OPEN, None)
    closed = close_charged(ledger, CHARGED, ledger.month_state(MONTH))
    assert ledger.month_charges(MONTH) == CHARGED
    assert close_charged(ledger, replace(CHARGED, digest="other"), None) == closed
    assert ledger.month_charges(MONTH) == CHARGED
    assert ledger.verify(MONTH) == ()
    ledger.fold(MONTH, author="ann")
    assert (ledger.month_charges(MONTH), ledger.verify(MONTH)) == (CHARGED, ())


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE month_charges SET amounts = '[]'", "changed since the month was closed"),
        ("UPDATE month_charges SET policy = 'version: 1', content_key = 'x'", "not in the audit trail"),
        ("DELETE FROM month_charges", "month charges"),
    ],
)
def test_changed_charges_of_a_closed_month_are_found(
    ledger: Ledger, ledger_url: str, statement: str, said: str
) -> None:
    ingest(ledger, FIRST, line(FIRST))
    close_charged(ledger, CHARGED, None)
    engine = create_engine(ledger_url)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
        connection.execute(text(statement))
    engine.dispose()
    tamper(ledger_url, statement)
    assert said in " ".join(f"{found.subject} {found.detail}" for found in ledger.verify(MONTH))
