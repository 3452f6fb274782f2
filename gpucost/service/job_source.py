"""A job as a source still has it: its GPUs one by one, and its waits. A source that cannot say is no error:
the report of the ledger stands without it, and says why."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.attribution.frames import Frames
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.time import DAY_MS, Window
from gpucost.reports.display import span_of_days
from gpucost.reports.job import JobReport
from gpucost.reports.job_seen import JobSeen, seen
from gpucost.telemetry.source import Source

BEFORE_MS = DAY_MS
"""How long before its first GPU a job's waits are looked for."""
MOST_MS = 7 * DAY_MS
"""How much of a job, the last of it, is looked at GPU by GPU: the history of its whole cluster is read."""
_FRAMES = ("allocations", "activity", "demand")


def see_job(source: Source, report: JobReport) -> JobSeen:
    """What ``source`` has of the job of ``report``. Never raises what a source may raise."""
    looks, notes = list[tuple[Window, Frames]](), list[str]()
    for cluster in report.clusters:
        try:
            covered = source.covered(cluster)
            spans = [] if covered is None else [*_spans(report.span, covered)]
            looks += [(span, source.history(cluster, span, only=_FRAMES)) for span in spans]
        except (SourceError, InputError) as error:
            notes.append(f"{cluster}: the source cannot say what single GPUs did: {error}")
            continue
        if not any(span.intersect(report.span) for span in spans):
            held = "nothing" if covered is None else str(covered)
            notes.append(f"{cluster}: the source holds {held}, no longer anything of the time of this job")
    found = seen(report.job_uid, looks, notes)
    return seen(report.job_uid, looks, [*notes, *_missing(found, report.span)])


def _spans(span: Window, covered: Window) -> Iterator[Window]:
    """From a day before the job to its end; of a long one that day, and the last days."""
    whole = Window(span.start_ms - BEFORE_MS, span.end_ms)
    last = Window(span.end_ms - MOST_MS, span.end_ms)
    parts = (whole,) if last.start_ms <= span.start_ms else (Window(whole.start_ms, span.start_ms), last)
    for part in parts:
        inside = covered.intersect(part)
        if inside is not None:
            yield inside


def _missing(found: JobSeen, span: Window) -> Iterator[str]:
    """What a reader would look for and does not find."""
    looked = sum(span.overlap_ms(each.start_ms, each.end_ms) for each in found.spans)
    if not looked:
        return
    if not found.gpus:
        yield "The source has no activity of single GPUs of this job: see docs/sources.md for what it needs"
    elif looked < span.length_ms:
        whole = span_of_days(span.length_ms)
        yield f"GPU by GPU: {span_of_days(looked)} of {whole}, which is what was read or is still there"
    if not found.waits:
        yield "No wait is known: it never waited, or nothing recorded it (the queue collector does)"
