"""Precision and recall of idle_allocation and oversized_request on labelled jobs drawn from Acme's curves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpucost.detectors.findings import FindingDraft, RuleDetection, SubjectKind
from gpucost.detectors.rule_settings import IdleAllocationSettings, OversizedRequestSettings, ScopedSettings
from gpucost.detectors.rules.idle_allocation import idle_allocation_rule
from gpucost.detectors.rules.oversized_request import oversized_request_rule
from gpucost.domain.time import MINUTE_MS
from tests.detectors.labelled import KINDS, Label, Labelled, labelled
from tests.support.shared import needs_shared

pytestmark = needs_shared("traces/acme-cdf")

FLOORS = {
    # What the rules promise: a job is never called idle that is not, and hardly one is missed.
    ("idle_allocation", "whole"): (1.0, 0.95),
    ("idle_allocation", "partly"): (1.0, 0.95),
    ("oversized_request", "fits_smaller"): (1.0, 0.95),
    ("oversized_request", "too_many_gpus"): (1.0, 0.95),
    # Of teams: all jobs of a team count as found.
    ("oversized_request", "low_efficiency"): (1.0, 0.95),
}


@dataclass(frozen=True)
class Result:
    given: Labelled
    idle: RuleDetection
    large: RuleDetection

    @property
    def drafts(self) -> tuple[FindingDraft, ...]:
        return (*self.idle.drafts, *self.large.drafts)

    def found(self, rule: str, variant: str) -> set[str]:
        """Names of jobs; of a team's finding, all its jobs."""
        names = set[str]()
        for draft in self.drafts:
            if (draft.pattern, draft.variant) != (rule, variant):
                continue
            if draft.subject.kind == SubjectKind.TEAM:
                names |= {name for name, team in self.given.teams.items() if team == draft.subject.name}
            else:
                names.add(draft.subject.name)
        return names

    def labelled(self, rule: str, variant: str) -> set[str]:
        label = Label(rule, variant)
        return {name for name, each in self.given.labels.items() if each == label}


def _naive(result: Result) -> str:
    """What the usual rule says of the same jobs: idle when any GPU of a pod has been at 0 for 30 minutes."""
    activity = result.given.facts.history.activity
    idle = activity.stretches(activity.is_idle)
    long = idle.series[idle.end - idle.start >= 30 * MINUTE_MS]
    found = set(activity.series["pod_uid"].iloc[long])
    truth = result.labelled("idle_allocation", "whole")
    right = len(found & truth)
    counts = f"{len(truth):>9}{len(found):>7}{right:>7}"
    return (
        f"{'any GPU at 0, 30 min':<20}{'(whole)':<16}{counts}"
        f"{_ratio(right, len(found)):>11.3f}{_ratio(right, len(truth)):>8.3f}"
    )


@pytest.fixture(scope="module")
def result() -> Result:
    given = labelled()
    idle = idle_allocation_rule.run(given.facts, ScopedSettings(IdleAllocationSettings()))
    large = oversized_request_rule.run(given.facts, ScopedSettings(OversizedRequestSettings()))
    return Result(given, idle, large)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def test_precision_and_recall(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{len(result.given.labels)} labelled jobs, signals from acme-cdf"]
    lines.append(
        f"{'rule':<20}{'variant':<16}{'labelled':>9}{'found':>7}{'right':>7}{'precision':>11}{'recall':>8}"
    )
    measured = dict[tuple[str, str], tuple[float, float]]()
    for rule, variant in FLOORS:
        found, truth = result.found(rule, variant), result.labelled(rule, variant)
        right = len(found & truth)
        measured[rule, variant] = _ratio(right, len(found)), _ratio(right, len(truth))
        precision, recall = measured[rule, variant]
        counts = f"{len(truth):>9}{len(found):>7}{right:>7}"
        lines.append(f"{rule:<20}{variant:<16}{counts}{precision:>11.3f}{recall:>8.3f}")
        wrong = sorted({result.given.kinds[name] for name in found ^ truth})
        lines += [f"{'':<20}wrong about: {', '.join(wrong)}"] if wrong else []
    lines.append(_naive(result))
    with capsys.disabled():
        print("", *lines, sep="\n")
    for key, (precision, recall) in FLOORS.items():
        assert measured[key] >= (precision, recall), key
        assert measured[key][1] >= recall, key


@pytest.mark.parametrize("kind", [kind for kind, made in KINDS.items() if made[1] == Label()])
def test_of_healthy_jobs_nothing_is_said_but_what_they_have_in_memory(result: Result, kind: str) -> None:
    names = {name for name, each in result.given.kinds.items() if each == kind}
    told = {(draft.subject.name, draft.variant) for draft in result.drafts if draft.subject.name in names}
    half = {(name, "memory_over_ask") for name in names if result.given.memory_gib[name] <= 40}
    assert told == half


def test_of_unseen_jobs_it_is_said_that_they_were_not_seen(result: Result) -> None:
    names = {name for name, label in result.given.labels.items() if label.lacks_data}
    lacking = {each.subject.name for each in result.idle.withheld if each.lacks_data}
    assert names <= lacking
    assert not {draft.subject.name for draft in result.drafts} & names


def test_a_gpu_of_eight_is_partly_and_never_whole(result: Result) -> None:
    drafts = {
        draft.subject.name: draft
        for draft in result.idle.drafts
        if result.given.kinds[draft.subject.name] == "one GPU of eight idle"
    }
    assert {draft.variant for draft in drafts.values()} == {"partly"}
    assert all(each.boards == 1.0 for draft in drafts.values() for each in draft.episodes)


@pytest.mark.parametrize(("kind", "profile"), [("fits 1g.10gb", "1g.10gb"), ("fits only 3g.40gb", "3g.40gb")])
def test_the_slice_that_is_named_is_the_right_one(result: Result, kind: str, profile: str) -> None:
    named = {
        str(each.value)
        for draft in result.large.drafts
        if result.given.kinds.get(draft.subject.name) == kind
        for each in draft.evidence
        if each.name == "smallest slice that fits"
    }
    assert named == {profile}


def test_each_job_has_one_finding_that_counts(result: Result) -> None:
    """One cause, one finding: the two rules do not claim the same job."""
    counted = [draft.subject.name for draft in result.drafts if draft.episodes]
    assert len(counted) == len(set(counted))
