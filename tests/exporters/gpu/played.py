"""The scripted hour, played once: our exporter and a dcgm-exporter of the same node in one Prometheus."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.exporters.gpu import hour, peer
from tests.support.gpu_node import GpuNode, gpu_node
from tests.support.nvml.build import build_double
from tests.support.prometheus import create_blocks, running_prometheus

SCRAPE_EVERY = 30
_SAMPLE = re.compile(r"^(?P<series>[A-Za-z_]+(?:\{.*\})?) (?P<value>\S+)$", re.MULTILINE)


@dataclass
class Played:
    """The Prometheus that scraped the hour, and the instants of the scrapes in seconds since 1970."""

    url: str
    scrapes: list[int]

    def ask(self, query: str, at: int) -> list[dict[str, object]]:
        parameters = urllib.parse.urlencode({"query": query, "time": at})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}") as answer:
            found: list[dict[str, object]] = json.load(answer)["data"]["result"]
        return found

    def by_pod(self, query: str, label: str = "pod") -> dict[str, float]:
        """At the end of the hour, by the pod that ``label`` names."""
        return {
            str(row["metric"][label]): float(row["value"][1])  # type: ignore[index]
            for row in self.ask(query, self.scrapes[-1])
        }


@contextmanager
def played_hour(folder: Path) -> Iterator[Played]:
    """Play the hour in ``folder`` (empty, existing) and serve it until the block ends."""
    library = build_double(folder)
    with gpu_node(folder, library, *hour.boards()) as node:
        scrapes = list(_play(node))
    times = [at for at, _ in scrapes]
    data = folder / "data"
    create_blocks(_openmetrics([*scrapes, *peer.scrapes(times[0])]), data)
    # A sample counts until the next scrape, as with the staleness marks that a scrape would leave.
    with running_prometheus(data, f"--query.lookback-delta={SCRAPE_EVERY - 1}s") as url:
        yield Played(url, times)


def _play(node: GpuNode) -> Iterator[tuple[int, str]]:
    """The hour, second by second; gives the text of each scrape with its time."""
    node.kubelet.allocatable = hour.ALLOCATABLE
    events, shared = hour.events(), node.driver.board(hour.SHARED)
    # A minute before the hour: the GPUs are idle, and the exporter learns what idling draws.
    node.start()
    node.ticks(60)
    yield _scrape(node)
    for second in hour.seconds():
        for kind, pod in events.get(second, ()):
            if kind == "end":
                node.end(pod.name)
                shared.processes = [found for found in shared.processes if found.pid != pod.pid]
            else:
                uid = node.pod(pod.name, pod.device, resource=pod.resource)
                if pod.pid:
                    node.process(shared, pod.pid, uid)
        if second == hour.LOST_AT:
            node.driver.board(hour.LOST).lost = True
        if second == hour.RESTART_AT:
            node.stop()
        if hour.RESTART_AT <= second < hour.RESTART_AT + hour.RESTART_FOR:
            node.pass_time(1, hour.loads(second))
            continue
        if node.exporter is None:
            node.start()
        node.tick(1, hour.loads(second))
        if (second + 1) % SCRAPE_EVERY == 0:
            yield _scrape(node)


def _scrape(node: GpuNode) -> tuple[int, str]:
    body, _ = node.exposition.render("")
    return node.wall_ms() // 1000, body.decode()


def _openmetrics(scrapes: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The scraped samples with their times, series by series, as promtool wants them."""
    series: dict[str, list[str]] = {}
    for at, text in scrapes:
        for found in _SAMPLE.finditer(text):
            series.setdefault(found["series"], []).append(f"{found['series']} {found['value']} {at}\n")
    for name in sorted(series, key=lambda name: name.partition("{")[0]):
        yield from series[name]
    yield "# EOF\n"
