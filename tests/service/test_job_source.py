"""A job as a source still has it: what is read of a long one, and what is said where there is nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.errors import SourceError, SourceTimeout
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.reports.job.job_report import JobReport, build_job
from gpucost.service.detection.job_inspection import LONGEST_SPAN_MS, see_job
from tests.detectors.worlds import World
from tests.reports.builders import START_MS
from tests.reports.test_job import job_inputs, part


@dataclass
class Asked:
    """A source that remembers what it was asked for."""

    extent: Window | None
    held: ClusterFrames = field(default_factory=lambda: World(end=60).node("n1").frames())
    error: SourceError | None = None
    spans: list[Window] = field(default_factory=list)
    frames: set[str] = field(default_factory=set)
    name: str = "asked"

    def clusters(self) -> tuple[str, ...]:
        return ("east",)

    def covered(self, cluster: str) -> Window | None:
        del cluster
        return self.extent

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        raise NotImplementedError

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        del cluster
        if self.error is not None:
            raise self.error
        self.spans.append(window)
        self.frames |= {*(only or ())}
        return self.held


def job(days: float) -> JobReport:
    return build_job(job_inputs(part(days * 24, 0, days * 24)))


def always() -> Window:
    return Window(START_MS - 30 * DAY_MS, START_MS + 60 * DAY_MS)


def test_a_short_job_is_read_whole_with_the_day_before_it() -> None:
    source = Asked(always())
    see_job(source, job(2))
    assert source.spans == [Window(START_MS - DAY_MS, START_MS + 2 * DAY_MS)]
    assert source.frames == {"allocations", "activity", "demand"}, "nothing else is read"


def test_of_a_long_job_its_last_days_and_the_day_before_it_are_read() -> None:
    source = Asked(always())
    see_job(source, job(30))
    end = START_MS + 30 * DAY_MS
    assert source.spans == [Window(START_MS - DAY_MS, START_MS), Window(end - LONGEST_SPAN_MS, end)]


def test_a_job_of_seven_days_and_an_hour_is_not_read_twice() -> None:
    source = Asked(always())
    see_job(source, job(7 + 1 / 24))
    first, last = source.spans
    assert first.end_ms <= last.start_ms


def test_only_what_the_source_holds_is_asked_for() -> None:
    source = Asked(Window(START_MS + HOUR_MS, START_MS + 2 * HOUR_MS))
    seen = see_job(source, job(1))
    assert source.spans == list(seen.spans) == [source.extent]
    assert any("no activity of single GPUs" in note for note in seen.notes)


def test_a_job_older_than_the_source_says_what_the_source_holds() -> None:
    later = Window(START_MS + 40 * DAY_MS, START_MS + 41 * DAY_MS)
    seen = see_job(Asked(later), job(1))
    assert seen.notes == (f"east: the source holds {later}, no longer anything of the time of this job",)
    assert "holds nothing" in see_job(Asked(None), job(1)).notes[0]


def test_a_source_that_fails_is_a_note_and_no_error() -> None:
    seen = see_job(Asked(always(), error=SourceTimeout("no answer in 2 m")), job(1))
    assert (seen.gpus, seen.spans) == ((), ())
    assert seen.notes == ("east: the source cannot say what single GPUs did: no answer in 2 m",)
