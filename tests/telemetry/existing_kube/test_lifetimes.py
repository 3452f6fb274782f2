"""Ends that no series has, counted off from scrapes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.time import HOUR_MS, SECOND_MS, Month, Window
from gpucost.telemetry.evidence.evidence_rule import ScrapeEvidence, evidence_for
from gpucost.telemetry.upstream.kube_reader import SHOWN_WITHIN_MS, are_whole, endings

T0 = Month(2026, 10).window.start_ms
EVERY = 30 * SECOND_MS
WINDOW = Window(T0 + HOUR_MS, T0 + 2 * HOUR_MS)


def evidence(missing: range = range(0), every_ms: int = EVERY) -> ScrapeEvidence:
    beats = np.arange(T0, T0 + 3 * HOUR_MS, every_ms, dtype=np.int64)
    beats = np.delete(beats, list(missing))
    return evidence_for(WINDOW, beats, beats, 300_000, 300_000)


@given(st.integers(0, 3600 * 1000 - 1), st.integers(60_000, 3_000_000))
def test_an_end_lies_within_half_a_scrape(begins: int, lasts: int) -> None:
    found = evidence()
    start, end = WINDOW.start_ms + begins - HOUR_MS // 2, WINDOW.start_ms + begins - HOUR_MS // 2 + lasts
    seen = ((found.scrapes >= start) & (found.scrapes < end)).sum()
    said = start - start % 1000  # Kubernetes writes whole seconds
    told = endings(np.array([said]), np.array([seen]), found, whole=True)
    early = ((found.scrapes >= said) & (found.scrapes < said + SHOWN_WITHIN_MS)).any()
    assert bool(told.told[0]) == bool(seen and not early and found.scrapes[-1] >= end)
    if told.told[0] and start >= found.start_ms:
        assert abs(int(told.end_ms[0]) - end) <= int(told.off_ms[0]) == EVERY // 2 + SECOND_MS


def test_what_is_in_the_last_scrape_has_no_end() -> None:
    found = evidence()
    start = np.array([WINDOW.start_ms + 10 * SECOND_MS])
    until_last = np.array([(found.scrapes >= start[0]).sum()])
    assert not endings(start, until_last, found, whole=True).told[0]
    assert endings(start, until_last - 1, found, whole=True).told[0]


def test_counting_says_nothing_across_a_gap_or_when_scrapes_were_not_whole() -> None:
    start, seen = np.array([WINDOW.start_ms + 10 * SECOND_MS]), np.array([10])
    assert not endings(start, seen, evidence(), whole=False).told[0]
    assert not endings(start, seen, evidence(range(130, 150)), whole=True).told[0]
    assert endings(start, seen, evidence(range(130, 132)), whole=True).told[0]


def test_one_scrape_alone_tells_no_end() -> None:
    beats = np.array([T0], dtype=np.int64)
    alone = ScrapeEvidence(WINDOW, beats, beats, frozenset(), 300_000, 300_000)
    assert not endings(np.array([T0]), np.array([1]), alone, whole=True).told[0]


def test_what_is_there_at_the_end_was_in_every_scrape_or_they_were_not_whole() -> None:
    found = evidence()
    start = np.array([WINDOW.start_ms + 10 * SECOND_MS, WINDOW.start_ms + 10 * SECOND_MS])
    every = int((found.scrapes >= start[0]).sum())
    lasting = np.array([True, False])
    assert are_whole(start, np.array([every, 3]), lasting, found)
    assert not are_whole(start, np.array([every - 1, 3]), lasting, found)
