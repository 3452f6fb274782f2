"""Bearer tokens of an OpenID Connect issuer.

The algorithm must be asymmetric, and the one that the key is for; the key is one that the issuer publishes,
found by ``kid``. What a token says of keys by itself (``jku``, ``jwk``, ``x5u``, ``x5c``) is never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt

from gpucost.access.authenticator import Denied, NotGranted
from gpucost.access.grants import Grants, is_plain, known_groups
from gpucost.access.jwks import ALGORITHMS, Fetch, KeySet
from gpucost.access.principal import Method, Principal
from gpucost.access.tokens import OidcRules, check_claims, check_type, claim, open_token

_KUBERNETES = "system:"  # as Kubernetes calls its own; nobody else's, whatever an issuer writes
_MOST_KID = 256


class OidcTokens:
    """A ``TokenChecker``. Threads may share one."""

    def __init__(self, rules: OidcRules, grants: Grants, fetch: Fetch) -> None:
        self._rules, self._grants, self._keys = rules, grants, KeySet(fetch)

    def must_ask(self, token: str, now_ms: int) -> bool | None:
        """Only without any key: with some, one attempt a minute is made, whoever asks."""
        opened = open_token(token)
        if opened is None or opened.claims.get("iss") != self._rules.issuer:
            return None
        return self._keys.is_empty(now_ms)

    def check(self, token: str, now_ms: int) -> Principal | None:
        """None for what does not say that it is of this issuer. Raises Denied, and CheckUnavailable."""
        opened = open_token(token)
        if opened is None or opened.claims.get("iss") != self._rules.issuer:
            return None
        check_type(opened.header)
        # Before any key is fetched: a token that could not be accepted anyway costs the issuer nothing.
        check_claims(opened.claims, self._rules, now_ms)
        self._check_signature(token, opened.header, now_ms)
        return self._principal(opened.claims)

    def close(self) -> None:
        """Nothing is held open."""

    def _check_signature(self, token: str, header: Mapping[str, Any], now_ms: int) -> None:
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise Denied("the token's algorithm is not accepted")
        if not isinstance(kid, str) or not 0 < len(kid) <= _MOST_KID:
            raise Denied("the token does not say which key signed it (kid)")
        key = self._keys.find(kid, algorithm, now_ms)
        try:
            jwt.PyJWS(algorithms=[algorithm]).decode_complete(token, key.key, [algorithm])
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            failure = type(error).__name__
        else:
            return
        raise Denied(f"the token's signature: {failure}") from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        name = claim(claims, self._rules.username_claim)
        # One that is cut could be somebody else's; one with control characters would forge lines of the log.
        if not isinstance(name, str) or not is_plain(name) or name.startswith(_KUBERNETES):
            raise Denied(f"the claim {self._rules.username_claim} is no name")
        if self._rules.username_claim == "email" and claims.get("email_verified", True) is not True:
            raise Denied("the e-mail address is not verified")
        groups = known_groups(claim(claims, self._rules.groups_claim))
        outside = [group for group in groups if not group.startswith(_KUBERNETES)]
        principal = self._grants.principal(name, outside, Method.OIDC)
        if principal is None:
            raise NotGranted(f"no grant fits {Method.OIDC}:{name}")
        return principal
