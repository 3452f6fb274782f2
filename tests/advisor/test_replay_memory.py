"""What a replay remembers to be fast changes nothing: the same as one that works everything out anew."""

from __future__ import annotations

import copy
import gzip
import json
from random import Random
from typing import Any

import pytest

from gpucost.advisor.kueue.cycle import NominatedHead, nominate
from gpucost.advisor.kueue.requests import PodSetRequest, QuotaRequest
from gpucost.advisor.replay.history_record import (
    HistoryJob,
    JobRecord,
    PoolRecord,
    ReplayHistory,
    with_shared_pod_sets,
)
from gpucost.advisor.replay.kueue_replay import KueueReplay
from gpucost.advisor.replay.replay_timeline import CycleEffects, play
from gpucost.advisor.replay.what_if_change import WhatIfChange
from gpucost.advisor.verify.history_check import replayed
from gpucost.advisor.verify.history_files import histories_of
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.service.replay import scenario_runner
from tests.advisor.histories import HISTORIES

POLICIES = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
RECLAIMING = ("Never", "LowerPriority", "Any")
SCANNING = ("MayStopSearch", "TryNextFlavor")
PREFERENCES = (None, "BorrowingOverPreemption", "PreemptionOverBorrowing")
WEIGHTS = ("0", "0.5", "1", "2")
LIMITS = (None, "0", "4", "8")
MOST, DRAWN = 60, 8


class Forgetful(KueueReplay):
    """Every head is tried in every cycle, with all flavors and victims."""

    def cycle(self, now_ms: int, /) -> CycleEffects:
        self._rests.clear()
        return super().cycle(now_ms)

    def _nominated(self, ask: QuotaRequest) -> NominatedHead:
        progress = self._progress.get(ask.uid)
        if progress is not None and self._is_outdated(ask, progress):
            del self._progress[ask.uid]
            progress = None
        return nominate(self._snapshot, ask, scan={} if progress is None else progress.scan)


def drawn(random: Random) -> Any:
    """A recorded history with other policies, limits, cohorts and sizes; many come in the same second."""
    (found,) = random.choices(
        RECORDED["histories"], [len(each["arrivals"]) for each in RECORDED["histories"]]
    )
    history = {**copy.deepcopy(found), "arrivals": copy.deepcopy(found["arrivals"][:MOST])}
    one = copy.deepcopy(random.choice(found["configurations"]))
    names = [each["name"] for each in one["cluster"]["cohorts"]] or ["pool"]
    queues = one["cluster"]["clusterQueues"]
    for queue in [*queues, *(each["object"] for each in one["changes"])]:
        queue["preemption"] = {
            "withinClusterQueue": random.choice(POLICIES),
            "reclaimWithinCohort": random.choice(RECLAIMING),
            "borrowWithinCohort": {
                "policy": random.choice(POLICIES[:2]),
                "maxPriorityThreshold": random.choice((None, 0, 100)),
            },
        }
        queue["flavorFungibility"] = {
            "whenCanBorrow": random.choice(SCANNING),
            "whenCanPreempt": random.choice(SCANNING),
            "preference": random.choice(PREFERENCES),
        }
        queue["fairSharingWeight"] = random.choice(WEIGHTS)
        queue["cohortName"] = random.choice((*names, None))
        limit = random.choice(queue["resourceGroups"])["flavors"][0]["resources"][0]
        limit["borrowingLimit" if random.random() < 0.5 else "lendingLimit"] = random.choice(LIMITS)
    one["settings"] |= {"fairSharing": random.random() < 0.5, "preemptionStrategies": None}
    for arrival in history["arrivals"]:
        arrival["createdSecond"] -= arrival["createdSecond"] % 60
        for pods in arrival["podSets"]:
            pods["minCount"] = random.randint(1, pods["count"])
    truth = [
        {"name": each["name"], "admissions": [], "evictions": [], "finished": None}
        for each in history["arrivals"]
    ]
    one |= {"truth": truth, "traps": []}
    one.pop("noRest", None)
    return {"histories": [{**history, "configurations": [one]}]}


RECORDED = json.loads(gzip.decompress(HISTORIES.read_bytes()))


def test_it_is_the_same_without_memory() -> None:
    starts = evictions = 0
    for seed in range(DRAWN):
        (history,) = histories_of(drawn(Random(seed)), "drawn").histories
        (one,) = history.configurations
        arrivals = list(history.arrivals)
        plain = Forgetful(one.state, one.config, one.timings)
        anew = play(arrivals, plain, one.changes, as_recorded=True)
        found = replayed(one, arrivals)
        assert found == anew, seed
        starts += sum(len(each.admissions) for each in found.stories.values())
        evictions += sum(len(each.evictions) for each in found.stories.values())
    assert starts > 20 * DRAWN
    assert evictions > 4 * DRAWN


def test_scenarios_of_several_processes_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open and closed loop; a change that moves no job is the baseline, which is kept until then."""
    monkeypatch.setattr(scenario_runner, "FEW_JOBS", 1)
    jobs = tuple(
        HistoryJob(
            *(f"j{n}", n * MINUTE_MS, (3 + n % 7) * MINUTE_MS, 1 + n % 4, "line", "p"),
            user=f"u{n % 3}",
            record=JobRecord((n * MINUTE_MS,), ended_ms=(n + 4) * MINUTE_MS),
        )
        for n in range(60)
    )
    pool = PoolRecord("p", 4, ((0, 2),))
    history = ReplayHistory("made up", Window(0, 90 * MINUTE_MS), jobs, {"p": pool})
    changes = [
        WhatIfChange.model_validate(each)
        for each in (
            {"name": "more", "nodes": ({"pool": "p", "add": 1},)},
            {"name": "the same"},
            {"name": "fewer", "nodes": ({"pool": "p", "add": -1},)},
        )
    ]
    one, two = ([*scenario_runner.played(history, changes, processes=each)] for each in (1, 2))
    assert [each.open.change.name for each in two] == ["baseline", "more", "the same", "fewer"]
    assert all(each.closed is not None for each in two)
    assert [(each.open, each.closed) for each in two] == [(each.open, each.closed) for each in one]
    assert [[*each.open.jobs] for each in two] == [[*each.open.jobs] for each in one]


def test_equal_pod_sets_are_one_object() -> None:
    def sets(units: int) -> tuple[PodSetRequest, ...]:
        return (PodSetRequest("main", 1, 1, {"nvidia.com/gpu": units}, PodTemplate({})),)

    jobs = [HistoryJob(f"{n}", 0, 1, 1, "q", pod_sets=sets(n % 2)) for n in range(4)]
    found = with_shared_pod_sets(jobs)
    assert found == (*jobs,)
    assert len({id(each.pod_sets) for each in found}) == 2
