"""Connections that cannot exhaust the listener: idle, slow and half-open ones cost an end, not a place."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 512
"""Connections at once. One more ends the one that has been idle longest."""
REQUEST_S = 15.0
"""From the first wait, or the first byte, to the end of a request, its body included."""
WRITE_S = 30.0
"""How long a client may take nothing of its answer."""


class BoundedProtocol(H11Protocol):
    """uvicorn's own, which never ends a connection that says nothing, and counts it against the others."""

    most = MOST
    request_s = REQUEST_S
    write_s = WRITE_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._since = 0.0

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
        """Whether all of the present request has been read, or nothing of the next."""
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
        """Close the connection that has been idle longest: a client that was idle simply makes a new one."""
        connections = self.connections
        if len(connections) < self.most:
            return
        idle = [each for each in connections if isinstance(each, BoundedProtocol) and each._is_idle]
        if idle:
            min(idle, key=lambda each: each._since)._abort()

    def _cancel(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    def _abort(self) -> None:
        self.connections.discard(self)
        if not self.transport.is_closing():
            self.transport.abort()
