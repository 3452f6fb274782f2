"""Weekly digests and closed months: when they are due, and the notices of them. Nothing is sent here.

What is due follows from the clock and the ledger alone, so that a restart neither forgets nor repeats: the
same thing stays due under the same key for a while, and the caller knows which keys were sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import islice
from typing import TypeAlias

from gpucost.charges.cell_charges import PLATFORM
from gpucost.domain.buckets import HOLDERS_OF_NONE, NO_TEAM, Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, MINUTE_MS, Month, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import MOST_FORETOLD
from gpucost.notify.compose.digest import digest_key, digest_notice
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.month import month_key, month_notice
from gpucost.notify.notices import Conversation, Notice
from gpucost.reports.digest.week_builder import (
    BEFORE_DIMS,
    DIGEST_DIMS,
    WaitFacts,
    WeekInputs,
    build_week,
    scope_of,
)
from gpucost.reports.digest.week_model import IsoWeek, WeekDigest
from gpucost.service.reporting.report_service import ReportService, window_facts

CLOSE_IS_NEWS_MS = 7 * DAY_MS
"""A month is announced within this time after it was closed or adjusted: a new chat gets no messages about
old months."""


@dataclass(frozen=True, slots=True)
class DigestSchedule:
    """When a week's digest is sent: on the first ``weekday`` (1 Monday to 7 Sunday) in ``zone`` that is not
    over when the week ends, at ``hour``, or at the end of the week where that hour has passed: far east of
    UTC, Monday morning is before it. Then once its windows are settled, and at the latest ``longest_wait_ms``
    later, with what is missing.

    ``assesses``: detectors are on, so that windows without an assessment are waited for too. Raises
    InputError.
    """

    weekday: int = 1
    hour: int = 9
    zone: tzinfo = UTC
    longest_wait_ms: int = DAY_MS
    assesses: bool = True

    def __post_init__(self) -> None:
        for name, value, first, last in (("weekday", self.weekday, 1, 7), ("hour", self.hour, 0, 23)):
            if not first <= value <= last:
                raise InputError(name, value, f"{first} to {last}")
        if not 0 <= self.longest_wait_ms < 7 * DAY_MS:
            raise InputError("longest_wait", self.longest_wait_ms, "0 or more, less than a week, in ms")

    def tell_ms(self, week: IsoWeek) -> int:
        """The instant from which the digest of ``week`` may be sent. Where the zone skips that hour, the one
        after it."""
        end_ms = week.window.end_ms
        first = datetime.fromtimestamp(end_ms / 1000, UTC).astimezone(self.zone).date()
        day = first + timedelta(days=(self.weekday - first.isoweekday()) % 7)
        instant = datetime.combine(day, time(self.hour), tzinfo=self.zone)
        return max(end_ms, round(instant.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class DueWeek:
    """A week whose digest is due since ``since_ms``. ``whole`` says that no more of it is expected."""

    week: IsoWeek
    since_ms: int
    whole: bool


@dataclass(frozen=True, slots=True)
class DueMonth:
    """A month that was closed, or adjusted after that, at ``since_ms``."""

    month: Month
    since_ms: int


Due: TypeAlias = DueWeek | DueMonth


def due(now_ms: int, schedule: DigestSchedule, ledger: Ledger) -> tuple[Due, ...]:
    """What is due at ``now_ms``: at most the last week, then months, the oldest first.

    A week is due until the next one is, a month for seven days after it was closed or adjusted. The caller
    knows by the keys of the notices what a chat was sent already. A week of which the ledger holds nothing is
    not due.
    """
    week = _due_week(now_ms, schedule, ledger)
    return (*(() if week is None else (week,)), *_due_months(now_ms, ledger))


def _due_week(now_ms: int, schedule: DigestSchedule, ledger: Ledger) -> DueWeek | None:
    week = IsoWeek.of(now_ms).previous()
    while schedule.tell_ms(week) > now_ms:
        week = week.previous()
    since_ms = schedule.tell_ms(week)
    if not ledger.windows(week.window):
        return None
    whole = is_settled(week, ledger, assesses=schedule.assesses)
    if not whole and now_ms < since_ms + schedule.longest_wait_ms:
        return None
    return DueWeek(week, since_ms, whole)


def is_settled(week: IsoWeek, ledger: Ledger, *, assesses: bool) -> bool:
    """Whether nothing more is expected of ``week``: every cluster with a window in it, or in the week before,
    has all of it settled, but for the time before the cluster's first window; and the detectors have assessed
    it.
    """
    both = Window(week.previous().window.start_ms, week.window.end_ms)
    for cluster in {info.cluster for info in ledger.windows(both)}:
        known = ledger.extent(cluster)
        start_ms = week.window.start_ms if known is None else max(week.window.start_ms, known.start_ms)
        settled_ms = sum(
            week.window.overlap_ms(info.window.start_ms, info.window.end_ms)
            for info in ledger.windows(week.window, cluster)
            if info.state is not LedgerState.OPEN
        )
        if settled_ms < week.window.end_ms - start_ms:
            return False
    return not (assesses and ledger.assessed(week.window).missing)


def _due_months(now_ms: int, ledger: Ledger) -> Iterator[DueMonth]:
    extent = ledger.extent()
    if extent is None:
        return
    month, last = Month.of(extent.start_ms), Month.of(extent.end_ms - 1)
    while month <= last:
        info = ledger.month(month)
        if info.closed_at_ms is not None:
            made = (item.created_at_ms for item in ledger.adjustments(EVERYTHING, month))
            since_ms = max((info.closed_at_ms, *made))
            if since_ms <= now_ms < since_ms + CLOSE_IS_NEWS_MS:
                yield DueMonth(month, since_ms)
        month = month.next()


@dataclass(frozen=True)
class DigestScheduler:
    """Digests over one ledger. ``budgets`` are nano-units a month by team."""

    reporting: ReportService
    budgets: Mapping[str, int] = field(default_factory=dict)
    links: MessageLinks = field(default_factory=MessageLinks)

    def week(self, week: IsoWeek, team: str = "") -> WeekDigest | None:
        """The digest of a team, or with an empty ``team`` of the platform; None for a week of which the
        ledger holds nothing.

        Raises InputError where an edge of the week or a day cuts a window of the ledger.
        """
        if not self.reporting.stand(EVERYTHING, week.window).windows:
            return None
        both = Window(week.previous().window.start_ms, week.window.end_ms)
        return self.reporting.steady(EVERYTHING, both, lambda: build_week(self._inputs(week, team))).report

    def last(self, now_ms: int) -> IsoWeek | None:
        """The last week that has ended, by the clock and by the ledger; where the ledger ends earlier, the
        week it ends in. None for an empty ledger."""
        extent = self.reporting.ledger.extent()
        if extent is None:
            return None
        week = IsoWeek.of(min(extent.end_ms, now_ms)).previous()
        return week if week.window.end_ms > extent.start_ms else IsoWeek.of(extent.end_ms - 1)

    def teams(self, week: IsoWeek) -> tuple[str, ...]:
        """Those that held anything in the week, by name."""
        return self._teams(week.window)

    def notices(self, due: Due, told: Collection[str] = ()) -> Iterator[Notice]:
        """The notices of what is due, the platform's first, one at a time: each reads the ledger. Those whose
        key is in ``told`` are left out, and not made."""
        if isinstance(due, DueWeek):
            for team in ("", *self.teams(due.week)):
                if (
                    digest_key(due.week, team) not in told
                    and (found := self.week(due.week, team)) is not None
                ):
                    yield digest_notice(found, self.links, since_ms=due.since_ms)
            return
        payers = {item.team for item in self.reporting.ledger.adjustments(EVERYTHING, due.month)}
        kept = self.reporting.ledger.month_charges(due.month)
        if kept is not None:
            payers |= {team for team, _, _ in kept.amounts} - {PLATFORM}
        else:  # closed by a release that kept no charges
            whole = self.reporting.month(EVERYTHING, due.month)
            if whole is not None and whole.report.charges is not None:
                payers |= {row.team for row in whole.report.charges.teams}
        for team in ("", *sorted({*self._teams(due.month.window), *payers} - {NO_TEAM, *HOLDERS_OF_NONE})):
            if month_key(due.month, team) in told:
                continue
            answer = self.reporting.month(scope_of(team), due.month)
            if answer is not None:
                yield month_notice(answer.report, self.links, since_ms=due.since_ms)

    def _teams(self, window: Window) -> tuple[str, ...]:
        frame = self.reporting.ledger.aggregate(EVERYTHING, window, BEFORE_DIMS)
        held = frame[(frame["bucket"] == Bucket.HELD) & (frame["board_ms"] > 0)]
        return tuple(sorted(set(held["team"]) - {NO_TEAM}))

    def _inputs(self, week: IsoWeek, team: str) -> WeekInputs:
        ledger, scope, before = self.reporting.ledger, scope_of(team), week.previous().window
        waits, cut = self._waits(scope)
        return WeekInputs(
            week=week,
            team=team,
            currency=self.reporting.currency,
            code_version=self.reporting.code_version,
            lines=ledger.aggregate(scope, week.window, DIGEST_DIMS),
            previous=ledger.aggregate(scope, before, BEFORE_DIMS),
            windows=tuple(window_facts(info) for info in ledger.windows(week.window)),
            previous_windows=tuple(window_facts(info) for info in ledger.windows(before)),
            waste=self.reporting.waste_inputs(scope, week.window),
            budgets=self.budgets,
            waits=waits,
            waits_cut=cut,
            listed_budgets=self.reporting.budgets(scope, week.window),
        )

    def _waits(self, scope: Scope) -> tuple[tuple[WaitFacts, ...] | None, bool]:
        """The predicted waits of the teams in ``scope`` in every cluster, None for none; and whether there
        are more than these."""
        ledger, found, cut = self.reporting.ledger, [], False
        for cluster in ledger.clusters():
            told = ledger.foretold(cluster, scope=scope)
            cut |= sum(each.is_decided for each in told) >= MOST_FORETOLD
            found += [WaitFacts(each.team, each.asked_ms, each.started_ms, each.gone_ms) for each in told]
        return tuple(found) if found else None, cut


MOST_AT_ONCE = 3
"""Digests that are made in a turn: each reads a week of the ledger, or a month."""
_LOOK_EVERY_MS = MINUTE_MS


class DigestNotices:
    """The source of notices about weeks and months; ``weekly`` and ``months`` select them. Raises
    LedgerError.

    What is due is made once, and yielded in every turn until it is due no more: one channel may get it later
    than another, when its quiet hours are over.
    """

    def __init__(
        self,
        ledger: Ledger,
        digesting: DigestScheduler,
        schedule: DigestSchedule,
        *,
        weekly: bool,
        months: bool,
    ) -> None:
        self._ledger = ledger
        self._digesting = digesting
        self._schedule = schedule
        self._weekly = weekly
        self._months = months
        self._looked_ms: int | None = None
        self._made: dict[Due, dict[str, Notice]] = {}
        self._whole: set[Due] = set()

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        del told
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_EVERY_MS:
            self._look(now_ms)
        self._make()
        for made in self._made.values():
            yield from made.values()

    def _look(self, now_ms: int) -> None:
        wanted = [
            each
            for each in due(now_ms, self._schedule, self._ledger)
            if (self._weekly if isinstance(each, DueWeek) else self._months)
        ]
        self._made = {each: self._made.get(each, {}) for each in wanted}
        self._whole &= set(wanted)
        self._looked_ms = now_ms

    def _make(self) -> None:
        for each, made in self._made.items():
            if each not in self._whole:
                found = list(islice(self._digesting.notices(each, frozenset(made)), MOST_AT_ONCE))
                made.update((notice.key, notice) for notice in found)
                if len(found) < MOST_AT_ONCE:
                    self._whole.add(each)
                return
