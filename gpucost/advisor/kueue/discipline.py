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
    """The tree of one queue, as ``gpucost.advisor.wait.simulate.Discipline``. The target is ``ask``, with
    ``beside`` it others of the same job: it starts when the last of them does, and who has quota before
    keeps it. ``gate`` holds the target back once all have quota, while its pods would find no nodes."""

    def __init__(self, view: KueueView, ask: Ask, gate: Gate, beside: Sequence[Ask] = ()) -> None:
        lines = view.lines_of(ask.queue)
        line = lines[ask.queue]
        self._own = {each.uid for each in (*beside, ask)}
        line.heap = [each for each in line.heap if each.uid not in self._own]
        line.parked = [each for each in line.parked if each.uid not in self._own]
        line.heap = sorted([*line.heap, *beside, ask], key=in_order)
        self._target, self._gate, self._without_quota = ask.uid, gate, set(self._own)
        self._box = Sandbox(view.snapshot, lines, view.glance)

    def start(self, _now_ms: int, ended: Sequence[str], _arrived: Sequence[str], /) -> Sequence[str]:
        for uid in ended:
            self._box.leave_by_uid(uid)
        self._box.wake()
        started = []
        changed = True
        cycles = 0
        while changed and cycles < MOST_CYCLES + len(self._own):
            done, changed = self._box.cycle()
            cycles += 1
            started += [each.nominee.ask.uid for each in done if each.outcome is Outcome.ADMITTED]
        self._without_quota.difference_update(started)
        started = [uid for uid in started if uid not in self._own]
        self._gate.leave(ended)
        if not self._without_quota and self._gate.is_open():
            started.append(self._target)
        return started

    def close(self) -> None:
        self._box.undo()


@contextmanager
def disciplines(
    view: KueueView, ask: Ask, gate: Callable[[], Gate], beside: Sequence[Ask] = ()
) -> Iterator[Callable[[], KueueDiscipline]]:
    """Makes one discipline after another; each is undone before the next is made."""
    open_: list[KueueDiscipline] = []

    def make() -> KueueDiscipline:
        while open_:
            open_.pop().close()
        open_.append(KueueDiscipline(view, ask, gate(), beside))
        return open_[-1]

    with view.guarded(ask.queue):
        try:
            yield make
        finally:
            while open_:
                open_.pop().close()
