"""Objects without what no figure needs and nobody should pass on.

Nothing that a parser of ``gpucost.kube.parse`` reads is left out, but annotations of other software. Pods and
their templates, in which people put passwords, keep only fields that are named here; elsewhere the fields
go that are known to hold environments, commands and the like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_POD_SPEC = frozenset(
    {
        *("affinity", "containers", "initContainers", "nodeName", "nodeSelector", "overhead", "priority"),
        *("priorityClassName", "resourceClaims", "resources", "restartPolicy", "schedulerName"),
        *("schedulingGates", "schedulingGroup", "tolerations", "topologySpreadConstraints", "workloadRef"),
    }
)
_CONTAINER = frozenset({"name", "resources", "restartPolicy", "restartPolicyRules"})
_CONTAINER_STATUS = frozenset({"name", "ready", "restartCount", "started", "state", "lastState"})
_CONTAINER_STATE = frozenset({"reason", "startedAt", "finishedAt", "exitCode"})
_METADATA = frozenset(
    {
        *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"),
        *("deletionTimestamp", "labels", "annotations", "ownerReferences"),
    }
)
_ROOT = frozenset({"apiVersion", "kind", "metadata", "spec", "status", "value", "globalDefault"})
_DROPPED = frozenset(
    {
        # What containers run, and with what.
        *("env", "envFrom", "command", "args", "entrypoint", "image", "imageID", "imagePullSecrets"),
        *("volumes", "volumeMounts", "volumeClaimTemplates", "ephemeralContainers", "lifecycle"),
        *("livenessProbe", "readinessProbe", "startupProbe", "securityContext", "containerID"),
        # Of KubeRay, Kubeflow and drivers of devices.
        *("rayStartParams", "gcsFaultToleranceOptions", "autoscalerOptions", "runtimeEnvYAML"),
        *("serveConfigV2", "dashboardURL", "initializer", "modelConfig", "parameters", "opaque"),
        # Of nodes: long, and not needed.
        *("addresses", "daemonEndpoints", "images", "nodeInfo", "volumesAttached", "volumesInUse"),
        *("data", "stringData", "binaryData", "managedFields", "podIP", "podIPs", "hostIP", "hostIPs"),
    }
)
# Their keys are names that people choose, none of them a field.
_FREE = frozenset(
    {
        *("labels", "matchLabels", "nodeLabels", "nodeSelector", "requests", "limits", "capacity"),
        *("allocatable", "overhead", "minResources", "minTaskMember", "deserved", "guarantee", "capability"),
        *("allocated", "flavors", "resourceUsage", "attributes", "consumedResources"),
    }
)
_OWN_ANNOTATIONS = frozenset({"kubeflow-resource-stopped", "hub.jupyter.org/username"})
_DOMAINS = ("k8s.io", "kubernetes.io", "volcano.sh", "ray.io", "kubeflow.org", "gpucost.io")
_OF_KUBECTL = "kubectl.kubernetes.io/"


def scrubbed(found: Mapping[str, Any], annotations: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A copy of an object. Of its annotations those of Kubernetes, its schedulers and job kinds stay, and
    those named in ``annotations``."""
    return {
        key: _metadata(value, annotations) if key == "metadata" else _kept(key, value, annotations)
        for key, value in found.items()
        if key in _ROOT
    }


def _metadata(found: Any, annotations: frozenset[str]) -> Any:
    if not isinstance(found, dict):
        return found
    return {key: _kept(key, value, annotations) for key, value in found.items() if key in _METADATA}


def _kept(key: str, value: Any, annotations: frozenset[str]) -> Any:
    """The value of a field."""
    if key in _FREE or not isinstance(value, (dict, list)):
        return value
    if isinstance(value, list):
        match key:
            case "containers" | "initContainers":
                return [_only(each, _CONTAINER) for each in value]
            case "containerStatuses" | "initContainerStatuses":
                return [_container_status(each) for each in value]
            case _:
                return [_kept("", each, annotations) for each in value]
    if key == "annotations":
        return {name: text for name, text in value.items() if _is_kept(name, annotations)}
    is_pod_spec = isinstance(value.get("containers"), list)
    return {
        name: _kept(name, inner, annotations)
        for name, inner in value.items()
        if (name in _POD_SPEC if is_pod_spec else name not in _DROPPED)
    }


def _container_status(found: Any) -> Any:
    kept = _only(found, _CONTAINER_STATUS)
    if not isinstance(kept, dict):
        return kept
    for key in ("state", "lastState"):
        if isinstance(kept.get(key), dict):
            kept[key] = {name: _only(state, _CONTAINER_STATE) for name, state in kept[key].items()}
    return kept


def _only(found: Any, names: frozenset[str]) -> Any:
    if not isinstance(found, dict):
        return found
    return {key: value for key, value in found.items() if key in names}


def _is_kept(name: str, annotations: frozenset[str]) -> bool:
    if name in annotations or name in _OWN_ANNOTATIONS:
        return True
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain.endswith(_DOMAINS) and not name.startswith(_OF_KUBECTL)
