"""What the ledger keeps of news: what people were told, posts on their way, and what Alertmanager sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gpucost.ledger import alert_groups, notices
from gpucost.ledger.database import Database
from gpucost.notify.notices import Conversation, Post
from gpucost.notify.sending.outbox import DeadPost, Outgoing, Waiting

# Whoever writes notices waits for whoever else does, and for no writer of windows. No cluster is called so.
_NOTICES = "(notices)"


class NoticeBoard:
    """A part of ``Ledger``. No money rests on it."""

    _database: Database
    _now: Callable[[], int]

    # --- what people were told, and posts on their way -----------------------------------------------

    def conversations(self, channel: str | None = None, *, since_ms: int) -> tuple[Conversation, ...]:
        """Open ones (digests and closed months are), and those told anything since; by channel and key."""
        with self._database.read() as connection:
            return notices.read(connection, channel, since_ms)

    def tell(self, conversations: Sequence[Conversation], posts: Sequence[Post]) -> int:
        """Write conversations as they are now and add the posts that make them so; how many posts were added.
        A conversation and its posts are written in one transaction; a transaction has some hundred.

        What another process has told meanwhile is not told again: a post that opens an open conversation,
        updates to the version that was told last, or ends or escalates what has been, is left out, and what
        is stored stays. An update that still waits is dropped for a later update or the end. ``reference`` is
        not written here. Raises InputError for a post without its conversation, for instants below 0.
        """
        stored, batches = 0, notices.batches(conversations, posts)
        with self._database.write(_NOTICES) as connection:
            notices.prune(connection, self._now())
        for batch in batches:
            with self._database.write(_NOTICES) as connection:
                stored += notices.tell(connection, batch)
        return stored

    def due_posts(self, now_ms: int, channels: Collection[str], most: int) -> tuple[Outgoing, ...]:
        """At most ``most`` (1 to 1,000) of each channel to be tried now, by channel; of a conversation the
        oldest that waits. First what is urgent and has not failed often, then what failed least often. What
        cannot be read is dead from now."""
        with self._database.read() as connection:
            found, unreadable = notices.due(connection, now_ms, channels, most)
        for post_id, reason in unreadable.items():
            self.post_dead(post_id, now_ms, reason)
        return found

    def claim_post(self, post_id: int, now_ms: int, until_ms: int) -> bool:
        """Take a post that is due, so that nobody else tries it before ``until_ms``; False if one has."""
        with self._database.write(_NOTICES) as connection:
            return notices.claim(connection, post_id, now_ms, until_ms)

    def post_sent(self, post_id: int, at_ms: int, reference: str) -> None:
        """It arrived. ``reference``, unless empty, is what the service calls the conversation's message."""
        with self._database.write(_NOTICES) as connection:
            notices.sent(connection, post_id, at_ms, reference)

    def post_failed(self, post_id: int, due_ms: int, trouble: str) -> None:
        """It did not arrive for the reason ``trouble`` and may be tried again at ``due_ms``."""
        with self._database.write(_NOTICES) as connection:
            notices.failed(connection, post_id, due_ms, trouble)

    def post_dead(self, post_id: int, at_ms: int, trouble: str) -> None:
        """It is given up, for the reason ``trouble``; what comes after it in its conversation may go."""
        with self._database.write(_NOTICES) as connection:
            notices.dead(connection, post_id, at_ms, trouble)

    def bury_posts(self, channels: Collection[str], at_ms: int) -> int:
        """Give up what waits for other channels than these: the settings no longer have theirs. How many."""
        with self._database.write(_NOTICES) as connection:
            return notices.bury(connection, channels, at_ms)

    def dead_posts(self, *, most: int = notices.MOST_DEAD) -> tuple[DeadPost, ...]:
        """The ``most`` (1 to 1,000) that were given up last, newest first."""
        with self._database.read() as connection:
            return notices.dead_posts(connection, most)

    def count_dead_posts(self) -> dict[str, int]:
        """How many were given up, by channel; channels without any are left out."""
        with self._database.read() as connection:
            return notices.count_dead(connection)

    def revive_post(self, post_id: int, now_ms: int) -> bool:
        """Try a dead post again, its time counted anew; False when no dead post has this id."""
        with self._database.write(_NOTICES) as connection:
            return notices.revive(connection, post_id, now_ms)

    def waiting_posts(self) -> dict[str, Waiting]:
        """Posts that are neither sent nor given up, by channel; channels without any are left out."""
        with self._database.read() as connection:
            return notices.waiting(connection)

    # --- what Alertmanager sent -----------------------------------------------------------------------

    def keep_alert_group(self, key: str, content: str, *, firing: bool) -> None:
        """Keep what Alertmanager sent of a group, in place of what it sent before. Forgets what it has not
        sent for nine days, what is over for a day, and more of that where there is too much. Raises
        LedgerUnavailable where that is not enough.
        """
        with self._database.write(_NOTICES) as connection:
            alert_groups.keep(connection, key, content, firing, self._now())

    def alert_group_times(self, *, since_ms: int) -> dict[str, int]:
        """When each group was sent last, by key: those that came since ``since_ms``."""
        with self._database.read() as connection:
            return alert_groups.times(connection, since_ms)

    def alert_groups(self, keys: Collection[str]) -> dict[str, tuple[str, int]]:
        """What was last sent of these groups, and when that came, by key."""
        with self._database.read() as connection:
            return alert_groups.contents(connection, keys)
