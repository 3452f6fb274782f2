"""Jobs in more domains than they need."""

from __future__ import annotations

import yaml

from gpucost.detectors.findings import RuleDetection
from gpucost.detectors.rule_settings import ScopedSettings, TopologySpreadSettings
from gpucost.detectors.rules.topology_spread import run
from tests.detectors.case_topology_spread import ZONE, spread
from tests.detectors.worlds import World, at


def found(world: World, **settings: object) -> RuleDetection:
    return run(world.facts(), ScopedSettings(TopologySpreadSettings.model_validate(settings)))


def test_what_was_free_at_the_start_counts_not_what_is_free_now() -> None:
    crowded_later = spread()
    for name in ("a2", "b2"):
        crowded_later.pod(f"late-{name}", name, 30, units=8)
    assert len(found(crowded_later).drafts) == 1
    crowded_then = spread()
    for name in ("a2", "b2"):
        crowded_then.pod(f"early-{name}", name, 0, 30, units=8)
    assert found(crowded_then).drafts == ()


def test_a_job_that_is_older_than_the_history_is_looked_at_now() -> None:
    world = spread()
    for row in world.rows["allocations"]:
        row["start_ms"] = at(0)
    (draft,) = found(world).drafts
    assert "room for all of its 2 pods now" in draft.summary


def test_rules_about_other_pods_may_ask_for_it() -> None:
    (withheld,) = found(spread(has_pod_affinity=True)).withheld
    assert "rules about other pods" in withheld.because
    assert not withheld.lacks_data


def test_nodes_that_do_not_admit_the_job_have_no_room_for_it() -> None:
    assert found(spread(node_selector={"kubernetes.io/hostname": "a1"})).drafts == ()


def test_levels_that_no_node_has_are_passed_over() -> None:
    assert found(spread(), levels="example.com/rack").drafts == ()
    assert found(spread(), levels=f"example.com/rack,{ZONE}").drafts[0].variant == "spread"


def test_the_patch_is_yaml_with_the_label_that_its_pods_share() -> None:
    (draft,) = found(spread()).drafts
    (term,) = yaml.safe_load(draft.action.patch)["spec"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["podAffinityTerm"] == {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"job": "j"}}}
