"""Reads and attributes the last minutes of a cluster as a report does, to show what a report would
contain."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution
from gpucost.contract.probe import TrialReading
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode, NotCovered
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.upstream.upstream_source import UpstreamSource

SPAN_MS = 30 * MINUTE_MS
_MIG = "nvidia.com/mig-"
_NAMED = {"team": "team_label", "project": "project", "user": "user", "queue": "queue"}
_MEASURED = {
    "busy": "observed_ms",
    "sm": "sm_observed_ms",
    "tensor": "tensor_observed_ms",
    "memory": "memory_observed_ms",
    "energy": "energy_observed_ms",
}


def read_trial(
    source: UpstreamSource, cluster: str, attributed: Callable[[ClusterFrames, Window], Attribution]
) -> TrialReading | None:
    """The result for the latest minutes that can be read; None if no minute can. Raises what ``source.read``
    raises."""
    covered = source.covered(cluster)
    if covered is None:
        return None
    window = Window(max(covered.start_ms, covered.end_ms - SPAN_MS), covered.end_ms)
    try:
        frames = source.read(cluster, window)
    except NotCovered:
        return None
    return summed(frames, attributed(frames, window))


def summed(frames: ClusterFrames, attribution: Attribution) -> TrialReading:
    """The totals of the trial: GPU milliseconds, and numbers of nodes and pods."""
    lines = attribution.flat()
    is_over = lines["bucket"] == Bucket.OVERCOMMITTED.value
    held = lines[lines["bucket"] == Bucket.HELD.value]
    capacity = lines[~is_over]
    unpriced = capacity[capacity["rate_id"] == ""].groupby("model")["board_ms"].sum()
    unknown = {p.subject for p in attribution.problems if p.code is DataProblemCode.UNIT_UNKNOWN}
    handed_out = frames.capacity[frames.capacity[["capacity", "allocatable"]].max(axis=1) > 0]
    sized = set(frames.nodes.loc[frames.nodes["boards"] >= 0, "node"])
    whole = handed_out[~handed_out["resource"].str.startswith(_MIG)]
    uncounted = set(handed_out.loc[handed_out["expected"] < 0, "node"])
    nodes = {*frames.nodes["node"], *frames.capacity["node"]}
    return TrialReading(
        held_ms=int(held["board_ms"].sum()),
        unpriced={str(model): int(ms) for model, ms in unpriced.items() if ms},
        doubted={
            p.subject: p.detail for p in attribution.problems if p.code is DataProblemCode.PRICE_DOUBTFUL
        },
        capacity_ms=int(capacity["board_ms"].sum()),
        over_ms=int(lines.loc[is_over, "board_ms"].sum()),
        unshared_pods=len(unknown & {*frames.allocations["pod_uid"]}),
        named={name: _time(held, held[column] != "") for name, column in _NAMED.items()},
        measured={name: int(held[column].sum()) for name, column in _MEASURED.items()},
        nodes=len(nodes),
        unsized_nodes=len({*whole["node"]} - sized),
        counted_nodes=len(nodes - uncounted),
    )


def _time(lines: pd.DataFrame, chosen: pd.Series[bool]) -> int:
    return int(lines.loc[chosen, "board_ms"].sum())
