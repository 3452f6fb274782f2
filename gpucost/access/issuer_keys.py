"""Documents of the issuer, and forms that are sent to it, over HTTPS. The only I/O of this package.

PyJWKClient loses test_answers_that_are_no_keys: it reads an answer of any size, however slowly it comes.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from gpucost.access.oidc_tokens import IssuerFetchError

CONNECT_S, READ_S, TOTAL_S = 5.0, 5.0, 10.0
MOST_BYTES = 1 << 20
_DISCOVERY = "/.well-known/openid-configuration"
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "gpucost"}
_OK, _REFUSED = 200, (400, 401)


class IssuerRefusal(IssuerFetchError):
    """The issuer does not accept what it was sent. Trying again does not help."""


@dataclass(frozen=True, slots=True)
class IssuerFetcher:
    """How to reach an issuer. ``ca_file`` holds the authorities to trust instead of the system's, read for
    each fetch, so that a new one needs no restart; ``proxies`` says whether those of the environment count.
    """

    ca_file: Path | None = None
    allow_http: bool = False
    proxies: bool = True

    def json(self, url: str) -> object:
        """A document. No redirect is followed. Raises IssuerFetchError."""
        return self._asked("GET", url)

    def post(self, url: str, fields: Mapping[str, str], authorization: str = "") -> object:
        """The answer to a form, which may hold secrets: nothing of it stands in an error. Raises
        IssuerRefusal where the issuer says that the form is wrong, and IssuerFetchError."""
        headers = {"Authorization": authorization} if authorization else {}
        return self._asked("POST", url, dict(fields), headers)

    def check(self, url: str) -> None:
        """Raises IssuerFetchError for a URL that would not be fetched."""
        self._checked_host(url)

    def _asked(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> object:
        host = self._checked_host(url)
        try:
            with (
                httpx2.Client(
                    verify=self._context(),
                    timeout=httpx2.Timeout(READ_S, connect=CONNECT_S),
                    trust_env=self.proxies,
                    follow_redirects=False,
                    headers=_HEADERS,
                ) as client,
                client.stream(method, url, data=form, headers=headers) as answer,
            ):
                if form is not None and answer.status_code in _REFUSED:
                    raise IssuerRefusal(f"{host} answered {answer.status_code}")
                if answer.status_code != _OK:
                    raise IssuerFetchError(f"{host} answered {answer.status_code}")
                body = _whole(answer, host)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            # The exception is not kept as a cause: it carries its request.
            why = f"{host}: {type(error).__name__}: {error}"[:256]
        else:
            return _parsed(body, host)
        raise IssuerFetchError(why) from None

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        # From Python 3.13 on certificates without an authority key identifier are refused, and many companies
        # have an authority of their own that was made that way. The chain and the name are verified as
        # before.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def _checked_host(self, url: str) -> str:
        """The host, for messages: the rest of a URL may be secret."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            _ = parts.port
        except ValueError:
            host = ""
        if not host or not url.isascii() or not url.isprintable() or " " in url or "@" in parts.netloc:
            raise IssuerFetchError("a URL that is none, or has user info in it")
        if parts.scheme != "https" and not (parts.scheme == "http" and self.allow_http):
            raise IssuerFetchError(f"{host}: a URL that is not https")
        return host


@dataclass(frozen=True, slots=True)
class IssuerKeys:
    """The key set of an issuer, found through its discovery page or at ``jwks_url``."""

    issuer: str
    fetcher: IssuerFetcher
    jwks_url: str = ""

    def __call__(self) -> object:
        """Raises IssuerFetchError."""
        return self.fetcher.json(self.jwks_url or self._discovered())

    def _discovered(self) -> str:
        return endpoint(discovered(self.issuer, self.fetcher), "jwks_uri")


def discovered(issuer: str, fetcher: IssuerFetcher) -> Mapping[str, Any]:
    """The discovery page of an issuer. Raises IssuerFetchError."""
    found: Any = fetcher.json(issuer.rstrip("/") + _DISCOVERY)
    if not isinstance(found, dict) or found.get("issuer") != issuer:
        raise IssuerFetchError(
            "the discovery page is of another issuer than access.oidc.issuer, to the letter"
        )
    return found


def endpoint(page: Mapping[str, Any], name: str) -> str:
    """The URL of this name on a discovery page. Raises IssuerFetchError."""
    url = page.get(name)
    if not isinstance(url, str):
        raise IssuerFetchError(f"the discovery page has no {name}")
    try:
        leads_away = urlsplit(url).hostname != urlsplit(str(page["issuer"])).hostname
    except ValueError:
        raise IssuerFetchError(f"{name} of the discovery page is a URL that is none") from None
    if url.startswith("http:") and leads_away:
        # Over http that page may be forged: it must not lead to another machine.
        raise IssuerFetchError("the discovery page leads to another host without TLS")
    return url


def _whole(answer: httpx2.Response, host: str) -> bytes:
    body, ends_s = bytearray(), time.monotonic() + TOTAL_S
    for part in answer.iter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            raise IssuerFetchError(f"{host} answered with more than {MOST_BYTES:,} bytes")
        if time.monotonic() > ends_s:
            raise IssuerFetchError(f"{host}: no whole answer in time")
    return bytes(body)


def _parsed(body: bytes, host: str) -> object:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        raise IssuerFetchError(f"{host}: the answer is not JSON") from None
    return found
