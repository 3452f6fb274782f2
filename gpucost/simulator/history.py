"""The frames that only detectors read, of the simulated month: waits, stalls, evictions, broken GPUs, quotas,
and what servers count of their requests.

``demand``, ``evictions``, ``stalls`` and ``health`` make the first ones; ``quotas`` is what each queue may
use, and used over the month. Of requests there is also the counter that vLLM would export.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import DEMAND, EVICTIONS, HEALTH, QUOTAS, SERVING, STALLS
from gpucost.contract.metric_spec import escape
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import HOUR_MS, SECOND_MS, Window
from gpucost.simulator.gpu_activity import GpuActivity
from gpucost.simulator.injected_patterns import StagedWait
from gpucost.simulator.inventory import POOLS, SimulatedNode
from gpucost.simulator.scheduler import PodPlacement, SchedulingWait, SimulatedOutcome
from gpucost.simulator.workloads import DrawnFloats, DrawnInts, JobSubmission

_WAITING_FOR_QUOTA, _UNSCHEDULABLE = "WaitingForQuota", "Unschedulable"
_SAVES = (JobKind.PYTORCH_JOB, JobKind.TRAIN_JOB)
_SAVE_EVERY_MS = HOUR_MS
REQUESTS = "vllm:request_success_total"
HEADER = (
    "# HELP vllm:request_success Count of successfully processed requests.\n"
    "# TYPE vllm:request_success counter\n"
)


@dataclass(frozen=True, slots=True)
class StepSeries:
    """A number that changes at ``at_ms`` to ``value``; 0 before the first."""

    at_ms: DrawnInts
    value: DrawnInts

    @classmethod
    def of(cls, changes: Sequence[tuple[int, int]]) -> StepSeries:
        """From (instant, change) pairs in any order."""
        if not changes:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        at, change = np.array(changes, dtype=np.int64).T
        instants, where = np.unique(at, return_inverse=True)
        return cls(instants, np.cumsum(np.bincount(where, weights=change)).astype(np.int64))

    def at(self, at_ms: int) -> int:
        """The value at an instant."""
        position = int(np.searchsorted(self.at_ms, at_ms, "right"))
        return int(self.value[position - 1]) if position else 0

    def within(self, window: Window) -> Iterator[tuple[int, int, int]]:
        """(start, end, value) of the stretches in ``window``; neighbours differ."""
        begun, value = window.start_ms, 0
        until = int(np.searchsorted(self.at_ms, window.end_ms, "left"))
        first = max(0, int(np.searchsorted(self.at_ms, window.start_ms, "right")) - 1)
        for at, new in zip(self.at_ms[first:until].tolist(), self.value[first:until].tolist(), strict=True):
            if at > begun and new != value:
                yield begun, at, value
                begun = at
            value = new
        yield begun, window.end_ms, value


def free_units(
    nodes: Sequence[SimulatedNode], placements: Sequence[PodPlacement]
) -> dict[tuple[str, str], StepSeries]:
    """Units that are free over time, by pool and resource; those of cordoned nodes are not."""
    changes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    pools = {node.name: node for node in nodes}
    for node in nodes:
        for offer in node.offers:
            found = changes.setdefault((node.pool, offer.resource), [])
            found += [(node.start_ms, offer.units), (node.end_ms, -offer.units)]
            for spell in node.spells:
                away = offer.units if spell.cordoned else spell.lost
                found += [(spell.start_ms, -away), (spell.end_ms, away)]
    for pod in placements:
        units = pod.submission.units
        found = changes[pools[pod.node].pool, pod.submission.resource]
        cordoned = [spell for spell in pools[pod.node].spells if spell.cordoned]
        # Units that a cordoned node still has are counted as away already.
        end_ms = min([pod.end_ms, *(s.start_ms for s in cordoned if pod.start_ms < s.start_ms < pod.end_ms)])
        found += [(pod.start_ms, -units), (end_ms, units)]
    return {key: StepSeries.of(found) for key, found in changes.items()}


def demand(
    cluster: str,
    waits: Sequence[SchedulingWait],
    held: Sequence[StagedWait],
    free: Mapping[tuple[str, str], StepSeries],
    nodes: Sequence[SimulatedNode],
) -> pd.DataFrame:
    """The demand frame. While its pool has too little free, a job waits for quota, which is all there is;
    else the free units are in the wrong places. A job that no queue manages always waits for a node."""
    products = {(node.pool, offer.resource): node.product for node in nodes for offer in node.offers}
    rows = []
    for wait in waits:
        sub = wait.submission
        window = Window(wait.start_ms, wait.end_ms)
        for start_ms, end_ms, layer in _layers(sub, window, free[sub.pool, sub.resource]):
            reason = _WAITING_FOR_QUOTA if layer is WaitLayer.QUOTA else _UNSCHEDULABLE
            rows.append(_demand_row(cluster, sub, products, layer, reason, start_ms, end_ms))
    for each in held:
        sub = each.wait.submission
        times = each.wait.start_ms, each.wait.end_ms
        rows.append(_demand_row(cluster, sub, products, each.layer, each.reason, *times))
    frame = conform(
        pd.DataFrame(rows, columns=[each.name for each in DEMAND.columns if not each.may_lack]), DEMAND
    )
    return frame.sort_values(["start_ms", "job_uid"], kind="stable").reset_index(drop=True)


def _layers(sub: JobSubmission, window: Window, free: StepSeries) -> Iterator[tuple[int, int, WaitLayer]]:
    last: tuple[int, int, WaitLayer] | None = None
    for start_ms, end_ms, units in free.within(window):
        layer = _layer(sub, units)
        if last is not None and last[2] is layer:
            last = (last[0], end_ms, layer)
            continue
        if last is not None:
            yield last
        last = (start_ms, end_ms, layer)
    if last is not None:
        yield last


def _layer(sub: JobSubmission, free_units: int) -> WaitLayer:
    fits = free_units >= sub.pods * sub.units or not sub.job.team.queue
    return WaitLayer.PLACEMENT if fits else WaitLayer.QUOTA


def layer_at(sub: JobSubmission, free: StepSeries, at_ms: int) -> WaitLayer:
    """The layer that holds a waiting job at an instant."""
    return _layer(sub, free.at(at_ms))


def workload_name(submission: JobSubmission) -> str:
    """The Kueue Workload of a job, empty where no queue manages it."""
    job = submission.job
    return f"{job.kind.value.lower()}-{job.name}" if job.team.queue else ""


def _demand_row(
    cluster: str,
    sub: JobSubmission,
    products: Mapping[tuple[str, str], str],
    layer: WaitLayer,
    reason: str,
    start_ms: int,
    end_ms: int,
) -> dict[str, Any]:
    job = sub.job
    return {
        "cluster": cluster, "namespace": job.namespace, "job_kind": job.kind.value, "job": job.name,
        "job_uid": job.uid, "workload": workload_name(sub), "queue": job.team.queue,
        "cluster_queue": job.team.cluster_queue, "team_label": job.team.name if job.labelled else "",
        "pod_set": "", "resource": sub.resource, "products": products[sub.pool, sub.resource],
        "pods": sub.pods, "min_pods": sub.pods, "units": sub.units, "layer": layer.value, "reason": reason,
        "start_ms": start_ms, "end_ms": end_ms,
    }  # fmt: skip


def evictions(
    cluster: str, pods: Sequence[tuple[PodPlacement, str]], unseen: Sequence[PodPlacement]
) -> pd.DataFrame:
    """The evictions frame. ``pods`` are placements with their uids; ``unseen`` those whose end was not
    observed."""
    lost = {id(pod) for pod in unseen}
    reasons = {SimulatedOutcome.PREEMPTED: "Preempted", SimulatedOutcome.EVICTED: "Drain"}
    rows = [
        {
            "cluster": cluster,
            "pod_uid": uid,
            "job_uid": pod.submission.job.uid,
            "queue": pod.submission.job.team.queue,
            "start_ms": pod.start_ms,
            "end_ms": pod.end_ms,
            "reason": reasons[pod.outcome],
            "by": pod.by,
            "checkpoint_ms": _checkpoint(pod),
        }
        for pod, uid in pods
        if pod.outcome in reasons and id(pod) not in lost
    ]
    frame = pd.DataFrame(rows, columns=list(EVICTIONS.column_names))
    return conform(frame.sort_values(["end_ms", "pod_uid"], ignore_index=True), EVICTIONS)


def _checkpoint(pod: PodPlacement) -> int:
    """The time of the last checkpoint, -1 for none: training saves every hour, and reports it; other work
    does not."""
    if pod.submission.job.kind not in _SAVES or pod.end_ms - pod.start_ms < _SAVE_EVERY_MS:
        return -1
    return pod.end_ms - (pod.end_ms - pod.start_ms) % _SAVE_EVERY_MS


def stalls(cluster: str, placements: Sequence[PodPlacement]) -> pd.DataFrame:
    """The stalls frame: gangs whose pods of one attempt did not begin together."""
    gangs: dict[tuple[str, int, int], list[PodPlacement]] = {}
    for pod in placements:
        if pod.submission.pods > 1:
            gangs.setdefault((pod.submission.job.uid, pod.submission.attempt, pod.end_ms), []).append(pod)
    rows = []
    for members in gangs.values():
        for begun_ms, next_ms in pairwise(sorted({pod.start_ms for pod in members})):
            sub = members[0].submission
            running = sum(pod.start_ms <= begun_ms for pod in members)
            rows.append(
                {
                    "cluster": cluster, "gang": sub.job.uid, "namespace": sub.job.namespace,
                    "job_kind": sub.job.kind.value, "job": sub.job.name, "job_uid": sub.job.uid,
                    "queue": sub.job.team.queue, "min_members": sub.pods, "running": running,
                    "pending": sub.pods - running, "start_ms": begun_ms, "end_ms": next_ms,
                }
            )  # fmt: skip
    return conform(pd.DataFrame(rows, columns=list(STALLS.column_names)), STALLS)


def health(cluster: str, broken: Sequence[tuple[str, str, Window, str]]) -> pd.DataFrame:
    """The health frame, from (node, gpu, window, reason)."""
    rows = [
        {
            "cluster": cluster, "node": node, "gpu": gpu, "start_ms": window.start_ms,
            "end_ms": window.end_ms, "reason": reason, "pod_uid": "", "resource": "",
        }
        for node, gpu, window, reason in sorted(broken, key=lambda each: each[:2])
    ]  # fmt: skip
    return conform(pd.DataFrame(rows, columns=list(HEALTH.column_names)), HEALTH)


COHORT = "company"
PLATFORM, RELEASE = "platform", "release"
RELEASE_UNITS = 16
"""Units that are kept for releases, which hardly use them."""
RELEASE_POOL = "h100"
# Of each pool product's queue owns this part, research the rest; together they may use all of it.
_PRODUCT_PART = {"h100": 1 / 12, "a100": 1 / 3, "a100-owned": 1.0, "l4-spot": 0.75}
_NO_BORROWING = ("product", "h100")


@dataclass(frozen=True, slots=True)
class SimulatedQueueQuota:
    """Quota of a ClusterQueue; ``borrowing_limit`` None: unlimited."""

    queue: str
    cohort: str
    flavor: str
    resource: str
    nominal: int
    borrowing_limit: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.queue, self.flavor, self.resource


def queue_quotas(placements: Sequence[PodPlacement], scale: int = 1) -> list[SimulatedQueueQuota]:
    """All quotas. Research and product share the hardware between them; platform's own quota is promised
    beside it, and is the most it ever used."""
    found = []
    peaks = {key: int(steps.value.max()) for key, steps in _used(placements).items()}
    for pool in POOLS:
        for offer in pool.offers:
            total = offer.units * pool.nodes * scale
            product = round(total * _PRODUCT_PART.get(pool.name, 0.5))
            for queue, nominal in (("research", total - product), ("product", product)):
                limit = 0 if (queue, pool.name) == _NO_BORROWING else None
                found.append(SimulatedQueueQuota(queue, COHORT, pool.name, offer.resource, nominal, limit))
            peak = peaks.get((PLATFORM, pool.name, offer.resource), 0)
            if peak:
                found.append(SimulatedQueueQuota(PLATFORM, "", pool.name, offer.resource, 2 * ceil(peak / 2)))
            if pool.name == RELEASE_POOL:
                found.append(
                    SimulatedQueueQuota(RELEASE, "", pool.name, offer.resource, RELEASE_UNITS * scale)
                )
    return found


def quotas(
    cluster: str, placements: Sequence[PodPlacement], kinds: Sequence[SimulatedQueueQuota], month: Window
) -> pd.DataFrame:
    """The quotas frame: a row whenever what a queue uses changes."""
    used = _used(placements)
    nothing = StepSeries.of(())
    rows = [
        {
            "cluster": cluster, "scheduler": "kueue", "queue": kind.queue, "cohort": kind.cohort,
            "flavor": kind.flavor, "resource": kind.resource, "start_ms": start_ms, "end_ms": end_ms,
            "nominal": float(kind.nominal), "lending_limit": float("nan"), "used": float(units),
            "own_cohort": kind.cohort,
            "borrowing_limit": float("nan") if kind.borrowing_limit is None else float(kind.borrowing_limit),
        }
        for kind in kinds
        for start_ms, end_ms, units in used.get(kind.key, nothing).within(month)
    ]  # fmt: skip
    return conform(pd.DataFrame(rows, columns=list(QUOTAS.column_names)), QUOTAS)


def _used(placements: Sequence[PodPlacement]) -> Mapping[tuple[str, str, str], StepSeries]:
    changes: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for pod in placements:
        sub = pod.submission
        if sub.job.team.cluster_queue:
            key = (sub.job.team.cluster_queue, sub.pool, sub.resource)
            changes.setdefault(key, []).extend([(pod.start_ms, sub.units), (pod.end_ms, -sub.units)])
    return {key: StepSeries.of(found) for key, found in changes.items()}


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
