"""Which tests run in one worker, and which begin first.

All tests of a file run in one worker, so that what its fixtures make is made once; files that share something
dear are one unit. (The marks of pytest-xdist 3.8 for that have no effect under pytest 9.2.) What takes long
begins first: else one worker would wait for the other at the end.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER: tuple[tuple[str, str], ...] = (
    ("tests/exporters/queue/test_day", "the scripted day"),
    ("tests/exporters/gpu/test_cli.py", "a live GPU exporter"),
    ("tests/exporters/gpu/test_lifetime.py", "a live GPU exporter"),
    ("tests/exporters/gpu/test_live.py", "a live GPU exporter"),
    ("tests/exporters/gpu/test_hour.py", "an hour of the GPU exporter"),
    ("tests/exporters/gpu/test_docs_promql.py", "an hour of the GPU exporter"),
    ("tests/exporters/gpu/test_peer.py", "an hour of the GPU exporter"),
    ("tests/cli/test_state", "the state command"),
    ("tests/cli/test_digest.py", "the day with findings"),
    ("tests/cli/test_findings.py", "the day with findings"),
    ("tests/cli/test_remote.py", "the day with findings"),
    ("tests/cli/test_waste.py", "the day with findings"),
    ("tests/replay/test_philly", "the Philly trace"),
    ("tests/simulator", "the simulated month"),
    ("tests/service/test_plants_found.py", "the simulated month"),
    ("tests/service/test_same_bytes.py", "the simulated month"),
    ("tests/demo/test_demo_prometheus.py", "the demo's Prometheus"),
    ("tests/alerts/test_alerts_on_demo.py", "the demo's Prometheus"),
    ("tests/dashboards/test_dashboard_queries.py", "the demo's Prometheus"),
)
"""Beginnings of files -> what they share."""
FIRST = (
    # Slow ones, in a run of their own.
    "tests/demo/test_full.py",
    "tests/telemetry/existing_month",
    "tests/replay/test_philly",
    "tests/operations_kills",
    "tests/cli/test_demo.py",
    "tests/telemetry/test_history_roundtrip.py",
    "tests/helm/test_first_report.py",
    "tests/telemetry/doctor_setups/test_verdicts.py",
    "tests/exporters/gpu/test_docs_promql.py",
    "tests/replay",
    "tests/cli/test_crash.py",
    # Of the others.
    "tests/telemetry/test_prometheus_source.py",
    "tests/ledger/test_ledger_faults.py",
    "tests/attribution/test_properties.py",
    "tests/telemetry/doctor_setups",
    "tests/simulator",
    "tests/demo",
    "tests/alerts/test_alerts_on_demo.py",
    "tests/dashboards/test_dashboard_queries.py",
    "tests/exporters/queue",
    "tests/service",
    "tests/cli",
    "tests/api",
)
"""Beginnings of files, those that take longest first."""


class ByFile(LoadScopeScheduling):
    """Units of work are files, or several of them; in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])


def unit_of(file: str) -> str:
    """What a file is run together with; the file itself where that is nothing."""
    return next((unit for beginning, unit in TOGETHER if file.startswith(beginning)), file)


def in_order(items: list[pytest.Item]) -> None:
    """Sort what was collected: what takes long first, else as it was."""

    def rank(item: pytest.Item) -> int:
        ranks = (n for n, beginning in enumerate(FIRST) if item.nodeid.startswith(beginning))
        return next(ranks, len(FIRST))

    items.sort(key=rank)
