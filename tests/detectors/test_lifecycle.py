"""A finding's life: opened, kept through a restart, closed after two clean looks, reopened, silenced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.detectors.engine.lifecycle import (
    EXEMPT_LABEL,
    REOPEN_MS,
    FindingChange,
    FindingExemption,
    FindingLife,
    FindingLifeState,
    advance,
)
from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    SubjectKind,
    WastePattern,
)
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.service.detection.finding_records import from_json, to_json
from tests.detectors.worlds import at


def finding(name: str = "train", waste_ms: int = HOUR_MS, since: float = 0, **changes: object) -> Finding:
    subject = FindingSubject(SubjectKind.JOB, "c", name, "ns", f"uid-{name}")
    draft = FindingDraft(
        WastePattern.IDLE_ALLOCATION, "whole", subject, at(since), f"{name} is idle",
        (FindingEvidence("GPUs", 8, "", "gpucost_pod_gpu_request"),),
        FindingAction("suspend it", "kubectl …"), "8 × 1 h",
        team="language", queue="q",
    )  # fmt: skip
    draft = replace(draft, **changes)  # type: ignore[arg-type]  # fields of Draft
    return Finding(
        draft, FindingSeverity.LOW, FindingWaste(waste_ms, 4_000_000_000, "f", True), 8.0, 32_000_000_000
    )


def look(lives: tuple[FindingLife, ...], minute: float, *findings: Finding, **options: object):  # type: ignore[no-untyped-def]
    """One evaluation; the untyped options are those of advance."""
    return advance(lives, findings, at(minute), **options)  # type: ignore[arg-type]


def test_a_finding_opens_once_and_keeps_its_beginning() -> None:
    first = look((), 60, finding())
    assert [change for change, _ in first.changes] == [FindingChange.OPENED]
    second = look(first.lives, 65, finding())
    assert second.changes == ()
    (life,) = second.lives
    assert (life.opened_at_ms, life.since_ms, life.last_seen_ms) == (at(60), at(0), at(65))


def test_a_restart_in_the_middle_changes_nothing() -> None:
    """What a store keeps is the finding as text: the next process goes on from there."""
    (life,) = look((), 60, finding()).lives
    stored = replace(life, finding=from_json(to_json(life.finding)))
    again = look((stored,), 65, finding(since=20))
    (after,) = again.lives
    assert again.changes == ()
    assert (after.fingerprint, after.opened_at_ms, after.since_ms) == (life.fingerprint, at(60), at(0))


def test_it_closes_after_two_clean_looks_and_comes_back_within_ten_minutes() -> None:
    lives = look((), 60, finding()).lives
    once = look(lives, 65)
    assert once.changes == ()
    twice = look(once.lives, 70)
    assert [(change, life.state, life.closed_at_ms) for change, life in twice.changes] == [
        (FindingChange.RESOLVED, FindingLifeState.RESOLVED, at(70))
    ]
    back = look(twice.lives, 80, finding(since=78))
    assert [(change, life.opened_at_ms, life.since_ms) for change, life in back.changes] == [
        (FindingChange.REOPENED, at(60), at(0))
    ]
    late = look(twice.lives, 70 + REOPEN_MS / MINUTE_MS + 0.1, finding(since=78))
    assert [(change, life.since_ms) for change, life in late.changes] == [(FindingChange.OPENED, at(78))]


def test_what_was_over_while_nobody_looked_is_another_finding() -> None:
    lives = look((), 60, finding()).lives
    step = look(lives, 300, finding(since=200))
    assert [(change, life.since_ms) for change, life in step.changes] == [
        (FindingChange.RESOLVED, at(0)),
        (FindingChange.OPENED, at(200)),
    ]
    assert sorted(life.state for life in step.lives) == [FindingLifeState.OPEN, FindingLifeState.RESOLVED]
    goes_on = look(lives, 300, finding(since=60 + REOPEN_MS / MINUTE_MS))
    assert goes_on.changes == ()


def test_a_mute_outlives_what_was_muted() -> None:
    (life,) = look((), 60, finding()).lives
    muted = replace(life, state=FindingLifeState.MUTED, muted_until_ms=at(500))
    for step in (
        look((muted,), 300, finding(since=200)),
        look(look(look((muted,), 70).lives, 75).lives, 300, finding(since=200)),
    ):
        (again,) = [each for each in step.lives if each.state is not FindingLifeState.RESOLVED]
        assert (again.state, again.muted_until_ms) == (FindingLifeState.MUTED, at(500))
    late = look((muted,), 510, finding(since=200))
    assert [each.state for each in late.lives if each.state is not FindingLifeState.RESOLVED] == [
        FindingLifeState.OPEN
    ]


def test_a_look_in_between_that_finds_it_starts_the_count_anew() -> None:
    lives = look(look(look((), 60, finding()).lives, 65).lives, 70, finding()).lives
    assert look(lives, 75).changes == ()


def test_what_is_over_is_not_found_again() -> None:
    assert look((), 60, finding(ended_ms=at(50))).lives == ()


def test_who_lacks_data_closes_nothing() -> None:
    lives = look((), 60, finding()).lives
    fingerprint = finding().fingerprint
    for minute in (65, 70, 75):
        lives = look(lives, minute, unknown=[fingerprint]).lives
    assert [life.state for life in lives] == [FindingLifeState.OPEN]


def test_muted_stays_silent_until_its_time_and_worse_is_said() -> None:
    (life,) = look((), 60, finding()).lives
    muted = replace(life, state=FindingLifeState.MUTED, muted_until_ms=at(120))
    step = look((muted,), 65, finding())
    assert not step.lives[0].speaks(at(65))
    step = look(step.lives, 120, finding())
    assert [(change, life.state) for change, life in step.changes] == [
        (FindingChange.UNMUTED, FindingLifeState.OPEN)
    ]
    worse = look(step.lives, 125, replace(finding(), severity=FindingSeverity.HIGH))
    assert [change for change, _ in worse.changes] == [FindingChange.WORSENED]


@pytest.mark.parametrize(
    ("exemption", "silent"),
    [
        (FindingExemption(at(0) + DAY_MS, "agreed"), True),
        (FindingExemption(at(0) + DAY_MS, "agreed", patterns=(WastePattern.MONOPOLY,)), False),
        (FindingExemption(at(0) + DAY_MS, "agreed", namespaces=("n*",), queues=("q",)), True),
        (FindingExemption(at(0) + DAY_MS, "agreed", namespaces=("other",)), False),
        (FindingExemption(at(0) + DAY_MS, "agreed", teams=("language",)), True),
        (FindingExemption(at(0) + DAY_MS, "agreed", users=("ada",)), False),
    ],
)
def test_exemptions_silence_what_they_name_until_they_expire(
    exemption: FindingExemption, silent: bool
) -> None:
    (life,) = look((), 60, finding(), exemptions=[exemption]).lives
    assert life.speaks(at(60)) is not silent
    day_later = at(0) + DAY_MS
    (life,) = advance((life,), [finding()], day_later, exemptions=[exemption]).lives
    assert life.speaks(day_later)


def test_a_label_exempts_until_its_day_and_nonsense_exempts_nobody() -> None:
    labelled = finding(labels={EXEMPT_LABEL: "2026-10-07"})
    assert not look((), 60, labelled).lives[0].speaks(at(60))
    assert advance((), [labelled], at(24 * 60)).lives[0].speaks(at(24 * 60))
    for text in ("forever", "2026-13-01", "", "2020-01-01"):
        assert look((), 60, finding(labels={EXEMPT_LABEL: text})).lives[0].speaks(at(60))


def test_rehearsal_is_kept_but_silent() -> None:
    (life,) = look((), 60, finding(), rehearsals={WastePattern.IDLE_ALLOCATION: True}).lives
    assert life.rehearsal
    assert not life.speaks(at(60))


def test_of_two_with_one_fingerprint_the_larger_counts() -> None:
    step = look((), 60, finding(waste_ms=5 * HOUR_MS), finding(waste_ms=HOUR_MS))
    assert [life.finding.wasted.board_ms for life in step.lives] == [5 * HOUR_MS]


def test_a_finding_survives_its_text() -> None:
    odd = finding('a"b\\c</script>ü\u2028', labels={"x": "y"})
    kept = replace(odd, draft=replace(odd.draft, labels=None))
    assert from_json(to_json(odd)) == kept


def test_a_label_for_years_exempts_nobody() -> None:
    far = finding(labels={EXEMPT_LABEL: "2099-01-01"})
    assert look((), 60, far).lives[0].speaks(at(60))


def test_a_clock_that_goes_back_undoes_nothing() -> None:
    lives = look(look((), 600, finding()).lives, 605, finding()).lives
    for minute in (300, 305, 310):
        step = look(lives, minute)
        assert (step.lives, step.changes) == (lives, ())
    assert look(lives, 610, finding()).changes == ()


def test_a_clock_that_was_wrong_by_years_freezes_nothing() -> None:
    lives = look((), 5_000_000, finding()).lives
    (life,) = look(lives, 60, finding()).lives
    assert (life.state, life.last_seen_ms) == (FindingLifeState.OPEN, at(60))
    step = look(look(lives, 65).lives, 70)
    assert [change for change, _ in step.changes] == [FindingChange.RESOLVED]


def test_what_seems_to_begin_where_history_does_may_have_begun_before() -> None:
    (life,) = look((), 60, finding()).lives
    acknowledged = replace(life, state=FindingLifeState.ACKNOWLEDGED)
    step = look((acknowledged,), 3_600, finding(since=3_120), known_from_ms=at(3_120))
    assert step.changes == ()
    assert (step.lives[0].state, step.lives[0].since_ms) == (FindingLifeState.ACKNOWLEDGED, at(0))


def test_one_life_of_the_future_holds_up_no_other() -> None:
    (here,) = look((), 60, finding("here")).lives
    (ahead,) = look((), 700, finding("ahead")).lives
    step = look(look((here, ahead), 65).lives, 70)
    assert [(change, life.finding.draft.subject.name) for change, life in step.changes] == [
        (FindingChange.RESOLVED, "here")
    ]
