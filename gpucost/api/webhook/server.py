"""The listener of the admission webhook: a thread and an event loop of its own, TLS, certificates renewed."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

_LOOKS_EVERY_S = 1.0
_STARTING_S = 10.0
_CLOSING_S = 5.0
# Connections; an API server uses a few. One more gets a 503, which its failurePolicy ignores.
_MOST_CONNECTIONS = 1_024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate chain and key, in PEM."""

    certificate: Path
    key: Path

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Another one when a file was replaced. Raises OSError."""
        stats = [path.stat() for path in (self.certificate, self.key)]
        return tuple((found.st_mtime_ns, found.st_ino, found.st_size) for found in stats)

    def load(self, context: ssl.SSLContext) -> None:
        """Raises OSError (ssl.SSLError is one) for files that are none, or do not belong together."""
        # Tried first: a chain whose key does not fit would stay in the context without one.
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trial.load_cert_chain(self.certificate, self.key, password=_no_password)
        context.load_cert_chain(self.certificate, self.key, password=_no_password)


class WebhookServer:
    """Serves ``app`` on ``listener``; over TLS with ``tls``, new connections get the newest certificate."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        tls: TlsFiles | None = None,
        *,
        every_s: float = _LOOKS_EVERY_S,
    ) -> None:
        self._listener, self._tls, self._every_s = listener, tls, every_s
        config = uvicorn.Config(
            app,
            log_config=None,
            # The path holds the token.
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
            limit_concurrency=_MOST_CONNECTIONS,
            # More than the connections that can be waiting in a burst.
            backlog=2_048,
        )
        config.load()
        self._context = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._stamp = tls.stamp()
            tls.load(self._context)
            config.ssl = self._context
        self._server = uvicorn.Server(config)
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
        assert self._tls is not None
        assert self._context is not None
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return False
            self._tls.load(self._context)
        except OSError as error:
            logger.warning("the webhook's certificate cannot be renewed: %s", error)
            return False
        self._stamp = stamp
        logger.info("the webhook has a new certificate")
        return True

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])

    def _renew(self) -> None:
        while not self._closed.wait(self._every_s):
            self.renew()


def _no_password() -> str:
    """A key with a passphrase is an error: without this, OpenSSL would ask at the terminal."""
    return ""
