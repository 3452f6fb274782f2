"""Alert groups as Alertmanager sent them last: kept before it is thanked, so that a restart loses none."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, and_, delete, func, insert, or_, select

from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.time import DAY_MS
from gpucost.ledger.checks import check_int64, check_text
from gpucost.ledger.dimensions import chunked
from gpucost.ledger.tables_alerts import ALERT_GROUP

KEPT_MS = 9 * DAY_MS
"""Alertmanager repeats what still fires after its repeat_interval, hours or days; a week and more is none."""
OVER_KEPT_MS = DAY_MS
"""That a group is over is told within seconds; a day, should nobody look for a while."""
MOST_GROUPS = 10_000
MOST_BYTES = 64 * 1024 * 1024

G = ALERT_GROUP.c


def keep(connection: Connection, key: str, content: str, firing: bool, now_ms: int) -> None:
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
    """Forget what is over, the oldest first, as far as there is too much. Raises LedgerUnavailable where that
    is not enough: Alertmanager sends again what is answered with 503."""
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
