"""Kueue's queues while time goes by: who is admitted when others end. For the simulation of waits.

Nobody is preempted in it: whoever could be would be by now, and later arrivals are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gpucost.advisor.kueue.asks import Ask, in_order
from gpucost.advisor.kueue.outlook import KueueView
from gpucost.advisor.kueue.results import Outcome
from gpucost.advisor.kueue.sandbox import MOST_CYCLES, Sandbox


class Gate(Protocol):
    """The nodes, for the target: told who ended, it says whether its pods would find room."""

    def leave(self, ended: Sequence[str], /) -> None: ...

    def is_open(self) -> bool: ...


class KueueDiscipline:
    """The tree of one queue, as ``gpucost.advisor.wait.simulate.Discipline``. ``gate`` holds the target back
    once it has quota, while its pods would find no nodes."""

    def __init__(self, view: KueueView, ask: Ask, gate: Gate) -> None:
        lines = view.lines_of(ask.queue)
        line = lines[ask.queue]
        line.heap = [each for each in line.heap if each.uid != ask.uid]
        line.parked = [each for each in line.parked if each.uid != ask.uid]
        line.heap = sorted([*line.heap, ask], key=in_order)
        self._target, self._gate, self._has_quota = ask.uid, gate, False
        self._box = Sandbox(view.snapshot, lines, view.glance)

    def start(self, _now_ms: int, ended: Sequence[str], _arrived: Sequence[str], /) -> Sequence[str]:
        for uid in ended:
            self._box.leave_by_uid(uid)
        self._box.wake()
        started = []
        changed = True
        cycles = 0
        while changed and cycles < MOST_CYCLES:
            done, changed = self._box.cycle()
            cycles += 1
            started += [each.nominee.ask.uid for each in done if each.outcome is Outcome.ADMITTED]
        if self._target in started:
            started.remove(self._target)
            self._has_quota = True
        self._gate.leave(ended)
        if self._has_quota and self._gate.is_open():
            started.append(self._target)
        return started

    def close(self) -> None:
        self._box.undo()


@contextmanager
def disciplines(
    view: KueueView, ask: Ask, gate: Callable[[], Gate]
) -> Iterator[Callable[[], KueueDiscipline]]:
    """Makes one discipline after another; each is undone before the next is made."""
    open_: list[KueueDiscipline] = []

    def make() -> KueueDiscipline:
        while open_:
            open_.pop().close()
        open_.append(KueueDiscipline(view, ask, gate()))
        return open_[-1]

    with view.guarded(ask.queue):
        try:
            yield make
        finally:
            while open_:
                open_.pop().close()
