"""A large cluster as an API server writes it: pages made beforehand, and events as fast as they are read.

Run as a process of its own, so that its time and memory are not the collector's:

    python -m benchmarks.support.kube_cluster NODES PODS WORKLOADS CLUSTER_QUEUES

It prints its port, then waits. ``GET /burst?events=N`` sends N events of pods to the open watch of pods.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PODS_PER_WORKLOAD = 4
QUEUES_PER_COHORT = 10
FLAVORS = tuple(f"flavor-{number}" for number in range(15))
GPU = "nvidia.com/gpu"
T0 = "2026-10-01T00:00:00Z"
T1 = "2026-10-01T00:10:00Z"
PODS, KUEUE = "/api/v1/pods", "/apis/kueue.x-k8s.io/v1beta2"


def meta(name: str, namespace: str = "", version: int = 1, **more: Any) -> dict[str, Any]:
    fields = {"name": name, "uid": f"uid-{name}", "creationTimestamp": T0, "resourceVersion": str(version)}
    return {**fields, **({"namespace": namespace} if namespace else {}), **more}


def node(index: int) -> dict[str, Any]:
    labels = {
        "kubernetes.io/hostname": f"node-{index}",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/region": "us-east-1",
        "topology.kubernetes.io/zone": f"us-east-1{'abc'[index % 3]}",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "flavor": FLAVORS[index % len(FLAVORS)],
        **{f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(30)},
    }
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", GPU: "16"}
    return {
        "metadata": meta(f"node-{index}", labels=labels),
        "spec": {"taints": [{"key": GPU, "effect": "NoSchedule"}]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": T0}],
        },
    }


def pod(index: int, nodes: int, version: int = 1) -> dict[str, Any]:
    """About 4 kB, nine in ten bound with one or two GPUs."""
    workload = index // PODS_PER_WORKLOAD
    bound = index % 10 != 9
    requests = {"cpu": "8", "memory": "64Gi", GPU: str(1 + index % 2)}
    environment = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(25)]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"job-{workload}",
        "uid": f"uid-job-{workload}",
        "controller": True,
    }
    conditions = [{"type": "PodScheduled", "status": "True" if bound else "False", "lastTransitionTime": T1}]
    if not bound:
        conditions[0] |= {"reason": "Unschedulable", "message": "0/5000 nodes are available"}
    status: dict[str, Any] = {"phase": "Running" if bound else "Pending", "conditions": conditions}
    if bound:
        status |= {
            "startTime": T1,
            "containerStatuses": [
                {"name": "main", "ready": True, "state": {"running": {"startedAt": T1}}, "restartCount": 0}
            ],
        }
    return {
        "metadata": meta(
            f"pod-{index}",
            f"team-{workload % 50}",
            version,
            labels={
                "batch.kubernetes.io/job-name": f"job-{workload}",
                "kueue.x-k8s.io/queue-name": "main",
                "kueue.x-k8s.io/podset": "main",
                "team": f"team-{workload % 50}",
                "app": "trainer",
            },
            annotations={"kueue.x-k8s.io/workload": f"workload-{workload}", "note": "y" * 200},
            ownerReferences=[owner],
        ),
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/train:1",
                    "env": environment,
                    "resources": {"requests": requests, "limits": requests},
                }
            ],
            **({"nodeName": f"node-{index * 7 % nodes}"} if bound else {}),
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "restartPolicy": "Never",
        },
        "status": status,
    }


def job(index: int) -> dict[str, Any]:
    requests = {"cpu": "8", "memory": "64Gi", GPU: "2"}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    return {
        "metadata": meta(f"job-{index}", f"team-{index % 50}", labels={"kueue.x-k8s.io/queue-name": "main"}),
        "spec": {
            "parallelism": PODS_PER_WORKLOAD,
            "completions": PODS_PER_WORKLOAD,
            "completionMode": "Indexed",
            "template": {"spec": {"containers": containers}},
        },
        "status": {"active": PODS_PER_WORKLOAD, "ready": 3, "startTime": T1},
    }


def workload(index: int) -> dict[str, Any]:
    requests = {"cpu": "8", "memory": "64Gi", GPU: "2"}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    pod_set = {"name": "main", "count": PODS_PER_WORKLOAD, "template": {"spec": {"containers": containers}}}
    usage = {"cpu": "32", "memory": "256Gi", GPU: "8"}
    admitted = index % 5 != 4
    conditions = [
        {
            "type": "QuotaReserved",
            "status": "True" if admitted else "False",
            "reason": "QuotaReserved" if admitted else "Pending",
            "message": ""
            if admitted
            else "couldn't assign flavors to pod set main: insufficient unused quota",
            "lastTransitionTime": T1,
        }
    ]
    status: dict[str, Any] = {"conditions": conditions}
    if admitted:
        conditions.append(
            {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": T1}
        )
        assignment = {
            "name": "main",
            "flavors": dict.fromkeys(usage, FLAVORS[index % len(FLAVORS)]),
            "resourceUsage": usage,
            "count": PODS_PER_WORKLOAD,
        }
        status["admission"] = {"clusterQueue": f"queue-{index % 50}", "podSetAssignments": [assignment]}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{index}", "uid": f"uid-job-{index}"}
    return {
        "metadata": meta(
            f"workload-{index}", f"team-{index % 50}", ownerReferences=[{**owner, "controller": True}]
        ),
        "spec": {"queueName": "main", "priority": index % 7, "podSets": [pod_set]},
        "status": status,
    }


def cluster_queue(index: int) -> dict[str, Any]:
    resources = [
        {"name": "cpu", "nominalQuota": "4000"},
        {"name": "memory", "nominalQuota": "40Ti"},
        {"name": GPU, "nominalQuota": "160", "borrowingLimit": "80", "lendingLimit": "40"},
    ]
    used = [{"name": name, "total": "10", "borrowed": "0"} for name in ("cpu", "memory", GPU)]
    flavors = [{"name": name, "resources": used} for name in FLAVORS]
    group = {
        "coveredResources": ["cpu", "memory", GPU],
        "flavors": [{"name": name, "resources": resources} for name in FLAVORS],
    }
    return {
        "metadata": meta(f"queue-{index}"),
        "spec": {"cohortName": f"cohort-{index // QUEUES_PER_COHORT}", "resourceGroups": [group]},
        "status": {
            "conditions": [{"type": "Active", "status": "True", "reason": "Ready", "lastTransitionTime": T0}],
            "flavorsReservation": flavors,
            "flavorsUsage": flavors,
        },
    }


def local_queue(index: int, queues: int) -> dict[str, Any]:
    name, namespace = ("main", f"team-{index}") if index < 50 else (f"queue-{index}", f"team-{index % 50}")
    return {
        "metadata": meta(name, namespace) | {"uid": f"uid-local-queue-{index}"},
        "spec": {"clusterQueue": f"queue-{index % queues}"},
        "status": {"pendingWorkloads": 3},
    }


def collections(nodes: int, pods: int, workloads: int, queues: int) -> dict[str, Iterator[dict[str, Any]]]:
    """Objects by path."""
    return {
        PODS: (pod(index, nodes) for index in range(pods)),
        "/api/v1/nodes": (node(index) for index in range(nodes)),
        "/apis/batch/v1/jobs": (job(index) for index in range(workloads)),
        f"{KUEUE}/workloads": (workload(index) for index in range(workloads)),
        f"{KUEUE}/clusterqueues": (cluster_queue(index) for index in range(queues)),
        f"{KUEUE}/localqueues": (local_queue(index, queues) for index in range(queues)),
        f"{KUEUE}/resourceflavors": (
            {"metadata": meta(name), "spec": {"nodeLabels": {"flavor": name}}} for name in FLAVORS
        ),
    }


class Server(ThreadingHTTPServer):
    """Lists in pages of 500; one watch of pods at a time gets the bursts."""

    daemon_threads = True

    def __init__(self, sizes: tuple[int, int, int, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.nodes, self.pods = sizes[0], sizes[1]
        self.pages = {path: pages(found) for path, found in collections(*sizes).items()}
        self.bursts: queue.Queue[int] = queue.Queue()
        self.sent = 0


def pages(items: Iterator[dict[str, Any]]) -> list[bytes]:
    """JSON texts of 500 objects each, without the brackets."""
    found, texts = [], []
    for item in items:
        texts.append(json.dumps(item))
        if len(texts) == 500:
            found.append(",".join(texts).encode())
            texts = []
    return [*found, ",".join(texts).encode()] if texts or not found else found


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        params = {key: values[-1] for key, values in parse_qs(target.query).items()}
        if target.path == "/burst":
            self.server.bursts.put(int(params["events"]))
            self._answer(200, b"{}")
        elif target.path not in self.server.pages:
            self._answer(404, b'{"kind": "Status", "code": 404}')
        elif params.get("watch"):
            self._watch(target.path)
        else:
            self._list(target.path, int(params.get("continue", "0")))

    def _list(self, path: str, number: int) -> None:
        found = self.server.pages[path]
        token = f', "continue": "{number + 1}"' if number + 1 < len(found) else ""
        head = f'{{"metadata": {{"resourceVersion": "10"{token}}}, "items": ['.encode()
        self._answer(200, head + found[number] + b"]}")

    def _watch(self, path: str) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            events = self.server.bursts.get() if path == PODS else self._sleep()
            for first in range(0, events, 200):
                self.wfile.write(b"".join(map(self._event, range(first, min(first + 200, events)))))
            self.wfile.flush()

    def _sleep(self) -> int:
        queue.Queue[int]().get()
        return 0

    def _event(self, number: int) -> bytes:
        self.server.sent += 1
        index = number * 31 % self.server.pods
        found = pod(index, self.server.nodes, 1000 + self.server.sent)
        found["metadata"]["labels"]["team"] = f"team-{self.server.sent}"  # so its series change
        return json.dumps({"type": "MODIFIED", "object": found}).encode() + b"\n"

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    with Server(tuple(map(int, sys.argv[1:5]))) as server:  # type: ignore[arg-type]
        print(server.server_address[1], flush=True)
        server.serve_forever()
