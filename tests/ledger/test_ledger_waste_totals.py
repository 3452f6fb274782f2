"""Waste for a client that adds it up as windows become final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from gpucost.domain.buckets import Waste
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import CLUSTER, NOW_MS, hour, ingest, line
from tests.ledger.test_ledger_waste import assess, part

HOURS = 8
FINAL = (0, 1, 2, 4, 6, 7)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """Eight hours of two teams; 3 is provisional, 5 was not looked at, 6 was changed and looked at again."""
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        for number in range(HOURS):
            window = hour(number)
            held, other = line(window), line(window, pod_uid="pod-2", job_uid="job-2", team="blue")
            ingest(opened, window, held, other)
            ingest(opened, window, line(window, cluster="beta"), cluster="beta")
            if number != 5:
                assess(opened, window, part(held, Waste.IDLE, number + 1, 1), final=number != 3)
            if number == 6:
                ingest(opened, window, held, reason="late")
                assess(opened, window, part(held, Waste.GANG_STALL, 50, 1))
        yield opened


def test_what_is_final_is_summed(ledger: Ledger) -> None:
    found = ledger.final_waste(CLUSTER, (), most=100)
    assert found.starts == tuple(hour(number).start_ms for number in FINAL)
    assert found.complete
    frames = [ledger.waste(EVERYTHING, hour(n), ["team"], filters={"cluster": [CLUSTER]}) for n in FINAL]
    expected: Counter[tuple[str, str]] = Counter()
    for frame in frames:
        for team, waste, board_ms in zip(frame["team"], frame["waste"], frame["board_ms"], strict=True):
            expected[team, waste] += board_ms
    assert found.board_ms == expected
    assert found.board_ms["red", Waste.IDLE] == 1 + 2 + 3 + 5 + 8
    assert found.board_ms["red", Waste.GANG_STALL] == 50


def test_parts_add_up_and_each_window_comes_once(ledger: Ledger) -> None:
    whole = ledger.final_waste(CLUSTER, (), most=100)
    known: list[int] = []
    sums: Counter[tuple[str, Waste]] = Counter()
    for _ in range(3):
        found = ledger.final_waste(CLUSTER, known, most=2)
        assert found.complete == (len(known) == 4)
        known += found.starts
        sums.update(found.board_ms)
    assert tuple(known) == whole.starts
    assert sums == whole.board_ms
    assert ledger.final_waste(CLUSTER, known, most=2).starts == ()
    assess(ledger, hour(3))
    later = ledger.final_waste(CLUSTER, known, most=2)
    assert later.starts == (hour(3).start_ms,)
    assert sum(later.board_ms.values()) == 2 * hour(3).length_ms


def test_nothing_is_final_of_a_cluster_nobody_looked_at(ledger: Ledger) -> None:
    for name in ("beta", "gamma"):
        found = ledger.final_waste(name, (), most=5)
        assert (found.starts, found.board_ms, found.complete) == ((), {}, True)
