"""Certificates of listeners: checked when they are read, and reloaded when they are replaced.

A certificate and its key never change in a context that is in use: a handshake between the two would find a
certificate without its key. A replacement makes a new context, which each handshake takes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpucost.settings.secret_files import read_small

logger = logging.getLogger(__name__)

LOOKS_EVERY_S = 1.0


class TlsSource(Protocol):
    """Where a certificate comes from."""

    def stamp(self) -> Hashable:
        """Differs whenever the certificate does. Raises OSError."""

    def pem(self) -> bytes:
        """Certificate chain and key, which belong together. Raises OSError."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate chain and key, in PEM."""

    certificate: Path
    key: Path

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """See ``TlsSource``."""
        return tuple(map(stamp_of, (self.certificate, self.key)))

    def pem(self) -> bytes:
        """See ``TlsSource``. Files that change while they are read count as absent."""
        before = self.stamp()
        found = read_small(self.certificate) + b"\n" + read_small(self.key)
        if self.stamp() != before:
            raise OSError("its files are being replaced")
        return found

    def load(self, context: ssl.SSLContext) -> None:
        """Load into a context that is not in use yet. Raises OSError (ssl.SSLError is one) for files that are
        not certificate and key, or do not belong together."""
        load_pem(context, self.pem())


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Differs whenever the file was replaced. Raises OSError."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


class TlsMemory:
    """Certificate and key in memory, replaced by ``give``, from any thread. None at first."""

    def __init__(self) -> None:
        self._pem = b""

    def give(self, pem: bytes) -> None:
        """Replace the certificate and key, in PEM."""
        self._pem = pem

    def stamp(self) -> bytes:
        """See ``TlsSource``."""
        return self._pem

    def pem(self) -> bytes:
        """See ``TlsSource``."""
        return self._pem


class ListenerCertificate:
    """``context`` is for a listener: new connections get the newest certificate, open ones stay open.

    ``name`` is the listener's name in the log. Raises OSError for files that cannot be used. While the
    source has no certificate, handshakes fail. With ``client_ca``, a PEM file of authorities, they also fail
    for clients without a certificate of one of these; a replaced file of authorities is reloaded like a
    certificate.
    """

    def __init__(self, source: TlsSource, name: str, client_ca: Path | None = None) -> None:
        self._source, self._name, self._client_ca = source, name, client_ca
        self._stamp: Hashable = b""
        self._trouble: Hashable = None
        self._newest = server_context(client_ca)
        # The first context decides whether a client certificate is requested, the chosen one verifies it:
        # both have the authorities.
        self.context = server_context(client_ca)
        self.context.sni_callback = self._choose
        if stamp := self._stamp_now():
            self._take(stamp)
            # For a caller that reads the context before a handshake, and so that it is the same as all later
            # ones.
            load_pem(self.context, source.pem())

    def renew(self) -> bool:
        """Load a certificate that was replaced; returns whether there was one. One that cannot be used is
        logged once, and the previous one stays."""
        stamp: Hashable = None
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                self._trouble = None
                return False
            self._take(stamp)
        except OSError as error:
            trouble = stamp, str(error)
            if trouble != self._trouble:
                logger.warning("the certificate of %s cannot be renewed: %s", self._name, error)
            self._trouble = trouble
            return False
        self._trouble = None
        logger.info("%s has a new certificate", self._name)
        return True

    def _stamp_now(self) -> Hashable:
        """Of the certificate and of the authorities; empty while there is no certificate."""
        found = self._source.stamp()
        if not found or self._client_ca is None:
            return found
        return found, stamp_of(self._client_ca)

    def _take(self, stamp: Hashable) -> None:
        context = server_context(self._client_ca)
        load_pem(context, self._source.pem())
        # One assignment: a handshake has the old one or the new one.
        self._newest, self._stamp = context, stamp

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, with or without a name in it, before a certificate is chosen."""
        del name, context
        connection.context = self._newest

    def keep_renewing(self, closed: threading.Event, every_s: float = LOOKS_EVERY_S) -> None:
        """Call ``renew`` every ``every_s`` seconds until ``closed`` is set."""
        while not closed.wait(every_s):
            self.renew()


def load_pem(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate chain and key into a context. Raises OSError (ssl.SSLError is one).

    OpenSSL in Python reads files only. The file is in memory where the system supports it, so that no key is
    written to a disk; else it is a temporary one, readable by its owner only.
    """
    with _as_file(pem) as path:
        context.load_cert_chain(path, password=_no_password)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
            opened = stack.enter_context(os.fdopen(os.memfd_create("gpucost-tls"), "wb"))
            path = f"/proc/self/fd/{opened.fileno()}"
        else:
            opened = stack.enter_context(tempfile.NamedTemporaryFile())  # type: ignore[arg-type]
            path = opened.name
        opened.write(content)
        opened.flush()
        yield path


def server_context(client_ca: Path | None = None) -> ssl.SSLContext:
    """A context without a certificate yet. Raises OSError (ssl.SSLError is one) for authorities that cannot
    be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """A key with a passphrase is an error: without this, OpenSSL would ask at the terminal."""
    return ""
