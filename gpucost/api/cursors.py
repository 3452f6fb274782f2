"""Where a list of findings goes on: the cursor holds the ids that were given.

The list is ordered by cost, which changes with every evaluation; a place in that order would lose what
climbs past it, and repeat what falls below it. What was given does not change. A cursor of 1,000 findings
is about 2 kB.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Collection, Iterable

from gpucost.domain.errors import InputError

MOST_GIVEN = 4_000
"""Findings that a list can go on after: more would make addresses longer than proxies take (8 kB)."""
LONGEST = 24_000
_LONGEST_ID_BYTES = 10
_LONGEST_ID_BITS = 63
_ALLOWED = "the `next` of the page before, as it was given"


def encode(given: Collection[int]) -> str:
    """Ids above 0 -> a text for a URL; the same for the same ids."""
    raw, before = bytearray(), 0
    for finding_id in sorted(given):
        step, before = finding_id - before, finding_id
        while step > 127:
            raw.append(step & 127 | 128)
            step >>= 7
        raw.append(step)
    return base64.urlsafe_b64encode(zlib.compress(bytes(raw), 9)).decode().rstrip("=")


def decode(text: str) -> frozenset[int]:
    """The ids that ``encode`` was given. Raises InputError for any other text."""
    try:
        packed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        inflate = zlib.decompressobj()
        raw = inflate.decompress(packed, (MOST_GIVEN + 1) * _LONGEST_ID_BYTES)
    except (UnicodeEncodeError, binascii.Error, zlib.error):
        raise InputError("after", text, _ALLOWED) from None
    found = frozenset(_ids(raw))
    if not inflate.eof or inflate.unused_data or len(found) > MOST_GIVEN or encode(found) != text:
        raise InputError("after", text, _ALLOWED)
    return found


def _ids(raw: Iterable[int]) -> Iterable[int]:
    finding_id = step = shift = 0
    for byte in raw:
        if shift > _LONGEST_ID_BITS:
            raise InputError("after", "a cursor", _ALLOWED)
        step |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            finding_id += step
            yield finding_id
            step = shift = 0
