"""The evidence rule on random histories: no window size changes an interval, and no shortcut does."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import DAY_MS, EARLIEST_MS, MINUTE_MS, Window
from gpucost.telemetry.evidence.evidence_rule import (
    NONE,
    PresenceSpan,
    ScrapeEvidence,
    as_expected,
    evidence_for,
    in_force,
    lives,
)
from tests.support.history import T0

GAP_MS = LATE_MS = 5 * MINUTE_MS
MARGIN = 120
LENGTH = 240
WHOLE = Window(T0 + MARGIN * MINUTE_MS, T0 + (MARGIN + LENGTH) * MINUTE_MS)


@dataclass
class Subject:
    """Scrapes that showed it, the timestamps they showed."""

    seen: list[int]
    start: int
    ends: list[int]


def minute(number: float) -> int:
    return T0 + round(number * MINUTE_MS)


@st.composite
def scrapes(draw: st.DrawFn) -> list[int]:
    """Scrapes a minute apart, a little late, with a few outages inside the day."""
    times = [minute(at) + draw(st.integers(0, 20_000)) for at in range(2 * MARGIN + LENGTH)]
    for _ in range(draw(st.integers(0, 3))):
        low = draw(st.integers(MARGIN // 2, MARGIN + LENGTH))
        high = low + draw(st.integers(1, 45))
        times = [at for at in times if not minute(low) <= at < minute(high)]
    return times


@st.composite
def subjects(draw: st.DrawFn, times: list[int]) -> Subject:
    """Seen in any scrapes whatever, with timestamps that may contradict them."""
    first = draw(st.integers(0, len(times) - 1))
    last = draw(st.integers(first, len(times) - 1))
    seen = times[first : last + 1]
    for _ in range(draw(st.integers(0, 2))):
        low = draw(st.integers(0, len(seen)))
        seen = seen[:low] + seen[low + draw(st.integers(1, 20)) :] or seen[:1]
    start = seen[0] - draw(st.sampled_from([0, 1, 59_999, 4 * MINUTE_MS, 30 * MINUTE_MS, -20 * MINUTE_MS]))
    ended = draw(st.none() | st.integers(0, len(seen) - 1))
    if ended is None:
        return Subject(seen, start, [NONE] * len(seen))
    shift = draw(st.sampled_from([0, 1, 59_999, 4 * MINUTE_MS, 30 * MINUTE_MS, -20 * MINUTE_MS]))
    end = seen[ended] - shift
    return Subject(seen, start, [end if at >= ended else NONE for at in range(len(seen))])


def evidence_of(window: Window, times: list[int]) -> ScrapeEvidence:
    beats = np.array(times, dtype=np.int64)
    return evidence_for(window, beats, beats, GAP_MS, LATE_MS)


def lives_in(window: Window, times: list[int], subject: Subject) -> list[PresenceSpan]:
    evidence = evidence_of(window, times)
    inside = [at for at, when in enumerate(subject.seen) if evidence.start_ms <= when <= evidence.end_ms]
    if not inside:
        return []
    chosen = slice(inside[0], inside[-1] + 1)
    seen = subject.seen[chosen]
    return lives(seen, [subject.start] * len(seen), subject.ends[chosen], evidence)


def held_ms(window: Window, times: list[int], subject: Subject) -> int:
    return sum(window.overlap_ms(life.start_ms, life.end_ms) for life in lives_in(window, times, subject))


@pytest.mark.fault(26, 29, 32)
@given(st.data())
def test_held_time_does_not_depend_on_the_window_size(data: st.DataObject) -> None:
    times = data.draw(scrapes())
    subject = data.draw(subjects(times))
    whole = held_ms(WHOLE, times, subject)
    assert whole >= 0
    for size in (7, 15, 60):
        parts = [held_ms(part, times, subject) for part in WHOLE.split(size * MINUTE_MS)]
        assert sum(parts) == whole, (size, parts)


@given(st.data())
def test_the_shortcut_agrees_with_reading_every_sample(data: st.DataObject) -> None:
    times = data.draw(scrapes())
    subject = data.draw(subjects(times))
    window = data.draw(st.sampled_from([WHOLE, *WHOLE.split(60 * MINUTE_MS)]))
    evidence = evidence_of(window, times)
    shown = [
        end
        for at, end in zip(subject.seen, subject.ends, strict=True)
        if evidence.start_ms <= at <= evidence.end_ms
    ]
    # Seen before it says that it began, or running after it says that it ended: counts cannot tell when
    # samples were, see docs/sources.md, "Limits", and the test below.
    assume(not subject.seen or subject.start <= subject.seen[0] + LATE_MS)
    ended = [end for end in shown if end != NONE]
    claim = ended[-1] if ended else NONE
    running = [at for at, end in zip(subject.seen, subject.ends, strict=True) if end == NONE]
    assume(not ended or not running or running[-1] <= claim + LATE_MS)
    each = (np.array([value]) for value in (subject.start, claim, len(shown), len(ended)))
    if shown and as_expected(*each, evidence)[0]:
        end = claim if ended else window.end_ms
        believed = window.overlap_ms(subject.start, end) if subject.start < end else 0
        assert believed == pytest.approx(held_ms(window, times, subject), abs=GAP_MS)
        if evidence.tolerated_scrapes == 0:
            assert believed == held_ms(window, times, subject)


@pytest.mark.parametrize("shift", [-30, 30], ids=["a node's clock behind", "a node's clock ahead"])
def test_counts_cannot_tell_when_samples_were(shift: int) -> None:
    """A limit (docs/sources.md): as many scrapes as it says, at another time, are believed. In windows that
    hold only one of the two times they are not."""
    times = [minute(at) for at in range(2 * MARGIN + LENGTH)]
    seen = times[MARGIN + 60 : MARGIN + 67]
    start, end = (minute(MARGIN + 60 + at + shift) for at in (0, 6))
    each = (np.array([value]) for value in (start, end, len(seen), 1))
    assert as_expected(*each, evidence_of(WHOLE, times))[0]
    apart = Window(minute(MARGIN + 59), minute(MARGIN + 68))
    each = (np.array([value]) for value in (start, end, len(seen), 1))
    assert not as_expected(*each, evidence_of(apart, times))[0]


@pytest.mark.fault(29)
@given(start=st.integers(-(2**62), 2**62), end=st.integers(-(2**62), 2**62))
def test_no_timestamp_makes_time_negative_or_longer_than_it_was_seen(start: int, end: int) -> None:
    times = [minute(at) for at in range(600)]
    subject = Subject(times[200:230], start, [NONE] * 20 + [end] * 10)
    found = lives_in(WHOLE, times, subject)
    assert all(life.start_ms <= life.end_ms for life in found)
    assert held_ms(WHOLE, times, subject) <= 30 * MINUTE_MS + 2 * LATE_MS


def test_values_reach_back_to_the_start_and_change_when_seen() -> None:
    life = PresenceSpan(T0 + 5, T0 + 100, first_seen_ms=T0 + 10)
    times = [T0 - 50, T0 + 10, T0 + 20, T0 + 30, T0 + 200]
    assert in_force(times, ["old", "a", "a", "b", "c"], life) == [
        (T0 + 5, T0 + 30, "a"),
        (T0 + 30, T0 + 100, "b"),
    ]


def test_stretches_are_cut_where_heartbeats_lie_too_far_apart() -> None:
    times = [minute(at) for at in (0, 5, 10, 16, 17)]
    evidence = evidence_for(Window(minute(6), minute(11)), np.array(times), np.array(times), GAP_MS, LATE_MS)
    assert evidence.stretches == [(minute(0), minute(10)), (minute(16), minute(16))]
    assert evidence.tolerated_scrapes == 0
    assert DAY_MS > evidence.range_ms > 0


def test_missing_samples_are_tolerated_where_they_can_hide_neither_an_absence_nor_an_end() -> None:
    """With beats a minute apart and 2 minutes after the window: 2 missing samples hide 2 to 3 minutes, of
    which 1 is sure to be no end. With an outage of the API server, or a gap, none."""
    window = Window(minute(10), minute(20))

    def tolerated(beats: list[int], scrapes: list[int], lateness_ms: int) -> int:
        both = (np.array(beats), np.array(scrapes))
        return evidence_for(window, *both, GAP_MS, lateness_ms).tolerated_scrapes

    regular = [minute(at) for at in range(31)]
    assert tolerated(regular, regular, 2 * MINUTE_MS) == 1
    assert tolerated(regular, regular, GAP_MS) == 4
    assert tolerated(regular, regular, MINUTE_MS) == 0
    assert tolerated(regular, regular, 0) == 0
    assert tolerated(regular[:15] + regular[16:], regular, GAP_MS) == 0, "one scrape showed no heartbeat"
    gap = regular[:12] + regular[18:]
    assert tolerated(gap, gap, GAP_MS) == 0
    alone = evidence_for(Window(minute(10), minute(11)), np.array([minute(10)]), np.array([]), GAP_MS, 0)
    assert alone.tolerated_scrapes == 0


def test_the_first_and_the_last_scrape_of_the_evidence_count() -> None:
    times = np.array([minute(at) for at in range(31)])
    evidence = evidence_for(Window(minute(10), minute(20)), times, times, GAP_MS, GAP_MS)
    assert (evidence.start_ms, evidence.end_ms) == (minute(5), minute(25))
    between = evidence.scrapes_between(times[[0, 5, 5, 20]], times[[30, 6, 5, 10]])
    assert between.tolist() == [21, 1, 0, 0]
    assert evidence.scrapes_between(times[[25]], times[[25]] + 1).tolist() == [1]
    late = evidence_for(Window(minute(10), minute(20)), times[8:], times[8:], GAP_MS, GAP_MS)
    assert late.start_ms == minute(8), "nothing from before the window's start"


@pytest.mark.parametrize(
    ("start", "end", "samples", "ended", "is_believed"),
    [
        (minute(12), NONE, 10, 0, True),
        (minute(12), NONE, 9, 0, False),
        (minute(12), NONE, 11, 0, False),
        (minute(12), minute(15), 6, 3, True),
        (minute(12), minute(15), 6, 2, False),
        (minute(12), minute(12), 2, 2, True),
        (minute(12), minute(12) - 1, 2, 2, False),
        (EARLIEST_MS, NONE, 13, 0, True),
        (EARLIEST_MS - 1, NONE, 13, 0, False),
        (minute(12), minute(21) + DAY_MS, 12, 2, True),
        (minute(12), minute(21) + DAY_MS + 1, 12, 2, False),
        (minute(21) + DAY_MS, NONE, 0, 0, False),
    ],
)
def test_as_many_samples_as_the_timestamps_say_are_believed(
    start: int, end: int, samples: int, ended: int, is_believed: bool
) -> None:
    """Scrapes a minute apart from minute 9 to 21, of which none may be missing."""
    times = [minute(at) for at in range(31)]
    beats = np.array(times, dtype=np.int64)
    evidence = evidence_for(Window(minute(10), minute(20)), beats, beats, GAP_MS, MINUTE_MS)
    assert (evidence.start_ms, evidence.end_ms, evidence.tolerated_scrapes) == (minute(9), minute(21), 0)
    each = (np.array([value]) for value in (start, end, samples, ended))
    assert as_expected(*each, evidence).tolist() == [is_believed]


SEEN = [minute(at) for at in range(10, 16)]


@pytest.mark.fault(29)
@pytest.mark.parametrize(
    ("start", "ends", "expected", "is_doubted"),
    [
        (minute(9.5), [NONE] * 6, (minute(9.5), minute(15)), False),
        (minute(9.5), [NONE] * 5 + [minute(14.5)], (minute(9.5), minute(14.5)), False),
        (minute(10), [minute(10)] * 6, (minute(10), minute(10)), False),
        (minute(10) + 1, [minute(10)] * 6, (minute(10) + 1, minute(10) + 1), True),
        (minute(2), [NONE] * 6, (minute(4), minute(15)), False),
        (minute(9.5), [NONE] * 5 + [minute(8)], (minute(9.5), minute(14)), True),
        (minute(5), [NONE] * 5 + [minute(9)], (minute(5), minute(9)), False),
        (minute(5), [NONE] * 5 + [minute(9) - 1], (minute(5), minute(9)), True),
        (minute(9.5), [NONE] * 5 + [minute(20)], (minute(9.5), minute(20)), False),
        (minute(9.5), [NONE] * 5 + [minute(20) + 1], (minute(9.5), minute(20)), True),
        (minute(9.5), [NONE] * 5 + [minute(35) + DAY_MS], (minute(9.5), minute(20)), True),
        (minute(9.5), [NONE] * 5 + [minute(35) + DAY_MS + 1], (minute(9.5), minute(14)), True),
        (EARLIEST_MS, [NONE] * 6, (minute(4), minute(15)), False),
        (EARLIEST_MS - 1, [NONE] * 6, (minute(10), minute(10)), True),
        (NONE, [NONE] * 6, (minute(10), minute(15)), False),
    ],
    ids=[
        "vanished",
        "ended",
        "at once",
        "before it began",
        "a start long before it was missed",
        "an end before it began",
        "an end as late as lateness allows",
        "an end a millisecond earlier",
        "an end as far ahead as lateness allows",
        "an end a millisecond later",
        "an end as late as any is read",
        "an end that is no time",
        "the earliest start there is",
        "no start at all",
        "no start told",
    ],
)
def test_timestamps_are_believed_as_far_as_scrapes_let_them(
    start: int, ends: list[int], expected: tuple[int, int], is_doubted: bool
) -> None:
    """Scrapes a minute apart show the subject from minute 10 to 15, and not at 9 and 16; 5 minutes late."""
    evidence = evidence_of(Window(minute(6), minute(30)), [minute(at) for at in range(40)])
    [life] = lives(SEEN, [start] * 6, ends, evidence)
    assert (life.start_ms, life.end_ms) == expected
    assert (life.doubt is not None) == is_doubted, life.why


@pytest.mark.fault(26)
def test_a_subject_that_is_missed_and_comes_back_lives_twice_and_one_that_nobody_looked_for_once() -> None:
    everything = [minute(at) for at in range(40)]
    seen = everything[10:16] + everything[25:30]

    def found(times: list[int]) -> list[tuple[int, int]]:
        evidence = evidence_of(Window(minute(6), minute(35)), times)
        return [
            (life.start_ms, life.end_ms) for life in lives(seen, [minute(10)] * 11, [NONE] * 11, evidence)
        ]

    # It comes back with the same start, which reaches back to lateness before the scrape that missed it.
    assert found(everything) == [(minute(10), minute(15)), (minute(19), minute(29))]
    assert found(everything[:16] + everything[25:]) == [(minute(10), minute(29))]
    # Missed for as long as the longest gap, and no longer: it was there.
    short = everything[10:16] + everything[20:30]
    evidence = evidence_of(Window(minute(6), minute(35)), everything)
    assert len(lives(short, [minute(10)] * 16, [NONE] * 16, evidence)) == 1


def test_lives_with_other_starts_follow_each_other() -> None:
    """Each start is believed, lateness before what was seen, and no time is held twice."""
    seen = [minute(at) for at in range(10, 26)]
    starts = [minute(10)] * 6 + [minute(12)] * 5 + [minute(14)] * 5
    evidence = evidence_of(Window(minute(6), minute(30)), [minute(at) for at in range(40)])
    found = lives(seen, starts, [NONE] * 16, evidence)
    cuts = [minute(at) for at in (10, 15, 20, 25)]
    assert [(life.start_ms, life.end_ms) for life in found] == list(itertools.pairwise(cuts))


def test_what_is_last_seen_before_a_gap_is_doubted() -> None:
    times = [minute(at) for at in (*range(16), *range(21, 40))]
    gap = evidence_of(Window(minute(6), minute(30)), times)
    [life] = lives(SEEN, [minute(10)] * 6, [NONE] * 6, gap)
    assert (life.end_ms, life.doubt) == (minute(15), DataProblemCode.END_UNKNOWN)
    longest = evidence_of(Window(minute(6), minute(30)), [minute(at) for at in (*range(16), *range(20, 40))])
    [life] = lives(SEEN, [minute(10)] * 6, [NONE] * 6, longest)
    assert (life.end_ms, life.doubt) == (minute(15), None)
    # Where the window has ended, or it was not observed since, it is taken as there to the window's end.
    [life] = lives(SEEN, [minute(10)] * 6, [NONE] * 6, evidence_of(Window(minute(6), minute(15)), times))
    assert (life.end_ms, life.doubt) == (minute(15), None)
    [life] = lives(SEEN, [minute(10)] * 6, [NONE] * 6, evidence_of(Window(minute(6), minute(30)), times[:16]))
    assert (life.end_ms, life.doubt) == (minute(30), None)
