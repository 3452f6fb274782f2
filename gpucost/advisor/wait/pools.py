"""The last runs of a group of like jobs, and draws from them that are longer than what has passed."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

HALF_LIVES = 4
"""A pool keeps this many half-lives of runs: what is older weighs less than a sixteenth of the newest."""

_LATER_IN = 50
"""A table is made anew once a fiftieth of what the pool weighs has come in."""

_BELOW_ONE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Table:
    """Run times in rising order. ``cumulative[i]`` is the weight of all before the i-th, so it has one entry
    more; ``censored[i]`` says that the i-th still ran when it was last seen."""

    values: Sequence[int]
    cumulative: Sequence[float]
    censored: Sequence[bool]

    def draw_beyond(self, elapsed_ms: int, uniform: float, wider: float) -> tuple[int | None, float]:
        """The run that ``uniform`` in [0, 1) points to among those longer than ``elapsed_ms`` and something
        else that weighs ``wider``, and a uniform number to draw again with, where that is needed.

        It is for something else (None); or for a run that had not ended, which says only "longer than this":
        then the next draw is to be beyond it. That is the Kaplan-Meier estimate (redistribution to the right:
        Efron 1967). Negative: the run ended, nothing is left to draw.
        """
        cumulative = self.cumulative
        base = cumulative[bisect_right(self.values, elapsed_ms)]
        own = cumulative[-1] - base
        target = uniform * (own + wider)
        if target >= own:
            return None, min((target - own) / wider, _BELOW_ONE)
        target += base
        at = min(bisect_right(cumulative, target) - 1, len(self.values) - 1)
        if not self.censored[at]:
            return self.values[at], -1.0
        again = (target - cumulative[at]) / (cumulative[at + 1] - cumulative[at])
        return self.values[at], min(max(again, 0.0), _BELOW_ONE)


class Pool:
    """Runs in the order they were learnt. The newest weighs 1, one ``half_life`` runs before it a half."""

    __slots__ = ("_half_life", "_new", "_runs", "_table", "learnt")

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        self._runs: deque[tuple[int, bool]] = deque(maxlen=half_life * HALF_LIVES)
        self._table: Table | None = None
        self._new = 0
        self.learnt = 0

    def __len__(self) -> int:
        return len(self._runs)

    def learn(self, run_ms: int, is_censored: bool) -> None:
        """The newest run."""
        self._runs.append((run_ms, is_censored))
        self._new += 1
        self.learnt += not is_censored

    def table(self) -> Table:
        """As of the newest run; in large pools as of the newest but a fiftieth of their weight."""
        if self._table is None or self._new > min(len(self._runs), self._half_life) // _LATER_IN:
            self._table = self._made()
            self._new = 0
        return self._table

    def _made(self) -> Table:
        newest = len(self._runs) - 1
        rows = sorted(
            (run_ms, is_censored, 0.5 ** ((newest - at) / self._half_life))
            for at, (run_ms, is_censored) in enumerate(self._runs)
        )
        return Table(
            [row[0] for row in rows],
            [0.0, *accumulate(row[2] for row in rows)],
            [row[1] for row in rows],
        )
