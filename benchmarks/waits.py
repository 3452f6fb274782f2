"""Waits of months that nothing was tuned on, predicted at each submission, beside simple predictors.

For each month, rule and load the trace is queued again (benchmarks/support/wait_replay.py), and of those that
wait some are asked about as they are submitted: from what had ended by then, and from nothing later. The
table has mean absolute errors in seconds, and how often the truth lay in [p10, p90], at most p50 and p90.
October and November 2017 are those that the constants were set on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.support.philly import DEFAULT_TRACES
from benchmarks.support.wait_replay import HELIOS, RULES, QueuedMonth, WaitScore, month_of, score

HELD_OUT = ("2017-09", "2017-12", HELIOS)
LOADS = (0.7, 0.8, 0.9, 1.0)
MOST_RATIO = 1.10
INSIDE = (0.75, 0.85)
_ERRORS = ("ours", "simulation", "mean", "median", "last", "zero")


def main() -> None:
    args = _arguments()
    print(
        f"{'month':<9}{'rule':<7}{'load':>4}{'jobs':>6}" + "".join(f"{name:>11}" for name in _ERRORS), end=""
    )
    print(f"{'ratio':>7}{'inside':>8}{'<=p50':>7}{'<=p90':>7}{'sim. inside':>13}")
    figures: list[dict[str, Any]] = []
    for month in args.months:
        jobs = month_of(args.traces, month)
        for rule in args.rules:
            for load in args.loads:
                found = score(QueuedMonth.play(jobs, rule, load), args.jobs, args.samples)
                _row(month, rule, load, found)
                figures.append(_figures(month, rule, load, found))
    ratios = [each["ratio"] for each in figures]
    ahead = sum(ratio < 1 for ratio in ratios)
    inside = [each["inside"] for each in figures]
    holds = {
        "no_ratio_above": max(ratios) <= MOST_RATIO,
        "ahead_in_most": ahead > len(ratios) / 2,
        "inside": all(INSIDE[0] <= share <= INSIDE[1] for share in inside),
    }
    summary = {
        "name": "waits",
        "figures": figures,
        "ratios": {"worst": max(ratios), "ahead": ahead, "of": len(ratios)},
        "limits": {"ratio": MOST_RATIO, "inside": INSIDE},
        "holds": holds,
    }
    print(json.dumps(summary))


def _row(month: str, rule: str, load: float, found: WaitScore) -> None:
    print(f"{month:<9}{rule:<7}{load:>4}{found.count:>6}", end="")
    print("".join(f"{found.mae[name]:>11,.0f}" for name in _ERRORS), end="")
    print(f"{found.ratio:>7.2f}{found.inside:>8.2f}{found.below_p50:>7.2f}{found.below_p90:>7.2f}", end="")
    print(f"{found.simulated_inside:>13.2f}", flush=True)


def _figures(month: str, rule: str, load: float, found: WaitScore) -> dict[str, Any]:
    return {
        "month": month,
        "rule": rule,
        "load": load,
        "jobs": found.count,
        "mae_s": {name: round(value) for name, value in found.mae.items()},
        "ratio": round(found.ratio, 4),
        "inside": round(found.inside, 4),
        "at_most_p50": round(found.below_p50, 4),
        "at_most_p90": round(found.below_p90, 4),
        "simulated_inside": round(found.simulated_inside, 4),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--months", nargs="+", default=HELD_OUT, metavar="YYYY-MM|helios")
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS)
    parser.add_argument("--jobs", type=int, default=240, help="to ask about in each, about")
    parser.add_argument("--samples", type=int, default=20, help="simulations of each wait")
    parser.add_argument(
        "--traces",
        type=Path,
        default=DEFAULT_TRACES,
        help="the folder that has philly-vc and helios-earth-vc",
    )
    args = parser.parse_args()
    if not (args.traces / "philly-vc").is_dir():
        parser.error(f"--traces: {args.traces} has no folder philly-vc")
    return args


if __name__ == "__main__":
    main()
