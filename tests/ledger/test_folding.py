"""Folding a closed month: the hours go, every sum by day stays, and what was closed can still be proven."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError

from gpucost.api.metrics import detectors
from gpucost.api.metrics.detectors import WasteFamilies
from gpucost.api.server.metric_families import TeamRows
from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError, LedgerError, MonthClosed
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.db.database import insert_rows
from gpucost.ledger.db.records import FoldRefused, LateLines, WasteOfWindow
from gpucost.ledger.db.tables import (
    AUDIT,
    FOLD_BEGUN,
    FOLDED_DAY,
    MONTH_FOLD,
    PROGRESS_LINE,
    USAGE_LINE,
    WASTE_LINE,
    WINDOW_PROBLEM,
)
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention import verification
from gpucost.ledger.usage import rollups
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from gpucost.service.reporting.rendering import ReportFormat, render_month
from gpucost.service.wiring.ledger import build_reporting
from tests.ledger.builders import CLUSTER, MONTH, NOW_MS, hour, ingest, line, progress, random_rows
from tests.ledger.tampering import drop_triggers, tamper
from tests.support.ledgers import Prepare

START = MONTH.window.start_ms
DAYS = [Window(START + n * DAY_MS, START + (n + 1) * DAY_MS) for n in range(3)]
PARTS = [name for name in WASTE_LINES.column_names if name not in ("waste", "board_ms", "nano")]
HOURS = {CLUSTER: (0, 1, 3, 4, 24, 25, 26), "beta": (0, 1)}
UNSEEN, PROVISIONAL = (3, 4), 25
"""Hours that were not assessed, and one whose assessment is not final."""


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def rows_of(window: Window, cluster: str, number: int) -> list[dict[str, Any]]:
    """The same pods hour after hour, and some lines that no other hour has."""
    steady = [
        line(
            window,
            cluster=cluster,
            node=f"n-{pod}",
            pod=f"p-{pod}",
            pod_uid=f"{cluster}-{pod}",
            job_uid=f"j-{pod // 2}",
            team=("red", "blue")[pod % 2],
            nano=1_000 + number + pod,
            first_ms=window.start_ms + pod,
            last_ms=window.end_ms - pod,
            observed_ms=HOUR_MS if pod else None,
            busy_ms=number * 1_000 if pod else None,
            sm_observed_ms=HOUR_MS - pod,
            tensor_active_ms=number,
            # An hour of the first release between others.
            tensor_observed_ms=None if number % 3 == 0 else number + 1,
            memory_peak_mib=1_000 + number * 17 % 50,
        )
        for pod in range(4)
    ]
    return steady + [row | {"cluster": cluster} for row in random_rows(4, window, 5, cluster)]


def fill(ledger: Ledger) -> None:
    """Hours of two days of a cluster, and of one day of another."""
    for cluster, hours in HOURS.items():
        for number in hours:
            window, rows = hour(number), rows_of(hour(number), cluster, number)
            problems = [
                DataProblem(
                    DataProblemCode.COUNT_UNKNOWN, cluster, f"{cluster}-0", "", board_ms=number or None
                ),
                DataProblem(DataProblemCode.COUNT_UNKNOWN, cluster, f"n-{number}", "once"),
            ]
            steps = progress((f"{cluster}-0", window, "steps", 0.1)).assign(cluster=cluster)
            ingest(ledger, window, *rows, cluster=cluster, problems=problems, progress=steps)
            if number not in UNSEEN:
                assess(ledger, cluster, window, rows[:3], final=number != PROVISIONAL)


def assess(
    ledger: Ledger, cluster: str, window: Window, rows: list[dict[str, Any]], *, final: bool = True
) -> None:
    parts = [
        {name: row[name] for name in PARTS} | {"waste": "idle", "board_ms": 7, "nano": 3} for row in rows
    ]
    [info] = ledger.windows(window, cluster)
    frame = pd.DataFrame(parts, columns=list(WASTE_LINES.column_names), dtype=object)
    ledger.write_waste(cluster, [WasteOfWindow(window, info.digest, frame, final)], code_version="1")


def close(ledger: Ledger) -> None:
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="two days are enough")


def write_closed(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        fill(ledger)
        close(ledger)


@pytest.fixture
def closed_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(write_closed)


@pytest.fixture
def closed(closed_url: str) -> Iterator[Ledger]:
    with Ledger.open(closed_url, now=lambda: NOW_MS) as opened:
        yield opened


def told(ledger: Ledger) -> dict[str, object]:
    """Everything that is reported by day or longer, of all teams and of one."""
    reporting = build_reporting(ledger, TeamRules.default())
    found: dict[str, object] = {}
    for name, scope in (("all", EVERYTHING), ("red", Scope(frozenset({"red"})))):
        month = reporting.month(scope, MONTH, every_job=True)
        days = reporting.allocations(scope, MONTH.window, ("team", "model"), step_ms=DAY_MS)
        waste = reporting.waste(scope, MONTH.window)
        assert month is not None
        assert waste is not None
        kinds = ReportFormat if scope is EVERYTHING else (ReportFormat.JSON,)
        found |= {f"{name} {kind}": render_month(month.report, kind) for kind in kinds}
        found |= {f"{name} days": repr(days), f"{name} waste": repr(waste)}
        for dims in (("node", "pod_uid", "bucket", "rate_id"), ("team",), ()):
            frames = [
                read(scope, MONTH.window, dims, step_ms=DAY_MS) for read in (ledger.aggregate, ledger.waste)
            ]
            found[f"{name} {dims}"] = [frame.to_csv() for frame in frames]
        found[f"{name} problems"] = ledger.problems(scope, MONTH.window)
    found["windows"] = ledger.windows(MONTH.window), ledger.assessed(MONTH.window), ledger.month(MONTH)
    found["waste of final windows"] = ledger.final_waste(CLUSTER, (), most=1_000)
    return found


@pytest.mark.fault(43)
def test_a_folded_month_tells_the_same_bytes(closed: Ledger) -> None:
    before = told(closed)
    assert [plan.month for plan in closed.foldable(MONTH.window.end_ms)] == [MONTH]
    assert closed.foldable(MONTH.window.end_ms - 1) == ()
    done = closed.fold(MONTH, author="ann")
    assert 0 < done.lines < done.lines_before
    assert 0 < done.waste_lines < done.waste_before
    for name, value in told(closed).items():
        assert value == before[name], name
    assert closed.verify() == ()
    assert closed.folded(MONTH) == done == closed.fold(MONTH, author="bob"), "folding again changes nothing"
    assert closed.foldable(NOW_MS) == ()
    assert closed.folded_days(EVERYTHING, MONTH.window) == tuple(DAYS[:2])
    entry = closed.audit(EVERYTHING)[-1]
    assert (entry.action, entry.author, entry.subject) == ("month fold", "ann", "2026-10")
    digest = closed.month(MONTH).digest
    assert entry.detail == (
        f"{done.digest} of {digest}: {done.lines_before} usage lines became {done.lines}, "
        f"{done.waste_before} waste lines {done.waste_lines}"
    )
    steps = closed.progress(EVERYTHING, MONTH.window, "j-0")
    assert steps["amount"].tolist() == pytest.approx([0.7, 0.2]), "by cluster"


def test_final_waste_is_the_same_whatever_is_asked_for_at_once(closed: Ledger) -> None:
    whole = closed.final_waste(CLUSTER, (), most=1_000)
    closed.fold(MONTH, author="ann")
    known, sums = set[int](), dict[object, int]()
    while True:
        found = closed.final_waste(CLUSTER, known, most=7)
        known |= set(found.starts)
        for key, board_ms in found.board_ms.items():
            sums[key] = sums.get(key, 0) + board_ms
        if found.complete:
            break
    assert sums == whole.board_ms
    assert known == set(whole.starts)


def test_counters_that_were_catching_up_during_a_folding_begin_anew(
    closed: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detectors, "_SUMMING_S", 0)
    summed = closed.final_waste
    monkeypatch.setattr(
        closed, "final_waste", lambda cluster, known, most: summed(cluster, known, most=min(most, 1))
    )

    def waste(families: WasteFamilies) -> dict[tuple[str, ...], float]:
        [_, found] = families.collect()
        return {tuple(each.labels.values()): each.value for each in found.samples}

    whole = WasteFamilies(closed, TeamRows((), 500))
    for _ in range(10):
        before = waste(whole)
    families = WasteFamilies(closed, TeamRows((), 500))
    waste(families)
    closed.fold(MONTH, author="ann")
    for _ in range(10):
        after = waste(families)
    assert any(before.values())
    assert after == before == waste(whole)


def test_both_databases_fold_to_one_digest(sqlite_url: str, postgres_url: str) -> None:
    digests = []
    for url in (sqlite_url, postgres_url):
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            fill(ledger)
            close(ledger)
            digests.append(ledger.fold(MONTH, author="ann"))
    assert digests[0] == digests[1]


def test_what_a_folded_month_cannot_tell_is_said(closed: Ledger) -> None:
    closed.fold(MONTH, author="ann")
    for window, step_ms in ((hour(3), None), (DAYS[0], HOUR_MS)):
        for read in (closed.aggregate, closed.waste):
            with pytest.raises(InputError, match=r"cut: alpha 2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"):
                read(EVERYTHING, window, ["team"], step_ms=step_ms, filters={"cluster": [CLUSTER]})
    beta = closed.aggregate(EVERYTHING, DAYS[0], ["team"], filters={"cluster": ["beta"]})
    assert not beta.empty
    assert closed.job_window(EVERYTHING, "j-0") == Window(DAYS[0].start_ms, DAYS[1].end_ms)
    with pytest.raises(MonthClosed, match="folded") as refused:
        ingest(closed, hour(3), line(hour(3)))
    assert not isinstance(refused.value, LateLines), "there is no proposal"
    assert not ingest_again(closed), "the same lines again are no correction"


def ingest_again(ledger: Ledger) -> bool:
    window = hour(0)
    problems = [
        DataProblem(DataProblemCode.COUNT_UNKNOWN, CLUSTER, f"{CLUSTER}-0", ""),
        DataProblem(DataProblemCode.COUNT_UNKNOWN, CLUSTER, "n-0", "once"),
    ]
    steps = progress((f"{CLUSTER}-0", window, "steps", 0.1))
    return ingest(ledger, window, *rows_of(window, CLUSTER, 0), problems=problems, progress=steps).changed


def test_an_open_month_and_one_that_was_changed_are_not_folded(ledger_url: str, ledger: Ledger) -> None:
    fill(ledger)
    with pytest.raises(InputError, match="a closed month"):
        ledger.fold(MONTH, author="ann")
    close(ledger)
    with pytest.raises(InputError, match="author"):
        ledger.fold(MONTH, author=" ")
    tamper(ledger_url, "UPDATE usage_line SET nano = nano + 1 WHERE window_id = 1")
    before = ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv()
    with pytest.raises(FoldRefused, match=r"2026-10 is not folded.*content changed"):
        ledger.fold(MONTH, author="ann")
    assert ledger.folded(MONTH) is None
    assert ledger.aggregate(EVERYTHING, hour(3), ["team"]) is not None, "the hours are there"
    assert ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv() == before


def test_a_day_that_a_sum_would_lose_something_of_stays(ledger: Ledger) -> None:
    """A line with a price that costs nothing known beside the same line with a cost."""
    for number, nano in ((0, None), (1, 5), (24, 5), (25, 5)):
        ingest(ledger, hour(number), line(hour(number), nano=nano))
    close(ledger)
    before = ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv()
    ledger.fold(MONTH, author="ann")
    assert ledger.folded_days(EVERYTHING, MONTH.window) == (DAYS[1],)
    assert ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv() == before
    assert ledger.verify() == ()


def test_days_that_a_window_cuts_stay(ledger: Ledger) -> None:
    for number in range(5):
        window = Window(START + number * 7 * HOUR_MS, START + (number + 1) * 7 * HOUR_MS)
        ingest(ledger, window, line(window))
    close(ledger)
    done = ledger.fold(MONTH, author="ann")
    assert (done.lines_before, done.lines) == (5, 5)
    assert ledger.folded_days(EVERYTHING, MONTH.window) == ()
    assert ledger.verify() == ()


# --- crashes --------------------------------------------------------------------------------------------


class Crash(BaseException):
    """Not an Exception: no handler of errors may take it for one."""


@contextmanager
def crash_at(number: int) -> Iterator[None]:
    """From the first write on: what comes before only reads."""
    steps, writes = itertools.count(), False

    def step(*given: object) -> None:
        nonlocal writes
        writes = writes or "INSERT INTO fold_begun" in str(given[2:3])
        if writes and next(steps) == number:
            raise Crash

    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, step)
    try:
        yield
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(Engine, name, step)


def stored(url: str) -> dict[str, list[str]]:
    """Every row of what folding writes."""
    tables = (
        USAGE_LINE,
        PROGRESS_LINE,
        WINDOW_PROBLEM,
        WASTE_LINE,
        FOLD_BEGUN,
        MONTH_FOLD,
        FOLDED_DAY,
        AUDIT,
    )
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {table.name: sorted(map(repr, connection.execute(select(table)))) for table in tables}
    engine.dispose()
    return found


@pytest.mark.fault(39, 44)
def test_a_crash_at_any_statement_of_a_folding_leaves_all_or_nothing(ledger_url: str, ledger: Ledger) -> None:
    for number in (0, 1):
        ingest(ledger, hour(number), *rows_of(hour(number), CLUSTER, number))
        assess(ledger, CLUSTER, hour(number), rows_of(hour(number), CLUSTER, number)[:3])
    close(ledger)

    before, sums = (
        stored(ledger_url),
        ledger.aggregate(EVERYTHING, MONTH.window, ["node", "pod_uid"]).to_csv(),
    )
    for number in itertools.count():
        try:
            with crash_at(number):
                ledger.fold(MONTH, author="ann")
        except Crash:
            assert stored(ledger_url) == before, f"something was left by a crash at step {number}"
        else:
            assert number > 15, "the crashes must reach the inner steps"
            break
    assert stored(ledger_url) != before
    assert ledger.aggregate(EVERYTHING, MONTH.window, ["node", "pod_uid"]).to_csv() == sums
    assert ledger.verify() == ()


# --- tampering ------------------------------------------------------------------------------------------

REFUSED = {
    "edit a line": "UPDATE usage_line SET nano = nano + 1",
    "delete a line": "DELETE FROM usage_line",
    "delete a problem": "DELETE FROM window_problem",
    "delete progress": "DELETE FROM progress_line",
    "delete waste": "DELETE FROM waste_line",
    "edit waste": "UPDATE waste_line SET board_ms = 1",
    "delete an assessment": "DELETE FROM waste_window",
    "add a line": "INSERT INTO usage_line (window_id, unit_id, holder_id, rate_id, bucket, board_ms,"
    " first_ms, last_ms) VALUES (2, 1, 1, 0, 'unknown', 1, 1, 1)",
    "edit the record": "UPDATE month_fold SET lines = 1",
    "delete the record": "DELETE FROM month_fold",
    "delete a day": "DELETE FROM folded_day",
    "edit a day": "UPDATE folded_day SET digest = 'x'",
    "add a day": "INSERT INTO folded_day SELECT window_id + 1, month, cluster, start_ms + 1, end_ms,"
    " assessed, windows, lines, waste_lines, digest FROM folded_day WHERE window_id = 1",
    "delete the beginning": "DELETE FROM fold_begun",
}


def raw(url: str, *statements: str) -> None:
    """A connection with the database's password, past the ledger's code."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


@pytest.mark.fault(41)
def test_rows_of_a_folded_month_cannot_be_changed(closed_url: str, closed: Ledger) -> None:
    closed.fold(MONTH, author="ann")
    for statement in REFUSED.values():
        with pytest.raises(DBAPIError, match="gpucost: "):
            raw(closed_url, statement)
    assert closed.verify() == ()


@pytest.mark.fault(41)
def test_the_door_of_the_triggers_opens_for_a_folding_only(closed_url: str, closed: Ledger) -> None:
    """Who begins to fold must have folded at the end of the transaction; none folds twice."""
    delete = "DELETE FROM usage_line WHERE window_id = 1"
    with pytest.raises(DBAPIError, match="gpucost: the month is closed"):
        raw(closed_url, delete)
    keys = ["PRAGMA foreign_keys = ON"] if closed_url.startswith("sqlite") else []
    engine = create_engine(closed_url)
    with engine.connect() as connection:
        for statement in keys:
            connection.exec_driver_sql(statement)
            connection.commit()
        connection.execute(text("INSERT INTO fold_begun VALUES ('2026-10')"))
        with pytest.raises(DBAPIError, match="gpucost: the month is closed"), connection.begin_nested():
            connection.execute(text("UPDATE usage_line SET nano = 1"))
        connection.execute(text(delete))
        with pytest.raises(DBAPIError, match=r"FOREIGN KEY|foreign key"):
            connection.commit()
    engine.dispose()
    assert closed.verify() == ()
    tamper(
        closed_url, "INSERT INTO fold_begun VALUES ('2026-10')", "INSERT INTO fold_begun VALUES ('2027-01')"
    )
    left_open = [(finding.subject, finding.detail) for finding in closed.verify()]
    assert left_open == [
        (month, "begun to be folded, and no record of the folding") for month in ("2026-10", "2027-01")
    ]


FORGERIES = {
    "a line": ("UPDATE usage_line SET nano = nano + 1 WHERE window_id = 1", "folded day changed"),
    "cost from one holder to another": (
        "UPDATE usage_line SET nano = nano + 9 WHERE window_id = 1 AND holder_id = (SELECT min(holder_id)"
        " FROM usage_line WHERE window_id = 1 AND bucket = 'held' AND nano > 9);"
        "UPDATE usage_line SET nano = nano - 9 WHERE window_id = 1 AND holder_id = (SELECT max(holder_id)"
        " FROM usage_line WHERE window_id = 1 AND bucket = 'held' AND nano > 9)",
        "folded day changed",
    ),
    "every line is gone": ("DELETE FROM usage_line", "folded day changed"),
    "every fold is gone": (
        "DELETE FROM folded_day;DELETE FROM month_fold;DELETE FROM fold_begun;"
        "DELETE FROM audit WHERE action = 'month fold'",
        "content changed",
    ),
    "a peak": ("UPDATE usage_line SET memory_peak_mib = 1 WHERE window_id = 1", "folded day changed"),
    "a line where the hours were": (
        "INSERT INTO usage_line (window_id, unit_id, holder_id, rate_id, bucket, board_ms, first_ms, last_ms)"
        " VALUES (2, 1, 1, 0, 'overcommitted', 0, 1, 1)",
        "folded day changed",
    ),
    "waste": ("UPDATE waste_line SET board_ms = board_ms + 1 WHERE window_id = 1", "folded day changed"),
    "progress": ("UPDATE progress_line SET amount = 9 WHERE window_id = 1", "folded day changed"),
    "a problem": ("UPDATE window_problem SET detail = 'no' WHERE window_id = 1", "folded day changed"),
    "an assessment": ("UPDATE waste_window SET digest = 'x' WHERE window_id = 2", "folded day changed"),
    "how long was observed": (
        "UPDATE window_version SET observed_ms = 1 WHERE window_id = 2",
        "folded day changed",
    ),
    "sums of a window": ("UPDATE window_version SET nano = nano + 1 WHERE window_id = 2", "closed with"),
    "digest of a window": ("UPDATE window_version SET digest = 'x' WHERE window_id = 2", "closed with"),
    "a window": ("UPDATE ledger_window SET start_ms = start_ms + 1 WHERE id = 2", "closed with"),
    "a day": ("UPDATE folded_day SET digest = 'x' WHERE window_id = 1", "folded day changed"),
    "a day is gone": ("DELETE FROM folded_day WHERE window_id = 1", "folded days give digest"),
    "all days are gone": ("DELETE FROM folded_day", "content changed"),
    "the record": ("UPDATE month_fold SET digest = 'x'", "folded days give digest"),
    "its author": ("UPDATE month_fold SET author = 'bob'", "not in the audit trail"),
    "its counts": ("UPDATE month_fold SET lines = 1", "not in the audit trail"),
    "the record is gone": ("DELETE FROM month_fold", "no record of the folding"),
    "the trail": ("DELETE FROM audit WHERE action = 'month fold'", "not in the audit trail"),
    "the beginning": ("DELETE FROM fold_begun", "never begun"),
}


@pytest.mark.fault(41)
def test_the_digests_find_a_forgery_in_a_folded_month(closed_url: str, closed: Ledger) -> None:
    closed.fold(MONTH, author="ann")
    engine = create_engine(closed_url)
    for name, (statements, found) in FORGERIES.items():
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")
            drop_triggers(connection)
            for statement in statements.split(";"):
                connection.execute(text(statement))
            details = [finding.detail for finding in verification.verify(connection, MONTH)]
            connection.rollback()
        assert any(found in detail for detail in details), (name, details)
    engine.dispose()
    assert closed.verify() == ()


@pytest.mark.fault(41)
def test_a_day_with_other_sums_than_its_windows_is_found_whatever_its_digest(sqlite_url: str) -> None:
    """An attacker who writes every digest of the folding anew cannot change the sums of a day."""
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        fill(ledger)
        close(ledger)
        ledger.fold(MONTH, author="ann")
        tamper(sqlite_url, "UPDATE usage_line SET nano = nano + 1 WHERE window_id = 1 AND bucket = 'held'")
        engine = create_engine(sqlite_url)
        with engine.begin() as connection:
            [piece] = [each for each in rollups.pieces(connection, str(MONTH)) if each.carrier == 1]
            carrier = {"carrier": 1, "digest": rollups.content(connection, piece)[0]}
            connection.execute(
                text("UPDATE folded_day SET digest = :digest WHERE window_id = :carrier"), carrier
            )
        engine.dispose()
        assert any("sums to" in finding.detail for finding in ledger.verify())


def test_a_sum_that_is_not_that_of_the_windows_is_not_written(
    closed: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the sums ever be wrong, nothing is folded."""

    def loses_one(connection: Connection, table: Any, rows: list[tuple[Any, ...]]) -> None:
        insert_rows(connection, table, rows[1:])

    monkeypatch.setattr("gpucost.ledger.retention.rollup.insert_rows", loses_one)
    with pytest.raises(LedgerError, match="would sum to"):
        closed.fold(MONTH, author="ann")
    assert closed.folded(MONTH) is None
    assert closed.verify() == ()
