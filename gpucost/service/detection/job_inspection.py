"""One job as a source still has it: what the detectors find in its time, its GPUs one by one, and its waits.

Findings live from one evaluation to the next. A job that came and went, or one of a ledger whose windows were
assessed without a live evaluation, has none; so the detectors can be run again over its time. Nothing is
written.

A source that cannot answer is no error: the report of the ledger stands without it, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.detectors.engine.evaluation import RuleEvaluation, evaluate
from gpucost.detectors.findings import Finding, FindingSubject, SubjectKind, WastePattern
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.time import DAY_MS, Window, iso
from gpucost.reports.base.display import span_of_days
from gpucost.reports.base.values import CostAmount
from gpucost.reports.job.job_report import JobLiveView, JobReport, live_view
from gpucost.reports.job.job_waste import JobDetectionView, JobObservation, JobPatternAbsence
from gpucost.service.detection.runner import SLOW
from gpucost.service.detection.waste_accounting import look
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.settings.types import milliseconds
from gpucost.telemetry.interval_source import IntervalSource

MOST_MS = 3 * DAY_MS
"""Longest history that is read, the last part of the job: it is the history of the job's whole cluster."""


@dataclass(frozen=True)
class JobInspection:
    """A source, and the rules of attribution and detectors. ``before_ms`` and ``after_ms`` of history are
    read on either side of a job: an idle stretch counts only once it has lasted long enough."""

    source: IntervalSource
    rules: AttributionRules
    detectors: RuleSettings
    before_ms: int
    after_ms: int

    def look(self, report: JobReport) -> JobDetectionView:
        """What the detectors find about the job of ``report``. Errors of the source are never raised."""
        spans, notes = list[Window](), list[str]()
        findings, withheld = list[JobObservation](), list[JobPatternAbsence]()
        for cluster in report.clusters:
            try:
                covered = self.source.covered(cluster)
                window = None if covered is None else covered.intersect(self._around(report.span))
                inside = None if window is None else window.intersect(report.span)
                if window is None or inside is None:
                    notes.append(f"{cluster}: the source holds nothing of the time of this job any more")
                    continue
                facts = look(cluster, self.source.history(cluster, window), window, self.rules)
            except (SourceError, InputError) as error:
                notes.append(f"{cluster}: the detectors cannot look at this job again: {error}")
                continue
            found = evaluate(facts, self.detectors.only(set(WastePattern) - SLOW))
            spans.append(inside)
            findings += _said(facts, found, report.job_uid)
            withheld += _unsaid(found, report.job_uid)
            notes += [f"{cluster}: the detector {each.pattern} failed" for each in found.failures]
        looked = sum(span.length_ms for span in spans)
        if spans and looked < report.span.length_ms:
            whole = span_of_days(report.span.length_ms)
            notes.append(f"Detectors: {span_of_days(looked)} of {whole}, the last that is there")
        ranked = sorted(findings, key=_order)
        return JobDetectionView(tuple(spans), tuple(ranked), tuple(dict.fromkeys(withheld)), tuple(notes))

    def _around(self, span: Window) -> Window:
        end_ms = span.end_ms + self.after_ms
        return Window(max(span.start_ms - self.before_ms, end_ms - MOST_MS), end_ms)


def job_inspection(
    settings: DetectorsSettings, source: IntervalSource, rules: AttributionRules
) -> JobInspection:
    """With the detectors as the settings have them."""
    around = (milliseconds(settings.looks_before), milliseconds(settings.looks_after))
    return JobInspection(source, rules, settings.rules, *around)


def _said(facts: DetectorFacts, found: RuleEvaluation, job_uid: str) -> Iterator[JobObservation]:
    """Findings about the job, and findings about others that claim time of its pods."""
    allocations = facts.history.frames.allocations
    pods = set(allocations.loc[allocations["job_uid"] == job_uid, "pod_uid"])
    pieces = found.pieces
    is_own = pieces["pod_uid"].isin(pods)
    claimed = set(pieces.loc[is_own, "draft"])
    for position, finding in enumerate(found.findings):
        is_about = _is(finding.draft.subject, job_uid)
        if is_about or position in claimed:
            mine = (pieces["draft"] == position) & (True if is_about else is_own)
            yield _observed(facts, finding, pieces[mine])


def _observed(facts: DetectorFacts, finding: Finding, pieces: pd.DataFrame) -> JobObservation:
    draft = finding.draft
    is_view = draft.view_ms is not None
    return JobObservation(
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        since=iso(draft.since_ms),
        until=None if draft.ended_ms is None else iso(draft.ended_ms),
        summary=draft.summary,
        formula=draft.formula,
        action=draft.action.text,
        patch=draft.action.patch,
        wasted=CostAmount(finding.wasted.board_ms, finding.wasted.nano) if is_view else _sum(facts, pieces),
        counted=finding.wasted.counted,
    )


def _sum(facts: DetectorFacts, pieces: pd.DataFrame) -> CostAmount:
    """Time and money of pieces; money is None where any piece has no price."""
    board_ms, nano = 0.0, list[int | None]()
    names = ("cluster", "node", "start_ms", "end_ms", "boards")
    for cluster, node, start, end, boards in zip(*(pieces[name].tolist() for name in names), strict=True):
        board_ms += boards * (end - start)
        nano.append(facts.prices.nano(cluster, node, start, end, boards))
    priced = [each for each in nano if each is not None]
    return CostAmount(round(board_ms), sum(priced) if len(priced) == len(nano) else None)


def _unsaid(found: RuleEvaluation, job_uid: str) -> Iterable[JobPatternAbsence]:
    return (
        JobPatternAbsence(each.pattern.value, each.because)
        for each in found.withheld
        if _is(each.subject, job_uid)
    )


def _is(subject: FindingSubject, job_uid: str) -> bool:
    return subject.kind is SubjectKind.JOB and subject.uid == job_uid


def _order(found: JobObservation) -> tuple[object, ...]:
    return (-(found.wasted.nano or 0), -found.wasted.board_ms, found.pattern, found.variant, found.since)


BEFORE_MS = DAY_MS
"""Waits are searched from this long before the job's first GPU."""
LONGEST_SPAN_MS = 7 * DAY_MS
"""Longest part of a job, its end, that is read GPU by GPU: it is the history of the job's whole cluster."""
_FRAMES = ("allocations", "activity", "demand")


def see_job(source: IntervalSource, report: JobReport) -> JobLiveView:
    """What ``source`` has about the job of ``report``. Errors of the source are never raised."""
    looks, notes = list[tuple[Window, ClusterFrames]](), list[str]()
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
    found = live_view(report.job_uid, looks, notes)
    return live_view(report.job_uid, looks, [*notes, *_missing(found, report.span)])


def _spans(span: Window, covered: Window) -> Iterator[Window]:
    """From a day before the job to its end; of a long job that first day, and the last days."""
    whole = Window(span.start_ms - BEFORE_MS, span.end_ms)
    last = Window(span.end_ms - LONGEST_SPAN_MS, span.end_ms)
    parts = (whole,) if last.start_ms <= span.start_ms else (Window(whole.start_ms, span.start_ms), last)
    for part in parts:
        inside = covered.intersect(part)
        if inside is not None:
            yield inside


def _missing(found: JobLiveView, span: Window) -> Iterator[str]:
    """What a reader would expect here and does not find."""
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
