"""Certificates of listeners: read with care, and taken anew when they are replaced.

A certificate and its key never change in a context that is in use: a handshake between the two would find a
certificate without its key. There is a new context, which each handshake asks for.
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
    """Where a certificate is from."""

    def stamp(self) -> Hashable:
        """Another one when there is another certificate. Raises OSError."""

    def pem(self) -> bytes:
        """Certificate chain and key, that belong together. Raises OSError."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate chain and key, in PEM."""

    certificate: Path
    key: Path

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """See ``TlsSource``."""
        return tuple(map(stamp_of, (self.certificate, self.key)))

    def pem(self) -> bytes:
        """See ``TlsSource``. Files that change while they are read are none yet."""
        before = self.stamp()
        found = read_small(self.certificate) + b"\n" + read_small(self.key)
        if self.stamp() != before:
            raise OSError("its files are being replaced")
        return found

    def load(self, context: ssl.SSLContext) -> None:
        """Into a context that nobody uses yet. Raises OSError (ssl.SSLError is one) for files that are none,
        or do not belong together."""
        load_pem(context, self.pem())


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Another one when the file was replaced. Raises OSError."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


class TlsMemory:
    """Certificate and key in memory, replaced by ``give``, from any thread. None at first."""

    def __init__(self) -> None:
        self._pem = b""

    def give(self, pem: bytes) -> None:
        """Another one, in PEM."""
        self._pem = pem

    def stamp(self) -> bytes:
        """See ``TlsSource``."""
        return self._pem

    def pem(self) -> bytes:
        """See ``TlsSource``."""
        return self._pem


class ListenerCertificate:
    """``context`` is for a listener: new connections get the newest certificate, those that are up stay up.

    ``name`` says in the log whose it is. Raises OSError for files that cannot be used. Of a source without a
    certificate yet, handshakes fail until there is one. With ``client_ca``, a PEM file of authorities, they
    fail for whoever has no certificate of these; another file of authorities is taken like a certificate.
    """

    def __init__(self, source: TlsSource, name: str, client_ca: Path | None = None) -> None:
        self._source, self._name, self._client_ca = source, name, client_ca
        self._stamp: Hashable = b""
        self._trouble: Hashable = None
        self._newest = server_context(client_ca)
        # Whether a certificate is asked for is the first context's to say, and what it is checked with the
        # chosen one's: both have it.
        self.context = server_context(client_ca)
        self.context.sni_callback = self._choose
        if stamp := self._stamp_now():
            self._take(stamp)
            # For who looks at it before a handshake, and so that what holds of it holds of all.
            load_pem(self.context, source.pem())

    def renew(self) -> bool:
        """Take a certificate that was replaced since; whether there was one. What cannot be used is logged
        once, and the one before stays."""
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
        """Of the certificate and of the authorities; nothing while there is no certificate."""
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
        """Until ``closed`` is set."""
        while not closed.wait(every_s):
            self.renew()


def load_pem(context: ssl.SSLContext, pem: bytes) -> None:
    """Certificate chain and key into a context. Raises OSError (ssl.SSLError is one).

    OpenSSL in Python reads files only. This one is in memory where the system can, so that no key is written
    to a disk; else a temporary one, for its owner only.
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
    """Without a certificate yet. Raises OSError (ssl.SSLError is one) for authorities that cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """A key with a passphrase is an error: without this, OpenSSL would ask at the terminal."""
    return ""
