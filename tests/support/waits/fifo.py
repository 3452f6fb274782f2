"""First in, first out over nodes (``gpucost.advisor.replay.fifo_nodes``), for the simulation of waits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.replay.fifo_nodes import FifoNodes, FifoPlacement
from gpucost.domain.errors import InputError


@dataclass(frozen=True, slots=True)
class FifoJob:
    """A job that waits for ``gpus`` in ``queue``. Raises InputError below one GPU."""

    id: str
    gpus: int
    queue: str = ""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InputError("gpus", self.gpus, "1 or more")


class FifoDiscipline:
    """``waiting`` in the order of submission. Strict: the first of a queue that does not fit holds all behind
    it in its queue, never another queue. With ``backfills`` every job that fits starts, in order.

    ``later`` holds those that may arrive, by id.
    """

    def __init__(
        self,
        nodes: FifoNodes,
        running: Mapping[str, FifoPlacement],
        waiting: Iterable[FifoJob],
        backfills: bool = False,
        later: Mapping[str, FifoJob] | None = None,
    ) -> None:
        self._nodes = nodes
        self._held = dict(running)
        for placement in running.values():
            nodes.take(placement)
        self._lines: dict[tuple[str, int], deque[tuple[int, str]]] = {}
        self._submitted = 0
        for ask in waiting:
            self._join(ask)
        self._backfills = backfills
        self._later = later or {}

    def start(self, _now_ms: int, ended: Sequence[str], arrived: Sequence[str], /) -> Sequence[str]:
        """See ``QueueDiscipline`` in ``gpucost.advisor.wait.simulation``."""
        for id in ended:
            self._nodes.give_back(self._held.pop(id))
        for id in arrived:
            self._join(self._later[id])
        return self._all_that_may()

    def placement(self, id: str) -> FifoPlacement:
        """Where a job that started and has not ended is placed. Raises KeyError for others."""
        return self._held[id]

    def _join(self, ask: FifoJob) -> None:
        self._lines.setdefault((ask.queue, ask.gpus), deque()).append((self._submitted, ask.id))
        self._submitted += 1

    def _all_that_may(self) -> list[str]:
        """The jobs that start now, in the order of submission, by the heads of queues: a job that asks for as
        much as one that did not fit does not fit either."""
        started: list[str] = []
        most = self._nodes.left if self._backfills else None  # who asks for more holds nobody back
        heads = [
            (line[0], key) for key, line in self._lines.items() if line and (most is None or key[1] <= most)
        ]
        heapq.heapify(heads)
        blocked: set[str] = set()
        fails_from: int | None = None
        while heads:
            (_, id), (queue, gpus) = heapq.heappop(heads)
            if queue in blocked:
                continue
            if (fails_from is None or gpus < fails_from) and self._starts(id, gpus):
                started.append(id)
                line = self._lines[queue, gpus]
                line.popleft()
                if line:
                    heapq.heappush(heads, (line[0], (queue, gpus)))
                continue
            fails_from = gpus if fails_from is None else min(fails_from, gpus)
            if not self._backfills:
                blocked.add(queue)
        return started

    def _starts(self, id: str, gpus: int) -> bool:
        placement = self._nodes.place(gpus)
        if placement is None:
            return False
        self._nodes.take(placement)
        self._held[id] = placement
        return True


def fifo(
    nodes: int,
    gpus_per_node: int,
    running: Mapping[str, FifoPlacement],
    waiting: Sequence[FifoJob],
    backfills: bool = False,
    later: Mapping[str, FifoJob] | None = None,
) -> Callable[[], FifoDiscipline]:
    """Makes one discipline after the other, each in the state of now."""
    return lambda: FifoDiscipline(FifoNodes(nodes, gpus_per_node), running, waiting, backfills, later)
