"""Deployments, ReplicaSets, StatefulSets and DaemonSets (pkg/apis/apps/validation)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpucost.kube.manifests.rules.names import (
    LABEL_RULE,
    SET,
    check_name,
    check_one_of,
    check_range,
    is_dns_label,
)
from gpucost.kube.manifests.rules.pods import check_template
from gpucost.kube.manifests.rules.selectors import check_selector, selects
from gpucost.kube.manifests.rules.volumes import check_claim
from gpucost.kube.parse.reading import Part

_PERCENT = re.compile("[0-9]+%")
_ROLLING = "RollingUpdate"
_NONE: Mapping[str, Part] = {}
_RETENTION = ("", "Delete", "Retain")


def check_deployment(root: Part, _: str) -> None:
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


def check_replica_set(root: Part, _: str) -> None:
    _check_replicas(root.part("spec"))


def check_daemon_set(root: Part, _: str) -> None:
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


def check_stateful_set(root: Part, _: str) -> None:
    spec = root.part("spec")
    claims = spec.parts("volumeClaimTemplates")
    claimed = Part({"persistentVolumeClaim": {}}, "", spec)
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


def _check_replicas(spec: Part, added: Mapping[str, Part] = _NONE) -> None:
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


def _share(part: Part, key: str, otherwise: int) -> int:
    """The number, or that of the percents; -1 for what is neither, with a flaw."""
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


def _percent(part: Part, key: str) -> int:
    found = part.raw(key)
    return int(found[:-1][-9:]) if isinstance(found, str) and _PERCENT.fullmatch(found) else 0
