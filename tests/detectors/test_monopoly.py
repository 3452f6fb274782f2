"""One tenant with most of the cluster: what is found, and what speaks against it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpucost.detectors.findings import FindingDraft, FindingSeverity, RuleDetection, SubjectKind
from gpucost.detectors.rule_settings import MonopolySettings, ScopedSettings
from gpucost.detectors.rules.monopoly import ClusterTenancy, ClusterTenant, run
from gpucost.domain.time import HOUR_MS
from tests.detectors.case_monopoly import DAY, lending
from tests.detectors.worlds import GPU, World, at


def _run(world: World, **settings: object) -> RuleDetection:
    return run(world.facts(), ScopedSettings(MonopolySettings.model_validate(settings)))


def _one(world: World, **settings: object) -> FindingDraft:
    (draft,) = _run(world, **settings).drafts
    return draft


def _because(world: World, **settings: object) -> str:
    found = _run(world, **settings)
    assert found.drafts == ()
    (withheld,) = found.withheld
    return withheld.because


def test_evidence_and_action() -> None:
    draft = _one(lending())
    says: dict[str, Any] = {each.name: each.value for each in draft.evidence}
    assert says["share of all use"] == pytest.approx(12 / 19, abs=1e-4)
    assert says["entitlement"] == 0.5
    assert says["concentration of use (HHI)"] == pytest.approx((144 + 49) / 361, abs=1e-4)
    assert says[f"borrowed {GPU}, in the mean"] == 2
    assert says["who waited"] == "ClusterQueue b (1 unit-hours)"
    assert (draft.since_ms, draft.queue, draft.view_ms) == (at(DAY - 60), "a", HOUR_MS)
    # Two are borrowed, 0.2 x 10 may be.
    (flavor,) = yaml.safe_load(draft.action.patch)["spec"]["resourceGroups"][0]["flavors"]
    assert flavor == {"name": "f", "resources": [{"name": GPU, "borrowingLimit": 2}]}


def test_displaced_is_no_more_than_what_is_borrowed() -> None:
    world = lending(waits=120)
    world.rows["demand"][0].update(pods=5, min_pods=1)
    draft = _one(world)
    assert draft.view_ms == 2 * 2 * HOUR_MS
    assert draft.at_least is FindingSeverity.LOW


def test_a_gang_that_is_larger_than_the_loan_is_not_displaced() -> None:
    world = lending(waits=120)
    world.rows["demand"][0].update(pods=3, min_pods=3)
    assert _because(world) == "nobody waited for what it borrows"


def test_whoever_finds_free_gpus_is_not_displaced() -> None:
    world = lending(waits=120).node("n3", 1)
    assert _because(world) == "nobody waited for what it borrows"


def test_severity_follows_what_was_displaced() -> None:
    world = lending(waits=12 * 60)
    world.rows["demand"][0].update(pods=5, min_pods=1)
    assert _one(world).at_least is FindingSeverity.HIGH
    world = lending(waits=4 * 60)
    world.rows["demand"][0].update(pods=5, min_pods=1)
    assert _one(world).at_least is FindingSeverity.MEDIUM


def test_a_tenant_within_its_nominal_quota_is_no_monopoly() -> None:
    world = lending(waits=120)
    for row in world.rows["quotas"]:
        if row["queue"] == "a":
            row["nominal"] = 12
        else:
            row["nominal"] = 13
    assert _because(world) == "all it used (63.2% of the use) is within its nominal quota"


def test_alone_agreed_or_without_demand_it_is_none() -> None:
    alone = World(DAY).node("n1", 12).pod("p", "n1", 0, units=12, cluster_queue="a").quota("a", 1, 12)
    assert _because(alone) == "nobody else used or wanted GPUs"
    assert _because(lending(waits=120), agreed="a") == "its share is agreed (agreed)"
    calm = lending()
    calm.rows["demand"] = []
    assert _because(calm) == "nobody waited for what it borrows"


def test_too_short_a_history_says_nothing() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=8)
    (withheld,) = _run(world).withheld
    assert withheld.lacks_data
    assert len(_run(world, window="1h").withheld) == 1
    assert not _run(world, window="1h").withheld[0].lacks_data


def test_without_quotas_tenants_are_teams_with_equal_parts() -> None:
    world = World(DAY).node("n1", 8).node("n2", 4)
    world.pod("p1", "n1", 0, units=8, team="t1").pod("p2", "n2", 0, units=4, team="t2", namespace="n2")
    draft = _one(world.waits("j", 0, 120, team="t3", namespace="n3"))
    # A third of 12 would be its own: 4 of its 8 are more than that, and one is waited for.
    assert draft.subject.kind is SubjectKind.TEAM
    # It names who waited, so it is the platform's.
    assert (draft.team, draft.queue, draft.view_ms) == ("", "", 2 * HOUR_MS)
    assert draft.subject.name == "t1"
    assert draft.action.patch == ""
    tenancy = ClusterTenancy(world.facts(), at(0), at(DAY))
    assert tenancy.borrowed(ClusterTenant(None, "t1"), GPU).most(at(0), at(DAY)) == pytest.approx(4)


def test_beside_queues_whoever_stands_in_none_has_nothing_of_its_own() -> None:
    world = World(DAY).node("n1", 8).node("n2", 4).quota("b", 12, 4)
    world.pod("p1", "n1", 0, units=8, team="t1").pod("p2", "n2", 0, units=4, cluster_queue="b")
    draft = _one(world.waits("j", 0, 120, cluster_queue="b"))
    assert draft.subject.name == "t1"
    assert draft.summary.startswith(
        "team t1 used 66.7% of the GPU time of the last 24.0 h, 0.0% of the quota"
    )
