"""What a metric of the contract is: its name, type, unit, labels, help and stability."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpucost.domain.errors import InputError, Remark

_NAME = re.compile(r"gpucost_[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
_LABEL = re.compile(r"[a-z][a-z0-9_]*\Z")
_UNITS = ("seconds", "bytes", "joules", "ratio")
# What Prometheus itself, the operator and common external labels put on every series of a target.
_TARGET_LABELS = frozenset(
    {"cluster", "container", "endpoint", "env", "environment", "instance", "job", "owner", "prometheus"}
    | {"region", "replica", "service", "team", "zone"}
)


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class Stability(StrEnum):
    """STABLE keeps name and labels; DEPRECATED goes at the earliest two minor releases later."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class Exporter(StrEnum):
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
    exporter: Exporter = Exporter.QUEUE_COLLECTOR
    stability: Stability = Stability.EXPERIMENTAL
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
        """Raise InputError unless ``labels`` are this metric's: none missing, none unknown."""
        for label in self.labels:
            if label not in labels:
                raise InputError(f"{self.name}.{label}", Remark("missing label"), ", ".join(self.labels))
        for label in labels:
            is_open = bool(self.label_prefix) and label.startswith(self.label_prefix)
            if label not in self.labels and not (is_open and _LABEL.match(label)):
                raise InputError(f"{self.name}.{label}", Remark("unknown label"), ", ".join(self.labels))
