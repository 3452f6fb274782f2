"""Login sessions of people in a browser. Pure: where they are kept comes in as a ``SessionStore``.

A session is a random token in a cookie; only its SHA-256 is stored, with who logged in and how. What its
owner may do is not stored: it is worked out anew at every request, of a key by the key as it is now, of a
person of the issuer by the grants as they are now, over the name and the groups of the login. A key that was
revoked, has expired or was replaced ends its sessions, and so does another issuer in the settings.

Begin with ``SessionAuthority``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpucost.access.authenticator import AccessDenied, Authenticator, CheckUnavailable, NotGranted
from gpucost.access.grants import GroupGrants
from gpucost.access.keys import KeyRecord
from gpucost.access.principal import AuthenticationMethod, Principal
from gpucost.domain.errors import LedgerError, shorten

_TOKEN_BYTES = 32
_ID_BYTES = 8
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}\Z")
_CSRF = b"gpucost csrf token of a session, version 1"
_LOGIN = b"gpucost login that a session began with, version 1\0"


@dataclass(frozen=True, slots=True)
class LoginProof:
    """Who proved what they are, and how.

    ``subject`` is a key's id, or the name that the issuer gives; ``credential`` the SHA-256 of the key's
    secret, or the issuer: the session ends when that is no longer the one. ``groups`` are of the issuer.
    ``state`` is of this one login and is accepted once; ``ends_ms`` is when the credential itself ends, None
    for never.
    """

    method: AuthenticationMethod
    subject: str
    credential: str
    state: str
    groups: tuple[str, ...] = ()
    ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as it is stored: never its token. Times are ms UTC; ``id`` is no secret, and stands in logs
    and in the audit trail. ``login_sha256`` is of the login that it began with."""

    id: str
    sha256: str
    method: AuthenticationMethod
    subject: str
    credential: str
    groups: tuple[str, ...]
    created_ms: int
    expires_ms: int
    login_sha256: str
    revoked_ms: int | None = None
    revoked_by: str = ""

    def is_valid(self, now_ms: int) -> bool:
        return self.revoked_ms is None and now_ms < self.expires_ms

    @property
    def owner(self) -> str:
        """The id of the principal whose session it is, as in ``Principal.id``."""
        is_key = self.method is AuthenticationMethod.KEY
        return self.subject if is_key else f"{self.method}:{self.subject}"


class SessionStore(Protocol):
    """Where sessions are kept, so that every process that answers knows of them. Raises LedgerError."""

    def begin_session(self, session: SessionRecord, instead_of: str = "") -> bool:
        """Store a new session, and end the one whose SHA-256 is ``instead_of``. False, and nothing is stored,
        for a login that a session has begun with before."""

    def session(self, sha256: str) -> SessionRecord | None:
        """The session of this SHA-256, valid or not, as it is now."""

    def end_session(self, session_id: str, author: str, reason: str = "") -> SessionRecord | None:
        """End it for good; None for an id that no session has."""


class SessionAuthority:
    """Begins sessions, and says whose they are. Threads may share one.

    ``issuer`` is the one whose people may log in, empty for none; a session lasts ``lasts_ms`` at most.
    """

    def __init__(
        self,
        store: SessionStore,
        authenticator: Authenticator,
        grants: GroupGrants,
        issuer: str,
        lasts_ms: int,
        now: Callable[[], int],
    ) -> None:
        self._store, self._authenticator, self._grants = store, authenticator, grants
        self._issuer, self._lasts_ms, self._now = issuer, lasts_ms, now

    def authenticate(self, token: str) -> tuple[SessionRecord, Principal]:
        """Reads the store for every request, so that a session that ended anywhere has ended here. Raises
        AccessDenied for a token of no valid session, NotGranted, and CheckUnavailable."""
        record = self._read(token)
        if record is None or not record.is_valid(self._now()):
            raise AccessDenied("no such session, or one that has ended")
        return record, self.principal(record)

    def by_key(self, token: str) -> LoginProof:
        """The proof that an API key gives. Raises AccessDenied, and CheckUnavailable."""
        key = self._authenticator.key(token)
        return LoginProof(
            AuthenticationMethod.KEY, key.id, key.sha256, secrets.token_urlsafe(), ends_ms=key.expires_ms
        )

    def principal(self, of: LoginProof | SessionRecord) -> Principal:
        """The owner, with the rights that it has now. Raises as ``authenticate`` does."""
        if of.method is AuthenticationMethod.KEY:
            return self._current_key(of).principal
        if of.method is not AuthenticationMethod.OIDC or of.credential != self._issuer:
            raise AccessDenied("a session of an issuer that the settings do not name")
        found = self._grants.principal(of.subject, of.groups, of.method)
        if found is None:
            raise NotGranted(f"no grant fits {of.method}:{of.subject}")
        return found

    def begin(self, proof: LoginProof, old_token: str = "") -> tuple[str, SessionRecord]:
        """A new session: always under a new token, which is told once. The session of ``old_token`` ends.
        Raises AccessDenied for a login that was used before, and CheckUnavailable."""
        token, now_ms = secrets.token_urlsafe(_TOKEN_BYTES), self._now()
        ends_ms = now_ms + self._lasts_ms
        record = SessionRecord(
            secrets.token_hex(_ID_BYTES),
            hash_token(token),
            proof.method,
            proof.subject,
            proof.credential,
            proof.groups,
            now_ms,
            ends_ms if proof.ends_ms is None else min(ends_ms, proof.ends_ms),
            hash_login(proof.state),
        )
        try:
            is_new = self._store.begin_session(record, hash_token(old_token) if old_token else "")
        except LedgerError as error:
            raise _unreadable(error) from None
        if not is_new:
            raise AccessDenied("a session has begun with this login before")
        return token, record

    def end(self, token: str) -> None:
        """Log out, whatever its owner may still do; nothing for a token of no session. Raises LedgerError."""
        record = self._store.session(hash_token(token))
        if record is not None:
            self._store.end_session(record.id, record.owner, "logged out")

    def _read(self, token: str) -> SessionRecord | None:
        if not _TOKEN.match(token):
            return None  # none that was ever given: the store is not asked
        try:
            return self._store.session(hash_token(token))
        except LedgerError as error:
            raise _unreadable(error) from None

    def _current_key(self, of: LoginProof | SessionRecord) -> KeyRecord:
        key = self._authenticator.valid_key(of.subject)
        if key is None or not hmac.compare_digest(key.sha256, of.credential):
            raise AccessDenied(f"a session of the key {of.subject}, which has ended")
        return key


def csrf_token(token: str) -> str:
    """What a change by the session of this token must carry: derived, so that nothing more is kept, and of no
    use as a session."""
    return hmac.digest(token.encode(), _CSRF, "sha256").hex()


def hash_token(token: str) -> str:
    """SHA-256 in hex, as it is stored: 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def hash_login(state: str) -> str:
    """The mark of one login, by which it is accepted once."""
    return hashlib.sha256(_LOGIN + state.encode("utf-8", "surrogatepass")).hexdigest()


def _unreadable(error: LedgerError) -> CheckUnavailable:
    return CheckUnavailable(f"the ledger, which holds the sessions: {shorten(str(error), 500)}")
