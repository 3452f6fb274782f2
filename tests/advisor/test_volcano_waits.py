"""How long gangs wait in Volcano's queues: small clusters, of which the truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucost.advisor.volcano.gang import VolcanoGang, gang_of_manifest
from gpucost.advisor.volcano.queue_simulation import VolcanoDiscipline, VolcanoWaitInput, run_id
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.views.queue_order import default_class, pod_priority
from tests.advisor.volcano_worlds import (
    CAPACITY,
    EVICTING,
    asked,
    gang,
    manifest,
    queue,
    running,
    short,
    vcjob,
    waiting,
    with_actions,
    world,
)
from tests.cluster.builders import GPU, job, meta, node, pod_group, pod_set, state


def jobs_of(known: VolcanoSession) -> dict[str, list[Pod]]:
    """Bound pods by the name of their PodGroup."""
    found: dict[str, list[Pod]] = {}
    for pod in known.overview.state.pods.values():
        if pod.is_bound:
            found.setdefault(pod.meta.name.rpartition("-")[0], []).append(pod)
    return found


def starts(target: VolcanoGang, known: VolcanoSession, *ends: str) -> list[list[str]]:
    """Who starts at once, and after each end."""
    discipline = VolcanoDiscipline(VolcanoWaitInput(target, known, jobs_of(known)))
    steps = [discipline.start(0, (), ())]
    steps += [discipline.start(at, (each,), ()) for at, each in enumerate(ends, 1)]
    return [list(each) for each in steps]


def test_it_starts_when_enough_have_left() -> None:
    known = world(node("n1", 8), running("a", 4), running("b", 4))
    new = gang(6)
    assert starts(new, known, "a", "b") == [[], [], [run_id(new)]]


def test_room_of_others_queues_does_not_help_a_queue_at_its_capability() -> None:
    known = world(
        node("n1", 16), queue("default", 4), queue("other"), running("a", 4), running("b", 8, queue="other"),
        config=CAPACITY,
    )  # fmt: skip
    new = gang(4)
    assert starts(new, known, "b", "a") == [[], [], [run_id(new)]]


def test_those_before_it_start_first_and_hold_the_room_until_they_end() -> None:
    known = world(node("n1", 8), running("a", 8), waiting("w", 8, age_ms=1000))
    new = gang(8)
    first = next(run_id(each) for each in known.gangs.values() if each.name == "w")
    assert starts(new, known, "a", first) == [[], [first], [run_id(new)]]


def test_one_that_waits_already() -> None:
    known = world(node("n1", 8), running("a", 8), waiting("w", 8))
    target = next(each for each in known.gangs.values() if each.name == "w")
    assert starts(target, known, "a") == [[], [run_id(target)]]


def test_a_queue_held_by_its_weight() -> None:
    known = world(
        node("n1", 8), queue("default"), queue("other"), running("a", 4), running("b", 4, queue="other"),
        waiting("w", 1, queue="other"),
    )  # fmt: skip
    new = gang(4)
    assert starts(new, known, "a") == [[], [run_id(new)]]


def test_overcommit_keeps_it_out_while_others_are_let_in() -> None:
    known = world(
        node("n1", 8), queue("default"), queue("other"), running("a", 4), running("b", 4, queue="other"),
        waiting("w", 4, queue="other"),
    )  # fmt: skip
    new = gang(4)
    other = next(run_id(each) for each in known.gangs.values() if each.name == "w")
    assert starts(new, known, "a", "b") == [[], [], [run_id(new), other]]


# PodGroups beside a manifest


def plain(name: str, pods: int = 4, **fields: Any) -> Any:
    made = job("train", pod_sets=(pod_set("main", pods, 1),))
    return manifest(made, scheduler="volcano", group_name=name, **fields)


def test_the_pod_group_in_the_same_file_decides() -> None:
    group = pod_group("g", 3, rest={"queue": "ml", "min_resources": {GPU: 3}, "min_task_member": {"x": 1}})
    found = gang_of_manifest(plain("g", pod_group=group), state(node("n1")))
    assert (found.min_member, found.queue, found.min_resources) == (3, "ml", {GPU: 3})
    assert (found.min_task_member, found.uid, found.about) == ({"x": 1}, "", "podgroup/g")


def test_pods_join_a_pod_group_of_the_cluster() -> None:
    known = world(node("n1", 8), running("g", 3, least=5))
    found = gang_of_manifest(plain("g", 2), known.overview.state, known.members)
    group = next(iter(known.groups.values()))
    assert found.min_member == 5
    assert (found.uid, found.ready_count, found.size) == (group.meta.uid, 3, 5)


def test_a_pod_group_that_is_nowhere() -> None:
    found = gang_of_manifest(plain("gone"), state(node("n1")))
    answer = asked(found, node("n1", 8))
    assert short(answer) == ("never", "PodGroupMissing")
    assert answer.evidence[0].object == "podgroup/gone"


def test_what_of_a_pod_group_is_not_followed_is_said() -> None:
    group = pod_group("g", 2, rest={"unread": ("spec.subGroupPolicy",)})
    answer = asked(gang_of_manifest(plain("g", pod_group=group), state(node("n1"))), node("n1", 8))
    assert (answer.decision.value, answer.says) == ("unknown", "spec.subGroupPolicy is not followed")


def test_a_minimum_below_its_pods_is_said() -> None:
    answer = asked(gang_of_manifest(manifest(vcjob(8, gang_size=2)), state(node("n1"))), node("n1", 4))
    assert answer.decision.value == "now"
    assert any("starts with 2 of its 8 pods" in each for each in answer.why)
    assert not any("starts with" in each for each in asked(gang(2), node("n1", 4)).why)


def test_of_several_default_classes_the_lowest_counts() -> None:
    classes = [PriorityClass(meta(f"p{value}", ""), value, is_default=True) for value in (7, 3)]
    known = state(node("n1"), priority_classes=classes)
    found = default_class(known)
    assert found is not None
    assert (found.value, pod_priority(known, ""), pod_priority(known, "p7")) == (3, 3, 7)


def test_pods_that_say_so_are_no_victims() -> None:
    config = with_actions(*EVICTING)
    held = running("a", 8, least=1)
    exempt = [each if not isinstance(each, Pod) else _exempt(each) for each in held]
    new = gang(1, priority=10)
    assert asked(new, node("n1", 8), held, config=config).reason == "Preempt"
    assert asked(new, node("n1", 8), exempt, config=config).reason != "Preempt"


def _exempt(pod: Pod) -> Pod:
    annotations = {**pod.meta.annotations, "volcano.sh/preemptable": "false"}
    return replace(pod, meta=replace(pod.meta, annotations=annotations))
