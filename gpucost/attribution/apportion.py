"""Dealing integers like cards: how time and money are split without a remainder being lost or invented.

A GPU that is split into ``den`` equal slots deals its milliseconds out one by one: millisecond ``t``
(counted from 1970) belongs to slot ``t mod den``. A unit that stands for ``w/den`` of a GPU owns ``w``
neighbouring slots. Money is dealt the same way: a GPU earns ``floor(price x t / 3,600,000)`` nano-units
until ``t``, and nano-unit number ``k`` belongs to slot ``k mod den``.

Three properties follow, and everything else rests on them:

* the slots of a GPU add up to the GPU, to the millisecond and to the nano-unit;
* cutting a stretch in two changes nothing, because who gets millisecond ``t`` does not depend on where
  the cuts are: windows of 15 minutes and of a day give the same totals;
* no part is ever negative, and a slot is off by less than one from its exact share of a stretch.

Where a GPU has many slots, a unit that owns thousands of neighbouring ones would have its cards all at once,
and then none for minutes. So beyond ``FEW_SLOTS`` millisecond ``t`` belongs to slot ``t x stride mod den``
instead: the same three properties hold, and any run of slots is off by some milliseconds at most.

The largest-remainder method gives the first property only; see docs/decisions/0001-dealing.md.
All functions take and return int64 arrays (or integers) and never overflow for prices up to 1,000,000 per
GPU-hour, and nodes that earn below 4e18 nano-units in a stretch (4 billion dollars).

``attribution.lines`` (SlotApportioner) deals every usage line with ``deal_ms`` and ``deal_nano``, what
holders have and what is left over alike.
"""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpucost.domain.time import HOUR_MS

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


FEW_SLOTS = 128
"""Up to so many slots a GPU, cards are dealt to slots in their order."""


def deal_ms(start: Ints, end: Ints, slot_from: Ints, slot_to: Ints, den: Ints) -> Ints:
    """GPU milliseconds of ``[start, end)`` for slots ``[slot_from, slot_to)``, ``den`` slots a GPU."""
    phase = _modulo(start, den)
    return _dealt(phase, phase + (end - start), slot_from, slot_to, den)


def deal_nano(start: Ints, end: Ints, slot_from: Ints, slot_to: Ints, den: Ints, nano_per_hour: Ints) -> Ints:
    """Nano-units that GPUs at ``nano_per_hour`` earn in ``[start, end)`` and that fall to those slots."""
    hourly_start, partial_start = _earned(start, nano_per_hour)
    hourly_end, partial_end = _earned(end, nano_per_hour)
    phase = _modulo(
        _modulo(nano_per_hour, den) * _modulo(hourly_start, den) + _modulo(partial_start, den), den
    )
    earned = nano_per_hour * (hourly_end - hourly_start) + (partial_end - partial_start)
    return _dealt(phase, phase + earned, slot_from, slot_to, den)


def _modulo(number: Ints, den: Ints) -> Ints:
    remainder: Ints = np.zeros_like(number) if np.all(den == 1) else number % den
    return remainder


def _earned(instant: Ints, nano_per_hour: Ints) -> tuple[Ints, Ints]:
    """``floor(price x t / 3,600,000)`` in two parts that fit 64 bits: whole hours, nano-units since then."""
    whole, rest = nano_per_hour // HOUR_MS, nano_per_hour % HOUR_MS
    minutes = instant % HOUR_MS
    return instant // HOUR_MS, whole * minutes + rest * minutes // HOUR_MS


def _dealt(first: Ints, last: Ints, slot_from: Ints, slot_to: Ints, den: Ints) -> Ints:
    """How many cards numbered ``[first, last)`` go to the slots: card ``k`` goes to slot ``k mod den``."""
    if np.all(den == 1):  # whole GPUs, by far the most common: no division needed
        boards: Ints = (last - first) * (slot_to - slot_from)
        return boards
    return (
        _up_to(last, slot_to, den)
        - _up_to(last, slot_from, den)
        - _up_to(first, slot_to, den)
        + _up_to(first, slot_from, den)
    )


def _up_to(cards: Ints, slots: Ints, den: Ints) -> Ints:
    """Cards below ``cards`` dealt to slots below ``slots``; slots past ``den`` are further GPUs."""
    boards, partial = slots // den, slots % den
    rest = cards % den
    of_rest = np.asarray(np.minimum(rest, partial))
    many = np.broadcast_to(den > FEW_SLOTS, of_rest.shape)
    if many.any():
        each = (np.broadcast_to(value, of_rest.shape)[many] for value in (rest, partial, den))
        of_rest[many] = _strided(*each)
    dealt: Ints = boards * cards + (cards // den) * partial + of_rest
    return dealt


def _strided(cards: Ints, slots: Ints, den: Ints) -> Ints:
    """Of the first ``cards`` of a round, those that go to slots below ``slots``, where card ``k`` goes to
    slot ``k x stride mod den``: how many ``k`` have a remainder below ``slots``."""
    distinct, which = np.unique(den, return_inverse=True)
    stride = np.array([_stride(each) for each in distinct.tolist()], dtype=np.int64)[which]
    below = _floor_sum(cards, den, stride, np.zeros_like(den))
    return below - _floor_sum(cards, den, stride, den - slots) + cards


@cache
def _stride(den: int) -> int:
    """A number prime to ``den`` whose multiples lie evenly among its slots: of some near the golden section
    the one that no fraction of small numbers comes near to (its largest partial quotient is the smallest)."""
    middle = int(den * 0.6180339887498949)
    near = (each for each in range(max(1, middle - 200), min(den, middle + 200)) if gcd(each, den) == 1)
    return min(near, key=lambda each: (_largest_quotient(each, den), abs(each - middle)))


def _largest_quotient(stride: int, den: int) -> int:
    largest, rest, whole = 0, stride, den
    while rest:
        largest, whole, rest = max(largest, whole // rest), rest, whole % rest
    return largest


def _floor_sum(count: Ints, den: Ints, factor: Ints, offset: Ints) -> Ints:
    """Sum of ``floor((factor x k + offset) / den)`` for ``k`` below ``count``, by Euclid's algorithm."""
    total = np.zeros_like(count)
    n, m, a, b = count.copy(), den.copy(), factor.copy(), offset.copy()
    live = n > 0
    while live.any():
        total += np.where(live, n * (n - 1) // 2 * (a // m) + n * (b // m), 0)
        a, b = a % m, b % m
        top = a * n + b
        live &= top >= m
        # The same sum over the other axis: the roles of factor and denominator change.
        n, b, m, a = np.where(live, top // m, 0), top % m, np.where(live, a, 1), np.where(live, m, 0)
    return total
