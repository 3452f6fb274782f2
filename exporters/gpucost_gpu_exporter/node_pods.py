"""This node's pods and ResourceSlices from the API server: UIDs, whether pods have finished, and devices.

The kubelet lists the pod that holds a device by name only, and keeps listing pods that have finished until
they are deleted. Names are used again (StatefulSets), so the UID and the end come from a watch limited to
this node. Nothing here asks the server; it reads what the watch brought.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gpucost.domain.errors import InputError
from gpucost.kube.connect.transport import KubeTransport
from gpucost.kube.parse.events import Object
from gpucost.kube.watch.object_store import ObjectChange, ObjectChangeKind
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from gpucost_gpu_exporter.model.holdings import DraDevice, devices

POD_PATH = "/api/v1/pods"
SLICE_PATHS = tuple(
    f"/apis/resource.k8s.io/{version}/resourceslices" for version in ("v1", "v1beta2", "v1beta1")
)

# An object is up to some megabytes, and the exporter has little memory; a node has some hundred pods.
_SETTINGS = ReflectorSettings(page_size=32, max_objects=10_000)
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_METADATA = ("namespace", "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_STATUS_LISTS = ("containerStatuses", "initContainerStatuses")
_STATE = {
    "waiting": ("reason",),
    "running": ("startedAt",),
    "terminated": ("exitCode", "reason", "startedAt", "finishedAt"),
}
_ATTRIBUTES = ("type", "uuid", "parentUUID", "profile")
_ENDED = ("Succeeded", "Failed")


class NodePods:
    """The pods of this node, by name. Reads what a reflector holds, after ``trim``."""

    def __init__(self, reflector: Reflector[Object]) -> None:
        self.reflector = reflector
        self._seen: Mapping[str, Object] = {}
        self._newest: dict[tuple[str, str], Object] = {}

    def uid(self, namespace: str, name: str) -> str | None:
        """The UID of the newest pod of that name; None while the watch has not seen one."""
        pod = self._pods().get((namespace, name))
        return None if pod is None else str(pod["metadata"]["uid"])

    def is_finished(self, namespace: str, name: str) -> bool:
        """Whether the newest pod of that name holds its GPU no longer (see ``is_finished``)."""
        pod = self._pods().get((namespace, name))
        return pod is not None and is_finished(pod)

    def _pods(self) -> dict[tuple[str, str], Object]:
        snapshot = self.reflector.snapshot()
        if snapshot is not self._seen:
            pods = sorted(snapshot.values(), key=_age)
            self._newest = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
            self._seen = snapshot
        return self._newest


class NodeSlices:
    """The devices of this node's ResourceSlices. The objects of its reflector went through ``trim_slice``."""

    def __init__(self, reflector: Reflector[Object]) -> None:
        self.reflector = reflector
        self._seen: Mapping[str, Object] = {}
        self._devices: dict[str, DraDevice] = {}

    def devices(self) -> Mapping[str, DraDevice]:
        """``driver/pool/device`` -> what it is; empty where the cluster has no ResourceSlices."""
        snapshot = self.reflector.snapshot()
        if snapshot is not self._seen:
            self._devices, self._seen = devices(snapshot.values()), snapshot
        return self._devices


def pod_reflector(
    transport: KubeTransport, node: str, changed: Callable[[], None], **injected: Any
) -> Reflector[Object]:
    """Watches the pods of ``node``; for ``injected`` see ``Reflector``. Raises ``InputError``.

    ``changed()`` is called when a pod appears, finishes or goes: when who holds what may have changed.
    """

    def on_change(change: ObjectChange[Object]) -> None:
        if is_turning_point(change):
            changed()

    injected = {"settings": _SETTINGS, **injected}
    return Reflector(transport, POD_PATH, _on_node(node), trim=trim, on_change=on_change, **injected)


def slice_reflector(
    transport: KubeTransport, node: str, changed: Callable[[], None], **injected: Any
) -> Reflector[Object]:
    """Watches the ResourceSlices of ``node``, of the newest version that is served, if any is."""
    return Reflector(
        transport,
        SLICE_PATHS[0],
        _on_node(node),
        older_paths=SLICE_PATHS[1:],
        optional=True,
        trim=trim_slice,
        on_change=lambda _: changed(),
        **{"settings": _SETTINGS, **injected},
    )


def is_turning_point(change: ObjectChange[Object]) -> bool:
    """Whether a pod appeared, went, or went from holding its GPU to being finished (or, oddly, back)."""
    if change.previous is None or change.kind is not ObjectChangeKind.MODIFIED:
        return True
    return is_finished(change.previous) != is_finished(change.object)


def is_finished(pod: Object) -> bool:
    """Whether no container of a trimmed pod runs, or will run again. In doubt False: the GPU counts as held.

    A container between two starts (CrashLoopBackOff, ``restartPolicy: Always``) holds the GPU. So does a pod
    that has not started one yet, except that nothing new starts in a pod that is being deleted.
    """
    status = pod["status"]
    if status.get("phase") in _ENDED:
        return True
    main, init = status["containerStatuses"], status["initContainerStatuses"]
    ran = [container for container in (*main, *init) if _has_run(container)]
    if not ran or not all("terminated" in container["state"] for container in ran):
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return True
    return bool(main) and all(_is_over(container, pod["spec"]) for container in main)


def trim(pod: dict[str, Any]) -> dict[str, Any]:
    """The parts of a pod that are read here; status lists are always there. Raises for a pod
    without a name."""
    spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
    trimmed: dict[str, Any] = {
        "metadata": _named(pod["metadata"]),
        "spec": _only(spec, ("nodeName", "restartPolicy")),
        "status": _only(status, ("phase",)),
    }
    for key in _STATUS_LISTS:
        trimmed["status"][key] = [_container(found) for found in _mappings(status.get(key))]
    containers = [_only(found, ("name", "restartPolicy")) for found in _mappings(spec.get("containers"))]
    if own := [container for container in containers if "restartPolicy" in container]:
        trimmed["spec"]["containers"] = own
    return trimmed


def trim_slice(found: dict[str, Any]) -> dict[str, Any]:
    """The parts of a ResourceSlice that are read here, in the shape of the version it came in."""
    spec = _mapping(found.get("spec"))
    return {
        "metadata": _only(found["metadata"], ("name", "uid", "resourceVersion")),
        "spec": {
            **_only(spec, ("driver", "nodeName", "pool")),
            "devices": [_device(device) for device in _mappings(spec.get("devices"))],
        },
    }


def _has_run(container: Object) -> bool:
    return "waiting" not in container["state"] or bool(container.get("containerID"))


def _is_over(container: Object, spec: Object) -> bool:
    """Whether a container of a pod that is not being deleted has ended for good.

    A container may have a restart policy of its own (KEP-5307); its rules are not followed here, so such a
    container is over only when the pod's phase is.
    """
    terminated = container["state"].get("terminated")
    own_policies = {found.get("name") for found in spec.get("containers", ())}
    if terminated is None or container.get("name") in own_policies:
        return False
    policy = spec.get("restartPolicy")
    return policy == "Never" or (policy == "OnFailure" and terminated.get("exitCode") == 0)


def _on_node(node: str) -> dict[str, str]:
    """The field selector for a node. An empty name would select the pods of no node, and one with a comma
    could select anything."""
    if not _NODE_NAME.fullmatch(node):
        raise InputError("node", node, "the name of a node, such as gpu-7.example")
    return {"fieldSelector": f"spec.nodeName={node}"}


def _age(pod: Object) -> tuple[str, int, str]:
    metadata = pod["metadata"]
    version = str(metadata.get("resourceVersion", ""))
    is_number = version.isdecimal() and len(version) < 64  # int() refuses thousands of digits
    return (
        str(metadata.get("creationTimestamp", "")),
        int(version) if is_number else 0,
        metadata["uid"],
    )


def _named(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if not all(isinstance(metadata.get(key), str) for key in ("namespace", "name")):
        raise ValueError("a pod without a name")
    return _only(metadata, _METADATA)


def _container(found: Mapping[str, Any]) -> dict[str, Any]:
    state = _mapping(found.get("state"))
    kept = {
        key: _only(_mapping(state[key]), fields)
        for key, fields in _STATE.items()
        if state.get(key) is not None
    }
    # "One of its members may be specified. If none of them is specified, the default one is
    # ContainerStateWaiting" (core/v1, ContainerState).
    return {**_only(found, ("name", "containerID")), "state": kept or {"waiting": {}}}


def _device(found: Mapping[str, Any]) -> dict[str, Any]:
    holder = _mapping(found.get("basic") or found)
    attributes = {
        name: value
        for name, value in _mapping(holder.get("attributes")).items()
        if str(name).rpartition("/")[2] in _ATTRIBUTES
    }
    kept = {"attributes": attributes}
    return {**_only(found, ("name",)), **({"basic": kept} if "basic" in found else kept)}


def _only(found: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: found[key] for key in keys if found.get(key) is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
