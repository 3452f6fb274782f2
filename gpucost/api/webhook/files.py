"""A certificate in files, looked at for the process that listens: in the service, so that a listener which is
started again shows what the one before did, whatever the files hold by then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from gpucost.kube.certificates.pair import end_of
from gpucost.settings.tls import LOOKS_EVERY_S, TlsFiles, load_pem, server_context

logger = logging.getLogger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(eq=False)
class FileKeeper:
    """``show`` is told certificate and key, in one PEM, at first and when the files hold others. What cannot
    be used is told once, and ``failed`` of its kind: ``unreadable``, ``expired``. What was shown stays.

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
        """Look until ``close``."""
        while not self._stop.wait(self.every_s):
            self.look()

    def close(self) -> None:
        """From any thread."""
        self._stop.set()

    def end_ms(self) -> int | None:
        """When the certificate that is shown ends, in ms UTC. From any thread."""
        return self._end_ms

    def look(self) -> bool:
        """Show what the files hold, if that is another certificate and can be used; whether it is."""
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
        except Expired:
            self._tell(stamp, "expired", "it has expired, and the one before has not")
            return False
        self._trouble = None
        return True

    def _take(self, stamp: Hashable) -> None:
        """Raises OSError (ssl.SSLError is one) and Expired; then nothing has changed."""
        pem = self.files.pem()
        load_pem(server_context(), pem)
        text = pem.decode(errors="replace")
        end_ms = end_of(text)
        if self._end_ms is not None and (end_ms or 0) <= self.now() < self._end_ms:
            raise Expired
        self._stamp, self._end_ms = stamp, end_ms
        self.show(text)

    def _tell(self, stamp: Hashable, kind: str, why: str) -> None:
        if self._trouble != (stamp, why):
            self.failed(kind)
            logger.warning("the certificate of the webhook cannot be renewed: %s", why)
        self._trouble = stamp, why


class Expired(ValueError):
    """A certificate that ended before the one in whose place it should be."""
