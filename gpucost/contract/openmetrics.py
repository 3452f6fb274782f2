"""Samples of the metric contract -> OpenMetrics text with timestamps, as promtool reads it. Pure.

For few samples use ``openmetrics``. For millions, call ``series_name`` once per series and format lines
with ``sample_line``; put ``header`` before the first line of a metric and ``EOF`` at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpucost.contract.spec import MetricSpec

EOF = "# EOF\n"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. ``labels`` are the metric's own; ``at_ms`` is its time, None for "now"."""

    spec: MetricSpec
    labels: Mapping[str, str]
    value: float
    at_ms: int | None


def header(spec: MetricSpec) -> str:
    """The ``# HELP``, ``# TYPE`` and ``# UNIT`` lines of a metric."""
    lines = [f"# HELP {spec.family} {escape(spec.help)}", f"# TYPE {spec.family} {spec.type.value}"]
    if spec.unit:
        lines.append(f"# UNIT {spec.family} {spec.unit}")
    return "\n".join(lines) + "\n"


def series_name(
    spec: MetricSpec, labels: Mapping[str, str], target_labels: Mapping[str, str] | None = None
) -> str:
    """``name{label="value",…}``, labels checked against the contract and escaped, empty ones left out.

    ``target_labels`` are what a scrape would add (``cluster``, ``instance``, ``replica``); they are not
    checked. Raises InputError for a label that is missing or unknown.
    """
    spec.check_labels(labels)
    pairs = {**(target_labels or {}), **labels}
    inner = ",".join(f'{name}="{escape(value)}"' for name, value in sorted(pairs.items()) if value)
    return f"{spec.name}{{{inner}}}"


def sample_line(series: str, value: float, at_ms: int | None = None) -> str:
    """One line; the time is in seconds, with a fraction only where it has one."""
    if at_ms is None:
        return f"{series} {value!r}\n"
    seconds, millis = divmod(at_ms, 1000)
    return f"{series} {value!r} {seconds}.{millis:03d}\n" if millis else f"{series} {value!r} {seconds}\n"


def openmetrics(samples: Iterable[Sample], target_labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """Text of ``samples``, one metric after the other in order of first appearance, with the closing EOF."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.spec.name, []).append(sample)
    for group in by_metric.values():
        yield header(group[0].spec)
        for sample in group:
            yield sample_line(
                series_name(sample.spec, sample.labels, target_labels), sample.value, sample.at_ms
            )
    yield EOF


def escape(text: str) -> str:
    """A label value between its quotes, or a help text."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
