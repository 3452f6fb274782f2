"""What the service learnt about waits and jobs, kept in memory: nothing that answers reads the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from gpucost.advisor.answers import WaitRange
from gpucost.advisor.knowledge import Trouble
from gpucost.advisor.suggest.past_use import PastUse
from gpucost.advisor.wait.calibration import Calibration, Given, calibration
from gpucost.advisor.wait.names import name_pattern
from gpucost.advisor.wait.skill import PastWait, WaitSkill, skill_of
from gpucost.cluster.manifest import JobManifest
from gpucost.ledger import Foretold


class Outcome(StrEnum):
    """What came of a wait that was foretold."""

    HELD_P50 = "held_p50"
    HELD_P90 = "held_p90"
    """It took longer than p50, and at most p90."""
    MISSED = "missed"
    BEYOND_HORIZON = "beyond_horizon"
    """It started later than every number that was given, and p90 was none."""
    GONE = "gone"
    """It left without a start."""


def outcome_of(foretold: Foretold) -> Outcome:
    """Of one that is decided."""
    if foretold.started_ms is None:
        return Outcome.GONE
    waited_ms = foretold.started_ms - foretold.asked_ms
    if foretold.p50_ms is not None and waited_ms <= foretold.p50_ms:
        return Outcome.HELD_P50
    if foretold.p90_ms is None:
        return Outcome.BEYOND_HORIZON
    return Outcome.HELD_P90 if waited_ms <= foretold.p90_ms else Outcome.MISSED


def given_of(foretold: Foretold, now_ms: int) -> Given:
    """As calibration counts it. One that left without a start waited until then, and nobody knows how much
    longer it would have."""
    until_ms = foretold.started_ms if foretold.started_ms is not None else foretold.gone_ms
    waited_ms = (now_ms if until_ms is None else until_ms) - foretold.asked_ms
    is_waiting = foretold.started_ms is None
    return Given(foretold.queue, foretold.p50_ms, foretold.p90_ms, max(0, waited_ms), is_waiting)


def past_wait_of(foretold: Foretold) -> PastWait:
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


class Learnt:
    """Told by the loop that foretells waits (gpucost.service.foretelling); read from any thread."""

    def __init__(self) -> None:
        self._records: Sequence[Given] = ()
        self._past: frozenset[PastWait] = frozenset()
        self._skill: WaitSkill | None = None
        self._by_queue: dict[str, Calibration] = {}
        self._troubles: Mapping[str, Sequence[Trouble]] | None = None
        self._uses: Mapping[tuple[str, str], PastUse] | None = None

    def calibrate(self, records: Sequence[Given]) -> None:
        """What came of the waits that were foretold."""
        self._by_queue = {}
        self._records = records

    def learn(self, kept: Iterable[Foretold]) -> None:
        """Skill at waits, from all that were foretold: again only where there is something new."""
        past = frozenset(past_wait_of(each) for each in kept)
        if past != self._past:
            self._skill, self._past = skill_of(past), past

    @property
    def skill(self) -> WaitSkill | None:
        """Who corrects what the simulation says; None until waits were read. To be read only."""
        return self._skill

    def calibration(self, queue: str) -> Calibration:
        """How often ranges held so far, of a ClusterQueue, or of all where it has too few."""
        # Both at once: who counts old records must not put them where new ones are looked for.
        records, known = self._records, self._by_queue
        found = known.get(queue)
        if found is None:
            found = known[queue] = calibration(records, queue)
        return found

    def found(self, troubles: Mapping[str, Sequence[Trouble]]) -> None:
        """What is found against jobs, by the job's uid."""
        self._troubles = troubles

    @property
    def troubles(self) -> Callable[[str], Sequence[Trouble]] | None:
        """Of the job with a uid; None until findings were read."""
        return None if self._troubles is None else self._of_job

    def _of_job(self, uid: str) -> Sequence[Trouble]:
        return () if self._troubles is None else self._troubles.get(uid, ())

    def have_used(self, uses: Mapping[tuple[str, str], PastUse]) -> None:
        """What jobs used of their boards, by namespace and name pattern."""
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
