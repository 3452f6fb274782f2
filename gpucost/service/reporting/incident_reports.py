"""Incidents out of the ledger: the signs of days, for chat, and the incidents of the last weeks as a list.

What is read is one sum over days, of which each span of a sign is a part. A reader of some teams has the
incidents of these.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Window, iso
from gpucost.reports.base.values import STEP
from gpucost.reports.month.change_causes import SpanLines, cause_words
from gpucost.reports.month.cost_incidents import (
    CostIncident,
    ExpectedSpan,
    IncidentDay,
    IncidentReport,
    IncidentRule,
    IncidentSign,
    TeamIncident,
    incidents,
    signs_of,
)
from gpucost.reports.month.inputs import span_time
from gpucost.reports.month.span_change import CHANGE_DIMS
from gpucost.service.reporting.report_service import ReportService, window_facts

SIGN_DAYS = 28
"""Days whose signs a report looks at: what began earlier is what is usual by now."""


def sign_days(reporting: ReportService, scope: Scope, rule: IncidentRule, at_ms: int, most: int) -> list[int]:
    """The ends of the last whole days before ``at_ms``, ``most`` at most, that have the time before them that
    a sign takes; oldest first."""
    extent = reporting.ledger.extent(scope=scope)
    if extent is None:
        return []
    end_ms = min(at_ms, extent.end_ms) // DAY_MS * DAY_MS
    days = (end_ms - n * DAY_MS for n in reversed(range(most)))
    return [day for day in days if rule.spans(day)[1].start_ms >= extent.start_ms]


def read_signs(
    reporting: ReportService, scope: Scope, rule: IncidentRule, days: list[int]
) -> dict[int, dict[str, IncidentSign]]:
    """The signs of every team, by the end of the day; none where windows are cut by a day."""
    if not days:
        return {}
    whole = Window(rule.spans(days[0])[1].start_ms, days[-1])
    try:
        lines = reporting.ledger.aggregate(scope, whole, CHANGE_DIMS, step_ms=DAY_MS)
    except InputError:
        return {}
    infos = [window_facts(info) for info in reporting.ledger.windows(whole, scope=scope)]

    def side(span: Window) -> SpanLines:
        inside = (lines[STEP] >= span.start_ms) & (lines[STEP] < span.end_ms)
        own = [each for each in infos if span.start_ms <= each.start_ms < span.end_ms]
        return SpanLines(lines[inside].drop(columns=STEP), span_time(own, span))

    spans = {day: rule.spans(day) for day in days}
    return {day: signs_of(day, side(week), side(base), rule) for day, (week, base) in spans.items()}


def incident_report(
    reporting: ReportService, scope: Scope, expected: Mapping[str, tuple[Window, ...]], at_ms: int
) -> IncidentReport:
    """The incidents of the last four weeks before ``at_ms``, of the teams that ``scope`` sees; those that go
    on first, then the latest."""
    rule = IncidentRule()
    days = sign_days(reporting, scope, rule, at_ms, SIGN_DAYS)
    signs = read_signs(reporting, scope, rule, days)
    found: list[TeamIncident] = []
    for team in sorted({team for by_team in signs.values() for team in by_team}):
        own = [by_team.get(team, IncidentSign(day, 0, 0, None)) for day, by_team in signs.items()]
        known = incidents(team, own, rule, expected.get(team, ()))
        found += [_listed(each, own, rule) for each in known]
    found.sort(key=lambda each: (each.ended is None, each.began), reverse=True)
    announced = [
        ExpectedSpan(team, each)
        for team, spans in sorted(expected.items())
        if scope.teams is None or team in scope.teams
        for each in spans
    ]
    return IncidentReport(
        iso(days[-1] if signs else at_ms),
        reporting.currency,
        None if scope.teams is None else tuple(sorted(scope.teams)),
        iso(days[0]) if signs else None,
        rule.floor_nano,
        tuple(announced),
        tuple(found),
    )


def _listed(incident: CostIncident, signs: list[IncidentSign], rule: IncidentRule) -> TeamIncident:
    ended_ms, cause = incident.ended_ms, incident.cause
    own = [each for each in signs if incident.began_ms <= each.day_ms <= (ended_ms or each.day_ms)]
    most = max(own, key=lambda each: (each.excess_nano, each.day_ms))
    week, base = rule.spans(most.day_ms)
    return TeamIncident(
        f"{incident.team}/{iso(incident.began_ms)[:10]}",
        incident.team,
        iso(incident.began_ms),
        None if ended_ms is None else iso(ended_ms),
        incident.excess_nano,
        incident.base_nano,
        "" if cause is None else cause_words(cause),
        None if cause is None else cause.nano,
        str(week),
        str(base),
        tuple(IncidentDay(iso(each.day_ms), each.excess_nano, each.base_nano) for each in own),
    )
