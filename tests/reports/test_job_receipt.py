"""The receipt of a job: the numbers of its report, how it ended, and the one change for its next run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.reports.base.document import parse_json, read_document, to_json
from gpucost.reports.base.values import CostAmount
from gpucost.reports.job.job_receipt import (
    ENDINGS,
    JobEndFacts,
    JobEnding,
    JobReceipt,
    build_receipt,
    ending_words,
    gpus_words,
    wasted_words,
)
from gpucost.reports.job.job_report import build_job
from gpucost.reports.waste.waste_report import WasteAssessment
from tests.reports.builders import START_MS
from tests.reports.test_job import job_inputs, part
from tests.reports.test_terminal_job import told
from tests.reports.test_waste import frame, line

LOOKED_AT = WasteAssessment(3, 0, 0)


def receipt(*buckets: Any, end: JobEndFacts | None = None, holds: bool = False, **changes: Any) -> JobReceipt:
    """A job of 8 GPUs that held them for 3.5 hours, and after a gap one of them for an hour."""
    lines = (part(28, 0, 3.5, seen=28, busy=0.75), part(1, 5, 6, pod="train-1"))
    changes = {"waste": frame(*buckets), "assessment": LOOKED_AT, **changes} if buckets else changes
    report = build_job(job_inputs(*lines, **changes))
    return build_receipt(report, end or JobEndFacts(), holds=holds)


def test_it_has_the_numbers_of_the_report() -> None:
    found = receipt(line(Waste.IDLE, 5), line(Waste.PREEMPTED, 2), line(Waste.PRODUCTIVE, 22))
    assert (found.job, found.teams, found.users, found.models) == ("train", ("nlp",), ("ada",), ("H100",))
    assert found.held == CostAmount(29 * HOUR_MS, 199_520_000_000)
    assert found.gpus == Fraction(29 * HOUR_MS, round(4.5 * HOUR_MS)), "the gap is not counted"
    assert gpus_words(found) == "6.4 GPUs of H100"
    assert found.span == Window(START_MS, START_MS + 6 * HOUR_MS)
    assert found.busy is not None
    assert found.wasted is not None
    assert [row.waste for row in found.buckets] == ["idle", "preempted"], "the dearest first, and waste only"
    assert found.wasted == sum((row.amount for row in found.buckets), CostAmount(0, 0))
    assert wasted_words(found).endswith("7.0 GPU-hours (24%): idle 20.00, preempted 8.00")


def test_what_nobody_looked_at_is_not_said_to_be_without_waste() -> None:
    for found in (receipt(), receipt(line(Waste.UNKNOWN, 29), assessment=WasteAssessment(0, 0, 3))):
        assert (found.wasted, found.wasted_share, found.change) == (None, None, None)
        assert wasted_words(found) == "not known: no detector has looked at it"
    assert wasted_words(receipt(line(Waste.PRODUCTIVE, 29))) == "nothing that was seen"


def test_the_change_is_that_of_the_dearest_bucket_with_its_finding() -> None:
    idle = told(7, "it idles")
    found = receipt(line(Waste.IDLE, 5), line(Waste.PREEMPTED, 2), findings=(idle,)).change
    assert found is not None
    assert (found.finding, found.pattern, found.text) == (7, "idle_allocation", "it idles")
    assert found.patch == idle.finding.draft.action.patch
    assert found.wasted == CostAmount(5 * HOUR_MS, 20_000_000_000)


def test_without_a_finding_the_bucket_says_what_avoids_it() -> None:
    found = receipt(line(Waste.PREEMPTED, 5), line(Waste.IDLE, 2), findings=(told(7, "x"),)).change
    assert found is not None
    assert (found.finding, found.pattern, found.patch) == (None, "preemption_waste", "")
    assert found.text == "Save checkpoints more often, to lose less to a stop"
    assert found.documentation == "docs/detectors/preemption_waste.md"


def test_nothing_to_change_where_nothing_was_wasted_and_nothing_found() -> None:
    assert receipt(line(Waste.PRODUCTIVE, 29)).change is None
    shown = receipt(line(Waste.PRODUCTIVE, 29), findings=(told(7, "only shown"),)).change
    assert shown is not None
    assert (shown.finding, shown.wasted) == (7, None)


@pytest.mark.parametrize("ending", JobEnding)
def test_every_ending_has_its_words(ending: JobEnding) -> None:
    found = receipt(end=JobEndFacts(ending, "\u202eothers needed its quota", 5 * MINUTE_MS))
    assert ending_words(found) == f"{ENDINGS[ending]}: \\u202eothers needed its quota"
    assert found.waited_ms == 5 * MINUTE_MS
    assert to_json(read_document(JobReceipt, parse_json(to_json(found)))) == to_json(found)


def test_a_job_that_holds_gpus_has_not_ended_whatever_is_said() -> None:
    found = receipt(end=JobEndFacts(JobEnding.FAILED, "Evicted"), holds=True)
    assert (found.ending, found.ending_reason, found.waited_ms) == (JobEnding.HOLDS, "", None)


def test_how_it_ended_is_unknown_where_nothing_says_it() -> None:
    assert ending_words(receipt()) == "It holds no GPU any more; how it ended is not known"
