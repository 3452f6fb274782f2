"""Manifests of every kind, to what they ask of which scheduler."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import yaml

from gpucost.cluster.objects.jobs import JobManifest
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests import manifest_of, read_manifests, reread
from gpucost.kube.manifests.checks import SPECS, TEMPLATE_AT
from gpucost.kube.manifests.rules.kinds import OF_KUBERNETES
from tests.kube.manifest_files import FILES, pod_spec

NOW = 1_792_800_000_000
GPU = "nvidia.com/gpu"
Sets = list[tuple[str, int, int]]


def one(text: str) -> JobManifest:
    return read_manifests(text, "job.yaml", NOW).jobs[0]


def gpus(manifest: JobManifest, *, of_kueue: bool = False) -> Sets:
    pod_sets = manifest.quota_sets if of_kueue else manifest.job.pod_sets
    return [(each.name, each.count, each.template.requests.get(GPU, 0)) for each in pod_sets]


# Of each: pod sets of the job (pods, GPUs of one), its gang, pod sets of a Workload, how many Workloads.
SHAPES: list[tuple[str, Sets, int | None, Sets, int]] = [
    ("Job", [("main", 4, 2)], 2, [("main", 4, 2)], 1),
    ("CronJob", [("main", 2, 1)], None, [("main", 2, 1)], 1),
    ("JobSet", [("leader", 1, 1), ("workers", 8, 8)], 9, [("leader", 1, 1), ("workers", 8, 8)], 1),
    ("TrainJob", [("node", 4, 8)], 4, [("node", 4, 8)], 1),
    ("PyTorchJob", [("master", 1, 1), ("worker", 3, 8)], 4, [("master", 1, 1), ("worker", 3, 8)], 1),
    (
        "TFJob",
        [("chief", 1, 1), ("ps", 2, 1), ("worker", 3, 8)],
        6,
        [("chief", 1, 1), ("ps", 2, 1), ("worker", 3, 8)],
        1,
    ),
    ("XGBoostJob", [("master", 1, 1), ("worker", 2, 8)], 3, [("master", 1, 1), ("worker", 2, 8)], 1),
    ("PaddleJob", [("worker", 2, 8)], 2, [("worker", 2, 8)], 1),
    ("JAXJob", [("worker", 2, 8)], 2, [("worker", 2, 8)], 1),
    ("MPIJob", [("launcher", 1, 1), ("worker", 16, 8)], 17, [("launcher", 1, 1), ("worker", 16, 8)], 1),
    ("RayJob", [("head", 1, 0), ("H100", 4, 8)], 5, [("head", 1, 0), ("h100", 4, 8), ("submitter", 1, 0)], 1),
    ("RayCluster", [("head", 1, 0), ("H100", 4, 8)], 5, [("head", 1, 0), ("h100", 4, 8)], 1),
    ("RayService", [("head", 1, 0), ("H100", 4, 8)], 5, [("head", 1, 0), ("h100", 4, 8)], 1),
    ("VolcanoJob", [("ps", 1, 1), ("worker", 4, 8)], 3, [], 0),
    ("LeaderWorkerSet", [("leader", 3, 1), ("worker", 9, 8)], 4, [("leader", 1, 1), ("worker", 3, 8)], 3),
    ("Deployment", [("main", 3, 1)], None, [("main", 1, 1)], 3),
    ("StatefulSet", [("main", 3, 1)], None, [("main", 3, 1)], 1),
    ("ReplicaSet", [("main", 3, 1)], None, [("main", 1, 1)], 3),
    ("DaemonSet", [("main", 1, 1)], None, [("main", 1, 1)], 1),
    ("Notebook", [("main", 1, 1)], 1, [("main", 1, 1)], 1),
    ("Pod", [("main", 1, 1)], 1, [("main", 1, 1)], 1),
]


@pytest.mark.parametrize(("kind", "sets", "gang", "quota", "workloads"), SHAPES, ids=[s[0] for s in SHAPES])
def test_every_kind(kind: str, sets: Sets, gang: int | None, quota: Sets, workloads: int) -> None:
    manifest = one(FILES[kind])
    assert manifest.job.job_kind == kind
    assert gpus(manifest) == sets
    assert manifest.job.gang_size == gang
    assert gpus(manifest, of_kueue=True) == quota
    assert manifest.workloads == workloads
    assert manifest.queue == ("" if kind == "VolcanoJob" else "team")
    assert (manifest.namespace, manifest.job.meta.created_ms) == ("ml", NOW)
    assert manifest.job.meta.uid == "manifest/job.yaml"
    assert manifest.job.active is None
    assert bool(manifest.unknown) == (kind in ("TrainJob", "DaemonSet"))


def test_no_kind_of_job_is_left_out() -> None:
    kinds = set(JobKind) - {JobKind.OTHER}
    assert set(SPECS) | OF_KUBERNETES == set(TEMPLATE_AT) == kinds == {JobKind(kind) for kind in FILES}


@pytest.mark.parametrize("kind", FILES)
def test_json_and_the_document_read_again_are_the_same(kind: str) -> None:
    manifest = one(FILES[kind])
    assert one(json.dumps(yaml.safe_load(FILES[kind]))) == manifest
    assert reread(manifest, manifest.document) == manifest


def test_a_patched_document_differs_by_its_patch_only() -> None:
    manifest = one(FILES["PyTorchJob"])
    patched: Any = deepcopy(manifest.document)
    patched["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    changed = reread(manifest, patched)
    assert gpus(changed) == [("master", 1, 1), ("worker", 2, 8)]
    assert (changed.place, changed.job.meta) == (manifest.place, manifest.job.meta)
    patched["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    assert reread(manifest, patched) == manifest


def test_what_a_job_says_to_kueue() -> None:
    text = FILES["Job"].replace(
        "queue-name: team",
        "queue-name: team\n    kueue.x-k8s.io/priority-class: urgent\n"
        '    kueue.x-k8s.io/max-exec-time-seconds: "3600"\n    gpucost.io/checkpoints: "true"',
    )
    manifest = one(text)
    assert (manifest.kueue_priority_class, manifest.deadline_s, manifest.checkpoints) == (
        "urgent",
        3600,
        True,
    )
    (pod_set,) = manifest.quota_sets
    assert (pod_set.min_count, manifest.job.gang_size) == (2, 2)
    assert pod_set.topology == {
        "required": "topology.example.com/rack",
        "slice": "kubernetes.io/hostname",
        "slice_size": "2",
    }
    plain = one(FILES["JobSet"])
    assert (plain.deadline_s, plain.checkpoints, plain.kueue_priority_class) == (None, None, "")
    assert one(FILES["Job"]).deadline_s == 7200


def test_queue_of_an_annotation_and_of_pods() -> None:
    old = yaml.safe_load(FILES["JobSet"])
    old["metadata"]["annotations"] = old["metadata"].pop("labels")
    assert one(json.dumps(old)).queue == "team"
    web = yaml.safe_load(FILES["Deployment"])
    del web["metadata"]["labels"]
    web["spec"]["template"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "pods"
    assert one(json.dumps(web)).queue == "pods"
    job = yaml.safe_load(FILES["JobSet"])
    del job["metadata"]["labels"]
    assert one(json.dumps(job)).queue == ""


def test_what_is_said_to_volcano() -> None:
    manifest = one(FILES["VolcanoJob"])
    assert (manifest.volcano_queue, manifest.scheduler) == ("research", "volcano")
    text = FILES["Deployment"].replace(
        "metadata: {labels: {app: web}}",
        'metadata: {labels: {app: web}, annotations: {scheduling.volcano.sh/queue-name: "serving"}}',
    )
    web = one(text.replace("      containers:", "      schedulerName: volcano\n      containers:"))
    assert (web.volcano_queue, web.scheduler, web.queue) == ("serving", "volcano", "team")


def test_a_generated_name_is_told_as_one() -> None:
    manifest = one(FILES["Job"].replace("name: sweep", "generateName: sweep-"))
    assert manifest.name == "sweep-xxxxx"
    assert one(FILES["Pod"].replace("  namespace: ml\n", "")).namespace == "default"


def test_many_documents_and_those_without_pods() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {}\n"
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"
    text = "---\n".join([service, FILES["Job"], "", claim, FILES["JobSet"]])
    read = read_manifests(text, "all.yaml", NOW)
    assert [each.place for each in read.jobs] == ["all.yaml, document 2", "all.yaml, document 5"]
    assert len({each.job.meta.uid for each in read.jobs}) == 2
    assert read.skipped == (
        "all.yaml, document 1: a Service makes no pods",
        "all.yaml, document 4: a PersistentVolumeClaim makes no pods",
    )
    items = [each for each in yaml.safe_load_all(text) if each]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    again = read_manifests(json.dumps(listed), "all.json", NOW)
    assert [each.job.pod_sets for each in again.jobs] == [each.job.pod_sets for each in read.jobs]
    assert again.jobs[0].place == "all.json, item 2"


def _pod(name: str, gpu: int, *, total: int | None = 3, group: str = "ring", more: str = "") -> str:
    annotations = (
        "" if total is None else f'\n  annotations:\n    kueue.x-k8s.io/pod-group-total-count: "{total}"'
    )
    return f"""apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{kueue.x-k8s.io/queue-name: team, kueue.x-k8s.io/pod-group-name: {group}}}{annotations}{more}
spec:
  {pod_spec(gpu, 2)}
"""


def test_pods_of_a_group_are_one_job() -> None:
    text = "---\n".join([_pod("a", 1), _pod("b", 8), _pod("c", 8), FILES["Pod"]])
    read = read_manifests(text, "pods.yaml", NOW)
    ring, single = read.jobs
    assert gpus(ring) == gpus(ring, of_kueue=True) == [("role-1", 1, 1), ("role-2", 2, 8)]
    assert (ring.name, ring.place, ring.job.gang_size) == ("ring", "pods.yaml, pods of ring", 3)
    assert (ring.queue, ring.unknown, ring.workloads) == ("team", (), 1)
    assert single.name == "shell"
    assert reread(ring, ring.document) == ring


def test_a_group_with_too_few_pods_is_not_known() -> None:
    manifest = one(_pod("a", 1) + "---\n" + _pod("b", 1))
    assert manifest.unknown == ("the pod group ring is to have 3 pods, and 2 are given",)
    fast = '\n    kueue.x-k8s.io/pod-group-fast-admission: "true"'
    whole = one(_pod("a", 1, more=fast))
    assert (gpus(whole), whole.job.gang_size, whole.unknown) == ([("role-1", 3, 1)], 3, ())


@pytest.mark.parametrize(
    ("version", "link"),
    [
        (
            "scheduling.volcano.sh/v1beta1",
            "labels: {app: web}, annotations: {scheduling.k8s.io/group-name: gang}",
        ),
        ("scheduling.x-k8s.io/v1alpha1", "labels: {app: web, scheduling.x-k8s.io/pod-group: gang}"),
    ],
)
def test_a_pod_group_beside_a_job_is_its_gang(version: str, link: str) -> None:
    group = f"apiVersion: {version}\nkind: PodGroup\nmetadata: {{name: gang, namespace: ml}}\n"
    group += "spec: {minMember: 2}\n"
    job = FILES["Deployment"].replace("metadata: {labels: {app: web}}", f"metadata: {{{link}}}")
    read = read_manifests(f"{job}---\n{group}", "gang.yaml", NOW)
    (manifest,) = read.jobs
    assert (manifest.group_name, manifest.job.gang_size) == ("gang", 2)
    assert manifest.pod_group is not None
    assert manifest.pod_group.min_member == 2
    assert reread(manifest, manifest.document) == manifest
    alone = one(job)
    assert (alone.group_name, alone.pod_group, alone.job.gang_size) == ("gang", None, None)


RUNTIME = f"""apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {{name: torch-distributed}}
spec:
  mlPolicy: {{numNodes: 1, torch: {{}}}}
  template:
    spec:
      replicatedJobs:
      - name: dataset
        template:
          spec:
            template:
              spec:
                containers: [{{name: load, resources: {{requests: {{cpu: "1"}}}}}}]
      - name: node
        template:
          metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}}
          spec:
            template:
              spec:
                {pod_spec(1, 16)}
"""


def test_a_train_job_with_and_without_its_runtime() -> None:
    alone = one(FILES["TrainJob"])
    assert len(alone.unknown) == 1
    assert "ClusterTrainingRuntime torch-distributed" in alone.unknown[0]
    text = (
        FILES["TrainJob"]
        + """  podTemplateOverrides:
  - targetJobs: [{name: node}]
    spec: {nodeSelector: {pool: h100}, tolerations: [{key: gpu, operator: Exists}]}
  runtimePatches:
  - manager: example.com/me
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template: {spec: {template: {spec: {priorityClassName: high}}}}
"""
    )
    whole = one(f"{text}---\n{RUNTIME}")
    assert whole.unknown == ()
    assert gpus(whole) == [("dataset", 1, 0), ("node", 4, 8)]
    node = whole.job.pod_sets[1].template
    assert (node.node_selector, node.priority_class) == ({"pool": "h100"}, "high")
    assert [each.key for each in node.tolerations] == ["gpu"]
    assert whole.job.priority_class == "high"
    assert reread(whole, whole.document) == whole
    other = RUNTIME.replace("torch-distributed", "other")
    assert one(f"{text}---\n{other}").unknown


def test_what_kuberay_adds_counts_for_kueue() -> None:
    document = yaml.safe_load(FILES["RayJob"])
    head = manifest_of(document, "ray", NOW).quota_sets[0].template.requests
    submitter = manifest_of(document, "ray", NOW).quota_sets[2].template.requests
    assert submitter == {"cpu": 500, "memory": 200 << 20}
    document["spec"]["submissionMode"] = "SidecarMode"
    (beside, _) = manifest_of(document, "ray", NOW).quota_sets
    assert beside.template.requests["cpu"] == head["cpu"] + 500
    document["spec"]["submissionMode"] = "HTTPMode"
    document["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    (scaled, workers) = manifest_of(document, "ray", NOW).quota_sets
    assert scaled.template.requests["memory"] == head["memory"] + (512 << 20)
    assert (workers.count, workers.min_count) == (4, None)
    document["spec"]["clusterSelector"] = {"ray.io/cluster": "shared"}
    assert manifest_of(document, "ray", NOW).workloads == 0


def test_a_leader_without_its_own_template() -> None:
    document = yaml.safe_load(FILES["LeaderWorkerSet"])
    del document["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    manifest = manifest_of(document, "lws", NOW)
    assert (gpus(manifest, of_kueue=True), manifest.workloads) == ([("main", 4, 8)], 3)


@pytest.mark.parametrize(
    ("annotations", "topology"),
    [
        ({"preferred-topology": "rack", "group-name": "g"}, {"preferred": "rack", "group": "g"}),
        ({"unconstrained-topology": "true", "group-name": "g"}, {"unconstrained": "true"}),
        ({"unconstrained-topology": "false"}, {}),
        ({"required-topology": "rack", "preferred-topology": "host"}, {"required": "rack"}),
        ({"slice-required-topology": "host"}, {}),
        ({"slice-required-topology": "host", "slice-size": "4"}, {"slice": "host", "slice_size": "4"}),
        ({"group-name": "g"}, {}),
    ],
)
def test_topology_requests_as_kueue_takes_them(annotations: dict[str, str], topology: dict[str, str]) -> None:
    said = {f"kueue.x-k8s.io/podset-{key}": value for key, value in annotations.items()}
    for kind in ("JobSet", "PyTorchJob", "LeaderWorkerSet", "RayCluster", "VolcanoJob"):
        document = yaml.safe_load(FILES[kind])
        _annotate(document["spec"], said)
        assert all(each.topology == topology for each in manifest_of(document, "t", NOW).job.pod_sets)


def _annotate(found: Any, annotations: dict[str, str]) -> None:
    """Of every pod template."""
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        _annotate(each, annotations)
    if isinstance(found, dict) and "containers" in found.get("spec", {}):
        found.setdefault("metadata", {})["annotations"] = annotations
