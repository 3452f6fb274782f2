"""Notifications in the ledger: conversations and their deliveries, and alert groups from Alertmanager.

An alert group is stored as Alertmanager sent it last, before the request is answered, so that a restart loses
none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection, and_, delete, func, insert, or_, select

from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.time import DAY_MS
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.dimensions import chunked
from gpucost.ledger.db.store_tables import ALERT_GROUP
from gpucost.ledger.db.stored_values import check_int64, check_text
from gpucost.ledger.stores import outbox
from gpucost.notify.notices import Conversation, NoticeDelivery
from gpucost.notify.sending.delivery import ChannelBacklog, DeadDelivery, OutgoingDelivery

KEPT_MS = 9 * DAY_MS
"""Alertmanager repeats a firing group after its repeat_interval, hours or days; one that was not sent for
longer than this is over."""
OVER_KEPT_MS = DAY_MS
"""The end of a group is processed within seconds; it is kept for a day in case the service is down for a
while."""
MOST_GROUPS = 10_000
MOST_BYTES = 64 * 1024 * 1024

G = ALERT_GROUP.c


def save_group(connection: Connection, key: str, content: str, firing: bool, now_ms: int) -> None:
    """See Ledger.keep_alert_group."""
    check_text("key", key, empty=False)
    check_int64("now_ms", now_ms)
    old = or_(
        G.received_ms < now_ms - KEPT_MS,
        and_(G.firing.is_(False), G.received_ms < now_ms - OVER_KEPT_MS),
    )
    connection.execute(delete(ALERT_GROUP).where(old))
    connection.execute(delete(ALERT_GROUP).where(G.key == key))
    _make_room(connection, len(content))
    connection.execute(
        insert(ALERT_GROUP).values(
            {"key": key, "content": content, "firing": firing, "size": len(content), "received_ms": now_ms}
        )
    )


def times(connection: Connection, since_ms: int) -> dict[str, int]:
    """See Ledger.alert_group_times."""
    rows = connection.execute(select(G.key, G.received_ms).where(G.received_ms >= since_ms).order_by(G.key))
    return {row.key: row.received_ms for row in rows}


def contents(connection: Connection, keys: Collection[str]) -> dict[str, tuple[str, int]]:
    """See Ledger.alert_groups."""
    found: dict[str, tuple[str, int]] = {}
    for some in chunked(sorted(keys)):
        rows = connection.execute(select(G.key, G.content, G.received_ms).where(G.key.in_(some)))
        found |= {key: (content, received_ms) for key, content, received_ms in rows}
    return found


def _make_room(connection: Connection, size: int) -> None:
    """Deletes groups that are over, the oldest first, as far as the limits are exceeded. Raises
    LedgerUnavailable where that is not enough: Alertmanager repeats what is answered with 503."""
    count, total = connection.execute(select(func.count(), func.coalesce(func.sum(G.size), 0))).one()
    over = select(G.key, G.size).where(G.firing.is_(False)).order_by(G.received_ms, G.key)
    for key, freed in connection.execute(over).all():
        if count < MOST_GROUPS and total + size <= MOST_BYTES:
            return
        connection.execute(delete(ALERT_GROUP).where(G.key == key))
        count, total = count - 1, total - freed
    if count >= MOST_GROUPS or total + size > MOST_BYTES:
        raise LedgerUnavailable(
            f"{count} alert groups of {total} bytes fire within nine days, at most {MOST_GROUPS} of "
            f"{MOST_BYTES} bytes are kept: group by fewer labels"
        )


# Writers of notifications wait for each other, and not for writers of windows. No cluster has this name.
_NOTICES = "(notices)"


class NotificationStore:
    """A part of ``Ledger``. No cost is computed from it."""

    _database: LedgerDatabase
    _now: Callable[[], int]

    # --- conversations and deliveries ----------------------------------------------------------------

    def conversations(self, channel: str | None = None, *, since_ms: int) -> tuple[Conversation, ...]:
        """Open conversations (digests and closed months always are), and those with a message since
        ``since_ms``; by channel and key."""
        with self._database.read() as connection:
            return outbox.read(connection, channel, since_ms)

    def tell(self, conversations: Sequence[Conversation], posts: Sequence[NoticeDelivery]) -> int:
        """Write conversations as they are now and add the deliveries that make them so; how many were added.
        A conversation and its deliveries are written in one transaction; a transaction has some hundred.

        What another process has recorded meanwhile is not sent again: a delivery that opens an open
        conversation, updates to the version that was sent last, or repeats an end or an escalation, is left
        out, and what is stored stays. An update that still waits is superseded by a later update or the end.
        ``reference`` is not written here. Raises InputError for a delivery without its conversation, for
        instants below 0.
        """
        stored, batches = 0, outbox.batches(conversations, posts)
        with self._database.write(_NOTICES) as connection:
            outbox.prune(connection, self._now())
        for batch in batches:
            with self._database.write(_NOTICES) as connection:
                stored += outbox.enqueue(connection, batch)
        return stored

    def due_posts(self, now_ms: int, channels: Collection[str], most: int) -> tuple[OutgoingDelivery, ...]:
        """At most ``most`` (1 to 1,000) deliveries of each channel to be tried now, by channel; of a
        conversation the oldest that waits. First those that are urgent and have not failed often, then those
        that failed least often. Those that cannot be read are given up.
        """
        with self._database.read() as connection:
            found, unreadable = outbox.due(connection, now_ms, channels, most)
        for post_id, reason in unreadable.items():
            self.post_dead(post_id, now_ms, reason)
        return found

    def claim_post(self, post_id: int, now_ms: int, until_ms: int) -> bool:
        """Take a delivery that is due, so that no other process tries it before ``until_ms``; False if one
        has."""
        with self._database.write(_NOTICES) as connection:
            return outbox.claim(connection, post_id, now_ms, until_ms)

    def post_sent(self, post_id: int, at_ms: int, reference: str) -> None:
        """Record that it was delivered. ``reference``, unless empty, is the channel's id of the
        conversation's message."""
        with self._database.write(_NOTICES) as connection:
            outbox.sent(connection, post_id, at_ms, reference)

    def post_failed(self, post_id: int, due_ms: int, trouble: str) -> None:
        """Record that it was not delivered, for the reason ``trouble``, and may be tried again at
        ``due_ms``."""
        with self._database.write(_NOTICES) as connection:
            outbox.failed(connection, post_id, due_ms, trouble)

    def post_dead(self, post_id: int, at_ms: int, trouble: str) -> None:
        """Record that it is given up, for the reason ``trouble``; the next ones of its conversation may
        go."""
        with self._database.write(_NOTICES) as connection:
            outbox.dead(connection, post_id, at_ms, trouble)

    def bury_posts(self, channels: Collection[str], at_ms: int) -> int:
        """Give up deliveries that wait for other channels than these, which the settings no longer have. How
        many."""
        with self._database.write(_NOTICES) as connection:
            return outbox.bury(connection, channels, at_ms)

    def dead_posts(self, *, most: int = outbox.MOST_DEAD) -> tuple[DeadDelivery, ...]:
        """The ``most`` (1 to 1,000) deliveries that were given up last, newest first."""
        with self._database.read() as connection:
            return outbox.dead_posts(connection, most)

    def count_dead_posts(self) -> dict[str, int]:
        """How many were given up, by channel; channels without any are left out."""
        with self._database.read() as connection:
            return outbox.count_dead(connection)

    def revive_post(self, post_id: int, now_ms: int) -> bool:
        """Try a delivery again that was given up, its time counted anew; False when there is none with this
        id."""
        with self._database.write(_NOTICES) as connection:
            return outbox.revive(connection, post_id, now_ms)

    def waiting_posts(self) -> dict[str, ChannelBacklog]:
        """Deliveries that are neither sent nor given up, by channel; channels without any are left out."""
        with self._database.read() as connection:
            return outbox.waiting(connection)

    # --- alert groups from Alertmanager ---------------------------------------------------------------

    def keep_alert_group(self, key: str, content: str, *, firing: bool) -> None:
        """Store what Alertmanager sent of a group, in place of what it sent before. Deletes groups that it
        has not sent for nine days, those that have been over for a day, and more of these where the limits
        are exceeded. Raises LedgerUnavailable where that is not enough.
        """
        with self._database.write(_NOTICES) as connection:
            save_group(connection, key, content, firing, self._now())

    def alert_group_times(self, *, since_ms: int) -> dict[str, int]:
        """When each group was received last, by key: those received since ``since_ms``."""
        with self._database.read() as connection:
            return times(connection, since_ms)

    def alert_groups(self, keys: Collection[str]) -> dict[str, tuple[str, int]]:
        """What was last received of these groups, and when, by key."""
        with self._database.read() as connection:
            return contents(connection, keys)
