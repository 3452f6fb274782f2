"""Volcano's answers on small clusters, in the manner of its own tests: queues, jobs, nodes and pods in, the
decision out. Who is let in, what queues may have, and whose turn it is; each one unit below, at and above."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpucost.advisor.model.answers import SchedulingDecision, SchedulingLayer
from gpucost.advisor.volcano.answer import volcano_answer
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.scheduler_config import VOLCANO_ACTIONS, VolcanoConfig
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.overview import ClusterOverview
from tests.advisor.volcano_worlds import (
    CAPACITY,
    EVICTING,
    FLAT,
    NO_QUOTA,
    TREE,
    asked,
    classes,
    gang,
    member,
    queue,
    running,
    short,
    waiting,
    with_actions,
    world,
)
from tests.cluster.builders import GPU, node, template

# Enqueue


@pytest.mark.parametrize(("capability", "expected"), [
    (9, ("now", "Fits")), (8, ("now", "Fits")), (7, ("waits", "QueueQuota")),
    (3, ("never", "QueueCapability")),
])  # fmt: skip
def test_minimum_and_what_is_held_must_be_within_the_capability(
    capability: int, expected: tuple[str, str]
) -> None:
    answer = asked(gang(4), queue("default", capability), node("n1", 16), running("r", 4))
    assert short(answer) == expected
    if expected[0] != "now":
        assert (answer.evidence[0].object, answer.evidence[0].field) == (
            "queue/default", f"spec.capability[{GPU}]",
        )  # fmt: skip


@pytest.mark.parametrize(("reserved", "expected"), [
    (3, ("now", "Fits")), (4, ("now", "Fits")), (5, ("waits", "QueueQuota")),
])  # fmt: skip
def test_what_was_promised_to_others_counts(reserved: int, expected: tuple[str, str]) -> None:
    other = waiting("w", 1, 1, min_resources={GPU: reserved})
    answer = asked(gang(4), queue("default", 8), node("n1", 16), other)
    assert short(answer) == expected


def test_what_a_job_has_above_its_minimum_does_not_count() -> None:
    held = running("r", 6, least=2)
    config = with_actions("enqueue", "allocate", tiers=FLAT)
    answer = asked(gang(4), queue("default", 8), node("n1", 16), held, config=config)
    # Let in as 4 + 6 - 4 <= 8, and not placed as 6 + 4 > 8.
    assert short(answer) == ("waits", "QueueCapability")


@pytest.mark.parametrize(("pods", "expected"), [
    (4, ("waits", "NotEnoughResources")), (5, ("waits", "Overcommit")), (12, ("never", "NoNodeFits")),
    (13, ("never", "Overcommit")),
])  # fmt: skip
def test_overcommit_lets_in_up_to_its_factor(pods: int, expected: tuple[str, str]) -> None:
    """The cluster has 10 GPUs, so 12 with the factor 1.2, of which 8 are used."""
    answer = asked(gang(pods), node("n1", 8), node("n2", 2), running("r", 8), config=NO_QUOTA)
    assert short(answer) == expected


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"overcommit-factor": "1.0"}, "Overcommit"),
    ({"overcommit-factor": "2"}, "NotEnoughResources"),
    ({f"overcommit-factor.{GPU}": "2", "overcommit-factor": "1"}, "NotEnoughResources"),
    ({"overcommit-factor": "0.5"}, "Overcommit"),
    ({"overcommit-factor": "nonsense"}, "Overcommit"),
])  # fmt: skip
def test_the_factor_is_an_argument_below_1_counts_for_nothing(
    arguments: Mapping[str, str], expected: str
) -> None:
    config = replace(NO_QUOTA, arguments={"overcommit": arguments})
    answer = asked(gang(5), node("n1", 10), running("r", 8), config=config)
    assert answer.reason == expected


def test_without_minimum_resources_everybody_is_let_in() -> None:
    answer = asked(gang(5, min_resources=None), node("n1", 10), running("r", 8))
    assert short(answer) == ("waits", "NotEnoughResources")


def test_without_the_action_everybody_counts_as_let_in() -> None:
    config = with_actions("allocate")
    answer = asked(gang(5), node("n1", 10), running("r", 8), config=config)
    assert short(answer) == ("waits", "NotEnoughResources")
    assert "enqueue is not configured" in answer.why[0]


def test_a_job_that_was_refused_keeps_nobody_back() -> None:
    large = waiting("large", 9, phase="Pending", age_ms=60_000)
    answer = asked(gang(2), node("n1", 8), running("r", 4), large)
    assert short(answer) == ("now", "Fits")


def test_jobs_before_it_are_let_in_first() -> None:
    early = waiting("early", 4, phase="Pending", age_ms=60_000)
    answer = asked(gang(2), node("n1", 8), running("r", 4), early)
    # 4 used of 9.6: 4 are promised to the first, and 6 > 5.6.
    assert short(answer) == ("waits", "Overcommit")
    late = waiting("late", 4, phase="Pending", age_ms=-60_000)
    assert short(asked(gang(2), node("n1", 8), running("r", 4), late)) == ("now", "Fits")


def test_a_tier_that_permits_asks_no_further() -> None:
    tiers = (("gang", "overcommit"), ("predicates", "proportion"))
    config = with_actions("enqueue", "allocate", tiers=tiers)
    answer = asked(gang(4), queue("default", 7), node("n1", 16), running("r", 4), config=config)
    assert answer.reason == "QueueCapability", "let in by overcommit, and then above its capability"


# Queues


@pytest.mark.parametrize("state_", ["Closed", "Closing", "Unknown"])
def test_a_queue_that_is_not_open_takes_nobody(state_: str) -> None:
    answer = asked(gang(), queue("default", state=state_), node("n1"))
    assert short(answer) == ("never", "QueueClosed")
    assert (answer.evidence[0].field, answer.evidence[0].value) == ("status.state", state_)


def test_a_queue_that_does_not_exist() -> None:
    answer = asked(gang(queue="nobody"), node("n1"))
    assert short(answer) == ("never", "QueueMissing")
    assert answer.evidence[0].object == "queue/nobody"


def test_what_a_job_that_runs_has_still_to_get_counts() -> None:
    held = running("r", 2, min_resources={GPU: 6})
    assert short(asked(gang(2), queue("default", 8), node("n1", 16), held)) == ("now", "Fits")
    assert short(asked(gang(3), queue("default", 8), node("n1", 16), held)) == ("waits", "QueueQuota")


def test_minimum_resources_above_the_capability_are_never_let_in() -> None:
    objects = queue("default", 8), node("n1", 16)
    assert short(asked(gang(1, min_resources={GPU: 9}), *objects)) == ("never", "QueueCapability")
    assert asked(gang(1, min_resources={GPU: 8}), *objects).decision is SchedulingDecision.NOW


def test_a_factor_below_1_is_as_if_it_were_not_there() -> None:
    config = replace(NO_QUOTA, arguments={"overcommit": {"overcommit-factor": "0.5"}})
    assert asked(gang(2), node("n1", 10), running("r", 8), config=config).decision is SchedulingDecision.NOW


def test_nodes_that_are_not_ready_do_not_count() -> None:
    answer = asked(gang(4), node("n1", 2), node("n2", 8, is_ready=False))
    assert short(answer) == ("waits", "NodesUnusable")
    assert answer.until == "nodes are ready"
    assert "1 node takes no pods (n2)" in answer.says
    assert short(asked(gang(4), node("n1", 2), node("n2", 1, is_ready=False))) == ("never", "Overcommit")


def test_queues_that_nobody_could_read() -> None:
    seen = {"queues.scheduling.volcano.sh": CollectionStatus("v1beta1", synced=False, problem="Forbidden")}
    base = world(node("n1")).overview
    lost = replace(base.state, collections=seen, volcano_queues={})
    answer = volcano_answer(gang(), VolcanoSession(ClusterOverview(lost), VolcanoConfig(is_read=True)))
    assert short(answer) == ("unknown", "QueuesUnread")


def test_a_cluster_without_nodes() -> None:
    assert asked(gang()).decision is SchedulingDecision.NEVER


def test_what_of_the_queue_is_left() -> None:
    held = running("r", 3)
    answer = asked(gang(2), queue("default", 8), node("n1", 16), held, config=CAPACITY)
    assert (answer.decision, answer.left) == (SchedulingDecision.NOW, {GPU: 5, "pods": 107})
    assert asked(gang(2), node("n1", 16), held, config=NO_QUOTA).left is None


def test_the_sentence_names_amounts() -> None:
    answer = asked(gang(4), queue("default", 7), node("n1", 16), running("r", 4))
    assert answer.says == f"queue default lets no more jobs in: 8 {GPU} with it, of 7 {GPU}"
    assert answer.evidence[0].value == "7"


def test_others_guarantees_are_nobody_elses() -> None:
    others = [queue("default"), queue("safe", guarantee=6)]
    assert short(asked(gang(2), *others, node("n1", 8))) == ("now", "Fits")
    assert short(asked(gang(3), *others, node("n1", 8))) == ("never", "QueueCapability")
    own = [queue("default", guarantee=2), queue("safe", guarantee=6)]
    assert short(asked(gang(2), *own, node("n1", 8))) == ("now", "Fits")


def test_a_share_that_the_capability_cuts_off_names_the_capability() -> None:
    answer = asked(gang(4, min_resources=None), queue("default", 6), node("n1", 8), running("r", 4))
    assert short(answer) == ("waits", "QueueCapability")
    assert answer.evidence[0].field == f"spec.capability[{GPU}]"


def test_weights_divide_what_both_want() -> None:
    """3 : 1 of 8 GPUs: 6 and 2."""
    queues = [queue("a", weight=3), queue("b", weight=1)]
    others = [running("r", 6, queue="a"), waiting("w", 2, queue="a")]
    assert short(asked(gang(2, queue="b", min_resources=None), *queues, *others, node("n1", 8))) == (
        "now",
        "Fits",
    )
    held = [running("r", 4, queue="a"), waiting("w", 2, queue="a", age_ms=-1)]
    assert short(asked(gang(3, queue="b", min_resources=None), *queues, *held, node("n1", 8))) == (
        "waits",
        "QueueShare",
    )


def test_a_queue_with_all_it_deserves_is_skipped() -> None:
    queues = [queue("a"), queue("b")]
    others = [running("r", 4, queue="a"), waiting("w", 4, queue="b")]
    answer = asked(
        gang(1, queue="a", min_resources=None), *queues, *others, node("n1", 9, allocatable={GPU: 8})
    )
    assert short(answer) == ("waits", "QueueOverused")
    assert answer.evidence[0].field == "spec.weight"


@pytest.mark.parametrize(("held", "expected"), [(3, "now"), (4, "now"), (5, "waits")])
def test_capacity_takes_what_is_idle_up_to_the_capability(held: int, expected: str) -> None:
    """What a queue deserves is no limit while no other queue wants it."""
    given = queue("default", 8, deserved=2)
    answer = asked(gang(4), given, node("n1", 16), running("r", held), config=CAPACITY)
    assert answer.decision.value == expected


@pytest.mark.parametrize("deserved", [None, {}, {GPU: 0}])
def test_a_queue_that_deserves_nothing_goes_last(deserved: Mapping[str, int] | None) -> None:
    poor, rich = queue("poor", deserved=deserved), queue("rich", deserved=4)
    other = waiting("w", 4, queue="rich", age_ms=-60_000)
    answer = asked(
        gang(4, queue="poor", min_resources=None), poor, rich, other, node("n1", 4), config=CAPACITY
    )
    assert short(answer) == ("waits", "Behind")
    assert "w" in answer.says


@pytest.mark.parametrize(("held", "expected"), [
    (3, ("now", "Fits")), (4, ("now", "Fits")), (5, ("waits", "QueueQuota")),
])  # fmt: skip
def test_an_ancestor_limits_its_children_together(held: int, expected: tuple[str, str]) -> None:
    queues = [queue("root"), queue("org", 8), queue("a", parent="org"), queue("b", parent="org")]
    objects = [*queues, node("n1", 16), running("r", held, queue="b")]
    answer = asked(gang(4, queue="a"), *objects, config=TREE)
    assert short(answer) == expected
    if expected[0] == "waits":
        assert answer.evidence[0].object == "queue/org"
    flat = asked(gang(4, queue="a"), *objects, config=CAPACITY)
    assert flat.decision is SchedulingDecision.NOW, "without a hierarchy parents count for nothing"


def test_only_leaves_take_jobs() -> None:
    queues = [queue("root"), queue("org"), queue("a", parent="org")]
    answer = asked(gang(1, queue="org"), *queues, node("n1"), config=TREE)
    assert short(answer) == ("never", "NotALeaf")
    assert answer.evidence[0].field == "spec.parent"
    stops_all = asked(gang(1, queue="a"), *queues, node("n1"), waiting("w", 1, queue="org"), config=TREE)
    assert short(stops_all) == ("never", "JobsInParent")
    assert stops_all.evidence[0].object == "queue/org"


@pytest.mark.parametrize(("queues", "reason"), [
    ([queue("root"), queue("a", parent="b"), queue("b", parent="a")], "QueueCycle"),
    ([queue("root"), queue("a", parent="a")], "QueueCycle"),
    ([queue("root"), queue("a", parent="gone")], "NoParent"),
    ([queue("a")], "NoParent"),
])  # fmt: skip
def test_a_broken_tree_schedules_nothing(queues: list[VolcanoQueue], reason: str) -> None:
    answer = asked(gang(1, queue="a"), *queues, node("n1"), config=TREE)
    assert short(answer) == ("never", reason)
    assert answer.layer is SchedulingLayer.QUOTA


def test_what_nobody_has_is_never_given() -> None:
    wanted = gang(asks=template(requests={"amd.com/gpu": 1}), min_resources={"amd.com/gpu": 1})
    assert asked(wanted, node("n1")).decision is SchedulingDecision.NEVER


# Order


def test_the_older_goes_first_and_the_more_important_before_it() -> None:
    old = waiting("old", 4, age_ms=60_000)
    objects = (node("n1", 4), old)
    answer = asked(gang(4, min_resources=None), *objects, **classes(10))
    assert (short(answer), answer.ahead) == (("waits", "Behind"), 1)
    answer = asked(gang(4, min_resources=None, priority=10), *objects, **classes(10))
    assert (short(answer), answer.ahead) == (("now", "Fits"), 0)


def test_a_job_that_is_complete_waits_behind_one_that_is_not() -> None:
    """Its third pod is older, but the gang already runs."""
    elastic = running("e", 2, least=2)
    elastic.append(member("e", 2, 1))
    tiers = tuple(tuple(each for each in tier if each != "drf") for tier in VolcanoConfig().tiers)
    config = VolcanoConfig(tiers=tiers, is_read=True)
    answer = asked(gang(2, min_resources=None), node("n1", 4), elastic, config=config)
    assert short(answer) == ("now", "Fits")


def test_a_smaller_share_goes_first() -> None:
    partial = [*running("p", 2, least=4, phase="Inqueue"), member("p", 2, 1), member("p", 3, 1)]
    answer = asked(gang(2, min_resources=None), node("n1", 4), partial)
    assert short(answer) == ("now", "Fits"), "the older one holds GPUs, so its share is larger"
    tiers = tuple(tuple(each for each in tier if each != "drf") for tier in VolcanoConfig().tiers)
    answer = asked(
        gang(2, min_resources=None), node("n1", 4), partial, config=VolcanoConfig(tiers=tiers, is_read=True)
    )
    assert short(answer) == ("waits", "Behind")


def test_a_gang_before_it_that_does_not_fit_takes_nothing() -> None:
    large = waiting("large", 5, age_ms=60_000)
    answer = asked(gang(2, min_resources=None), node("n1", 4), large)
    assert (short(answer), answer.ahead) == (("now", "Fits"), 1)


# Whatever the order


def test_order_of_input_does_not_matter() -> None:
    rng = random.Random(7)
    for _ in range(25):
        objects: list[object] = [node(f"n{at}", rng.randint(1, 8)) for at in range(4)]
        objects += [queue(f"q{at}", rng.choice([None, 6, 9]), weight=rng.randint(1, 4)) for at in range(3)]
        groups = [
            waiting(f"w{at}", rng.randint(1, 4), rng.randint(1, 3), queue=f"q{rng.randrange(3)}",
                    age_ms=rng.randrange(3) * 1000, phase=rng.choice(["Pending", "Inqueue"]))
            for at in range(6)
        ]  # fmt: skip
        groups += [
            running(f"r{at}", rng.randint(1, 2), 1, on=f"n{at}", queue=f"q{rng.randrange(3)}", least=1)
            for at in range(3)
        ]
        objects += [each for group in groups for each in group]
        config = with_actions(*rng.choice([VOLCANO_ACTIONS, EVICTING]))
        asking = gang(rng.randint(1, 4), rng.randint(1, 3), queue="q0", priority=rng.randint(0, 1))
        first = asked(asking, *objects, config=config)
        rng.shuffle(objects)
        assert asked(asking, *objects, config=config) == first


def test_names_are_only_names() -> None:
    """A queue and a gang may be called anything."""
    name = "x" * 300 + "\n{}[]"
    answer = asked(replace(gang(queue=name), name=name), node("n1"))
    assert answer.evidence[0].object == f"queue/{name}"
