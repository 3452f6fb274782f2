"""A month of 1,000 GPUs through the loop of the service into SQLite, under a clock of its own.

The recording is made by another process, which also says what the scheduler of the simulation did: time held,
capacity, and what was taken twice. The loop wakes once a day and reads the 24 windows of the day. Of memory
after each day, from the 21st on, the slope of the straight line counts: of what is resident, which rises in
ever smaller steps while allocators find their size, of blocks of Python, and of bytes of Arrow.

    python benchmarks/soak.py [--scale 9]
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow

from gpucost.attribution.frames import empty_frame
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import ACTIVITY
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

DAYS, WARM_DAYS = DEMO_MONTH.window.length_ms // DAY_MS, 20
A_DAY = {"rss_mib_per_day": 2.0, "python_blocks_per_day": 100.0, "arrow_bytes_per_day": 1024.0}
"""The most of a slope. A day of frames that is kept is tens of MiB, and thousands of blocks or bytes."""
MIB = 1 << 20
Truth = dict[str, int]


def make(folder: Path, scale: int) -> tuple[int, Truth]:
    """Write the recording; the number of GPUs, and GPU ms by what was done with them."""
    cluster = SimulatedCluster(7, scale=scale)
    # Attribution has no use for the activity by GPU; the detectors, which have, are not in this loop.
    record(folder, replace(cluster.frames, activity=empty_frame(ACTIVITY)))
    truth = cluster.ground_truth
    sums = {"held": sum(truth.held_ms.values(), Fraction(0)), "twice": truth.overcommitted_ms}
    boards = sum(node.boards for node in cluster.nodes)
    return boards, {name: round(each) for name, each in sums.items()} | {"capacity": truth.capacity_ms}


def memory() -> tuple[float, int, int]:
    """Resident MiB, blocks of Python's own memory, bytes of Arrow's columns."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    mib = pages * os.sysconf("SC_PAGE_SIZE") / MIB
    return mib, sys.getallocatedblocks(), pyarrow.total_allocated_bytes()


def soak(folder: Path) -> tuple[list[tuple[float, int, int]], Truth, int, int]:
    """Memory after each day, GPU ms in the ledger, its windows, and how many did not verify."""
    window = DEMO_MONTH.window
    now_ms, sizes = window.start_ms, list[tuple[float, int, int]]()
    settings = Settings(ingest=IngestSettings(start=window.start_ms))
    book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
    rules = build_rules(settings.attribution, book, TeamRules.parse(demo_teams_text(), TEAMS_NAME))

    def now() -> int:
        return now_ms

    def sleep(_: float) -> None:
        nonlocal now_ms
        sizes.append(memory())
        # The clock stops an hour after the last day: nothing of the next is due.
        now_ms = min(now_ms + DAY_MS, window.end_ms + HOUR_MS // 2)

    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=now) as ledger:
        source = RecordedSource(folder / "recording")
        IngestLoop(
            build_pipeline(settings.ingest, source, ledger, rules, now),
            settings.ingest,
            LoopStatus(),
            sleep=sleep,
            stopped=lambda: len(sizes) > DAYS + 1,
            rng=random.Random(7),
        ).run()
        found = ledger.aggregate(EVERYTHING, window, ["bucket"])
        wrong = len(ledger.verify(DEMO_MONTH))
        windows = len(ledger.windows(window))
    of_bucket = found.groupby("bucket")["board_ms"].sum()
    inside = sum(int(each) for bucket, each in of_bucket.items() if Bucket(bucket).is_capacity)
    sums = {"held": int(of_bucket[Bucket.HELD.value]), "twice": int(of_bucket[Bucket.OVERCOMMITTED.value])}
    return sizes, sums | {"capacity": inside}, windows, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=9, help="112 GPUs times so many")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucost-soak-") as name:
        folder = Path(name)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            gpus, truth = other.submit(make, folder / "recording", args.scale).result()
        began = time.monotonic()
        sizes, sums, windows, wrong = soak(folder)
        took = time.monotonic() - began
    after = np.array(sizes[WARM_DAYS:], dtype=np.float64)
    slopes = np.polyfit(np.arange(len(after)), after, 1)[0]
    grows = {name: round(float(slope), 3) for name, slope in zip(A_DAY, slopes, strict=True)}
    figures = {
        "gpus": gpus,
        "days": DAYS,
        "windows": windows,
        "seconds": round(took, 1),
        "rss_mib_by_day": [round(size[0]) for size in sizes],
        **grows,
        "board_ms": sums,
        "board_ms_of_the_simulation": truth,
        "windows_that_do_not_verify": wrong,
    }
    ratios = {name: sums[name] / truth[name] for name in truth}
    # Parts of GPUs have no whole ms: a window may be one off.
    holds = all(abs(sums[name] - truth[name]) <= windows * (name == "held") for name in truth)
    holds = (
        holds
        and windows == DAYS * 24
        and not wrong
        and all(grows[name] <= most for name, most in A_DAY.items())
    )
    limits = A_DAY | {"held": 1.0, "twice": 1.0, "capacity": 1.0}
    print(
        json.dumps({"name": "soak", "figures": figures, "ratios": ratios, "limits": limits, "holds": holds})
    )
    sys.exit(not holds)


if __name__ == "__main__":
    main()
