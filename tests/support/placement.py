"""Places pods one by one by a policy, as the authors of FGD did, and keeps count of fragmentation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.rules.fragmentation.fgd_gauge import (
    GPU_MILLI,
    TaskShape,
    TypicalPods,
)

LARGEST_CPU, LARGEST_GPU = 128_000, 8_000
"""BestFit weighs what is left of CPU and GPU by the largest node, half each."""


def score(before: Floats, after: Floats) -> Floats:
    """How good placements are that change a node's fragmentation so: 0 to 100, whole numbers, 50 for none.

    floor(100 x sigmoid((before - after) / 1 GPU)).
    """
    found: Floats = np.floor(100.0 / (1.0 + np.exp((after - before) / GPU_MILLI)))
    return found


class Policy(Enum):
    RANDOM = "01-Random"
    BEST_FIT = "05-BestFit"
    FGD = "06-FGD"


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    shape: TaskShape
    memory: int


@dataclass
class Measured:
    """After each of some arrivals: percent of all GPUs that arrived, are allocated, are fragments, and what
    percent of the idle GPUs are."""

    arrived: float
    alloc: float
    amount: float
    ratio: float


class _Choice:
    """How good each node is for one kind of pod, and which GPU of it is best; renewed where nodes changed."""

    def __init__(self, nodes: int) -> None:
        self.at = 0
        self.score = np.full(nodes, -1.0)
        self.gpu = np.zeros(nodes, dtype=np.int64)


class Cluster:
    """Nodes in one order drawn by ``seed``: of equally good ones the first is taken."""

    def __init__(self, nodes: pd.DataFrame, typical: TypicalPods, policy: Policy, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        nodes = nodes.iloc[self.random.permutation(len(nodes))].reset_index(drop=True)
        self.policy = policy
        self.typical = typical
        self.types = nodes["model"].tolist()
        self.cpu = nodes["cpu_milli"].to_numpy(np.int64).copy()
        self.memory = nodes["memory_mib"].to_numpy(np.int64).copy()
        slots = np.arange(nodes["gpu"].max())
        self.gpu = np.where(slots < nodes["gpu"].to_numpy()[:, np.newaxis], GPU_MILLI, 0).astype(np.int64)
        self.capacity = int(self.gpu.sum())
        self.allowed = typical.allowed(self.types)
        self.lost = typical.of_nodes(self.cpu, self.gpu, self.allowed)
        self.changed: list[int] = []
        self.choices: dict[Ask, _Choice] = {}
        self.of_type: dict[tuple[str, ...], np.ndarray] = {}

    def measured(self, arrived: int) -> Measured:
        percent = 100 / self.capacity
        if self.policy is not Policy.FGD:  # which alone needs it for each pod
            self.lost = self.typical.of_nodes(self.cpu, self.gpu, self.allowed)
        idle, lost = int(self.gpu.sum()), float(self.lost.sum())
        return Measured(arrived * percent, 100 - idle * percent, lost * percent, 100 * lost / max(idle, 1))

    def place(self, ask: Ask) -> bool:
        choice = self._renewed(ask)
        best = choice.score.max()
        if best < 0:
            return False
        is_random = self.policy is Policy.RANDOM
        node = self._any_of(choice.score >= 0) if is_random else int(choice.score.argmax())
        self._take(ask, node, int(choice.gpu[node]))
        return True

    def _take(self, ask: Ask, node: int, gpu: int) -> None:
        shape = ask.shape
        self.cpu[node] -= shape.cpu
        self.memory[node] -= ask.memory
        if 0 < shape.gpu < GPU_MILLI:
            if self.policy is Policy.RANDOM:
                gpu = self._any_of(self.gpu[node] >= shape.gpu)
            self.gpu[node, gpu] -= shape.gpu
        elif shape.count:
            self.gpu[node, np.flatnonzero(self.gpu[node] == GPU_MILLI)[: shape.count]] = 0
        if self.policy is Policy.FGD:
            here = slice(node, node + 1)
            self.lost[here] = self.typical.of_nodes(self.cpu[here], self.gpu[here], self.allowed[here])
        self.changed.append(node)

    def _any_of(self, flags: Flags) -> int:
        """One of those that are true, at random."""
        found = np.flatnonzero(flags)
        return int(found[self.random.integers(len(found))])

    def _renewed(self, ask: Ask) -> _Choice:
        choice = self.choices.get(ask)
        if choice is None:
            choice = self.choices[ask] = _Choice(len(self.cpu))
            at = np.arange(len(self.cpu))
        else:
            at = np.array(sorted(set(self.changed[choice.at :])), dtype=np.int64)
            at = at[choice.score[at] >= 0]  # nothing ever leaves: where it did not fit it never will
        choice.at = len(self.changed)
        if len(at):
            choice.score[at], choice.gpu[at] = self._scores(ask, at)
        return choice

    def _scores(self, ask: Ask, at: Ints) -> tuple[Floats, Ints]:
        shape = ask.shape
        cpu, gpu = self.cpu[at], self.gpu[at]
        fits = (cpu >= shape.cpu) & (self.memory[at] >= ask.memory)
        if shape.count:
            fits &= (gpu >= shape.gpu).sum(axis=1) >= shape.count
            fits &= self._of_type(shape.types)[at]
        found, which = np.full(len(at), -1.0), np.zeros(len(at), dtype=np.int64)
        good = np.flatnonzero(fits)
        if len(good):
            found[good], which[good] = self._of_fitting(shape, at[good])
        return found, which

    def _of_fitting(self, shape: TaskShape, at: Ints) -> tuple[Floats, Ints]:
        if self.policy is Policy.RANDOM:
            return np.zeros(len(at)), np.zeros(len(at), dtype=np.int64)
        cpu, gpu = self.cpu[at], self.gpu[at]
        is_part = 0 < shape.gpu < GPU_MILLI
        tightest = np.where(gpu >= shape.gpu, gpu, GPU_MILLI + 1).argmin(axis=1)
        if self.policy is Policy.BEST_FIT:
            left = (cpu - shape.cpu) / LARGEST_CPU * 0.5
            left = left + (gpu.sum(axis=1) - shape.gpu * shape.count) / LARGEST_GPU * 0.5
            return np.trunc((1.0 - left) * 100), tightest
        if not is_part:
            after = gpu.copy()
            if shape.count:
                free = gpu == GPU_MILLI
                after[free & (free.cumsum(axis=1) <= shape.count)] = 0
            lost = self.typical.of_nodes(cpu - shape.cpu, after, self.allowed[at])
            return score(self.lost[at], lost), tightest
        row, slot = np.nonzero(gpu >= shape.gpu)
        after = gpu[row]
        after[np.arange(len(row)), slot] -= shape.gpu
        lost = self.typical.of_nodes(cpu[row] - shape.cpu, after, self.allowed[at[row]])
        each = np.full(gpu.shape, -1.0)
        each[row, slot] = score(self.lost[at[row]], lost)
        return each.max(axis=1), each.argmax(axis=1)

    def _of_type(self, types: tuple[str, ...]) -> np.ndarray:
        if types not in self.of_type:
            self.of_type[types] = np.array([not types or each in types for each in self.types])
        return self.of_type[types]


def workload(asks: list[Ask], capacity: int, ratio: float, random: np.random.Generator) -> list[Ask]:
    """All pods in random order, and then pods drawn at random, until ``ratio`` of the GPUs were asked for."""
    found = [asks[at] for at in random.permutation(len(asks))]
    asked = sum(ask.shape.gpu * ask.shape.count for ask in asks)
    while True:
        more = asks[random.integers(len(asks))]
        asked += more.shape.gpu * more.shape.count
        if asked > ratio * capacity:
            return found
        found.append(more)


def replay(cluster: Cluster, pods: list[Ask], at_percent: list[int]) -> dict[int, Measured]:
    """What was measured when each percentage of all GPUs had arrived; the last at the end of the pods."""
    found: dict[int, Measured] = {}
    arrived = 0
    for ask in pods:
        arrived += ask.shape.gpu * ask.shape.count
        cluster.place(ask)
        for percent in at_percent:
            if percent not in found and arrived * 100 >= percent * cluster.capacity:
                found[percent] = cluster.measured(arrived)
    found.setdefault(at_percent[-1], cluster.measured(arrived))
    return found
