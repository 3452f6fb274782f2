"""``KubeTransport`` over httpx2, for processes with enough memory: kept connections, proxies, client
certificates.

lightkube's client loses test_many_silent_watches_over_tls_end_at_once_when_they_are_aborted: none is ended.

Little of httpx2 is used: HTTP/1.1, no redirects, no credentials of its own. The header with the token is made
here for each request, checked before httpx2 sees it, and no error of httpx2 is kept as a cause, since those
carry their request.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import httpx2

from gpucost.kube.connect.credentials import AnswerLimits, as_transport_error, checked_url
from gpucost.kube.connect.transport import (
    AnswerCheck,
    TransportError,
    no_check,
    parsed_body,
    split_lines,
    whole_body,
)

KEPT_CONNECTIONS = 16
"""Idle connections that are kept for the next page of a list. The number of those in use is not limited."""
KEPT_S = 5.0
"""How long they are kept: a connection may be authenticated by a certificate that has since been replaced."""

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "gpucost"}
_UNAUTHORIZED = 401
_CONNECTED = "connection.connect_tcp.complete"


class RequestCredentials(Protocol):
    """The source of the ``Authorization`` header of a request. May be called from many threads."""

    def header(self, refused: str = "") -> str:
        """The header's value, empty for none. Raises ``TransportError``, never with the value in it.

        ``refused`` is a value that the server refused (401): return a newer one. The same value again means
        that there is none.
        """


class AnonymousCredentials:
    """No credentials: ``kubectl proxy``, or client certificates alone."""

    def header(self, refused: str = "") -> str:  # noqa: ARG002 the form of RequestCredentials
        """See ``RequestCredentials``."""
        return ""


class HttpxTransport:
    """``KubeTransport`` through ``client``, which has the certificates, the proxy and the pool.

    ``base_url`` as for ``HttpTransport``. ``server_name`` is the name in the server's certificate where it
    is not that of the address. ``reload`` reads certificate files again; it is called when the server's
    certificate, or that of the client, was refused, so that the next request uses new ones.
    """

    def __init__(
        self,
        client: httpx2.Client,
        base_url: str,
        credentials: RequestCredentials | None = None,
        *,
        server_name: str = "",
        reload: Callable[[], None] | None = None,
        limits: AnswerLimits | None = None,
    ) -> None:
        checked_url(base_url, with_token=not isinstance(credentials, AnonymousCredentials | None))
        self._client, self._base = client, base_url.rstrip("/")
        self._credentials: RequestCredentials = credentials or AnonymousCredentials()
        self._server_name, self._reload, self._limits = server_name, reload, limits or AnswerLimits()

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> HttpxResponse:
        """See ``KubeTransport.get``."""
        url = httpx2.URL(f"{self._base}{path}", params=dict(params)) if params else f"{self._base}{path}"
        return self._asked("GET", url, timeout_s)

    def send(
        self, method: str, path: str, timeout_s: float, body: bytes = b"", content_type: str = ""
    ) -> HttpxResponse:
        """A request that may write; it may reach the server more than once where a kept connection had just
        been closed. Otherwise as ``get``."""
        return self._asked(method, f"{self._base}{path}", timeout_s, body, content_type)

    def _asked(
        self, method: str, url: httpx2.URL | str, timeout_s: float, body: bytes = b"", content_type: str = ""
    ) -> HttpxResponse:
        send = partial(self._send, method, url, timeout_s, body, content_type)
        header = self._credentials.header()
        response = send(header)
        if response.status != _UNAUTHORIZED:
            return response
        self._reloaded()
        newer = self._newer(header, response)
        if newer == header:
            return response
        response.close()
        return send(newer)

    def close(self) -> None:
        """Close all connections. Answers still being read end."""
        self._client.close()

    def _newer(self, refused: str, response: HttpxResponse) -> str:
        try:
            return self._credentials.header(refused)
        except BaseException:
            response.close()
            raise

    def _send(
        self,
        method: str,
        url: httpx2.URL | str,
        timeout_s: float,
        body: bytes,
        content_type: str,
        header: str,
    ) -> HttpxResponse:
        bounds = {
            "connect": self._limits.connect_s,
            "pool": self._limits.connect_s,
            "write": self._limits.head_s,
            "read": min(timeout_s, self._limits.head_s),
        }
        extensions: dict[str, Any] = {"timeout": bounds}
        if self._server_name:
            extensions["sni_hostname"] = self._server_name
        more = {"Authorization": header, "Content-Type": content_type}
        headers = {**_HEADERS, **{name: value for name, value in more.items() if value}}
        request = self._client.build_request(
            method, url, headers=headers, content=body or None, extensions=extensions
        )
        answer = self._answer(request)
        bounds["read"] = timeout_s  # httpcore2 reads it again when the body begins
        return HttpxResponse(answer, self._limits)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """Sends the request. The server may just have closed a kept connection: then it is sent again over
        another one. With many requests at once that may be a closed one as well, so it is retried until the
        connection was new."""
        for _ in range(KEPT_CONNECTIONS):
            steps: list[str] = []
            request.extensions["trace"] = lambda step, _details, seen=steps: seen.append(step)
            try:
                return self._head(request)
            except TransportError as error:
                if error.reason != "cut" or _CONNECTED in steps:
                    raise
        return self._head(request)

    def _head(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return self._client.send(request, stream=True, follow_redirects=False)
        except httpx2.HTTPError as error:
            failure = _failure(error)
        if failure.reason in {"tls", "cut"}:  # the cut of a server that wants a certificate
            self._reloaded()
        raise failure from None

    def _reloaded(self) -> None:
        if self._reload is not None:
            with suppress(OSError):  # the next handshake reports what is wrong with the files
                self._reload()


class HttpxResponse:
    """See ``gpucost.kube.connect.transport.KubeResponse``."""

    def __init__(self, answer: httpx2.Response, limits: AnswerLimits) -> None:
        self._answer, self._limits = answer, limits
        self._socket: socket.socket | None = answer.extensions["network_stream"].get_extra_info("socket")
        self._aborted = threading.Event()
        self.status = answer.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in answer.headers.items()}

    def read_body(self, check: AnswerCheck = no_check) -> bytes:
        """The body; at most ``AnswerLimits.body_bytes`` of it, counted when unzipped."""
        return whole_body(self._chunks(check), self._limits.body_bytes)

    def read_json(self) -> Any:
        """The body, parsed."""
        return parsed_body(self.read_body())

    def lines(self, check: AnswerCheck = no_check) -> Iterator[bytes]:
        """Lines as they arrive; see ``split_lines`` for those over ``AnswerLimits.line_bytes``."""
        return split_lines(self._chunks(check), self._limits.line_bytes)

    def _chunks(self, check: AnswerCheck) -> Iterator[bytes]:
        chunks = self._answer.iter_bytes()
        while chunk := self._next(chunks):
            check()
            yield chunk

    def _next(self, chunks: Iterator[bytes]) -> bytes:
        try:
            chunk = next(filter(None, chunks), b"")
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            failure = _failure(error)
        else:
            if not self._aborted.is_set():
                return chunk
            failure = TransportError("cut", "the reader was told to stop")
        raise failure from None

    def abort(self) -> None:
        """Shuts the socket down, which wakes a thread that reads from it; closing alone would not."""
        self._aborted.set()
        # A connection that was given back may serve another request already. SSLSocket.shutdown would drop
        # the encryption under the thread that reads; the plain shutdown does not.
        if self._socket is not None and not self._answer.is_closed:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the connection back; one with something left to read is closed."""
        with suppress(OSError, httpx2.HTTPError, RuntimeError):
            self._answer.close()


def _failure(error: Exception) -> TransportError:
    """The TransportError for an error of httpx2, from its deepest cause."""
    if (root := _system_error(error)) is not None:
        return as_transport_error(root)
    name = type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        return TransportError("silent", name)
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return TransportError("unreachable", f"{name}: {error}"[:256])
    return TransportError("cut", name)


def _system_error(error: BaseException | None) -> OSError | None:
    while error is not None:
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
