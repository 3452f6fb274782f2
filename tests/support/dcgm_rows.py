"""Series as a Prometheus has them of dcgm-exporter, written by hand: one cluster for each case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpucost.contract.metric_spec import EOF
from gpucost.domain.time import HOUR_MS, SECOND_MS
from gpucost.telemetry.upstream.device_subjects import PodHolding

T0 = 1_788_220_800_000  # 2026-09-01T00:00:00Z
EVERY_MS = 30 * SECOND_MS
H100 = "NVIDIA H100 80GB HBM3"
IDLE = {"namespace": "monitoring", "pod": "dcgm-exporter-x"}
"""The target's labels: what an idle GPU's row, and one with ``exported_pod``, says of a pod."""
Value = float | Callable[[float], float]


def at(hours: float) -> int:
    """The instant so many hours after T0."""
    return T0 + round(hours * HOUR_MS)


def used_by(pod: str, namespace: str = "team") -> dict[str, str]:
    """Of a scrape that does not honour labels."""
    return {**IDLE, "exported_pod": pod, "exported_namespace": namespace}


def held(uid: str, start: float, end: float, **changes: object) -> PodHolding:
    """Of the pod ``pod-UID``, in hours."""
    values: dict[str, object] = {
        "pod_uid": uid,
        "namespace": "team",
        "pod": f"pod-{uid}",
        "node": "n1",
        "resource": "nvidia.com/gpu",
        "count": 1,
        "start_ms": at(start),
        "end_ms": at(end),
        **changes,
    }
    return PodHolding(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Rows:
    """One series, with a sample every 30 s in ``(start, end]``, in hours; ``value`` is of hours too."""

    name: str
    value: Value
    start: float = 0.0
    end: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    offset_ms: int = 0
    every_ms: int = EVERY_MS

    def lines(self, cluster: str) -> Iterator[str]:
        own = {"UUID": "GPU-1", "modelName": H100, "job": "dcgm", "instance": "10.0.0.1:9400", **IDLE}
        labels = {"cluster": cluster, **own, **self.labels}
        text = ",".join(f'{name}="{value}"' for name, value in labels.items() if value)
        for now in range(at(self.start) + self.every_ms, at(self.end) + 1, self.every_ms):
            value = self.value if isinstance(self.value, int | float) else self.value((now - T0) / HOUR_MS)
            yield f"{self.name}{{{text}}} {value!r} {(now + self.offset_ms) / SECOND_MS:.3f}\n"


def openmetrics_of(cases: Mapping[str, Iterable[Rows]]) -> Iterator[str]:
    """All cases, by metric as the format wants it."""
    by_name: dict[str, list[tuple[str, Rows]]] = defaultdict(list)
    for cluster, rows in cases.items():
        for each in rows:
            by_name[each.name].append((cluster, each))
    for name, found in by_name.items():
        yield f"# TYPE {name} unknown\n"
        for cluster, each in found:
            yield from each.lines(cluster)
    yield EOF


MJ_PER_HOUR = 300 * 3600 * 1000.0
"""A pod of 300 W, in mJ."""


def counter(hours: float) -> float:
    """The energy counter of its GPU, which has run for a while."""
    return 5e11 + MJ_PER_HOUR * hours


def spoilt(hours: float) -> float:
    """50 %, and two values that were seen of real GPUs."""
    return {0.25: 4294967295.0, 0.5: 2619.0}.get(round(hours, 6), 50.0)


def halves(hours: float) -> float:
    """80 % in the first half hour, 40 % after it."""
    return 80.0 if hours <= 0.5 else 40.0
