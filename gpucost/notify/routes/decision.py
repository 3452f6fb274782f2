"""One round of routing: what is due now, given the present notices and what each channel was sent.

No state is kept between rounds: only the conversations record what was sent. So a restart neither repeats nor
loses a message, as long as conversations and posts are stored together.

- What is open is sent once on each channel; a change replaces the message where the service can do that.
- What is over is sent once to the channels that got its opening. Within quiet hours the post waits in the
  outbox.
- What comes back within the cool-down, under its own key or another of its group, is not sent again; if it
  is still open afterwards, it is. Alerts have a shorter one: Alertmanager has delays of its own.
- What costs less than the floor of a route is not sent by itself, until it costs more.
- What is no longer given is unknown, and neither over nor new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpucost.domain.time import HOUR_MS
from gpucost.notify.message import MessageTone, NotificationMessage
from gpucost.notify.notices import (
    Conversation,
    DeliveryAct,
    Notice,
    NoticeDelivery,
    NoticeKind,
    NoticeRank,
    NoticeStage,
)
from gpucost.notify.routes.rules import RANKED, NotificationRoute, QuietHours, RoutingRules, quiet_until

_GONE = NotificationMessage(
    "Over", "What this was about is over, or no longer this team's.", MessageTone.GOOD, footer="gpucost"
)


_MANY = (NoticeKind.FINDING, NoticeKind.ADVICE, NoticeKind.RECEIPT)
"""Kinds of which there may be hundreds at once, most of all on the first day."""


class HoldReason(StrEnum):
    """Why a notice is not sent, or not now."""

    COOL_DOWN = "cool_down"
    QUIET_HOURS = "quiet_hours"
    DUPLICATE = "duplicate"
    """Another route has sent it to the same channel."""
    BURST = "burst"
    """The channel got its most messages of an hour within the last hour; sent later."""
    FLOOR = "floor"
    """It costs less than the floor of the route; it stands in the digest."""
    NO_CHANNEL = "no_channel"
    """No route takes it, or none with a channel whose readers may see it."""


@dataclass(frozen=True, slots=True)
class HeldNotice:
    """A notice that is not sent on ``channel``; empty for NO_CHANNEL. It is repeated in each round while it
    is held: counters must count new ones only."""

    kind: NoticeKind
    reason: HoldReason
    key: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """Conversations to write, one for each channel and key, replacing the stored one; posts to add; and what
    is held back."""

    conversations: tuple[Conversation, ...] = ()
    posts: tuple[NoticeDelivery, ...] = ()
    held: tuple[HeldNotice, ...] = ()

    @property
    def suppressed(self) -> Counter[tuple[NoticeKind, HoldReason]]:
        """The number of notices held back in this round, by kind and reason."""
        return Counter((each.kind, each.reason) for each in self.held)


def decide(
    notices: Iterable[Notice], conversations: Iterable[Conversation], rules: RoutingRules, now_ms: int
) -> RoutingDecision:
    """What is due now. Of two notices with one key the later counts. ``conversations`` are those of the given
    keys and groups; more do no harm."""
    turn = _Round(rules, now_ms)
    for known in conversations:
        turn.remember(known)
    current = {notice.key: notice for notice in notices}
    # The most important go first, should there be too many.
    for notice in sorted(current.values(), key=lambda each: (-each.rank.order, each.since_ms, each.key)):
        turn.take(notice)
    return RoutingDecision(tuple(turn.written.values()), tuple(turn.posts), tuple(turn.held))


@dataclass
class _Round:
    rules: RoutingRules
    now_ms: int
    known: dict[str, dict[str, Conversation]] = field(default_factory=dict)
    """Key -> channel -> conversation."""
    begun: dict[str, int] = field(default_factory=dict)
    """Channel -> how many of _MANY it was sent within the last hour."""
    told_ms: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """Channel and group -> when it was sent."""
    loud_ms: dict[tuple[QuietHours, ...], int] = field(default_factory=dict)
    """Quiet hours -> when they end; now, where it is not quiet."""
    written: dict[tuple[str, str], Conversation] = field(default_factory=dict)
    posts: list[NoticeDelivery] = field(default_factory=list)
    held: list[HeldNotice] = field(default_factory=list)

    def remember(self, known: Conversation) -> None:
        is_new = known.channel not in self.known.setdefault(known.key, {})
        self.known[known.key][known.channel] = known
        if is_new and known.kind in _MANY and abs(self.now_ms - known.posted_ms) < HOUR_MS:
            self.begun[known.channel] = self.begun.get(known.channel, 0) + 1
        self.told_ms.setdefault((known.channel, known.group), []).append(known.posted_ms)

    def take(self, notice: Notice) -> None:
        routes = tuple(self.rules.routes_of(notice))
        if notice.stage is NoticeStage.RESOLVED:
            self._resolve(notice, routes)
            return
        targets = dict[str, NotificationRoute]()
        for route, channel in self._targets(notice, routes):
            if channel not in targets:
                targets[channel] = route
                self._tell(notice, channel, route)
            elif self._is_new(notice, channel):
                self._hold(notice, HoldReason.DUPLICATE, channel)
        if not targets and notice.key not in self.known:
            self._hold(notice, HoldReason.NO_CHANNEL)
        if notice.stage is NoticeStage.OPEN and notice.kind in RANKED and not notice.acknowledged:
            for route in routes:
                self._escalate(notice, route)

    def _targets(
        self, notice: Notice, routes: Iterable[NotificationRoute]
    ) -> Iterator[tuple[NotificationRoute, str]]:
        for route in routes:
            for channel in route.channels:
                if self.rules.may_tell(route, channel, notice):
                    yield route, channel

    def _is_new(self, notice: Notice, channel: str) -> bool:
        """Whether this round is the first that sends it to the channel."""
        found = self.written.get((channel, notice.key))
        return found is not None and found.posted_ms == self.now_ms

    def _tell(self, notice: Notice, channel: str, route: NotificationRoute) -> None:
        known = self._of(notice, channel)
        if notice.stage is NoticeStage.ONCE:
            if known is None and not self._is_too_much(notice, channel, route):
                self._write(self._begun(notice, channel))
                self._post(notice, channel, DeliveryAct.OPEN, self._loud_ms(notice, route))
        elif known is not None and known.resolved_ms is None:
            self._update(notice, known)
        elif not notice.acknowledged and self._may_begin(notice, channel, route):
            self._write(self._begun(notice, channel))
            self._post(notice, channel, DeliveryAct.OPEN)

    def _update(self, notice: Notice, known: Conversation) -> None:
        last_ms = known.posted_ms if known.updated_ms is None else known.updated_ms
        can_update = self.rules.channels[known.channel].updates
        # A clock that was set back must not delay news for as long as it was wrong.
        is_time = abs(self.now_ms - last_ms) >= self.rules.update_every_ms
        if known.version != notice.version and can_update and is_time:
            self._write(replace(known, version=notice.version, updated_ms=self.now_ms))
            self._post(notice, known.channel, DeliveryAct.UPDATE)

    def _resolve(self, notice: Notice, routes: tuple[NotificationRoute, ...]) -> None:
        for channel, known in sorted(self.known.get(notice.key, {}).items()):
            found = self.rules.channels.get(channel)
            if known.resolved_ms is not None or found is None:
                continue
            self._write(replace(known, version=notice.version, resolved_ms=self.now_ms))
            # The readers of this channel may not see a thing that now belongs to another team; they get only
            # its end.
            is_theirs = found.sees_all or known.team == notice.team
            told = notice if is_theirs else replace(notice, message=_GONE)
            # Its rank may now be below the route's least; the route's quiet hours count all the same.
            asked = (each for each in (*routes, *self.rules.routes) if _names(each, channel))
            self._post(told, channel, DeliveryAct.RESOLVE, self._loud_ms(notice, next(asked, None)))

    def _escalate(self, notice: Notice, route: NotificationRoute) -> None:
        escalation = route.escalation
        if escalation is None or notice.rank.order < escalation.least.order:
            return
        open_now = [self._of(notice, channel) for channel in route.channels]
        told_ms = [each.posted_ms for each in open_now if each is not None and each.resolved_ms is None]
        if not told_ms or self.now_ms - min(told_ms) < escalation.after_ms:
            return
        for channel in escalation.channels:
            if self.rules.may_tell(route, channel, notice):
                self._escalate_to(notice, channel, route)

    def _escalate_to(self, notice: Notice, channel: str, route: NotificationRoute) -> None:
        known = self._of(notice, channel)
        is_open = known is not None and known.resolved_ms is None
        if known is not None and is_open:
            if known.escalated_ms is not None:
                self._update(notice, known)
                return
            if self._is_quiet(notice, channel, route):
                return
        elif self._may_begin(notice, channel, route):
            known = self._begun(notice, channel)
        else:
            return
        self._write(replace(known, escalated_ms=self.now_ms))
        self._post(notice, channel, DeliveryAct.ESCALATE)

    def _may_begin(self, notice: Notice, channel: str, route: NotificationRoute) -> bool:
        told_ms = self.told_ms.get((channel, notice.group), ())
        is_alert = notice.kind is NoticeKind.ALERT
        cool_down_ms = self.rules.alert_cool_down_ms if is_alert else route.cool_down_ms
        # A sending time further in the future than the cool-down is from a clock that was wrong.
        if any(abs(self.now_ms - each) < cool_down_ms for each in told_ms):
            self._hold(notice, HoldReason.COOL_DOWN, channel)
            return False
        return not self._is_too_much(notice, channel, route) and not self._is_quiet(notice, channel, route)

    def _is_too_much(self, notice: Notice, channel: str, route: NotificationRoute) -> bool:
        """Whether it costs too little to be sent by itself, or the channel got enough within the hour."""
        if route.is_below_floor(notice):
            self._hold(notice, HoldReason.FLOOR, channel)
            return True
        is_many = notice.kind in _MANY and notice.rank is not NoticeRank.CRITICAL
        is_burst = is_many and self.begun.get(channel, 0) >= self.rules.most_per_hour
        if is_burst:
            self._hold(notice, HoldReason.BURST, channel)
        return is_burst

    def _is_quiet(self, notice: Notice, channel: str, route: NotificationRoute) -> bool:
        is_quiet = self._loud_ms(notice, route) > self.now_ms
        if is_quiet:
            self._hold(notice, HoldReason.QUIET_HOURS, channel)
        return is_quiet

    def _loud_ms(self, notice: Notice, route: NotificationRoute | None) -> int:
        """When it may be sent: now, or at the end of quiet hours."""
        if route is None or notice.rank is NoticeRank.CRITICAL:
            return self.now_ms
        if route.quiet not in self.loud_ms:
            until_ms = quiet_until(route.quiet, self.now_ms)
            self.loud_ms[route.quiet] = self.now_ms if until_ms is None else until_ms
        return self.loud_ms[route.quiet]

    def _of(self, notice: Notice, channel: str) -> Conversation | None:
        return self.known.get(notice.key, {}).get(channel)

    def _begun(self, notice: Notice, channel: str) -> Conversation:
        begun = Conversation(
            channel, notice.key, notice.group, notice.kind, notice.team, notice.version, self.now_ms
        )
        # Nothing follows a receipt, of which there may be hundreds a day: none stays open.
        return replace(begun, resolved_ms=self.now_ms) if notice.kind is NoticeKind.RECEIPT else begun

    def _write(self, conversation: Conversation) -> None:
        self.remember(conversation)
        self.written[(conversation.channel, conversation.key)] = conversation

    def _post(self, notice: Notice, channel: str, act: DeliveryAct, due_ms: int | None = None) -> None:
        due = self.now_ms if due_ms is None else due_ms
        message = self._message(notice, channel)
        if act is DeliveryAct.ESCALATE:
            message = replace(message, title=f"Still open: {message.title}", mentions=True)
        urgent = notice.rank is NoticeRank.CRITICAL
        self.posts.append(NoticeDelivery(channel, notice.key, act, message, self.now_ms, due, urgent=urgent))

    def _message(self, notice: Notice, channel: str) -> NotificationMessage:
        sees_all = self.rules.channels[channel].sees_all
        return notice.full if sees_all and notice.full is not None else notice.message

    def _hold(self, notice: Notice, reason: HoldReason, channel: str = "") -> None:
        self.held.append(HeldNotice(notice.kind, reason, notice.key, channel))


def _names(route: NotificationRoute, channel: str) -> bool:
    escalation = () if route.escalation is None else route.escalation.channels
    return channel in route.channels or channel in escalation
