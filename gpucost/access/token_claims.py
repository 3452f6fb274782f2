"""JSON Web Tokens parsed, and which of their claims are valid before and after the signature is checked."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucost.access.authenticator import AccessDenied

MOST_TOKEN_BYTES = 16_384
"""A token with 200 groups has about 12,000; a larger one is not even parsed."""
LEEWAY_MS = 60_000
"""By how much the clocks of the issuer and of this machine may differ."""
_TYPES = ("jwt", "at+jwt", "application/at+jwt")


@dataclass(frozen=True, slots=True)
class OidcRules:
    """The requirements for a token, and the claims that name the person and the groups."""

    issuer: str
    audience: str
    username_claim: str = "sub"
    groups_claim: str = "groups"


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """A token that looks like a JWT: nothing in it is verified yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]


def open_token(token: str) -> UnverifiedToken | None:
    """None for anything but a JWT, or one that is too large."""
    parts = token.split(".")
    if len(token) > MOST_TOKEN_BYTES or len(parts) != 3:
        return None
    header, claims = _object(parts[0]), _object(parts[1])
    return None if header is None or claims is None else UnverifiedToken(header, claims)


def check_type(header: Mapping[str, Any]) -> None:
    """Raises AccessDenied for tokens that an issuer signs with the same keys for another purpose, such as a
    logout."""
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise AccessDenied("the token is of another type")


def check_claims(claims: Mapping[str, Any], rules: OidcRules, now_ms: int) -> None:
    """``iss``, ``aud``, ``exp``, ``nbf``, ``iat``, by the clock that is passed in. Raises AccessDenied."""
    if claims.get("iss") != rules.issuer:
        raise AccessDenied("the token is of another issuer")
    named = claims.get("aud")
    if rules.audience not in (named if isinstance(named, list) else [named]):
        raise AccessDenied("the token is for another audience")
    ends_ms = _instant(claims, "exp")
    if ends_ms is None:
        raise AccessDenied("the token has no end")
    if now_ms >= ends_ms + LEEWAY_MS:
        raise AccessDenied("the token has expired")
    for name in ("nbf", "iat"):
        begins_ms = _instant(claims, name)
        if begins_ms is not None and begins_ms > now_ms + LEEWAY_MS:
            raise AccessDenied(f"the token is of the future ({name})")


def claim(claims: Mapping[str, Any], path: str) -> object:
    """A claim by its name; where there is none of that name, by the path that its dots describe. None if
    missing.

    The name itself comes first: claims such as ``https://example.com/groups`` have dots in it.
    """
    if path in claims:
        return claims[path]
    found: object = claims
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _instant(claims: Mapping[str, Any], name: str) -> int | None:
    """Milliseconds; None where it is missing. Raises AccessDenied for anything but a number of seconds."""
    value = claims.get(name)
    if value is None:
        return None
    # Larger numbers are no dates, and a float that large has no milliseconds left.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise AccessDenied(f"the token's {name} is no time")
    return math.floor(value * 1000)


def _object(part: str) -> dict[str, Any] | None:
    try:
        padded = part.encode("ascii") + b"=" * (-len(part) % 4)
        found = json.loads(base64.b64decode(padded, b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return found if isinstance(found, dict) else None
