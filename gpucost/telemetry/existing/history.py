"""What detectors look at, as far as other people's series tell it: use, health and quotas of GPUs.

Who waits, for how many GPUs and why is in nobody's series: Kueue counts pending workloads without their
sizes, and suspended jobs have no pods. Rules that need it say so instead of finding nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucost.attribution.frames import Frames
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    DEMAND,
    EVICTIONS,
    HEALTH,
    QUOTAS,
    SERVING,
    STALLS,
    FrameSpec,
)
from gpucost.domain.time import Window
from gpucost.telemetry.existing.activity import read_activity
from gpucost.telemetry.existing.gpus import read_boards
from gpucost.telemetry.existing.health import read_health
from gpucost.telemetry.existing.holdings import Holdings
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.history_quotas import KUEUE, VOLCANO, Tree, quota_rows
from gpucost.telemetry.history_runs import Named, Run, bridged_runs
from gpucost.telemetry.rows import Row, frame_of
from gpucost.telemetry.serving import read_serving

_NO_COLLECTOR = "no series of kube-state-metrics, Kueue or Volcano says {}; gpucost's queue collector does"
LACKS: Mapping[str, str] = {
    DEMAND.name: _NO_COLLECTOR.format("who waits for how many GPUs"),
    STALLS.name: _NO_COLLECTOR.format("which gangs lack members"),
    EVICTIONS.name: _NO_COLLECTOR.format("which pods an eviction stopped"),
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


_OF_KUEUE: Mapping[str, Named | None] = {
    "nominal": _Foreign("kueue_cluster_queue_nominal_quota"),
    "borrowing_limit": _Foreign("kueue_cluster_queue_borrowing_limit"),
    "lending_limit": _Foreign("kueue_cluster_queue_lending_limit"),
    "used": _Foreign("kueue_cluster_queue_resource_usage"),
}
_OF_VOLCANO: Mapping[str, Named | None] = {
    "nominal": _Foreign("volcano_queue_deserved_scalar_resources"),
    "borrowing_limit": None,
    "lending_limit": None,
    "used": _Foreign("volcano_queue_allocated_scalar_resources"),
}
_QUEUE_INFO = _Foreign("kueue_cluster_queue_info")
_MILLI = "_scalar_resources"


def with_history(
    reader: ExistingReader, window: Window, read: Frames, wanted: Collection[str] | None
) -> Frames:
    """``read``, which are the frames of ``window``, with those of detectors; of these the ``wanted`` only."""

    def is_wanted(spec: FrameSpec) -> bool:
        return wanted is None or spec.name in wanted

    holdings = Holdings.of(_rows(read, ALLOCATIONS), _rows(read, CAPACITY))
    found: dict[str, Any] = {}
    lacks = dict(LACKS)
    if is_wanted(ACTIVITY):
        found[ACTIVITY.name] = read_activity(reader, window, holdings)
    if is_wanted(SERVING):
        found[SERVING.name] = read_serving(reader, window, read.allocations)
    if is_wanted(HEALTH):
        boards = read_boards(reader, window, holdings)
        found[HEALTH.name] = frame_of(HEALTH, read_health(reader, window, boards))
        if not boards.node_of:
            lacks |= {HEALTH.name: _NO_GPUS, ACTIVITY.name: _NO_GPUS}
    if is_wanted(QUOTAS):
        found[QUOTAS.name] = frame_of(QUOTAS, _quotas(reader, window, read))
        if found[QUOTAS.name].empty:
            lacks[QUOTAS.name] = _NO_QUOTAS
    return replace(read, **found, lacks=lacks)


def _rows(frames: Frames, spec: FrameSpec) -> list[Row]:
    frame = getattr(frames, spec.name)
    return list(zip(*(frame[name].tolist() for name in spec.column_names), strict=True))


def _quotas(reader: ExistingReader, window: Window, read: Frames) -> list[Row]:
    state = _State(reader, window)
    resources = {*read.capacity["resource"].tolist(), *read.allocations["resource"].tolist()}
    kueue = ("cluster_queue", "flavor", "resource")
    return [
        *quota_rows(state, KUEUE, kueue, _OF_KUEUE, _Cohorts(state), resources),
        *quota_rows(state, VOLCANO, ("queue_name", "resource"), _OF_VOLCANO, _Root(), resources),
    ]


@dataclass(frozen=True, slots=True)
class _State:
    """Stretches of other people's gauges; Volcano counts GPUs by thousandths."""

    reader: ExistingReader
    window: Window

    def runs(self, spec: Named, labels: Sequence[str]) -> list[Run]:
        found = bridged_runs(self.reader, spec, labels, self.window)
        per = 1000 if spec.name.endswith(_MILLI) else 1
        return [replace(run, value=run.value / per) for run in found]


class _Cohorts(Tree):
    """Kueue names the root of a queue's cohort itself where it shows cohorts; else the cohort is the root."""

    def __init__(self, state: _State) -> None:
        super().__init__({})
        self._root: dict[str, str] = {}
        for run in state.runs(_QUEUE_INFO, ("cluster_queue", "parent_cohort", "root_cohort")):
            labels = run.labels
            root = labels.get("root_cohort") or labels.get("parent_cohort", "")
            self._root[labels.get("cluster_queue", "")] = root
        nominal = _OF_KUEUE["nominal"]
        assert nominal is not None
        for run in state.runs(nominal, ("cluster_queue", "cohort")):
            self._root.setdefault(run.labels.get("cluster_queue", ""), run.labels.get("cohort", ""))

    def root(self, queue: str, at_ms: int) -> str:
        del at_ms
        return self._root.get(queue, "")


class _Root(Tree):
    """Volcano's series do not say which queue is whose child."""

    def __init__(self) -> None:
        super().__init__({})

    def root(self, queue: str, at_ms: int) -> str:
        del queue, at_ms
        return "root"
