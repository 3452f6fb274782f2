"""Configurations and versions of Kueue and Volcano: which objects contain them, and how their text is read.

Kueue: ConfigMap ``kueue-manager-config`` and Deployment ``kueue-controller-manager``, in ``kueue-system``
(kueue v0.19.2, config/components/manager, charts/kueue/templates/manager). Volcano: ConfigMap
``<release>-scheduler-configmap`` and Deployment ``<release>-scheduler``, in ``volcano-system`` (volcano
v1.15.1, installer/helm/chart/volcano/templates/scheduler.yaml). Names differ between installations, so an
object that was not requested by name is recognised by its content.

Kueue's Configuration (config.kueue.x-k8s.io v1beta1 and v1beta2) is read as far as it decides admission.
Fields and defaults: kueue v0.19.2, apis/config/v1beta2/{configuration_types,defaults}.go, and of v1beta1,
which differs in ``fairSharing.enable`` and ``waitForPodsReady.{enable,blockAdmission}``.

Of volcano-scheduler.conf actions, plugins in tiers, and their arguments are read. Form: volcano v1.15.1,
pkg/scheduler/conf/scheduler_conf.go; where it cannot be read Volcano's own fallback has the same actions and
plugins as its chart, but for binpack (pkg/scheduler/util.go).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import yaml

from gpucost.cluster.objects.metadata import FieldFlaw, parse_quantity
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    STRATEGIES,
    VOLCANO_ACTIONS,
    VOLCANO_TIERS,
    FairAdmission,
    KueueConfig,
    VolcanoConfig,
)
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS
from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.yaml_documents import documents

KUEUE_KEY = "controller_manager_config.yaml"
VOLCANO_KEY = "volcano-scheduler.conf"
KUEUE_GROUP = "config.kueue.x-k8s.io"
KUEUE_IMAGE, VOLCANO_IMAGE = "kueue", "vc-scheduler"

MOST_CHARS = 1 << 20
"""The greatest size of one configuration: no ConfigMap holds more."""

_IMAGE = re.compile(rf"(?:.*/)?({KUEUE_IMAGE}|{VOLCANO_IMAGE})(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?(?:@.*)?")
_TAG = re.compile(r"[^@]*/[^@/:]*:([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:@.*)?")
_VERSION = re.compile(r"v?\d+\.\d+(\..*)?")
_GATE = re.compile(r"[A-Za-z0-9]+")
_FLAG = "--feature-gates"
_TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


@dataclass(frozen=True, slots=True)
class SchedulerDeployment:
    """The facts of a Deployment: the version it runs (``v0.19.2``; empty where unknown), and the feature
    gates among its arguments."""

    version: str = ""
    gates: Mapping[str, bool] = field(default_factory=dict)


NOT_DEPLOYED = SchedulerDeployment()


def document(text: str) -> Mapping[str, Any] | None:
    """The mapping of a configuration; None where it is not one, or cannot be read.

    JSON, which is the form in a dump, or YAML without aliases, merge keys and tags.
    """
    if len(text) > MOST_CHARS:
        return None
    try:
        if text.lstrip().startswith("{"):
            found = json.loads(text)
        else:
            found = next((each for each in documents("", text) if each is not None), None)
    except (InputError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def in_words(flaw: FieldFlaw) -> str:
    """The description of an invalid value, in place of which the default is used."""
    return f"{flaw.field} is {flaw.value}, not {flaw.allowed}: taken as if it were not set"


def kueue_text(config_map: Mapping[str, Any]) -> str | None:
    """Kueue's Configuration; None in the ConfigMap of another project, such as JobSet, which has the same
    key."""
    text = config_text(config_map, KUEUE_KEY)
    if text is None:
        return None
    found = document(text)
    if found is None:
        return text if "kueue" in name_of(config_map)[1] else None
    return text if str(found.get("apiVersion", "")).startswith(f"{KUEUE_GROUP}/") else None


def config_text(config_map: Mapping[str, Any], key: str) -> str | None:
    """The text of a ConfigMap under a key."""
    data = config_map.get("data")
    text = data.get(key) if isinstance(data, dict) else None
    return text if isinstance(text, str) else None


def name_of(found: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    part = ObjectPart(found).part("metadata")
    return part.text("namespace"), part.text("name")


def is_kueue_manager(deployment: Mapping[str, Any]) -> bool:
    """By its image, else by the end of its name, before which Helm puts the release."""
    is_named = name_of(deployment)[1].endswith("kueue-controller-manager")
    return is_named or KUEUE_IMAGE in _images(deployment)


def is_volcano_scheduler(deployment: Mapping[str, Any]) -> bool:
    """By its image, else by the label of its chart."""
    labels = ObjectPart(deployment).part("metadata").labels("labels")
    return labels.get("app") == "volcano-scheduler" or VOLCANO_IMAGE in _images(deployment)


def deployed(deployment: Mapping[str, Any]) -> SchedulerDeployment:
    """Version and gates of the container with a known image, else the first: the image's tag, or the label
    ``app.kubernetes.io/version`` where the tag is not a version."""
    containers = _containers(deployment)
    if not containers:
        return NOT_DEPLOYED
    known = [each for each in containers if scheduler_image(each.raw("image"))]
    container = (known or containers)[0]
    label = ObjectPart(deployment).part("metadata").labels("labels").get("app.kubernetes.io/version", "")
    tag = _TAG.fullmatch("/" + container.text("image"))
    version = tag[1] if tag else ""
    if label and not _VERSION.fullmatch(version):
        version = label
    return SchedulerDeployment(version, gates_in(container.raw("args")))


def scheduler_image(image: object) -> str:
    """``kueue:v0.19.2`` for the image of a scheduler, without its registry; empty for any other image."""
    found = _IMAGE.fullmatch(image) if isinstance(image, str) else None
    if found is None:
        return ""
    return f"{found[1]}:{found[2]}" if found[2] else found[1]


def gates_in(args: object) -> dict[str, bool]:
    """Feature gates in a container's arguments: ``--feature-gates=A=true,B=false``, or in two arguments."""
    words = [each for each in args if isinstance(each, str)] if isinstance(args, list) else []
    texts = [each.removeprefix(f"{_FLAG}=") for each in words if each.startswith(f"{_FLAG}=")]
    texts += [after for word, after in pairwise(words) if word == _FLAG]
    gates = {}
    for pair in ",".join(texts).split(","):
        name, _, value = pair.strip().partition("=")
        truth = _TRUTHS.get(value.strip().lower())
        if _GATE.fullmatch(name) and truth is not None:
            gates[name] = truth
    return gates


def as_argument(gates: Mapping[str, bool]) -> str:
    """The same as one argument."""
    return f"{_FLAG}=" + ",".join(f"{name}={str(value).lower()}" for name, value in gates.items())


def _images(deployment: Mapping[str, Any]) -> set[str]:
    return {scheduler_image(each.raw("image")).partition(":")[0] for each in _containers(deployment)}


def _containers(deployment: Mapping[str, Any]) -> list[ObjectPart]:
    return ObjectPart(deployment).part("spec").part("template").part("spec").parts("containers")


_V1BETA1, _V1BETA2 = f"{KUEUE_GROUP}/v1beta1", f"{KUEUE_GROUP}/v1beta2"
_ALLOWED_STRATEGIES = (STRATEGIES, (FINAL_SHARE,), (INITIAL_SHARE,))
_DEFAULT_FRAMEWORKS = ("batch/job",)
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_SYSTEM = ("kube-system", "kueue-system")
_NOT_FOLLOWED = {
    "admissionFairSharing": "usage is what LocalQueues last wrote into their status, with the penalties of "
    "workloads that have quota; its decay since then, and penalties to come, are not followed",
    "preemptionProtection": "not followed: every workload can be preempted at any age",
}


def kueue_config(text: str | None, manager: SchedulerDeployment = NOT_DEPLOYED) -> KueueConfig:
    """From the text of a Configuration (None: it could not be read) and the Deployment of the manager.

    Never raises: an invalid setting counts as not set, and is named in ``unread``, as are settings that
    change decisions and are not followed. Gates of the Configuration take precedence over those of arguments.
    """
    config = KueueConfig(manager.version, gates=manager.gates)
    if text is None:
        return config
    found = document(text)
    if found is None:
        return replace(config, unread=(f"{KUEUE_KEY} cannot be read",))
    root = ObjectPart(found)
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
        fair_admission=_fair_admission(root),
        frameworks=root.part("integrations").texts("frameworks") or _DEFAULT_FRAMEWORKS,
        is_read=True,
    )
    if checks not in ("", "IgnoreUndeclared", "BlockUndeclared"):
        resources.flaw("quotaCheckStrategy", checks, "BlockUndeclared or IgnoreUndeclared")
    unread = tuple(_unread(root))
    return replace(config, unread=(*unread, *dict.fromkeys(map(in_words, root.flaws))))


def _gates(part: ObjectPart) -> dict[str, bool]:
    gates = {}
    for name in part:
        value = part.raw(name)
        if isinstance(value, bool):
            gates[name] = value
        elif value is not None:
            part.flaw(name, value, "true or false")
    return gates


_GO_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:h|ms|m|s))+")
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_GO_UNIT_MS = {"h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}


def _fair_admission(root: ObjectPart) -> FairAdmission | None:
    part = root.part("admissionFairSharing")
    if not isinstance(root.raw("admissionFairSharing"), dict):
        return None
    weights = part.part("resourceWeights")
    read = {str(name): _weight(weights, str(name)) for name in weights}
    default = FairAdmission()
    return FairAdmission(
        _go_duration(part, "usageHalfLifeTime", default.half_life_ms),
        _go_duration(part, "usageSamplingInterval", default.sampling_ms) or default.sampling_ms,
        {name: weight for name, weight in read.items() if weight is not None},
    )


def _weight(part: ObjectPart, name: str) -> Fraction | None:
    value = part.raw(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        part.flaw(name, value, "a number")
        return None
    try:
        return parse_quantity(str(value))
    except InputError:
        part.flaw(name, value, "a number")
        return None


def _go_duration(part: ObjectPart, name: str, default: int) -> int:
    """Milliseconds, of Go's ``1h30m``; ``default`` where it is not set or not valid."""
    text = part.text(name)
    if not text or text == "0":
        return default if not text else 0
    if not _GO_DURATION.fullmatch(text):
        part.flaw(name, text, "a duration such as 168h or 5m0s")
        return default
    return sum(round(Fraction(number) * _GO_UNIT_MS[unit]) for number, unit in _GO_PART.findall(text))


def _strategies(fair_sharing: ObjectPart) -> tuple[str, ...]:
    given = fair_sharing.texts("preemptionStrategies")
    if given and given not in _ALLOWED_STRATEGIES:
        allowed = f"{FINAL_SHARE}, {INITIAL_SHARE}, or both in this order"
        fair_sharing.flaw("preemptionStrategies", list(given), allowed)
        return STRATEGIES
    return given or STRATEGIES


def _blocks(root: ObjectPart, gates: dict[str, bool]) -> bool:
    """Whether admission waits for the pods of what was admitted before. In v1beta1 that is the default of
    waitForPodsReady once it is enabled, in v1beta2 it is not."""
    waits = root.part("waitForPodsReady")
    is_older = root.text("apiVersion") == _V1BETA1
    is_there = isinstance(root.raw("waitForPodsReady"), dict)
    is_on = is_there and waits.flag("enable", not is_older)
    is_on = is_on and not gates.get("DisableWaitForPodsReady", False)
    return is_on and waits.flag("blockAdmission", is_older)


def _unread(root: ObjectPart) -> Iterator[str]:
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


def _is_usual(root: ObjectPart) -> bool:
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


_KNOWN_ACTIONS = frozenset({*VOLCANO_ACTIONS, "preempt", "reclaim", "shuffle", "gangpreempt", "gangreclaim"})
_FOLLOWED = frozenset(
    {name for tier in VOLCANO_TIERS for name in tier} | {"capacity", "network-topology-aware"}
)
_OTHERS = {
    "cdp": "protects young pods from preemption",
    "deviceshare": "counts shares of devices",
    "extender": "asks another server",
    "nodegroup": "binds queues to groups of nodes",
    "numaaware": "looks at NUMA nodes",
    "pdb": "protects pods by their disruption budgets",
    "rescheduling": "evicts pods to move them",
    "resourcequota": "holds jobs beyond the ResourceQuota of their namespace",
    "sla": "lets jobs in after a time",
    "task-topology": "places tasks beside each other",
    "tdm": "lends nodes by time of day",
    "usage": "leaves out nodes in heavy use",
}
"""Plugins that can change which pods run, or where, and their effect."""
_HARMLESS = frozenset({"resource-strategy-fit", "volume-binding"})
_SWITCHES = ("enable", "enabled")
_HARMLESS_ARGUMENTS = frozenset({"predicateErrorCacheEnable"})


def volcano_config(text: str | None, scheduler: SchedulerDeployment = NOT_DEPLOYED) -> VolcanoConfig:
    """From volcano-scheduler.conf (None: it could not be read) and the Deployment of the scheduler.

    Never raises: see ``kueue_config``. ``arguments`` have the switches of plugins too, such as
    ``enablePreemptable``: ``"false"``.
    """
    config = VolcanoConfig(scheduler.version)
    if text is None:
        return config
    found = document(text)
    if found is None:
        return replace(config, unread=(f"{VOLCANO_KEY} cannot be read",))
    root = ObjectPart(found)
    tiers = [tier.parts("plugins") for tier in root.parts("tiers")]
    actions = tuple(name for each in root.text("actions").split(",") if (name := each.strip()))
    config = replace(
        config,
        actions=actions,
        tiers=tuple(tuple(name for each in tier if (name := each.text("name"))) for tier in tiers),
        arguments={each.text("name"): values for tier in tiers for each in tier if (values := _values(each))},
        is_read=True,
    )
    unread = tuple(_unread_volcano(root, config))
    return replace(config, unread=(*unread, *dict.fromkeys(map(in_words, root.flaws))))


def _values(plugin: ObjectPart) -> dict[str, str]:
    """Arguments and switches of a plugin, as text."""
    arguments = plugin.part("arguments")
    values = {name: _text(arguments, name) for name in arguments}
    switches = {name: _text(plugin, name) for name in plugin if name.startswith(_SWITCHES)}
    return {name: value for name, value in {**values, **switches}.items() if value}


def _text(part: ObjectPart, name: str) -> str:
    value = part.raw(name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    return part.text(name)


def _unread_volcano(root: ObjectPart, config: VolcanoConfig) -> Iterator[str]:
    if not config.actions:
        yield "actions is empty: nothing is scheduled"
    for action in config.actions:
        if action not in _KNOWN_ACTIONS:
            yield f"action {action}: not followed"
    for plugin in sorted(config.plugins - _FOLLOWED - _HARMLESS):
        yield f"plugin {plugin}: {_OTHERS.get(plugin, 'nothing is known of it')}; not followed"
    for plugin, values in sorted(config.arguments.items()):
        if off := [name for name, value in values.items() if _is_switched_off(plugin, name, value)]:
            yield f"plugin {plugin} has {', '.join(off)} false: its rules are taken as switched on"
    for each in root.parts("configurations"):
        names = [name for name in each.part("arguments") if name not in _HARMLESS_ARGUMENTS]
        if names and each.text("name") in config.actions:
            yield f"configurations of action {each.text('name')} ({', '.join(names)}): not followed"


def _is_switched_off(plugin: str, name: str, value: str) -> bool:
    """Except what the chart itself switches off: gangs and shares that protect no victims."""
    by_chart: Mapping[str, str] = {"gang": "enablePreemptable", "drf": "enablePreemptable"}
    return name.startswith(_SWITCHES) and value == "false" and by_chart.get(plugin) != name
