"""Collectors behind endpoints of their own, for a real Prometheus to scrape, and questions to that."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost_exporter_base.endpoint import HttpEndpoint
from gpucost_queue_collector.collector import QueueCollector, SeriesRules
from tests.support.cluster.server import ClusterServer


class Replica:
    """A collector behind an endpoint of its own."""

    def __init__(self, server: ClusterServer) -> None:
        self.transport = connect_url(server.url)
        self.collector = QueueCollector(self.transport, collections(), SeriesRules(replicas=2))
        self.endpoint = HttpEndpoint("127.0.0.1", 0, {"/metrics": self.collector.answer})
        self.target = f"127.0.0.1:{self.endpoint.start()}"
        self.collector.start()
        assert self.collector.watch.wait(60)
        self.collector.refresh()

    def close(self) -> None:
        self.endpoint.close()
        self.collector.close()
        self.transport.close()


@contextmanager
def replicas(server: ClusterServer, count: int) -> Iterator[list[Replica]]:
    with ExitStack() as parts:
        found = []
        for _ in range(count):
            found.append(Replica(server))
            parts.callback(found[-1].close)
        yield found


def scraping(*found: Replica) -> list[dict[str, object]]:
    """The configuration of a Prometheus that scrapes them each second."""
    targets = [each.target for each in found]
    job = {"job_name": "queue", "scrape_interval": "1s", "honor_labels": True}
    return [{**job, "static_configs": [{"targets": targets}]}]


def asked(url: str, query: str) -> list[dict[str, Any]]:
    """The result of an instant query."""
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}") as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def value(url: str, query: str) -> float:
    """The only value of an instant query; 0 without one."""
    found = asked(url, query)
    return float(found[0]["value"][1]) if found else 0.0


def until(url: str, query: str, least: float) -> None:
    deadline = time.monotonic() + 60
    while value(url, query) < least:
        assert time.monotonic() < deadline, query
        time.sleep(0.1)
