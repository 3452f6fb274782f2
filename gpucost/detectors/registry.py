"""Every rule under its name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucost.contract.frames import (
    ACTIVITY,
    DEMAND,
    EVICTIONS,
    HEALTH,
    QUOTAS,
    STALLS,
    FrameSpec,
)
from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import Detection, Pattern
from gpucost.detectors.rules import (
    cpu_only_pods,
    fragmentation,
    gang_stall,
    idle_allocation,
    monopoly,
    not_advertised,
    oversized_request,
    preemption_waste,
    quota_starvation,
    reserved_unused,
    topology_spread,
    unhealthy_allocated,
)
from gpucost.detectors.settings import DetectorSettings, Scoped


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its settings' model, what it does, and the frames without which it can say nothing."""

    settings: type[DetectorSettings]
    run: Callable[[Facts, Scoped[Any]], Detection]
    needs: tuple[FrameSpec, ...] = ()


_NEEDS: Mapping[Pattern, tuple[FrameSpec, ...]] = {
    Pattern.GANG_STALL: (STALLS,),
    Pattern.PREEMPTION_WASTE: (EVICTIONS,),
    Pattern.IDLE_ALLOCATION: (ACTIVITY,),
    Pattern.OVERSIZED_REQUEST: (ACTIVITY,),
    Pattern.QUOTA_STARVATION: (DEMAND, QUOTAS),
    Pattern.FRAGMENTATION: (DEMAND,),
    Pattern.MONOPOLY: (DEMAND,),
    Pattern.RESERVED_UNUSED: (QUOTAS,),
    Pattern.UNHEALTHY_ALLOCATED: (HEALTH,),
}

RULES: Mapping[Pattern, Rule] = {
    module.NAME: Rule(module.Settings, module.run, _NEEDS.get(module.NAME, ()))
    for module in (
        not_advertised,
        unhealthy_allocated,
        gang_stall,
        preemption_waste,
        idle_allocation,
        oversized_request,
        quota_starvation,
        fragmentation,
        cpu_only_pods,
        topology_spread,
        reserved_unused,
        monopoly,
    )
}


@dataclass(frozen=True)
class RuleSettings:
    """The settings of every rule; one that is not named has its defaults."""

    given: Mapping[Pattern, Scoped[Any]] = field(default_factory=dict)

    def of(self, pattern: Pattern) -> Scoped[Any]:
        found = self.given.get(pattern)
        return Scoped(RULES[pattern].settings()) if found is None else found

    def only(self, patterns: Collection[Pattern]) -> RuleSettings:
        """These settings with every other rule switched off."""
        return RuleSettings(
            {
                pattern: self.of(pattern) if pattern in patterns else Scoped(rule.settings(enabled=False))
                for pattern, rule in RULES.items()
            }
        )
