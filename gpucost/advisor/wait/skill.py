"""A simulated wait, corrected by what became of the waits foretold before it.

The simulation knows the queue, and nothing of a change of regime: jobs that run longer all at once, or a
queue that drains faster than ever. So it is one of five predictors. The others are the last wait of the same
queue and size, the median and the mean of the queue's waits, and no wait at all. The middle is their weighted
mean: a weight is the discounted absolute error to the power of minus three, so that nobody wins for ever. Who
waits still counts as soon as it waits longer than a predictor said, by as much as is certain.

The range is the simulation's own, laid around that middle, and stretched on a logarithmic scale by one
factor downwards and one upwards. A factor grows by nine steps when the truth lies outside on its side, and
shrinks by one when it does not: it comes to rest where one in ten lies outside (adaptive conformal inference:
Gibbs and Candès 2021, arXiv 2106.00184, here on the width). The median is shifted likewise until half lie
above it.

Learnt is only from waits that ended before the question, and from how long others have waited by then. The
constants were set on October and November of the Philly trace (benchmarks/waits.py has the other months).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from gpucost.advisor.answers import Wait, WaitRange
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS

LEAST_DECIDED = 10
"""Foretold waits of a queue that have to be over before it speaks for itself; until then all queues do."""

STEP = 0.25
OUTSIDE = 0.1
"""The share that is to lie below p10, and above p90."""
FIRST_STRETCH = 0.2
"""Where nothing is known the range is e to this times as wide, as a logarithm: alone it held 69 to 87 % in
the months that this was set on."""
MOST_STRETCH, LEAST_STRETCH = 2.0, -4.0
SHIFT_STEP = 0.05
MOST_SHIFT = 1.0
"""Of the median, as a logarithm."""

HALF_LIFE_MS = 3 * DAY_MS
"""An error counts half of one that is three days newer."""
LESSON_MS = HOUR_MS
LEAST_LESSON = 0.1
SHARPNESS = 3.0
MOST_PENDING = 50
"""Those that wait still of which the longest are looked at, so that a burst costs no more."""
LEAST_SPREAD = 0.3
"""Of the logarithm, on each side: the simulation may be sure of what is wrong."""
_SCALE_MS = MINUTE_MS
"""Below it a wait is as good as none: the logarithm is of the wait and a minute."""

_PREDICTORS = 5
_Guesses = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PastWait:
    """A wait that was asked about, and how it ended: ``started_ms``, or ``gone_ms`` without a start, or
    neither. ``simulated`` is what the simulation alone said, None where it was not asked: then only the wait
    is learnt from."""

    id: str
    queue: str
    gpus: int
    asked_ms: int
    horizon_ms: int
    simulated: WaitRange | None
    started_ms: int | None = None
    gone_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SkilledRange:
    """``range`` is to be told. ``decided`` foretold waits stand behind it, of ``queue`` or (empty) of all
    queues; 0: it is the simulation's own, widened."""

    range: WaitRange
    queue: str
    decided: int


@dataclass(frozen=True, slots=True)
class _Band:
    """The middle, and how far the simulation's range reaches from it, as logarithms."""

    centre: float
    below: float
    above: float

    def scores(self, waited_ms: int) -> tuple[float, float]:
        """How many times the range lies between the middle and the truth, downwards and upwards."""
        off = math.log(waited_ms + _SCALE_MS) - self.centre
        return -off / self.below, off / self.above


@dataclass(frozen=True, slots=True)
class _Pending:
    asked_ms: int
    guesses: _Guesses
    middle: float
    band: _Band


@dataclass(slots=True)
class _Record:
    """Of one queue, or of all."""

    by_size: dict[int, int] = field(default_factory=dict)
    last_ms: int = 0
    ordered: list[int] = field(default_factory=list)
    sum_ms: int = 0
    decided: int = 0
    scored_ms: int = 0
    loss: list[float] = field(default_factory=lambda: [0.0] * _PREDICTORS)
    stretch: list[float] = field(default_factory=lambda: [FIRST_STRETCH, FIRST_STRETCH])
    shift: float = 0.0
    pending: dict[str, _Pending] = field(default_factory=dict)

    def waited(self, gpus: int, waited_ms: int) -> None:
        self.by_size[gpus] = self.last_ms = waited_ms
        insort(self.ordered, waited_ms)
        self.sum_ms += waited_ms

    def scored(self, was: _Pending, waited_ms: int) -> None:
        at_ms = was.asked_ms + waited_ms
        passed_ms = max(0, at_ms - self.scored_ms) if self.decided else HALF_LIFE_MS
        fades = 0.5 ** (passed_ms / HALF_LIFE_MS)
        # Those of a burst wait alike, and are one lesson rather than many.
        lesson = 1 - 0.5 ** (passed_ms / LESSON_MS)
        lesson = max(lesson, LEAST_LESSON)
        self.scored_ms = at_ms
        self.decided += 1
        self.loss = [
            loss * fades + abs(guess - waited_ms) for loss, guess in zip(self.loss, was.guesses, strict=True)
        ]
        is_above = math.log(waited_ms + _SCALE_MS) > was.middle + self.shift
        self.shift = max(-MOST_SHIFT, min(MOST_SHIFT, self.shift + lesson * SHIFT_STEP * (is_above - 0.5)))
        # By the stretch of today: many that were asked about before it grew do not make it grow again.
        for side, score in enumerate(was.band.scores(waited_ms)):
            is_outside = score > math.exp(self.stretch[side])
            self.stretch[side] = _bounded(self.stretch[side] + lesson * STEP * (is_outside - OUTSIDE))

    def guesses(self, gpus: int, simulated_ms: float) -> _Guesses:
        if not self.ordered:
            return (simulated_ms,) * (_PREDICTORS - 1) + (0.0,)
        median = self.ordered[len(self.ordered) // 2]
        mean = self.sum_ms / len(self.ordered)
        return simulated_ms, self.by_size.get(gpus, self.last_ms), median, mean, 0.0


class WaitSkill:
    """Learns as waits end; a range is given from what is known by then. Tell it in the order of time."""

    def __init__(self) -> None:
        self._all = _Record()
        self._records: dict[str, _Record] = {}

    def foretell(
        self, queue: str, gpus: int, at_ms: int, simulated: WaitRange, horizon_ms: int
    ) -> SkilledRange:
        """What to tell of a wait that the simulation says ``simulated`` of, asked about ``at_ms``."""
        return self._told(queue, gpus, at_ms, simulated, horizon_ms)[0]

    def asked(self, past: PastWait) -> SkilledRange | None:
        """The same, and it is remembered until it is over. None without a simulation."""
        if past.simulated is None:
            return None
        found, pending = self._told(past.queue, past.gpus, past.asked_ms, past.simulated, past.horizon_ms)
        self._record(past.queue).pending[past.id] = pending
        return found

    def _told(
        self, queue: str, gpus: int, at_ms: int, simulated: WaitRange, horizon_ms: int
    ) -> tuple[SkilledRange, _Pending]:
        own = self._records.get(queue)
        pending = [] if own is None else [*islice(own.pending.values(), MOST_PENDING)]
        is_own = own is not None and own.decided >= LEAST_DECIDED
        speaker = own if own is not None and is_own else self._all
        known = own if own is not None and own.ordered else self._all
        guesses = known.guesses(gpus, _or(simulated.p50_ms, horizon_ms))
        middle = _middle(guesses, _losses(speaker, pending, at_ms)) if speaker.decided else guesses[0]
        middle = math.log(middle + _SCALE_MS)
        band = _band(middle + speaker.shift, simulated, horizon_ms)
        up = _stretched(speaker.stretch[1], pending, at_ms)
        low = band.centre - band.below * math.exp(speaker.stretch[0])
        high = band.centre + band.above * math.exp(up)
        found = WaitRange(*(_within(each, horizon_ms) for each in (low, band.centre, high)))
        if not speaker.decided and simulated.p10_ms is None:
            found = simulated  # it may never start
        told = SkilledRange(found, queue if is_own else "", speaker.decided)
        return told, _Pending(at_ms, guesses, middle, band)

    def started(self, past: PastWait) -> None:
        """Raises InputError for one that has no start."""
        if past.started_ms is None:
            raise InputError("started_ms", None, "when it started")
        waited_ms = max(0, past.started_ms - past.asked_ms)
        own = self._record(past.queue)
        was = own.pending.pop(past.id, None)
        for record in (own, self._all):
            if was is not None:
                record.scored(was, waited_ms)
            record.waited(past.gpus, waited_ms)

    def gone(self, past: PastWait) -> None:
        """It left without a start: nobody knows how long it would have waited."""
        self._record(past.queue).pending.pop(past.id, None)

    def _record(self, queue: str) -> _Record:
        return self._records.setdefault(queue, _Record())


def skill_of(waits: Iterable[PastWait]) -> WaitSkill:
    """What is learnt of ``waits``, in the order in which they were asked about and ended."""
    found = WaitSkill()
    events: list[tuple[int, int, str, PastWait]] = []
    for each in waits:
        events.append((each.asked_ms, 1, each.id, each))
        over_ms = each.started_ms if each.started_ms is not None else each.gone_ms
        if over_ms is not None:
            # One that started in the moment it was asked about has been asked about before.
            events.append((over_ms, 0 if over_ms > each.asked_ms else 2, each.id, each))
    for _, kind, _, each in sorted(events, key=lambda event: event[:3]):
        if kind == 1:
            found.asked(each)
        elif each.started_ms is not None:
            found.started(each)
        else:
            found.gone(each)
    return found


def corrected(wait: Wait, skill: WaitSkill | None, queue: str, gpus: int, at_ms: int) -> Wait:
    """``wait`` with the range to tell, and where that is from. Without ``skill`` it is widened only."""
    if wait.simulated is None:
        return wait
    found = (skill or WaitSkill()).foretell(queue, gpus, at_ms, wait.simulated, wait.horizon_ms)
    if not found.decided:
        source = "the range is widened: nobody knows what became of waits foretold before"
    else:
        whose = "of its queue" if found.queue else "of all queues"
        source = f"corrected by what became of {found.decided:,} waits foretold before {whose}"
    return replace(
        wait,
        p10_ms=found.range.p10_ms,
        p50_ms=found.range.p50_ms,
        p90_ms=found.range.p90_ms,
        basis=f"{wait.basis}; {source}",
        learnt_from=found.decided,
    )


def _losses(record: _Record, pending: Sequence[_Pending], at_ms: int) -> list[float]:
    """With what those that wait still are known to miss."""
    losses = list(record.loss)
    for each in pending:
        age_ms = at_ms - each.asked_ms
        for at, guess in enumerate(each.guesses):
            if age_ms > guess:
                losses[at] += age_ms - guess
    return losses


def _middle(guesses: _Guesses, losses: Sequence[float]) -> float:
    least = min(losses) + _SCALE_MS
    weights = [float(((loss + _SCALE_MS) / least) ** -SHARPNESS) for loss in losses]
    return sum(weight * guess for weight, guess in zip(weights, guesses, strict=True)) / sum(weights)


def _stretched(stretch: float, pending: Sequence[_Pending], at_ms: int) -> float:
    """Upwards, with those that wait still and are past what they were told."""
    for each in pending:
        if each.band.scores(at_ms - each.asked_ms)[1] > math.exp(stretch):
            stretch = _bounded(stretch + STEP * (1 - OUTSIDE))
    return stretch


def _band(centre: float, simulated: WaitRange, horizon_ms: int) -> _Band:
    low, high = (math.log(_or(each, horizon_ms) + _SCALE_MS) for each in (simulated.p10_ms, simulated.p90_ms))
    return _Band(centre, max(centre - low, LEAST_SPREAD), max(high - centre, LEAST_SPREAD))


def _within(logarithm: float, horizon_ms: int) -> int | None:
    if logarithm >= math.log(horizon_ms + _SCALE_MS):
        return None
    return max(0, round(math.exp(logarithm) - _SCALE_MS))


def _bounded(stretch: float) -> float:
    return max(LEAST_STRETCH, min(MOST_STRETCH, stretch))


def _or(value: int | None, beyond: float) -> float:
    return beyond if value is None else value
