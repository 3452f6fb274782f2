"""What the queue collector says of things that newer releases of Kubernetes and its schedulers brought."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.contract.metrics import POD_CLAIM_SHARE
from gpucost.contract.probe import OWN_STATE, SharingSeries
from gpucost.contract.queue_metrics import COLLECTION_OBJECTS
from gpucost.telemetry.doctor.probe_reader import ProbeReader, grouped
from gpucost.telemetry.prometheus.promql import PromQL, by
from gpucost.telemetry.prometheus.query_response import ResultSeries, whole_count


def read_sharing(
    asker: ProbeReader, counts: Mapping[str, Mapping[str, int]], at_ms: int
) -> dict[str, SharingSeries] | None:
    """By cluster with a collector. None where it cannot be read."""
    if not any(series.get(OWN_STATE) for series in counts.values()):
        return {}
    label = asker.settings.cluster_label
    objects = _numbers(
        asker, by("max", (label, "collection"), asker.given(COLLECTION_OBJECTS.name)), "collection", at_ms
    )
    parts = _numbers(
        asker, by("count", (label, "method"), asker.given(POD_CLAIM_SHARE.name)), "method", at_ms
    )
    if objects is None or parts is None:
        return None
    return {
        cluster: SharingSeries(objects.get(cluster, {}), parts.get(cluster, {}))
        for cluster, series in counts.items()
        if series.get(OWN_STATE)
    }


def _numbers(
    asker: ProbeReader, expression: PromQL, label: str, at_ms: int
) -> dict[str, dict[str, int]] | None:
    found = asker.vector("what the collector knows of claims and workloads", expression, at_ms)
    if found is None:
        return None
    return {cluster: _by(label, rows) for cluster, rows in grouped(asker, found).items()}


def _by(label: str, rows: list[ResultSeries]) -> dict[str, int]:
    return {row["metric"].get(label, ""): whole_count(float(row["value"][1])) for row in rows}
