"""Who asks: every route but /healthz depends on a Principal, and every ledger read takes its scope."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gpucost.api.errors import forbidden, unauthorized
from gpucost.api.services import Known
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.service.settings_api import ApiKey, Role

_PREFIX = "gpc"
_NO_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who may ask. ``id`` is the key's id; ``loopback`` when auth is off."""

    id: str
    role: Role
    scope: Scope


LOOPBACK = Principal("loopback", Role.ADMIN, EVERYTHING)


def hash_secret(secret: str) -> str:
    """SHA-256 in hex, as the settings store it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def format_key(key_id: str, secret: str) -> str:
    return f"{_PREFIX}_{key_id}_{secret}"


def authenticate(request: Request, known: Known) -> Principal:
    """The principal of a request; 401 in one shape for whatever is wrong with its key."""
    if known.settings.auth == "off":
        return LOOPBACK
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    prefix, _, rest = token.strip().partition("_")
    key_id, _, secret = rest.partition("_")
    key = next((key for key in known.settings.keys if key.id == key_id), None)
    # The comparison runs for an unknown id too, so that its time says nothing about which ids exist.
    matches = hmac.compare_digest(hash_secret(secret), key.sha256 if key else _NO_HASH)
    well_formed = scheme.lower() == "bearer" and prefix == _PREFIX
    if key is None or not (well_formed and matches) or _expired(key, known.now()):
        raise unauthorized()
    return Principal(key.id, key.role, _scope(key))


def _expired(key: ApiKey, now_ms: int) -> bool:
    return key.expires is not None and now_ms >= key.expires


def _scope(key: ApiKey) -> Scope:
    if key.role in (Role.FINANCE, Role.ADMIN):
        return EVERYTHING
    return Scope(key.teams)


def _require(*roles: Role, verb: str = "read") -> Callable[[Principal], Principal]:
    def check(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        if principal.role not in roles:
            raise forbidden(principal.role, verb)
        return principal

    return check


Reader = Annotated[Principal, Depends(_require(Role.VIEWER, Role.FINANCE, Role.ADMIN))]
Operator = Annotated[Principal, Depends(_require(Role.METRICS, Role.FINANCE, Role.ADMIN))]
Responder = Annotated[Principal, Depends(_require(Role.VIEWER, Role.ADMIN, verb="change"))]
"""Who may answer a finding: a team its own, an admin all of them. Finance reads everything and changes
nothing."""
Alerter = Annotated[Principal, Depends(_require(Role.ALERTS, Role.ADMIN, verb="send"))]
