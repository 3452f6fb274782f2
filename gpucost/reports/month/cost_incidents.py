"""Incidents: when what a team costs is told without being asked.

A day's *sign* compares the week that ends with it with four weeks before, by ``change_causes``, but for a few
days between, so that what begins is not in what is usual while it is being believed. What is
missing and how long the spans are is taken out first, so that neither a gap nor a calendar can be one. It is
an incident where the excess is over a floor of money and a part of the usual cost, one named cause carries at
least half of it, and both hold for several days with the same cause. An incident grows while it goes on, and
ends when the excess has fallen below half of what opens one. A team has one at a time, and after its end
none for four weeks: only then is what it left in the usual cost. What a team announced
(``expected``) is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gpucost.domain.buckets import RESERVED, Bucket
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, Window
from gpucost.reports.base.frame_sums import sums
from gpucost.reports.month.change_causes import CauseKind, ChangeCause, SpanLines, explain

WEEK_MS, BASE_MS = 7 * DAY_MS, 28 * DAY_MS
"""What is compared, and with how much before it."""
_NO_EXCESS = frozenset(
    (
        CauseKind.MISSING_DATA,
        CauseKind.UNPRICED,
        CauseKind.SPAN,
        CauseKind.ADJUSTMENT,
        CauseKind.EXCHANGE,
    )
)
"""What is no excess."""
_NO_CAUSE = _NO_EXCESS | {CauseKind.HOURS}
"""What is no excess, or no name for one."""


@dataclass(frozen=True, slots=True)
class IncidentRule:
    """What it takes: ``floor_nano`` more a week, ``least_part`` of the usual week more, ``cause_part`` of
    that by one kind of cause, for ``days`` days on end."""

    floor_nano: int = 500 * NANO
    least_part: Fraction = Fraction(1, 2)
    cause_part: Fraction = Fraction(1, 2)
    days: int = 3

    def spans(self, day_ms: int) -> tuple[Window, Window]:
        """The week that ends at ``day_ms``, and the four weeks that it is compared with."""
        start_ms = day_ms - WEEK_MS
        end_ms = start_ms - self.days * DAY_MS
        return Window(start_ms, day_ms), Window(end_ms - BASE_MS, end_ms)


@dataclass(frozen=True, slots=True)
class IncidentSign:
    """A team on a day: what its last week cost beyond the usual (``base_nano``), and the cause that carries
    at least half of it; None where none does."""

    day_ms: int
    excess_nano: int
    base_nano: int
    cause: ChangeCause | None

    def is_over(self, rule: IncidentRule) -> bool:
        """Whether it is enough to open an incident."""
        return self.cause is not None and self._is(rule, 1)

    def goes_on(self, rule: IncidentRule) -> bool:
        """Whether one that is open goes on."""
        return self._is(rule, 2)

    def _is(self, rule: IncidentRule, over: int) -> bool:
        excess = self.excess_nano * over
        return excess >= rule.floor_nano and excess >= rule.least_part * self.base_nano

    def same_cause(self, other: IncidentSign) -> bool:
        if self.cause is None or other.cause is None:
            return False
        return self.cause.kind == other.cause.kind


@dataclass(frozen=True, slots=True)
class CostIncident:
    """One incident of a team: since when, until when (None: it goes on), the most of its excess a week, and
    its cause."""

    team: str
    began_ms: int
    ended_ms: int | None
    excess_nano: int
    base_nano: int
    cause: ChangeCause | None


@dataclass(frozen=True, slots=True)
class IncidentDay:
    """A day of an incident: what the week before its end cost beyond the usual week."""

    day: str
    excess_nano: int
    usual_nano: int


@dataclass(frozen=True, slots=True)
class TeamIncident:
    """An incident as it is listed. ``incident`` is its name, ``TEAM/DAY``; ``began`` the end of the day of
    its first sign, ``ended`` null while it goes on. ``excess_nano`` is the most of a week, of which
    ``cause_nano`` is by the cause that ``why`` names. ``week`` is that week, and ``base`` the four weeks
    that it is compared with, for ``gpucost compare``."""

    incident: str
    team: str
    began: str
    ended: str | None
    excess_nano: int
    usual_nano: int
    why: str
    cause_nano: int | None
    week: str
    base: str
    days: tuple[IncidentDay, ...]


@dataclass(frozen=True, slots=True)
class ExpectedSpan:
    """When a team announced more spending: no incident begins in it."""

    team: str
    window: Window


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """The incidents of four weeks, of the teams that the reader may see. ``since`` is the first day that was
    looked at; null where the ledger has not the five weeks before any."""

    as_of: str
    currency: str
    teams_in_scope: tuple[str, ...] | None
    since: str | None
    floor_nano: int
    expected: tuple[ExpectedSpan, ...]
    incidents: tuple[TeamIncident, ...]


def sign_of(day_ms: int, causes: Iterable[ChangeCause], base_nano: int, rule: IncidentRule) -> IncidentSign:
    """``causes`` are those of a week against the four before; ``base_nano`` what a usual week cost."""
    listed = [each for each in causes if CauseKind(each.kind) not in _NO_EXCESS]
    excess = sum(each.nano for each in listed)
    by_kind: dict[str, list[ChangeCause]] = defaultdict(list)
    for each in listed:
        if CauseKind(each.kind) not in _NO_CAUSE:
            by_kind[each.kind].append(each)
    top = max((_joined(each) for each in by_kind.values()), key=lambda each: each.nano, default=None)
    if top is not None and (excess <= 0 or top.nano < rule.cause_part * excess):
        top = None
    return IncidentSign(day_ms, excess, base_nano, top)


def _joined(causes: Sequence[ChangeCause]) -> ChangeCause:
    """Causes of one kind together; by name where one of them carries half of it."""
    nano = sum(each.nano for each in causes)
    first = max(causes, key=lambda each: (abs(each.nano), each.pattern, each.model))
    board_ms = sum(each.board_ms for each in causes)
    if 2 * abs(first.nano) >= abs(nano):
        return replace(first, nano=nano, board_ms=board_ms)
    return ChangeCause(first.kind, first.team, "", "", board_ms, nano)


def incidents(
    team: str,
    signs: Sequence[IncidentSign],
    rule: IncidentRule,
    expected: Sequence[Window] = (),
    before: CostIncident | None = None,
) -> tuple[CostIncident, ...]:
    """The incidents of a team out of ``signs`` of one day after another; ``before`` is its last one that was
    told, which goes on where it has no end."""
    found: list[CostIncident] = [] if before is None else [before]
    lasting: list[IncidentSign] = []
    for sign in signs:
        last = found[-1] if found else None
        if last is not None and last.ended_ms is None:
            if not sign.goes_on(rule):
                found[-1] = replace(last, ended_ms=sign.day_ms)
            elif sign.excess_nano > last.excess_nano:
                cause = last.cause or sign.cause
                found[-1] = replace(last, excess_nano=sign.excess_nano, base_nano=sign.base_nano, cause=cause)
            continue
        if not sign.is_over(rule) or _announced(sign, expected) or _is_known(sign, last):
            lasting = []
            continue
        lasting = [*lasting, sign] if lasting and lasting[-1].same_cause(sign) else [sign]
        if len(lasting) >= rule.days:
            top = max(lasting, key=lambda each: each.excess_nano)
            assert sign.cause is not None
            found.append(
                CostIncident(team, lasting[0].day_ms, None, top.excess_nano, sign.base_nano, sign.cause)
            )
            lasting = []
    return tuple(found)


def _announced(sign: IncidentSign, expected: Sequence[Window]) -> bool:
    """Whether the week of ``sign`` touches what was announced."""
    return any(each.overlap_ms(sign.day_ms - WEEK_MS, sign.day_ms) > 0 for each in expected)


def _is_known(sign: IncidentSign, last: CostIncident | None) -> bool:
    """Whether the last incident still stands in what is usual."""
    if last is None or last.ended_ms is None:
        return False
    return sign.day_ms - last.ended_ms < BASE_MS


def signs_of(day_ms: int, week: SpanLines, base: SpanLines, rule: IncidentRule) -> dict[str, IncidentSign]:
    """The sign of each team for the week that ends at ``day_ms``, against the four weeks before."""
    held = base.lines[base.lines["bucket"] == Bucket.HELD]
    paid = {str(team): each.nano or 0 for (team,), each in sums(held, ["team"]).items()}
    found = explain(week, base)
    return {
        team: sign_of(day_ms, causes, paid.get(team, 0) * WEEK_MS // BASE_MS, rule)
        for team, causes in found.items()
        if not team.startswith(RESERVED)
    }
