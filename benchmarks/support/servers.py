"""Servers that are called now and then, and some that are not called any more: a seeded trace, all made up.

What is known of real ones and held here: the rate at which functions are called spans eight orders of
magnitude and most are called rarely (Shahrad et al., "Serverless in the Wild", USENIX ATC 2020), so a
server's mean pause between sessions is lognormal. Calls of language models come in bursts with
Gamma-distributed pauses, and follow the day (BurstGPT, Wang et al., arXiv 2401.17644), so they come in
sessions, pauses have heavy tails, and nights stretch them. On a real diffusion-serving fleet work followed on
86, 68, 44 and 37 % of the stretches without any of at least 30, 60, 120 and 240 minutes; ``followed`` gives
the same of this one, where it is more often. Guesses of ours: how many servers die, and that a light step
(one call) shows on the GPU's counter half the time, as sampled utilisation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import ACTIVITY, ALLOCATIONS, CAPACITY, NODES, OBSERVED, SERVING
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import DAY_MS, MINUTE_MS, Window, parse_instant

STEP_MS = 5 * MINUTE_MS
STEPS_A_DAY = DAY_MS // STEP_MS
T0 = parse_instant("2026-10-05T00:00:00Z")
DIE, NEVER = 0.55, 0.04
"""Parts of the servers: those not called any more from some instant on, and those never called."""


@dataclass(frozen=True)
class Habits:
    """How long servers pause between sessions: the median in steps, and sigmas of its logarithm, between
    servers and of the pauses of one."""

    median: float = 1.5
    of_servers: float = 1.0
    of_pauses: float = 0.7


HEAVY = Habits(6.0, 1.5, 1.5)
"""Servers that come back after days: what was idle for long says little."""
SEEN = 0.5
QUIET_BYTES, CALL_BYTES = 60_000.0, 8_000.0
_PRICE = Rate("flat", 4_000_000_000, "USD", 4_000_000_000, "model", "benchmark", "2026-10-01")


@dataclass(frozen=True)
class ServedFleet:
    """By server and step: how many calls came, whether the GPU's counter shows work, and bytes received.
    ``dead`` is the step from which on a server is not called; one that lives has the number of steps."""

    calls: Floats
    busy: Floats
    received: Floats
    dead: Sequence[int]

    @property
    def steps(self) -> int:
        return int(self.calls.shape[1])

    def half(self, which: int) -> ServedFleet:
        """Every other server."""
        return ServedFleet(
            self.calls[which::2], self.busy[which::2], self.received[which::2], self.dead[which::2]
        )

    def followed(self, minutes: int, days: int) -> float:
        """Of the stretches of at least so long without work that begin after work, seen day by day, the part
        that work follows on the same day."""
        least, after, all_of = minutes * MINUTE_MS // STEP_MS, 0, 0
        for first in range(0, days * STEPS_A_DAY, STEPS_A_DAY):
            for row in self.busy[:, first : first + STEPS_A_DAY]:
                at = np.flatnonzero(row > 0)
                between = int((np.diff(at) - 1 >= least).sum())
                after += between
                all_of += between + int(len(at) > 0 and STEPS_A_DAY - 1 - int(at[-1]) >= least)
        return after / all_of if all_of else float("nan")

    def facts(self, first: int, last: int, signal: str) -> DetectorFacts:
        """What is known at the end of step ``last`` of the steps from ``first`` on. ``signal``: ``none``,
        ``bytes`` or ``requests``; ``silent``: requests that are said to be none, so that only GPUs decide."""
        window = Window(T0 + first * STEP_MS, T0 + last * STEP_MS)
        names = [f"s{n:03d}" for n in range(len(self.calls))]
        frames = ClusterFrames(
            **_held(names, window),
            activity=conform(_activity(names, self.busy[:, first:last], window), ACTIVITY),
            serving=self._serving(names, first, last, window, signal),
        )
        history = ClusterHistory(frames, window, TeamRules.default())
        return DetectorFacts("c", history, GpuTimePrices(history, _price))

    def _serving(
        self, names: Sequence[str], first: int, last: int, window: Window, signal: str
    ) -> pd.DataFrame:
        count = len(names) * (last - first) if signal != "none" else 0
        nan = np.full(count, np.nan)
        part = slice(first, last)
        requests = {"requests": self.calls[:, part], "silent": 0 * self.calls[:, part]}.get(signal)
        rows = {
            **_steps(names, last - first, window, count),
            "metric": signal,
            "requests": nan if requests is None else requests.ravel(),
            "received_bytes": self.received[:, part].ravel() if signal == "bytes" else nan,
        }
        return conform(pd.DataFrame(rows)[list(SERVING.column_names)], SERVING)


def fleet(servers: int, days: int, seed: int, habits: Habits | None = None) -> ServedFleet:
    """``servers`` of one GPU each, for so many days."""
    random, habits = np.random.default_rng(seed), habits or Habits()
    steps = days * STEPS_A_DAY
    calls, dead = np.zeros((servers, steps)), list[int]()
    for row in calls:
        chance = random.random()
        end = 0 if chance < NEVER else int(random.integers(0, steps)) if chance < NEVER + DIE else steps
        pause = habits.median * random.lognormal(0, habits.of_servers)
        at = float(random.random() * pause)
        while (step := int(at)) < end:
            length = 1 + int(random.gamma(0.5, 6))
            row[step : min(step + length, end)] = 1 + random.gamma(
                0.5, 20, len(row[step : min(step + length, end)])
            )
            at += length + _awake(step, pause * random.lognormal(0, habits.of_pauses))
        dead.append(end)
    calls = np.floor(calls)
    light = (calls == 1) & (random.random(calls.shape) > SEEN)
    busy = np.where((calls > 0) & ~light, np.minimum(1.0, 0.02 * calls), 0.0)
    background = QUIET_BYTES * random.gamma(60, 1 / 60, calls.shape)
    received = background + calls * CALL_BYTES * random.lognormal(0, 1, calls.shape)
    return ServedFleet(calls, busy, received, dead)


def _awake(step: int, pause: float) -> float:
    """A pause in steps of the clock: at night, from 20 to 7 o'clock, time passes at a fifth for callers."""
    left, length = pause, 0.0
    while left > 0:
        hour = (step + int(length)) % STEPS_A_DAY * 24 / STEPS_A_DAY
        left -= 0.2 if hour < 7 or hour >= 20 else 1.0
        length += 1
    return length


def _held(names: Sequence[str], window: Window) -> dict[str, pd.DataFrame]:
    nodes = [f"n-{name}" for name in names]
    times = {"start_ms": window.start_ms, "end_ms": window.end_ms}
    texts = dict.fromkeys(("workload", "queue", "cluster_queue", "flavor", "project", "user"), "")
    held = pd.DataFrame(
        {
            "cluster": "c", "node": nodes, "namespace": "ns", "pod": names, "pod_uid": names, "job": names,
            "job_kind": "Deployment", "job_uid": names, "team_label": "t", "resource": "nvidia.com/gpu",
            "count": 1, **texts, **times,
        }
    )  # fmt: skip
    node = pd.DataFrame(
        {
            "cluster": "c", "node": nodes, "product": "NVIDIA-A100-SXM4-80GB", "boards": 1,
            "instance_type": "", "capacity_type": "", "region": "", "zone": "", "pool": "",
            "labels": "{}", **times,
        }
    )  # fmt: skip
    capacity = pd.DataFrame(
        {
            "cluster": "c", "node": nodes, "resource": "nvidia.com/gpu", "expected": 1, "capacity": 1,
            "allocatable": 1, "replicas": 1, "schedulable": 1, **times,
        }
    )  # fmt: skip
    return {
        "allocations": conform(held, ALLOCATIONS),
        "nodes": conform(node, NODES),
        "capacity": conform(capacity, CAPACITY),
        "observed": conform(pd.DataFrame({"cluster": ["c"], **times}), OBSERVED),
    }


def _steps(names: Sequence[str], steps: int, window: Window, count: int) -> dict[str, object]:
    code = np.repeat(np.arange(len(names)), steps)[:count]
    start = np.tile(window.start_ms + np.arange(steps) * STEP_MS, len(names))[:count]
    uids = pd.Categorical.from_codes(code, categories=pd.Index(names, dtype="str"))
    return {"cluster": "c", "pod_uid": uids, "start_ms": start, "end_ms": start + STEP_MS}


def _activity(names: Sequence[str], busy: Floats, window: Window) -> pd.DataFrame:
    held = np.full(busy.size, float(STEP_MS))
    rows = _steps(names, busy.shape[1], window, busy.size)
    code = np.repeat(np.arange(len(names)), busy.shape[1])
    nodes, gpus = ([f"{kind}-{name}" for name in names] for kind in ("n", "g"))
    work = busy.ravel() * STEP_MS
    rows |= {
        "node": pd.Categorical.from_codes(code, categories=pd.Index(nodes, dtype="str")),
        "gpu": pd.Categorical.from_codes(code, categories=pd.Index(gpus, dtype="str")),
        "held_ms": held, "observed_ms": held, "busy_ms": work, "sm_observed_ms": held,
        "sm_active_ms": 0.4 * work, "memory_used_bytes": 4e10, "memory_total_bytes": 8e10,
        "energy_j": 0.06 * held,
    }  # fmt: skip
    return pd.DataFrame(rows)[list(ACTIVITY.column_names)]


def _price(facts: NodeFacts, window: Window) -> Sequence[RateSpan]:
    del facts
    return (RateSpan(window.start_ms, window.end_ms, _PRICE),)
