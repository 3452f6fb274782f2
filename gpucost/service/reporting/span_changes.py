"""Two spans of the ledger compared: lines by job, how much of either was observed, and adjustments."""

from __future__ import annotations

from collections import defaultdict

from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import Month, Window
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.reports.month.change_causes import SpanLines
from gpucost.reports.month.inputs import span_time
from gpucost.reports.month.span_change import CHANGE_DIMS, SpanChange, build_change
from gpucost.service.reporting.report_service import (
    WINDOW_FORMS,
    ReportAnswer,
    ReportService,
    parse_window,
    window_facts,
)

SPAN_FORMS = f"{WINDOW_FORMS}; or a week such as 2026-W41"


def parse_span(text: str, field: str = "window") -> Window:
    """A month, a week of ISO 8601, or ``START/END``. Raises InputError."""
    try:
        return IsoWeek.parse(text).window if "-W" in text else parse_window(text)
    except InputError:
        raise InputError(field, text, SPAN_FORMS) from None


def span_before(span: Window) -> Window:
    """What a span is compared with: the month before a month, else as much time right before it."""
    month = Month.of(span.start_ms)
    if span == month.window:
        return month.previous().window
    return Window(max(0, span.start_ms - span.length_ms), span.start_ms)


def compare_spans(
    reporting: ReportService, scope: Scope, now: Window, before: Window, by: str = "team"
) -> ReportAnswer[SpanChange] | None:
    """Why ``now`` cost another amount than ``before``; None where the ledger holds nothing of one of them.

    A span that goes on counts up to where the ledger ends. Raises InputError for spans that overlap or cut a
    window in two, and for a ``by`` that is not known.
    """
    if now.intersect(before) is not None:
        raise InputError("before", str(before), f"a span that does not overlap {now}")
    whole = Window(min(now.start_ms, before.start_ms), max(now.end_ms, before.end_ms))
    if not all(reporting.stand(scope, span).windows for span in (now, before)):
        return None
    teams = None if scope.teams is None else tuple(sorted(scope.teams))

    def made() -> SpanChange:
        sides = [_side(reporting, scope, span, by) for span in (now, before)]
        return build_change((now, before), reporting.currency, teams, sides[0], sides[1], by)

    return reporting.steady(
        scope,
        whole,
        made,
        asked=("change", now, before, by),
        beside=lambda: tuple(span_adjustments(reporting, scope, span, by) for span in (now, before)),
    )


def _side(reporting: ReportService, scope: Scope, span: Window, by: str) -> SpanLines:
    lines = reporting.ledger.aggregate(scope, span, CHANGE_DIMS)
    if not scope.sees_every_team:
        lines = lines[lines["bucket"] == Bucket.HELD]
    infos = reporting.ledger.windows(span, scope=scope)
    adjusted = dict(span_adjustments(reporting, scope, span, by))
    return SpanLines(lines, span_time([window_facts(info) for info in infos], span), adjusted)


def span_adjustments(
    reporting: ReportService, scope: Scope, span: Window, by: str
) -> tuple[tuple[str, int], ...]:
    """Nano-units by team, where the span is whole months and rows are teams: adjustments are of a team and a
    month, and of no cluster."""
    if by != "team" or scope.clusters is not None:
        return ()
    found: dict[str, int] = defaultdict(int)
    month = Month.of(span.start_ms)
    while month.window.start_ms < span.end_ms:
        if span.start_ms <= month.window.start_ms and month.window.end_ms <= span.end_ms:
            for item in reporting.ledger.adjustments(scope, month):
                found[item.team] += item.nano
        month = month.next()
    return tuple(sorted(found.items()))
