"""Amounts as integers that floats can carry without an error. Pure.

Counters are exported as floats and added up by others: by Prometheus, by a spreadsheet, in any order. A sum
of multiples of 2^-20 s (about 1 µs) or 2^-14 J is exact in a double up to 2^33 s and 2^39 J, far beyond the
life of a board, so that the parts add up to the whole not only here but wherever they are added.
"""

from __future__ import annotations

from gpucost.contract.gpu_metrics import Measure

SECOND_NS = 1_000_000_000
TICKS_PER_SECOND = 1 << 20
PARTS_PER_JOULE = 1 << 14

# Base amounts: nanoseconds of board time, or millijoules.
_BASE = dict.fromkeys(Measure, SECOND_NS) | {Measure.ENERGY: 1_000}
_DYADIC = dict.fromkeys(Measure, TICKS_PER_SECOND) | {Measure.ENERGY: PARTS_PER_JOULE}


def dyadic(measure: Measure, base: int) -> int:
    """A total in nanoseconds or millijoules -> whole ticks or parts of a joule, rounded down."""
    return base * _DYADIC[measure] // _BASE[measure]


def exported(measure: Measure, amount: int) -> float:
    """Ticks or parts -> seconds or joules, without an error."""
    return amount / _DYADIC[measure]
