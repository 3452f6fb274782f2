"""The process that listens: ``python -m gpucost.api.webhook.front`` and the descriptors of three sockets.

What it needs comes as the first message, so that no secret is on its command line. It ends with the process
that started it.
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

from gpucost.api.webhook.app import WebhookApp
from gpucost.api.webhook.channel import Channel, Remote
from gpucost.api.webhook.server import WebhookServer
from gpucost.api.webhook.token import Token
from gpucost.settings.logs import Redactor, configure
from gpucost.settings.tls import TlsGiven

logger = logging.getLogger(__name__)

_LOOKS_EVERY_S = 1.0
# Between the loop and the worker: of the usual 5 ms, each message would wait for at a full loop.
_TURN_S = 0.001


def main(listener_fd: int, channel_fd: int, certificates_fd: int) -> None:
    sys.setswitchinterval(_TURN_S)
    channel = Channel(socket.socket(fileno=channel_fd))
    found = channel.receive()
    form, level = found["log"]
    configure(form, level, Redactor(found["token"].split("\n")))
    tls = _tls(found["tls"], Channel(socket.socket(fileno=certificates_fd)))
    token = Token(found["token"], None if found["token_file"] is None else Path(found["token_file"]))
    token.renew()
    remote = Remote(channel)
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


def _tls(pem: Any, certificates: Channel) -> TlsGiven | None:
    """The certificate, and others that come over the socket; none without."""
    if pem is None:
        return None
    given = TlsGiven()
    given.give(pem.encode())
    threading.Thread(target=_take, args=(given, certificates), daemon=True).start()
    return given


def _take(given: TlsGiven, certificates: Channel) -> None:
    with contextlib.suppress(EOFError):
        while True:
            given.give(certificates.receive()["pem"].encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
