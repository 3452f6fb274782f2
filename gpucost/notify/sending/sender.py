"""The sender: takes posts from the outbox and delivers them, whatever the services do.

Each channel has a worker of its own while it has something to send, so that one that hangs holds up no other.
A channel sends one message at a time, about one a second. A failed post is tried again after a pause that
grows (full jitter) or as long as the service asks; the whole channel pauses with it. A post that is refused
for good, or fails for a day, is given up: a dead letter, which a person can send again.

At least once: the post is marked as sent after the service took it. A kill between the two repeats one
message per channel, once the claim on it has run out; Mattermost and mail servers that look for it recognise
the repetition. If the ledger cannot be written then, nothing is repeated while the process lives: the mark is
kept and written later.

Each channel has the transport of its service.
"""

from __future__ import annotations

import hashlib
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from gpucost.domain.backoff import FullJitter
from gpucost.domain.errors import GpuCostError
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.notices import DeliveryAct, NoticeDelivery
from gpucost.notify.sending import (
    apprise_service,
    mattermost,
    slack,
    teams,
)
from gpucost.notify.sending.delivery import (
    DeliveryOutbox,
    DeliveryOutcome,
    DeliveryTally,
    OutgoingDelivery,
    Refused,
    Retry,
    SenderStatus,
)
from gpucost.notify.sending.http import ChannelHttpClient
from gpucost.notify.sending.network import Resolve, resolve
from gpucost.notify.sending.smtp import SmtpMailer

Deliver = Callable[[NotificationChannel, OutgoingDelivery], str]
"""Posts it; returns the service's name of the conversation's message from now on, empty where it has none.
Raises Retry and Refused, and no other foreseeable error. Ends in bounded time."""


@dataclass(frozen=True)
class ChannelTransports:
    """All services. ``context`` is TLS's (None: the system's authorities), ``now_ns`` the clock."""

    context: ssl.SSLContext | None = None
    resolve: Resolve = resolve
    now_ns: Callable[[], int] = time.time_ns

    def deliver(self, channel: NotificationChannel, outgoing: OutgoingDelivery) -> str:
        """See Deliver. An update for a channel whose messages cannot be changed is left out."""
        post, reference = outgoing.post, outgoing.reference
        if post.act is DeliveryAct.UPDATE and not channel.updates:
            return reference
        if channel.service is ChannelService.EMAIL:
            mailer = SmtpMailer(channel.allow_private, context=self.context, resolve=self.resolve)
            at_ms = self.now_ns() // 1_000_000
            return mailer.deliver(channel, post, reference, token_of(post), at_ms)
        if channel.url is None:
            raise Refused("url: none is set")
        if channel.service is ChannelService.APPRISE:
            return apprise_service.deliver(channel, post)
        http = ChannelHttpClient(
            channel.allow_http,
            channel.allow_private,
            context=self.context,
            resolve=self.resolve,
            now_ns=self.now_ns,
        )
        if channel.service is ChannelService.SLACK:
            return slack.deliver(http, channel, post, reference)
        if channel.service is ChannelService.MATTERMOST:
            return mattermost.deliver(http, channel, post, reference, token_of(post))
        if channel.service is ChannelService.TEAMS:
            return teams.deliver(http, channel, post)
        assert_never(channel.service)


def token_of(post: NoticeDelivery) -> str:
    """The same for every attempt at a post, and for no other post."""
    own = f"{post.channel}\0{post.key}\0{post.act}\0{post.id}\0{post.message!r}"
    return hashlib.sha256(own.encode(errors="replace")).hexdigest()[:40]


logger = logging.getLogger(__name__)

PACE_MS = SECOND_MS
"""Between two messages of a channel. Slack takes about one a second."""
CLAIM_MS = 2 * MINUTE_MS
"""How long a post belongs to the process that delivers it: longer than any delivery takes."""
GIVE_UP_MS = DAY_MS
"""How long a post may fail, and..."""
LEAST_TRIES = 5
"""... how often at least: a service that was stopped for days tries waiting posts before it gives them up."""
MOST_ASKED_MS = HOUR_MS
"""Longest pause that a service may request with Retry-After."""
MOST_IN_A_TURN = 200
"""Posts of a channel that one worker sends before the next turn starts another."""


@dataclass
class _Lane:
    """One channel's worker. Only its own thread uses it, and the turn while it has no thread."""

    channel: NotificationChannel
    thread: threading.Thread | None = None
    failures: int = 0
    rests_until_ms: int = 0
    sent: list[tuple[int, int, str]] = field(default_factory=list)
    """Delivered, but not yet marked so: the ledger could not be written. Id, instant, reference."""

    @property
    def is_busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def rests(self, now_ms: int) -> bool:
        """Whether it pauses now. No pause is longer than a service may request: after a clock was set back
        there is none."""
        return now_ms < self.rests_until_ms <= now_ms + MOST_ASKED_MS


class NoticeSender:
    """Delivers what is due in ``outbox`` on ``channels``. ``turn`` is for one thread; ``status`` for any.

    ``now`` is the clock in ms, ``sleep`` waits seconds (the default ends at once on ``stop``), ``rng``
    spreads the pauses, ``deliver`` posts a message.
    """

    def __init__(
        self,
        outbox: DeliveryOutbox,
        channels: Sequence[NotificationChannel],
        *,
        now: Callable[[], int],
        sleep: Callable[[float], object] | None = None,
        rng: random.Random | None = None,
        deliver: Deliver | None = None,
        backoff: FullJitter | None = None,
    ) -> None:
        self._outbox = outbox
        self._lanes = {channel.name: _Lane(channel) for channel in channels}
        self._now = now
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._rng = rng or random.Random()
        self._deliver = deliver or ChannelTransports().deliver
        self._backoff = backoff or FullJitter(base_s=2.0, cap_s=300.0)
        self._tally = DeliveryTally()
        self._buried = False

    def turn(self, patience_s: float = 5.0) -> SenderStatus:
        """Start what is due, and wait for it at most ``patience_s``. Longer deliveries go on meanwhile, and
        their channels are left alone until they are done. Never raises: errors are logged and counted."""
        started = []
        try:
            self._bury()
            for name in self._ready():
                lane = self._lanes[name]
                lane.thread = threading.Thread(
                    target=self._work, args=(lane,), daemon=True, name=f"gpucost-notify-{name}"
                )
                lane.thread.start()
                started.append(lane.thread)
        except Exception as error:
            self._went_wrong("a turn", error)
        self._join(started, patience_s)
        return self.status()

    def stop(self, patience_s: float = 25.0) -> bool:
        """Begin nothing more, and wait for deliveries on their way; whether all of them are done. The rest
        stays in the outbox."""
        self._stopped.set()
        busy = [lane.thread for lane in self._lanes.values() if lane.thread is not None]
        self._join(busy, patience_s)
        return not any(thread.is_alive() for thread in busy)

    def status(self) -> SenderStatus:
        return self._tally.status()

    @staticmethod
    def _join(threads: Sequence[threading.Thread], patience_s: float) -> None:
        end_s = time.monotonic() + patience_s
        for thread in threads:
            thread.join(max(end_s - time.monotonic(), 0))

    def _bury(self) -> None:
        """Give up posts of channels that the settings no longer have: they would wait for ever. Once:
        settings do not change while the process runs."""
        if self._buried:
            return
        count = self._outbox.bury_posts(tuple(self._lanes), self._now())
        self._buried = True
        if count:
            logger.warning("notify: %d posts given up: the settings have no channel of their name", count)

    def _ready(self) -> list[str]:
        """Channels with something to do that neither work nor pause."""
        now_ms = self._now()
        idle = [
            name
            for name, lane in self._lanes.items()
            if not (lane.is_busy or lane.rests(now_ms) or self._stopped.is_set())
        ]
        due = {each.post.channel for each in self._outbox.due_posts(now_ms, idle, 1)} if idle else set()
        return [name for name in idle if name in due or self._lanes[name].sent]

    # In the channel's own thread

    def _work(self, lane: _Lane) -> None:
        try:
            for count in range(MOST_IN_A_TURN):
                if count:
                    self._sleep(PACE_MS / SECOND_MS)
                if self._stopped.is_set() or not self._step(lane):
                    return
        except Exception as error:
            self._went_wrong(f"channel {lane.channel.name}", error)

    def _step(self, lane: _Lane) -> bool:
        """Deliver one post; whether to go on."""
        self._settle(lane)
        now_ms = self._now()
        found = self._outbox.due_posts(now_ms, (lane.channel.name,), 1)
        if not found or not self._outbox.claim_post(found[0].post.id, now_ms, now_ms + CLAIM_MS):
            return False
        outgoing = found[0]
        try:
            reference = self._deliver(lane.channel, outgoing)
        except Retry as trouble:
            self._failed(lane, outgoing, str(trouble), trouble.after_s)
        except Refused as trouble:
            self._dead(lane, outgoing, str(trouble))
            return True
        except Exception as error:
            # A fault of gpucost itself: the message of the error might hold a secret, its type does not.
            self._failed(lane, outgoing, f"unexpected {type(error).__name__}", None)
        else:
            lane.failures = 0
            at_ms = self._now()
            lane.sent.append((outgoing.post.id, at_ms, reference))
            self._tally.add(lane.channel.name, outgoing.kind, DeliveryOutcome.SENT, at_ms)
            self._settle(lane)
            return True
        return False

    def _settle(self, lane: _Lane) -> None:
        """Mark delivered posts as sent. Raises when the ledger cannot be written; then it is still to be
        done."""
        while lane.sent:
            self._outbox.post_sent(*lane.sent[0])
            del lane.sent[0]

    def _failed(self, lane: _Lane, outgoing: OutgoingDelivery, trouble: str, asked_s: float | None) -> None:
        post, now_ms = outgoing.post, self._now()
        lane.failures += 1
        pause_ms = round(self._backoff.pause_s(lane.failures, self._rng.random()) * SECOND_MS)
        if asked_s is not None:
            pause_ms = max(pause_ms, min(round(asked_s * SECOND_MS), MOST_ASKED_MS))
        lane.rests_until_ms = now_ms + max(pause_ms, PACE_MS)
        if now_ms - outgoing.since_ms >= GIVE_UP_MS and post.tries + 1 >= LEAST_TRIES:
            self._dead(lane, outgoing, f"{trouble}; given up after {post.tries + 1} tries")
            return
        self._tally.add(lane.channel.name, outgoing.kind, DeliveryOutcome.RETRIED, now_ms)
        logger.info("notify: channel %s: %s; post %d is tried again", lane.channel.name, trouble, post.id)
        # A post's own pause grows with its own attempts: one that always fails lets the others pass.
        own_ms = round(self._backoff.pause_s(post.tries + 1, self._rng.random()) * SECOND_MS)
        self._outbox.post_failed(post.id, max(lane.rests_until_ms, now_ms + own_ms), trouble)

    def _dead(self, lane: _Lane, outgoing: OutgoingDelivery, trouble: str) -> None:
        now_ms = self._now()
        self._tally.add(lane.channel.name, outgoing.kind, DeliveryOutcome.DEAD, now_ms)
        logger.error(
            "notify: channel %s: %s; post %d is a dead letter (gpucost notify dead)",
            lane.channel.name,
            trouble,
            outgoing.post.id,
        )
        self._outbox.post_dead(outgoing.post.id, now_ms, trouble)

    def _went_wrong(self, where: str, error: Exception) -> None:
        self._tally.error()
        # Our own errors have no secrets in their message; of others only the type is safe.
        said = str(error) if isinstance(error, GpuCostError) else type(error).__name__
        logger.warning("notify: %s broke off: %s", where, said)
