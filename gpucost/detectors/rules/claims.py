"""Rows of activity as claims on board time."""

from __future__ import annotations

import numpy as np

from gpucost.attribution.deal import Ints
from gpucost.detectors.activity import Floats
from gpucost.detectors.findings import Episode
from gpucost.detectors.rules.workloads import Workloads
from gpucost.domain.time import DAY_MS
from gpucost.domain.waste import Waste


def claims(
    table: Workloads,
    cluster: str,
    waste: Waste,
    pod: Ints,
    gpu: Ints,
    start: Ints,
    end: Ints,
    held_ms: Floats,
) -> tuple[Episode, ...]:
    """Rows of GPUs as episodes: rows of a day (UTC) that touch are one, and so are GPUs of one pod with the
    same times. What was held in the mean of an episode so is that of its day, however much more was read."""
    if not len(start):
        return ()
    order = np.lexsort([start, gpu])
    pod, gpu, start, end = pod[order], gpu[order], start[order], end[order]
    new = np.append(True, (gpu[1:] != gpu[:-1]) | (start[1:] != end[:-1]))
    new[1:] |= start[1:] // DAY_MS != start[:-1] // DAY_MS
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(start)) - 1
    amount = np.add.reduceat(held_ms[order], first)
    found: dict[tuple[int, int, int], list[float]] = {}
    keys = zip(pod[first].tolist(), start[first].tolist(), end[last].tolist(), strict=True)
    for key, held in zip(keys, amount.tolist(), strict=True):
        found.setdefault(key, []).append(held)
    return tuple(
        Episode(
            waste, cluster, table.nodes[at], table.uids[at], begin, close,
            sum(sorted(held)) / (close - begin), table.resources[at],
        )
        for (at, begin, close), held in sorted(found.items(), key=lambda item: _order(table, item[0]))
    )  # fmt: skip


def _order(table: Workloads, key: tuple[int, int, int]) -> tuple[str, str, int, int]:
    return table.uids[key[0]], table.nodes[key[0]], key[1], key[2]
