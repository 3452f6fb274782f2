"""Pods that hold GPUs through ResourceClaims, played to the real collector."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.contract.metrics import LINGER_MS
from gpucost.domain.backoff import FullJitter
from gpucost.domain.time import iso
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import SETTINGS, WatchClocks
from gpucost_exporter_base.endpoint import EndpointRequest
from gpucost_queue_collector.collector import CLAIMS, SLICES, QueueCollector
from tests.cluster.builders import MINUTE, SECOND, T0
from tests.exporters.queue import world
from tests.support.cluster import shapes
from tests.support.cluster.server import ClusterServer

QUICK = replace(SETTINGS, absent_s=0.1, short_watch_s=0.0, backoff=FullJitter(0.01, 0.05))
DRIVER = "gpu.nvidia.com"
_LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
NODE = shapes.node("gpu-1", T0, {}, _LABELS)

Interval = tuple[float, int, int | None]
"""Units, and start and end in ms after T0."""


def a_slice() -> dict[str, Any]:
    """The two GPUs of the node."""
    devices = [{"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}}} for n in range(2)]
    pool = {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s", "uid": "s-uid", "creationTimestamp": iso(T0)},
        "spec": {"driver": DRIVER, "nodeName": "gpu-1", "pool": pool, "devices": devices},
    }


def claim(name: str, *users: str, device: str = "gpu-0", device_class: str = DRIVER) -> dict[str, Any]:
    """Of one GPU; given out where it has users."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": "gpu-1", "device": device}]
    reserved = [{"resource": "pods", "name": user, "uid": f"{user}-uid"} for user in users]
    given = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"{name}-uid",
            "creationTimestamp": iso(T0),
        },
        "spec": {"devices": {"requests": [request]}},
        "status": given if users else {},
    }


def waiting(name: str, claim_name: str, gpus: int = 0) -> dict[str, Any]:
    found = world.pod(name, gpus)
    return {
        **found,
        "spec": {**found["spec"], "resourceClaims": [{"name": "g", "resourceClaimName": claim_name}]},
    }


def running(name: str, at_ms: int, claim_name: str) -> dict[str, Any]:
    return world.bound(waiting(name, claim_name), "gpu-1", T0 + at_ms)


def over(found: dict[str, Any], at_ms: int) -> dict[str, Any]:
    return world.ended(found, iso(T0 + 30 * SECOND), iso(T0 + at_ms))


class Stage:
    """A collector that may be begun anew, and a clock that stands still unless it is moved."""

    def __init__(self, server: ClusterServer, now_ms: int) -> None:
        self.server, self.now_ms = server, now_ms
        self.transport = connect_url(server.url)
        self.begin()

    def start(self) -> None:
        clocks = WatchClocks(wall_ns=lambda: self.now_ms * 1_000_000)
        self.collector = QueueCollector(self.transport, collections(), clocks=clocks, settings=QUICK)
        self.collector.start()

    def begin(self) -> None:
        self.start()
        assert self.collector.watch.wait(60)
        self.server.settle()
        self.collector.refresh()

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self.collector.close()
        self.server.forget_clients()

    def tick(self, ms: int = 5 * SECOND) -> None:
        self.server.settle()
        self.now_ms += ms
        self.collector.refresh()

    def of(self, name: str, *which: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by some labels, which tell its series apart."""
        text = self.collector.answer(EndpointRequest("GET", "/metrics", "", {}, True)).body.decode()
        families = text_string_to_metric_families(text)
        samples = [each for family in families for each in family.samples if each.name == f"gpucost_{name}"]
        found = {tuple(each.labels[label] for label in which): each.value for each in samples}
        assert len(found) == len(samples)
        return found

    def intervals(self) -> dict[tuple[str, str], Interval]:
        """By pod and resource."""
        ids = ("pod", "resource")
        start, end = (
            {key: round(at * 1000) - T0 for key, at in self.of(f"pod_gpu_{name}", *ids).items()}
            for name in ("start_timestamp_seconds", "end_timestamp_seconds")
        )
        return {
            (pod, resource): (units, start[pod, resource], end.get((pod, resource)))
            for (pod, resource), units in self.of("pod_gpu_request", *ids).items()
        }

    def is_up(self) -> bool:
        return self.of("state_up") == {(): 1.0}

    def problems(self) -> int:
        return int(self.of("state_problems", "code")["claim_unknown",])


@contextmanager
def stage(*objects: dict[str, Any], at_ms: int = MINUTE) -> Iterator[Stage]:
    logging.disable(logging.CRITICAL)
    with ClusterServer() as server:
        for each in objects:
            server.put(each)
        found = Stage(server, T0 + at_ms)
        try:
            yield found
        finally:
            found.collector.close()
            found.transport.close()
            logging.disable(logging.NOTSET)


A = running("a", 10 * SECOND, "ca")
B = running("b", 20 * SECOND, "ca")
HOUR = 60 * MINUTE
HELD = {("a", DRIVER): (1, 10 * SECOND, None)}
ENDED = {("a", DRIVER): (1, 10 * SECOND, HOUR)}


# The heartbeat


@pytest.mark.fault(14)
@pytest.mark.parametrize("missing", [CLAIMS, SLICES])
@pytest.mark.parametrize("how", ["403", "500"])
def test_without_claims_there_is_no_heartbeat_where_pods_use_them(missing: str, how: str) -> None:
    with stage(NODE, a_slice(), claim("ca", "a"), A) as world_:
        assert world_.is_up()
        world_.stop()
        world_.server.break_list(how, missing, times=None)  # type: ignore[arg-type]
        world_.start()
        world_.wait(lambda: world_.collector.watch.statuses()[missing].problem == f"http_{how}")
        world_.wait(lambda: {"pods", "nodes"} <= world_.collector.watch.current(60.0))
        world_.collector.refresh()
        assert not world_.is_up()
        up = world_.of("state_collection_up", "collection", "version")
        assert up[missing, "v1"] == 0
        world_.server.mend()
        world_.collector.close()
        world_.server.forget_clients()
        world_.begin()
        assert world_.is_up()
        assert world_.intervals() == HELD


@pytest.mark.fault(14, 19)
def test_claims_that_no_pod_uses_may_be_forbidden() -> None:
    plain = world.bound(world.pod("plain", 1), "gpu-1", T0 + 10 * SECOND)
    with stage(world.node("gpu-1"), plain) as world_:
        world_.stop()
        world_.server.break_list("403", CLAIMS, times=None)
        world_.server.break_list("403", SLICES, times=None)
        world_.begin()
        assert world_.is_up()
        # Waiting pods are none that hold.
        world_.server.put(waiting("w", "cw"))
        world_.tick()
        assert world_.is_up()
        world_.server.put(A)
        world_.tick()
        assert not world_.is_up()


@pytest.mark.fault(19)
def test_pods_that_were_shown_stay_when_the_api_of_claims_is_gone() -> None:
    with stage(NODE, a_slice(), claim("ca", "a"), A, at_ms=HOUR) as world_:
        world_.server.uninstall(CLAIMS)
        world_.wait(lambda: world_.collector.watch.statuses()[CLAIMS].absent)
        world_.collector.refresh()
        assert world_.intervals() == HELD
        assert not world_.is_up()


# Ends


def test_an_end_after_the_claim_is_gone() -> None:
    with stage(NODE, a_slice(), claim("ca", "a"), A) as world_:
        world_.server.delete(claim("ca", "a"))
        world_.tick(MINUTE)
        assert world_.intervals() == HELD
        world_.server.put(over(A, HOUR))
        world_.server.delete(a_slice())
        world_.tick()
        assert world_.intervals() == ENDED
        world_.tick(LINGER_MS)
        assert world_.intervals() == {}
        assert world_.problems() == 0


def test_a_pod_that_ran_between_two_refreshes() -> None:
    with stage(NODE, a_slice()) as world_:
        for found in (claim("ca", "a"), A, over(A, HOUR)):
            world_.server.put(found)
        world_.server.settle()
        world_.server.delete(claim("ca", "a"))
        world_.tick()
        assert world_.intervals() == ENDED


def test_an_end_during_an_outage_by_the_spec_of_the_claim() -> None:
    with stage(NODE, a_slice(), claim("ca", "a"), A) as world_:
        world_.stop()
        world_.server.put(over(A, HOUR))
        world_.server.put(claim("ca"))
        world_.now_ms = T0 + HOUR + MINUTE
        world_.begin()
        assert world_.intervals() == ENDED
        world_.server.delete(claim("ca"))
        world_.tick()
        assert world_.intervals() == ENDED
        assert world_.problems() == 0


def test_an_end_of_which_nothing_is_left_is_a_problem() -> None:
    with stage(NODE, a_slice(), claim("ca", "a"), A) as world_:
        world_.stop()
        world_.server.put(over(A, HOUR))
        world_.server.delete(claim("ca", "a"))
        world_.now_ms = T0 + HOUR + MINUTE
        world_.begin()
        assert world_.intervals() == {}
        assert world_.problems() == 1
        assert world_.is_up()
        world_.tick(LINGER_MS)
        assert world_.problems() == 0


# One claim of several pods


def shares(world_: Stage) -> dict[tuple[str, str], float]:
    """By pod and claim."""
    found = world_.of("pod_gpu_claim_share", "pod", "claim", "device", "method", "resource")
    assert {key[2:] for key in found} <= {("gpu-1/gpu-0", "dra-claim", DRIVER)}
    return {key[:2]: part for key, part in found.items()}


def test_pods_that_use_a_claim_at_the_same_time_hold_it_all_from_their_binding_to_their_end() -> None:
    since_a, since_b = 10 * SECOND, 20 * SECOND
    with stage(NODE, a_slice(), claim("ca", "a", "b"), A, B) as world_:
        world_.now_ms = T0 + 2 * HOUR
        world_.tick()
        assert world_.intervals() == {("a", DRIVER): (1, since_a, None), ("b", DRIVER): (1, since_b, None)}
        both = {("a", "ca-uid"): 1.0, ("b", "ca-uid"): 1.0}
        assert shares(world_) == both
        # Kubernetes takes the claim from the pod that ended.
        world_.server.put(over(A, 2 * HOUR))
        world_.server.put(claim("ca", "b"))
        world_.tick()
        ended = {("a", DRIVER): (1, since_a, 2 * HOUR), ("b", DRIVER): (1, since_b, None)}
        assert (world_.intervals(), shares(world_)) == (ended, both)
        world_.stop()
        world_.begin()
        assert (world_.intervals(), shares(world_)) == (ended, both)
        # The first pod is deleted, and forgotten.
        world_.server.delete(over(A, 2 * HOUR))
        world_.tick(2 * LINGER_MS)
        assert world_.intervals() == {("b", DRIVER): (1, since_b, None)}
        world_.server.put(over(B, 3 * HOUR))
        world_.tick()
        assert world_.intervals() == {("b", DRIVER): (1, since_b, 3 * HOUR)}


# Extended resources that a DRA driver gives, and the names of a node's units


def test_an_extended_resource_of_a_dra_driver_counts_once_and_as_its_node_has_it() -> None:
    found = world.bound(world.pod("c", 1), "gpu-1", T0 + 10 * SECOND)
    found["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "cc",
        "requestMappings": [
            {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "gpu"}
        ],
    }
    with stage(NODE, a_slice(), claim("cc", "c"), found) as world_:
        assert world_.intervals() == {("c", DRIVER): (1, 10 * SECOND, None)}
        for name in ("expected", "capacity", "allocatable"):
            assert world_.of(f"node_gpu_{name}", "node", "resource") == {("gpu-1", DRIVER): 2}
        assert not any(world_.of("state_problems", "code").values())
        world_.server.delete(a_slice())
        world_.tick()
        assert world_.intervals() == {("c", DRIVER): (1, 10 * SECOND, None)}


# Waiting


def test_a_pod_that_waits_for_its_claim() -> None:
    found = waiting("d", "cd")
    shapes.set_condition(found, "PodScheduled", False, "Unschedulable", T0)
    with stage(NODE, a_slice(), claim("cd"), found) as world_:
        assert world_.of("pod_gpu_waiting", "pod", "resource", "reason") == {
            ("d", DRIVER, "Unschedulable"): 1
        }
        assert world_.of("job_waiting", "job_name", "layer", "reason") == {
            ("d", "placement", "Unschedulable"): 1
        }
