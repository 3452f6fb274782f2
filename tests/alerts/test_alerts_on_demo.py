"""Every rule on the demo's Prometheus: no error, recorded series have data, and the right alerts fire."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from alerts import build
from alerts.rules import ALERTS, GROUPS
from alerts.rules.model import AlertRule, RecordingRule
from tests.support.demo_prometheus import DemoPrometheus, demo_prometheus
from tests.support.prometheus import needs_prometheus

RULES = Path(build.__file__).parent / build.RULES
pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoPrometheus]:
    with demo_prometheus(tmp_path_factory, rule_files=[RULES], passes=4) as found:
        yield found


def ask(demo: DemoPrometheus, query: str) -> list[dict[str, dict[str, str]]]:
    """Raises HTTPError for a query that Prometheus cannot evaluate."""
    arguments = urllib.parse.urlencode({"query": query, "time": demo.at_ms / 1000})
    with urllib.request.urlopen(f"{demo.url}/api/v1/query?{arguments}", timeout=30) as answer:
        found: list[dict[str, dict[str, str]]] = json.load(answer)["data"]["result"]
    return found


RECORDINGS = [rule for group in GROUPS for rule in group.rules if isinstance(rule, RecordingRule)]


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: rule.record)
def test_every_recording_rule_has_data(demo: DemoPrometheus, rule: RecordingRule) -> None:
    assert ask(demo, rule.record)


def holds(demo: DemoPrometheus, alert: AlertRule) -> bool:
    return bool(ask(demo, alert.expr))


EXPECTED = {
    "GpuCostWatchdog": "always",
    "GpuCostIdleAllocation": "the demo's idle notebooks and jobs",
    "GpuCostGangStall": "a gang that lacks members",
    "GpuCostFragmentation": "a job that finds no place for all of its pods",
    "GpuCostQuotaStarvation": "a queue that may not borrow what lies idle",
    "GpuCostMonopoly": "a tenant with most of the GPUs while others wait",
    "GpuCostCpuOnlyPods": "pods without GPUs on GPU nodes",
    "GpuCostOversizedRequest": "team speech uses little of what it holds",
    "GpuCostTopologySpread": "a job with pods far from each other",
    "GpuCostQueuePendingLong": "work that has waited for more than half a day",
    "GpuCostGpuExporterMissing": "a node of the demo (a100-03) has no exporter",
    "GpuCostUseCoverageLow": "81 % of held GPU time is measured",
}
"""Alerts whose condition holds on the demo, and why."""


def test_the_right_alerts_hold(demo: DemoPrometheus) -> None:
    found = sorted(name for name, alert in ALERTS.items() if holds(demo, alert))
    assert found == sorted(EXPECTED), " ".join(found)
