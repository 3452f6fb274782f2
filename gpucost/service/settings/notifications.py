"""Settings of notifications: routes, quiet hours, escalation, digests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, model_validator

from gpucost.attribution.teams import TeamName, TeamRules
from gpucost.detectors.findings import WastePattern
from gpucost.domain.configfile import Text, wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.money import NANO
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import NoticeKind, NoticeRank
from gpucost.notify.routes.rules import (
    NotificationRoute,
    QuietHours,
    RouteEscalation,
    RoutingRules,
    is_ever_loud,
)
from gpucost.service.settings.channels import ChannelSettings, Host, MailSettings
from gpucost.settings.types import Duration, SettingsGroup, UrlOrEmpty, between, milliseconds

_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])\Z|24:00\Z")
_SMALL_WORD = re.compile(r"[a-z0-9_]+\Z")
# A Monday, to evaluate quiet hours on; any will do.
_SOME_MONDAY_MS = 1_767_571_200_000


def _clock(value: object) -> object:
    if isinstance(value, str) and _CLOCK.match(value):
        return value
    raise wrong(value, "a time as HH:MM from 00:00 to 24:00, in quotes")


def _zone(value: object) -> object:
    try:
        if isinstance(value, str):
            ZoneInfo(value)
            return value
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise wrong(value, "the name of a time zone, such as UTC or Europe/Berlin")


Clock = Annotated[str, BeforeValidator(_clock)]
Zone = Annotated[str, BeforeValidator(_zone)]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
DAYS: tuple[Weekday, ...] = (
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
)
Patience = Annotated[Duration, between(timedelta(minutes=1), timedelta(days=31), "a duration from 1m to 31d")]


class QuietSettings(SettingsGroup):
    """Hours in which a route tells only what is critical."""

    start: Clock = "20:00"
    """When they begin, as HH:MM on the clocks of ``zone``."""

    end: Clock = "07:00"
    """When they end, as HH:MM up to 24:00. Not after ``start``: on the next day."""

    zone: Zone = "UTC"
    """IANA name of the time zone, such as ``Europe/Berlin``; summer time is kept."""

    days: tuple[Weekday, ...] = DAYS
    """Days on which they begin: of ``monday``, ``tuesday``, ``wednesday``, ``thursday``, ``friday``,
    ``saturday``, ``sunday``. All by default.
    """

    @model_validator(mode="after")
    def _last(self) -> Self:
        if self.start == self.end or self.start == "24:00":
            raise wrong(self.start, "another time than end, and before 24:00", "start")
        if not self.days:
            raise wrong(ErrorRemark("no day"), f"days of {', '.join(DAYS)}", "days")
        return self

    def quiet(self) -> QuietHours:
        days = frozenset(map(DAYS.index, self.days))
        return QuietHours(_minutes(self.start), _minutes(self.end), ZoneInfo(self.zone), days)


class EscalationSettings(SettingsGroup):
    """Who else is told, once, when nobody took it on: it is open and not acknowledged."""

    channels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of channels, at least one. They are told with their ``mention``, and when it is over."""

    after: Patience = timedelta(hours=4)
    """How long after the route first told of it, from 1m to 31d. Half a working day: time to act, and not
    yet a day of wasted GPUs.
    """

    min_severity: NoticeRank = NoticeRank.HIGH
    """Least severity: ``info``, ``low``, ``medium``, ``high``, ``critical``. High: a day of one GPU, wasted
    within a day.
    """


class RouteSettings(SettingsGroup):
    """Which news goes to which channels. Every route that applies tells its channels, in the order of the
    list, unless one before it has ``stop``; a channel is told once, by the first route that names it."""

    channels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of channels, at least one."""

    teams: tuple[TeamName, ...] = ()
    """Teams whose news it takes, as reports name them. Empty: every team and the platform, to channels with
    ``sees_all`` only.
    """

    platform: bool = False
    """Whether it takes what is about no team: nodes, free capacity, the platform's digest. Alone: only that.
    Such words may name every team, so the channels must have ``sees_all``.
    """

    users: tuple[Text, ...] = ()
    """Users, as reports name them, whose receipts it takes, and nothing else: for a room or a mailbox of
    their own. Empty: receipts of all jobs of its teams.
    """

    kinds: tuple[NoticeKind, ...] = ()
    """``finding``, ``alert``, ``advice``, ``digest``, ``month``, ``receipt``. Empty: all."""

    floor: Annotated[Decimal, Field(ge=0, le=1_000_000)] = Decimal(50)
    """What costs less is no message of its own, and stands in the digest: a finding that costs less than this
    a day, a job that cost less in all. From 0, which sends everything, to 1,000,000, in the currency of the
    ledger. What is critical is always sent, and so is what has no price. Fifty: less than one GPU of a large
    model, idle for a day.
    """

    min_severity: NoticeRank = NoticeRank.INFO
    """Least severity of findings and alerts: ``info``, ``low``, ``medium``, ``high``, ``critical``. All by
    default; other kinds have none, and pass.
    """

    clusters: tuple[Text, ...] = ()
    """Shell patterns of clusters. Empty: any. What is about no one cluster, such as a digest, passes."""

    names: tuple[Text, ...] = ()
    """Shell patterns of anti-patterns and alert names: ``[idle_allocation, GpuCostQuota*]``. Then only
    findings and alerts with such a name are taken. Empty: any. A word in small letters that is no
    anti-pattern is refused.
    """

    stop: bool = False
    """Whether no later route is asked about what this one takes. Off: Alertmanager's ``continue: true``."""

    quiet: tuple[QuietSettings, ...] = ()
    """Quiet hours: what is not critical waits for their end, and is left out if it is over by then."""

    cool_down: Patience | None = None
    """Another cool-down than ``notify.cool_down`` for this route."""

    escalate: EscalationSettings | None = None
    """Whom to tell when nobody took it on. Nobody by default."""

    @model_validator(mode="after")
    def _names_may_be(self) -> Self:
        known = tuple(WastePattern)
        for n, found in enumerate(self.names):
            # Alert names are CamelCase; one that is not can be written as a pattern.
            if _SMALL_WORD.match(found) and found not in known:
                raise wrong(found, f"an anti-pattern ({', '.join(known)}) or an alert's name", "names", n)
        return self

    @model_validator(mode="after")
    def _is_sometimes_loud(self) -> Self:
        if not is_ever_loud([each.quiet() for each in self.quiet], _SOME_MONDAY_MS):
            raise wrong(
                ErrorRemark("they never end"), "quiet hours that leave time to tell something", "quiet"
            )
        return self

    def route(self, cool_down: timedelta) -> NotificationRoute:
        return NotificationRoute(
            channels=self.channels,
            teams=frozenset(self.teams),
            platform=self.platform,
            kinds=frozenset(self.kinds),
            least=self.min_severity,
            clusters=self.clusters,
            names=self.names,
            stop=self.stop,
            quiet=tuple(each.quiet() for each in self.quiet),
            cool_down_ms=milliseconds(cool_down if self.cool_down is None else self.cool_down),
            escalation=self._escalation(),
            users=frozenset(self.users),
            floor_nano=int(self.floor * NANO),
        )

    def _escalation(self) -> RouteEscalation | None:
        found = self.escalate
        if found is None:
            return None
        return RouteEscalation(found.channels, milliseconds(found.after), found.min_severity)


class WeeklySettings(SettingsGroup):
    """When the digests of the last week are told."""

    enabled: bool = True
    """Whether there are digests. Each team gets its own where a route takes it."""

    weekday: Weekday = "monday"
    """``monday``, ``tuesday``, ``wednesday``, ``thursday``, ``friday``, ``saturday``, ``sunday``. Monday,
    when the week that is over is whole.
    """

    hour: Annotated[int, Field(ge=0, le=23)] = 9
    """Hour of the day, 0 to 23, on the clocks of ``zone``; later where the week of UTC ends later. Nine:
    people are there.
    """

    zone: Zone = "UTC"
    """IANA name of the time zone, such as ``Europe/Berlin``. The week itself is of UTC, as reports are."""


class NotifySettings(SettingsGroup):
    """Who is told what, in chat and by mail. Nothing is posted until there is a channel and a route."""

    enabled: bool = True
    """Whether anything is posted. ``false`` silences all channels, and keeps their settings."""

    base_url: UrlOrEmpty = ""
    """The public address of the service: where a browser opens gpucost. Links in messages to its pages begin
    with it, the issuer sends people back to it after a log-in, and forms are taken from pages of it. No such
    links when it is empty: messages lead to dashboards, and name the command.
    """

    dashboards_url: UrlOrEmpty = ""
    """Base address of Grafana, for links to dashboards. No such links when it is empty."""

    runbooks_url: UrlOrEmpty = ""
    """Address of the folder of runbooks. No such links when it is empty."""

    link_hosts: tuple[Host, ...] = ()
    """Names of hosts that links of alerts may lead to, beside those of the three addresses above:
    Alertmanager's own, for the link to a silence, or a wiki's that ``runbook_url`` names. Who may write rules
    or labels may write addresses: those of other hosts stand in a message as text.
    """

    channels: tuple[ChannelSettings, ...] = ()
    """Where messages go."""

    mail: MailSettings = MailSettings()

    routes: tuple[RouteSettings, ...] = ()
    """Who is told what, in order."""

    cool_down: Patience = timedelta(hours=24)
    """How long after it was told a channel is not told again of what was over and came back, from 1m to 31d;
    what is still open then, is told. A day: what comes and goes every hour is told once.
    """

    alert_cool_down: Patience = timedelta(hours=1)
    """The same for alerts of Alertmanager, from 1m to 31d. An hour: it has its own patience already, and what
    fires again later is news.
    """

    most_per_hour: Annotated[int, Field(ge=1, le=1_000)] = 30
    """How many new findings and advices a channel is told of in an hour, 1 to 1,000; critical ones always.
    The others follow, those that matter most first. Thirty: a room that gets more is not read; the first day
    of a large cluster has hundreds.
    """

    update_every: Annotated[
        Duration, between(timedelta(seconds=10), timedelta(days=1), "a duration from 10s to 1d")
    ] = timedelta(minutes=5)
    """Least time between two changes of a posted message, from 10s to a day, where a service can change it.
    As long as the pause between two evaluations.
    """

    weekly: WeeklySettings = WeeklySettings()

    receipts: Literal["off", "daily", "job"] = "off"
    """Whether it is told what jobs cost when they have ended, with how they ended, what they wasted and the
    one change for the next run. ``off``; ``daily``, one message for all jobs of a team that ended on a day of
    UTC, once that day is settled; ``job``, a message for each job that held no GPU for an hour. Off: a room
    that gets findings and digests did not ask for more.
    """

    month_closed: bool = True
    """Whether it is told that a month was closed, and what it cost."""

    incidents: bool = True
    """Whether it is told that a team costs more than usual for days, for a named cause."""

    budgets: bool = True
    """Whether it is told that a budget of the team rules reached a threshold: each once in a period."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [each.name for each in self.channels]
        if len(set(names)) < len(names):
            raise wrong(names, "names that are all different", "channels")
        for n, channel in enumerate(self.channels):
            if channel.service is ChannelService.EMAIL and not self.mail.host:
                allowed = f"the name of a mail server, for channels[{n}] of email"
                raise wrong(ErrorRemark("missing"), allowed, "mail", "host")
        if self.channels and not self.routes:
            raise wrong(ErrorRemark("missing"), "at least one route where there are channels", "routes")
        known = {each.name: each for each in self.channels}
        for n, route in enumerate(self.routes):
            for place, name in _named_in(route):
                self._check_channel(known, route, name, ("routes", n, *place))
        return self

    @model_validator(mode="after")
    def _users_get_receipts(self) -> Self:
        for n, route in enumerate(self.routes):
            if route.users and route.kinds and NoticeKind.RECEIPT not in route.kinds:
                allowed = "receipt among kinds, or none, in a route with users"
                raise wrong(list(route.kinds), allowed, "routes", n, "kinds")
        return self

    @staticmethod
    def _check_channel(
        known: dict[str, ChannelSettings], route: RouteSettings, name: str, key: tuple[str | int, ...]
    ) -> None:
        if name not in known:
            names = ", ".join(known) or "none is set"
            raise wrong(name, f"the name of a channel: {names}", *key)
        if known[name].sees_all:
            return
        if route.platform or not route.teams:
            missing = "without platform and with teams" if route.platform else "with teams"
            raise wrong(name, f"a channel with sees_all: true, or a route {missing}", *key)

    def channel_list(self) -> tuple[NotificationChannel, ...]:
        """The channels with their secrets. Files of secrets are read again with each call."""
        mailbox = self.mail.mailbox()
        return tuple(each.channel(mailbox) for each in self.channels)

    def rules(self) -> RoutingRules:
        """The routing rules; no routes where notifications are not enabled. They hold the channels with their
        secrets."""
        if not self.enabled:
            return RoutingRules()
        return RoutingRules(
            {each.name: each for each in self.channel_list()},
            tuple(each.route(self.cool_down) for each in self.routes),
            milliseconds(self.update_every),
            milliseconds(self.alert_cool_down),
            self.most_per_hour,
        )

    @cached_property
    def links(self) -> MessageLinks:
        return MessageLinks(self.base_url, self.dashboards_url, self.runbooks_url, self.link_hosts)


def check_teams(settings: NotifySettings, rules: TeamRules) -> None:
    """Raises InputError for a team of a route that no team rule can give: a misspelt team would never get a
    message. Where a rule takes the team from a label, a namespace or the like, any name may be one."""
    if any(rule.team_from for rule in rules.file.rules):
        return
    known = {each.name for each in rules.file.teams} | {rule.team for rule in rules.file.rules if rule.team}
    for n, route in enumerate(settings.routes):
        for m, team in enumerate(route.teams):
            if team not in known:
                allowed = f"a team of the team rules: {', '.join(sorted(known)) or 'they name none'}"
                raise InputError(f"notify.routes[{n}].teams[{m}]", team, allowed)


def _named_in(route: RouteSettings) -> Iterator[tuple[tuple[str | int, ...], str]]:
    yield from _numbered(("channels",), route.channels)
    if route.escalate is not None:
        yield from _numbered(("escalate", "channels"), route.escalate.channels)


def _numbered(place: tuple[str, ...], names: Iterable[str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for n, name in enumerate(names):
        yield (*place, n), name


def _minutes(clock: str) -> int:
    """Since midnight."""
    hours, minutes = map(int, clock.split(":"))
    return hours * 60 + minutes
