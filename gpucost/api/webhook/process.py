"""Starts the process that listens, answers what it asks, and starts it again if it ends."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpucost.api.webhook.channel import Answering, Channel, serve
from gpucost.api.webhook.files import FileKeeper
from gpucost.kube.certificates.keeper import Keeper
from gpucost.service.advising_status import AdvisingStatus
from gpucost.settings.logs import Format
from gpucost.settings.tls import TlsFiles

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
    """One, or two a line each."""
    deadline_ms: int
    in_flight: int
    tls: TlsFiles | None = None
    token_file: Path | None = None
    """Where ``token`` is from: it is read again when the file is replaced."""
    keeping: Callable[[Callable[[str], None]], Keeper] | None = None
    """In place of ``tls``: makes who keeps the certificate, of who is to be told each one."""
    log: tuple[Format, str] = ("text", "info")
    """Format and level of the process's own log, which goes where ours does."""
    client_ca: Path | None = None
    """Authorities of which whoever connects must have a certificate."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _channel: Channel | None = None
    _certificates: socket.socket | None = None
    _pem: str = field(default="", repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._threads = [threading.Thread(target=self._run, name="gpucost-webhook", daemon=True)]
        self._keeper: Keeper | FileKeeper | None = None
        if self.keeping is not None:
            self._keeper = self.keeping(self._certify)
        elif self.tls is not None:
            self._keeper = FileKeeper(self.tls, self._certify, self.status.certificate_failed)
        if self._keeper is not None:
            name = "gpucost-webhook-certificates"
            self._threads.append(threading.Thread(target=self._keeper.run, name=name, daemon=True))
        self.status.certificate_end_ms = self.certificate_end_ms

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def start(self) -> None:
        """Begin; once. Connections are taken from the first moment, and answered a moment later.

        Threads of this process take turns every millisecond from now on: of the usual five, who answers would
        wait for at each message while another works out the next state.
        """
        sys.setswitchinterval(min(_TURN_S, sys.getswitchinterval()))
        for thread in self._threads:
            thread.start()

    def certificate_end_ms(self) -> int | None:
        """When the certificate that is shown ends, in ms UTC; None where there is none."""
        return None if self._keeper is None else self._keeper.end_ms()

    def close(self) -> None:
        """End the process, and wait for it for a few seconds at most."""
        self._closed.set()
        if self._keeper is not None:
            self._keeper.close()
        process, channel = self._process, self._channel
        if process is not None:
            process.terminate()
            try:
                process.wait(_CLOSING_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if channel is not None:
            channel.close()
        for thread in self._threads:
            thread.join(_CLOSING_S)

    def _certify(self, pem: str) -> None:
        """Another certificate from now on, for the process that runs and for the next."""
        with self._lock:
            self._pem = pem
            if self._certificates is not None:
                with suppress(OSError):  # it has ended; the next gets it at its start
                    self._certificates.sendall(json.dumps({"pem": pem}).encode() + b"\n")

    def _run(self) -> None:
        while not self._closed.is_set():
            code = self._serve_once()
            if not self._closed.wait(_AGAIN_S):
                logger.error("the process of the admission webhook ended (%d); starting it again", code)

    def _serve_once(self) -> int:
        """A process from its start to its end; its exit status."""
        (ours, theirs), (giving, taking) = socket.socketpair(), socket.socketpair()
        with ours, theirs, giving, taking:
            descriptors = (self.listener.fileno(), theirs.fileno(), taking.fileno())
            command = [sys.executable, "-m", "gpucost.api.webhook.front", *map(str, descriptors)]
            process = self._process = subprocess.Popen(command, pass_fds=descriptors)
            theirs.close()
            taking.close()
            channel = self._channel = Channel(ours)
            try:
                with self._lock:
                    channel.send(self._settings())
                    self._certificates = giving
                serve(channel, self.answering, self.status.reviewed)
            except OSError:
                pass
            with self._lock:
                self._certificates = None
            channel.release()
            return process.wait()

    def _settings(self) -> dict[str, object]:
        return {
            "token": self.token,
            "token_file": None if self.token_file is None else str(self.token_file),
            "deadline_ms": self.deadline_ms,
            "in_flight": self.in_flight,
            "log": self.log,
            "tls": None if self._keeper is None else self._pem,
            "client_ca": None if self.client_ca is None else str(self.client_ca),
        }
