"""The same samples as another program's exposition, held by prometheus_client's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


def registry_of(text: str) -> tuple[CollectorRegistry, int]:
    """A registry of Gauges and Counters with the samples of ``text`` (the classic format), and their number.

    Without the ``_created`` samples that prometheus_client would add: those would be more samples.
    """
    disable_created_metrics()
    registry = CollectorRegistry()
    count = 0
    for family in text_string_to_metric_families(text):
        _add(registry, family)
        count += len(family.samples)
    return registry, count


def _add(registry: CollectorRegistry, family: Metric) -> None:
    if not family.samples:
        return
    labels = tuple(family.samples[0].labels)
    if family.type == "counter":
        counter = Counter(family.name, family.documentation, labels, registry=registry)
        for sample in family.samples:
            (counter.labels(**sample.labels) if labels else counter).inc(sample.value)
        return
    gauge = Gauge(family.name, family.documentation, labels, registry=registry)
    for sample in family.samples:
        (gauge.labels(**sample.labels) if labels else gauge).set(sample.value)
