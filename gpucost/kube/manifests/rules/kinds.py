"""What is looked at of an object of each kind.

Kinds of Kubernetes itself are judged as a whole. Of other kinds the schemas are those of who wrote them: of
these the metadata and the pod templates are judged, since their pods go to the same API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests.rules.jobs import check_cron_job, check_job
from gpucost.kube.manifests.rules.metadata import check_metadata
from gpucost.kube.manifests.rules.pods import check_pod, check_template
from gpucost.kube.manifests.rules.replicas import (
    check_daemon_set,
    check_deployment,
    check_replica_set,
    check_stateful_set,
)
from gpucost.kube.manifests.rules.schemas import decoded
from gpucost.kube.parse.reading import Part

Json = dict[str, Any]
_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
PATCHES = frozenset(("podSpecOverrides", "podTemplateOverrides", "runtimePatches", "status"))
"""Fields in which there are parts of other objects."""
_VOLUMES = frozenset(("volumeClaimPolicies", "volumeClaimTemplates", "volumes"))
"""Fields of a kind that add volumes to its pods."""


class _Judged(NamedTuple):
    """A kind of Kubernetes: where it is served, its published type, and its rules."""

    api_version: str
    definition: str
    check: Callable[[Part, str], None]


_KINDS: Mapping[JobKind, _Judged] = {
    JobKind.JOB: _Judged("batch/v1", "io.k8s.api.batch.v1.Job", check_job),
    JobKind.CRON_JOB: _Judged("batch/v1", "io.k8s.api.batch.v1.CronJob", check_cron_job),
    JobKind.DEPLOYMENT: _Judged("apps/v1", "io.k8s.api.apps.v1.Deployment", check_deployment),
    JobKind.STATEFUL_SET: _Judged("apps/v1", "io.k8s.api.apps.v1.StatefulSet", check_stateful_set),
    JobKind.REPLICA_SET: _Judged("apps/v1", "io.k8s.api.apps.v1.ReplicaSet", check_replica_set),
    JobKind.DAEMON_SET: _Judged("apps/v1", "io.k8s.api.apps.v1.DaemonSet", check_daemon_set),
    JobKind.POD: _Judged("v1", "io.k8s.api.core.v1.Pod", lambda root, _: check_pod(root)),
}
OF_KUBERNETES = frozenset(_KINDS)


def judged(root: Part, document: Json, kind: JobKind) -> Json:
    """``document``, which ``root`` stands for, as the API server would hold it. What it would refuse is a
    flaw of ``root``; rules are only looked at where all of it can be decoded."""
    own = _KINDS.get(kind)
    if own is None:
        return _custom(root, document)
    if document.get("apiVersion") != own.api_version:
        root.flaw("apiVersion", document.get("apiVersion"), own.api_version)
        return document
    held = decoded(root, document, own.definition)
    if not root.flaws:
        found = Part(held)
        name = check_metadata(found, is_label=kind is JobKind.STATEFUL_SET)
        own.check(found, name)
        root.flaws += found.flaws
    return held


def _custom(root: Part, document: Json) -> Json:
    held = dict(document)
    held["metadata"] = decoded(root.part("metadata"), document["metadata"], _META)
    if not root.flaws:
        checked = Part(held)
        check_metadata(checked)
        root.flaws += checked.flaws
    held["spec"] = _mapping(root.part("spec"), document["spec"], _adds_volumes(document["spec"]))
    return held


def _adds_volumes(spec: Json) -> bool:
    inner = spec.get("leaderWorkerTemplate")
    return bool(_VOLUMES & spec.keys() or (isinstance(inner, dict) and _VOLUMES & inner.keys()))


def _mapping(part: Part, value: Json, adds_volumes: bool) -> Json:
    """A copy with all pod templates in it decoded, and judged."""
    pods = value.get("spec")
    if isinstance(pods, dict) and "containers" in pods:
        return _template(part, value, adds_volumes)
    return {
        key: each if key in PATCHES else _below(part, key, each, adds_volumes) for key, each in value.items()
    }


def _below(part: Part, key: str, value: Any, adds_volumes: bool) -> Any:
    if isinstance(value, dict):
        return _mapping(Part(value, key, part), value, adds_volumes)
    if isinstance(value, list):
        return [
            _mapping(Part(each, key, part, index), each, adds_volumes) if isinstance(each, dict) else each
            for index, each in enumerate(value)
        ]
    return value


def _template(part: Part, value: Json, adds_volumes: bool) -> Json:
    before = len(part.flaws)
    held = decoded(part, value, _TEMPLATE)
    if len(part.flaws) == before:
        check_template(Part(held, "", part), added=None if adds_volumes else {})
    return held
