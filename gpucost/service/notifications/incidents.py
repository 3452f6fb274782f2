"""Notices of incidents: a team costs more than usual, for a named cause, for days. Nothing is sent here.

The rules are in ``reports.month.cost_incidents``. Signs of a day follow from the ledger alone, and what was
told says which incident of a team is open: so a restart goes on in the same conversation, and opens no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import MINUTE_MS, Window, parse_instant
from gpucost.notify.compose.budget import incident_notice
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import Conversation, Notice, NoticeKind
from gpucost.reports.month.cost_incidents import CostIncident, IncidentRule, IncidentSign, incidents
from gpucost.service.reporting.incident_reports import read_signs, sign_days
from gpucost.service.reporting.report_service import ReportService

_LOOK_EVERY_MS = 10 * MINUTE_MS


@dataclass
class IncidentNotices:
    """The source of notices about incidents; ``expected`` are what teams announced, by team. Raises
    LedgerError."""

    reporting: ReportService
    links: MessageLinks
    expected: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    rule: IncidentRule = field(default_factory=IncidentRule)
    _looked_ms: int | None = None
    _signs: dict[int, dict[str, IncidentSign]] = field(default_factory=dict)

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_EVERY_MS:
            self._look()
            self._looked_ms = now_ms
        days = sorted(self._signs)
        last = _last_told(told)
        for team in sorted({team for signs in self._signs.values() for team in signs} | set(last)):
            own = [self._signs[day].get(team, IncidentSign(day, 0, 0, None)) for day in days]
            before = last.get(team)
            found = incidents(team, own, self.rule, self.expected.get(team, ()), before)
            latest = found[-1] if found else None
            if latest is None or (before is not None and before.ended_ms is not None and latest == before):
                continue
            yield incident_notice(latest, own[-1], self.reporting.currency, self.links)

    def _look(self) -> None:
        """Signs of the last whole days, as many as an incident takes; those that are known are kept."""
        extent = self.reporting.ledger.extent()
        end_ms = 0 if extent is None else extent.end_ms
        days = sign_days(self.reporting, EVERYTHING, self.rule, end_ms, self.rule.days)
        new = [day for day in days if day not in self._signs]
        read = read_signs(self.reporting, EVERYTHING, self.rule, new)
        self._signs = {day: self._signs.get(day, read.get(day, {})) for day in days}


def _last_told(told: Sequence[Conversation]) -> dict[str, CostIncident]:
    """The last incident of each team that any channel was told: open where one conversation is."""
    found: dict[str, CostIncident] = {}
    for each in sorted(told, key=lambda each: each.key):
        if each.kind is NoticeKind.INCIDENT:
            began_ms = parse_instant(f"{each.key[-10:]}T00:00:00Z")
            known = found.get(each.team)
            if known is None or known.began_ms <= began_ms:
                ended_ms = each.resolved_ms
                if known is not None and known.began_ms == began_ms and known.ended_ms is None:
                    ended_ms = None
                found[each.team] = CostIncident(each.team, began_ms, ended_ms, 0, 0, None)
    return found
