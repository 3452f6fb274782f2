"""Precision and recall of idle servers by signal, on a made-up fleet of which it is known who is called.

The rule looks once a week at the last two weeks of 5-minute steps, on the half of the servers that nothing
was tuned on (``--tune`` shows the other). A finding is one stretch of one server; it is right when nobody
calls the server again in the four weeks after. Recall is of the servers that nobody called for a day at the
last look. ``240 min`` is the rule before: four hours without a kernel. Fleet and guesses:
``benchmarks/support/servers.py``. Limits: precision with requests or without any signal, by its lower 95 %
bound where there are findings.

    python benchmarks/idle_servers.py [--servers 300] [--seed 1] [--tune]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from math import sqrt

import numpy as np

from benchmarks.support.servers import STEP_MS, STEPS_A_DAY, T0, ServedFleet, fleet
from gpucost.detectors.rules import idle_allocation
from gpucost.detectors.rules.idle_allocation import Settings
from gpucost.detectors.settings import Scoped

HISTORY, FIRST, LAST, EVERY = 14 * STEPS_A_DAY, 14 * STEPS_A_DAY, 28 * STEPS_A_DAY, 7 * STEPS_A_DAY
DAYS = 56
SIGNALS = {"240 min": "silent", "none": "none", "bytes": "bytes", "requests": "requests"}
LIMITS = {"none_precision": 0.9, "bytes_precision": 0.9, "requests_precision": 0.9}


@dataclass(frozen=True)
class Score:
    """Stretches found and right, and dead servers found of all."""

    found: int
    right: int
    dead_found: int
    dead: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else float("nan")

    @property
    def recall(self) -> float:
        return self.dead_found / self.dead if self.dead else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Of the precision, 95 % (Wilson)."""
        n, z = self.found, 1.96
        if not n:
            return 0.0, 1.0
        middle, half = (
            self.precision + z * z / (2 * n),
            z * sqrt(self.precision * (1 - self.precision) / n + z * z / (4 * n * n)),
        )
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def score(given: ServedFleet, name: str) -> Score:
    """What the rule says at each look. Only what goes on counts: the rest is the past."""
    found: dict[tuple[int, int], bool] = {}
    settings = Settings(serving_risk=0.999) if name == "240 min" else Settings()
    for now in range(FIRST, LAST + 1, EVERY):
        facts = given.facts(max(0, now - HISTORY), now, SIGNALS[name])
        for draft in idle_allocation.run(facts, Scoped(settings)).drafts:
            if draft.ended_ms is None:
                server = int(draft.subject.name[1:])
                again = bool(given.calls[server, now:].any())
                # One stretch may seem to begin later once the history has moved on.
                begin = max((draft.since_ms - T0) // STEP_MS, 0)
                last = np.flatnonzero(given.busy[server, :begin] > 0)
                key = server, int(last[-1]) if len(last) else -1
                found[key] = found.get(key, True) and not again
    dead = {n for n, step in enumerate(given.dead) if step <= LAST - STEPS_A_DAY}
    named = {server for server, _ in found}
    return Score(len(found), sum(found.values()), len(dead & named), len(dead))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tune", action="store_true", help="the half that was tuned on")
    args = parser.parse_args()
    whole = fleet(args.servers, DAYS, args.seed)
    given = whole.half(0 if args.tune else 1)
    real = {30: 0.86, 60: 0.68, 120: 0.44, 240: 0.37}
    for minutes, part in real.items():
        ours = given.followed(minutes, LAST // STEPS_A_DAY)
        print(f"work follows {minutes:3} min without any: {ours:.2f} here, {part:.2f} on a real fleet")
    print(f"{'signal':10}{'found':>7}{'right':>7}{'precision':>11}{'95 %':>16}{'recall':>8}")
    figures: dict[str, float | int] = {}
    ratios: dict[str, float] = {}
    for name in SIGNALS:
        seen = score(given, name)
        low, high = seen.interval
        print(
            f"{name:10}{seen.found:7}{seen.right:7}{seen.precision:11.3f}"
            f"{f'{low:.3f} to {high:.3f}':>16}{seen.recall:8.3f}"
        )
        key = name.replace(" ", "_")
        figures |= {f"{key}_found": seen.found, f"{key}_right": seen.right, f"{key}_dead": seen.dead}
        figures |= {f"{key}_low": round(low, 3), f"{key}_high": round(high, 3)}
        # No finding is no wrong finding.
        ratios[f"{key}_precision"] = round(seen.precision, 3) if seen.found else 1.0
        ratios[f"{key}_recall"] = round(seen.recall, 3)
    result = {
        "name": "idle_servers",
        "figures": figures,
        "ratios": ratios,
        "limits": LIMITS,
        "holds": all(ratios[name] >= limit for name, limit in LIMITS.items()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
