"""A back-fill of three clusters by two workers against one process, over the same recording.

Every cluster has nodes of 8 GPUs, each held by one pod after the other for about an hour; the unit of work
is a cluster and day. ``gpucost ingest`` fills a new SQLite ledger each time: in one process, with two
processes of its own (``--workers 2``), and with one and two workers of a Dask scheduler (``--on``), which run
already. Wall seconds are those of the whole command. On two cores the command, which writes, shares them with
the workers; CPU seconds are those of the command and its own processes, without Dask's. The ledgers must
be equal, window by window.

    python benchmarks/backfill.py [--days 10] [--nodes 40]
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
from contextlib import ExitStack
from pathlib import Path

import pandas as pd

from benchmarks.attribution import START, frames
from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger import Ledger
from gpucost.telemetry.recorded_source import record
from tests.support.dask_cluster import dask_scheduler, dask_worker

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = ("east", "north", "west")
LIMITS = {"two_workers/one_process": 0.65, "two_dask_workers/one_process": 0.65}


def recording(folder: Path, days: int, nodes: int) -> None:
    one, _ = frames(days * 24 * nodes * 8, nodes)
    found = {}
    for kind in ("allocations", "nodes", "capacity", "observed"):
        frame = getattr(one, kind)
        found[kind] = pd.concat([frame.assign(cluster=name) for name in CLUSTERS], ignore_index=True)
        found[kind] = found[kind].astype({"cluster": "str"})
    record(folder, ClusterFrames(**found))


def ingest(folder: Path, name: str, *words: str) -> tuple[float, float]:
    """Wall seconds of the command, and CPU seconds of it and its processes."""
    settings = folder / f"{name}.yaml"
    text = f'ledger: {{url: "sqlite:///{folder / name}.db"}}\ndetectors: {{enabled: false}}\n'
    settings.write_text(text, encoding="utf-8")
    line = ["--config", str(settings), "ingest", "--source", f"recorded:{folder / 'recording'}", *words]
    began, used = time.perf_counter(), _cpu_s()
    program = "from gpucost.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, *line], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    took, cpu = time.perf_counter() - began, _cpu_s() - used
    print(f"{name}: {took:.1f} s, {cpu:.1f} CPU seconds, load {os.getloadavg()[0]:.1f}", flush=True)
    return took, cpu


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def windows(folder: Path, name: str, days: int) -> list[object]:
    span = Window(START, START + days * DAY_MS)
    with Ledger.open(f"sqlite:///{folder / name}.db", now=lambda: span.end_ms) as ledger:
        return [(each, info.window, info.digest) for each in CLUSTERS for info in ledger.windows(span, each)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=40)
    args = parser.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        recording(folder / "recording", args.days, args.nodes)
        load = os.getloadavg()[0]
        runs["one_process"] = ingest(folder, "one_process")
        runs["two_workers"] = ingest(folder, "two_workers", "--workers", "2")
        address = stack.enter_context(dask_scheduler(folder))
        stack.enter_context(dask_worker(address))
        runs["one_dask_worker"] = ingest(folder, "one_dask_worker", "--on", address)
        stack.enter_context(dask_worker(address))
        runs["two_dask_workers"] = ingest(folder, "two_dask_workers", "--on", address)
        held = [windows(folder, each, args.days) for each in runs]
        differ = sum(each != held[0] for each in held)
    took = {each: wall for each, (wall, _) in runs.items()}
    ratios = {
        f"{each}/one_process": took[each] / took["one_process"] for each in took if each != "one_process"
    }
    ratios["two_dask_workers/one_dask_worker"] = took["two_dask_workers"] / took["one_dask_worker"]
    figures = {
        "unit_hours": len(CLUSTERS) * args.days * 24 * args.nodes * 8,
        "windows": len(held[0]),
        "ledgers_that_differ": differ,
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        **{f"{each}_s": round(wall, 1) for each, (wall, _) in runs.items()},
        **{f"{each}_cpu_s": round(cpu, 1) for each, (_, cpu) in runs.items()},
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
