"""Which days of the ledger were added up: nobody knows their hours any more."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from gpucost.domain.time import Window
from gpucost.ledger.tables import LEDGER_WINDOW
from gpucost.ledger.tables_folding import FOLDED_DAY

F, W = FOLDED_DAY.c, LEDGER_WINDOW.c


def days(connection: Connection, window: Window, clusters: Collection[str] | None) -> tuple[Window, ...]:
    """The folded days that meet ``window``, sorted; ``clusters`` None is all of them."""
    statement = select(F.start_ms, F.end_ms).where(F.start_ms < window.end_ms, F.end_ms > window.start_ms)
    if clusters is not None:
        statement = statement.where(F.cluster.in_(sorted(clusters)))
    return tuple(sorted({Window(*row) for row in connection.execute(statement)}))


def holds(connection: Connection, window_id: int) -> bool:
    """Whether a window lies in a folded day."""
    statement = select(F.window_id).join(
        LEDGER_WINDOW, (W.cluster == F.cluster) & (W.start_ms >= F.start_ms) & (W.start_ms < F.end_ms)
    )
    return connection.execute(statement.where(W.id == window_id)).first() is not None
