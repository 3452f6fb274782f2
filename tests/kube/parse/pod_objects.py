"""Pods as the API gives them, of which a test names what matters."""

from __future__ import annotations

from typing import Any

from gpucost.cluster.objects.pods import Pod
from gpucost.kube.parse.pods import pod_parser

DAY_MS = 1_790_812_800_000  # 2026-10-01T00:00:00Z
GPU = "nvidia.com/gpu"

pod = pod_parser(frozenset())


def at(minute: int) -> str:
    return f"2026-10-01T00:{minute:02d}:00Z"


def ms(minute: int) -> int:
    return DAY_MS + minute * 60_000


def condition(type_: str, status: str, minute: int, **more: str) -> dict[str, Any]:
    return {"type": type_, "status": status, "lastTransitionTime": at(minute), **more}


BOUND = condition("PodScheduled", "True", 2)


def ended(minute: int | None, code: int = 0, name: str = "main", **more: Any) -> dict[str, Any]:
    finished = {"finishedAt": at(minute)} if minute is not None else {}
    return {"name": name, "state": {"terminated": {"exitCode": code, **finished, **more}}}


def running(name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": at(3)}}}


def stuck(reason: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason}}, **more}


def pod_object(
    spec: dict[str, Any] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    meta: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A pod with one container ``main`` on node ``n``, created at minute 1 and bound at minute 2."""
    return {
        "metadata": {
            "uid": "u",
            "namespace": "ns",
            "name": "p",
            "creationTimestamp": at(1),
            **(meta or {}),
        },
        "spec": {
            "nodeName": "n",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "resources": {"requests": {GPU: "1"}}}],
            **(spec or {}),
        },
        "status": {
            "phase": "Running",
            "conditions": [BOUND] if conditions is None else conditions,
            **status,
        },
    }


def a_pod(*args: Any, **kwargs: Any) -> Pod:
    read = pod(pod_object(*args, **kwargs))
    assert read.flaws == ()
    return read


def phase_written(minute: int, owns: str = "f:phase") -> dict[str, Any]:
    """``metadata`` with the kubelet's last write of ``owns``, and of annotations by others since."""
    fields: dict[str, Any] = {"f:status": {"f:conditions": {}, owns: {}}}
    return {
        "managedFields": [
            {"manager": "kubelet", "subresource": "status", "time": at(minute), "fieldsV1": fields},
            {"manager": "x", "time": at(59), "fieldsV1": {"f:metadata": {"f:annotations": {}}}},
            {"manager": "y", "fieldsV1": None},
        ]
    }
