"""What a unit of work cost: a million tokens, a request, a step, an epoch.

The ledger's cost of the time in which a job counted, over what it counted: time without a reading is in
neither, and ``coverage`` says how much there was of it. What is counted is the tenant's word, in no other
figure than these. Prompts and answers of a model are one count: what either cost is nowhere split, since no
ratio between them is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.buckets import Waste
from gpucost.domain.money import round_half_even
from gpucost.reports.base import display
from gpucost.reports.base.values import ratio


@dataclass(frozen=True, slots=True)
class ProgressFacts:
    """What a job counted: ``amount`` of whatever ``name`` counts (``steps``, ``epochs``, ``tokens``), by so
    many of its pods. ``counted_*`` is what all its pods held in the windows in which any counted; without a
    price, ``counted_unpriced_ms`` of it. ``held_board_ms`` is what they held in all."""

    name: str
    amount: int | float | Fraction
    pods: int
    counted_board_ms: int
    counted_unpriced_ms: int
    counted_nano: int
    held_board_ms: int

    def __add__(self, other: ProgressFacts) -> ProgressFacts:
        """Of one name: of another team that the same job was of."""
        return ProgressFacts(
            self.name,
            self.amount + other.amount,
            max(self.pods, other.pods),
            self.counted_board_ms + other.counted_board_ms,
            self.counted_unpriced_ms + other.counted_unpriced_ms,
            self.counted_nano + other.counted_nano,
            self.held_board_ms + other.held_board_ms,
        )


@dataclass(frozen=True, slots=True)
class ProgressCost:
    """Cost per unit of progress. None without progress, and where part of the counted time has no price.

    ``counted_nano`` is the cost of the time in which ``pods`` of its pods counted ``amount``, which is
    ``coverage`` of the GPU time that it held. ``idle_share`` of its GPU time its GPUs did nothing, None where
    nobody looked: so much of the cost of a unit is that of waiting.
    """

    name: str
    amount: Fraction
    per_unit_nano: int | None
    per_million_nano: int | None
    counted_nano: int | None
    coverage: Fraction | None
    pods: int
    idle_share: Fraction | None


@dataclass(frozen=True, slots=True)
class JobUnitCost:
    """What a unit of one job cost, of all that the team had of it in a month."""

    cluster: str
    namespace: str
    job: str
    job_uid: str
    cost: ProgressCost


def unit_cost(facts: ProgressFacts, idle: Fraction | None) -> ProgressCost:
    """``idle`` as from ``idle_share``."""
    amount = Fraction(facts.amount)
    counted = None if facts.counted_unpriced_ms else facts.counted_nano
    is_known = counted is not None and amount > 0
    return ProgressCost(
        facts.name,
        amount,
        _per(counted, amount) if is_known and counted is not None else None,
        _per(counted * 1_000_000, amount) if is_known and counted is not None else None,
        counted,
        ratio(facts.counted_board_ms, facts.held_board_ms),
        facts.pods,
        idle,
    )


def _per(nano: int, amount: Fraction) -> int:
    return round_half_even(nano * amount.denominator, amount.numerator)


def idle_share(held: Iterable[tuple[str, int]]) -> Fraction | None:
    """The part of held time that was idle, of buckets of waste and their GPU-milliseconds: of what detectors
    looked at. None where they have looked at nothing."""
    rows = list(held)
    seen = sum(board_ms for waste, board_ms in rows if waste != Waste.UNKNOWN)
    return ratio(sum(board_ms for waste, board_ms in rows if waste == Waste.IDLE), seen)


def count_words(amount: Fraction) -> str:
    """``15,000,000``, ``2.5``."""
    return display.trimmed(f"{float(amount):,.1f}")


def unit_words(cost: ProgressCost, currency: str) -> str:
    """``0.000000213 USD each (0.21 per million): 15,000,000 counted by 1 pod in 100% of its GPU time; its
    GPUs were idle 12% of it``."""
    each, million = display.money(cost.per_unit_nano, 9), display.money(cost.per_million_nano)
    idle = "" if cost.idle_share is None else f"; its GPUs were idle {display.percent(cost.idle_share)} of it"
    return (
        f"{each} {currency} each ({million} per million): {count_words(cost.amount)} counted by "
        f"{display.counted(cost.pods, 'pod')} in {display.percent(cost.coverage)} of its GPU time{idle}"
    )
