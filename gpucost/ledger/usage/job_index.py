"""Jobs of the ledger by name, person and time, and the names of teams in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    case,
    cast,
    func,
    or_,
    select,
    union,
    union_all,
)
from sqlalchemy.sql.selectable import Subquery

from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.dimensions import chunked, in_clusters
from gpucost.ledger.db.store_tables import FINDING
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.db.tables import ADJUSTMENT, HOLDER, LEDGER_WINDOW, SEALED_HOLDER, USAGE_LINE
from gpucost.ledger.usage.query import own_teams, visible

MOST_NAMED = 100
"""The most jobs of one name that are returned at once: those that held GPUs last."""
MOST_LISTED = 1_000
"""The most jobs on a page of a list."""

L, W, H, F, A = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c, FINDING.c, ADJUSTMENT.c
S = SEALED_HOLDER.c


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job that held GPUs, by what people call it. ``held`` is from the first ledger window with a line of
    it to the last; ``board_ms`` and ``nano`` are what it held in all: ``unpriced_ms`` of it have no price,
    and ``nano`` is None where nothing has one. ``user`` is empty where its pods name nobody, or several."""

    cluster: str
    namespace: str
    job: str
    job_kind: str
    job_uid: str
    team: str
    held: Window
    board_ms: int
    nano: int | None
    unpriced_ms: int
    user: str


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs: called ``name`` (or ``namespace/name``), of one of ``users``, that held GPUs at or after
    ``since_ms``, with one of ``uids``; None for all."""

    name: str | None = None
    users: Collection[str] | None = None
    since_ms: int | None = None
    uids: Collection[str] | None = None


def find_jobs(
    connection: Connection, scope: Scope, query: JobQuery, limit: int | None, offset: int = 0
) -> tuple[NamedJob, ...]:
    """See Ledger.jobs; without ``limit`` all of them."""
    if limit is not None and not 1 <= limit <= MOST_LISTED:
        raise InputError("limit", limit, f"1 to {MOST_LISTED}")
    held = _held(scope, _holders(scope, query))
    u = held.c
    keys = (u.cluster, H.namespace, H.job, H.job_kind, H.job_uid, H.team)
    statement = (
        select(
            *keys,
            func.min(u.first_ms).label("first_ms"),
            func.max(u.last_ms).label("last_ms"),
            *(
                cast(func.sum(u[name]), BigInteger).label(name)
                for name in ("board_ms", "nano", "unpriced_ms")
            ),
            func.min(H.user).label("one_user"),
            func.max(H.user).label("other_user"),
        )
        .select_from(held)
        .join(HOLDER, H.id == u.holder_id)
        .group_by(*keys)
        .order_by(func.max(u.last_ms).desc(), H.job_uid, u.cluster, H.team)
        .limit(limit)
        .offset(offset)
    )
    return tuple(
        NamedJob(
            cluster=row.cluster,
            namespace=row.namespace,
            job=row.job,
            job_kind=row.job_kind,
            job_uid=row.job_uid,
            team=row.team,
            held=Window(row.first_ms, row.last_ms),
            board_ms=row.board_ms,
            nano=row.nano,
            unpriced_ms=row.unpriced_ms,
            user=row.one_user if row.one_user == row.other_user else "",
        )
        for row in connection.execute(statement)
    )


def _held(scope: Scope, holders: Select[tuple[int]]) -> Subquery:
    """What ``holders`` held, in the database and in sealed months."""
    lines = (
        select(
            *(L.holder_id, W.cluster, W.start_ms.label("first_ms"), W.end_ms.label("last_ms")),
            *(L.board_ms, L.nano),
            case((L.nano.is_(None), L.board_ms), else_=0).label("unpriced_ms"),
        )
        .join(LEDGER_WINDOW, W.id == L.window_id)
        .where(L.holder_id.in_(holders), L.bucket == str(Bucket.HELD))
        .where(*visible(scope), *in_clusters(scope, W.cluster))
    )
    sealed = (
        select(S.holder_id, S.cluster, S.first_ms, S.last_ms, S.board_ms, S.nano, S.unpriced_ms)
        .where(S.holder_id.in_(holders), S.bucket == str(Bucket.HELD))
        .where(*visible(scope, SEALED_HOLDER), *in_clusters(scope, S.cluster))
    )
    return union_all(lines, sealed).subquery("held")


def _holders(scope: Scope, query: JobQuery) -> Select[tuple[int]]:
    """The scope is checked first: for another team's job no line is read, however many there are."""
    asked: list[ColumnElement[bool]] = []
    if query.name is not None:
        check_text("name", query.name)
        namespace, slash, job = query.name.rpartition("/")
        asked += (H.job == job,) if not slash else (H.job == job, H.namespace == namespace)
    if query.users is not None:
        for user in query.users:
            check_text("user", user)
        asked.append(H.user.in_(sorted({*query.users} - {""})))
    found = select(H.id).where(*own_teams(scope), *asked, H.job_uid != "")
    if query.uids is not None:
        found = found.where(H.job_uid.in_(sorted(query.uids)))
    if query.since_ms is None:
        return found
    lately = select(W.id).where(W.end_ms > query.since_ms, *in_clusters(scope, W.cluster))
    held = select(L.holder_id).where(L.window_id.in_(lately), L.holder_id.in_(found))
    sealed = select(S.holder_id).where(S.last_ms > query.since_ms, *in_clusters(scope, S.cluster))
    uids = select(H.job_uid).where(or_(H.id.in_(held), H.id.in_(sealed.where(S.holder_id.in_(found)))))
    return found.where(H.job_uid.in_(uids))


def team_names(connection: Connection, scope: Scope) -> frozenset[str]:
    """See Ledger.teams."""
    used = select(H.team).where(*own_teams(scope))
    found = select(F.team).where(*in_clusters(scope, F.cluster))
    if scope.clusters is not None:
        lines = select(L.holder_id).join(LEDGER_WINDOW, W.id == L.window_id).where(L.holder_id == H.id)
        sealed = select(S.holder_id).where(S.holder_id == H.id, *in_clusters(scope, S.cluster))
        used = used.where(or_(lines.where(*in_clusters(scope, W.cluster)).exists(), sealed.exists()))
    if scope.teams is not None:
        found = found.where(F.team.in_(sorted(scope.teams)))
    parts = [used, found]
    if scope.sees_all:
        parts.append(select(A.team))
    return frozenset(connection.scalars(union(*parts))) - {""}


class JobIndex:
    """Jobs and teams by name: a base class of Ledger, which has the promises."""

    _database: LedgerDatabase

    def jobs_named(self, scope: Scope, name: str) -> tuple[NamedJob, ...]:
        """The jobs called ``name``, or ``namespace/name``, that held GPUs in what ``scope`` sees: those that
        did last come first, at most MOST_NAMED. A job that was of several teams is there for each. Raises
        InputError for text that no database holds."""
        return self.jobs(scope, JobQuery(name), limit=MOST_NAMED)

    def jobs(
        self, scope: Scope, query: JobQuery, *, limit: int = MOST_LISTED, offset: int = 0
    ) -> tuple[NamedJob, ...]:
        """The jobs that ``query`` is about and ``scope`` sees, those that held GPUs last first; each with all
        that it ever held. Raises InputError for text that no database holds."""
        with self._database.read() as connection:
            return find_jobs(connection, scope, query, limit, offset)

    def jobs_of(self, scope: Scope, cluster: str, uids: Collection[str]) -> tuple[NamedJob, ...]:
        """What the jobs of ``uids`` held in all in ``cluster``: those that held GPUs last come first, among
        some hundreds of them. A job that was of several teams is there for each."""
        check_text("cluster", cluster)
        found: list[NamedJob] = []
        with self._database.read() as connection:
            for some in chunked(sorted(uids)):
                known = find_jobs(connection, scope, JobQuery(uids=some), None)
                found += (each for each in known if each.cluster == cluster)
        return tuple(found)

    def teams(self, scope: Scope) -> frozenset[str]:
        """The names of teams with usage, findings or adjustments in what ``scope`` sees, whenever; what
        stands for no team is among them."""
        with self._database.read() as connection:
            return team_names(connection, scope)
