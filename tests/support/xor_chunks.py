"""Samples to the chunks that Prometheus would store (XOR), written for tests: bit by bit, slow and plain.

After ``tsdb/chunkenc/xor.go`` of Prometheus. ``message`` is the protobuf message Chunk of remote read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

STALE = struct.unpack(">d", (0x7FF0000000000002).to_bytes(8, "big"))[0]
MOST_SAMPLES = 120
_WIDTHS = ((14, "10"), (17, "110"), (20, "1110"))


def message(samples: Sequence[tuple[int, float]], kind: int = 1) -> bytes:
    """Of instants in milliseconds, each after the one before it, and values."""
    data = chunk(samples)
    first, last = samples[0][0], samples[-1][0]
    fields = [b"\x08" + _varint(first), b"\x10" + _varint(last), b"\x18" + _varint(kind)]
    return b"".join((*fields, b"\x22", _varint(len(data)), data))


def chunk(samples: Sequence[tuple[int, float]]) -> bytes:
    """The bytes of a chunk."""
    start, value = samples[0]
    bits = _bits(len(samples), 16) + _text(_varint(_zigzag(start))) + _bits(_raw(value), 64)
    before = _raw(value)
    window: tuple[int, int] | None = None
    delta = 0
    for number, (at, value) in enumerate(samples[1:], 1):
        step = at - samples[number - 1][0]
        bits += _text(_varint(step)) if number == 1 else _change(step - delta)
        delta = step
        more, window = _value(_raw(value), before, window)
        bits += more
        before = _raw(value)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def _change(change: int) -> str:
    if change == 0:
        return "0"
    for width, prefix in _WIDTHS:
        if -((1 << (width - 1)) - 1) <= change <= 1 << (width - 1):
            return prefix + _bits(change % (1 << width), width)
    return "1111" + _bits(change % (1 << 64), 64)


def _value(raw: int, before: int, window: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None]:
    """``window``: leading and trailing zeros that the last value was sent without."""
    changed = raw ^ before
    if changed == 0:
        return "0", window
    leading = min(64 - changed.bit_length(), 31)
    trailing = (changed & -changed).bit_length() - 1
    if window is not None and leading >= window[0] and trailing >= window[1]:
        return "10" + _bits(changed >> window[1], 64 - window[0] - window[1]), window
    width = 64 - leading - trailing
    text = "11" + _bits(leading, 5) + _bits(width % 64, 6) + _bits(changed >> trailing, width)
    return text, (leading, trailing)


def _raw(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value), "big")


def _bits(number: int, width: int) -> str:
    return format(number, f"0{width}b")


def _text(data: bytes) -> str:
    return "".join(_bits(byte, 8) for byte in data)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))
