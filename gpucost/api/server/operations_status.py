"""Status of the process: its configuration, whether it is stopping, what its API answered and refused.

It outlives a reload, as the counters of the process should.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class RequestRefusal(StrEnum):
    """Why a valid request was not worked on."""

    RATE = "rate"
    UNAUTHORIZED = "unauthorized"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The last attempt to read the configuration, and the one in force: its ``hash``, since ``loaded_ms``."""

    is_good: bool
    loaded_ms: int
    hash: str


class OperationsStatus:
    """Counters since the start of the process. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._config: ConfigStatus | None = None
        self._stopping = threading.Event()
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._refusals: Counter[RequestRefusal] = Counter(dict.fromkeys(RequestRefusal, 0))

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stops(self) -> None:
        """Readiness probes fail from now on."""
        self._stopping.set()

    def config_loaded(self, now_ms: int, config_hash: str) -> None:
        with self._lock:
            self._config = ConfigStatus(True, now_ms, config_hash)

    def config_refused(self) -> None:
        """A new configuration was refused; the one in force stays."""
        with self._lock:
            found = self._config
            if found is not None:
                self._config = ConfigStatus(False, found.loaded_ms, found.hash)

    def config(self) -> ConfigStatus | None:
        """None where configurations are not reloaded, as in the demo."""
        with self._lock:
            return self._config

    def answered(self, method: str, route: str, status: int) -> None:
        """``route`` is one of ours or empty, so that no client can make series."""
        with self._lock:
            self._answers[method, route, status] += 1

    def refused(self, why: RequestRefusal) -> None:
        with self._lock:
            self._refusals[why] += 1

    def answers(self) -> dict[tuple[str, str, int], int]:
        """By method, route and status."""
        with self._lock:
            return dict(self._answers)

    def refusals(self) -> dict[RequestRefusal, int]:
        with self._lock:
            return dict(self._refusals)
