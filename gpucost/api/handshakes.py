"""TLS handshakes that cannot exhaust the listener: uvicorn counts a connection only after its handshake."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

HANDSHAKE_S = 5.0
"""For a handshake; asyncio would give a minute."""
MOST_HANDSHAKES = 256
"""Handshakes at once. One more ends the one that was begun first."""


class BoundedLoop(asyncio.SelectorEventLoop):
    """Bounds the handshakes of its TLS servers."""

    def __init__(self) -> None:
        super().__init__()
        # As a set that knows its order.
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
