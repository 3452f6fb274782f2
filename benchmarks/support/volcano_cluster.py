"""A large cluster under Volcano, and how long its answers take."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

from gpucost.advisor.volcano.answer import volcano_answer
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodSet,
    PodTemplate,
)
from gpucost.cluster.objects.scheduler_config import SchedulerConfigs, VolcanoConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, parse_instant

NOW = parse_instant("2026-10-24T01:00:00Z")
GPU = "nvidia.com/gpu"
BY_WEIGHT = VolcanoConfig(is_read=True)
EVICTING = replace(BY_WEIGHT, actions=("enqueue", "allocate", "preempt", "reclaim", "backfill"))
_TIERS = (("priority", "gang", "conformance"), ("overcommit", "drf", "predicates", "capacity", "nodeorder"))
TREE = VolcanoConfig(tiers=_TIERS, arguments={"capacity": {"enableHierarchy": "true"}}, is_read=True)
_LETS_IN = {"overcommit": {"overcommit-factor": "4"}}
CONFIGS = {
    "weight": BY_WEIGHT,
    "walk": replace(BY_WEIGHT, arguments=_LETS_IN),
    "tree_walk": replace(TREE, arguments={**TREE.arguments, **_LETS_IN}),
    "evicting": replace(EVICTING, arguments=_LETS_IN),
}
"""By weight, as the chart has it: most are refused at enqueue. Elsewhere overcommit lets them in, and they
are tried on nodes, thousands in one session."""
SHAPES = ((1, 1), (1, 8), (2, 8), (4, 4))


def volcano_cluster(size: float = 1.0) -> ClusterState:
    """With ``size`` 1: 1,000 queues below 100 parents, 10,000 PodGroups that run on 5,000 nodes of 8 GPUs,
    10,000 that wait, of which 1,000 were let in. Nodes are used to nine tenths."""
    random = Random(7)
    parents = max(1, round(100 * size))
    queues = [_queue(f"p{at}", random) for at in range(parents)]
    queues += [_queue(f"q{at}", random, f"p{at % parents}") for at in range(parents * 10)]
    leaves = [queue.name for queue in queues[parents:]]
    nodes = [_node(f"n{at}") for at in range(len(leaves) * 5)]
    groups, pods = list[PodGroup](), list[Pod]()
    room = [name for node in nodes for name in [node.meta.name] * 8 if random.random() < 0.9]
    each = len(room) // (len(leaves) * 10)
    for at in range(len(leaves) * 10):
        count = each if at % 2 else each - 1 or 1
        mine, room = room[-count:], room[:-count]
        since = NOW - random.randrange(MINUTE_MS, 12 * HOUR_MS)
        group = _group(f"r{at}", leaves[at % len(leaves)], count, 1, "Running", random, since)
        groups.append(group)
        pods += [_pod(f"r{at}-{n}", group, 1, node, since) for n, node in enumerate(mine)]
    for at in range(len(leaves) * 10):
        count, gpus = random.choice(((1, 8), (2, 8), (4, 4), (8, 8)))
        phase = "Inqueue" if at % 10 == 0 else "Pending"
        since = NOW - random.randrange(MINUTE_MS, 12 * HOUR_MS)
        group = _group(f"w{at}", leaves[at % len(leaves)], count, gpus, phase, random, since)
        groups.append(group)
        if phase == "Inqueue":
            pods += [_pod(f"w{at}-{n}", group, gpus, "", since) for n in range(count)]
    return ClusterState(
        NOW,
        pods={pod.meta.uid: pod for pod in pods},
        nodes={node.meta.uid: node for node in nodes},
        pod_groups={group.meta.uid: group for group in groups},
        volcano_queues={queue.meta.uid: queue for queue in [_queue("root", random), *queues]},
        schedulers=SchedulerConfigs(volcano=BY_WEIGHT),
    )


def asked_gangs(state: ClusterState, count: int) -> list[VolcanoGang]:
    """New jobs in queues drawn at random."""
    random = Random(11)
    queues = sorted(name for name in state.volcano_queue_by_name if name.startswith("q"))
    found = []
    for at in range(count):
        pods, gpus = random.choice(SHAPES)
        template = PodTemplate({GPU: gpus, "cpu": gpus * 4_000})
        asks = {key: amount * pods for key, amount in template.requests.items()}
        tasks = (PodSet("main", pods, template),)
        queue = random.choice(queues)
        found.append(
            VolcanoGang(
                queue,
                f"asked-{at}",
                queue,
                0,
                pods,
                {"main": pods},
                tasks,
                asks,
                {},
                NOW,
                subject=("Job", ""),
            )
        )
    return found


def volcano_figures(answers: int, size: float = 1.0) -> dict[str, float]:
    """CPU milliseconds of an answer at p50 and p99 under each configuration, and what a World costs first."""
    figures: dict[str, float] = {}
    overview = ClusterOverview(volcano_cluster(size))
    for name, config in CONFIGS.items():
        start = time.process_time()
        world = VolcanoSession(overview, config)
        world.warm()
        figures[f"volcano_{name}_prepare_s"] = round(time.process_time() - start, 2)
        times, decisions = list[float](), dict[str, int]()
        for gang in asked_gangs(overview.state, answers):
            start = time.process_time()
            answer = volcano_answer(gang, world)
            times.append((time.process_time() - start) * 1000)
            said = f"{answer.decision.value} {answer.reason}"
            decisions[said] = decisions.get(said, 0) + 1
        print(f"volcano, {name}:", dict(sorted(decisions.items())))
        times.sort()
        figures[f"volcano_{name}_p50_ms"] = round(times[len(times) // 2], 2)
        figures[f"volcano_{name}_p99_ms"] = round(times[min(len(times) - 1, int(0.99 * len(times)))], 2)
    return figures


def _queue(name: str, random: Random, parent: str = "") -> VolcanoQueue:
    deserved = {GPU: random.choice((16, 32, 40))} if parent else None
    capability = {GPU: random.choice((40, 60, 80))} if parent and random.random() < 0.3 else None
    weight = random.choice((1, 1, 2, 4))
    return VolcanoQueue(_meta(name), weight, capability, deserved, parent=parent, state="Open")


def _node(name: str) -> Node:
    has = {GPU: 8, "cpu": 96_000, "pods": 110}
    return Node(_meta(name), has, has, True, NOW - DAY_MS, False, boards=8)


def _group(name: str, queue: str, count: int, gpus: int, phase: str, random: Random, since: int) -> PodGroup:
    asks = {GPU: count * gpus, "cpu": count * gpus * 4_000}
    name_of = random.choice(("", "", "low"))
    return PodGroup(
        _meta(name, queue, since),
        GroupKind.VOLCANO,
        count,
        {},
        asks,
        queue,
        phase=phase,
        priority_class=name_of,
    )


def _pod(name: str, group: PodGroup, gpus: int, node: str, since: int) -> Pod:
    meta = _meta(name, group.meta.namespace, since, {"scheduling.k8s.io/group-name": group.meta.name})
    template = PodTemplate({GPU: gpus, "cpu": gpus * 4_000})
    if not node:
        return Pod(meta, PodPhase.PENDING, template)
    return Pod(meta, PodPhase.RUNNING, template, node, since, ready_ms=since)


def _meta(
    name: str, namespace: str = "", created_ms: int = NOW - DAY_MS, annotations: dict[str, str] | None = None
) -> ObjectMeta:
    return ObjectMeta(f"{namespace}/{name}", namespace, name, created_ms, {}, annotations or {})
