"""The Helios cluster "Earth" in May 2020 as facts: quota, running and pending GPUs of 16 virtual clusters.

A virtual cluster is a ClusterQueue with quota of one flavor and without a cohort, and stands on a node of its
own that has as many GPUs. What it runs is one pod per stretch in which that is the same number; what it keeps
waiting are independent pods of one GPU, since the trace does not say what gangs they are. Licence of the
data: CC BY 4.0, cite Hu et al., SC 2021; it is read where it lies, never copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.support.helios_jobs import MINUTES
from benchmarks.support.philly import DEFAULT_TRACES
from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import FRAMES, HOLDER_COLUMNS, FrameSpec
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import MINUTE_MS, Window, parse_instant

FOLDER = DEFAULT_TRACES / "helios-earth-vc"
CLUSTER = "earth"
START_MS = parse_instant("2020-05-01T00:00:00Z")
WEEK = 7 * 24 * 60
GPU = "nvidia.com/gpu"


def at(minute: int) -> int:
    return START_MS + minute * MINUTE_MS


@dataclass(frozen=True)
class Helios:
    """``rows``: the trace as it is; ``reference``: its independent totals."""

    rows: pd.DataFrame
    reference: dict[str, Any]

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Helios:
        rows = pd.read_csv(folder / "vc_minutes_rle.csv.gz", dtype={"vc": "str"})
        return cls(rows, json.loads((folder / "reference.json").read_text(encoding="utf-8")))

    @cached_property
    def vcs(self) -> list[str]:
        return sorted(self.rows["vc"].unique())

    def minutes(self, column: str) -> pd.DataFrame:
        """One row per minute, one column per virtual cluster: for sums by hand, not for the facts."""
        wide = self.rows.pivot(index="minute", columns="vc", values=column)
        return wide.reindex(np.arange(MINUTES)).ffill().astype("int64")

    def facts(self, first: int = 0, last: int = MINUTES) -> DetectorFacts:
        """As a detector sees the minutes from ``first`` up to ``last``, prices included."""
        window = Window(at(first), at(last))
        history = ClusterHistory(self._frames(window), window, TeamRules.default(), zero_is_gap=True)
        return DetectorFacts(CLUSTER, history, GpuTimePrices(history, _one_dollar))

    def _frames(self, window: Window) -> ClusterFrames:
        used = self._stretches(window, ["total_gpu_num", "running_gpu_num"])
        runs, waits = (
            self._stretches(window, ["running_gpu_num"]),
            self._stretches(window, ["pending_gpu_num"]),
        )
        runs, waits = runs[runs["running_gpu_num"] > 0], waits[waits["pending_gpu_num"] > 0]
        quota = self.rows.groupby("vc")["total_gpu_num"].first()
        nodes = pd.DataFrame({"node": quota.index, "start_ms": window.start_ms, "end_ms": window.end_ms})
        uid = runs["vc"] + "-" + runs["start_ms"].astype("str")
        names = {column.name: "" for column in HOLDER_COLUMNS}
        made = {
            "nodes": nodes.assign(
                cluster=CLUSTER, product="NVIDIA-V100", boards=quota.to_numpy(), instance_type="", region="",
                capacity_type="", zone="", pool="", labels="{}",
            ),
            "capacity": nodes.assign(
                cluster=CLUSTER, resource=GPU, expected=quota.to_numpy(), capacity=quota.to_numpy(),
                allocatable=quota.to_numpy(), replicas=1, schedulable=1,
            ),
            "observed": pd.DataFrame(
                {"cluster": [CLUSTER], "start_ms": [window.start_ms], "end_ms": [window.end_ms]}
            ),
            "allocations": runs[["start_ms", "end_ms"]].assign(
                **names, cluster=CLUSTER, node=runs["vc"], resource=GPU, count=runs["running_gpu_num"],
            ).assign(
                namespace=runs["vc"], pod=uid, pod_uid=uid, job_kind="Job", job=uid, job_uid=uid,
                queue=runs["vc"], cluster_queue=runs["vc"], flavor="v100", team_label=runs["vc"],
            ),
            "demand": waits[["start_ms", "end_ms"]].assign(
                cluster=CLUSTER, namespace=waits["vc"], job_kind="Job", job="pending", job_uid=waits["vc"],
                workload="", queue=waits["vc"], cluster_queue=waits["vc"], team_label=waits["vc"], pod_set="",
                resource=GPU, products="", pods=waits["pending_gpu_num"], min_pods=1, units=1, layer="quota",
                reason="",
            ),
            "quotas": used[["start_ms", "end_ms"]].assign(
                cluster=CLUSTER, scheduler="kueue", queue=used["vc"], cohort="", flavor="v100", resource=GPU,
                nominal=used["total_gpu_num"], borrowing_limit=np.nan, lending_limit=np.nan,
                used=used["running_gpu_num"],
            ),
        }  # fmt: skip
        return ClusterFrames(**{spec.name: _conformed(made.get(spec.name), spec) for spec in FRAMES})

    def _stretches(self, window: Window, columns: list[str]) -> pd.DataFrame:
        """Per virtual cluster, the stretches in which these columns stay the same, cut to the window."""
        rows = self.rows.sort_values(["vc", "minute"])[["vc", "minute", *columns]]
        new = (rows[["vc", *columns]] != rows[["vc", *columns]].shift()).any(axis=1)
        rows = rows[new]
        until = rows.groupby("vc")["minute"].shift(-1, fill_value=MINUTES)
        start = (START_MS + rows["minute"] * MINUTE_MS).clip(lower=window.start_ms)
        end = (START_MS + until * MINUTE_MS).clip(upper=window.end_ms)
        found = rows.assign(start_ms=start, end_ms=end)
        return found[found["start_ms"] < found["end_ms"]].reset_index(drop=True)


def _conformed(made: pd.DataFrame | None, spec: FrameSpec) -> pd.DataFrame:
    return empty_frame(spec) if made is None else conform(made.reset_index(drop=True), spec)


def _one_dollar(facts: NodeFacts, window: Window) -> Sequence[RateSpan]:
    del facts
    rate = Rate("r1", 1_000_000_000, "USD", 1_000_000_000, "model", "test", "2020-05-01")
    return (RateSpan(window.start_ms, window.end_ms, rate),)
