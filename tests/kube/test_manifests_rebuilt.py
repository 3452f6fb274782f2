"""Jobs that exist, written as manifests again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpucost.cluster.objects.jobs import JobManifest, JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.pods import PodTemplate, SelectorRequirement, Toleration
from gpucost.cluster.objects.volcano import GroupKind, PodGroup
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests import manifest_of, read_manifests
from gpucost.kube.manifests.writer import document_of
from gpucost.kube.parse.jobs import job_parser
from tests.kube.manifest_files import FILES
from tests.kube.parse import job_objects

NOW = 1_792_800_000_000
KINDS = sorted(set(FILES) - {"TrainJob"})
QUEUE = "kueue.x-k8s.io/queue-name"
DEMANDING = PodTemplate(
    {"cpu": 2500, "memory": 17 << 30, "nvidia.com/gpu": 4, "example.com/rdma": 1, "hugepages-2Mi": 1 << 21},
    {"zone": "b"},
    (
        (
            SelectorRequirement("zone", "In", ("a", "b")),
            SelectorRequirement("metadata.name", "In", ("n-1",), True),
        ),
        (SelectorRequirement("spot", "DoesNotExist"),),
        (SelectorRequirement("", "In"),),
    ),
    (
        Toleration("nvidia.com/gpu", True, "", "NoSchedule"),
        Toleration("team", False, "ml", ""),
        Toleration("", True),
    ),
    "urgent",
    "bin-packer",
    ("ring", "nic"),
    True,
    True,
)
TOPOLOGY = {"required": "rack", "group": "ring", "slice": "kubernetes.io/hostname", "slice_size": "2"}


def read(document: Any) -> JobManifest:
    return manifest_of(document, "job.yaml", NOW)


def of_file(kind: str) -> JobManifest:
    return read_manifests(FILES[kind], "job.yaml", NOW).jobs[0]


def shape(job: JobObject) -> tuple[object, ...]:
    return (
        (job.api_version, job.kind, job.job_kind, job.meta),
        (job.pod_sets, job.gang_size, job.gangs, job.priority_class, job.is_suspended),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_as_it_was(kind: str) -> None:
    manifest = of_file(kind)
    again = read(document_of(manifest.job))
    assert shape(again.job) == shape(manifest.job)
    assert (again.queue, again.workloads) == (manifest.queue, manifest.workloads)
    if kind != "RayJob":  # The submitter has KubeRay's own template, which is not the job's.
        assert again.quota_sets == manifest.quota_sets


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_pod_may_ask_comes_back(kind: str) -> None:
    job = of_file(kind).job
    sets = tuple(replace(each, template=DEMANDING, topology=TOPOLOGY) for each in job.pod_sets)
    asks = replace(job, pod_sets=sets, priority_class="urgent", is_suspended=False)
    again = read(document_of(asks)).job
    assert (again.pod_sets, again.gang_size, again.gangs) == (sets, job.gang_size, job.gangs)
    assert again.priority_class == "urgent"


OBJECTS = [
    ("batch/v1", "Job", job_objects.JOB),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", job_objects.JOB_SET),
]


@pytest.mark.parametrize(("version", "kind", "found"), OBJECTS, ids=[each[1] for each in OBJECTS])
def test_objects_of_the_api_come_back(version: str, kind: str, found: dict[str, Any]) -> None:
    job = job_parser(version, kind)(found)
    again = read(document_of(job)).job
    assert (again.pod_sets, again.gang_size, again.priority_class) == (
        job.pod_sets,
        job.gang_size,
        job.priority_class,
    )


def changed(kind: str, *steps: tuple[str, Any]) -> JobObject:
    """A manifest with further fields of its spec, by their path with dots."""
    document = yaml.safe_load(FILES[kind])
    for path, value in steps:
        above = document["spec"]
        *keys, last = path.split(".")
        for key in keys:
            above = above.setdefault(key, {}) if isinstance(above, dict) else above[int(key)]
        above[last] = value
    return read(document).job


GANGS = [
    changed("PyTorchJob", ("elasticPolicy.minReplicas", 1)),
    changed("PyTorchJob", ("runPolicy.schedulingPolicy", {"minAvailable": 2, "priorityClass": "own"})),
    changed("PyTorchJob", ("runPolicy.suspend", True)),
    changed("VolcanoJob", ("minAvailable", 2), ("priorityClassName", "own")),
    changed("VolcanoJob", ("tasks.1.minAvailable", 2)),
    changed("RayCluster", ("enableInTreeAutoscaling", True), ("suspend", True)),
    changed("RayCluster", ("workerGroupSpecs.0.suspend", True)),
    changed("JobSet", ("replicatedJobs.1.dependsOn", [{"name": "leader", "status": "Complete"}])),
    changed("JobSet", ("suspend", True)),
    changed("LeaderWorkerSet", ("leaderWorkerTemplate.size", 1)),
    changed("Job", ("completionMode", "NonIndexed")),
    changed("Job", ("suspend", True)),
]


@pytest.mark.parametrize("job", GANGS, ids=[f"{at}-{each.kind}" for at, each in enumerate(GANGS)])
def test_gangs_minimums_and_suspension_come_back(job: JobObject) -> None:
    assert shape(read(document_of(job)).job) == shape(job)


def test_a_submitter_of_its_own_comes_back() -> None:
    template = yaml.safe_load(FILES["Notebook"])["spec"]["template"]
    job = changed("RayJob", ("submitterPodTemplate", template))
    assert [each.name for each in job.pod_sets] == ["head", "H100", "submitter"]
    assert shape(read(document_of(job)).job) == shape(job)


def workload(**more: Any) -> Workload:
    return Workload(ObjectMeta("w", "ml", "job-sweep", NOW, {}, {}), queue="other", **more)


def test_what_only_the_workload_says() -> None:
    job = of_file("Job").job
    silent = replace(job, meta=replace(job.meta, labels={}))
    found = read(document_of(silent, workload(priority_class="high", priority_class_of_kueue=True)))
    assert (found.queue, found.kueue_priority_class) == ("other", "high")
    assert read(document_of(job, workload(priority_class="pods"))).queue == "team"
    assert read(document_of(silent)).queue == ""


def test_the_object_is_not_changed_with_its_manifest() -> None:
    job = of_file("Job").job
    document = document_of(job, workload())
    assert document["metadata"]["labels"] == job.meta.labels
    document["metadata"]["labels"]["x"] = "y"
    document["metadata"]["annotations"]["x"] = "y"
    assert "x" not in job.meta.labels
    assert "x" not in job.meta.annotations


def test_a_minimum_as_large_as_the_job_is_none() -> None:
    """After partial admission Kueue leaves the annotation: as a new job it would be refused."""
    job = of_file("Job").job
    fewest = replace(job, pod_sets=tuple(replace(each, count=2, min_count=2) for each in job.pod_sets))
    assert read(document_of(fewest)).job.pod_sets[0].min_count is None


def pod_group(kind: GroupKind = GroupKind.VOLCANO) -> PodGroup:
    topology = {"mode": "hard", "highest_tier": "2"}
    return PodGroup(ObjectMeta("g", "ml", "vc", NOW, {}, {}), kind, 3, queue="sim", topology=topology)


def test_what_only_the_pod_group_says() -> None:
    document = document_of(of_file("VolcanoJob").job, None, pod_group())
    assert read(document).volcano_queue == "sim"
    assert document["spec"]["networkTopology"] == {"mode": "hard", "highestTierAllowed": 2}
    web = of_file("Deployment").job
    assert read(document_of(web, None, pod_group())).volcano_queue == "sim"
    assert read(document_of(web, None, pod_group(GroupKind.NATIVE))).volcano_queue == ""


@pytest.mark.parametrize("kind", ["TrainJob", "CronJob", "Pod"])
def test_kinds_whose_templates_are_elsewhere_are_refused(kind: str) -> None:
    job = replace(of_file(kind).job, pod_sets=())
    with pytest.raises(InputError, match="pod templates of its own"):
        document_of(job)


def test_a_group_of_pods_is_no_single_object() -> None:
    job = of_file("Pod").job
    assert job.job_kind is JobKind.POD
    with pytest.raises(InputError, match="one pod"):
        document_of(replace(job, pod_sets=(replace(job.pod_sets[0], count=2),)))
