"""API keys: the ledger's records of them, and the store that authenticates by them.

The functions expect the caller to hold the transaction; ``KeyRing`` is the part of the ledger's facade. Issue
and revocation are in the audit trail. ``LedgerKeys`` caches the keys for requests.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sqlalchemy import Connection, func, insert, or_, select, update

from gpucost.access.authenticator import CheckUnavailable
from gpucost.access.keys import KEY_ID, RESERVED, KeyRecord
from gpucost.access.principal import AccessRole
from gpucost.domain.errors import InputError, LedgerError, shorten
from gpucost.domain.time import MINUTE_MS, SECOND_MS, iso
from gpucost.ledger.db.audit_trail import ISSUE, REVOCATION, grants
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.store_tables import API_KEY
from gpucost.ledger.db.stored_values import check_int64, check_text
from gpucost.ledger.usage.writer import record

LONGEST_NOTE = 1_000
MOST_NAMES = 1_000
"""Limit for the teams of a key, and for its clusters."""
MOST_VALID = 1_000
"""Limit for the keys of one maker that are not revoked."""
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


def all_keys(connection: Connection) -> tuple[KeyRecord, ...]:
    """All keys, newest first."""
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


def mark_used(connection: Connection, uses: Mapping[str, int]) -> None:
    """Id -> instant. An instant earlier than the stored one changes nothing."""
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
    for key_field, names in (("teams", key.teams), ("clusters", key.clusters or ())):
        if len(names) > MOST_NAMES:
            raise InputError(key_field, f"{len(names)} names", f"at most {MOST_NAMES}")
        for name in names:
            check_text(key_field, name, empty=False)
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
        "role": AccessRole(values["role"]),
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


logger = logging.getLogger(__name__)

BELIEVED_MS = 5 * SECOND_MS
"""How long cached keys are used: a revocation by another process takes effect within it."""
_NEXT_LOOK_MS = SECOND_MS
_KEYS = "(keys)"
KEY_USES = "gpucost-key-uses"
"""The name of the thread that records when keys were used."""


class KeyRing:
    """A part of ``Ledger``."""

    _database: LedgerDatabase
    _now: Callable[[], int]
    key_changes: int = 0
    """Grows with every key that this object adds or revokes."""

    def add_key(self, key: KeyRecord) -> None:
        """Store a new key, made by ``created_by`` at ``created_ms``, and record it in the audit trail. Raises
        InputError for an id that any key has or had, and for values that cannot be stored."""
        with self._database.write(_KEYS) as connection:
            add(connection, key)
        self.key_changes += 1

    def key(self, key_id: str) -> KeyRecord | None:
        with self._database.read() as connection:
            return get(connection, key_id)

    def api_keys(self) -> tuple[KeyRecord, ...]:
        """All keys, revoked ones too, newest first."""
        with self._database.read() as connection:
            return all_keys(connection)

    def unrevoked_keys(self) -> tuple[KeyRecord, ...]:
        with self._database.read() as connection:
            return unrevoked(connection)

    def valid_keys_of(self, maker: str, now_ms: int) -> tuple[KeyRecord, ...]:
        """The keys that were made in the name of ``maker`` and are still accepted, newest first."""
        return tuple(key for key in self.api_keys() if key.created_by == maker and key.is_valid(now_ms))

    def revoke_key(self, key_id: str, author: str, reason: str = "") -> KeyRecord:
        """Revoke a key for good, and record it in the audit trail. A revoked one stays as it is. Raises
        InputError for an id that no key has."""
        with self._database.write(_KEYS) as connection:
            found = revoke(connection, key_id, author, reason, self._now())
        self.key_changes += 1
        return found

    def keys_used(self, uses: Mapping[str, int]) -> None:
        """Record when keys were used last: id -> ms UTC."""
        with self._database.write(_KEYS) as connection:
            mark_used(connection, uses)


class KeyStorage(Protocol):
    """What the store needs of the ledger."""

    @property
    def key_changes(self) -> int: ...

    def unrevoked_keys(self) -> tuple[KeyRecord, ...]: ...

    def keys_used(self, uses: Mapping[str, int]) -> None: ...


@dataclass(frozen=True)
class _KeyLookup:
    """The keys that were read at ``at_ms``, None before the first read. ``tried_ms`` is the last attempt to
    read them; ``changes`` and ``tried_changes`` are ``key_changes`` at either time."""

    records: Mapping[str, KeyRecord] = field(default_factory=dict)
    at_ms: int | None = None
    changes: int = -1
    tried_ms: int | None = None
    tried_changes: int = -1


class LedgerKeys:
    """A KeyStore over a ledger. Threads may share one.

    All keys are read at once, at most once a second however many unknown ids are tried, and cached for five
    seconds. What this process adds or revokes takes effect at once. If the ledger cannot be read after that
    time, a key may have been revoked, so none is accepted: CheckUnavailable.
    """

    def __init__(self, ledger: KeyStorage, now: Callable[[], int]) -> None:
        self._ledger = ledger
        self._now = now
        self._reading = threading.Lock()
        self._look = _KeyLookup()
        self._noting = threading.Lock()
        self._noted: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._writer: threading.Thread | None = None

    def find(self, key_id: str, *, anew: bool = False) -> KeyRecord | None:
        """The key; None for an id that no key has, and for one that was revoked. ``anew``: read the ledger
        again, as another process may just have made it. Raises CheckUnavailable."""
        return self._current(_NEXT_LOOK_MS if anew else BELIEVED_MS).get(key_id)

    def used(self, key_id: str, now_ms: int) -> None:
        """Records one use a minute, in a thread of its own: the request does not wait for it, and it may
        fail."""
        with self._noting:
            if self._noted.get(key_id, -MINUTE_MS) > now_ms - MINUTE_MS:
                return
            self._noted[key_id] = self._uses[key_id] = now_ms
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name=KEY_USES, daemon=True)
                self._writer.start()

    def settle(self) -> None:
        """Waits until the recorded uses are written."""
        writer = self._writer
        if writer is not None:
            writer.join()

    def _current(self, believed_ms: int) -> Mapping[str, KeyRecord]:
        with self._reading:
            now_ms, changes = self._now(), self._ledger.key_changes
            if not self._is_good(believed_ms, now_ms, changes):
                look = self._look
                if look.tried_changes != changes or _is_over(look.tried_ms, _NEXT_LOOK_MS, now_ms):
                    self._look = self._read(look, now_ms, changes)
                if not self._is_good(BELIEVED_MS, now_ms, changes):
                    raise CheckUnavailable("the ledger, which holds the keys, cannot be read now")
            return self._look.records

    def _is_good(self, believed_ms: int, now_ms: int, changes: int) -> bool:
        return self._look.changes == changes and not _is_over(self._look.at_ms, believed_ms, now_ms)

    def _read(self, look: _KeyLookup, now_ms: int, changes: int) -> _KeyLookup:
        try:
            records = {record.id: record for record in self._ledger.unrevoked_keys()}
        except LedgerError as error:
            logger.warning("cannot read the keys: %s", shorten(str(error), 500))
            return replace(look, tried_ms=now_ms, tried_changes=changes)
        return _KeyLookup(records, now_ms, changes, now_ms, changes)

    def _write(self) -> None:
        while True:
            with self._noting:
                uses, self._uses = self._uses, {}
                if not uses:
                    self._writer = None
                    return
            try:
                self._ledger.keys_used(uses)
            except Exception as error:
                logger.info("when keys were used could not be noted: %s", shorten(str(error), 500))


def _is_over(since_ms: int | None, length_ms: int, now_ms: int) -> bool:
    """Whether the cache has expired; also when the clock was set back."""
    return since_ms is None or abs(now_ms - since_ms) >= length_ms
