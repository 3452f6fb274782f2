"""What the GPU exporter costs a node: eight GPUs, each time-sliced among eight pods with a process each.

The real command and its driver process run over the stand-ins of the tests: libnvidia-ml.so.1 built with
gcc, a kubelet on a unix socket, an API server, a /proc of the host. A load moves at 1 Hz; it and the
stand-in servers run in this process, so that they are not counted. The stand-in library is counted, since it
runs in the driver's process.

    python benchmarks/gpu_exporter.py [--seconds 60] [--scrapes 20] [--renders 100]

``cpu/core`` is the CPU time of both processes by the wall time, with a scrape every 15 s; ``rss_mib`` is the
resident memory of both at its highest, in MiB, pages that they share counted twice. ``hung_max_ms`` is
the slowest scrape while a call into the driver hangs, each over a connection of its own. ``render/bare`` and
``render/bare openmetrics`` compare, in CPU time, the rendering of a snapshot that nobody has asked for yet
with prometheus_client writing the same samples out of its own Gauges and Counters; both by turns, medians.
The kernel counts CPU time in steps of 10 ms, so a short watch says little.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from prometheus_client.exposition import choose_encoder

from benchmarks.support import bare
from benchmarks.support.gpu_holders import LOADS, REPLICAS, UUIDS, busy_node, snapshot
from benchmarks.support.processes import cpu_s, resident_mib
from gpucost.contract.gpu_metrics import COLLECTIONS
from gpucost_exporter_base.exposition import MetricExposition
from gpucost_gpu_exporter.metric_families import SnapshotSource
from tests.support.gpu_command import CommandNode, Running, eventually, moving

LIMITS = {
    "cpu/core": 0.02,
    "rss_mib": 80,
    "hung_max_ms": 20,
    "render/bare": 2.0,
    "render/bare openmetrics": 2.0,
}
SCRAPE_EVERY_S = 15
WARM_UP_S = 5
# After these the collection that hangs has begun, and its watchdog (5 s) has not struck yet.
INTERVALS_S = 1.5
HANGING = "nvmlDeviceGetTotalEnergyConsumption"
FORMATS = {"render/bare": "text/plain", "render/bare openmetrics": "application/openmetrics-text"}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a running exporter used: CPU seconds by wall second, and MiB at its highest."""

    core: float
    own_core: float
    rss_mib: float
    own_rss_mib: float


def main() -> None:
    args = _arguments()
    figures: dict[str, float] = {"boards": len(UUIDS), "holders": len(UUIDS) * REPLICAS}
    with tempfile.TemporaryDirectory() as place, busy_node(Path(place)) as node, node.start() as running:
        with moving(node.driver, LOADS, every_s=1):
            wait_until_steady(running)
            cost = used(running, args.seconds)
        hung_ms = hung_scrapes(node, running, args.scrapes)
    ratios = {"cpu/core": cost.core, "rss_mib": cost.rss_mib, "hung_max_ms": max(hung_ms)}
    figures |= {
        "seconds": args.seconds,
        "cpu_ms_per_s_exporter": cost.own_core * 1000,
        "cpu_ms_per_s_driver": (cost.core - cost.own_core) * 1000,
        "rss_mib_exporter": cost.own_rss_mib,
        "rss_mib_driver": cost.rss_mib - cost.own_rss_mib,
        "hung_scrapes": len(hung_ms),
        "hung_p50_ms": median(hung_ms),
    }
    rendered, of_rendering = rendering(args.renders)
    figures |= rendered
    ratios |= of_rendering
    print(
        json.dumps(
            {
                "name": "gpu_exporter",
                "figures": {name: round(value, 3) for name, value in figures.items()},
                "ratios": {name: round(value, 4) for name, value in ratios.items()},
                "limits": LIMITS,
                "holds": all(ratios[name] <= limit for name, limit in LIMITS.items()),
            }
        )
    )


def wait_until_steady(running: Running) -> None:
    """Until every pod's use is counted, and a while more."""
    start = "gpucost_pod_gpu_busy_seconds_total{"

    def are_all_counted() -> bool:
        found = [series for series in running.scrape() if series.startswith(start)]
        return sum('method="weighted"' in series for series in found) >= len(UUIDS) * REPLICAS

    eventually(are_all_counted, running.log)
    time.sleep(WARM_UP_S)


def used(running: Running, seconds: float) -> Cost:
    """Watch the exporter for so many seconds, with a scrape every 15 s."""
    own = [running.process.pid]
    both = own + running.children()
    assert len(both) == 2, both
    began_s, began_own_s, began = cpu_s(both), cpu_s(own), time.monotonic()
    peak = peak_own = 0.0
    scrape_at = began + SCRAPE_EVERY_S / 2
    while (now := time.monotonic()) < began + seconds:
        if now >= scrape_at:
            running.scrape()
            scrape_at += SCRAPE_EVERY_S
        peak, peak_own = max(peak, resident_mib(both)), max(peak_own, resident_mib(own))
        time.sleep(0.25)
    took_s = time.monotonic() - began
    return Cost((cpu_s(both) - began_s) / took_s, (cpu_s(own) - began_own_s) / took_s, peak, peak_own)


def hung_scrapes(node: CommandNode, running: Running, count: int) -> list[float]:
    """Milliseconds of each scrape, all of them while one collection waits for the driver."""
    node.driver.hang(HANGING)
    node.driver.write()
    time.sleep(INTERVALS_S)
    before = collections(running)
    took_ms = []
    for _ in range(count):
        began = time.perf_counter()
        status, _ = running.get("/metrics")
        took_ms.append((time.perf_counter() - began) * 1000)
        assert status == 200
        time.sleep(0.05)
    assert collections(running) == before, "a collection ended: the scrapes were not all beside a hanging one"
    return took_ms


def collections(running: Running) -> float:
    """How many collections there were."""
    return next(value for series, value in running.scrape().items() if series.startswith(COLLECTIONS.name))


def rendering(count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Figures and ratios of rendering one snapshot, in CPU milliseconds."""
    latest = snapshot(30)
    source = SnapshotSource()
    exposition = MetricExposition([source])
    fresh = iter(range(1, 10**9))

    def ours(accept: str) -> bytes:
        source.latest = replace(latest, version=next(fresh))
        return exposition.render(accept)[0]

    registry, samples = bare.registry_of(ours("text/plain").decode())
    figures: dict[str, float] = {"samples": samples}
    ratios: dict[str, float] = {}
    for name, accept in FORMATS.items():
        write = choose_encoder(accept)[0]
        assert count_samples(ours(accept)) == count_samples(write(registry)) == samples
        own_ms, bare_ms = by_turns(partial(ours, accept), partial(write, registry), count)
        kind = accept.partition("/")[2].partition("-")[0]
        figures |= {f"render_ms_{kind}": own_ms, f"bare_ms_{kind}": bare_ms}
        ratios[name] = own_ms / bare_ms
    return figures, ratios


def count_samples(text: bytes) -> int:
    """The lines that are no comments."""
    return sum(not line.startswith(b"#") for line in text.splitlines())


def by_turns(one: Callable[[], object], other: Callable[[], object], count: int) -> tuple[float, float]:
    """Median CPU milliseconds of each, measured by turns so that both see the same machine."""
    took: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    for turn in range(count + 3):
        for function, results in zip((one, other), took, strict=True):
            began = time.thread_time()
            function()
            if turn >= 3:
                results.append((time.thread_time() - began) * 1000)
    return median(took[0]), median(took[1])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long the exporter is watched")
    parser.add_argument(
        "--scrapes", type=int, default=20, choices=range(1, 41), metavar="1-40", help="while the driver hangs"
    )
    parser.add_argument("--renders", type=int, default=100, help="renderings of each kind")
    return parser.parse_args()


if __name__ == "__main__":
    main()
