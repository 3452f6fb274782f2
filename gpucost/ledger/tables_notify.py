"""The tables of what people were told, and of posts on their way. No money rests on them: they change."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, Integer, Text
from sqlalchemy import text as sql
from sqlmodel import Field

from gpucost.ledger.tables import LedgerModel, big_int, row_id, table_of

WAITING = "state = 'waiting'"


class NotifyConversation(LedgerModel, table=True):
    """What one channel was told of one thing. ``changed_ms`` is the last instant at which it was told."""

    __tablename__ = "notify_conversation"
    __table_args__ = (
        CheckConstraint("posted_ms >= 0 AND changed_ms >= posted_ms", name="instants"),
        Index(None, "changed_ms"),
    )
    channel: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    topic: str
    kind: str
    team: str
    version: str
    posted_ms: int = big_int()
    updated_ms: int | None = big_int()
    escalated_ms: int | None = big_int()
    resolved_ms: int | None = big_int()
    reference: str
    changed_ms: int = big_int()


class NotifyPost(LedgerModel, table=True):
    """One message on its way, or where that ended: ``ended_ms`` is when it was sent, given up, or overtaken
    by a later word on the same thing (superseded). ``since_ms`` is since when it may be tried: its age. An
    ``urgent`` one goes before others, and so does what waits before it in its conversation."""

    __tablename__ = "notify_post"
    __table_args__ = (
        CheckConstraint("state IN ('waiting', 'sent', 'dead', 'superseded')", name="state"),
        CheckConstraint("(state = 'waiting') = (ended_ms IS NULL)", name="ended"),
        CheckConstraint("tries >= 0", name="tries"),
        Index(
            "ix_notify_post_waiting",
            "channel",
            "key",
            "id",
            sqlite_where=sql(WAITING),
            postgresql_where=sql(WAITING),
        ),
        Index(None, "ended_ms"),
    )
    id: int | None = row_id()
    channel: str
    key: str
    kind: str
    act: str
    version: str
    message: str = Field(sa_type=Text)
    created_ms: int = big_int()
    since_ms: int = big_int()
    due_ms: int = big_int()
    tries: int = Field(sa_type=Integer)
    urgent: bool
    trouble: str
    state: str
    ended_ms: int | None = big_int()


NOTIFY_CONVERSATION = table_of(NotifyConversation)
NOTIFY_POST = table_of(NotifyPost)
