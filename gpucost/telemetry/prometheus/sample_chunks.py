"""Chunks of samples as Prometheus stores and sends them (XOR), and what each series did in ranges of time.

One pass over the samples of a series gives count, sum, maximum, minimum, last value and resets of each range,
as PromQL's ``count_over_time`` and the others have them, to the bit: sums are Kahan's in Neumaier's form, as
Prometheus adds since 2.28; stale markers are no samples. A range includes both of its ends.

The format is that of ``tsdb/docs/format/chunks.md`` and ``tsdb/chunkenc/xor.go`` of Prometheus, after Gorilla
(Pelkonen et al., VLDB 2015). The loops (``chunk_loops``) are compiled by numba, which the extra ``fast``
brings. Pure: bytes in, arrays out. What no server writes ends the reading with a text of REFUSALS; nothing is
read outside the bytes that were given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

PADDING = 16
"""Bytes of anything that must follow the last chunk: words of eight bytes are read at once."""
MOST_FRAME = 64 << 20
ENDS_EARLY, NOT_XOR, NOT_IN_ORDER, NOT_A_FRAME, TOO_LONG = 1, 2, 3, 4, 5
REFUSALS = {
    NOT_A_FRAME: "a frame that is no message of series",
    TOO_LONG: "a frame that is too long",
    ENDS_EARLY: "a chunk that ends before its samples do",
    NOT_XOR: "a chunk of another encoding than XOR",
    NOT_IN_ORDER: "samples that are not one after the other",
}
_NEVER = np.iinfo(np.int64).min
FUNCTIONS = ("count", "sum", "max", "min", "last", "resets")


@dataclass(frozen=True, slots=True)
class SampleRanges:
    """``number`` ranges of ``range_ms``, which end at ``first_ms`` and then every ``step_ms``."""

    first_ms: int
    step_ms: int
    number: int
    range_ms: int

    @property
    def last_ms(self) -> int:
        """The end of the last one."""
        return self.first_ms + self.step_ms * (self.number - 1)


class RangeStatistics:
    """By series (rows, as they come) and range, in growing arrays: whatever FUNCTIONS name, and samples read.
    A range without samples has count 0."""

    def __init__(self, ranges: SampleRanges, rows: int = 2048) -> None:
        self.ranges = ranges
        self.rows = self.samples = 0
        # Samples, resets, and the instant of the last one; 0 once the series ended.
        self._counts = np.zeros((rows, ranges.number, 3), dtype=np.int64)
        self._values = np.zeros((rows, ranges.number, 5))  # sum, its compensation, maximum, minimum, last
        self._latest = np.full(rows, _NEVER, dtype=np.int64)

    def add(self, data: Bytes, starts: Ints, ends: Ints, rows: Ints) -> None:
        """Messages ``Chunk`` of remote read at ``data[starts:ends]``, of these rows, in the order of time for
        each row. Raises ValueError with a text of REFUSALS."""
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        asked = self.ranges
        bounds = np.array([asked.first_ms, asked.step_ms, asked.number, asked.range_ms], dtype=np.int64)
        from gpucost.telemetry.prometheus.chunk_loops import add_chunks

        read, wrong = add_chunks(data, starts, ends, rows, bounds, self._counts, self._values, self._latest)
        self.samples += int(read)
        if wrong:
            raise ValueError(REFUSALS[int(wrong)])

    def close(self, rows: int) -> None:
        """After the last chunk: so many rows there are."""
        self._grow(rows)

    def _arrays(self) -> tuple[Ints, Floats]:
        return self._counts[: self.rows], self._values[: self.rows]

    def grid(self, function: str) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The values of one of FUNCTIONS by row and range, and where there are any."""
        counts, values = self._arrays()
        present = counts[:, :, 0] > 0
        if function == "count":
            return counts[:, :, 0].astype(np.float64), present
        if function == "resets":
            return counts[:, :, 1].astype(np.float64), present
        if function == "sum":
            total, rest = values[:, :, 0], values[:, :, 1]
            with np.errstate(invalid="ignore"):
                return np.where(np.isinf(total), total, total + rest), present
        return values[:, :, {"max": 2, "min": 3, "last": 4}[function]], present

    def latest(self, look_back_ms: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """As ``grid``, the last value of each range where it is no older than that at its end, and the series
        did not end after it."""
        asked = self.ranges
        ends = asked.first_ms + asked.step_ms * np.arange(asked.number)
        return self.grid("last")[0], self._arrays()[0][:, :, 2] > ends - look_back_ms

    def range_at(self, place: int) -> tuple[RangeStatistics, Ints]:
        """One of the ranges alone, and the rows that have any samples there; nothing is added to it."""
        rows = np.flatnonzero(self._counts[: self.rows, place, 0])
        found = self._alone(
            place, self._counts[rows, place : place + 1], self._values[rows, place : place + 1]
        )
        return found, rows

    def _alone(self, place: int, counts: Ints, values: Floats) -> RangeStatistics:
        at_ms = self.ranges.first_ms + place * self.ranges.step_ms
        found = RangeStatistics(SampleRanges(at_ms, 1, 1, self.ranges.range_ms), 0)
        found.rows, found._counts, found._values = len(counts), counts, values
        return found

    @property
    def bytes(self) -> int:
        """Of the rows that are used: nothing is held in memory for the others."""
        return self.rows * (8 + sum(each[:1].nbytes for each in (self._counts, self._values)))

    def _grow(self, rows: int) -> None:
        self.rows = max(self.rows, rows)
        have = len(self._latest)
        if rows <= have:
            return
        more = max(rows, 2 * have) - have
        self._counts = np.concatenate(
            (self._counts, np.zeros((more, *self._counts.shape[1:]), dtype=np.int64))
        )
        self._values = np.concatenate((self._values, np.zeros((more, *self._values.shape[1:]))))
        nothing = np.full(more, _NEVER, dtype=np.int64)
        self._latest = np.concatenate((self._latest, nothing))


class SparseStatistics(RangeStatistics):
    """As ``RangeStatistics``, of ranges in most of which most series have no samples (a pod lives for some
    hours of weeks): what is there is kept, and nothing else. Chunks of a series come one after the other."""

    def __init__(self, ranges: SampleRanges, most_dense: int = 8192) -> None:
        """Of up to so many rows at a time all ranges are kept, and of those of one call of ``add``."""
        super().__init__(ranges)
        self._most_dense = most_dense
        self._first = 0  # the row that stands first in the arrays
        self._parts: list[tuple[Ints, Ints, Ints, Floats]] = []

    def add(self, data: Bytes, starts: Ints, ends: Ints, rows: Ints) -> None:
        if len(rows) and int(rows.min()) < self._first:
            raise ValueError(REFUSALS[NOT_IN_ORDER])
        super().add(data, starts, ends, rows - self._first)
        if self.rows > self._most_dense:
            self._fold(self.rows - 1)  # the last one may go on

    def close(self, rows: int) -> None:
        self._fold(self.rows)
        row, place, counts, values = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.argsort(place, kind="stable")
        self._row, self._counts, self._values = row[order], counts[order], values[order]
        self._places = np.searchsorted(place[order], np.arange(self.ranges.number + 1))
        self._place = place[order]
        self._parts, self._latest, self.rows = [], self._latest[:0], rows

    def _fold(self, rows: int) -> None:
        """Keep what is there of the first rows, and begin after them."""
        row, place = np.nonzero(self._counts[:rows, :, 0])
        self._parts.append((row + self._first, place, self._counts[row, place], self._values[row, place]))
        left = self.rows - rows
        for array, nothing in ((self._counts, 0), (self._values, 0), (self._latest, _NEVER)):
            array[:left] = array[rows : self.rows]
            array[left : self.rows] = nothing
        self._first, self.rows = self._first + rows, left

    def _arrays(self) -> tuple[Ints, Floats]:
        shape = self.rows, self.ranges.number
        counts, values = np.zeros((*shape, 3), dtype=np.int64), np.zeros((*shape, 5))
        counts[self._row, self._place], values[self._row, self._place] = self._counts, self._values
        return counts, values

    def range_at(self, place: int) -> tuple[RangeStatistics, Ints]:
        own = slice(self._places[place], self._places[place + 1])
        return self._alone(place, self._counts[own, None], self._values[own, None]), self._row[own]

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in (self._row, self._place, self._counts, self._values))
