"""Whether requests should be sent here, for anybody who asks, however often.

The ledger is asked once a second at most, by one thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum

from gpucost.domain.errors import LedgerError, shorten

logger = logging.getLogger(__name__)

FRESH_S = 1.0
PATIENCE_S = 2.0
"""A ledger that takes longer to answer is one that does not."""
_LOOK_S = 0.02


class Ready(StrEnum):
    """All that is told."""

    READY = "ready"
    STOPPING = "stopping"
    STALLED = "loop stalled"
    LEDGER = "ledger unavailable"


class Readiness:
    """``read`` reads the ledger and raises LedgerError; ``stalled`` and ``is_stopping`` ask nobody."""

    def __init__(
        self,
        read: Callable[[], object],
        stalled: Callable[[], bool],
        is_stopping: Callable[[], bool],
        *,
        seconds: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._read, self._stalled, self._is_stopping = read, stalled, is_stopping
        self._seconds, self._patience_s = seconds, patience_s
        self._lock = threading.Lock()
        self._is_readable = False
        self._read_s: float | None = None
        self._since_s: float | None = None

    async def look(self) -> Ready:
        """Never waits longer than ``patience_s``, and takes no thread of those that answer."""
        if self._is_stopping():
            return Ready.STOPPING
        if self._stalled():
            return Ready.STALLED
        self._begin()
        until = time.monotonic() + self._patience_s
        while (since := self._since_s) is not None:
            if self._seconds() - since >= self._patience_s or time.monotonic() >= until:
                return Ready.LEDGER
            await asyncio.sleep(_LOOK_S)
        return Ready.READY if self._is_readable else Ready.LEDGER

    def _begin(self) -> None:
        """Read the ledger, unless somebody does or just did."""
        with self._lock:
            now = self._seconds()
            if self._since_s is not None or (self._read_s is not None and now - self._read_s < FRESH_S):
                return
            self._since_s = now
        threading.Thread(target=self._work, name="gpucost-readiness", daemon=True).start()

    def _work(self) -> None:
        try:
            self._read()
            is_readable = True
        except LedgerError as error:
            logger.warning("not ready: the ledger cannot be read: %s", shorten(str(error), 500))
            is_readable = False
        except Exception:
            logger.exception("not ready: the ledger cannot be read")
            is_readable = False
        with self._lock:
            self._is_readable, self._read_s, self._since_s = is_readable, self._seconds(), None
