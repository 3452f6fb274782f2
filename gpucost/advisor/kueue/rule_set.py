"""Which of Kueue's rules an answer follows, and where the cluster's own may differ.

Gates and their defaults: kueue v0.19.2, pkg/features/kube_features.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpucost.cluster.objects.scheduler_config import KueueConfig

RULES = (0, 19, 2)
"""The version of Kueue whose rules are followed."""

_NAME = ".".join(map(str, RULES))
_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FeatureGateRule:
    """A feature gate that decisions depend on. ``is_on`` is its default in the rules that are followed, which
    hold as if it had that value. With ``fair_sharing`` it counts only there, with ``classical`` not there."""

    is_on: bool
    decides: str
    fair_sharing: bool = False
    classical: bool = False


GATES = {
    "AllAlpha": FeatureGateRule(False, "every alpha feature"),
    "AllBeta": FeatureGateRule(True, "every beta feature"),  # those off by default change reasons only
    "AdmissionFairSharing": FeatureGateRule(
        True, "whose workload is first in a queue with admission fair sharing"
    ),
    "AdmissionGatedBy": FeatureGateRule(True, "whether annotations hold a workload back"),
    "ConcurrentAdmission": FeatureGateRule(False, "whether several flavors are tried at once"),
    "ConfigurablePreemptions": FeatureGateRule(False, "who may be preempted"),
    "DynamicQuotaOrchestration": FeatureGateRule(False, "how much quota there is"),
    "FairSharingPreemptWithinNominal": FeatureGateRule(
        True, "whether a queue within its nominal quota preempts whatever the shares", fair_sharing=True
    ),
    "FairSharingPrioritizeNonBorrowing": FeatureGateRule(
        True, "whether who does not borrow goes before shares", fair_sharing=True
    ),
    "FairSharingReevaluatePreemptionCandidates": FeatureGateRule(
        False, "which victims are looked at again", fair_sharing=True
    ),
    "FlavorFungibility": FeatureGateRule(True, "which flavor is taken"),
    "FlavorFungibilityImplicitPreferenceDefault": FeatureGateRule(False, "which flavor is preferred"),
    "FlavorFungibilityPreserveScanProgress": FeatureGateRule(True, "at which flavor the next cycle begins"),
    "HierarchicalCohorts": FeatureGateRule(True, "whether cohorts have parents"),
    "KueueDRAIntegration": FeatureGateRule(True, "whether devices of resource claims count as quota"),
    "LendingLimit": FeatureGateRule(True, "whether lending limits hold"),
    "LocalQueueDefaulting": FeatureGateRule(True, "which queue a job without a queue name gets"),
    "PartialAdmission": FeatureGateRule(True, "whether fewer pods are admitted than asked for"),
    "PreemptionProtection": FeatureGateRule(False, "whether young workloads can be preempted"),
    "PrioritizePreemptorWorkloads": FeatureGateRule(False, "who goes first after a preemption"),
    "PriorityBoost": FeatureGateRule(False, "the priority of workloads with the annotation priority-boost"),
    "PrioritySortingWithinCohort": FeatureGateRule(
        True, "whether priority orders the workloads of a cohort", classical=True
    ),
    "QuotaCheckStrategy": FeatureGateRule(
        True, "whether resources that a queue does not declare are ignored"
    ),
    "ReclaimablePods": FeatureGateRule(True, "whether pods that are done give their quota back"),
    "RecomputeAssignmentUponPreemptionTargetsOverlap": FeatureGateRule(
        False, "what happens to two workloads that want the same victims"
    ),
    "SchedulerTimestampPreemptionBuffer": FeatureGateRule(
        False, "whether workloads of nearly the same age preempt"
    ),
    "SchedulingEquivalenceHashing": FeatureGateRule(True, "which workloads are parked together"),
    "TASBalancedPlacement": FeatureGateRule(False, "where topology-aware pods are placed"),
    "TASHandleOverlappingFlavors": FeatureGateRule(True, "what counts as free where flavors share nodes"),
    "TASMultiLayerTopology": FeatureGateRule(True, "how many levels a topology request may name"),
    "TASProfileLeastFreeCapacity": FeatureGateRule(False, "where topology-aware pods are placed"),
    "TASProfileMixed": FeatureGateRule(True, "where topology-aware pods are placed"),
    "TASRespectNodeAffinityPreferred": FeatureGateRule(False, "which nodes topology-aware pods prefer"),
    "TopologyAwareScheduling": FeatureGateRule(True, "whether Kueue looks at nodes at all"),
    "WorkloadPriorityClassDefaulting": FeatureGateRule(
        False, "the priority of jobs without a priority class"
    ),
}
"""By name. Gates that change only metrics, reasons, validation or timing are not among them."""


def named(config: KueueConfig) -> str:
    """The rules that an answer follows, as a person reads it: version, and the kind of preemption."""
    if not config.fair_sharing:
        return f"Kueue {_NAME}, classical preemption"
    return f"Kueue {_NAME}, fair sharing ({', '.join(config.strategies)})"


def drift(config: KueueConfig) -> tuple[str, ...]:
    """Where the cluster may decide otherwise than these rules, in sentences; empty where no difference is
    known: version, what could not be read, gates, settings that are not followed."""
    return tuple(_drift(config))


def _drift(config: KueueConfig) -> Iterator[str]:
    if about := _of_version(config.version):
        yield about
    if not config.is_read:
        yield "Kueue's Configuration was not read: Kueue's defaults are assumed"
    for name, is_on in sorted(config.gates.items()):
        gate = GATES.get(name)
        if gate is None or is_on == gate.is_on:
            continue
        if (gate.fair_sharing and not config.fair_sharing) or (gate.classical and config.fair_sharing):
            continue
        yield f"feature gate {name} is {_switch(is_on)}, by default {_switch(gate.is_on)}: {gate.decides}"
    if config.block_admission:
        yield "waitForPodsReady.blockAdmission holds everybody back while pods of others start: not followed"
    for each in config.unread:
        yield f"Kueue's Configuration: {each}"


def _of_version(version: str) -> str:
    """What another version means; empty for the one whose rules these are."""
    if not version:
        return f"which version of Kueue runs is not known: the rules are those of {_NAME}"
    found = _VERSION.fullmatch(version)
    if found is None or found[3] is None:
        return f"Kueue runs as {version}, which names no release: the rules are those of {_NAME}"
    minor, patch, build = (int(found[1]), int(found[2])), int(found[3]), found[4]
    if minor != RULES[:2]:
        age = "an older" if minor < RULES[:2] else "a newer"
        return (
            f"Kueue {version} runs, {age} minor version: the rules are those of {_NAME}, and decisions can "
            "be others, above all which flavor is taken and who is preempted"
        )
    if patch != RULES[2]:
        age = "an older" if patch < RULES[2] else "a newer"
        return f"Kueue {version} runs, {age} patch: the rules are those of {_NAME}, details can differ"
    return f"Kueue {version} runs, a build of its own: the rules are those of {_NAME}" if build else ""


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"
