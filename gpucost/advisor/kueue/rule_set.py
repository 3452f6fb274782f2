"""Which of Kueue's rules an answer follows, since when they hold, and where the cluster's own may differ.

Gates and their defaults: kueue v0.19.2, pkg/features/kube_features.go. What an older release decides
otherwise is looked up (``CHANGES``); what a newer one does is not known, and not guessed.

A fix is made on several branches, so a rule has a first release on each; on later branches it holds from the
start. Gates: pkg/features/kube_features.go of each release from v0.9.0 to v0.19.2. All else:
CHANGELOG/CHANGELOG-0.12.md to CHANGELOG-0.19.md of kueue, by the pull request that stands beside it. What a
changelog does not say is not here, so that no difference known is not yet the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpucost.cluster.objects.scheduler_config import KueueConfig

KueueRelease = tuple[int, int, int]
"""Major, minor, patch."""
Since = tuple[KueueRelease, ...]
"""The first release on each branch, ascending, no branch between them left out; empty: always there."""

OLDEST = (0, 12)
"""The oldest minor version whose differences were looked up."""
CHECKED = "2026-08-22"
"""When changelogs and gates were last read."""

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(.*)", re.DOTALL)
RULES = (0, 19, 2)
"""The version of Kueue whose rules are followed."""

_NAME = ".".join(map(str, RULES))
_HOW_TO_TELL = "gpucost advisor record and verify tell whether they still hold"


class NamedRelease(NamedTuple):
    """``build`` is what follows the numbers (``-rc.1``), empty for a release itself."""

    release: KueueRelease
    build: str


def release_of(version: str) -> NamedRelease | None:
    """Of ``v0.19.2``, ``0.19.2`` or ``v0.19.2-rc.1``; None for what names no release, such as ``main``."""
    found = _VERSION.fullmatch(version)
    if found is None or found[3] is None:
        return None
    return NamedRelease((int(found[1]), int(found[2]), int(found[3])), found[4])


def holds(since: Since, release: KueueRelease) -> bool:
    """Whether a rule is in a release, at most that of the rules that are followed."""
    if not since:
        return True
    on_branch = [each for each in since if each[:2] == release[:2]]
    return release >= (on_branch or since[-1:])[0]


class RuleChange(NamedTuple):
    """A rule without a feature gate. ``decides`` says what is otherwise without it; ``source`` are upstream's
    pull requests. With ``fair_sharing`` it counts only there."""

    decides: str
    since: Since
    source: str
    fair_sharing: bool = False


CHANGES = (
    RuleChange(
        "whether a flavor without candidates for preemption goes before one that fits, with the preference "
        "PreemptionOverBorrowing",
        ((0, 18, 5), (0, 19, 1)),
        "#13896, #13903",
    ),
    RuleChange(
        "the usage by which admission fair sharing orders: penalties at admission, weights of 0",
        ((0, 18, 5), (0, 19, 1)),
        "#13481, #13559, #13851",
    ),
    RuleChange(
        "whether a node selector by a label of another flavor of its group keeps a workload waiting",
        ((0, 17, 6), (0, 18, 2), (0, 19, 0)),
        "#12449",
    ),
    RuleChange(
        "what cohorts lend after one below them was deleted",
        ((0, 16, 7), (0, 17, 2), (0, 18, 0)),
        "#10840, #10842",
    ),
    RuleChange(
        "who counts as borrowing in trees of cohorts",
        ((0, 15, 8), (0, 16, 5), (0, 17, 0)),
        "#10149, #10201, #10203",
        fair_sharing=True,
    ),
    RuleChange(
        "what flavorFungibility.preference prefers, whose two values were swapped or not there",
        ((0, 16, 2), (0, 17, 0)),
        "#9464, #9486, #7316",
    ),
    RuleChange(
        "whether a workload that waits for its victims stays at the head of a BestEffortFIFO queue",
        ((0, 13, 6), (0, 14, 1), (0, 15, 0)),
        "#7197, #7202",
    ),
    RuleChange(
        "which of several flavors that borrow is taken",
        ((0, 13, 5), (0, 14, 1)),
        "CHANGELOG-0.14.md under v0.14.1",
    ),
    RuleChange(
        "how shares are rounded, and what a weight of 0 means",
        ((0, 13, 5), (0, 14, 1)),
        "#6925, #6994",
        fair_sharing=True,
    ),
    RuleChange(
        "who is preempted where shares are equal, or where a queue takes its nominal quota back",
        ((0, 12, 9), (0, 13, 4), (0, 14, 1)),
        "#6784, #6800, #6617",
        fair_sharing=True,
    ),
    RuleChange(
        "whether a flavor counts as one that can be had by preemption",
        ((0, 12, 3), (0, 13, 0)),
        "#5700",
    ),
)
"""Newest first. Only what decides about quota, flavors, order and victims."""


@dataclass(frozen=True, slots=True)
class FeatureGateRule:
    """A feature gate that decisions depend on. ``is_on`` is its default in the rules that are followed, which
    hold as if it had that value. With ``fair_sharing`` it counts only there, with ``classical`` not there.
    One that is on by default decides so ``since`` these releases, and in ``also`` before."""

    is_on: bool
    decides: str
    fair_sharing: bool = False
    classical: bool = False
    since: Since = ()
    also: tuple[KueueRelease, ...] = ()

    def counts_for(self, config: KueueConfig) -> bool:
        """Whether it decides anything with the kind of preemption that is configured."""
        return not (
            (self.fair_sharing and not config.fair_sharing) or (self.classical and config.fair_sharing)
        )


GATES = {
    "AllAlpha": FeatureGateRule(False, "every alpha feature"),
    "AllBeta": FeatureGateRule(True, "every beta feature"),  # those off by default change reasons only
    "AdmissionFairSharing": FeatureGateRule(
        True, "whose workload is first in a queue with admission fair sharing", since=((0, 15, 0),)
    ),
    "AdmissionGatedBy": FeatureGateRule(
        True, "whether annotations hold a workload back", since=((0, 19, 0),)
    ),
    "ConcurrentAdmission": FeatureGateRule(False, "whether several flavors are tried at once"),
    "ConfigurablePreemptions": FeatureGateRule(False, "who may be preempted"),
    "DynamicQuotaOrchestration": FeatureGateRule(False, "how much quota there is"),
    "FairSharingPreemptWithinNominal": FeatureGateRule(
        True,
        "whether a queue within its nominal quota preempts whatever the shares",
        fair_sharing=True,
        since=((0, 15, 6), (0, 16, 3), (0, 17, 0)),
    ),
    "FairSharingPrioritizeNonBorrowing": FeatureGateRule(
        True,
        "whether who does not borrow goes before shares",
        fair_sharing=True,
        since=((0, 15, 5), (0, 16, 2), (0, 17, 0)),
    ),
    "FairSharingReevaluatePreemptionCandidates": FeatureGateRule(
        False, "which victims are looked at again", fair_sharing=True
    ),
    "FlavorFungibility": FeatureGateRule(True, "which flavor is taken"),
    "FlavorFungibilityImplicitPreferenceDefault": FeatureGateRule(False, "which flavor is preferred"),
    "FlavorFungibilityPreserveScanProgress": FeatureGateRule(
        True, "at which flavor the next cycle begins", since=((0, 18, 5), (0, 19, 1))
    ),
    "HierarchicalCohorts": FeatureGateRule(True, "whether cohorts have parents"),
    "KueueDRAIntegration": FeatureGateRule(
        True, "whether devices of resource claims count as quota", since=((0, 18, 0),)
    ),
    "LendingLimit": FeatureGateRule(True, "whether lending limits hold"),
    "LocalQueueDefaulting": FeatureGateRule(
        True, "which queue a job without a queue name gets", since=((0, 12, 0),)
    ),
    "PartialAdmission": FeatureGateRule(True, "whether fewer pods are admitted than asked for"),
    "PreemptionProtection": FeatureGateRule(False, "whether young workloads can be preempted"),
    "PrioritizePreemptorWorkloads": FeatureGateRule(False, "who goes first after a preemption"),
    "PriorityBoost": FeatureGateRule(False, "the priority of workloads with the annotation priority-boost"),
    "PrioritySortingWithinCohort": FeatureGateRule(
        True, "whether priority orders the workloads of a cohort", classical=True
    ),
    "QuotaCheckStrategy": FeatureGateRule(
        True, "whether resources that a queue does not declare are ignored", since=((0, 19, 0),)
    ),
    "ReclaimablePods": FeatureGateRule(True, "whether pods that are done give their quota back"),
    "RecomputeAssignmentUponPreemptionTargetsOverlap": FeatureGateRule(
        False, "what happens to two workloads that want the same victims"
    ),
    "SchedulerTimestampPreemptionBuffer": FeatureGateRule(
        False, "whether workloads of nearly the same age preempt"
    ),
    "SchedulingEquivalenceHashing": FeatureGateRule(
        True, "which workloads are parked together", since=((0, 18, 0),), also=((0, 15, 6), (0, 16, 3))
    ),
    "TASBalancedPlacement": FeatureGateRule(False, "where topology-aware pods are placed"),
    "TASHandleOverlappingFlavors": FeatureGateRule(
        True, "what counts as free where flavors share nodes", since=((0, 18, 0),)
    ),
    "TASMultiLayerTopology": FeatureGateRule(
        True, "how many levels a topology request may name", since=((0, 19, 0),)
    ),
    "TASProfileLeastFreeCapacity": FeatureGateRule(False, "where topology-aware pods are placed"),
    "TASProfileMixed": FeatureGateRule(True, "where topology-aware pods are placed", since=((0, 15, 0),)),
    "TASRespectNodeAffinityPreferred": FeatureGateRule(False, "which nodes topology-aware pods prefer"),
    "TopologyAwareScheduling": FeatureGateRule(
        True, "whether Kueue looks at nodes at all", since=((0, 14, 0),)
    ),
    "VectorizedResourceRequests": FeatureGateRule(
        True, "in which order resources are tried", since=((0, 17, 8), (0, 18, 4), (0, 19, 0))
    ),
    "WorkloadPriorityClassDefaulting": FeatureGateRule(
        False, "the priority of jobs without a priority class"
    ),
}
"""By name. Gates that change only metrics, reasons, validation or timing are not among them."""


def named(config: KueueConfig) -> str:
    """The rules that an answer follows, as a person reads it: version, the kind of preemption, and what the
    cluster runs where that is another version, or not known."""
    kind = f"fair sharing ({', '.join(config.strategies)})" if config.fair_sharing else "classical preemption"
    return f"Kueue {_NAME}{_running(config.version)}, {kind}"


def _running(version: str) -> str:
    known = release_of(version)
    if known is not None and (known.release, known.build) == (RULES, ""):
        return ""
    return f" ({version} runs)" if version else " (which version runs is not known)"


def drift(config: KueueConfig) -> tuple[str, ...]:
    """Where the cluster may decide otherwise than these rules, in sentences; empty where no difference is
    known: version, what could not be read, gates, settings that are not followed."""
    return tuple(_drift(config))


def _drift(config: KueueConfig) -> Iterator[str]:
    if about := _of_version(config):
        yield about
    if not config.is_read:
        yield "Kueue's Configuration was not read: Kueue's defaults are assumed"
    for name, is_on in sorted(config.gates.items()):
        gate = GATES.get(name)
        if gate is None or is_on == gate.is_on or not gate.counts_for(config):
            continue
        yield f"feature gate {name} is {_switch(is_on)}, by default {_switch(gate.is_on)}: {gate.decides}"
    if config.block_admission:
        yield "waitForPodsReady.blockAdmission holds everybody back while pods of others start: not followed"
    for each in config.unread:
        yield f"Kueue's Configuration: {each}"


def _of_version(config: KueueConfig) -> str:
    """What another version means; empty for the one whose rules these are."""
    version = config.version
    if not version:
        return f"which version of Kueue runs is not known: the rules are those of {_NAME}"
    known = release_of(version)
    if known is None:
        return f"Kueue runs as {version}, which names no release: the rules are those of {_NAME}"
    what = "minor version" if known.release[:2] != RULES[:2] else "patch"
    if known.release > RULES:
        changed = f"which of them changed is not known; {_HOW_TO_TELL}"
        return f"Kueue {version} runs, a newer {what}: the rules are those of {_NAME}, and {changed}"
    if known.release < RULES:
        own = ", in a build of its own" if known.build else ""
        says = f"Kueue {version} runs, an older {what}{own}: the rules are those of {_NAME}"
        return f"{says}, and {_otherwise(config, known.release)}"
    return f"Kueue {version} runs, a build of its own: the rules are those of {_NAME}" if known.build else ""


def _otherwise(config: KueueConfig, release: KueueRelease) -> str:
    """What an older release decides otherwise, as far as that was looked up."""
    if release[:2] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"what versions before {oldest} decide otherwise was never looked up; {_HOW_TO_TELL}"
    found = [*changed_rules(config, release)]
    if not found:
        return f"nothing is known that it decides otherwise; {_HOW_TO_TELL}"
    return f"these differ: {'; '.join(found)}"


def changed_rules(config: KueueConfig, release: KueueRelease) -> Iterator[str]:
    """What an older release lacks of these rules: gates that are set one by one are not among them, nor what
    counts with the other kind of preemption only."""
    for name, gate in GATES.items():
        if name in config.gates or not gate.counts_for(config):
            continue
        if name == "QuotaCheckStrategy" and not config.ignores_undeclared:
            continue
        if gate.is_on and not holds(gate.since, release) and release not in gate.also:
            yield f"{gate.decides} (gate {name})"
    for each in CHANGES:
        if not holds(each.since, release) and (config.fair_sharing or not each.fair_sharing):
            yield each.decides


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"
