"""What is checked of an object of each kind; and Deployments, ReplicaSets, StatefulSets and DaemonSets
(pkg/apis/apps/validation).

Kinds of Kubernetes itself are checked as a whole. Other kinds have schemas of their own projects: of these
the metadata and the pod templates are checked, since their pods go to the same API server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests.rules.jobs import check_cron_job, check_job
from gpucost.kube.manifests.rules.names import (
    LABEL_RULE,
    SET,
    check_metadata,
    check_name,
    check_one_of,
    check_range,
    check_selector,
    is_dns_label,
    selects,
)
from gpucost.kube.manifests.rules.pods import check_pod, check_template
from gpucost.kube.manifests.rules.schemas import decoded
from gpucost.kube.manifests.rules.volumes import check_claim
from gpucost.kube.parse.fields import ObjectPart

_PERCENT = re.compile("[0-9]+%")
_ROLLING = "RollingUpdate"
_NONE: Mapping[str, ObjectPart] = {}
_RETENTION = ("", "Delete", "Retain")


def check_deployment(root: ObjectPart, _: str) -> None:
    spec = root.part("spec")
    _check_replicas(spec)
    for key in ("revisionHistoryLimit", "progressDeadlineSeconds"):
        check_range(spec, key, 0)
    ready, deadline = spec.whole("minReadySeconds") or 0, spec.whole("progressDeadlineSeconds")
    if (600 if deadline is None else deadline) <= ready:
        spec.flaw("progressDeadlineSeconds", deadline, "greater than minReadySeconds")
    strategy = spec.part("strategy")
    check_one_of(strategy, "type", ("", "Recreate", _ROLLING))
    rolling = strategy.part("rollingUpdate")
    if strategy.text("type") == "Recreate":
        if "rollingUpdate" in strategy:
            strategy.flaw("rollingUpdate", SET, "none, where the type is Recreate")
        return
    unavailable, surge = _share(rolling, "maxUnavailable", 25), _share(rolling, "maxSurge", 25)
    if unavailable == 0 and surge == 0:
        rolling.flaw("maxUnavailable", 0, "more than 0 where maxSurge is 0")
    if _percent(rolling, "maxUnavailable") > 100:
        rolling.flaw("maxUnavailable", rolling.raw("maxUnavailable"), "not greater than 100%")


def check_replica_set(root: ObjectPart, _: str) -> None:
    _check_replicas(root.part("spec"))


def check_daemon_set(root: ObjectPart, _: str) -> None:
    spec = root.part("spec")
    _check_replicas(spec)
    check_range(spec, "revisionHistoryLimit", 0)
    strategy = spec.part("updateStrategy")
    check_one_of(strategy, "type", ("", "OnDelete", _ROLLING))
    if strategy.text("type") == "OnDelete":
        return
    rolling = strategy.part("rollingUpdate")
    unavailable, surge = _share(rolling, "maxUnavailable", 1), _share(rolling, "maxSurge", 0)
    for key in ("maxUnavailable", "maxSurge"):
        if _percent(rolling, key) > 100:
            rolling.flaw(key, rolling.raw(key), "not greater than 100%")
    if bool(unavailable) == bool(surge):
        rolling.flaw("maxSurge", rolling.raw("maxSurge"), "either maxUnavailable or maxSurge, the other 0")


def check_stateful_set(root: ObjectPart, _: str) -> None:
    spec = root.part("spec")
    claims = spec.parts("volumeClaimTemplates")
    claimed = ObjectPart({"persistentVolumeClaim": {}}, "", spec)
    _check_replicas(spec, {each.part("metadata").text("name"): claimed for each in claims})
    check_one_of(spec, "podManagementPolicy", ("", "OrderedReady", "Parallel"))
    strategy = spec.part("updateStrategy")
    check_one_of(strategy, "type", ("", "OnDelete", _ROLLING))
    rolling = strategy.part("rollingUpdate")
    if strategy.text("type") == "OnDelete" and "rollingUpdate" in strategy:
        strategy.flaw("rollingUpdate", SET, f"none, unless the type is {_ROLLING}")
    check_range(rolling, "partition", 0)
    for key in ("whenDeleted", "whenScaled"):
        check_one_of(spec.part("persistentVolumeClaimRetentionPolicy"), key, _RETENTION)
    check_range(spec.part("ordinals"), "start", 0)
    check_name(spec, "serviceName", is_dns_label, LABEL_RULE)
    for claim in claims:
        check_claim(claim.part("spec"))


def _check_replicas(spec: ObjectPart, added: Mapping[str, ObjectPart] = _NONE) -> None:
    for key in ("replicas", "minReadySeconds"):
        check_range(spec, key, 0)
    selector, template = spec.part("selector"), spec.part("template")
    labels = template.part("metadata").labels("labels")
    if not selector.labels("matchLabels") and not selector.parts("matchExpressions"):
        spec.flaw("selector", None, "a selector that is not empty")
    elif not selects(selector, labels):
        template.part("metadata").flaw("labels", labels, "labels that the selector matches")
    check_selector(spec, "selector")
    check_template(template, True, added)


def _share(part: ObjectPart, key: str, otherwise: int) -> int:
    """The number, or that of the percentage; -1 with a flaw if it is neither."""
    found = part.raw(key)
    if found is None:
        return otherwise
    if isinstance(found, str):
        if _PERCENT.fullmatch(found):
            return min(int(found[:-1][-9:]), 10**9)
        part.flaw(key, found, "an integer or percentage (e.g. 5%)")
        return -1
    check_range(part, key, 0)
    return int(found)


def _percent(part: ObjectPart, key: str) -> int:
    found = part.raw(key)
    return int(found[:-1][-9:]) if isinstance(found, str) and _PERCENT.fullmatch(found) else 0


Json = dict[str, Any]
_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
PATCHES = frozenset(("podSpecOverrides", "podTemplateOverrides", "runtimePatches", "status"))
"""Fields that contain parts of other objects."""
_VOLUMES = frozenset(("volumeClaimPolicies", "volumeClaimTemplates", "volumes"))
"""Fields of a kind that add volumes to its pods."""


class _Judged(NamedTuple):
    """A kind of Kubernetes: its API version, its published type, and its rules."""

    api_version: str
    definition: str
    check: Callable[[ObjectPart, str], None]


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


def judged(root: ObjectPart, document: Json, kind: JobKind) -> Json:
    """``document``, which ``root`` stands for, as the API server would hold it. What it would refuse is a
    flaw of ``root``; rules are checked only where all of it can be decoded."""
    own = _KINDS.get(kind)
    if own is None:
        return _custom(root, document)
    if document.get("apiVersion") != own.api_version:
        root.flaw("apiVersion", document.get("apiVersion"), own.api_version)
        return document
    held = decoded(root, document, own.definition)
    if not root.flaws:
        found = ObjectPart(held)
        name = check_metadata(found, is_label=kind is JobKind.STATEFUL_SET)
        own.check(found, name)
        root.flaws += found.flaws
    return held


def _custom(root: ObjectPart, document: Json) -> Json:
    held = dict(document)
    held["metadata"] = decoded(root.part("metadata"), document["metadata"], _META)
    if not root.flaws:
        checked = ObjectPart(held)
        check_metadata(checked)
        root.flaws += checked.flaws
    held["spec"] = _mapping(root.part("spec"), document["spec"], _adds_volumes(document["spec"]))
    return held


def _adds_volumes(spec: Json) -> bool:
    inner = spec.get("leaderWorkerTemplate")
    return bool(_VOLUMES & spec.keys() or (isinstance(inner, dict) and _VOLUMES & inner.keys()))


def _mapping(part: ObjectPart, value: Json, adds_volumes: bool) -> Json:
    """A copy with all pod templates in it decoded and checked."""
    pods = value.get("spec")
    if isinstance(pods, dict) and "containers" in pods:
        return _template(part, value, adds_volumes)
    return {
        key: each if key in PATCHES else _below(part, key, each, adds_volumes) for key, each in value.items()
    }


def _below(part: ObjectPart, key: str, value: Any, adds_volumes: bool) -> Any:
    if isinstance(value, dict):
        return _mapping(ObjectPart(value, key, part), value, adds_volumes)
    if isinstance(value, list):
        return [
            _mapping(ObjectPart(each, key, part, index), each, adds_volumes)
            if isinstance(each, dict)
            else each
            for index, each in enumerate(value)
        ]
    return value


def _template(part: ObjectPart, value: Json, adds_volumes: bool) -> Json:
    before = len(part.flaws)
    held = decoded(part, value, _TEMPLATE)
    if len(part.flaws) == before:
        check_template(ObjectPart(held, "", part), added=None if adds_volumes else {})
    return held
