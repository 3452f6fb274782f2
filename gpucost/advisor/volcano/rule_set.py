"""Which rules were restated, and which parts of a scheduler's configuration are not followed."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.cluster.objects.scheduler_config import VolcanoConfig

VERSION = "1.15.1"
RELEASE = "1.15"
FOLLOWED = frozenset({"priority", "gang", "conformance", "overcommit", "drf", "proportion", "capacity"})
"""Plugins whose decisions are restated; ``predicates`` as far as node fit is."""
NO_VOTE = frozenset(
    {
        *("predicates", "nodeorder", "binpack", "network-topology-aware", "task-topology"),
        *("resource-strategy-fit", "resourcestrategyfit"),
    }
)
"""Plugins that only rank nodes or tasks, or whose filter is node fit, which is asked elsewhere."""
VETO_ONLY = frozenset(
    {"resourcequota", "numaaware", "nodegroup", "usage", "deviceshare", "pdb", "cdp", "rescheduling"}
)
"""Plugins that can only hold back more: what waits without them waits with them."""
ACTIONS = frozenset({"enqueue", "allocate", "backfill", "preempt", "reclaim"})
VGPU = "volcano.sh/"
DEVICES = "deviceshare"


@dataclass(frozen=True, slots=True)
class RuleGaps:
    """``doubts`` make every answer but "never" a guess, ``vetoes`` every "now"; ``drift`` holds both, and the
    other differences of the cluster from the rules."""

    doubts: tuple[str, ...]
    vetoes: tuple[str, ...]
    drift: tuple[str, ...]


def rules_named(config: VolcanoConfig) -> str:
    """The rule set in one line: ``Volcano 1.15.1, actions enqueue, allocate, backfill; …``."""
    quota = [name for name in ("proportion", "capacity") if name in config.plugins]
    by = f"queues by {' and '.join(quota)}" if quota else "no quota of queues"
    actions = ", ".join(config.actions) or "none"
    source = "configuration as read" if config.is_read else "default configuration assumed"
    return f"Volcano {VERSION}, actions {actions}, {by}; {source}"


def gaps(config: VolcanoConfig, gang: VolcanoGang) -> RuleGaps:
    """What of the configuration, or of what the gang asks, the rules do not follow."""
    doubts, vetoes, drift = [], [], list(config.unread)
    release = ".".join(config.version.removeprefix("v").split(".")[:2])
    if release and release != RELEASE:
        drift.append(f"the cluster runs Volcano {config.version}; the rules are those of {VERSION}")
    if {"proportion", "capacity"} <= config.plugins:
        doubts.append("the plugins proportion and capacity exclude each other, and both are configured")
    for plugin in sorted(config.plugins - FOLLOWED - NO_VOTE):
        if plugin == DEVICES:
            continue
        if plugin in VETO_ONLY:
            vetoes.append(f"the plugin {plugin} may hold it back; its rules are not followed")
        else:
            doubts.append(f"the plugin {plugin} has a say; its rules are not followed")
    for action in sorted(set(config.actions) - ACTIONS):
        drift.append(f"the action {action} is not followed")
    if "allocate" not in config.actions:
        doubts.append("the action allocate is not configured: nothing is placed by it")
    if flag(config, "drf", "enableHierarchy", False):
        doubts.append("the plugin drf orders queues by a hierarchy (enableHierarchy), which is not followed")
    shares = sorted({key for task in gang.tasks for key in task.template.requests if key.startswith(VGPU)})
    if shares:
        doubts.append(f"it asks for {', '.join(shares)}: shares of GPUs by Volcano's vGPU are not followed")
    doubts += [f"{place} is not followed" for place in gang.unread]
    if any(task.template.claims for task in gang.tasks):
        vetoes.append("its pods ask for devices through claims, which are not followed here")
    if any(task.template.has_pod_affinity for task in gang.tasks):
        vetoes.append("its pods have rules about other pods, which are not followed")
    return RuleGaps(tuple(doubts), tuple(vetoes), (*drift, *doubts, *vetoes))


def flag(config: VolcanoConfig, plugin: str, name: str, default: bool) -> bool:
    """A switch of a plugin (``enablePreemptable``), read from its arguments; ``default`` where these do not
    set it."""
    text = config.arguments.get(plugin, {}).get(name, "").lower()
    return text == "true" if text in ("true", "false") else default
