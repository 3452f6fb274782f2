"""The compiled loops of ``sample_chunks`` and ``remote_read``: frames of an answer to where its series and
chunks stand, and bytes of chunks to what each series did in each range.

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

from gpucost.telemetry.prometheus.sample_chunks import (
    ENDS_EARLY,
    MOST_FRAME,
    NOT_A_FRAME,
    NOT_IN_ORDER,
    NOT_XOR,
    TOO_LONG,
    Bytes,
    Floats,
    Ints,
)

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

_STALE = uint64(0x7FF0000000000002)
_ONE, _TOP = uint64(1), uint64(63)
_ZERO = float64(0.0)
_WHOLE = float64(2.0**53)  # below it, whole numbers add up without a rest
_NEVER_MS = int64(1) << int64(62)
_MOST_VARINT = 10


def _compiled(function: _Loop, **options: Any) -> _Loop:
    try:
        found = njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    except RuntimeError:  # no folder can be written
        found = njit(nogil=True, error_model="numpy", **options)(function)
    return cast(_Loop, found)


def _word_at(data: Bytes, bit: int64) -> uint64:
    """The bits from ``bit`` on, the first one on top; 57 of them are true."""
    # Unsigned places cannot count from the end: that the eight bytes follow one another is plain, and they
    # are read at once.
    at = uint64(bit) >> uint64(3)
    word = (
        (uint64(data[at]) << uint64(56))
        | (uint64(data[at + uint64(1)]) << uint64(48))
        | (uint64(data[at + uint64(2)]) << uint64(40))
        | (uint64(data[at + uint64(3)]) << uint64(32))
        | (uint64(data[at + uint64(4)]) << uint64(24))
        | (uint64(data[at + uint64(5)]) << uint64(16))
        | (uint64(data[at + uint64(6)]) << uint64(8))
        | uint64(data[at + uint64(7)])
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


_change = _compiled(_change_at, inline="always")


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


_value = _compiled(_value_at, inline="always")


def _first_sample(data: Bytes, at: int64, end: int64) -> tuple[int64, uint64, int64]:
    """The instant and the bits of the value that stand here, and where that ends; -1 where it does not end
    before ``end``."""
    told, at = _varint(data, at, end)
    if at < 0 or at + 8 > end:
        return int64(0), uint64(0), int64(-1)
    return int64(told >> _ONE) ^ -int64(told & _ONE), _bits(data, at << 3, int64(64)), (at + 8) << 3


_first = _compiled(_first_sample)


def _next_delta(data: Bytes, bit: int64, end: int64, delta: int64, sample: int64) -> tuple[int64, int64]:
    """The distance of a sample to the one before it, and where that ends; -1 where it does not end."""
    if sample > 1:
        change, bit = _change(data, bit, end << 3)
        return delta + change, bit
    told, at = _varint(data, bit >> 3, end)
    return int64(told), at << 3


_delta = _compiled(_next_delta, inline="always")

_Known = tuple[int64, int64, int64, float64, float64, float64, float64, float64]
"""Of one range: samples, resets, the instant of the last one (0: the series ended), their sum, its
compensation, the largest, the smallest, and the last."""


def _count_in(known: _Known, at_ms: int64, bits: uint64, value: float64) -> _Known:
    """With one more sample."""
    count, resets, _, total, rest, most, least, last = known
    if bits == _STALE:
        return count, resets, int64(0), total, rest, most, least, last
    if count == 0:
        total, rest, most, least = _ZERO, _ZERO, value, value
    else:
        if value > most or np.isnan(most):
            most = value
        if value < least or np.isnan(least):
            least = value
        if value < last:
            resets += 1
    summed = total + value
    if np.isinf(summed):
        rest = _ZERO
    elif abs(total) >= abs(value):
        rest += (total - summed) + value
    else:
        rest += (value - summed) + total
    return count + 1, resets, at_ms, summed, rest, most, least, value


_counted = _compiled(_count_in, inline="always")


def _put_in(counts: Ints, values: Floats, place: int64, known: _Known) -> None:
    if place >= 0:
        counts[place, 0], counts[place, 1], counts[place, 2] = known[0], known[1], known[2]
        values[place, 0], values[place, 1], values[place, 2] = known[3], known[4], known[5]
        values[place, 3], values[place, 4] = known[6], known[7]


_put = _compiled(_put_in, inline="always")


def _known_of(counts: Ints, values: Floats, place: int64) -> _Known:
    count, resets, last_ms = counts[place, 0], counts[place, 1], counts[place, 2]
    total, rest, most = values[place, 0], values[place, 1], values[place, 2]
    return count, resets, last_ms, total, rest, most, values[place, 3], values[place, 4]


_known = _compiled(_known_of, inline="always")


def _unchanged_at(data: Bytes, bit: int64, end: int64, most: int64) -> int64:
    """How many of the next ``most`` samples stand here as two bits of 0 each: as far from the one before as
    that was, with its value. What is exported of objects hardly says anything else."""
    found, stop = int64(0), end << 3
    while most - found >= 28 and bit + 56 <= stop:
        if _word(data, bit) >> uint64(8) != uint64(0):
            break
        found += 28
        bit += 56
    while found < most and bit + 2 <= stop and _word(data, bit) >> uint64(62) == uint64(0):
        found += 1
        bit += 2
    return found


_unchanged = _compiled(_unchanged_at)


def _same_until(bounds: Ints, step: int64, place: int64) -> int64:
    """Up to when samples are in the ranges of the one before, those from ``step`` to before ``place``."""
    first_ms, step_ms, number, range_ms = bounds[0], bounds[1], bounds[2], bounds[3]
    limit_ms = first_ms + step * step_ms if step < number and place > step else _NEVER_MS
    return min(limit_ms, first_ms + place * step_ms - range_ms - 1) if place < number else limit_ms


_limit = _compiled(_same_until, inline="always")


def _until_changed(at_ms: int64, delta: int64, limit_ms: int64, most: int64) -> int64:
    """How many instants ``delta`` apart come after this one, up to a limit; at most ``most``."""
    return min(most, (limit_ms - at_ms) // delta) if delta > 0 else int64(0)


_until = _compiled(_until_changed, inline="always")


def _count_again(known: _Known, at_ms: int64, bits: uint64, value: float64, times: int64) -> _Known:
    """With some samples more of the value that was counted last; the last of them at that instant."""
    if bits == _STALE:
        return _counted(known, at_ms, bits, value)
    count, resets, _, total, rest, most, least, last = known
    added = value * float64(times)
    summed = total + added
    whole = np.floor(value) == value and np.floor(total) == total
    if rest == _ZERO and whole and max(abs(total), abs(added), abs(summed)) < _WHOLE:
        return count + times, resets, at_ms, summed, rest, most, least, last
    for _ in range(times):
        known = _counted(known, at_ms, bits, value)
    return known


_again = _compiled(_count_again)


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
    at_ms, delta, bit = int64(0), int64(0), (start + 2) << 3
    bits, leading, width, step = uint64(0), int64(0), int64(0), int64(0)
    # The range of which all stands in ``known`` while samples of it follow one another; -1 for none.
    held, found, wrong = int64(-1), many, int64(0)
    known = (int64(0), int64(0), int64(0), _ZERO, _ZERO, _ZERO, _ZERO, _ZERO)
    sample = int64(0)
    while sample < many:
        if sample == 0:
            at_ms, bits, bit = _first(data, start + 2, end)
        else:
            delta, bit = _delta(data, bit, end, delta, sample)
            if bit >= 0:
                bits, leading, width, bit = _value(data, bit, end << 3, bits, leading, width)
            at_ms += delta
        if bit < 0 or at_ms <= latest:
            found, wrong = sample, int64(ENDS_EARLY if bit < 0 else NOT_IN_ORDER)
            break
        latest = at_ms
        while step < number and first_ms + step * step_ms < at_ms:
            step += 1
        place = step
        cell[0] = bits
        while place < number and first_ms + place * step_ms - range_ms <= at_ms:
            if place != held:
                _put(counts, values, held, known)
                held, known = place, _known(counts, values, place)
            known = _counted(known, at_ms, bits, as_float[0])
            place += 1
        sample += 1
        if sample > 1 and place <= step + 1:
            times = _until(at_ms, delta, _limit(bounds, step, place), many - sample)
            times = _unchanged(data, bit, end, times)
            if times > 0:
                latest = at_ms = at_ms + times * delta
                bit += 2 * times
                sample += times
                if place > step:
                    known = _again(known, at_ms, bits, as_float[0], times)
    _put(counts, values, held, known)
    return found, latest, wrong


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


def _length_at(data: Bytes, at: int64, end: int64) -> tuple[int64, int64]:
    """A length, and where what is that long begins; -1 where it does not end before ``end``."""
    found, start = _varint(data, at, end)
    if start < 0 or found > uint64(end - start):
        return int64(0), int64(-1)
    return int64(found), start


_length = _compiled(_length_at)


def _after_field(data: Bytes, at: int64, end: int64, kind: uint64) -> int64:
    """Where a field of a message ends whose value stands here; -1 where it does not end before ``end``."""
    if kind == uint64(0):
        _, after = _varint(data, at, end)
        return after
    if kind == uint64(2):
        many, start = _length(data, at, end)
        return start if start < 0 else start + many
    many = int64(8) if kind == _ONE else int64(4) if kind == uint64(5) else int64(end + 1)
    return at + many if at + many <= end else int64(-1)


_after = _compiled(_after_field)


def _is_name_at(data: Bytes, at: int64, end: int64) -> bool:
    """Whether the message ``Label`` that stands here has the name ``__name__``."""
    return bool(
        end - at >= 10
        and data[at] == 10
        and data[at + 1] == 8
        and data[at + 2] == 95
        and data[at + 3] == 95
        and data[at + 4] == 110
        and data[at + 5] == 97
        and data[at + 6] == 109
        and data[at + 7] == 101
        and data[at + 8] == 95
        and data[at + 9] == 95
    )


_is_name = _compiled(_is_name_at)


def _scan_series(
    data: Bytes, at: int64, end: int64, series: Ints, number: int64, chunks: Ints, have: int64
) -> int64:
    """Of a message ``ChunkedSeries``, where its labels (fields 1, side by side) begin and end, the same of
    the one that is its name, and to ``chunks`` where its chunks (2) do. How many chunks there are then; -1
    where it is no such message."""
    first, last, name, after = at, at, at, at
    while at < end:
        before = at
        tag, at = _varint(data, at, end)
        if at < 0:
            return int64(-1)
        if tag == uint64(10):
            many, start = _length(data, at, end)
            if start < 0 or (last != before and last != first):
                return int64(-1)
            at = start + many
            if last == first:
                first, name, after = before, at, at
            if _is_name(data, start, at):
                name, after = before, at
            last = at
        elif tag == uint64(18):
            many, start = _length(data, at, end)
            if start < 0 or have == chunks.shape[1]:
                return int64(-1)
            at = start + many
            chunks[0, have], chunks[1, have], chunks[2, have] = start, at, number
            have += 1
        else:
            at = _after(data, at, end, tag & uint64(7))
            if at < 0:
                return int64(-1)
    series[0, number], series[1, number], series[2, number], series[3, number] = first, last, name, after
    return have


_series = _compiled(_scan_series)


def _scan_frames(
    data: Bytes, size: int64, frames: Ints, series: Ints, chunks: Ints
) -> tuple[int64, int64, int64, int64, int64]:
    """The whole frames in ``data[:size]``: where each message stands and its checksum, and of their series as
    ``_scan_series`` has it. How many bytes, frames, series and chunks there were, and what is wrong."""
    at, number, many, have = int64(0), int64(0), int64(0), int64(0)
    while at < size:
        told, start = _varint(data, at, size)
        if start < 0:
            wrong = int64(TOO_LONG) if size - at >= _MOST_VARINT else int64(0)
            return at, number, many, have, wrong
        if told > uint64(MOST_FRAME):
            return at, number, many, have, int64(TOO_LONG)
        first, end = start + 4, start + 4 + int64(told)
        if end > size:
            break
        if number == frames.shape[1]:
            return at, number, many, have, int64(NOT_A_FRAME)
        frames[0, number], frames[1, number] = first, end
        frames[2, number] = (
            (int64(data[start]) << 24)
            | (int64(data[start + 1]) << 16)
            | (int64(data[start + 2]) << 8)
            | int64(data[start + 3])
        )
        # Its checksum comes first: what is no message is not the fault of whoever sent it.
        number, place = number + 1, first
        while place < end:
            tag, place = _varint(data, place, end)
            if place < 0:
                return at, number, many, have, int64(NOT_A_FRAME)
            if tag != uint64(10):
                place = _after(data, place, end, tag & uint64(7))
            else:
                length, inner = _length(data, place, end)
                if inner < 0 or many == series.shape[1]:
                    return at, number, many, have, int64(NOT_A_FRAME)
                place = inner + length
                have = _series(data, inner, place, series, many, chunks, have)
                many += 1
                if have < 0:
                    return at, number, many, int64(0), int64(NOT_A_FRAME)
            if place < 0:
                return at, number, many, have, int64(NOT_A_FRAME)
        at = end
    return at, number, many, have, int64(0)


scan_frames = _compiled(_scan_frames)
