"""Owner chains: for every kind of job, which object a person would call the job."""

from __future__ import annotations

import pytest

from gpucost.domain.jobs import (
    JobKind,
    JobReference,
    OwnerReference,
    WorkloadClass,
    job_kind,
    resolve_job,
    workload_class,
)

KUBEFLOW = "kubeflow.org/v1"
POD = ("v1", "Pod")
JOB = ("batch/v1", "Job")
STS = ("apps/v1", "StatefulSet")
JOB_SET = ("jobset.x-k8s.io/v1alpha2", "JobSet")
RAY_CLUSTER = ("ray.io/v1", "RayCluster")

# Owners from the pod outwards, and the position of the one that is the job.
CHAINS = [
    ([POD], 0, JobKind.POD),
    ([POD, JOB], 1, JobKind.JOB),
    ([POD, JOB, ("batch/v1", "CronJob")], 1, JobKind.CRON_JOB),
    ([POD, JOB, JOB_SET], 2, JobKind.JOB_SET),
    ([POD, JOB, JOB_SET, ("trainer.kubeflow.org/v1alpha1", "TrainJob")], 3, JobKind.TRAIN_JOB),
    ([POD, (KUBEFLOW, "PyTorchJob")], 1, JobKind.PYTORCH_JOB),
    ([POD, (KUBEFLOW, "TFJob")], 1, JobKind.TF_JOB),
    ([POD, (KUBEFLOW, "XGBoostJob")], 1, JobKind.XGBOOST_JOB),
    ([POD, (KUBEFLOW, "PaddleJob")], 1, JobKind.PADDLE_JOB),
    ([POD, (KUBEFLOW, "JAXJob")], 1, JobKind.JAX_JOB),
    ([POD, (KUBEFLOW, "MPIJob")], 1, JobKind.MPI_JOB),
    ([POD, JOB, ("kubeflow.org/v2beta1", "MPIJob")], 2, JobKind.MPI_JOB),
    ([POD, RAY_CLUSTER], 1, JobKind.RAY_CLUSTER),
    ([POD, RAY_CLUSTER, ("ray.io/v1", "RayJob")], 2, JobKind.RAY_JOB),
    ([POD, JOB, ("ray.io/v1", "RayJob")], 2, JobKind.RAY_JOB),
    ([POD, RAY_CLUSTER, ("ray.io/v1", "RayService")], 2, JobKind.RAY_SERVICE),
    ([POD, ("batch.volcano.sh/v1alpha1", "Job")], 1, JobKind.VOLCANO_JOB),
    ([POD, STS, ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")], 2, JobKind.LEADER_WORKER_SET),
    ([POD, STS, POD, STS, ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")], 4, JobKind.LEADER_WORKER_SET),
    ([POD, ("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")], 2, JobKind.DEPLOYMENT),
    ([POD, ("apps/v1", "ReplicaSet")], 1, JobKind.REPLICA_SET),
    ([POD, STS], 1, JobKind.STATEFUL_SET),
    ([POD, STS, (KUBEFLOW, "Notebook")], 2, JobKind.NOTEBOOK),
    ([POD, ("apps/v1", "DaemonSet")], 1, JobKind.DAEMON_SET),
    # An executor that its driver pod owns; a pod of an unknown controller; a known job inside one.
    ([POD, POD], 1, JobKind.POD),
    ([POD, ("argoproj.io/v1alpha1", "Workflow")], 1, JobKind.OTHER),
    ([POD, (KUBEFLOW, "PyTorchJob"), ("kubeflow.org/v1beta1", "Trial")], 1, JobKind.PYTORCH_JOB),
]


def chain(links: list[tuple[str, str]]) -> list[OwnerReference]:
    return [OwnerReference(api, kind, f"name-{n}", f"uid-{n}") for n, (api, kind) in enumerate(links)]


@pytest.mark.parametrize(("links", "position", "kind"), CHAINS)
def test_the_job_of_an_owner_chain(links: list[tuple[str, str]], position: int, kind: JobKind) -> None:
    assert resolve_job(chain(links)) == JobReference(kind, f"name-{position}", f"uid-{position}")


def test_every_kind_has_a_chain() -> None:
    assert {kind for _, _, kind in CHAINS} == set(JobKind)


def test_the_api_group_decides_and_the_version_does_not() -> None:
    assert job_kind("batch/v1", "Job") is JobKind.JOB
    assert job_kind("batch.volcano.sh/v1alpha1", "Job") is JobKind.VOLCANO_JOB
    assert job_kind("example.com/v1", "Job") is JobKind.OTHER
    assert job_kind("ray.io/v1alpha1", "RayJob") is job_kind("ray.io/v1", "RayJob")
    assert job_kind("v1", "Pod") is JobKind.POD
    assert job_kind("batch/v1", "Pod") is JobKind.OTHER


def test_a_chain_starts_with_the_pod() -> None:
    with pytest.raises(ValueError, match="starts with the pod"):
        resolve_job([])


def test_two_runs_of_a_cron_job_are_two_jobs() -> None:
    cron = OwnerReference("batch/v1", "CronJob", "nightly", "uid-cron")
    runs = {
        resolve_job(
            [
                OwnerReference("v1", "Pod", "p", f"p-{n}"),
                OwnerReference("batch/v1", "Job", f"nightly-{n}", f"j-{n}"),
                cron,
            ]
        )
        for n in (1, 2)
    }
    assert {job.uid for job in runs} == {"j-1", "j-2"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JobKind.PYTORCH_JOB, WorkloadClass.BATCH),
        (JobKind.CRON_JOB, WorkloadClass.BATCH),
        (JobKind.DEPLOYMENT, WorkloadClass.SERVING),
        (JobKind.LEADER_WORKER_SET, WorkloadClass.SERVING),
        (JobKind.NOTEBOOK, WorkloadClass.INTERACTIVE),
        (JobKind.POD, WorkloadClass.UNKNOWN),
    ],
)
def test_what_a_kind_is_for(kind: JobKind, expected: WorkloadClass) -> None:
    assert workload_class(kind) is expected
