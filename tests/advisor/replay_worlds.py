"""Small histories for tests of replays: two queues of one cohort on two nodes, and plain lines."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from gpucost.advisor.kueue.requests import PodSetRequest
from gpucost.advisor.replay.history_record import (
    HistoryJob,
    JobRecord,
    KueueRecord,
    PoolRecord,
    ReplayHistory,
)
from gpucost.advisor.replay.kueue_replay import ReplayTimings
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorQuota,
    FlavorResource,
    ResourceFlavor,
    ResourceGroup,
)
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import DAY_MS, MINUTE_MS, Month, Window

BEGIN_MS = Month.parse("2026-10").window.start_ms
WINDOW = Window(BEGIN_MS, BEGIN_MS + DAY_MS)
GPU, FLAVOR = "nvidia.com/gpu", "h100"
KEY = FlavorResource(FLAVOR, GPU)


def job(
    uid: str,
    minute: int,
    minutes: int,
    gpus: int = 8,
    queue: str = "a",
    *,
    user: str = "",
    priority: int = 0,
    started: int | None = None,
) -> HistoryJob:
    """One that comes and runs at minutes of the window; ``started`` is when it really did."""
    record = None
    if started is not None:
        start_ms = BEGIN_MS + started * MINUTE_MS
        record = JobRecord((start_ms,), ended_ms=start_ms + minutes * MINUTE_MS)
    return HistoryJob(
        uid,
        BEGIN_MS + minute * MINUTE_MS,
        minutes * MINUTE_MS,
        gpus,
        queue,
        FLAVOR,
        f"space/{uid}",
        f"team-{queue}",
        user,
        priority,
        (PodSetRequest("main", 1, 1, {GPU: gpus}, PodTemplate({})),),
        record=record,
    )


def meta(name: str) -> ObjectMeta:
    return ObjectMeta(f"uid of {name}", "", name, 0, {}, {})


def queue(name: str, nominal: int, **more: object) -> ClusterQueue:
    group = ResourceGroup((GPU,), (FLAVOR,))
    preemption = ClusterQueuePreemption("LowerPriority", "Any")
    found = ClusterQueue(meta(name), "all", groups=(group,), quotas={KEY: FlavorQuota(nominal)})
    return replace(found, preemption=preemption, **more)  # type: ignore[arg-type]


def kueue_history(*jobs: HistoryJob, nodes: int = 2, has_nodes: bool = True) -> ReplayHistory:
    """Queues ``a`` and ``b`` with 8 GPUs each, on ``nodes`` nodes of 8."""
    queues = {each.meta.uid: each for each in (queue("a", 8), queue("b", 8))}
    cohort = Cohort(meta("all"))
    state = ClusterState(
        0,
        cluster_queues=queues,
        cohorts={cohort.meta.uid: cohort},
        flavors={FLAVOR: ResourceFlavor(meta(FLAVOR))},
    )
    pool = PoolRecord(FLAVOR, 8, ((BEGIN_MS, nodes),), "H100", Fraction(2_000_000_000), FLAVOR, GPU)
    record = KueueRecord(state, KueueConfig("v0.19.2"), ReplayTimings(0, 1_000))
    return ReplayHistory(
        "small", WINDOW, jobs, {FLAVOR: pool}, record, has_nodes=has_nodes, currency="USD", cluster="one"
    )


def fifo_history(*jobs: HistoryJob, nodes: int = 1) -> ReplayHistory:
    """One line on nodes of 8."""
    plain = tuple(replace(each, pod_sets=(), pool="line", queue="line") for each in jobs)
    pool = PoolRecord("line", 8, ((BEGIN_MS, nodes),), "V100", Fraction(1_000_000_000))
    return ReplayHistory("plain", WINDOW, plain, {"line": pool}, currency="USD", cluster="one")
