"""Routes: which notices go to which channels, with which delays; and quiet hours.

In quiet hours only critical notices are sent, by the local time of a zone, also across changes of summer
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.notify.channels import NotificationChannel
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank

DAY_MINUTES = DAY_MS // MINUTE_MS
_EVERY_DAY = frozenset(range(7))
_LONGEST_LOOK = 15 * DAY_MS


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From ``start`` to ``end``, in minutes since midnight on the clocks of ``zone`` (1440: the day's end),
    on ``days`` (Monday is 0); ``end`` not above ``start`` is on the next day.

    Where a clock is put back, an hour comes twice: both are quiet. Where it is put forward, a start or end
    that does not exist is moved so that more is quiet, not less.
    """

    start: int
    end: int
    zone: ZoneInfo
    days: frozenset[int] = _EVERY_DAY

    def span(self, now_ms: int) -> tuple[int, int] | None:
        """The quiet time ``[start, end)`` that ``now_ms`` is in, in ms; None when it is in none."""
        return next((span for span in self._spans(now_ms) if span[0] <= now_ms < span[1]), None)

    def _spans(self, now_ms: int) -> Iterator[tuple[int, int]]:
        today = datetime.fromtimestamp(now_ms / 1000, self.zone).date()
        for day in (today - timedelta(days=1), today, today + timedelta(days=1)):
            if day.weekday() in self.days:
                end = self.end if self.end > self.start else self.end + DAY_MINUTES
                yield min(_instants(day, self.start, self.zone)), max(_instants(day, end, self.zone))


def quiet_until(quiet: Sequence[QuietHours], now_ms: int) -> int | None:
    """When the quiet time at ``now_ms`` ends, several that touch taken together; None where it is not quiet.
    Searches 15 days ahead at most."""
    until_ms = now_ms
    while until_ms < now_ms + _LONGEST_LOOK:
        spans = [span for each in quiet if (span := each.span(until_ms)) is not None]
        if not spans:
            break
        until_ms = max(end for _, end in spans)
    return until_ms if until_ms > now_ms else None


def is_ever_loud(quiet: Sequence[QuietHours], from_ms: int) -> bool:
    """Whether it ends at all: quiet hours that fill a week leave no time to send anything."""
    until_ms = quiet_until(quiet, from_ms)
    return until_ms is None or until_ms < from_ms + _LONGEST_LOOK


def _instants(day: date, minutes: int, zone: ZoneInfo) -> tuple[int, int]:
    """Both instants that a local time may mean; the same twice, where it is unambiguous."""
    # Adding to a time with a zone moves its local time, not the instant.
    local = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(minutes=minutes)
    found = [local.replace(fold=fold).astimezone(UTC) for fold in (0, 1)]
    first, second = (round(each.timestamp() * 1000) for each in found)
    return first, second


RANKED = (NoticeKind.FINDING, NoticeKind.ALERT)
"""Kinds to which a least severity, names and an escalation apply."""


@dataclass(frozen=True, slots=True)
class RouteEscalation:
    """The channels that get, with their mention, what is not acknowledged ``after_ms`` after the first
    message."""

    channels: tuple[str, ...]
    after_ms: int = 4 * HOUR_MS
    least: NoticeRank = NoticeRank.HIGH


@dataclass(frozen=True, slots=True)
class NotificationRoute:
    """One entry of the list; empty ``teams``, ``kinds``, ``clusters`` and ``names`` select everything.

    ``teams`` are names as they are; with ``platform``, notices about no team are included. ``clusters`` and
    ``names`` (of anti-patterns and alerts) are shell patterns; notices about no single cluster match all.
    ``least`` and ``names`` apply to findings and alerts only, and a route with ``names`` takes no other kind.
    ``users`` are those whose receipts it takes, and then nothing else; empty: all, but personal ones. What
    costs less than ``floor_nano`` is not sent by itself. After a route with ``stop`` that applies, no later
    one is tried.
    """

    channels: tuple[str, ...]
    teams: frozenset[str] = frozenset()
    platform: bool = False
    kinds: frozenset[NoticeKind] = frozenset()
    least: NoticeRank = NoticeRank.INFO
    clusters: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    stop: bool = False
    quiet: tuple[QuietHours, ...] = ()
    cool_down_ms: int = DAY_MS
    escalation: RouteEscalation | None = None
    users: frozenset[str] = frozenset()
    floor_nano: int = 0

    def applies(self, notice: Notice) -> bool:
        """Whether the route takes ``notice``."""
        if not self._is_of_teams(notice.team) or (self.kinds and notice.kind not in self.kinds):
            return False
        if self.users.isdisjoint(notice.users) if self.users else notice.personal:
            return False
        if notice.kind in RANKED and notice.rank.order < self.least.order:
            return False
        if self.names and not (notice.kind in RANKED and _is_like(notice.name, self.names)):
            return False
        return not (self.clusters and notice.cluster) or _is_like(notice.cluster, self.clusters)

    def is_below_floor(self, notice: Notice) -> bool:
        """Whether it costs too little to be sent by itself. What is critical does not, nor what has no
        figure."""
        costs = None if notice.rank is NoticeRank.CRITICAL else notice.costs_nano
        return costs is not None and costs < self.floor_nano

    def _is_of_teams(self, team: str) -> bool:
        if not team:
            return self.platform or not self.teams
        return team in self.teams or not (self.teams or self.platform)


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """All routes and limits. ``update_every_ms`` is the least time between two changes of a posted message;
    ``alert_cool_down_ms`` replaces the cool-down of the route for alerts ``most_per_hour`` how many findings
    and advices, but critical ones, a channel gets in an hour.
    """

    channels: Mapping[str, NotificationChannel] = field(default_factory=dict)
    routes: tuple[NotificationRoute, ...] = ()
    update_every_ms: int = 5 * 60_000
    alert_cool_down_ms: int = HOUR_MS
    most_per_hour: int = 30

    def routes_of(self, notice: Notice) -> Iterator[NotificationRoute]:
        """The routes that apply, in their order, up to the first that stops."""
        for route in self.routes:
            if route.applies(notice):
                yield route
                if route.stop:
                    return

    def may_tell(self, route: NotificationRoute, channel: str, notice: Notice) -> bool:
        """Whether the readers of ``channel`` may see it: those that see all, else those of a named team."""
        found = self.channels.get(channel)
        return found is not None and (found.sees_all or (bool(notice.team) and notice.team in route.teams))


def _is_like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
