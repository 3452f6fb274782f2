"""Jobs of every kind: pods wanted, gangs, counts and times, from objects as the API hands them out."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.jobs import JobObject
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind, job_kind
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.parse.jobs import job_parser
from tests.kube.parse import job_objects as objects
from tests.kube.parse.json_values import JSON, objects_of

GPU = "nvidia.com/gpu"
T0 = 1_792_800_000_000  # 2026-10-24T00:00:00Z
DONE = T0 + (3 * 3600 + 4 * 60 + 5) * 1000

# Of each: (pods, GPUs of one pod) by pod set; gang size and number; suspended; active, ready, succeeded,
# failed; start and end in ms; priority class.
CASES: list[tuple[str, str, dict[str, Any], tuple[Any, ...]]] = [
    (
        "batch/v1",
        "Job",
        objects.JOB,
        ({"main": (4, 2)}, None, 1, False, (3, 2, 0, 1), T0 + 60_000, DONE, "high"),
    ),
    ("batch/v1", "CronJob", objects.CRON_JOB, ({}, None, 1, True, (None,) * 4, None, None, "")),
    (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        objects.JOB_SET,
        # The initializer is over before the other 1 + 2 * 4 start; 2 of 2 worker Jobs of 4 pods are active.
        ({"data": (1, 0), "leader": (1, 1), "workers": (8, 8)}, 9, 1, False, (8, 4, 1, 0), None, DONE, ""),
    ),
    (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        objects.TRAIN_JOB,
        ({}, 4, 1, True, (None,) * 4, None, None, ""),
    ),
    (
        "kubeflow.org/v1",
        "PyTorchJob",
        objects.PYTORCH_JOB,
        (
            {"master": (1, 1), "worker": (6, 8)},
            3,
            1,
            True,
            (2, None, 4, 1),
            T0 + 120_000,
            DONE,
            "research",
        ),
    ),
    (
        "kubeflow.org/v2beta1",
        "MPIJob",
        objects.MPI_JOB,
        ({"launcher": (1, 0), "worker": (16, 8)}, 17, 1, False, (16, None, 0, 0), None, None, "urgent"),
    ),
    *(
        ("kubeflow.org/v1", kind, objects.kubeflow(key, Master=1, Worker=3), expected)
        for kind, key in (
            ("TFJob", "tfReplicaSpecs"),
            ("XGBoostJob", "xgbReplicaSpecs"),
            ("PaddleJob", "paddleReplicaSpecs"),
            ("JAXJob", "jaxReplicaSpecs"),
            ("MPIJob", "mpiReplicaSpecs"),
        )
        for expected in [({"master": (1, 1), "worker": (3, 1)}, 4, 1, False, (None,) * 4, None, None, "")]
    ),
    (
        "ray.io/v1",
        "RayCluster",
        objects.RAY_CLUSTER,
        # 3 replicas of 2 hosts; 9 cut to 4; one group off. The head and 1 * 2 hosts start it.
        (
            {"head": (1, 0), "h100": (6, 8), "l4": (4, 1), "off": (0, 1)},
            3,
            1,
            False,
            (9, 8, None, None),
            None,
            None,
            "",
        ),
    ),
    (
        "ray.io/v1alpha1",
        "RayService",
        objects.RAY_SERVICE,
        (
            {"head": (1, 0), "h100": (6, 8), "l4": (4, 1), "off": (0, 1)},
            3,
            1,
            False,
            (9, 8, None, None),
            None,
            None,
            "",
        ),
    ),
    (
        "ray.io/v1",
        "RayJob",
        objects.RAY_JOB,
        (
            {"head": (1, 0), "h100": (6, 8), "l4": (4, 1), "off": (0, 1), "submitter": (1, 0)},
            11,
            1,
            True,
            (4, None, None, None),
            T0 + 180_000,
            DONE,
            "",
        ),
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        objects.LEADER_WORKER_SET,
        ({"leader": (3, 1), "worker": (9, 8)}, 4, 3, False, (12, 8, None, None), None, None, ""),
    ),
    *(
        ("apps/v1", kind, objects.REPLICAS, expected)
        for kind in ("Deployment", "StatefulSet", "ReplicaSet")
        for expected in [({"main": (5, 1)}, None, 1, False, (4, 0, None, None), None, None, "serving")]
    ),
    (
        "apps/v1",
        "DaemonSet",
        objects.DAEMON_SET,
        ({"main": (7, 1)}, None, 1, False, (6, 5, None, None), None, None, ""),
    ),
    *(
        (f"kubeflow.org/{version}", "Notebook", objects.NOTEBOOK, expected)
        for version in ("v1", "v1beta1")
        for expected in [({"main": (1, 1)}, 1, 1, True, (None, 0, None, None), None, None, "")]
    ),
    (
        "batch.volcano.sh/v1alpha1",
        "Job",
        objects.VOLCANO_JOB,
        ({"ps": (1, 0), "default1": (4, 8)}, 3, 1, False, (3, None, 2, 0), None, DONE, "high"),
    ),
]


def facts(job: JobObject) -> tuple[Any, ...]:
    return (
        {each.name: (each.count, each.template.requests.get(GPU, 0)) for each in job.pod_sets},
        job.gang_size,
        job.gangs,
        job.is_suspended,
        (job.active, job.ready, job.succeeded, job.failed),
        job.started_ms,
        job.ended_ms,
        job.priority_class,
    )


@pytest.mark.parametrize(("api_version", "kind", "found", "expected"), CASES)
def test_every_kind(api_version: str, kind: str, found: dict[str, Any], expected: tuple[Any, ...]) -> None:
    before = deepcopy(found)
    job = job_parser(api_version, kind)(found)
    assert facts(job) == expected
    topology = {"required": "rack", "group": "ring", "slice": "kubernetes.io/hostname", "slice_size": "2"}
    assert all(each.topology == topology for each in job.pod_sets)
    assert not job.flaws
    assert found == before
    assert job.as_owner.api_version == api_version
    assert (job.as_owner.kind, job.as_owner.uid) == (kind, f"{job.meta.name}-uid")


def test_all_kinds_of_job_are_here() -> None:
    found = {job_kind(api_version, kind) for api_version, kind, _, _ in CASES}
    assert found == set(JobKind) - {JobKind.POD, JobKind.OTHER}


def a_job(spec: dict[str, Any], **metadata: Any) -> JobObject:
    return job_parser("batch/v1", "Job")(
        {"metadata": objects.metadata("j", **metadata), "spec": {"template": objects.template(1), **spec}}
    )


INDEXED = {"completionMode": "Indexed"}


@pytest.mark.parametrize(
    ("spec", "pods", "gang"),
    [
        ({}, 1, None),
        ({"parallelism": 8}, 8, None),  # a work queue: no completions
        ({"parallelism": 8, "completions": 3}, 3, None),
        ({"parallelism": 3, "completions": 3}, 3, None),  # three times the same
        ({"parallelism": 3, "completions": 3, **INDEXED}, 3, 3),
        ({"parallelism": 3, "completions": 30, **INDEXED}, 3, None),  # an array, one after another
        ({"parallelism": 0, "completions": 3}, 0, None),
    ],
)
def test_a_job_is_a_gang_where_each_pod_has_its_part_and_all_run_at_once(
    spec: dict[str, Any], pods: int, gang: int | None
) -> None:
    found = a_job(spec)
    assert (found.pods_wanted, found.gang_size) == (pods, gang)
    assert (found.active, found.ready, found.started_ms) == (None, None, None)


@pytest.mark.parametrize(("fewest", "gang"), [("2", 2), ("9", 8), ("few", 8), ("-1", 8)])
def test_partial_admission_makes_the_gang_smaller(fewest: str, gang: int) -> None:
    annotations = {"kueue.x-k8s.io/job-min-parallelism": fewest}
    found = a_job({"parallelism": 8, "completions": 8, **INDEXED}, annotations=annotations)
    assert (found.pods_wanted, found.gang_size) == (8, gang)


def test_a_group_of_one_pod_has_no_workers() -> None:
    spec = {"leaderWorkerTemplate": {"workerTemplate": objects.template(4)}}
    found = job_parser("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")(
        {"metadata": objects.metadata("one"), "spec": spec}
    )
    assert facts(found)[:3] == ({"leader": (1, 4)}, 1, 1)


def test_a_ray_job_on_a_cluster_that_is_there_wants_nothing() -> None:
    spec = {"clusterSelector": {"ray.io/cluster": "shared"}, "entrypoint": "python train.py"}
    found = job_parser("ray.io/v1", "RayJob")({"metadata": objects.metadata("j"), "spec": spec})
    assert facts(found)[:2] == ({}, None)


@pytest.mark.parametrize(
    ("minimum", "tasks", "gang"),
    [
        (None, [{"replicas": 2}, {"replicas": 4, "minAvailable": 1}], 3),
        (5, [{"replicas": 2}, {"replicas": 4}], 5),
        (None, [], None),
    ],
)
def test_the_gang_of_a_volcano_job(minimum: int | None, tasks: list[Any], gang: int | None) -> None:
    spec = {"minAvailable": minimum, "tasks": tasks}
    found = job_parser("batch.volcano.sh/v1alpha1", "Job")(
        {"metadata": objects.metadata("v"), "spec": spec, "status": {"state": {"phase": "Aborted"}}}
    )
    assert (found.gang_size, found.is_suspended, found.ended_ms) == (gang, True, None)


def test_a_failure_that_was_retried_ends_nothing() -> None:
    found = deepcopy(objects.PYTORCH_JOB)
    status = found["status"]
    assert isinstance(status, dict)
    status |= {"completionTime": None, "conditions": [objects.condition("Failed", "False")]}
    assert job_parser("kubeflow.org/v1", "PyTorchJob")(found).ended_ms is None


def test_a_counter_that_is_left_out_is_zero_but_old_clusters_have_no_ready() -> None:
    found = job_parser("batch/v1", "Job")({**objects.JOB, "status": {"active": 3}})
    assert (found.active, found.ready, found.succeeded, found.failed) == (3, None, 0, 0)


def test_bad_fields_are_flaws_once_each_and_the_rest_is_used() -> None:
    spec = {"parallelism": -3, "completions": "six", "suspend": "yes"}
    found = a_job(spec)
    assert [(each.field, each.value) for each in found.flaws] == [
        ("spec.parallelism", "-3"),
        ("spec.completions", "'six'"),
        ("spec.suspend", "'yes'"),
    ]
    assert not found.is_suspended
    assert found.meta.uid == "j-uid"


@pytest.mark.parametrize(("api_version", "kind"), [("v1", "Pod"), ("batch.volcano.sh/v1", "CronJob")])
def test_what_is_no_job(api_version: str, kind: str) -> None:
    with pytest.raises(InputError, match=kind):
        job_parser(api_version, kind)


@pytest.mark.parametrize("metadata", [None, {}, {"name": "x"}, {"uid": "x"}, {"name": 1, "uid": "x"}])
def test_an_object_without_an_identity(metadata: Any) -> None:
    with pytest.raises(Unreadable):
        job_parser("batch/v1", "Job")({"metadata": metadata, "spec": {}})


@given(
    case=st.sampled_from(CASES),
    found=objects_of("spec", "status"),
    twisted=st.dictionaries(st.sampled_from(["spec", "status"]), JSON, max_size=2),
    data=st.data(),
)
def test_no_json_breaks_a_parser(case: Any, found: Any, twisted: Any, data: st.DataObject) -> None:
    api_version, kind, good, _ = case
    parse = job_parser(api_version, kind)
    assert parse(found).meta.uid == "u"
    parse({**good, **twisted})
    broken = deepcopy(good)
    branch = broken[data.draw(st.sampled_from(["spec", "status"]))]
    while isinstance(branch, (dict, list)) and branch:
        keys = sorted(branch) if isinstance(branch, dict) else range(len(branch))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(branch[key], (dict, list)) or data.draw(st.booleans()):
            branch[key] = data.draw(JSON)
            break
        branch = branch[key]
    assert parse(broken) == parse(broken)


@pytest.mark.parametrize(
    ("api_version", "kind", "status", "failure"),
    [
        ("batch/v1", "Job", {"type": "Failed", "reason": "DeadlineExceeded"}, "DeadlineExceeded"),
        ("kubeflow.org/v1", "PyTorchJob", {"type": "Failed"}, "Failed"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", {"type": "Completed"}, None),
        ("apps/v1", "Deployment", {"type": "Failed"}, None),
    ],
)
def test_a_job_failed_by_its_condition(
    api_version: str, kind: str, status: dict[str, Any], failure: str | None
) -> None:
    conditions = [{"status": "True", "lastTransitionTime": "2026-10-24T00:00:00Z", **status}]
    found = {"metadata": {"uid": "u", "name": "n", "namespace": "ns"}, "status": {"conditions": conditions}}
    assert job_parser(api_version, kind)(found).failure == failure
    conditions[0]["status"] = "False"
    assert job_parser(api_version, kind)(found).failure is None


@pytest.mark.parametrize(
    ("api_version", "kind", "status", "failure"),
    [
        ("ray.io/v1", "RayJob", {"jobStatus": "FAILED"}, "FAILED"),
        ("ray.io/v1", "RayJob", {"jobStatus": "SUCCEEDED"}, None),
        ("batch.volcano.sh/v1alpha1", "Job", {"state": {"phase": "Failed"}}, "Failed"),
        ("batch.volcano.sh/v1alpha1", "Job", {"state": {"phase": "Completed"}}, None),
    ],
)
def test_a_job_failed_by_its_phase(
    api_version: str, kind: str, status: dict[str, Any], failure: str | None
) -> None:
    found = {"metadata": {"uid": "u", "name": "n", "namespace": "ns"}, "status": status}
    assert job_parser(api_version, kind)(found).failure == failure
