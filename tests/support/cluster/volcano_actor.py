"""Volcano as far as its objects show it: one job with its PodGroup and pods, and the queue's allocation."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.cluster import shapes
from tests.support.cluster.actors import Actors
from tests.support.objects import volcano

_JOBS, _GROUPS, _QUEUES = (
    "jobs.batch.volcano.sh",
    "podgroups.scheduling.volcano.sh",
    "queues.scheduling.volcano.sh",
)


@dataclass(frozen=True)
class Gang:
    """``pods`` equal pods of ``units`` each, all of which it needs."""

    name: str
    namespace: str
    queue: str
    pods: int
    units: int
    resource: str = "nvidia.com/gpu"
    pool: str = "hpc"

    @property
    def group(self) -> str:
        """The name of its PodGroup."""
        return f"{self.name}-group"

    def pod_name(self, index: int) -> str:
        return f"{self.name}-worker-{index}"


class Volcano:
    """Acts through ``actors``, at their time."""

    def __init__(self, actors: Actors) -> None:
        self._actors, self._server = actors, actors.server

    def add_queue(self, name: str, units: int, resource: str = "nvidia.com/gpu") -> None:
        self._server.put(
            volcano.queue(name, weight=1, capability={resource: str(units)}, uid=f"volcano-queue-{name}")
        )

    def submit(self, gang: Gang) -> None:
        """The job and its PodGroup, which waits."""
        made = shapes.volcano_job(
            gang.namespace,
            gang.name,
            self._actors.now_ms,
            gang.pods,
            gang.queue,
            shapes.template(gang.resource, gang.units, gang.pool),
        )
        self._server.put(made)
        group = volcano.pod_group(
            gang.group,
            gang.namespace,
            min_member=gang.pods,
            min_task_member={"worker": gang.pods},
            min_resources={gang.resource: str(gang.pods * gang.units)},
            queue=gang.queue,
            phase="Pending",
            uid=f"podgroup-{gang.name}",
            created=shapes.second(self._actors.now_ms),
            owner=shapes.reference(made),
        )
        self._server.put(group)
        self.report(gang, "Pending", "Pending")

    def enqueue(self, gang: Gang) -> None:
        """There is room for it, so its pods are made."""
        self.report(gang, "Inqueue", "Pending")
        for index in range(gang.pods):
            self.create_pod(gang, index, "")

    def create_pod(self, gang: Gang, index: int, suffix: str) -> None:
        """One member; a replacement has another ``suffix`` of its uid and the same name."""
        self._actors.create_pod(
            gang.namespace,
            gang.pod_name(index),
            f"{gang.name}-{index}{suffix}",
            gang.resource,
            gang.units,
            scheduler="volcano",
            pool=gang.pool,
            owner=shapes.reference(self._server.find(_JOBS, gang.name, gang.namespace)),
            labels={
                "volcano.sh/job-name": gang.name,
                "volcano.sh/queue-name": gang.queue,
                "volcano.sh/task-spec": "worker",
            },
            annotations={"scheduling.k8s.io/group-name": gang.group},
        )

    def bind(self, gang: Gang, node: str) -> None:
        """All its pods at once: that is what a gang is."""
        for index in range(gang.pods):
            self._actors.bind(gang.namespace, gang.pod_name(index), node)
        self.report(gang, "Running", "Running")

    def run(self, gang: Gang) -> None:
        for index in range(gang.pods):
            self._actors.run(gang.namespace, gang.pod_name(index))
        self.report(gang, "Running", "Running")

    def finish(self, gang: Gang) -> None:
        for index in range(gang.pods):
            self._actors.finish(gang.namespace, gang.pod_name(index))
        self.report(gang, "Completed", "Completed")

    def clean(self, gang: Gang) -> None:
        """The objects of its ended pods go."""
        for index in range(gang.pods):
            self._actors.remove(gang.namespace, gang.pod_name(index))

    def report(self, gang: Gang, phase: str, job_phase: str) -> None:
        """The scheduler closes its session: phase and counts of the group, allocation of the queue."""
        phases = [
            each["status"]["phase"]
            for each in self._server.objects("pods").values()
            if each["metadata"].get("annotations", {}).get("scheduling.k8s.io/group-name") == gang.group
            and each["metadata"]["namespace"] == gang.namespace
            and each["spec"].get("nodeName")
        ]
        held = sum(each in ("Pending", "Running") for each in phases)
        group = self._server.find(_GROUPS, gang.group, gang.namespace)
        group["status"] = {
            **group.get("status", {}),
            "phase": phase,
            "running": phases.count("Running"),
            "succeeded": phases.count("Succeeded"),
        }
        if phase == "Unknown":
            message = f"{gang.pods - held}/{gang.pods} tasks in gang unschedulable: pod group is not ready"
            found = volcano.pod_group_condition(
                "Unschedulable",
                reason="NotEnoughResources",
                message=message,
                since=self._actors.now,
                transition=str(self._actors.now_ms),
            )
            group["status"]["conditions"] = [found]
        self._server.put(group)
        job = self._server.find(_JOBS, gang.name, gang.namespace)
        job["status"] = {
            "state": {"phase": job_phase, "lastTransitionTime": self._actors.now},
            "minAvailable": gang.pods,
            "running": phases.count("Running"),
            "succeeded": phases.count("Succeeded"),
        }
        self._server.put(job)
        queue = self._server.find(_QUEUES, gang.queue)
        queue["status"]["allocated"] = {gang.resource: str(held * gang.units)}
        self._server.put(queue)
