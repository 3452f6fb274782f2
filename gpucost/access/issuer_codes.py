"""The issuer's part of a login: where the browser is sent to, and the exchange of a code for an ID token.

All requests go through ``IssuerFetcher``: https, no redirects, bounded in time and size.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpucost.access.authenticator import AccessDenied, CheckUnavailable
from gpucost.access.issuer_keys import IssuerFetcher, IssuerRefusal, discovered, endpoint
from gpucost.access.oidc_tokens import IssuerFetchError
from gpucost.settings.secret_files import read_small

logger = logging.getLogger(__name__)

FRESH_MS = 3_600_000
NEXT_TRY_MS = 5_000
"""After a failure: however many people try to log in, the issuer is not asked more often."""
_LARGEST_SECRET = 4_096
_BASIC, _POST = "client_secret_basic", "client_secret_post"


@dataclass(frozen=True, slots=True)
class _IssuerPage:
    """The discovery page as it was read at ``at_ms``; None where it could not be."""

    found: Mapping[str, Any] | None
    at_ms: int


class IssuerCodes:
    """A ``CodeExchange`` with the issuer itself. Threads may share one.

    ``secret_file`` holds the client's secret, and is read for each exchange; without one the client is
    public, and PKCE alone protects the code.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        fetcher: IssuerFetcher,
        secret_file: Path | None,
        now: Callable[[], int],
    ) -> None:
        self._issuer, self._client_id, self._fetcher = issuer, client_id, fetcher
        self._secret_file, self._now = secret_file, now
        self._lock = threading.Lock()
        self._page: _IssuerPage | None = None

    def authorization_endpoint(self) -> str:
        """Where the browser is sent to. Raises CheckUnavailable."""
        return self._endpoint("authorization_endpoint")

    def id_token(self, code: str, verifier: str, redirect_url: str) -> str:
        """The ID token for a code, not checked yet. Raises AccessDenied where the issuer refuses the code,
        and CheckUnavailable."""
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "code_verifier": verifier,
        }
        url = self._endpoint("token_endpoint")
        authorization, own = self._client()
        try:
            answer = self._fetcher.post(url, fields | own, authorization)
        except IssuerRefusal as error:
            # Also a wrong secret of ours, which only the log may say.
            raise AccessDenied(f"the issuer refuses the code: {error}") from None
        except IssuerFetchError as error:
            raise CheckUnavailable(f"the code cannot be exchanged: {error}") from None
        found = answer.get("id_token") if isinstance(answer, dict) else None
        if not isinstance(found, str):
            raise AccessDenied("the issuer gave no ID token: is the scope openid missing?")
        return found

    def _client(self) -> tuple[str, dict[str, str]]:
        """What says which client asks: (the header Authorization, further fields)."""
        own = {"client_id": self._client_id}
        if self._secret_file is None:
            return "", own
        try:
            secret = read_small(self._secret_file, _LARGEST_SECRET).decode().strip()
        except (OSError, ValueError) as error:
            raise CheckUnavailable(f"the client's secret cannot be read: {type(error).__name__}") from None
        methods = self._discovered().get("token_endpoint_auth_methods_supported", [_BASIC])
        if isinstance(methods, list) and _POST in methods and _BASIC not in methods:
            return "", own | {"client_secret": secret}
        # RFC 6749, 2.3.1: both are form-encoded before they are joined.
        pair = f"{quote(self._client_id, safe='')}:{quote(secret, safe='')}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}", {}

    def _endpoint(self, name: str) -> str:
        try:
            url = endpoint(self._discovered(), name)
            self._fetcher.check(url)
        except IssuerFetchError as error:
            raise CheckUnavailable(f"nobody can log in at the issuer: {error}") from None
        return url

    def _discovered(self) -> Mapping[str, Any]:
        """The issuer's page: read again when it is an hour old, and what was read before while it cannot
        be."""
        with self._lock:
            page, now_ms = self._page, self._now()
            keep_ms = FRESH_MS if page is not None and page.found is not None else NEXT_TRY_MS
            if page is None or abs(now_ms - page.at_ms) >= keep_ms:
                page = self._page = self._read(page, now_ms)
        if page.found is None:
            raise CheckUnavailable("nobody can log in at the issuer: its discovery page cannot be read")
        return page.found

    def _read(self, before: _IssuerPage | None, now_ms: int) -> _IssuerPage:
        try:
            return _IssuerPage(discovered(self._issuer, self._fetcher), now_ms)
        except IssuerFetchError as error:
            logger.warning("the issuer's discovery page cannot be read: %s", error)
            return _IssuerPage(None if before is None else before.found, now_ms)
