"""The pages that the demo's exporters serve at one instant, with the labels a scrape gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpucost.contract.openmetrics import EOF
from gpucost.demo.collector import SimulatedCollector
from gpucost.demo.gpu_pages import GpuPages
from gpucost.demo.incident import Incident
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.requests import HEADER, request_counters

COLLECTOR_JOB, GPU_JOB, SERVICE_JOB = "gpucost-queue-collector", "gpucost-gpu-exporter", "gpucost"
SERVERS_JOB = "servers"
"""All model servers, as one target whose labels ``namespace`` and ``pod`` are kept: a PodMonitor would have
one for each pod and give them these labels."""
_PORTS = {COLLECTOR_JOB: 9837, GPU_JOB: 9836, SERVICE_JOB: 8080}


@dataclass(frozen=True, slots=True)
class Target:
    """What is scraped: ``instance`` is the node's name and port, or the program's."""

    job: str
    instance: str

    def labels(self, cluster: str) -> Mapping[str, str]:
        """As a scrape configuration with a target label ``cluster`` gives them."""
        return {"cluster": cluster, "job": self.job, "instance": self.instance}


COLLECTOR = Target(COLLECTOR_JOB, f"{COLLECTOR_JOB}:{_PORTS[COLLECTOR_JOB]}")
SERVERS = Target(SERVERS_JOB, f"{SERVERS_JOB}:8000")
SERVICE = Target(SERVICE_JOB, f"{SERVICE_JOB}:{_PORTS[SERVICE_JOB]}")


def exporter_of(node: str) -> Target:
    """The GPU exporter of a node."""
    return Target(GPU_JOB, f"{node}:{_PORTS[GPU_JOB]}")


class Exporters:
    """All exporters of a simulated cluster. Ask in order of time: the collector remembers what it saw."""

    def __init__(self, cluster: SimulatedCluster, incident: Incident | None = None) -> None:
        self.cluster, self._incident = cluster, incident
        self._collector = SimulatedCollector(cluster, incident)
        self._gpus = GpuPages(cluster, incident)
        self._counters = tuple(request_counters(cluster.frames, cluster.frames.serving))

    def pages(self, at_ms: int) -> Iterator[tuple[Target, str]]:
        """OpenMetrics text of every target that answers at ``at_ms``."""
        yield COLLECTOR, self._collector.page_at(at_ms)
        for node, page in self._gpus.at(at_ms).items():
            yield exporter_of(node), page
        lines = (each.line(at_ms) for each in self._counters if each.start_ms <= at_ms < each.end_ms)
        yield SERVERS, "".join([HEADER, *lines, EOF])

    def incident_pages(self, collected: str, at_ms: int) -> Iterator[tuple[Target, str]]:
        """Of the incident's job alone, as scrapes at ``at_ms`` would have shown it. ``collected`` is a later
        page of the collector: what that says of the job does not change while it runs."""
        if self._incident is None:
            return
        name, uid = self._incident.pod[1:]
        yield COLLECTOR, _only(collected, name.rpartition("-")[0])
        yield exporter_of(self._incident.node.name), _only(self._gpus.of_incident(self._incident, at_ms), uid)


def _only(page: str, part: str) -> str:
    """The page with the series alone that have ``part`` in a label."""
    lines = (line for line in page.splitlines() if line.startswith("#") or part in line)
    return "".join(f"{line}\n" for line in lines)
