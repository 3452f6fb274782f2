"""A real Prometheus with three hours of the demo at fixed times: its collector, GPU exporters and service.

Ask it as of ``AT_MS``. Everything is made by the demo's own pages (gpucost.demo), once for a whole run of
tests: the first process that needs it builds it, the others wait and copy.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from tests.support.prometheus import MISSING, PROMETHEUS, PROMTOOL, create_blocks, running_prometheus

if TYPE_CHECKING:
    from gpucost.api.webhook.deadline_queue import ReviewOutcome
    from gpucost.cluster.objects.state import ClusterState
    from gpucost.cluster.views.overview import ClusterOverview
    from gpucost.demo.full import DemoHistoryLedger
    from gpucost.domain.gpu import ResourceCatalog
    from gpucost.service.advisor.advisor_service import AdvisorService
    from gpucost.simulator.cluster import SimulatedCluster

AT_MS = 1_790_838_000_000
"""The instant to ask for: 2026-10-01T07:00:00Z, a Thursday. The ledger begins in the month before."""
START_MS = AT_MS - 3 * HOUR_MS
STEP_MS = MINUTE_MS
_COARSE_MS, _FINE_MS = 5 * MINUTE_MS, 30 * MINUTE_MS
"""All but the last half hour is there every five minutes, which is as long as Prometheus looks back; the rest
every minute: it is what most ask for."""
CLUSTER = "demo"
_LEDGER_MS = 9 * HOUR_MS
BUILT = "DEMO_BLOCKS"
"""Environment variable: a folder that ``python -m tests.support.demo_prometheus FOLDER`` has built, for who
runs these tests again and again. Not GPUCOST_…: gpucost refuses settings that it does not know."""


@dataclass(frozen=True)
class DemoPrometheus:
    """Where it answers, and the instants it holds."""

    url: str
    at_ms: int = AT_MS
    start_ms: int = START_MS


@contextmanager
def demo_prometheus(
    tmp_path_factory: pytest.TempPathFactory,
    *flags: str,
    rule_files: Sequence[Path] = (),
    passes: int = 1,
) -> Iterator[DemoPrometheus]:
    """Start one of the caller's own, with its ``flags``; stop it at the end.

    What the recording rules in ``rule_files`` would have given by then is there too (alerts are left out:
    promtool evaluates recording rules only). Rules on what other rules record need as many ``passes`` as they
    are deep.
    """
    if PROMETHEUS is None or PROMTOOL is None:
        pytest.skip(MISSING)
    data = tmp_path_factory.mktemp("demo-prometheus") / "data"
    shutil.copytree(_blocks(tmp_path_factory), data)
    for _ in range(passes if rule_files else 0):
        with running_prometheus(data) as url:
            _record(url, data, rule_files)
    with running_prometheus(data, *flags) as url:
        yield DemoPrometheus(url)


def _record(url: str, data: Path, rule_files: Sequence[Path]) -> None:
    arguments = [
        *(PROMTOOL or "promtool", "tsdb", "create-blocks-from", "rules", f"--url={url}"),
        *(f"--start={START_MS // 1000}", f"--end={AT_MS // 1000}"),
        *(f"--eval-interval={_COARSE_MS // 1000}s", f"--output-dir={data}"),
        *map(str, rule_files),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"promtool refused the rules: {done.stderr or done.stdout}")


def _blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of blocks, which all workers of a run share; made by the first that comes."""
    known = os.environ.get(BUILT)
    if known:
        return Path(known) / "data"
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder = shared / "demo-blocks"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            shutil.rmtree(folder / "data", ignore_errors=True)
            _build(folder)
            done.touch()
    return folder / "data"


def _build(folder: Path) -> None:
    # Here, since the simulator takes a second to import and most tests do not need it.
    from gpucost.demo.exporters import SERVICE_JOB, ScrapeTarget, SimulatedExporters
    from gpucost.demo.full import cluster_around
    from gpucost.demo.stack import MetricBackfill

    cluster = cluster_around(AT_MS)
    exporters, backfill = SimulatedExporters(cluster), MetricBackfill()
    service = _service_page(cluster, folder)
    of_service = ScrapeTarget(SERVICE_JOB, f"{SERVICE_JOB}:8080").labels(CLUSTER)
    for at_ms in (
        *range(START_MS, AT_MS - _FINE_MS, _COARSE_MS),
        *range(AT_MS - _FINE_MS, AT_MS + 1, STEP_MS),
    ):
        for target, page in exporters.pages(at_ms):
            backfill.add(page, target.labels(CLUSTER), at_ms)
        backfill.add(_earlier(service, AT_MS - at_ms), of_service, at_ms)
    create_blocks(backfill.text(), folder / "data")


def _service_page(cluster: SimulatedCluster, folder: Path) -> str:
    """What the service says at AT_MS of a ledger with the demo's last hours, of what its advisor was asked,
    and of what it posted."""
    from prometheus_client.openmetrics.exposition import generate_latest

    from gpucost.api.app import create_app
    from gpucost.demo.full import past_of
    from gpucost.notify.sending.delivery import SenderStatus
    from gpucost.service.notifications.loop import NotificationStatus
    from gpucost.service.settings.api import ApiSettings
    from gpucost.service.settings.detectors import DetectorsSettings

    window = Window(AT_MS - _LEDGER_MS, AT_MS)
    url = f"sqlite:///{folder / 'ledger.db'}"
    (folder / "ledger.db").unlink(missing_ok=True)
    posts = SenderStatus({("chat", "finding", "sent"): 3}, {"chat": AT_MS - MINUTE_MS}, 0)
    with past_of(cluster, folder, url, window, DetectorsSettings()) as past:
        app = create_app(
            past.ledger,
            ApiSettings(auth="off"),
            now=lambda: AT_MS,
            status=past.status,
            detectors=past.detectors,
            quotas=past.teams.quotas,
            budgets=past.teams.budgets,
            advising=_asked(cluster, past),
            telling=NotificationStatus(("chat",), lambda: posts),
        )
        page = generate_latest(app.state.registry).decode()
    return page.replace("# EOF\n", f"{_forecasts(folder)}# EOF\n")


_MADE_BY = {"source": "test", "code_version": "test"}


def _forecasts(folder: Path) -> str:
    """What the service says of the ends of a month and of budgets. That takes weeks of a ledger: one of
    days, in each of which a team of the demo holds eight GPUs."""
    from prometheus_client.openmetrics.exposition import generate_latest

    from benchmarks.report import PRICE, lines_of
    from gpucost.api.app import create_app
    from gpucost.domain.money import NANO
    from gpucost.ledger.ledger import Ledger
    from gpucost.service.settings.api import ApiSettings

    midnight_ms = AT_MS // DAY_MS * DAY_MS
    days = Window(midnight_ms - 60 * DAY_MS, midnight_ms + 2 * DAY_MS)
    (folder / "days.db").unlink(missing_ok=True)
    with Ledger.open(f"sqlite:///{folder / 'days.db'}", now=lambda: days.end_ms) as ledger:
        for n, day in enumerate(days.split(DAY_MS)):
            lines = lines_of(day, 8, n, 1).assign(team="vision")
            rates = {PRICE.rate_id: PRICE}
            ledger.ingest("c", day, lines, observed_ms=DAY_MS, settle=True, rates=rates, **_MADE_BY)
        budgets = {"vision": 10_000 * NANO}
        app = create_app(ledger, ApiSettings(auth="off"), now=lambda: days.end_ms, budgets=budgets)
        page = generate_latest(app.state.registry).decode()
    names = ("gpucost_team_month_end", "gpucost_budget_expected_ratio")
    return "".join(f"{line}\n" for line in page.splitlines() if any(name in line for name in names))


@dataclass(frozen=True)
class _Still:
    """A watched cluster that stands as it does at AT_MS."""

    state: ClusterState
    catalog: ResourceCatalog
    cluster: str = CLUSTER
    version: int = 0
    is_current: bool = True

    def overview(self, cluster: str) -> ClusterOverview | None:
        from gpucost.cluster.views.overview import ClusterOverview

        return ClusterOverview(self.state, self.catalog) if cluster == self.cluster else None


def _asked(cluster: SimulatedCluster, past: DemoHistoryLedger) -> AdvisorService:
    """The advisor, after a person has asked why a job waits, and the webhook for a new one."""
    from gpucost.api.webhook.adviser import AdmissionAdviser
    from gpucost.cluster.objects.kueue import WorkloadState
    from gpucost.service.settings.model import AttributionSettings, Settings
    from gpucost.service.wiring.advisor import build_advising
    from gpucost.simulator.state import cluster_state

    state = cluster_state(cluster, AT_MS)
    settings = Settings()
    watched = _Still(state, AttributionSettings().catalog())
    advising = build_advising(settings.advisor, watched, past.book, past.teams, past.ledger)
    advising.settings = replace(advising.settings, samples=2)  # enough to have been asked
    advising.refresh()
    waiting = min(each.meta.name for each in state.workloads.values() if each.state is WorkloadState.PENDING)
    for each in state.workloads.values():
        if each.meta.name == waiting:
            advising.explain("Workload", each.meta.namespace, waiting, advising.informed())

    def tell(outcome: ReviewOutcome, has_more: bool) -> bool:
        del has_more
        advising.status.reviewed(outcome.result)
        return False

    AdmissionAdviser(advising)(_JOB, time.monotonic() + 60, tell)
    return advising


_CONTAINER = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 4}}}
_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "another", "namespace": "vision"},
    "spec": {"template": {"spec": {"containers": [_CONTAINER]}}},
}
# What the service counts as it goes; all else that adds up does so by windows of the ledger.
_COUNTED = ("gpucost_advisor_", "gpucost_notify_", "gpucost_webhook_")
_ADDS_UP = ("_total", "_cost_usd", "_sum", "_count", "_bucket")


def _earlier(page: str, back_ms: int) -> str:
    """The page as it would have been: instants lie back as far, and what adds up was less."""
    lines = []
    for line in page.splitlines():
        labelled, _, value = line.rpartition(" ")
        name = labelled.partition("{")[0]
        if not line.startswith("#"):
            if name.endswith("_timestamp_seconds"):
                value = repr(float(value) - back_ms / 1000)
            elif name.endswith(_ADDS_UP):
                less_ms = back_ms if name.startswith(_COUNTED) else back_ms // HOUR_MS * HOUR_MS
                value = repr(float(value) * (1 - less_ms / _LEDGER_MS))
        lines.append(f"{labelled} {value}")
    return "\n".join(lines)


def as_time(at_ms: int) -> str:
    """RFC 3339, for the HTTP API."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def instant_query(url: str, query: str, at_ms: int = AT_MS) -> list[Mapping[str, object]]:
    """The result of an instant query. Raises AssertionError with Prometheus' words where it refuses it."""
    import json
    from urllib.error import HTTPError
    from urllib.parse import urlencode
    from urllib.request import urlopen

    address = f"{url}/api/v1/query?{urlencode({'query': query, 'time': at_ms / 1000})}"
    try:
        with urlopen(address, timeout=30) as answer:
            found = json.load(answer)
    except HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    result = found["data"]["result"]
    assert isinstance(result, list)
    return result


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    _build(place)
