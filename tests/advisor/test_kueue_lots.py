"""Where sibling cohorts have equal shares Kueue draws lots: whom it may take is said, and an answer that
depends on it is "either"."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.kueue.answer import kueue_answer
from gpucost.advisor.kueue.cycle import AdmissionCycle
from gpucost.advisor.kueue.snapshot import KueueSnapshot
from gpucost.advisor.model.answers import LayerResult, SchedulingDecision, SchedulingLayer
from gpucost.advisor.model.cycle_results import CycleResult
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    STRATEGIES,
    KueueConfig,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.overview import ClusterOverview
from tests.advisor import worlds
from tests.advisor.kueue_runs import asked, cycle, usages
from tests.advisor.worlds import cohort, queue, workload

FAIR = KueueConfig("v0.19.2", True, is_read=True)


def _held(name: str, where: str, gpus: int, priority: int = 0, **more: Any) -> Workload:
    return workload(name, where, gpus, priority=priority, holding=True, **more)


def _fair(*objects: object) -> CycleResult:
    return cycle(*objects, kueue=FAIR)


def _siblings(**of_right: Any) -> tuple[object, ...]:
    return (
        cohort("org", 12),
        cohort("left", parent="org"),
        cohort("right", parent="org", **of_right),
        queue("a", 0, cohort="left", reclaim="Any"),
        queue("b", 0, cohort="right", reclaim="Any"),
    )


def test_a_tie_of_sibling_cohorts_is_said() -> None:
    heads = workload("one", "a", 4, created=60), workload("two", "b", 4, created=60)
    assert _fair(*_siblings(), *heads).ties == (("left", "right"),)


@pytest.mark.parametrize(
    ("weight", "gpus", "priority", "created"), [(2, 4, 0, 60), (1, 5, 0, 60), (1, 4, 1, 60), (1, 4, 0, 61)]
)
def test_no_tie_where_anything_differs(weight: int, gpus: int, priority: int, created: float) -> None:
    heads = (
        workload("one", "a", 4, created=60),
        workload("two", "b", gpus, priority=priority, created=created),
    )
    assert _fair(*_siblings(weight=weight), *heads).ties == ()


def _equals(**policy: Any) -> tuple[object, ...]:
    """12 GPUs of the root; left and right have no quota of their own, and each uses 6 of them: both have
    6 / 12 = 500 thousandths. Queue a is of neither."""
    return (
        cohort("org", 12),
        cohort("left", parent="org"),
        cohort("right", parent="org"),
        queue("a", 0, cohort="org", reclaim="Any", **policy),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="right"),
    )


def _six_each(of_b: int = 3) -> tuple[Workload, ...]:
    """Of queue c two workloads of 3; of b two of ``of_b`` and the rest."""
    sizes = {"b": (of_b, 6 - of_b), "c": (3, 3)}
    return tuple(
        _held(f"{name}{place}", name, gpus, reserved=place)
        for name in "bc"
        for place, gpus in enumerate(sizes[name], 1)
        if gpus
    )


def test_a_tie_of_sibling_cohorts_in_the_search_for_victims_is_said() -> None:
    """a asks 3, with which it has 3 / 12 = 250 thousandths. A queue that gives one has 250 as well: enough
    for LessThanOrEqualToFinalShare. So b1 leaves, or c1: the shares of left and right are 500 each."""
    result = _fair(*_equals(), *_six_each(), workload("new", "a", 3))
    assert result.decisions["new"].preempts == ("c1",)
    assert result.ties == (("left", "right"),)


def test_no_tie_in_the_search_where_shares_differ() -> None:
    """left has 5 / 12, right 6 / 12: right gives first, whichever lots are drawn."""
    held = [each for each in _six_each(5) if each.meta.name != "b2"]
    result = _fair(*_equals(), *held, workload("new", "a", 3))
    assert (result.decisions["new"].preempts, result.ties) == (("c1",), ())


def test_no_tie_with_a_cohort_that_has_nobody_to_give() -> None:
    """What left uses is not for a to take: its priority is too high."""
    held = [_held(f"b{place}", "b", 3, 9, reserved=place) for place in (1, 2)]
    rest = [each for each in _six_each() if each.cluster_queue == "c"]
    objects = [*_equals()[:3], queue("a", 0, cohort="org", reclaim="LowerPriority"), *_equals()[4:]]
    result = _fair(*objects, *held, *rest, workload("new", "a", 3, priority=5))
    assert (result.decisions["new"].preempts, result.ties) == (("c1",), ())


def test_no_tie_of_a_cohort_and_a_queue() -> None:
    """The cohort is taken then (preemption/fairsharing/ordering.go): here left, of which b1 leaves."""
    tree = cohort("org", 12), cohort("left", parent="org")
    queues = (
        queue("a", 0, cohort="org", reclaim="Any"),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="org"),
    )
    result = _fair(*tree, *queues, *_six_each(), workload("new", "a", 3))
    assert (result.decisions["new"].preempts, result.ties) == (("b1",), ())


def test_ties_of_three_are_all_said() -> None:
    tree = cohort("org", 12), *(cohort(name, parent="org") for name in ("left", "middle", "right"))
    queues = (
        queue("a", 0, cohort="org", reclaim="Any"),
        *(queue(name, 0, cohort=of) for name, of in zip("bcd", ("left", "middle", "right"), strict=True)),
    )
    held = [_held(f"{name}{place}", name, 2, reserved=place) for name in "bcd" for place in (1, 2)]
    result = _fair(*tree, *queues, *held, workload("new", "a", 2))
    assert result.ties == (("left", "right"), ("middle", "right"))


def test_a_tie_of_heads_that_a_third_cohort_beats_is_none() -> None:
    """one and two would have 4 / 12 each, three 1 / 12: three is first, and only then do the others draw."""
    tree = cohort("org", 12), *(cohort(name, parent="org") for name in ("left", "middle", "right"))
    queues = [queue(name, 0, cohort=of) for name, of in (("a", "left"), ("b", "middle"), ("c", "right"))]
    heads = [
        workload(name, where, gpus, created=60) for name, where, gpus in (("one", "a", 4), ("three", "c", 1))
    ]
    assert _fair(*tree, *queues, *heads).ties == ()
    both = _fair(*tree, *queues, *heads, workload("two", "b", 4, created=60))
    assert (both.order, both.ties) == ((("three", "one", "two"),), (("left", "middle"),))


def _answered(*objects: object) -> LayerResult:
    state = worlds.state(*objects, kueue=FAIR)
    view = KueueView(state, FAIR)
    usage = usages(view.snapshot)
    found = kueue_answer(view, ClusterOverview(state), [state.workloads["new"]])
    assert usages(view.snapshot) == usage
    assert [child.name for child in view.snapshot.tree.cohorts["org"].children][:2] == ["left", "right"]
    return found


LOTS = "Kueue draws lots in every cycle between cohorts left, right, which have equal shares"


def test_the_answer_says_that_either_may_leave() -> None:
    found = _answered(*_equals(), *_six_each(), workload("new", "a", 3))
    assert found.decision is SchedulingDecision.NOW
    assert [each.subject.name for each in found.victims] == ["c1"]
    assert found.why[-1] == f"either: 1 workload of c or 1 workload of b must leave, as {LOTS}"


def test_a_draw_on_which_nothing_depends_is_not_told() -> None:
    """Of b one workload of 6, of c two of 3. With b1 gone left would have 0, less than the 3 / 12 of a, so b1
    may not leave. If left is drawn, b1 is passed over, and c1 leaves as it does if right is drawn."""
    held = _held("b1", "b", 6, reserved=1), *(_held(f"c{i}", "c", 3, reserved=i) for i in (1, 2))
    found = _answered(*_equals(), *held, workload("new", "a", 3))
    assert not [line for line in found.why if line.startswith("either")]
    assert [each.subject.name for each in found.victims] == ["c1"]


def test_an_answer_without_a_draw_says_nothing_of_it() -> None:
    held = [each for each in _six_each(5) if each.meta.name != "b2"]
    found = _answered(*_equals(), *held, workload("new", "a", 3))
    assert not [line for line in found.why if line.startswith("either")]


def test_the_answer_is_either_where_the_draw_decides_who_has_quota() -> None:
    """12 GPUs; new and rival ask 8 each, of the same age: each would have 8 / 12, and who is first has it."""
    heads = workload("new", "b", 8, created=60), workload("rival", "a", 8, created=60)
    found = _answered(*_siblings(), *heads)
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.UNKNOWN,
        SchedulingLayer.QUOTA,
        "ByLot",
    )
    assert found.says == f"either finds quota or waits: {LOTS}"


def test_who_is_older_does_not_draw() -> None:
    heads = workload("new", "b", 8, created=61), workload("rival", "a", 8, created=60)
    assert _answered(*_siblings(), *heads).decision is SchedulingDecision.NOW
    heads = workload("new", "b", 8, created=60), workload("rival", "a", 8, created=61)
    assert _answered(*_siblings(), *heads).decision is SchedulingDecision.WAITS


class _Drawn(list[QuotaNode]):
    """Children of a cohort as a map of Go gives them: cohorts in another order each time. (Queues come after
    them, and ties of queues are none: their heads and victims differ in age.)"""

    def __init__(self, nodes: list[QuotaNode], random: Random) -> None:
        super().__init__(nodes)
        self._random = random

    def __iter__(self) -> Iterator[QuotaNode]:
        nodes = list(super().__iter__())
        cohorts = [each for each in nodes if not each.is_queue]
        self._random.shuffle(cohorts)
        return iter([*cohorts, *(each for each in nodes if each.is_queue)])


def _as_drawn(state: ClusterState, config: KueueConfig, seed: int) -> KueueSnapshot:
    snapshot, random = KueueSnapshot(state, config), Random(seed)
    for each in snapshot.tree.cohorts.values():
        each.children = _Drawn(each.children, random)
    return snapshot


def _even(random: Random) -> tuple[ClusterState, KueueConfig]:
    """Cohorts of one root that borrow small amounts, so that many have equal shares."""
    names = [f"cohort-{place}" for place in range(random.choice([2, 2, 3, 4]))]
    parents = [random.choice(["org"] * 4 + names[:place]) for place in range(len(names))]
    objects: list[object] = [cohort("org", random.choice([8, 12]))]
    objects += [cohort(name, parent=parent) for name, parent in zip(names, parents, strict=True)]
    count, queues = 0, []
    for place in [*names, *random.choice([[], ["org"]])]:
        for _ in range(random.choice([1, 1, 2])):
            name = f"queue-{len(queues)}"
            policies = {
                "reclaim": random.choice(["Any", "Any", "LowerPriority", "Never"]),
                "within": random.choice(["Never", "LowerPriority"]),
            }
            queues.append(queue(name, random.choice([0, 0, 0, 1]), cohort=place, **policies))
            for _ in range(random.choice([0, 1, 2, 2])):
                gpus, priority = random.choice([1, 2, 2, 3]), random.choice([0, 0, 1])
                count += 1
                objects.append(_held(f"held-{count}", name, gpus, priority, reserved=100 + count))
    for each in random.sample(queues, min(len(queues), random.choice([1, 2, 3]))):
        count += 1
        gpus, priority = random.choice([1, 2, 3, 4]), random.choice([0, 1, 2])
        created = random.choice([60, 60 + count])
        objects.append(workload(f"wait-{count}", each.name, gpus, priority=priority, created=created))
    strategies = random.choice([STRATEGIES, (FINAL_SHARE,), (INITIAL_SHARE,)])
    config = KueueConfig("v0.19.2", True, strategies, is_read=True)
    return worlds.state(*objects, *queues, kueue=config), config


def _waiting(state: ClusterState) -> list[str]:
    return [uid for uid, each in state.workloads.items() if not each.has_quota]


def _gist_of_cycle(snapshot: KueueSnapshot, uids: list[str]) -> tuple[object, set[tuple[str, str]]]:
    found = AdmissionCycle(snapshot)
    done = found.run([asked(snapshot, uid) for uid in uids])
    gist = {
        each.nominee.ask.uid: (each.outcome, each.pending, [one.member.uid for one in each.nominee.targets])
        for each in done
    }
    return (gist, [each.nominee.ask.uid for each in done]), found.ties


def test_whatever_is_drawn_a_cycle_without_ties_decides_the_same() -> None:
    counts = {True: 0, False: 0}
    for seed in range(200):
        state, config = _even(Random(seed))
        uids = _waiting(state)
        gist, ties = _gist_of_cycle(KueueSnapshot(state, config), uids)
        others = [_gist_of_cycle(_as_drawn(state, config, each), uids)[0] for each in range(4)]
        depends = any(other != gist for other in others)
        assert ties or not depends, seed
        counts[depends] += 1
    assert counts[True] >= 3
    assert counts[False] >= 50


def test_whatever_is_drawn_becomes_of_it_what_the_outlook_says() -> None:
    """Of each workload that waits, where lots are drawn anew at each step."""
    told = 0
    for seed in range(60):
        state, config = _even(Random(seed))
        for uid in _waiting(state):
            view = KueueView(state, config)
            found = view.outlook(asked(view.snapshot, uid))
            known = [each.gist for each in (found, *found.otherwise)]
            told += len(known) > 1
            for draw in range(3 if found.ties else 1):
                drawn = KueueView(state, config)
                drawn.snapshot = _as_drawn(state, config, 100 + draw)
                assert drawn.outlook(asked(drawn.snapshot, uid)).gist in known, (seed, uid, draw)
    assert told >= 3
