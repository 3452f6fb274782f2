"""The load of a server, step by step and pod by pod, and what its busiest steps need.

That may be fewer replicas, fewer GPUs in each pod, or a slice of its GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import ceil

import numpy as np

from gpucost.attribution.apportion import Ints
from gpucost.cluster.views.node_fit import MigSliceFit, smallest_fit
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.oversized_request.candidates import OversizedSearch
from gpucost.domain.jobs import JobKind


@dataclass(frozen=True)
class ServerLoad:
    """Rows of one server in which SMs and memory were measured, without GPUs that idle. Per row: ``pod`` is a
    position in the table's pods, ``sm`` and ``busy`` are 0 to 1 (``busy`` NaN where it is not measured),
    ``memory`` is in bytes."""

    search: OversizedSearch
    rows: Ints
    pod: Ints
    start: Ints
    end: Ints
    sm: Floats
    busy: Floats
    memory: Floats

    @cached_property
    def busier(self) -> float | None:
        """How many times as busy as the busiest hour of these rows one was before the history, at least 1;
        None where that is unknown."""
        past, row = self.search.facts.past, self.search.table.row(int(self.search.table.job[self.pod[0]]))
        before = None if past is None else past.peaks.get((row.namespace, row.job_uid))
        if past is None or before is None:
            return None
        hour = self.start // past.step_ms
        here = np.bincount(hour - hour.min(), self.sm * self.length * self._boards) / past.step_ms
        most = float(here.max())
        return max(1.0, before / most) if most else None

    @property
    def _boards(self) -> Floats:
        """Per row: its GPU in GPUs."""
        pods = self.search.table.pods.iloc[self.pod]
        found: Floats = (pods["boards"] / pods["units"].clip(lower=1)).to_numpy(np.float64)
        return np.nan_to_num(found)

    @classmethod
    def of(cls, search: OversizedSearch, which: Ints) -> ServerLoad:
        """``which`` are rows of one job's GPUs that count and have values."""
        use, table = search.use, search.table
        values = table.activity.values
        pod = table.pod[table.activity.code[which]]
        end = np.minimum(table.activity.end[which], table.end[pod])
        keep = use.start[which] < end
        rows, pod, end = which[keep], pod[keep], end[keep]
        sm = values["sm_active_ms"][rows] / values["sm_observed_ms"][rows]
        busy = use.share("busy_ms", "observed_ms", table.activity.is_observed)[rows]
        return cls(search, rows, pod, use.start[rows], end, sm, busy, values["memory_used_bytes"][rows])

    @cached_property
    def length(self) -> Floats:
        return (self.end - self.start).astype(np.float64)

    @cached_property
    def _steps(self) -> tuple[Ints, Ints]:
        """(order of the rows by pod and step, where in it each pod's step begins)."""
        order = np.lexsort([self.end, self.start, self.pod])
        parts = [each[order] for each in (self.pod, self.start, self.end)]
        new = np.zeros(len(order), np.bool_)
        new[0] = True
        for each in parts:
            new[1:] |= each[1:] != each[:-1]
        return order, np.flatnonzero(new)

    @cached_property
    def first(self) -> Ints:
        """One row of each pod's step."""
        order, begin = self._steps
        found: Ints = order[begin]
        return found

    def most(self, values: Floats) -> Floats:
        """Per pod's step: the maximum over its GPUs."""
        order, begin = self._steps
        found: Floats = np.fmax.reduceat(values[order], begin)
        return found

    def together(self, values: Floats) -> Floats:
        """Per pod's step: the sum over its GPUs; a GPU that was not measured counts as the mean of the
        others."""
        order, begin = self._steps
        seen = np.diff(np.append(begin, len(order)))
        gpus = np.maximum(self.search.table.gpus[self.pod[self.first]], seen)
        found: Floats = np.add.reduceat(values[order], begin) / seen * gpus
        return found

    @cached_property
    def edges(self) -> Ints:
        """Instants at which a step of some pod begins or ends."""
        return np.unique(np.concatenate([self.start[self.first], self.end[self.first]]))

    def over_time(self, of_step: Floats) -> Floats:
        """From each edge to the next: the sum over pods of a value of theirs."""
        found = np.zeros(len(self.edges))
        known = np.nan_to_num(of_step)
        np.add.at(found, np.searchsorted(self.edges, self.start[self.first]), known)
        np.add.at(found, np.searchsorted(self.edges, self.end[self.first]), -known)
        return np.cumsum(found)[:-1]

    @cached_property
    def replicas(self) -> Floats:
        """From each edge to the next: how many pods were observed, and did not idle."""
        return np.round(self.over_time(np.ones(len(self.first))))

    def of_rows(self, over_time: Floats) -> Floats:
        """The mean over each row of a value from each edge to the next."""
        total = np.append(0.0, np.cumsum(over_time * np.diff(self.edges)))
        at = np.interp(np.stack([self.start, self.end]), self.edges, total)
        found: Floats = (at[1] - at[0]) / self.length
        return found

    def mean(self, values: Floats) -> float:
        """The mean over time; NaN where nothing is known."""
        known = ~np.isnan(values)
        weight = float(self.length[known].sum())
        return float((values[known] * self.length[known]).sum()) / weight if weight else float("nan")

    def now(self, values: Floats) -> float:
        """GPUs of the last rows, times a value of each."""
        last = self.end == self.end.max()
        return float((self._boards * values)[last].sum())


_BUSY_ROOM = 0.9
"""Part of the time for which a replica may be busy at its peak, as if no two calls ran side by side: one that
handles a call at a time is full when it is always busy, however few SMs it uses. Ours."""
_ALIKE = frozenset({JobKind.DEPLOYMENT, JobKind.REPLICA_SET})
"""Kinds whose pods are interchangeable. Those of a StatefulSet may be shards, those of a LeaderWorkerSet or a
RayService parts of one replica."""
_DIGITS, _ROUNDING = 9, 1e-9


class ServerPart(StrEnum):
    """What a server can reduce."""

    REPLICAS = "replicas"
    GPUS = "GPUs"
    SLICE = "slice"


@dataclass(frozen=True)
class ServerNeed:
    """Of ``has`` replicas, or GPUs in a pod, the peak needs ``needs``; or ``fit`` instead of a GPU. ``saved``
    is the part of each row that it can do without.

    ``memory`` is the most in use of what must hold it (a GPU, or all those of a pod), in bytes. Where
    ``only_memory`` prevents a reduction, ``needs`` and ``fit`` are what its SMs need.
    """

    part: ServerPart
    has: int
    needs: int
    saved: Floats
    peak: float
    """Of the SMs of what it has, 0 to 1."""
    peak_ms: int
    memory: float
    fit: MigSliceFit | None = None
    only_memory: bool = False


def server_needs(
    search: OversizedSearch, load: ServerLoad, kind: str, settings: OversizedRequestSettings
) -> Iterator[ServerNeed]:
    """Every way in which it could have less, including those that only memory prevents."""
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
    """Each replica keeps its GPUs, and so has the memory it had."""
    sm, busy = (load.over_time(load.most(each)) for each in (load.sm, load.busy))
    at = int(np.argmax(sm))
    least = max(sm[at] / settings.peak_room, busy.max() / _BUSY_ROOM) * (load.busier or 1.0)
    needs = max(settings.least_replicas, ceil(least - _ROUNDING))
    seen = load.replicas
    saved = load.of_rows(np.maximum(seen - needs, 0) / np.maximum(seen, 1)).round(_DIGITS)
    memory = float(load.memory.max())
    peak = float(sm[at] / max(seen[at], 1))
    yield ServerNeed(ServerPart.REPLICAS, int(seen.max()), needs, saved, peak, int(load.edges[at]), memory)


def _slice(
    search: OversizedSearch, load: ServerLoad, settings: OversizedRequestSettings
) -> Iterator[ServerNeed]:
    models = {search.models.get(search.table.nodes[pod], "") for pod in np.unique(load.pod).tolist()}
    if len(models) != 1:
        return
    at = int(np.argmax(load.sm))
    peak, memory = float(load.sm[at]), float(load.memory.max())
    total = float(search.table.activity.values["memory_total_bytes"][load.rows].min())
    (model,), basis = models, search.facts.history.basis
    least = _least(load, peak, settings)
    for held in (memory, 0.0):
        fit = smallest_fit(model, total, held, least, settings.memory_room, basis)
        if fit is not None:
            saved: Floats = np.full(len(load.rows), float(1 - fit.share))
            yield ServerNeed(
                ServerPart.SLICE, 1, 1, saved, peak, int(load.start[at]), memory, fit, only_memory=held == 0.0
            )


def _least(load: ServerLoad, peak: float, settings: OversizedRequestSettings) -> float:
    """What the busiest hour takes, with the room that is kept."""
    return peak / settings.peak_room * (load.busier or 1.0)


def _gpus(load: ServerLoad, has: int, settings: OversizedRequestSettings) -> Iterator[ServerNeed]:
    """Halves, thirds and so on of what a pod has: its work is divided evenly."""
    sm, memory = load.together(load.sm), float(load.together(load.memory).max())
    at = int(np.argmax(sm))
    table = load.search.table
    total = float(table.activity.values["memory_total_bytes"][load.rows].min())
    for only_memory in (False, True):
        holds = 0.0 if only_memory else memory / (total * settings.memory_room)
        least = max(_least(load, sm[at], settings), holds) - _ROUNDING
        needs = next((count for count in range(1, has) if has % count == 0 and count >= least), has)
        if needs < has:
            saved: Floats = np.full(len(load.rows), 1 - needs / has)
            first = int(load.start[load.first[at]])
            peak = float(sm[at] / has)
            yield ServerNeed(ServerPart.GPUS, has, needs, saved, peak, first, memory, only_memory=only_memory)
