"""The outbox: what channels were sent, and deliveries on their way.

A conversation and its deliveries are written together, by one process at a time: a second process with the
same news finds it recorded already, and stores nothing. Deliveries leave in the order in which they came, the
urgent ones first, and one after the other for a conversation.

The writer deletes sent and superseded deliveries after 30 days, failed ones after 90, and conversations that
are over 400 days after their last message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace

from sqlalchemy import Connection, Row, and_, bindparam, case, delete, func, insert, or_, select, update

from gpucost.attribution.usage_lines import storable_text
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.db.dimensions import chunked
from gpucost.ledger.db.store_tables import NOTIFY_CONVERSATION, NOTIFY_POST
from gpucost.ledger.db.stored_values import check_ms, check_text
from gpucost.notify.message import NotificationMessage, UnreadableMessage, message_from_json, message_to_json
from gpucost.notify.notices import Conversation, DeliveryAct, NoticeDelivery, NoticeKind
from gpucost.notify.sending.delivery import ChannelBacklog, DeadDelivery, OutgoingDelivery

SENT_KEPT_MS = 30 * DAY_MS
DEAD_KEPT_MS = 90 * DAY_MS
CONVERSATIONS_KEPT_MS = 400 * DAY_MS
MOST_DUE = 1_000
BATCH = 250
"""Conversations in one transaction, so that deliveries in progress do not have to wait long."""
URGENT_TRIES = 5
"""An urgent delivery goes first until it has failed so often."""
SET_BACK_MS = HOUR_MS
"""A conversation that was opened this long before the end of the one it follows was opened by a clock that
was set back."""
MOST_DEAD = 1_000
MOST_TROUBLE = 500
"""Characters of a failure that are kept."""

# Sent once: there is nothing to resolve.
ONCE = (NoticeKind.DIGEST, NoticeKind.MONTH, NoticeKind.RECEIPT, NoticeKind.BUDGET)

C = NOTIFY_CONVERSATION.c
P = NOTIFY_POST.c

# The columns are the fields of Conversation, but for one: "group" is a keyword of SQL.
_FIELDS = tuple(field.name for field in fields(Conversation))
_COLUMNS = [C["topic" if name == "group" else name] for name in _FIELDS]


# Conversations


def read(connection: Connection, channel: str | None, since_ms: int) -> tuple[Conversation, ...]:
    """See Ledger.conversations."""
    wanted = or_(C.resolved_ms.is_(None), C.changed_ms >= since_ms)
    if channel is not None:
        wanted = and_(wanted, C.channel == channel)
    statement = select(*_COLUMNS).where(wanted).order_by(C.channel, C.key)
    return tuple(_conversation(row) for row in connection.execute(statement))


def batches(
    conversations: Sequence[Conversation], posts: Sequence[NoticeDelivery]
) -> list[list[tuple[Conversation, list[NoticeDelivery]]]]:
    """The input of Ledger.tell, checked: each conversation with its deliveries, BATCH to a transaction."""
    given = {(each.channel, each.key): (_checked(each), list[NoticeDelivery]()) for each in conversations}
    for post in posts:
        if (post.channel, post.key) not in given:
            raise InputError("posts", f"{post.channel}, {post.key}", "posts whose conversation is given too")
        check_ms("created_ms", post.created_ms)
        check_ms("due_ms", post.due_ms)
        given[post.channel, post.key][1].append(post)
    return list(chunked(given.values(), BATCH))


def enqueue(connection: Connection, batch: Sequence[tuple[Conversation, list[NoticeDelivery]]]) -> int:
    """Writes one of ``batches``; how many deliveries were added."""
    stored = _stored(connection, [conversation for conversation, _ in batch])
    fresh, changed, news = [], [], []
    for given, posts in batch:
        before = stored.get((given.channel, given.key))
        merged = _merged(given, before)
        if before is None:
            fresh.append(_values(given))
        elif merged != before:
            changed.append(_values(merged) | {"of_channel": given.channel, "of_key": given.key})
        news.append((given, [post for post in posts if _is_news(post, given, before)]))
    if fresh:
        connection.execute(insert(NOTIFY_CONVERSATION), fresh)
    if changed:
        own = and_(C.channel == bindparam("of_channel"), C.key == bindparam("of_key"))
        connection.execute(update(NOTIFY_CONVERSATION).where(own), changed)
    for at in range(max((len(posts) for _, posts in news), default=0)):
        _add(connection, [(posts[at], given) for given, posts in news if at < len(posts)])
    return sum(len(posts) for _, posts in news)


def _is_news(post: NoticeDelivery, now: Conversation, before: Conversation | None) -> bool:
    """Whether no other process has recorded it meanwhile. This compares what was sent, not the stored
    deliveries: a version may come back, and is news again then."""
    if before is None or _begins_anew(now, before):
        return True
    if post.act is DeliveryAct.OPEN or before.resolved_ms is not None:
        return False
    if post.act is DeliveryAct.UPDATE:
        return before.version != now.version
    return post.act is not DeliveryAct.ESCALATE or before.escalated_ms is None


def _merged(given: Conversation, before: Conversation | None) -> Conversation:
    """What to store: what was sent stays, and so does the sender's reference. A conversation that was over
    and is opened again begins anew."""
    if before is None or _begins_anew(given, before):
        return replace(given, reference="")
    if before.resolved_ms is not None:
        return before
    return replace(
        given,
        posted_ms=before.posted_ms,
        updated_ms=given.updated_ms if given.version != before.version else before.updated_ms,
        escalated_ms=_first(before.escalated_ms, given.escalated_ms),
        resolved_ms=given.resolved_ms,
        reference=before.reference,
    )


def _begins_anew(given: Conversation, before: Conversation) -> bool:
    """Whether ``given`` was opened after the end of ``before``; or long before that end and not together with
    it: then the end was recorded by a clock that was ahead and has been set back."""
    if before.resolved_ms is None or before.kind in ONCE or given.resolved_ms is not None:
        return False
    set_back = given.posted_ms < before.resolved_ms - SET_BACK_MS
    return given.posted_ms != before.posted_ms and (given.posted_ms >= before.resolved_ms or set_back)


def _stored(connection: Connection, given: Sequence[Conversation]) -> dict[tuple[str, str], Conversation]:
    keys: dict[str, list[str]] = {}
    for each in given:
        keys.setdefault(each.channel, []).append(each.key)
    found = {}
    for channel, own in keys.items():
        statement = select(*_COLUMNS).where(C.channel == channel, C.key.in_(own))
        for row in connection.execute(statement):
            found[channel, row.key] = _conversation(row)
    return found


def _conversation(row: Row[tuple[object, ...]]) -> Conversation:
    found = dict(zip(_FIELDS, row, strict=True))
    return Conversation(**(found | {"kind": NoticeKind(found["kind"])}))  # type: ignore[arg-type]  # columns are its


def _values(conversation: Conversation) -> dict[str, object]:
    values: dict[str, object] = {
        column.name: getattr(conversation, name) for name, column in zip(_FIELDS, _COLUMNS, strict=True)
    }
    instants = (conversation.updated_ms, conversation.escalated_ms, conversation.resolved_ms)
    return values | {"changed_ms": max(conversation.posted_ms, *(each or 0 for each in instants))}


def _first(told: int | None, given: int | None) -> int | None:
    return given if told is None else told


def _checked(given: Conversation) -> Conversation:
    check_text("channel", given.channel, empty=False)
    check_text("key", given.key, empty=False)
    for name in ("posted_ms", "updated_ms", "escalated_ms", "resolved_ms"):
        value = getattr(given, name)
        if value is not None:
            check_ms(name, value)
    return replace(
        given,
        group=storable_text(given.group),
        team=storable_text(given.team),
        version=storable_text(given.version),
    )


# Deliveries


def _add(connection: Connection, posts: Sequence[tuple[NoticeDelivery, Conversation]]) -> None:
    """Adds deliveries of different conversations. A waiting update is superseded by a later one and by the
    end of the subject; and by a new beginning, as is an end that waits for the end of quiet hours. A delivery
    that waits before an urgent one becomes urgent too.
    """
    for act in sorted({post.act for post, _ in posts} - {DeliveryAct.ESCALATE}):
        acts = [DeliveryAct.UPDATE, DeliveryAct.RESOLVE] if act is DeliveryAct.OPEN else [DeliveryAct.UPDATE]
        overtaken = update(NOTIFY_POST).where(_WAITS_IN, or_(*(P.act == each for each in acts)))
        overtaken = overtaken.values(state="superseded", ended_ms=bindparam("at_ms"))
        by = [_of(post) | {"at_ms": post.created_ms} for post, _ in posts if post.act is act]
        connection.execute(overtaken, by)
    hurried = [_of(post) for post, _ in posts if post.urgent]
    if hurried:
        connection.execute(update(NOTIFY_POST).where(_WAITS_IN).values(urgent=True), hurried)
    connection.execute(insert(NOTIFY_POST), [_row(post, conversation) for post, conversation in posts])


# The parameters are those of ``_of``.
_WAITS_IN = and_(P.channel == bindparam("of_channel"), P.key == bindparam("of_key"), P.state == "waiting")


def _of(post: NoticeDelivery) -> dict[str, object]:
    return {"of_channel": post.channel, "of_key": post.key}


def _row(post: NoticeDelivery, conversation: Conversation) -> dict[str, object]:
    return {
        "channel": conversation.channel,
        "key": conversation.key,
        "kind": conversation.kind,
        "act": post.act,
        "version": conversation.version,
        "message": message_to_json(post.message),
        "created_ms": post.created_ms,
        "since_ms": post.due_ms,
        "due_ms": post.due_ms,
        "tries": 0,
        "urgent": post.urgent,
        "trouble": "",
        "state": "waiting",
        "ended_ms": None,
    }


def due(
    connection: Connection, now_ms: int, channels: Collection[str], most: int
) -> tuple[tuple[OutgoingDelivery, ...], dict[int, str]]:
    """See Ledger.due_posts; and the deliveries that cannot be read, by id, with the reason."""
    if not 1 <= most <= MOST_DUE:
        raise InputError("most", most, f"1 to {MOST_DUE}")
    before = NOTIFY_POST.alias()
    waits_for_another = (
        select(before.c.id)
        .where(before.c.state == "waiting", before.c.channel == P.channel, before.c.key == P.key)
        .where(before.c.id < P.id)
        .exists()
    )
    # One that always fails must not hold up its channel for ever, however urgent.
    hurries = case((and_(P.urgent, P.tries < URGENT_TRIES), 0), else_=1)
    place = func.row_number().over(partition_by=P.channel, order_by=(hurries, P.tries, P.id)).label("place")
    ready = (
        select(P.id, place)
        .where(P.state == "waiting", P.due_ms <= now_ms, P.channel.in_(sorted(channels)))
        .where(~waits_for_another)
        .subquery()
    )
    statement = (
        select(NOTIFY_POST, C.reference)
        .join(ready, ready.c.id == P.id)
        .join(NOTIFY_CONVERSATION, and_(C.channel == P.channel, C.key == P.key))
        .where(ready.c.place <= most)
        .order_by(P.channel, ready.c.place)
    )
    found, unreadable = [], {}
    for row in connection.execute(statement):
        try:
            post = _post(row, message_from_json(row.message))
            found.append(OutgoingDelivery(post, NoticeKind(row.kind), row.reference, row.since_ms))
        except UnreadableMessage as error:
            unreadable[row.id] = str(error)
    return tuple(found), unreadable


def _post(row: Row[tuple[object, ...]], message: NotificationMessage) -> NoticeDelivery:
    return NoticeDelivery(
        row.channel,
        row.key,
        DeliveryAct(row.act),
        message,
        row.created_ms,
        row.due_ms,
        id=row.id,
        tries=row.tries,
        trouble=row.trouble,
        urgent=row.urgent,
    )


def claim(connection: Connection, post_id: int, now_ms: int, until_ms: int) -> bool:
    """See Ledger.claim_post."""
    mine = and_(P.id == post_id, P.state == "waiting", P.due_ms <= now_ms)
    found = connection.execute(update(NOTIFY_POST).where(mine).values(due_ms=check_ms("until_ms", until_ms)))
    return found.rowcount == 1


def sent(connection: Connection, post_id: int, at_ms: int, reference: str) -> None:
    """See Ledger.post_sent."""
    values = {"state": "sent", "ended_ms": check_ms("at_ms", at_ms), "trouble": ""}
    connection.execute(update(NOTIFY_POST).where(P.id == post_id, P.state == "waiting").values(values))
    if reference:
        own = select(P.channel, P.key).where(P.id == post_id)
        row = connection.execute(own).one_or_none()
        if row is not None:
            statement = update(NOTIFY_CONVERSATION).where(C.channel == row.channel, C.key == row.key)
            connection.execute(statement.values(reference=storable_text(reference)))


def failed(connection: Connection, post_id: int, due_ms: int, trouble: str) -> None:
    """See Ledger.post_failed."""
    values = {
        "due_ms": check_ms("due_ms", due_ms),
        "trouble": _trouble(trouble),
        "tries": P.tries + 1,
    }
    connection.execute(update(NOTIFY_POST).where(P.id == post_id, P.state == "waiting").values(values))


def dead(connection: Connection, post_id: int, at_ms: int, trouble: str) -> None:
    """See Ledger.post_dead."""
    values = _buried(at_ms, trouble) | {"tries": P.tries + 1}
    connection.execute(update(NOTIFY_POST).where(P.id == post_id, P.state == "waiting").values(values))


def bury(connection: Connection, channels: Collection[str], at_ms: int) -> int:
    """See Ledger.bury_posts."""
    lost = and_(P.state == "waiting", P.channel.not_in(sorted(channels)))
    values = _buried(at_ms, "the settings have no channel of this name")
    return connection.execute(update(NOTIFY_POST).where(lost).values(values)).rowcount


def _buried(at_ms: int, trouble: str) -> dict[str, object]:
    return {"state": "dead", "ended_ms": check_ms("at_ms", at_ms), "trouble": _trouble(trouble)}


def dead_posts(connection: Connection, most: int) -> tuple[DeadDelivery, ...]:
    """See Ledger.dead_posts."""
    if not 1 <= most <= MOST_DEAD:
        raise InputError("most", most, f"1 to {MOST_DEAD}")
    statement = select(NOTIFY_POST).where(P.state == "dead").order_by(P.ended_ms.desc(), P.id.desc())
    found = []
    for row in connection.execute(statement.limit(most)):
        try:
            message = message_from_json(row.message)
        except UnreadableMessage:
            message = NotificationMessage(title="(not readable)", summary="")
        found.append(DeadDelivery(_post(row, message), NoticeKind(row.kind), row.ended_ms))
    return tuple(found)


def count_dead(connection: Connection) -> dict[str, int]:
    """See Ledger.count_dead_posts."""
    statement = select(P.channel, func.count().label("posts")).where(P.state == "dead").group_by(P.channel)
    return {row.channel: row.posts for row in connection.execute(statement)}


def revive(connection: Connection, post_id: int, now_ms: int) -> bool:
    """See Ledger.revive_post."""
    now_ms = check_ms("now_ms", now_ms)
    values = {"state": "waiting", "ended_ms": None, "since_ms": now_ms, "due_ms": now_ms, "tries": 0}
    statement = update(NOTIFY_POST).where(P.id == post_id, P.state == "dead").values(values)
    return connection.execute(statement).rowcount == 1


def waiting(connection: Connection) -> dict[str, ChannelBacklog]:
    """See Ledger.waiting_posts."""
    statement = select(P.channel, func.count(), func.min(P.since_ms)).where(P.state == "waiting")
    rows = connection.execute(statement.group_by(P.channel))
    return {channel: ChannelBacklog(count, oldest_ms) for channel, count, oldest_ms in rows}


def prune(connection: Connection, now_ms: int) -> None:
    gone = or_(
        and_(P.state.in_(("sent", "superseded")), P.ended_ms < now_ms - SENT_KEPT_MS),
        and_(P.state == "dead", P.ended_ms < now_ms - DEAD_KEPT_MS),
    )
    connection.execute(delete(NOTIFY_POST).where(gone))
    waits = select(P.id).where(P.channel == C.channel, P.key == C.key).exists()
    over = or_(C.resolved_ms.is_not(None), C.kind.in_(ONCE))
    old = and_(over, C.changed_ms < now_ms - CONVERSATIONS_KEPT_MS)
    connection.execute(delete(NOTIFY_CONVERSATION).where(old, ~waits))


def _trouble(text: str) -> str:
    return storable_text(text, MOST_TROUBLE)
