"""Volcano's queues over time, worked out by hand: capability, weight, guarantee, minimum, HyperNodes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.replay.fifo_nodes import NODE_LOST
from gpucost.advisor.replay.history_record import HistoryJob, ReplayHistory, VolcanoRecord
from gpucost.advisor.replay.scenario_run import LoopMode, run_scenario
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.volcano import HyperNode
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, MINUTE_MS, iso
from gpucost.reports.replay.run_views import views_of
from gpucost.reports.replay.scenario_figures import PlayedScenario, replay_report
from tests.advisor.replay_worlds import BEGIN_MS, FLAVOR, GPU, job, kueue_history, meta
from tests.advisor.test_scenarios import change, starts
from tests.advisor.volcano_worlds import FLAT, queue

CAPACITY = VolcanoConfig(tiers=FLAT)
HALF = iso(BEGIN_MS + 30 * MINUTE_MS)


def gang(uid: str, minute: int, minutes: int, pods: int, queue: str = "a", least: int = 0) -> HistoryJob:
    """Pods of 8 GPUs, a node each."""
    made = job(uid, minute, minutes, 8, queue)
    sets = tuple(replace(each, count=pods, least=pods) for each in made.pod_sets)
    return replace(made, gpus=8 * pods, pod_sets=sets, min_member=least)


def history(
    *jobs: HistoryJob, nodes: int = 2, config: VolcanoConfig = CAPACITY, **queues: dict[str, int]
) -> ReplayHistory:
    """Queues by name with ``weight``, and ``capability``, ``deserved`` and ``guarantee`` in GPUs."""
    plain = kueue_history(*jobs, nodes=nodes)
    known = {name: queue(name, **own) for name, own in (queues or {"a": {}, "b": {}}).items()}
    names = tuple(f"n{n}" for n in range(4))
    pools = {FLAVOR: replace(plain.pools[FLAVOR], node_names=names)}
    return replace(plain, kueue=None, pools=pools, volcano=VolcanoRecord(known, config))


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("name: nothing", 60),
        (f"volcano: [{{name: a, capability: {{{GPU}: 16}}, from: {HALF}}}]", 30),
        (f"volcano: [{{name: a, capability: {{{GPU}: 16}}}}]", 1),
    ],
)
def test_a_queue_has_no_more_than_its_capability(text: str, second: int) -> None:
    """One of two nodes is free all the time."""
    found = history(gang("a1", 0, 60, 1), gang("a2", 1, 10, 1), a={"capability": 8})
    run = run_scenario(found, change(text))
    assert starts(run) == {"a1": [0], "a2": [second]}
    assert views_of(run, found.window)["a2"].layer == ("" if second == 1 else "quota")


def test_what_is_guaranteed_to_a_queue_is_nobody_elses() -> None:
    jobs = gang("a1", 0, 60, 1), gang("a2", 1, 10, 1), gang("b1", 5, 10, 1, "b")
    found = history(*jobs, a={}, b={"guarantee": 8})
    assert starts(run_scenario(found)) == {"a1": [0], "a2": [60], "b1": [5]}
    none = change(f"volcano: [{{name: b, guarantee: {{{GPU}: 0}}}}]")
    assert starts(run_scenario(found, none)) == {"a1": [0], "a2": [1], "b1": [11]}


def test_weights_divide_what_several_queues_ask_for() -> None:
    """At 1:00 all four nodes come free, and each queue waits with four gangs of a node, those of a first. By
    equal weights two of each start; three to one, three of a. With the usual factor overcommit lets only a's
    in, so that b asks for nothing then."""
    jobs = [gang("x", 0, 60, 4), *(gang(f"a{n}", 1 + n, 30, 1) for n in range(4))]
    jobs += [gang(f"b{n}", 11 + n, 30, 1, "b") for n in range(4)]
    all_in = VolcanoConfig(arguments={"overcommit": {"overcommit-factor": "3"}})
    found = history(*jobs, nodes=4, config=all_in)

    def starting(history: ReplayHistory, minute: int, text: str = "name: nothing") -> str:
        run = starts(run_scenario(history, change(text)))
        return " ".join(uid for uid, at in run.items() if at == [minute])

    heavy = "volcano: [{name: a, weight: 3}]"
    assert [starting(found, minute) for minute in (60, 90)] == ["a0 a1 b0 b1", "a2 a3 b2 b3"]
    assert [starting(found, minute, heavy) for minute in (60, 90)] == ["a0 a1 a2 b0", "a3 b1 b2 b3"]
    usual = history(*jobs, nodes=4, config=VolcanoConfig())
    assert [starting(usual, minute) for minute in (60, 90)] == ["a0 a1 a2 a3", "b0 b1 b2 b3"]


@pytest.mark.parametrize(("least", "start"), [(0, 50), (1, 5)])
def test_a_gang_starts_with_as_many_pods_as_it_needs(least: int, start: int) -> None:
    found = history(gang("a1", 0, 50, 1), gang("a2", 5, 60, 2, least=least))
    run = run_scenario(found)
    assert starts(run) == {"a1": [0], "a2": [start]}
    assert views_of(run, found.window)["a2"].layer == ("placement" if start == 50 else "")
    assert run.outcome.stories["a2"].ended_ms == BEGIN_MS + (start + 60) * MINUTE_MS


def test_a_gang_stays_in_one_hyper_node() -> None:
    """Of each of two switches one node is taken: two nodes are free, and no switch has both of them."""
    switches = tuple(
        HyperNode(meta(f"s{n}"), 1, members=tuple(("Node", "exact", f"n{2 * n + each}") for each in (0, 1)))
        for n in (0, 1)
    )
    jobs = gang("l0", 0, 40, 1), gang("l1", 1, 10, 1), gang("l2", 2, 100, 1), gang("a1", 20, 10, 2)
    anywhere = history(*jobs, nodes=4)
    assert starts(run_scenario(anywhere))["a1"] == [20]
    hard = {"mode": "hard", "highest_tier": "1"}
    tiers = (*FLAT[:-1], (*FLAT[-1], "network-topology-aware"))
    record = VolcanoRecord({"a": queue("a")}, VolcanoConfig(tiers=tiers), switches)
    tied = replace(anywhere, jobs=(*jobs[:3], replace(jobs[3], topology=hard)), volcano=record)
    # n0 is free from 0:40 on, n1 since 0:11.
    assert starts(run_scenario(tied))["a1"] == [40]


def test_a_node_that_is_lost_stops_the_gang_on_it() -> None:
    run = run_scenario(
        history(gang("a1", 0, 60, 2)),
        change(
            f"nodes: [{{pool: h100, add: -1, from: {HALF}}}, "
            f"{{pool: h100, add: 1, from: {iso(BEGIN_MS + 2 * HOUR_MS)}}}]"
        ),
    )
    assert starts(run) == {"a1": [0, 120]}
    assert [each.reason for each in run.outcome.stories["a1"].evictions] == [NODE_LOST]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("volcano: [{name: c, weight: 2}]", "volcano[0].name: 'c' is not allowed; allowed: a, b"),
        ("volcano: [{name: a, capability: {cpu: 2}}]", "volcano[0].capability: 'cpu' is not allowed"),
        ("volcano: [{name: a, weight: 2, from: 2027-01-01}]", "volcano[0].from: '2027-01-01T00:00:00Z' is"),
    ],
)
def test_what_a_history_of_volcano_has_not_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_scenario(history(gang("a1", 0, 60, 1)), change(text))
    assert message in str(caught.value)


JOBS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 50),
        st.integers(1, 3),
        st.sampled_from(["a", "b", ""]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=10,
)


@given(JOBS, st.sampled_from([CAPACITY, VolcanoConfig()]), st.integers(0, 5))
def test_no_change_changes_nothing_and_nodes_never_hold_more_than_they_have(
    rows: list[tuple[int, int, int, str, int]], config: VolcanoConfig, seed: int
) -> None:
    jobs = [
        gang(f"j{n:02d}", at, runs, pods, name, least) for n, (at, runs, pods, name, least) in enumerate(rows)
    ]
    found = history(*jobs, nodes=3, config=config, a={"weight": 2, "capability": 16}, b={"guarantee": 8})
    first = run_scenario(found).outcome
    Random(seed).shuffle(jobs)
    assert run_scenario(replace(found, jobs=tuple(jobs))).outcome == first
    assert run_scenario(found, change("volcano: [{name: a, weight: 2}]")).outcome == first
    (base,) = replay_report(found, [PlayedScenario(run_scenario(found))], "rules").scenarios
    assert (base.cluster.conservation_board_ms, base.cluster.conservation_nano) == (0, 0)
    runs = []
    for uid, story in first.stories.items():
        assert not story.evictions
        for begun in story.admissions:
            assert story.ended_ms is not None
            nodes = [each for _, place in begun.given.nodes for each in place]  # type: ignore[attr-defined]
            assert all(units == 8 for _, units in nodes), uid
            runs += [(begun.at_ms, story.ended_ms, node) for node, _ in nodes]
    for at_ms, _, node in runs:
        assert sum(start <= at_ms < end for start, end, other in runs if other == node) == 1


def test_in_closed_loop_too() -> None:
    found = history(replace(gang("a1", 0, 60, 1), user="u"), gang("a2", 1, 10, 1))
    assert starts(run_scenario(found, loop=LoopMode.CLOSED)) == {"a1": [0], "a2": [1]}
