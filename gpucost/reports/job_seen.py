"""What a source still has of a job: each GPU that it held, and what it waited for.

The ledger keeps sums; single GPUs and waits are history, which a source holds for as long as it holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucost.attribution.frames import Frames
from gpucost.attribution.pieces import union
from gpucost.detectors.activity import Activity, Floats
from gpucost.domain.time import Window
from gpucost.reports.values import Energy, Signal, Sums

_MIB = 1 << 20
_SIGNALS = ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms")
_SUMMED = (*_SIGNALS, "held_ms", "energy_j")
_WAIT_KEYS = ("cluster", "layer", "reason", "cluster_queue", "queue", "pod_set", "resource", "pods", "units")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU while one pod of the job held it. ``idle_board_ms`` is time in steps in which no kernel ever
    ran; None, as every other signal, where nothing was observed."""

    cluster: str
    node: str
    gpu: str
    pod: str
    held_board_ms: int
    idle_board_ms: int | None
    busy: Signal | None
    sm: Signal | None
    memory_peak_mib: int | None
    memory_total_mib: int | None
    energy: Energy | None


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch in which pods of the job waited. ``layer`` is ``quota``, ``placement`` or ``device``, empty
    where that is not known; ``units`` are per pod."""

    span: Window
    cluster: str
    queue: str
    layer: str
    reason: str
    pod_set: str
    resource: str
    pods: int
    units: int


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What the source had in ``spans``, and in ``notes`` what it had not, and why. ``waited_ms`` is wall time
    in which any of its pods waited."""

    spans: tuple[Window, ...]
    gpus: tuple[GpuUse, ...]
    waits: tuple[Wait, ...]
    waited_ms: int
    notes: tuple[str, ...]


def seen(job_uid: str, looks: Sequence[tuple[Window, Frames]], notes: Iterable[str] = ()) -> JobSeen:
    """What ``looks`` (stretches that do not overlap, and their frames) show of the job."""
    gpus = [use for _, frames in looks for use in _gpus(job_uid, frames)]
    waits = [wait for _, frames in looks for wait in _waits(job_uid, frames)]
    starts, ends = union([wait.span.start_ms for wait in waits], [wait.span.end_ms for wait in waits])
    return JobSeen(
        spans=tuple(sorted({window for window, _ in looks}, key=lambda each: each.start_ms)),
        gpus=tuple(sorted(gpus, key=lambda use: (use.cluster, use.node, use.pod, use.gpu))),
        waits=tuple(sorted(waits, key=lambda wait: (wait.span.start_ms, wait.pod_set, wait.reason))),
        waited_ms=int((ends - starts).sum()),
        notes=tuple(notes),
    )


def _gpus(job_uid: str, frames: Frames) -> list[GpuUse]:
    allocations = frames.allocations
    mine = allocations[allocations["job_uid"] == job_uid]
    pods = dict(zip(mine["pod_uid"].astype("str"), mine["pod"].astype("str"), strict=True))
    rows = frames.activity
    activity = Activity.of(rows[rows["pod_uid"].isin(list(pods))])
    if not len(activity):
        return []
    sums = {name: _whole(activity.sums(name)) for name in _SUMMED}
    held_ms = activity.values["held_ms"]
    metered = _whole(_added(np.where(np.isnan(activity.values["energy_j"]), 0.0, held_ms), activity))
    idle = _whole(_added(np.where(activity.is_idle, held_ms, 0.0), activity))
    was_seen = _added(activity.is_observed.astype(np.float64), activity) > 0
    peak, size = (_largest_mib(activity, name) for name in ("memory_used_bytes", "memory_total_bytes"))
    found = []
    columns = (activity.series[name].tolist() for name in ("cluster", "node", "gpu", "pod_uid"))
    for n, (cluster, node, gpu, uid) in enumerate(zip(*columns, strict=True)):
        joules = sums["energy_j"][n]
        use = Sums(
            board_ms=sums["held_ms"][n] or 0,
            nano=None,
            unpriced_ms=0,
            **{name: sums[name][n] for name in _SIGNALS},
            energy_observed_ms=metered[n],
            energy_mj=None if joules is None else joules * 1000,
        )
        level = use.utilisation
        found.append(
            GpuUse(
                *(cluster, node, gpu, pods[uid], use.board_ms),
                idle_board_ms=idle[n] if was_seen[n] else None,
                busy=level.busy,
                sm=level.sm,
                memory_peak_mib=peak[n],
                memory_total_mib=size[n],
                energy=level.energy,
            )
        )
    return found


def _waits(job_uid: str, frames: Frames) -> list[Wait]:
    """Stretches that touch and are alike in everything are one."""
    rows = frames.demand
    stretches: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for *key, start, end in rows[rows["job_uid"] == job_uid][[*_WAIT_KEYS, "start_ms", "end_ms"]].itertuples(
        index=False
    ):
        stretches[tuple(key)].append((start, end))
    found = []
    for (cluster, layer, reason, cluster_queue, queue, *rest), times in stretches.items():
        starts, ends = union([start for start, _ in times], [end for _, end in times])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            found.append(Wait(Window(start, end), cluster, cluster_queue or queue, layer, reason, *rest))
    return found


def _added(values: Floats, activity: Activity) -> Floats:
    total: Floats = np.add.reduceat(values, activity.begin[:-1])
    return total


def _largest_mib(activity: Activity, name: str) -> list[int | None]:
    return _whole(np.fmax.reduceat(activity.values[name], activity.begin[:-1]) / _MIB)


def _whole(values: Floats) -> list[int | None]:
    return [None if np.isnan(value) else round(value) for value in values.tolist()]
