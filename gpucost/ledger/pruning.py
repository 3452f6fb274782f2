"""Forgetting what was over long ago and no number rests on. The caller holds the transaction and the lock.

An event goes only with its finding: a trigger lets those go of a resolved one that is marked (revision 0).
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select, update

from gpucost.ledger.notices import ONCE
from gpucost.ledger.records import Forgotten
from gpucost.ledger.tables_alerts import ALERT_GROUP
from gpucost.ledger.tables_notify import NOTIFY_CONVERSATION, NOTIFY_POST
from gpucost.ledger.tables_waste import FINDING, FINDING_EVENT

F, E, P, C, G = FINDING.c, FINDING_EVENT.c, NOTIFY_POST.c, NOTIFY_CONVERSATION.c, ALERT_GROUP.c

_GOING = 0


def count(connection: Connection, before_ms: int) -> Forgotten:
    """What ``forget`` would delete."""
    counts = {
        name: connection.execute(select(func.count()).select_from(table).where(old)).scalar_one()
        for name, (table, old) in _old(before_ms).items()
    }
    return Forgotten(**counts)


def forget(connection: Connection, before_ms: int) -> Forgotten:
    """See Ledger.forget."""
    old = _old(before_ms)
    connection.execute(update(FINDING).where(old["findings"][1]).values(revision=_GOING))
    counts = {
        name: connection.execute(delete(table).where(rows)).rowcount for name, (table, rows) in old.items()
    }
    return Forgotten(**counts)


def _old(before_ms: int) -> dict[str, tuple[Table, ColumnElement[bool]]]:
    """Events before their findings, posts before their conversations. A conversation that is open stays."""
    resolved = and_(F.state == "resolved", F.closed_at_ms < before_ms)
    over = and_(or_(C.resolved_ms.is_not(None), C.kind.in_(ONCE)), C.changed_ms < before_ms)
    posts = select(P.id).where(P.channel == C.channel, P.key == C.key).exists()
    return {
        "events": (FINDING_EVENT, E.finding_id.in_(select(F.id).where(resolved))),
        "findings": (FINDING, resolved),
        "posts": (NOTIFY_POST, and_(P.state != "waiting", P.ended_ms < before_ms)),
        "conversations": (NOTIFY_CONVERSATION, and_(over, ~posts)),
        "alert_groups": (ALERT_GROUP, G.received_ms < before_ms),
    }
