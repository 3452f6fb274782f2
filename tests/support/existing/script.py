"""The scripted month: what its pods did, and every disruption that a Prometheus sees only part of.

Everything that can go wrong does so in the first three days, so that these are enough for most tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tests.support.existing.nodes import GPU, MIG_1G, MIG_2G, MIG_3G, SHARED, month_nodes
from tests.support.existing.world import NEVER, Box, End, Gpu, Node, Pod, World, at, stable

TEAMS = ("vision", "speech", "ranking")
MARGIN_MS = HOUR_MS
"""How long before and after its window a world is scraped."""
_KINDS = (
    # resource, node, units, busy
    (GPU, "h100-1", (1, 2, 4), 0.8),
    (GPU, "h100-1", (1, 2), 0.6),
    (GPU, "h100-2", (1, 4), 0.7),
    (MIG_3G, "a100-1", (1,), 0.5),
    (MIG_2G, "a100-1", (1,), 0.4),
    (MIG_1G, "a100-1", (1, 2), 0.3),
    (SHARED, "t4-1", (1,), 0.15),
    (SHARED, "t4-1", (2,), 0.2),
    (GPU, "l4-1", (1,), 0.5),
)
_ENDS = (End.COMPLETED, End.COMPLETED, End.DELETED, End.FAILED, End.COMPLETED, End.DELETED)
_LINGER = (10 * MINUTE_MS, 2 * HOUR_MS, 6 * HOUR_MS, 25 * HOUR_MS)


def scripted(
    hours: tuple[float, float] = (0, 744), *, shows_labels: bool = True, name: str = "month"
) -> World:
    """The month, or the stretch of it between two of its hours, with an hour before and after."""
    start, end = at(hours[0]) - MARGIN_MS, at(hours[1]) + MARGIN_MS
    nodes = month_nodes(shows_labels)
    found = sorted([*_mishaps(), *_usual()], key=lambda pod: (pod.bound_ms, pod.name))
    inside = (pod for pod in _placed(found, nodes) if pod.created_ms < end and pod.gone_ms > start)
    return World(name, start, end, nodes, tuple(inside))


def pod(
    name: str,
    hours: tuple[float, float | None],
    end: End = End.COMPLETED,
    *,
    resource: str = GPU,
    node: str = "h100-1",
    units: int = 1,
    namespace: str = "research",
    team: str = "vision",
    linger_ms: int = 2 * HOUR_MS,
    pending_ms: int = 20 * SECOND_MS,
    kind: str = "",
    busy: float = 0.5,
    owner: str = "",
    teams: tuple[tuple[int, str], ...] = (),
    boxes: tuple[Box, ...] = (),
    generation: int = 0,
    keeps_label_ms: int = 0,
) -> Pod:
    """A pod by the hours at which it was bound and ended, in whole seconds as objects say; not yet placed."""
    bound = at(hours[0]) // SECOND_MS * SECOND_MS
    ended = NEVER if hours[1] is None else at(hours[1])
    if end is not End.DELETED and ended != NEVER:
        ended = ended // SECOND_MS * SECOND_MS
    gone = ended if end is End.DELETED or ended == NEVER else ended + linger_ms
    kinds = kind or ("ReplicaSet" if end is End.DELETED else "Job")
    return Pod(
        name,
        namespace,
        node,
        resource,
        units,
        bound - pending_ms,
        bound,
        ended,
        gone,
        End.RUNNING if ended == NEVER else end,
        teams or ((0, team),),
        (kinds, owner or name),
        boxes=boxes or (Box("main", units),),
        busy=busy,
        keeps_label_ms=keeps_label_ms,
        uid=stable(f"{namespace}/{name}/{generation}"),
    )


def _mishaps() -> Iterator[Pod]:
    yield pod("from-september", (-30, 6), units=2, linger_ms=30 * MINUTE_MS)
    yield pod("long-server", (-200, None), End.RUNNING, kind="ReplicaSet", owner="server-7d9f", team="speech")
    yield pod("ended-before", (-9, -2), linger_ms=DAY_MS)
    yield pod("sidecar-first", (3, 9.25), boxes=(Box("main", 1), Box("sidecar", 0, end_ms=at(4))), units=1)
    yield pod("two-boxes", (6.5, 8.4), units=2, boxes=(Box("main", 1), Box("helper", 1)))
    yield pod("with-init", (8, 11), units=2, boxes=(Box("main", 1), Box("setup", 2, is_init=True)))
    yield pod("waited-long", (12.5, 15), pending_ms=90 * MINUTE_MS, team="ranking")
    yield pod("evicted", (13, 16.2), End.EVICTED, units=2, team="ranking", linger_ms=4 * HOUR_MS)
    yield pod("handed-over", (17, 23), units=2, teams=((0, "vision"), (at(20) + 30_000, "ranking")))
    yield pod("worker-0", (24.2, 26.7), End.DELETED, kind="StatefulSet", owner="worker", busy=0.7)
    yield pod(
        "worker-0", (26.71, 40.3), End.DELETED, kind="StatefulSet", owner="worker", generation=1, busy=0.9
    )
    yield pod("keeps-label", (30.2, 33), keeps_label_ms=15 * MINUTE_MS, node="h100-2", busy=0.9)
    yield pod("unlabelled", (33, 38), namespace="sandbox", team="", node="h100-2")
    yield pod("idle", (31, 52), node="h100-2", busy=0.0, team="speech")
    yield pod("before-the-gap", (41, 45.9), End.DELETED, node="h100-2")
    yield pod("lost-in-the-gap", (40, 46.22), End.DELETED, node="h100-2", team="ranking")
    yield pod("finished-in-the-gap", (40, 46.25), node="h100-2", linger_ms=3 * HOUR_MS)
    yield pod("across-the-gap", (43, 50), node="h100-2", units=2)
    for number in range(6):
        start = 27 + 1.7 * number + number * 0.003
        yield pod(f"short-seen-{number}", (start, start + 20 / 3600), linger_ms=30 * MINUTE_MS)
        yield pod(f"short-gone-{number}", (start + 0.51, start + 0.51 + 20 / 3600), linger_ms=SECOND_MS)
    for number in range(3):
        shared = (14 + number, 34.3 + 2 * number)
        yield pod(f"notebook-{number}", shared, End.DELETED, resource=SHARED, node="t4-1",
                  busy=0.1 + 0.05 * number, team=TEAMS[number], kind="StatefulSet")  # fmt: skip
    yield pod("sliced-server", (2, None), End.RUNNING, resource=MIG_3G, node="a100-1", kind="ReplicaSet")
    yield pod("sliced-big", (4.1, 29.6), resource=MIG_2G, node="a100-1", team="speech", busy=0.8)


def _usual() -> Iterator[Pod]:
    """Plain work: dense in the first three days, one pod in six hours or so afterwards."""
    rng = np.random.default_rng(9)
    hour, number = 0.4, 0
    while hour < 24 * 31:
        resource, node, units, busy = _KINDS[number % len(_KINDS)]
        first = 32.0 if node == "h100-2" else 0.0
        lasts = float(rng.uniform(1.5, 9) if hour < 60 else rng.uniform(10, 60))
        start = max(hour + float(rng.uniform(0, 0.6)), first)
        end = _ENDS[number % len(_ENDS)]
        yield pod(
            f"job-{number:03}",
            (start, start + lasts),
            end,
            resource=resource,
            node=node,
            units=int(units[number % len(units)]),
            team=TEAMS[number % 3],
            linger_ms=_LINGER[number % len(_LINGER)],
            namespace=("research", "serving")[end is End.DELETED],
            owner=f"server-{number % 4}-abc" if end is End.DELETED else "",
            busy=busy,
        )
        hour += 1.6 if hour < 60 else 6.5
        number += 1


def _placed(pods: Sequence[Pod], nodes: Sequence[Node]) -> Iterator[Pod]:
    """Each with the first GPUs that are free, disrupted ones first; usual work without room was never
    submitted."""
    slots: dict[tuple[str, str], list[tuple[Gpu, list[Pod]]]] = {
        (node.name, offer.resource): [(gpu, []) for gpu in offer.gpus for _ in range(offer.replicas)]
        for node in nodes
        for offer in node.offers
    }
    for each in sorted(pods, key=lambda pod: pod.name.startswith("job-")):
        usable = [
            (gpu, taken)
            for gpu, taken in slots[each.node, each.resource]
            if all(other.end_ms <= each.bound_ms or each.end_ms <= other.bound_ms for other in taken)
            # The GPU that one node loses is its last.
            and not (each.node == "l4-1" and gpu.index == 1)
        ]
        if len(usable) < each.units:
            if not each.name.startswith("job-"):
                raise ValueError(f"no room for {each.name}")
            continue
        for _, taken in usable[: each.units]:
            taken.append(each)
        yield replace(each, gpus=tuple(gpu for gpu, _ in usable[: each.units]))
