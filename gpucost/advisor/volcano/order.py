"""Whose turn it is: queues and jobs in the order of the configured plugins.

Sources: volcano, pkg/scheduler/framework/session_plugins.go (QueueOrderFn, JobOrderFn), plugins priority,
gang and drf, v1.15.1. Plugins are asked in the order of their tiers; the first that sees a difference
decides, then the older one goes first, then the smaller uid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from gpucost.advisor.volcano.amounts import Amounts, counted, share
from gpucost.advisor.volcano.gang import Gang
from gpucost.advisor.volcano.queues import Queues
from gpucost.cluster.scheduling import VolcanoConfig

Key: TypeAlias = tuple[float | str, ...]


@dataclass
class Turn:
    """A job while a session runs: what it has got. ``ready`` and ``left`` are pods by place in its tasks."""

    gang: Gang
    least: int
    ready: dict[str, int]
    left: list[int]
    allocated: Amounts = field(default_factory=dict)

    @classmethod
    def of(cls, gang: Gang, has_gangs: bool) -> Turn:
        """Without the plugin gang every pod starts on its own."""
        least = gang.min_member if has_gangs else 1
        left = [task.count for task in gang.tasks]
        return cls(gang, least, dict(gang.ready), left, counted(gang.allocated))

    @property
    def is_ready(self) -> bool:
        return self.gang.is_ready(self.ready, self.least)

    @property
    def waits(self) -> bool:
        """Whether pods of it have no node."""
        return any(self.left)


def job_key(turn: Turn, config: VolcanoConfig, total: Amounts) -> Key:
    """Smaller goes first: higher priority, not ready before ready, the smaller dominant share."""
    found: list[float | str] = []
    for plugin in (name for tier in config.tiers for name in tier):
        if plugin == "priority":
            found.append(-turn.gang.priority)
        elif plugin == "gang":
            found.append(1 if turn.is_ready else 0)
        elif plugin == "drf":
            found.append(share(turn.allocated, total, total))
    gang = turn.gang
    return (*found, gang.created_ms, gang.uid or "~", gang.namespace, gang.name)


def queue_key(name: str, queues: Queues) -> Key:
    """Smaller goes first: higher priority, the smaller share of what it deserves."""
    meta = queues.attrs[name].queue.meta
    return (*queues.order(name), meta.created_ms, meta.uid)
