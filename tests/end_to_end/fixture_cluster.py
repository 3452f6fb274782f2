"""A scripted cluster, played to the real collector, scraped into a real Prometheus, billed and reported.

A ``ClusterScript`` says which objects an API server has from when on. ``billed`` plays it: the queue
collector watches them, its page is scraped every minute, a real Prometheus serves the samples, and the
pipeline writes what it reads of them to a ledger, hour by hour, of which the month's report is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import TeamLookup
from gpucost.domain.errors import DataProblem
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import WatchClocks
from gpucost.kube.watch.reflector import ReflectorSettings
from gpucost.ledger.ledger import Ledger
from gpucost.reports.month.model import MonthReport
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.service.reporting.report_service import ReportService
from gpucost.telemetry.interval_source import IntervalSource
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost_exporter_base.endpoint import EndpointRequest
from gpucost_queue_collector.collector import QueueCollector
from tests.support.cluster.server import ClusterServer
from tests.support.frames import FlatRates, NamespaceTeams
from tests.support.prometheus import create_blocks, running_prometheus

START_MS = Month(2026, 11).window.start_ms + 10 * HOUR_MS
"""When scripts begin: hours and minutes of them are counted from here."""
CLUSTER = "default"
USD_PER_HOUR = Fraction(5, 2)
_SETTINGS = ReflectorSettings(page_size=50, inactivity_s=3.0, short_watch_s=0.0, absent_s=0.2)
_SCRAPE = EndpointRequest("GET", "/metrics", "", {"accept": "text/plain"}, True)
_LABELS = {"job": "gpucost-queue-collector", "instance": "collector:9402"}

KubeObject = Mapping[str, Any]


def rounded(expected: Mapping[Any, Any], scale: Fraction | int = 1) -> Any:
    """``expected`` hours, times ``scale``, as parts of GPUs make them: a few milliseconds more or less."""
    return pytest.approx(
        {key: float(each * scale) for key, each in expected.items()}, rel=0, abs=float(20 * scale) / HOUR_MS
    )


@dataclass(frozen=True)
class ScriptedExporter:
    """Another exporter that is scraped when the collector is, with ``honor_labels``: its text at a minute
    after START_MS."""

    job: str
    instance: str
    page: Callable[[int], str]


@dataclass
class ClusterScript:
    """Which objects are put, or removed, at which minute after START_MS; over after ``hours``."""

    hours: int
    exporters: list[ScriptedExporter] = field(default_factory=list)
    puts: dict[int, list[KubeObject]] = field(default_factory=dict)
    removals: dict[int, list[KubeObject]] = field(default_factory=dict)
    teams: TeamLookup = field(default_factory=NamespaceTeams)
    around: Callable[[IntervalSource, Path], IntervalSource] = lambda source, _: source
    """What stands between Prometheus and the ledger, which may write to a folder of the bill."""

    def at(self, minute: int, *objects: KubeObject) -> None:
        self.puts.setdefault(minute, []).extend(objects)

    def remove(self, minute: int, *objects: KubeObject) -> None:
        self.removals.setdefault(minute, []).extend(objects)

    @property
    def window(self) -> Window:
        return Window(START_MS, START_MS + self.hours * HOUR_MS)

    def validate(self) -> None:
        """Raises for an object that Kubernetes' own schemas refuse."""
        for objects in self.puts.values():
            for found in objects:
                kubernetes_validate.validate(dict(found), kubernetes_validate.latest_version(), strict=True)


@dataclass(frozen=True)
class BilledCluster:
    """What came of a script. GPU-hours are exact."""

    report: MonthReport
    problems: Sequence[DataProblem]
    lines: Sequence[Mapping[str, Any]]
    history: ClusterFrames
    url: str

    def held(self, *by: str) -> dict[tuple[str, ...], Fraction]:
        """GPU-hours by columns of the lines, of what pods held."""
        return self._sums([row for row in self.lines if row["bucket"] == "held"], by)

    def buckets(self) -> dict[str, Fraction]:
        """GPU-hours by bucket."""
        return {key[0]: hours for key, hours in self._sums(self.lines, ("bucket",)).items()}

    def cost(self, *by: str) -> dict[tuple[str, ...], Fraction]:
        """In USD, of what pods held and has a price."""
        found: dict[tuple[str, ...], Fraction] = {}
        for row in self.lines:
            if row["bucket"] == "held" and row["nano"] is not None:
                key = tuple(str(row[name]) for name in by)
                found[key] = found.get(key, Fraction(0)) + Fraction(int(row["nano"]), 10**9)
        return found

    @staticmethod
    def _sums(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> dict[tuple[str, ...], Fraction]:
        found: dict[tuple[str, ...], Fraction] = {}
        for row in rows:
            key = tuple(str(row[name]) for name in by)
            found[key] = found.get(key, Fraction(0)) + Fraction(int(row["board_ms"]), HOUR_MS)
        return found


def scrapes(script: ClusterScript) -> Iterator[tuple[int, str]]:
    """The collector's page at every minute of the script and some beyond, half past each."""
    now_ms = START_MS - 5 * MINUTE_MS
    with ClusterServer(page_size=50) as server:
        clocks = WatchClocks(lambda: now_ms * 1_000_000, jitter=lambda: 0.03)
        transport = connect_url(server.url)
        collector = QueueCollector(transport, collections(), clocks=clocks, settings=_SETTINGS)
        collector.start()
        try:
            assert collector.watch.wait(60)
            for minute in range(-5, 60 * script.hours + 20):
                now_ms = START_MS + minute * MINUTE_MS
                for found in script.puts.get(minute, ()):
                    server.put(dict(found))
                for found in script.removals.get(minute, ()):
                    server.delete(dict(found))
                if minute in script.puts or minute in script.removals:
                    server.settle()
                now_ms += MINUTE_MS // 2
                collector.refresh()
                yield now_ms, collector.answer(_SCRAPE).body.decode()
        finally:
            collector.close()
            transport.close()


def openmetrics(
    pages: Iterator[tuple[int, str]], exporters: Sequence[ScriptedExporter] = ()
) -> Iterator[str]:
    """Pages as samples with the time and the labels of their scrape."""
    for at_ms, text in pages:
        yield from _samples(text, at_ms, _LABELS)
        for each in exporters:
            target = {"job": each.job, "instance": each.instance}
            yield from _samples(each.page((at_ms - START_MS) // MINUTE_MS), at_ms, target)
    yield "# EOF\n"


def _samples(text: str, at_ms: int, target: Mapping[str, str]) -> Iterator[str]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {**sample.labels, **target}
            written = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if value)
            yield f"{sample.name}{{{written}}} {sample.value!r} {at_ms / 1000:.3f}\n"


@contextmanager
def billed(script: ClusterScript, folder: Path) -> Iterator[BilledCluster]:
    """Play, scrape, read, attribute, write and report."""
    create_blocks(openmetrics(scrapes(script), script.exporters), folder / "blocks")
    now_ms = script.window.end_ms + HOUR_MS

    def now() -> int:
        return now_ms

    with (
        running_prometheus(folder / "blocks") as url,
        PrometheusClient(url) as client,
        Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=now) as ledger,
    ):
        rules = AttributionRules(FlatRates(("2.50", 0)), script.teams, ResourceCatalog(), ShareBasis.COMPUTE)
        source = script.around(PrometheusSource(client, PrometheusSourceSettings(), now=now), folder)
        pipeline = Pipeline(source, ledger, rules, HOUR_MS, 6 * HOUR_MS, 15 * MINUTE_MS, now, "test")
        outcome = pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, script.window))
        assert (outcome.ingested, outcome.failures) == (script.hours, ())
        month = Month.of(START_MS)
        columns = ["namespace", "pod", "node", "resource", "bucket", "job", "user", "team"]
        lines = ledger.aggregate(EVERYTHING, script.window, columns).to_dict("records")
        answer = ReportService(ledger, "test", {}).month(EVERYTHING, month)
        assert answer is not None
        problems = ledger.problems(EVERYTHING, script.window)
        rows = [{str(name): value for name, value in row.items()} for row in lines]
        yield BilledCluster(answer.report, problems, rows, source.history(CLUSTER, script.window), url)
