"""A back-fill of a month of three clusters by two workers against one process, over the same recording.

The clusters are simulated, 112 GPUs each, with everything that a source tells of a month: jobs of all kinds
and lengths, activity, signals, waits. The unit of work is a cluster and day. ``gpucost ingest`` fills a new
SQLite ledger each time: in one process, with two processes of its own (``--workers 2``), and with one and two
workers of a Dask scheduler (``--on``), which run already. The source are recorded files, which no server has
to answer for: what is measured is reading, attribution and writing, of which the command alone writes. The
ledgers must be equal, window by window.

Wall seconds are those of the whole command, the least of the rounds, in which every way has its turn. They
can only be told where two cores are free: ``two_spins/one_spin`` says what two processes that only count
gained over one, before each round and at the end: 0.5 on two quiet cores. CPU seconds are those of the
command and its own processes, without Dask's.

    python benchmarks/backfill.py [--days 31] [--rounds 1]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso
from gpucost.ledger.ledger import Ledger
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.telemetry.recorded_source import record
from tests.support.dask_cluster import dask_scheduler, dask_worker

ROOT = Path(__file__).resolve().parents[1]
MONTH = Month(2026, 10)
CLUSTERS = ("east", "north", "west")
LIMITS = {"two_workers/one_process": 0.65, "two_dask_workers/one_process": 0.65}


def recording(folder: Path) -> int:
    """Record a month of the three clusters. The result is how many usage hours of GPUs are in it."""
    months = [SimulatedCluster(seed, MONTH, name=name).frames for seed, name in enumerate(CLUSTERS, start=1)]
    found = {
        each.name: pd.concat([getattr(month, each.name) for month in months], ignore_index=True)
        for each in fields(ClusterFrames)
        if isinstance(getattr(months[0], each.name), pd.DataFrame)
    }
    record(folder, ClusterFrames(**found))
    held = found["allocations"]
    return int(((held["end_ms"] - held["start_ms"]) * held["count"]).sum() // HOUR_MS)


def ingest(folder: Path, span: Window, name: str, *words: str) -> tuple[float, float]:
    """Wall seconds of the command, and CPU seconds of it and its processes."""
    settings = folder / f"{name}.yaml"
    text = f'ledger: {{url: "sqlite:///{folder / name}.db"}}\ndetectors: {{enabled: false}}\n'
    settings.write_text(text, encoding="utf-8")
    for file in folder.glob(f"{name}.db*"):
        file.unlink()
    source = [
        "--source",
        f"recorded:{folder / 'recording'}",
        "--from",
        iso(span.start_ms),
        "--to",
        iso(span.end_ms),
    ]
    line = ["--config", str(settings), "ingest", *source, *words]
    began, used = time.perf_counter(), _cpu_s()
    program = "from gpucost.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, *line], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    took, cpu = time.perf_counter() - began, _cpu_s() - used
    print(f"{name}: {took:.1f} s, {cpu:.1f} CPU seconds, load {os.getloadavg()[0]:.1f}", flush=True)
    return took, cpu


def _spin(steps: int) -> None:
    while steps:
        steps -= 1


def spins() -> float:
    """The time that two processes take to count as far as one does, each one half of it."""
    took = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_spin, [1_000_000] * 2))  # both are there
        for steps in ([30_000_000], [15_000_000] * 2):
            began = time.perf_counter()
            list(pool.map(_spin, steps))
            took.append(time.perf_counter() - began)
    return took[1] / took[0]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def windows(folder: Path, span: Window, name: str) -> list[object]:
    with Ledger.open(f"sqlite:///{folder / name}.db", now=lambda: span.end_ms) as ledger:
        return [(each, info.window, info.digest) for each in CLUSTERS for info in ledger.windows(span, each)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=31)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    span = Window(MONTH.window.start_ms, min(MONTH.window.start_ms + args.days * DAY_MS, MONTH.window.end_ms))
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as name:
        folder = Path(name)
        held_hours = recording(folder / "recording")
        load, gained = os.getloadavg()[0], []
        for _ in range(args.rounds):
            gained.append(spins())
            runs["one_process"].append(ingest(folder, span, "one_process"))
            runs["two_workers"].append(ingest(folder, span, "two_workers", "--workers", "2"))
            with ExitStack() as stack:
                address = stack.enter_context(dask_scheduler(folder))
                stack.enter_context(dask_worker(address))
                runs["one_dask_worker"].append(ingest(folder, span, "one_dask_worker", "--on", address))
                stack.enter_context(dask_worker(address))
                runs["two_dask_workers"].append(ingest(folder, span, "two_dask_workers", "--on", address))
        gained.append(spins())
        held = [windows(folder, span, each) for each in runs]
        differ = sum(each != held[0] for each in held)
    took = {each: min(wall for wall, _ in found) for each, found in runs.items()}
    ratios = {
        f"{each}/one_process": took[each] / took["one_process"] for each in took if each != "one_process"
    }
    ratios["two_dask_workers/one_dask_worker"] = took["two_dask_workers"] / took["one_dask_worker"]
    figures = {
        "held_hours_of_the_month": held_hours,
        "windows": len(held[0]),
        "ledgers_that_differ": differ,
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        "two_spins/one_spin": [round(each, 2) for each in gained],
        **{f"{each}_s": [round(wall, 1) for wall, _ in found] for each, found in runs.items()},
        **{f"{each}_cpu_s": [round(cpu, 1) for _, cpu in found] for each, found in runs.items()},
    }
    found = {
        "name": "backfill",
        "figures": figures,
        "ratios": {each: round(ratio, 3) for each, ratio in ratios.items()},
        "limits": LIMITS,
        "holds": differ == 0 and all(ratios[each] <= limit for each, limit in LIMITS.items()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
