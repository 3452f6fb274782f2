"""Posts on their way, as the sender sees them, and what it needs of the place they are kept in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from gpucost.notify.notices import Kind, Post


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A post that is due, with what its conversation is about, and the service's own name (``reference``) of
    the message that was posted before; empty where there is none. ``since_ms`` is since when it may be tried:
    not before the end of quiet hours, and anew for a dead letter that is sent again."""

    post: Post
    kind: Kind
    reference: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many posts of a channel wait, and since when the oldest may be tried: that may still be to come."""

    count: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class DeadPost:
    """A post that was given up at ``dead_ms``; ``post.trouble`` says why."""

    post: Post
    kind: Kind
    dead_ms: int


class Outbox(Protocol):
    """The ledger, as far as the sender uses it. See the methods of gpucost.ledger.Ledger."""

    def due_posts(self, now_ms: int, channels: Collection[str], most: int) -> tuple[Outgoing, ...]: ...

    def claim_post(self, post_id: int, now_ms: int, until_ms: int) -> bool: ...

    def post_sent(self, post_id: int, at_ms: int, reference: str) -> None: ...

    def post_failed(self, post_id: int, due_ms: int, trouble: str) -> None: ...

    def post_dead(self, post_id: int, at_ms: int, trouble: str) -> None: ...

    def bury_posts(self, channels: Collection[str], at_ms: int) -> int: ...
