"""A report from series that are already there: by queries, and by samples (remote read).

A month of 1,000 GPUs and 20,000 pods as kube-state-metrics and dcgm-exporter show it, in a real Prometheus.
All of it would be a billion samples, so the default holds one day of that month at one scrape a minute;
months are read a day at a time, so the figures of a day times 31 are the month's. Blocks are compacted
before they are measured, as those of a month are: what comes after the day is written for some more hours,
since a server puts together what is older than that only. What is measured: reading the day and attributing
it, in seconds of the processor, our own and the server's (several requests are under way at once, so that
waiting for one says little), and how many samples the server read for it. The baseline of queries is the
very same queries, sent again one by one by urllib, their answers read and thrown away; that of samples is the
queries, and the samples stored in the series that were read.

    python benchmarks/existing.py [--gpus 1000] [--pods 20000] [--days 1] [--scrape 60] [--blocks FOLDER]
                                  [--growth HOURS] [--opencost] [--cost-only] [--again]

Days that are read together (see decision 17) are a day's figures less, where blocks are longer than a day.
With ``--blocks``, blocks are kept in that folder, and those that are there are measured again. ``--growth``
prints what samples of some hours of 100, 1,000 and 10,000 GPUs cost. ``--opencost`` measures OpenCost's own
queries over the same days instead, beside a report with use and one without: blocks hold all series that they
look for, those of cAdvisor and OpenCost too; with ``--cost-only`` none of use of GPUs, and the report without
use is measured alone. The command itself is measured on a small cluster, 50 pods and a day: all seconds of
the processor that ``gpucost report`` takes, its start included, with byte-code as an installed package has
it. ``--again`` measures the second report of a month that is over instead, which its cache answers but for a
check.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.support.existing_cluster import CLUSTER, big_world, write_blocks
from benchmarks.support.opencost_queries import ask_as_opencost
from benchmarks.support.processes import counting_cpu_s
from gpucost.attribution.attribute import attribute
from gpucost.domain.time import DAY_MS, HOUR_MS, SECOND_MS, Month, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.remote_read import RemoteReader
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.totals import book
from tests.support.existing.world import T0
from tests.support.frames import NamespaceTeams
from tests.support.prometheus import running_prometheus

LIMITS = {
    "own/bare_queries": 0.5,
    "samples_read/stored, by samples": 1.1,
    "server, by samples/by queries": 0.5,
    "own s a day of 1,000 GPUs, by queries": 1.5,
    "server and own s a day of 1,000 GPUs, by samples": 2.0,
    "own s of the command, 50 pods and a day": 1.0,
}
SECOND_REPORT_S = 3.0
BESIDE_OPENCOST = {"OpenCost/cost-only": 20.0, "OpenCost/with use": 5.0}
"""The least."""
MONTH = Month(2026, 10)
MONTH_DAYS = 31
# A server puts blocks of 18 hours together once there is a later one: without them the last quarter of a day
# would be read from blocks of two hours, as no day of a month is.
_HOURS_AFTER = 14
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


class KeepingReader(RemoteReader):
    """Keeps all that it read, so that samples that were read twice can be told from those stored."""

    def __init__(self, client: PrometheusClient) -> None:
        super().__init__(client, least_nodes=0, kept_bytes=1 << 40)

    def stored(self) -> int:
        """The samples of the series that were read, inside the time that was asked for, each once."""
        most: dict[object, int] = {}
        for key in self._kept.values():
            table, statistics = key.result()
            counts = statistics.grid("count")[0].sum(axis=1).astype(int).tolist()
            for labels, count in zip(table.keys, counts, strict=True):
                most[labels] = max(most.get(labels, 0), count)
        return sum(most.values())


def report(client: PrometheusClient, window: Window, *, reads_use: bool = True) -> dict[str, float]:
    """Read and attribute; seconds in all, and of the processor, own and the server's; and what came out."""
    before = client.stats.queries
    began, cpu, server = time.perf_counter(), time.process_time(), server_cpu(client.url)
    settings = PrometheusSourceSettings(reads_use=reads_use)
    source = UpstreamSource(client, settings, UpstreamSettings(), now=lambda: window.end_ms)
    frames = source.read(CLUSTER, window)
    days = tuple(window.split(DAY_MS))
    attribution = attribute(frames, days, rates=book().rates, teams=NamespaceTeams())
    whole_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    pods = int(frames.allocations["pod_uid"].nunique())
    figures = {"report_s": whole_s, "own_s": cpu_s, "server_s": server_cpu(client.url) - server}
    return figures | {"queries": client.stats.queries - before, "pods": pods, "lines": len(attribution.lines)}


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


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def by_queries(url: str, window: Window, times: int) -> dict[str, float]:
    """Medians of some turns of both, one after the other; the first turn warms the server."""
    found: list[dict[str, float]] = []
    with RecordingClient(url) as client:
        for turn in range(times + 1):
            client.asked.clear()
            figures = report(client, window)
            bare_s, size = replay(client)
            if turn:
                found.append(figures | {"bare_s": bare_s, "answer_mb": size / 1e6})
        return medians(found) | {"samples_read": samples_read(client)}


def by_samples(url: str, window: Window, times: int) -> dict[str, float]:
    """As ``by_queries``, with samples by remote read; each turn reads anew."""
    found: list[dict[str, float]] = []
    for turn in range(times + 1):
        with PrometheusClient(url) as client:
            client.samples = reader = KeepingReader(client)
            figures = report(client, window)
            if not reader.is_there:
                raise RuntimeError("the server sent no samples")
            if turn:
                found.append(figures | {"samples_read": reader.samples, "samples_used": reader.stored()})
    return medians(found)


@contextmanager
def served(args: argparse.Namespace, gpus: int, days: float) -> Iterator[tuple[str, dict[str, float]]]:
    """A server over compacted blocks, and what is in them."""
    folder = args.blocks or Path(tempfile.mkdtemp(prefix="gpucost-bench-"))
    try:
        began = time.perf_counter()
        after = _HOURS_AFTER / 24 if days >= 1 else 0
        world = big_world(gpus, args.pods * gpus / 1000 / MONTH_DAYS, days + after)
        beside = args.opencost or args.cost_only
        kind = ("kube" if args.cost_only else "data") + ("-opencost" if beside else "")
        data = folder / f"{kind}-{gpus}-{args.pods}-{days + after:g}-{args.scrape}"
        if not data.exists():
            write_blocks(
                *(world, args.scrape * SECOND_MS, data, lambda part: print(f"{part:.0%}", flush=True)),
                with_use=not args.cost_only,
                with_opencost=beside,
            )
            compact(data)
        written = [json.loads(meta.read_text()) for meta in data.glob("*/meta.json")]
        told = {"samples": sum(block["stats"]["numSamples"] for block in written), "blocks": len(written)}
        told |= {"gpus": sum(node.boards for node in world.nodes), "build_s": time.perf_counter() - began}
        with running_prometheus(data, *_AS_WRITTEN) as url:
            yield url, told
    finally:
        if not args.blocks:
            shutil.rmtree(folder, ignore_errors=True)


def say(way: str, gpus: int, days: float, found: Mapping[str, float]) -> None:
    print(
        f"{gpus} GPUs, {days:g} days, {way}: {found['pods']:.0f} pods, {found['queries']:.0f} requests, "
        f"{found['samples_read']:,.0f} samples read; report {found['report_s']:.2f} s; "
        f"CPU of the server {found['server_s']:.2f} s, own {found['own_s']:.2f} s; "
        f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB until now"
    )


def of_command(url: str, folder: Path, times: int, *, keeps: bool) -> list[dict[str, float]]:
    """Seconds of ``gpucost report``: of the processor, of the clock, and of its server. The first run of them
    writes byte-code; with ``keeps`` the cache of each is what the run before left there."""
    words = [
        sys.executable,
        "-c",
        "from gpucost.cli import main; main()",
        "report",
        str(MONTH),
        "--prometheus",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "code"), "XDG_CACHE_HOME": str(folder / "cache")}
    found = []
    for _ in range(times + 1):
        if not keeps:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        began, server = time.perf_counter(), server_cpu(url)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*words, url], env=environment, capture_output=True, check=True)
        spent, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append({"own_s": own, "wall_s": spent, "server_s": server_cpu(url) - server})
    return found


@contextmanager
def small_cluster(gpus: int, pods_a_day: float, days: float, scrape_s: int) -> Iterator[tuple[str, Path]]:
    """A server over all series of a small cluster, and an empty folder."""
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as name:
        data = Path(name) / "data"
        world = big_world(gpus, pods_a_day, days)
        write_blocks(world, scrape_s * SECOND_MS, data, lambda _: None)
        with running_prometheus(data, *_AS_WRITTEN) as url:
            yield url, Path(name)


def fixed_cost(times: int) -> dict[str, float]:
    """Medians of the command on 50 pods and a day."""
    with small_cluster(32, 50, 1, 60) as (url, folder):
        return medians(of_command(url, folder, times, keeps=False)[1:])


def second_report(times: int) -> dict[str, Any]:
    """Of a month that is over and was reported before: a day more is in the server."""
    with small_cluster(8, 3, MONTH_DAYS + 0.2, 300) as (url, folder):
        first, *again = of_command(url, folder, times, keeps=True)
    figures = {f"first, {name}": value for name, value in first.items()}
    figures |= {f"again, {name}": value for name, value in medians(again).items()}
    figures["counting_s"] = counting_cpu_s()
    return {
        "name": "existing_second_report",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "ratios": {"again/first": round(figures["again, wall_s"] / first["wall_s"], 3)},
        "limits": {"again, wall_s": SECOND_REPORT_S},
        "holds": figures["again, wall_s"] <= SECOND_REPORT_S,
    }


def beside_opencost(args: argparse.Namespace) -> dict[str, Any]:
    """OpenCost's queries of each day, and reports of the same days, in seconds of the processor of both
    sides: medians of some turns, one after the other."""
    found: dict[str, list[dict[str, float]]] = {}
    ways = {"cost-only": False} | ({} if args.cost_only else {"with use": True})
    with served(args, args.gpus, args.days) as (url, told):
        window = Window(T0, T0 + round(args.days * DAY_MS))
        for turn in range(args.times + 1):
            server = server_cpu(url)
            figures = ask_as_opencost(url, window)
            figures["server_s"] = server_cpu(url) - server
            turns = {"OpenCost": figures}
            for name, reads_use in ways.items():
                with PrometheusClient(url) as client:
                    client.samples = RemoteReader(client)
                    turns[name] = report(client, window, reads_use=reads_use)
            for name, each in turns.items() if turn else ():
                found.setdefault(name, []).append(each)
    figures = {
        f"{name}, {what}": value for name, each in found.items() for what, value in medians(each).items()
    }
    spent = {name: figures[f"{name}, own_s"] + figures[f"{name}, server_s"] for name in found}
    ratios = {f"OpenCost/{name}": spent["OpenCost"] / spent[name] for name in ways}
    for name, seconds in spent.items():
        month = seconds * MONTH_DAYS / args.days
        print(f"{name}: {seconds:.2f} s of both sides for {args.days:g} days, {month:.0f} s for a month")
    limits = {name: least for name, least in BESIDE_OPENCOST.items() if name in ratios}
    figures |= told | {"days": args.days, "scrape_s": args.scrape}
    return {
        "name": "existing_beside_opencost",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
        "limits": limits,
        "holds": all(ratios[name] >= least for name, least in limits.items()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=20_000, help="of 1,000 GPUs in a month of 31 days")
    parser.add_argument("--days", type=float, default=1, help="of the month that are written and read")
    parser.add_argument("--scrape", type=int, default=60, help="seconds")
    parser.add_argument("--times", type=int, default=3, help="of which the median counts")
    parser.add_argument("--blocks", type=Path, help="a folder for blocks that are measured again")
    parser.add_argument(
        "--growth", type=float, default=0, help="hours that are read of 100, 1,000 and 10,000 GPUs as well"
    )
    parser.add_argument("--opencost", action="store_true", help="OpenCost's queries beside reports")
    parser.add_argument("--cost-only", action="store_true", help="the same, without series of use")
    parser.add_argument("--again", action="store_true", help="the second report of a month that is over")
    args = parser.parse_args()
    if args.again:
        print(json.dumps(second_report(args.times)))
        return
    if args.opencost or args.cost_only:
        print(json.dumps(beside_opencost(args)))
        return
    with served(args, args.gpus, args.days) as (url, told):
        window = Window(T0, T0 + round(args.days * DAY_MS))
        queries = by_queries(url, window, args.times)
        samples = by_samples(url, window, args.times)
    print(f"{told['samples']:,} samples of {told['gpus']} GPUs in {told['blocks']} blocks")
    say("by queries", args.gpus, args.days, queries)
    say("by samples", args.gpus, args.days, samples)
    command = fixed_cost(args.times)
    print(
        f"50 pods and a day, the whole command: CPU {command['own_s']:.2f} s, "
        f"server {command['server_s']:.2f} s"
    )
    growth = {}
    for gpus in (100, 1_000, 10_000) if args.growth else ():
        with served(args, gpus, args.growth / 24) as (url, _):
            found = by_samples(url, Window(T0, T0 + round(args.growth * HOUR_MS)), 1)
        say("by samples", gpus, args.growth / 24, found)
        growth[str(gpus)] = {name: round(found[name], 3) for name in ("report_s", "own_s", "server_s")}
    per_day = 1000 / told["gpus"] / args.days
    ratios = {
        "own/bare_queries": queries["own_s"] / queries["bare_s"],
        "samples_read/stored, by samples": samples["samples_read"] / samples["samples_used"],
        "server, by samples/by queries": samples["server_s"] / queries["server_s"],
        "own s a day of 1,000 GPUs, by queries": queries["own_s"] * per_day,
        "server and own s a day of 1,000 GPUs, by samples": (samples["own_s"] + samples["server_s"])
        * per_day,
        "own s of the command, 50 pods and a day": command["own_s"],
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    month = {
        f"month_{name}_s_extrapolated, by samples": samples[f"{name}_s"] * MONTH_DAYS / args.days
        for name in ("report", "own", "server")
    }
    figures = {f"{name}, by queries": value for name, value in queries.items()}
    figures |= {f"{name}, by samples": value for name, value in samples.items()}
    figures |= {f"{name}, command on 50 pods": value for name, value in command.items()}
    figures |= told | {"days": args.days, "scrape_s": args.scrape, "peak_rss_mb": peak} | month
    figures["counting_s"] = counting_cpu_s()
    result = {
        "name": "existing",
        "figures": {name: round(value, 3) for name, value in figures.items()} | {"growth": growth},
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "limits": LIMITS,
        "holds": all(ratios[name] <= limit for name, limit in LIMITS.items()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
