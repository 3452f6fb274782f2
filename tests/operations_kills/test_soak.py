"""Thirty days by a clock of our own: the ledger is the truth, and memory does not grow by the day."""

from __future__ import annotations

import gc
import random
import sys
from pathlib import Path

import pyarrow
import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.domain.buckets import Bucket
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.ingest.loop import IngestLoop
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.model import IngestSettings, Settings
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.simulator.cluster import (
    DEMO_MONTH,
    PRICES_NAME,
    TEAMS_NAME,
    SimulatedCluster,
    demo_prices_text,
    demo_teams_text,
)
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.service.worlds import Clock
from tests.support.replayed_week import few_nodes

WARM_DAYS, DAYS = 10, 31
MOST_BLOCKS, MOST_BYTES = 100, 1024
"""Blocks of Python's own memory and bytes of Arrow's columns that may stay from a day: one frame that is kept
is more of either."""


@pytest.mark.slow
@pytest.mark.fault(72)
def test_thirty_days_leave_the_truth_and_no_memory(tmp_path: Path) -> None:
    frames, window = few_nodes(SimulatedCluster(7).frames), DEMO_MONTH.window
    record(tmp_path / "recording", frames)
    clock, status = Clock(window.start_ms), LoopStatus()
    settings = Settings(ingest=IngestSettings(window="1d", batch="1d", start=window.start_ms))
    book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
    rules = build_rules(settings.attribution, book, TeamRules.parse(demo_teams_text(), TEAMS_NAME))
    kept = list[tuple[int, int]]()

    def sleep(_: float) -> None:
        clock.now_ms += DAY_MS
        if (clock.now_ms - window.start_ms) // DAY_MS in (WARM_DAYS, DAYS - 1):
            gc.collect()
            kept.append((sys.getallocatedblocks(), pyarrow.total_allocated_bytes()))

    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=clock) as ledger:
        pipeline = build_pipeline(
            settings.ingest, RecordedSource(tmp_path / "recording"), ledger, rules, clock
        )
        end_ms = window.end_ms + HOUR_MS
        loop = IngestLoop(
            pipeline,
            settings.ingest,
            status,
            sleep=sleep,
            stopped=lambda: clock.now_ms > end_ms + DAY_MS,
            rng=random.Random(7),
        )
        loop.run()
        found = ledger.aggregate(EVERYTHING, window, ["team", "bucket"])
        assert ledger.verify(DEMO_MONTH) == ()
        assert len(ledger.windows(window)) == DAYS
    assert kept[1][0] - kept[0][0] < (DAYS - 1 - WARM_DAYS) * MOST_BLOCKS
    assert kept[1][1] - kept[0][1] < (DAYS - 1 - WARM_DAYS) * MOST_BYTES
    given = frames.allocations
    length_ms = given["end_ms"].clip(upper=window.end_ms) - given["start_ms"].clip(lower=window.start_ms)
    held = found[found["bucket"].isin([Bucket.HELD.value, Bucket.OVERCOMMITTED.value])]
    assert held["board_ms"].sum() == (given["count"] * length_ms).sum()
    capacity = frames.nodes["boards"] * (frames.nodes["end_ms"] - frames.nodes["start_ms"])
    in_capacity = found[[Bucket(each).is_capacity for each in found["bucket"]]]["board_ms"].sum()
    assert in_capacity == capacity.sum()
