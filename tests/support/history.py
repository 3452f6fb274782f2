"""A scripted cluster as a collector would export it, scrape by scrape: for tests of the Prometheus source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpucost.contract.metric_spec import (
    EOF,
    MetricSpec,
    header,
    series_name,
)
from gpucost.contract.metrics import (
    NODE_BOARDS,
    NODE_END,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_INFO,
    NODE_INFO_LABELS,
    NODE_SCHEDULABLE,
    NODE_START,
    OWNER_LABELS,
    POD_GPU_END,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    PROVIDER_ID,
    STATE_UP,
)
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from tests.support.metric_samples import ExpositionSample, sample_line

T0 = 1_788_220_800_000  # 2026-09-01T00:00:00Z
RETAINED_MS = 10 * MINUTE_MS
GPU = "nvidia.com/gpu"


def at(hours: float) -> int:
    """The instant so many hours after T0."""
    return T0 + round(hours * HOUR_MS)


def counted(spec: MetricSpec, uid: str, value: float, now: int, **labels: str) -> ExpositionSample:
    """A sample of one of the GPU exporter's metrics of a pod on node n1."""
    place = {"namespace": "ns", "pod": f"pod-{uid}", "pod_uid": uid, "node": "n1"}
    own = {**dict.fromkeys(spec.labels, ""), **place}
    if "holder" in own:
        own |= {"holder": "pod", "gpu_uuid": "GPU-1", "method": "exact"}
    return ExpositionSample(spec, {**own, **labels}, value, now)


@dataclass
class Pod:
    """``end`` is when it gave its units back; ``gone`` when its series vanish without an end.

    ``hidden`` are stretches in which the collector does not show it; ``claimed_start`` and ``claimed_end``
    replace its timestamps; ``owners`` and ``units_from`` are changes, by the instant from which they hold.
    """

    uid: str
    start: int
    end: int | None = None
    node: str = "n1"
    units: int = 1
    resource: str = GPU
    gone: int | None = None
    hidden: tuple[tuple[int, int], ...] = ()
    claimed_start: int | None = None
    claimed_end: int | None = None
    learned_end: int | None = None
    owners: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    units_from: Mapping[int, int] = field(default_factory=dict)
    has_owner: bool = True

    def samples(self, now: int) -> Iterator[tuple[MetricSpec, dict[str, str], float]]:
        learned = self.learned_end if self.learned_end is not None else self.end
        vanishes = self.gone if self.gone is not None else (learned + RETAINED_MS if learned else 1 << 60)
        if not self.start <= now < vanishes or any(low <= now < high for low, high in self.hidden):
            return
        place = {"namespace": "ns", "pod": f"pod-{self.uid}", "pod_uid": self.uid, "node": self.node}
        labels = {**place, "resource": self.resource}
        yield POD_GPU_REQUEST, labels, float(_in_force(self.units_from, now, self.units))
        start = self.start if self.claimed_start is None else self.claimed_start
        yield POD_GPU_START, labels, start / 1000
        if learned is not None and now >= learned:
            end = self.end if self.claimed_end is None else self.claimed_end
            yield POD_GPU_END, labels, (end or 0) / 1000
        if self.has_owner:
            job = {"job_kind": "Job", "job_name": f"job-{self.uid}", "job_uid": f"job-{self.uid}"}
            owner = {**dict.fromkeys(OWNER_LABELS, ""), **place, **job, **_in_force(self.owners, now, {})}
            yield POD_OWNER_INFO, owner, 1.0


@dataclass
class Node:
    """``changes`` maps an instant to values that hold from then on: units, schedulable, product, resource."""

    name: str = "n1"
    start: int = T0 - 7 * DAY_MS
    end: int | None = None
    gone: int | None = None
    units: int = 8
    changes: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def samples(self, now: int) -> Iterator[tuple[MetricSpec, dict[str, str], float]]:
        vanishes = self.gone if self.gone is not None else (self.end + RETAINED_MS if self.end else 1 << 60)
        if not self.start <= now < vanishes:
            return
        state: dict[str, object] = {
            "product": "NVIDIA-H100-80GB-HBM3",
            "units": self.units,
            "schedulable": 1,
            "resource": GPU,
            **_in_force(self.changes, now, {}),
        }
        node = {"node": self.name}
        units = {**node, "resource": str(state["resource"])}
        info = {**node, **dict.fromkeys((*NODE_INFO_LABELS, PROVIDER_ID), "")}
        info["product"] = str(state["product"])
        info |= self.labels
        yield NODE_INFO, info, 1.0
        yield NODE_BOARDS, node, float(self.units)
        yield NODE_GPU_EXPECTED, units, float(self.units)
        yield NODE_GPU_CAPACITY, units, float(str(state["units"]))
        yield NODE_GPU_ALLOCATABLE, units, float(str(state["units"]))
        yield NODE_GPU_REPLICAS, units, 1.0
        yield NODE_SCHEDULABLE, node, float(str(state["schedulable"]))
        yield NODE_START, node, self.start / 1000
        if self.end is not None and now >= self.end:
            yield NODE_END, node, self.end / 1000


@dataclass
class History:
    """What one collector exports, and when it is scraped.

    ``down`` are stretches without a scrape, ``stale`` those with a heartbeat of 0. ``target`` are labels
    that the scrape adds; ``renamed`` are labels that it renames to ``exported_…`` from an instant on.
    """

    cluster: str
    pods: list[Pod] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=lambda: [Node()])
    start: int = T0
    end: int = T0 + DAY_MS + HOUR_MS
    step: int = MINUTE_MS
    offset: int = 0
    down: tuple[tuple[int, int], ...] = ()
    stale: tuple[tuple[int, int], ...] = ()
    target: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    extra: list[ExpositionSample] = field(default_factory=list)

    def scrapes(self) -> Iterator[int]:
        for now in range(self.start + self.offset, self.end + 1, self.step):
            if not any(low <= now < high for low, high in self.down):
                yield now

    def lines(self) -> Iterator[tuple[MetricSpec, str]]:
        target = {"cluster": self.cluster, **self.target}
        for now in self.scrapes():
            is_stale = any(low <= now < high for low, high in self.stale)
            yield STATE_UP, sample_line(series_name(STATE_UP, {}, target), float(not is_stale), now)
            for subject in (*self.pods, *self.nodes):
                for spec, labels, value in subject.samples(now):
                    series = series_name(spec, labels, target)
                    for label in _in_force(self.renamed, now, ()):
                        series = series.replace(f'{label}="', f'{label}="collector",exported_{label}="', 1)
                    yield spec, sample_line(series, value, now)
        for sample in self.extra:
            series = series_name(sample.spec, sample.labels, target)
            yield sample.spec, sample_line(series, sample.value, sample.at_ms)


def openmetrics_of(*histories: History) -> Iterator[str]:
    """One text with all samples of all histories."""
    by_metric: dict[str, list[str]] = {}
    specs: dict[str, MetricSpec] = {}
    for history in histories:
        for spec, line in history.lines():
            specs[spec.name] = spec
            by_metric.setdefault(spec.name, []).append(line)
    for name, lines in by_metric.items():
        yield header(specs[name])
        yield from lines
    yield EOF


def _in_force(changes: Mapping[int, object], now: int, before: object) -> object:
    """The value of the latest change at or before ``now``."""
    value = before
    for instant in sorted(changes):
        if instant <= now:
            value = changes[instant]
    return value
