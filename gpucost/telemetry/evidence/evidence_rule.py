"""The evidence rule: from scrapes and the objects' own timestamps to intervals. Pure.

A scrape whose heartbeat is 1 shows what exists; what it does not show does not exist at that instant.
Start and end are the objects' own timestamps, to the millisecond. A timestamp is believed unless the
scrapes contradict it by more than ``lateness`` (5 minutes by default):

- a start reaches back at most ``lateness`` before the last scrape that did not show the subject;
- an end lies at most ``lateness`` before the last scrape that showed the subject without an end, and at
  most ``lateness`` after the first that showed one.

Timestamps, because a scrape a minute would bill a job of three seconds as nothing or as a minute; scrapes
beside them, because clocks are wrong and pods go without saying when. A subject that disappears without an
end held until its last sample. Between two heartbeats more than ``max_gap`` apart lies a gap, in which
nothing is known but what the timestamps say; a subject seen on both sides was there.

As every rule looks no further than from the last heartbeat at or before ``window start - lateness`` to the
first at or after ``window end + lateness``, and that much is read for every window, an interval does not
depend on the size of the windows that it is read in (docs/decisions/0003-evidence.md).

``heartbeat`` makes the ScrapeEvidence; ``pods`` and ``nodes`` beside it, and ``telemetry.upstream`` for
kube-state-metrics, ask ``as_expected`` for all subjects at once, and ``lives`` for the few whose count of
samples does not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import DAY_MS, EARLIEST_MS, Window, iso

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
NONE = -1  # no timestamp
_FUTURE_MS = DAY_MS
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class ScrapeEvidence:
    """The heartbeats around one window.

    ``beats`` are the instants of heartbeats that were 1, from the last before the window to the first
    after it; ``scrapes`` are all scrapes in that stretch, one entry per scraped series, so that a
    subject's samples can be counted against them; ``stale`` are scrapes with a heartbeat of 0.
    """

    window: Window
    beats: IntArray
    scrapes: IntArray
    stale: frozenset[int]
    max_gap_ms: int
    lateness_ms: int

    @property
    def start_ms(self) -> int:
        return int(self.beats[0])

    @property
    def end_ms(self) -> int:
        return int(self.beats[-1])

    @property
    def range_ms(self) -> int:
        """The PromQL range that reaches from ``end_ms`` to ``start_ms`` inclusive, in every version."""
        return self.end_ms - self.start_ms + 1

    @cached_property
    def stretches(self) -> list[tuple[int, int]]:
        """First and last heartbeat of each stretch without a gap."""
        breaks = np.flatnonzero(np.diff(self.beats) > self.max_gap_ms)
        firsts = self.beats[np.concatenate(([0], breaks + 1))]
        lasts = self.beats[np.concatenate((breaks, [len(self.beats) - 1]))]
        return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]

    @cached_property
    def tolerated_scrapes(self) -> int:
        """How many missing samples cannot hide an absence longer than ``max_gap``, nor an end in the window,
        after which there may be few scrapes; 0 where there is a gap."""
        if len(self.stretches) > 1 or self.stale or len(self.beats) < 2:
            return 0
        hidden_ms = min(self.max_gap_ms, self.end_ms - self.window.end_ms)
        return max(0, hidden_ms // int(np.diff(self.beats).max()) - 1)

    def scrapes_between(self, start_ms: IntArray, end_ms: IntArray) -> IntArray:
        """The number of scrapes in each ``[start, end)``."""
        first = np.searchsorted(self.scrapes, start_ms, "left")
        last = np.searchsorted(self.scrapes, end_ms, "left")
        between: IntArray = np.maximum(last - first, 0).astype(np.int64)
        return between

    def beat_before(self, instant_ms: int) -> int | None:
        at = int(np.searchsorted(self.beats, instant_ms, "left"))
        return int(self.beats[at - 1]) if at else None

    def beat_after(self, instant_ms: int) -> int | None:
        at = int(np.searchsorted(self.beats, instant_ms, "right"))
        return int(self.beats[at]) if at < len(self.beats) else None


def evidence_for(
    window: Window, beats: IntArray, scrapes: IntArray, max_gap_ms: int, lateness_ms: int
) -> ScrapeEvidence:
    """What ``window`` needs of ``beats`` (unique) and ``scrapes`` (all), both ascending.

    ``beats`` must reach from the window's start, at the latest, to ``lateness_ms`` after its end.
    """
    begins = int(np.searchsorted(beats, window.start_ms - lateness_ms, "right"))
    first = max(begins - 1, 0)
    last = int(np.searchsorted(beats, window.end_ms + lateness_ms, "left"))
    beats = beats[first : last + 1]
    scrapes = scrapes[(scrapes >= beats[0]) & (scrapes <= beats[-1])]
    stale = frozenset(scrapes.tolist()) - frozenset(beats.tolist())
    return ScrapeEvidence(window, beats, scrapes, stale, max_gap_ms, lateness_ms)


def as_expected(
    start_ms: IntArray, end_ms: IntArray, samples: IntArray, ended_samples: IntArray, evidence: ScrapeEvidence
) -> BoolArray:
    """Subjects whose samples are as many as their timestamps say, so that these can be believed unseen.

    ``end_ms`` is NONE for subjects without an end; ``ended_samples`` counts the samples that showed one.
    The others must be read in detail and put through ``lives``.
    """
    has_end = ended_samples > 0
    until = np.where(has_end, end_ms, evidence.end_ms + 1)
    expected = evidence.scrapes_between(start_ms, until)
    missing = np.abs(samples - ended_samples - expected)
    latest = evidence.end_ms + _FUTURE_MS
    sane = (start_ms >= EARLIEST_MS) & (start_ms <= latest) & (until >= start_ms) & (until <= latest)
    believed: BoolArray = sane & (missing <= evidence.tolerated_scrapes)
    return believed


@dataclass(frozen=True, slots=True)
class PresenceSpan:
    """One stretch of existence, empty when ``start_ms >= end_ms``; its first sample was at ``first_seen_ms``.

    ``doubt`` says what is wrong with it, and ``why`` what its timestamps were.
    """

    start_ms: int
    end_ms: int
    first_seen_ms: int
    doubt: DataProblemCode | None = None
    why: str = ""


def lives(
    seen: Sequence[int], starts: Sequence[int], ends: Sequence[int], evidence: ScrapeEvidence
) -> list[PresenceSpan]:
    """The stretches in which a subject existed, by all its samples in the evidence.

    ``seen`` are its samples' instants, ascending; ``starts`` and ``ends`` the timestamps that each carried,
    or NONE. Stretches do not overlap.
    """
    found: list[PresenceSpan] = []
    first = 0
    for at in range(1, len(seen) + 1):
        if (
            at < len(seen)
            and starts[at] == starts[at - 1]
            and not _is_absence(seen[at - 1], seen[at], evidence)
        ):
            continue
        life = _life(seen[first:at], starts[first], ends[first:at], evidence)
        if found and life.start_ms < found[-1].end_ms:
            life = replace(life, start_ms=found[-1].end_ms)
        found.append(life)
        first = at
    return found


def _is_absence(left: int, right: int, evidence: ScrapeEvidence) -> bool:
    """Whether a subject seen at ``left`` and ``right`` was looked for, and missed, in between."""
    after = evidence.beat_after(left)
    return right - left > evidence.max_gap_ms and after is not None and after < right


def _life(seen: Sequence[int], start: int, ends: Sequence[int], evidence: ScrapeEvidence) -> PresenceSpan:
    first, last = seen[0], seen[-1]
    if start != NONE and not _is_sane(start, evidence):
        return PresenceSpan(
            first, first, first, DataProblemCode.INTERVAL_REFUSED, f"start {iso(start)} is no time"
        )
    begin = first if start == NONE else _begin(first, start, evidence)
    claim = ends[-1]
    if claim == NONE:
        return _open_life(begin, first, last, evidence)
    last_open = max((at for at, end in zip(seen, ends, strict=True) if end == NONE), default=NONE)
    first_ended = next(at for at in seen if at > last_open)
    if claim < start or not _is_sane(claim, evidence):
        why = f"end {iso(claim)} is no time after its start"
        return PresenceSpan(begin, max(last_open, begin), first, DataProblemCode.INTERVAL_REFUSED, why)
    earliest = claim if last_open == NONE else last_open - evidence.lateness_ms
    end = min(max(claim, earliest), first_ended + evidence.lateness_ms)
    if end == claim:
        return PresenceSpan(begin, end, first)
    why = f"end {iso(claim)} contradicts what was seen; taken as {iso(end)}"
    return PresenceSpan(begin, end, first, DataProblemCode.INTERVAL_REFUSED, why)


def _is_sane(instant_ms: int, evidence: ScrapeEvidence) -> bool:
    return EARLIEST_MS <= instant_ms <= evidence.end_ms + _FUTURE_MS


def _begin(first_seen: int, start: int, evidence: ScrapeEvidence) -> int:
    before = evidence.beat_before(first_seen)
    return start if before is None else max(start, before - evidence.lateness_ms)


def _open_life(begin: int, first_seen: int, last_seen: int, evidence: ScrapeEvidence) -> PresenceSpan:
    after = evidence.beat_after(last_seen)
    if after is None or last_seen >= evidence.window.end_ms:
        return PresenceSpan(begin, max(last_seen, evidence.window.end_ms), first_seen)
    if after - last_seen > evidence.max_gap_ms:
        why = f"last seen at {iso(last_seen)}, before a gap, and never after"
        return PresenceSpan(begin, last_seen, first_seen, DataProblemCode.END_UNKNOWN, why)
    return PresenceSpan(begin, last_seen, first_seen)


def in_force(
    times: Sequence[int], values: Sequence[_Value], life: PresenceSpan
) -> list[tuple[int, int, _Value]]:
    """``(start, end, value)`` over one life: a change takes effect at the first sample that shows it.

    The life's first value reaches back to its start.
    """
    known = list(zip(times, values, strict=True))
    known = [point for point in known if point[0] >= life.first_seen_ms] or known
    changes = known[:1] + [point for before, point in pairwise(known) if point[1] != before[1]]
    begins = [life.start_ms, *(at for at, _ in changes[1:])]
    ends = [*begins[1:], life.end_ms]
    pieces = (
        (max(begin, life.start_ms), min(end, life.end_ms), value)
        for begin, end, (_, value) in zip(begins, ends, changes, strict=True)
    )
    return [piece for piece in pieces if piece[0] < piece[1]]
