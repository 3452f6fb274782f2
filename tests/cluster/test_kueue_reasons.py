"""What Kueue's reasons of an eviction mean to a person, and since when an evicted workload waits."""

from __future__ import annotations

import pytest

from gpucost.cluster.objects.kueue import EvictionReason, eviction_meaning
from gpucost.cluster.objects.metadata import StatusCondition
from tests.cluster.builders import MINUTE, T0, condition, workload


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


@pytest.mark.parametrize(
    ("requeued", "minute"),
    [
        (condition(True, "Preempted", "", T0 + 6 * MINUTE), 5),
        (condition(False, "Deactivated", "", T0 + 6 * MINUTE), 5),
        (condition(True, "Reactivated", "", T0 + 90 * MINUTE), 90),
        # From before the last eviction: Kueue keeps it.
        (condition(True, "Reactivated", "", T0 + 2 * MINUTE), 5),
    ],
)
def test_an_evicted_one_waits_since_then_and_a_deactivated_one_since_it_is_active_again(
    requeued: StatusCondition, minute: int
) -> None:
    evicted = condition(True, "Preempted", "", T0 + 5 * MINUTE)
    given = {"Evicted": evicted, "Requeued": requeued, "QuotaReserved": condition(False, "Pending", "", T0)}
    assert workload("train", conditions=given).waiting_since_ms == T0 + minute * MINUTE
