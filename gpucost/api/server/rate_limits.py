"""Limits on requests: how often a caller may ask, and how much is computed at once."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpucost.access.authenticator import CheckUnavailable
from gpucost.api.server.errors import too_busy, too_many
from gpucost.api.server.operations_status import OperationsStatus, RequestRefusal
from gpucost.service.settings.api import ApiSettings

MOST_KEPT = 10_000
"""Principals, and addresses, that are remembered; the least recent one is forgotten."""
PATIENCE_S = 5.0
"""How long a heavy query waits for its turn."""
MOST_CHECKS = 8
"""Tokens that are checked on another machine at once. Each takes a thread of its own."""
MOST_WAITING = 64
"""Such tokens that wait for their turn."""
_LOOK_S = 0.02
_REFUSED_BURST_S = 60


class TokenBuckets:
    """One token bucket a name: ``burst`` at once, ``rate`` a second after that. 0 is no limit."""

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        most: int = MOST_KEPT,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._most, self._seconds = rate, max(1.0, burst), most, seconds
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, cost: int = 1) -> float:
        """0 when it may; else the seconds after which it may. A cost above ``burst`` takes the
        whole bucket."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            now = self._seconds()
            tokens = self._tokens(name, now)
            price = min(float(cost), self._burst)
            wait = self._wait(tokens, price)
            self._held.pop(name, None)
            self._held[name] = (tokens if wait else tokens - price, now)
            if len(self._held) > self._most:
                self._held.popitem(last=False)
            return wait

    def look(self, name: str) -> float:
        """What ``take`` would return, without taking anything."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            return self._wait(self._tokens(name, self._seconds()))

    def _tokens(self, name: str, now: float) -> float:
        tokens, at = self._held.get(name, (self._burst, now))
        return min(self._burst, tokens + (now - at) * self._rate)

    def _wait(self, tokens: float, cost: float = 1.0) -> float:
        return 0.0 if tokens >= cost else (cost - tokens) / self._rate

    def __len__(self) -> int:
        return len(self._held)


class RequestGate:
    """The limits of one app; what they refuse is counted in ``status``."""

    def __init__(
        self,
        settings: ApiSettings,
        status: OperationsStatus,
        *,
        seconds: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._principals = TokenBuckets(settings.rate, settings.burst, seconds=seconds)
        refused_burst = settings.refused_rate * _REFUSED_BURST_S
        self._addresses = TokenBuckets(settings.refused_rate, refused_burst, seconds=seconds)
        self._turns = threading.Semaphore(settings.heavy)
        self._checks = threading.Semaphore(MOST_CHECKS)
        self._checks_and_waiting = threading.Semaphore(MOST_CHECKS + MOST_WAITING)
        self._most = settings.heavy
        self._status = status
        self._patience_s = patience_s

    def admit(self, principal: str, cost: int = 1) -> None:
        """Count a request of an authenticated principal, with a ``cost`` in small requests. Raises ApiError
        (429) for too many."""
        wait_s = self._principals.take(principal, cost)
        if wait_s:
            self._status.refused(RequestRefusal.RATE)
            raise too_many("requests of this principal", math.ceil(wait_s))

    def refuse(self, address: str) -> None:
        """Count a refused request. Raises ApiError (429) when ``address`` is refused too often: guessing gets
        no answer then. A caller with a valid key is not affected: behind a proxy all share one address."""
        self._hold_up(self._addresses.take(_neighbours(address)))

    @asynccontextmanager
    async def asking(self, address: str) -> AsyncIterator[None]:
        """A turn to check a token on another machine. Waiting takes no thread. Raises ApiError (429) when
        ``address`` is refused too often, so that guessing does not reach that machine, and CheckUnavailable
        when there is no turn in time.
        """
        self._hold_up(self._addresses.look(_neighbours(address)))
        busy = CheckUnavailable("too many tokens are being checked")
        if not self._checks_and_waiting.acquire(blocking=False):
            raise busy
        try:
            if not await _acquired(self._checks, self.until()):
                raise busy
            try:
                yield
            finally:
                self._checks.release()
        finally:
            self._checks_and_waiting.release()

    def _hold_up(self, wait_s: float) -> None:
        if wait_s:
            self._status.refused(RequestRefusal.UNAUTHORIZED)
            raise too_many("refused requests from this address", math.ceil(wait_s))

    def until(self) -> float:
        """Until when a caller that asks now waits for a turn, in seconds of the monotonic clock."""
        return time.monotonic() + self._patience_s

    @asynccontextmanager
    async def turn(self, until: float | None = None) -> AsyncIterator[None]:
        """A turn for a heavy query. Waiting takes no thread and no connection. Raises ApiError (503) when
        there is none by ``until``; without it, the patience begins now."""
        if not await _acquired(self._turns, self.until() if until is None else until):
            self._status.refused(RequestRefusal.HEAVY)
            raise too_busy(self._most)
        try:
            yield
        finally:
            self._turns.release()


async def _acquired(turns: threading.Semaphore, until: float) -> bool:
    """Whether it got one by ``until``, in seconds of the monotonic clock."""
    # No lock of asyncio: it belongs to one loop, and an app may be called from several.
    while not turns.acquire(blocking=False):
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def _neighbours(address: str) -> str:
    """The addresses that count as one: an IPv4 address, however it is written, and all of an IPv6 /64, which
    one machine may have to itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))
