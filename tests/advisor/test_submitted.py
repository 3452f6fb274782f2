"""Manifests to the Workloads that Kueue would make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.advisor.kueue.job_workloads import (
    DEFAULTING,
    FRAMEWORKS,
    MOST_WORKLOADS,
    WorkloadPriority,
    as_workloads,
    assumptions,
    priority_of,
)
from gpucost.cluster.objects.jobs import JobManifest, PriorityClass
from gpucost.cluster.objects.metadata import FieldFlaw
from gpucost.cluster.objects.pods import PodSet
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests import read_manifests
from tests.cluster import builders
from tests.kube.manifest_files import FILES

NOW = builders.T0
GPU = builders.GPU
EMPTY = builders.state()


def manifest(kind: str) -> JobManifest:
    return read_manifests(FILES[kind], "job.yaml", NOW).jobs[0]


def priority_class(name: str, value: int, *, default: bool = False, of_kueue: bool = False) -> PriorityClass:
    uid = f"{name}-{of_kueue}"
    return PriorityClass(builders.meta(name, "", uid=uid), value, default, of_kueue)


CLASSES = builders.state(
    priority_classes=[
        priority_class("high", 100),
        priority_class("normal", 10, default=True),
        priority_class("also-default", 7, default=True),
        priority_class("high", 5, of_kueue=True),
    ]
)


def test_every_kind_that_is_kueues_has_its_integration() -> None:
    assert set(FRAMEWORKS) == set(JobKind) - {JobKind.OTHER, JobKind.VOLCANO_JOB}


@pytest.mark.parametrize(
    "kind", sorted(set(FILES) - {"VolcanoJob", "LeaderWorkerSet", "Deployment", "ReplicaSet"})
)
def test_one_workload_of_most_kinds(kind: str) -> None:
    read = manifest(kind)
    (workload,) = as_workloads(read, EMPTY, KueueConfig())
    assert workload.pod_sets == read.quota_sets != ()
    assert (workload.meta.uid, workload.meta.created_ms) == ("manifest/job.yaml", NOW)
    assert (workload.queue, workload.meta.namespace) == ("team", "ml")
    assert workload.meta.owner == read.job.as_owner
    assert (workload.priority, workload.has_quota, workload.is_active) == (0, False, True)


def test_a_workload_for_each_group_and_for_each_pod() -> None:
    groups = as_workloads(manifest("LeaderWorkerSet"), EMPTY, KueueConfig())
    assert [each.meta.uid for each in groups] == [f"manifest/job.yaml/{n}" for n in range(3)]
    assert {tuple((each.name, each.count) for each in one.pod_sets) for one in groups} == {
        (("leader", 1), ("worker", 3))
    }
    pods = as_workloads(manifest("Deployment"), EMPTY, KueueConfig())
    assert [[each.count for each in one.pod_sets] for one in pods] == [[1], [1], [1]]
    assert as_workloads(manifest("VolcanoJob"), EMPTY, KueueConfig()) == ()


def test_only_a_job_may_start_smaller() -> None:
    job = manifest("Job")
    assert as_workloads(job, EMPTY, KueueConfig())[0].pod_sets[0].min_count == 2
    off = KueueConfig(gates={"PartialAdmission": False})
    assert as_workloads(job, EMPTY, off)[0].pod_sets[0].min_count is None
    elastic = builders.job(
        "bert", "PyTorchJob", "kubeflow.org/v1", pod_sets=(PodSet("worker", 6, builders.template(8), 2),)
    )
    (workload,) = as_workloads(JobManifest(elastic), EMPTY, KueueConfig())
    assert [(each.count, each.min_count) for each in workload.pod_sets] == [(6, None)]


def test_what_kueue_does_not_count_and_what_gates_hold_back() -> None:
    job = manifest("Job")
    config = KueueConfig(excluded_prefixes=("nvidia.com/", "mem"), gates={"TopologyAwareScheduling": False})
    (pod_set,) = as_workloads(job, EMPTY, config)[0].pod_sets
    assert pod_set.template.requests == {"cpu": 4000}
    assert pod_set.topology == {}
    (whole,) = as_workloads(job, EMPTY, KueueConfig())[0].pod_sets
    assert set(whole.template.requests) == {"cpu", "memory", GPU}
    assert whole.topology["required"] == "topology.example.com/rack"


@pytest.mark.parametrize(
    ("kueue_class", "job_class", "expected"),
    [
        ("high", "high", WorkloadPriority(5, "high", of_kueue=True)),
        ("", "high", WorkloadPriority(100, "high")),
        # Of two defaults the lower counts.
        ("", "", WorkloadPriority(7, "also-default")),
        (
            "gone",
            "high",
            WorkloadPriority(
                name="gone",
                of_kueue=True,
                flaw=FieldFlaw(
                    "metadata.labels[kueue.x-k8s.io/priority-class]",
                    "gone",
                    "a WorkloadPriorityClass that exists",
                ),
            ),
        ),
        (
            "",
            "gone",
            WorkloadPriority(
                name="gone", flaw=FieldFlaw("priorityClassName", "gone", "a PriorityClass that exists")
            ),
        ),
    ],
)
def test_priority_as_kueue_finds_it(kueue_class: str, job_class: str, expected: WorkloadPriority) -> None:
    read = manifest("Job")
    read = replace(read, kueue_priority_class=kueue_class, job=replace(read.job, priority_class=job_class))
    assert priority_of(read, CLASSES) == expected
    (workload,) = as_workloads(read, CLASSES, KueueConfig())
    assert (workload.priority, workload.priority_class) == (expected.value, expected.name)
    assert workload.flaws == (() if expected.flaw is None else (expected.flaw,))


def test_the_longest_run_is_kueues_own_label() -> None:
    labelled = FILES["Job"].replace(
        "queue-name: team", 'queue-name: team\n    kueue.x-k8s.io/max-exec-time-seconds: "60"'
    )
    read = read_manifests(labelled, "job.yaml", NOW).jobs[0]
    assert as_workloads(read, EMPTY, KueueConfig())[0].max_execution_s == 60
    assert as_workloads(manifest("Job"), EMPTY, KueueConfig())[0].max_execution_s is None


def test_what_is_taken_for_granted_is_said() -> None:
    assert assumptions(manifest("Job")) == (DEFAULTING,)
    many = FILES["Deployment"].replace("replicas: 3", "replicas: 5000")
    read = read_manifests(many, "job.yaml", NOW).jobs[0]
    assert len(as_workloads(read, EMPTY, KueueConfig())) == MOST_WORKLOADS
    assert "of the 5,000 Workloads of this job the first 1,000 are looked at" in assumptions(read)
    twenty = replace(
        read, workloads=1, quota_sets=tuple(PodSet(f"p{n}", 1, builders.template(1)) for n in range(20))
    )
    assert "Kueue takes at most 18 pod sets; this job has 20" in assumptions(twenty)
    elastic = FILES["Job"].replace(
        "  annotations:\n", '  annotations:\n    kueue.x-k8s.io/elastic-job: "true"\n', 1
    )
    assert len(assumptions(read_manifests(elastic, "job.yaml", NOW).jobs[0])) == 2
    scaling = FILES["RayCluster"].replace("spec:\n", "spec:\n  enableInTreeAutoscaling: true\n", 1)
    assert "enableInTreeAutoscaling" in assumptions(read_manifests(scaling, "job.yaml", NOW).jobs[0])[1]
