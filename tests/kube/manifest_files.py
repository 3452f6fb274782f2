"""One manifest of every kind, as its users write it."""

from __future__ import annotations

from collections.abc import Mapping


def _indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


def pod_spec(gpus: int, by: int, more: str = "") -> str:
    """The lines of a pod spec, indented by ``by`` blanks."""
    text = f"""{more}containers:
- name: node
  image: registry.example.com/train:1
  resources:
    requests: {{cpu: "4", memory: 16Gi}}
    limits: {{nvidia.com/gpu: {gpus}}}"""
    return _indented(text, by)


_META = """metadata:
  name: {name}
  namespace: ml
  labels:
    kueue.x-k8s.io/queue-name: team"""


def _head(version: str, kind: str, name: str) -> str:
    return f"apiVersion: {version}\nkind: {kind}\n{_META.format(name=name)}\n"


def _kubeflow(kind: str, replica_specs: str, **roles: int) -> str:
    text = _head("kubeflow.org/v1", kind, "train") + f"spec:\n  {replica_specs}:\n"
    for role, count in roles.items():
        text += f"    {role}:\n      replicas: {count}\n      template:\n        spec:\n          "
        text += pod_spec(8 if role == "Worker" else 1, 10) + "\n"
    return text


_RAY = f"""headGroupSpec:
  rayStartParams: {{}}
  template:
    spec:
      {pod_spec(0, 6).replace("limits: {nvidia.com/gpu: 0}", "limits: {cpu: '4'}")}
workerGroupSpecs:
- groupName: H100
  replicas: 2
  minReplicas: 1
  maxReplicas: 4
  numOfHosts: 2
  rayStartParams: {{}}
  template:
    spec:
      {pod_spec(8, 6)}
"""

FILES: Mapping[str, str] = {
    "Job": _head("batch/v1", "Job", "sweep")
    + f"""  annotations:
    kueue.x-k8s.io/job-min-parallelism: "2"
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  activeDeadlineSeconds: 7200
  template:
    metadata:
      annotations:
        kueue.x-k8s.io/podset-required-topology: topology.example.com/rack
        kueue.x-k8s.io/podset-slice-required-topology: kubernetes.io/hostname
        kueue.x-k8s.io/podset-slice-size: "2"
    spec:
      {pod_spec(2, 6, "restartPolicy: Never" + chr(10))}
""",
    "CronJob": f"""apiVersion: batch/v1
kind: CronJob
metadata: {{name: nightly, namespace: ml}}
spec:
  schedule: "0 1 * * *"
  jobTemplate:
    metadata:
      labels: {{kueue.x-k8s.io/queue-name: team}}
    spec:
      parallelism: 2
      completions: 2
      template:
        spec:
          {pod_spec(1, 10, "restartPolicy: OnFailure" + chr(10))}
""",
    "JobSet": _head("jobset.x-k8s.io/v1alpha2", "JobSet", "llm")
    + f"""spec:
  replicatedJobs:
  - name: leader
    template:
      spec:
        template:
          spec:
            {pod_spec(1, 12)}
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 4
        completions: 4
        template:
          spec:
            {pod_spec(8, 12)}
""",
    "TrainJob": _head("trainer.kubeflow.org/v1alpha1", "TrainJob", "tune")
    + """spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 4
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
""",
    "PyTorchJob": _kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=3, Master=1),
    "TFJob": _kubeflow("TFJob", "tfReplicaSpecs", Worker=3, PS=2, Chief=1),
    "XGBoostJob": _kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=1, Worker=2),
    "PaddleJob": _kubeflow("PaddleJob", "paddleReplicaSpecs", Worker=2),
    "JAXJob": _kubeflow("JAXJob", "jaxReplicaSpecs", Worker=2),
    "MPIJob": _kubeflow("MPIJob", "mpiReplicaSpecs", Worker=16, Launcher=1).replace(
        "kubeflow.org/v1", "kubeflow.org/v2beta1"
    ),
    "RayJob": _head("ray.io/v1", "RayJob", "rayjob")
    + f"spec:\n  entrypoint: python train.py\n  rayClusterSpec:\n    {_indented(_RAY, 4)}",
    "RayCluster": _head("ray.io/v1", "RayCluster", "ray") + f"spec:\n  {_indented(_RAY, 2)}",
    "RayService": _head("ray.io/v1", "RayService", "serve")
    + f"spec:\n  rayClusterConfig:\n    {_indented(_RAY, 4)}",
    "VolcanoJob": f"""apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: vc, namespace: ml}}
spec:
  queue: research
  minAvailable: 3
  schedulerName: volcano
  tasks:
  - name: ps
    replicas: 1
    template:
      spec:
        {pod_spec(1, 8)}
  - name: worker
    replicas: 4
    template:
      spec:
        {pod_spec(8, 8)}
""",
    "LeaderWorkerSet": _head("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "vllm")
    + f"""spec:
  replicas: 3
  leaderWorkerTemplate:
    size: 4
    leaderTemplate:
      spec:
        {pod_spec(1, 8)}
    workerTemplate:
      spec:
        {pod_spec(8, 8)}
""",
    **{
        kind: _head("apps/v1", kind, "web")
        + f"""spec:
  {"" if kind == "DaemonSet" else "replicas: 3"}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      {pod_spec(1, 6)}
"""
        for kind in ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")
    },
    "Notebook": _head("kubeflow.org/v1", "Notebook", "nb")
    + f"""spec:
  template:
    spec:
      {pod_spec(1, 6)}
""",
    "Pod": _head("v1", "Pod", "shell") + f"spec:\n  {pod_spec(1, 2)}\n",
}
