"""Prices per board-hour from what people pay: per instance, per month, by purchase, by commitment.

All arithmetic is exact: functions return Fractions of nano-units, rounded once, half to even, when a Rate is
made. A month is 730 hours and a year 8,760, as cloud price lists have it, whatever the calendar month.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, round_half_even

HOURS_PER_MONTH = 730
HOURS_PER_PERIOD = {"hour": 1, "day": 24, "month": HOURS_PER_MONTH}


@dataclass(frozen=True, slots=True)
class CommitmentSplit:
    """What a commitment's bill pays for; ``beyond_ms`` is board time used past it, at another price."""

    used_nano: int
    unused_nano: int
    beyond_ms: int


def split_commitment(billed_nano: int, committed_ms: int, used_ms: int) -> CommitmentSplit:
    """Divide one period's bill into used and unused, so that used + unused = billed exactly.

    ``committed_ms`` and ``used_ms`` are board milliseconds of the same period. Raises InputError when the
    bill or the use is negative or nothing was committed.
    """
    if billed_nano < 0 or used_ms < 0 or committed_ms <= 0:
        raise InputError(
            "commitment",
            (billed_nano, committed_ms, used_ms),
            "a bill and use of at least 0, a commitment above 0",
        )
    covered = min(used_ms, committed_ms)
    used = round_half_even(billed_nano * covered, committed_ms)
    return CommitmentSplit(used, billed_nano - used, used_ms - covered)


def owned_node_hour(
    *,
    purchase: int,
    residual: int,
    months: int,
    power_watts: int,
    kwh_price: int,
    pue: int,
    hosting_per_month: int,
) -> Fraction:
    """Nano-units per node-hour of hardware that was bought.

    Straight-line amortisation over ``months``, plus power, plus hosting. Money is in nano-units, ``pue`` in
    units of 1e-9; power is the node's draw at the wall over PUE, billed whether busy or not.
    """
    amortised = Fraction(purchase - residual, months * HOURS_PER_MONTH)
    power = Fraction(power_watts, 1000) * kwh_price * Fraction(pue, NANO)
    return amortised + power + Fraction(hosting_per_month, HOURS_PER_MONTH)
