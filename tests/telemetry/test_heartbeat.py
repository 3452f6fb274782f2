"""Heartbeats as servers answer them."""

from __future__ import annotations

import numpy as np
import pytest

from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.evidence.evidence_rule import evidence_for
from gpucost.telemetry.evidence.heartbeat import duplicates
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.query_response import ResultSeries
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings

DAY = Window(0, 24 * HOUR_MS)


@pytest.mark.parametrize("values", [[], [[60.0, "1"]]])
def test_a_heartbeat_without_points_left_is_none(values: list[list[object]]) -> None:
    """A server may answer with a series that has no points."""
    settings = PrometheusSourceSettings()
    reader = ClusterReader(PrometheusClient("http://127.0.0.1:1"), settings, "c", DAY)
    beats = np.array([60_000], dtype=np.int64)
    evidence = evidence_for(DAY, beats, beats, settings.max_gap_ms, settings.lateness_ms)
    series: list[ResultSeries] = [{"metric": {"instance": "a"}, "values": values}]
    series.append({"metric": {"instance": "b"}, "values": [[7_200.0, "1"]]})
    assert duplicates(reader, series, evidence) == []
