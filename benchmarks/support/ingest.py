"""The program that is measured, and killed: every window of a span from Prometheus into a SQLite ledger.

    python -m benchmarks.support.ingest URL LEDGER START_MS END_MS WINDOW_MS BATCH_MS [QUERIES]

It looks for garbage as seldom as ``gpucost ingest`` and ``gpucost serve`` do. Prints one line per window that
was written, then one JSON object with what it took. With QUERIES, every request is written there, one JSON
array (path, form) per line. BATCH_MS is how much is read at once.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.support.philly import CLUSTER
from gpucost import __version__
from gpucost.attribution.teams import TeamRules
from gpucost.cli import collect_seldom
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource

PRICES = """
version: 1
currency: USD
prices:
  - {model: V100-16GB, per_hour: 3.06, source: a stand-in for the replay, retrieved: 2026-11-21}
"""
TEAMS = """
version: 1
rules:
  - {team_from: queue, queue: "*"}
"""


class RecordingClient(PrometheusClient):
    """A client that remembers what it asked, so that the bare queries can be sent again."""

    asked: list[tuple[str, Mapping[str, Any]]]

    def _send(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        if form is not None:  # else it asks for the targets, which is no query
            self.asked.append((path, dict(form)))
        return super()._send(path, form)


def main(
    url: str, ledger_file: str, span: Window, window_ms: int, batch_ms: int, queries: str | None
) -> None:
    collect_seldom()
    began_s = time.monotonic()
    began_cpu_s = time.process_time()
    client = RecordingClient(url)
    client.asked = []
    now = lambda: span.end_ms + DAY_MS  # noqa: E731  a clock that stands still: the trace is of 2017
    source = PrometheusSource(client, PrometheusSourceSettings(), now=now)
    book = PriceBook.parse(PRICES, "prices of the replay")
    rules = AttributionRules(
        book.rates, TeamRules.parse(TEAMS, "teams of the replay"), ResourceCatalog(), ShareBasis.COMPUTE
    )
    with Ledger.open(f"sqlite:///{ledger_file}", now=now) as ledger:
        pipeline = Pipeline(source, ledger, rules, window_ms, batch_ms, 0, now, __version__)
        windows = pipeline.pending(CLUSTER, span)
        outcome = pipeline.ingest(CLUSTER, windows, on_window=lambda _, window: print(window, flush=True))
    took_s = time.monotonic() - began_s
    if queries:
        with Path(queries).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(request) + "\n" for request in client.asked)
    stats = source.stats
    figures = {
        "windows": outcome.ingested,
        "failures": [str(failure) for failure in outcome.failures],
        "wall_s": took_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "waited_s": stats.query_seconds,
        "queries": stats.queries,
        "series": stats.series,
        "bytes": stats.bytes,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    address, file_name, start, end, length, batch, *rest = sys.argv[1:]
    main(address, file_name, Window(int(start), int(end)), int(length), int(batch), rest[0] if rest else None)
