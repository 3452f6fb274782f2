"""volcano-scheduler.conf: actions, plugins in tiers, and their arguments.

Form: volcano v1.15.1, pkg/scheduler/conf/scheduler_conf.go; where it cannot be read Volcano's own fallback
has the same actions and plugins as its chart, but for binpack (pkg/scheduler/util.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpucost.cluster.scheduling import VOLCANO_ACTIONS, VOLCANO_TIERS, VolcanoConfig
from gpucost.kube.parse.reading import Part
from gpucost.kube.parse.scheduler_objects import (
    NOT_DEPLOYED,
    VOLCANO_KEY,
    Deployed,
    document,
    in_words,
)

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
"""Plugins that can change who runs, or where, and what they do."""
_HARMLESS = frozenset({"resource-strategy-fit", "volume-binding"})
_SWITCHES = ("enable", "enabled")
_HARMLESS_ARGUMENTS = frozenset({"predicateErrorCacheEnable"})


def volcano_config(text: str | None, scheduler: Deployed = NOT_DEPLOYED) -> VolcanoConfig:
    """From volcano-scheduler.conf (None: nobody could read it) and the Deployment of the scheduler.

    Never raises: see ``kueue_config``. ``arguments`` have the switches of plugins too, such as
    ``enablePreemptable``: ``"false"``.
    """
    config = VolcanoConfig(scheduler.version)
    if text is None:
        return config
    found = document(text)
    if found is None:
        return replace(config, unread=(f"{VOLCANO_KEY} cannot be read",))
    root = Part(found)
    tiers = [tier.parts("plugins") for tier in root.parts("tiers")]
    actions = tuple(name for each in root.text("actions").split(",") if (name := each.strip()))
    config = replace(
        config,
        actions=actions,
        tiers=tuple(tuple(name for each in tier if (name := each.text("name"))) for tier in tiers),
        arguments={each.text("name"): values for tier in tiers for each in tier if (values := _values(each))},
        is_read=True,
    )
    unread = tuple(_unread(root, config))
    return replace(config, unread=(*unread, *dict.fromkeys(map(in_words, root.flaws))))


def _values(plugin: Part) -> dict[str, str]:
    """Arguments and switches of a plugin, as text."""
    arguments = plugin.part("arguments")
    values = {name: _text(arguments, name) for name in arguments}
    switches = {name: _text(plugin, name) for name in plugin if name.startswith(_SWITCHES)}
    return {name: value for name, value in {**values, **switches}.items() if value}


def _text(part: Part, name: str) -> str:
    value = part.raw(name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    return part.text(name)


def _unread(root: Part, config: VolcanoConfig) -> Iterator[str]:
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
    """But for what the chart switches off itself: gangs and shares that protect no victims."""
    by_chart: Mapping[str, str] = {"gang": "enablePreemptable", "drf": "enablePreemptable"}
    return name.startswith(_SWITCHES) and value == "false" and by_chart.get(plugin) != name
