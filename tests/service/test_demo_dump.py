"""The demo's state as a dump: read again it is the state that was written."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from gpucost.cluster.objects.metadata import ObjectMeta, OwnerKeys
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.kube.dumps.dump import ClusterStateBuilder, read_dump
from gpucost.kube.parse.collections import collections
from gpucost.service.wiring.demo_dump import dump_text
from gpucost.simulator.state import cluster_state
from tests.support.simulated import simulated

WHOLE = ("namespaces", "cluster_queues", "local_queues", "flavors", "topologies", "workloads")
ROLES = {JobKind.RAY_CLUSTER, JobKind.RAY_SERVICE, JobKind.LEADER_WORKER_SET}
"""Kinds whose pods have roles that the simulator does not tell apart: their counts are what is compared."""


def read(text: str) -> ClusterState:
    gathering = ClusterStateBuilder(collections(OwnerKeys().all))
    read_dump(text.encode(), gathering)
    found = gathering.loaded(0)
    assert found.is_dated
    assert not found.left_out
    return found.state


@pytest.fixture(scope="module", params=[3 * DAY_MS + 7 * HOUR_MS, 20 * DAY_MS, 31 * DAY_MS - 1])
def states(request: pytest.FixtureRequest) -> tuple[ClusterState, ClusterState]:
    """As simulated, and as read from its dump; on the third day several nodes are in trouble."""
    cluster = simulated()
    state = cluster_state(cluster, cluster.window.start_ms + request.param)
    return state, read(dump_text(state))


def test_objects_that_are_written_whole_come_back_whole(states: tuple[ClusterState, ClusterState]) -> None:
    state, found = states
    assert found.at_ms == state.at_ms
    for name in WHOLE:
        assert getattr(found, name) == getattr(state, name), name
    groups = {uid: replace(each, succeeded=None, failed=None) for uid, each in found.pod_groups.items()}
    assert groups == state.pod_groups
    queues = {uid: replace(each, dequeue_strategy="") for uid, each in found.volcano_queues.items()}
    assert queues == state.volcano_queues
    assert found.schedulers.kueue.version
    assert found.schedulers.volcano.version


def test_pods_hold_what_they_held(states: tuple[ClusterState, ClusterState]) -> None:
    state, found = states
    starts = {uid: replace(pod, started_ms=None) for uid, pod in found.pods.items()}
    assert starts == state.pods


def test_nodes_have_what_they_had(states: tuple[ClusterState, ClusterState]) -> None:
    """But for labels: those that say what a node's fields say. Which machine of a cloud it is leaves no
    cluster with a dump."""
    state, found = states

    def plain(node: Node) -> Node:
        meta = ObjectMeta(node.meta.uid, "", node.meta.name, node.meta.created_ms, {}, {})
        return replace(node, meta=meta, provider_id="")

    assert not any(node.provider_id for node in found.nodes.values())
    assert {node.capacity_type for node in found.nodes.values()} == {"on-demand", "spot", "owned"}
    assert {uid: plain(node) for uid, node in found.nodes.items()} == {
        uid: plain(node) for uid, node in state.nodes.items()
    }
    for uid, node in state.nodes.items():
        said = found.nodes[uid].meta.labels
        own = {key: value for key, value in node.meta.labels.items() if key != "nvidia.com/gpu.count"}
        assert own.items() <= said.items()
    assert not ClusterOverview(found).problems


def test_jobs_ask_what_they_asked(states: tuple[ClusterState, ClusterState]) -> None:
    state, found = states
    for uid, job in state.jobs.items():
        read_job = found.jobs[uid]
        assert (read_job.meta, read_job.kind, read_job.job_kind) == (job.meta, job.kind, job.job_kind)
        if job.job_kind in (JobKind.REPLICA_SET, JobKind.TRAIN_JOB):
            continue
        assert read_job.pods_wanted == job.pods_wanted, job.meta.name
        templates = [each.template for each in read_job.pod_sets if each.count]
        assert templates[:1] == [each.template for each in job.pod_sets], job.meta.name
        if job.job_kind not in ROLES and job.gang_size:
            assert read_job.gang_size == job.gang_size, job.meta.name
    assert {job.meta.name for uid, job in found.jobs.items() if uid not in state.jobs} == {
        "kueue-controller-manager",
        "volcano-scheduler",
    }


def test_nothing_is_left_out_that_a_state_may_have() -> None:
    """A collection that the simulator begins to fill has to be written too."""
    cluster = simulated()
    state = cluster_state(cluster, cluster.window.start_ms + 20 * DAY_MS)
    filled = {each.name for each in fields(state) if each.name not in ("at_ms", "collections", "schedulers")}
    filled = {name for name in filled if getattr(state, name)}
    assert filled <= {*WHOLE, "pods", "nodes", "jobs", "pod_groups", "volcano_queues"}
    assert json.loads(dump_text(state))["kind"] == "List"
