"""Jobs of which it is known what is wrong with them, with signals drawn from Acme's curves.

Levels come from the seren and kalos curves of Hu et al., NSDI 2024 (InternLM/AcmeTrace, CC BY 4.0), which
are read where they lie: a uniform number is turned into a level by the inverse of a curve. What a curve
cannot say, such as how long a checkpoint takes, is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import ACTIVITY, FRAMES, SERVING
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.domain.time import MINUTE_MS, Window
from tests.detectors.worlds import CLUSTER, GIB, T0, World, at, four_dollars
from tests.support.shared import SHARED

TRACES = SHARED / "traces"
A100 = "NVIDIA-A100-SXM4-80GB"
DAY = 24 * 60
STEP = 5
STEPS = DAY // STEP


@dataclass(frozen=True)
class Curves:
    """Inverse distribution functions by cluster and metric, in the metric's unit."""

    table: pd.DataFrame

    @classmethod
    def load(cls, traces: Path = TRACES) -> Curves:
        return cls(pd.read_csv(traces / "acme-cdf" / "metric_cdf.csv.gz"))

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], tuple[Floats, Floats]]:
        return {
            (str(name[0]), str(name[1])): (rows["cdf_pct"].to_numpy() / 100, rows["value"].to_numpy())
            for name, rows in self.table.groupby(["cluster", "metric"])
        }

    def draw(
        self, random: np.random.Generator, metric: str, least: float = 0.0, most: float = np.inf
    ) -> float:
        """A level of either cluster, of those between ``least`` and ``most``."""
        cluster = str(random.choice(["seren", "kalos"]))
        part, value = self._by_name[cluster, metric]
        inside = np.flatnonzero((value >= least) & (value <= most))
        level = np.interp(random.uniform(part[inside[0]], part[inside[-1]]), part, value)
        return float(np.clip(level, least, most))


@dataclass(frozen=True)
class Label:
    """What the rules should say of a job: ``variant`` of ``rule``, or nothing, or that they lack data."""

    rule: str = ""
    variant: str = ""
    lacks_data: bool = False


NOTHING = Label()
UNSEEN = Label(lacks_data=True)


@dataclass
class Shape:
    """One job: busy levels per GPU and step (NaN: no row), SM activity while busy, and what goes with it."""

    busy: Floats
    sm: Floats
    memory_gib: float
    kind: str = "PyTorchJob"
    start: int = STEP
    busy_unseen: bool = False
    team: str = ""

    @property
    def gpus(self) -> int:
        return int(self.busy.shape[0])


Maker = Callable[[np.random.Generator, Curves], Shape]


def _training(random: np.random.Generator, curves: Curves, gpus: int = 8, steps: int = 200) -> Shape:
    """LLM training: busy at 98 %, SMs at 35 to 50 %, dips for checkpoints, a phase of evaluation."""
    level = curves.draw(random, "GPU_UTIL_pct", 90, 100) / 100
    sm = curves.draw(random, "SM_ACTIVE_pct", 35, 50) / 100
    busy = np.full((gpus, steps), level)
    # Every half hour a checkpoint of up to four minutes: the step is partly at rest.
    busy[:, 6::6] *= 1 - random.uniform(1, 4) / STEP
    first = int(random.integers(steps // 2, steps - 12))
    busy[:, first : first + 12] *= 0.3
    return Shape(busy, np.full(busy.shape, sm), curves.draw(random, "GPU_MEM_USED_pct", 55, 95) * 0.8)


def _serving(random: np.random.Generator, curves: Curves) -> Shape:
    """Bursts of ten minutes every two hours, and not one request between."""
    busy = np.zeros((1, STEPS - 1))
    for step in range(int(random.integers(0, 23)), STEPS - 1, 24):
        busy[:, step : step + 2] = curves.draw(random, "GPU_UTIL_pct", 40, 100) / 100
    sm = np.full(busy.shape, curves.draw(random, "SM_ACTIVE_pct", 30, 90) / 100)
    return Shape(busy, sm, curves.draw(random, "GPU_MEM_USED_pct", 30, 90) * 0.8, "Deployment")


def _checkpoints(random: np.random.Generator, curves: Curves) -> Shape:
    """10 to 20 minutes of no work at all, every hour or two."""
    made = _training(random, curves)
    for first in range(12, made.busy.shape[1], int(random.integers(12, 24))):
        made.busy[:, first : first + int(random.integers(2, 5))] = 0
    return made


def _start_up(random: np.random.Generator, curves: Curves) -> Shape:
    made = _training(random, curves, steps=100)
    made.busy[:, :5] = 0
    return made


def _one_of_eight(random: np.random.Generator, curves: Curves) -> Shape:
    made = _training(random, curves)
    made.busy[int(random.integers(0, 8)), :] = 0
    return made


def _paused(random: np.random.Generator, curves: Curves) -> Shape:
    """The profiling counters stop in the middle of the run, and with them busy and SM signals."""
    made = _training(random, curves, gpus=1)
    made.busy_unseen = True
    return made


def _notebook(random: np.random.Generator, curves: Curves) -> Shape:
    made = _training(random, curves, gpus=1, steps=60)
    made.busy[:, 24:] = 0
    made.kind = "Notebook"
    return made


def _dead_batch(random: np.random.Generator, curves: Curves) -> Shape:
    made = _training(random, curves, steps=24 + int(random.integers(48, 100)))
    made.busy[:, 24:] = 0
    return made


def _never_started(random: np.random.Generator, curves: Curves) -> Shape:
    """Idle for 100 minutes from its start: worth a warning, not yet a stop."""
    made = _training(random, curves, gpus=4, steps=50)
    return Shape(0 * made.busy[:, :22], made.sm[:, :22], made.memory_gib)


def _pause(random: np.random.Generator, curves: Curves) -> Shape:
    """Idle for 100 minutes in the middle of its work, below the 240 of a job that has worked."""
    made = _training(random, curves, gpus=4)
    made.busy[:, 60:80] = 0
    return made


def _dead_server(random: np.random.Generator, curves: Curves) -> Shape:
    made = _serving(random, curves)
    last = 72
    made.busy[:, -last:] = 0
    return made


def _small(random: np.random.Generator, curves: Curves) -> Shape:
    """Fits 1g.10gb: below a seventh of the SMs, and below 8 GB of memory."""
    busy = np.full((1, 150), curves.draw(random, "GPU_UTIL_pct", 20, 100) / 100)
    mean = curves.draw(random, "SM_ACTIVE_pct", 1, 12) / 100
    return Shape(busy, mean / busy, curves.draw(random, "GPU_MEM_USED_pct", 1, 9) * 0.8)


def _medium(random: np.random.Generator, curves: Curves) -> Shape:
    """Few SMs, but memory that only 3g.40gb has room for: over 16, up to 32 GB."""
    made = _small(random, curves)
    made.memory_gib = curves.draw(random, "GPU_MEM_USED_pct", 22, 36) * 0.8
    return made


def _one_of_four(random: np.random.Generator, curves: Curves) -> Shape:
    """The first GPU works; the others run a kernel now and then."""
    made = _training(random, curves, gpus=4)
    made.busy[1:] = random.uniform(0.001, 0.03, size=made.busy[1:].shape)
    return made


def _data_bound(random: np.random.Generator, curves: Curves) -> Shape:
    """Waits for its data loader: SMs at 8 to 20 %, on eight GPUs, and too large for a slice."""
    busy = np.full((8, 200), curves.draw(random, "GPU_UTIL_pct", 20, 60) / 100)
    mean = curves.draw(random, "SM_ACTIVE_pct", 8, 20) / 100
    memory = curves.draw(random, "GPU_MEM_USED_pct", 52, 70) * 0.8
    return Shape(busy, mean / busy, memory, team="data-bound")


IDLE, LARGE = "idle_allocation", "oversized_request"
KINDS: dict[str, tuple[Maker, Label, int]] = {
    "healthy training": (_training, NOTHING, 40),
    "bursty serving": (_serving, NOTHING, 40),
    "checkpoints of 10-20 min": (_checkpoints, NOTHING, 30),
    "start-up of 25 min": (_start_up, NOTHING, 30),
    "pause of 100 min": (_pause, NOTHING, 20),
    "profiling paused": (_paused, UNSEEN, 20),
    "one GPU of eight idle": (_one_of_eight, Label(IDLE, "partly"), 30),
    "notebook idle for 3 h": (_notebook, Label(IDLE, "whole"), 30),
    "batch dead after 2 h": (_dead_batch, Label(IDLE, "whole"), 30),
    "batch idle from start": (_never_started, Label(IDLE, "whole"), 20),
    "serving dead for 6 h": (_dead_server, Label(IDLE, "whole"), 30),
    "fits 1g.10gb": (_small, Label(LARGE, "fits_smaller"), 30),
    "fits only 3g.40gb": (_medium, Label(LARGE, "fits_smaller"), 30),
    "uses one GPU of four": (_one_of_four, Label(LARGE, "too_many_gpus"), 30),
    "data-loader bound": (_data_bound, Label(LARGE, "low_efficiency"), 20),
}
"""Kind of job: how it is made, what the rules should say, and how many there are of it."""


@dataclass(frozen=True)
class Labelled:
    """``labels``, ``kinds``, ``teams`` and GPU memory by name of job."""

    facts: DetectorFacts
    labels: dict[str, Label]
    kinds: dict[str, str]
    teams: dict[str, str]
    memory_gib: dict[str, float]


def labelled(seed: int = 20261006) -> Labelled:
    """All jobs of KINDS, each on a node of its own, within one day."""
    random, curves = np.random.default_rng(seed), Curves.load()
    world, activity, serving = World(DAY), list[pd.DataFrame](), list[pd.DataFrame]()
    labels, kinds, teams = dict[str, Label](), dict[str, str](), dict[str, str]()
    memory = dict[str, float]()
    for kind, (make, label, count) in KINDS.items():
        for n in range(count):
            name = f"{kind} {n}".replace(" ", "-")
            shape = make(random, curves)
            teams[name] = shape.team or f"team-{n % 8}"
            end = shape.start + STEP * shape.busy.shape[1]
            world.node(f"node-{name}", product=A100)
            world.pod(
                name, f"node-{name}", shape.start, end, units=shape.gpus, job=name, kind=shape.kind,
                team=teams[name],
            )  # fmt: skip
            activity.append(_rows(random, curves, name, shape))
            if shape.kind == "Deployment":
                serving.append(_requests(name, shape))
            labels[name], kinds[name], memory[name] = label, kind, shape.memory_gib
    frames = world.frames()
    made = {spec.name: getattr(frames, spec.name) for spec in FRAMES}
    made["activity"] = conform(pd.concat(activity, ignore_index=True), ACTIVITY)
    made["serving"] = conform(pd.concat(serving, ignore_index=True), SERVING)
    history = ClusterHistory(ClusterFrames(**made), Window(T0, at(DAY)), TeamRules.default())
    return Labelled(
        DetectorFacts(CLUSTER, history, GpuTimePrices(history, four_dollars)), labels, kinds, teams, memory
    )


def _requests(name: str, shape: Shape) -> pd.DataFrame:
    """What vLLM would count: something in steps in which its GPU worked."""
    steps = shape.busy.shape[1]
    start = at(shape.start) + np.arange(steps) * STEP * MINUTE_MS
    return pd.DataFrame(
        {
            "cluster": CLUSTER, "pod_uid": name, "metric": "vllm:request_success_total", "start_ms": start,
            "end_ms": start + STEP * MINUTE_MS, "requests": np.ceil(10 * shape.busy[0]),
            "received_bytes": np.nan,
        }
    )  # fmt: skip


def _rows(random: np.random.Generator, curves: Curves, name: str, shape: Shape) -> pd.DataFrame:
    gpus, steps = shape.busy.shape
    length = float(STEP * MINUTE_MS)
    # A few per cent of noise on work, none on rest: a counter that stands still stands still.
    noise = random.uniform(0.97, 1.0, size=shape.busy.shape)
    busy = np.minimum(shape.busy * noise, 1.0) * length
    sm = np.minimum(shape.sm, 1.0) * busy
    idle_w = curves.draw(random, "GPU_POWER_W", 50, 80)
    busy_w = curves.draw(random, "GPU_POWER_W", 250, 420)
    energy = (idle_w + (busy_w - idle_w) * shape.busy) * length / 1000
    seen = np.full(shape.busy.shape, length)
    if shape.busy_unseen:
        gone = slice(steps // 2, None)
        for values in (busy, sm, seen):
            values[:, gone] = np.nan
    # Exporters lose a step now and then.
    kept = random.uniform(size=shape.busy.shape).ravel() > 0.01
    start = at(shape.start) + np.tile(np.arange(steps), gpus) * int(length)
    frame = pd.DataFrame(
        {
            "cluster": CLUSTER, "node": f"node-{name}", "pod_uid": name,
            "gpu": np.repeat([f"{name}-{n}" for n in range(gpus)], steps),
            "start_ms": start, "end_ms": start + int(length), "held_ms": length,
            "observed_ms": seen.ravel(), "busy_ms": busy.ravel(), "sm_observed_ms": seen.ravel(),
            "sm_active_ms": sm.ravel(), "memory_used_bytes": shape.memory_gib * GIB,
            "memory_total_bytes": 80.0 * GIB, "energy_j": energy.ravel(),
        }
    )  # fmt: skip
    return frame[kept]
