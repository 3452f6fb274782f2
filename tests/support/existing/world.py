"""What a cluster did, written down: nodes with their GPUs, pods with the GPUs they held."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from gpucost.domain.time import HOUR_MS, Month

T0 = Month(2026, 10).window.start_ms
NEVER = 1 << 62


def at(hours: float) -> int:
    """An instant, by hours since the month began."""
    return T0 + round(hours * HOUR_MS)


def stable(name: str) -> str:
    """A uid that depends on the name only."""
    return str(uuid.UUID(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()))


def part_of(name: str) -> float:
    """A number from 0 to 1 that depends on the name only."""
    return int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8], 16) / 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or an instance of one. ``share`` is its part of the GPU, ``memory_mib`` its own memory."""

    uuid: str
    index: int
    share: Fraction
    memory_mib: int
    instance: str = ""
    profile: str = ""

    @property
    def name(self) -> str:
        return f"{self.uuid}/{self.instance}" if self.instance else self.uuid


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource of a node: its GPUs, and how many units each is handed out as."""

    resource: str
    gpus: tuple[Gpu, ...]
    replicas: int = 1

    @property
    def units(self) -> int:
        return len(self.gpus) * self.replicas


@dataclass(frozen=True, slots=True)
class Node:
    """``lost`` are (start, end, units) in which fewer units are allocatable; ``watts`` are a busy GPU's."""

    name: str
    product: str
    boards: int
    offers: tuple[Offer, ...]
    labels: Mapping[str, str]
    watts: float
    start_ms: int
    end_ms: int = NEVER
    lost: tuple[tuple[int, int, int], ...] = ()
    shows_labels: bool = True

    def offer(self, resource: str) -> Offer:
        return next(offer for offer in self.offers if offer.resource == resource)


class End(StrEnum):
    """How a pod gave its units back."""

    COMPLETED = "Succeeded"
    FAILED = "Failed"
    EVICTED = "evicted"  # phase Failed, and no completion time
    DELETED = "deleted"  # while it ran: the object goes, and nothing says when it ended
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Box:
    """A container: ``is_init`` for one that runs before the others; ``end_ms`` if it ended before the pod."""

    name: str
    units: int
    is_init: bool = False
    end_ms: int = NEVER


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Its units are its from ``bound_ms`` to ``end_ms``; its object is there until ``gone_ms``.

    ``teams`` are (since, label). ``gpus`` are those behind its units, one for each.
    """

    name: str
    namespace: str
    node: str
    resource: str
    units: int
    created_ms: int
    bound_ms: int
    end_ms: int
    gone_ms: int
    end: End
    teams: tuple[tuple[int, str], ...]
    owner: tuple[str, str]
    gpus: tuple[Gpu, ...] = ()
    boxes: tuple[Box, ...] = ()
    busy: float = 0.5
    keeps_label_ms: int = 0
    uid: str = ""

    @property
    def job_uid(self) -> str:
        return stable(f"{self.namespace}/{self.owner[0]}/{self.owner[1]}")

    def spans(self, start_ms: int, end_ms: int) -> list[tuple[int, int, str]]:
        """Who it belonged to, from when to when, inside ``[start, end)``."""
        edges = [since for since, _ in self.teams[1:]]
        starts, ends = [self.bound_ms, *edges], [*edges, self.end_ms]
        found = [
            (max(start_ms, since), min(end_ms, until), team)
            for since, until, (_, team) in zip(starts, ends, self.teams, strict=True)
        ]
        return [span for span in found if span[0] < span[1]]


@dataclass(frozen=True, slots=True)
class World:
    """All of it, in ``[start, end)``: what goes on at its end has no end yet."""

    name: str
    start_ms: int
    end_ms: int
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)


@dataclass(frozen=True, slots=True)
class Use:
    """What a pod did with each of its GPUs in one hour; ratios are of the GPU."""

    busy: float
    sm: float
    tensor: float
    memory_mib: int


def use_of(pod: Pod, hour: int) -> Use:
    """The same whenever it is asked: whole percent, so that no dialect can round it."""
    swing = 0.5 + part_of(f"{pod.uid}/{hour}") if pod.busy else 0.0
    busy = min(100, round(100 * pod.busy * swing)) / 100
    parts = 4 if pod.resource.endswith(".shared") else 1
    memory = min(gpu.memory_mib for gpu in pod.gpus) // parts if pod.gpus else 0
    used = round(memory * (0.1 + 0.6 * part_of(f"{pod.uid}/memory"))) if pod.busy else 512
    return Use(busy, round(busy * 0.75, 4), round(busy * 0.375, 4), used)
