"""JSON over HTTP, and what a response's status means for a post.

Directly over a transport of httpx2, without its client: it follows no redirect, reads no proxy from the
environment, keeps no cookie, unpacks no body and logs no URL. The URL that it is given has the address that
was checked in place of the name; TLS and the ``Host`` header still ask for the name.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx2

import gpucost
from gpucost.domain.backoff import retry_after_s
from gpucost.notify.sending.delivery import Refused, Retry, code
from gpucost.notify.sending.network import (
    ConnectionDeadline,
    Resolve,
    checked_addresses,
    connected,
    resolve,
    within,
)

TOTAL_S = 20.0
"""For a whole request, from the name to the last byte of the response."""
MOST_BYTES = 64 * 1024
"""Of a response's body. Chats answer with a word, or with the message as they parsed it."""

_MAY_PASS = (408, 421, 425, 429)
_PORTS = {"http": 80, "https": 443}
_USER_AGENT = f"gpucost/{gpucost.__version__}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """``host`` is the server that sent it; names of ``headers`` are in lower case."""

    host: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace").strip()

    @property
    def fields(self) -> dict[str, Any]:
        """The object that the body is in JSON; empty if it is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class ChannelHttpClient:
    """How to reach one channel's service. ``context`` is TLS's; None takes the system's authorities."""

    allow_http: bool = False
    allow_private: bool = False
    total_s: float = TOTAL_S
    context: ssl.SSLContext | None = None
    resolve: Resolve = resolve
    now_ns: Callable[[], int] = time.time_ns

    def send(
        self, method: str, url: str, payload: object, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Any response with a status of 2xx, 4xx or 5xx. Raises Retry when there is none, Refused for a URL
        or an address that is not allowed, a redirect, and a response of more than MOST_BYTES."""
        target = self._checked(url)
        host = target.hostname or ""
        sent = {
            "Host": target.netloc,
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": _USER_AGENT,
            "Connection": "close",
            **(headers or {}),
        }
        content = json.dumps(payload, ensure_ascii=True, separators=(",", ":")).encode()
        with within(self.total_s) as deadline:
            try:
                answer = self._exchange(method, target, sent, content, deadline)
            except httpx2.TransportError as error:
                raise Retry(f"{host}: {_what(error, deadline)}") from None
        if 300 <= answer.status < 400:
            raise Refused(f"{host}: answered {answer.status}, a redirect, which is not followed")
        if len(answer.body) > MOST_BYTES:
            raise Refused(f"{host}: answered {answer.status} with more than {MOST_BYTES:,} bytes")
        return answer

    def _exchange(
        self,
        method: str,
        target: SplitResult,
        headers: Mapping[str, str],
        content: bytes,
        deadline: ConnectionDeadline,
    ) -> HttpAnswer:
        host, port = target.hostname or "", target.port or _PORTS[target.scheme]
        addresses = checked_addresses(
            host, port, deadline, allow_private=self.allow_private, resolve=self.resolve
        )

        def ask(address: str, _: int, connect_s: float) -> httpx2.Response:
            url = httpx2.URL(scheme=target.scheme, host=address, port=port, path="/")
            request = httpx2.Request(method, url, headers=headers, content=content)
            return _head(transport, request, self._extensions(target, connect_s), deadline)

        with (
            httpx2.HTTPTransport(verify=self._tls(target.scheme), trust_env=False) as transport,
            closing(connected(host, port, deadline, addresses, ask)) as response,
        ):
            body = bytearray()
            for part in response.iter_raw():
                body += part
                if len(body) > MOST_BYTES:
                    break
        found = {name.decode().lower(): value.decode("latin-1") for name, value in response.headers.raw}
        return HttpAnswer(host, response.status_code, found, bytes(body))

    def _tls(self, scheme: str) -> ssl.SSLContext:
        if self.context is not None:
            return self.context
        # Reading the system's authorities takes long: only where they are needed.
        return ssl.create_default_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def _extensions(self, target: SplitResult, connect_s: float) -> dict[str, Any]:
        """Of a request; its target goes as it was written, httpx2's URL would quote it anew."""
        times = dict.fromkeys(("read", "write", "pool"), self.total_s)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        return {
            "timeout": {**times, "connect": connect_s},
            "sni_hostname": target.hostname or "",
            "target": path.encode(),
        }

    def _checked(self, url: str) -> SplitResult:
        try:
            target = urlsplit(url)
            port_is_sane = target.port != 0
        except ValueError:
            port_is_sane = False
        if not (port_is_sane and url.isascii() and url.isprintable() and " " not in url and target.hostname):
            raise Refused("url: not a URL of printable ASCII with a host")
        if target.username is not None or target.password is not None:
            raise Refused(f"{target.hostname}: url with a user or password in it, which is not allowed")
        allowed = ("http", "https") if self.allow_http else ("https",)
        if target.scheme not in allowed:
            raise Refused(
                f"{target.hostname}: url with {target.scheme[:20]}://, "
                f"allowed: {' and '.join(allowed)}{'' if self.allow_http else ' (http with allow_http)'}"
            )
        return target


def _head(
    transport: httpx2.HTTPTransport,
    request: httpx2.Request,
    extensions: dict[str, Any],
    deadline: ConnectionDeadline,
) -> httpx2.Response:
    """The answer's head. Raises OSError where no connection was made, so that the next address is tried, and
    httpx2.TransportError for what fails after that."""
    made = False

    def trace(step: str, details: Mapping[str, Any]) -> None:
        nonlocal made
        if step == "connection.connect_tcp.complete":
            made = True
            deadline.watch(details["return_value"].get_extra_info("socket"))

    request.extensions = {**extensions, "trace": trace}
    try:
        return transport.handle_request(request)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        if made:
            raise
        failure = _system_error(error)
    raise failure


def _system_error(error: httpx2.TransportError) -> OSError:
    if isinstance(error, httpx2.TimeoutException):
        return TimeoutError()
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__  # httpcore2 hides it
    return cause or OSError(str(error))


def check_status(answer: HttpAnswer, now_ns: int) -> HttpAnswer:
    """``answer`` if its status is 2xx. Raises Retry for errors that may pass (429, 5xx), Refused for the
    rest."""
    if 200 <= answer.status < 300:
        return answer
    said = f"{answer.host}: answered {answer.status} ({_code_of(answer)})"
    if answer.status in _MAY_PASS or answer.status >= 500:
        raise Retry(said, retry_after_s(answer.headers.get("retry-after"), now_ns))
    raise Refused(said)


def _code_of(answer: HttpAnswer) -> str:
    """The service's own code: Slack's webhooks answer with the bare word, Mattermost with ``id``."""
    fields = answer.fields
    return code(fields.get("error") or fields.get("id") if fields else answer.text)


def _what(error: Exception, deadline: ConnectionDeadline) -> str:
    if deadline.is_over or isinstance(error, httpx2.TimeoutException):
        return "no whole answer in time"
    if isinstance(error, httpx2.ConnectError):
        return f"no TLS ({str(error)[:200]})"
    return f"the connection broke off ({type(error).__name__})"
