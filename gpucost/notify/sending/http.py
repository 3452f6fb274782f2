"""JSON over HTTP, and what a response's status means for a post.

Built directly on httpcore: it follows no redirect, reads no proxy from the environment, keeps no cookie and
decompresses no body, and lets us choose the address that is connected to.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpcore2

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
                answer = self._exchange(method, target, list(sent.items()), content, deadline)
            except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
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
        headers: list[tuple[str, str]],
        content: bytes,
        deadline: ConnectionDeadline,
    ) -> HttpAnswer:
        backend = _Backend(self, deadline)
        # Reading the system's authorities takes long: only where they are needed.
        is_tls = target.scheme == "https" and self.context is None
        context = ssl.create_default_context() if is_tls else self.context
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        host, scheme = target.hostname or "", target.scheme
        url = httpcore2.URL(scheme=scheme, host=host, port=target.port, target=path)
        times = dict.fromkeys(("connect", "read", "write", "pool"), self.total_s)
        with (
            httpcore2.ConnectionPool(ssl_context=context, network_backend=backend) as pool,
            pool.stream(
                method, url, headers=headers, content=content, extensions={"timeout": times}
            ) as response,
        ):
            body = bytearray()
            for part in response.iter_stream():
                body += part
                if len(body) > MOST_BYTES:
                    break
        found = {name.decode().lower(): value.decode("latin-1") for name, value in response.headers}
        return HttpAnswer(host, response.status, found, bytes(body))

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


class _Backend(httpcore2.NetworkBackend):
    """Connects to checked addresses; TLS still verifies the name."""

    def __init__(self, http: ChannelHttpClient, deadline: ConnectionDeadline) -> None:
        self._http = http
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: object = None,
    ) -> httpcore2.NetworkStream:
        del timeout, local_address, socket_options
        allow_private, resolve = self._http.allow_private, self._http.resolve
        addresses = checked_addresses(
            host, port, self._deadline, allow_private=allow_private, resolve=resolve
        )
        stream = connected(host, port, self._deadline, addresses, self._connect)
        self._deadline.watch(stream.get_extra_info("socket"))
        return stream

    def _connect(self, address: str, port: int, timeout_s: float) -> httpcore2.NetworkStream:
        try:
            return httpcore2.SyncBackend().connect_tcp(address, port, timeout_s)
        except httpcore2.ConnectTimeout:
            raise TimeoutError from None
        except httpcore2.ConnectError as error:
            raise error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error)) from None


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
    if deadline.is_over or isinstance(error, httpcore2.TimeoutException):
        return "no whole answer in time"
    if isinstance(error, httpcore2.ConnectError):
        return f"no TLS ({str(error)[:200]})"
    return f"the connection broke off ({type(error).__name__})"
