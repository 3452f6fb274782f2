"""A bearer token -> a principal, whatever kind of token it is.

What begins with ``gpc_`` is an API key. Anything else is asked of the token checkers in their order; the
first that knows the token decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpucost.access import keys
from gpucost.access.keys import KeyRecord
from gpucost.access.principal import Principal


class AccessDenied(Exception):
    """The token is not accepted. The text is for the log; whoever asks is never told why."""


class NotGranted(AccessDenied):
    """The token is good, and its owner is known: but no grant of the settings fits. Who asks may be told."""


class CheckUnavailable(Exception):
    """Whether the token is good cannot be said now: its issuer does not answer, or is asked too much. Worth
    trying again."""


class KeyStore(Protocol):
    """Where keys are kept."""

    def find(self, key_id: str, *, anew: bool = False) -> KeyRecord | None:
        """The key of this id, valid or not; ``anew``: keys that were just made count as well."""

    def used(self, key_id: str, now_ms: int) -> None:
        """Notes that a valid key was used. Cheap, and never in the way: it may note one use a minute."""


class TokenChecker(Protocol):
    """OIDC, or Kubernetes."""

    def must_ask(self, token: str, now_ms: int) -> bool | None:
        """Whether ``check`` would wait for another machine now; None for a token of somebody else's. It is
        quick."""

    def check(self, token: str, now_ms: int) -> Principal | None:
        """None for a token of somebody else's. Raises Denied, and CheckUnavailable."""

    def close(self) -> None:
        """Gives back what it holds open. It is not asked again."""


class Authenticator:
    """Threads may share one."""

    def __init__(
        self, stores: Sequence[KeyStore], checkers: Sequence[TokenChecker], now: Callable[[], int]
    ) -> None:
        self._stores = tuple(stores)
        self._checkers = tuple(checkers)
        self._now = now

    def authenticate(self, token: str) -> Principal:
        """Raises Denied for a token that is malformed, unknown, expired or revoked, NotGranted for one whose
        owner is granted nothing, and CheckUnavailable."""
        if token.startswith(keys.PREFIX):
            return self._key(token)
        now_ms = self._now()
        for checker in self._checkers:
            principal = checker.check(token, now_ms)
            if principal is not None:
                return principal
        raise AccessDenied("no issuer knows this token")

    def must_ask(self, token: str) -> bool:
        """Whether ``authenticate`` would wait for an issuer or the API server now: never for an API key, nor
        for a token whose answer is kept. Quick, and waits for nobody."""
        if token.startswith(keys.PREFIX):
            return False
        now_ms = self._now()
        for checker in self._checkers:
            asks = checker.must_ask(token, now_ms)
            if asks is not None:
                return asks
        return False

    def close(self) -> None:
        """Gives back what the checkers hold open."""
        for checker in self._checkers:
            checker.close()

    def _key(self, token: str) -> Principal:
        key_id, secret = keys.parse_key(token)
        now_ms = self._now()
        store, record = self._found(key_id, secret, anew=False)
        if record is None:
            # A wrong secret as well: if only ids that nobody has were looked for again, the time would tell.
            store, record = self._found(key_id, secret, anew=True)
        if store is None or record is None:
            raise AccessDenied("no such key")
        if not record.is_valid(now_ms):
            raise AccessDenied(f"the key {record.id} has expired or was revoked")
        store.used(record.id, now_ms)
        return record.principal

    def _found(
        self, key_id: str, secret: str, *, anew: bool
    ) -> tuple[KeyStore, KeyRecord] | tuple[None, None]:
        """The key of this id and secret, and where it is kept. What is asked anew is asked of all stores."""
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
        """Nobody asks the settings when a key was used."""
