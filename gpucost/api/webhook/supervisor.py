"""Starts the process that listens, answers its questions, and starts it again if it ends.

Certificates in files are watched here, in the service, so that a listener which is started again shows the
same certificate as the one before, whatever the files hold by then.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpucost.api.webhook.ipc import Answering, ProcessChannel, serve
from gpucost.kube.certificates.certificate_pair import end_of
from gpucost.kube.certificates.keeper import CertificateKeeper
from gpucost.service.advisor.status import AdvisorStatus
from gpucost.settings.logs import LogFormat
from gpucost.settings.tls import LOOKS_EVERY_S, TlsFiles, load_pem, server_context

logger = logging.getLogger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(eq=False)
class FileKeeper:
    """``show`` is called with certificate and key, in one PEM, at first and when the files hold others. A
    file that cannot be used is logged once, and ``failed`` called with the kind: ``unreadable``, ``expired``.
    The certificate before stays.

    Raises OSError for files that cannot be used at first.
    """

    files: TlsFiles
    show: Callable[[str], None]
    failed: Callable[[str], None]
    now: Callable[[], int] = _now_ms
    every_s: float = LOOKS_EVERY_S
    _stamp: Hashable = None
    _trouble: Hashable = None
    _end_ms: int | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._take(self.files.stamp())

    def run(self) -> None:
        """Watches the files until ``close``."""
        while not self._stop.wait(self.every_s):
            self.look()

    def close(self) -> None:
        """From any thread."""
        self._stop.set()

    def end_ms(self) -> int | None:
        """When the certificate that is shown ends, in ms UTC. From any thread."""
        return self._end_ms

    def look(self) -> bool:
        """Show the certificate in the files, if it is another one and can be used; whether it is."""
        stamp: Hashable = None
        try:
            stamp = self.files.stamp()
            if stamp == self._stamp:
                self._trouble = None
                return False
            self._take(stamp)
        except OSError as error:
            self._tell(stamp, "unreadable", str(error))
            return False
        except ExpiredCertificate:
            self._tell(stamp, "expired", "it has expired, and the one before has not")
            return False
        self._trouble = None
        return True

    def _take(self, stamp: Hashable) -> None:
        """Raises OSError (ssl.SSLError is one) and ExpiredCertificate; then nothing has changed."""
        pem = self.files.pem()
        load_pem(server_context(), pem)
        text = pem.decode(errors="replace")
        end_ms = end_of(text)
        if self._end_ms is not None and (end_ms or 0) <= self.now() < self._end_ms:
            raise ExpiredCertificate
        self._stamp, self._end_ms = stamp, end_ms
        self.show(text)

    def _tell(self, stamp: Hashable, kind: str, why: str) -> None:
        if self._trouble != (stamp, why):
            self.failed(kind)
            logger.warning("the certificate of the webhook cannot be renewed: %s", why)
        self._trouble = stamp, why


class ExpiredCertificate(ValueError):
    """A certificate that ends before the one that it would replace."""


_AGAIN_S = 1.0
_CLOSING_S = 5.0
_TURN_S = 0.001


@dataclass(eq=False)
class WebhookProcess:
    """The admission webhook on ``listener``. Raises OSError for TLS files that cannot be used."""

    listener: socket.socket
    answering: Answering
    status: AdvisorStatus
    token: str = field(repr=False)
    """One, or two, a line each."""
    deadline_ms: int
    in_flight: int
    tls: TlsFiles | None = None
    token_file: Path | None = None
    """The file of ``token``: it is read again when the file is replaced."""
    keeping: Callable[[Callable[[str], None]], CertificateKeeper] | None = None
    """Instead of ``tls``: makes the keeper of the certificate, which is to call the given function with each
    one."""
    log: tuple[LogFormat, str] = ("text", "info")
    """Format and level of the process's own log, which goes to the same stream as ours."""
    client_ca: Path | None = None
    """Authorities that must have signed the certificate of every client."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _channel: ProcessChannel | None = None
    _certificates: socket.socket | None = None
    _pem: str = field(default="", repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._threads = [threading.Thread(target=self._run, name="gpucost-webhook", daemon=True)]
        self._keeper: CertificateKeeper | FileKeeper | None = None
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
        """Begin; once. Connections are accepted from the first moment, and answered a moment later.

        Threads of this process switch every millisecond from now on: with the usual five, each message would
        wait that long while another thread works out the next state.
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
            try:
                code = self._serve_once()
            except OSError as error:  # as where there may be no more processes, for a moment
                logger.error("the admission webhook cannot start: %s", error)
                code = -1
            if not self._closed.wait(_AGAIN_S):
                logger.error("the process of the admission webhook ended (%d); starting it again", code)

    def _serve_once(self) -> int:
        """A process from its start to its end; its exit status."""
        (ours, theirs), (giving, taking) = socket.socketpair(), socket.socketpair()
        with ours, theirs, giving, taking:
            descriptors = (self.listener.fileno(), theirs.fileno(), taking.fileno())
            command = [sys.executable, "-m", "gpucost.api.webhook.listener_process", *map(str, descriptors)]
            process = self._process = subprocess.Popen(command, pass_fds=descriptors)
            theirs.close()
            taking.close()
            channel = self._channel = ProcessChannel(ours)
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
