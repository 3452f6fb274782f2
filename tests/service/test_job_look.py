"""The detectors on the time of one job: what is read, what they say of it, and why they cannot."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import SourceTimeout
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.reports.job.job_report import JobReport, build_job
from gpucost.reports.job.job_waste import JobDetectionView
from gpucost.service.detection.job_inspection import MOST_MS, JobInspection, job_inspection
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.settings.detectors import DetectorsSettings
from tests.detectors.worlds import T0, World, at, four_dollars
from tests.reports.builders import START_MS
from tests.reports.test_job import job_inputs, part
from tests.service.test_job_source import Asked

RULES = AttributionRules(four_dollars, TeamRules.default(), ResourceCatalog(), ShareBasis.COMPUTE)
SETTINGS = DetectorsSettings()


def looking(source: Asked) -> JobInspection:
    return job_inspection(SETTINGS, source, RULES)


def job(days: float, uid: str = "uid-train", start_ms: int = START_MS) -> JobReport:
    begin = (start_ms - START_MS) / HOUR_MS
    rows = part(days * 24, begin, begin + days * 24) | {"job_uid": uid, "cluster": "c"}
    return build_job(job_inputs(rows, job_uid=uid))


def idle_and_over() -> ClusterFrames:
    """``train`` worked for an hour and idled for eleven, beside another job that idles all day."""
    world = World(24 * 60).node("n1", 4)
    world.pod("p", "n1", 0, 12 * 60, units=2, job="train", team="a")
    world.pod("q", "n1", 0, units=1, job="other", team="b")
    for gpu in ("g0", "g1"):
        world.work("p", "n1", gpu, [0.9] * 12 + [0.0] * 132)
    return world.work("q", "n1", "g2", [0.0] * 288).frames()


def seen(days: float = 0.5) -> JobDetectionView:
    source = Asked(Window(T0, at(24 * 60)), held=idle_and_over())
    return looking(source).look(job(days, start_ms=T0))


def test_what_is_over_is_said_too_and_nothing_of_other_jobs() -> None:
    [found] = [each for each in seen().findings if each.pattern == "idle_allocation"]
    assert found.until is not None
    assert "train" in found.summary
    assert found.formula
    # Two GPUs from 01:00 to 12:00 at 4 USD.
    assert (found.wasted.board_ms, found.wasted.nano) == (22 * HOUR_MS, 88_000_000_000)
    assert not any("other" in each.summary for each in seen().findings)


@pytest.mark.parametrize("days", [0.5, 2, 30])
def test_at_most_three_days_are_read(days: float) -> None:
    source = Asked(Window(START_MS - 30 * DAY_MS, START_MS + 60 * DAY_MS))
    found = looking(source).look(job(days))
    [span] = source.spans
    assert span.length_ms <= MOST_MS
    assert not source.frames, "every frame is read: rules need them all"
    end_ms = START_MS + round(days * DAY_MS)
    assert span.end_ms == end_ms + round(SETTINGS.after / timedelta(milliseconds=1))
    assert all(each.end_ms <= end_ms for each in found.spans)
    assert any("the last that is there" in note for note in found.notes) == (days > 2)


def test_a_source_that_fails_or_holds_nothing_is_a_note() -> None:
    broken = Asked(Window(START_MS, START_MS + DAY_MS), error=SourceTimeout("no answer in 2 m"))
    found = looking(broken).look(job(1))
    assert found.findings == ()
    assert found.notes == ("c: the detectors cannot look at this job again: no answer in 2 m",)
    for extent in (None, Window(START_MS + 30 * DAY_MS, START_MS + 60 * DAY_MS)):
        [note] = looking(Asked(extent)).look(job(1)).notes
        assert note == "c: the source holds nothing of the time of this job any more"
