"""When things were there that have no timestamp of their end: from how many scrapes showed them. Pure.

A series that was in every scrape from its beginning on, and then in none, was last seen in a scrape that can
be counted off. What it showed ended between that scrape and the next: in the middle, give or take half of the
distance. So sums over many of them come out right, and how far they may be off is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpucost.domain.time import SECOND_MS
from gpucost.telemetry.evidence import BoolArray, Evidence, IntArray

SHOWN_WITHIN_MS = 3 * SECOND_MS
"""How long after its own time, which is in whole seconds, an object may not be shown yet."""


@dataclass(frozen=True, slots=True)
class Endings:
    """Per subject: whether an end could be told, the end, and by how much it may be off; in milliseconds."""

    told: BoolArray
    end_ms: IntArray
    off_ms: IntArray


def endings(start_ms: IntArray, open_samples: IntArray, evidence: Evidence, *, whole: bool) -> Endings:
    """Ends of subjects that began at ``start_ms`` and were seen, not yet ended, in so many scrapes.

    Only within one stretch of observation of which every scrape was ``whole``: else counting says nothing;
    nor does it where a scrape came so shortly after the start that it may have been too soon. A subject
    that was seen in all scrapes to the last has no end here.
    """
    scrapes = evidence.scrapes
    first = np.searchsorted(scrapes, start_ms, "left")
    last = first + open_samples - 1
    is_plain = whole and len(evidence.stretches) == 1 and not evidence.stale
    soon = np.searchsorted(scrapes, start_ms + SHOWN_WITHIN_MS, "left") > first
    told = ~soon & (open_samples > 0) & (last < len(scrapes) - 1) & is_plain
    at = np.clip(last, 0, max(len(scrapes) - 2, 0))
    if len(scrapes) < 2:
        nothing = np.zeros(len(start_ms), dtype=np.int64)
        return Endings(np.zeros(len(start_ms), dtype=np.bool_), nothing, nothing)
    before, after = scrapes[at], scrapes[at + 1]
    off = -(-(after - before) // 2) + SECOND_MS  # starts are in whole seconds, rounded down
    return Endings(told, before + (after - before) // 2, off)


def are_whole(start_ms: IntArray, open_samples: IntArray, lasting: BoolArray, evidence: Evidence) -> bool:
    """Whether subjects that are there at the very end (``lasting``) were in all scrapes since they began.

    After a restart kube-state-metrics shows nothing, or nodes before pods, while it is up: what is missing
    then did not end.
    """
    due = evidence.scrapes_between(start_ms + SHOWN_WITHIN_MS, np.full(len(start_ms), evidence.end_ms + 1))
    return bool((open_samples >= due)[lasting].all())
