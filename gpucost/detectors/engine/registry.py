"""Every rule under its name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucost.contract.frames import (
    ACTIVITY,
    DEMAND,
    DOMAINS,
    EVICTIONS,
    HEALTH,
    QUOTAS,
    STALLS,
    FrameSpec,
)
from gpucost.detectors.findings import RuleDetection, WastePattern
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.rule_settings import SETTINGS_BY_PATTERN, DetectorSettings, ScopedSettings
from gpucost.detectors.rules import (
    cpu_only_pods,
    gang_stall,
    monopoly,
    not_advertised,
    nvlink_domain,
    preemption_waste,
    reserved_unused,
    topology_spread,
    unhealthy_allocated,
)
from gpucost.detectors.rules.fragmentation import fragmentation_rule
from gpucost.detectors.rules.idle_allocation import idle_allocation_rule
from gpucost.detectors.rules.oversized_request import oversized_request_rule
from gpucost.detectors.rules.quota_starvation import quota_starvation_rule


@dataclass(frozen=True, slots=True)
class DetectorRule:
    """One rule: the model of its settings, its function, and the frames that it cannot do without."""

    settings: type[DetectorSettings]
    run: Callable[[DetectorFacts, ScopedSettings[Any]], RuleDetection]
    needs: tuple[FrameSpec, ...] = ()


_NEEDS: Mapping[WastePattern, tuple[FrameSpec, ...]] = {
    WastePattern.GANG_STALL: (STALLS,),
    WastePattern.PREEMPTION_WASTE: (EVICTIONS,),
    WastePattern.IDLE_ALLOCATION: (ACTIVITY,),
    WastePattern.OVERSIZED_REQUEST: (ACTIVITY,),
    WastePattern.QUOTA_STARVATION: (DEMAND, QUOTAS),
    WastePattern.FRAGMENTATION: (DEMAND,),
    WastePattern.NVLINK_DOMAIN: (DEMAND, DOMAINS),
    WastePattern.MONOPOLY: (DEMAND,),
    WastePattern.RESERVED_UNUSED: (QUOTAS,),
    WastePattern.UNHEALTHY_ALLOCATED: (HEALTH,),
}

RULES: Mapping[WastePattern, DetectorRule] = {
    module.NAME: DetectorRule(SETTINGS_BY_PATTERN[module.NAME], module.run, _NEEDS.get(module.NAME, ()))
    for module in (
        not_advertised,
        unhealthy_allocated,
        gang_stall,
        preemption_waste,
        idle_allocation_rule,
        oversized_request_rule,
        quota_starvation_rule,
        nvlink_domain,
        fragmentation_rule,
        cpu_only_pods,
        topology_spread,
        reserved_unused,
        monopoly,
    )
}
