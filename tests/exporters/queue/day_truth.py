"""What is true of a scripted day, as plain data written by hand: it owes nothing to the code under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

DAY_MS = 1_791_158_400_000
"""2026-10-05 00:00 UTC, a Monday."""
END_MS = DAY_MS + 24 * 3_600_000

Span: TypeAlias = tuple[int, int]


def at(clock: str) -> int:
    """``13:07:00`` or ``14:45:00.250`` of that day, in ms since 1970."""
    hours, minutes, seconds = clock.split(":")
    return DAY_MS + (int(hours) * 60 + int(minutes)) * 60_000 + round(float(seconds) * 1000)


@dataclass(frozen=True)
class PodTruth:
    """A pod held ``units`` of ``resource`` in [``start_ms``, ``end_ms``); it never ended that day where that
    is None.

    Where it was not watched when it went, ``unseen`` is (last seen alive, first known gone): a collector that
    stayed up closes it at the first of these, and a collector that was down in between cannot know its end at
    all (``in_outage``).
    """

    uid: str
    namespace: str
    name: str
    node: str
    resource: str
    units: int
    start_ms: int
    end_ms: int | None
    unseen: Span | None = None
    in_outage: bool = False


@dataclass(frozen=True)
class Wait:
    """One time through the queue: waiting from ``queued_ms``, with quota from ``reserved_ms``, evicted at
    ``evicted_ms``, out of quota from ``released_ms``. What did not happen that day is None."""

    queued_ms: int
    reserved_ms: int | None = None
    admitted_ms: int | None = None
    evicted_ms: int | None = None
    released_ms: int | None = None


@dataclass(frozen=True)
class WorkloadTruth:
    """Of one Kueue workload; ``units`` of ``resource`` in all. ``evictions`` are counts by reason."""

    uid: str
    namespace: str
    name: str
    cluster_queue: str
    resource: str
    units: int
    waits: tuple[Wait, ...]
    finished_ms: int | None
    evictions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GangTruth:
    """A gang is partial in ``partial``: some of its members hold GPUs, and it lacks others."""

    namespace: str
    name: str
    uid: str
    min_members: int
    partial: tuple[Span, ...]


@dataclass(frozen=True)
class CapacityTruth:
    """From ``from_ms`` a node has and advertises so many units; ``expected`` is what its labels promise.

    All three are None once it is gone."""

    node: str
    resource: str
    from_ms: int
    capacity: int | None
    allocatable: int | None
    expected: int | None


@dataclass(frozen=True)
class Check:
    """What must be so at an instant. ``reserved`` is (total, borrowed) by ClusterQueue, flavor and resource;
    ``waiting`` are workloads by ClusterQueue, first in line first; ``layers`` what holds each one back."""

    at_ms: int
    reserved: Mapping[tuple[str, str, str], tuple[int, int]]
    waiting: Mapping[str, tuple[str, ...]]
    layers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Truth:
    """The whole day. ``outage`` is when no collector ran."""

    pods: tuple[PodTruth, ...]
    workloads: tuple[WorkloadTruth, ...]
    gangs: tuple[GangTruth, ...]
    capacity: tuple[CapacityTruth, ...]
    checks: tuple[Check, ...]
    outage: Span

    @property
    def pod_by_uid(self) -> dict[str, PodTruth]:
        return {each.uid: each for each in self.pods}
