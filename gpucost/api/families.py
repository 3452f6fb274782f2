"""Families of metrics for a scrape, from what service/metrics.py declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpucost.service import metrics as m
from gpucost.service.metrics import ServiceMetric

Sample = tuple[Sequence[str], float]
"""The values of the labels, in their order, and the value."""


def family(metric: ServiceMetric, samples: Iterable[Sample]) -> Metric:
    if metric.type == m.COUNTER:
        found: CounterMetricFamily | GaugeMetricFamily = CounterMetricFamily(
            metric.name, metric.help, labels=metric.labels
        )
    else:
        found = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        found.add_metric(labels, value)
    return found


def money(metric: ServiceMetric, samples: Sequence[Sample], currency: str | None) -> Metric:
    """A name says its unit: ``_usd`` is for dollars only, another currency is a label."""
    if currency in (None, "USD"):
        return family(metric, samples)
    other = ServiceMetric(
        metric.name.removesuffix("_usd"), metric.type, (*metric.labels, "currency"), metric.help
    )
    return family(other, [((*labels, str(currency)), value) for labels, value in samples])
