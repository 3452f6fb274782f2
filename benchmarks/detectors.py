"""One evaluation of all detectors on 5,000 nodes, 50,000 pods and a day of history, on one core.

Each node has 8 GPUs; each GPU has a row of activity every five minutes, 11 million in all. 300 jobs wait all
day, most of them for whole nodes, and 2,000 some hours; 50 queues have quota; pods come and go, idle, are
evicted, some gangs are partial, some nodes advertise too few GPUs. The cluster's state at the end is there,
too. The baseline in the same run is what nobody can do without: one pass of sums per GPU and pod over the
busy column of the same frame (a pandas group-by). The limit is a tenth of the evaluation interval of the
settings; memory is the resident peak of the process, the frames included.

    python benchmarks/detectors.py [--nodes 5000] [--pods 50000] [--torn 0.2] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import time
from collections.abc import Sequence

from benchmarks.support.busy_day import DAY, overview, world
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import Window
from gpucost.service.settings.detectors import DetectorsSettings

PRICE = Rate("flat", 6_880_000_000, "USD", 6_880_000_000, "model", "benchmark", "2026-11-21")
LIMITS = {"part_of_interval": 0.1, "peak_mib": 3072}


def prices(_: NodeFacts, window: Window) -> Sequence[RateSpan]:
    return (RateSpan(window.start_ms, window.end_ms, PRICE),)


def facts_of(frames: ClusterFrames, state: ClusterOverview) -> DetectorFacts:
    history = ClusterHistory(frames, DAY, TeamRules.default())
    return DetectorFacts("c", history, GpuTimePrices(history, prices), ClusterOverview(state.state))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--torn", type=float, default=0.2, help="part of the nodes with three free GPUs")
    parser.add_argument(
        "--profile", action="store_true", help="print where the time goes, and measure nothing"
    )
    args = parser.parse_args()
    frames = world(args.nodes, args.pods, args.torn)
    state = overview(frames)
    if args.profile:
        _profile(facts_of(frames, state))
        return
    begun = time.process_time()
    frames.activity.groupby(["node", "gpu", "pod_uid"], observed=True)["busy_ms"].sum()
    baseline = time.process_time() - begun
    facts = facts_of(frames, state)
    at = time.process_time()
    evaluation = evaluate(facts, RuleSettings())
    whole = time.process_time() - at
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert not evaluation.failures, evaluation.failures
    del facts
    parts = _by_rule(facts_of(frames, state))
    print(
        f"all, and every second in one bucket: {whole:.2f} s; one group-by: {baseline:.2f} s; {peak:.0f} MiB"
    )
    ratios = {
        "part_of_interval": round(whole / DetectorsSettings().interval.total_seconds(), 3),
        "peak_mib": round(peak),
        "to_group_by": round(whole / baseline, 1),
    }
    result = {
        "name": "detectors",
        "figures": {
            "activity_rows": len(frames.activity),
            "pods": len(frames.allocations),
            "demand_rows": len(frames.demand),
            "findings": len(evaluation.findings),
            "withheld": len(evaluation.withheld),
            "pieces": len(evaluation.pieces),
            "evaluation_s": round(whole, 2),
            "group_by_s": round(baseline, 2),
            **{f"{name}_s": round(seconds, 2) for name, seconds in parts.items()},
        },
        "ratios": ratios,
        "limits": LIMITS,
        "holds": all(ratios[name] <= limit for name, limit in LIMITS.items()),
    }
    print(json.dumps(result))


def _by_rule(facts: DetectorFacts) -> dict[str, float]:
    """CPU seconds of each rule; what several share is paid by the first, but for the arrays."""
    begun = time.process_time()
    facts.history.activity  # noqa: B018  worked out once, told apart from the rules that use it
    facts.history.held  # noqa: B018
    parts = {"arrays": time.process_time() - begun}
    for pattern, rule in RULES.items():
        at = time.process_time()
        found = rule.run(facts, RuleSettings().of(pattern))
        parts[pattern.value] = time.process_time() - at
        print(
            f"{pattern.value:20} {parts[pattern.value]:7.2f} s  {len(found.drafts):6} findings"
            f"  {len(found.withheld):6} withheld"
        )
    return parts


def _profile(facts: DetectorFacts) -> None:
    profile = cProfile.Profile()
    profile.runcall(evaluate, facts, RuleSettings())
    pstats.Stats(profile).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main()
