"""What a tenant writes in its own namespace changes no answer about another's."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.quota import reason_in
from gpucost.domain.jobs import JobKind, JobReference
from tests.cluster.builders import GPU, T0, job, pod, pod_group, state

TRAIN = job("train", gang_size=2)
HALF = pod("train-0", 8, node="n", owner=TRAIN, ready_ms=T0)
WAITS = pod("train-1", 8, owner=TRAIN, unschedulable="0/1 nodes", created_ms=T0 + 1)


@pytest.mark.parametrize("gpus", [0, 8])
def test_pods_of_another_namespace_complete_no_gang(gpus: int) -> None:
    forged = pod("forged", gpus, node="n", namespace="evil", owner=TRAIN)
    honest = ClusterOverview(state(TRAIN, HALF, WAITS)).gangs
    assert [(each.running, each.partial_since_ms) for each in honest] == [(1, T0 + 1)]
    assert ClusterOverview(state(forged, TRAIN, HALF, WAITS)).gangs == honest


def test_a_job_waits_for_its_own_pods_only() -> None:
    forged = replace(WAITS, meta=replace(WAITS.meta, uid="f-uid", namespace="evil", created_ms=T0 - 1))
    group = pod_group(
        "g", 2, namespace="evil", owner=TRAIN, rest={"phase": "Pending", "min_resources": {GPU: 8}}
    )
    assert ClusterOverview(state(TRAIN, HALF)).job_holds == {}
    for lies in ((forged,), (group,), (group, forged)):
        holds = ClusterOverview(state(*lies, TRAIN, HALF)).job_holds
        assert list(holds) == [JobReference(JobKind.JOB, "train", "evil:train-uid")]
    own = JobReference(JobKind.JOB, "train", "train-uid")
    honest = ClusterOverview(state(TRAIN, HALF, WAITS)).job_holds[own]
    assert ClusterOverview(state(forged, group, TRAIN, HALF, WAITS)).job_holds[own] == honest


def test_a_long_message_is_read_in_time() -> None:
    start = time.process_time()
    assert reason_in("untolerated taint x " * 1800, None) == ""
    assert time.process_time() - start < 0.5
    said = "untolerated taint {" + "k" * 316 + " v NoSchedule <nil>} in flavor spot"
    assert reason_in(said, None) == "NoMatchingFlavor"
