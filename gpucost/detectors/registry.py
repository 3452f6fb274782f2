"""Every rule under its name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from gpucost.detectors.rule_settings import MODELS
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
    module.NAME: Rule(MODELS[module.NAME], module.run, _NEEDS.get(module.NAME, ()))
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
