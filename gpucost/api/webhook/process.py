"""Starts the process that listens, answers what it asks, and starts it again if it ends."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from gpucost.api.webhook.channel import Answering, Channel, serve
from gpucost.api.webhook.server import TlsFiles
from gpucost.service.advising_status import AdvisingStatus

logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_CLOSING_S = 5.0
_TURN_S = 0.001


@dataclass(eq=False)
class WebhookProcess:
    """The admission webhook on ``listener``. Raises OSError for TLS files that cannot be used."""

    listener: socket.socket
    answering: Answering
    status: AdvisingStatus
    token: str = field(repr=False)
    deadline_ms: int
    in_flight: int
    tls: TlsFiles | None = None
    token_file: Path | None = None
    """Where ``token`` is from: it is read again when the file is replaced."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _channel: Channel | None = None

    def __post_init__(self) -> None:
        if self.tls is not None:
            self.tls.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._thread = threading.Thread(target=self._run, name="gpucost-webhook", daemon=True)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def start(self) -> None:
        """Begin; once. Connections are taken from the first moment, and answered a moment later.

        Threads of this process take turns every millisecond from now on: of the usual five, who answers would
        wait for at each message while another works out the next state.
        """
        sys.setswitchinterval(min(_TURN_S, sys.getswitchinterval()))
        self._thread.start()

    def close(self) -> None:
        """End the process, and wait for it for a few seconds at most."""
        self._closed.set()
        process, channel = self._process, self._channel
        if process is not None:
            process.terminate()
            try:
                process.wait(_CLOSING_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if channel is not None:
            channel.close()
        self._thread.join(_CLOSING_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            ours, theirs = socket.socketpair()
            with ours, theirs:
                descriptors = (self.listener.fileno(), theirs.fileno())
                command = [sys.executable, "-m", "gpucost.api.webhook.front", *map(str, descriptors)]
                process = self._process = subprocess.Popen(command, pass_fds=descriptors)
                theirs.close()
                channel = self._channel = Channel(ours)
                try:
                    channel.send(self._settings())
                    serve(channel, self.answering, self.status.reviewed)
                except OSError:
                    pass
                code = process.wait()
            if not self._closed.wait(_AGAIN_S):
                logger.error("the process of the admission webhook ended (%d); starting it again", code)

    def _settings(self) -> dict[str, object]:
        tls = None if self.tls is None else [str(self.tls.certificate), str(self.tls.key)]
        return {
            "token": self.token,
            "token_file": None if self.token_file is None else str(self.token_file),
            "deadline_ms": self.deadline_ms,
            "in_flight": self.in_flight,
            "tls": tls,
        }
