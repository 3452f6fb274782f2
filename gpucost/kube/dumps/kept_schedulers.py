"""What a dump keeps of what says how Kueue and Volcano run: of two ConfigMaps those settings that decide who
is admitted, of two Deployments the version and the feature gates. No registry, no other argument, and nothing
of ConfigMaps and Deployments of others."""

from __future__ import annotations

import json
from typing import Any

from gpucost.kube.dumps.kept import Keep, Kept, each, fields, named_values, texts
from gpucost.kube.dumps.kept_kueue import SELECTOR
from gpucost.kube.dumps.kept_pods import NAMED, TEMPLATE, TEMPLATE_METADATA
from gpucost.kube.parse.scheduler_objects import (
    KUEUE_KEY,
    VOLCANO_KEY,
    as_argument,
    document,
    gates_in,
    scheduler_image,
)

_BROKEN = "["
"""Stands for text that is no configuration: whoever reads the dump finds none either."""

_KUEUE = fields(
    *("apiVersion", "kind", "namespace", "manageJobsWithoutQueueName"),
    fairSharing=fields("enable", preemptionStrategies=texts),
    admissionFairSharing=fields(),
    preemptionProtection=fields(),
    waitForPodsReady=fields("enable", "blockAdmission", requeuingStrategy=fields("timestamp")),
    resources=fields(
        "quotaCheckStrategy",
        excludeResourcePrefixes=texts,
        transformations=each(fields("input")),
        deviceClassMappings=each(fields("name")),
    ),
    featureGates=named_values,
    integrations=fields(frameworks=texts),
    managedJobsNamespaceSelector=SELECTOR,
)


def _plugin(found: Any) -> Any:
    """With its switches, of which there are many."""
    switches = [name for name in found if isinstance(name, str)] if isinstance(found, dict) else []
    names = [name for name in switches if name.startswith("enable")]
    return fields("name", *names, arguments=named_values)(found)


_VOLCANO = fields(
    "actions",
    tiers=each(fields(plugins=each(_plugin))),
    configurations=each(fields("name", arguments=named_values)),
)


def _text_of(keep: Keep) -> Keep:
    """Text that is a configuration, as JSON."""

    def kept(found: Any) -> Any:
        if not isinstance(found, str):
            return None
        configuration = document(found)
        return _BROKEN if configuration is None else json.dumps(keep(configuration))

    return kept


CONFIG_MAP: Kept = {"data": fields(**{KUEUE_KEY: _text_of(_KUEUE), VOLCANO_KEY: _text_of(_VOLCANO)})}


def _container(found: Any) -> Any:
    image = scheduler_image(found.get("image")) if isinstance(found, dict) else ""
    if not image:
        return NAMED(found)
    return {**NAMED(found), "image": image, "args": [as_argument(gates_in(found.get("args")))]}


DEPLOYMENT_TEMPLATE = fields(
    metadata=TEMPLATE_METADATA, spec=fields(**{**TEMPLATE, "containers": each(_container)})
)
