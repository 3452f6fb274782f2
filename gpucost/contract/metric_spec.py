"""What a metric of the contract is: its name, type, unit, labels, help and stability.

Its text in OpenMetrics: ``header`` before the first line of a metric, ``series_name`` once per series,
``EOF`` at the end. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpucost.domain.errors import ErrorRemark, InputError

_NAME = re.compile(r"gpucost_[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
_LABEL = re.compile(r"[a-z][a-z0-9_]*\Z")
_UNITS = ("seconds", "bytes", "joules", "ratio")
# Labels that Prometheus itself, the operator and common external labels put on every series of a target.
_TARGET_LABELS = frozenset(
    {"cluster", "container", "endpoint", "env", "environment", "instance", "job", "owner", "prometheus"}
    | {"region", "replica", "service", "team", "zone"}
)


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class MetricStability(StrEnum):
    """STABLE keeps name and labels; DEPRECATED goes at the earliest two minor releases later."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class MetricExporter(StrEnum):
    QUEUE_COLLECTOR = "gpucost-queue-collector"
    GPU_EXPORTER = "gpucost-gpu-exporter"
    BOTH = "gpucost-queue-collector and gpucost-gpu-exporter"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. ``unit`` is its base unit and the end of its name, empty for plain numbers.

    ``label_prefix`` allows further labels whose names start with it (``label_`` on nodes). Raises
    InputError when name, unit or a label breaks the conventions of the contract.
    """

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    help: str
    exporter: MetricExporter = MetricExporter.QUEUE_COLLECTOR
    stability: MetricStability = MetricStability.EXPERIMENTAL
    label_prefix: str = ""

    def __post_init__(self) -> None:
        if _NAME.match(self.name) is None:
            raise InputError("metric", self.name, "gpucost_ and lower-case words joined by _")
        if (self.type is MetricType.COUNTER) != self.name.endswith("_total"):
            raise InputError("metric", self.name, "_total at the end of counters, and of counters only")
        suffix = next((unit for unit in _UNITS if self.family.endswith(f"_{unit}")), "")
        if suffix != self.unit:
            raise InputError(f"{self.name}.unit", self.unit, suffix or "no unit, or its unit in the name")
        for label in self.labels:
            if _LABEL.match(label) is None or label in _TARGET_LABELS:
                raise InputError(f"{self.name}.labels", label, "a label name that no scrape target sets")

    @property
    def family(self) -> str:
        """The name that OpenMetrics puts in ``# TYPE``: a counter's without ``_total``."""
        return self.name.removesuffix("_total")

    def check_labels(self, labels: Mapping[str, str]) -> None:
        """Raises InputError unless ``labels`` are this metric's: none missing, none unknown."""
        for label in self.labels:
            if label not in labels:
                raise InputError(f"{self.name}.{label}", ErrorRemark("missing label"), ", ".join(self.labels))
        for label in labels:
            is_open = bool(self.label_prefix) and label.startswith(self.label_prefix)
            if label not in self.labels and not (is_open and _LABEL.match(label)):
                raise InputError(f"{self.name}.{label}", ErrorRemark("unknown label"), ", ".join(self.labels))


EOF = "# EOF\n"


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


def escape(text: str) -> str:
    """A label value between its quotes, or a help text."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
