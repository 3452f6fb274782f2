"""Bearer tokens of any kind to principals.

A token that begins with ``gpc_`` is an API key. Anything else goes to the token checkers in their order; the
first that recognizes the token decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpucost.access import keys
from gpucost.access.keys import KeyRecord
from gpucost.access.principal import Principal


class AccessDenied(Exception):
    """The token is not accepted. The text is for the log and is never sent to the caller."""


class NotGranted(AccessDenied):
    """The token is good, and its owner is known: but no grant of the settings fits. The caller may be sent
    this."""


class CheckUnavailable(Exception):
    """The token cannot be checked now: its issuer does not answer, or has too many requests. Worth trying
    again."""


class KeyStore(Protocol):
    """Where keys are kept."""

    def find(self, key_id: str, *, anew: bool = False) -> KeyRecord | None:
        """The key of this id, valid or not; ``anew``: keys that were just made count as well."""

    def used(self, key_id: str, now_ms: int) -> None:
        """Record that a valid key was used. Cheap, and never in the way: once a minute is enough."""


class TokenChecker(Protocol):
    """OIDC, or Kubernetes."""

    def must_ask(self, token: str, now_ms: int) -> bool | None:
        """Whether ``check`` would wait for another machine now; None for a token of another issuer. It is
        quick."""

    def check(self, token: str, now_ms: int) -> Principal | None:
        """None for a token of another issuer. Raises AccessDenied, and CheckUnavailable."""

    def close(self) -> None:
        """Release connections. It is not called again."""


class Authenticator:
    """Threads may share one."""

    def __init__(
        self, stores: Sequence[KeyStore], checkers: Sequence[TokenChecker], now: Callable[[], int]
    ) -> None:
        self._stores = tuple(stores)
        self._checkers = tuple(checkers)
        self._now = now

    def authenticate(self, token: str) -> Principal:
        """Raises AccessDenied for a token that is malformed, unknown, expired or revoked, NotGranted for one
        whose owner is granted nothing, and CheckUnavailable."""
        if token.startswith(keys.PREFIX):
            return self.key(token).principal
        now_ms = self._now()
        for checker in self._checkers:
            principal = checker.check(token, now_ms)
            if principal is not None:
                return principal
        raise AccessDenied("no issuer knows this token")

    def must_ask(self, token: str) -> bool:
        """Whether ``authenticate`` would wait for an issuer or the API server now: never for an API key, nor
        for a token whose answer is kept. Quick, and never waits."""
        if token.startswith(keys.PREFIX):
            return False
        now_ms = self._now()
        for checker in self._checkers:
            asks = checker.must_ask(token, now_ms)
            if asks is not None:
                return asks
        return False

    def close(self) -> None:
        """Release the connections of the checkers."""
        for checker in self._checkers:
            checker.close()

    def key(self, token: str) -> KeyRecord:
        """The key that ``token`` is, and only that. Raises AccessDenied, and CheckUnavailable."""
        if not token.startswith(keys.PREFIX):
            raise AccessDenied("it is no API key")
        key_id, secret = keys.parse_key(token)
        now_ms = self._now()
        store, record = self._found(key_id, secret, anew=False)
        if record is None:
            # Also for a wrong secret: if only unknown ids were looked for again, the time would reveal which
            # exist.
            store, record = self._found(key_id, secret, anew=True)
        if store is None or record is None:
            raise AccessDenied("no such key")
        if not record.is_valid(now_ms):
            raise AccessDenied(f"the key {record.id} has expired or was revoked")
        store.used(record.id, now_ms)
        return record

    def valid_key(self, key_id: str) -> KeyRecord | None:
        """The key of this id as it is now, in the first store that has one; None for one that is not accepted
        any more. Raises CheckUnavailable."""
        # Looked for anew at last: another process may just have made it.
        tries = (store.find(key_id, anew=anew) for anew in (False, True) for store in self._stores)
        found = next(filter(None, tries), None)
        return found if found is not None and found.is_valid(self._now()) else None

    def _found(
        self, key_id: str, secret: str, *, anew: bool
    ) -> tuple[KeyStore, KeyRecord] | tuple[None, None]:
        """The key of this id and secret, and its store. With ``anew`` all stores are read again."""
        found = ((store, store.find(key_id, anew=anew)) for store in self._stores)
        every = list(found) if anew else found
        store, record = next((each for each in every if each[1] is not None), (None, None))
        if not keys.matches(secret, record) or store is None or record is None:
            return None, None
        return store, record


class FixedKeys:
    """Keys of the settings."""

    def __init__(self, records: Sequence[KeyRecord]) -> None:
        self._records = {record.id: record for record in records}

    def find(self, key_id: str, *, anew: bool = False) -> KeyRecord | None:
        del anew
        return self._records.get(key_id)

    def used(self, key_id: str, now_ms: int) -> None:
        """The settings record no use of keys."""
