"""Free trays of NVLink domains that waiting jobs cannot use, because ComputeDomains have the others.

A *tray* is a node with a channel for ComputeDomains (``cluster.views.nvlink_domains``): whoever needs a
channel gets one tray for each pod, and none that a ComputeDomain has, however many of its GPUs are free. At
every instant at which something changed, the jobs that wait for trays are tried in turn, the longest waiting
first. One that fits takes, on paper, the trays it would have had: it waits for something else. One that does
not fit is stranded

- by *taken trays*, if it would fit on trays with enough free GPUs, were their channels free;
- by the *rest*, if all of its pods must be in one clique, and it would fit into one of which ComputeDomains
  have a part, were they not there, and something is free. GPUs that others hold without a ComputeDomain stay
  held.

It then claims the free GPUs that it would use: of trays that it could have, then of taken ones, as many as it
has pods. A tray is claimed once. A job that would not fit in any case claims nothing here.

Times of trays are known to the minute. Where there are very many of them, they are rounded up to minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.views.nvlink_domains import ChannelNeed
from gpucost.cluster.views.wait_causes import GATED
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.detectors.inputs.queue_quotas import QuotaLeft
from gpucost.domain.time import MINUTE_MS

_MOST_INSTANTS = 20_000


class StrandingCause(StrEnum):
    """Why a job does not fit; the variants of the rule."""

    TAKEN_TRAYS = "taken_trays"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class StrandedStretch:
    """A row of demand had no place in ``clique`` in ``[start, end)``: of the ``needed`` trays ``open_`` were
    there. Of free units of each tray in ``claims`` it claims so many: (node, units)."""

    row: int
    clique: str
    cause: StrandingCause
    start_ms: int
    end_ms: int
    needed: int
    open_: int
    claims: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StrandedDemand:
    """``demand`` are the rows that need channels, by their position in the frame; ``trays`` is how many nodes
    with channels were ever seen."""

    demand: pd.DataFrame
    trays: int
    stretches: tuple[StrandedStretch, ...] = ()


def stranded(history: ClusterHistory) -> StrandedDemand:
    """Of all waiting jobs that need channels. Computed once per history."""
    if "stranded" not in history.memo:
        history.memo["stranded"] = _stranded(history)
    found = history.memo["stranded"]
    assert isinstance(found, StrandedDemand)
    return found


def stranded_spans(history: ClusterHistory) -> Mapping[int, Sequence[tuple[int, int]]]:
    """By row of demand, when it was stranded: it could then use none of the GPUs that were free."""
    found: dict[int, list[tuple[int, int]]] = {}
    for each in stranded(history).stretches:
        found.setdefault(each.row, []).append((each.start_ms, each.end_ms))
    return found


def _stranded(history: ClusterHistory) -> StrandedDemand:
    demand, domains = history.frames.demand.reset_index(drop=True), history.frames.domains
    # Whoever has its own pods wait (scheduling gates) waits for no tray.
    rows = demand[(demand["channel"] != ChannelNeed.NONE.value) & (demand["reason"] != GATED)]
    trays = domains["node"].nunique()
    if rows.empty or not trays:
        return StrandedDemand(rows, trays)
    waits = rows.groupby(["namespace", "job_uid", "pod_set", "resource"])["start_ms"].transform("min")
    rows = rows.assign(since_ms=waits)
    found = [
        stretch
        for resource, asked in rows.groupby("resource", observed=True)
        for stretch in _TraySweep(history, str(resource), asked).run()
    ]
    return StrandedDemand(rows, trays, tuple(sorted(found, key=lambda each: (each.start_ms, each.row))))


class _Asked(NamedTuple):
    row: int
    start_ms: int
    end_ms: int
    products: str
    pods: int
    min_pods: int
    units: int
    channel: str
    cluster_queue: str
    layer: str


class _Change(NamedTuple):
    """At an instant ``amount`` more of ``what`` (a row of the sweep's table) on a tray."""

    at_ms: int
    what: int
    tray: int
    amount: int


_GIVEN, _HELD, _RESERVED = range(3)
_AskedKind = tuple[str, int, str]
"""Products, units of a pod, and channel: jobs of one kind find the same room."""


class _Rooms(NamedTuple):
    """What jobs of one kind find: trays with enough free units, and by group of trays how many of them no
    ComputeDomain has, whether there are ``some`` at all, and how many there would be but for each cause."""

    roomy: Flags
    open_: Ints
    some: Flags
    would: Mapping[StrandingCause, Ints]


class _TraySweep:
    """The trays of one resource, and the jobs that wait for them."""

    def __init__(self, history: ClusterHistory, resource: str, rows: pd.DataFrame) -> None:
        self._history, self._resource, self._quota = history, resource, QuotaLeft(history)
        domains = history.frames.domains.sort_values("start_ms", kind="stable")
        cliques = dict(zip(domains["node"].tolist(), domains["clique"].tolist(), strict=True))
        self._names = sorted(cliques)
        self._index = {name: n for n, name in enumerate(self._names)}
        codes, names = pd.factorize(np.array([cliques[name] for name in self._names], dtype=object))
        self._clique: Ints = codes.astype(np.int64)
        self._cliques = [str(name) for name in names]
        # Trays without a clique are in none.
        self._real: Ints = np.array([n for n, name in enumerate(self._cliques) if name], dtype=np.int64)
        self._products = np.array([history.products.get(name, "") for name in self._names], dtype=object)
        ordered = rows.sort_values(["since_ms", "job_uid", "pod_set", "start_ms"], kind="stable")
        columns = (ordered[name].tolist() for name in _Asked._fields[1:])
        self._asked = [
            _Asked(row, *rest) for row, *rest in zip(ordered.index.tolist(), *columns, strict=True)
        ]
        self._right: dict[str, Flags] = {}
        self._changes = sorted(self._found())

    def _found(self) -> Iterator[_Change]:
        frames = self._history.frames
        capacity, held = frames.capacity, frames.allocations
        capacity = capacity[capacity["resource"] == self._resource]
        given = (capacity["allocatable"] * capacity["schedulable"]).clip(lower=0)
        held = held[held["resource"] == self._resource]
        for what, frame, amounts in (
            (_GIVEN, capacity, given),
            (_HELD, held, held["count"]),
            (_RESERVED, frames.domains, frames.domains["reserved"]),
        ):
            columns = (frame[name].tolist() for name in ("node", "start_ms", "end_ms"))
            for node, start_ms, end_ms, amount in zip(*columns, amounts.tolist(), strict=True):
                tray = self._index.get(node)
                if tray is not None and amount:
                    yield _Change(start_ms, what, tray, int(amount))
                    yield _Change(end_ms, what, tray, -int(amount))

    def run(self) -> Iterator[StrandedStretch]:
        now = np.zeros((3, len(self._names)), dtype=np.int64)
        open_: dict[int, StrandedStretch] = {}
        done = 0
        starts = np.array([each.start_ms for each in self._asked], dtype=np.int64)
        ends = np.array([each.end_ms for each in self._asked], dtype=np.int64)
        for start_ms, end_ms in pairwise(self._instants()):
            while done < len(self._changes) and self._changes[done].at_ms <= start_ms:
                change = self._changes[done]
                now[change.what, change.tray] += change.amount
                done += 1
            is_seen = self._history.seen_ms(start_ms, end_ms) == end_ms - start_ms
            there = np.flatnonzero((starts < end_ms) & (ends > start_ms)).tolist() if is_seen else []
            waiting = (each for each in map(self._asked.__getitem__, there) if self._waits(each, end_ms))
            found = {each.row: each for each in self._try(waiting, now, start_ms, end_ms)}
            for row, before in list(open_.items()):
                after = found.pop(row, None)
                if after is not None and _is_same(before, after):
                    open_[row] = replace(before, end_ms=end_ms)
                    continue
                yield open_.pop(row)
                if after is not None:
                    found[row] = after
            open_ |= found
        yield from open_.values()

    def _waits(self, asked: _Asked, end_ms: int) -> bool:
        """For trays, not for quota: Kueue may hold it back since no domain of its topology has room."""
        wanted = max(asked.min_pods, 1) * max(asked.units, 1)
        return asked.layer != WaitLayer.QUOTA or self._quota.has(
            asked.cluster_queue, self._resource, end_ms, wanted
        )

    def _instants(self) -> list[int]:
        """All at which something changes while somebody waits."""
        first, last = min(each.start_ms for each in self._asked), max(each.end_ms for each in self._asked)
        starts, ends = self._history.seen
        edges = {edge for each in self._asked for edge in (each.start_ms, each.end_ms)}
        edges |= {*starts.tolist(), *ends.tolist(), *(each.at_ms for each in self._changes)}
        times = sorted(each for each in edges if first <= each <= last)
        if len(times) > _MOST_INSTANTS:
            times = sorted({first, last, *(min(-(-each // MINUTE_MS) * MINUTE_MS, last) for each in times)})
        return times

    def _try(
        self, waiting: Iterable[_Asked], now: Ints, start_ms: int, end_ms: int
    ) -> Iterator[StrandedStretch]:
        free: Ints = np.maximum(now[_GIVEN] - now[_HELD], 0)
        reserved: Flags = now[_RESERVED] > 0
        spent: Flags = np.zeros(len(free), dtype=bool)
        rooms: dict[_AskedKind, _Rooms] = {}
        hopeless = set[tuple[_AskedKind, int]]()  # as long as no further tray is spent
        for asked in waiting:
            units, least = max(asked.units, 1), max(asked.min_pods, 1)
            kind = asked.products, units, asked.channel
            if (kind, least) in hopeless:
                continue
            if kind not in rooms:
                right = self._admits(asked.products) & ~spent
                rooms[kind] = self._rooms(asked.channel, right, free >= units, reserved, now[_GIVEN] >= units)
            room = rooms[kind]
            fitting = np.flatnonzero(room.open_ >= least)
            if len(fitting):
                group = int(fitting[room.open_[fitting].argmin()])
                spent[_first(room.roomy & ~reserved & self._group(asked.channel, group), asked.pods)] = True
            elif not (found := self._found_stranded(asked, room, reserved, start_ms, end_ms)):
                hopeless.add((kind, least))
                continue
            else:
                spent[[self._index[node] for node, _ in found.claims]] = True
                yield found
            rooms.clear()
            hopeless.clear()
            if not (free[~spent] > 0).any():
                return

    def _found_stranded(
        self, asked: _Asked, room: _Rooms, reserved: Flags, start_ms: int, end_ms: int
    ) -> StrandedStretch | None:
        """What a job that does not fit claims, of the group of trays in which most are open; None for one
        that would not fit in any case, or only where nothing is free."""
        least = max(asked.min_pods, 1)
        for cause, would in room.would.items():
            if cause is StrandingCause.REST and asked.channel != ChannelNeed.CLIQUE:
                continue
            able = np.flatnonzero((would >= least) & room.some)
            if not len(able) or asked.pods < 1:
                continue
            group = int(able[room.open_[able].argmax()])
            mine = self._group(asked.channel, group) & room.roomy
            chosen = np.concatenate(
                [_first(mine & ~reserved, asked.pods), _first(mine & reserved, asked.pods)]
            )[: asked.pods]
            claims = tuple((self._names[tray], max(asked.units, 1)) for tray in chosen.tolist())
            clique, span = self._clique_of(asked, group, chosen), (start_ms, end_ms)
            return StrandedStretch(asked.row, clique, cause, *span, least, int(room.open_[group]), claims)
        return None

    def _rooms(self, channel: str, right: Flags, has_room: Flags, reserved: Flags, given: Flags) -> _Rooms:
        roomy = right & has_room
        of_groups = [self._count(channel, each) for each in (roomy, roomy & ~reserved)]
        would = {
            StrandingCause.TAKEN_TRAYS: of_groups[0],
            StrandingCause.REST: self._count(channel, roomy | (right & reserved & given)),
        }
        return _Rooms(roomy, of_groups[1], of_groups[0] > 0, would)

    def _count(self, channel: str, trays: Flags) -> Ints:
        """How many of ``trays`` each group has."""
        if channel != ChannelNeed.CLIQUE:
            return np.array([trays.sum()], dtype=np.int64)
        counts: Ints = np.bincount(self._clique[trays], minlength=len(self._cliques))[self._real]
        return counts

    def _clique_of(self, asked: _Asked, group: int, chosen: Ints) -> str:
        """The clique that the job would be in, or that with most of the trays that it claims."""
        if asked.channel == ChannelNeed.CLIQUE:
            return self._cliques[int(self._real[group])]
        return self._cliques[int(np.bincount(self._clique[chosen]).argmax())]

    def _group(self, channel: str, group: int) -> Flags:
        """A set of trays that the pods of a job may be in together."""
        if channel == ChannelNeed.CLIQUE:
            found: Flags = self._clique == self._real[group]
            return found
        return np.ones(len(self._names), dtype=bool)

    def _admits(self, products: str) -> Flags:
        if products not in self._right:
            wanted = products.split("|")
            self._right[products] = np.array([not products or each in wanted for each in self._products])
        return self._right[products]


def _first(trays: Flags, count: int) -> Ints:
    found: Ints = np.flatnonzero(trays)[:count]
    return found


def _is_same(before: StrandedStretch, after: StrandedStretch) -> bool:
    """Whether one goes on as the other."""
    return before.end_ms == after.start_ms and before == replace(
        after, start_ms=before.start_ms, end_ms=before.end_ms
    )
