"""Volcano queues: status where the scheduler wrote it, counts from PodGroups and pods where not."""

from __future__ import annotations

from typing import Any

from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.cluster.views.volcano_queues import VolcanoQueueView, volcano_queue_views
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import GPU, MINUTE, T0, meta, pod, pod_group, state

GROUP = "scheduling.k8s.io/group-name"


def queue(name: str, **fields: Any) -> VolcanoQueue:
    return VolcanoQueue(meta(name, ""), **fields)


def group(name: str, phase: str, queue: str = "ml", min_member: int = 1, **fields: Any) -> PodGroup:
    own = {key: fields.pop(key) for key in ("min_resources",) if key in fields}
    return pod_group(name, min_member, rest={"phase": phase, "queue": queue, **own}, **fields)


def member(name: str, gpus: int, of: str, **fields: Any) -> Pod:
    return pod(name, gpus, annotations={GROUP: of}, **fields)


def views(*objects: object) -> dict[str, VolcanoQueueView]:
    return volcano_queue_views(state(*objects), ResourceCatalog())


def test_what_the_scheduler_wrote_is_believed() -> None:
    view = views(
        queue("ml", allocated={GPU: 8, "cpu": 500}), group("g", "Running"), member("p", 1, "g", node="n")
    )["ml"]
    assert (view.allocated, view.from_status) == ({GPU: 8, "cpu": 500}, True)


def test_what_it_leaves_out_is_not_allocated() -> None:
    found = views(
        queue("ml", allocated={}, deserved={GPU: 8}, capability={"cpu": 9000}), queue("bare", allocated={})
    )
    assert found["ml"].allocated == {GPU: 0, "cpu": 0}
    assert found["bare"].allocated == {}


def test_a_group_that_nobody_has_looked_at_waits_too() -> None:
    view = views(queue("ml"), group("new", "", min_resources={GPU: 16}), group("old", "Inqueue"))["ml"]
    assert (view.pending_units, view.oldest_pending_ms) == ({GPU: 16}, T0)
    assert view.pod_groups == {"Pending": 1, "Inqueue": 1}


def test_what_it_never_wrote_is_counted_from_bound_pods_parents_included() -> None:
    found = views(
        queue("root"),
        queue("org"),
        queue("ml", parent="org"),
        queue("written", parent="org", allocated={GPU: 99}),
        group("g", "Running"),
        group("h", "Running", "org"),
        member("bound", 4, "g", node="n"),
        member("waits", 4, "g"),
        member("ended", 4, "g", ended_ms=T0 + MINUTE, bound_ms=T0),
        member("of-org", 1, "h", node="n"),
        member("of-nobody", 16, "not-there", node="n"),
    )
    assert {name: view.allocated for name, view in found.items()} == {
        "root": {GPU: 5},
        "org": {GPU: 5},
        "ml": {GPU: 4},
        "written": {GPU: 99},
    }
    assert [found[name].from_status for name in ("ml", "written")] == [False, True]


def test_queues_that_are_each_others_parents_count_each_pod_once() -> None:
    found = views(
        queue("ml", parent="b"), queue("b", parent="ml"), group("g", "Running"), member("p", 2, "g", node="n")
    )
    assert {name: view.allocated for name, view in found.items()} == {"ml": {GPU: 2}, "b": {GPU: 2}}


def test_pod_groups_are_counted_by_phase() -> None:
    found = views(
        queue("ml"),
        queue("default"),
        group("g1", "Running"),
        group("g2", "Running"),
        group("g3", "Inqueue", created_ms=T0 + 2 * MINUTE),
        group("g4", "Pending", created_ms=T0 + MINUTE),
        group("g5", "Unknown", ""),
        group("g6", "Pending", "not-there"),
        pod_group("native", 4, GroupKind.NATIVE, rest={"phase": "Pending", "queue": "ml"}),
    )
    assert found["ml"].pod_groups == {"Running": 2, "Inqueue": 1, "Pending": 1}
    assert found["ml"].oldest_pending_ms == T0 + MINUTE
    assert found["default"].pod_groups == {"Unknown": 1}
    assert found["default"].oldest_pending_ms is None


def test_what_waiting_groups_need_at_least() -> None:
    found = views(
        queue("ml"),
        group("says", "Pending", min_resources={GPU: 16, "cpu": 9000}),
        group("says-none", "Pending", min_resources={"cpu": 9000}),
        member("p0", 8, "says-none"),
        # Two of three must be there; the one that ended is not.
        group("asks", "Inqueue", min_member=2),
        member("p1", 4, "asks"),
        member("p2", 1, "asks"),
        member("p3", 2, "asks"),
        member("p4", 1, "asks", ended_ms=T0, bound_ms=T0),
        group("runs", "Running", min_resources={GPU: 64}),
    )
    assert found["ml"].pending_units == {GPU: 16 + 1 + 2}


def test_without_queues_there_is_nothing_to_see() -> None:
    assert views(group("g", "Pending")) == {}
