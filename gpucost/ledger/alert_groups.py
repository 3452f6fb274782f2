"""Alert groups as Alertmanager sent them last: kept before it is thanked, so that a restart loses none."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS
from gpucost.ledger.checks import check_int64, check_text
from gpucost.ledger.tables_alerts import ALERT_GROUP

KEPT_MS = 9 * DAY_MS
"""Alertmanager repeats what still fires after its repeat_interval, hours or days; a week and more is none."""
MOST_GROUPS = 10_000

G = ALERT_GROUP.c


def keep(connection: Connection, key: str, content: str, now_ms: int) -> None:
    """See Ledger.keep_alert_group."""
    check_text("key", key, empty=False)
    check_int64("now_ms", now_ms)
    connection.execute(delete(ALERT_GROUP).where(G.received_ms < now_ms - KEPT_MS))
    values = {"content": content, "received_ms": now_ms}
    if connection.execute(update(ALERT_GROUP).where(G.key == key).values(values)).rowcount:
        return
    if len(connection.execute(select(G.key).limit(MOST_GROUPS)).all()) >= MOST_GROUPS:
        raise InputError("groupKey", key, f"at most {MOST_GROUPS} groups within nine days")
    connection.execute(insert(ALERT_GROUP).values({"key": key, **values}))


def read(connection: Connection, since_ms: int) -> dict[str, tuple[str, int]]:
    """See Ledger.alert_groups."""
    rows = connection.execute(
        select(G.key, G.content, G.received_ms).where(G.received_ms >= since_ms).order_by(G.key)
    )
    return {key: (content, received_ms) for key, content, received_ms in rows}
