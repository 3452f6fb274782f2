"""The scripted day through the real collector: what it exports is the script's truth, to the millisecond.

The watch breaks in every way, and the collector is killed at 13:00 and begun anew at 13:20.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from gpucost.contract.metrics import LINGER_MS
from tests.exporters.queue.day import day
from tests.exporters.queue.day_truth import Check, GangTruth, PodTruth, WorkloadTruth, at
from tests.exporters.queue.played import LAST_SCRAPE_MS, SCRAPE_MS, Played, the_day

# A day of a collector, scrape by scrape: a replay.
pytestmark = pytest.mark.slow

TRUTH = day().truth
GAP = (at("15:00:00"), at("15:10:00"))
"""Pods could not be read in it."""
THROTTLED = (at("17:00:00"), at("17:01:00"))
UNSEEN = (GAP, TRUTH.outage, THROTTLED)
WORKLOAD_TIMES = ("queued", "reserved", "admitted", "finished")


@pytest.fixture(scope="module")
def played() -> Played:
    return the_day()


@pytest.fixture(scope="module")
def intervals(played: Played) -> dict[str, tuple[set[float], set[float], list[int], list[int]]]:
    """Of each pod: its starts and ends as exported, and when it was shown at all, and shown as ended."""
    found: dict[str, tuple[set[float], set[float], list[int], list[int]]] = defaultdict(
        lambda: (set(), set(), [], [])
    )
    for scrape in played.scrapes:
        for (uid,), value in scrape.by("gpucost_pod_gpu_start_timestamp_seconds", "pod_uid").items():
            found[uid][0].add(value)
            found[uid][2].append(scrape.at_ms)
        for (uid,), value in scrape.by("gpucost_pod_gpu_end_timestamp_seconds", "pod_uid").items():
            found[uid][1].add(value)
            found[uid][3].append(scrape.at_ms)
    return found


def test_nothing_was_seen_that_was_not_there(played: Played, intervals: dict[str, object]) -> None:
    assert set(intervals) == set(TRUTH.pod_by_uid)
    assert not any(
        overview.problems for overview in played.overviews.values() if not _is_odd(overview.state.at_ms)
    )


def _is_odd(at_ms: int) -> bool:
    """While the device plugin of the MIG node is broken, pods hold more than the node advertises."""
    return at("10:30:00") <= at_ms < at("12:30:00")


@pytest.mark.fault(12, 13)
@pytest.mark.parametrize("pod", TRUTH.pods, ids=lambda pod: pod.uid)
def test_an_interval(
    intervals: dict[str, tuple[set[float], set[float], list[int], list[int]]], pod: PodTruth
) -> None:
    starts, ends, shown, ended = intervals[pod.uid]
    assert starts == {pod.start_ms / 1000}
    if pod.in_outage or pod.end_ms is None:
        assert ends == set()
    else:
        end_ms = pod.unseen[0] if pod.unseen else pod.end_ms
        assert ends == {end_ms / 1000}
        # Ten minutes of scrapes show the end, from when it could be known, and then it is over.
        known_ms = pod.unseen[1] if pod.unseen else _seen_ms(end_ms)
        assert len(ended) == LINGER_MS // SCRAPE_MS
        assert shown[-1] == ended[-1] < known_ms + LINGER_MS
    if pod.end_ms is None:
        assert shown[-1] == LAST_SCRAPE_MS
    assert shown[0] - _seen_ms(pod.start_ms) <= SCRAPE_MS


def _seen_ms(at_ms: int) -> int:
    """When what happened then could be seen."""
    return max([at_ms, *(end_ms for start_ms, end_ms in UNSEEN if start_ms <= at_ms < end_ms)])


def test_units_and_place(played: Played) -> None:
    seen = {
        (key["pod_uid"], key["namespace"], key["pod"], key["node"], key["resource"], value)
        for scrape in played.scrapes
        for labels, value in scrape.values("gpucost_pod_gpu_request").items()
        for key in [dict(labels)]
    }
    assert seen == {
        (pod.uid, pod.namespace, pod.name, pod.node, pod.resource, float(pod.units)) for pod in TRUTH.pods
    }


def test_the_heartbeat_stops_while_pods_cannot_be_read(played: Played) -> None:
    beats = {scrape.at_ms: scrape.by("gpucost_state_up")[()] for scrape in played.scrapes}
    silent = {at_ms for at_ms, up in beats.items() if not up}
    assert silent == set(range(GAP[0] + 3 * SCRAPE_MS // 2, GAP[1], SCRAPE_MS))
    assert not any(TRUTH.outage[0] < at_ms < TRUTH.outage[1] for at_ms in beats)


@pytest.mark.parametrize("gang", TRUTH.gangs, ids=lambda gang: gang.name)
def test_a_gang_is_partial_when_it_is(played: Played, gang: GangTruth) -> None:
    since: dict[float, list[int]] = defaultdict(list)
    for scrape in played.scrapes:
        found = scrape.by("gpucost_gang_partial_since_timestamp_seconds", "gang_uid")
        if (gang.uid,) in found:
            since[found[gang.uid,]].append(scrape.at_ms)
    assert sorted(since) == [start_ms / 1000 for start_ms, _ in gang.partial]
    for start_ms, end_ms in gang.partial:
        assert since[start_ms / 1000] == list(range(start_ms + SCRAPE_MS // 2, end_ms, SCRAPE_MS))
    needs = {
        scrape.by("gpucost_gang_min_members", "gang_uid").get((gang.uid,)) for scrape in played.scrapes
    } - {None}
    assert needs == {gang.min_members}


@pytest.mark.parametrize("workload", TRUTH.workloads, ids=lambda workload: workload.name)
def test_a_workload(played: Played, workload: WorkloadTruth) -> None:
    seen: dict[str, set[float]] = {each: set() for each in WORKLOAD_TIMES}
    evictions: list[float] = []
    for scrape in played.scrapes:
        for each in WORKLOAD_TIMES:
            found = scrape.by(f"gpucost_workload_{each}_timestamp_seconds", "workload_uid")
            if (workload.uid,) in found:
                seen[each].add(found[workload.uid,])
        counted = scrape.by("gpucost_workload_evictions_total", "workload_uid", "reason")
        if (workload.uid, "Preempted") in counted:
            evictions.append(counted[workload.uid, "Preempted"])
    waits = workload.waits
    assert seen["reserved"] == {each.reserved_ms / 1000 for each in waits if each.reserved_ms}
    assert seen["admitted"] == {each.admitted_ms / 1000 for each in waits if each.admitted_ms}
    assert seen["finished"] == {(workload.finished_ms or 0) / 1000}
    assert seen["queued"] == {each.queued_ms / 1000 for each in waits}
    assert evictions == sorted(evictions)
    assert set(evictions) == set(map(float, range(1, workload.evictions.get("Preempted", 0) + 1)))


@pytest.mark.parametrize("check", TRUTH.checks, ids=lambda check: str(check.at_ms))
def test_queues_at_an_instant(played: Played, check: Check) -> None:
    scrape = next(each for each in played.scrapes if each.at_ms > check.at_ms)
    key = ("cluster_queue", "flavor", "resource")
    reserved = scrape.by("gpucost_cluster_queue_reserved", *key)
    borrowed = scrape.by("gpucost_cluster_queue_borrowed", *key)
    assert {each: (reserved[each], borrowed[each]) for each in reserved} == check.reserved
    positions = scrape.by("gpucost_workload_queue_position", "workload")
    queue_of = dict(scrape.by("gpucost_workload_info", "workload", "cluster_queue").keys())
    lines: dict[str, list[str]] = {queue: [] for queue in check.waiting}
    for (name,), _ in sorted(positions.items(), key=lambda item: item[1]):
        lines[queue_of[name]].append(name)
    assert {queue: tuple(line) for queue, line in lines.items()} == check.waiting
    assert dict(scrape.by("gpucost_workload_waiting", "workload", "layer").keys()) == check.layers
    pending = scrape.by("gpucost_cluster_queue_pending_workloads", "cluster_queue", "reason")
    assert sum(pending.values()) == sum(map(len, check.waiting.values()))


def test_capacity_changes_with_the_next_scrape(played: Played) -> None:
    for truth in TRUTH.capacity:
        scrape = next(each for each in played.scrapes if each.at_ms > truth.from_ms)
        found = tuple(
            scrape.by(f"gpucost_node_gpu_{each}", "node", "resource").get((truth.node, truth.resource))
            for each in ("capacity", "allocatable", "expected")
        )
        if truth.capacity is None:
            ends = scrape.by("gpucost_node_end_timestamp_seconds", "node")
            assert ends[truth.node,] == truth.from_ms / 1000
        else:
            assert found == (truth.capacity, truth.allocatable, truth.expected), truth


def test_every_fault_was_felt(played: Played) -> None:
    first, second = ({reason for _, reason in errors} for errors in played.errors)
    assert {"cut", "event_410", "silent", "bad_line"} <= first
    assert {"http_403", "http_429", "http_410", "event_410"} <= second
