"""Scales of charts: how values become lengths, where an axis ends and has its ticks, where bands lie.

Pure arithmetic in the units of whoever draws: user units of SVG (``reports.render.html``), pixels and
characters of pictures for chats (``notify.pictures``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScale:
    """Values of 0 to ``most`` over a length of ``room``."""

    most: int
    room: float

    def length(self, value: int, least: float = 0) -> float:
        """How long ``value`` is drawn; ``least`` keeps what is small visible."""
        return max(self.room * value / self.most, least)


@dataclass(frozen=True, slots=True)
class BandScale:
    """``count`` bands of one width, side by side over a length of ``room`` that begins at ``start``."""

    start: float
    room: float
    count: int

    @property
    def width(self) -> float:
        return self.room / max(self.count, 1)

    def at(self, position: float) -> float:
        """Where ``position`` lies, in bands from the start: 0.5 is the middle of the first."""
        return self.start + position * self.width


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis from 0 to ``top``, both among its ``ticks``."""

    top: int
    ticks: tuple[int, ...]

    @classmethod
    def up_to(cls, highest: int, unit: int) -> ChartAxis:
        """One that ends at or above ``highest``, with three to six ticks at 1, 2 or 5 times a power of ten
        units; two ticks for a hundredth of a unit or less."""
        step, factors = max(1, unit // 100), (2, 5, 10)
        base, position = step, 0
        while step * 5 < highest:
            step = base * factors[position]
            if position == 2:
                base, position = step, 0
            else:
                position += 1
        count = max(1, -(-highest // step))
        return cls(step * count, tuple(step * i for i in range(count + 1)))


def highest_stack(stacks: Iterable[Iterable[int | None]]) -> int:
    """The sum of the highest stack, 0 without any. Parts that are unknown or below zero add nothing."""
    return max((sum(max(part or 0, 0) for part in parts) for parts in stacks), default=0)
