"""Attribution of 10 million unit-hours against one bare pandas group-by over the same frame.

The recording has one row per unit and hour: 10 million pods of one GPU for about an hour each, on 1,250
nodes of 8. The baseline is the group-by that a naive tool would run over the frame, as RecordedSource
returns it, to get usage lines: time held per window, node, resource and pod, without any of the clipping,
pricing, dealing or idle accounting. Beside it stand the same over codes in the place of names, and a coarser
one (per node and team). Attribution includes the reads from the source, some days at a time, as in a
back-fill, and the names of holders. It runs once more with all nodes of a call at once, as it did before it
went by groups of nodes. Each runs in a process of its own, so that its peak is its own.

    python benchmarks/attribution.py [--unit-hours 10000000] [--days-per-call 7]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from gpucost.attribution import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import HOLDER_COLUMNS
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.telemetry.recorded_source import RecordedSource, record

LIMITS = {"attribution_cpu/group_by_cpu": 2.0, "attribution_cpu/at_once_cpu": 1.15, "peak_rss_mb": 1500}
T = TypeVar("T")
START = Month(2026, 9).window.start_ms
PRICE = Rate("flat", 6_880_000_000, "USD", 6_880_000_000, "model", "benchmark", "2026-11-21")


def prices(_: NodeFacts, window: Window) -> tuple[RateSpan, ...]:
    return (RateSpan(window.start_ms, window.end_ms, PRICE),)


def text(codes: np.ndarray, names: list[str]) -> pd.Series[str]:
    return pd.Series(pd.array(names, dtype="str").take(codes))


def frames(unit_hours: int, nodes: int) -> tuple[ClusterFrames, Window]:
    """Every GPU is held by one pod after the other, each for 0.9 to 1 hour; seeded."""
    gpus = nodes * 8
    hours = unit_hours // gpus
    rng = np.random.default_rng(7)
    slot = np.tile(np.arange(gpus), hours)
    hour = np.repeat(np.arange(hours), gpus)
    start = START + hour * HOUR_MS + rng.integers(0, HOUR_MS // 20, len(slot))
    end = START + (hour + 1) * HOUR_MS - rng.integers(0, HOUR_MS // 20, len(slot))
    count = len(slot)
    empty = text(np.zeros(count, np.int8), [""])
    team = text(slot % 40, [f"team-{i}" for i in range(40)])
    node_names = [f"node-{i:05}" for i in range(nodes)]
    pods = text(np.arange(count), [f"uid-{i:08}" for i in range(count)])
    columns = {column.name: empty for column in HOLDER_COLUMNS}
    columns |= {
        "namespace": team,
        "team_label": team,
        "pod": pods,
        "pod_uid": pods,
        "job": pods,
        "job_uid": pods,
    }
    allocations = pd.DataFrame(
        {
            "cluster": text(np.zeros(count, np.int8), ["c"]),
            "node": text(slot // 8, node_names),
            **columns,
            "resource": text(np.zeros(count, np.int8), ["nvidia.com/gpu"]),
            "count": np.ones(count, np.int64),
            "start_ms": start,
            "end_ms": end,
        }
    )
    window = Window(START, START + hours * HOUR_MS)
    place = {"cluster": "c", "node": node_names, "start_ms": START - DAY_MS, "end_ms": window.end_ms + DAY_MS}
    unsaid = dict.fromkeys(["instance_type", "capacity_type", "region", "zone", "pool"], "")
    facts = pd.DataFrame({**place, "product": "NVIDIA-H100-80GB-HBM3", "boards": 8, **unsaid, "labels": "{}"})
    units = {"expected": 8, "capacity": 8, "allocatable": 8, "replicas": 1, "schedulable": 1}
    capacity = pd.DataFrame({**place, "resource": "nvidia.com/gpu", **units})
    observed = pd.DataFrame(
        {"cluster": ["c"], "start_ms": [START - DAY_MS], "end_ms": [window.end_ms + DAY_MS]}
    )
    return ClusterFrames(allocations, facts, capacity, observed), window


@dataclass(frozen=True)
class Run:
    """What a run found, and used: wall and CPU seconds, and the most memory of its process."""

    found: tuple[int, int]
    wall_s: float
    cpu_s: float
    peak_rss_mb: int

    @classmethod
    def of(cls, work: Callable[[], tuple[int, int]]) -> Run:
        wall, cpu = time.perf_counter(), time.process_time()
        found = work()
        used = time.perf_counter() - wall, time.process_time() - cpu
        return cls(found, *used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def attributed(folder: Path, window: Window, days: int, most_rows: int) -> Run:
    """Attribute in calls of some days each: total (GPU ms, lines)."""

    def work() -> tuple[int, int]:
        source, total, lines = RecordedSource(folder), 0, 0
        attribute.MOST_ROWS = most_rows
        for part in window.split(days * DAY_MS):
            frames_of_part, windows = source.read("c", part), list(part.split(HOUR_MS))
            found = attribute.attribute(frames_of_part, windows, rates=prices, teams=TeamRules.default())
            total += int(found.lines["board_ms"].sum())
            lines += len(found.lines) if len(found.holders.frame) else 0
            del frames_of_part, found
        return total, lines

    return Run.of(work)


def grouped(folder: Path, window: Window, key: str) -> Run:
    """The bare group-by without the read: (rows, lines). ``key`` is names, codes or team."""
    table = RecordedSource(folder).read("c", window).allocations
    if key == "codes":
        table["pod_uid"] = pd.factorize(table["pod_uid"])[0]

    def work() -> tuple[int, int]:
        held = (table["end_ms"] - table["start_ms"]).rename("held_ms")
        hour = (table["start_ms"] // HOUR_MS).rename("window")
        names = ["node", "team_label"] if key == "team" else ["window", "node", "resource", "pod_uid"]
        keyed = table[["node", "resource", "pod_uid", "team_label"]].assign(held_ms=held, window=hour)
        return len(table), len(keyed.groupby(names, observed=True)["held_ms"].sum())

    return Run.of(work)


def written(folder: Path, unit_hours: int, nodes: int) -> Window:
    data, window = frames(unit_hours, nodes)
    record(folder, data)
    return window


def alone(work: Callable[..., T], *args: object) -> T:
    """The result of a call in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit-hours", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days-per-call", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as name:
        folder = Path(name)
        window = alone(written, folder, args.unit_hours, args.nodes)
        measure(folder, window, args.nodes, args.days_per_call)


def measure(folder: Path, window: Window, nodes: int, days: int) -> None:
    by_key = {key: alone(grouped, folder, window, key) for key in ("names", "codes", "team")}
    rows, _ = by_key["names"].found
    print(f"{rows:,} rows, {nodes:,} nodes, {window.length_ms // HOUR_MS} hours")
    for key, run in by_key.items():
        print(f"bare group-by by {key} into {run.found[1]:,} lines: {_used(run)}")
    whole = alone(attributed, folder, window, days, 1 << 62)
    print(f"attribution, all nodes at once: {_used(whole)}")
    run = alone(attributed, folder, window, days, attribute.MOST_ROWS)
    total, lines = run.found
    difference = total - nodes * 8 * window.length_ms
    print(f"attribution into {lines:,} lines: {_used(run)}, difference {difference} board ms")
    ratios = {
        "attribution/group_by": run.wall_s / by_key["names"].wall_s,
        "attribution_cpu/group_by_cpu": run.cpu_s / by_key["names"].cpu_s,
        "attribution_cpu/at_once_cpu": run.cpu_s / whole.cpu_s,
    }
    figures = {
        "unit_hours": rows,
        "attribution_s": round(run.wall_s, 3),
        "attribution_cpu_s": round(run.cpu_s, 3),
        "at_once_cpu_s": round(whole.cpu_s, 3),
        "group_by_s": round(by_key["names"].wall_s, 3),
        "group_by_cpu_s": round(by_key["names"].cpu_s, 3),
        "group_by_codes_cpu_s": round(by_key["codes"].cpu_s, 3),
        "coarse_group_by_cpu_s": round(by_key["team"].cpu_s, 3),
        "peak_rss_mb": run.peak_rss_mb,
        "at_once_peak_rss_mb": whole.peak_rss_mb,
        "group_by_peak_rss_mb": by_key["names"].peak_rss_mb,
        "difference_board_ms": difference,
    }
    found = {"peak_rss_mb": run.peak_rss_mb, **ratios}
    print(
        json.dumps(
            {
                "name": "attribution",
                "figures": figures,
                "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
                "limits": LIMITS,
                "holds": difference == 0 and all(found[name] <= limit for name, limit in LIMITS.items()),
            }
        )
    )


def _used(run: Run) -> str:
    return f"{run.wall_s:.2f} s, {run.cpu_s:.2f} CPU seconds, peak {run.peak_rss_mb:,} MB"


if __name__ == "__main__":
    main()
