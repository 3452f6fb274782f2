"""How schedulers are configured: what their configurations of all versions say."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    FairAdmission,
    KueueConfig,
    VolcanoConfig,
)
from gpucost.kube.parse.scheduler_configs import (
    SchedulerDeployment,
    deployed,
    kueue_config,
    volcano_config,
)
from tests.kube.scheduler_objects import (
    READ_VOLCANO,
    VOLCANO,
    Json,
    deployment,
)
from tests.support.objects.broken import JSON


def v1beta1(text: str) -> KueueConfig:
    return kueue_config("apiVersion: config.kueue.x-k8s.io/v1beta1\n" + text)


def v1beta2(text: str) -> KueueConfig:
    return kueue_config("apiVersion: config.kueue.x-k8s.io/v1beta2\n" + text)


# What a Configuration says


def test_of_an_empty_configuration_defaults_hold() -> None:
    found = v1beta2("kind: Configuration\n")
    assert found == KueueConfig(frameworks=("batch/job",), is_read=True)
    assert kueue_config(None) == KueueConfig()
    assert kueue_config(None, SchedulerDeployment("v0.18.6", {"A": True})) == KueueConfig(
        "v0.18.6", gates={"A": True}
    )


def test_fair_sharing_is_on_where_it_stands_but_in_v1beta1_where_enabled() -> None:
    assert v1beta2("fairSharing: {}\n").fair_sharing
    assert not v1beta2("fairSharing:\n").fair_sharing
    assert not v1beta1("fairSharing: {}\n").fair_sharing
    assert not v1beta1("fairSharing: {enable: false}\n").fair_sharing
    on = v1beta1("fairSharing: {enable: true, preemptionStrategies: [LessThanOrEqualToFinalShare]}\n")
    assert (on.fair_sharing, on.strategies) == (True, (FINAL_SHARE,))


def test_strategies_in_an_order_that_kueue_refuses_are_not_taken() -> None:
    found = v1beta2(
        "fairSharing: {preemptionStrategies: [LessThanInitialShare, LessThanOrEqualToFinalShare]}"
    )
    assert found.strategies == (FINAL_SHARE, INITIAL_SHARE)
    (about,) = found.unread
    assert about.startswith("fairSharing.preemptionStrategies is ")


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("waitForPodsReady: {}", False),
        ("waitForPodsReady: {blockAdmission: true}", True),
        ("waitForPodsReady: {blockAdmission: true}\nfeatureGates: {DisableWaitForPodsReady: true}", False),
        ("waitForPodsReady:", False),
    ],
)
def test_admission_blocks_where_it_is_set(text: str, blocks: bool) -> None:
    assert v1beta2(text).block_admission is blocks


def test_in_v1beta1_an_enabled_wait_blocks_by_itself() -> None:
    assert v1beta1("waitForPodsReady: {enable: true}").block_admission
    assert not v1beta1("waitForPodsReady: {enable: true, blockAdmission: false}").block_admission
    assert not v1beta1("waitForPodsReady: {blockAdmission: true}").block_admission


def test_what_is_not_followed_is_named() -> None:
    found = v1beta2(
        "resources:\n"
        "  transformations: [{input: nvidia.com/mig-1g.5gb, strategy: Replace}]\n"
        "  deviceClassMappings: [{name: example.com/gpu, deviceClassNames: [gpu.example.com]}]\n"
        "admissionFairSharing: {usageHalfLifeTime: 10m}\n"
        "preemptionProtection: {}\n"
        "manageJobsWithoutQueueName: true\n"
        "managedJobsNamespaceSelector: {matchLabels: {kueue: managed}}\n"
        "waitForPodsReady: {requeuingStrategy: {timestamp: Creation}}\n"
    )
    names = [each.partition(":")[0].partition(" ")[0] for each in found.unread]
    assert names == [
        *("resources.transformations", "resources.deviceClassMappings", "admissionFairSharing"),
        *("preemptionProtection", "waitForPodsReady.requeuingStrategy.timestamp"),
        *("manageJobsWithoutQueueName", "managedJobsNamespaceSelector"),
    ]
    assert "nvidia.com/mig-1g.5gb" in found.unread[0]


@pytest.mark.parametrize(
    ("written", "half_life_ms", "sampling_ms", "weights"),
    [
        ("{usageHalfLifeTime: 168h, usageSamplingInterval: 5m0s}", 168 * 3_600_000, 300_000, {}),
        ("{usageHalfLifeTime: 1h30m, usageSamplingInterval: 1.5s}", 5_400_000, 1_500, {}),
        ("{usageHalfLifeTime: 0s}", 0, 300_000, {}),
        ("{resourceWeights: {cpu: 0.5, memory: 0}}", 0, 300_000, {"cpu": Fraction(1, 2), "memory": 0}),
    ],
)
def test_admission_fair_sharing(
    written: str, half_life_ms: int, sampling_ms: int, weights: dict[str, Fraction]
) -> None:
    found = v1beta2(f"admissionFairSharing: {written}\n").fair_admission
    assert found == FairAdmission(half_life_ms, sampling_ms, weights)
    assert v1beta2("admissionFairSharing:\n").fair_admission is None
    assert v1beta2("").fair_admission is None


def test_the_part_that_a_workload_is_charged_at_once() -> None:
    """A sample of half of the half-life forgets 1 - 1/sqrt(2) of it; all at once is a penalty of nothing."""
    assert FairAdmission(600_000, 600_000).entry_part == Fraction(1, 2)
    assert float(FairAdmission(600_000, 300_000).entry_part) == pytest.approx(1 - 0.5**0.5)
    assert FairAdmission(0, 300_000).entry_part == 0


def test_what_makes_no_sense_of_it_is_named() -> None:
    found = v1beta2(
        "admissionFairSharing: {usageHalfLifeTime: long, usageSamplingInterval: 5, "
        "resourceWeights: {cpu: [1], gpu: yes}}\n"
    )
    names = {each.partition(" ")[0].partition(":")[0] for each in found.unread}
    of = "admissionFairSharing"
    assert names == {
        *(of, f"{of}.usageHalfLifeTime", f"{of}.usageSamplingInterval"),
        *(f"{of}.resourceWeights.cpu", f"{of}.resourceWeights.gpu"),
    }
    assert found.fair_admission == FairAdmission()


def test_the_selector_of_the_shipped_configuration_is_nothing_to_name() -> None:
    usual = "{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, queues]}"
    text = f"namespace: queues\nmanagedJobsNamespaceSelector: {{matchExpressions: [{usual}]}}\n"
    assert v1beta2(text).unread == ()
    assert v1beta2(text.replace("queues]", "team-a]")).unread != ()


@pytest.mark.parametrize(
    "text", ["", "[", "a: b: c", "- 1", "text", "a: &x 1\nb: *x", "{" * 5000, "a" * 2**21]
)
def test_what_is_no_configuration_is_said_and_defaults_hold(text: str) -> None:
    assert kueue_config(text) == KueueConfig(unread=("controller_manager_config.yaml cannot be read",))
    assert volcano_config(text) == VolcanoConfig(unread=("volcano-scheduler.conf cannot be read",))


def test_what_makes_no_sense_is_named_by_field() -> None:
    found = v1beta2("fairSharing: 1\nfeatureGates: {A: maybe}\nresources: {quotaCheckStrategy: Sometimes}\n")
    names = sorted(each.partition(" ")[0] for each in found.unread)
    assert names == ["fairSharing", "featureGates.A", "resources.quotaCheckStrategy"]
    assert (found.fair_sharing, found.gates, found.ignores_undeclared) == (False, {}, False)
    assert found.is_read
    assert kueue_config("kind: Configuration").unread == (
        "apiVersion is missing: read as config.kueue.x-k8s.io/v1beta2",
    )


@given(JSON)
@settings(max_examples=80, deadline=None)
def test_nothing_written_there_breaks_the_reading(found: Any) -> None:
    text = json.dumps(found)
    for each in (text, json.dumps(dict.fromkeys(("fairSharing", "resources", "tiers", "actions"), found))):
        kueue_config(each)
        volcano_config(each)


# What volcano-scheduler.conf says


def test_volcano_has_actions_plugins_arguments_and_switches() -> None:
    assert volcano_config(VOLCANO, SchedulerDeployment("v1.15.1")) == READ_VOLCANO


def test_of_volcano_what_is_not_followed_is_named() -> None:
    found = volcano_config(
        "actions: enqueue, mine\n"
        "tiers: [{plugins: [{name: gang, enableJobReady: false}, {name: sla}, {name: own}]}]\n"
        "configurations: [{name: enqueue, arguments: {x: 1}}, {name: backfill, arguments: {x: 1}}]\n"
    )
    assert [each.partition(":")[0] for each in found.unread] == [
        "action mine",
        "plugin own",
        "plugin sla",
        "plugin gang has enableJobReady false",
        "configurations of action enqueue (x)",
    ]


# Deployments


@pytest.mark.parametrize(
    ("image", "labels", "version"),
    [
        ("registry.k8s.io/kueue/kueue:v0.19.2", {}, "v0.19.2"),
        ("kueue:v0.19.2", {}, "v0.19.2"),
        ("localhost:5000/kueue", {}, ""),
        ("kueue@sha256:00", {"app.kubernetes.io/version": "v0.18.6"}, "v0.18.6"),
        ("kueue:main", {"app.kubernetes.io/version": "v0.18.6"}, "v0.18.6"),
        ("kueue:main", {}, "main"),
        ("kueue:v0.19.2", {"app.kubernetes.io/version": "v0.18.6"}, "v0.19.2"),
        ("example.com/our-queues:v0.19.1", {}, "v0.19.1"),
    ],
)
def test_the_version_is_of_the_image_else_of_the_label(image: str, labels: Json, version: str) -> None:
    assert deployed(deployment("q/kueue-controller-manager", image, labels=labels)).version == version


def test_gates_may_stand_in_two_arguments() -> None:
    found = deployment("a/b", "kueue:v1", "--feature-gates", "A=true,B=F, C=0,D=perhaps,=true")
    assert deployed(found).gates == {"A": True, "B": False, "C": False}


@pytest.mark.parametrize("spec", [None, [], {"template": []}, {"template": {"spec": {"containers": [1]}}}])
def test_a_deployment_without_containers_says_nothing(spec: Any) -> None:
    assert deployed({"metadata": {"name": "x"}, "spec": spec}) == SchedulerDeployment()
