"""Writing windows: once, again, changed, wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from gpucost.contract.frames import SIGNAL_MEASURES
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError, LedgerConflict, LedgerError
from gpucost.domain.money import INT64_MAX
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import (
    CLUSTER,
    MONTH,
    NOW_MS,
    PRICE,
    RATES,
    contents,
    hour,
    ingest,
    line,
    lines,
    progress,
    random_rows,
    rate,
)
from tests.support.ledgers import new_ledger

WINDOW = hour(0)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


@pytest.fixture(scope="module")
def any_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """For what is refused before a database is asked: one ledger for all, which stays empty."""
    path = tmp_path_factory.mktemp("any") / "ledger.db"
    with Ledger.open(new_ledger(path), now=lambda: NOW_MS) as opened:
        yield opened
        assert opened.extent() is None


def test_lines_come_back_as_they_went_in(ledger: Ledger) -> None:
    ingest(
        ledger, WINDOW, line(WINDOW), line(WINDOW, bucket="unallocated", board_ms=5, nano=None, rate_id="")
    )
    found = ledger.aggregate(EVERYTHING, WINDOW, ["team", "bucket", "rate_id"])
    assert found.to_dict("records")[1] == {
        "team": "red",
        "bucket": "held",
        "rate_id": "h100@1",
        "board_ms": HOUR_MS,
        "nano": PRICE,
        "unpriced_ms": 0,
        "first_ms": WINDOW.start_ms,
        "last_ms": WINDOW.end_ms,
        # What was not observed is null, never 0.
        **dict.fromkeys(SIGNAL_MEASURES),
    }
    assert found.nano.isna().tolist() == [True, False]
    assert found.unpriced_ms.tolist() == [5, 0]
    assert ledger.currency == "USD"
    assert ledger.rates(["h100@1", "other", ""]) == {"h100@1": RATES["h100@1"]}


@pytest.mark.fault(39)
def test_the_same_window_twice_changes_nothing(ledger: Ledger) -> None:
    rows = random_rows(1, WINDOW)
    first = ingest(ledger, WINDOW, *rows)
    before = ledger.aggregate(EVERYTHING, WINDOW, ["node", "team"])
    random.Random(5).shuffle(rows)
    again = ingest(ledger, WINDOW, *rows, source="other", code_version="2")
    assert (first.version, first.changed) == (1, True)
    assert again == replace(first, changed=False)
    assert ledger.aggregate(EVERYTHING, WINDOW, ["node", "team"]).equals(before)
    assert [version.digest for version in ledger.history(EVERYTHING, CLUSTER, WINDOW)] == [first.digest]
    assert ledger.audit(EVERYTHING) == ()


@pytest.mark.fault(40)
def test_other_lines_for_a_settled_window_are_its_next_version(ledger: Ledger) -> None:
    first = ingest(ledger, WINDOW, line(WINDOW))
    late = line(WINDOW, pod="late-0", pod_uid="pod-2", team="blue", board_ms=7, nano=11)
    second = ingest(ledger, WINDOW, line(WINDOW), late, settle=False, reason="late data", author="ann")
    assert (second.version, second.changed) == (2, True)
    [info] = ledger.windows(WINDOW)
    assert (info.state, info.version, info.digest) == (LedgerState.SETTLED, 2, second.digest)
    old, new = ledger.history(EVERYTHING, CLUSTER, WINDOW)
    assert (old.digest, new.digest, new.reason) == (first.digest, second.digest, "late data")
    assert (old.board_ms, new.board_ms, new.nano) == (HOUR_MS, HOUR_MS + 7, PRICE + 11)
    [entry] = ledger.audit(EVERYTHING)
    assert (entry.author, entry.action, entry.reason) == ("ann", "window version", "late data")
    assert first.digest in entry.detail
    assert second.digest in entry.detail
    assert ledger.aggregate(EVERYTHING, WINDOW, ["team"]).team.tolist() == ["blue", "red"]
    assert ledger.month(MONTH).version == 2


def test_a_rerated_window_is_a_new_version_with_the_new_rate(ledger: Ledger) -> None:
    ingest(ledger, WINDOW, line(WINDOW))
    result = ingest(ledger, WINDOW, line(WINDOW, rate_id="h100@2", nano=4), reason="price book of 2026-11")
    assert result.version == 2
    found = ledger.aggregate(EVERYTHING, WINDOW, ["rate_id"])
    assert found[["rate_id", "nano"]].to_dict("list") == {"rate_id": ["h100@2"], "nano": [4]}


def test_coverage_problems_and_progress_are_content_too(ledger: Ledger) -> None:
    problem = DataProblem(DataProblemCode.PRICE_MISSING, CLUSTER, "H100", "no price for H100", 5)
    seen = {
        ingest(ledger, WINDOW, line(WINDOW), **options).digest
        for options in (
            {},
            {"observed_ms": HOUR_MS - 1},
            {"problems": [problem]},
            {"progress": progress(("pod-1", WINDOW, "steps", 2.5))},
        )
    }
    assert len(seen) == 4


def test_an_open_window_is_settled_later(ledger: Ledger) -> None:
    ingest(ledger, WINDOW, line(WINDOW), settle=False)
    assert [info.state for info in ledger.windows(WINDOW)] == [LedgerState.OPEN]
    assert ledger.frontier(CLUSTER) is None
    ledger.settle(CLUSTER, WINDOW)
    ledger.settle(CLUSTER, WINDOW)
    assert [info.state for info in ledger.windows(WINDOW)] == [LedgerState.SETTLED]
    assert ledger.frontier(CLUSTER) == WINDOW.end_ms
    with pytest.raises(InputError, match="a window of the ledger"):
        ledger.settle(CLUSTER, hour(5))


def test_the_same_lines_with_settle_settle_an_open_window(ledger: Ledger) -> None:
    ingest(ledger, WINDOW, line(WINDOW), settle=False)
    assert not ingest(ledger, WINDOW, line(WINDOW), settle=True).changed
    assert ledger.frontier(CLUSTER) == WINDOW.end_ms


def test_an_empty_window_is_a_window(ledger: Ledger) -> None:
    ingest(ledger, WINDOW)
    assert ledger.frontier(CLUSTER) == WINDOW.end_ms
    assert ledger.currency is None
    assert ledger.aggregate(EVERYTHING, WINDOW, ["team"]).empty
    assert ledger.aggregate(EVERYTHING, WINDOW, []).empty


_START, _END = WINDOW.start_ms, WINDOW.end_ms
BAD_LINES: dict[str, tuple[dict[str, Any], str]] = {
    "board time below 0": ({"board_ms": -1}, "board_ms of the 'held' line of node-1"),
    "cost below 0": ({"nano": -1}, "nano of the 'held' line"),
    "busy below 0": ({"busy_ms": -5}, "busy_ms of the 'held' line"),
    "unknown bucket": ({"bucket": "idle"}, "held, unallocated"),
    "another cluster": ({"cluster": "beta"}, "usage_lines.cluster"),
    "another window": ({"window_start_ms": _START - HOUR_MS}, "usage_lines.window_start_ms"),
    "before the window": ({"first_ms": _START - 1}, "first_ms"),
    "after the window": ({"last_ms": _END + 1}, "last_ms"),
    "ends before it starts": ({"first_ms": _END, "last_ms": _START}, "first_ms"),
    "money without a rate": ({"rate_id": ""}, r"ml/train-0 \(pod-2\): .* null for a line without a rate"),
    "a rate not given": ({"rate_id": "t4@9"}, "usage_lines.rate_id: 't4@9'"),
    "NUL": ({"project": "a\0b"}, "usage_lines.project"),
    "a megabyte": ({"user": "x" * 1_000_000}, "at most 600 characters"),
    "no board time": ({"board_ms": None}, "usage_lines.board_ms"),
}


@pytest.mark.parametrize(("values", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_line_that_cannot_be_right_refuses_the_window(
    any_ledger: Ledger, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ingest(any_ledger, WINDOW, line(WINDOW), line(WINDOW, pod_uid="pod-2", **values))
    assert any_ledger.windows(WINDOW) == ()


@pytest.mark.parametrize("nano", [2.5, 3.0, float("inf"), "3", True, INT64_MAX + 1])
def test_money_that_is_not_a_64_bit_integer_is_refused(any_ledger: Ledger, nano: object) -> None:
    frame = lines(line(WINDOW)).astype({"nano": object})
    frame["nano"] = [nano]
    with pytest.raises(InputError, match=r"usage_lines\.nano"):
        any_ledger.ingest(
            CLUSTER, WINDOW, frame, observed_ms=0, rates=RATES, source="test", code_version="1", settle=True
        )


def test_text_that_is_not_unicode_is_refused(any_ledger: Ledger) -> None:
    frame = lines(line(WINDOW)).astype({"team": object})
    frame["team"] = pd.Series(["\ud800"], dtype=object)
    with pytest.raises(InputError, match=r"usage_lines\.team"):
        any_ledger.ingest(CLUSTER, WINDOW, frame, observed_ms=0, rates=RATES, source="test", code_version="1")


def test_unknown_and_missing_columns_are_refused_by_name(any_ledger: Ledger) -> None:
    frame = lines(line(WINDOW))
    for odd in (frame.assign(colour="red"), frame.drop(columns="zone")):
        with pytest.raises(InputError, match=r"colour|zone"):
            any_ledger.ingest(
                CLUSTER, WINDOW, odd, observed_ms=0, rates=RATES, source="test", code_version="1"
            )


def test_a_line_given_twice_is_a_conflict(any_ledger: Ledger) -> None:
    with pytest.raises(
        LedgerConflict, match=r"node-1 nvidia.com/gpu ml/train-0 \(pod-1\) at h100@1 is given"
    ):
        ingest(any_ledger, WINDOW, line(WINDOW), line(WINDOW, board_ms=1))


@pytest.mark.fault(37)
def test_sums_beyond_64_bits_are_refused(ledger: Ledger) -> None:
    most = line(WINDOW, nano=INT64_MAX)
    with pytest.raises(InputError, match="sum of nano"):
        ingest(ledger, WINDOW, most, line(WINDOW, pod_uid="pod-2", nano=1))
    ingest(ledger, WINDOW, most)
    assert ledger.aggregate(EVERYTHING, WINDOW, []).nano.tolist() == [INT64_MAX]
    ingest(ledger, hour(1), line(hour(1), nano=1))
    with pytest.raises(LedgerError, match="64 bits"):
        ledger.aggregate(EVERYTHING, Window(WINDOW.start_ms, hour(1).end_ms), [])


@pytest.mark.fault(37)
def test_a_ledger_has_one_currency(ledger: Ledger) -> None:
    ingest(ledger, WINDOW, line(WINDOW))
    euro = {"h100@1": rate("h100@1", currency="EUR")}
    with pytest.raises(InputError, match=r"EUR.*USD"):
        ingest(ledger, hour(1), line(hour(1)), rates=euro)
    mixed = {"eur": rate("eur", currency="EUR"), "usd": rate("usd")}
    with pytest.raises(InputError, match="one currency"):
        ingest(ledger, hour(1), line(hour(1), rate_id="eur"), line(hour(1), rate_id="usd"), rates=mixed)
    assert contents(ledger, MONTH.window) == contents(ledger, WINDOW)


def test_a_rate_id_stands_for_one_price(ledger: Ledger) -> None:
    ingest(ledger, WINDOW, line(WINDOW))
    with pytest.raises(LedgerConflict, match="rate 'h100@1' is in the ledger as"):
        ingest(ledger, hour(1), line(hour(1)), rates={"h100@1": rate("h100@1", PRICE + 1)})
    assert contents(ledger, MONTH.window) == contents(ledger, WINDOW)


@pytest.mark.parametrize("offset_ms", [-HOUR_MS // 2, HOUR_MS // 2])
@pytest.mark.parametrize("length_ms", [HOUR_MS, 2 * HOUR_MS])
def test_windows_of_a_cluster_do_not_overlap(ledger: Ledger, offset_ms: int, length_ms: int) -> None:
    stored = hour(10)
    ingest(ledger, stored)
    start = stored.start_ms + offset_ms
    overlapping = Window(start, start + length_ms)
    with pytest.raises(LedgerConflict, match="overlaps"):
        ingest(ledger, overlapping)
    ingest(ledger, overlapping, cluster="beta")
    assert len(ledger.windows(MONTH.window)) == 2


def test_a_window_inside_another_is_refused(ledger: Ledger) -> None:
    ingest(ledger, WINDOW)
    for inner in (Window(_START, _END - 1), Window(_START + 1, _END), Window(_START, _END + 1)):
        with pytest.raises(LedgerConflict, match="overlaps"):
            ingest(ledger, inner)


def test_a_window_lies_in_one_month_and_in_sane_years(any_ledger: Ledger) -> None:
    edge = MONTH.window.end_ms
    for window in (Window(edge - 1, edge + 1), Window(0, HOUR_MS), Window(edge, edge * 4)):
        with pytest.raises(InputError, match="window"):
            ingest(any_ledger, window)


def test_observed_time_fits_the_window(any_ledger: Ledger) -> None:
    for observed_ms in (-1, HOUR_MS + 1):
        with pytest.raises(InputError, match="observed_ms"):
            ingest(any_ledger, WINDOW, observed_ms=observed_ms)


def test_progress_outside_the_window_or_not_a_number_is_refused(any_ledger: Ledger) -> None:
    for bad in (
        progress(("pod-1", hour(3), "steps", 1.0)),
        progress(("pod-1", WINDOW, "steps", float("nan"))),
    ):
        with pytest.raises(InputError, match="progress"):
            ingest(any_ledger, WINDOW, line(WINDOW), progress=bad)


def test_the_frontier_is_the_end_of_the_unbroken_settled_run(ledger: Ledger) -> None:
    assert ledger.frontier(CLUSTER) is None
    for number in (3, 4, 5, 7, 8):
        ingest(ledger, hour(number))
    ingest(ledger, hour(0), cluster="beta")
    assert ledger.frontier(CLUSTER) == hour(5).end_ms
    ingest(ledger, hour(6), settle=False)
    assert ledger.frontier(CLUSTER) == hour(5).end_ms
    ledger.settle(CLUSTER, hour(6))
    assert ledger.frontier(CLUSTER) == hour(8).end_ms
    ingest(ledger, hour(1))
    assert ledger.frontier(CLUSTER) == hour(1).end_ms, (
        "an older window was back-filled: a gap stands after it"
    )
    assert ledger.clusters() == (CLUSTER, "beta")
    assert ledger.extent(CLUSTER) == Window(hour(1).start_ms, hour(8).end_ms)
    assert ledger.extent() == Window(hour(0).start_ms, hour(8).end_ms)
    assert ledger.extent("gamma") is None
