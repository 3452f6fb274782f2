"""What the ledger keeps of API keys, and the store that authenticates by them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpucost.access.authenticator import CheckUnavailable
from gpucost.access.keys import KeyRecord
from gpucost.domain.errors import LedgerError, shorten
from gpucost.domain.time import MINUTE_MS, SECOND_MS
from gpucost.ledger import keys
from gpucost.ledger.database import Database

logger = logging.getLogger(__name__)

BELIEVED_MS = 5 * SECOND_MS
"""How long keys that were read are believed: a revocation by another process bites within it."""
_NEXT_LOOK_MS = SECOND_MS
_KEYS = "(keys)"
KEY_USES = "gpucost-key-uses"
"""The name of the thread that notes when keys were used."""


class KeyRing:
    """A part of ``Ledger``."""

    _database: Database
    _now: Callable[[], int]
    key_changes: int = 0
    """Grows with every key that this object adds or revokes."""

    def add_key(self, key: KeyRecord) -> None:
        """Keep a new key, made by ``created_by`` at ``created_ms``; the audit trail says so. Raises
        InputError for an id that any key has or had, and for what cannot be kept."""
        with self._database.write(_KEYS) as connection:
            keys.add(connection, key)
        self.key_changes += 1

    def key(self, key_id: str) -> KeyRecord | None:
        with self._database.read() as connection:
            return keys.get(connection, key_id)

    def api_keys(self) -> tuple[KeyRecord, ...]:
        """All of them, revoked ones too, newest first."""
        with self._database.read() as connection:
            return keys.every(connection)

    def unrevoked_keys(self) -> tuple[KeyRecord, ...]:
        with self._database.read() as connection:
            return keys.unrevoked(connection)

    def valid_keys_of(self, maker: str, now_ms: int) -> tuple[KeyRecord, ...]:
        """Those that were made in the name of ``maker`` and are still accepted, newest first."""
        return tuple(key for key in self.api_keys() if key.created_by == maker and key.is_valid(now_ms))

    def revoke_key(self, key_id: str, author: str, reason: str = "") -> KeyRecord:
        """Refuse a key from now on, for good; the audit trail says so. A revoked one stays as it is. Raises
        InputError for an id that no key has."""
        with self._database.write(_KEYS) as connection:
            found = keys.revoke(connection, key_id, author, reason, self._now())
        self.key_changes += 1
        return found

    def keys_used(self, uses: Mapping[str, int]) -> None:
        """Note when keys were used last: id -> ms UTC."""
        with self._database.write(_KEYS) as connection:
            keys.used(connection, uses)


class Keys(Protocol):
    """What the store needs of the ledger."""

    @property
    def key_changes(self) -> int: ...

    def unrevoked_keys(self) -> tuple[KeyRecord, ...]: ...

    def keys_used(self, uses: Mapping[str, int]) -> None: ...


@dataclass(frozen=True)
class _Look:
    """What was read at ``at_ms``, None while nothing was. ``tried_ms`` is when reading it was tried last;
    ``changes`` and ``tried_changes`` are ``key_changes`` at either time."""

    records: Mapping[str, KeyRecord] = field(default_factory=dict)
    at_ms: int | None = None
    changes: int = -1
    tried_ms: int | None = None
    tried_changes: int = -1


class LedgerKeys:
    """A KeyStore over a ledger. Threads may share one.

    All keys are read at once, at most once a second however many unknown ids are tried, and believed for
    five seconds. What this process adds or revokes bites at once. After that time a ledger that cannot be
    read leaves open whether a key was revoked, so none is accepted then: CheckUnavailable.
    """

    def __init__(self, ledger: Keys, now: Callable[[], int]) -> None:
        self._ledger = ledger
        self._now = now
        self._reading = threading.Lock()
        self._look = _Look()
        self._noting = threading.Lock()
        self._noted: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._writer: threading.Thread | None = None

    def find(self, key_id: str, *, anew: bool = False) -> KeyRecord | None:
        """None for an id that no key has, and for one that was revoked. ``anew``: another process may just
        have made it. Raises CheckUnavailable."""
        return self._current(_NEXT_LOOK_MS if anew else BELIEVED_MS).get(key_id)

    def used(self, key_id: str, now_ms: int) -> None:
        """Notes one use a minute, in a thread of its own: nobody waits for it, and it may fail."""
        with self._noting:
            if self._noted.get(key_id, -MINUTE_MS) > now_ms - MINUTE_MS:
                return
            self._noted[key_id] = self._uses[key_id] = now_ms
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name=KEY_USES, daemon=True)
                self._writer.start()

    def settle(self) -> None:
        """Waits until what was noted is written."""
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

    def _read(self, look: _Look, now_ms: int, changes: int) -> _Look:
        try:
            records = {record.id: record for record in self._ledger.unrevoked_keys()}
        except LedgerError as error:
            logger.warning("cannot read the keys: %s", shorten(str(error), 500))
            return replace(look, tried_ms=now_ms, tried_changes=changes)
        return _Look(records, now_ms, changes, now_ms, changes)

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
    """A clock that was set back makes it over too."""
    return since_ms is None or abs(now_ms - since_ms) >= length_ms
