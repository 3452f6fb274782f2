"""What the queue collector takes: to read a large cluster, to follow its events, to be scraped.

    python benchmarks/queue_collector.py [--nodes 5000] [--pods 50000] [--workloads 10000] [--queues 500]
                                         [--events 100000]

An API server of ready-made pages runs in a process of its own; the collector runs here, over real HTTP.
``start_s`` is from the first request to the first complete page. ``events/s`` are events of 4 kB pods by CPU
second of this process (so: on one core), while the series are renewed as in production; ``events_wall/s`` by
second.
``scrape/copy`` compares an answer to a scrape, after one in a hundred pods changed, with copying its bytes
once: the answer is made and handed turn by turn, as the endpoint does, to a sink that copies it as a socket
would. ``scrape/bare`` compares the same with prometheus_client rendering the same samples. ``snapshot_ms`` is
the slowest of those taken while events flow. Memory is the resident peak of this process, until the last
scrape.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from prometheus_client.exposition import choose_encoder

from benchmarks.support import bare
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost_exporter_base.endpoint import (
    TURN_BYTES,
    EndpointRequest,
    EndpointResponse,
    turns,
)
from gpucost_queue_collector.collector import REST, QueueCollector

LIMITS = {"events/s": 5000, "scrape/copy": 1.5, "peak_mb": 1500, "snapshot_ms": 50}
AT_LEAST = frozenset({"events/s"})
REFRESH_S = 5.0
SCRAPE = EndpointRequest("GET", "/metrics", "", {"accept": "text/plain"}, True)
REPEATS = 5


def main() -> None:
    args = _arguments()
    sizes = (args.nodes, args.pods, args.workloads, args.queues)
    figures: dict[str, float] = dict(zip(("nodes", "pods", "workloads", "queues"), sizes, strict=True))
    with _api_server(sizes) as url:
        collector = QueueCollector(connect_url(url), collections())
        began, cpu = time.perf_counter(), time.process_time()
        collector.start()
        assert collector.watch.wait(600), collector.watch.statuses()
        figures["lists_s"] = time.perf_counter() - began
        collector.refresh()
        body = collector.answer(SCRAPE).body
        figures["start_s"] = time.perf_counter() - began
        figures["start_cpu_s"] = time.process_time() - cpu
        figures["bytes_mb"] = len(body) / 1e6
        figures["series"] = sum(not line.startswith(b"#") for line in body.splitlines())
        figures["refresh_s"] = _timed(collector.refresh)
        ratios = _events(collector, url, args.events, figures)
        ratios |= _scrapes(collector, url, args.pods, figures)
        ratios["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        ratios["scrape/bare"] = _bare(body, figures)
        collector.close()
    holds = all(
        ratios[name] >= limit if name in AT_LEAST else ratios[name] <= limit for name, limit in LIMITS.items()
    )
    print(
        json.dumps(
            {
                "name": "queue_collector",
                "figures": {name: round(value, 3) for name, value in figures.items()},
                "ratios": {name: round(value, 4) for name, value in ratios.items()},
                "limits": LIMITS,
                "holds": holds,
            }
        )
    )


def _events(collector: QueueCollector, url: str, events: int, figures: dict[str, float]) -> dict[str, float]:
    """A burst, followed to its end, with renewals as ``QueueCollector.run`` has them and snapshots
    between."""
    before = _pods_version(collector)
    began, cpu = time.perf_counter(), time.process_time()
    _burst(url, events)
    snapshots_ms, refresh_at = [], began + REFRESH_S
    while _pods_version(collector) - before < events:
        time.sleep(0.1)
        snapshots_ms.append(_timed(collector.watch.snapshot) * 1000)
        if time.perf_counter() > refresh_at:
            took_s = _timed(collector.refresh)
            refresh_at = time.perf_counter() + max(REFRESH_S, REST * took_s)
        if time.perf_counter() > began + 600:
            raise SystemExit(f"{_pods_version(collector) - before} of {events} events in 10 minutes")
    figures["events_wall/s"] = events / (time.perf_counter() - began)
    figures["snapshot_p50_ms"] = median(snapshots_ms)
    return {"events/s": events / (time.process_time() - cpu), "snapshot_ms": max(snapshots_ms)}


def _scrapes(collector: QueueCollector, url: str, pods: int, figures: dict[str, float]) -> dict[str, float]:
    """Answers after one in a hundred pods changed, and copies of the same bytes, by turns."""
    scrapes, copies, zips, still = [], [], [], []
    for _ in range(REPEATS):
        before = _pods_version(collector)
        _burst(url, pods // 100)
        while _pods_version(collector) - before < pods // 100:
            time.sleep(0.05)
        collector.refresh()
        gc.collect()
        sink = Sink()
        answered: list[EndpointResponse] = []
        scrapes.append(_timed(lambda sink=sink, answered=answered: _scrape(collector, sink, answered)))
        (response,) = answered
        body = response.body
        assert sink.taken == len(body)
        copies.append(_timed(lambda body=body: bytearray(body)))
        assert response.zipped is not None
        zips.append(_timed(response.zipped))
        still.append(_timed(lambda: collector.answer(SCRAPE)))
    figures["scrape_ms"], figures["copy_ms"] = median(scrapes) * 1000, median(copies) * 1000
    figures["zip_ms"], figures["scrape_unchanged_ms"] = median(zips) * 1000, median(still) * 1000
    return {"scrape/copy": median(scrapes) / median(copies)}


def _scrape(collector: QueueCollector, sink: Sink, answered: list[EndpointResponse]) -> None:
    answered.append(collector.answer(SCRAPE))
    sink.take(answered[-1])


class Sink:
    """Takes what it is given as a socket does: by a copy into a buffer of its own."""

    def __init__(self) -> None:
        self.taken = 0
        self._buffer = bytearray(TURN_BYTES)

    def take(self, response: EndpointResponse) -> None:
        for part in turns(response.chunks):
            self._buffer[: len(part)] = part
            self.taken += len(part)


def _bare(body: bytes, figures: dict[str, float]) -> float:
    registry, samples = bare.registry_of(body.decode())
    write = choose_encoder("text/plain")[0]
    figures["bare_samples"] = samples
    figures["bare_ms"] = _timed(lambda: write(registry)) * 1000
    return figures["scrape_ms"] / figures["bare_ms"]


def _pods_version(collector: QueueCollector) -> int:
    return collector.watch.version[0]


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _burst(url: str, events: int) -> None:
    with urllib.request.urlopen(f"{url}/burst?events={events}", timeout=60) as answer:
        answer.read()


@contextmanager
def _api_server(sizes: tuple[int, ...]) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.support.kube_cluster", *map(str, sizes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    for name, default in (
        ("nodes", 5000),
        ("pods", 50_000),
        ("workloads", 10_000),
        ("queues", 500),
        ("events", 100_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
