"""Deliveries as the sender sees them, what it needs of their store, why one failed, and counters.

No text about a failure holds a path of a URL, a token or free text of a service: it goes into the log, the
ledger and to people.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpucost.domain.errors import GpuCostError
from gpucost.notify.notices import NoticeDelivery, NoticeKind


@dataclass(frozen=True, slots=True)
class OutgoingDelivery:
    """A post that is due, with the subject of its conversation, and the service's own name (``reference``) of
    the message that was posted before; empty where there is none. ``since_ms`` is the first instant at which
    it may be tried: not before the end of quiet hours, and anew for a dead letter that is sent again.
    """

    post: NoticeDelivery
    kind: NoticeKind
    reference: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ChannelBacklog:
    """How many posts of a channel wait, and from when on the oldest may be tried, which may be
    in the future."""

    count: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class DeadDelivery:
    """A post that was given up at ``dead_ms``; ``post.trouble`` says why."""

    post: NoticeDelivery
    kind: NoticeKind
    dead_ms: int


class DeliveryOutbox(Protocol):
    """The ledger, as far as the sender uses it. See the methods of gpucost.ledger.Ledger."""

    def due_posts(
        self, now_ms: int, channels: Collection[str], most: int
    ) -> tuple[OutgoingDelivery, ...]: ...

    def claim_post(self, post_id: int, now_ms: int, until_ms: int) -> bool: ...

    def post_sent(self, post_id: int, at_ms: int, reference: str) -> None: ...

    def post_failed(self, post_id: int, due_ms: int, trouble: str) -> None: ...

    def post_dead(self, post_id: int, at_ms: int, trouble: str) -> None: ...

    def bury_posts(self, channels: Collection[str], at_ms: int) -> int: ...


# Words with _ or . between them, as Slack and Mattermost write theirs. Tokens and the ids of webhooks, which
# a response may repeat, have digits, capitals or longer words.
_CODE = re.compile(r"(?=.{1,80}\Z)[a-z]{1,20}([_.][a-z]{1,20})*")


class Undelivered(GpuCostError):
    """It did not arrive."""


class Retry(Undelivered):
    """It may arrive later. ``after_s``: the service asked to wait so long; None if it did not say."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        self.after_s = after_s
        super().__init__(why)


class Refused(Undelivered):
    """It never will unless a person changes something."""


def code(text: object) -> str:
    """``text`` if it looks like an error code (``channel_is_archived``), else a note that it does not."""
    return text if isinstance(text, str) and _CODE.fullmatch(text) else "an error without a code"


class DeliveryOutcome(StrEnum):
    SENT = "sent"
    RETRIED = "retried"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class SenderStatus:
    """``posts`` counts by (channel, kind, outcome) since the start; an attempt that failed and will be
    repeated is ``retried``. ``last_success_ms`` is by channel. ``errors`` counts turns that ended with an
    error of the ledger.
    """

    posts: dict[tuple[str, str, str], int]
    last_success_ms: dict[str, int]
    errors: int


class DeliveryTally:
    """Counts; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posts: Counter[tuple[str, str, str]] = Counter()
        self._last_success_ms: dict[str, int] = {}
        self._errors = 0

    def add(self, channel: str, kind: str, outcome: DeliveryOutcome, at_ms: int) -> None:
        with self._lock:
            self._posts[channel, kind, outcome.value] += 1
            if outcome is DeliveryOutcome.SENT:
                self._last_success_ms[channel] = at_ms

    def error(self) -> None:
        with self._lock:
            self._errors += 1

    def status(self) -> SenderStatus:
        with self._lock:
            return SenderStatus(dict(self._posts), dict(self._last_success_ms), self._errors)
