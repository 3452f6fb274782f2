"""What the service learnt about waits and jobs, kept in memory: nothing that answers reads the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from gpucost.advisor.wait.run_times import PastUse, name_pattern
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.ledger import WaitPrediction


class PredictionOutcome(StrEnum):
    """What came of a wait that was foretold."""

    HELD_P50 = "held_p50"
    HELD_P90 = "held_p90"
    """It took longer than p50, and at most p90."""
    MISSED = "missed"
    BEYOND_HORIZON = "beyond_horizon"
    """It started later than every number that was given, and p90 was none."""
    GONE = "gone"
    """It left without a start."""


def outcome_of(foretold: WaitPrediction) -> PredictionOutcome:
    """Of one that is decided."""
    if foretold.started_ms is None:
        return PredictionOutcome.GONE
    waited_ms = foretold.started_ms - foretold.asked_ms
    if foretold.p50_ms is not None and waited_ms <= foretold.p50_ms:
        return PredictionOutcome.HELD_P50
    if foretold.p90_ms is None:
        return PredictionOutcome.BEYOND_HORIZON
    return PredictionOutcome.HELD_P90 if waited_ms <= foretold.p90_ms else PredictionOutcome.MISSED


def given_of(foretold: WaitPrediction, now_ms: int) -> PredictedRange:
    """As calibration counts it. One that left without a start waited until then, and nobody knows how much
    longer it would have."""
    until_ms = foretold.started_ms if foretold.started_ms is not None else foretold.gone_ms
    waited_ms = (now_ms if until_ms is None else until_ms) - foretold.asked_ms
    is_waiting = foretold.started_ms is None
    return PredictedRange(foretold.queue, foretold.p50_ms, foretold.p90_ms, max(0, waited_ms), is_waiting)


def past_wait_of(foretold: WaitPrediction) -> PastWait:
    """As skill is learnt from. Of rows from before simulations were kept only the wait counts."""
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
    """Told by the loop that foretells waits (gpucost.service.advisor.wait_predictor); read from any
    thread."""

    def __init__(self) -> None:
        self._records: Sequence[PredictedRange] = ()
        self._past: frozenset[PastWait] = frozenset()
        self._skill: WaitSkill | None = None
        self._by_queue: dict[str, WaitCalibration] = {}
        self._troubles: Mapping[str, Sequence[OpenJobFinding]] | None = None
        self._uses: Mapping[tuple[str, str], PastUse] | None = None

    def calibrate(self, records: Sequence[PredictedRange]) -> None:
        """What came of the waits that were foretold."""
        self._by_queue = {}
        self._records = records

    def learn(self, kept: Iterable[WaitPrediction]) -> None:
        """Skill at waits, from all that were foretold: again only where there is something new."""
        past = frozenset(past_wait_of(each) for each in kept)
        if past != self._past:
            self._skill, self._past = skill_of(past), past

    @property
    def skill(self) -> WaitSkill | None:
        """Who corrects what the simulation says; None until waits were read. To be read only."""
        return self._skill

    def calibration(self, queue: str) -> WaitCalibration:
        """How often ranges held so far, of a ClusterQueue, or of all where it has too few."""
        # Both at once: who counts old records must not put them where new ones are looked for.
        records, known = self._records, self._by_queue
        found = known.get(queue)
        if found is None:
            found = known[queue] = calibration(records, queue)
        return found

    def found(self, troubles: Mapping[str, Sequence[OpenJobFinding]]) -> None:
        """What is found against jobs, by the job's uid."""
        self._troubles = troubles

    @property
    def troubles(self) -> Callable[[str], Sequence[OpenJobFinding]] | None:
        """Of the job with a uid; None until findings were read."""
        return None if self._troubles is None else self._of_job

    def _of_job(self, uid: str) -> Sequence[OpenJobFinding]:
        return () if self._troubles is None else self._troubles.get(uid, ())

    def have_used(self, uses: Mapping[tuple[str, str], PastUse]) -> None:
        """What jobs used of their GPUs, by namespace and name pattern."""
        self._uses = uses

    @property
    def used(self) -> Callable[[JobManifest], PastUse | None] | None:
        """By like-named jobs of the same namespace; None until usage was read."""
        return None if self._uses is None else self._like

    def _like(self, manifest: JobManifest) -> PastUse | None:
        return (self._uses or {}).get((manifest.namespace, name_pattern(manifest.name)))

    @property
    def known(self) -> tuple[bool, bool]:
        """Whether findings and usage were read."""
        return self._troubles is not None, self._uses is not None
