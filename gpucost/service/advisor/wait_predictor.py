"""The loop that predicts the waits of pending workloads, and records what came of the predictions.

Every minute, over the watched cluster: workloads that wait for GPUs and have no prediction yet get one; those
that have one are scored once they started or left; findings about jobs and what jobs used are read. What is
learnt is kept in memory for the answers of the advisor (gpucost.service.advisor.advisor_cache).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from gpucost.advisor.advise import advise_asking
from gpucost.advisor.request.context import OpenJobFinding
from gpucost.advisor.request.scheduling_request import WORKLOAD, find_job, gpus_of, request_from_job
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.state import ClusterState
from gpucost.detectors.engine.lifecycle import FindingLife
from gpucost.detectors.findings import SubjectKind
from gpucost.domain.errors import GpuCostError, shorten
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.service.advisor.advisor_cache import given_of, outcome_of
from gpucost.service.advisor.advisor_service import AdvisorService, AdvisorSnapshot, NoState
from gpucost.service.advisor.run_history import past_uses_of
from gpucost.service.detection.finding_records import life_of

logger = logging.getLogger(__name__)

EVERY_S = 60.0
MOST_PER_ROUND = 10
"""Workloads that get a prediction in one round, so that a burst of them is spread over some minutes."""
LONGEST_ROUND_S = 5.0
"""No further prediction is made once a round took so long: a simulation may take seconds of the core that
answers requests."""
_GONE = (WorkloadState.INACTIVE, WorkloadState.FINISHED)

PredictWait = Callable[[Workload, AdvisorSnapshot], WaitPrediction | None]


def predict_wait(workload: Workload, informed: AdvisorSnapshot) -> WaitPrediction | None:
    """The advisor's prediction for a pending workload; None where it makes none. Its team is the one by the
    team rules: any author may write the label."""
    known = informed.known
    found = find_job(WORKLOAD, workload.meta.namespace, workload.meta.name, known)
    if found is None or found.workload is None or found.workload.meta.uid != workload.meta.uid:
        return None  # another workload of its job is admitted first
    asking = request_from_job(found, known)
    advice = advise_asking(asking, known)
    wait = advice.wait
    if wait is None or wait.simulated is None:
        return None
    return WaitPrediction(
        workload.meta.uid,
        workload.meta.namespace,
        workload.meta.name,
        advice.queue,
        informed.tenants.team_of(workload),
        known.state.at_ms,
        wait.p50_ms,
        wait.p90_ms,
        wait.horizon_ms,
        gpus=asking.gpus,
        p10_ms=wait.p10_ms,
        simulated_p10_ms=wait.simulated.p10_ms,
        simulated_p50_ms=wait.simulated.p50_ms,
        simulated_p90_ms=wait.simulated.p90_ms,
    )


class WaitPredictor:
    """One thread of ``gpucost serve``. ``sleep`` pauses for seconds, or less when a stop is requested;
    ``seconds`` is a monotonic clock. Without ``with_findings`` no findings are read."""

    def __init__(
        self,
        advising: AdvisorService,
        ledger: Ledger,
        *,
        now: Callable[[], int],
        seconds: Callable[[], float],
        sleep: Callable[[float], object],
        stopped: Callable[[], bool],
        with_findings: bool = True,
        ask: PredictWait = predict_wait,
    ) -> None:
        self._advising = advising
        self._ledger = ledger
        self._cluster = advising.watched.cluster
        self._now = now
        self._seconds = seconds
        self._sleep = sleep
        self._stopped = stopped
        self._with_findings = with_findings
        self._ask = ask
        self._round = 0
        self._asked: dict[str, int] = {}
        """The last round in which each waiting workload without a stored prediction was tried."""
        self._written: set[str] = set()
        self._lives: dict[tuple[int | None, int], FindingLife] = {}
        self._used_until_ms: int | None = None

    def run(self) -> None:
        """Runs until a stop is requested."""
        while not self._stopped():
            self.turn()
            self._sleep(EVERY_S)

    def turn(self) -> None:
        """One round. No error ends the loop: what failed is tried again in the next round."""
        self._round += 1
        if self._with_findings:
            self._guarded("findings", self._read_findings)
        self._guarded("waits", self._look_at_waits)
        self._guarded("past use", self._read_uses)

    def _look_at_waits(self) -> None:
        kept = self._ledger.foretold(self._cluster)
        try:
            informed = self._advising.informed()
        except NoState:
            informed = None
        if informed is not None and not informed.known.state.is_unread("workloads"):
            kept = self._scored(kept, informed.known.state)
            kept = (*kept, *self._foretold(kept, informed))
        self._advising.learnt.learn(kept)
        self._advising.learnt.calibrate([given_of(each, self._now()) for each in kept])

    def _scored(self, kept: Sequence[WaitPrediction], state: ClusterState) -> tuple[WaitPrediction, ...]:
        """``kept``, with the outcomes of those that started or left; the ledger is written first."""
        now = {each.workload_uid: _come_of(each, state) for each in kept if not each.is_decided}
        decided = {uid: each for uid, each in now.items() if each.is_decided}
        if decided:
            self._ledger.score_foretold(
                self._cluster,
                started_ms={
                    uid: each.started_ms for uid, each in decided.items() if each.started_ms is not None
                },
                gone_ms={uid: each.gone_ms for uid, each in decided.items() if each.gone_ms is not None},
            )
        for each in decided.values():
            self._advising.status.scored(outcome_of(each))
        return tuple(decided.get(each.workload_uid, each) for each in kept)

    def _foretold(
        self, kept: Iterable[WaitPrediction], informed: AdvisorSnapshot
    ) -> tuple[WaitPrediction, ...]:
        """The predictions made in this round."""
        state = informed.known.state
        self._written = {uid for uid in self._written if uid in state.workloads}
        self._written.update(each.workload_uid for each in kept if each.workload_uid in state.workloads)
        waiting = {
            uid: each
            for uid, each in state.workloads.items()
            if each.state is WorkloadState.PENDING
            and uid not in self._written
            and any(gpus_of(pod_set, informed.known) for pod_set in each.pod_sets)
        }
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in waiting}
        # Those that were never tried go first: the advisor may have no prediction for the others.
        order = sorted(waiting, key=lambda uid: (self._asked.get(uid, 0), waiting[uid].meta.created_ms, uid))
        given = self._answers([waiting[uid] for uid in order[:MOST_PER_ROUND]], informed)
        if given:
            self._ledger.foretell(self._cluster, given)
        self._written.update(each.workload_uid for each in given)
        return tuple(given)

    def _answers(self, workloads: Sequence[Workload], informed: AdvisorSnapshot) -> list[WaitPrediction]:
        begun, given = self._seconds(), list[WaitPrediction]()
        for workload in workloads:
            if self._stopped() or self._seconds() - begun > LONGEST_ROUND_S:
                break
            with self._advising.turns.one() as is_ours:
                if not is_ours:
                    break  # requests of people are served first
                self._asked[workload.meta.uid] = self._round
                self._guarded("a wait", partial(self._answer, workload, informed, given))
        return given

    def _answer(self, workload: Workload, informed: AdvisorSnapshot, given: list[WaitPrediction]) -> None:
        found = self._ask(workload, informed)
        if found is not None:
            given.append(found)

    def _read_findings(self) -> None:
        now_ms, troubles, lives = (
            self._now(),
            dict[str, list[OpenJobFinding]](),
            dict[tuple[int | None, int], FindingLife](),
        )
        for record in self._ledger.live_findings(self._cluster):
            if record.subject_kind != SubjectKind.JOB or not record.subject_uid:
                continue
            key = record.id, record.revision
            life = lives[key] = self._lives.get(key) or life_of(record)
            if life.speaks(now_ms):
                troubles.setdefault(record.subject_uid, []).append(_trouble(str(record.id), life))
        self._lives = lives
        for found in troubles.values():
            found.sort(key=lambda each: (each.since_ms or 0, each.id))
        self._advising.learnt.found(troubles)

    def _read_uses(self) -> None:
        """Only when the ledger has got later windows: adding up a month takes seconds."""
        extent = self._ledger.extent(self._cluster)
        if extent is not None and extent.end_ms != self._used_until_ms:
            self._advising.learnt.have_used(past_uses_of(self._ledger, self._cluster, extent))
            self._used_until_ms = extent.end_ms

    def _guarded(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except GpuCostError as error:
            logger.warning("%s: %s: %s", self._cluster, what, shorten(str(error), 500))
            self._advising.status.foretelling_failed(type(error).__name__)
        except Exception as error:
            logger.exception("%s: %s: unexpected error", self._cluster, what)
            self._advising.status.foretelling_failed(type(error).__name__)


def _come_of(foretold: WaitPrediction, state: ClusterState) -> WaitPrediction:
    """With the time it started or left, as far as the state says. A workload evicted since then counts as
    waiting."""
    workload = state.workloads.get(foretold.workload_uid)
    if workload is None:
        return replace(foretold, gone_ms=state.at_ms)
    if workload.admitted_ms is not None:
        # Times of conditions are whole seconds: never before the prediction was made.
        return replace(foretold, started_ms=max(workload.admitted_ms, foretold.asked_ms))
    if workload.state in _GONE:
        return replace(foretold, gone_ms=state.at_ms)
    return foretold


def _trouble(finding_id: str, life: FindingLife) -> OpenJobFinding:
    """In the words that the owning team may read."""
    draft = life.finding.draft
    view = draft.team_view
    summary, action = (draft.summary, draft.action) if view is None else (view.summary, view.action)
    return OpenJobFinding(finding_id, draft.pattern.value, summary, action.text, life.since_ms)
