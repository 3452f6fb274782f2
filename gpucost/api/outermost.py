"""The outermost layer: what holds for every answer, whoever made it (a 404, a 413, a crash)."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpucost.api.errors import ApiError, too_large, wrong_host
from gpucost.api.limits import most_bytes
from gpucost.service.settings_api import ApiSettings, is_loopback

# A report's page is self-contained: its own styles and inline SVG, nothing fetched, no script, no form.
CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Answers depend on who asks, and a month that is still open changes every hour.
    "Cache-Control": "no-store",
}


class Outermost:
    """Adds security headers and HEAD; refuses large bodies unread, and foreign host names without auth."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        answer = self._app if refusal is None else refusal.response()
        if scope["method"] == "HEAD":
            # HEAD is GET without the body, which the server leaves out.
            scope = {**scope, "method": "GET"}
        await answer(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        length, most = headers.get("content-length", ""), most_bytes(path, self._settings.max_body_bytes)
        if length.isdecimal() and int(length[:20]) > most:
            return too_large(most)
        # Without keys, a web page that points its own name at 127.0.0.1 could read the ledger.
        if self._settings.auth == "off" and not is_loopback(_host_name(headers.get("host", ""))):
            return wrong_host(headers.get("host", ""))
        return None


def _host_name(host: str) -> str:
    """``[::1]:8080`` -> ``::1``; ``localhost:8080`` -> ``localhost``."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
