"""Connections: a name is resolved once, its addresses are checked, and one of those is connected to, so that
DNS cannot answer differently in between. All of a delivery happens within one deadline."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from gpucost.notify.sending.address import trouble_with
from gpucost.notify.sending.delivery import Refused, Retry

T = TypeVar("T")
Resolve = Callable[[str, int], list[str]]
CONNECT_S = 5.0
"""For one address to accept a connection, and then for each step of TLS."""


class ConnectionDeadline:
    """Cuts every connection that it watches once its time is up, whatever they are doing."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._watched: list[socket.socket] = []

    @property
    def left_s(self) -> float:
        return max(self._end_s - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end_s

    def watch(self, connection: socket.socket) -> None:
        # A duplicate ends the connection even after TLS has taken the socket over.
        with self._lock:
            self._watched.append(connection.dup())

    def cut(self) -> None:
        with self._lock:
            for each in self._watched:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for each in self._watched:
                each.close()
            self._watched.clear()


@contextmanager
def within(seconds: float) -> Iterator[ConnectionDeadline]:
    deadline = ConnectionDeadline(seconds)
    timer = threading.Timer(seconds, deadline.cut)
    timer.daemon = True
    timer.start()
    try:
        yield deadline
    finally:
        timer.cancel()
        deadline.close()


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, each once, in the system's order. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def checked_addresses(
    host: str, port: int, deadline: ConnectionDeadline, *, allow_private: bool, resolve: Resolve = resolve
) -> list[str]:
    """The addresses at which ``host`` may be connected to. Raises Retry when its name does not resolve now,
    Refused when one of its addresses is not allowed: then none is."""
    addresses = _in_time(lambda: resolve(host, port), deadline, host)
    for address in addresses:
        trouble = trouble_with(address, allow_private=allow_private)
        if trouble:
            raise Refused(f"{host}: {address} {trouble}")
    return addresses


def connected(
    host: str,
    port: int,
    deadline: ConnectionDeadline,
    addresses: list[str],
    connect: Callable[[str, int, float], T],
) -> T:
    """The result of ``connect`` (address, port, seconds; raises OSError) for the first address that accepts.
    Raises Retry when none does."""
    reason = "no address"
    for address in addresses:
        try:
            return connect(address, port, min(CONNECT_S, deadline.left_s))
        except OSError as error:
            reason = _reason(error)
    raise Retry(f"{host}: no connection to port {port} ({reason})")


def _in_time(resolve: Callable[[], list[str]], deadline: ConnectionDeadline, host: str) -> list[str]:
    # The system's resolver has no timeout of ours: it goes on in a thread that is not waited for.
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(resolve())
        except (OSError, UnicodeError) as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True, name="gpucost-resolve").start()
    try:
        found = answer.get(timeout=deadline.left_s)
    except queue.Empty:
        raise Retry(f"{host}: the name was not resolved in time") from None
    if isinstance(found, UnicodeError):
        raise Refused(f"{host[:80]}: no name of a host") from None
    if isinstance(found, OSError):
        raise Retry(f"{host}: the name does not resolve ({_reason(found)})") from None
    return list(found)


def _reason(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else (error.strerror or type(error).__name__)
