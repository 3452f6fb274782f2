"""YAML that lets the pods of a job ask for fewer GPUs, by kind of job."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpucost.detectors.request_patches import (
    RESTART,
    UNKNOWN_CONTAINER,
    RequestingPod,
    request_action,
)
from gpucost.domain.jobs import JobKind
from tests.detectors.worlds import GPU


def _patch(kind: str, pod: str = "j-worker-0", job: str = "j") -> Any:
    action = request_action("Ask for 2", RequestingPod(kind, "ns", job, pod), GPU, 2, 1.0)
    assert action.text == f"Ask for 2. {RESTART}"
    return yaml.safe_load(action.patch) if action.patch else None


_POD = {"containers": [{"name": UNKNOWN_CONTAINER, "resources": {"limits": {GPU: 2}}}]}
_TEMPLATE = {"template": {"spec": _POD}}


@pytest.mark.parametrize(
    ("kind", "pod", "spec"),
    [
        ("Job", "j-abcde", _TEMPLATE),
        ("Deployment", "j-1-2", _TEMPLATE),
        ("CronJob", "j-1-2", {"jobTemplate": {"spec": _TEMPLATE}}),
        ("Pod", "j", _POD),
        ("JobSet", "j-workers-0-1-abcde",
         {"replicatedJobs": [{"name": "workers", "template": {"spec": _TEMPLATE}}]}),
        ("VolcanoJob", "j-task-b-3", {"tasks": [{"name": "task-b", **_TEMPLATE}]}),
        ("MPIJob", "j-launcher-x", {"mpiReplicaSpecs": {"Worker": _TEMPLATE}}),
        ("TrainJob", "j-node-0-0", {"trainer": {"resourcesPerNode": {"limits": {GPU: 2}}}}),
        ("LeaderWorkerSet", "j-0-1", {"leaderWorkerTemplate": {"workerTemplate": {"spec": _POD}}}),
    ],
)  # fmt: skip
def test_the_path_is_that_of_the_kind(kind: str, pod: str, spec: dict[str, Any]) -> None:
    patch = _patch(kind, pod)
    assert patch["metadata"] == {"name": "j", "namespace": "ns"}
    assert patch["spec"] == spec


def test_kubeflow_s_replica_types_and_containers_are_known() -> None:
    specs = _patch("PyTorchJob", "j-master-0")["spec"]["pytorchReplicaSpecs"]
    assert list(specs) == ["Master"]
    assert specs["Master"]["template"]["spec"]["containers"][0]["name"] == "pytorch"
    assert list(_patch("TFJob", "j-ps-0")["spec"]["tfReplicaSpecs"]) == ["PS"]
    assert _patch("Notebook")["spec"]["template"]["spec"]["containers"][0]["name"] == "j"


def test_every_kind_has_yaml_or_none() -> None:
    assert [kind for kind in JobKind if _patch(kind) is None] == [JobKind.OTHER]


def test_strange_names_come_into_no_yaml() -> None:
    assert request_action("Ask", RequestingPod("Job", "ns", "j\nkind: X", "p"), GPU, 2, 1.0).patch == ""
    assert (
        "X" not in request_action("Ask", RequestingPod("JobSet", "ns", "j", "j-\nX-0-0"), GPU, 2, 1.0).patch
    )
