"""Bearer tokens of an OpenID Connect issuer, and the issuer's signing keys.

The algorithm must be asymmetric, and the one that the key is for; the key is one that the issuer publishes,
found by ``kid``. What a token says of keys by itself (``jku``, ``jwk``, ``x5u``, ``x5c``) is never used.

Keys are fetched, kept, and fetched again when there may be others. Not by PyJWKClient, which loses
test_while_the_issuer_is_down_its_keys_go_on_serving_for_a_day: expired keys are gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gpucost.access.authenticator import AccessDenied, CheckUnavailable, NotGranted
from gpucost.access.grants import GroupGrants, is_plain, known_groups
from gpucost.access.principal import AuthenticationMethod, Principal
from gpucost.access.token_claims import (
    OidcRules,
    check_claims,
    check_type,
    claim,
    open_token,
)

logger = logging.getLogger(__name__)

REFRESH_MS = 60_000
"""At most one attempt in this time, however many requests there are: a flood of made-up keys
costs no more."""
FRESH_MS = 3_600_000
"""After that keys are fetched again with the next token, so that one that the issuer withdrew is dropped."""
KEPT_MS = 24 * 3_600_000
"""How long keys are used while the issuer does not answer. That bridges an outage of a night; without a
limit, an attacker who blocks the way to the issuer could use a key that it has withdrawn."""
WAIT_S = 2.0
"""For the first keys of all, while another request fetches them."""

_MOST_KEYS = 100
_RSA_BITS = range(2048, 16_385)  # the more bits, the longer each check takes
# Algorithm -> the type of key, and its curve, that it is for. No symmetric one: the public key would be the
# password. And no ``none``.
ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}


class IssuerFetchError(Exception):
    """The issuer gave no usable answer. The text names no secret."""


KeyFetch = Callable[[], object]
"""Fetches a key set, parsed. Raises IssuerFetchError."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key. ``algorithm`` is the only one that it is for, empty if the issuer does not say."""

    kind: str
    curve: str | None
    algorithm: str
    key: Any

    def fits(self, algorithm: str) -> bool:
        return ALGORITHMS.get(algorithm) == (self.kind, self.curve) and self.algorithm in ("", algorithm)


@dataclass(frozen=True, slots=True)
class _Held:
    keys: Mapping[str, tuple[SigningKey, ...]]
    fetched_ms: int


class KeySet:
    """Threads may share one. At most one of them fetches, and only those without any key wait for it."""

    def __init__(self, fetch: KeyFetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._tried_ms: int | None = None
        self._failed = False

    def is_empty(self, now_ms: int) -> bool:
        """Whether a caller has to wait for the first keys."""
        return self._kept(now_ms) is None

    def find(self, kid: str, algorithm: str, now_ms: int) -> SigningKey:
        """Raises AccessDenied for a key that the issuer does not have, CheckUnavailable if that
        is unknown."""
        held = self._kept(now_ms)
        if held is None or kid not in held.keys or _age_ms(held.fetched_ms, now_ms) > FRESH_MS:
            self._refresh(now_ms, wait=held is None)
            held = self._kept(now_ms)
        if held is None:
            raise CheckUnavailable("the issuer's keys are not known")
        fitting = [key for key in held.keys.get(kid, ()) if key.fits(algorithm)]
        if fitting:
            return fitting[0]
        if kid not in held.keys and self._failed:
            raise CheckUnavailable("an unknown key, and the issuer does not answer")
        raise AccessDenied("no key of the issuer fits the token")

    def _kept(self, now_ms: int) -> _Held | None:
        held = self._held
        return held if held is not None and _age_ms(held.fetched_ms, now_ms) <= KEPT_MS else None

    def _refresh(self, now_ms: int, *, wait: bool) -> None:
        # With keys at hand a caller goes on with them; made-up keys must not block all threads.
        if not self._lock.acquire(timeout=WAIT_S if wait else 0):
            return
        try:
            if self._tried_ms is None or _age_ms(self._tried_ms, now_ms) >= REFRESH_MS:
                self._tried_ms = now_ms
                self._try(now_ms)
        finally:
            self._lock.release()

    def _try(self, now_ms: int) -> None:
        try:
            self._held = _Held(parse_keys(self._fetch()), now_ms)
        except IssuerFetchError as error:
            self._failed = True
            logger.warning("the issuer's keys cannot be fetched: %s", error)
        else:
            self._failed = False


def parse_keys(document: object) -> dict[str, tuple[SigningKey, ...]]:
    """Key id -> keys. One that cannot be used is left out. Raises IssuerFetchError where none is left."""
    listed = document.get("keys") if isinstance(document, dict) else None
    found: dict[str, tuple[SigningKey, ...]] = {}
    for each in listed[:_MOST_KEYS] if isinstance(listed, list) else ():
        kid = each.get("kid") if isinstance(each, dict) else None
        key = _signing_key(each) if isinstance(kid, str) else None
        if isinstance(kid, str) and key is not None:
            found[kid] = (*found.get(kid, ()), key)
    if not found:
        raise IssuerFetchError("the key set has no key for signatures that can be used")
    return found


def _signing_key(values: dict[str, Any]) -> SigningKey | None:
    kind, algorithm = values.get("kty"), values.get("alg") or ""
    curve = None if kind == "RSA" else values.get("crv")
    matching = [
        name for name, fits in ALGORITHMS.items() if fits == (kind, curve) and algorithm in ("", name)
    ]
    if not matching or not _is_for_signatures(values):
        return None
    try:
        # Only the numbers of a public key: a private one, should it be published, is not loaded.
        public: dict[str, Any] = {
            name: values[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in values
        }
        key = jwt.PyJWK(public, matching[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size not in _RSA_BITS:
        return None
    return SigningKey(str(kind), curve, algorithm, key)


def _is_for_signatures(values: Mapping[str, Any]) -> bool:
    operations = values.get("key_ops", ["verify"])
    return values.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _age_ms(since_ms: int, now_ms: int) -> int:
    """The absolute difference: a clock that was set back must not keep us from the issuer."""
    return abs(now_ms - since_ms)


_KUBERNETES = "system:"  # prefix of Kubernetes' own names; reserved for them, whatever an issuer writes
_MOST_KID = 256


class OidcTokens:
    """A ``TokenChecker``. Threads may share one."""

    def __init__(self, rules: OidcRules, grants: GroupGrants, fetch: KeyFetch) -> None:
        self._rules, self._grants, self._keys = rules, grants, KeySet(fetch)

    def must_ask(self, token: str, now_ms: int) -> bool | None:
        """Only without any key: with some, one attempt a minute is made for all requests."""
        opened = open_token(token)
        if opened is None or opened.claims.get("iss") != self._rules.issuer:
            return None
        return self._keys.is_empty(now_ms)

    def check(self, token: str, now_ms: int) -> Principal | None:
        """None for a token that does not name this issuer. Raises AccessDenied, and CheckUnavailable."""
        claims = self.claims(token, now_ms)
        if claims is None:
            return None
        name, groups = self.person(claims)
        principal = self._grants.principal(name, groups, AuthenticationMethod.OIDC)
        if principal is None:
            raise NotGranted(f"no grant fits {AuthenticationMethod.OIDC}:{name}")
        return principal

    def claims(self, token: str, now_ms: int) -> Mapping[str, Any] | None:
        """What the issuer says in a token that is valid now; None and errors as of ``check``."""
        opened = open_token(token)
        if opened is None or opened.claims.get("iss") != self._rules.issuer:
            return None
        check_type(opened.header)
        # Before any key is fetched: a token that could not be accepted anyway costs the issuer nothing.
        check_claims(opened.claims, self._rules, now_ms)
        self._check_signature(token, opened.header, now_ms)
        return opened.claims

    def person(self, claims: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """(name, groups) in the claims of a valid token. Raises AccessDenied."""
        name = claim(claims, self._rules.username_claim)
        # A name that is cut could be another person's; one with control characters would forge lines of the
        # log.
        if not isinstance(name, str) or not is_plain(name) or name.startswith(_KUBERNETES):
            raise AccessDenied(f"the claim {self._rules.username_claim} is no name")
        if self._rules.username_claim == "email" and claims.get("email_verified", True) is not True:
            raise AccessDenied("the e-mail address is not verified")
        groups = known_groups(claim(claims, self._rules.groups_claim))
        return name, tuple(group for group in groups if not group.startswith(_KUBERNETES))

    def close(self) -> None:
        """There is nothing to close."""

    def _check_signature(self, token: str, header: Mapping[str, Any], now_ms: int) -> None:
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise AccessDenied("the token's algorithm is not accepted")
        if not isinstance(kid, str) or not 0 < len(kid) <= _MOST_KID:
            raise AccessDenied("the token does not say which key signed it (kid)")
        key = self._keys.find(kid, algorithm, now_ms)
        try:
            jwt.PyJWS(algorithms=[algorithm]).decode_complete(token, key.key, [algorithm])
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            failure = type(error).__name__
        else:
            return
        raise AccessDenied(f"the token's signature: {failure}") from None
