"""Suggestions for the author of a job: each kind where it helps, and where it must not be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.advise import advise, ask_again
from gpucost.advisor.model.answers import Advice, SchedulingDecision, SuggestedChangeKind
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.candidates import MOST_ASKED, MOST_OF_CLUSTER
from gpucost.advisor.suggest.patches import patched
from gpucost.advisor.suggest.ranking import RULES, suggestions
from gpucost.advisor.wait.run_times import PastUse
from gpucost.cluster.objects.jobs import JobManifest, PriorityClass
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.volcano import VolcanoQueue
from tests.advisor import worlds as w
from tests.advisor.suggesting import QUEUE, ask, check, given, job, knowledge, read, rules
from tests.cluster.builders import GPU, pod
from tests.pricing.books import book, price

GIB = 1024**3
TAINT = w.taint("gpu", "yes")
SPOT_TAINT = w.taint("spot", "true")
TWO = {"h100": 8, "a100": 8}
MIG = "nvidia.com/mig-1g.10gb"


def nodes(count: int) -> list[object]:
    return [w.node(f"n{at}") for at in range(count)]


def held(queue: str, gpus: int = 8, **fields: Any) -> Any:
    return w.workload(f"held-{queue}", queue, gpus, holding=True, **fields)


# Queues


def test_a_misspelt_queue() -> None:
    known = knowledge(w.queue("ml", 8), w.local_queue("batch", "ml", "ml"), w.node("n1"))
    found = given(ask(job(queue="mian"), known), "queue-name")
    assert found.decision is SchedulingDecision.NOW
    assert found.change.operations == (
        {"op": "replace", "path": f"/metadata/labels/{QUEUE.replace('/', '~1')}", "value": "main"},
    )
    assert "exists, instead of mian" in found.says
    assert not found.caveat


def test_no_queue_of_another_namespace() -> None:
    known = knowledge(w.queue("other", 8), w.node("n1"))
    assert ask(job(queue="mian"), known).suggestions == ()


def test_another_queue_with_room() -> None:
    spare = w.local_queue("spare", "b", "ml")
    known = knowledge(w.queue("ml", 8), w.queue("b", 8), held("ml"), spare, w.node("n1"))
    found = given(ask(job(), known), "other-queue")
    assert found.decision is SchedulingDecision.NOW
    assert "spare" in found.says
    full = knowledge(w.queue("ml", 8), w.queue("b", 8), held("ml"), held("b"), spare, w.node("n1"))
    assert "other-queue" not in rules(ask(job(), full))


@pytest.mark.parametrize(
    "fields", [{"stop_policy": "Hold"}, {"is_active": False}, {"namespace_selector": None}]
)
def test_another_queue_where_its_own_serves_nobody(fields: dict[str, Any]) -> None:
    spare = w.local_queue("spare", "b", "ml")
    known = knowledge(w.queue("ml", 8, **fields), w.queue("b", 8), spare, w.node("n1"))
    assert given(ask(job(), known), "other-queue").decision is SchedulingDecision.NOW
    alone = ask(job(), knowledge(w.queue("ml", 8, **fields), w.node("n1")))
    assert rules(alone) == (["stop-policy"] if "stop_policy" in fields else [])


def test_another_queue_of_volcano() -> None:
    queues = [VolcanoQueue(w.meta(name), state=state) for name, state in (("a", "Closed"), ("b", "Open"))]
    document = job(kind="batch.volcano.sh/v1alpha1/Job", queue="", spec={"queue": "a"})
    found = given(ask(document, knowledge(*queues, w.node("n1"))), "other-queue")
    assert found.decision is SchedulingDecision.NOW
    missing = job(kind="batch.volcano.sh/v1alpha1/Job", queue="", spec={"queue": "bb"})
    assert given(ask(missing, knowledge(*queues, w.node("n1"))), "queue-name").change.operations == (
        {"op": "replace", "path": "/spec/queue", "value": "b"},
    )


# Nodes


def test_a_toleration_that_is_missing() -> None:
    tainted = w.node("n1", taints=(TAINT,))
    known = knowledge(w.queue("ml", 8), w.flavor(taints=(TAINT,)), tainted)
    found = given(ask(job(), known), "toleration")
    assert found.decision is SchedulingDecision.NOW
    wanted = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    path = "/spec/template/spec/tolerations"
    assert found.change.operations == ({"op": "add", "path": path, "value": [wanted]},)
    own = job(pod={"tolerations": [{"key": "own", "operator": "Exists"}]})
    assert given(ask(own, known), "toleration").change.operations == (
        {"op": "add", "path": f"{path}/-", "value": wanted},
    )


def test_a_toleration_of_the_nodes_alone() -> None:
    found = given(ask(job(queue=""), knowledge(w.node("n1", taints=(w.taint("gpu"),)))), "toleration")
    assert found.decision is SchedulingDecision.NOW


def test_no_toleration_where_it_is_not_what_is_missing() -> None:
    tainted = w.node("n1", 4, taints=(TAINT,))
    known = knowledge(w.queue("ml", 8), w.flavor(taints=(TAINT,)), tainted)
    assert "toleration" not in rules(ask(job(), known))
    assert "toleration" not in rules(ask(job(queue=""), knowledge(w.node("n1", is_cordoned=True))))


def flavors(**fields: Any) -> list[object]:
    return [
        w.queue("ml", TWO),
        w.flavor("h100", {"gpu": "h100"}),
        w.flavor("a100", {"gpu": "a100"}),
        w.node("h1", labels={"gpu": "h100"}, product="NVIDIA-H100-80GB-HBM3"),
        w.node("a1", labels={"gpu": "a100"}, product="NVIDIA-A100-SXM4-80GB", **fields),
    ]


AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}
            ]
        }
    }
}


@pytest.mark.parametrize("pod", [{"nodeSelector": {"gpu": "h100"}}, {"affinity": AFFINITY}])
def test_another_flavor(pod: dict[str, Any]) -> None:
    known = knowledge(*flavors(), held("ml", flavor="h100"))
    found = given(ask(job(pod=pod), known), "other-flavor")
    assert found.decision is SchedulingDecision.NOW
    assert "A100" in found.caveat
    full = knowledge(
        *flavors(), held("ml", flavor="h100"), w.workload("h2", "ml", 8, holding=True, flavor="a100")
    )
    assert "other-flavor" not in rules(ask(job(pod=pod), full))


def test_other_nodes_without_kueue() -> None:
    nodes = [w.node("h1", 4, labels={"gpu": "h100"}), w.node("a1", labels={"gpu": "a100"})]
    document = job(queue="", pod={"nodeSelector": {"gpu": "h100"}})
    assert given(ask(document, knowledge(*nodes)), "other-flavor").decision is SchedulingDecision.NOW
    assert "other-flavor" not in rules(ask(document, knowledge(nodes[0])))


@pytest.mark.parametrize("checkpoints", ["true", "false", ""])
def test_spot_only_for_what_checkpoints(checkpoints: str) -> None:
    objects = [
        w.queue("ml", {"h100": 8, "spot": 8}),
        w.flavor("h100", {"gpu": "h100"}),
        w.flavor("spot", {"capacity": "spot"}, taints=(SPOT_TAINT,)),
        w.node("h1", labels={"gpu": "h100"}),
        w.node("s1", labels={"capacity": "spot"}, taints=(SPOT_TAINT,), capacity_type="spot"),
        held("ml", flavor="h100"),
    ]
    annotations = {"gpucost.io/checkpoints": checkpoints} if checkpoints else {}
    answer = ask(job(annotations=annotations), knowledge(*objects))
    by_spot = [each for each in answer.suggestions if "spot" in each.change.patch]
    if checkpoints == "true":
        found = given(answer, "spot")
        assert by_spot == [found], "once is enough"
        assert found.decision is SchedulingDecision.NOW
        assert "checkpoint" in found.caveat
    else:
        assert not by_spot


# Priority


@pytest.mark.parametrize(("within", "expected"), [("LowerPriority", True), ("Never", False)])
def test_a_priority_class_only_where_it_preempts(within: str, expected: bool) -> None:
    classes = [PriorityClass(w.meta(name), value, of_kueue=True) for name, value in (("mid", 5), ("top", 50))]
    known = knowledge(
        w.queue("ml", 8, within=within), held("ml", priority=10), w.node("n1"), priority_classes=classes
    )
    answer = ask(job(), known)
    assert ("priority-class" in rules(answer)) is expected
    if expected:
        found = given(answer, "priority-class")
        assert "top" in found.says
        assert "1 workload is preempted" in found.caveat


# Gangs


def volcano_job(pods: int, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    return job(pods, gpus, "", kind="batch.volcano.sh/v1alpha1/Job", spec=spec)


def volcano_nodes(count: int) -> list[object]:
    return [VolcanoQueue(w.meta("default"), state="Open"), *(w.node(f"n{at}") for at in range(count))]


def test_a_minimum_below_the_size_of_a_gang() -> None:
    busy = pod("busy", 8, node="n2")
    answer = ask(volcano_job(3, minAvailable=1), knowledge(*volcano_nodes(3), busy))
    assert answer.decision is SchedulingDecision.NOW
    found = given(answer, "gang")
    assert found.decision is SchedulingDecision.WAITS, "two of its pods would have held their GPUs until then"
    assert found.change.operations == ({"op": "replace", "path": "/spec/minAvailable", "value": 3},)
    assert "gang" not in rules(ask(volcano_job(2, minAvailable=1), knowledge(*volcano_nodes(3), busy)))
    assert "gang" not in rules(ask(volcano_job(4, minAvailable=1), knowledge(*volcano_nodes(3), busy)))


def test_pods_that_need_each_other_under_the_default_scheduler() -> None:
    indexed = {"completionMode": "Indexed"}
    busy = pod("busy", 8, node="n1")
    known = knowledge(*volcano_nodes(2), w.queue("ml", 16), busy)
    answer = ask(job(2, queue="", spec=indexed), known)
    assert answer.decision is SchedulingDecision.WAITS
    found = given(answer, "gang")
    assert found.change.patch == "metadata:\n  labels:\n    kueue.x-k8s.io/queue-name: main"
    assert "hold their GPUs" in found.caveat
    assert "gang" not in rules(ask(job(2, queue=""), known)), "each pod gets on without the others"
    by_volcano = given(ask(job(2, queue="", spec=indexed), knowledge(*volcano_nodes(2), busy)), "gang")
    assert "schedulerName: volcano" in by_volcano.change.patch


# Sizes


def test_a_smaller_minimum_is_the_largest_that_fits() -> None:
    known = knowledge(w.queue("ml", 32), held("ml", 8), *(w.node(f"n{at}") for at in range(4)))
    found = given(ask(job(4), known), "min-count")
    assert found.decision is SchedulingDecision.NOW
    assert "'3'" in found.change.patch
    assert "must work with 3 pods" in found.caveat
    full = knowledge(w.queue("ml", 32), held("ml", 32), w.node("n1"))
    assert "min-count" not in rules(ask(job(4), full))


def test_a_smaller_minimum_at_volcano() -> None:
    """Of a job that says that a part of it is enough."""
    busy = [pod(f"busy-{at}", 8, node=f"n{at}") for at in range(2)]
    known = knowledge(*volcano_nodes(5), *busy)
    found = given(ask(volcano_job(5, minAvailable=4), known), "min-count")
    assert found.decision is SchedulingDecision.NOW
    assert found.change.operations == ({"op": "replace", "path": "/spec/minAvailable", "value": 3},)
    assert "min-count" not in rules(ask(volcano_job(5), known)), "it needs all its pods"
    one = knowledge(*volcano_nodes(5), *busy, *(pod(f"more-{at}", 8, node=f"n{at}") for at in (2, 3)))
    assert "must work with 1 pod;" in given(ask(volcano_job(5, minAvailable=4), one), "min-count").caveat


def test_no_smaller_minimum_where_the_rest_never_finds_room() -> None:
    queue = VolcanoQueue(w.meta("default"), state="Open", capability={GPU: 16})
    nodes = [w.node(f"n{at}") for at in range(5)]
    answer = ask(volcano_job(4, minAvailable=3), knowledge(queue, *nodes))
    assert answer.decision is SchedulingDecision.NEVER
    assert "fewer-pods" in rules(answer)
    assert "min-count" not in rules(answer)
    few = ask(volcano_job(5, minAvailable=4), knowledge(*volcano_nodes(3)))
    assert few.decision is SchedulingDecision.NEVER
    assert "min-count" not in rules(few)


@pytest.mark.parametrize("least", [1, 2, 3, 4])
@pytest.mark.parametrize("free", [1, 2, 3])
def test_what_was_changed_is_not_first_changed_back(least: int, free: int) -> None:
    busy = [pod(f"busy-{at}", 8, node=f"n{at}") for at in range(4 - free)]
    known = knowledge(*volcano_nodes(4), *busy)
    document = volcano_job(4, minAvailable=least)
    answer = ask(document, known)
    assert answer.suggestions
    for each in answer.suggestions:
        changed = patched(document, each.change.operations)
        first = ask(changed, known).suggestions[:1]
        assert all(patched(changed, one.change.operations) != document for one in first), each.says


def test_fewer_pods_is_the_most_that_fits() -> None:
    known = knowledge(*(w.node(f"n{at}") for at in range(3)))
    found = given(ask(job(5, queue=""), known), "fewer-pods")
    assert found.change.operations == ({"op": "replace", "path": "/spec/parallelism", "value": 3},)
    assert "fewer-pods" not in rules(ask(job(5, 16, queue=""), known))


def test_of_which_part_there_are_fewer_and_what_that_means() -> None:
    known = knowledge(*volcano_nodes(3))
    found = given(ask(volcano_job(5), known), "fewer-pods")
    assert found.says == "worker replicas 3 instead of 5"
    assert found.caveat.endswith("takes longer")
    serving = job(queue="", kind="apps/v1/Deployment", spec={"replicas": 5})
    serving["spec"] = {key: serving["spec"][key] for key in ("replicas", "template")}
    serving["spec"]["template"]["metadata"] = {"labels": {"app": "web"}}
    serving["spec"]["template"]["spec"].pop("restartPolicy")
    serving["spec"]["selector"] = {"matchLabels": {"app": "web"}}
    busy = pod("busy", 8, node="n1")
    found = given(ask(serving, knowledge(*volcano_nodes(3), busy)), "fewer-pods")
    assert found.says == "replicas 2 instead of 5"
    assert found.caveat.endswith("serves less")


def test_fewer_gpus_where_a_pod_is_larger_than_any_node() -> None:
    found = given(ask(job(1, 16, queue=""), knowledge(w.node("n1"))), "fewer-gpus-per-pod")
    assert found.decision is SchedulingDecision.NOW
    assert "8 nvidia.com/gpu in each pod instead of 16" in found.says
    assert "fewer-gpus-per-pod" not in rules(ask(job(1, 16, queue=""), knowledge(w.node("n1", 0))))


def test_as_many_gpus_as_like_runs_used() -> None:
    used = PastUse("H100", 80 * 10**9, 60 * 10**9, 0.9, gpus=2, runs=7)
    known = knowledge(w.queue("ml", 8), held("ml", 4), w.node("n1"), used=used)
    found = given(ask(job(), known), "fewer-gpus-per-pod")
    assert "7 earlier runs used 2" in found.says
    assert not found.caveat


@pytest.mark.parametrize(("memory_gb", "expected"), [(6, True), (30, False)])
def test_a_slice_that_fits_past_use(memory_gb: int, expected: bool) -> None:
    used = PastUse("H100", 80 * 10**9, memory_gb * 10**9, 0.1)
    objects = [
        w.queue("ml", 1, resources={MIG: 4}),
        held("ml", 1),
        w.node("n1", 1, more={MIG: 7}),
    ]
    answer = ask(job(1, 1), knowledge(*objects, used=used))
    assert ("mig-profile" in rules(answer)) is expected
    if expected:
        found = given(answer, "mig-profile")
        assert found.decision is SchedulingDecision.NOW
        assert "6.0 GB" in found.caveat
    assert "mig-profile" not in rules(ask(job(1, 1), knowledge(*objects)))


# For less, or earlier

H100_AND_A100 = (price("4", model="H100"), price("2", model="A100-80GB"))


def test_a_cheaper_flavor_for_what_runs_now() -> None:
    objects = [replace(each, boards=8) if isinstance(each, Node) else each for each in flavors()]
    answer = ask(job(), knowledge(*objects, prices=book(*H100_AND_A100)))
    assert answer.decision is SchedulingDecision.NOW
    assert answer.price is not None
    found = given(answer, "other-flavor")
    assert (answer.price.per_hour, found.price_per_hour) == (32 * 10**9, 16 * 10**9)
    dearer = book(price("4", model="H100"), price("5", model="A100-80GB"))
    assert ask(job(), knowledge(*objects, prices=dearer)).suggestions == ()
    assert ask(job(), knowledge(*objects)).suggestions == (), "nobody knows that it would be cheaper"


@pytest.mark.parametrize(("ahead", "expected"), [(0, True), (6, False)])
def test_a_cheaper_flavor_only_with_no_longer_wait(ahead: int, expected: bool) -> None:
    """Both are full; workloads that want the cheaper one stand before it."""
    objects = [replace(each, boards=8) if isinstance(each, Node) else each for each in flavors()]
    runs = [w.workload(f"on-{name}", "ml", 8, holding=True, flavor=name) for name in TWO]
    line = [w.workload(f"ahead-{at}", "ml", 8, selector={"gpu": "a100"}) for at in range(ahead)]
    known = knowledge(*objects, *runs, *line, prices=book(*H100_AND_A100))
    answer = ask(job(pod={"nodeSelector": {"gpu": "h100"}}), known)
    assert answer.decision is SchedulingDecision.WAITS
    assert answer.wait is not None
    assert ("other-flavor" in rules(answer)) is expected


def test_a_split_over_two_models_of_gpus_is_said() -> None:
    other = w.node("a1", 8, taints=(TAINT,), product="NVIDIA-A100-SXM4-80GB")
    same = w.node("a1", 8, taints=(TAINT,), product="NVIDIA-H100-80GB-HBM3")
    own = w.node("h1", 8, product="NVIDIA-H100-80GB-HBM3")
    found = given(ask(job(2, queue=""), knowledge(own, other)), "toleration")
    assert found.decision is SchedulingDecision.NOW
    assert "on NVIDIA-A100-SXM4-80GB and NVIDIA-H100-80GB-HBM3, which differ" in found.caveat
    assert not given(ask(job(2, queue=""), knowledge(own, same)), "toleration").caveat
    busy = [pod("busy", 8, node="a1"), pod("long", 8, node="h1")]
    later = ask(job(2, queue=""), knowledge(own, other, *busy))
    assert "its pods may then be on NVIDIA-A100" in given(later, "toleration").caveat


SMALL = {"gpu-1": 4, "gpu-2": 4}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"parallelism": 1, "completions": 1}, {"parallelism": 2, "completions": 2}),
        ({"parallelism": 1, "completions": 3}, {"parallelism": 2, "completions": 6}),
        ({"parallelism": 4, "completions": 1}, {"parallelism": 2, "completions": 2}),
        ({"parallelism": 1, "completions": None}, {"parallelism": 2, "completions": None}),
        (
            {"parallelism": 1, "completions": 1, "completionMode": "Indexed"},
            {"parallelism": 2, "completions": 2, "completionMode": "Indexed"},
        ),
    ],
)
def test_as_many_gpus_in_smaller_pods(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each of the smaller pods has to succeed as well, or fewer than that run."""
    known = knowledge(w.queue("ml", 8), *(w.node(name, gpus) for name, gpus in SMALL.items()))
    document = job(1, 8, spec=spec)
    if spec["completions"] is None:
        del document["spec"]["completions"]
    found = given(ask(document, known), "smaller-pods")
    assert found.decision is SchedulingDecision.NOW
    changed = patched(document, found.change.operations)
    assert {key: changed["spec"].get(key) for key in expected} == expected
    assert sum(each.count for each in advise(read(changed), known).pod_sets) == 2


def test_fewer_pods_are_no_saving() -> None:
    objects = [replace(each, boards=8) if isinstance(each, Node) else each for each in flavors()]
    known = knowledge(*objects, prices=book(price("4", model="H100"), price("4", model="A100-80GB")))
    assert ask(job(1, 4), known).suggestions == ()


def test_a_queue_with_a_shorter_wait() -> None:
    """Both are full: one for a long time to come."""
    ahead = [w.workload(f"ahead-{at}", "ml", 8) for at in range(6)]
    spare = w.local_queue("spare", "b", "ml")
    runs = [held("ml"), held("b")]
    known = knowledge(w.queue("ml", 8), w.queue("b", 8), *runs, *ahead, spare, *nodes(2))
    answer = ask(job(), known)
    assert answer.wait is not None
    found = given(answer, "other-queue")
    assert found.decision is answer.decision is SchedulingDecision.WAITS
    assert found.wait is not None
    assert found.wait.p50_ms is not None
    assert answer.wait.p50_ms is None or found.wait.p50_ms < answer.wait.p50_ms
    level = knowledge(w.queue("ml", 8), w.queue("b", 8), *runs, spare, *nodes(2))
    assert "other-queue" not in rules(ask(job(), level))


# All together


def test_what_runs_now_needs_no_suggestion() -> None:
    assert ask(job(), knowledge(w.queue("ml", 8), w.node("n1"))).suggestions == ()


def test_manifests_before_clusters_and_small_changes_first() -> None:
    known = knowledge(
        w.queue("ml", 8), w.queue("b", 8), held("ml"), w.local_queue("spare", "b", "ml"),
        *(w.node(f"n{at}") for at in range(3)),
    )  # fmt: skip
    answer = ask(job(2, 4), known)
    kinds = [each.change.kind for each in answer.suggestions]
    assert kinds == sorted(kinds, key=lambda kind: kind is SuggestedChangeKind.CLUSTER)
    assert rules(answer)[0] == "other-queue"
    assert "nominal-quota" in rules(answer)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_more_than_the_settings_say(most: int) -> None:
    known = knowledge(w.queue("ml", 8), *(w.node(f"n{at}") for at in range(3)))
    known = replace(known, settings=replace(known.settings, most_suggestions=most))
    assert len(ask(job(2), known).suggestions) == most


def test_a_bounded_number_of_questions() -> None:
    """However many queues, flavors, taints and classes there are."""
    many = range(40)
    names = {f"f{at}": 8 for at in many}
    objects = [
        w.queue("ml", names, cohort="c", borrowing=1),
        *(w.queue(f"q{at}", 8, cohort="c", lending=0) for at in many),
        *(w.local_queue(f"l{at}", f"q{at}", "ml") for at in many),
        *(w.flavor(f"f{at}", {"gpu": f"f{at}"}, taints=(w.taint(f"t{at}"),)) for at in many),
        *(w.node(f"n{at}", labels={"gpu": f"f{at}"}, taints=(w.taint(f"t{at}"),)) for at in many),
    ]
    classes = [PriorityClass(w.meta(f"p{at}"), at, of_kueue=True) for at in range(1, 40)]
    asked: list[bool] = []

    def counting(manifest: JobManifest, known: AdvisorContext, with_wait: bool) -> Advice:
        asked.append(with_wait)
        return ask_again(manifest, known, with_wait)

    known, manifest = knowledge(*objects, priority_classes=classes), read(job(64, 8))
    advice = advise(manifest, known, with_suggestions=False)
    suggestions(manifest, advice, known, counting)
    assert len(asked) <= MOST_ASKED + MOST_OF_CLUSTER + known.settings.most_suggestions


def test_every_rule_has_a_name_of_its_own() -> None:
    names = [each.name for each in RULES]
    assert len(set(names)) == len(names)


def test_hostile_names_stay_text() -> None:
    """Names that would be YAML, shell or a JSON pointer."""
    evil = "x\n- --- {a: b}: $(reboot) ~1 ~0 'q\" #"
    known = knowledge(w.queue("ml", 8), w.local_queue(evil, "ml", "ml"), w.node("n1"))
    known = replace(known, settings=replace(known.settings, most_suggestions=20))
    answer = ask(job(queue="main", pod={"nodeSelector": {"a.b/c": "x"}}), known)
    for each in answer.suggestions:
        check(read(job(pod={"nodeSelector": {"a.b/c": "x"}})), known, each)
    tainted = w.node("n1", taints=(w.taint("a.1/b", "reboot"),))
    found = given(ask(job(queue=""), knowledge(tainted)), "toleration")
    assert found.decision is SchedulingDecision.NOW
