"""What Kueue's reasons of an eviction mean to a person."""

from __future__ import annotations

import pytest

from gpucost.cluster.objects.kueue import EvictionReason, eviction_meaning


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("FlavorMigration", "it moves to a flavor that its ClusterQueue prefers"),
        ("InCohortReclamation", "a queue of its cohort took its own quota back"),
        ("DeactivatedDueToRequeuingLimitExceeded", "it was deactivated: it was put back too often"),
        (
            "DeactivatedDueToEvictedOnManagerCluster",
            "it was deactivated: the cluster that sent it here evicted it",
        ),
        ("DeactivatedDueToNew", "it was deactivated: New"),
        ("New", "it gave its quota back"),
        ("NewDueToOld", "it gave its quota back: Old"),
    ],
)
def test_what_a_reason_means(reason: str, meaning: str) -> None:
    assert eviction_meaning(reason) == meaning


def test_every_reason_has_a_meaning_of_its_own() -> None:
    meanings = [eviction_meaning(each) for each in EvictionReason]
    assert len(set(meanings)) == len(EvictionReason)
    assert eviction_meaning("New") not in meanings
