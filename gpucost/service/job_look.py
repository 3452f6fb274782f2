"""The detectors on the time of one job, as a source still has it: what they say of it, whoever looked before.

Findings live from one evaluation to the next; a job that came and went, or one of a ledger whose windows were
assessed without anybody looking live, has none. Its time can be looked at again. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from gpucost.detectors.evaluate import Evaluation, evaluate
from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import Finding, Pattern, Subject, SubjectKind
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.time import DAY_MS, Window, iso
from gpucost.reports.display import span_of_days
from gpucost.reports.job import JobReport
from gpucost.reports.job_waste import JobLook, Observed, Unsaid
from gpucost.reports.values import Amount
from gpucost.service.assessing import look
from gpucost.service.detecting import SLOW
from gpucost.service.pipeline import Rules
from gpucost.service.settings_detectors import DetectorsSettings
from gpucost.settings.types import milliseconds
from gpucost.telemetry.source import Source

MOST_MS = 3 * DAY_MS
"""How much is looked at, the last of it: the history of the job's whole cluster is read."""


@dataclass(frozen=True)
class JobLooking:
    """A source, and the rules of attribution and detectors. ``before_ms`` and ``after_ms`` of history are
    looked at on either side of a job: an idle stretch is one only when it has lasted."""

    source: Source
    rules: Rules
    detectors: RuleSettings
    before_ms: int
    after_ms: int

    def look(self, report: JobReport) -> JobLook:
        """What the detectors say of the job of ``report``. Never raises what a source may raise."""
        spans, notes = list[Window](), list[str]()
        findings, withheld = list[Observed](), list[Unsaid]()
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
            found = evaluate(facts, self.detectors.only(set(Pattern) - SLOW))
            spans.append(inside)
            findings += _said(facts, found, report.job_uid)
            withheld += _unsaid(found, report.job_uid)
            notes += [f"{cluster}: the detector {each.pattern} failed" for each in found.failures]
        looked = sum(span.length_ms for span in spans)
        if spans and looked < report.span.length_ms:
            whole = span_of_days(report.span.length_ms)
            notes.append(f"Detectors: {span_of_days(looked)} of {whole}, the last that is there")
        ranked = sorted(findings, key=_order)
        return JobLook(tuple(spans), tuple(ranked), tuple(dict.fromkeys(withheld)), tuple(notes))

    def _around(self, span: Window) -> Window:
        end_ms = span.end_ms + self.after_ms
        return Window(max(span.start_ms - self.before_ms, end_ms - MOST_MS), end_ms)


def job_looking(settings: DetectorsSettings, source: Source, rules: Rules) -> JobLooking:
    """With the detectors as the settings have them."""
    around = (milliseconds(settings.looks_before), milliseconds(settings.looks_after))
    return JobLooking(source, rules, settings.rules, *around)


def _said(facts: Facts, found: Evaluation, job_uid: str) -> Iterator[Observed]:
    """Findings about the job, and those of others that claim time of its pods."""
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


def _observed(facts: Facts, finding: Finding, pieces: pd.DataFrame) -> Observed:
    draft = finding.draft
    is_view = draft.view_ms is not None
    return Observed(
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        since=iso(draft.since_ms),
        until=None if draft.ended_ms is None else iso(draft.ended_ms),
        summary=draft.summary,
        formula=draft.formula,
        action=draft.action.text,
        patch=draft.action.patch,
        wasted=Amount(finding.wasted.board_ms, finding.wasted.nano) if is_view else _sum(facts, pieces),
        counted=finding.wasted.counted,
    )


def _sum(facts: Facts, pieces: pd.DataFrame) -> Amount:
    """Time and money of pieces; money is None where any of them has no price."""
    board_ms, nano = 0.0, list[int | None]()
    names = ("cluster", "node", "start_ms", "end_ms", "boards")
    for cluster, node, start, end, boards in zip(*(pieces[name].tolist() for name in names), strict=True):
        board_ms += boards * (end - start)
        nano.append(facts.prices.nano(cluster, node, start, end, boards))
    priced = [each for each in nano if each is not None]
    return Amount(round(board_ms), sum(priced) if len(priced) == len(nano) else None)


def _unsaid(found: Evaluation, job_uid: str) -> Iterable[Unsaid]:
    return (Unsaid(each.pattern.value, each.because) for each in found.withheld if _is(each.subject, job_uid))


def _is(subject: Subject, job_uid: str) -> bool:
    return subject.kind is SubjectKind.JOB and subject.uid == job_uid


def _order(found: Observed) -> tuple[object, ...]:
    return (-(found.wasted.nano or 0), -found.wasted.board_ms, found.pattern, found.variant, found.since)
