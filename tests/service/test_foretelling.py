"""Waits are predicted and scored, findings are read, and nothing ends the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.attribution.teams import TeamFile, TeamRule, TeamRules
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    SubjectKind,
    TeamView,
    WastePattern,
)
from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.kube.manifests import manifest_of, reread
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.service.advisor import wait_predictor
from gpucost.service.advisor.advisor_cache import PredictionOutcome, given_of, outcome_of
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService, AdvisorSnapshot
from gpucost.service.advisor.wait_predictor import PredictWait, WaitPredictor, predict_wait
from gpucost.service.detection.finding_records import record_of
from tests.advisor import worlds
from tests.advisor.worlds import NOW
from tests.ledger.builders import hour, ingest, line

CLUSTER = "c"
BY_LABEL = TeamRules.default()
BY_NAMESPACE = TeamRules(TeamFile(version=1, rules=(TeamRule(team_from="namespace"),)))


@dataclass
class Watched:
    """A watched cluster that a test changes."""

    state: ClusterState
    cluster: str = CLUSTER
    version: int = 1
    is_current: bool = True

    def overview(self, cluster: str) -> ClusterOverview:
        assert cluster == self.cluster
        return ClusterOverview(self.state)


@dataclass
class Service:
    """The loop over a real ledger and the real advisor; its clocks stand still."""

    ledger: Ledger
    watched: Watched
    advising: AdvisorService
    loop: WaitPredictor
    asked: list[str] = field(default_factory=list)

    def turn(self, *objects: object, minutes: int = 0) -> tuple[WaitPrediction, ...]:
        """A turn, over a state of ``objects`` if there are any, ``minutes`` after NOW."""
        if objects:
            self.watched.state = replace(worlds.state(*objects), at_ms=NOW + minutes * MINUTE_MS)
            self.watched.version += 1
        self.advising.refresh()
        self.loop.turn()
        return self.ledger.foretold(CLUSTER)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.ledger.foretold(CLUSTER)]


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[Ledger]:
    with Ledger.open(sqlite_url, now=lambda: NOW) as opened:
        yield opened


def service(
    ledger: Ledger,
    *objects: object,
    ask: PredictWait = predict_wait,
    seconds: Callable[[], float] = lambda: 0.0,
    rules: TeamRules = BY_LABEL,
    **options: Any,
) -> Service:
    watched, asked = Watched(worlds.state(*objects)), list[str]()
    found = AdvisorService(watched, AdvisorEngine(advise, explain, manifest_of, reread), rules)

    def recorded(workload: Workload, informed: AdvisorSnapshot) -> WaitPrediction | None:
        asked.append(workload.meta.name)
        return ask(workload, informed)

    loop = WaitPredictor(
        found,
        ledger,
        now=lambda: NOW,
        seconds=seconds,
        sleep=lambda _: None,
        stopped=lambda: False,
        ask=recorded,
        **options,
    )
    return Service(ledger, watched, found, loop, asked)


def full(*objects: object) -> list[object]:
    """A ClusterQueue of 8 GPUs, all of them held by ``runs``, and ``objects``."""
    holder = worlds.workload("runs", "ml", gpus=8, holding=True)
    return [worlds.queue("ml", 8, cpu=64), worlds.node("n1"), holder, *objects]


def waiting(name: str = "waits", **values: Any) -> Workload:
    return worlds.workload(name, "ml", gpus=8, **values)


def numbered(number: int) -> Workload:
    return waiting(f"w{number:02}", created=3600 - number)


def foretold(uid: str, **values: Any) -> WaitPrediction:
    given: dict[str, Any] = {
        "workload_uid": uid,
        "namespace": "ml",
        "name": uid,
        "queue": "ml",
        "team": "red",
        "asked_ms": NOW,
        "p50_ms": HOUR_MS,
        "p90_ms": 2 * HOUR_MS,
        "horizon_ms": 168 * HOUR_MS,
    }
    return WaitPrediction(**(given | values))


def test_a_wait_is_foretold_once_and_scored_when_it_started(ledger: Ledger) -> None:
    found = service(ledger, *full(waiting()))
    (given,) = found.turn()
    assert (given.name, given.queue, given.namespace, given.asked_ms) == ("waits", "ml", "ml", NOW)
    assert given.p50_ms is not None
    assert given.p50_ms > 0
    assert found.turn(*full(waiting()), minutes=1) == (given,)
    assert found.asked == ["waits"], "once"
    started = waiting(holding=True, reserved=-120)
    (scored,) = found.turn(worlds.queue("ml", 8, cpu=64), worlds.node("n1"), started, minutes=3)
    assert scored == replace(given, started_ms=NOW + 2 * MINUTE_MS)
    assert found.advising.status.scores() == {"held_p50": 1}
    found.turn()
    assert found.advising.status.scores() == {"held_p50": 1}, "scored once"
    assert found.advising.learnt.calibration("ml").p50.held == 1


@pytest.mark.parametrize(("rules", "team"), [(BY_LABEL, "red"), (BY_NAMESPACE, "ml")])
def test_the_team_of_a_wait_is_by_the_team_rules(ledger: Ledger, rules: TeamRules, team: str) -> None:
    """Its author may write any label."""
    asks = waiting()
    asks = replace(asks, meta=replace(asks.meta, labels={**asks.meta.labels, "team": "red"}))
    (given,) = service(ledger, *full(asks), rules=rules).turn()
    assert given.team == team


def test_what_became_of_waits_corrects_what_is_told(ledger: Ledger) -> None:
    """Thirty waits of ten minutes, of which the simulation said two days each time: a new process predicts
    less, writes down both, and its prediction is scored."""
    past = [
        foretold(
            f"p{at}",
            asked_ms=NOW - (40 - at) * HOUR_MS,
            gpus=8,
            p10_ms=0,
            simulated_p10_ms=24 * HOUR_MS,
            simulated_p50_ms=48 * HOUR_MS,
            simulated_p90_ms=96 * HOUR_MS,
        )
        for at in range(30)
    ]
    ledger.foretell(CLUSTER, past)
    started_ms = {each.workload_uid: each.asked_ms + 10 * MINUTE_MS for each in past}
    ledger.score_foretold(CLUSTER, started_ms=started_ms, gone_ms={})
    found = service(ledger, *full())
    found.turn()
    *_, given = found.turn(*full(waiting()))
    assert (given.name, given.gpus) == ("waits", 8)
    assert given.p50_ms is not None
    assert given.simulated_p50_ms is not None
    assert given.simulated_p50_ms > 20 * MINUTE_MS
    assert given.p50_ms < 0.75 * given.simulated_p50_ms
    assert given.p10_ms is not None
    assert given.p90_ms is not None
    assert given.p10_ms <= given.p50_ms <= given.p90_ms


def test_those_that_left_and_those_that_are_stopped_are_gone(ledger: Ledger) -> None:
    found = service(ledger, *full(waiting("left"), waiting("stopped"), waiting("stays")))
    assert len(found.turn()) == 3
    stopped = waiting("stopped", rest={"is_active": False})
    kept = {each.name: each for each in found.turn(*full(stopped, waiting("stays")), minutes=5)}
    assert {name: each.gone_ms for name, each in kept.items()} == {
        "left": NOW + 5 * MINUTE_MS,
        "stopped": NOW + 5 * MINUTE_MS,
        "stays": None,
    }
    assert found.advising.status.scores() == {"gone": 2}
    assert found.advising.learnt.calibration("ml").p90.undecided == 3


def test_a_new_process_goes_on_where_the_last_one_ended(ledger: Ledger) -> None:
    service(ledger, *full(waiting())).turn()
    found = service(ledger, *full(waiting()))
    found.turn()
    assert found.asked == []


def test_only_what_waits_for_gpus(ledger: Ledger) -> None:
    of_cpus = worlds.workload("cpu", "ml", gpus=0, cpu=65)
    found = service(ledger, *full(of_cpus, waiting("stopped", rest={"is_active": False})))
    found.turn()
    assert found.asked == []


def test_no_number_is_written_where_the_advisor_has_none(ledger: Ledger) -> None:
    found = service(ledger, *full(worlds.workload("never", "ml", gpus=9)))
    assert found.turn() == ()
    found.turn()
    assert found.asked == ["never", "never"], "it may have one later"


def test_a_round_has_an_end_and_goes_round(ledger: Ledger) -> None:
    most = wait_predictor.MOST_PER_ROUND
    every = [numbered(at) for at in range(most + 5)]
    found = service(ledger, *full(*every), ask=lambda *_: None)
    found.turn()
    assert found.asked == [each.meta.name for each in every[:most]], "the oldest first"
    found.turn()
    assert found.asked[most:] == [each.meta.name for each in (*every[most:], *every[: most - 5])]


def test_a_slow_round_ends_early(ledger: Ledger) -> None:
    seconds = count(0.0, wait_predictor.LONGEST_ROUND_S)
    every = full(*map(numbered, range(5)))
    found = service(ledger, *every, ask=lambda *_: None, seconds=lambda: next(seconds))
    found.turn()
    assert found.asked == ["w00"]


def test_people_are_served_first(ledger: Ledger) -> None:
    found = service(ledger, *full(waiting()))
    for _ in range(found.advising.turns.most):
        assert found.advising.turns._places.acquire(blocking=False)
    assert found.turn() == ()
    for _ in range(found.advising.turns.most):
        found.advising.turns._places.release()
    assert len(found.turn()) == 1


def test_failures_are_counted_and_end_nothing(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    def ask(workload: Workload, informed: AdvisorSnapshot) -> WaitPrediction | None:
        if workload.meta.name == "w00":
            raise ZeroDivisionError
        return predict_wait(workload, informed)

    found = service(ledger, *full(numbered(0), numbered(1)), ask=ask)
    found.turn()
    assert found.names == ["w01"]
    assert found.advising.status.foretelling_errors() == {"ZeroDivisionError": 1}
    assert "unexpected error" in caplog.text


def test_a_ledger_that_does_not_answer_is_asked_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise LedgerUnavailable("disk full")

    found = service(ledger, *full(waiting()))
    with monkeypatch.context() as broken:
        broken.setattr(ledger, "foretell", unavailable)
        broken.setattr(ledger, "live_findings", unavailable)
        found.turn()
    assert found.advising.status.foretelling_errors() == {"LedgerUnavailable": 2}
    assert found.advising.learnt.troubles is None
    assert len(found.turn()) == 1


def test_without_a_current_state_nobody_is_gone(ledger: Ledger) -> None:
    found = service(ledger, *full(waiting()))
    (given,) = found.turn()
    found.watched.is_current = False
    assert found.turn(*full(), minutes=9) == (given,)
    assert found.advising.status.foretelling_errors() == {}


@pytest.mark.parametrize(
    ("values", "outcome", "counts"),
    [
        ({"started_ms": NOW}, PredictionOutcome.HELD_P50, (1, 1)),
        ({"started_ms": NOW + HOUR_MS}, PredictionOutcome.HELD_P50, (1, 1)),
        ({"started_ms": NOW + HOUR_MS + 1}, PredictionOutcome.HELD_P90, (0, 1)),
        ({"started_ms": NOW + 2 * HOUR_MS + 1}, PredictionOutcome.MISSED, (0, 0)),
        ({"started_ms": NOW + 2 * HOUR_MS, "p90_ms": None}, PredictionOutcome.BEYOND_HORIZON, (0, 0)),
        ({"started_ms": NOW, "p50_ms": None, "p90_ms": None}, PredictionOutcome.BEYOND_HORIZON, (0, 0)),
        ({"gone_ms": NOW + 1}, PredictionOutcome.GONE, (0, 0)),
    ],
)
def test_what_came_of_a_wait(
    ledger: Ledger, values: dict[str, Any], outcome: PredictionOutcome, counts: tuple[int, int]
) -> None:
    given = foretold("w1", **values)
    assert outcome_of(given) is outcome
    found = service(ledger)
    found.advising.learnt.calibrate([given_of(given, NOW)])
    counted = found.advising.learnt.calibration("ml")
    assert (counted.p50.held, counted.p90.held) == counts


def test_one_that_still_waits_has_missed_what_is_over() -> None:
    record = given_of(foretold("w1"), NOW + 90 * MINUTE_MS)
    assert (record.waited_ms, record.is_waiting) == (90 * MINUTE_MS, True)
    left = given_of(foretold("w1", gone_ms=NOW + MINUTE_MS), NOW + 90 * MINUTE_MS)
    assert (left.waited_ms, left.is_waiting) == (MINUTE_MS, True)


def test_the_advisor_says_how_often_it_was_right(ledger: Ledger) -> None:
    given = [foretold(f"w{at}", started_ms=NOW + (at % 4) * HOUR_MS) for at in range(40)]
    ledger.foretell(CLUSTER, given)
    found = service(ledger, *full(waiting()))
    found.turn()
    informed = found.advising.informed().known
    explained = explain("Workload", "ml", "waits", informed)
    assert explained is not None
    assert explained.advice is not None
    assert explained.advice.wait is not None
    assert (explained.advice.wait.held, explained.advice.wait.given) == (30, 40)


def idle(uid: str, **values: Any) -> FindingLife:
    subject = FindingSubject(SubjectKind.JOB, CLUSTER, uid, "ml", uid)
    draft = FindingDraft(
        WastePattern.IDLE_ALLOCATION,
        "",
        subject,
        NOW - HOUR_MS,
        "8 GPUs do nothing",
        (),
        FindingAction("end it"),
        "",
        "red",
        **values.pop("draft", {}),
    )
    finding = Finding(draft, FindingSeverity.HIGH, FindingWaste(HOUR_MS, None, "", True), 8.0, None)
    return replace(
        FindingLife(finding, FindingLifeState.OPEN, NOW - HOUR_MS, NOW - 2 * HOUR_MS, NOW), **values
    )


def test_findings_of_a_job_are_known_without_the_ledger(ledger: Ledger) -> None:
    found = service(ledger, *full())
    found.advising.refresh()
    assert found.advising.informed().known.troubles is None, "nobody knows yet"
    view = TeamView("your GPUs do nothing", (), FindingAction("end yours"))
    lives = (
        idle("job-1"),
        idle("job-2", state=FindingLifeState.MUTED, muted_until_ms=NOW + HOUR_MS),
        idle("job-3", rehearsal=True),
        idle("job-4", draft={"team_view": view}),
    )
    saved = ledger.save_findings(CLUSTER, [record_of(CLUSTER, each, None) for each in lives])
    found.turn()
    found.advising.refresh()
    troubles = found.advising.informed().known.troubles
    assert troubles is not None
    (trouble,) = troubles("job-1")
    assert (trouble.id, trouble.rule) == (str(saved[0].id), "idle_allocation")
    assert (trouble.says, trouble.action) == ("8 GPUs do nothing", "end it")
    assert trouble.since_ms == NOW - 2 * HOUR_MS
    assert [troubles(uid) for uid in ("job-2", "job-3", "nobody")] == [(), (), ()]
    assert [each.says for each in troubles("job-4")] == ["your GPUs do nothing"], "what the team may read"


def test_findings_are_left_alone_where_nobody_detects(ledger: Ledger) -> None:
    found = service(ledger, *full(), with_findings=False)
    found.turn()
    assert found.advising.learnt.troubles is None


def test_what_like_jobs_used_is_known_without_the_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = {
        **dict.fromkeys(("observed_ms", "sm_observed_ms", "memory_observed_ms"), HOUR_MS),
        "busy_ms": HOUR_MS,
        "sm_active_ms": HOUR_MS // 10,
        "memory_total_mib_s": 81_920 * 3_600,
    }
    for at in range(5):
        name = f"train-{at}"
        values = {"job": name, "job_uid": name, "pod_uid": name, "memory_peak_mib": 5_000 + at, **signals}
        ingest(ledger, hour(at), line(hour(at), cluster=CLUSTER, **values), cluster=CLUSTER)
    found = service(ledger, *full())
    found.turn()
    used = found.advising.informed().known.used
    assert used is None, "nobody knew when this was put together"
    found.turn()
    used = found.advising.informed().known.used
    assert used is not None
    use = used(manifest("train-77", "ml"))
    assert use is not None
    assert (use.model, use.memory_bytes, use.runs) == ("H100", 5_003 * 2**20, 3), "edges are no whole runs"
    assert used(manifest("train-77", "cv")) is None
    assert used(manifest("serve", "ml")) is None
    monkeypatch.setattr(ledger, "uses", None)
    found.turn()
    assert found.advising.status.foretelling_errors() == {}, "nothing is read again without a new window"


CONTAINER = {"name": "main", "image": "train"}


def manifest(name: str, namespace: str) -> JobManifest:
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}},
    }
    return manifest_of(document, "", NOW, "default")


def test_the_loop_ends_when_it_is_told_to(ledger: Ledger) -> None:
    stops, slept = iter([False, False, True]), list[float]()
    found = service(ledger)
    loop = WaitPredictor(
        found.advising,
        ledger,
        now=lambda: NOW,
        seconds=lambda: 0.0,
        sleep=slept.append,
        stopped=lambda: next(stops),
    )
    loop.run()
    assert slept == [60.0, 60.0]
