"""Samples of the metric contract -> OpenMetrics text with timestamps, as promtool reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpucost.contract.metric_spec import EOF, MetricSpec, header, series_name
from gpucost.contract.metrics import METRICS
from gpucost.domain.errors import InputError


@dataclass(frozen=True, slots=True)
class ExpositionSample:
    """One sample. ``labels`` are the metric's own; ``at_ms`` is its time, None for "now"."""

    spec: MetricSpec
    labels: Mapping[str, str]
    value: float
    at_ms: int | None


def metric(name: str) -> MetricSpec:
    """The metric called ``name``. Raises InputError when the contract has none."""
    for spec in METRICS:
        if spec.name == name:
            return spec
    raise InputError("metric", name, ", ".join(spec.name for spec in METRICS))


def sample_line(series: str, value: float, at_ms: int | None = None) -> str:
    """One line; the time is in seconds, with a fraction only where it has one."""
    if at_ms is None:
        return f"{series} {value!r}\n"
    seconds, millis = divmod(at_ms, 1000)
    return f"{series} {value!r} {seconds}.{millis:03d}\n" if millis else f"{series} {value!r} {seconds}\n"


def openmetrics(
    samples: Iterable[ExpositionSample], target_labels: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Text of ``samples``, one metric after the other in order of first appearance, with the closing EOF."""
    by_metric: dict[str, list[ExpositionSample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.spec.name, []).append(sample)
    for group in by_metric.values():
        yield header(group[0].spec)
        for sample in group:
            yield sample_line(
                series_name(sample.spec, sample.labels, target_labels), sample.value, sample.at_ms
            )
    yield EOF
