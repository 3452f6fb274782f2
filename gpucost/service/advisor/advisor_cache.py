"""Wait predictions, findings and usage of jobs, kept in memory, so that no request for advice reads the
ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from gpucost.advisor.model.answers import WaitRange
from gpucost.advisor.request.context import OpenJobFinding
from gpucost.advisor.wait.forecast_skill import (
    PastWait,
    PredictedRange,
    WaitCalibration,
    WaitSkill,
    calibration,
    skill_of,
)
from gpucost.advisor.wait.run_times import PastUse
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.service.advisor.run_history import PastUses


class PredictionOutcome(StrEnum):
    """The outcome of a predicted wait."""

    HELD_P50 = "held_p50"
    HELD_P90 = "held_p90"
    """It took longer than p50, and at most p90."""
    MISSED = "missed"
    BEYOND_HORIZON = "beyond_horizon"
    """It started later than every predicted quantile, and p90 lay beyond the horizon."""
    GONE = "gone"
    """It left the queue without starting."""


def outcome_of(foretold: WaitPrediction) -> PredictionOutcome:
    """The outcome of a prediction whose job has started or left."""
    if foretold.started_ms is None:
        return PredictionOutcome.GONE
    waited_ms = foretold.started_ms - foretold.asked_ms
    if foretold.p50_ms is not None and waited_ms <= foretold.p50_ms:
        return PredictionOutcome.HELD_P50
    if foretold.p90_ms is None:
        return PredictionOutcome.BEYOND_HORIZON
    return PredictionOutcome.HELD_P90 if waited_ms <= foretold.p90_ms else PredictionOutcome.MISSED


def given_of(foretold: WaitPrediction, now_ms: int) -> PredictedRange:
    """A prediction as calibration counts it. A job that left without starting waited until then; how much
    longer it would have waited is unknown."""
    until_ms = foretold.started_ms if foretold.started_ms is not None else foretold.gone_ms
    waited_ms = (now_ms if until_ms is None else until_ms) - foretold.asked_ms
    is_waiting = foretold.started_ms is None
    return PredictedRange(foretold.queue, foretold.p50_ms, foretold.p90_ms, max(0, waited_ms), is_waiting)


def past_wait_of(foretold: WaitPrediction) -> PastWait:
    """A prediction as skill is learnt from. Rows written before simulations were kept count with their wait
    only."""
    simulated = None
    if foretold.gpus is not None:
        simulated = WaitRange(foretold.simulated_p10_ms, foretold.simulated_p50_ms, foretold.simulated_p90_ms)
    return PastWait(
        foretold.workload_uid,
        foretold.queue,
        foretold.gpus or 0,
        foretold.asked_ms,
        foretold.horizon_ms,
        simulated,
        foretold.started_ms,
        foretold.gone_ms,
    )


class AdvisorCache:
    """Written by the loop that predicts waits (gpucost.service.advisor.wait_predictor); read by
    any thread."""

    def __init__(self) -> None:
        self._records: Sequence[PredictedRange] = ()
        self._past: frozenset[PastWait] = frozenset()
        self._skill: WaitSkill | None = None
        self._by_queue: dict[str, WaitCalibration] = {}
        self._troubles: Mapping[str, Sequence[OpenJobFinding]] | None = None
        self._uses: PastUses | None = None

    def calibrate(self, records: Sequence[PredictedRange]) -> None:
        """Take in the outcomes of predicted waits."""
        self._by_queue = {}
        self._records = records

    def learn(self, kept: Iterable[WaitPrediction]) -> None:
        """Learn the skill from all predictions; computed again only when there are new ones."""
        past = frozenset(past_wait_of(each) for each in kept)
        if past != self._past:
            self._skill, self._past = skill_of(past), past

    @property
    def skill(self) -> WaitSkill | None:
        """The skill that corrects simulated waits; None until predictions were read. Must not be changed."""
        return self._skill

    def calibration(self, queue: str) -> WaitCalibration:
        """How often the predicted ranges held so far: of one ClusterQueue, or of all where it has too few."""
        # Both at once: a reader with the old records must not file them under the new queues.
        records, known = self._records, self._by_queue
        found = known.get(queue)
        if found is None:
            found = known[queue] = calibration(records, queue)
        return found

    def found(self, troubles: Mapping[str, Sequence[OpenJobFinding]]) -> None:
        """Take in open findings about jobs, by the job's uid."""
        self._troubles = troubles

    @property
    def troubles(self) -> Callable[[str], Sequence[OpenJobFinding]] | None:
        """Open findings about the job with a uid; None until findings were read."""
        return None if self._troubles is None else self._of_job

    def _of_job(self, uid: str) -> Sequence[OpenJobFinding]:
        return () if self._troubles is None else self._troubles.get(uid, ())

    def have_used(self, uses: PastUses) -> None:
        """Take in what jobs used of their GPUs."""
        self._uses = uses

    def used_by(self, teams: Collection[str] | None) -> Callable[[JobManifest], PastUse | None] | None:
        """What jobs of ``teams`` (None: of all) with a similar name in the same namespace used; None until
        usage was read."""
        uses = self._uses
        if uses is None:
            return None
        return lambda manifest: uses.like(manifest.namespace, manifest.name, teams)

    @property
    def known(self) -> tuple[bool, bool]:
        """Whether findings and usage were read."""
        return self._troubles is not None, self._uses is not None
