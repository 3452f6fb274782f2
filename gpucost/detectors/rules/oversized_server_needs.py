"""What a server's busiest steps need: fewer replicas, fewer GPUs in each pod, or a slice of its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import numpy as np

from gpucost.cluster.mig_fit import Fit, smallest_fit
from gpucost.detectors.activity import Floats
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.oversized_common import Search
from gpucost.detectors.rules.oversized_server_load import ServerLoad
from gpucost.domain.jobs import JobKind

_BUSY_ROOM = 0.9
"""Part of the time for which a replica may be busy at its peak, as if no two calls ran side by side: one that
handles a call at a time is full when it is always busy, however few SMs it uses. Ours."""
_ALIKE = frozenset({JobKind.DEPLOYMENT, JobKind.REPLICA_SET})
"""Kinds whose pods stand for one another. Those of a StatefulSet may be shards, those of a LeaderWorkerSet or
a RayService parts of one replica."""
_DIGITS, _ROUNDING = 9, 1e-9


class Part(StrEnum):
    """What a server can have less of."""

    REPLICAS = "replicas"
    GPUS = "GPUs"
    SLICE = "slice"


@dataclass(frozen=True)
class ServerNeed:
    """Of ``has`` replicas, or GPUs in a pod, the peak needs ``needs``; or ``fit`` instead of a GPU. ``saved``
    is the part of each row that it can do without.

    ``memory`` is the most in use of what must hold it (a GPU, or all those of a pod), in bytes. Where
    ``only_memory`` keeps it from less, ``needs`` and ``fit`` are what its SMs need.
    """

    part: Part
    has: int
    needs: int
    saved: Floats
    peak: float
    """Of the SMs of what it has, 0 to 1."""
    peak_ms: int
    memory: float
    fit: Fit | None = None
    only_memory: bool = False


def server_needs(
    search: Search, load: ServerLoad, kind: str, settings: OversizedRequestSettings
) -> Iterator[ServerNeed]:
    """Every way in which it could have less, those that only memory forbids too."""
    pods = np.unique(load.pod)
    gpus = np.unique(search.table.gpus[pods])
    if kind in _ALIKE and load.replicas.max() > settings.least_replicas:
        yield from _replicas(load, settings)
    if len(gpus) != 1 or not search.table.whole[pods].all():
        return
    if gpus[0] == 1:
        yield from _slice(search, load, settings)
    else:
        yield from _gpus(load, int(gpus[0]), settings)


def _replicas(load: ServerLoad, settings: OversizedRequestSettings) -> Iterator[ServerNeed]:
    """Each keeps its GPUs, and so has the memory it had."""
    sm, busy = (load.over_time(load.most(each)) for each in (load.sm, load.busy))
    at = int(np.argmax(sm))
    least = max(sm[at] / settings.peak_room, busy.max() / _BUSY_ROOM) * (load.busier or 1.0)
    needs = max(settings.least_replicas, ceil(least - _ROUNDING))
    seen = load.replicas
    saved = load.of_rows(np.maximum(seen - needs, 0) / np.maximum(seen, 1)).round(_DIGITS)
    memory = float(load.memory.max())
    peak = float(sm[at] / max(seen[at], 1))
    yield ServerNeed(Part.REPLICAS, int(seen.max()), needs, saved, peak, int(load.edges[at]), memory)


def _slice(search: Search, load: ServerLoad, settings: OversizedRequestSettings) -> Iterator[ServerNeed]:
    models = {search.models.get(search.table.nodes[pod], "") for pod in np.unique(load.pod).tolist()}
    if len(models) != 1:
        return
    at = int(np.argmax(load.sm))
    peak, memory = float(load.sm[at]), float(load.memory.max())
    total = float(search.table.activity.values["memory_total_bytes"][load.rows].min())
    (model,), basis = models, search.facts.history.basis
    least = peak / settings.peak_room * (load.busier or 1.0)
    for held in (memory, 0.0):
        fit = smallest_fit(model, total, held, least, settings.memory_room, basis)
        if fit is not None:
            saved: Floats = np.full(len(load.rows), float(1 - fit.share))
            yield ServerNeed(
                Part.SLICE, 1, 1, saved, peak, int(load.start[at]), memory, fit, only_memory=held == 0.0
            )


def _gpus(load: ServerLoad, has: int, settings: OversizedRequestSettings) -> Iterator[ServerNeed]:
    """Halves, thirds and so on of what a pod has: its work is divided evenly."""
    sm, memory = load.together(load.sm), float(load.together(load.memory).max())
    at = int(np.argmax(sm))
    table = load.search.table
    total = float(table.activity.values["memory_total_bytes"][load.rows].min())
    for only_memory in (False, True):
        holds = 0.0 if only_memory else memory / (total * settings.memory_room)
        least = max(sm[at] / settings.peak_room * (load.busier or 1.0), holds) - _ROUNDING
        needs = next((count for count in range(1, has) if has % count == 0 and count >= least), has)
        if needs < has:
            saved: Floats = np.full(len(load.rows), 1 - needs / has)
            first = int(load.start[load.first[at]])
            peak = float(sm[at] / has)
            yield ServerNeed(Part.GPUS, has, needs, saved, peak, first, memory, only_memory=only_memory)
