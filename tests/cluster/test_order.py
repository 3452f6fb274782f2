"""Positions in a ClusterQueue."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.views.queue_order import positions, queue_timestamp_ms
from gpucost.cluster.views.queues import FAIR_ADMISSION
from tests.cluster.builders import MINUTE, T0, cluster_queue, condition, local_queue, pod_set, state, workload

MAIN = (cluster_queue("a"), local_queue("main", "a"))


def waiting(name: str, priority: int = 0, queue: str = "main", **fields: Any) -> Workload:
    return workload(name, pod_set(), queue=queue, rest={"priority": priority}, **fields)


def order(*objects: object) -> list[str]:
    places = positions(state(*objects))
    assert sorted(places.values()) == list(range(1, len(places) + 1))
    return [uid.removesuffix("-uid") for uid in sorted(places, key=lambda uid: places[uid])]


def evicted(reason: str, status: bool = True) -> dict[str, Any]:
    return {"conditions": {"Evicted": condition(status, reason, "", T0 + 5 * MINUTE)}}


def test_priority_then_time_then_uid() -> None:
    later = {"created_ms": T0 + MINUTE}
    assert order(
        *MAIN,
        waiting("first", 1, **later),
        waiting("last", -1),
        waiting("b", **later),
        waiting("a", **later),
        waiting("second"),
    ) == ["first", "second", "a", "b", "last"]


def test_only_timeouts_and_checks_send_to_the_back() -> None:
    times = [
        queue_timestamp_ms(waiting("w", **evicted(reason, status)))
        for reason, status in (
            ("PodsReadyTimeout", True),
            ("AdmissionCheck", True),
            ("Preempted", True),
            ("PodsReadyTimeout", False),
        )
    ]
    assert times == [T0 + 5 * MINUTE, T0 + 5 * MINUTE, T0, T0]
    assert queue_timestamp_ms(waiting("w")) == T0
    assert order(
        *MAIN,
        waiting("back", **evicted("AdmissionCheck")),
        waiting("kept", **evicted("Preempted")),
        waiting("between", created_ms=T0 + MINUTE),
    ) == ["kept", "between", "back"]


def test_who_may_not_preempt_yet_is_tried() -> None:
    gated = condition(False, "AdmissionGated", "Workload requires preemption, but it's gated")
    assert order(*MAIN, waiting("gated", 1, conditions={"QuotaReserved": gated}), waiting("b")) == [
        "gated",
        "b",
    ]


def test_who_is_held_back_has_no_place() -> None:
    def held(name: str, **conditions: Any) -> Workload:
        return waiting(name, 9, conditions=conditions)

    assert order(
        *MAIN,
        held("on-hold", QuotaReserved=condition(False, "OnHold")),
        held("gated", QuotaReserved=condition(False, "AdmissionGated")),
        held("without-nodes", WaitingForReplacementPods=condition(True)),
        held("tried", QuotaReserved=condition(False, "Inadmissible")),
        waiting("last"),
    ) == ["tried", "last"]


def test_who_waits_out_a_backoff_has_no_place_before_it_is_over() -> None:
    def evicted_until(name: str, at_ms: int | None, **requeued: Any) -> Workload:
        back_off = {"Requeued": condition(False, "PodsReadyTimeout")} | requeued
        return workload(
            name, pod_set(), queue="main", conditions=back_off, rest={"requeue_at_ms": at_ms, "priority": 9}
        )

    now_ms = T0 + 60 * MINUTE
    checks = {"Requeued": condition(False, "AdmissionCheck")}
    for strategy in ("BestEffortFIFO", "StrictFIFO"):
        assert order(
            cluster_queue("a", strategy=strategy),
            MAIN[1],
            evicted_until("timeout", now_ms + 1),
            evicted_until("check", now_ms + MINUTE, **checks),
            evicted_until("without-claims", None, Requeued=condition(False, "Inadmissible")),
            evicted_until("over", now_ms),
            evicted_until("restarted", None, Requeued=condition(False, "ClusterQueueStopped")),
            waiting("last"),
        ) == ["over", "restarted", "last"]


def test_each_cluster_queue_has_its_own_line() -> None:
    places = positions(
        state(
            *MAIN,
            local_queue("also", "a", "team-b"),
            cluster_queue("b"),
            local_queue("other", "b"),
            local_queue("lost", "nowhere"),
            waiting("w1"),
            waiting("w2", queue="also", namespace="team-b"),
            waiting("w3", queue="other"),
            waiting("w4", queue="lost"),
            waiting("w5", queue="not-there"),
            waiting("w6", conditions={"QuotaReserved": condition(True)}),
        )
    )
    assert places == {"w1-uid": 1, "w2-uid": 2, "w3-uid": 1}


def test_fair_admission_asks_first_who_has_used_less() -> None:
    # 9 units by weight 3 are less than 4 by weight 1; nothing known is nothing used; weight 0 comes last.
    queues = (
        local_queue("much", "a", fair_usage={"gpu": 3000, "cpu": 1000}),
        local_queue("heavy", "a", fair_usage={"gpu": 9000}, weight=Fraction(3)),
        local_queue("fresh", "a"),
        local_queue("none", "a", weight=Fraction(0)),
    )
    workloads = (
        waiting("w-none", 9, "none"),
        waiting("w-much", 5, "much"),
        waiting("w-heavy", 0, "heavy"),
        waiting("w-fresh", -5, "fresh"),
    )
    fair = cluster_queue("a", admission_mode=FAIR_ADMISSION)
    assert order(fair, *queues, *workloads) == ["w-fresh", "w-heavy", "w-much", "w-none"]
    assert order(cluster_queue("a"), *queues, *workloads) == ["w-none", "w-much", "w-heavy", "w-fresh"]


@given(st.permutations([waiting(f"w{n}", n % 3, created_ms=T0 + n % 4) for n in range(12)]))
def test_the_order_of_objects_means_nothing(workloads: list[Workload]) -> None:
    assert positions(state(*MAIN, *workloads)) == positions(state(*MAIN, *sorted(workloads, key=repr)))
