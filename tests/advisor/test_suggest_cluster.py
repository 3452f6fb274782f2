"""Suggestions for administrators: by exactly what is missing, and carried out on the state they are for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import JobSuggestion, SchedulingDecision, SuggestedChangeKind
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.patches import patched
from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import ClusterQueue, FlavorQuota, FlavorResource
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.volcano import VolcanoQueue
from tests.advisor import worlds as w
from tests.advisor.suggesting import ask, given, job, knowledge, merged, read, rules
from tests.cluster.builders import GPU, pod

KEY = FlavorResource("h100", GPU)
CPU = FlavorResource("h100", "cpu")
BY_CAPACITY = VolcanoConfig(tiers=(("priority", "gang"), ("predicates", "capacity")), is_read=True)


def nodes(count: int) -> list[object]:
    return [w.node(f"n{at}") for at in range(count)]


def held(queue: str, gpus: int = 8, **fields: Any) -> Any:
    return w.workload(f"held-{queue}", queue, gpus, holding=True, **fields)


def as_kueue_has_it(queue: ClusterQueue) -> dict[str, Any]:
    """The object, as far as quota goes."""
    fields = {"nominalQuota": "nominal", "borrowingLimit": "borrowing_limit", "lendingLimit": "lending_limit"}
    groups = []
    for group in queue.groups:
        flavors = []
        for flavor in group.flavors:
            resources = []
            for name in group.resources:
                quota = queue.quotas[FlavorResource(flavor, name)]
                said = {key: getattr(quota, field) for key, field in fields.items()}
                resources.append({"name": name, **{k: str(v) for k, v in said.items() if v is not None}})
            flavors.append({"name": flavor, "resources": resources})
        groups.append({"coveredResources": list(group.resources), "flavors": flavors})
    return {"metadata": {"name": queue.name}, "spec": {"resourceGroups": groups}}


def carried_out(known: AdvisorContext, suggestion: JobSuggestion, by: int = 0) -> AdvisorContext:
    """The cluster after the operations of a raised limit, less ``by`` of each; everything is made anew."""
    kind, _, name = suggestion.change.target.partition("/")
    assert (kind, suggestion.change.kind) == ("clusterqueue", SuggestedChangeKind.CLUSTER)
    queue = known.state.cluster_queue_by_name[name]
    changed = patched(as_kueue_has_it(queue), suggestion.change.operations)
    command = shlex.split(suggestion.change.command)
    assert command[:4] == ["kubectl", "patch", "clusterqueues.v1beta2.kueue.x-k8s.io", name]
    assert json.loads(command[-1]) == list(suggestion.change.operations)
    quotas: dict[FlavorResource, FlavorQuota] = {}
    for group in changed["spec"]["resourceGroups"]:
        for flavor in group["flavors"]:
            for each in flavor["resources"]:
                key = FlavorResource(flavor["name"], each["name"])
                quotas[key] = _quota(each, queue.quotas[key], by)
    assert quotas != queue.quotas or by
    queues = {**known.state.cluster_queues, queue.meta.uid: replace(queue, quotas=quotas)}
    overview = replace(known.overview, state=replace(known.state, cluster_queues=queues))
    return replace(known, overview=overview)


def _quota(said: Mapping[str, str], before: FlavorQuota, by: int) -> FlavorQuota:
    fields = ("nominalQuota", before.nominal), ("borrowingLimit", before.borrowing_limit)
    values = []
    for field, old in (*fields, ("lendingLimit", before.lending_limit)):
        value = int(said[field]) if field in said else None
        values.append(value if value is None or value == old else value - by)
    return FlavorQuota(values[0] or 0, values[1], values[2])


def is_minimal(known: AdvisorContext, document: dict[str, Any], suggestion: JobSuggestion) -> None:
    """What is said of it comes true, and with one less it does not."""
    manifest = read(document)
    done, less = (carried_out(known, suggestion, by) for by in (0, 1))
    assert advise(manifest, done, with_suggestions=False).decision is suggestion.decision
    assert advise(manifest, less, with_suggestions=False).decision is not suggestion.decision


@pytest.mark.parametrize("holding", [0, 3, 8])
def test_nominal_quota_by_what_is_missing(holding: int) -> None:
    others = [held("ml", holding)] if holding else []
    known, document = knowledge(w.queue("ml", 8), *others, *nodes(3)), job(2)
    found = given(ask(document, known), "nominal-quota")
    assert found.decision is SchedulingDecision.NOW
    assert f"from 8 to {16 + holding}" in found.says
    is_minimal(known, document, found)
    text = "spec:\n  resourceGroups:\n  - flavors:\n    - name: h100\n      resources:\n"
    assert text in found.change.patch


def test_no_quota_where_nodes_are_what_is_missing() -> None:
    assert "nominal-quota" not in rules(ask(job(2), knowledge(w.queue("ml", 16), *nodes(1))))
    assert "nominal-quota" not in rules(ask(job(1, 16), knowledge(w.queue("ml", 8), *nodes(2))))


def test_several_resources_at_once_and_no_more_than_needed() -> None:
    known = knowledge(w.queue("ml", 8, cpu=16), *nodes(3))
    known = replace(known, settings=replace(known.settings, most_suggestions=20))
    document = job(2)
    asked = {"limits": {GPU: 8}, "requests": {"cpu": "12"}}
    document["spec"]["template"]["spec"]["containers"][0]["resources"] = asked
    found = given(ask(document, known), "nominal-quota")
    values = [each["value"] for each in found.change.operations if each["op"] == "replace"]
    assert sorted(values) == ["16", "24"]
    assert found.decision is SchedulingDecision.NOW


def test_a_borrowing_limit() -> None:
    known = knowledge(w.queue("ml", 8, cohort="c", borrowing=2), w.queue("b", 8, cohort="c"), *nodes(2))
    document = job(2)
    found = given(ask(document, known), "borrowing-limit")
    assert "from 2 to 8" in found.says
    is_minimal(known, document, found)
    taken = knowledge(
        w.queue("ml", 8, cohort="c", borrowing=2), w.queue("b", 8, cohort="c"), held("b", 4), *nodes(2)
    )
    assert given(ask(document, taken), "borrowing-limit").decision is SchedulingDecision.WAITS
    alone = knowledge(w.queue("ml", 8, cohort="c", borrowing=2), *nodes(2))
    assert "borrowing-limit" not in rules(ask(document, alone))


def test_a_lending_limit() -> None:
    known = knowledge(
        w.queue("ml", 8, cohort="c"), w.queue("b", 16, cohort="c", lending=1), held("b", 4), *nodes(3)
    )
    document = job(2)
    found = given(ask(document, known), "lending-limit")
    assert found.decision is SchedulingDecision.NOW
    assert "ClusterQueue b" in found.says
    assert "from 1 to 8" in found.says
    is_minimal(known, document, found)
    used = knowledge(
        w.queue("ml", 8, cohort="c"), w.queue("b", 16, cohort="c", lending=1), held("b", 16), *nodes(3)
    )
    assert "lending-limit" not in rules(ask(document, used))


def test_the_preference_that_hides_a_preemption() -> None:
    """kueue v0.19.2: {GPU: preempt, level 0; cpu: fit, level 1} becomes "Fit, level 1"."""

    def world(preference: str) -> AdvisorContext:
        limits = {KEY: FlavorQuota(8, 0), CPU: FlavorQuota(16_000)}
        queue = w.queue("ml", 8, cpu=16, cohort="c", within="LowerPriority", preference=preference)
        low = w.workload("low", "ml", 8, holding=True, priority=0)
        return knowledge(
            replace(queue, quotas=limits), w.queue("b", cpu=64, cohort="c"), low, w.node("n1"),
            priority_classes=[high("top", 1000)],
        )  # fmt: skip

    document = job(labels={"kueue.x-k8s.io/priority-class": "top"})
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "32"}
    answer = ask(document, world("PreemptionOverBorrowing"))
    assert answer.decision is SchedulingDecision.WAITS
    found = given(answer, "preference")
    assert found.decision is SchedulingDecision.NOW
    assert shlex.split(found.change.command)[-1] == (
        '{"spec":{"flavorFungibility":{"preference":"BorrowingOverPreemption"}}}'
    )
    assert ask(document, world("")).suggestions == ()


def high(name: str, value: int) -> Any:
    return PriorityClass(w.meta(name), value, of_kueue=True)


# Nodes


def test_a_cordoned_node() -> None:
    known = knowledge(w.queue("ml", 8), w.node("n1", is_cordoned=True))
    found = given(ask(job(), known), "node-repair")
    assert found.decision is SchedulingDecision.NOW
    assert found.change.command == "kubectl uncordon n1"
    assert yaml.safe_load(found.change.patch) == {"spec": {"unschedulable": False}}
    assert "on purpose" in found.caveat


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"drain": "Drained"}, "takes no new pods (Drained)"),
        (
            {"drain": "DrainInProgress", "maintenance": "MaintenanceInProgress"},
            "takes no new pods (DrainInProgress, MaintenanceInProgress)",
        ),
        ({"maintenance": "MaintenancePlanned"}, "takes no new pods (MaintenancePlanned)"),
    ],
)
def test_a_node_that_an_administrator_works_on_is_not_to_be_uncordoned(
    told: dict[str, str], said: str
) -> None:
    answer = ask(job(), knowledge(w.queue("ml", 8), w.node("n1", is_cordoned=True, **told)))
    assert "node-repair" not in rules(answer)
    assert [each.meaning for each in answer.evidence if each.object == "node/n1"] == [said]


def test_a_node_that_advertises_too_few() -> None:
    broken = w.node("n1", 0, expected={GPU: 8})
    plugin = pod("nvidia-device-plugin-x", 0, node="n1", namespace="gpu-operator")
    found = given(ask(job(), knowledge(w.queue("ml", 8), broken, plugin)), "node-repair")
    assert found.decision is SchedulingDecision.NOW
    assert found.change.command == "kubectl -n gpu-operator delete pod nvidia-device-plugin-x"
    assert "restart the device plugin on node n1" in found.says
    without = given(ask(job(), knowledge(w.queue("ml", 8), broken)), "node-repair")
    assert "app=nvidia-device-plugin-daemonset" in without.change.command


def test_no_repair_that_would_not_do() -> None:
    assert "node-repair" not in rules(
        ask(job(), knowledge(w.queue("ml", 8), w.node("n1", 4, is_cordoned=True)))
    )
    assert "node-repair" not in rules(ask(job(), knowledge(w.queue("ml", 8), held("ml"), *nodes(1))))


# Volcano


def test_a_capability_by_what_is_missing() -> None:
    queue = VolcanoQueue(w.meta("team"), state="Open", capability={GPU: 8, "cpu": 640_000})
    document = job(2, 6, "", kind="batch.volcano.sh/v1alpha1/Job", spec={"queue": "team"})
    known = knowledge(queue, *nodes(2), volcano=BY_CAPACITY)
    found = given(ask(document, known), "capability")
    assert found.decision is SchedulingDecision.NOW
    assert found.change.operations == (
        {"op": "replace", "path": "/spec/capability/nvidia.com~1gpu", "value": "12"},
    )
    odd = replace(queue, meta=w.meta("team; reboot"))
    elsewhere = {**document, "spec": {**document["spec"], "queue": odd.name}}
    assert (
        given(ask(elsewhere, knowledge(odd, *nodes(2), volcano=BY_CAPACITY)), "capability").change.command
        == ""
    )
    enough = replace(queue, capability={GPU: 12, "cpu": 640_000})
    assert "capability" not in rules(ask(document, knowledge(enough, *nodes(1), volcano=BY_CAPACITY)))


# Names


def test_a_name_that_is_no_name_gets_no_command() -> None:
    evil = "ml; kubectl delete ns --all"
    known = knowledge(w.queue(evil, 8), w.local_queue("main", evil, "ml"), *nodes(2))
    found = given(ask(job(2), known), "nominal-quota")
    assert found.change.command == ""
    assert yaml.safe_load(found.change.patch)["spec"]
    flavor = 'x"\n- $(reboot): {'
    odd = knowledge(w.queue("ml", {flavor: 8}), *nodes(2))
    found = given(ask(job(2), odd), "nominal-quota")
    assert json.loads(shlex.split(found.change.command)[-1])[0]["value"] == flavor
    assert (
        merged({}, yaml.safe_load(found.change.patch))["spec"]["resourceGroups"][0]["flavors"][0]["name"]
        == flavor
    )


def test_what_is_asked_of_one_tree_is_what_the_whole_cluster_says() -> None:
    """Only the tree of the queue is made anew for a changed quota: others must not matter."""
    others = [w.queue(f"q{at}", 8, cohort="d") for at in range(5)]
    waiting = [w.workload(f"w{at}", f"q{at}", 8) for at in range(5)]
    first = w.workload("first", "ml", 4, created=7000)
    known = knowledge(w.queue("ml", 8, cohort="c"), w.queue("b", 8, cohort="c"), held("b"), first, *others,
                      *waiting, *nodes(8))  # fmt: skip
    document = job(2)
    found = given(ask(document, known), "nominal-quota")
    is_minimal(known, document, found)
    assert found.decision is SchedulingDecision.NOW
    assert "from 8 to 20" in found.says, "the one before it takes 4 of it"


def test_no_more_than_those_before_it_really_take() -> None:
    """One of them asks for more than there will be, and is passed."""
    before = [w.workload("small", "ml", 4, created=7000), w.workload("huge", "ml", 50, created=7000)]
    queues = [w.queue("ml", 8, cohort="c"), w.queue("b", 8, cohort="c")]
    known, document = knowledge(*queues, held("b"), *before, *nodes(8)), job(2)
    found = given(ask(document, known), "nominal-quota")
    assert "from 8 to 20" in found.says
    is_minimal(known, document, found)
