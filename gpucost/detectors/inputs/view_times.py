"""The GPU time of a view by nodes and hours, so that it gets the price of its nodes, flavor or queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags
from gpucost.detectors.findings import ViewTime, WasteEpisode
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.queue_quotas import QueueQuotas, StepFunction, boards_per_unit
from gpucost.domain.time import HOUR_MS


def of_episodes(episodes: Iterable[WasteEpisode]) -> tuple[ViewTime, ...]:
    """The time of claims that no finding counts; claims with an unknown number of GPUs have none."""
    return tuple(
        ViewTime(
            each.start_ms, each.end_ms, (each.end_ms - each.start_ms) * (each.boards or 0.0), (each.node,)
        )
        for each in episodes
    )


def of_flavors(
    facts: DetectorFacts, resource: str, which: Flags, units: StepFunction, start_ms: int, end_ms: int
) -> tuple[ViewTime, ...]:
    """``units`` of unused quota over time, as GPUs of its flavors' nodes. ``which`` are the rows of the
    quotas that it belongs to; where they have several flavors, each gets the part that its unused quota is of
    all."""
    quotas = QueueQuotas.of(facts.history)
    flavor = quotas.rows["flavor"].to_numpy(dtype=object)
    names = sorted(set(flavor[which].tolist()))
    unused = {
        name: quotas.unused(which & (flavor == name)).integral(start_ms, end_ms) if len(names) > 1 else 1.0
        for name in names
    }
    total = sum(unused.values())
    return tuple(
        ViewTime(start, end, unit_ms * (unused[name] / total if total else 1 / len(names)) * boards, nodes)
        for name in names
        for nodes in [flavor_nodes(facts, name, resource)]
        for boards in [float(np.nan_to_num(boards_per_unit(facts.history, resource, nodes)))]
        if boards
        for start, end, unit_ms in _hourly(units, start_ms, end_ms)
    )


def of_holders(
    held: pd.DataFrame, resource: str, boards: StepFunction, start_ms: int, end_ms: int
) -> tuple[ViewTime, ...]:
    """``boards`` over time of what ``held`` (rows of ``ClusterHistory.held``) had of a resource: hour by hour
    on its nodes, in the proportion of what it had there."""
    rows = held[(held["resource"] == resource).to_numpy(bool) & held["boards"].notna().to_numpy(bool)]
    first, last = (rows[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
    amount, node = rows["boards"].to_numpy(np.float64), rows["node"].to_numpy(dtype=object)
    found = list[ViewTime]()
    for start, end, board_ms in _hourly(boards, start_ms, end_ms):
        time = (np.minimum(last, end) - np.maximum(first, start)).clip(min=0) * amount
        total = float(time.sum())
        if not total:
            found.append(ViewTime(start, end, board_ms))
            continue
        here = pd.Series(time[time > 0]).groupby(node[time > 0]).sum()
        found += [
            ViewTime(start, end, board_ms * float(part) / total, (str(name),)) for name, part in here.items()
        ]
    return tuple(found)


def flavor_nodes(facts: DetectorFacts, flavor: str, resource: str) -> tuple[str, ...]:
    """The nodes that quota of a flavor stands for: those its labels select, where the state is known; else
    those on which work with the flavor ran; else all that have the resource."""
    known = facts.overview.state.flavor_by_name.get(flavor) if facts.overview is not None else None
    if facts.overview is not None and known is not None:
        nodes = [
            node.meta.name
            for node in facts.overview.state.nodes.values()
            if known.node_labels.items() <= node.labels.items()
            and max(node.capacity.get(resource, 0), node.allocatable.get(resource, 0)) > 0
        ]
        if nodes:
            return tuple(sorted(nodes))
    held = facts.history.frames.allocations
    used = held[(held["resource"] == resource) & (held["flavor"] == flavor)] if flavor else held[:0]
    if not len(used):
        used = facts.history.frames.capacity
        used = used[used["resource"] == resource]
    return tuple(sorted(set(used["node"].astype(str).tolist())))


def _hourly(boards: StepFunction, start_ms: int, end_ms: int) -> Iterator[tuple[int, int, float]]:
    """(start, end, GPU milliseconds) of every whole hour of UTC, and what is left at both ends. Prices
    change at such instants, and a series may change every few seconds."""
    edges: Sequence[int] = [
        start_ms,
        *range(start_ms // HOUR_MS * HOUR_MS + HOUR_MS, end_ms, HOUR_MS),
        end_ms,
    ]
    for start, end in pairwise(edges):
        board_ms = boards.integral(start, end)
        if board_ms:
            yield start, end, board_ms
