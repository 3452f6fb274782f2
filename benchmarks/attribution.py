"""Attribution of 10 million unit-hours against one bare pandas group-by over the same frame.

The recording has one row per unit and hour: 10 million pods of one GPU for about an hour each, on 1,250
nodes of 8. The baseline is the group-by that a naive tool would run over the frame, as RecordedSource
returns it, to get usage lines: time held per window, node, resource and pod, without any of the clipping,
pricing, dealing or idle accounting. A second, coarser one (per node and team) is printed beside it. The
time of attribution includes the reads from the source, some days at a time, as in a back-fill.

    python benchmarks/attribution.py [--unit-hours 10000000] [--days-per-call 7]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import HOLDER_COLUMNS
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.telemetry.recorded_source import RecordedSource, record

LIMIT = 3.0
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


def attribute_all(source: RecordedSource, window: Window, days: int) -> tuple[int, int]:
    """Attribute in calls of some days each; returns total (GPU ms, lines)."""
    total = lines = 0
    for part in window.split(days * DAY_MS):
        frames_of_part = source.read("c", part)
        result = attribute(frames_of_part, list(part.split(HOUR_MS)), rates=prices, teams=TeamRules.default())
        total += int(result.lines["board_ms"].sum())
        lines += len(result.lines)
    return total, lines


@contextmanager
def recorded(unit_hours: int, nodes: int) -> Iterator[tuple[RecordedSource, Window]]:
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as folder:
        data, window = frames(unit_hours, nodes)
        record(Path(folder), data)
        del data
        yield RecordedSource(Path(folder)), window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit-hours", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days-per-call", type=int, default=7)
    args = parser.parse_args()
    with recorded(args.unit_hours, args.nodes) as (source, window):
        measure(source, window, args.nodes, args.days_per_call)


def measure(source: RecordedSource, window: Window, nodes: int, days: int) -> None:
    table = source.read("c", window).allocations
    print(f"{len(table):,} rows, {nodes:,} nodes, {window.length_ms // HOUR_MS} hours")

    began = time.perf_counter()
    held = (table["end_ms"] - table["start_ms"]).rename("held_ms")
    hour = (table["start_ms"] // HOUR_MS).rename("window")
    keyed = table[["node", "resource", "pod_uid"]].assign(held_ms=held, window=hour)
    naive = keyed.groupby(["window", "node", "resource", "pod_uid"], observed=True)["held_ms"].sum()
    group_by_s = time.perf_counter() - began
    print(f"bare group-by into {len(naive):,} lines: {group_by_s:.2f} s")

    began = time.perf_counter()
    coarse = keyed.groupby(["node", table["team_label"]], observed=True)["held_ms"].sum()
    coarse_s = time.perf_counter() - began
    print(f"coarse group-by into {len(coarse):,} rows: {coarse_s:.2f} s")

    rows = len(table)
    del table, keyed, held, hour, naive, coarse
    began = time.perf_counter()
    total, lines = attribute_all(source, window, days)
    attribution_s = time.perf_counter() - began
    exact = nodes * 8 * window.length_ms
    print(f"attribution into {lines:,} lines: {attribution_s:.2f} s, difference {total - exact} board ms")
    ratio = attribution_s / group_by_s
    figures = {
        "unit_hours": rows,
        "attribution_s": round(attribution_s, 3),
        "group_by_s": round(group_by_s, 3),
        "coarse_group_by_s": round(coarse_s, 3),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "difference_board_ms": total - exact,
    }
    print(
        json.dumps(
            {
                "name": "attribution",
                "figures": figures,
                "ratios": {"attribution/group_by": round(ratio, 3)},
                "limits": {"attribution/group_by": LIMIT},
                "holds": ratio <= LIMIT and total == exact,
            }
        )
    )


if __name__ == "__main__":
    main()
