"""The compiled loops of ``sample_chunks``: bytes of chunks to what each series did in each range.

Imported only where numba is installed, and only when chunks are to be read: to import it takes a third of a
second. Compiled code is kept where this user may write (NUMBA_CACHE_DIR, or beside this file), else it is
compiled in each process, which takes seconds. Whole numbers are unsigned where bits are meant: numba makes a
float of a signed and an unsigned one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy import float64, int64, uint64

from gpucost.telemetry.prometheus.sample_chunks import ENDS_EARLY, NOT_IN_ORDER, NOT_XOR, Bytes, Floats, Ints

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

_STALE = uint64(0x7FF0000000000002)
_ONE, _TOP = uint64(1), uint64(63)
_MOST_VARINT = 10


def _compiled(function: _Loop, **options: Any) -> _Loop:
    try:
        found = njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    except RuntimeError:  # no folder can be written
        found = njit(nogil=True, error_model="numpy", **options)(function)
    return cast(_Loop, found)


def _word_at(data: Bytes, bit: int64) -> uint64:
    """The bits from ``bit`` on, the first one on top; 57 of them are true."""
    at = bit >> 3
    word = (
        (uint64(data[at]) << uint64(56))
        | (uint64(data[at + 1]) << uint64(48))
        | (uint64(data[at + 2]) << uint64(40))
        | (uint64(data[at + 3]) << uint64(32))
        | (uint64(data[at + 4]) << uint64(24))
        | (uint64(data[at + 5]) << uint64(16))
        | (uint64(data[at + 6]) << uint64(8))
        | uint64(data[at + 7])
    )
    return word << uint64(bit & 7)


_word = _compiled(_word_at, inline="always")


def _bits_at(data: Bytes, bit: int64, number: int64) -> uint64:
    """``number`` (1 to 64) bits from ``bit`` on."""
    if number <= 57:
        return _word(data, bit) >> uint64(64 - number)
    high = _word(data, bit) >> uint64(32)
    low = _word(data, bit + 32) >> uint64(96 - number)
    return (high << uint64(number - 32)) | low


_bits = _compiled(_bits_at, inline="always")


def _varint_at(data: Bytes, at: int64, end: int64) -> tuple[uint64, int64]:
    """A number of seven bits a byte, and where it ends; -1 where it does not end before ``end``."""
    found, shift = uint64(0), uint64(0)
    for place in range(at, min(end, at + _MOST_VARINT)):
        byte = uint64(data[place])
        found |= (byte & uint64(127)) << shift
        if byte < uint64(128):
            return found, int64(place + 1)
        shift += uint64(7)
    return uint64(0), int64(-1)


_varint = _compiled(_varint_at)


def _samples_of_chunk(data: Bytes, start: int64, end: int64) -> tuple[int64, int64, int64]:
    """Of a message ``Chunk`` (min_time_ms 1, max_time_ms 2, type 3, data 4): where its samples stand, and
    what is wrong with it."""
    at, first, last, kind = start, int64(0), int64(0), uint64(0)
    while at < end:
        tag, at = _varint(data, at, end)
        if at < 0:
            return first, last, int64(ENDS_EARLY)
        value, at = _varint(data, at, end)
        if at < 0:
            return first, last, int64(ENDS_EARLY)
        if tag & uint64(7) == uint64(2):
            if value > uint64(end - at):
                return first, last, int64(ENDS_EARLY)
            if tag >> uint64(3) == uint64(4):
                first, last = at, at + int64(value)
            at += int64(value)
        elif tag & uint64(7) != uint64(0):
            return first, last, int64(ENDS_EARLY)
        elif tag >> uint64(3) == uint64(3):
            kind = value
    return first, last, int64(0) if kind == _ONE else int64(NOT_XOR)


_samples = _compiled(_samples_of_chunk)


def _change_at(data: Bytes, bit: int64, stop: int64) -> tuple[int64, int64]:
    """By how much the distance of two instants differs from the one before, and where that ends; -1 where it
    does not end before ``stop``."""
    if bit >= stop:
        return int64(0), int64(-1)
    word = _word(data, bit)
    if word >> _TOP == uint64(0):
        return int64(0), bit + 1
    if (word >> uint64(62)) & _ONE == uint64(0):
        bit, size = bit + 2, int64(14)
    elif (word >> uint64(61)) & _ONE == uint64(0):
        bit, size = bit + 3, int64(17)
    elif (word >> uint64(60)) & _ONE == uint64(0):
        bit, size = bit + 4, int64(20)
    else:
        bit, size = bit + 4, int64(64)
    if bit + size > stop:
        return int64(0), int64(-1)
    change = int64(_bits(data, bit, size))
    if size < 64 and change > (int64(1) << (size - 1)):
        change -= int64(1) << size
    return change, bit + size


_change = _compiled(_change_at)


def _value_at(
    data: Bytes, bit: int64, stop: int64, bits: uint64, leading: int64, width: int64
) -> tuple[uint64, int64, int64, int64]:
    """The bits of the value after the one with ``bits``, which of its bits were sent, and where that ends; -1
    where it does not end before ``stop``."""
    if bit >= stop:
        return bits, leading, width, int64(-1)
    word = _word(data, bit)
    if word >> _TOP == uint64(0):
        return bits, leading, width, bit + 1
    if (word >> uint64(62)) & _ONE == uint64(0):
        bit += 2
    else:
        leading = int64((word >> uint64(57)) & uint64(31))
        width = int64((word >> uint64(51)) & uint64(63))
        if width == 0:
            width = int64(64)
        bit += 13
    if width == 0 or leading + width > 64 or bit + width > stop:
        return bits, leading, width, int64(-1)
    bits ^= _bits(data, bit, width) << uint64(64 - leading - width)
    return bits, leading, width, bit + width


_value = _compiled(_value_at)


def _count_in(count: Ints, of: Floats, value: float64) -> None:
    """One more sample in a range: its count and resets, and sum, compensation, maximum, minimum and last."""
    if count[0] == 0:
        of[0], of[1], of[2], of[3] = 0.0, 0.0, value, value
    else:
        if value > of[2] or np.isnan(of[2]):
            of[2] = value
        if value < of[3] or np.isnan(of[3]):
            of[3] = value
        if value < of[4]:
            count[1] += 1
    count[0] += 1
    total = of[0] + value
    if np.isinf(total):
        of[1] = 0.0
    elif abs(of[0]) >= abs(value):
        of[1] += (of[0] - total) + value
    else:
        of[1] += (value - total) + of[0]
    of[0] = total
    of[4] = value


_counted = _compiled(_count_in)


def _add_chunk(
    data: Bytes, start: int64, end: int64, bounds: Ints, counts: Ints, values: Floats, latest: int64
) -> tuple[int64, int64, int64]:
    """The samples of one chunk to the ranges of one series: how many, the instant of the last one, and what
    is wrong."""
    first_ms, step_ms, number, range_ms = bounds[0], bounds[1], bounds[2], bounds[3]
    cell = np.empty(1, dtype=np.uint64)
    as_float = cell.view(np.float64)
    if end - start < 2:
        return int64(0), latest, int64(ENDS_EARLY)
    many = (int64(data[start]) << 8) | int64(data[start + 1])
    at_ms, delta, bit, stop = int64(0), int64(0), (start + 2) << 3, end << 3
    bits, leading, width, step = uint64(0), int64(0), int64(0), int64(0)
    for sample in range(many):
        if sample == 0:
            told, at = _varint(data, bit >> 3, end)
            if at < 0 or at + 8 > end:
                return int64(sample), latest, int64(ENDS_EARLY)
            at_ms = int64(told >> _ONE) ^ -int64(told & _ONE)
            bits, bit = _bits(data, at << 3, int64(64)), (at + 8) << 3
        else:
            if sample == 1:
                told, at = _varint(data, bit >> 3, end)
                delta, bit = int64(told), at << 3
            else:
                change, bit = _change(data, bit, stop)
                delta += change
            if bit >= 0:
                bits, leading, width, bit = _value(data, bit, stop, bits, leading, width)
            if bit < 0:
                return int64(sample), latest, int64(ENDS_EARLY)
            at_ms += delta
        if at_ms <= latest:
            return int64(sample), latest, int64(NOT_IN_ORDER)
        latest = at_ms
        while step < number and first_ms + step * step_ms < at_ms:
            step += 1
        place = step
        cell[0] = bits
        while place < number and first_ms + place * step_ms - range_ms <= at_ms:
            if bits == _STALE:
                counts[place, 2] = 0
            else:
                counts[place, 2] = at_ms
                _counted(counts[place], values[place], as_float[0])
            place += 1
    return int64(many), latest, int64(0)


_added = _compiled(_add_chunk)


def _add_chunks(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    rows: Ints,
    bounds: Ints,
    counts: Ints,
    values: Floats,
    latest: Ints,
) -> tuple[int64, int64]:
    """Every chunk to its row; the samples read, and what is wrong (0: nothing)."""
    read = int64(0)
    for number in range(len(rows)):
        first, last, wrong = _samples(data, starts[number], ends[number])
        if wrong:
            return read, wrong
        row = rows[number]
        many, upto, wrong = _added(data, first, last, bounds, counts[row], values[row], latest[row])
        latest[row] = upto
        read += many
        if wrong:
            return read, wrong
    return read, int64(0)


add_chunks = _compiled(_add_chunks)
