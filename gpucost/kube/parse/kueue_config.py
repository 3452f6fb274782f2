"""Kueue's Configuration (config.kueue.x-k8s.io v1beta1 and v1beta2), as far as it decides who is admitted.

Fields and defaults: kueue v0.19.2, apis/config/v1beta2/{configuration_types,defaults}.go, and of v1beta1,
which differs in ``fairSharing.enable`` and ``waitForPodsReady.{enable,blockAdmission}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpucost.cluster.scheduling import FINAL_SHARE, INITIAL_SHARE, STRATEGIES, KueueConfig
from gpucost.kube.parse.reading import Part
from gpucost.kube.parse.scheduler_objects import (
    KUEUE_GROUP,
    KUEUE_KEY,
    NOT_DEPLOYED,
    Deployed,
    document,
    in_words,
)

_V1BETA1, _V1BETA2 = f"{KUEUE_GROUP}/v1beta1", f"{KUEUE_GROUP}/v1beta2"
_ALLOWED_STRATEGIES = (STRATEGIES, (FINAL_SHARE,), (INITIAL_SHARE,))
_DEFAULT_FRAMEWORKS = ("batch/job",)
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_SYSTEM = ("kube-system", "kueue-system")
_NOT_FOLLOWED = {
    "admissionFairSharing": "usage is what LocalQueues last wrote into their status, without its decay and "
    "the penalties of admissions since then",
    "preemptionProtection": "not followed: every workload can be preempted at any age",
}


def kueue_config(text: str | None, manager: Deployed = NOT_DEPLOYED) -> KueueConfig:
    """From the text of a Configuration (None: nobody could read it) and the Deployment of the manager.

    Never raises: what makes no sense is as if it were not set, and named in ``unread``, as are settings that
    change decisions and are not followed. Gates of the Configuration go before those of arguments.
    """
    config = KueueConfig(manager.version, gates=manager.gates)
    if text is None:
        return config
    found = document(text)
    if found is None:
        return replace(config, unread=(f"{KUEUE_KEY} cannot be read",))
    root = Part(found)
    gates = {**manager.gates, **_gates(root.part("featureGates"))}
    fair_sharing = root.part("fairSharing")
    is_there = isinstance(root.raw("fairSharing"), dict)
    is_fair = is_there and fair_sharing.flag("enable", root.text("apiVersion") != _V1BETA1)
    resources = root.part("resources")
    checks = resources.text("quotaCheckStrategy")
    config = replace(
        config,
        fair_sharing=is_fair,
        strategies=_strategies(fair_sharing),
        gates=gates,
        block_admission=_blocks(root, gates),
        excluded_prefixes=resources.texts("excludeResourcePrefixes"),
        ignores_undeclared=checks == "IgnoreUndeclared" and gates.get("QuotaCheckStrategy", True),
        frameworks=root.part("integrations").texts("frameworks") or _DEFAULT_FRAMEWORKS,
        is_read=True,
    )
    if checks not in ("", "IgnoreUndeclared", "BlockUndeclared"):
        resources.flaw("quotaCheckStrategy", checks, "BlockUndeclared or IgnoreUndeclared")
    unread = tuple(_unread(root))
    return replace(config, unread=(*unread, *dict.fromkeys(map(in_words, root.flaws))))


def _gates(part: Part) -> dict[str, bool]:
    gates = {}
    for name in part:
        value = part.raw(name)
        if isinstance(value, bool):
            gates[name] = value
        elif value is not None:
            part.flaw(name, value, "true or false")
    return gates


def _strategies(fair_sharing: Part) -> tuple[str, ...]:
    given = fair_sharing.texts("preemptionStrategies")
    if given and given not in _ALLOWED_STRATEGIES:
        allowed = f"{FINAL_SHARE}, {INITIAL_SHARE}, or both in this order"
        fair_sharing.flaw("preemptionStrategies", list(given), allowed)
        return STRATEGIES
    return given or STRATEGIES


def _blocks(root: Part, gates: dict[str, bool]) -> bool:
    """Whether admission waits for the pods of what was admitted before. In v1beta1 that is the default of
    waitForPodsReady once it is enabled, in v1beta2 it is not."""
    waits = root.part("waitForPodsReady")
    is_older = root.text("apiVersion") == _V1BETA1
    is_there = isinstance(root.raw("waitForPodsReady"), dict)
    is_on = is_there and waits.flag("enable", not is_older)
    is_on = is_on and not gates.get("DisableWaitForPodsReady", False)
    return is_on and waits.flag("blockAdmission", is_older)


def _unread(root: Part) -> Iterator[str]:
    version = root.text("apiVersion")
    if version not in (_V1BETA1, _V1BETA2):
        yield f"apiVersion is {version or 'missing'}: read as {_V1BETA2}"
    resources = root.part("resources")
    if names := [each.text("input") for each in resources.parts("transformations")]:
        yield f"resources.transformations ({_named(names)}): requests count as they are written"
    if names := [each.text("name") for each in resources.parts("deviceClassMappings")]:
        yield f"resources.deviceClassMappings ({_named(names)}): devices of claims do not count as quota"
    for name, why in _NOT_FOLLOWED.items():
        if name in root:
            yield f"{name}: {why}"
    requeuing = root.part("waitForPodsReady").part("requeuingStrategy")
    if requeuing.text("timestamp") == "Creation":
        yield "waitForPodsReady.requeuingStrategy.timestamp is Creation: eviction counts all the same"
    if root.flag("manageJobsWithoutQueueName"):
        yield "manageJobsWithoutQueueName is true: jobs without a queue name are held too, until they get one"
    if "managedJobsNamespaceSelector" in root and not _is_usual(root):
        yield "managedJobsNamespaceSelector: every namespace is taken for managed"


def _is_usual(root: Part) -> bool:
    """Whether only namespaces of the system are left out, as by default."""
    selector = root.part("managedJobsNamespaceSelector")
    system = {*_SYSTEM, root.text("namespace")}
    return "matchLabels" not in selector and all(
        (each.text("key"), each.text("operator")) == (_NAMESPACE_NAME, "NotIn")
        and system.issuperset(each.texts("values"))
        for each in selector.parts("matchExpressions")
    )


def _named(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more
