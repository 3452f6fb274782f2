"""Gangs of a replay in the domains of a topology: by hand, and as the advisor decides at each instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from gpucost.advisor.kueue.requests import PodSetRequest
from gpucost.advisor.model.answers import SchedulingDecision
from gpucost.advisor.replay.history_record import HistoryJob, ReplayHistory
from gpucost.advisor.replay.node_places import RunStart
from gpucost.advisor.replay.scenario_run import ScenarioRun, run_scenario
from gpucost.cluster.objects.kueue import ClusterQueuePreemption, Topology
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.domain.time import MINUTE_MS
from tests.advisor import test_advise as asking
from tests.advisor import worlds
from tests.advisor.replay_worlds import BEGIN_MS, FLAVOR, GPU, job, kueue_history, meta, queue
from tests.advisor.test_scenarios import starts

RACK, BLOCK = "rack", "block"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"


def of_node(number: int) -> dict[str, str]:
    return {BLOCK: "b", RACK: f"r{number // 2}"}


def racks(*jobs: HistoryJob, nodes: int = 4, nominal: int = 32) -> ReplayHistory:
    """Nodes of 8 GPUs, two in each rack, in one block; queue ``a`` has quota for all."""
    history = kueue_history(*jobs, nodes=nodes)
    assert history.kueue is not None
    state = history.kueue.state
    topology = Topology(meta("racks"), (BLOCK, RACK))
    flavors = {each.meta.uid: replace(each, topology="racks") for each in state.flavors.values()}
    alone = replace(queue("a", nominal, cohort=""), preemption=ClusterQueuePreemption())
    state = replace(
        state,
        cluster_queues={alone.meta.uid: alone},
        flavors=flavors,
        topologies={topology.meta.uid: topology},
    )
    labels = tuple(of_node(n) for n in range(nodes))
    pool = replace(history.pools[FLAVOR], labels=labels)
    return replace(history, pools={FLAVOR: pool}, kueue=replace(history.kueue, state=state))


def gang(uid: str, minute: int, minutes: int, pods: int, gpus: int, **topology: str) -> HistoryJob:
    sets = (PodSetRequest("main", pods, pods, {GPU: gpus}, PodTemplate({}), topology),)
    return replace(job(uid, minute, minutes, pods * gpus), pod_sets=sets)


def test_gangs_stand_in_the_domains_they_ask_for() -> None:
    """small takes a half of a node, so that rack r0 has 12 GPUs left: two pods of 8 fit in r1 only."""
    small = gang("small", 0, 100, 1, 4, unconstrained="true")
    first = gang("first", 1, 60, 2, 8, required=RACK)
    second = gang("second", 2, 30, 2, 8, required=RACK)
    late = gang("late", 3, 10, 1, 8, preferred=RACK)
    found = run_scenario(racks(small, first, second, late))
    # second waits for r1, and holds no quota that late would need; late goes to what is left of r0.
    assert starts(found) == {"small": [0], "first": [1], "second": [61], "late": [3]}
    nodes = {
        uid: {node for _, place in start.nodes for node, _ in place}
        for uid, story in found.outcome.stories.items()
        if isinstance(start := story.admissions[0].given, RunStart)
    }
    assert nodes["first"] == nodes["second"] == {2, 3}
    assert nodes["late"] == {1}
    # Without a topology, quota and eight free GPUs in each of two nodes do.
    plain = racks(small, first, gang("second", 2, 30, 1, 8, unconstrained="true"), late)
    assert starts(run_scenario(plain))["second"] == [2]
    # In one block there is room once first has ended; preferred does not wait for one rack.
    wide = racks(small, first, gang("second", 2, 30, 3, 8, required=BLOCK))
    assert starts(run_scenario(wide))["second"] == [61]
    both = racks(small, gang("first", 1, 60, 3, 8, preferred=RACK))
    assert starts(run_scenario(both))["first"] == [1]
    never = racks(gang("first", 1, 60, 3, 8, required=RACK))
    assert starts(run_scenario(never))["first"] == []


def test_a_domain_that_is_lost_ends_its_gang_and_another_takes_it() -> None:
    history = racks(gang("g", 0, 60, 2, 8, required=RACK), gang("o", 0, 40, 2, 8, required=RACK))
    at = BEGIN_MS + 30 * MINUTE_MS
    pool = replace(history.pools[FLAVOR], steps=((BEGIN_MS, 4), (at, 2)))
    found = run_scenario(replace(history, pools={FLAVOR: pool}))
    assert sorted(map(len, starts(found).values())) == [1, 2]
    # Whoever was on r1 runs again on r0 once the other has ended there.
    assert {tuple(each) for each in starts(found).values()} <= {(0,), (0, 60), (0, 40)}


def test_a_gang_without_a_queue_starts_when_all_of_its_pods_have_room_and_holds_nobody_up() -> None:
    """As Volcano's gangs: three nodes, one of them taken until 1:00."""
    jobs = gang("a", 0, 60, 1, 8), gang("v", 1, 30, 3, 8), gang("w", 2, 20, 1, 8)
    history = kueue_history(*(replace(each, queue="") for each in jobs), nodes=3)
    assert starts(run_scenario(history)) == {"a": [0], "v": [60], "w": [2]}


def running_at(found: ScenarioRun, at_ms: int, but: str) -> Iterator[object]:
    """Workloads that run then, with their pods on their nodes."""
    for uid, story in found.outcome.stories.items():
        if (
            uid == but
            or not story.admissions
            or not story.admissions[0].at_ms <= at_ms < (story.ended_ms or 0)
        ):
            continue
        (asked,), start = found.jobs[uid].pod_sets, story.admissions[0].given
        assert isinstance(start, RunStart)
        size = asked.each[GPU]
        yield worlds.workload(uid, "ml", size, asked.count, holding=True, topology=asked.topology)
        for _, place in start.nodes:
            for number, units in place:
                for n in range(units // size):
                    yield asking.running(f"{uid}-{number}-{n}", size, f"n{number}", uid)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_arrival_starts_at_once_where_the_advisor_says_it_would(seed: int) -> None:
    random = Random(seed)
    jobs = [
        gang(
            f"g{n:02d}",
            n,
            random.choice((3, 5, 8)),
            *random.choice(((2, 8), (1, 8), (2, 4), (4, 4))),
            required=RACK,
        )
        for n in range(16)
    ]
    # Nothing ends in the second in which parked workloads are looked at again.
    late = [replace(each, run_ms=each.run_ms + 20_000) for each in jobs]
    found = run_scenario(racks(*late, nominal=1_000))
    nodes = [worlds.node(f"n{n}", product=asking.H100, boards=8, labels=of_node(n)) for n in range(4)]
    topology = Topology(worlds.meta("racks"), (BLOCK, RACK))
    objects = worlds.queue("ml", 1_000), worlds.flavor("h100", topology="racks"), *nodes
    agreed: list[bool] = []
    for each in late:
        (asked,) = each.pod_sets
        manifest = asking.job(asked.count, asked.each[GPU], name=each.uid, annotations={REQUIRED: RACK})
        now = running_at(found, each.created_ms, each.uid)
        advice = asking.ask(manifest, *objects, *now, topologies=[topology])
        starts_now = found.outcome.stories[each.uid].admissions[0].at_ms == each.created_ms
        assert (advice.decision is SchedulingDecision.NOW) == starts_now, (each.uid, advice.says)
        agreed.append(starts_now)
    assert {True, False} == set(agreed)
