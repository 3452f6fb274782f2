"""Preemption without rest is proven, not counted: what is a ring, what is not, and none is played out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from gpucost.advisor.estimate import preemption_forecast
from gpucost.advisor.estimate.preemption_forecast import RestlessQueue, restless_queue
from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.replay import replay_timeline
from gpucost.advisor.replay.kueue_replay import KueueReplay, ReplayTimings
from gpucost.advisor.replay.replay_timeline import ReplayArrival, ReplayOutcome, play
from gpucost.advisor.replay.tree_replay import TreeMemory, play_trees
from gpucost.advisor.verify.case_files import MOST_BYTES, decoded
from gpucost.advisor.verify.history_files import HistoryConfiguration, SchedulerHistory, histories_of
from gpucost.cluster.objects.kueue import ClusterQueue, Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import DAY_MS, SECOND_MS
from gpucost.kube.dumps.dump import content_of
from tests.advisor.histories import HISTORIES, histories, steps
from tests.advisor.test_advise import ask, job, nodes
from tests.advisor.worlds import cohort, queue, workload

LEAVES = ReplayTimings(30 * SECOND_MS, SECOND_MS)


def history(id_: str) -> SchedulerHistory:
    place = HISTORIES
    found = histories_of(decoded(content_of(place, MOST_BYTES), place.name), place.name)
    return next(each for each in found.histories if each.id == id_)


def ring() -> tuple[tuple[ReplayArrival[QuotaRequest], ...], HistoryConfiguration]:
    """w00002 of team-a preempts w00001 of team-c, which takes the room again, every 30 seconds."""
    found = history("kh-min-1")
    return found.arrivals, found.configurations[1]


def told(
    arrivals: tuple[ReplayArrival[QuotaRequest], ...], found: HistoryConfiguration, as_recorded: bool = False
) -> ReplayOutcome:
    return play(arrivals, KueueReplay(found.state, found.config, LEAVES), as_recorded=as_recorded)


def began(outcome: ReplayOutcome, uid: str) -> list[int]:
    return [each.at_ms for each in outcome.stories[uid].admissions]


def test_a_ring_that_nothing_ends_ends_the_replay_where_it_began() -> None:
    arrivals, found = ring()
    outcome, counted = told(arrivals, found), told(arrivals, found, as_recorded=True)
    assert outcome.restless is not None
    assert counted.restless is not None
    assert (outcome.restless.why, counted.restless.why) == ("ring", "evictions")
    assert outcome.restless.at_ms < counted.restless.at_ms
    assert [each[:2] for each in outcome.restless.pairs] == [("w00002", "w00001")]
    before = [at_ms for at_ms in began(counted, "w00001") if at_ms < outcome.restless.at_ms]
    assert began(outcome, "w00001") == before


def test_at_one_instant_too() -> None:
    arrivals, found = ring()
    outcome = play(arrivals, KueueReplay(found.state, found.config, ReplayTimings(0, 0)))
    assert outcome.restless is not None
    assert (outcome.restless.why, outcome.restless.at_ms) == ("instant", arrivals[1].at_ms)
    assert outcome.cycles < 100


@pytest.mark.parametrize("steps", [8, 10**9])
def test_what_comes_from_outside_ends_a_ring_and_its_turns_are_told(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A workload of team-c that comes a day later and fits nowhere is outside; without a watch all is
    played."""
    monkeypatch.setattr(replay_timeline, "FIRST_STEPS", steps)
    arrivals, found = ring()
    late_ms = arrivals[1].at_ms + DAY_MS
    late = replace(arrivals[0].ask, uid="w9", queued_ms=late_ms)
    changes = ((late_ms, replace(found.state.cluster_queue_by_name["team-a"], stop_policy="HoldAndDrain")),)
    kueue = KueueReplay(found.state, found.config, LEAVES)
    outcome = play((*arrivals, ReplayArrival("w9", late_ms, SECOND_MS, late)), kueue, changes)
    evictions = outcome.stories["w00001"].evictions
    assert outcome.restless is None
    assert len(evictions) == DAY_MS // LEAVES.leaves_ms
    assert {later.at_ms - each.at_ms for each, later in pairwise(evictions)} == {LEAVES.leaves_ms}
    assert outcome.stories["w00001"].ended_ms == evictions[-1].at_ms + 30_000 + arrivals[0].run_ms
    assert outcome.stories["w9"].ended_ms is not None
    if steps == 8:
        (only,) = outcome.rings
        assert (only.to_ms, outcome.cycles < 100) == (late_ms, True)
        assert sum(each.times for each in only.pairs) > len(evictions) - 20
    else:
        assert not outcome.rings


def test_who_would_keep_its_progress_and_makes_none_is_in_a_ring_too() -> None:
    """w00001 starts and is told to leave in one second, again and again."""
    arrivals, found = ring()
    outcome = told(tuple(replace(each, keeps_progress=True) for each in arrivals), found)
    assert outcome.restless is not None
    assert outcome.restless.why == "ring"


def test_no_recorded_configuration_with_rest_has_a_ring_for_ever() -> None:
    place = HISTORIES
    for each in histories_of(decoded(content_of(place, MOST_BYTES), place.name), place.name).histories:
        for found in each.configurations:
            kueue = KueueReplay(found.state, found.config, found.timings)
            outcome = play(each.arrivals, kueue, found.changes)
            assert (outcome.restless is None) == (found.unrest is None), (each.id, found.name)


def test_the_advisor_warns_of_a_ring_before_it_begins_and_of_nothing_else() -> None:
    """Of each arrival of the recorded histories, as the cluster is when it comes."""
    warned = {}
    for each in histories(HISTORIES):
        now: dict[str, Workload] = {}
        for write, state in steps(each):
            assert write.now is not None
            is_new = write.uid not in now
            now[write.uid] = write.now
            here = replace(state, workloads=dict(now), at_ms=write.at_ms)
            found = restless_queue(KueueView(here, each.config), write.now) if is_new else None
            if isinstance(found, RestlessQueue):
                warned[each.id, write.uid] = [pair[:2] for pair in found.pairs], found.setting, found.remedy
    told = [("w00002", "w00001")], "borrowWithinCohort", ("borrowWithinCohort.policy", "Never")
    assert warned == {("kh-min-1/A", "w00002"): told, ("kh-min-1/B1", "w00002"): told}


def test_an_answer_says_it_with_the_policy_that_ends_it() -> None:
    cohorts = [cohort("root"), cohort("east", parent="root"), cohort("west", 8, parent="root")]
    own = queue("ml", 8, cohort="east", reclaim="LowerPriority", borrow="LowerPriority")
    held = workload("held", "c", 16, priority=-100, holding=True)
    found = ask(job(3, 8), *cohorts, own, queue("c", 8, cohort="east"), held, *nodes(3))
    (said,) = [each for each in found.why if each.startswith("warning: ")]
    assert "it preempts c/held again and again" in said
    assert "spec.preemption.borrowWithinCohort of clusterqueue ml" in said
    assert "borrowWithinCohort.policy Never ends it" in said
    fewer = ask(job(1, 8), *cohorts, own, queue("c", 8, cohort="east"), held, *nodes(3))
    assert not [each for each in fewer.why if each.startswith("warning: ")]


def test_a_tree_that_is_too_large_to_be_played_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption_forecast, "MOST_KNOWN", 1)
    held = workload("held", "ml", 8, holding=True)
    found = ask(job(1, 8), queue("ml", 16, within="LowerPriority"), held, *nodes(3))
    (said,) = [each for each in found.why if "come to rest" in each]
    assert said.startswith("whether preemption would come to rest is not looked at: 2 workloads share")


def test_trees_played_one_by_one_are_as_all_at_once_and_what_no_change_touches_is_kept() -> None:
    """Two copies of each recorded cluster whose flavors leave no choice, side by side."""
    for each in histories_of(decoded(content_of(HISTORIES, MOST_BYTES), HISTORIES.name), "").histories:
        for found in each.configurations:
            groups = [group for queue_ in found.state.cluster_queues.values() for group in queue_.groups]
            if found.unrest is not None or any(len(group.flavors) > 1 for group in groups):
                continue
            state, arrivals, changes = doubled(found, each.arrivals)
            whole = play(arrivals, KueueReplay(state, found.config, found.timings), changes)
            memory = TreeMemory()
            parts = play_trees(state, found.config, found.timings, arrivals, changes, memory)
            assert parts is not None
            assert parts.stories == whole.stories
            assert parts.end_ms == whole.end_ms
            again = play_trees(state, found.config, found.timings, arrivals, changes, memory)
            assert again is not None
            assert all(again.stories[uid] is story for uid, story in parts.stories.items())


def doubled(
    found: HistoryConfiguration, arrivals: tuple[ReplayArrival[QuotaRequest], ...]
) -> tuple[ClusterState, list[ReplayArrival[QuotaRequest]], list[tuple[int, ClusterQueue]]]:
    def other(name: str) -> str:
        return f"{name}-2" if name else ""

    def queue_2(each: ClusterQueue) -> ClusterQueue:
        return replace(each, meta=replace(each.meta, name=other(each.name)), cohort=other(each.cohort))

    state = found.state
    queues = {other(uid): queue_2(each) for uid, each in state.cluster_queues.items()}
    cohorts = {
        other(uid): replace(each, meta=replace(each.meta, name=other(each.name)), parent=other(each.parent))
        for uid, each in state.cohorts.items()
    }
    more = [
        replace(
            each, uid=other(each.uid), ask=replace(each.ask, uid=other(each.uid), queue=other(each.ask.queue))
        )
        for each in arrivals
    ]
    both = replace(
        state, cluster_queues={**state.cluster_queues, **queues}, cohorts={**state.cohorts, **cohorts}
    )
    changes = [*found.changes, *((at_ms, queue_2(each)) for at_ms, each in found.changes)]
    return both, [*arrivals, *more], sorted(changes, key=lambda change: change[0])
