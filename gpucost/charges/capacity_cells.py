"""Cells: the capacity of one pool (a cluster's GPUs of one model) in one window of the ledger, by who had it.

All charging happens inside a cell, so that a month charged day by day is the month charged at once, to the
byte. ``cut`` divides a cell at instants where a policy or a rate changes: a row's GPU time and cost lie
evenly between the first and the last instant of it, and what comes before an instant is rounded down from the
row's start, so that the pieces of a row add up to it wherever it is cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from gpucost.domain.buckets import Bucket
from gpucost.domain.time import Window


class CellRow(NamedTuple):
    """Usage lines of one holder that lie between the same two instants.

    ``board_ms`` GPU-milliseconds, ``nano`` their cost in nano-units; ``unpriced_ms`` of them have no price
    and are in no cost. ``team``, ``queue`` and the job are empty for time that nobody held. Raises nothing.
    """

    bucket: Bucket
    team: str
    queue: str
    namespace: str
    job: str
    job_uid: str
    capacity_type: str
    first_ms: int
    last_ms: int
    board_ms: int
    nano: int
    unpriced_ms: int = 0

    def before(self, instant_ms: int, amount: int) -> int:
        """The part of ``amount`` (of this row) that lies before an instant, rounded down."""
        if instant_ms >= self.last_ms:
            return amount
        if instant_ms <= self.first_ms:
            return 0
        return amount * (instant_ms - self.first_ms) // (self.last_ms - self.first_ms)


_BUCKET = attrgetter("bucket")


@dataclass(frozen=True, slots=True)
class CapacityCell:
    """A pool in a window. ``rows``, which are sorted, are all of its capacity: held, unallocated, unavailable
    and unknown."""

    cluster: str
    model: str
    window: Window
    rows: tuple[CellRow, ...]

    @classmethod
    def of(cls, cluster: str, model: str, window: Window, rows: Iterable[CellRow]) -> CapacityCell:
        """Rows in any order; over-committed ones, which are no capacity, are left out."""
        return cls(cluster, model, window, tuple(sorted(row for row in rows if row.bucket.is_capacity)))

    @property
    def board_ms(self) -> int:
        return sum(row.board_ms for row in self.rows)

    @property
    def nano(self) -> int:
        return sum(row.nano for row in self.rows)

    def of_bucket(self, bucket: Bucket) -> tuple[CellRow, ...]:
        first = bisect_left(self.rows, bucket, key=_BUCKET)
        return self.rows[first : bisect_right(self.rows, bucket, first, key=_BUCKET)]


def cut(cell: CapacityCell, instants: Sequence[int]) -> Iterator[CapacityCell]:
    """The cell divided at those of ``instants`` (ascending) that lie inside it; amounts add up to the
    cell's."""
    inside = [at for at in instants if cell.window.start_ms < at < cell.window.end_ms]
    if not inside:
        yield cell
        return
    edges = [cell.window.start_ms, *inside, cell.window.end_ms]
    for start, end in pairwise(edges):
        pieces = (_piece(row, start, end) for row in cell.rows)
        yield replace(
            cell, window=Window(start, end), rows=tuple(sorted(row for row in pieces if row is not None))
        )


def _piece(row: CellRow, start_ms: int, end_ms: int) -> CellRow | None:
    if row.first_ms >= end_ms or row.last_ms <= start_ms:
        return None

    def part(amount: int) -> int:
        return row.before(end_ms, amount) - row.before(start_ms, amount)

    return row._replace(
        first_ms=max(row.first_ms, start_ms),
        last_ms=min(row.last_ms, end_ms),
        board_ms=part(row.board_ms),
        nano=part(row.nano),
        unpriced_ms=part(row.unpriced_ms),
    )
