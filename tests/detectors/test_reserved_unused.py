"""Unused quota: what is found, and what speaks against it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import FindingSeverity, RuleDetection
from gpucost.detectors.rule_settings import ReservedUnusedSettings, ScopedSettings, SettingsOverride
from gpucost.detectors.rules.reserved_unused import run
from gpucost.domain.time import DAY_MS, HOUR_MS
from tests.cluster import builders as build
from tests.detectors.case_reserved_unused import WEEK, spare
from tests.detectors.worlds import World, at

DAY = 24 * 60


def _run(world: World, **settings: object) -> RuleDetection:
    return run(world.facts(), ScopedSettings(ReservedUnusedSettings.model_validate(settings)))


def _because(world: World, **settings: object) -> str:
    found = _run(world, **settings)
    assert found.drafts == ()
    (withheld,) = found.withheld
    return withheld.because


def test_the_proposed_quota_is_what_it_needs_and_a_fifth() -> None:
    world = World(WEEK).node("n1", 20).quota("a", 20, 5, cohort="all")
    (draft,) = _run(world).drafts
    # 1.2 x 5 is 6, and 14 x 24 h are given back.
    assert draft.action.frees_boards == 14
    assert draft.view_ms == 15 * DAY_MS
    quota = yaml.safe_load(draft.action.patch)["spec"]["resourceGroups"][0]["flavors"][0]
    assert quota == {
        "name": "f",
        "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 6, "lendingLimit": 6}],
    }
    assert "20 nvidia.com/gpu and used 5 or fewer for 95% of the last 7 days" in draft.summary


def test_units_of_unknown_size_free_an_unknown_number_of_gpus() -> None:
    slices = "nvidia.com/mig-1g.10gb"  # of which no node has any
    world = World(WEEK).node("n1", 8).quota("a", 20, 5, cohort="all", resource=slices)
    (draft,) = _run(world).drafts
    assert draft.action.frees_boards is None
    assert "of what it left, 360 unit-hours in the last day" in draft.summary
    assert "x an unknown number of GPUs per unit" in draft.formula


def test_outside_a_cohort_there_is_no_lending_limit_to_set() -> None:
    (draft,) = _run(spare()).drafts
    assert "lendingLimit" not in draft.action.patch


def test_peaks_of_less_than_a_twentieth_of_the_time_do_not_count() -> None:
    def world(busy: float) -> World:
        return World(WEEK).node("n1").quota("a", 8, 0, 0, WEEK - busy).quota("a", 8, 8, WEEK - busy)

    assert len(_run(world(WEEK / 20)).drafts) == 1
    assert _run(world(WEEK / 20 + 1)).drafts == ()


def test_what_others_borrow_is_in_use() -> None:
    world = World(WEEK).node("n1", 16).quota("a", 8, 1, cohort="x").quota("b", 4, 10, cohort="x")
    # a lends 6 of its 8: with its own 1 that is 7.
    assert "others borrow what it does not use: with them 7 of 8" in _because(world)
    # b borrows 2: 8 - 1 - 2 are left.
    world = World(WEEK).node("n1", 16).quota("a", 8, 1, cohort="x").quota("b", 4, 6, cohort="x")
    (draft,) = _run(world).drafts
    assert draft.view_ms == 5 * DAY_MS


def test_of_two_lenders_each_lends_its_part() -> None:
    world = World(WEEK).node("n1", 24).quota("a", 8, 0, cohort="x").quota("b", 4, 0, cohort="x")
    (draft,) = _run(world.quota("c", 0, 3, cohort="x")).drafts
    # 3 are borrowed, 8 and 4 could be lent: 2 of them are a's.
    assert draft.view_ms == 6 * DAY_MS


def test_work_of_its_own_that_waited_speaks_against_it() -> None:
    assert "work of its own waited, 20 min" in _because(spare().waits("j", 100, 120, cluster_queue="a"))
    assert len(_run(spare().waits("j", 100, 114, cluster_queue="a")).drafts) == 1
    assert len(_run(spare().waits("j", 100, 120, cluster_queue="b")).drafts) == 1


def test_others_that_waited_beside_it_make_it_more_than_information() -> None:
    (draft,) = _run(spare()).drafts
    assert draft.at_least is FindingSeverity.INFO
    (draft,) = _run(spare().waits("j", 100, 160, cluster_queue="b")).drafts
    assert draft.at_least is FindingSeverity.LOW
    hurting = {each.name: each.value for each in draft.evidence}
    assert hurting["others waited meanwhile for GPUs that were free"] == 1


def test_a_short_history_says_nothing_and_says_so_once() -> None:
    world = World(DAY).node("n1", 16).quota("a", 8, 0).quota("b", 8, 0)
    (withheld,) = _run(world).withheld
    assert withheld.lacks_data
    assert withheld.because == "there is a history of 1 day, and 7 days are needed"
    assert len(_run(world, min_history="1d").drafts) == 2


def test_use_that_is_not_known_is_not_low() -> None:
    world = World(WEEK).node("n1").quota("a", 8, float("nan"), 0, 2 * DAY).quota("a", 8, 0, 2 * DAY)
    (withheld,) = _run(world).withheld
    assert withheld.lacks_data
    assert withheld.because == "its quota and use are known for 71.4% of the last 7 days"


def test_a_new_queue_is_let_be() -> None:
    world = World(3 * WEEK).node("n1").quota("a", 8, 0, start=WEEK + 1)
    assert _because(world) == "the queue is only 14 days old"
    assert len(_run(World(3 * WEEK).node("n1").quota("a", 8, 0, start=WEEK)).drafts) == 1
    # Whoever watches the cluster knows older ones from those that are as old as the history.
    world = spare()
    queue = replace(build.cluster_queue("a"), meta=build.meta("a", "", created_ms=at(-6 * DAY)))
    world.overview = ClusterOverview(build.state(queue, at_ms=at(WEEK)))
    assert _because(world) == "the queue is only 13 days old"


def test_what_was_used_within_the_month_may_be_the_season() -> None:
    world = World(4 * WEEK).node("n1").quota("a", 8, 6, 0, WEEK).quota("a", 8, 0, WEEK)
    assert "use was 6 of 8 over the last 28 days: 0 of late may be the season" in _because(world)
    assert len(_run(world, season="21d").drafts) == 1


def test_small_and_reserved_queues_are_let_be() -> None:
    small = World(WEEK).node("n1").quota("a", 7, 0)
    assert _run(small) == RuleDetection()
    assert "on purpose" in _because(spare(), reserved_queues="a")
    scoped = ScopedSettings(
        ReservedUnusedSettings(), [SettingsOverride((), ("a",), ReservedUnusedSettings(min_units=9))]
    )
    assert run(spare().facts(), scoped) == RuleDetection()


def test_a_volcano_queue_gets_a_command() -> None:
    world = World(WEEK).node("n1").quota("vq", 8, 0, scheduler="volcano", flavor="")
    (draft,) = _run(world).drafts
    assert draft.action.patch == (
        "kubectl patch queues.scheduling.volcano.sh vq --type=merge -p "
        """'{"spec":{"deserved":{"nvidia.com/gpu":0}}}'"""
    )


def test_view_is_of_the_last_day_only() -> None:
    (draft,) = _run(spare()).drafts
    assert draft.view_ms == pytest.approx(5 * 24 * HOUR_MS)
    assert draft.episodes == ()
