"""API keys in the ledger: the caller holds the transaction. Issue and revocation are in the audit trail."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from gpucost.access.keys import KEY_ID, RESERVED, KeyRecord
from gpucost.access.principal import Role
from gpucost.domain.errors import InputError
from gpucost.domain.time import iso
from gpucost.ledger.checks import check_int64, check_text
from gpucost.ledger.tables_keys import API_KEY
from gpucost.ledger.trail import ISSUE, REVOCATION, grants
from gpucost.ledger.writer import record

LONGEST_NOTE = 1_000
MOST_NAMES = 1_000
"""Teams of a key, and its clusters."""
MOST_VALID = 1_000
"""Keys of one maker that are not revoked."""
_HASH = re.compile(r"[0-9a-f]{64}")
K = API_KEY.c


def add(connection: Connection, key: KeyRecord) -> None:
    """See Ledger.add_key."""
    _check(key)
    if get(connection, key.id) is not None:
        raise InputError("id", key.id, "an id that no key has or had: a revoked key keeps its own")
    mine = (K.created_by == key.created_by) & K.revoked_ms.is_(None)
    if connection.execute(select(func.count()).where(mine)).scalar_one() >= MOST_VALID:
        raise InputError("id", key.id, f"at most {MOST_VALID} keys of one maker; revoke some first")
    row = _row(key)
    connection.execute(insert(API_KEY).values(**row))
    detail = grants(row["role"], row["teams"], row["clusters"], row["expires_ms"])
    _tell(connection, row["created_ms"], key.created_by, ISSUE, key.id, key.note, detail)


def get(connection: Connection, key_id: str) -> KeyRecord | None:
    found = connection.execute(select(API_KEY).where(K.id == key_id)).mappings().first()
    return None if found is None else _record(found)


def every(connection: Connection) -> tuple[KeyRecord, ...]:
    """Newest first."""
    rows = connection.execute(select(API_KEY).order_by(K.created_ms.desc(), K.id)).mappings()
    return tuple(_record(row) for row in rows)


def unrevoked(connection: Connection) -> tuple[KeyRecord, ...]:
    rows = connection.execute(select(API_KEY).where(K.revoked_ms.is_(None))).mappings()
    return tuple(_record(row) for row in rows)


def revoke(connection: Connection, key_id: str, author: str, reason: str, now_ms: int) -> KeyRecord:
    """See Ledger.revoke_key."""
    check_text("author", author, empty=False)
    check_text("reason", reason, most=LONGEST_NOTE)
    found = get(connection, key_id)
    if found is None:
        raise InputError("id", key_id, "the id of a key in the ledger")
    if found.revoked_ms is not None:
        return found
    connection.execute(update(API_KEY).where(K.id == key_id).values(revoked_ms=now_ms, revoked_by=author))
    _tell(connection, now_ms, author, REVOCATION, key_id, reason)
    changed = get(connection, key_id)
    assert changed is not None, "a key is never deleted"
    return changed


def used(connection: Connection, uses: Mapping[str, int]) -> None:
    """Id -> instant. An earlier instant than what is stored changes nothing."""
    for key_id, at_ms in uses.items():
        later = or_(K.last_used_ms.is_(None), K.last_used_ms < at_ms)
        connection.execute(update(API_KEY).where(K.id == key_id, later).values(last_used_ms=at_ms))


def _check(key: KeyRecord) -> None:
    if not KEY_ID.fullmatch(key.id):
        raise InputError("id", key.id, "1 to 32 of a-z, 0-9 and dashes, not a dash first")
    if key.id in RESERVED:
        raise InputError("id", key.id, "another id: in the audit trail this one is the service's own")
    if not _HASH.fullmatch(key.sha256):
        raise ValueError("not a SHA-256")
    if key.role.has_teams != bool(key.teams):
        allowed = "teams for the roles viewer and team-admin, and none for another role"
        raise InputError("teams", sorted(key.teams), allowed)
    for field, names in (("teams", key.teams), ("clusters", key.clusters or ())):
        if len(names) > MOST_NAMES:
            raise InputError(field, f"{len(names)} names", f"at most {MOST_NAMES}")
        for name in names:
            check_text(field, name, empty=False)
    if key.clusters is not None and not key.clusters:
        raise InputError("clusters", [], "at least one, or all of them")
    if key.expires_ms is not None and key.expires_ms <= check_int64("created", key.created_ms or 0):
        raise InputError("expires", iso(key.expires_ms), "a day or instant that is still to come")
    check_text("note", key.note, most=LONGEST_NOTE)
    check_text("author", key.created_by, empty=False)


def _row(key: KeyRecord) -> dict[str, Any]:
    return {
        "id": key.id,
        "sha256": key.sha256,
        "role": str(key.role),
        "teams": _names(key.teams),
        "clusters": None if key.clusters is None else _names(key.clusters),
        "expires_ms": key.expires_ms,
        "created_ms": key.created_ms or 0,
        "created_by": key.created_by,
        "revoked_ms": None,
        "revoked_by": "",
        "last_used_ms": None,
        "note": key.note,
    }


def _record(row: Mapping[Any, Any]) -> KeyRecord:
    values = dict(row)
    clusters = values["clusters"]
    values |= {
        "role": Role(values["role"]),
        "teams": frozenset(json.loads(values["teams"])),
        "clusters": None if clusters is None else frozenset(json.loads(clusters)),
    }
    return KeyRecord(**values)


def _names(names: Collection[str]) -> str:
    return json.dumps(sorted(names), ensure_ascii=False)


def _tell(
    connection: Connection, at_ms: int, author: str, action: str, key_id: str, reason: str, detail: str = ""
) -> None:
    record(
        connection, at_ms=at_ms, author=author, action=action, subject=key_id, reason=reason, detail=detail
    )
