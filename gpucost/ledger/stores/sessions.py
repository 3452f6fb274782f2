"""Login sessions: the ledger's records of them, so that all processes that answer know the same ones.

``SessionRing`` is the part of the ledger's facade. Begin, log-out and revocation are in the audit trail. A
login is accepted once: its mark is unique. Rows go with the next login an hour after they have ended: no
login that was begun can come back by then, and whoever logs in again and again makes no long table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select, update

from gpucost.access.principal import AuthenticationMethod
from gpucost.access.sessions import SessionRecord
from gpucost.domain.time import HOUR_MS, iso
from gpucost.ledger.db.audit_trail import LOGIN, LOGOUT
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.store_tables import LOGIN_SESSION
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.stores.api_keys import LONGEST_NOTE
from gpucost.ledger.usage.writer import record

KEPT_MS = HOUR_MS
MOST_VALID = 20
"""Sessions of one owner at a time: with one more the oldest ends. Browsers are lost, and the table stays
small."""
_SESSIONS = "(sessions)"
S = LOGIN_SESSION.c


class SessionRing:
    """A part of ``Ledger``, and a ``SessionStore``."""

    _database: LedgerDatabase
    _now: Callable[[], int]

    def begin_session(self, session: SessionRecord, instead_of: str = "") -> bool:
        """Store a new session, record it in the audit trail, and end the one whose SHA-256 is ``instead_of``.
        False, and nothing is stored, for a login that a session has begun with before."""
        with self._database.write(_SESSIONS) as connection:
            return _begin(connection, session, instead_of, self._now())

    def session(self, sha256: str) -> SessionRecord | None:
        """The session of this SHA-256, valid or not."""
        with self._database.read() as connection:
            return _one(connection, S.sha256 == sha256)

    def sessions(self) -> tuple[SessionRecord, ...]:
        """Those that have not expired, revoked ones too, newest first."""
        with self._database.read() as connection:
            wanted = select(LOGIN_SESSION).where(S.expires_ms > self._now())
            rows = connection.execute(wanted.order_by(S.created_ms.desc(), S.id)).mappings()
            return tuple(_record(row) for row in rows)

    def end_session(self, session_id: str, author: str, reason: str = "") -> SessionRecord | None:
        """End a session for good, and record it in the audit trail; one that has ended stays as it is. None
        for an id that no session has. Raises InputError for text that cannot be stored."""
        check_text("author", author, empty=False)
        check_text("reason", reason, most=LONGEST_NOTE)
        with self._database.write(_SESSIONS) as connection:
            found = _one(connection, S.id == session_id)
            if found is None or found.revoked_ms is not None:
                return found
            _end(connection, found, author, reason, self._now())
            return _one(connection, S.id == session_id)


def _begin(connection: Connection, session: SessionRecord, instead_of: str, now_ms: int) -> bool:
    if _one(connection, S.login_sha256 == session.login_sha256) is not None:
        return False
    over = or_(S.expires_ms < now_ms - KEPT_MS, S.revoked_ms < now_ms - KEPT_MS)
    connection.execute(delete(LOGIN_SESSION).where(over))
    before = _one(connection, S.sha256 == instead_of) if instead_of else None
    if before is not None and before.revoked_ms is None:
        _end(connection, before, session.owner, "logged in anew", now_ms)
    is_own = (S.method == str(session.method)) & (S.subject == session.subject)
    live = is_own & S.revoked_ms.is_(None) & (S.expires_ms > now_ms)
    newest = select(LOGIN_SESSION).where(live).order_by(S.created_ms.desc(), S.id)
    for row in connection.execute(newest.offset(MOST_VALID - 1)).mappings().all():
        _end(connection, _record(row), session.owner, f"more than {MOST_VALID} at a time", now_ms)
    connection.execute(insert(LOGIN_SESSION).values(**_row(session)))
    record(
        connection,
        at_ms=session.created_ms,
        author=session.owner,
        action=LOGIN,
        subject=session.id,
        reason="",
        detail=f"by {session.method}, until {iso(session.expires_ms)}",
    )
    return True


def _end(connection: Connection, session: SessionRecord, author: str, reason: str, now_ms: int) -> None:
    values = {"revoked_ms": now_ms, "revoked_by": author}
    connection.execute(update(LOGIN_SESSION).where(S.id == session.id).values(**values))
    detail = f"of {session.owner}"
    record(
        connection,
        at_ms=now_ms,
        author=author,
        action=LOGOUT,
        subject=session.id,
        reason=reason,
        detail=detail,
    )


def _one(connection: Connection, wanted: Any) -> SessionRecord | None:
    found = connection.execute(select(LOGIN_SESSION).where(wanted)).mappings().first()
    return None if found is None else _record(found)


def _row(session: SessionRecord) -> dict[str, Any]:
    return {
        "id": session.id,
        "sha256": session.sha256,
        "method": str(session.method),
        "subject": session.subject,
        "credential": session.credential,
        "groups": json.dumps(session.groups, ensure_ascii=False),
        "created_ms": session.created_ms,
        "expires_ms": session.expires_ms,
        "login_sha256": session.login_sha256,
        "revoked_ms": None,
        "revoked_by": "",
    }


def _record(row: Mapping[Any, Any]) -> SessionRecord:
    values = dict(row)
    values |= {
        "method": AuthenticationMethod(values["method"]),
        "groups": tuple(json.loads(values["groups"])),
    }
    return SessionRecord(**values)
