"""How long to wait before a request is repeated. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FullJitter:
    """A pause uniform between 0 and a ceiling that doubles with each failure, up to ``cap_s``.

    Full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015) spreads the clients
    of a server that comes back over the whole of the pause.
    """

    base_s: float = 1.0
    cap_s: float = 30.0

    def pause_s(self, failures: int, jitter: float) -> float:
        """The pause after ``failures`` in a row (1 or more); ``jitter`` is uniform in [0, 1)."""
        ceiling_s: float = self.base_s * 2 ** min(failures - 1, 32)
        return jitter * min(self.cap_s, ceiling_s)


def retry_after_s(value: str | None, now_ns: int) -> float | None:
    """Seconds from a ``Retry-After`` header (RFC 9110, 10.2.3: seconds or a date), None if it gives none.

    0 and dates in the past count as no header: they would allow a storm of retries.
    """
    if value is None:
        return None
    seconds = float(value) if value.isascii() and value.isdigit() else _until(value, now_ns)
    return seconds if seconds is not None and 0 < seconds < math.inf else None


def _until(value: str, now_ns: int) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - now_ns / _NS
    except (ValueError, OverflowError):
        return None
