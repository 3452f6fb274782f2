"""API keys: ``gpc_<id>_<secret>``. A random secret of 256 bits needs no slow hash, so SHA-256 is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from gpucost.access.principal import LOOPBACK, AccessRole, Principal, scope_of

PREFIX = "gpc_"
KEY_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
RESERVED = frozenset({LOOPBACK.id, "gpucost"})
"""Ids of no key: in the audit trail they are the caller with ``auth: off``, and the service itself."""
_NO_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is stored: never its secret. Times are ms UTC.

    ``teams`` are of roles that are bound to teams; ``clusters`` None is every cluster. From ``expires_ms``
    on, and once it is revoked, it is refused. ``last_used_ms`` is exact to a minute or so.
    """

    id: str
    sha256: str
    role: AccessRole
    teams: frozenset[str] = frozenset()
    clusters: frozenset[str] | None = None
    expires_ms: int | None = None
    created_ms: int | None = None
    created_by: str = ""
    revoked_ms: int | None = None
    revoked_by: str = ""
    last_used_ms: int | None = None
    note: str = ""

    def is_valid(self, now_ms: int) -> bool:
        return self.revoked_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)

    @property
    def principal(self) -> Principal:
        return Principal(self.id, self.role, scope_of(self.role, self.teams, self.clusters))


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """SHA-256 in hex, as it is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def format_key(key_id: str, secret: str) -> str:
    return f"{PREFIX}{key_id}_{secret}"


def parse_key(token: str) -> tuple[str, str]:
    """(id, secret) of what begins with ``gpc_``; empty where there is none."""
    key_id, _, secret = token.removeprefix(PREFIX).partition("_")
    return key_id, secret


def matches(secret: str, record: KeyRecord | None) -> bool:
    """The comparison runs for an unknown id too, so that its time does not reveal which ids exist."""
    same = hmac.compare_digest(hash_secret(secret), record.sha256 if record else _NO_HASH)
    return same and record is not None
