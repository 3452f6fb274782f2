"""Wait predictions, and their outcomes.

Written once for a workload, when its wait is first predicted; scored once, when it started or went without a
start; deleted by the writer 90 days after it asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from sqlalchemy import Connection, bindparam, delete, func, select, update

from gpucost.attribution.usage_lines import storable_text
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS
from gpucost.ledger.db.dimensions import chunked, insert_new
from gpucost.ledger.db.store_tables import WAIT_PREDICTION
from gpucost.ledger.db.stored_values import check_ms, check_text

KEPT_MS = 90 * DAY_MS
MOST_FORETOLD = 5_000
"""Decided waits that are read at once: those that asked last."""

P = WAIT_PREDICTION.c


@dataclass(frozen=True, slots=True)
class WaitPrediction:
    """The prediction of a workload's wait at ``asked_ms``, and when it started, or went without a start.

    ``queue`` is its ClusterQueue, ``team`` its team by the team rules. ``p10_ms``, ``p50_ms`` and ``p90_ms``
    count from ``asked_ms``, None where they lay beyond ``horizon_ms``. ``simulated_*`` is the result of the
    simulation alone, and ``gpus`` how many it asks for: None in rows that are older than these.
    """

    workload_uid: str
    namespace: str
    name: str
    queue: str
    team: str
    asked_ms: int
    p50_ms: int | None
    p90_ms: int | None
    horizon_ms: int
    started_ms: int | None = None
    gone_ms: int | None = None
    gpus: int | None = None
    p10_ms: int | None = None
    simulated_p10_ms: int | None = None
    simulated_p50_ms: int | None = None
    simulated_p90_ms: int | None = None

    @property
    def is_decided(self) -> bool:
        return self.started_ms is not None or self.gone_ms is not None


_COLUMNS = [P[field.name] for field in fields(WaitPrediction)]
_NUMBERS = tuple(field.name for field in fields(WaitPrediction) if field.name.endswith(("_ms", "gpus")))


def write(connection: Connection, cluster: str, given: Sequence[WaitPrediction], now_ms: int) -> int:
    """See Ledger.foretell."""
    check_text("cluster", cluster, empty=False)
    connection.execute(delete(WAIT_PREDICTION).where(P.cluster == cluster, P.asked_ms < now_ms - KEPT_MS))
    rows = {each.workload_uid: _checked(each) for each in given}
    for uids in chunked(rows):
        present = select(P.workload_uid).where(P.cluster == cluster, P.workload_uid.in_(uids))
        for uid in connection.scalars(present):
            del rows[uid]
    if rows:
        values = [{"cluster": cluster, **asdict(each)} for each in rows.values()]
        connection.execute(insert_new(connection, WAIT_PREDICTION), values)
    return len(rows)


def score(
    connection: Connection, cluster: str, started_ms: Mapping[str, int], gone_ms: Mapping[str, int]
) -> int:
    """See Ledger.score_foretold."""
    changed = 0
    for name, found in (("started_ms", started_ms), ("gone_ms", gone_ms)):
        statement = (
            update(WAIT_PREDICTION)
            .where(P.cluster == cluster, P.workload_uid == bindparam("uid"))
            .where(P.started_ms.is_(None), P.gone_ms.is_(None))
            .values({name: bindparam("at_ms")})
        )
        for uid, at_ms in sorted(found.items()):
            at_ms = check_ms(name, at_ms)
            changed += connection.execute(statement, {"uid": uid, "at_ms": at_ms}).rowcount
    return changed


def read(connection: Connection, scope: Scope, cluster: str, most: int) -> tuple[WaitPrediction, ...]:
    """See Ledger.foretold."""
    check_text("cluster", cluster)
    if not 1 <= most <= MOST_FORETOLD:
        raise InputError("most", most, f"1 to {MOST_FORETOLD}")
    if not scope.sees_cluster(cluster):
        return ()
    own = select(*_COLUMNS).where(P.cluster == cluster)
    if scope.teams is not None:
        own = own.where(P.team.in_(sorted(scope.teams)))
    decided = func.coalesce(P.started_ms, P.gone_ms).is_not(None)
    statements = (
        own.where(P.started_ms.is_(None), P.gone_ms.is_(None)),
        own.where(decided).order_by(P.asked_ms.desc(), P.workload_uid).limit(most),
    )
    found = [WaitPrediction(*row) for statement in statements for row in connection.execute(statement)]
    return tuple(sorted(found, key=lambda each: (each.asked_ms, each.workload_uid)))


def _checked(given: WaitPrediction) -> WaitPrediction:
    check_text("workload_uid", given.workload_uid, empty=False)
    for name in _NUMBERS:
        value = getattr(given, name)
        if value is not None:
            check_ms(name, value)
    return replace(
        given,
        namespace=storable_text(given.namespace),
        name=storable_text(given.name),
        queue=storable_text(given.queue),
        team=storable_text(given.team),
    )
