"""What a team may read: no finding that it owns names other tenants, unless there is a view without them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import pytest

from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import FindingAction, FindingDraft, FindingEvidence, WastePattern
from gpucost.detectors.rule_settings import ScopedSettings
from gpucost.domain.buckets import NO_TEAM
from tests.detectors.case_fragmentation import blocked
from tests.detectors.case_gang_stall import locked
from tests.detectors.case_preemption_waste import cycle
from tests.detectors.worlds import Case, World

CANARY = "canary"
_JOBS = ("allocations", "demand", "stalls")


def _cases() -> Iterator[Any]:
    for pattern in WastePattern:
        for case in importlib.import_module(f"tests.detectors.case_{pattern.value}").CASES:
            yield pytest.param(pattern, case, id=f"{pattern.value}-{case.variant}")


def _world(given: World | Callable[[], World]) -> World:
    return deepcopy(given) if isinstance(given, World) else given()


def _jobs(world: World) -> list[str]:
    found = {row["job_uid"] for name in _JOBS for row in world.rows.get(name, ())}
    return sorted(found)


def _among_strangers(world: World, job_uid: str) -> World:
    """The same world, of which but for one job all belongs to another team; and two more of those: one who
    holds a node, and one who waits."""
    for name in _JOBS:
        for row in world.rows.get(name, ()):
            if row["job_uid"] == job_uid:
                continue
            row.update(namespace=f"{CANARY}-ns", job=f"{CANARY}-{row['job']}")
            row.update({key: f"{CANARY}-team" for key in ("team_label", "user") if key in row})
            if "pod" in row:
                row["pod"] = f"{CANARY}-{row['pod']}"
    for row in world.rows.get("evictions", ()):
        row["by"] = f"{CANARY}-ns/{CANARY}-job"
    world.node("more", 8).pod(
        f"{CANARY}-pod",
        "more",
        0,
        units=8,
        job=f"{CANARY}-job",
        team=f"{CANARY}-team",
        namespace=f"{CANARY}-ns",
    )
    return world.waits(
        f"{CANARY}-waits", 0, units=8, team=f"{CANARY}-team-2", namespace=f"{CANARY}-ns", layer="placement"
    )


def _words(summary: str, evidence: Sequence[FindingEvidence], action: FindingAction) -> str:
    said = [text for each in evidence for text in (each.name, str(each.value), each.unit, each.shown_by)]
    return "\n".join([summary, action.text, action.patch, *said])


def _all(draft: FindingDraft) -> str:
    return "\n".join([_words(draft.summary, draft.evidence, draft.action), draft.formula, *draft.checked])


def _shown(draft: FindingDraft) -> str:
    """What the faces show to its team."""
    view = draft.team_view
    if view is None:
        return _all(draft)
    return "\n".join([_words(view.summary, view.evidence, view.action), draft.formula, *draft.checked])


def _owned(pattern: WastePattern, case: Case) -> Iterator[FindingDraft]:
    for job_uid in _jobs(_world(case.positive)):
        facts = _among_strangers(_world(case.positive), job_uid).facts()
        settings = ScopedSettings(RULES[pattern].settings.model_validate(dict(case.settings)))
        for draft in RULES[pattern].run(facts, settings).drafts:
            if draft.team not in ("", NO_TEAM, f"{CANARY}-team", f"{CANARY}-team-2"):
                yield draft


@pytest.mark.parametrize(("pattern", "case"), list(_cases()))
def test_no_team_reads_of_another(pattern: WastePattern, case: Case) -> None:
    for draft in _owned(pattern, case):
        assert CANARY not in _shown(draft), draft.variant


@pytest.mark.parametrize(
    ("pattern", "variant", "world", "job"),
    [
        (WastePattern.FRAGMENTATION, "blocked", blocked(15), "uid-big"),
        (WastePattern.PREEMPTION_WASTE, "cycling", cycle(), "uid-j"),
        (WastePattern.GANG_STALL, "deadlock", locked(), "uid-small"),
    ],
)
def test_the_platform_does(pattern: WastePattern, variant: str, world: World, job: str) -> None:
    """The test above would see it if a view were missing."""
    facts = _among_strangers(deepcopy(world), job).facts()
    settings = ScopedSettings(RULES[pattern].settings())
    (draft,) = [
        each
        for each in RULES[pattern].run(facts, settings).drafts
        if each.variant == variant and each.team == "t1"
    ] or [None]
    assert draft is not None
    assert CANARY in _all(draft)
    assert draft.team_view is not None
    assert CANARY not in _shown(draft)
