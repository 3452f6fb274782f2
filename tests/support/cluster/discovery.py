"""The documents of API discovery (kubernetes/apimachinery, pkg/apis/meta/v1/types.go), and Status."""

from __future__ import annotations

from tests.support.cluster.model import Collection, Json, Model

REASONS = {
    403: "Forbidden",
    404: "NotFound",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
}


def status(code: int, message: str = "scripted") -> Json:
    """A failure in Kubernetes' own words."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS[code],
        "code": code,
    }


def document(model: Model, path: str) -> Json | None:
    """What is served at ``path``, None if it is no path of discovery or nothing is there."""
    match path.strip("/").split("/"):
        case ["version"]:
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(group, versions) for group, versions in model.groups()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group]:
            found = dict(model.groups()).get(group)
            return None if found is None else {"kind": "APIGroup", "apiVersion": "v1", **_group(group, found)}
        case ["api", version]:
            return _resources(model, "", version)
        case ["apis", group, version]:
            return _resources(model, group, version)
    return None


def _group(group: str, versions: list[str]) -> Json:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def _resources(model: Model, group: str, version: str) -> Json | None:
    found = model.served(group, version)
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [_resource(each) for each in found],
    }


def _resource(collection: Collection) -> Json:
    kind = collection.kind
    return {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": ["get", "list", "watch"],
    }
