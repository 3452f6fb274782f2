"""A simulated wait, corrected by the outcomes of earlier predictions.

The simulation knows the queue, and nothing of a change of regime: jobs that run longer all at once, or a
queue that drains faster than ever. So it is one of three predictors. The others are how long the last job of
the same queue and size waited, or the oldest that still waits where that is longer; and the mean of the
queue's waits. The simulation is believed up to twice the longest wait that the queue has seen: a queue that
is blocked is released at once, where the simulation releases it job by job. The middle is the weighted power
mean of the three with exponent one half: between the arithmetic one, which a single absurd guess dominates,
and the geometric one, which is too low. A weight is the inverse root of the discounted absolute error, so
that no predictor wins for ever; all weigh the same before any error is known. A job that still waits counts
as soon as it waits longer than a predictor said, by as much as is certain; and once it waits longer than
predicted it lifts the middle, to the largest guess at most.

The range is the simulation's own, laid around that middle, and stretched so far that as many of the last
outcomes lie outside on each side as should: one in ten, or what made it one in ten so far (adaptive conformal
inference: Gibbs and Candès 2021, arXiv 2106.00184). So in the long run it holds as often as it claims. A job
that waits longer than predicted is an outcome already, at what it has waited so far: in a burst few waits
end.

It learns only from waits that ended before the question, and from how long others have waited by then. The
constants were set on October and November of the Philly trace (benchmarks/waits.py has the other months).

``calibration`` counts how often the ranges given so far held.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from gpucost.advisor.model.answers import WaitEstimate, WaitRange
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, MINUTE_MS

LEAST_DECIDED = 10
"""Predicted waits of a queue that have to be over before its own outcomes are used; until then those of all
queues are. For the width of the range those of all queues count as so many of its own."""

HALF_LIFE_MS = 3 * DAY_MS
"""An error counts half of one that is three days newer."""
SHARPNESS = 0.5
MOST_TIMES_LONGEST = 2
"""The simulation is believed up to so many times the longest wait of the queue, over or not."""
LIFT = 0.6
"""Of the middle, as a logarithm, where all that still wait wait longer than predicted..."""
LIFT_NEEDS = 3
"""...and there are many more of them than these."""
MOST_PENDING = 50
"""The longest of those that still wait are examined, at most so many, so that a burst costs no more."""

OUTSIDE = 0.1
"""The share that is to lie below p10, and above p90."""
AIM_OUTSIDE = 0.093
"""Somewhat less than that: of waits that were not over when they were predicted, more lie outside."""
OUTSIDE_STEP = 0.05
LEAST_OUTSIDE, MOST_OUTSIDE = 0.005, 0.5
LAST_SCORES = 100
FIRST_STRETCH = 1.2
"""The range where nothing is known yet, in simulated ranges: unstretched ones held 69 to 87 % in the months
that this was set on. It counts as one outcome on each side."""
LEAST_STRETCH, MOST_STRETCH = 0.01, 8.0
LEAST_SPREAD = 0.3
"""Of the logarithm, on each side: the simulation may be sure of what is wrong."""
_SCALE_MS = MINUTE_MS
"""Below it a wait is as good as none: the logarithm is of the wait and a minute."""

_PREDICTORS = 3
_Guesses = tuple[float, ...]
_Weighted = tuple[float, float]
"""A score and its weight."""


@dataclass(frozen=True, slots=True)
class PastWait:
    """A wait that was asked about, and how it ended: ``started_ms``, or ``gone_ms`` without a start, or
    neither. ``simulated`` is the range of the simulation alone, None where there was none: then only the wait
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
class CalibratedWaitRange:
    """``range`` is the range to give. It rests on ``decided`` predicted waits, of ``queue`` or (empty) of all
    queues; 0: none was over, and the range is widened."""

    range: WaitRange
    queue: str
    decided: int


@dataclass(frozen=True, slots=True)
class _Band:
    """The middle, and how far the simulation's range reaches from it, as logarithms. A score says where in
    it: -1 at its lower end, 1 at its upper."""

    centre: float
    below: float
    above: float

    def score(self, waited_ms: int) -> float:
        off = math.log(waited_ms + _SCALE_MS) - self.centre
        return off / (self.below if off < 0 else self.above)

    def at(self, score: float) -> float:
        return self.centre + score * (self.below if score < 0 else self.above)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A prediction whose wait is not over. ``low`` and ``high`` are the scores of the range that
    was given."""

    asked_ms: int
    guesses: _Guesses
    band: _Band
    low: float
    high: float

    def score(self, at_ms: int) -> float:
        """The least score that it can end with; above 0 it waits longer than the middle predicted."""
        return self.band.score(at_ms - self.asked_ms)


@dataclass(slots=True)
class _Record:
    """The outcomes of one queue, or of all."""

    by_size: dict[int, int] = field(default_factory=dict)
    last_ms: int = 0
    longest_ms: int = 0
    ended: int = 0
    sum_ms: int = 0
    decided: int = 0
    scored_ms: int = 0
    loss: list[float] = field(default_factory=lambda: [0.0] * _PREDICTORS)
    scores: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_SCORES))
    waiting: dict[int, dict[str, int]] = field(default_factory=dict)
    """When those of a size that wait still were asked about, by id."""
    pending: dict[str, _Pending] = field(default_factory=dict)

    def waited(self, gpus: int, waited_ms: int) -> None:
        self.by_size[gpus] = self.last_ms = waited_ms
        self.longest_ms = max(self.longest_ms, waited_ms)
        self.ended += 1
        self.sum_ms += waited_ms

    def scored(self, was: _Pending, waited_ms: int) -> None:
        at_ms = was.asked_ms + waited_ms
        fades = 0.5 ** (max(0, at_ms - self.scored_ms) / HALF_LIFE_MS) if self.decided else 0.0
        self.scored_ms = at_ms
        self.decided += 1
        self.loss = [
            loss * fades + abs(guess - waited_ms) for loss, guess in zip(self.loss, was.guesses, strict=True)
        ]
        self.scores.append(was.band.score(waited_ms))

    def oldest_ms(self, gpus: int, at_ms: int) -> int:
        """How long the oldest job of a size has waited, in ms; 0 where none waits."""
        asked_ms = next(iter(self.waiting.get(gpus, {}).values()), at_ms)
        return at_ms - asked_ms

    def oldest_of_all_ms(self, at_ms: int) -> int:
        return max((self.oldest_ms(gpus, at_ms) for gpus in self.waiting), default=0)


class WaitSkill:
    """Learns as waits end; a range is worked out from what is known by then. Call it in the order of time."""

    def __init__(self) -> None:
        self._all = _Record()
        self._records: dict[str, _Record] = {}
        self._outside = [OUTSIDE, OUTSIDE]

    def foretell(
        self, queue: str, gpus: int, at_ms: int, simulated: WaitRange, horizon_ms: int
    ) -> CalibratedWaitRange:
        """The range to give for a wait that the simulation predicts as ``simulated``, asked about at
        ``at_ms``."""
        return self._told(queue, gpus, at_ms, simulated, horizon_ms)[0]

    def asked(self, past: PastWait) -> CalibratedWaitRange | None:
        """The same, and the prediction is remembered until the wait is over. None without a simulation: then
        only that the job waits is remembered."""
        found = None
        own = self._record(past.queue)
        if past.simulated is not None:
            found, own.pending[past.id] = self._told(
                past.queue, past.gpus, past.asked_ms, past.simulated, past.horizon_ms
            )
        own.waiting.setdefault(past.gpus, {})[past.id] = past.asked_ms
        return found

    def _told(
        self, queue: str, gpus: int, at_ms: int, simulated: WaitRange, horizon_ms: int
    ) -> tuple[CalibratedWaitRange, _Pending]:
        own = self._records.get(queue) or _Record()
        pending = [*islice(own.pending.values(), MOST_PENDING)]
        is_own = own.decided >= LEAST_DECIDED
        speaker = own if is_own else self._all
        guesses = self._guesses(own, gpus, at_ms, _or(simulated.p50_ms, horizon_ms))
        overdue = sum(each.score(at_ms) > 0 for each in pending)
        lift = LIFT * overdue / (len(pending) + LIFT_NEEDS)
        middle = _middle(guesses, _losses(speaker, pending, at_ms))
        lifted = min((middle + _SCALE_MS) * math.exp(lift), max(*guesses, middle) + _SCALE_MS)
        band = _band(math.log(lifted), simulated, horizon_ms)
        low, high = self._stretches(own, pending, at_ms)
        bounds = (band.at(low), band.centre, band.at(high))
        found = WaitRange(*(_within(each, horizon_ms) for each in bounds))
        if not speaker.decided and simulated.p10_ms is None:
            found = simulated  # it may never start
        told = CalibratedWaitRange(found, queue if is_own else "", speaker.decided)
        return told, _Pending(at_ms, guesses, band, low, high)

    def _guesses(self, own: _Record, gpus: int, at_ms: int, simulated_ms: float) -> _Guesses:
        known = own if own.ended else self._all
        if not known.ended:
            return (simulated_ms,) * _PREDICTORS
        last = max(known.by_size.get(gpus, known.last_ms), own.oldest_ms(gpus, at_ms))
        longest = max(known.longest_ms, own.oldest_of_all_ms(at_ms), _SCALE_MS)
        return min(simulated_ms, MOST_TIMES_LONGEST * longest), last, known.sum_ms / known.ended

    def _stretches(self, own: _Record, pending: Sequence[_Pending], at_ms: int) -> tuple[float, float]:
        """Scores of which as many lie below the first, and above the second, as should."""
        so_far = [each.score(at_ms) for each in pending]
        others = min(1.0, LEAST_DECIDED / max(1, len(self._all.scores)))
        first = [(-math.inf, 2 * OUTSIDE), (-FIRST_STRETCH, 1 - 2 * OUTSIDE)]
        first += [(-score, counts) for score, counts in first]
        scores = sorted(
            [
                *((each, 1.0) for each in so_far if each > 0),
                *((each, 1.0) for each in own.scores),
                *((each, others) for each in self._all.scores),
                *first,
            ]
        )
        below, above = (min(max(share, LEAST_OUTSIDE), MOST_OUTSIDE) for share in self._outside)
        outside = sum(score > each.high for score, each in zip(so_far, pending, strict=True))
        above = max(LEAST_OUTSIDE, above - OUTSIDE_STEP * outside)
        high = _quantile(scores, 1 - above)
        low = -_quantile([(-score, counts) for score, counts in reversed(scores)], 1 - below)
        return -min(max(-low, LEAST_STRETCH), MOST_STRETCH), min(max(high, LEAST_STRETCH), MOST_STRETCH)

    def started(self, past: PastWait) -> None:
        """Raises InputError for one that has no start."""
        if past.started_ms is None:
            raise InputError("started_ms", None, "when it started")
        waited_ms = max(0, past.started_ms - past.asked_ms)
        own = self._record(past.queue)
        was = own.pending.get(past.id)
        self.gone(past)
        if was is not None:
            score = was.band.score(waited_ms)
            for side, is_outside in enumerate((score < was.low, score > was.high)):
                self._outside[side] += OUTSIDE_STEP * (AIM_OUTSIDE - is_outside)
        for record in (own, self._all):
            if was is not None:
                record.scored(was, waited_ms)
            record.waited(past.gpus, waited_ms)

    def gone(self, past: PastWait) -> None:
        """The job left without a start: how long it would have waited is not known."""
        own = self._record(past.queue)
        own.pending.pop(past.id, None)
        own.waiting.get(past.gpus, {}).pop(past.id, None)

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


def corrected(wait: WaitEstimate, skill: WaitSkill | None, queue: str, gpus: int, at_ms: int) -> WaitEstimate:
    """``wait`` with the range to give, and its source. Without ``skill`` it is widened only."""
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
    """The errors of the predictors, with those that are already certain for jobs that still wait."""
    losses = list(record.loss)
    for each in pending:
        age_ms = at_ms - each.asked_ms
        for at, guess in enumerate(each.guesses):
            if age_ms > guess:
                losses[at] += age_ms - guess
    return losses


def _middle(guesses: _Guesses, losses: Sequence[float]) -> float:
    if min(guesses) == max(guesses):
        return guesses[0]
    weights = [math.pow(loss + _SCALE_MS, -SHARPNESS) for loss in losses]
    roots = [math.sqrt(guess + _SCALE_MS) for guess in guesses]
    root = sum(weight * root for weight, root in zip(weights, roots, strict=True)) / sum(weights)
    return root * root - _SCALE_MS


def _quantile(rising: Sequence[_Weighted], share: float) -> float:
    """The first value that at least ``share`` of the weight does not exceed."""
    least = share * sum(counts for _, counts in rising) - 1e-9
    reached = 0.0
    for score, counts in rising:
        reached += counts
        if reached >= least:
            return score
    return rising[-1][0]


def _band(centre: float, simulated: WaitRange, horizon_ms: int) -> _Band:
    low, high = (math.log(_or(each, horizon_ms) + _SCALE_MS) for each in (simulated.p10_ms, simulated.p90_ms))
    return _Band(centre, max(centre - low, LEAST_SPREAD), max(high - centre, LEAST_SPREAD))


def _within(logarithm: float, horizon_ms: int) -> int | None:
    if logarithm >= math.log(horizon_ms + _SCALE_MS):
        return None
    return max(0, round(math.exp(logarithm) - _SCALE_MS))


def _or(value: int | None, beyond: float) -> float:
    return beyond if value is None else value


LEAST = 20
"""Decided ranges that a queue needs for figures of its own; below it, those of all queues
together are used."""


@dataclass(frozen=True, slots=True)
class PredictedRange:
    """A range that was given, and its outcome: ``waited_ms`` so far, and whether the job still waits.

    ``p50_ms`` and ``p90_ms`` are None where they lay beyond the horizon. Raises InputError for negatives.
    """

    queue: str
    p50_ms: int | None
    p90_ms: int | None
    waited_ms: int
    is_waiting: bool = False

    def __post_init__(self) -> None:
        for name in ("p50_ms", "p90_ms", "waited_ms"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(name, value, "milliseconds, 0 or more")


@dataclass(frozen=True, slots=True)
class RangeCount:
    """``held`` of ``given`` ranges held. ``undecided`` still wait and may hold; ``without`` gave no number,
    because it lay beyond the horizon. Neither is among ``given``."""

    held: int
    given: int
    undecided: int
    without: int

    @property
    def share(self) -> float | None:
        """None where nothing is decided."""
        return self.held / self.given if self.given else None


@dataclass(frozen=True, slots=True)
class WaitCalibration:
    """Of ``queue``, or of all queues (empty) where the queue has too few."""

    queue: str
    p50: RangeCount
    p90: RangeCount


def calibration(records: Iterable[PredictedRange], queue: str, least: int = LEAST) -> WaitCalibration:
    """How often the wait was at most p50, and at most p90.

    A range that was given for a job which still waits counts as missed once the wait is longer than it, and
    is undecided until then. So while many wait, those missed are known before those held: read ``undecided``.
    """
    every = list(records)
    own = [record for record in every if record.queue == queue]
    counted = _counted(own, queue)
    return counted if counted.p90.given >= least else _counted(every, "")


def _counted(records: Sequence[PredictedRange], queue: str) -> WaitCalibration:
    return WaitCalibration(
        queue,
        _count([(record, record.p50_ms) for record in records]),
        _count([(record, record.p90_ms) for record in records]),
    )


def _count(pairs: Sequence[tuple[PredictedRange, int | None]]) -> RangeCount:
    held = missed = undecided = without = 0
    for record, bound_ms in pairs:
        if bound_ms is None:
            without += 1
        elif record.waited_ms > bound_ms:
            missed += 1
        elif record.is_waiting:
            undecided += 1
        else:
            held += 1
    return RangeCount(held, held + missed, undecided, without)
