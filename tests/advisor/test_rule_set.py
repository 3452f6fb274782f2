"""Which rules an answer names, and what it says of a cluster that runs others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.advisor.kueue.rule_set import GATES, drift, named
from gpucost.cluster.objects.scheduler_config import FINAL_SHARE, KueueConfig

SAME = KueueConfig("v0.19.2", is_read=True)


def test_the_rules_are_named_with_their_preemption() -> None:
    assert named(SAME) == "Kueue 0.19.2, classical preemption"
    fair = replace(SAME, version="v0.16.0", fair_sharing=True)
    assert named(fair) == "Kueue 0.19.2, fair sharing (LessThanOrEqualToFinalShare, LessThanInitialShare)"
    alone = replace(fair, strategies=(FINAL_SHARE,))
    assert named(alone) == "Kueue 0.19.2, fair sharing (LessThanOrEqualToFinalShare)"


def test_the_same_version_with_its_defaults_does_not_drift() -> None:
    assert drift(SAME) == ()
    assert drift(replace(SAME, version="0.19.2")) == ()
    at_default = {name: gate.is_on for name, gate in GATES.items()}
    assert drift(replace(SAME, gates={**at_default, "VisibilityOnDemand": False})) == ()


def test_what_nobody_could_read_is_said() -> None:
    version, defaults = drift(KueueConfig())
    assert "not known" in version
    assert defaults == "Kueue's Configuration was not read: Kueue's defaults are assumed"
    assert drift(KueueConfig("v0.19.2")) == (defaults,)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("v0.19.1", "an older patch"),
        ("v0.19.10", "a newer patch"),
        ("v0.18.6", "an older minor version"),
        ("v0.20.0-devel", "a newer minor version"),
        ("v1.0.0", "a newer minor version"),
        ("v0.19.2-rc.1", "a build of its own"),
        ("v0.19.2\n", "a build of its own"),
        ("main", "names no release"),
        ("v0.19", "names no release"),
        ("9" * 30, "names no release"),
    ],
)
def test_another_version_is_named_with_what_it_means(version: str, words: str) -> None:
    (about,) = drift(replace(SAME, version=version))
    assert words in about
    assert version in about
    assert "the rules are those of 0.19.2" in about


def test_the_gates_that_are_on_by_default() -> None:
    """pkg/features/kube_features.go of Kueue 0.19.2, those that decide something."""
    beta = "AllBeta AdmissionFairSharing AdmissionGatedBy FairSharingPreemptWithinNominal"
    beta += " FairSharingPrioritizeNonBorrowing FlavorFungibility FlavorFungibilityPreserveScanProgress"
    beta += " HierarchicalCohorts KueueDRAIntegration LendingLimit LocalQueueDefaulting PartialAdmission"
    beta += " PrioritySortingWithinCohort QuotaCheckStrategy ReclaimablePods SchedulingEquivalenceHashing"
    beta += " TASHandleOverlappingFlavors TASMultiLayerTopology TASProfileMixed TopologyAwareScheduling"
    assert {name for name, gate in GATES.items() if gate.is_on} == set(beta.split())


def test_gates_drift_where_they_decide_something() -> None:
    gates = {"PartialAdmission": False, "FlavorFungibility": True, "PriorityBoost": True, "Unheard": True}
    first, second = drift(replace(SAME, gates=gates))
    assert first.startswith("feature gate PartialAdmission is off, by default on: ")
    assert second.startswith("feature gate PriorityBoost is on, by default off: ")


def test_gates_of_the_other_preemption_do_not_drift() -> None:
    gates = {"FairSharingPreemptWithinNominal": False, "PrioritySortingWithinCohort": False}
    (classical,) = drift(replace(SAME, gates=gates))
    (fair,) = drift(replace(SAME, gates=gates, fair_sharing=True))
    assert "PrioritySortingWithinCohort" in classical
    assert "FairSharingPreemptWithinNominal" in fair


def test_settings_that_are_not_followed_drift() -> None:
    assert drift(replace(SAME, unread=("preemptionProtection: not followed",))) == (
        "Kueue's Configuration: preemptionProtection: not followed",
    )
