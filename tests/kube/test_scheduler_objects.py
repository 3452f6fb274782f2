"""How schedulers are configured: which objects say it, read from a server and from dumps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from gpucost.cli.state.source import ClusterLocation, load
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
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
)
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost.kube.watch.scheduler_reader import SchedulerConfigBuilder, SchedulerReader
from tests.kube.scheduler_objects import (
    BOTH,
    KUEUE,
    NAMES,
    OBJECTS,
    READ_VOLCANO,
    SECRET,
    VOLCANO,
    Json,
    config_map,
    deployment,
)
from tests.kube.worlds import wait_for
from tests.support.cluster.installed import everything
from tests.support.cluster.model import Kind
from tests.support.cluster.server import ClusterServer
from tests.support.objects import metadata
from tests.support.objects.broken import JSON

NOW = 1_792_800_000_000
CONFIG_MAPS = Kind("", "configmaps", "ConfigMap", True)


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
