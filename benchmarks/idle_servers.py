"""Precision and recall of idle servers by signal, on made-up fleets of which it is known which servers are
called.

The rule looks once a week at the last two weeks of 5-minute steps. A finding is one stretch of one server; it
is right when the server is not called again in the four weeks after. Recall is of the servers that were not
called for a day at the last look. ``240 min`` is the rule before: four hours without a kernel. Fleet and
guesses: ``benchmarks/support/servers.py``. It was tuned on one half of the first fleet (``--tune`` shows
that); held out are its other half and both halves of every other fleet, each judged by itself, since a
server's peers are those of its history. Limits: the lower end of the 95 % interval of the precision. Findings
of one half share its past gaps, so the worst half is printed too.

    python -m benchmarks.idle_servers [--servers 200] [--seed 1] [--fleets 5] [--tune] [--heavy]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from benchmarks.support.servers import HEAVY, STEP_MS, STEPS_A_DAY, T0, Habits, ServedFleet, fleet
from gpucost.detectors.rule_settings import IdleAllocationSettings, ScopedSettings
from gpucost.detectors.rules.idle_allocation import idle_allocation_rule
from gpucost.detectors.rules.idle_allocation.servers import (
    GapEnd,
    PastGaps,
    ReturnHazard,
    ServerGap,
)
from gpucost.domain.time import DAY_MS

HISTORY, FIRST, LAST, EVERY = 14 * STEPS_A_DAY, 14 * STEPS_A_DAY, 28 * STEPS_A_DAY, 7 * STEPS_A_DAY
DAYS = 56
SIGNALS = {"240 min": "silent", "none": "none", "bytes": "bytes", "requests": "requests"}
LIMITS = {"none_precision_low": 0.9, "bytes_precision_low": 0.9, "requests_precision_low": 0.9}


@dataclass(frozen=True)
class Score:
    """Stretches found and right, and dead servers found of all."""

    found: int
    right: int
    dead_found: int
    dead: int

    def __add__(self, other: Score) -> Score:
        return Score(
            self.found + other.found,
            self.right + other.right,
            self.dead_found + other.dead_found,
            self.dead + other.dead,
        )

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
    settings = IdleAllocationSettings(serving_risk=0.999) if name == "240 min" else IdleAllocationSettings()
    for now in range(FIRST, LAST + 1, EVERY):
        facts = given.facts(max(0, now - HISTORY), now, SIGNALS[name])
        for draft in idle_allocation_rule.run(facts, ScopedSettings(settings)).drafts:
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


def held_out(servers: int, seed: int, fleets: int, habits: Habits) -> Iterator[ServedFleet]:
    """All halves but the one that was tuned on."""
    for n in range(fleets):
        whole = fleet(servers, DAYS, seed + n, habits)
        yield from (whole.half(which) for which in (0, 1) if n or which)


def walked(past: Sequence[ServerGap], present: ServerGap, ahead_ms: int) -> ReturnHazard:
    """The hazard gap by gap, as ``PastGaps`` must say it from sums."""
    ahead, gaps, worked = max(ahead_ms, present.length_ms), 0, 0
    for each in past:
        if each == present or each.length_ms < present.length_ms:
            continue
        followed = each.length_ms >= present.length_ms + ahead
        if followed or each.end is not GapEnd.OPEN:
            gaps += 1
            worked += each.end is GapEnd.WORK and not followed
    return ReturnHazard(gaps, worked, present.length_ms, ahead)


def speed(count: int = 20_000, looks: int = 200) -> float:
    """How many times as long the walk takes, of so many past gaps and looks at them; both must agree."""
    random = np.random.default_rng(1)
    lengths = (random.lognormal(3, 2, count) * STEP_MS).astype(np.int64).tolist()
    ends = random.choice(list(GapEnd), count).tolist()
    past = [
        ServerGap(n, 0, length, GapEnd(end))
        for n, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    begun = time.perf_counter()
    by_sums = PastGaps(past)
    told = [by_sums.hazard(each, DAY_MS) for each in past[:looks]]
    middle = time.perf_counter()
    expected = [walked(past, each, DAY_MS) for each in past[:looks]]
    if told != expected:
        raise AssertionError("hazards by sums differ from those gap by gap")
    return (time.perf_counter() - middle) / (middle - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleets", type=int, default=5)
    parser.add_argument("--tune", action="store_true", help="the half that was tuned on")
    parser.add_argument("--heavy", action="store_true", help="servers that come back after days")
    args = parser.parse_args()
    habits = HEAVY if args.heavy else Habits()
    tuned = [fleet(args.servers, DAYS, args.seed, habits).half(0)]
    halves = tuned if args.tune else list(held_out(args.servers, args.seed, args.fleets, habits))
    real = {30: 0.86, 60: 0.68, 120: 0.44, 240: 0.37}
    for minutes, part in real.items():
        ours = sum(each.followed(minutes, LAST // STEPS_A_DAY) for each in halves) / len(halves)
        print(f"work follows {minutes:3} min without any: {ours:.2f} here, {part:.2f} on a real fleet")
    print(f"{len(halves)} halves of {len(halves[0].calls)} servers")
    print(
        f"{'signal':10}{'found':>7}{'right':>7}{'precision':>11}{'95 %':>16}{'worst half':>12}{'recall':>8}"
    )
    figures: dict[str, float | int] = {}
    ratios: dict[str, float] = {}
    for name in SIGNALS:
        scores = [score(each, name) for each in halves]
        seen = sum(scores[1:], scores[0])
        low, high = seen.interval
        worst = min((each.precision for each in scores if each.found), default=1.0)
        print(
            f"{name:10}{seen.found:7}{seen.right:7}{seen.precision:11.3f}"
            f"{f'{low:.3f} to {high:.3f}':>16}{worst:12.3f}{seen.recall:8.3f}"
        )
        key = name.replace(" ", "_")
        figures |= {f"{key}_found": seen.found, f"{key}_right": seen.right, f"{key}_dead": seen.dead}
        figures |= {f"{key}_high": round(high, 3), f"{key}_worst_half": round(worst, 3)}
        # No finding is no wrong finding.
        ratios[f"{key}_precision"] = round(seen.precision, 3) if seen.found else 1.0
        ratios[f"{key}_precision_low"] = round(low, 3) if seen.found else 1.0
        ratios[f"{key}_recall"] = round(seen.recall, 3)
    times = ratios["hazard_speed"] = round(speed(), 1)
    print(f"gap by gap, 200 hazards among 20,000 gaps take {times:.0f} times as long as by sums")
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
