"""Where enough of some time was seen, found exactly, whatever the steps in which it was seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpucost.attribution.deal import Ints
from gpucost.attribution.pieces import union
from gpucost.detectors.activity import Floats
from gpucost.detectors.held import LEAST_COVERAGE


class Watched(NamedTuple):
    """What should have been seen in ``[start, end)``, and when it was: stretches that do not overlap."""

    start: int
    end: int
    seen_start: Ints
    seen_end: Ints


def covered_runs(
    every: Sequence[Watched], begin_ms: int, end_ms: int, needed_ms: int, latest_ms: int | None = None
) -> list[tuple[int, int]]:
    """The union of all stretches of ``needed_ms`` in ``[begin, end)`` (begun by ``latest_ms``) in which each
    of ``every`` was seen for at least ``LEAST_COVERAGE`` of its time.

    What is said of an instant so rests on ``needed_ms`` before and after it, however much more was read: a
    day and the next one, each with its own history around, say the same of midnight.
    """
    if end_ms - begin_ms < needed_ms:
        return []
    last = end_ms - needed_ms if latest_ms is None else min(latest_ms, end_ms - needed_ms)
    seen = [edge for each in every for edge in (each.seen_start, each.seen_end)]
    edges = np.array([edge for each in every for edge in (each.start, each.end)], np.int64)
    edges = np.concatenate([*seen, edges])
    edges = np.concatenate([edges, edges - needed_ms, np.array([begin_ms, last], np.int64)])
    begins = np.unique(edges[(edges >= begin_ms) & (edges <= last)])
    if not len(begins):
        return []
    # Half a millisecond forgives what a tenth of the time is off by.
    most = (1 - LEAST_COVERAGE) * needed_ms + 0.5
    first, final = begins[:-1].astype(np.float64), begins[1:].astype(np.float64)
    alone = np.ones(len(begins), np.bool_)
    for each in every:
        unseen = _unseen(each, begins, needed_ms)
        alone &= unseen <= most
        # What is not seen changes evenly between two edges: so it crosses the limit once at the most.
        low, high = unseen[:-1], unseen[1:]
        crossing = begins[:-1] + (most - low) / np.where(high == low, 1.0, high - low) * np.diff(begins)
        first = np.where(low > most, np.where(high > most, np.inf, np.maximum(first, crossing)), first)
        final = np.where((high > most) & (low <= most), np.minimum(final, crossing), final)
    good = first <= final
    starts = [*np.ceil(first[good]).astype(np.int64).tolist(), *begins[alone].tolist()]
    ends = [*np.floor(final[good]).astype(np.int64).tolist(), *begins[alone].tolist()]
    runs = union(starts, [end + needed_ms for end in ends])
    return list(zip(*(edge.tolist() for edge in runs), strict=True))


def _unseen(each: Watched, begins: Ints, length_ms: int) -> Floats:
    """How much of ``[begin, begin + length)`` should have been seen and was not, by begin."""
    order = np.argsort(each.seen_start, kind="stable")
    start, end = each.seen_start[order], each.seen_end[order]
    edges = np.stack([start, end], axis=1).reshape(-1)
    seen = np.zeros(len(edges))
    seen[1::2] = np.cumsum(end - start)
    seen[2::2] = seen[1:-1:2]

    def until(instants: Ints) -> Floats:
        should = np.clip(instants, each.start, each.end) - each.start
        known = np.interp(instants, edges, seen) if len(edges) else np.zeros(len(instants))
        return np.subtract(should, known, dtype=np.float64)

    return until(begins + length_ms) - until(begins)
