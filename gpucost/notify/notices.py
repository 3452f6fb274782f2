"""Notices, the conversations about them, and posts on their way.

A *notice* is news about one thing, identified by its key. A *conversation* is what one channel was sent about
that thing so far; there is one per channel and key, so that nothing is sent twice, also after a restart. A
*post* is one message on its way to one channel.

Short hashes stand for long texts: versions of notices, keys of groups.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from gpucost.notify.message import NotificationMessage


class NoticeKind(StrEnum):
    """The subject of a notice. Routes may select kinds."""

    FINDING = "finding"
    ALERT = "alert"
    ADVICE = "advice"
    DIGEST = "digest"
    MONTH = "month"
    RECEIPT = "receipt"
    BUDGET = "budget"
    INCIDENT = "incident"


class NoticeStage(StrEnum):
    """The stage of the thing."""

    OPEN = "open"
    RESOLVED = "resolved"
    ONCE = "once"
    """Sent once: digests, closed months, receipts."""


class NoticeRank(StrEnum):
    """Its importance, from least to most. Findings' own severities have the same names."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def order(self) -> int:
        return list(NoticeRank).index(self)


@dataclass(frozen=True, slots=True)
class Notice:
    """The present state of one thing.

    ``key`` is the same for the same thing for ever: ``finding:CLUSTER:FINGERPRINT:EPISODE``, ``alert:HASH of
    groupKey``, ``advice:CLUSTER:WORKLOAD UID``, ``digest:week:2026-W43:TEAM`` (an empty TEAM is the
    platform's), ``month:2026-10:TEAM``, ``receipt:CLUSTER:JOB UID:2026-10-05:TEAM``, and of all jobs of a day
    ``receipts:2026-10-05:TEAM:USER``; ``budget:HASH of the name:2026-10:actual:80%``;
    ``incident:HASH of the team:2026-10-17``. ``group`` is the same
    for what a cool-down treats as one: a finding that comes back has another key and the same group.
    ``version`` changes when the message has news that is
    worth an update. ``team`` is empty for the platform's notices. ``since_ms`` is when it began,
    ``acknowledged`` whether a person has taken it on (no escalation then).

    ``name`` is that of the anti-pattern or alert, which routes may select empty for other kinds.

    ``costs_nano`` is what routes compare with their floor: what a finding costs a day, what a job of a
    receipt cost; None where there is no such figure. ``users`` are those whose jobs it is about; a
    ``personal`` one is for routes that name one of them only.

    ``message`` is in words that the owning team may read; ``full`` in those for readers who see every team,
    where they differ.
    """

    key: str
    group: str
    kind: NoticeKind
    stage: NoticeStage
    rank: NoticeRank
    team: str
    cluster: str
    since_ms: int
    version: str
    message: NotificationMessage
    full: NotificationMessage | None = None
    acknowledged: bool = False
    name: str = ""
    costs_nano: int | None = None
    users: tuple[str, ...] = ()
    personal: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What ``channel`` was sent about ``key``. Instants are ms; None for events that did not happen.

    ``reference`` is the service's own name of the posted message, with which it can be updated and answered;
    empty where the service has none, or the post has not arrived yet.
    """

    channel: str
    key: str
    group: str
    kind: NoticeKind
    team: str
    version: str
    posted_ms: int
    updated_ms: int | None = None
    escalated_ms: int | None = None
    resolved_ms: int | None = None
    reference: str = ""


class DeliveryAct(StrEnum):
    """What a post does."""

    OPEN = "open"
    UPDATE = "update"
    """Replaces the message in place; not sent where a service cannot."""
    RESOLVE = "resolve"
    """Replaces the message in place, and answers in its thread; else a message of its own."""
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class NoticeDelivery:
    """One message on its way. ``id`` is 0 before it is stored. ``due_ms`` is when it may be tried, ``tries``
    how often it was. ``trouble`` is the last failure in words, without secrets. An
    ``urgent`` one goes before those of the channel that are not.
    """

    channel: str
    key: str
    act: DeliveryAct
    message: NotificationMessage
    created_ms: int
    due_ms: int
    id: int = 0
    tries: int = 0
    trouble: str = ""
    urgent: bool = False


def short_hash(*parts: str) -> str:
    """16 hex digits that stand for ``parts``, in their order; also for text with lone surrogates."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]
