"""What a replay remembers to be fast changes nothing: the same as one that works everything out anew."""

from __future__ import annotations

import copy
import gzip
import json
from random import Random
from typing import Any

from gpucost.advisor.kueue.cycle import NominatedHead, nominate
from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.replay.kueue_replay import KueueReplay
from gpucost.advisor.replay.replay_timeline import CycleEffects, play
from gpucost.advisor.verify.history_check import replayed
from gpucost.advisor.verify.history_files import histories_of
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
