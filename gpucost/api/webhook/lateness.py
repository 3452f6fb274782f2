"""How late an event loop is: what is sent waits as long before it is read, which no deadline counts."""

from __future__ import annotations

import asyncio

_EVERY_S = 0.01


class Lateness:
    """Of the running loop. While somebody asks a timer is set; what it comes late counts until the next."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._due_s: float | None = None
        self._is_asked = False

    def seconds(self) -> float:
        """Called in one loop only; 0.0 after a pause of asking."""
        loop = asyncio.get_running_loop()
        self._is_asked = True
        if self._due_s is None:
            self._set(loop)
            return 0.0
        return max(self._last_s, loop.time() - self._due_s)

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + _EVERY_S
        loop.call_at(self._due_s, self._came, loop, self._due_s)

    def _came(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._last_s = loop.time() - due_s
        self._due_s = None
        if self._is_asked:
            self._is_asked = False
            self._set(loop)
        else:
            self._last_s = 0.0
