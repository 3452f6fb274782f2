"""A whole cluster watched over real HTTP: what is absent, comes, goes, cannot be read, and what it weighs."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import pytest

from benchmarks.support.kube_cluster import pod as large_pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import UNKNOWN_VERSION, ClusterWatch, WatchClocks
from gpucost.kube.watch.reflector import ReflectorSettings
from tests.kube.worlds import wait_for
from tests.support.cluster.installed import everything
from tests.support.cluster.server import ClusterServer
from tests.support.objects import kueue, metadata, volcano

SETTINGS = ReflectorSettings(page_size=500, inactivity_s=5.0, short_watch_s=0.0, absent_s=0.05)
WORKLOADS, QUEUES = "workloads.kueue.x-k8s.io", "queues.scheduling.volcano.sh"
KINDS = {kind.name: (kind, version) for kind, version in everything()}


@contextmanager
def watching(server: ClusterServer, names: tuple[str, ...] = ()) -> Iterator[ClusterWatch]:
    """A watch of the collections of these names, or of all."""
    transport = connect_url(server.url)
    chosen = [each for each in collections() if not names or each.name in names]
    watch = ClusterWatch(transport, chosen, settings=SETTINGS, clocks=WatchClocks(jitter=lambda: 0.01))
    try:
        watch.start()
        assert watch.wait(60)
        yield watch
    finally:
        watch.close()
        transport.close()


def core_only() -> list[Any]:
    return [(kind, version) for kind, version in everything() if kind.group == ""]


def until(watch: ClusterWatch, holds: Callable[[ClusterState], bool]) -> None:
    wait_for(lambda: holds(watch.snapshot()))


@pytest.mark.fault(19)
def test_what_is_not_installed_is_absent_and_picked_up_when_it_comes() -> None:
    with ClusterServer(core_only()) as server, watching(server) as watch:
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata("team-a", uid="ns")})
        until(watch, lambda state: "ns" in state.namespaces)
        status = watch.statuses()[WORKLOADS]
        assert (status.version, status.absent, status.problem) == ("", True, "")
        assert watch.is_current(60.0)
        assert watch.snapshot().workloads == {}

        kind, version = KINDS[WORKLOADS]
        server.install(kind, version)
        server.put(kueue.workload("train", uid="workload"))
        until(watch, lambda state: "workload" in state.workloads)
        status = watch.statuses()[WORKLOADS]
        assert (status.version, status.absent, status.problem) == ("v1beta2", False, "")

        server.uninstall(WORKLOADS)
        until(watch, lambda state: not state.workloads and state.collections[WORKLOADS].absent)
        assert "ns" in watch.snapshot().namespaces


@pytest.mark.fault(14, 19)
def test_what_is_not_installed_and_forbidden_is_absent_and_what_is_installed_and_forbidden_is_not() -> None:
    """A server authorizes before it looks: without a rule it says 403 of what is not there."""

    def forbid(mock: Any) -> None:
        for version in ("v1beta2", "v1beta1"):
            mock["get", f"/apis/kueue.x-k8s.io/{version}/workloads"] << 403

    with ClusterServer(core_only()) as server:
        server.script(forbid)
        with watching(server, ("pods", WORKLOADS)) as watch:
            wait_for(lambda: watch.statuses()[WORKLOADS].absent)
            status = watch.statuses()[WORKLOADS]
            assert (status.synced, status.problem, watch.errors()) == (True, "", {})
    with ClusterServer() as server:
        server.script(forbid)
        with watching(server, ("pods", WORKLOADS)) as watch:
            wait_for(lambda: watch.statuses()[WORKLOADS].problem == "http_403")
            assert not watch.statuses()[WORKLOADS].absent


@pytest.mark.fault(19)
def test_a_version_that_nobody_knows_is_a_problem_not_an_absence() -> None:
    with ClusterServer(core_only()) as server:
        kind, _ = KINDS[QUEUES]
        server.install(kind, "v2")
        with watching(server) as watch:
            wait_for(lambda: watch.statuses()[QUEUES].problem == UNKNOWN_VERSION)
            found = watch.statuses()
            # Other collections of its group are not there at all.
            assert found["podgroups.scheduling.volcano.sh"].problem == ""
            assert watch.errors()[QUEUES, UNKNOWN_VERSION] >= 1
            server.install(kind, "v1beta1")
            server.put(volcano.queue("default", uid="queue"))
            until(watch, lambda state: "queue" in state.volcano_queues)
            wait_for(lambda: watch.statuses()[QUEUES].problem == "")


@pytest.mark.fault(14)
def test_one_collection_that_is_refused_holds_up_no_other() -> None:
    with ClusterServer() as server, watching(server, ("pods", "nodes", WORKLOADS)) as watch:
        server.put(kueue.workload("train", uid="workload"))
        until(watch, lambda state: "workload" in state.workloads)
        server.break_watch("403", WORKLOADS, times=None)
        wait_for(lambda: watch.statuses()[WORKLOADS].problem == "http_403")
        server.put(large_object(1))
        until(watch, lambda state: len(state.pods) == 1)
        assert watch.is_current(0.0)
        assert "workload" in watch.snapshot().workloads

        server.break_watch("500", "pods", times=None)
        wait_for(lambda: watch.statuses()["pods"].problem == "http_500")
        assert not watch.is_current(0.0)
        assert watch.is_current(3600.0)
        server.mend()
        wait_for(lambda: watch.is_current(0.0))


def test_a_snapshot_stays_as_it_was() -> None:
    with ClusterServer() as server, watching(server, ("pods", "nodes")) as watch:
        server.put(large_object(1))
        until(watch, lambda state: len(state.pods) == 1)
        before, version = watch.snapshot(), watch.version
        server.put(large_object(2))
        until(watch, lambda state: len(state.pods) == 2)
        assert len(before.pods) == 1
        assert watch.version != version
        again = watch.snapshot()
        assert again == watch.snapshot()
        assert again.pods["uid-pod-1"] is before.pods["uid-pod-1"]


def large_object(index: int) -> dict[str, Any]:
    """A pod of some 4 kB; the server gives it its resource version."""
    found = {"apiVersion": "v1", "kind": "Pod", **large_pod(index, 100)}
    del found["metadata"]["resourceVersion"]
    return found


@pytest.mark.slow
@pytest.mark.fault(21)
def test_ten_thousand_large_pods_are_kept_small() -> None:
    """Of each what is needed stays: a tenth of what the API's dicts would take."""
    with ClusterServer() as server:
        for index in range(10_000):
            server.put(large_object(index))
        with watching(server, ("pods",)) as watch:
            pods = watch.snapshot().pods
    assert len(pods) == 10_000
    raw = [json.loads(json.dumps(large_object(index))) for index in range(500)]
    assert size_of(pods) / 10_000 < size_of(raw) / 500 / 10
    assert size_of(pods) < 25e6


def size_of(root: object) -> int:
    """Bytes of an object and all that can be reached from it but types, functions and modules."""
    seen: set[int] = set()
    stack, total = [root], 0
    while stack:
        found = stack.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | FunctionType):
            continue
        seen.add(id(found))
        total += sys.getsizeof(found)
        stack.extend(gc.get_referents(found))
    return total
