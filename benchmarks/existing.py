"""A report from series that are already there: gpucost's own time against the bare queries'.

A month of 1,000 GPUs and 20,000 pods as kube-state-metrics and dcgm-exporter show it, in a real Prometheus.
All of it would be a billion samples, so the default holds one day of that month at one scrape a minute;
months are read a day at a time, so the figures of a day times 31 are the month's. Blocks are compacted
before they are measured, as those of a month are. What is measured: reading the day and attributing it, in
seconds of the processor, our own and the server's (several queries are under way at once, so that waiting
for one says little), and how many samples the server read for it. The baseline is the very same queries,
sent again one by one by urllib, their answers read and thrown away.

    python benchmarks/existing.py [--gpus 1000] [--pods 20000] [--days 1] [--scrape 60] [--blocks FOLDER]

With ``--blocks``, blocks are kept in that folder, and those that are there are measured again.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.support.existing_cluster import CLUSTER, big_world, write_blocks
from gpucost.attribution.attribute import attribute
from gpucost.domain.time import DAY_MS, SECOND_MS, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.totals import book
from tests.support.existing.world import T0
from tests.support.frames import NamespaceTeams
from tests.support.prometheus import running_prometheus

LIMIT = 0.5
MONTH_DAYS = 31
# While it is measured, blocks stay as they are: compaction would disturb it.
_COMPACTED_S = 90
_AS_WRITTEN = ("--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h")


class RecordingClient(PrometheusClient):
    """Keeps what it asked, so that it can be asked again."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[tuple[str, dict[str, str]]] = []

    def _send(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        self.asked.append((path, dict(form or {})))
        return super()._send(path, form)


def report(client: RecordingClient, window: Window) -> dict[str, float]:
    """Read and attribute; seconds in all, and of the processor, own and the server's; and what came out."""
    client.asked.clear()
    began, cpu, server = time.perf_counter(), time.process_time(), server_cpu(client.url)
    source = UpstreamSource(client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: window.end_ms)
    frames = source.read(CLUSTER, window)
    days = tuple(window.split(DAY_MS))
    attribution = attribute(frames, days, rates=book().rates, teams=NamespaceTeams())
    whole_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    pods = int(frames.allocations["pod_uid"].nunique())
    figures = {"report_s": whole_s, "own_s": cpu_s, "server_s": server_cpu(client.url) - server}
    return figures | {"queries": len(client.asked), "pods": pods, "lines": len(attribution.lines)}


def server_cpu(url: str) -> float:
    """Seconds of the processor that the server has spent so far, as it says itself."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        (line,) = (
            each for each in answer.read().splitlines() if each.startswith(b"process_cpu_seconds_total ")
        )
    return float(line.split()[1])


def replay(client: RecordingClient) -> tuple[float, int]:
    """The seconds that the very same queries take without gpucost, and the bytes of their answers."""
    began, size = time.perf_counter(), 0
    for path, form in client.asked:
        with urllib.request.urlopen(*_request(client, path, form)) as answer:
            size += len(answer.read())
    return time.perf_counter() - began, size


def samples_read(client: RecordingClient) -> int:
    """How many samples the server read for the queries, by its own count."""
    found = 0
    for path, form in client.asked:
        if path in ("query", "query_range"):
            with urllib.request.urlopen(*_request(client, path, {**form, "stats": "all"})) as answer:
                said = json.load(answer)["data"]["stats"]["samples"]
            found += said["totalQueryableSamples"]
    return found


def _request(client: RecordingClient, path: str, form: Mapping[str, str]) -> tuple[str, bytes | None]:
    return f"{client.url}/api/v1/{path}", urllib.parse.urlencode(form).encode() if form else None


def compact(data: Path) -> None:
    """Let the server put blocks together, as it does with those that are some days old."""

    def blocks() -> frozenset[str]:
        return frozenset(each.parent.name for each in data.glob("*/meta.json"))

    with running_prometheus(data):
        seen, since = blocks(), time.monotonic()
        # It looks every minute, and until there is nothing left.
        while time.monotonic() - since < _COMPACTED_S:
            time.sleep(5)
            if blocks() != seen:
                seen, since = blocks(), time.monotonic()


def measure(url: str, window: Window, times: int = 3) -> dict[str, float]:
    """Medians of some turns of both, one after the other; the first turn warms the server."""
    found: list[dict[str, float]] = []
    with RecordingClient(url) as client:
        for turn in range(times + 1):
            figures = report(client, window)
            bare_s, size = replay(client)
            if turn:
                found.append(figures | {"bare_s": bare_s, "answer_mb": size / 1e6})
        found = [each | {"samples_read": samples_read(client)} for each in found]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=20_000, help="in a month of 31 days")
    parser.add_argument("--days", type=float, default=1, help="of the month that are written and read")
    parser.add_argument("--scrape", type=int, default=60, help="seconds")
    parser.add_argument("--blocks", type=Path, help="a folder for blocks that are measured again")
    args = parser.parse_args()
    folder = args.blocks or Path(tempfile.mkdtemp(prefix="gpucost-bench-"))
    try:
        began = time.perf_counter()
        world = big_world(args.gpus, args.pods / MONTH_DAYS, args.days)
        data = folder / f"data-{args.gpus}-{args.pods}-{args.days:g}-{args.scrape}"
        if not data.exists():
            write_blocks(world, args.scrape * SECOND_MS, data, lambda part: print(f"{part:.0%}", flush=True))
            compact(data)
        written = [json.loads(meta.read_text()) for meta in data.glob("*/meta.json")]
        samples = sum(block["stats"]["numSamples"] for block in written)
        build_s = time.perf_counter() - began
        with running_prometheus(data, *_AS_WRITTEN) as url:
            figures = measure(url, Window(T0, T0 + round(args.days * DAY_MS)))
    finally:
        if not args.blocks:
            shutil.rmtree(folder, ignore_errors=True)
    boards = sum(node.boards for node in world.nodes)
    times = MONTH_DAYS / args.days
    print(f"{samples:,} samples of {boards} GPUs in {len(written)} blocks, {build_s:.0f} s")
    ratio = figures["samples_read"] / samples
    print(
        f"{args.days:g} days: {figures['pods']:.0f} pods, {figures['queries']:.0f} queries, "
        f"{figures['samples_read']:,.0f} samples read by the server, {ratio:.2f} of those stored; "
        f"report {figures['report_s']:.2f} s; CPU of the server {figures['server_s']:.2f} s, "
        f"own {figures['own_s']:.2f} s; bare {figures['bare_s']:.2f} s"
    )
    print(
        f"extrapolated to {MONTH_DAYS} days (times {times:g}): own {figures['own_s'] * times:.0f} s, ", end=""
    )
    print(f"bare queries {figures['bare_s'] * times:.0f} s, report {figures['report_s'] * times:.0f} s")
    figures |= {"gpus": boards, "samples": samples, "days": args.days, "scrape_s": args.scrape}
    figures["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures["month_own_s_extrapolated"] = figures["own_s"] * times
    figures["month_report_s_extrapolated"] = figures["report_s"] * times
    ratios = {
        "own/bare_queries": round(figures["own_s"] / figures["bare_s"], 3),
        "own/server": round(figures["own_s"] / figures["server_s"], 3),
        "samples_read/stored": round(ratio, 3),
    }
    limits = {"own/bare_queries": LIMIT}
    result = {
        "name": "existing",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "ratios": ratios,
        "limits": limits,
        "holds": all(ratios[name] <= limit for name, limit in limits.items()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
