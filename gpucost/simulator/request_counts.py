"""What simulated servers count of their requests: the frame, and the counter that vLLM would export."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import SERVING
from gpucost.contract.metric_spec import escape
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import SECOND_MS
from gpucost.simulator.gpu_activity import GpuActivity
from gpucost.simulator.workloads import DrawnFloats, DrawnInts

REQUESTS = "vllm:request_success_total"
HEADER = (
    "# HELP vllm:request_success Count of successfully processed requests.\n"
    "# TYPE vllm:request_success counter\n"
)


@dataclass(frozen=True, slots=True)
class CounterCurve:
    """A counter that rises evenly between known points."""

    at_ms: DrawnInts
    total: DrawnFloats


def draw_serving(activity: GpuActivity, held: pd.DataFrame) -> pd.DataFrame:
    """The serving frame: servers count a request for each second, or part of one, in which a GPU worked."""
    serves = {kind.value for kind in JobKind if workload_class(kind) is WorkloadClass.SERVING}
    rows = activity.frame[held["job_kind"].isin(serves).to_numpy(bool)[activity.row]]
    work = np.fmax(rows["busy_ms"].to_numpy(np.float64), rows["sm_active_ms"].to_numpy(np.float64))
    by_step = rows.assign(requests=np.ceil(work / SECOND_MS)).groupby(
        ["cluster", "pod_uid", "start_ms", "end_ms"], observed=True, sort=True
    )
    found = by_step["requests"].sum().reset_index().assign(metric=REQUESTS, received_bytes=np.nan)
    return conform(found[list(SERVING.column_names)], SERVING)


@dataclass(frozen=True)
class RequestCounter:
    """The counter of one pod, with the labels that a scrape of the pod gives it; it exists as
    long as the pod."""

    labels: str
    curve: CounterCurve
    start_ms: int
    end_ms: int

    def line(self, at_ms: int) -> str:
        """The line that the pod exports at an instant."""
        value = float(np.floor(np.interp(at_ms, self.curve.at_ms, self.curve.total)))
        return f"{REQUESTS}{{{self.labels}}} {value!r}\n"


def request_counters(frames: ClusterFrames, serving: pd.DataFrame) -> Iterator[RequestCounter]:
    """Of the pods that have rows in ``serving``, by namespace and name."""
    here = frames.serving[frames.serving["pod_uid"].isin(serving["pod_uid"].unique())]
    lives = frames.allocations.sort_values("start_ms").drop_duplicates("pod_uid", keep="last")
    pods = lives.set_index("pod_uid").to_dict("index")
    ordered = here.sort_values(["pod_uid", "start_ms"], kind="stable")
    for uid, rows in ordered.groupby("pod_uid", observed=True, sort=True):
        pod = pods[str(uid)]
        values = rows["requests"].to_numpy(np.float64)
        after = np.cumsum(values)
        named = {"finished_reason": "stop", "model_name": pod["job"], "namespace": pod["namespace"]}
        labels = ",".join(
            f'{name}="{escape(str(value))}"' for name, value in [*named.items(), ("pod", pod["pod"])]
        )
        times = np.column_stack([rows["start_ms"], rows["end_ms"]]).ravel()
        total = np.column_stack([after - values, after]).ravel()
        start_ms, end_ms = int(rows["start_ms"].iloc[0]), int(pod["end_ms"])
        yield RequestCounter(labels, CounterCurve(times, total), start_ms, end_ms)
