"""A week of Philly's real jobs through a real Prometheus: to the millisecond, whatever is killed or split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support import replay
from benchmarks.support.blocks import build_blocks
from benchmarks.support.philly import DEFAULT_TRACES, GPUS_PER_NODE, START_MS, Philly
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from tests.support.prometheus import needs_prometheus, running_prometheus
from tests.support.shared import needs_shared

DAYS = 7
KILLS = 10
WEEK = Window(START_MS, START_MS + DAYS * DAY_MS)

pytestmark = [
    pytest.mark.prometheus,
    needs_prometheus,
    needs_shared("traces/philly-vc"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def philly() -> Philly:
    return Philly.load(DEFAULT_TRACES)


@pytest.fixture(scope="module")
def server(philly: Philly, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prometheus with the week, scraped every five minutes: as rare as the source allows without gaps."""
    data = tmp_path_factory.mktemp("philly") / "blocks"
    scraped = Window(WEEK.start_ms, WEEK.end_ms + HOUR_MS)
    build_blocks(philly.frames(DAYS), scraped, 5 * MINUTE_MS, data, lambda _: None)
    with running_prometheus(data) as url:
        yield url


@pytest.fixture(scope="module")
def hourly(server: str, tmp_path_factory: pytest.TempPathFactory) -> replay.Totals:
    ledger = tmp_path_factory.mktemp("hourly") / "ledger.db"
    replay.ingest(server, ledger, WEEK, HOUR_MS)
    return replay.totals(ledger, WEEK)


def test_no_node_of_the_trace_is_given_out_twice(philly: Philly) -> None:
    """What makes the comparison fair: node numbers are per virtual cluster, and never over-committed."""
    pods = philly.pods()
    starts = pods.assign(at=pods["start_ms"])[["node", "at", "count"]]
    ends = pods.assign(at=pods["end_ms"], count=-pods["count"])[["node", "at", "count"]]
    changes = [*starts.itertuples(index=False), *ends.itertuples(index=False)]
    held: dict[str, int] = {}
    for node, _, count in sorted(changes, key=lambda change: (change[1], change[2])):
        held[node] = held.get(node, 0) + count
        assert 0 <= held[node] <= GPUS_PER_NODE
    assert len(philly.node_names()) == 149
    assert set(held) <= set(philly.node_names())


def test_plain_arithmetic_agrees_with_the_reference(philly: Philly) -> None:
    assert philly.expected_ms(61) == philly.reference_ms()


def test_every_virtual_cluster_to_the_millisecond(philly: Philly, hourly: replay.Totals) -> None:
    expected = philly.expected_ms(DAYS)
    assert {vc: hourly.held_ms.get(vc, 0) for vc in expected} == expected
    assert sum(hourly.buckets_ms.values()) == 149 * GPUS_PER_NODE * WEEK.length_ms
    assert set(hourly.buckets_ms) == {"held", "unallocated"}


@pytest.mark.fault(32)
@pytest.mark.parametrize("window_ms", [15 * MINUTE_MS, DAY_MS], ids=["15m", "1d"])
def test_totals_do_not_depend_on_the_window(
    server: str, tmp_path: Path, hourly: replay.Totals, window_ms: int
) -> None:
    ledger = tmp_path / "ledger.db"
    replay.ingest(server, ledger, WEEK, window_ms)
    found = replay.totals(ledger, WEEK)
    assert found.held_ms == hourly.held_ms
    assert found.buckets_ms == hourly.buckets_ms
    assert found.nano == hourly.nano


@pytest.mark.fault(39)
def test_killed_ten_times_at_random_moments_it_ends_with_the_same_digest(
    server: str, tmp_path: Path, hourly: replay.Totals
) -> None:
    ledger = tmp_path / "ledger.db"
    written = replay.ingest_killed(server, ledger, WEEK, HOUR_MS, KILLS, seed=11)
    assert len(written) == KILLS
    assert any(0 < count < WEEK.length_ms // HOUR_MS for count in written)
    assert replay.totals(ledger, WEEK) == hourly
