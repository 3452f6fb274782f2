"""How schedulers are configured: read from objects of all versions, from a server, and from dumps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from gpucost.cli.state.source import ClusterLocation, load
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    FairAdmission,
    KueueConfig,
    SchedulerConfigs,
    SchedulerNames,
    VolcanoConfig,
)
from gpucost.domain.errors import InputError
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.dumps.dump import ClusterStateBuilder, DumpOrigin, closing, line_of, opening
from gpucost.kube.dumps.scrub import scrubbed
from gpucost.kube.parse.collections import collections
from gpucost.kube.parse.scheduler_configs import (
    KUEUE_KEY,
    VOLCANO_KEY,
    SchedulerDeployment,
    deployed,
    kueue_config,
    volcano_config,
)
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost.kube.watch.scheduler_reader import SchedulerConfigBuilder, SchedulerReader
from tests.kube.worlds import wait_for
from tests.support.cluster.installed import everything
from tests.support.cluster.model import Kind
from tests.support.cluster.server import ClusterServer
from tests.support.objects import metadata
from tests.support.objects.broken import JSON

Json = dict[str, Any]
NOW = 1_792_800_000_000
SECRET = "hunter2"
CONFIG_MAPS = Kind("", "configmaps", "ConfigMap", True)
KUEUE = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
internalCertManagement:
  webhookSecretName: hunter2
fairSharing:
  preemptionStrategies: [LessThanInitialShare]
waitForPodsReady:
  timeout: 5m
  blockAdmission: true
resources:
  excludeResourcePrefixes: [example.com/]
  quotaCheckStrategy: IgnoreUndeclared
featureGates:
  PartialAdmission: false
integrations:
  frameworks: [batch/job, ray.io/rayjob]
multiKueue:
  clusterProfile: {credentialsProviders: [{name: x, execConfig: {env: [{name: TOKEN, value: hunter2}]}}]}
"""
READ = KueueConfig(
    "v0.19.2",
    fair_sharing=True,
    strategies=(INITIAL_SHARE,),
    gates={"PriorityBoost": True, "PartialAdmission": False},
    block_admission=True,
    excluded_prefixes=("example.com/",),
    ignores_undeclared=True,
    frameworks=("batch/job", "ray.io/rayjob"),
    is_read=True,
)
VOLCANO = """\
# The chart's, with reclaim.
actions: "enqueue, allocate, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: overcommit
    arguments:
      overcommit-factor: 1.5
  - name: capacity
    enabledHierarchy: true
"""
READ_VOLCANO = VolcanoConfig(
    "v1.15.1",
    actions=("enqueue", "allocate", "reclaim", "backfill"),
    tiers=(("priority", "gang"), ("overcommit", "capacity")),
    arguments={
        "gang": {"enablePreemptable": "false"},
        "overcommit": {"overcommit-factor": "1.5"},
        "capacity": {"enabledHierarchy": "true"},
    },
    is_read=True,
)


def config_map(name: str, key: str, text: str) -> Json:
    namespace, _, own = name.partition("/")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(own, namespace, uid=f"uid-{own}"),
        "data": {key: text, "other": SECRET},
    }


def deployment(name: str, image: str, *args: str, labels: Mapping[str, str] | None = None) -> Json:
    namespace, _, own = name.partition("/")
    container = {
        "name": "manager",
        "image": image,
        "args": [*args, f"--token={SECRET}"],
        "env": [{"name": "TOKEN", "value": SECRET}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(own, namespace, uid=f"uid-{own}"), "labels": dict(labels or {})},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"replicas": 1},
    }


NAMES = SchedulerNames()
OBJECTS = [
    config_map(NAMES.kueue_config, KUEUE_KEY, KUEUE),
    config_map(NAMES.volcano_config, VOLCANO_KEY, VOLCANO),
    deployment(
        NAMES.kueue_manager,
        "hunter2.example.com:5000/mirror/kueue:v0.19.2@sha256:0123",
        "--zap-log-level=2",
        "--feature-gates=PriorityBoost=true,PartialAdmission=true",
    ),
    deployment(NAMES.volcano_scheduler, "docker.io/volcanosh/vc-scheduler:v1.15.1"),
]
BOTH = SchedulerConfigs(READ, READ_VOLCANO)


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


# Objects as they come


def gathered(*items: Json) -> SchedulerConfigs:
    found = SchedulerConfigBuilder()
    for item in items:
        found.add(item)
    return found.configs()


def test_objects_are_known_by_what_is_in_them() -> None:
    assert gathered(*OBJECTS) == BOTH
    renamed = [
        config_map("queues/prod-kueue-manager-config", KUEUE_KEY, KUEUE),
        config_map("queues/prod-scheduler-configmap", VOLCANO_KEY, VOLCANO),
        deployment(
            "queues/prod-kueue-controller-manager",
            "own.example.com/q:v0.19.2",
            "--feature-gates=PriorityBoost=1",
        ),
        deployment("queues/prod", "own.example.com/v:v1.15.1", labels={"app": "volcano-scheduler"}),
    ]
    assert gathered(*renamed) == BOTH


def test_what_belongs_to_others_is_not_taken() -> None:
    jobset = "apiVersion: config.jobset.x-k8s.io/v1alpha1\nkind: Configuration\n"
    others = SchedulerConfigBuilder()
    for item in (
        config_map("jobset-system/jobset-manager-config", KUEUE_KEY, jobset),
        config_map("jobset-system/jobset-manager-config", KUEUE_KEY, "["),
        config_map("a/b", "c", "d"),
        deployment("a/kueueviz", "registry.k8s.io/kueue/kueueviz-backend:v0.19.2"),
        {"apiVersion": "v1", "kind": "Pod"},
        {"apiVersion": ["v1"], "kind": {}},
    ):
        assert not others.add(item)
    assert others.configs() == SchedulerConfigs()


def test_of_several_the_usual_name_counts_and_the_others_are_counted() -> None:
    other = config_map("a/other", KUEUE_KEY, "apiVersion: config.kueue.x-k8s.io/v1beta2\n")
    found = gathered(other, OBJECTS[0]).kueue
    assert found.fair_sharing
    assert found.unread == (
        "2 ConfigMaps have controller_manager_config.yaml: that of kueue-system/kueue-manager-config counts",
    )


# From a server


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer([*everything(), (CONFIG_MAPS, "v1")]) as running:
        running.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata("node-1", uid="node")})
        for item in OBJECTS:
            running.put(item)
        yield running


def test_the_reader_asks_for_four_objects_by_name(server: ClusterServer) -> None:
    transport = connect_url(server.url)
    reader = SchedulerReader(transport)
    assert reader.read()
    assert reader.configs == BOTH
    assert sorted(asked.path for asked in server.asked) == [
        "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config",
        "/api/v1/namespaces/volcano-system/configmaps/volcano-scheduler-configmap",
        "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager",
        "/apis/apps/v1/namespaces/volcano-system/deployments/volcano-scheduler",
    ]
    server.delete(OBJECTS[0])
    assert reader.read()
    assert not reader.configs.kueue.is_read
    assert reader.configs.kueue.version == "v0.19.2"
    transport.close()


@pytest.mark.parametrize(("status", "is_known"), [(403, True), (404, True), (500, False)])
def test_what_may_not_be_read_is_not_read_and_what_fails_stays(
    server: ClusterServer, status: int, is_known: bool
) -> None:
    transport = connect_url(server.url)
    reader = SchedulerReader(transport)
    assert reader.read()
    path = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
    server.script(lambda kmock: kmock[path] << status)
    assert reader.read() is is_known
    assert reader.configs.kueue.is_read is not is_known
    assert reader.configs.volcano == READ_VOLCANO
    transport.close()


def test_a_server_that_is_gone_breaks_nothing() -> None:
    with ClusterServer([]) as server:
        transport = connect_url(server.url)
    reader = SchedulerReader(transport)
    assert not reader.read()
    assert reader.configs == SchedulerConfigs()
    transport.close()


def test_names_may_be_others(server: ClusterServer) -> None:
    server.put(config_map("queues/own", KUEUE_KEY, "apiVersion: config.kueue.x-k8s.io/v1beta2\n"))
    server.put(deployment("queues/mine", "example.com/our-queues:v0.18.0"))
    transport = connect_url(server.url)
    reader = SchedulerReader(transport, SchedulerNames("queues/own", "queues/mine", "none/none", "none/none"))
    assert reader.read()
    assert reader.configs.kueue == KueueConfig("v0.18.0", frameworks=("batch/job",), is_read=True)
    assert reader.configs.volcano == VolcanoConfig()
    transport.close()


@pytest.mark.parametrize("name", ["", "kueue", "/name", "space/", "a/b/c", "a/b?c", "A/b", "../b", "a/b\n"])
def test_a_name_without_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        SchedulerNames(kueue_manager=name)
    assert caught.value.field == "kueue_manager"


def test_a_watch_keeps_them_current(server: ClusterServer) -> None:
    transport = connect_url(server.url)
    nodes = [each for each in collections() if each.name == "nodes"]
    watch = ClusterWatch(transport, nodes, schedulers=SchedulerReader(transport, again_s=0.05))
    assert watch.snapshot().schedulers == SchedulerConfigs()
    watch.start()
    try:
        wait_for(lambda: watch.snapshot().schedulers == BOTH)
        server.put(config_map(NAMES.kueue_config, KUEUE_KEY, KUEUE.replace("LessThanInitialShare", "")))
        wait_for(lambda: watch.snapshot().schedulers.kueue.strategies == (FINAL_SHARE, INITIAL_SHARE))
    finally:
        watch.close()
        transport.close()
    assert watch.snapshot().schedulers.volcano == READ_VOLCANO


def test_a_changed_configuration_is_another_version_of_the_watch(server: ClusterServer) -> None:
    transport = connect_url(server.url)
    reader = SchedulerReader(transport)
    watch = ClusterWatch(transport, [], schedulers=reader)
    versions = [watch.version]
    for change in (None, None, lambda: server.delete(OBJECTS[1])):
        if change:
            change()
        reader.read()
        versions.append(watch.version)
    transport.close()
    first, second, third, fourth = versions
    assert first != second == third != fourth


def test_what_is_assumed_fills_in_what_was_not_read() -> None:
    def assume(found: SchedulerConfigs) -> SchedulerConfigs:
        return replace(found, kueue=replace(found.kueue, version=found.kueue.version or "v0.1"))

    with ClusterServer([]) as server:
        transport = connect_url(server.url)
        reader = SchedulerReader(transport, assume=assume)
        assert reader.configs.kueue.version == "v0.1"
        assert reader.read()
        assert reader.configs.kueue.version == "v0.1"
        transport.close()


def test_a_watch_without_a_reader_asks_for_none(server: ClusterServer) -> None:
    transport = connect_url(server.url)
    watch = ClusterWatch(transport, [each for each in collections() if each.name == "nodes"])
    watch.start()
    assert watch.wait(60)
    watch.close()
    transport.close()
    assert not [each.path for each in server.asked if "configmaps" in each.path]


# Dumps


def in_state(*items: Json) -> SchedulerConfigs:
    gathering = ClusterStateBuilder(collections())
    for item in items:
        gathering.add(item)
    loaded = gathering.loaded(NOW)
    assert loaded.left_out == {}
    return loaded.state.schedulers


def test_a_scrubbed_object_says_the_same_and_nothing_else() -> None:
    kept = [scrubbed(item) for item in OBJECTS]
    assert in_state(*OBJECTS) == in_state(*kept) == BOTH
    text = json.dumps(kept)
    assert SECRET not in text
    assert "zap" not in text
    assert "example.com:5000" not in text


@pytest.mark.parametrize("text", ["[", "a: b: c", ""])
def test_a_scrubbed_object_that_cannot_be_read_cannot_be_read_either(text: str) -> None:
    broken = config_map(NAMES.kueue_config, KUEUE_KEY, f"{text} {SECRET}" if text else text)
    assert SECRET not in json.dumps(scrubbed(broken))
    assert in_state(broken) == in_state(scrubbed(broken))
    assert in_state(broken).kueue.unread == ("controller_manager_config.yaml cannot be read",)


@given(JSON)
@settings(max_examples=60, deadline=None)
def test_scrubbing_changes_nothing_that_is_read(found: Any) -> None:
    names = ("apiVersion", "fairSharing", "waitForPodsReady", "resources", "featureGates", "tiers", "actions")
    for text in (json.dumps(found), json.dumps(dict.fromkeys(names, found))):
        for name, key in ((NAMES.kueue_config, KUEUE_KEY), (NAMES.volcano_config, VOLCANO_KEY)):
            item = config_map(name, key, text)
            plain, kept = gathered(item), gathered(scrubbed(item))
            assert plain.kueue.fair_sharing == kept.kueue.fair_sharing
            assert plain.kueue.block_admission == kept.kueue.block_admission
            assert plain.volcano.tiers == kept.volcano.tiers
            assert plain.volcano.actions == kept.volcano.actions


def test_config_maps_of_others_and_images_of_others_do_not_stay() -> None:
    other = scrubbed(config_map("a/b", "password", SECRET))
    assert other.get("data") in ({}, {"leftOut": None})
    kept = scrubbed(deployment("a/b", "example.com/other:v1", "--feature-gates=A=true"))
    assert "image" not in json.dumps(kept)
    assert "args" not in json.dumps(kept)


def test_config_maps_of_others_are_left_out() -> None:
    gathering = ClusterStateBuilder(collections())
    gathering.add(config_map("a/b", "c", "d"))
    assert gathering.loaded(NOW).left_out == {"ConfigMap (v1)": 1}


def test_a_cluster_and_its_dump_say_the_same(server: ClusterServer, tmp_path: Path) -> None:
    live = load("", OwnerKeys(), ClusterLocation(None, "", server.url), "", NOW)
    assert live.state.schedulers == BOTH
    lines = ",\n".join(map(line_of, OBJECTS))
    file = tmp_path / "state.json"
    file.write_text(opening() + lines + closing(DumpOrigin(NOW, {})), encoding="ascii")
    again = load(str(file), OwnerKeys(), ClusterLocation(None, "", ""), "", NOW)
    assert again.state.schedulers == BOTH
    raw = tmp_path / "kubectl.json"
    raw.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": OBJECTS}), encoding="utf-8")
    assert load(str(raw), OwnerKeys(), ClusterLocation(None, "", ""), "", NOW).state.schedulers == BOTH


def test_a_server_without_rights_gives_defaults() -> None:
    with ClusterServer() as server:
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata("node-1", uid="node")})
        server.script(
            lambda kmock: kmock["/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"] << 403
        )
        found = load("", OwnerKeys(), ClusterLocation(None, "", server.url), "", NOW)
    assert found.state.schedulers == SchedulerConfigs()
