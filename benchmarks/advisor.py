"""One advice, and one simulation of a wait, on a cluster of 1,000 ClusterQueues.

10,000 workloads wait, 20,000 hold quota, 5,000 nodes; the same at a tenth of the size and at twice the size.
An advice is asked about a new job in a queue drawn at random: flavors, cycles, the search for victims,
placement before and after they leave, price; without suggestions, and with. The baseline in the same run is
one pass over all workloads that adds up what each queue uses, the least that an answer without a kept state
would need.

    python benchmarks/advisor.py [--advices 200] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from dataclasses import replace
from random import Random

from benchmarks.support.advised_cluster import GPU, NOW, cluster, settled
from benchmarks.support.volcano_cluster import volcano_figures
from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import SchedulingDecision
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.request.context import AdvisorContext
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.quota import workload_usage
from gpucost.kube.manifests import manifest_of, reread

LIMITS = {"advice_p99_ms": 100.0, "simulation_24h_s": 5.0}
SIZES = {"tenth": 0.1, "one": 1.0, "twice": 2.0}


def manifest(queue: str, pods: int, gpus: int, at: int) -> JobManifest:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}
    return manifest_of(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": f"asked-{at}",
                "namespace": queue,
                "labels": {"kueue.x-k8s.io/queue-name": "main"},
            },
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
            },
        },
        "benchmark",
        NOW,
    )


def knowledge(size: float, fair_sharing: bool = False) -> AdvisorContext:
    """Warm: what is worked out once for a state is."""
    # Without samples: waits are measured apart.
    settings = AdvisorSettings(horizon_hours=24.0, samples=0)
    known = AdvisorContext(ClusterOverview(settled(cluster(size, fair_sharing))), reread, settings=settings)
    known.warm()
    return known


def asked(known: AdvisorContext, count: int) -> list[JobManifest]:
    random = Random(11)
    queues = sorted(known.state.cluster_queue_by_name)
    shapes = ((1, 1), (1, 8), (2, 8), (4, 4))
    return [manifest(random.choice(queues), *random.choice(shapes), at) for at in range(count)]


def timed(manifests: list[JobManifest], known: AdvisorContext, with_suggestions: bool = False) -> list[float]:
    """CPU seconds of an advice on each."""
    times = []
    for each in manifests:
        start = time.process_time()
        advise(each, known, with_suggestions)
        times.append(time.process_time() - start)
    return times


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--advices", type=int, default=200)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    if args.profile:
        known = knowledge(1.0)
        profile = cProfile.Profile()
        for each in asked(known, args.advices):
            profile.runcall(advise, each, known, False)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        return
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for name, size in SIZES.items():
        known = knowledge(size)
        start = time.process_time()
        replace(known).warm()
        figures[f"{name}_prepare_s"] = round(time.process_time() - start, 2)
        manifests = asked(known, args.advices)
        times = timed(manifests, known)
        figures[f"{name}_advice_p50_ms"] = round(percentile(times, 0.5), 2)
        figures[f"{name}_advice_p99_ms"] = round(percentile(times, 0.99), 2)
        if name == "one":
            figures |= _at_full_size(known, manifests)
            start = time.process_time()
            for workload in known.state.workloads.values():
                workload_usage(workload)
            bare = (time.process_time() - start) * 1000
            figures["bare_pass_ms"] = round(bare, 1)
            ratios["p99_to_bare_pass"] = round(figures["one_advice_p99_ms"] / bare, 2)
    ratios["p99_twice_to_one"] = round(figures["twice_advice_p99_ms"] / figures["one_advice_p99_ms"], 2)
    ratios["p99_one_to_tenth"] = round(figures["one_advice_p99_ms"] / figures["tenth_advice_p99_ms"], 2)
    figures |= volcano_figures(args.advices)
    for key, value in figures.items():
        print(f"{key:<30} {value}")
    holds = (
        figures["one_advice_p99_ms"] <= LIMITS["advice_p99_ms"]
        and figures["simulation_24h_s"] <= LIMITS["simulation_24h_s"]
    )
    print(
        json.dumps(
            {"name": "advisor", "figures": figures, "ratios": ratios, "limits": LIMITS, "holds": holds}
        )
    )


def _at_full_size(known: AdvisorContext, manifests: list[JobManifest]) -> dict[str, float]:
    """The same under fair sharing, with suggestions, and the wait of some that wait."""
    fair = knowledge(1.0, fair_sharing=True)
    decisions = [advise(each, known, with_suggestions=False).decision for each in manifests]
    print("decisions:", {each.value: decisions.count(each) for each in sorted(set(decisions))})
    usual = replace(known, settings=AdvisorSettings(horizon_hours=24.0))
    usual.warm()
    waiting = [
        each for each, found in zip(manifests, decisions, strict=True) if found is SchedulingDecision.WAITS
    ]
    return {
        "fair_sharing_p99_ms": round(percentile(timed(manifests, fair), 0.99), 2),
        "with_suggestions_p50_ms": round(percentile(timed(manifests[:20], known, True), 0.5), 1),
        "simulation_24h_s": round(max(timed(waiting[:8], usual), default=0.0), 2),
    }


if __name__ == "__main__":
    main()
