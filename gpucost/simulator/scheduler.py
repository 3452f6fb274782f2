"""A small scheduler: gangs whole or not at all, best fit, first come first served with backfill, preemption.

It never gives out more units than a node advertises. What it returns is what really happened, from which
both the frames and the ground truth are made.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import Node, Spell
from gpucost.simulator.workloads import Submission

DRAIN_GRACE_MS = 30 * MINUTE_MS
_BACKOFF_MS = 30 * SECOND_MS
# How far down a queue backfill looks; real schedulers bound it too.
_BACKFILL = 40


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Placement:
    """One pod, bound to ``node`` during ``[start_ms, end_ms)``; RUNNING ones outlive the month.

    ``by`` is who preempted it, as namespace/name.
    """

    submission: Submission
    index: int
    node: str
    start_ms: int
    end_ms: int
    outcome: Outcome
    by: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """One attempt of a submission without nodes during ``[start_ms, end_ms)``."""

    submission: Submission
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class _Run:
    submission: Submission
    nodes: list[str]
    start_ms: int


# What an event does at its time; it returns the pool in which something may now fit.
_Handler = Callable[[int], str]
# Urgent work first, then by time of submission; the number keeps the order total.
_Waiting = tuple[bool, int, int, Submission]


class Scheduler:
    """Takes submissions through a month of node events. For one use: call ``run`` once."""

    def __init__(self, nodes: Sequence[Node], month: Window) -> None:
        self._month = month
        self._free: dict[tuple[str, str], int] = {}
        self._open: dict[str, set[str]] = defaultdict(set)
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)
        self._runs: dict[int, _Run] = {}
        self._on_node: dict[str, set[int]] = defaultdict(set)
        self._events: list[tuple[int, int, _Handler]] = []
        self._count = 0
        self._placements: list[Placement] = []
        self._measured = {node.name for node in nodes if node.signal_coverage == 1}
        self.waits: list[Wait] = []
        """Every attempt that did not start at once; filled by ``run``."""
        for node in nodes:
            self._plan(node)

    def run(self, submissions: Iterable[Submission]) -> tuple[list[Placement], list[Submission]]:
        """(every pod that was bound, by time; every submission that never was)."""
        for submission in submissions:
            self._at(submission.submit_ms, partial(self._submit, submission))
        while self._events and self._events[0][0] < self._month.end_ms:
            now, _, handler = heapq.heappop(self._events)
            self._schedule(handler(now), now)
        for run_id in list(self._runs):
            self._stop(run_id, self._month.end_ms, Outcome.RUNNING)
        never = [entry[3] for pool in sorted(self._waiting) for entry in self._waiting[pool]]
        for pool in sorted(self._waiting):
            self.waits += [Wait(sub, since, self._month.end_ms) for _, since, _, sub in self._waiting[pool]]
        self._placements.sort(key=lambda pod: (pod.start_ms, pod.submission.job.uid, pod.index, pod.node))
        return self._placements, [sub for sub in never if sub.attempt == 0]

    def _at(self, time_ms: int, handler: _Handler) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_ms, self._count, handler))

    def _plan(self, node: Node) -> None:
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

    def _submit(self, submission: Submission, now: int) -> str:
        self._count += 1
        entry = (not submission.urgent, now, self._count, submission)
        insort(self._waiting[submission.pool], entry, key=lambda waiting: waiting[:3])
        return submission.pool

    def _finish(self, run_id: int, outcome: Outcome, now: int) -> str:
        if run_id not in self._runs:
            return ""
        submission = self._stop(run_id, now, outcome)
        if outcome is Outcome.FAILED and submission.attempt < submission.retries:
            again = replace(submission, attempt=submission.attempt + 1)
            self._at(now + _BACKOFF_MS, partial(self._submit, again))
        return submission.pool

    def _cordon(self, node: Node, now: int) -> str:  # noqa: ARG002  handlers are called with the time
        self._open[node.pool].discard(node.name)
        return ""

    def _uncordon(self, node: Node, now: int) -> str:  # noqa: ARG002
        self._open[node.pool].add(node.name)
        return node.pool

    def _remove(self, node: Node, now: int) -> str:
        self._cordon(node, now)
        return self._evict_all(node, now)

    def _lose(self, node: Node, spell: Spell, now: int) -> str:
        """Units vanish: pods leave, the newest first, until the rest fits."""
        resource = node.offers[0].resource
        self._free[node.name, resource] -= spell.lost
        while self._free[node.name, resource] < 0:
            self._interrupt(max(self._on_node[node.name]), now, Outcome.FAILED)
        return node.pool

    def _regain(self, node: Node, spell: Spell, now: int) -> str:  # noqa: ARG002
        self._free[node.name, node.offers[0].resource] += spell.lost
        return node.pool

    def _evict_all(self, node: Node, now: int) -> str:
        for run_id in sorted(self._on_node[node.name]):
            self._interrupt(run_id, now, Outcome.EVICTED)
        return node.pool

    def _interrupt(self, run_id: int, now: int, outcome: Outcome, by: str = "") -> None:
        """Stop a run before its time; work that restarts comes back for what is left of it."""
        start_ms = self._runs[run_id].start_ms
        submission = self._stop(run_id, now, outcome, by)
        left_ms = submission.run_ms - (now - start_ms)
        if submission.restarts and left_ms > 0:
            again = replace(
                submission, run_ms=left_ms, attempt=submission.attempt + 1, retries=submission.retries + 1
            )
            self._at(now + _BACKOFF_MS, partial(self._submit, again))

    def _stop(self, run_id: int, now: int, outcome: Outcome, by: str = "") -> Submission:
        run = self._runs.pop(run_id)
        submission = run.submission
        for index, name in enumerate(run.nodes):
            self._free[name, submission.resource] += submission.units
            self._on_node[name].discard(run_id)
            if now > run.start_ms:
                self._placements.append(Placement(submission, index, name, run.start_ms, now, outcome, by))
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
                    self.waits.append(Wait(submission, entry[1], now))
                self._start(submission, nodes, now)

    def _fit(self, submission: Submission) -> list[str] | None:
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

    def _preempt(self, submission: Submission, now: int) -> list[str] | None:
        """Stop the newest other runs of the pool until the gang fits; nothing if it never could."""
        names = self._open[submission.pool]
        runs = {run_id for name in names for run_id in self._on_node[name]}
        victims = [
            run_id for run_id in sorted(runs, reverse=True) if not self._runs[run_id].submission.urgent
        ]
        for run_id in victims:
            self._interrupt(run_id, now, Outcome.PREEMPTED, submission.job.full_name)
            nodes = self._fit(submission)
            if nodes is not None:
                return nodes
        return None

    def _start(self, submission: Submission, nodes: list[str], now: int) -> None:
        self._count += 1
        run_id = self._count
        self._runs[run_id] = _Run(submission, nodes, now)
        for name in nodes:
            self._free[name, submission.resource] -= submission.units
            self._on_node[name].add(run_id)
        attempt = submission.attempt
        failing = attempt < len(submission.failures)
        part = submission.failures[attempt] if failing else 1.0
        length_ms = max(SECOND_MS, int(submission.run_ms * part) // SECOND_MS * SECOND_MS)
        outcome = Outcome.FAILED if failing else Outcome.SUCCEEDED
        self._at(now + length_ms, partial(self._finish, run_id, outcome))
