"""A day of a large cluster, as frames and as its state at the end: made, but with something of everything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodTemplate,
    PodWaitReason,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    DEMAND,
    EVICTIONS,
    FRAMES,
    HEALTH,
    HOLDER_COLUMNS,
    NODES,
    QUOTAS,
    STALLS,
)
from gpucost.domain.jobs import OwnerReference
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month, Window

START = Month(2026, 9).window.start_ms
DAY = Window(START, START + DAY_MS)
STEP_MS = 5 * MINUTE_MS
STEPS = DAY_MS // STEP_MS
GPU = "nvidia.com/gpu"
BOARDS = 8
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
QUEUES, COHORTS = 50, 5
ALL_DAY = 300
"""Jobs that wait all day, most of them for whole nodes."""
WAITING = 2_000
"""Jobs that wait for some hours."""


@dataclass(frozen=True)
class Held:
    """Who holds which GPU when: arrays over pods. ``moved`` are GPUs that a second pod held."""

    gpu: Ints
    start: Ints
    end: Ints
    job: Ints
    second: Ints
    """By GPU: its second pod, or -1."""

    @classmethod
    def of(cls, nodes: int, pods: int, torn: float) -> Held:
        """One pod per GPU, and a second one, later in the day, on as many as it takes. One node in fifty is
        empty, ``torn`` of them have three GPUs that no pod holds; groups of four nodes share jobs of eight.
        """
        rng = np.random.default_rng(5)
        node = np.arange(nodes * BOARDS) // BOARDS
        slot = np.arange(nodes * BOARDS) % BOARDS
        gpu = np.flatnonzero((node % 50 != 7) & ~((node % 20 < 20 * torn) & (slot < 3)))
        moved = np.sort(rng.permutation(gpu)[: max(0, pods - len(gpu))])
        change = START + rng.integers(2 * HOUR_MS, 22 * HOUR_MS, len(moved))
        pause = np.where(rng.random(len(moved)) < 0.5, 0, rng.integers(0, 20 * MINUTE_MS, len(moved)))
        first = len(gpu)
        second = np.full(nodes * BOARDS, -1, dtype=np.int64)
        second[moved] = first + np.arange(len(moved))
        end = np.full(first, DAY.end_ms, dtype=np.int64)
        end[np.searchsorted(gpu, moved)] = change
        job = np.arange(first)
        shared = node[gpu] // 4 % 4 == 1
        job[shared] = pods + (node[gpu] // 4 * 4 + slot[gpu] // 2)[shared]
        return cls(
            gpu=np.concatenate([gpu, moved]),
            start=np.concatenate([np.full(first, START), change + pause]),
            end=np.concatenate([end, np.full(len(moved), DAY.end_ms)]),
            job=np.concatenate([job, first + np.arange(len(moved))]),
            second=second,
        )


def _names(stem: str, codes: Ints) -> pd.Series[str]:
    """Text as categories: what a source gives, and what a day in memory is kept as."""
    values = pd.Index([f"{stem}{i:06}" for i in range(int(codes.max(initial=0)) + 1)], dtype="str")
    return pd.Series(pd.Categorical.from_codes(codes, values))


def _alike(value: str, count: int) -> pd.Series[str]:
    codes = np.zeros(count, np.int8)
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index([value], dtype="str")))


def world(nodes: int, pods: int, torn: float = 0.2) -> ClusterFrames:
    held = Held.of(nodes, pods, torn)
    made = {spec.name: empty_frame(spec) for spec in FRAMES}
    made |= {
        "allocations": conform(_allocations(held), ALLOCATIONS),
        "activity": conform(_activity(held, nodes), ACTIVITY),
        "nodes": conform(_nodes(nodes), NODES),
        "capacity": conform(_capacity(nodes), CAPACITY),
        "demand": conform(_demand(), DEMAND),
        "quotas": conform(_quotas(nodes), QUOTAS),
        "stalls": conform(_stalls(held), STALLS),
        "evictions": conform(_evictions(held), EVICTIONS),
        "health": conform(_health(), HEALTH),
        "observed": pd.DataFrame({"cluster": ["c"], "start_ms": [DAY.start_ms], "end_ms": [DAY.end_ms]}),
    }
    return ClusterFrames(**made)


def _allocations(held: Held) -> pd.DataFrame:
    count = len(held.gpu)
    pod = np.arange(count)
    columns = {column.name: _alike("", count) for column in HOLDER_COLUMNS}
    team = _names("team-", pod % 40)
    queue = _names("cq-", pod % QUEUES)
    columns |= {"namespace": team, "team_label": team, "queue": queue, "cluster_queue": queue}
    columns |= dict.fromkeys(("pod", "pod_uid"), _names("pod-", pod))
    columns |= dict.fromkeys(("job", "job_uid"), _names("job-", held.job))
    columns["job_kind"] = _alike("Job", count)
    node = _names("node-", held.gpu // BOARDS)
    return pd.DataFrame(
        {"cluster": _alike("c", count), "node": node, **columns, "resource": _alike(GPU, count), "count": 1,
         "start_ms": held.start, "end_ms": held.end}
    )  # fmt: skip


def _activity(held: Held, nodes: int) -> pd.DataFrame:
    """A row per GPU and step, of the pod that held the GPU when the step began. One pod in fifty idles from
    noon on, one in fifty is hardly busy and uses little memory."""
    rng = np.random.default_rng(7)
    first = np.full(nodes * BOARDS, -1, dtype=np.int64)
    once = held.start == START
    first[held.gpu[once]] = np.flatnonzero(once)
    gpu, step = (part.ravel() for part in np.indices((nodes * BOARDS, STEPS), dtype=np.int32))
    begin = START + np.arange(STEPS) * STEP_MS
    later = np.where(held.second >= 0, held.start[held.second], DAY.end_ms)
    is_later = later[gpu] <= begin[step]
    who = np.where(is_later, held.second[gpu], first[gpu]).astype(np.int32)
    keep = (who >= 0) & (held.end[who] > begin[step])
    gpu, step, who = gpu[keep], step[keep], who[keep]
    busy = rng.beta(8, 2, len(who)).astype(np.float32)
    busy[(who % 50 == 3) & (step > STEPS // 2)] = 0
    busy[who % 50 == 4] *= 0.05
    start = begin[step]
    held_ms = (np.minimum(start + STEP_MS, held.end[who]) - start).astype(np.float64)
    return pd.DataFrame(
        {
            "cluster": _alike("c", len(who)),
            "node": _names("node-", gpu // BOARDS),
            "gpu": _names("GPU-", gpu),
            "pod_uid": _names("pod-", who),
            "start_ms": start,
            "end_ms": start + STEP_MS,
            "held_ms": held_ms,
            "observed_ms": held_ms,
            "busy_ms": busy * held_ms,
            "sm_observed_ms": held_ms,
            "sm_active_ms": busy * 0.5 * held_ms,
            "memory_used_bytes": np.where(who % 50 == 4, 5.0, 60.0) * 2**30,
            "memory_total_bytes": 80.0 * 2**30,
            "energy_j": (80 + 500 * busy) * held_ms / 1000,
        },
        copy=False,
    )


def _product(node: int) -> str:
    return A100 if node % 10 == 0 else H100


def _nodes(nodes: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"cluster": "c", "node": [f"node-{i:06}" for i in range(nodes)], "start_ms": DAY.start_ms,
         "end_ms": DAY.end_ms, "product": [_product(i) for i in range(nodes)], "boards": BOARDS,
         "instance_type": "p5", "capacity_type": "on-demand", "region": "r", "zone": "z",
         "pool": [f"pool-{i % 10}" for i in range(nodes)], "labels": "{}"}
    )  # fmt: skip


def _capacity(nodes: int) -> pd.DataFrame:
    """One node in five hundred lacks a GPU; as many are cordoned."""
    lacks = np.where(np.arange(nodes) % 500 == 11, 1, 0)
    return pd.DataFrame(
        {"cluster": "c", "node": [f"node-{i:06}" for i in range(nodes)], "resource": GPU,
         "start_ms": DAY.start_ms, "end_ms": DAY.end_ms, "expected": BOARDS, "capacity": BOARDS - lacks,
         "allocatable": BOARDS - lacks, "replicas": 1,
         "schedulable": (np.arange(nodes) % 500 != 12).astype(np.int64)}
    )  # fmt: skip


def _demand() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    count = ALL_DAY + WAITING
    job, is_long = np.arange(count), np.arange(count) < ALL_DAY
    start = DAY.start_ms + np.where(is_long, rng.integers(0, HOUR_MS, count), rng.integers(0, DAY_MS, count))
    end = np.where(is_long, DAY.end_ms, start + rng.integers(20 * MINUTE_MS, 8 * HOUR_MS, count))
    units = np.where(
        is_long, rng.choice([4, 8], count), rng.choice([1, 2, 4, 8], count, p=[0.1, 0.1, 0.3, 0.5])
    )
    pods = np.where(is_long, rng.choice([1, 4, 16, 64], count), rng.choice([1, 2, 4, 32], count))
    queue = [f"cq-{n % QUEUES:06}" for n in job.tolist()]
    return pd.DataFrame(
        {"cluster": "c", "namespace": [f"team-{n % 40:06}" for n in job.tolist()], "job_kind": "Job",
         "job": [f"wait-{n}" for n in job.tolist()], "job_uid": [f"wait-{n}" for n in job.tolist()],
         "workload": "", "queue": queue, "cluster_queue": queue, "team_label": "", "pod_set": "",
         "resource": GPU, "products": rng.choice(["", H100, A100, f"{A100}|{H100}"], count), "pods": pods,
         "min_pods": np.where(job % 3 == 0, 1, pods), "units": units,
         "layer": rng.choice(["quota", "placement"], count), "reason": "", "start_ms": start,
         "end_ms": np.minimum(end, DAY.end_ms)}
    )  # fmt: skip


def _quotas(nodes: int) -> pd.DataFrame:
    """What each queue may use, and every quarter of an hour what it uses."""
    rng = np.random.default_rng(8)
    parts = DAY_MS // (15 * MINUTE_MS)
    queue, part = (each.ravel() for each in np.indices((QUEUES, parts)))
    nominal = float(nodes * BOARDS // QUEUES)
    used = np.round(nominal * rng.uniform(0.6, 1.2, len(queue)))
    start = DAY.start_ms + part * 15 * MINUTE_MS
    return pd.DataFrame(
        {"cluster": "c", "scheduler": "kueue", "queue": [f"cq-{n:06}" for n in queue.tolist()],
         "cohort": [f"cohort-{n % COHORTS}" for n in queue.tolist()], "flavor": "f", "resource": GPU,
         "start_ms": start, "end_ms": start + 15 * MINUTE_MS, "nominal": nominal, "borrowing_limit": np.nan,
         "lending_limit": np.nan, "used": np.where(queue % 10 == 0, 0.2 * nominal, used)}
    )  # fmt: skip


def _stalls(held: Held) -> pd.DataFrame:
    """Every fifth of the jobs of eight once lacked two of its members."""
    shared = np.unique(held.job[held.job >= len(held.gpu)])[::5].tolist()
    name = [f"job-{n:06}" for n in shared]
    start = DAY.start_ms + 3 * HOUR_MS
    return pd.DataFrame(
        {"cluster": "c", "gang": name, "namespace": "team-000001", "job_kind": "Job", "job": name,
         "job_uid": name, "queue": "", "min_members": 8, "running": 6, "pending": 2, "start_ms": start,
         "end_ms": [start + (1 + n % 5) * HOUR_MS for n in shared]}
    )  # fmt: skip


def _evictions(held: Held) -> pd.DataFrame:
    """One in ten of the pods that ended before the day did."""
    over = np.flatnonzero(held.end < DAY.end_ms)[::10]
    return pd.DataFrame(
        {"cluster": "c", "pod_uid": [f"pod-{n:06}" for n in over.tolist()],
         "job_uid": [f"job-{n:06}" for n in held.job[over].tolist()], "queue": "",
         "start_ms": held.start[over], "end_ms": held.end[over], "reason": "Preempted", "by": "",
         "checkpoint_ms": -1}
    )  # fmt: skip


def _health() -> pd.DataFrame:
    gpu = np.arange(0, 20 * 160, 160).tolist()
    return pd.DataFrame(
        {"cluster": "c", "node": [f"node-{n // BOARDS:06}" for n in gpu], "gpu": [f"GPU-{n:06}" for n in gpu],
         "start_ms": DAY.start_ms + HOUR_MS, "end_ms": DAY.end_ms, "reason": "lost"}
    )  # fmt: skip


def overview(frames: ClusterFrames) -> ClusterOverview:
    """The state at the end of the day: all nodes, the pods that run, and those of the jobs that wait."""
    nodes, pods = {}, {}
    columns = (frames.capacity[name].tolist() for name in ("node", "allocatable", "schedulable"))
    products = frames.nodes["product"].tolist()
    for (name, units, schedulable), product in zip(zip(*columns, strict=True), products, strict=True):
        has = {GPU: units, "cpu": 96_000, "pods": 110}
        meta = ObjectMeta(
            name, "", name, START, {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product}, {}
        )
        ready = Node(meta, has, has, True, START, not schedulable, product, expected={GPU: BOARDS})
        nodes[name] = ready
    held = frames.allocations[frames.allocations["end_ms"] >= DAY.end_ms]
    names = ("pod", "namespace", "node", "job", "start_ms")
    template = PodTemplate({GPU: 1, "cpu": 8_000})
    for pod, namespace, node, job, start in zip(*(held[name].tolist() for name in names), strict=True):
        own = ObjectMeta(pod, namespace, pod, start, {}, {}, OwnerReference("batch/v1", "Job", job, job))
        pods[pod] = Pod(own, PodPhase.RUNNING, template, node, start, ready_ms=start)
    waits = frames.demand[frames.demand["end_ms"] >= DAY.end_ms]
    names = ("job", "namespace", "products", "pods", "units", "start_ms")
    for job, namespace, products_, count, units, start in zip(
        *(waits[name].tolist() for name in names), strict=True
    ):
        selector = {} if not products_ or "|" in products_ else {"nvidia.com/gpu.product": products_}
        asked = PodTemplate({GPU: units, "cpu": 8_000 * units}, selector)
        for n in range(count):
            own = ObjectMeta(
                f"{job}-{n}",
                namespace,
                f"{job}-{n}",
                start,
                {},
                {},
                OwnerReference("batch/v1", "Job", job, job),
            )
            waiting = PodWaitReason("Unschedulable", "", start)
            pods[f"{job}-{n}"] = Pod(own, PodPhase.PENDING, asked, waiting=waiting)
    return ClusterOverview(ClusterState(DAY.end_ms, nodes=nodes, pods=pods))
