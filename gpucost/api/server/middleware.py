"""The outermost layer: what holds for every response, whatever made it (a 404, a 413, a crash)."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpucost.access.principal import Principal
from gpucost.api.server.connections import PROBES
from gpucost.api.server.errors import (
    ApiError,
    most_bytes,
    too_large,
    wrong_host,
)
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.service.settings.api import ApiSettings, is_loopback
from gpucost.settings.logs import REQUESTS, request_id

logger = logging.getLogger(REQUESTS)

ASKED_BY = "gpucost.principal"
"""Key of the principal in a request's state, set after authentication."""
UNTOLD = "gpucost.untold"
"""True in a request's state where no line of it may be logged, so that the log cannot be filled."""
REQUEST_ID = "X-Request-Id"
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

# For what is no page. Pages, and reports as HTML, say themselves which style and script is theirs.
CSP = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # The address of a page is told to this service only. With no-referrer a form would not say whose it is.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Responses depend on the caller, and a month that is still open changes every hour.
    "Cache-Control": "no-store",
}


class OuterMiddleware:
    """Adds security headers, the request's id and HEAD; refuses large bodies unread, and foreign host names
    without auth. Logs the outcome of each request."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ApiSettings,
        status: OperationsStatus | None = None,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._settings = settings
        self._status = status or OperationsStatus()
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, begun = Headers(scope=scope), self._seconds()
        found, status = _id_of(headers), 500
        state: dict[str, Any] = {**scope.get("state", {}), "request_id": found, "csrf": ""}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(raw=message.setdefault("headers", []))
                answered[REQUEST_ID] = found
                for name, value in SECURITY_HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope["path"], headers)
        answer = self._app if refusal is None else refusal.response()
        # HEAD is GET without the body, which the server leaves out.
        method = scope["method"]
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "state": state}
        with request_id(found):
            try:
                await answer(scope, receive, send_with_headers)
            finally:
                self._say(method, scope, status, self._seconds() - begun)

    def _say(self, method: str, scope: Scope, status: int, took_s: float) -> None:
        """One line: the route and never the path or its query, which may hold anything."""
        route = getattr(scope.get("route"), "path", "")
        known = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        self._status.answered(known, route, status)
        if route in PROBES or scope["state"].get(UNTOLD):
            return
        asked_by = scope["state"].get(ASKED_BY)
        who, how = (asked_by.id, asked_by.method) if isinstance(asked_by, Principal) else ("", "")
        told = {
            "method": known,
            "route": route or "(none)",
            "status": status,
            "ms": round(took_s * 1000, 1),
            "principal": who,
            "auth": str(how),
        }
        logger.info(
            "%(method)s %(route)s %(status)d in %(ms).1f ms, asked by %(who)s",
            {**told, "who": f"{who} ({how})" if who else "nobody known"},
            extra=told,
        )

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        length, most = headers.get("content-length", ""), most_bytes(path, self._settings.max_body_bytes)
        if length.isdecimal() and int(length[:20]) > most:
            return too_large(most)
        # Without keys, a web page that points its own name at 127.0.0.1 could read the ledger.
        if self._settings.auth == "off" and not is_loopback(host_name(headers.get("host", ""))):
            return wrong_host(headers.get("host", ""))
        return None


def host_name(host: str) -> str:
    """``[::1]:8080`` -> ``::1``; ``localhost:8080`` -> ``localhost``."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _id_of(headers: Headers) -> str:
    """The caller's own id, where it may stand in a log; else a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
