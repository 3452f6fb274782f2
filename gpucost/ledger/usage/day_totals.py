"""What lines sum to by UTC day, worked out without a database: before they are written, by any process.

``sums_of_windows`` adds up lines that are to be written, and compares what a day sums to with what is
recorded of its windows, each time. ``day_sums`` stores the sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucost.attribution.apportion import Ints
from gpucost.contract.frames import PEAKS, SIGNAL_MEASURES
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import LedgerError
from gpucost.domain.money import INT64_MAX
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.db.digest import content_key
from gpucost.ledger.usage.lines import HOLDER_KEY_COLUMNS, UNIT_COLUMNS, CapacityTotals, LineMeasure

LEAST, LARGEST = frozenset(("first_ms",)), frozenset(("last_ms", *PEAKS))

DAY_MEASURES = ("board_ms", "nano", "unpriced_ms", "first_ms", "last_ms", *SIGNAL_MEASURES)
_AT = {name: at for at, name in enumerate(("unit", "holder", "rate", "bucket", *DAY_MEASURES))}
_NODE = UNIT_COLUMNS.index("node")
_POD = HOLDER_KEY_COLUMNS.index("pod")  # and pod_uid after it
_CAPACITY = tuple(str(bucket) for bucket in Bucket if bucket.is_capacity)

# A row that begins with no more than the one, and to which each of some thousand windows adds no more than
# the other, stays within 64 bits.
MOST_OF_DAY, _MOST_ADDED = INT64_MAX // 2, INT64_MAX // 10_000

Numbers = Mapping[str, LineMeasure]
Names = tuple[Any, ...]


def summed(keys: Sequence[Ints], numbers: Numbers, most: int) -> tuple[list[Ints], dict[str, LineMeasure]]:
    """The distinct ``keys``, sorted, and the sums of ``numbers``: null where all of a group is. Raises
    OverflowError where a sum could be more than ``most``."""
    order = np.lexsort(keys[::-1])
    if not len(order):
        return [key[:0] for key in keys], dict(numbers)
    sorted_keys = [key[order] for key in keys]
    begins = np.flatnonzero(
        np.concatenate(([True], np.any([key[1:] != key[:-1] for key in sorted_keys], axis=0)))
    )
    found = {}
    for name, number in numbers.items():
        values, missing = number.values[order], number.missing[order]
        if name in LEAST:
            # A missing one counts as 0, which is below all others: no least is ever missing.
            total = np.minimum.reduceat(values, begins)
        elif name in LARGEST:
            total = np.maximum.reduceat(values, begins)
        else:
            if values.any() and float(np.add.reduceat(values.astype(np.float64), begins).max()) > most:
                raise OverflowError(name)
            total = np.add.reduceat(values, begins)
        found[name] = LineMeasure(total, np.logical_and.reduceat(missing, begins))
    return [key[begins] for key in sorted_keys], found


@dataclass(frozen=True, slots=True)
class DaySums:
    """What lines of a day sum to. A row is the keys of unit, holder and rate, bucket and DAY_MEASURES;
    ``units`` and ``holders`` are the names behind the keys, without node and pod."""

    rows: Sequence[tuple[Any, ...]]
    units: Mapping[str, Names]
    holders: Mapping[str, Names]

    @property
    def capacity(self) -> tuple[int, int, int, int]:
        """board_ms, unknown_ms, unpriced_ms and nano, as windows record them."""
        rows = [row for row in self.rows if row[_AT["bucket"]] in _CAPACITY]
        unknown = sum(row[_AT["board_ms"]] for row in rows if row[_AT["bucket"]] == Bucket.UNKNOWN)
        board_ms, unpriced_ms, nano = (
            sum(row[_AT[name]] or 0 for row in rows) for name in ("board_ms", "unpriced_ms", "nano")
        )
        return board_ms, unknown, unpriced_ms, nano


NO_LINES = DaySums((), {}, {})


def day_of(window: Window) -> int:
    """The start of the UTC day that a window starts in, in ms."""
    return window.start_ms // DAY_MS * DAY_MS


def without_node(unit: Names) -> Names:
    return (*unit[:_NODE], "", *unit[_NODE + 1 :])


def without_pod(holder: Names) -> Names:
    return (*holder[:_POD], "", "", *holder[_POD + 2 :])


def numbers_of(measures: Numbers) -> dict[str, LineMeasure]:
    """DAY_MEASURES of lines with LINE_MEASURES."""
    found, nano = dict(measures), measures["nano"]
    unpriced = np.where(nano.missing, measures["board_ms"].values, 0)
    found["unpriced_ms"] = LineMeasure(unpriced, np.zeros(len(unpriced), np.bool_))
    # As query.TENSOR_OBSERVED.
    tensor, sm = found["tensor_observed_ms"], found["sm_observed_ms"]
    early = tensor.missing & ~found["tensor_active_ms"].missing
    found["tensor_observed_ms"] = LineMeasure(
        np.where(early, sm.values, tensor.values), np.where(early, sm.missing, tensor.missing)
    )
    return {name: found[name] for name in DAY_MEASURES}


@dataclass(frozen=True, slots=True)
class AddedLines:
    """Lines of some windows, by position: of a unit, holder, rate and bucket, whose rows, keys and names are
    beside them. ``day`` is the start of each line's day."""

    day: Ints
    unit: Ints
    holder: Ints
    rate: Ints
    bucket: Ints
    units: Sequence[Names]
    holders: Sequence[Names]
    rates: Sequence[str]
    buckets: Sequence[str]
    numbers: Numbers

    def by_day(self, most: int) -> dict[int, DaySums]:
        """Raises OverflowError as ``summed`` does."""
        units, unit = _reduced(self.units, without_node)
        holders, holder = _reduced(self.holders, without_pod)
        positions = [self.day, unit[self.unit], holder[self.holder], self.rate, self.bucket]
        keys, found = summed(positions, self.numbers, most)
        columns = [number.plain().tolist() for number in found.values()]
        unit_keys, holder_keys = [*units], [*holders]
        names = (
            [unit_keys[at] for at in keys[1].tolist()],
            [holder_keys[at] for at in keys[2].tolist()],
            [self.rates[at] for at in keys[3].tolist()],
            [self.buckets[at] for at in keys[4].tolist()],
        )
        rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for day, *row in zip(keys[0].tolist(), *names, *columns, strict=True):
            rows[day].append(tuple(row))
        return {day: DaySums(of_day, units, holders) for day, of_day in rows.items()}


def _reduced(rows: Sequence[Names], reduce: Callable[[Names], Names]) -> tuple[dict[str, Names], Ints]:
    """The distinct reduced rows by content key, and the position of each row's."""
    place: dict[Names, int] = {}
    positions = [place.setdefault(reduce(row), len(place)) for row in rows]
    return {content_key(row): row for row in place}, np.array(positions, np.int64)


def sums_of_windows(
    cluster: str, windows: Sequence[tuple[Window, CapacityTotals]], lines: AddedLines
) -> dict[int, DaySums] | None:
    """The sums of the days of ``windows``, with what is recorded of each, over their ``lines``; None where
    one could leave 64 bits. Raises LedgerError where the two differ."""
    try:
        sums = lines.by_day(_MOST_ADDED)
    except OverflowError:
        return None
    recorded: dict[int, list[CapacityTotals]] = defaultdict(list)
    for window, totals in windows:
        recorded[day_of(window)].append(totals)
    for day, of_day in recorded.items():
        _conserve(cluster, day, sums.get(day, NO_LINES).capacity, of_day)
    return {day: sums.get(day, NO_LINES) for day in recorded}


def _conserve(cluster: str, day: int, found: Sequence[int], windows: Sequence[CapacityTotals]) -> None:
    wanted = tuple(
        sum(getattr(each, name) for each in windows)
        for name in ("board_ms", "unknown_ms", "unpriced_ms", "nano")
    )
    if tuple(found) != wanted:
        name = f"{cluster} {Window(day, day + DAY_MS)}"
        raise LedgerError(f"{name}: the day would sum to {tuple(found)}, its windows to {wanted}")
