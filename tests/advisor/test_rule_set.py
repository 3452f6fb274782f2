"""Which rules an answer names, and what it says of a cluster that runs others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.advisor.kueue.rule_set import CHANGES, GATES, RULES, KueueRelease, drift, holds, named
from gpucost.cluster.objects.scheduler_config import FINAL_SHARE, KueueConfig

SAME = KueueConfig("v0.19.2", is_read=True)


def test_the_rules_are_named_with_their_preemption() -> None:
    assert named(SAME) == "Kueue 0.19.2, classical preemption"
    fair = replace(SAME, fair_sharing=True)
    assert named(fair) == "Kueue 0.19.2, fair sharing (LessThanOrEqualToFinalShare, LessThanInitialShare)"
    alone = replace(fair, strategies=(FINAL_SHARE,))
    assert named(alone) == "Kueue 0.19.2, fair sharing (LessThanOrEqualToFinalShare)"


@pytest.mark.parametrize(
    ("version", "runs"),
    [
        ("0.19.2", ""),
        ("v0.18.1", " (v0.18.1 runs)"),
        ("v0.20.0", " (v0.20.0 runs)"),
        ("v0.19.2-rc.1", " (v0.19.2-rc.1 runs)"),
        ("main", " (main runs)"),
        ("", " (which version runs is not known)"),
    ],
)
def test_what_runs_is_named_beside_the_rules_unless_it_is_the_same(version: str, runs: str) -> None:
    assert named(replace(SAME, version=version)) == f"Kueue 0.19.2{runs}, classical preemption"


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
    beta += " VectorizedResourceRequests"
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


GATED_BY = "whether annotations hold a workload back (gate AdmissionGatedBy)"
PROGRESS = "at which flavor the next cycle begins (gate FlavorFungibilityPreserveScanProgress)"
SELECTOR = "a node selector by a label of another flavor"
SHARES = "who does not borrow goes before shares"


@pytest.mark.parametrize(
    ("version", "differ", "hold"),
    [
        ("v0.19.0", [PROGRESS, "without candidates for preemption"], [GATED_BY, SELECTOR]),
        ("v0.18.6", [GATED_BY], [PROGRESS, SELECTOR, "without candidates for preemption"]),
        ("v0.18.5-gke.1", [GATED_BY], [PROGRESS, SELECTOR]),
        ("v0.18.1", [GATED_BY, PROGRESS, SELECTOR], ["preference prefers"]),
        ("v0.17.6", [GATED_BY, "parked together"], [SELECTOR, "preference prefers"]),
        ("v0.16.1", [SELECTOR, "preference prefers", "after one below them was deleted"], ["at the head of"]),
        (
            "v0.13.5",
            ["at the head of", "whether Kueue looks at nodes at all"],
            ["of several flavors that borrow"],
        ),
        (
            "v0.12.2",
            ["can be had by preemption", "of several flavors that borrow"],
            ["which queue a job without"],
        ),
    ],
)
def test_an_older_version_is_told_by_what_it_decides_otherwise(
    version: str, differ: list[str], hold: list[str]
) -> None:
    """By the releases in which Kueue's changelogs and feature gates have each change."""
    (about,) = drift(replace(SAME, version=version))
    assert "and these differ: " in about
    assert [each for each in differ if each not in about] == []
    assert [each for each in hold if each in about] == []


@pytest.mark.parametrize("release", [(0, 16, 3), (0, 15, 6)])
def test_releases_that_had_a_gate_on_for_once_are_no_rule(release: KueueRelease) -> None:
    """SchedulingEquivalenceHashing was on in these two, off after them, and on again from 0.18."""
    after = (*release[:2], release[2] + 1)
    told = [drift(replace(SAME, version="v" + ".".join(map(str, each))))[0] for each in (release, after)]
    assert ["parked together" in each for each in told] == [False, True]


def test_what_counts_under_fair_sharing_only_differs_there_only() -> None:
    older = replace(SAME, version="v0.16.1")
    (classical,) = drift(older)
    (fair,) = drift(replace(older, fair_sharing=True))
    assert (SHARES in classical, SHARES in fair) == (False, True)
    assert "borrowing in trees of cohorts" in fair
    assert "borrowing in trees of cohorts" not in classical


def test_a_gate_that_is_set_is_judged_by_its_value_and_not_by_the_version() -> None:
    older = replace(SAME, version="v0.18.6", gates={"AdmissionGatedBy": True})
    assert GATED_BY not in drift(older)[0]
    _, said = drift(replace(older, gates={"AdmissionGatedBy": False}))
    assert said.startswith("feature gate AdmissionGatedBy is off")


def test_undeclared_resources_differ_only_where_they_are_to_be_ignored() -> None:
    older = replace(SAME, version="v0.18.6")
    assert "QuotaCheckStrategy" not in drift(older)[0]
    assert "QuotaCheckStrategy" in drift(replace(older, ignores_undeclared=True))[0]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("v0.19.1", "nothing is known that it decides otherwise"),
        ("v0.20.0", "which of them changed is not known"),
        ("v0.11.9", "what versions before 0.12 decide otherwise was never looked up"),
    ],
)
def test_what_is_not_known_of_a_version_is_said_and_how_to_find_out(version: str, said: str) -> None:
    (about,) = drift(replace(SAME, version=version))
    assert said in about
    assert "differ:" not in about
    assert about.endswith("gpucost advisor record and verify tell whether they still hold")


def test_releases_are_in_order_with_every_branch_and_none_is_newer_than_the_rules() -> None:
    """``holds`` relies on it."""
    every = [each.since for each in CHANGES] + [gate.since for gate in GATES.values() if gate.since]
    for since in every:
        minors = [each[1] for each in since]
        assert minors == list(range(minors[0], minors[0] + len(minors)))
        assert all(holds(since, each) for each in (*since, RULES))
        assert not holds(since, (0, minors[0] - 1, 99))
