"""The ten kinds of tests that every rule must pass, over the cases that each rule gives (``case_NAME.py``).

1 the least that is found · 2 just below the threshold · 3 one step short · 4 a gap in its inputs · 5 rows in
another order · 6 the service restarts in the middle · 7 its waste is what an independent sum says · 8 the
ledger adds up to capacity · 9 an exemption expires · 10 two rules on one GPU-second.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.waste import waste_parts
from gpucost.contract.frames import FRAMES
from gpucost.detectors.engine.evaluation import RuleEvaluation, evaluate
from gpucost.detectors.engine.lifecycle import EXEMPT_LABEL, advance
from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.engine.waste_resolution import resolve
from gpucost.detectors.findings import Finding, FindingDraft, RuleDetection, WasteEpisode, WastePattern
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import RuleSettings, ScopedSettings
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, iso
from tests.detectors.worlds import STEP, T0, Case, World, at, four_dollars


def _cases() -> Iterator[Any]:
    for pattern in WastePattern:
        module = importlib.import_module(f"tests.detectors.case_{pattern.value}")
        for case in module.CASES:
            yield pytest.param(pattern, case, id=f"{pattern.value}-{case.variant}")


every_case = pytest.mark.parametrize(("pattern", "case"), list(_cases()))


def _world(given: World | Callable[[], World]) -> World:
    """A world of its own, to be changed at will."""
    return copy.deepcopy(given) if isinstance(given, World) else given()


def _scoped(pattern: WastePattern, case: Case) -> ScopedSettings[Any]:
    return ScopedSettings(RULES[pattern].settings.model_validate(dict(case.settings)))


def _run(pattern: WastePattern, case: Case, facts: DetectorFacts) -> RuleDetection:
    return RULES[pattern].run(facts, _scoped(pattern, case))


def _drafts(pattern: WastePattern, case: Case, facts: DetectorFacts) -> list[FindingDraft]:
    return [draft for draft in _run(pattern, case, facts).drafts if draft.variant == case.variant]


def _only(pattern: WastePattern, case: Case) -> RuleSettings:
    """The settings with which only the rule of this case runs."""
    others = {each: ScopedSettings(rule.settings(enabled=False)) for each, rule in RULES.items()}
    return RuleSettings({**others, pattern: _scoped(pattern, case)})


@cache
def _facts(case: Case) -> DetectorFacts:
    """Of the positive world, which several tests only read."""
    return _world(case.positive).facts()


@cache
def _evaluated(pattern: WastePattern, case: Case) -> RuleEvaluation:
    return evaluate(_facts(case), _only(pattern, case))


def _finding(pattern: WastePattern, case: Case, later: DetectorFacts | None = None) -> Finding:
    """Of the positive world, or of what became of it."""
    found = _evaluated(pattern, case) if later is None else evaluate(later, _only(pattern, case))
    assert found.failures == ()
    (finding,) = [each for each in found.findings if each.draft.variant == case.variant]
    return finding


def test_every_rule_has_cases() -> None:
    assert {param.values[0] for param in _cases()} == set(WastePattern) == set(RULES)


@every_case
def test_1_the_least_is_found(pattern: WastePattern, case: Case) -> None:
    facts = _facts(case)
    (draft,) = _drafts(pattern, case, facts)
    assert draft.pattern is pattern
    assert draft.summary
    assert draft.evidence
    assert draft.action.text
    assert draft.formula
    assert T0 <= draft.since_ms <= facts.now_ms
    assert draft.ended_ms is None or draft.since_ms < draft.ended_ms <= facts.now_ms
    assert not (draft.episodes and draft.view_ms is not None)


@every_case
def test_2_just_below_the_threshold_nothing_is_found(pattern: WastePattern, case: Case) -> None:
    assert _drafts(pattern, case, _world(case.below).facts()) == []


@every_case
def test_3_one_step_short_nothing_is_found(pattern: WastePattern, case: Case) -> None:
    assert _drafts(pattern, case, _world(case.short).facts()) == []


@every_case
def test_4_a_gap_is_answered_with_too_little_data(pattern: WastePattern, case: Case) -> None:
    detection = _run(pattern, case, _world(case.gap).facts())
    assert [draft for draft in detection.drafts if draft.variant == case.variant] == []
    because = [each.because for each in detection.withheld if each.lacks_data]
    assert because
    assert all(because)


@every_case
def test_5_the_order_in_which_rows_came_does_not_matter(pattern: WastePattern, case: Case) -> None:
    facts = _facts(case)
    mixed = _shuffled(facts)
    assert _alike(_drafts(pattern, case, mixed)) == _alike(_drafts(pattern, case, facts))


@every_case
def test_6_a_restart_in_the_middle_changes_neither_key_nor_beginning(
    pattern: WastePattern, case: Case
) -> None:
    world = _world(case.positive)
    finding = _finding(pattern, case)
    if not finding.goes_on:
        pytest.skip("this variant is about what is over: there is no middle")
    before = advance((), [finding], at(world.end))
    later = _later(world)
    after = advance(before.lives, [_finding(pattern, case, later.facts())], at(later.end))
    assert [(life.fingerprint, life.opened_at_ms, life.since_ms) for life in after.lives] == [
        (life.fingerprint, life.opened_at_ms, life.since_ms) for life in before.lives
    ]


@every_case
def test_7_its_waste_is_what_was_added_up_by_hand(pattern: WastePattern, case: Case) -> None:
    finding = _finding(pattern, case)
    if case.board_ms is None:
        assert finding.wasted.board_ms == 0
        return
    assert finding.wasted.counted is not case.is_view
    assert finding.wasted.board_ms == pytest.approx(case.board_ms, rel=1e-6)
    if finding.wasted.counted:
        assert finding.wasted.nano == pytest.approx(case.board_ms * 4e9 / HOUR_MS, rel=1e-6)


@every_case
def test_8_with_it_the_ledger_still_adds_up_to_capacity(pattern: WastePattern, case: Case) -> None:
    facts = _facts(case)
    found = _evaluated(pattern, case)
    windows = list(facts.history.window.split(HOUR_MS))
    lines = attribute(facts.history.frames, windows, rates=four_dollars, teams=facts.history.teams)
    parts = waste_parts(lines, found.pieces, facts.history.frames.activity)
    capacity = {bucket: amounts for bucket, amounts in lines.totals().items() if bucket.is_capacity}
    sums = parts.groupby("line")[["board_ms", "nano"]].sum()
    whole = lines.lines.reset_index(drop=True).loc[sums.index]
    assert (sums <= whole[["board_ms", "nano"]]).all(axis=None)
    held_or_free = sum(capacity.get(bucket, (0, 0))[0] for bucket in (Bucket.HELD, Bucket.UNALLOCATED))
    assert int(parts["board_ms"].sum()) <= held_or_free
    claimed = parts[parts["waste"] != Waste.UNKNOWN.value]["board_ms"].sum()
    on_lines = found.pieces[found.pieces["pod_uid"] != "__unavailable__"]
    wanted = (on_lines["boards"] * (on_lines["end_ms"] - on_lines["start_ms"])).sum()
    assert claimed == pytest.approx(wanted, rel=1e-6, abs=len(parts) + 1)


@every_case
def test_9_an_exemption_silences_it_until_it_expires(pattern: WastePattern, case: Case) -> None:
    finding = _finding(pattern, case)
    now_ms = finding.draft.since_ms
    until_ms = now_ms + MINUTE_MS
    draft = replace(finding.draft, labels={EXEMPT_LABEL: iso(until_ms)}, ended_ms=None)
    (life,) = advance((), [replace(finding, draft=draft)], now_ms).lives
    assert not life.speaks(now_ms)
    (life,) = advance((life,), [replace(finding, draft=draft)], until_ms).lives
    assert life.speaks(until_ms)


@every_case
def test_10_two_rules_on_one_board_second_share_it(pattern: WastePattern, case: Case) -> None:
    facts = _facts(case)
    drafts = _drafts(pattern, case, facts)
    rivals = [_rival(draft, episode) for draft in drafts for episode in draft.episodes]
    whole = resolve(facts.history, rivals)
    both = resolve(facts.history, [*drafts, *rivals])
    assert _boards(both) == pytest.approx(_boards(whole), rel=1e-6, abs=1)
    if rivals and drafts[0].episodes[0].waste not in (Waste.UNAVAILABLE, Waste.GANG_STALL, Waste.STARVED):
        mine = both[both["draft"] < len(drafts)]
        assert _boards(mine) == pytest.approx(0, abs=1)


def _rival(draft: FindingDraft, episode: WasteEpisode) -> FindingDraft:
    """A rule that claims all there is at that time, in an earlier bucket where there is one."""
    waste = Waste.GANG_STALL if episode.pod_uid else Waste.STARVED
    if episode.waste is Waste.UNAVAILABLE:
        waste = Waste.UNAVAILABLE
    return replace(draft, variant="rival", episodes=(replace(episode, waste=waste, boards=None),))


def _boards(pieces: Any) -> float:
    return float((pieces["boards"] * (pieces["end_ms"] - pieces["start_ms"])).sum())


def _alike(drafts: Sequence[FindingDraft]) -> list[Any]:
    return [
        (
            draft.fingerprint,
            draft.since_ms,
            draft.ended_ms,
            draft.summary,
            draft.view_ms,
            sorted(draft.episodes, key=repr),
        )
        for draft in sorted(drafts, key=lambda each: each.fingerprint)
    ]


def _shuffled(facts: DetectorFacts) -> DetectorFacts:
    rng = np.random.default_rng(5)
    frames = facts.history.frames
    mixed = {
        spec.name: (frame := getattr(frames, spec.name))
        .iloc[rng.permutation(len(frame))]
        .reset_index(drop=True)
        for spec in FRAMES
    }
    history = ClusterHistory(
        replace(frames, **mixed),
        facts.history.window,
        facts.history.teams,
        zero_is_gap=facts.history.zero_is_gap,
    )
    return DetectorFacts(facts.cluster, history, GpuTimePrices(history, four_dollars), facts.overview)


def _later(world: World) -> World:
    """The same world one step of activity later: all that goes on has gone on."""
    now_ms, step_ms = at(world.end), STEP * MINUTE_MS
    for name, rows in world.rows.items():
        if name == "activity":
            last = [row for row in rows if row["end_ms"] == now_ms]
            moved = [
                {**row, "start_ms": row["end_ms"], "end_ms": 2 * row["end_ms"] - row["start_ms"]}
                for row in last
            ]
            rows.extend(moved)
        elif name != "evictions":
            for row in rows:
                if row["end_ms"] == now_ms:
                    row["end_ms"] = now_ms + step_ms
    if world.seen is not None:
        world.seen = [(a, b + STEP if b == world.end else b) for a, b in world.seen]
    world.end += STEP
    return world


def test_the_helper_of_test_6_moves_what_goes_on() -> None:
    world = _later(World(60).node("n").pod("p", "n", 0).pod("q", "n", 0, 30).work("p", "n", "g", [0] * 12))
    frames = world.facts().history.frames
    assert frames.allocations["end_ms"].tolist() == [at(65), at(30)]
    assert Window(T0, int(frames.activity["end_ms"].max())) == Window(T0, at(65))
