"""Names in the ledger that have a piece of text in them: jobs, teams, people, queues and nodes.

What is looked at is bounded before the text is: the newest holders (pods with their attributes) that the
reader sees and that held something, and the newest units. So no search costs more than another, nobody's many
names make it slow, and its time says nothing about names that the reader does not see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, exists, func, or_, select
from sqlalchemy.sql.selectable import Subquery

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.dimensions import in_clusters
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.db.tables import HOLDER, LEDGER_WINDOW, SEALED_HOLDER, UNIT, USAGE_LINE
from gpucost.ledger.usage.query import own_teams, visible

MOST_HOLDERS = 50_000
"""The newest pods that are looked at."""
MOST_UNITS = 20_000
LEAST_TEXT, LONGEST_TEXT = 2, 253
MOST_FOUND = 20
"""The most names of a kind that are returned."""

L, W, H, U = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c, UNIT.c
_OWN = ("namespace", "job", "job_kind", "job_uid", "team", "user", "queue", "cluster_queue")


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job by its name; those of one name, kind and namespace are one."""

    namespace: str
    job: str
    job_kind: str
    team: str


@dataclass(frozen=True, slots=True)
class NameHits:
    """Names that have the text in them, at most MOST_FOUND of a kind: the newest jobs, all else by name.
    ``nodes`` are of all clusters of the scope; None for a scope with teams, whose nodes are those of its
    usage. ``cut`` says that older pods were not looked at."""

    jobs: tuple[FoundJob, ...]
    teams: tuple[str, ...]
    users: tuple[str, ...]
    queues: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...] | None
    cut: bool


def check_search(text: str) -> str:
    """``text`` without blanks around it. Raises InputError where it is too short, or no text of a name."""
    asked = text.strip()
    if not LEAST_TEXT <= len(asked) <= LONGEST_TEXT:
        raise InputError("q", text, f"{LEAST_TEXT} to {LONGEST_TEXT} characters of a name")
    check_text("q", asked)
    return asked


def find_names(connection: Connection, scope: Scope, text: str) -> NameHits:
    """See Ledger.find_names."""
    words = check_search(text).casefold()
    recent = _recent(scope)
    newest = func.max(recent.c.id)
    rows = connection.execute(
        select(*(recent.c[name] for name in _OWN), func.count())
        .group_by(*(recent.c[name] for name in _OWN))
        .order_by(newest.desc())
    ).all()
    jobs = {
        FoundJob(row.namespace, row.job, row.job_kind, row.team): None
        for row in rows
        if row.job and (words in _called(row.namespace, row.job, words) or words == row.job_uid.casefold())
    }
    return NameHits(
        jobs=tuple(jobs)[:MOST_FOUND],
        teams=_having(words, {row.team for row in rows}),
        users=_having(words, {row.user for row in rows}),
        queues=_having(words, {name for row in rows for name in (row.queue, row.cluster_queue)}),
        nodes=_nodes(connection, scope, words) if scope.sees_every_team else None,
        cut=sum(row[-1] for row in rows) >= MOST_HOLDERS,
    )


def _recent(scope: Scope) -> Subquery:
    """The newest holders that have a line in what ``scope`` sees."""
    lines = select(L.window_id).where(L.holder_id == H.id, *visible(scope))
    if scope.clusters is not None:
        lines = lines.join(LEDGER_WINDOW, W.id == L.window_id).where(*in_clusters(scope, W.cluster))
    s = SEALED_HOLDER.c
    sealed = select(s.holder_id).where(
        s.holder_id == H.id, *visible(scope, SEALED_HOLDER), *in_clusters(scope, s.cluster)
    )
    return (
        select(H.id, *(H[name] for name in _OWN))
        .where(H.pod_uid != "", *own_teams(scope), or_(exists(lines), exists(sealed)))
        .order_by(H.id.desc())
        .limit(MOST_HOLDERS)
        .subquery()
    )


def _called(namespace: str, job: str, words: str) -> str:
    return (f"{namespace}/{job}" if "/" in words else job).casefold()


def _having(words: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if name and words in name.casefold())[:MOST_FOUND])


def _nodes(connection: Connection, scope: Scope, words: str) -> tuple[tuple[str, str], ...]:
    newest = (
        select(U.cluster, U.node)
        .where(*in_clusters(scope, U.cluster))
        .order_by(U.id.desc())
        .limit(MOST_UNITS)
    )
    found = {(row.cluster, row.node) for row in connection.execute(newest) if words in row.node.casefold()}
    return tuple(sorted(found, key=lambda each: (each[1], each[0]))[:MOST_FOUND])


class NameSearch:
    """Names that have a piece of text in them: a base class of Ledger, which has the promises."""

    _database: LedgerDatabase

    def find_names(self, scope: Scope, text: str) -> NameHits:
        """Jobs, teams, people, queues and nodes whose names have ``text`` in them, whatever its case, of the
        newest that ``scope`` sees. Raises InputError for text of less than LEAST_TEXT characters, or that no
        database holds."""
        with self._database.read() as connection:
            return find_names(connection, scope, text)
