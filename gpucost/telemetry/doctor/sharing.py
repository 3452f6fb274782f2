"""What the queue collector says of things that newer releases of Kubernetes and its schedulers brought."""

from __future__ import annotations

from collections import Counter

from gpucost.contract.metrics import NODE_UNAVAILABLE, POD_CLAIM_SHARE
from gpucost.contract.probe import SharingSeries
from gpucost.contract.queue_metrics import (
    COLLECTION_OBJECTS,
    LOCAL_QUEUE_FAIR_WEIGHT,
    POD_GPU_UNHEALTHY,
    SCHEDULER_INFO,
    WORKLOAD_DISPATCHED,
    WORKLOAD_ORIGIN,
)
from gpucost.domain.time import Window
from gpucost.telemetry.doctor.probe_reader import ProbeReader
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, column, numbers
from gpucost.telemetry.prometheus.promql import PromQL, by
from gpucost.telemetry.prometheus.query_response import whole_count


def read_sharing(asker: ProbeReader, cluster: str, window: Window) -> SharingSeries | None:
    """As of the end of ``window``, of the collector that is believed. None where it cannot be read."""

    def ask() -> SharingSeries:
        reader = asker.reader(cluster, window)
        objects = by("max", ("collection",), reader.select(COLLECTION_OBJECTS.name))
        parts = by("count", ("method",), reader.select(POD_CLAIM_SHARE.name))
        of_manager = by("max", ("stage", "workload_uid"), reader.select(WORKLOAD_DISPATCHED.name))
        arrived = by("max", ("workload_uid",), reader.select(WORKLOAD_ORIGIN.name))
        by_usage = by("max", ("namespace", "queue"), reader.select(LOCAL_QUEUE_FAIR_WEIGHT.name))
        unhealthy = by("max", ("pod_uid",), reader.select(POD_GPU_UNHEALTHY.name))
        closed = by("count", ("cause",), reader.select(NODE_UNAVAILABLE.name))
        return SharingSeries(
            _numbers(reader, objects, "collection", window),
            _numbers(reader, parts, "method", window),
            Counter(column(reader.vector(of_manager, window.end_ms), "stage")),
            len(reader.vector(arrived, window.end_ms)),
            len(reader.vector(by_usage, window.end_ms)),
            _numbers(reader, closed, "cause", window),
            len(reader.vector(unhealthy, window.end_ms)),
        )

    return asker.tried("what the collector knows of claims and workloads", ask)


def _numbers(reader: ClusterReader, expression: PromQL, label: str, window: Window) -> dict[str, int]:
    found = reader.vector(expression, window.end_ms)
    return dict(zip(column(found, label), map(whole_count, numbers(found)), strict=True))


def read_schedulers(asker: ProbeReader, cluster: str, window: Window) -> dict[str, str]:
    """Versions of Kueue and Volcano as of the end of ``window``, empty where their metrics do not say it."""

    def ask() -> dict[str, str]:
        reader = asker.reader(cluster, window)
        named = by("max", ("scheduler", "version"), reader.select(SCHEDULER_INFO.name))
        found = reader.vector(named, window.end_ms)
        return dict(sorted(zip(column(found, "scheduler"), column(found, "version"), strict=True)))

    return asker.tried("which schedulers run", ask) or {}
