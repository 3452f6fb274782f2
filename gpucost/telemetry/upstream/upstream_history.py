"""The frames that only detectors read, as far as upstream series have them: use, health and quotas of GPUs.

Which jobs wait, for how many GPUs and why is in no upstream series: Kueue counts pending workloads without
their sizes, and suspended jobs have no pods. Rules that need it say so instead of finding nothing.

frames.ACTIVITY is what each GPU did for each pod, in steps of minutes, from dcgm-exporter. frames.HEALTH are
GPUs after an error that only a reset repairs. dcgm-exporter's gauge shows the last error's code for as long
as there was no other, so an event is a change of it. There is no series while there was no error: the first
one is an event where the GPU was seen before without it, by the same exporter; a code that was there when its
GPU was first seen is none. An error of the same code as the last is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.contract.dcgm import NAMES, SCALES, UUID_LABELS, DcgmField, DcgmUnit
from gpucost.contract.device_dialects import DIALECTS, DeviceDialect
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    DEMAND,
    DOMAINS,
    EVICTIONS,
    HEALTH,
    QUOTAS,
    SERVING,
    STALLS,
    FrameSpec,
)
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow, frame_of
from gpucost.telemetry.evidence.gauge_runs import GaugeRun, MetricLike, bridged_runs
from gpucost.telemetry.history.gpu_health import BROKEN_XIDS, LONGEST_MS, NO_POD
from gpucost.telemetry.history.queue_quotas import (
    KUEUE,
    VOLCANO,
    CohortTree,
    quota_rows,
)
from gpucost.telemetry.history.serving import read_serving
from gpucost.telemetry.prometheus.cluster_reader import points
from gpucost.telemetry.prometheus.promql import by, over_time
from gpucost.telemetry.prometheus.query_response import ResultSeries, needed
from gpucost.telemetry.upstream.dcgm_gpus import ObservedGpus, read_gpus
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings, field_names, first_of
from gpucost.telemetry.upstream.gpu_usage import ClaimUsage, read_use
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

_BEFORE_MS = 10 * MINUTE_MS
# Each kind of device and each release has at least one of these fields.
_SHOWN = (DcgmField.POWER, DcgmField.MEMORY_USED, DcgmField.BUSY, DcgmField.GRAPHICS)
_Values = dict[int, int]


def read_health(reader: KubeStateReader, window: Window, boards: ObservedGpus) -> list[FrameRow]:
    """Rows of frames.HEALTH, clipped to the window. An error counts from its first sample until its code is
    gone, at most for an hour."""
    wide = Window(window.start_ms - LONGEST_MS - _BEFORE_MS, window.end_ms)
    names = field_names(reader, wide)
    uuids = _broken(reader, wide, names.get(DcgmField.XID, ()))
    codes = _codes(_raw(reader, names.get(DcgmField.XID, ()), uuids, wide))
    shown = [name for field in _SHOWN for name in names.get(field, ())]
    seen = _instants(_raw(reader, shown, codes, wide))
    rows: list[FrameRow] = []
    for uuid, values in sorted(codes.items()):
        for start, end, code in _stretches(values, seen.get(uuid, {})):
            clipped = max(start, window.start_ms), min(end, window.end_ms)
            if clipped[0] < clipped[1] and uuid in boards.node_of:
                place = reader.cluster, boards.node_of[uuid], uuid
                rows.append((*place, *clipped, f"xid_{code}", *NO_POD))
    return rows


def _broken(reader: KubeStateReader, wide: Window, names: Iterable[str]) -> set[str]:
    """GPUs that showed a code in that time at all; for most GPUs no further query is needed."""
    found: set[str] = set()
    for name in names:
        most = over_time("max_over_time", reader.select(name), wide.length_ms)
        for each in reader.vector(by("max", UUID_LABELS, most), wide.end_ms):
            if float(each["value"][1]) >= min(BROKEN_XIDS):
                found.add(first_of(each["metric"], UUID_LABELS))
    return found - {""}


def _raw(
    reader: KubeStateReader, names: Iterable[str], uuids: Iterable[str], wide: Window
) -> list[ResultSeries]:
    wanted = sorted(uuids)
    if not wanted or not names:
        return []
    return reader.raw_where([*names], UUID_LABELS, wanted, wide.start_ms, wide.end_ms)


def _codes(found: Iterable[ResultSeries]) -> Mapping[str, _Values]:
    """By GPU, the code at each instant; values that cannot be a code are left out."""
    codes: dict[str, _Values] = defaultdict(dict)
    for each in found:
        own = codes[first_of(each["metric"], UUID_LABELS)]
        name = NAMES[needed(each, "__name__").upper()]
        highest = SCALES[name.unit or DcgmUnit.CODE].highest
        for at, value in zip(*points(each), strict=True):
            if 0 <= value <= highest:
                own[at] = max(own.get(at, 0), int(value))
    return codes


def _instants(found: Iterable[ResultSeries]) -> Mapping[str, dict[int, str]]:
    """By GPU, when any of its rows was read, and from which exporter."""
    seen: dict[str, dict[int, str]] = defaultdict(dict)
    for each in found:
        labels = each["metric"]
        own = seen[first_of(labels, UUID_LABELS)]
        own.update(dict.fromkeys(points(each)[0], labels.get("instance", "")))
    return seen


def _stretches(values: _Values, seen: Mapping[int, str]) -> Iterator[tuple[int, int, int]]:
    """When the GPU was broken, and by which code: an instant without a row of the code but with others of the
    GPU shows that there is no error (any more)."""
    timeline = sorted({**dict.fromkeys(seen, 0), **values}.items())
    events: list[tuple[int, int, int]] = []
    for (before, old), (at, code) in pairwise(timeline):
        started_anew = before in seen and at in seen and seen[before] != seen[at] and old == 0
        if code != old and code in BROKEN_XIDS and at - before <= _BEFORE_MS and not started_anew:
            gone = next((t for t, value in timeline if t > at and value == 0), at + LONGEST_MS)
            events.append((at, min(gone, at + LONGEST_MS), code))
    yield from events


_MJ_PER_J = 1_000


def read_activity(
    reader: KubeStateReader,
    window: Window,
    holdings: ClusterHoldings,
    dialects: Sequence[DeviceDialect] = DIALECTS,
    known: Collection[str] = (),
) -> pd.DataFrame:
    """Rows of frames.ACTIVITY, without the pods that are ``known``. Steps are aligned to the epoch, and cut
    at the window's edges."""
    uses = read_use(reader, window, holdings, reader.settings.activity_step_ms, dialects, known)
    parts = [part for use in uses if len(part := _frame(reader.cluster, use))]
    return conform(pd.concat(parts, ignore_index=True), ACTIVITY) if parts else empty_frame(ACTIVITY)


def _frame(cluster: str, use: ClaimUsage) -> pd.DataFrame:
    row, step = np.nonzero(use.held > 0)
    if not len(row):
        return empty_frame(ACTIVITY)
    grids = {
        "held_ms": use.held,
        "observed_ms": use.busy.observed,
        "busy_ms": use.busy.amount,
        "sm_observed_ms": use.sm.observed,
        "sm_active_ms": use.sm.amount,
        "memory_used_bytes": use.used,
        "memory_total_bytes": use.total,
        "energy_j": use.energy.amount / _MJ_PER_J,
    }
    ends = np.array([each.end_ms for each in use.steps], dtype=np.int64)[step]
    names: dict[str, Sequence[str]] = {
        "node": use.nodes,
        "gpu": [f"{uuid}/{instance}" if instance else uuid for (uuid, instance), _ in use.claims],
        "pod_uid": [uid for _, uid in use.claims],
    }
    texts = {name: pd.Categorical([*values])[row] for name, values in names.items()}
    times = {"start_ms": ends - use.steps[0].length_ms, "end_ms": ends}
    measured = {name: grid[row, step] for name, grid in grids.items()}
    frame = pd.DataFrame({"cluster": cluster, **texts, **times, **measured})
    return frame[list(ACTIVITY.column_names)]


_NO_COLLECTOR = "no series of kube-state-metrics, Kueue or Volcano says {}; gpucost's queue collector does"
LACKS: Mapping[str, str] = {
    DEMAND.name: _NO_COLLECTOR.format("who waits for how many GPUs"),
    STALLS.name: _NO_COLLECTOR.format("which gangs lack members"),
    EVICTIONS.name: _NO_COLLECTOR.format("which pods an eviction stopped"),
    DOMAINS.name: _NO_COLLECTOR.format("which nodes ComputeDomains have"),
}
_NO_QUOTAS = (
    "neither Kueue's quotas (metrics.enableClusterQueueResources: true, and a scrape of its metrics) nor "
    "those of Volcano's scheduler are in this Prometheus"
)
_NO_GPUS = "no series of dcgm-exporter is in this Prometheus"


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A metric of another project."""

    name: str


_OF_KUEUE: Mapping[str, MetricLike | None] = {
    "nominal": _Foreign("kueue_cluster_queue_nominal_quota"),
    "borrowing_limit": _Foreign("kueue_cluster_queue_borrowing_limit"),
    "lending_limit": _Foreign("kueue_cluster_queue_lending_limit"),
    "used": _Foreign("kueue_cluster_queue_resource_usage"),
}
_OF_VOLCANO: Mapping[str, MetricLike | None] = {
    "nominal": _Foreign("volcano_queue_deserved_scalar_resources"),
    "borrowing_limit": None,
    "lending_limit": None,
    "used": _Foreign("volcano_queue_allocated_scalar_resources"),
}
_QUEUE_INFO = _Foreign("kueue_cluster_queue_info")
_MILLI = "_scalar_resources"


def with_history(
    reader: KubeStateReader, window: Window, read: ClusterFrames, wanted: Collection[str] | None
) -> ClusterFrames:
    """``read``, the frames of ``window``, with those that only detectors read; of these the ``wanted``
    only."""

    def is_wanted(spec: FrameSpec) -> bool:
        return wanted is None or spec.name in wanted

    holdings = ClusterHoldings.of(_rows(read, ALLOCATIONS), _rows(read, CAPACITY))
    found: dict[str, Any] = {}
    lacks = dict(LACKS)
    if is_wanted(ACTIVITY):
        found[ACTIVITY.name] = read_activity(reader, window, holdings)
    if is_wanted(SERVING):
        found[SERVING.name] = read_serving(reader, window, read.allocations)
    if is_wanted(HEALTH):
        boards = read_gpus(reader, window, holdings)
        found[HEALTH.name] = frame_of(HEALTH, read_health(reader, window, boards))
        if not boards.node_of:
            lacks |= {HEALTH.name: _NO_GPUS, ACTIVITY.name: _NO_GPUS}
    if is_wanted(QUOTAS):
        found[QUOTAS.name] = frame_of(QUOTAS, _quotas(reader, window, read))
        if found[QUOTAS.name].empty:
            lacks[QUOTAS.name] = _NO_QUOTAS
    return replace(read, **found, lacks=lacks)


def _rows(frames: ClusterFrames, spec: FrameSpec) -> list[FrameRow]:
    frame = getattr(frames, spec.name)
    return list(zip(*(frame[name].tolist() for name in spec.column_names), strict=True))


def _quotas(reader: KubeStateReader, window: Window, read: ClusterFrames) -> list[FrameRow]:
    state = _State(reader, window)
    resources = {*read.capacity["resource"].tolist(), *read.allocations["resource"].tolist()}
    kueue = ("cluster_queue", "flavor", "resource")
    return [
        *quota_rows(state, KUEUE, kueue, _OF_KUEUE, _UpstreamCohorts(state), resources),
        *quota_rows(state, VOLCANO, ("queue_name", "resource"), _OF_VOLCANO, _Root(), resources),
    ]


@dataclass(frozen=True, slots=True)
class _State:
    """Runs of upstream gauges; Volcano counts GPUs by thousandths."""

    reader: KubeStateReader
    window: Window

    def runs(self, spec: MetricLike, labels: Sequence[str]) -> list[GaugeRun]:
        found = bridged_runs(self.reader, spec, labels, self.window)
        per = 1000 if spec.name.endswith(_MILLI) else 1
        return [replace(run, value=run.value / per) for run in found]


class _UpstreamCohorts(CohortTree):
    """Kueue exports the root of a queue's cohort where it exports cohorts; else the cohort is the root."""

    def __init__(self, state: _State) -> None:
        super().__init__({})
        self._root: dict[str, str] = {}
        self._own: dict[str, str] = {}
        for run in state.runs(_QUEUE_INFO, ("cluster_queue", "parent_cohort", "root_cohort")):
            labels = run.labels
            root = labels.get("root_cohort") or labels.get("parent_cohort", "")
            self._root[labels.get("cluster_queue", "")] = root
            self._own[labels.get("cluster_queue", "")] = labels.get("parent_cohort", "")
        nominal = _OF_KUEUE["nominal"]
        assert nominal is not None
        for run in state.runs(nominal, ("cluster_queue", "cohort")):
            self._root.setdefault(run.labels.get("cluster_queue", ""), run.labels.get("cohort", ""))

    def root(self, queue: str, at_ms: int) -> str:
        del at_ms
        return self._root.get(queue, "")

    def own(self, queue: str, at_ms: int) -> str:
        del at_ms
        return self._own.get(queue, "")


class _Root(CohortTree):
    """Volcano's series do not contain which queue is whose child."""

    def __init__(self) -> None:
        super().__init__({})

    def root(self, queue: str, at_ms: int) -> str:
        del queue, at_ms
        return "root"
