"""Cells: every line of capacity once, by pool, window, holder and the instants between which it lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pandas as pd
import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Window
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import CLUSTER, NOW_MS, hour
from tests.ledger.test_ledger_query import WHOLE, all_lines, write_hours
from tests.support.ledgers import Prepare

_HOLDER = ["team", "cluster_queue", "namespace", "job", "job_uid", "capacity_type"]


@pytest.fixture
def hours(copy_of: Callable[[Prepare], str]) -> Iterator[Ledger]:
    with Ledger.open(copy_of(write_hours), now=lambda: NOW_MS) as opened:
        yield opened


def test_cells_are_the_lines_of_capacity_summed(hours: Ledger) -> None:
    """On either database, against the lines in plain Python; over-committed ones are left out."""
    sums: dict[tuple[object, ...], Counter[str]] = {}
    lines = all_lines()
    assert "overcommitted" in set(lines["bucket"])
    for row in lines[lines["bucket"] != "overcommitted"].to_dict("records"):
        place = (row["cluster"], row["model"], row["window_start_ms"], row["window_end_ms"], row["bucket"])
        key = (*place, *(row[name] for name in _HOLDER), row["first_ms"], row["last_ms"])
        priced = not pd.isna(row["nano"])
        sums.setdefault(key, Counter()).update(
            board_ms=row["board_ms"],
            nano=row["nano"] if priced else 0,
            unpriced=0 if priced else row["board_ms"],
        )
    found = list(hours.cells(EVERYTHING, WHOLE))
    read = {
        (
            *(cell.cluster, cell.model, cell.window.start_ms, cell.window.end_ms, row.bucket.value),
            *(row.team, row.queue, row.namespace, row.job, row.job_uid, row.capacity_type),
            *(row.first_ms, row.last_ms),
        ): (row.board_ms, row.nano, row.unpriced_ms)
        for cell in found
        for row in cell.rows
    }
    assert read == {key: (each["board_ms"], each["nano"], each["unpriced"]) for key, each in sums.items()}
    places = [(cell.cluster, cell.model, cell.window) for cell in found]
    assert places == sorted(set(places))


def test_the_months_of_two_halves_are_the_cells_of_the_whole(hours: Ledger) -> None:
    middle = hour(2).end_ms
    first, second = Window(WHOLE.start_ms, middle), Window(middle, WHOLE.end_ms)
    halves = (*hours.cells(EVERYTHING, first), *hours.cells(EVERYTHING, second))
    assert sorted(halves, key=lambda cell: (cell.cluster, cell.model, cell.window)) == list(
        hours.cells(EVERYTHING, WHOLE)
    )


def test_a_window_is_not_cut_and_a_scope_sees_its_own(hours: Ledger) -> None:
    with pytest.raises(InputError, match="edges between the ledger's windows"):
        hours.cells(EVERYTHING, Window(WHOLE.start_ms + 1, WHOLE.end_ms))
    assert list(hours.cells(Scope(None, frozenset({"elsewhere"})), WHOLE)) == []
    own = hours.cells(Scope(frozenset({"vision"}), frozenset({CLUSTER})), WHOLE)
    assert {row.team for cell in own for row in cell.rows} <= {"vision"}
