"""The truth of a world as frames, which the simulator writes out as gpucost's own exporters would show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    HOLDER_COLUMNS,
    NODES,
    OBSERVED,
    SIGNALS,
    FrameSpec,
)
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import HOUR_MS, Window
from tests.support.existing.world import Gpu, Node, Pod, World, use_of

_LINGERS_MS = 10 * 60_000
_KINDS = {"ReplicaSet": "Deployment"}


def frames_of(world: World, gaps: Sequence[Window] = ()) -> ClusterFrames:
    """Everything between the world's start and end; ``gaps`` are not observed."""
    return ClusterFrames(
        allocations=_frame(_allocations(world), ALLOCATIONS),
        nodes=_frame(_nodes(world), NODES),
        capacity=_frame(_capacity(world), CAPACITY),
        observed=_frame(_observed(world, gaps), OBSERVED),
        signals=_frame(_signals(world), SIGNALS),
        activity=_frame(_activity(world), ACTIVITY),
        problems=tuple(_unseen(world, gaps)),
    )


def _frame(rows: Iterator[dict[str, Any]], spec: FrameSpec) -> pd.DataFrame:
    return conform(pd.DataFrame(list(rows)), spec)


def job_of(pod: Pod) -> tuple[str, str]:
    """Kind and name of what it is accounted to: the owner, or the owner's owner."""
    kind, name = pod.owner
    return (_KINDS[kind], name.rsplit("-", 1)[0]) if kind in _KINDS else (kind, name)


def _allocations(world: World) -> Iterator[dict[str, Any]]:
    for pod in world.pods:
        kind, job = job_of(pod)
        for start_ms, end_ms, team in pod.spans(0, world.end_ms):
            yield {
                **{column.name: "" for column in HOLDER_COLUMNS},
                "cluster": world.name,
                "node": pod.node,
                "namespace": pod.namespace,
                "pod": pod.name,
                "pod_uid": pod.uid,
                "job_kind": kind,
                "job": job,
                "job_uid": pod.job_uid,
                "team_label": team,
                "resource": pod.resource,
                "count": pod.units,
                "start_ms": start_ms,
                "end_ms": end_ms,
            }


def _nodes(world: World) -> Iterator[dict[str, Any]]:
    for node in (each for each in world.nodes if each.boards):
        yield {
            "cluster": world.name,
            "node": node.name,
            "start_ms": node.start_ms,
            "end_ms": min(node.end_ms, world.end_ms),
            "product": node.product,
            "boards": node.boards,
            "instance_type": node.labels["node.kubernetes.io/instance-type"],
            "capacity_type": node.labels["karpenter.sh/capacity-type"],
            "region": node.labels["topology.kubernetes.io/region"],
            "zone": node.labels["topology.kubernetes.io/zone"],
            "pool": node.labels["karpenter.sh/nodepool"],
            "labels": json.dumps({}),
        }


def _capacity(world: World) -> Iterator[dict[str, Any]]:
    for node in world.nodes:
        for offer in node.offers:
            for start_ms, end_ms, lost in states(node, world.end_ms):
                yield {
                    "cluster": world.name,
                    "node": node.name,
                    "resource": offer.resource,
                    "start_ms": start_ms,
                    "end_ms": end_ms,
                    "expected": offer.units,
                    "capacity": offer.units,
                    "allocatable": offer.units - lost,
                    "replicas": offer.replicas,
                    "schedulable": 1,
                }


def states(node: Node, horizon_ms: int) -> Iterator[tuple[int, int, int]]:
    """Stretches of a node's life and the units it lacked in each."""
    reached, last = node.start_ms, min(node.end_ms, horizon_ms)
    for start_ms, end_ms, units in node.lost:
        yield reached, min(start_ms, last), 0
        yield min(start_ms, last), min(end_ms, last), units
        reached = min(end_ms, last)
    if reached < last:
        yield reached, last, 0


def _observed(world: World, gaps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    edges = [world.start_ms, *(edge for gap in gaps for edge in (gap.start_ms, gap.end_ms)), world.end_ms]
    for start_ms, end_ms in zip(edges[::2], edges[1::2], strict=True):
        yield {"cluster": world.name, "start_ms": start_ms, "end_ms": end_ms}


def _unseen(world: World, gaps: Sequence[Window]) -> Iterator[DataProblem]:
    """Pods that ended in a gap so long that nothing of their end was there when it was over."""
    for gap in gaps:
        for pod in world.pods:
            if gap.start_ms <= pod.end_ms and pod.end_ms + _LINGERS_MS < gap.end_ms:
                yield DataProblem(DataProblemCode.END_UNKNOWN, world.name, pod.uid, "not seen any more")


def hours_of(pod: Pod, world: World) -> Iterator[tuple[int, int, int]]:
    """Hour, and the stretch of it in which the pod held its GPUs, as far as the world goes."""
    start, end = max(pod.bound_ms, world.start_ms), min(pod.end_ms, world.end_ms)
    for hour in range(start // HOUR_MS, -(-end // HOUR_MS)):
        yield hour, max(start, hour * HOUR_MS), min(end, (hour + 1) * HOUR_MS)


def part_of_gpu(pod: Pod, gpu: Gpu, world: World) -> float:
    """The part of a whole GPU that one unit of the pod is."""
    return float(gpu.share) / world.node(pod.node).offer(pod.resource).replicas


def watts_of(node: Node, busy: float) -> float:
    """Of one whole GPU that is as busy as this."""
    return node.watts * (0.2 + 0.8 * busy)


def _activity(world: World) -> Iterator[dict[str, Any]]:
    for pod in world.pods:
        node = world.node(pod.node)
        for hour, start_ms, end_ms in hours_of(pod, world):
            use = use_of(pod, hour)
            for gpu in set(pod.gpus):
                units = pod.gpus.count(gpu)
                held = (end_ms - start_ms) * part_of_gpu(pod, gpu, world) * units
                is_shared = node.offer(pod.resource).replicas > 1
                worked = (end_ms - start_ms) * float(gpu.share) if is_shared else held
                yield {
                    "cluster": world.name,
                    "node": pod.node,
                    "gpu": gpu.name,
                    "pod_uid": pod.uid,
                    "start_ms": start_ms,
                    "end_ms": end_ms,
                    "held_ms": held,
                    "observed_ms": held,
                    "busy_ms": worked * use.busy,
                    "sm_observed_ms": held,
                    "sm_active_ms": worked * use.sm,
                    "memory_used_bytes": use.memory_mib * 2.0**20,
                    "memory_total_bytes": gpu.memory_mib * 2.0**20,
                    "energy_j": (node.watts * 0.2 * held + node.watts * 0.8 * use.busy * worked) / 1000,
                }


def _signals(world: World) -> Iterator[dict[str, Any]]:
    rows = pd.DataFrame(list(_activity(world)))
    sums = rows.groupby(["cluster", "node", "pod_uid", "start_ms", "end_ms"], as_index=False)[
        ["observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms"]
    ].sum()
    sums["tensor_active_ms"] = sums["sm_active_ms"] * 0.5
    sums["tensor_observed_ms"] = sums["sm_observed_ms"]
    for name in SIGNALS.column_names[len(sums.columns) :]:
        sums[name] = np.nan
    yield from sums.to_dict("records")
