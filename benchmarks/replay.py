"""A month over simulated time: how many events a second, and how that grows with the jobs.

1,000 GPUs in 50 ClusterQueues of 10 cohorts, jobs of 1 to 32 GPUs with three priorities, reclaimed by those
who lent them; Poisson arrivals over 31 days, so that 85 % of the GPUs are asked for whatever the number of
jobs is. All of it is replayed with the rules of Kueue (``gpucost.advisor.replay``), the largest first.

    python benchmarks/replay.py [--jobs 100000,10000] [--load 0.85]

An event is an arrival, a start, an eviction or an end. The baseline is none: seconds are of CPU, since they
suffer less from a busy machine. The limits: 100,000 jobs within 300 s and 1 GB. A replay that ends early,
since preemption has no rest (``rest``), was no month, and does not hold.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from random import Random
from typing import Any

from gpucost.advisor.kueue.requests import PodSetRequest, QuotaRequest
from gpucost.advisor.replay.kueue_replay import KueueReplay, ReplayTimings
from gpucost.advisor.replay.replay_timeline import ReplayArrival, play
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
from gpucost.domain.time import DAY_MS, SECOND_MS

QUEUES, COHORTS, GPUS_OF_QUEUE = 50, 10, 20
GPU, FLAVOR = "nvidia.com/gpu", "h100"
SIZES, WEIGHTS = (1, 2, 4, 8, 16, 32), (40, 20, 15, 15, 7, 3)
MONTH_MS = 31 * DAY_MS
MOST_S, MOST_MB, COUNTED = 300, 1_000, 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default="100000,10000", help="numbers of jobs, by commas")
    parser.add_argument("--load", type=float, default=0.85, help="of the GPU time, what is asked for")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for jobs in map(int, args.jobs.split(",")):
        found = figures[f"{jobs}"] = replayed(jobs, args.load, args.seed)
        print(f"{jobs:,} jobs: {found}", flush=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    slowest, quickest = (pick(figures.values(), key=lambda each: each["events"]) for pick in (max, min))
    ratios = {"s_per_event/smallest": round(quickest["events_s"] / slowest["events_s"], 2)}
    holds = peak_mb <= MOST_MB and all(
        each["rest"] and each["cpu_s"] <= MOST_S for jobs, each in figures.items() if int(jobs) <= COUNTED
    )
    print(
        json.dumps(
            {
                "name": "replay",
                "figures": {**figures, "peak_rss_mb": peak_mb},
                "ratios": ratios,
                "limits": {"cpu_s of 100,000 jobs": MOST_S, "peak_rss_mb": MOST_MB},
                "holds": holds,
            }
        )
    )


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
    }


def _arrivals(jobs: int, load: float, random: Random) -> list[ReplayArrival[QuotaRequest]]:
    sizes = random.choices(SIZES, WEIGHTS, k=jobs)
    weights = [random.lognormvariate(0, 1.5) for _ in range(jobs)]
    asked = sum(size * weight for size, weight in zip(sizes, weights, strict=True))
    scale = load * QUEUES * GPUS_OF_QUEUE * MONTH_MS / asked
    template = PodTemplate({})
    found = []
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        at_ms = random.randrange(MONTH_MS // SECOND_MS) * SECOND_MS
        uid, queue = f"w{number:06d}", f"team-{random.randrange(QUEUES):02d}"
        pods = PodSetRequest("main", 1, 1, {GPU: size}, template)
        ask = QuotaRequest(uid, queue, random.choice((0, 0, 0, 100, 1_000)), at_ms, (pods,))
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
