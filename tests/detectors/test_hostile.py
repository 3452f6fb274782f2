"""Numbers that cannot be true, and names that should not be used: no evaluation stops for them."""

from __future__ import annotations

import math

import pytest

from gpucost.attribution.waste import waste_parts
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.findings import WastePattern
from gpucost.detectors.inputs.activity_table import ActivityTable, plausible
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.service.detection.finding_records import to_json
from tests.attribution.test_waste import attributed
from tests.detectors.worlds import World

NAMES = (
    "--all",
    "a\x1b[31m",
    "x\nrm -rf ~",
    "=cmd|' /C calc'!A0",
    "\u202eevil",
    "a'; kubectl delete ns prod #",
    "ü" * 600,
)


def _idle(name: str = "p") -> World:
    world = World(600).node("n", 1)
    world.pod("p", "n", 5, job=name, team=name, namespace=name, queue=name, user=name)
    return world.work("p", "n", "g", [0.9] * 12 + [0.0] * 100, start=5)


@pytest.mark.parametrize(
    "column", ["held_ms", "observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "energy_j"]
)
@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, 2.0**62, -1.0])
def test_a_number_that_cannot_be_true_is_left_out(column: str, value: float) -> None:
    world = _idle()
    world.rows["activity"][3][column] = value
    frame = world.frames().activity
    assert len(ActivityTable.of(frame)) == len(frame) - 1
    found = evaluate(world.facts(), RuleSettings())
    assert found.failures == ()
    assert [each for each in found.findings if each.draft.pattern is WastePattern.IDLE_ALLOCATION]
    assert all(0 <= each.wasted.board_ms < 10**9 for each in found.findings)


def test_what_is_left_out_is_not_called_seen_either() -> None:
    world = _idle()
    for row in world.rows["activity"]:
        row["held_ms"] = 1e13
    facts = world.facts()
    activity = plausible(facts.history.frames.activity)
    parts = waste_parts(attributed(world), evaluate(facts, RuleSettings()).pieces, activity)
    assert set(parts["waste"]) == {"unknown"}
    assert int(parts["board_ms"].sum()) == 595 * 60_000


def test_a_missing_number_is_no_wrong_one() -> None:
    world = _idle()
    for row in world.rows["activity"]:
        row["energy_j"] = row["memory_used_bytes"] = math.nan
    frame = world.frames().activity
    assert len(ActivityTable.of(frame)) == len(frame)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_stops_nothing_and_is_never_a_command(name: str) -> None:
    found = evaluate(_idle(name).facts(), RuleSettings())
    assert found.failures == ()
    idle = [each for each in found.findings if each.draft.pattern is WastePattern.IDLE_ALLOCATION]
    assert idle
    for each in idle:
        assert to_json(each)
        assert each.draft.action.patch == ""
