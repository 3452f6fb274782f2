"""The pending workloads of one ClusterQueue over time, as Kueue's queue manager remembers them.

Rules: kueue v0.19.2, pkg/cache/queue/cluster_queue.go (requeueIfNotPresent, handleInadmissibleHash,
PushOrUpdate, baseCompareFunc) and inadmissible_workloads.go.

Workloads of one shape (priority and pod sets) are parked together, and later ones of that shape join them
until the tree is looked at again. So a shape is parked as a whole or not at all: each has one line, and to
park or to wake it is one step however long its line is.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from gpucost.advisor.kueue.requests import QuotaRequest, in_order

_Place = tuple[object, str]


@dataclass(slots=True, eq=False)
class _ShapeLine:
    """Those of one shape, as a heap; who left is still in it until it comes to the top."""

    heap: list[_Place] = field(default_factory=list)
    count: int = 0
    is_parked: bool = False


class PendingLine:
    """``waiting`` counts those that are to be tried. ``sticky`` is the preemptor that is first while its
    victims leave, as long as it is one of them."""

    def __init__(self) -> None:
        self.sticky = ""
        self._asks: dict[str, QuotaRequest] = {}
        self._lines: dict[Hashable, _ShapeLine] = {}
        self._tops: list[tuple[_Place, int, _ShapeLine]] = []
        self._pushed = 0
        self._parked: set[Hashable] = set()
        self._barred: dict[str, QuotaRequest] = {}
        self.waiting = 0

    @property
    def counts(self) -> tuple[int, int]:
        """How many wait to be tried, and how many are parked."""
        return self.waiting, len(self._asks) - self.waiting + len(self._barred)

    @property
    def parked_shapes(self) -> frozenset[Hashable]:
        """Those that come are parked with them."""
        return frozenset(self._parked)

    def __iter__(self) -> Iterator[QuotaRequest]:
        yield from self._asks.values()
        yield from self._barred.values()

    def push(self, ask: QuotaRequest) -> None:
        """It waits; where one of its shape is parked, among the parked."""
        line = self._lines.get(ask.shape)
        if line is None:
            line = self._lines[ask.shape] = _ShapeLine(is_parked=ask.shape in self._parked)
        self._asks[ask.uid] = ask
        heapq.heappush(line.heap, (in_order(ask), ask.uid))
        line.count += 1
        if not line.is_parked:
            self.waiting += 1
            if line.heap[0][1] == ask.uid:
                self._offer(line)

    def bar(self, ask: QuotaRequest) -> None:
        """It was drained from a queue that is stopped still: nothing but its start lets it in again."""
        self._barred[ask.uid] = ask

    def lift_bar(self) -> None:
        """The queue is open: drained ones wait as those that come."""
        barred, self._barred = self._barred, {}
        for ask in barred.values():
            self.push(ask)

    def take(self, uid: str) -> None:
        """It waits no longer."""
        ask = self._asks.pop(uid)
        line = self._lines[ask.shape]
        line.count -= 1
        if not line.is_parked:
            self.waiting -= 1
        if not line.count:
            del self._lines[ask.shape]
        if self.sticky == uid:
            self.sticky = ""

    def head(self) -> QuotaRequest | None:
        """The first that is to be tried."""
        if self.sticky:
            ask = self._asks.get(self.sticky)
            if ask is not None and not self._lines[ask.shape].is_parked:
                return ask
        while self._tops:
            place, _, line = self._tops[0]
            if line.is_parked or not line.count:
                heapq.heappop(self._tops)
                continue
            first = self._first(line)
            if first == place:
                return self._asks[place[1]]
            heapq.heappop(self._tops)
            self._offer(line)
        return None

    def park(self, ask: QuotaRequest) -> None:
        """It and all of its shape, and those that come."""
        self._parked.add(ask.shape)
        line = self._lines[ask.shape]
        if not line.is_parked:
            line.is_parked = True
            self.waiting -= line.count

    def wake(self) -> None:
        """All parked are to be tried again; drained ones are not, while their queue is stopped."""
        for shape in self._parked:
            line = self._lines.get(shape)
            if line is not None and line.is_parked:
                line.is_parked = False
                self.waiting += line.count
                self._offer(line)
        self._parked.clear()

    def _first(self, line: _ShapeLine) -> _Place:
        while line.heap[0][1] not in self._asks:
            heapq.heappop(line.heap)
        return line.heap[0]

    def _offer(self, line: _ShapeLine) -> None:
        self._pushed += 1
        heapq.heappush(self._tops, (self._first(line), self._pushed, line))
