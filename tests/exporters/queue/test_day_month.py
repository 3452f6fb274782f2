"""The scripted day out of a real Prometheus, through the pipeline of the main job: the script's month."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest

from gpucost import __version__
from gpucost.attribution.teams import TeamRules
from gpucost.contract.metrics import NODE_METRICS, POD_METRICS, STATE_UP
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.exporters.queue.day import day
from tests.exporters.queue.day_facts import GPU, SHARED, SLICE
from tests.exporters.queue.day_truth import DAY_MS as START_MS
from tests.exporters.queue.day_truth import END_MS, at
from tests.exporters.queue.played import SCRAPE_MS, Played, Scrape, the_day
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [pytest.mark.slow, pytest.mark.prometheus, needs_prometheus]

TRUTH = day().truth
DAY = Window(START_MS + HOUR_MS, END_MS)
"""Without its first hour: what was before the first scrape is not known."""
SHARES = {GPU: Fraction(1), SHARED: Fraction(1, 4), SLICE: Fraction(3, 7)}
PRICES = """
version: 1
currency: USD
prices:
  - {model: H100, per_hour: 3.60, source: the script, retrieved: 2026-10-01}
  - {model: A100-80GB, per_hour: 2.52, source: the script, retrieved: 2026-10-01}
  - {model: L4, per_hour: 0.72, source: the script, retrieved: 2026-10-01}
"""
NANO_PER_MS = {GPU: 1_000, SLICE: 700, SHARED: 200}
TEAMS = """
version: 1
rules:
  - {team_from: namespace, namespace: "*"}
"""
BEFORE_OUTAGE_MS = at("12:59:30")
"""The last scrape of the first collector."""
_SAMPLE = re.compile(r"^(?P<series>(?P<name>\w+)(?:\{.*\})?) (?P<value>\S+)$", re.MULTILINE)
_READ = frozenset(spec.name for spec in (STATE_UP, *POD_METRICS, *NODE_METRICS))


@pytest.fixture(scope="module")
def played() -> Played:
    return the_day()


@pytest.fixture(scope="module")
def lines(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    """The usage of the month by bucket, resource and pod."""
    folder = tmp_path_factory.mktemp("month")
    create_blocks(_openmetrics(played.scrapes), folder / "data")
    with running_prometheus(folder / "data") as url:
        yield _month(url, folder)


def _openmetrics(scrapes: Iterable[Scrape]) -> Iterator[str]:
    """The scraped samples with their times, series by series, as promtool wants them."""
    series: dict[str, list[str]] = {}
    for scrape in scrapes:
        for found in _SAMPLE.finditer(scrape.text):
            if found["name"] in _READ:
                series.setdefault(found["series"], []).append(f"{found['value']} {scrape.at_ms / 1000}")
    for name in sorted(series, key=lambda name: name.partition("{")[0]):
        yield from (f"{name} {sample}\n" for sample in series[name])
    yield "# EOF\n"


def _month(url: str, folder: Path) -> pd.DataFrame:
    def now() -> int:
        return END_MS + DAY_MS

    source = PrometheusSource(
        PrometheusClient(url), PrometheusSourceSettings(max_gap_ms=3 * MINUTE_MS), now=now
    )
    rules = AttributionRules(
        PriceBook.parse(PRICES, "prices").rates,
        TeamRules.parse(TEAMS, "teams"),
        ResourceCatalog(),
        ShareBasis.COMPUTE,
    )
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=now) as ledger:
        pipeline = Pipeline(source, ledger, rules, HOUR_MS, DAY_MS, 0, now, __version__)
        outcome = pipeline.ingest("default", pipeline.pending("default", DAY))
        assert not outcome.failures
        assert outcome.ingested == 23
        month = Month.of(DAY.start_ms).window
        return ledger.aggregate(EVERYTHING, month, ["bucket", "resource", "namespace", "pod_uid"])


def _held_ms(uid: str) -> int:
    """What the script says of one pod, in the day; of one whose end could not be observed, until then."""
    pod = TRUTH.pod_by_uid[uid]
    end_ms = END_MS if pod.end_ms is None else pod.end_ms
    if pod.in_outage:
        end_ms = BEFORE_OUTAGE_MS
    elif pod.unseen is not None:
        end_ms = pod.unseen[0]
    return max(0, end_ms - max(pod.start_ms, DAY.start_ms)) * pod.units


def test_every_pod_to_the_millisecond(lines: pd.DataFrame) -> None:
    held = lines[lines["bucket"] == "held"]
    found = dict(zip(held["pod_uid"], held["board_ms"], strict=True))
    expected = {uid: _held_ms(uid) * SHARES[pod.resource] for uid, pod in TRUTH.pod_by_uid.items()}
    assert set(found) == {uid for uid, ms in expected.items() if ms}
    for uid, ms in found.items():
        # Parts of a GPU are dealt out in whole milliseconds of it.
        is_whole = TRUTH.pod_by_uid[uid].resource == GPU
        assert ms == expected[uid] if is_whole else abs(ms - expected[uid]) <= 1, uid


def test_the_totals_of_the_month(lines: pd.DataFrame) -> None:
    held = lines[lines["bucket"] == "held"]
    for resource, share in SHARES.items():
        of_resource = held[held["resource"] == resource]
        expected_ms = sum(_held_ms(pod.uid) * share for pod in TRUTH.pods if pod.resource == resource)
        assert abs(int(of_resource["board_ms"].sum()) - expected_ms) < 1
        assert abs(int(of_resource["nano"].sum()) - expected_ms * NANO_PER_MS[resource]) < 1


def test_all_of_it_adds_up_to_what_there_was(lines: pd.DataFrame) -> None:
    """Four H100 nodes, one of them until 21:00, and two others, of eight GPUs each."""
    there_ms = 5 * 8 * DAY.length_ms + 8 * (at("21:00:00") - DAY.start_ms)
    capacity = lines[lines["bucket"] != "overcommitted"]
    assert int(capacity["board_ms"].sum()) == there_ms
    assert set(capacity["bucket"]) == {"held", "unallocated", "unavailable", "unknown"}


def test_a_broken_device_plugin_makes_capacity_unavailable(lines: pd.DataFrame) -> None:
    """From the first scrape that shows it to the first that shows it mended: sixteen slices of 3/7."""
    unavailable = lines[lines["bucket"] == "unavailable"]
    assert set(unavailable["resource"]) == {SLICE}
    lost_ms = 16 * SHARES[SLICE] * (at("12:30:00") - at("10:30:00"))
    assert abs(int(unavailable["board_ms"].sum()) - lost_ms) <= 8 * SCRAPE_MS
