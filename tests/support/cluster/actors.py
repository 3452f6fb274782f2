"""The default scheduler, kubelets and node owners of the simulated cluster: what changes pods and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.cluster import shapes
from tests.support.cluster.server import ClusterServer
from tests.support.cluster.shapes import Json, set_condition
from tests.support.objects import instant

_GRACE_S = 30


class Actors:
    """All act at ``now_ms``, which the driver moves on. Pods are named by namespace and name."""

    def __init__(self, server: ClusterServer) -> None:
        self.server, self.now_ms = server, 0

    @property
    def now(self) -> str:
        """As the API writes it: in whole seconds."""
        return instant(shapes.second(self.now_ms))

    # Nodes

    def add_node(self, name: str, gpus: Mapping[str, int], labels: Mapping[str, str]) -> None:
        self.server.put(shapes.node(name, self.now_ms, gpus, labels))

    def advertise(self, name: str, gpus: Mapping[str, int], *fields: str) -> None:
        """The device plugin changes ``capacity`` or ``allocatable``, both where no field is named."""
        found = self.server.find("nodes", name)
        self.server.put(shapes.scaled(found, gpus, *(fields or ("capacity", "allocatable"))))

    def delete_node(self, name: str) -> None:
        self.server.delete(self.server.find("nodes", name))

    # Pods

    def create_pod(self, namespace: str, name: str, uid: str, resource: str, units: int, **more: Any) -> None:
        self.server.put(shapes.pod(namespace, name, uid, self.now_ms, resource, units, **more))

    def start_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        resource: str,
        units: int,
        **more: Any,
    ) -> None:
        """Created, bound, and its container started, all within this second."""
        self.create_pod(namespace, name, uid, resource, units, **more)
        self.bind(namespace, name, node)
        self.run(namespace, name)

    def unschedulable(self, namespace: str, name: str, message: str) -> None:
        """The scheduler finds no node for it."""
        found = self._pod(namespace, name)
        set_condition(found, "PodScheduled", False, "Unschedulable", self.now_ms, message)
        self.server.put(found)

    def bind(self, namespace: str, name: str, node: str) -> None:
        """It gets its node, and holds what it asked for from now."""
        found = self._pod(namespace, name)
        found["spec"]["nodeName"] = node
        set_condition(found, "PodScheduled", True, "", self.now_ms)
        self.server.put(found)

    def run(self, namespace: str, name: str) -> None:
        """Its container starts."""
        found = self._pod(namespace, name)
        found["status"] |= {
            "phase": "Running",
            "startTime": self.now,
            "containerStatuses": shapes.running(self.now),
        }
        for type_ in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"):
            set_condition(found, type_, True, "", self.now_ms)
        self.server.put(found)

    def finish(self, namespace: str, name: str, exit_code: int = 0) -> None:
        """Its container ends; the object stays."""
        self.server.put(self._ended(self._pod(namespace, name), exit_code))

    def terminate(self, namespace: str, name: str) -> None:
        """Deleted with grace: its container ends within this second, and the object goes."""
        found = self._pod(namespace, name)
        found["metadata"] |= {
            "deletionTimestamp": instant(shapes.second(self.now_ms) + _GRACE_S * 1000),
            "deletionGracePeriodSeconds": _GRACE_S,
        }
        self.server.put(found)
        self.server.put(self._ended(found, 143))
        self.server.delete(found)

    def remove(self, namespace: str, name: str) -> None:
        """The object goes, at once and without another word, whatever its pod does."""
        self.server.delete(self._pod(namespace, name))

    def evict(self, namespace: str, name: str) -> None:
        """By its kubelet under pressure: Failed, and what its containers did is not recorded."""
        found = self._pod(namespace, name)
        found["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
        del found["status"]["containerStatuses"]
        set_condition(found, "DisruptionTarget", True, "TerminationByKubelet", self.now_ms)
        set_condition(found, "Ready", False, "PodFailed", self.now_ms)
        self.server.put(found)

    def _ended(self, found: Json, exit_code: int) -> Json:
        before = found["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        reason, phase = ("Error", "Failed") if exit_code else ("Completed", "Succeeded")
        ended = {
            **found,
            "status": {
                **found["status"],
                "phase": phase,
                "containerStatuses": shapes.terminated(exit_code, reason, before, self.now),
                "conditions": [dict(each) for each in found["status"]["conditions"]],
            },
        }
        for type_ in ("Ready", "ContainersReady"):
            set_condition(ended, type_, False, "PodCompleted", self.now_ms)
        return ended

    def _pod(self, namespace: str, name: str) -> Json:
        return self.server.find("pods", name, namespace)
