"""What is a browser's: cookies, forms, and whether a change comes from a page of this service.

Cookies are named ``__Host-…``, which browsers take over TLS only, of this host and for all of it. Over plain
HTTP on a name of loopback, as ``kubectl port-forward`` gives, they lose that prefix and ``Secure``: not every
browser would keep them there. Over plain HTTP elsewhere nobody can log in, since no browser keeps them.

A change by a session must carry the token of the session, in the field ``csrf`` of a form or in the header
``X-CSRF-Token``; and where the browser says which site asks, it must be this one. ``SameSite=Lax`` keeps
changes of other sites away by itself; not ``Strict``, with which a link in chat would lead to the log-in.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request, Response

from gpucost.access.sessions import csrf_token
from gpucost.api.server.errors import (
    check_media_type,
    cross_site,
    media_type,
    no_csrf_token,
    repeated_parameter,
)
from gpucost.api.server.middleware import host_name
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.service.settings.api import is_loopback

SESSION, ATTEMPT, FORM = "gpucost", "gpucost-login", "gpucost-form"
"""Cookies: of a session, of a login that was begun at the issuer, and of the form that takes a key."""
CSRF = "csrf"
"""Name of the token in forms, and in a request's state: empty where the caller has no session."""
CSRF_HEADER = "X-CSRF-Token"
SESSION_ID = "gpucost.session"
"""Key of the session's id in a request's state; none where there is no session."""
FORM_TYPE = "application/x-www-form-urlencoded"
_PREFIX = "__Host-"
_MOST_FIELDS = 50


@dataclass(frozen=True, slots=True)
class BrowserPlace:
    """The address of this service in the browser that asks, ``https://gpucost.example.com``."""

    origin: str

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https:")

    def keep(self, response: Response, cookie: str, value: str, seconds: int | None = None) -> None:
        """Give the browser a cookie; without ``seconds`` until it is closed."""
        response.set_cookie(
            self._name(cookie),
            value,
            max_age=seconds,
            path="/",
            secure=self.is_secure,
            httponly=True,
            samesite="lax",
        )

    def drop(self, response: Response, cookie: str) -> None:
        response.delete_cookie(
            self._name(cookie), path="/", secure=self.is_secure, httponly=True, samesite="lax"
        )

    def _name(self, cookie: str) -> str:
        return f"{_PREFIX}{cookie}" if self.is_secure else cookie


def place_of(request: Request) -> BrowserPlace:
    """Plain HTTP is believed of loopback only: elsewhere something in front speaks TLS, or no cookie is
    kept."""
    host = request.headers.get("host", "").lower()
    forwarded = request.headers.get("x-forwarded-proto", "").lower()
    is_plain = request.url.scheme == "http" and is_loopback(host_name(host)) and forwarded != "https"
    return BrowserPlace(f"{'http' if is_plain else 'https'}://{host}")


def place_of_form(request: Request) -> BrowserPlace:
    """The address of the page that sent a form. Its browser says it, also where a proxy on this machine
    speaks TLS and passes on neither name nor scheme, so that ``place_of`` takes it for plain HTTP."""
    origin = request.headers.get("origin", "").lower()
    return BrowserPlace(origin) if origin.startswith("https:") else place_of(request)


def cookie(request: Request, name: str) -> str:
    """The value of a cookie; empty where there is none."""
    found = request.cookies.get(f"{_PREFIX}{name}", "")
    # Any other server of this machine could have set one without the prefix: it counts on loopback only.
    return found if found or place_of(request).is_secure else request.cookies.get(name, "")


def check_same_site(request: Request, public_url: str) -> None:
    """Raises ApiError (403) where the browser says that a page of another site asks. One that says nothing
    is not refused: the token tells."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = {place_of(request).origin, _origin(public_url)}
    is_own = origin is None or origin.lower() in own
    if origin == "null" and site == "same-origin":
        is_own = True  # what a page writes that tells no address to others
    if site not in (None, "same-origin") or not is_own:
        raise cross_site()


async def check_change(request: Request, token: str, public_url: str) -> None:
    """Raises ApiError (403) for a change by the session of ``token`` that none of our pages asked for."""
    check_same_site(request, public_url)
    given = request.headers.get(CSRF_HEADER, "")
    if not given and media_type(request) == FORM_TYPE:
        given = (await form_fields(request)).get(CSRF, "")
    if not is_same(given, csrf_token(token)):
        raise no_csrf_token(f"the field {CSRF} of the page's form, or the header {CSRF_HEADER}")


async def form_fields(request: Request) -> dict[str, str]:
    """The fields of a form. Raises ApiError and InputError for what is none."""
    check_media_type(request, FORM_TYPE)
    found: dict[str, str] = {}
    try:
        text = (await request.body()).decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InputError("body", ErrorRemark("no form"), f"a form of at most {_MOST_FIELDS} fields") from None
    for name, value in pairs:
        if name in found:
            raise repeated_parameter(name[:100])
        if "\0" in value:
            raise InputError(name[:100], ErrorRemark("NUL in it"), "text without NUL characters")
        found[name] = value
    return found


def is_same(given: str, expected: str) -> bool:
    """Compared in a time that does not say how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower() if url else ""
