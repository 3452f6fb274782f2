"""Kueue as far as its objects show it: workloads, their conditions, and what queues say of themselves.

It decides nothing: the script says who is admitted and preempted. Conditions come and go in the order of
Kueue v0.19.2 (pkg/workload/workload.go, pkg/controller/jobframework/reconciler.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.cluster import shapes
from tests.support.cluster.actors import Actors
from tests.support.cluster.installed import KUEUE, everything
from tests.support.cluster.server import ClusterServer
from tests.support.cluster.shapes import Json, has_condition, set_condition
from tests.support.objects import kueue
from tests.support.objects.kueue_v1beta1 import as_v1beta1

WORKLOADS, CLUSTER_QUEUES, LOCAL_QUEUES = (
    f"{plural}.kueue.x-k8s.io" for plural in ("workloads", "clusterqueues", "localqueues")
)
_JOBS = {"Job": "jobs.batch", "JobSet": "jobsets", "PyTorchJob": "pytorchjobs"}
_MADE: dict[str, Callable[..., Json]] = {
    "Job": shapes.job,
    "JobSet": shapes.job_set,
    "PyTorchJob": shapes.pytorch_job,
}
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Training:
    """A job for Kueue: ``pods`` equal pods of ``units`` each. ``kind`` is Job, JobSet or PyTorchJob.

    ``pool`` is the node label of its flavor, which Kueue writes into its pods."""

    name: str
    namespace: str
    cluster_queue: str
    pods: int
    units: int
    kind: str = "Job"
    flavor: str = "h100"
    resource: str = _GPU
    priority: int = 0
    queue: str = "gpus"
    pool: str = "batch"

    @property
    def workload(self) -> str:
        """The name of its workload, as Kueue makes it."""
        return f"{self.kind.lower()}-{self.name}"

    @property
    def uid(self) -> str:
        """Of its workload."""
        return f"workload-{self.name}"

    @property
    def pod_set(self) -> str:
        return {"Job": "main", "JobSet": "workers", "PyTorchJob": "worker"}[self.kind]

    def pod_name(self, index: int) -> str:
        return f"{self.name}-{self.pod_set}-{index}"


def serve_v1beta1_only(server: ClusterServer) -> None:
    """As clusters with Kueue 0.14 or older do: the same objects, in the old version."""
    for kind, version in everything():
        if kind.group == KUEUE:
            server.install(kind, "v1beta1", as_v1beta1)
            server.uninstall(kind.name, version)


class Kueue:
    """Acts through ``actors``, at their time. Each change of a workload brings its queues' status along."""

    def __init__(self, actors: Actors) -> None:
        self._actors, self._server = actors, actors.server
        self._runs: dict[str, int] = {}

    def add(self, *objects: Json) -> None:
        """Queues, flavors, cohorts as an administrator writes them."""
        for found in objects:
            self._server.put(found)

    # Workloads

    def submit(self, training: Training) -> None:
        """Its job is there, suspended, and so is the workload that waits in its queue."""
        made = self._job(training)
        self._server.put(made)
        workload = kueue.workload(
            training.workload,
            training.namespace,
            queue=training.queue,
            pod_sets=[
                kueue.pod_set(training.pod_set, training.pods, {training.resource: str(training.units)})
            ],
            priority=training.priority,
            uid=training.uid,
            created=shapes.second(self._actors.now_ms),
            owner=shapes.reference(made),
            labels={"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]},
        )
        self._change(workload, "QuotaReserved", False, "Pending", "couldn't assign flavors: not enough quota")
        workload["status"]["resourceRequests"] = [
            {"name": training.pod_set, "resources": self._usage(training)}
        ]
        self._put(workload)

    def admit(self, training: Training) -> None:
        """Quota is reserved, and as there are no checks it is admitted; its job starts, and makes pods."""
        workload = self._workload(training)
        for type_ in ("Evicted", "Preempted"):
            if has_condition(workload, type_):
                self._change(workload, type_, False, "QuotaReserved", "Previously: preempted")
        given = kueue.assignment(
            training.pod_set,
            {training.resource: training.flavor},
            self._usage(training),
            training.pods,
        )
        workload["status"]["admission"] = {
            "clusterQueue": training.cluster_queue,
            "podSetAssignments": [given],
        }
        workload["status"].pop("resourceRequests", None)
        self._change(workload, "QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue")
        self._change(workload, "Admitted", True, "Admitted", "The workload is admitted")
        self._put(workload)
        self._start(training)

    def bind(self, training: Training, *nodes: str) -> None:
        """All its pods, on ``nodes`` in turn, within one second."""
        for index, found in enumerate(self.pods(training)):
            named = found["metadata"]
            self._actors.bind(named["namespace"], named["name"], nodes[index % len(nodes)])

    def run(self, training: Training) -> None:
        """The containers of all its pods start."""
        for found in self.pods(training):
            self._actors.run(found["metadata"]["namespace"], found["metadata"]["name"])

    def preempt(self, training: Training, by: Training, reason: str) -> None:
        """Evicted for another; its pods still run and its quota is still reserved."""
        workload = self._workload(training)
        message = f"Preempted to accommodate a workload (UID: {by.uid}, JobUID: job-{by.name})"
        self._change(workload, "Evicted", True, "Preempted", message)
        self._change(workload, "Preempted", True, reason, message)
        self._count_eviction(workload)
        self._put(workload)

    def stop(self, training: Training) -> None:
        """Its pods end and go within this second; it still has its quota."""
        for found in self.pods(training):
            self._actors.terminate(found["metadata"]["namespace"], found["metadata"]["name"])
        self._suspend(training, True)

    def requeue(self, training: Training) -> None:
        """Its quota is given back, and it waits again."""
        workload = self._workload(training)
        del workload["status"]["admission"]
        self._change(workload, "QuotaReserved", False, "Pending", "Preempted, waiting again")
        self._change(workload, "Requeued", True, "Preempted", "Preempted, waiting again")
        self._change(workload, "Admitted", False, "NoReservation", "The workload has no reservation")
        workload["status"]["resourceRequests"] = [
            {"name": training.pod_set, "resources": self._usage(training)}
        ]
        self._put(workload)

    def finish(self, training: Training) -> None:
        """Its pods have ended well, their objects stay; its quota is free."""
        for found in self.pods(training):
            self._actors.finish(found["metadata"]["namespace"], found["metadata"]["name"])
        self._complete(training)
        workload = self._workload(training)
        self._change(workload, "Finished", True, "Succeeded", "Job finished successfully")
        self._put(workload)

    def clean(self, training: Training) -> None:
        """The objects of its ended pods go."""
        for found in self.pods(training):
            self._server.delete(found)

    def pods(self, training: Training) -> list[Json]:
        """Those of its present run."""
        return shapes.pods_of(list(self._server.objects("pods").values()), self._pod_owner(training)[3])

    # Jobs

    def _job(self, training: Training) -> Json:
        labels = {"kueue.x-k8s.io/queue-name": training.queue}
        return _MADE[training.kind](
            training.namespace,
            training.name,
            self._actors.now_ms,
            training.pods,
            shapes.template(training.resource, training.units),
            labels=labels,
        )

    def _start(self, training: Training) -> None:
        run = self._runs[training.name] = self._runs.get(training.name, 0) + 1
        self._suspend(training, False)
        owner = self._pod_owner(training)
        for index in range(training.pods):
            self._actors.create_pod(
                training.namespace,
                training.pod_name(index),
                f"{training.name}-{index}-run{run}",
                training.resource,
                training.units,
                owner=owner,
                pool=training.pool,
                labels={
                    "kueue.x-k8s.io/podset": training.pod_set,
                    "kueue.x-k8s.io/local-queue-name": training.queue,
                    "kueue.x-k8s.io/cluster-queue-name": training.cluster_queue,
                },
                annotations={"kueue.x-k8s.io/workload": training.workload},
            )

    def _pod_owner(self, training: Training) -> shapes.OwnerReference:
        """The Job itself; of a JobSet the one Job it made."""
        found = self._find_job(training)
        if training.kind != "JobSet":
            return shapes.reference(found)
        name = f"{training.name}-workers-0"
        child = shapes.job(
            training.namespace,
            name,
            self._actors.now_ms,
            training.pods,
            shapes.template(training.resource, training.units),
            owner=shapes.reference(found),
        )
        child["spec"]["suspend"] = False
        if child["metadata"]["uid"] not in self._server.objects("jobs.batch"):
            self._server.put(child)
        return shapes.reference(child)

    def _suspend(self, training: Training, is_suspended: bool) -> None:
        found = self._find_job(training)
        spec = found["spec"]
        (spec["runPolicy"] if training.kind == "PyTorchJob" else spec)["suspend"] = is_suspended
        count = 0 if is_suspended else training.pods
        if training.kind == "Job":
            found["status"] |= {"active": count, "ready": count}
        if not is_suspended and training.kind != "JobSet":
            found["status"]["startTime"] = self._actors.now
        self._server.put(found)

    def _complete(self, training: Training) -> None:
        found = self._find_job(training)
        type_ = {"Job": "Complete", "JobSet": "Completed", "PyTorchJob": "Succeeded"}[training.kind]
        set_condition(found, type_, True, "Completed", self._actors.now_ms)
        if training.kind != "JobSet":
            found["status"]["completionTime"] = self._actors.now
        if training.kind == "Job":
            found["status"] |= {"active": 0, "ready": 0, "succeeded": training.pods}
        self._server.put(found)

    def _find_job(self, training: Training) -> Json:
        return self._server.find(_JOBS[training.kind], training.name, training.namespace)

    # Status

    def _workload(self, training: Training) -> Json:
        return self._server.find(WORKLOADS, training.workload, training.namespace)

    def _change(self, workload: Json, type_: str, status: bool, reason: str, message: str) -> None:
        set_condition(workload, type_, status, reason, self._actors.now_ms, message)

    def _usage(self, training: Training) -> Mapping[str, str]:
        return {training.resource: str(training.pods * training.units)}

    def _count_eviction(self, workload: Json) -> None:
        counted = workload["status"].setdefault("schedulingStats", {"evictions": []})["evictions"]
        for each in counted:
            if each["reason"] == "Preempted":
                each["count"] += 1
                return
        counted.append({"reason": "Preempted", "underlyingCause": "", "count": 1})

    def _put(self, workload: Json) -> None:
        self._server.put(workload)
        self.refresh()

    def refresh(self) -> None:
        """What ClusterQueues and LocalQueues say of the workloads there are."""
        workloads = list(self._server.objects(WORKLOADS).values())
        for queue in self._server.objects(LOCAL_QUEUES).values():
            named = queue["metadata"]
            own = [each for each in workloads if _is_of(each, named["namespace"], named["name"])]
            self._refreshed(queue, own, {})
        queues = self._server.objects(LOCAL_QUEUES).values()
        for queue in self._server.objects(CLUSTER_QUEUES).values():
            leading = [
                each["metadata"]
                for each in queues
                if each["spec"]["clusterQueue"] == queue["metadata"]["name"]
            ]
            own = [
                each
                for each in workloads
                if any(_is_of(each, named["namespace"], named["name"]) for named in leading)
            ]
            self._refreshed(queue, own, dict(_nominal(queue)))

    def _refreshed(self, queue: Json, workloads: Sequence[Json], nominal: Mapping[Any, int]) -> None:
        open_ones = [each for each in workloads if not has_condition(each, "Finished")]
        reserving = [each for each in open_ones if has_condition(each, "QuotaReserved")]
        admitted = [each for each in reserving if has_condition(each, "Admitted")]
        with_borrowed = queue["kind"] == "ClusterQueue"
        queue["status"] |= {
            "pendingWorkloads": len(open_ones) - len(reserving),
            "reservingWorkloads": len(reserving),
            "admittedWorkloads": len(admitted),
            "flavorsReservation": _uses(reserving, nominal, with_borrowed),
            "flavorsUsage": _uses(admitted, nominal, with_borrowed),
        }
        self._server.put(queue)


def _is_of(workload: Json, namespace: str, queue: str) -> bool:
    return (workload["metadata"]["namespace"], workload["spec"]["queueName"]) == (namespace, queue)


def _nominal(queue: Json) -> Iterator[tuple[tuple[str, str], int]]:
    for group in queue["spec"]["resourceGroups"]:
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                yield (flavor["name"], resource["name"]), int(resource["nominalQuota"])


def _uses(
    workloads: Sequence[Json], nominal: Mapping[tuple[str, str], int], with_borrowed: bool
) -> list[Json]:
    totals = dict.fromkeys(nominal, 0)
    for workload in workloads:
        for part in workload["status"]["admission"]["podSetAssignments"]:
            for resource, flavor in part["flavors"].items():
                key = (flavor, resource)
                totals[key] = totals.get(key, 0) + int(part["resourceUsage"][resource])
    flavors: dict[str, list[Json]] = {}
    for (flavor, resource), total in totals.items():
        use: Json = {"name": resource, "total": str(total)}
        if with_borrowed:
            use["borrowed"] = str(max(0, total - nominal.get((flavor, resource), 0)))
        flavors.setdefault(flavor, []).append(use)
    return [{"name": flavor, "resources": resources} for flavor, resources in flavors.items()]
