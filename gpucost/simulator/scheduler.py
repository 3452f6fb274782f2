"""A small scheduler: gangs whole or not at all, best fit, first come first served with backfill, preemption.

It never gives out more units than a node advertises. What it returns is what really happened, from which both
the frames and the ground truth are made. ``of_pods`` says which concrete GPUs a pod holds: the first that are
free, as a device plugin would give them. ``SpareCapacity`` is room that it left: where and when something
more can run without disturbing other pods.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import ResourceOffer, SimulatedNode, TroubleSpell
from gpucost.simulator.workloads import DrawnInts, JobSubmission, stable_uid

DRAIN_GRACE_MS = 30 * MINUTE_MS
BACKOFF_MS = 30 * SECOND_MS
"""From the end of an attempt to the submission of the next."""
# How far down a queue backfill looks; real schedulers bound it too.
_BACKFILL = 40
STEP_MS = 5 * MINUTE_MS


class SimulatedOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """One pod, bound to ``node`` during ``[start_ms, end_ms)``; RUNNING ones outlive the month.

    ``by`` is the job that preempted it, as namespace/name.
    """

    submission: JobSubmission
    index: int
    node: str
    start_ms: int
    end_ms: int
    outcome: SimulatedOutcome
    by: str = ""


@dataclass(frozen=True, slots=True)
class SchedulingWait:
    """One attempt of a submission without nodes during ``[start_ms, end_ms)``."""

    submission: JobSubmission
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class _JobRun:
    submission: JobSubmission
    nodes: list[str]
    start_ms: int


# What an event does at its time; it returns the pool in which something may now fit.
_Handler = Callable[[int], str]
# Urgent work first, then by time of submission; the number keeps the order total.
_Waiting = tuple[bool, int, int, JobSubmission]


class SimulatedScheduler:
    """Takes submissions through a month of node events. For one use: call ``run`` once."""

    def __init__(self, nodes: Sequence[SimulatedNode], month: Window) -> None:
        self._month = month
        self._free: dict[tuple[str, str], int] = {}
        self._open: dict[str, set[str]] = defaultdict(set)
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)
        self._runs: dict[int, _JobRun] = {}
        self._on_node: dict[str, set[int]] = defaultdict(set)
        self._events: list[tuple[int, int, _Handler]] = []
        self._count = 0
        self._placements: list[PodPlacement] = []
        self._measured = {node.name for node in nodes if node.signal_coverage == 1}
        self.waits: list[SchedulingWait] = []
        """Every attempt that did not start at once; filled by ``run``."""
        for node in nodes:
            self._plan(node)

    def run(self, submissions: Iterable[JobSubmission]) -> tuple[list[PodPlacement], list[JobSubmission]]:
        """(every pod that was bound, by time; every submission that never was)."""
        for submission in submissions:
            self._at(submission.submit_ms, partial(self._submit, submission))
        while self._events and self._events[0][0] < self._month.end_ms:
            now, _, handler = heapq.heappop(self._events)
            self._schedule(handler(now), now)
        for run_id in list(self._runs):
            self._stop(run_id, self._month.end_ms, SimulatedOutcome.RUNNING)
        never = [entry[3] for pool in sorted(self._waiting) for entry in self._waiting[pool]]
        for pool in sorted(self._waiting):
            self.waits += [
                SchedulingWait(sub, since, self._month.end_ms) for _, since, _, sub in self._waiting[pool]
            ]
        self._placements.sort(key=lambda pod: (pod.start_ms, pod.submission.job.uid, pod.index, pod.node))
        return self._placements, [sub for sub in never if sub.attempt == 0]

    def _at(self, time_ms: int, handler: _Handler) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_ms, self._count, handler))

    def _plan(self, node: SimulatedNode) -> None:
        for offer in node.offers:
            self._free[node.name, offer.resource] = offer.units
        if node.start_ms <= self._month.start_ms:
            self._open[node.pool].add(node.name)
        else:
            self._at(node.start_ms, partial(self._uncordon, node))
        if node.end_ms < self._month.end_ms:
            self._at(node.end_ms, partial(self._remove, node))
        for spell in node.spells:
            if spell.cordoned:
                self._at(spell.start_ms, partial(self._cordon, node))
                self._at(spell.start_ms + DRAIN_GRACE_MS, partial(self._evict_all, node))
                self._at(spell.end_ms, partial(self._uncordon, node))
            else:
                self._at(spell.start_ms, partial(self._lose, node, spell))
                self._at(spell.end_ms, partial(self._regain, node, spell))

    def _submit(self, submission: JobSubmission, now: int) -> str:
        self._count += 1
        entry = (not submission.urgent, now, self._count, submission)
        insort(self._waiting[submission.pool], entry, key=lambda waiting: waiting[:3])
        return submission.pool

    def _finish(self, run_id: int, outcome: SimulatedOutcome, now: int) -> str:
        if run_id not in self._runs:
            return ""
        submission = self._stop(run_id, now, outcome)
        if outcome is SimulatedOutcome.FAILED and submission.attempt < submission.retries:
            again = replace(submission, attempt=submission.attempt + 1)
            self._at(now + BACKOFF_MS, partial(self._submit, again))
        return submission.pool

    def _cordon(self, node: SimulatedNode, now: int) -> str:  # noqa: ARG002  handlers are called with the time
        self._open[node.pool].discard(node.name)
        return ""

    def _uncordon(self, node: SimulatedNode, now: int) -> str:  # noqa: ARG002
        self._open[node.pool].add(node.name)
        return node.pool

    def _remove(self, node: SimulatedNode, now: int) -> str:
        self._cordon(node, now)
        return self._evict_all(node, now)

    def _lose(self, node: SimulatedNode, spell: TroubleSpell, now: int) -> str:
        """Units vanish: pods leave, the newest first, until the rest fits."""
        resource = node.offers[0].resource
        self._free[node.name, resource] -= spell.lost
        while self._free[node.name, resource] < 0:
            self._interrupt(max(self._on_node[node.name]), now, SimulatedOutcome.FAILED)
        return node.pool

    def _regain(self, node: SimulatedNode, spell: TroubleSpell, now: int) -> str:  # noqa: ARG002
        self._free[node.name, node.offers[0].resource] += spell.lost
        return node.pool

    def _evict_all(self, node: SimulatedNode, now: int) -> str:
        for run_id in sorted(self._on_node[node.name]):
            self._interrupt(run_id, now, SimulatedOutcome.EVICTED)
        return node.pool

    def _interrupt(self, run_id: int, now: int, outcome: SimulatedOutcome, by: str = "") -> None:
        """Stop a run before its time; work that restarts comes back for what is left of it."""
        start_ms = self._runs[run_id].start_ms
        submission = self._stop(run_id, now, outcome, by)
        left_ms = submission.run_ms - (now - start_ms)
        if submission.restarts and left_ms > 0:
            again = replace(
                submission, run_ms=left_ms, attempt=submission.attempt + 1, retries=submission.retries + 1
            )
            self._at(now + BACKOFF_MS, partial(self._submit, again))

    def _stop(self, run_id: int, now: int, outcome: SimulatedOutcome, by: str = "") -> JobSubmission:
        run = self._runs.pop(run_id)
        submission = run.submission
        for index, name in enumerate(run.nodes):
            self._free[name, submission.resource] += submission.units
            self._on_node[name].discard(run_id)
            if now > run.start_ms:
                self._placements.append(PodPlacement(submission, index, name, run.start_ms, now, outcome, by))
        return submission

    def _schedule(self, pool: str, now: int) -> None:
        """Start what fits, in order; the first that does not fit does not hold up those behind it."""
        waiting = self._waiting[pool]
        for entry in waiting[:_BACKFILL]:
            submission = entry[3]
            nodes = self._fit(submission)
            if nodes is None and submission.urgent:
                nodes = self._preempt(submission, now)
            if nodes is not None:
                waiting.remove(entry)
                if now > entry[1]:
                    self.waits.append(SchedulingWait(submission, entry[1], now))
                self._start(submission, nodes, now)

    def _fit(self, submission: JobSubmission) -> list[str] | None:
        """The nodes for all pods of the gang, or None: each time the fullest node that still has room."""
        names = self._open[submission.pool]
        if submission.measured:
            names = names & self._measured
        free = {name: self._free[name, submission.resource] for name in names}
        chosen: list[str] = []
        for _ in range(submission.pods):
            fitting = [(units, name) for name, units in free.items() if units >= submission.units]
            if not fitting:
                return None
            chosen.append(min(fitting)[1])
            free[chosen[-1]] -= submission.units
        return chosen

    def _preempt(self, submission: JobSubmission, now: int) -> list[str] | None:
        """Stop the newest other runs of the pool until the gang fits; nothing if it never could."""
        names = self._open[submission.pool]
        runs = {run_id for name in names for run_id in self._on_node[name]}
        victims = [
            run_id for run_id in sorted(runs, reverse=True) if not self._runs[run_id].submission.urgent
        ]
        for run_id in victims:
            self._interrupt(run_id, now, SimulatedOutcome.PREEMPTED, submission.job.full_name)
            nodes = self._fit(submission)
            if nodes is not None:
                return nodes
        return None

    def _start(self, submission: JobSubmission, nodes: list[str], now: int) -> None:
        self._count += 1
        run_id = self._count
        self._runs[run_id] = _JobRun(submission, nodes, now)
        for name in nodes:
            self._free[name, submission.resource] -= submission.units
            self._on_node[name].add(run_id)
        attempt = submission.attempt
        failing = attempt < len(submission.failures)
        part = submission.failures[attempt] if failing else 1.0
        length_ms = max(SECOND_MS, int(submission.run_ms * part) // SECOND_MS * SECOND_MS)
        outcome = SimulatedOutcome.FAILED if failing else SimulatedOutcome.SUCCEEDED
        self._at(now + length_ms, partial(self._finish, run_id, outcome))


# MIG ids count from the largest profile on, as drivers do.
_FIRST_INSTANCE = {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 3, "nvidia.com/mig-1g.10gb": 9}
_Key = tuple[str, str]


def gpu_id(seed: int, node: SimulatedNode, offer: ResourceOffer, slot: int) -> str:
    """The GPU behind a unit: the GPU's uuid, with its instance where the unit is a slice.

    ``slot`` counts units; shared GPUs take them in turn, and so do slices of mixed GPUs.
    """
    if offer.share == 1 or offer.replicas > 1:
        return board_uuid(seed, node.name, slot % node.boards)
    if "mig-" in offer.resource:
        return f"{board_uuid(seed, node.name, slot % node.boards)}/{_FIRST_INSTANCE[offer.resource]}"
    per_board = offer.units // node.boards
    return f"{board_uuid(seed, node.name, slot // per_board)}/{7 + slot % per_board}"


def board_uuid(seed: int, node: str, board: int) -> str:
    return f"GPU-{stable_uid(seed, f'{node}/board/{board}')}"


class GpuSlots:
    """Slots of all pods and of lost GPUs, in order of time."""

    def __init__(
        self, nodes: Sequence[SimulatedNode], placements: Sequence[PodPlacement], extra: PodPlacement
    ) -> None:
        self.slots: list[tuple[int, ...]] = [()] * len(placements)
        """Per placement, in the order given: the slots of its units."""
        self.lost: dict[str, int] = {}
        """By node: the GPU that was lost for a while."""
        self._free: Mapping[_Key, list[int]] = {
            (node.name, offer.resource): list(range(offer.units)) for node in nodes for offer in node.offers
        }
        # Units that end are given back before anything that begins at the same instant takes some.
        events: list[tuple[int, int, int, SimulatedNode | None]] = []
        for at, pod in enumerate(placements):
            if pod is extra:
                self.slots[at] = (0,)
                continue
            events += [(pod.start_ms, 2, at, None), (pod.end_ms, 0, at, None)]
        for node in nodes:
            events += [(spell.start_ms, 1, 0, node) for spell in node.spells if spell.lost]
            events += [(spell.end_ms, 0, 0, node) for spell in node.spells if spell.lost]
        for _, phase, at, node_lost in sorted(events, key=lambda event: event[:3]):
            if node_lost is not None:
                self._board(node_lost, is_lost=phase == 1)
            else:
                self._pod(placements[at], at, begins=phase == 2)

    def _pod(self, pod: PodPlacement, at: int, *, begins: bool) -> None:
        free = self._free[pod.node, pod.submission.resource]
        if begins:
            self.slots[at] = tuple(heapq.heappop(free) for _ in range(pod.submission.units))
            return
        for slot in self.slots[at]:
            heapq.heappush(free, slot)

    def _board(self, node: SimulatedNode, *, is_lost: bool) -> None:
        free = self._free[node.name, node.offers[0].resource]
        if is_lost:
            self.lost[node.name] = max(free)
            free.remove(self.lost[node.name])
            heapq.heapify(free)
        else:
            heapq.heappush(free, self.lost[node.name])


def of_pods(
    seed: int, nodes: Sequence[SimulatedNode], placements: Sequence[PodPlacement], boards: GpuSlots
) -> list[tuple[str, ...]]:
    """GPU ids of the units of every placement."""
    offers = {(node.name, offer.resource): (node, offer) for node in nodes for offer in node.offers}
    known: dict[_Key, dict[int, str]] = defaultdict(dict)
    found = []
    for pod, slots in zip(placements, boards.slots, strict=True):
        key = (pod.node, pod.submission.resource)
        for slot in slots:
            if slot not in known[key]:
                known[key][slot] = gpu_id(seed, *offers[key], slot)
        found.append(tuple(known[key][slot] for slot in slots))
    return found


class SpareCapacity:
    """Free units per node and step of five minutes; a step that is partly taken counts as taken.

    Only nodes that offer a single resource. ``take`` marks units as used.
    """

    def __init__(
        self, nodes: Sequence[SimulatedNode], placements: Iterable[PodPlacement], month: Window
    ) -> None:
        self._month = month
        self._nodes = {node.name: node for node in nodes if len(node.offers) == 1}
        self._free: Mapping[str, DrawnInts] = {name: self._empty(node) for name, node in self._nodes.items()}
        for pod in placements:
            if pod.node in self._free:
                self.take(pod.node, pod.submission.units, pod.start_ms, pod.end_ms)

    def take(self, node: str, units: int, start_ms: int, end_ms: int) -> None:
        self._free[node][self._steps(start_ms, end_ms)] -= units

    def find(self, pools: Sequence[str], units: int, length_ms: int, from_ms: int) -> tuple[str, int] | None:
        """(node, start) of the first stretch from ``from_ms`` on in which a node that measures has room, in
        the first pool that has any; None if there is none until the month ends."""
        length = -(-length_ms // STEP_MS)
        for pool in pools:
            found = [
                (int(at[0]), name)
                for name in self._of(pool)
                if self._nodes[name].signal_coverage == 1
                and len(at := np.flatnonzero(self.least(name, length)[self._step(from_ms) :] >= units))
            ]
            if found:
                first, name = min(found)
                return name, self._month.start_ms + (self._step(from_ms) + first) * STEP_MS
        return None

    def pieces(
        self, pool: str, whole: int, total: int, length_ms: int, from_ms: int
    ) -> tuple[int, dict[str, int]] | None:
        """A stretch in which ``total`` units are free all the time, once some are taken so that no node ever
        has ``whole``: (its start, units to take per node); None if there is none."""
        length = -(-length_ms // STEP_MS)
        names = self._of(pool)
        least = np.array([self.least(name, length) for name in names])
        most = np.array([-_least_of(-self._free[name], length) for name in names])
        taken = (most - whole + 1).clip(min=0)
        left = (least - taken).clip(min=0).sum(axis=0)
        fits = (taken <= least).all(axis=0) & (left >= total) & (left < 2 * total) & (taken.sum(axis=0) > 0)
        at = np.flatnonzero(fits[self._step(from_ms) :])
        if not len(at):
            return None
        step = self._step(from_ms) + int(at[0])
        take = {name: int(units) for name, units in zip(names, taken[:, step], strict=True)}
        spare = int(left[step]) - total
        for name, units in zip(names, least[:, step].tolist(), strict=True):
            more = min(spare, units - take[name])
            take[name] += more
            spare -= more
        return self._month.start_ms + step * STEP_MS, {name: n for name, n in take.items() if n}

    def least(self, name: str, length: int) -> DrawnInts:
        """The fewest units that are free in ``length`` steps from each step on."""
        return _least_of(self._free[name], length)

    def _of(self, pool: str) -> list[str]:
        return sorted(name for name, node in self._nodes.items() if node.pool == pool)

    def _empty(self, node: SimulatedNode) -> DrawnInts:
        free = np.zeros(self._month.length_ms // STEP_MS, dtype=np.int64)
        inside = self._steps(node.start_ms, node.end_ms)
        # A first or last step that the node was not there for all of is left out.
        free[inside.start + (node.start_ms > self._month.start_ms) : inside.stop - 1] = node.offers[0].units
        for spell in node.spells:
            free[self._steps(spell.start_ms, spell.end_ms)] -= (
                node.offers[0].units if spell.cordoned else spell.lost
            )
        return free

    def _step(self, at_ms: int) -> int:
        return max(0, (at_ms - self._month.start_ms) // STEP_MS)

    def _steps(self, start_ms: int, end_ms: int) -> slice:
        return slice(self._step(start_ms), self._step(min(end_ms, self._month.end_ms) + STEP_MS - 1))


def _least_of(values: DrawnInts, length: int) -> DrawnInts:
    if length > len(values):
        return np.zeros(0, dtype=np.int64)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, length).min(axis=1), dtype=np.int64)
