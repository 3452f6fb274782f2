"""The listener of the API: uvicorn, with bounds on connections, and an orderly shutdown."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpucost.api.server.connections import MOST, BoundedProtocol, BoundedServer
from gpucost.api.server.threads import share
from gpucost.settings.tls import ListenerCertificate

_GRACE_S = 10
"""For requests that are being answered at shutdown."""


class AppSwitch:
    """One app at a time. A request is answered, to its end, by the app that was there when it came."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._busy: Counter[int] = Counter()
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        with self._lock:
            app = self._app
            self._busy[id(app)] += 1
        try:
            await app(scope, receive, noting)
        except Exception:
            # It has been logged and answered with a 500; uvicorn would log it once more, without the request.
            if not has_begun:
                raise
        finally:
            with self._lock:
                self._busy[id(app)] -= 1

    def swap(self, app: ASGIApp) -> None:
        """``app`` answers from now on."""
        with self._lock:
            self._app = app

    def in_flight(self, app: ASGIApp) -> int:
        """Requests that ``app`` is answering."""
        with self._lock:
            return self._busy[id(app)]


class ApiListener:
    """Serves ``app`` on ``listener``, over TLS with ``certificate``. ``drain_s`` is called at shutdown."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        certificate: ListenerCertificate | None = None,
        drain_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # A query may hold secrets put there by mistake: the app logs requests itself.
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE_S,
            # Idle ones make room for others, so all of these are being answered.
            limit_concurrency=MOST + 1,
            # As many are accepted before any is counted.
            backlog=128,
        )
        config.load()
        self._closed = threading.Event()
        self._listener = listener
        self._certificate = certificate
        if certificate is not None:
            config.ssl = certificate.context
        self._server = _Server(config, drain_s)

    def run(self) -> None:
        """Runs until ``stop``; then requests in progress are finished, for ten seconds at most."""
        renewing = None
        if self._certificate is not None:
            renewing = threading.Thread(
                target=self._certificate.keep_renewing,
                args=(self._closed,),
                name="gpucost-certificates",
                daemon=True,
            )
            renewing.start()
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._closed.set()
            if renewing is not None:
                renewing.join()

    def stop(self) -> None:
        """Requests the end; any thread may, and so may a signal handler."""
        if self._server.asked_s is None:
            self._server.asked_s = time.monotonic()


class _Server(BoundedServer):
    """Signals are handled by the caller; the end begins after the drain."""

    def __init__(self, config: uvicorn.Config, drain_s: Callable[[], float]) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self.asked_s: float | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        share()
        await super().serve(sockets)

    async def on_tick(self, counter: int) -> bool:
        if self.asked_s is not None and time.monotonic() - self.asked_s >= self._drain_s():
            self.should_exit = True
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
