"""Sums by UTC day: the same as the lines, whatever was written, replaced, folded, closed or killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, event, select, text

from gpucost.domain.errors import InputError
from gpucost.domain.money import INT64_MAX
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.db.tables import USAGE_DAY
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage import query
from tests.ledger.builders import (
    CLUSTER,
    MONTH,
    NOW_MS,
    attribution,
    hour,
    ingest,
    ingest_batch,
    line,
    random_rows,
)
from tests.ledger.first_release import make
from tests.ledger.tampering import tamper
from tests.support.ledgers import new_ledger

START = MONTH.window.start_ms
WHOLE = Window(START, START + 4 * DAY_MS)
DIMS = [name for name in query.DIMENSIONS if name not in ("node", "pod", "pod_uid")]
ASKED: list[tuple[list[str], dict[str, list[str]], int | None]] = [
    ([], {}, None),
    (["team", "bucket"], {}, DAY_MS),
    (["team"], {"bucket": ["held"], "model": ["H100", "é-gpu"]}, 2 * DAY_MS),
    (["share_num", "share_den", "model", "rate_id"], {"team": ["red", "éclair"]}, None),
    (["cluster", "job"], {"cluster": [CLUSTER], "rate_id": ["h100@1"]}, DAY_MS),
    (DIMS, {}, DAY_MS),
]
SCOPES = (EVERYTHING, Scope(frozenset({"red", "zebra"})), Scope(None, frozenset({"beta"})))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def read(ledger: Ledger, window: Window = WHOLE) -> list[pd.DataFrame]:
    return [
        ledger.aggregate(scope, window, dims, filters=filters, step_ms=step_ms)
        for dims, filters, step_ms in ASKED
        for scope in SCOPES
    ]


def from_lines(ledger: Ledger, window: Window = WHOLE) -> list[pd.DataFrame]:
    """The same from the lines alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "_said_by_days", lambda *_: False)
        return read(ledger, window)


def assert_same(ledger: Ledger, window: Window = WHOLE) -> None:
    for one, other in zip(read(ledger, window), from_lines(ledger, window), strict=True):
        pd.testing.assert_frame_equal(one, other)


def days(url: str) -> list[tuple[str, int, str]]:
    """Cluster, number in the month and digest of the days that are added up."""
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(select(USAGE_DAY)).all()
    engine.dispose()
    return sorted((row.cluster, (row.start_ms - START) // DAY_MS, row.digest) for row in rows)


def write(ledger: Ledger, seed: int, number: int, cluster: str, count: int) -> None:
    ingest(
        ledger,
        hour(number),
        *random_rows(seed, hour(number), count, cluster),
        cluster=cluster,
        reason="again",
        settle=False,
    )


def close(ledger: Ledger) -> None:
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="these days are enough")


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from((0, 1, 23, 24, 30, 47, 48, 71)), st.sampled_from((CLUSTER, "beta"))
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.slow
@settings(max_examples=15)
@given(STEPS, st.booleans(), st.integers(0, 12))
def test_whatever_is_written_days_say_what_the_lines_say(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, str]],
    folded: bool,
    forgotten: int,
) -> None:
    """Windows new and replaced, days that are not added up, a closed month, a folded one."""
    url = new_ledger(tmp_path_factory.mktemp("days") / "ledger.db")
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        for at, (seed, number, cluster) in enumerate(steps):
            write(ledger, seed, number, cluster, 1 + (seed * 7 + number) % 12)
            if at == forgotten:
                tamper_days(url, "DELETE FROM day_line", "DELETE FROM usage_day")
        assert_same(ledger)
        assert_same(ledger, Window(START + HOUR_MS, WHOLE.end_ms - HOUR_MS))
        assert [each.done for each in ledger.add_up_days()].count(False) == 0
        assert len(days(url)) == len({(cluster, number // 24) for _, number, cluster in steps})
        before = [frame.to_csv() for frame in read(ledger)]
        assert_same(ledger)
        close(ledger)
        if folded:
            ledger.fold(MONTH, author="ann")
        assert all(digest for *_, digest in days(url))
        assert ledger.verify() == ()
        assert [frame.to_csv() for frame in read(ledger)] == before


def tamper_days(url: str, *statements: str) -> None:
    """Statements of somebody for whom the triggers of an open month are no obstacle."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_days_are_read_and_not_the_lines(ledger: Ledger, ledger_url: str) -> None:
    for number in (0, 1, 24):
        write(ledger, 1, number, CLUSTER, 20)
    whole, hours = Window(START, START + 2 * DAY_MS), Window(START, START + HOUR_MS)
    before = ledger.aggregate(EVERYTHING, whole, ["team"])
    of_hour = ledger.aggregate(EVERYTHING, hours, ["team"])
    tamper(ledger_url, "UPDATE usage_line SET board_ms = board_ms + 1")
    pd.testing.assert_frame_equal(ledger.aggregate(EVERYTHING, whole, ["team"]), before)
    assert not ledger.aggregate(EVERYTHING, hours, ["team"]).equals(of_hour), "an hour is in its lines only"
    assert ledger.aggregate(EVERYTHING, whole, ["pod"])["board_ms"].sum() != before["board_ms"].sum()
    found = [finding.detail for finding in ledger.verify() if "day sums" in finding.detail]
    assert len(found) == 2
    assert all("not those of the lines" in detail for detail in found)


def test_a_batch_of_windows_and_its_later_version(ledger: Ledger) -> None:
    ingest_batch(ledger, attribution(0, 30))
    assert_same(ledger)
    ingest_batch(ledger, attribution(20, 40, moved_ms=HOUR_MS // 4), reason="late data")
    assert_same(ledger)
    assert ledger.verify() == ()


def test_a_window_of_a_day_counts_on_the_day_that_it_starts_in(ledger: Ledger) -> None:
    """A window of thirty hours from noon: no day is read without the other, and both together are."""
    noon = START + DAY_MS // 2
    long, after = Window(noon, noon + 30 * HOUR_MS), Window(noon + 30 * HOUR_MS, START + 2 * DAY_MS)
    ingest(ledger, long, line(long))
    ingest(ledger, after, line(after))
    two = Window(START, START + 2 * DAY_MS)
    assert ledger.aggregate(EVERYTHING, two, [])["board_ms"].tolist() == [36 * HOUR_MS]
    by_lines = ledger.aggregate(EVERYTHING, two, ["pod"])
    assert by_lines["board_ms"].tolist() == [36 * HOUR_MS]
    with pytest.raises(InputError, match="edges between"):
        ledger.aggregate(EVERYTHING, two, [], step_ms=DAY_MS)


def test_days_of_an_earlier_release_are_added_up_one_by_one(empty_url: str) -> None:
    """Whoever is stopped in between goes on later; a closed month gets its digests then."""
    make(empty_url)
    with Ledger.open(empty_url, now=lambda: NOW_MS) as ledger:
        assert days(empty_url) == []
        before = read(ledger, MONTH.window)
        first = next(ledger.add_up_days())
        assert first.done
        assert len(days(empty_url)) == 1
        for one, other in zip(read(ledger, MONTH.window), before, strict=True):
            pd.testing.assert_frame_equal(one, other)
        rest = list(ledger.add_up_days())
        assert all(each.done for each in rest)
        assert list(ledger.add_up_days()) == []
        assert all(digest for *_, digest in days(empty_url))
        assert ledger.verify() == ()
        for one, other in zip(read(ledger, MONTH.window), before, strict=True):
            pd.testing.assert_frame_equal(one, other)


def test_a_day_that_cannot_be_added_up_is_read_from_its_lines(ledger: Ledger, ledger_url: str) -> None:
    huge = {"energy_observed_ms": 1, "energy_mj": INT64_MAX // 5}
    for number in range(2):
        ingest(ledger, hour(number), line(hour(number), **huge))
    assert days(ledger_url) == [(CLUSTER, 0, "")], "two fit"
    assert_same(ledger)
    ingest(ledger, hour(2), line(hour(2), **huge))
    assert days(ledger_url) == []
    assert [each.done for each in ledger.add_up_days()] == [False]
    frame = ledger.aggregate(EVERYTHING, WHOLE, ["model"])
    assert frame["energy_mj"].tolist() == [INT64_MAX // 5 * 3]


def test_lines_that_do_not_sum_to_their_windows_are_not_added_up(ledger: Ledger, ledger_url: str) -> None:
    write(ledger, 1, 0, CLUSTER, 20)
    write(ledger, 1, 24, CLUSTER, 20)
    tamper(
        ledger_url,
        "UPDATE usage_line SET nano = nano + 1 WHERE window_id = 1",
        "DELETE FROM day_line",
        "DELETE FROM usage_day",
    )
    assert [(each.day.start_ms, each.done) for each in ledger.add_up_days()] == [
        (START + DAY_MS, True),
        (START, False),
    ]


class _Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_a_write_that_ends_anywhere_leaves_lines_and_days_alike(ledger: Ledger, replaced: bool) -> None:
    """Before every third of its statements, in turn; SIGKILL is in test_ledger_faults."""
    write(ledger, 1, 0, CLUSTER, 6)
    write(ledger, 1, 1, CLUSTER, 6)
    before = [frame.to_csv() for frame in read(ledger)]
    number, stop = 1 if replaced else 2, 1
    while _dies(lambda: write(ledger, 5, number, CLUSTER, 6), stop):
        assert [frame.to_csv() for frame in read(ledger)] == before
        stop += 3
    assert stop > 10
    assert_same(ledger)
    assert [frame.to_csv() for frame in read(ledger)] != before
    assert ledger.verify() == ()


def _dies(action: Callable[[], None], stop: int) -> bool:
    """Whether ``action`` came to statement ``stop``, before which it was ended."""
    steps = itertools.count()

    def die(*_: object) -> None:
        if next(steps) == stop:
            raise _Killed

    event.listen(Engine, "before_cursor_execute", die)
    try:
        action()
    except _Killed:
        return True
    finally:
        event.remove(Engine, "before_cursor_execute", die)
    return False
