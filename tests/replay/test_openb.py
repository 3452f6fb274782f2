"""The cluster and pods of openb, placed as the FGD paper's authors did: their figures, from our measure."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from benchmarks.support.philly import DEFAULT_TRACES
from gpucost.detectors.rules.fragmentation.fgd_gauge import (
    GPU_MILLI,
    FragmentationMeasure,
    TaskShape,
    TypicalPods,
)
from tests.support.placement import Ask, Cluster, Measured, Policy, replay, workload
from tests.support.shared import needs_shared

OPENB = DEFAULT_TRACES / "openb-fgd"
ARRIVED = [20, 40, 60, 80, 100, 130]
SEEDS = {Policy.RANDOM: range(20), Policy.BEST_FIT: range(6), Policy.FGD: range(6)}
"""Random placement differs most from seed to seed: by 2.2 points (standard deviation) of the ratio at 80 %,
in the authors' ten runs as in ours, so that the mean of ten is only known to 0.7."""

pytestmark = needs_shared("traces/openb-fgd")


@dataclass(frozen=True)
class Openb:
    nodes: pd.DataFrame
    asks: list[Ask]

    @property
    def typical(self) -> TypicalPods:
        return TypicalPods.of(Counter(ask.shape for ask in self.asks))


@pytest.fixture(scope="module")
def openb() -> Openb:
    nodes = pd.read_csv(OPENB / "nodes.csv.gz", keep_default_na=False)
    pods = pd.read_csv(OPENB / "pods_default.csv.gz", keep_default_na=False)
    names = ("cpu_milli", "num_gpu", "gpu_milli", "gpu_spec", "memory_mib")
    asks = [
        Ask(TaskShape(cpu, milli if gpus else 0, gpus, tuple(sorted(filter(None, spec.split("|"))))), memory)
        for cpu, gpus, milli, spec, memory in zip(*(pods[name].tolist() for name in names), strict=True)
    ]
    return Openb(nodes[nodes["gpu"] > 0].reset_index(drop=True), asks)


def test_the_empty_cluster_to_the_last_digit(openb: Openb) -> None:
    expected = json.loads((OPENB / "reference.json").read_text())
    assert len(openb.typical.shapes) == 35
    count = openb.nodes["gpu"].to_numpy()
    gpu = np.where(np.arange(count.max()) < count[:, np.newaxis], GPU_MILLI, 0)
    cpu, types = openb.nodes["cpu_milli"].to_numpy(), openb.nodes["model"].tolist()
    found = FragmentationMeasure.of(openb.typical, cpu, gpu, types, int(gpu.sum()))
    assert found.total == expected["empty_cluster_frag_milli"] == 866_232.5521503992
    assert 100 * found.ratio == expected["empty_cluster_frag_ratio_pct"] == 13.944503415170626
    assert found.idle == 6_212_000
    # All but 21.5 GPUs of it is there only because 13.6 % of the typical pods need no GPU.
    assert found.of_cpu_tasks == pytest.approx(844_691.218, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(Policy), ids=lambda policy: policy.name)
def test_the_authors_curves(openb: Openb, policy: Policy) -> None:
    """Means over seeds, within one percentage point of the authors' at every sixth of the way."""
    runs = [_run(openb, policy, seed) for seed in SEEDS[policy]]
    theirs = pd.read_csv(OPENB / "fgd_expected_default.csv.gz")
    theirs = theirs[theirs["sc_policy"] == policy.value].groupby("arrived_pct").mean(numeric_only=True)
    for percent in ARRIVED:
        found = np.mean([_figures(run[percent]) for run in runs], axis=0)
        expected = theirs.loc[percent, ["alloc_pct", "frag_amount_pct", "frag_ratio_pct"]].to_numpy()
        assert found == pytest.approx(expected, abs=1.0), (policy, percent)


def _run(openb: Openb, policy: Policy, seed: int) -> dict[int, Measured]:
    cluster = Cluster(openb.nodes, openb.typical, policy, seed)
    pods = workload(openb.asks, cluster.capacity, 1.3, np.random.default_rng([seed, 1]))
    return replay(cluster, pods, ARRIVED)


def _figures(measured: Measured) -> list[float]:
    return [measured.alloc, measured.amount, measured.ratio]
