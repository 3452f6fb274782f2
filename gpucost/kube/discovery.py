"""Which versions of a collection the server serves; a group may come, and change, while we run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gpucost.kube.calls import NOT_FOUND, Calls, Refused
from gpucost.kube.connect.transport import Transport
from gpucost.kube.events import Unreadable

KEPT_S = 300.0
"""How long an answer is believed."""

_TIMEOUT_S = 30.0


class Discovery:
    """Asks for API groups and what is in them, and keeps each answer for ``kept_s``.

    ``monotonic`` gives seconds, ``clock`` Unix nanoseconds. May be used from several threads. Everything
    raises ``TransportError``, ``Refused`` and ``Unreadable``; then the next call asks again.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        kept_s: float = KEPT_S,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._transport, self._kept_s = transport, kept_s
        self._monotonic, self._clock = monotonic, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

    def versions(self, group: str) -> tuple[str, ...]:
        """The served versions of a group other than the core, ``()`` when it is not there."""
        return self._named(f"/apis/{group}", "versions", "version")

    def versions_of(self, group: str, plural: str) -> tuple[str, ...]:
        """Those of them that have the collection ``plural``."""
        return tuple(
            version
            for version in self.versions(group)
            if plural in self._named(f"/apis/{group}/{version}", "resources", "name")
        )

    def _named(self, path: str, key: str, name: str) -> tuple[str, ...]:
        now_s = self._monotonic()
        with self._lock:
            asked_s, names = self._known.get(path, (None, ()))
        if asked_s is not None and 0 <= now_s - asked_s < self._kept_s:
            return names
        names = self._asked(path, key, name)
        with self._lock:
            self._known[path] = now_s, names
        return names

    def _asked(self, path: str, key: str, name: str) -> tuple[str, ...]:
        calls = Calls(self._transport, {}, self._clock)
        try:
            with calls.get(path, {}, _TIMEOUT_S) as response:
                return _names(response.read_json(), key, name)
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return ()
            raise


def _names(answer: Any, key: str, name: str) -> tuple[str, ...]:
    """From an APIGroup or an APIResourceList."""
    listed = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise Unreadable("bad_list")
    found = [item.get(name) for item in listed if isinstance(item, dict)]
    return tuple(each for each in found if isinstance(each, str) and each)
