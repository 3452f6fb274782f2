"""A batch from attribution is what its windows are one by one, and all of it is written or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.usage_lines import Attribution
from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.money import INT64_MAX
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.db.digest import line_texts
from gpucost.ledger.db.records import LateLines, LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.query import DIMENSIONS
from tests.ledger.builders import (
    BATCH_CLUSTER,
    MONTH,
    NOW_MS,
    attribution,
    contents,
    hour,
    ingest_batch,
    ingest_flat,
    progress,
)
from tests.support.ledgers import new_ledger

HOURS = 6
SPAN = Window(hour(0).start_ms, hour(HOURS - 1).end_ms)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(tmp_path / "other.db"), now=lambda: NOW_MS) as opened:
        yield opened


@pytest.fixture(scope="module")
def found() -> Attribution:
    return attribution(0, HOURS)


def steps() -> dict[Window, pd.DataFrame]:
    rows = progress(("uid-p1", hour(2), "steps", 2.5), ("uid-p1", hour(2), "steps", 0.5))
    return {hour(2): rows.assign(cluster=BATCH_CLUSTER)}


def test_the_world_of_these_tests_has_every_kind_of_line(found: Attribution) -> None:
    lines = found.flat()
    assert set(lines["bucket"]) == set(Bucket)
    assert set(lines["rate_id"]) > {""}
    assert lines["busy_ms"].notna().any()
    assert found.located


@pytest.mark.fault(39)
def test_both_ways_write_the_same(ledger: Ledger, other: Ledger, found: Attribution) -> None:
    """To the byte, and either is no change after the other."""
    written = ingest_batch(ledger, found, progress=steps())
    assert written == ingest_flat(other, found, progress=steps())
    assert [result.changed for result in written] == [True] * HOURS
    assert contents(ledger, SPAN) == contents(other, SPAN)
    for one in (ledger, other):
        assert one.verify() == ()
        for again in (ingest_batch(one, found, progress=steps()), ingest_flat(one, found, progress=steps())):
            assert again == tuple(replace(result, changed=False) for result in written)
    sums = [one.aggregate(EVERYTHING, SPAN, DIMENSIONS, step_ms=HOUR_MS) for one in (ledger, other)]
    pd.testing.assert_frame_equal(*sums)
    assert len(sums[0]) == len(found.lines)
    assert ledger.problems(EVERYTHING, SPAN) == other.problems(EVERYTHING, SPAN) != ()
    assert ledger.progress(EVERYTHING, SPAN, "job-p1")[["name", "amount"]].values.tolist() == [["steps", 3.0]]
    assert ledger.windows(SPAN) == other.windows(SPAN)
    assert ledger.currency == other.currency
    assert ledger.rates(["flat@0"]) == other.rates(["flat@0"])


@pytest.mark.fault(40)
def test_a_batch_may_hold_new_changed_and_unchanged_windows(ledger: Ledger, other: Ledger) -> None:
    first, late = attribution(0, 3), attribution(1, HOURS, moved_ms=5 * MINUTE_MS)
    for one, write in ((ledger, ingest_batch), (other, ingest_flat)):
        write(one, first)
        results = write(one, late, reason="late data")
        # Pods of two and a half hours: the first to end does so in the hour from two to three.
        assert [(result.version, result.changed) for result in results] == [
            (1, False),
            (2, True),
            (1, True),
            (1, True),
            (1, True),
        ]
        assert one.verify() == ()
    assert contents(ledger, SPAN) == contents(other, SPAN)
    assert ledger.audit(EVERYTHING) == other.audit(EVERYTHING)
    assert [entry.reason for entry in ledger.audit(EVERYTHING)] == ["late data"]


def test_only_some_windows_of_a_batch_settle(ledger: Ledger, found: Attribution) -> None:
    ingest_batch(ledger, found, settled=found.windows[:2])
    assert ledger.frontier(BATCH_CLUSTER) == hour(1).end_ms
    assert not any(result.changed for result in ingest_batch(ledger, found, settled=found.windows[:4]))
    assert [info.state for info in ledger.windows(SPAN)] == [LedgerState.SETTLED] * 4 + [LedgerState.OPEN] * 2


def test_a_batch_may_span_two_months(ledger: Ledger, other: Ledger) -> None:
    last = MONTH.window.length_ms // HOUR_MS
    over = attribution(last - 2, last + 2)
    assert ingest_batch(ledger, over) == ingest_flat(other, over)
    assert len(ledger.windows(MONTH.window)) == 2
    assert ledger.verify() == ()


def with_measure(found: Attribution, name: str, value: int) -> Attribution:
    values = found.lines[name].copy()
    values.iloc[-1] = value
    return replace(found, lines=found.lines.assign(**{name: values}))


BAD_LINES: dict[str, tuple[str, int, str]] = {
    "board time below 0": ("board_ms", -1, "board_ms of the 'unavailable' line of n2"),
    "cost below 0": ("nano", -1, "nano of the"),
    "money without a rate": ("nano", 1, "null for a line without a rate"),
    "before the window": ("first_ms", hour(HOURS - 1).start_ms - 1, "first_ms"),
    "after the window": ("last_ms", hour(HOURS - 1).end_ms + 1, "last_ms"),
    "a sum beyond 64 bits": ("board_ms", INT64_MAX, "sum of board_ms"),
}


@pytest.mark.parametrize(("name", "value", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_line_that_cannot_be_right_refuses_the_batch(
    other: Ledger, found: Attribution, name: str, value: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ingest_batch(other, with_measure(found, name, value))
    assert other.extent() is None


def test_names_and_coverage_that_cannot_be_right_refuse_the_batch(other: Ledger, found: Attribution) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("usage_lines.cluster", {"units": found.units.assign(cluster="beta")}),
        ("usage_lines.node", {"units": found.units.assign(node="x" * 601)}),
        ("one currency", {"rates": (replace(found.rates[0], currency="EUR"), *found.rates[1:])}),
    ]
    for message, parts in wrong:
        with pytest.raises(InputError, match=message):
            ingest_batch(other, replace(found, **parts))
    with pytest.raises(InputError, match="observed_ms"):
        ingest_batch(other, found, observed_ms=dict.fromkeys(found.windows, HOUR_MS + 1))
    assert other.extent() is None


def test_a_line_given_twice_is_a_conflict_even_under_another_position(
    other: Ledger, found: Attribution
) -> None:
    lines = found.lines
    units = pd.concat([found.units, found.units], ignore_index=True)
    last = lines.tail(1).assign(unit=lines["unit"].iloc[-1] + len(found.units))
    twice = replace(found, units=units, lines=pd.concat([lines, last], ignore_index=True))
    with pytest.raises(LedgerConflict, match="is given twice"):
        ingest_batch(other, twice)
    assert other.extent() is None


@pytest.mark.fault(41)
def test_a_batch_with_a_window_of_a_closed_month_that_changes_is_refused(
    ledger: Ledger, found: Attribution
) -> None:
    ingest_batch(ledger, found)
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="six hours are enough")
    before = contents(ledger, MONTH.window)
    assert not any(result.changed for result in ingest_batch(ledger, found))
    with pytest.raises(LateLines, match="is closed") as refused:
        ingest_batch(ledger, attribution(0, HOURS, moved_ms=5 * MINUTE_MS))
    # Each pod that waits for a GPU moves up: the first has less of the hour, the last gets some.
    moved = {item.team: item.board_ms for item in refused.value.proposal if item.board_ms}
    assert moved == {"team-0.0": -5 * MINUTE_MS, "team-1.0": 5 * MINUTE_MS}
    assert contents(ledger, MONTH.window) == before


def test_a_batch_that_meets_other_windows_is_refused_whole(ledger: Ledger, found: Attribution) -> None:
    half = Window(hour(3).start_ms + HOUR_MS // 2, hour(3).end_ms)
    settings = {"observed_ms": 0, "rates": {}, "source": "test", "code_version": "1"}
    ledger.ingest(BATCH_CLUSTER, half, found.flat().head(0), **settings)
    with pytest.raises(LedgerConflict, match="overlaps"):
        ingest_batch(ledger, found)
    assert [info.window for info in ledger.windows(SPAN)] == [half]


KEYS = st.text("0123456789abcdef", max_size=64)
NUMBERS = st.none() | st.integers(-(1 << 63), INT64_MAX)


@given(
    st.lists(
        st.tuples(KEYS, KEYS, KEYS, st.sampled_from([*map(str, Bucket)]), *[NUMBERS] * len(LINE_MEASURES))
    )
)
def test_the_text_of_a_line_is_its_json(rows: list[tuple[Any, ...]]) -> None:
    columns = list(zip(*rows, strict=True)) or [()] * (4 + len(LINE_MEASURES))
    first = 4 + LINE_MEASURES.index("tensor_active_ms") + 1
    # What was added after the first release is left out where there is nothing of it.
    expected = [row if any(value is not None for value in row[first:]) else row[:first] for row in rows]
    assert line_texts(columns) == [json.dumps(row, separators=(",", ":")) for row in expected]
