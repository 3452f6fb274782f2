"""The process that listens: ``python -m gpucost.api.webhook.listener_process`` and the descriptors of three
sockets.

Its parameters come as the first message, so that no secret is on its command line. It ends with the process
that started it.

The listener of the admission webhook has a thread and an event loop of its own, TLS, and certificates that
are renewed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gpucost.api.server.connections import MOST, BoundedProtocol, BoundedServer
from gpucost.api.webhook.app import WebhookApp, WebhookToken
from gpucost.api.webhook.ipc import ProcessChannel, RemoteWorker
from gpucost.settings.logs import SecretRedactor, configure
from gpucost.settings.tls import LOOKS_EVERY_S, ListenerCertificate, TlsMemory, TlsSource

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
            # An API server uses a few. Idle ones make room for others; its failurePolicy ignores a 503.
            limit_concurrency=MOST + 1,
            # More than the connections that can be waiting in a burst.
            backlog=2_048,
        )
        config.load()
        self._certificate: ListenerCertificate | None = None
        if tls is not None:
            self._certificate = ListenerCertificate(tls, "the webhook", client_ca)
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
        """Begin to answer; returns once it does."""
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
        """Use a certificate that was replaced since; whether there was one. A file that cannot be used is
        logged, and the certificate before stays."""
        assert self._certificate is not None
        return self._certificate.renew()

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])

    def _renew(self) -> None:
        assert self._certificate is not None
        self._certificate.keep_renewing(self._closed, self._every_s)


logger = logging.getLogger(__name__)

_LOOKS_EVERY_S = 1.0
# Between the loop and the worker: with the usual 5 ms, each message would wait that long under full load.
_TURN_S = 0.001


def main(listener_fd: int, channel_fd: int, certificates_fd: int) -> None:
    sys.setswitchinterval(_TURN_S)
    channel = ProcessChannel(socket.socket(fileno=channel_fd))
    found = channel.receive()
    form, level = found["log"]
    configure(form, level, SecretRedactor(found["token"].split("\n")))
    tls = _tls(found["tls"], ProcessChannel(socket.socket(fileno=certificates_fd)))
    token = WebhookToken(found["token"], None if found["token_file"] is None else Path(found["token_file"]))
    token.renew()
    remote = RemoteWorker(channel)
    app = WebhookApp(
        token,
        remote.reviewed,
        remote,
        deadline_ms=found["deadline_ms"],
        in_flight=found["in_flight"],
    )
    client_ca = None if found["client_ca"] is None else Path(found["client_ca"])
    try:
        server = WebhookServer(app, socket.socket(fileno=listener_fd), tls, client_ca=client_ca)
    except OSError as error:
        logger.error("the webhook's certificates cannot be used: %s", error)
        sys.exit(1)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server.start()
    parent = os.getppid()
    while not ended.wait(_LOOKS_EVERY_S) and os.getppid() == parent:
        token.renew()
        try:
            remote.report()
        except OSError:
            break
    server.close()
    # Its worker may wait for an answer that will not come.
    os._exit(0)


def _tls(pem: Any, certificates: ProcessChannel) -> TlsMemory | None:
    """The certificate, and others that come over the socket; None without TLS."""
    if pem is None:
        return None
    given = TlsMemory()
    given.give(pem.encode())
    threading.Thread(target=_take, args=(given, certificates), daemon=True).start()
    return given


def _take(given: TlsMemory, certificates: ProcessChannel) -> None:
    with contextlib.suppress(EOFError):
        while True:
            given.give(certificates.receive()["pem"].encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
