"""Rows of frames.HEALTH out of dcgm-exporter: boards after an error that only a reset repairs.

Its gauge shows the last error's code for as long as there was no other, so that an event is a change of it.
There is no row while there was no error: the first one is an event where the board was seen before without
it, by the same exporter; a code that was there when its board was first seen is none. An error of the same
code as the last is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from gpucost.contract.dcgm import NAMES, SCALES, UUID_LABELS, Field, Unit
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.answers import Series, needed
from gpucost.telemetry.existing.gpus import Boards
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.subjects import field_names, first_of
from gpucost.telemetry.history_health import BROKEN_XIDS, LONGEST_MS
from gpucost.telemetry.promql import by, over_time
from gpucost.telemetry.reader import points
from gpucost.telemetry.rows import Row

_BEFORE_MS = 10 * MINUTE_MS
# Of these each kind of device and each release has at least one.
_SHOWN = (Field.POWER, Field.MEMORY_USED, Field.BUSY, Field.GRAPHICS)
_Values = dict[int, int]


def read_health(reader: ExistingReader, window: Window, boards: Boards) -> list[Row]:
    """Clipped to the window. One counts from its first sample until its code is gone, at most for an hour."""
    wide = Window(window.start_ms - LONGEST_MS - _BEFORE_MS, window.end_ms)
    names = field_names(reader, wide)
    uuids = _broken(reader, wide, names.get(Field.XID, ()))
    codes = _codes(_raw(reader, names.get(Field.XID, ()), uuids, wide))
    shown = [name for field in _SHOWN for name in names.get(field, ())]
    seen = _instants(_raw(reader, shown, codes, wide))
    rows: list[Row] = []
    for uuid, values in sorted(codes.items()):
        for start, end, code in _stretches(values, seen.get(uuid, {})):
            clipped = max(start, window.start_ms), min(end, window.end_ms)
            if clipped[0] < clipped[1] and uuid in boards.node_of:
                rows.append((reader.cluster, boards.node_of[uuid], uuid, *clipped, f"xid_{code}"))
    return rows


def _broken(reader: ExistingReader, wide: Window, names: Iterable[str]) -> set[str]:
    """Boards that showed a code in that time at all; of most nothing else need be read."""
    found: set[str] = set()
    for name in names:
        most = over_time("max_over_time", reader.select(name), wide.length_ms)
        for each in reader.vector(by("max", UUID_LABELS, most), wide.end_ms):
            if float(each["value"][1]) >= min(BROKEN_XIDS):
                found.add(first_of(each["metric"], UUID_LABELS))
    return found - {""}


def _raw(reader: ExistingReader, names: Iterable[str], uuids: Iterable[str], wide: Window) -> list[Series]:
    wanted = sorted(uuids)
    if not wanted or not names:
        return []
    return reader.raw_where([*names], UUID_LABELS, wanted, wide.start_ms, wide.end_ms)


def _codes(found: Iterable[Series]) -> Mapping[str, _Values]:
    """By board, the code at each instant; what no code can be is left out."""
    codes: dict[str, _Values] = defaultdict(dict)
    for each in found:
        own = codes[first_of(each["metric"], UUID_LABELS)]
        name = NAMES[needed(each, "__name__").upper()]
        highest = SCALES[name.unit or Unit.CODE].highest
        for at, value in zip(*points(each), strict=True):
            if 0 <= value <= highest:
                own[at] = max(own.get(at, 0), int(value))
    return codes


def _instants(found: Iterable[Series]) -> Mapping[str, dict[int, str]]:
    """By board, when any of its rows was read, and of which exporter."""
    seen: dict[str, dict[int, str]] = defaultdict(dict)
    for each in found:
        labels = each["metric"]
        own = seen[first_of(labels, UUID_LABELS)]
        own.update(dict.fromkeys(points(each)[0], labels.get("instance", "")))
    return seen


def _stretches(values: _Values, seen: Mapping[int, str]) -> Iterator[tuple[int, int, int]]:
    """When the board was broken, and by which code: instants without a row of the code but with others of
    the board show that there is none (any more)."""
    timeline = sorted({**dict.fromkeys(seen, 0), **values}.items())
    events: list[tuple[int, int, int]] = []
    for (before, old), (at, code) in pairwise(timeline):
        started_anew = before in seen and at in seen and seen[before] != seen[at] and old == 0
        if code != old and code in BROKEN_XIDS and at - before <= _BEFORE_MS and not started_anew:
            gone = next((t for t, value in timeline if t > at and value == 0), at + LONGEST_MS)
            events.append((at, min(gone, at + LONGEST_MS), code))
    yield from events
