"""The listener of the admission webhook: a thread and an event loop of its own, TLS, certificates renewed."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gpucost.api.connections import MOST, BoundedProtocol
from gpucost.api.handshakes import BoundedServer
from gpucost.settings.tls import LOOKS_EVERY_S, Certificate, TlsSource

_STARTING_S = 10.0
_CLOSING_S = 5.0


class WebhookServer:
    """Serves ``app`` on ``listener``; over TLS with ``tls``, new connections get the newest certificate, and
    show one of ``client_ca`` where that is given."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        tls: TlsSource | None = None,
        *,
        client_ca: Path | None = None,
        every_s: float = LOOKS_EVERY_S,
    ) -> None:
        self._listener, self._every_s = listener, every_s
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            log_config=None,
            # The path holds the token.
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
            # An API server uses a few. Idle ones make room for others; a 503 its failurePolicy ignores.
            limit_concurrency=MOST + 1,
            # More than the connections that can be waiting in a burst.
            backlog=2_048,
        )
        config.load()
        self._certificate: Certificate | None = None
        if tls is not None:
            self._certificate = Certificate(tls, "the webhook", client_ca)
            config.ssl = self._certificate.context
        self._server = BoundedServer(config)
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._serve, name="gpucost-webhook", daemon=True)]
        if tls is not None:
            self._threads.append(
                threading.Thread(target=self._renew, name="gpucost-webhook-certificates", daemon=True)
            )

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin to answer; returns when it does."""
        for thread in self._threads:
            thread.start()
        waiting = threading.Event()
        for _ in range(int(_STARTING_S / 0.01)):
            if self._server.started or not self._threads[0].is_alive():
                return
            waiting.wait(0.01)

    def close(self) -> None:
        """Stop. Requests that are being answered have two seconds."""
        self._closed.set()
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(_CLOSING_S)

    def renew(self) -> bool:
        """Take a certificate that was replaced since; whether there was one. What cannot be used is logged,
        and the one before stays."""
        assert self._certificate is not None
        return self._certificate.renew()

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])

    def _renew(self) -> None:
        assert self._certificate is not None
        self._certificate.keep_renewing(self._closed, self._every_s)
