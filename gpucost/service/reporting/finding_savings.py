"""What findings are worth, out of the ledger: see ``gpucost.reports.month.savings_report``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from gpucost.advisor.wait.run_times import name_pattern
from gpucost.detectors.engine.lifecycle import LIVE
from gpucost.detectors.findings import SubjectKind
from gpucost.domain.buckets import NO_TEAM, Bucket
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.records import FindingRecord, FindingState
from gpucost.reports.month.change_causes import SpanLines
from gpucost.reports.month.inputs import span_time
from gpucost.reports.month.savings_report import (
    OPEN_DIMS,
    MeasuredSaving,
    OpenClaim,
    PossibleSavings,
    SavingsReport,
    measured_saving,
    possible_savings,
    savings_report,
)
from gpucost.reports.month.span_change import CHANGE_DIMS
from gpucost.service.reporting.report_service import ReportAnswer, ReportService, window_facts

BASELINE_DAYS = 28
COUNTED_DAYS = 365
"""For so long what was saved counts; then it is how things are."""
MOST_MEASURED = 200
"""Patterns that are measured, those with the dearest findings first: each reads two spans by job."""
_PAGE = 1_000


def savings(reporting: ReportService, scope: Scope, month: Month) -> ReportAnswer[SavingsReport] | None:
    """What the open findings that ``scope`` sees could save in a month, and what those acted upon saved in
    ``month`` so far; None where the ledger holds nothing of the month."""
    span = month.window
    if not reporting.stand(scope, span).windows:
        return None

    def known() -> tuple[FindingRecord, ...]:
        return tuple(_records(reporting, scope, span))

    first_ms = min((_acted_ms(each) or span.start_ms for each in known()), default=span.start_ms)
    return reporting.steady(
        scope,
        Window(max(0, first_ms - (BASELINE_DAYS + 1) * DAY_MS), span.end_ms),
        lambda: _made(reporting, scope, month, known()),
        asked=("savings", month),
        beside=lambda: tuple((each.id, each.revision) for each in known()),
    )


def _records(reporting: ReportService, scope: Scope, span: Window) -> Iterator[FindingRecord]:
    """Findings that were open in ``span`` or answered for in the year before its end."""
    since_ms = max(0, span.end_ms - COUNTED_DAYS * DAY_MS)
    after = None
    while True:
        page = reporting.ledger.findings(
            scope, states=tuple(FindingState), since_ms=since_ms, limit=_PAGE, after=after
        )
        for each in page:
            acted_ms = _acted_ms(each)
            if acted_ms is None or since_ms <= acted_ms < span.end_ms:
                yield each
        if len(page) < _PAGE:
            return
        assert page[-1].id is not None
        after = page[-1].nano, page[-1].id


def _acted_ms(record: FindingRecord) -> int | None:
    return None if record.acknowledged_by is None else record.acknowledged_at_ms


def _made(
    reporting: ReportService, scope: Scope, month: Month, records: Sequence[FindingRecord]
) -> SavingsReport:
    span = month.window
    infos = reporting.ledger.windows(span, scope=scope)
    until_ms = max(min(info.window.end_ms, span.end_ms) for info in infos) // DAY_MS * DAY_MS
    day = _day_looked_at(reporting, scope, Window(span.start_ms, max(until_ms, span.start_ms + 1)))
    about_jobs = [each for each in records if each.subject_kind == SubjectKind.JOB]
    acted = [each for each in about_jobs if _acted_ms(each) is not None]
    patterns = _by_pattern(acted)[:MOST_MEASURED]
    measured = [_measured(reporting, each, span, until_ms) for each in patterns]
    return savings_report(
        month,
        reporting.currency,
        None if scope.teams is None else tuple(sorted(scope.teams)),
        day,
        _possible(reporting, scope, day, records),
        measured,
        unanswered=sum(
            _acted_ms(each) is None and span.start_ms <= (each.closed_at_ms or 0) < span.end_ms
            for each in about_jobs
        ),
        unmeasured=sum(_acted_ms(each) is not None for each in records)
        - sum(len(each.findings) for each in measured),
    )


def _day_looked_at(reporting: ReportService, scope: Scope, span: Window) -> Window | None:
    """The last whole day (UTC) of ``span`` of which the detectors have looked at every window."""
    for day in reversed([each for each in span.split(DAY_MS) if each.length_ms == DAY_MS]):
        counts = reporting.ledger.assessed(day, scope=scope)
        if not counts.missing and counts.final + counts.provisional:
            return day
    return None


def _possible(
    reporting: ReportService, scope: Scope, day: Window | None, records: Sequence[FindingRecord]
) -> PossibleSavings:
    claims = [
        OpenClaim(each.id, each.cluster, each.pattern, _subject(each))
        for each in records
        if each.id is not None and each.counted and each.state in LIVE and day and each.since_ms < day.end_ms
    ]
    if day is None or not claims:
        return PossibleSavings({}, {})
    return possible_savings(reporting.ledger.waste(scope, day, OPEN_DIMS), claims)


def _subject(record: FindingRecord) -> str:
    kind = SubjectKind(record.subject_kind)
    if kind is SubjectKind.JOB:
        return record.subject_uid
    return record.subject_name if kind is SubjectKind.NODE else ""


def _by_pattern(records: Sequence[FindingRecord]) -> list[MeasuredSaving]:
    """One for each pattern of a team's jobs, with all its findings, as of the first answer."""
    found: dict[tuple[str, str, str], list[FindingRecord]] = defaultdict(list)
    for each in records:
        pattern = f"{each.subject_namespace}/{name_pattern(each.subject_name)}"
        found[each.cluster, each.team or NO_TEAM, pattern].append(each)
    made = []
    for (cluster, team, pattern), of in found.items():
        first = min(of, key=lambda each: (_acted_ms(each) or 0, each.id or 0))
        ids = tuple(sorted(each.id for each in of if each.id is not None))
        made.append(
            MeasuredSaving(ids, pattern, cluster, team, _acted_ms(first) or 0, first.acknowledged_by or "")
        )
    return made


def _measured(
    reporting: ReportService, found: MeasuredSaving, month: Window, until_ms: int
) -> MeasuredSaving:
    acted_day_ms = found.acted_at_ms // DAY_MS * DAY_MS
    start_ms = max(month.start_ms, -(-found.acted_at_ms // DAY_MS) * DAY_MS)
    if start_ms >= until_ms:
        return replace(found, why_not="no whole day of the month has passed since")
    # All teams: jobs that another team holds since were not saved. Nothing else follows from others' lines.
    everybody = Scope(None, frozenset({found.cluster}))
    extent = reporting.ledger.extent(found.cluster, scope=everybody)
    first_ms = acted_day_ms - BASELINE_DAYS * DAY_MS
    if extent is not None:
        first_ms = max(first_ms, -(-extent.start_ms // DAY_MS) * DAY_MS)
    if first_ms >= acted_day_ms:
        return replace(found, why_not="the ledger has no whole day before it")
    before, now = Window(first_ms, acted_day_ms), Window(start_ms, until_ms)
    lines = _lines(reporting, everybody, found, before)
    own = _own(lines, found)
    if len(own):
        begun_ms = int(own["first_ms"].min()) // DAY_MS * DAY_MS
        if begun_ms > first_ms:
            before = Window(begun_ms, acted_day_ms)
            lines = _lines(reporting, everybody, found, before)
    since = _lines(reporting, everybody, found, now)
    kinds = set(_own(lines, found)["job_kind"].tolist())
    return measured_saving(replace(found, before_span=before, span=now), lines, since, kinds)


def _own(span: SpanLines, found: MeasuredSaving) -> pd.DataFrame:
    return span.lines[span.lines["team"] == found.team]


def _lines(reporting: ReportService, scope: Scope, found: MeasuredSaving, span: Window) -> SpanLines:
    namespace, _, name = found.pattern.partition("/")
    only = {"namespace": (namespace,), "bucket": (str(Bucket.HELD),)}
    lines = reporting.ledger.aggregate(scope, span, CHANGE_DIMS, filters=only)
    lines = lines[lines["job"].map(name_pattern).eq(name)]
    infos = reporting.ledger.windows(span, scope=scope)
    return SpanLines(lines, span_time([window_facts(info) for info in infos], span))
