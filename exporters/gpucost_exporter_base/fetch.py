"""One GET of a text, bounded in time and size, over the standard library. Redirects are not followed.

The GPU exporter's image has no HTTP client of its own (tests/images/allowed): this, and
``gpucost.kube.connect.http_transport``, are all that it asks with.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 64 * 1024


class FetchFailure(StrEnum):
    """Why a text could not be fetched."""

    UNREACHABLE = "unreachable"
    TLS = "tls"
    TIMEOUT = "timeout"
    HTTP_STATUS = "http_status"
    BAD_ANSWER = "bad_answer"
    TOO_LARGE = "too_large"


class TextFetchError(Exception):
    """The text could not be fetched; ``status`` is the HTTP status where that is why, else 0."""

    def __init__(self, reason: FetchFailure, status: int = 0) -> None:
        self.reason, self.status = reason, status
        super().__init__(reason.value)


def fetch(
    address: SplitResult,
    timeout_s: float,
    max_bytes: int,
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> str:
    """GET an address and return its text; bytes that are not UTF-8 are replaced.

    ``timeout_s`` bounds each attempt to connect, and what is left of it then the whole answer, however slowly
    it comes. No proxy is used. ``headers`` must be fit to be sent. Without ``tls`` certificates are verified
    against the system's authorities. Raises TextFetchError.
    """
    host, port = address.hostname or "", address.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        if address.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=timeout_s)
    )
    deadline = time.monotonic() + timeout_s
    path = f"{address.path or '/'}{'?' if address.query else ''}{address.query}"
    try:
        return _get(connection, path, deadline, max_bytes, {"Accept": "text/plain", **(headers or {})})
    except TimeoutError as error:
        raise TextFetchError(FetchFailure.TIMEOUT) from error
    except ssl.SSLError as error:
        raise TextFetchError(FetchFailure.TLS) from error
    except OSError as error:
        raise TextFetchError(FetchFailure.UNREACHABLE) from error
    except (http.client.HTTPException, ValueError) as error:
        raise TextFetchError(FetchFailure.BAD_ANSWER) from error
    finally:
        connection.close()


def address(url: str, field: str, example: str) -> SplitResult:
    """A checked http or https address, without user. Raises InputError for ``field``."""
    allowed = f"an http or https address such as {example}"
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InputError(field, url, allowed) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_fine:
        raise InputError(field, url, allowed)
    if parts.username is not None or any(not " " < letter < "\x7f" for letter in url):
        raise InputError(field, url, allowed)
    return parts


def _get(
    connection: http.client.HTTPConnection,
    path: str,
    deadline: float,
    max_bytes: int,
    headers: Mapping[str, str],
) -> str:
    connection.connect()
    connection.sock.settimeout(_left(deadline))
    connection.request("GET", path, headers=dict(headers))
    with http.client.HTTPResponse(connection.sock, method="GET") as response:
        # In place of the response's own file, which limits only each single wait.
        response.fp.close()
        response.fp = io.BufferedReader(_BodyStream(connection.sock, deadline))
        response.begin()
        if response.status != http.client.OK:
            raise TextFetchError(FetchFailure.HTTP_STATUS, response.status)
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > max_bytes:
                raise TextFetchError(FetchFailure.TOO_LARGE)
        if response.length:
            raise TextFetchError(FetchFailure.BAD_ANSWER)
    return body.decode("utf-8", errors="replace")


class _BodyStream(io.RawIOBase):
    """What a socket receives until ``deadline``; then reading raises TimeoutError."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)


def _left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
