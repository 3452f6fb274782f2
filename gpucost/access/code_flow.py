"""Logging people in at an issuer: OpenID Connect's authorization code with PKCE, state and nonce. Pure.

What must come back with the browser is in a cookie of its own (``LoginAttempt``): whoever did not begin the
login has no such cookie, so that nobody can be logged in as somebody else by a link, and nothing is stored
for callers who are not known yet. The code alone is worth nothing: it is exchanged with the verifier that
only the cookie has, and the ID token must carry the nonce that only the cookie has.

Begin with ``IssuerLogin``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlencode

from gpucost.access.authenticator import AccessDenied, CheckUnavailable
from gpucost.access.principal import AuthenticationMethod
from gpucost.access.sessions import LoginProof, SessionAuthority

if TYPE_CHECKING:
    from gpucost.access.oidc_tokens import OidcTokens

ATTEMPT_MS = 600_000
"""How long a person has at the issuer: a password and a second factor, and not a tab of yesterday."""
LONGEST_PATH = 2_000
_SKEW_MS = 60_000  # another process may have begun it, whose clock differs
_RANDOM = re.compile(r"[A-Za-z0-9_-]{43}")
_ERROR = re.compile(r"[a-z_]{1,40}")
_LONGEST_CODE = 4_096
_LONGEST_COOKIE = 4_000


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """One login that was begun: what the issuer must send back, and what is shown to it at the end. ``path``
    is where to go on to."""

    state: str
    nonce: str
    verifier: str
    path: str
    begun_ms: int

    @classmethod
    def new(cls, path: str, now_ms: int) -> LoginAttempt:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, local_path(path), now_ms)

    @classmethod
    def of_cookie(cls, text: str, now_ms: int) -> LoginAttempt | None:
        """None for anything but a login that was begun within the last ten minutes."""
        try:
            values = json.loads(base64.urlsafe_b64decode(text[:_LONGEST_COOKIE].encode("ascii")))
            found = cls(**values)
            randoms = found.state, found.nonce, found.verifier
            if not all(_RANDOM.fullmatch(each) for each in randoms) or not isinstance(found.path, str):
                return None
            is_due = -_SKEW_MS <= now_ms - found.begun_ms < ATTEMPT_MS
            return found if is_due and local_path(found.path) == found.path else None
        except (ValueError, TypeError, RecursionError):
            return None

    def cookie(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @property
    def challenge(self) -> str:
        """S256 of RFC 7636."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class CodeExchange(Protocol):
    """The issuer, as far as a login needs it."""

    def authorization_endpoint(self) -> str:
        """Where the browser is sent to. Raises CheckUnavailable."""

    def id_token(self, code: str, verifier: str, redirect_url: str) -> str:
        """The ID token for a code. Raises AccessDenied, and CheckUnavailable."""


@dataclass(frozen=True)
class IssuerLogin:
    """The issuer's people may log in. ``tokens`` checks ID tokens whose audience is ``client_id``;
    ``redirect_url`` is where the issuer sends people back to, empty where the request says it."""

    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    exchange: CodeExchange
    tokens: OidcTokens
    now: Callable[[], int]
    redirect_url: str = ""

    def begin(self, path: str, redirect_url: str) -> tuple[str, LoginAttempt]:
        """(where to send the browser, what to give it in a cookie). Raises CheckUnavailable."""
        attempt = LoginAttempt.new(path, self.now())
        asked = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_url or redirect_url,
            "scope": " ".join(self.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = self.exchange.authorization_endpoint()
        sign = "&" if "?" in endpoint else "?"
        return f"{endpoint}{sign}{urlencode(asked, quote_via=quote)}", attempt

    def finish(self, answered: Mapping[str, str], attempt: LoginAttempt, redirect_url: str) -> LoginProof:
        """Who came back. Raises AccessDenied, and CheckUnavailable where the issuer does not answer."""
        code = self._code(answered, attempt)
        token = self.exchange.id_token(code, attempt.verifier, self.redirect_url or redirect_url)
        claims = self.tokens.claims(token, self.now())
        if claims is None:
            raise AccessDenied("the issuer answered with no token of its own")
        nonce, party = claims.get("nonce"), claims.get("azp", self.client_id)
        if not isinstance(nonce, str) or not _same(nonce, attempt.nonce):
            raise AccessDenied("the ID token is of another login (nonce)")
        if party != self.client_id:
            raise AccessDenied("the ID token was given to another client (azp)")
        name, groups = self.tokens.person(claims)
        return LoginProof(AuthenticationMethod.OIDC, name, self.issuer, attempt.state, groups)

    def _code(self, answered: Mapping[str, str], attempt: LoginAttempt) -> str:
        if not _same(answered.get("state", ""), attempt.state):
            raise AccessDenied("the callback is of another login (state)")
        if answered.get("iss", self.issuer) != self.issuer:
            raise AccessDenied("the callback is of another issuer (iss)")
        if "error" in answered:
            error = answered["error"]
            shown = error if _ERROR.fullmatch(error) else "an error without a name"
            if error in ("server_error", "temporarily_unavailable"):
                raise CheckUnavailable(f"the issuer says {shown}")
            raise AccessDenied(f"the issuer says {shown}")
        code = answered.get("code", "")
        if not 0 < len(code) <= _LONGEST_CODE or not (code.isascii() and code.isprintable()):
            raise AccessDenied("the callback has no code")
        return code


@dataclass(frozen=True)
class LoginWays:
    """How people log in: with an API key always, at the issuer where the settings name one. ``public_url`` is
    the address of the service in a browser, empty where only requests say it."""

    sessions: SessionAuthority
    issuer: IssuerLogin | None = None
    public_url: str = ""


def local_path(text: str) -> str:
    """``text`` where it is a path on this server, with its query; ``/`` for anything that a browser might
    read as another place."""
    is_plain = text.isascii() and text.isprintable() and " " not in text and "\\" not in text
    if not is_plain or not text.startswith("/") or text.startswith("//") or len(text) > LONGEST_PATH:
        return "/"
    return text


def _same(found: str, expected: str) -> bool:
    return hmac.compare_digest(found.encode("utf-8", "surrogatepass"), expected.encode())
