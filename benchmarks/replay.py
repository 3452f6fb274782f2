"""A month over simulated time: how many events a second, and how that grows with the jobs.

1,000 GPUs in 50 ClusterQueues of 10 cohorts, jobs of 1 to 32 GPUs with three priorities, reclaimed by those
who lent them; Poisson arrivals over 31 days, so that 85 % of the GPUs are asked for whatever the number of
jobs is. All of it is replayed with the rules of Kueue (``gpucost.advisor.replay``), the largest first, as one
cluster, cycle by cycle. Then ten changes of ten queues, side by side with the baseline on two processes
(``scenario_runner``), against the baseline alone.

    python benchmarks/replay.py [--jobs 200000,100000,10000] [--side 100000] [--load 0.85]

An event is an arrival, a start, an eviction or an end. The baseline is none: seconds are of CPU, since they
suffer less from a busy machine; of what two processes do, half of their sum. Side by side, each scenario is
reduced to its answer as it ends (``ReplayFigures``), and memory is that of all processes, each at its peak.
The limits are of 100,000 jobs as the command plays them, tree by tree with an answer: one scenario within
300 s, ten changes within six times one, and either within 1 GB. A replay that ends early, since preemption
has no rest (``rest``), was no month, and does not hold.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.support.processes import counting_cpu_s
from gpucost.advisor.kueue.requests import PodSetRequest, QuotaRequest
from gpucost.advisor.replay.history_record import HistoryJob, KueueRecord, ReplayHistory
from gpucost.advisor.replay.kueue_replay import KueueReplay, ReplayTimings
from gpucost.advisor.replay.replay_timeline import ReplayArrival, play
from gpucost.advisor.replay.what_if_change import WhatIfChange
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    ClusterQueuePreemption,
    FlavorQuota,
    FlavorResource,
    ResourceFlavor,
    ResourceGroup,
)
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import DAY_MS, SECOND_MS, Window
from gpucost.service.replay.scenario_runner import played

if TYPE_CHECKING:
    from gpucost.reports.replay.scenario_answer import ReplayReport

QUEUES, COHORTS, GPUS_OF_QUEUE = 50, 10, 20
GPU, FLAVOR = "nvidia.com/gpu", "h100"
SIZES, WEIGHTS = (1, 2, 4, 8, 16, 32), (40, 20, 15, 15, 7, 3)
MONTH_MS = 31 * DAY_MS
MOST_S, MOST_MB = 300, 1_000
PROCESSES, MOST_TIMES = 2, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default="200000,100000,10000", help="numbers of jobs, by commas")
    parser.add_argument("--side", type=int, default=100_000, help="jobs of the changes side by side")
    parser.add_argument("--load", type=float, default=0.85, help="of the GPU time, what is asked for")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    beside = _alone(one_scenario, args.side, args.load, args.seed)
    beside |= _alone(side_by_side, args.side, args.load, args.seed)
    print(f"ten changes of {args.side:,} jobs: {beside}", flush=True)
    figures: dict[str, Any] = {}
    for jobs in map(int, args.jobs.split(",")):
        found = figures[f"{jobs}"] = _alone(replayed, jobs, args.load, args.seed)
        print(f"{jobs:,} jobs: {found}", flush=True)
    slowest, quickest = (pick(figures.values(), key=lambda each: each["events"]) for pick in (max, min))
    ratios = {"s_per_event/smallest": round(quickest["events_s"] / slowest["events_s"], 2)}
    ratios["ten_changes/one"] = round(beside["ten_cpu_s"] / beside["one_cpu_s"] / PROCESSES, 2)
    holds = beside["one_cpu_s"] <= MOST_S and ratios["ten_changes/one"] <= MOST_TIMES
    holds = holds and max(beside["one_peak_rss_mb"], beside["peak_rss_mb"]) <= MOST_MB
    holds = holds and all(each["rest"] for each in figures.values())
    print(
        json.dumps(
            {
                "name": "replay",
                "figures": {**figures, "side_by_side": beside, "counting_s": counting_cpu_s()},
                "ratios": ratios,
                "limits": {
                    "one_cpu_s": MOST_S,
                    "peak_rss_mb": MOST_MB,
                    "ten_changes/one": MOST_TIMES,
                },
                "holds": holds,
            }
        )
    )


def _alone(measure: Callable[[int, float, int], dict[str, Any]], *asked: Any) -> dict[str, Any]:
    """In a process of its own, so that no peak is another's."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *asked).result()


def replayed(jobs: int, load: float, seed: int) -> dict[str, Any]:
    """What one replay took."""
    arrivals = _arrivals(jobs, load, Random(seed))
    began_s = time.process_time()
    outcome = play(arrivals, KueueReplay(_state(), KueueConfig("v0.19.2"), ReplayTimings(30_000, 1_000)))
    cpu_s = time.process_time() - began_s
    stories = outcome.stories.values()
    starts = sum(len(each.admissions) for each in stories)
    evictions = sum(len(each.evictions) for each in stories)
    ends = sum(each.ended_ms is not None for each in stories)
    events = jobs + starts + evictions + ends
    return {
        "cpu_s": round(cpu_s, 1),
        "events": events,
        "events_s": round(events / cpu_s),
        "cycles": outcome.cycles,
        "evictions": evictions,
        "ended": ends,
        "rest": outcome.restless is None,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def one_scenario(jobs: int, load: float, seed: int) -> dict[str, Any]:
    """What the baseline took alone, as the command plays it: tree by tree, and its answer."""
    history = _history(_arrivals(jobs, load, Random(seed)))
    began_s = _all_cpu_s()
    answered(history, (), 1)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"one_cpu_s": round(_all_cpu_s() - began_s, 1), "one_peak_rss_mb": peak_mb}


def side_by_side(jobs: int, load: float, seed: int) -> dict[str, Any]:
    """What the baseline took with ten changes beside it."""
    history = _history(_arrivals(jobs, load, Random(seed)))
    began_s, began = _all_cpu_s(), time.perf_counter()
    report = answered(history, tuple(map(_change, range(10))), PROCESSES)
    wall_s = time.perf_counter() - began
    for worker in active_children():
        worker.join()  # until then the seconds of a process are not told
    own, child = (
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    waits = {each.groups[0].waits.pending_board_ms for each in report.scenarios}
    return {
        "ten_cpu_s": round(_all_cpu_s() - began_s, 1),
        "ten_wall_s": round(wall_s, 1),
        "peak_rss_mb": (own + PROCESSES * child) // 1024,
        "different": len(waits) - 1,
    }


def answered(history: ReplayHistory, changes: tuple[WhatIfChange, ...], processes: int) -> ReplayReport:
    """As the command does it: an answer of each, and nothing else of it is kept."""
    # Processes that only play load this file too, and need no answers, as those of the command do not.
    from gpucost.reports.replay.scenario_figures import PlayedScenario, ReplayFigures

    figures = ReplayFigures(history, "quota")
    for each in played(history, changes, processes=processes):
        figures.add(PlayedScenario(each.open, each.closed))
    return figures.report()


def _all_cpu_s() -> float:
    """Of this process and of those that it started and that are over."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _history(arrivals: list[ReplayArrival[QuotaRequest]]) -> ReplayHistory:
    jobs = tuple(
        HistoryJob(
            each.uid,
            each.at_ms,
            each.run_ms,
            sum(amount for pods in each.ask.pod_sets for amount in pods.each.values()),
            each.ask.queue,
            priority=each.ask.priority,
            pod_sets=each.ask.pod_sets,
        )
        for each in arrivals
    )
    record = KueueRecord(_state(), KueueConfig("v0.19.2"), ReplayTimings(30_000, 1_000))
    return ReplayHistory("month", Window(0, MONTH_MS), jobs, {}, record, has_nodes=False)


def _change(number: int) -> WhatIfChange:
    """Of one queue of each cohort: quota, limits, policy, strategy."""
    quota = {"flavor": FLAVOR, "resource": GPU}
    kinds: tuple[dict[str, Any], ...] = (
        {"quotas": ({**quota, "add": 4},)},
        {"quotas": ({**quota, "lending_limit": 8},)},
        {"quotas": ({**quota, "borrowing_limit": 16},)},
        {"preemption": {"reclaim_within_cohort": "LowerPriority"}},
        {"strategy": "StrictFIFO"},
    )
    queue = {"name": f"team-{number:02d}", **kinds[number % len(kinds)]}
    return WhatIfChange.model_validate({"name": f"change {number}", "queues": (queue,)})


def _arrivals(jobs: int, load: float, random: Random) -> list[ReplayArrival[QuotaRequest]]:
    sizes = random.choices(SIZES, WEIGHTS, k=jobs)
    weights = [random.lognormvariate(0, 1.5) for _ in range(jobs)]
    asked = sum(size * weight for size, weight in zip(sizes, weights, strict=True))
    scale = load * QUEUES * GPUS_OF_QUEUE * MONTH_MS / asked
    template = PodTemplate({})
    # As sources give them: equal pod sets are one object.
    pods_of = {size: (PodSetRequest("main", 1, 1, {GPU: size}, template),) for size in SIZES}
    queues = [f"team-{number:02d}" for number in range(QUEUES)]
    found = []
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        at_ms = random.randrange(MONTH_MS // SECOND_MS) * SECOND_MS
        uid, queue = f"w{number:06d}", queues[random.randrange(QUEUES)]
        ask = QuotaRequest(uid, queue, random.choice((0, 0, 0, 100, 1_000)), at_ms, pods_of[size])
        run_ms = max(1, round(weight * scale / SECOND_MS)) * SECOND_MS
        found.append(ReplayArrival(uid, at_ms, run_ms, ask))
    return found


def _state() -> ClusterState:
    def meta(name: str) -> ObjectMeta:
        return ObjectMeta(name, "", name, 0, {}, {})

    queues = {
        name: ClusterQueue(
            meta(name),
            f"pool-{number % COHORTS}",
            groups=(ResourceGroup((GPU,), (FLAVOR,)),),
            quotas={FlavorResource(FLAVOR, GPU): FlavorQuota(GPUS_OF_QUEUE)},
            preemption=ClusterQueuePreemption("LowerPriority", "Any"),
        )
        for number, name in enumerate(f"team-{number:02d}" for number in range(QUEUES))
    }
    return ClusterState(0, cluster_queues=queues, flavors={FLAVOR: ResourceFlavor(meta(FLAVOR))})


if __name__ == "__main__":
    main()
