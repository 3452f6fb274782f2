"""How likely a server that has been idle for a while will work again, by what servers here did before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import sqrt
from typing import Literal

import numpy as np

from gpucost.domain.time import DAY_MS

_Z = 1.645
"""One-sided 95 %."""
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
LEAST_GAPS = 10
"""Of fewer past gaps the part that ended in work says nothing."""


class GapEnd(Enum):
    """How a stretch without work came to its end: in work, with its pods, or not at all by now."""

    WORK = "work"
    REMOVED = "removed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch in which a server did nothing. ``job`` is whose."""

    job: int
    start_ms: int
    length_ms: int
    end: GapEnd


@dataclass(frozen=True, slots=True)
class Hazard:
    """Of ``gaps`` that lasted ``after_ms`` and were seen for ``ahead_ms`` longer, ``worked`` ended in work by
    then. The chance of the next one lies between ``low`` and ``high``, each with 95 % (Wilson's score
    interval, E. B. Wilson, JASA 22, 1927)."""

    gaps: int
    worked: int
    after_ms: int
    ahead_ms: int

    @property
    def chance(self) -> float:
        return self.worked / self.gaps if self.gaps else 1.0

    @property
    def low(self) -> float:
        return max(0.0, self._bound(-_Z)) if self.gaps else 0.0

    @property
    def high(self) -> float:
        return min(1.0, self._bound(_Z)) if self.gaps else 1.0

    def _bound(self, z: float) -> float:
        n, part = self.gaps, self.chance
        half = z * sqrt(part * (1 - part) / n + z * z / (4 * n * n))
        return (part + z * z / (2 * n) + half) / (1 + z * z / n)


class PastGaps:
    """Gaps of servers in order of their lengths, with how many from each on came to which end: however many
    there are, a look at them is a binary search."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self._gaps = sorted(gaps, key=lambda gap: (gap.length_ms, gap.start_ms, gap.job))
        self._lengths = np.array([each.length_ms for each in self._gaps], np.int64)
        self._from = {
            end: np.append(np.cumsum([each.end is end for each in self._gaps][::-1])[::-1], 0)
            for end in GapEnd
        }

    def __len__(self) -> int:
        return len(self._gaps)

    def hazard(self, present: Gap, ahead_ms: int = DAY_MS, most_ms: int | None = None) -> Hazard:
        """What became of gaps, of its own and of its peers, that lasted at least as long as ``present``, or
        ``most_ms`` where that is less: whether they ended in work within ``ahead_ms``, or within as long
        again where that is longer.

        A gap that is still open, and younger than that, says nothing yet. Leaving it out can only make work
        look likelier than it is: those that ended in work are all in.
        """
        after = present.length_ms if most_ms is None else min(present.length_ms, most_ms)
        ahead = max(ahead_ms, after)
        first = int(np.searchsorted(self._lengths, after))
        followed = int(np.searchsorted(self._lengths, after + ahead))
        worked = self._between(GapEnd.WORK, first, followed)
        gaps = len(self) - first - self._between(GapEnd.OPEN, first, followed)
        # The present one is none of its own past.
        is_followed = present.length_ms >= after + ahead
        if self._has(present) and (is_followed or present.end is not GapEnd.OPEN):
            gaps, worked = gaps - 1, worked - (present.end is GapEnd.WORK and not is_followed)
        return Hazard(gaps, worked, after, ahead)

    def _between(self, end: GapEnd, first: int, last: int) -> int:
        return int(self._from[end][first] - self._from[end][last])

    def _has(self, present: Gap) -> bool:
        first, last = (int(np.searchsorted(self._lengths, present.length_ms, side)) for side in _SIDES)
        return present in self._gaps[first:last]
