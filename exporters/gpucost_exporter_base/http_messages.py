"""Requests and responses of the endpoint, and their bytes. Pure.

The parser is our own: the endpoint answers GET and HEAD without a body on a handful of paths, which is thirty
lines, while the maintained parsers (h11, httptools) would be a further package in an image that is to stay
small. What it cannot parse for certain it refuses, and the connection is closed.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from gpucost.domain.errors import InputError

PLAIN = "text/plain; charset=utf-8"
METHODS = ("GET", "HEAD")
GZIP_FROM_BYTES = 1024
TURN_BYTES = 65_536
"""The most that is written at once."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(rf"({_TOKEN.pattern}) (?:https?://[^/?# ]+)?([/*][!-~]*) HTTP/1\.([01])")
_GZIP = re.compile(r"(?:^|[,\s])gzip\s*(?:,|$|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))")


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """One request. ``path`` is without the ``query``; names in ``headers`` are lower-case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """One answer: status code, body and its type.

    The body is all ``chunks`` in turn. They are sent as they are, never put together, so that answers which
    share them cost no memory each. ``zipped`` gives the body compressed, in chunks too, where that was done
    before; else it is done at each answer.
    """

    status: int
    chunks: Sequence[bytes]
    content_type: str = PLAIN
    zipped: Callable[[], Sequence[bytes]] | None = None

    @property
    def body(self) -> bytes:
        """All chunks put together: a copy, which may be large."""
        return b"".join(self.chunks)


def text(status: int, body: str) -> EndpointResponse:
    """An answer of plain text, ended by a newline."""
    return EndpointResponse(status, (f"{body}\n".encode(),))


def compress(body: bytes) -> bytes:
    """Level 1: about 5 % of the time that writing the text of metrics takes, for a tenth of the bytes."""
    return gzip.compress(body, compresslevel=1, mtime=0)


def parse(head: bytes) -> EndpointRequest:
    """The request with this head (everything up to and including the empty line). Raises InputError for any
    other."""
    line, *fields = head.decode("latin-1").strip("\r\n").split("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise InputError("request", line, "a request line of HTTP/1.1")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or _TOKEN.fullmatch(name) is None or any(mark in value for mark in "\0\r\n"):
            raise InputError("request", field, "name: value")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    path, _, query = found[2].partition("?")
    return EndpointRequest(found[1], path, query, headers, _keeps_alive(found[1], found[3], headers))


def encode(request: EndpointRequest | None, response: EndpointResponse) -> tuple[bytes, Sequence[bytes]]:
    """Head, and body in chunks, to send. ``request`` is None where the request could not be parsed."""
    fields = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    body, length = response.chunks, sum(map(len, response.chunks))
    if length > GZIP_FROM_BYTES and request and _GZIP.search(request.headers.get("accept-encoding", "")):
        body = response.zipped() if response.zipped else (compress(response.body),)
        length = sum(map(len, body))
        fields.append("Content-Encoding: gzip")
    fields += [
        f"Content-Type: {response.content_type}",
        f"Content-Length: {length}",
        "X-Content-Type-Options: nosniff",
    ]
    if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
        fields.append(f"Allow: {', '.join(METHODS)}")
    if response.status == HTTPStatus.UNAUTHORIZED:
        fields.append("WWW-Authenticate: Bearer")
    if request is None or not request.keep_alive:
        fields.append("Connection: close")
    head = "\r\n".join((*fields, "", "")).encode("latin-1")
    return head, () if request and request.method == "HEAD" else body


def turns(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes as they are written: short chunks together, of no chunk more than TURN_BYTES."""
    waiting: list[bytes | memoryview] = []
    size = 0
    for chunk in chunks:
        for part in _parts(chunk):
            if size + len(part) > TURN_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(part)
            size += len(part)
    if size:
        yield b"".join(waiting)


def _parts(chunk: bytes) -> Iterable[bytes | memoryview]:
    if len(chunk) <= TURN_BYTES:
        return (chunk,)
    view = memoryview(chunk)
    return (view[start : start + TURN_BYTES] for start in range(0, len(chunk), TURN_BYTES))


def _keeps_alive(method: str, minor: str, headers: Mapping[str, str]) -> bool:
    """Whether a further request may follow: never after a body, which is not read."""
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return minor == "1" and method in METHODS and not has_body and "close" not in options
