"""Bounds on connections, so that clients cannot exhaust the listener: idle, slow and half-open ones are
closed.

TLS handshakes are bounded too: uvicorn counts a connection only after its handshake.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpucost.api.server.errors import ApiError

MOST = 512
"""Connections at once. One more ends the one that has been idle longest, or else the one that has sent its
request for the longest time."""
PROBES = ("/healthz", "/healthz/ready")
"""Answered however many are connected: an overloaded service is not dead."""
REQUEST_S = 15.0
"""From the first wait, or the first byte, to the end of a request, its body included."""
WRITE_S = 30.0
"""How long a client may read nothing of its response."""
LARGEST_HEAD = 16 * 1024
"""Bytes of the line and headers of a request. h11 by itself bounds only an incomplete head."""


class StrictConnection(h11.Connection):
    """h11's own accepts a head of any size that comes at once, and ``Transfer-Encoding`` beside
    ``Content-Length``; this one refuses both. ``why`` is the reason for the refusal."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, LARGEST_HEAD)
        self.why = ""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before = len(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.why = _refusal(event, before - len(self.trailing_data[0]))
            if self.why:
                raise h11.RemoteProtocolError(self.why)
        return event


def _refusal(request: h11.Request, size: int) -> str:
    if size > LARGEST_HEAD:
        return f"The head of a request has at most {LARGEST_HEAD:,} bytes."
    # RFC 9112, 6.1: a server may refuse it, and must close the connection. A proxy in front may have used the
    # other header of both, and what it took for a body would be a request here.
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        return "Content-Length and Transfer-Encoding stand in one request: one of them may."
    return ""


class BoundedProtocol(H11Protocol):
    """uvicorn's own never ends a silent connection, and counts it against the others; this one does not."""

    most = MOST
    request_s = REQUEST_S
    write_s = WRITE_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: StrictConnection = StrictConnection()
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._since = 0.0

    @property
    def limit_concurrency(self) -> int | None:
        """uvicorn's own attribute, read once the request's path is known."""
        is_probe = self.scope is not None and self.scope["path"] in PROBES
        return None if is_probe else self._most_concurrent

    @limit_concurrency.setter
    def limit_concurrency(self, most: int | None) -> None:
        self._most_concurrent = most

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._make_room()
        self._since = self.loop.time()
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel("_reading")
        self._cancel("_writing")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reading is None:
            self._await_request()
        super().data_received(data)
        if self._has_request:
            self._cancel("_reading")

    def send_400_response(self, msg: str) -> None:
        """In the one shape of errors. Where the response was sent before the rest of the request went wrong
        there is nothing to add."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = ApiError(HTTPStatus.BAD_REQUEST, "malformed_request", self.conn.why or msg).response()
            headers = [*answer.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=answer.status_code, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel("_writing")
        self._writing = self.loop.call_later(self.write_s, self._abort)

    def resume_writing(self) -> None:
        self._cancel("_writing")
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()
        # A request that came right behind the one before, and not as a whole.
        if not (self._is_idle or self._has_request):
            self._await_request()

    @property
    def _has_request(self) -> bool:
        """Whether the present request has been read completely, or nothing of the next."""
        state = self.conn.their_state
        if state is h11.IDLE:
            return not self.conn.trailing_data[0]
        return state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_request(self) -> None:
        self._cancel("_reading")
        self._reading = self.loop.call_later(self.request_s, self._abort)

    def _make_room(self) -> None:
        """Close the connection that has been idle longest: an idle client simply makes a new one. If none is
        idle, the one that has been sending its request for longest: a slow client keeps no other out."""
        if len(self.connections) < self.most:
            return
        others = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        for some in ([each for each in others if each._is_idle], [each for each in others if each._reading]):
            if some:
                min(some, key=lambda each: each._since)._abort()
                return

    def _cancel(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    def _abort(self) -> None:
        self.connections.discard(self)
        if not self.transport.is_closing():
            self.transport.abort()


HANDSHAKE_S = 5.0
"""For a handshake; asyncio would allow a minute."""
MOST_HANDSHAKES = 256
"""Handshakes at once. One more ends the one that was begun first."""


class BoundedLoop(asyncio.SelectorEventLoop):
    """Bounds the handshakes of its TLS servers."""

    def __init__(self) -> None:
        super().__init__()
        # Used as an ordered set.
        self._handshakes: dict[asyncio.Task[Any], None] = {}

    async def create_server(self, protocol_factory: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("ssl") is None:
            return await super().create_server(protocol_factory, *args, **kwargs)

        def begin() -> Any:
            self._begin_handshake()
            return protocol_factory()

        kwargs["ssl_handshake_timeout"] = HANDSHAKE_S
        return await super().create_server(begin, *args, **kwargs)

    def _begin_handshake(self) -> None:
        """asyncio makes the protocol in the task that then waits for the handshake, and ends with it."""
        task = asyncio.current_task()
        if task is None:
            return
        while len(self._handshakes) >= MOST_HANDSHAKES:
            first = next(iter(self._handshakes))
            del self._handshakes[first]
            first.cancel()  # which closes its connection
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))


class BoundedServer(uvicorn.Server):
    """uvicorn's own, on such a loop."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(loop_factory=BoundedLoop) as runner:
            runner.run(self.serve(sockets=sockets))
