"""A large cluster under Kueue, for benchmarks of the advisor."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.kueue.cycle_simulation import CycleSandbox
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorQuota,
    FlavorResource,
    LocalQueue,
    PodSetAssignment,
    ResourceFlavor,
    ResourceGroup,
    Workload,
)
from gpucost.cluster.objects.metadata import ObjectMeta, StatusCondition
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodSet,
    PodTemplate,
)
from gpucost.cluster.objects.scheduler_config import KueueConfig, SchedulerConfigs
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.quota import QuotaUse
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, parse_instant

NOW = parse_instant("2026-10-24T01:00:00Z")
GPU = "nvidia.com/gpu"
FLAVORS = ("h100", "a100", "l40s")
QUEUES_PER_COHORT = 10
GPUS_PER_QUEUE = 40
HELD_PER_QUEUE, WAITING_PER_QUEUE = 20, 10
NODES_PER_QUEUE = 5
MOST_CYCLES_TO_SETTLE = 400
_LIKE_KUEUE = "couldn't assign flavors to pod set main: insufficient unused quota"


def cluster(size: float = 1.0, fair_sharing: bool = False) -> ClusterState:
    """With ``size`` 1: 1,000 ClusterQueues in 100 trees of cohorts, 20,000 admitted workloads with their pods
    on 5,000 nodes of 8 GPUs, 10,000 that wait. Every queue is used to its quota; every second tree has two
    levels of cohorts; policies of preemption differ from queue to queue."""
    random = Random(7)
    trees = max(1, round(100 * size))
    queues = [_queue(f"q{at}", _parent(at), random) for at in range(trees * QUEUES_PER_COHORT)]
    cohorts = [_cohort(name) for name in sorted({queue.cohort for queue in queues})]
    nodes = [_node(f"n{at}", FLAVORS[at % len(FLAVORS)]) for at in range(len(queues) * NODES_PER_QUEUE)]
    held, pods = _held(queues, nodes, random)
    waiting = [
        _waiting(f"{queue.name}-w{at}", queue, random) for queue in queues for at in range(WAITING_PER_QUEUE)
    ]
    locals_ = [LocalQueue(_meta("main", queue.name, f"{queue.name}/main"), queue.name) for queue in queues]
    return ClusterState(
        NOW,
        pods={pod.meta.uid: pod for pod in pods},
        nodes={node.meta.uid: node for node in nodes},
        cluster_queues={queue.meta.uid: queue for queue in queues},
        local_queues={queue.meta.uid: queue for queue in locals_},
        cohorts={cohort.meta.uid: cohort for cohort in cohorts},
        flavors={name: ResourceFlavor(_meta(name), {"pool": name}) for name in FLAVORS},
        workloads={each.meta.uid: each for each in (*held, *waiting)},
        schedulers=SchedulerConfigs(KueueConfig("v0.19.2", fair_sharing, is_read=True)),
    )


def _parent(at: int) -> str:
    tree = at // QUEUES_PER_COHORT
    return f"c{tree}-{at % 2}" if tree % 2 else f"c{tree}"


def _cohort(name: str) -> Cohort:
    tree, dash, _ = name.partition("-")
    return Cohort(_meta(name), tree if dash else "")


def _queue(name: str, cohort: str, random: Random) -> ClusterQueue:
    each = GPUS_PER_QUEUE // 2
    quotas = {
        FlavorResource(flavor, GPU): FlavorQuota(each if at < 2 else 0, random.choice((None, 8, 16)))
        for at, flavor in enumerate(FLAVORS)
    }
    return ClusterQueue(
        _meta(name),
        cohort,
        random.choice(("BestEffortFIFO", "BestEffortFIFO", "StrictFIFO")),
        (ResourceGroup((GPU,), FLAVORS),),
        quotas,
        ClusterQueuePreemption(
            random.choice(("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
            random.choice(("Never", "LowerPriority", "Any")),
            random.choice(("Never", "LowerPriority")),
        ),
        namespace_selector=(),
        conditions={"Active": StatusCondition(True, "Ready", "", NOW - DAY_MS)},
    )


def _node(name: str, flavor: str) -> Node:
    has = {GPU: 8, "cpu": 96_000, "pods": 110}
    return Node(_meta(name, labels={"pool": flavor}), has, has, True, NOW - DAY_MS, False, boards=8)


def _held(queues: list[ClusterQueue], nodes: list[Node], random: Random) -> tuple[list[Workload], list[Pod]]:
    free = {
        flavor: [[node.meta.name, 8] for node in nodes if node.labels["pool"] == flavor] for flavor in FLAVORS
    }
    held, pods = [], []
    for queue in queues:
        for at in range(HELD_PER_QUEUE):
            flavor = FLAVORS[at % 2]
            count, gpus = random.choice(((1, 2), (2, 1), (1, 1), (3, 1)))
            name = f"{queue.name}-h{at}"
            since = NOW - random.randrange(MINUTE_MS, 12 * HOUR_MS)
            template = PodTemplate({GPU: gpus}, {"pool": flavor})
            yes = StatusCondition(True, "QuotaReserved", "", since)
            held.append(
                Workload(
                    _meta(name, queue.name, created_ms=since - HOUR_MS),
                    (PodSet("main", count, template),),
                    "main",
                    random.choice((0, 0, 50, 100)),
                    cluster_queue=queue.name,
                    assignments=(PodSetAssignment("main", {GPU: flavor}, {GPU: count * gpus}, count),),
                    conditions={"QuotaReserved": yes, "Admitted": yes},
                )
            )
            pods += _placed(name, queue.name, template, count, free[flavor], since)
    return held, pods


def _placed(
    workload: str, namespace: str, template: PodTemplate, count: int, free: list[list[object]], since: int
) -> list[Pod]:
    placed = []
    for at in range(count):
        gpus = template.requests[GPU]
        while free and int(str(free[-1][1])) < gpus:
            free.pop()
        if not free:
            break
        free[-1][1] = int(str(free[-1][1])) - gpus
        meta = _meta(
            f"{workload}-{at}", namespace, annotations={"kueue.x-k8s.io/workload": workload}, created_ms=since
        )
        placed.append(Pod(meta, PodPhase.RUNNING, template, str(free[-1][0]), since, ready_ms=since))
    return placed


def _waiting(name: str, queue: ClusterQueue, random: Random) -> Workload:
    count, gpus = random.choice(((1, 8), (2, 8), (4, 4), (8, 1)))
    no = StatusCondition(False, "Pending", _LIKE_KUEUE, NOW - HOUR_MS)
    return Workload(
        _meta(name, queue.name, created_ms=NOW - random.randrange(MINUTE_MS, 12 * HOUR_MS)),
        (PodSet("main", count, PodTemplate({GPU: gpus})),),
        "main",
        random.choice((0, 0, 50)),
        conditions={"QuotaReserved": no},
    )


def _meta(
    name: str,
    namespace: str = "",
    uid: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    created_ms: int = NOW - DAY_MS,
) -> ObjectMeta:
    return ObjectMeta(uid or name, namespace, name, created_ms, labels or {}, annotations or {})


def settled(state: ClusterState) -> ClusterState:
    """The state once Kueue has done all it can do with it, as one finds a cluster that has run for a while:
    every workload that fits is admitted, every one that can be preempted for another is, and the rest has
    been tried."""
    view = KueueView(state, state.schedulers.kueue)
    workloads = dict(state.workloads)
    for tree in sorted({min(view.tree(name)) for name in view.snapshot.queues}):
        box = CycleSandbox(view.snapshot, view.lines_of(tree))
        box.wake()
        changed, cycles = True, 0
        while changed and cycles < MOST_CYCLES_TO_SETTLE:
            _, changed = box.cycle()
            cycles += 1
        for name in view.tree(tree):
            for uid, member in view.snapshot.queues[name].members.items():
                workloads[uid] = _with_quota(workloads[uid], name, member.usage)
            for ask in (*box.lines[name].heap, *box.lines[name].parked):
                workloads[ask.uid] = _without_quota(workloads[ask.uid])
    held = {uid for uid, each in workloads.items() if each.has_quota}
    pods = {
        uid: pod for uid, pod in state.pods.items() if pod.meta.annotations["kueue.x-k8s.io/workload"] in held
    }
    return replace(state, workloads=workloads, pods=pods)


def _with_quota(workload: Workload, queue: str, usage: QuotaUse) -> Workload:
    if workload.has_quota:
        return workload
    (flavor,) = {key.flavor for key in usage}
    total = {key.resource: amount for key, amount in usage.items()}
    yes = StatusCondition(True, "QuotaReserved", "", NOW - MINUTE_MS)
    given = PodSetAssignment("main", dict.fromkeys(total, flavor), total, workload.pod_sets[0].count)
    return replace(
        workload,
        cluster_queue=queue,
        assignments=(given,),
        conditions={"QuotaReserved": yes, "Admitted": yes},
    )


def _without_quota(workload: Workload) -> Workload:
    if not workload.has_quota:
        return workload
    no = StatusCondition(False, "Pending", _LIKE_KUEUE, NOW - HOUR_MS)
    return replace(workload, cluster_queue="", assignments=(), conditions={"QuotaReserved": no})
