"""A small HTTP/1.1 server in a thread of its own, which no client can exhaust: its requests, its responses
and their bytes, and the listener.

All connections live on one asyncio loop, so an idle, half-open or slow one costs some kilobytes and no
thread; only making an answer takes a thread, of which there are few. Every wait has an end, every buffer a
limit, and a connection counts from before its TLS handshake. Built on the standard library alone: the server
of prometheus_client has a thread for each connection and no limit of either, supports no bearer token, and
reads its certificate once.

The parser is our own: the endpoint answers GET and HEAD without a body on a handful of paths, which is thirty
lines, while the maintained parsers (h11, httptools) would be a further package in an image that is to stay
small. What it cannot parse for certain it refuses, and the connection is closed.

``HealthChecks`` answers /healthz and /readyz.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import chain

from gpucost.domain.errors import InputError
from gpucost.settings.tls import ListenerCertificate

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


logger = logging.getLogger(__name__)

Route = Callable[[EndpointRequest], EndpointResponse]

_BACKLOG = 128
# Of each connection, in the kernel, which would otherwise grow them to megabytes.
_SEND_BUFFER_BYTES = 131_072
_RECEIVE_BUFFER_BYTES = 16_384
_NO_ROOM_S = 1.0
"""The pause before the next connection is accepted, where there was no file descriptor for one."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Bounds of the endpoint.

    ``head_s``: from the first wait (or, on a used connection, the first byte) to the end of a request's
    head; and, before it, for a TLS handshake. ``idle_s``: between requests of one connection. ``answer_s``:
    for a route. ``write_s``: for a whole response to be taken by the client; Prometheus gives up after 10 s
    itself.
    """

    head_s: float = 5.0
    idle_s: float = 120.0
    answer_s: float = 10.0
    write_s: float = 10.0
    head_bytes: int = 8192
    connections: int = 512
    threads: int = 3


class HttpEndpoint:
    """Serves ``routes`` (path -> function) on ``host`` and ``port``; port 0 takes a free one.

    Routes are called in a few threads, several at a time. One that raises is answered with 500, one that
    takes longer than ``limits.answer_s`` with 503. ``setting`` is the name of the setting of the address,
    ``host_setting`` that of the host, where it is a setting of its own. With a ``certificate`` only TLS is
    answered; one that is replaced is reloaded.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        limits: EndpointLimits | None = None,
        setting: str = "listen",
        host_setting: str = "",
        certificate: ListenerCertificate | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._routes = dict(routes)
        self._limits = limits or EndpointLimits()
        self._setting, self._host_setting = setting, host_setting or setting
        self._certificate = certificate
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._pool: ThreadPoolExecutor
        self._tasks: set[asyncio.Task[None]] = set()
        # In the order in which they began to wait, or to be answered.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._answering: dict[asyncio.Task[None], None] = {}

    def start(self) -> int:
        """Listen, and return the port. Raises InputError when the address cannot be had."""
        listener = self._listen()
        port = int(listener.getsockname()[1])
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(listener, ready), name="endpoint", daemon=True
        )
        self._thread.start()
        ready.result()
        if self._certificate is not None:
            renewing = threading.Thread(
                target=self._certificate.keep_renewing, args=(self._closed,), name="certificate", daemon=True
            )
            renewing.start()
        return port

    def close(self) -> None:
        """Stop listening, end all connections and the thread. A second call does nothing."""
        self._closed.set()
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._thread = None

    def _listen(self) -> socket.socket:
        if not 0 <= self._port <= 65_535:  # getaddrinfo would wrap it round
            raise InputError(self._setting, f"{self._host}:{self._port}", "a port from 0 to 65535")
        try:
            found = socket.getaddrinfo(
                self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            both = self._host == "::" and socket.has_dualstack_ipv6()
            listener = socket.create_server(
                (address[0], address[1]), family=family, backlog=_BACKLOG, dualstack_ipv6=both
            )
        except (OSError, ValueError) as error:
            raise self._refusal(error) from error
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        return listener

    def _refusal(self, error: OSError | ValueError) -> InputError:
        if isinstance(error, socket.gaierror | ValueError) or error.errno == errno.EADDRNOTAVAIL:
            return InputError(self._host_setting, self._host, f"an address of this machine ({error})")
        where = f"{self._host}:{self._port}"
        return InputError(self._setting, where, f"an address that is free here ({error})")

    def _run(self, listener: socket.socket, ready: Future[None]) -> None:
        try:
            with listener:
                asyncio.run(self._serve(listener, ready))
        except Exception as error:
            if ready.done():
                logger.exception("the endpoint stopped")
            else:
                ready.set_exception(error)

    async def _serve(self, listener: socket.socket, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._pool = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="endpoint")
        listener.setblocking(False)
        accepting = asyncio.create_task(self._accept(listener))
        ready.set_result(None)
        try:
            await self._stop.wait()
        finally:
            tasks = [accepting, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, listener: socket.socket) -> None:
        """Accepts connections itself: asyncio's own server reports a TLS connection only after
        its handshake."""
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                logger.warning("no connection can be taken: %s", error)
                await asyncio.sleep(_NO_ROOM_S)
                continue
            self._make_room()
            task = asyncio.create_task(self._connected(connection))
            self._tasks.add(task)
            self._waiting[task] = None
            task.add_done_callback(partial(self._ended, connection))

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its head, else the one longest in its answer."""
        while len(self._waiting) + len(self._answering) >= self._limits.connections:
            group = self._waiting or self._answering
            oldest = next(iter(group))
            del group[oldest]
            oldest.cancel()

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # of a task that was ended before it began; else its transport has done so
        self._waiting.pop(task, None)
        self._answering.pop(task, None)
        self._tasks.discard(task)

    async def _connected(self, connection: socket.socket) -> None:
        with suppress(OSError, EOFError):  # the client went, was too slow, or does not speak TLS
            reader = asyncio.StreamReader(limit=self._limits.head_bytes)
            protocol = asyncio.StreamReaderProtocol(reader)
            tls = None if self._certificate is None else self._certificate.context
            async with asyncio.timeout(self._limits.head_s):
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
            transport.set_write_buffer_limits(high=0)  # so that drain() waits for the kernel to have all
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            try:
                await self._converse(reader, writer)
                if tls is not None:
                    await self._said_all(writer)
            finally:
                transport.abort()

    async def _said_all(self, writer: asyncio.StreamWriter) -> None:
        """Waits until TLS has sent what it still holds, and its closing message."""
        writer.close()
        async with asyncio.timeout(self._limits.write_s):
            await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        wait = self._limits.head_s
        keep = True
        ahead = _reading_on(reader)
        while keep:
            self._answering.pop(task, None)
            self._waiting[task] = None
            try:
                head = await self._head(reader, ahead, wait)
                request = parse(head)
            except asyncio.LimitOverrunError:
                request, refusal = None, text(431, f"a head of at most {self._limits.head_bytes} bytes")
            except InputError as error:
                request, refusal = None, text(400, str(error))
            self._waiting.pop(task, None)
            self._answering[task] = None
            if request is None:
                await self._send(writer, *encode(None, refusal))
                return
            ahead = _reading_on(reader)
            await self._send(writer, *await self._answer(request, ahead))
            keep = request.keep_alive
            wait = self._limits.idle_s

    async def _head(self, reader: asyncio.StreamReader, ahead: asyncio.Task[bytes], wait: float) -> bytes:
        async with asyncio.timeout(wait) as limit:
            first = await ahead
            if not first:
                raise EOFError
            limit.reschedule(min(limit.when() or 0.0, self._loop.time() + self._limits.head_s))
            return first + await reader.readuntil(b"\r\n\r\n")

    async def _answer(
        self, request: EndpointRequest, ahead: asyncio.Task[bytes]
    ) -> tuple[bytes, Sequence[bytes]]:
        """The answer; ``ahead`` reads what comes after the request. Raises EOFError when the client
        disconnects."""
        if request.method not in METHODS:
            return encode(request, text(405, "GET or HEAD"))
        route = self._routes.get(request.path)
        if route is None:
            return encode(request, text(404, "\n".join(("there is:", *self._routes))))
        work = self._loop.run_in_executor(self._pool, _call, route, request)
        try:
            async with asyncio.timeout(self._limits.answer_s):
                await asyncio.wait((work, ahead), return_when=asyncio.FIRST_COMPLETED)
                if _has_gone(ahead):
                    raise EOFError
                return await work
        except TimeoutError:
            return encode(request, text(503, "no answer in time"))
        finally:
            work.cancel()  # one that no thread has begun takes none

    async def _send(self, writer: asyncio.StreamWriter, head: bytes, body: Sequence[bytes]) -> None:
        async with asyncio.timeout(self._limits.write_s):
            for part in turns(chain((head,), body)):
                writer.write(part)
                await writer.drain()  # so that no more than this turn waits in memory


def _reading_on(reader: asyncio.StreamReader) -> asyncio.Task[bytes]:
    """The first byte of what comes next, if anything does; ends with the connection."""
    ahead = asyncio.ensure_future(reader.read(1))
    ahead.add_done_callback(lambda done: done.cancelled() or done.exception())  # its result may never be used
    return ahead


def _has_gone(ahead: asyncio.Task[bytes]) -> bool:
    return ahead.done() and (ahead.exception() is not None or not ahead.result())


def _call(route: Route, request: EndpointRequest) -> tuple[bytes, Sequence[bytes]]:
    try:
        return encode(request, route(request))
    except Exception:
        logger.exception("the route %s failed", request.path)
        return encode(request, text(500, "this failed; the log says why"))


class HealthChecks:
    """Named checks. Each returns what is wrong in words, or an empty string, and must not block."""

    def __init__(self, checks: Mapping[str, Callable[[], str]]) -> None:
        self._checks = dict(checks)

    def problems(self) -> dict[str, str]:
        """What is wrong now, by the name of the check. A check that raises is itself a problem."""
        found = {name: self._problem(name) for name in self._checks}
        return {name: problem for name, problem in found.items() if problem}

    def answer(self, request: EndpointRequest) -> EndpointResponse:  # noqa: ARG002 the form of a route
        """The route: 200 and ``ok``, or 503 and a line for each problem."""
        problems = self.problems()
        if not problems:
            return text(200, "ok")
        return text(503, "\n".join(f"{name}: {problem}" for name, problem in problems.items()))

    def _problem(self, name: str) -> str:
        try:
            return self._checks[name]()
        except Exception as error:
            logger.exception("the health check %s failed", name)
            return f"the check failed: {error!r}"
