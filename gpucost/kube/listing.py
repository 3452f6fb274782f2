"""Every object of a collection, once: what ``gpucost state`` needs, which asks and does not watch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from gpucost.kube.calls import GONE, NOT_FOUND, Calls, Refused, deadlines
from gpucost.kube.collections import Collection
from gpucost.kube.connect.transport import Transport
from gpucost.kube.discovery import Discovery
from gpucost.kube.events import Object, Unreadable

T = TypeVar("T")

_PAGE = 500
_PAGES = 10_000
_TIMEOUT_S, _PAGE_S, _LIST_S = 60.0, 300.0, 1800.0
_ATTEMPTS = 3
_BUSY = frozenset({429, 500, 502, 503, 504})
_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """What a collection holds; ``version`` is the one it was read in, empty where it is not served.
    ``unread`` objects are there and could not be read."""

    version: str
    items: tuple[T, ...]
    unread: int = 0


class Lister:
    """Lists collections over ``transport``, one after another. ``wait`` sleeps for seconds."""

    def __init__(self, transport: Transport, wait: Callable[[float], None] = time.sleep) -> None:
        self._calls = Calls(transport, {}, time.time_ns)
        self._discovery = Discovery(transport)
        self._wait = wait

    def all(self, collection: Collection, take: Callable[[str, Object], T]) -> Listed[T]:
        """All objects of ``collection`` in the best version that is served, each as ``take`` makes it of that
        version and the object: no page is kept longer than it takes to read it.

        A list whose pages expire half-way is begun again, and so is one that the server is too busy for.
        Raises TransportError, Refused or Unreadable.
        """
        served = self._served(collection)
        for each, path in zip(collection.versions, collection.paths, strict=True):
            if each in served:
                try:
                    return Listed(each, *self._whole(path, partial(take, each)))
                except Refused as refused:
                    if refused.status != NOT_FOUND:
                        raise
        return Listed("", ())

    def _served(self, collection: Collection) -> tuple[str, ...]:
        """Versions worth asking for. A server that does not say may serve any."""
        try:
            return self._discovery.versions_of(collection.group, collection.plural)
        except (Refused, Unreadable):
            return collection.versions

    def _whole(self, path: str, take: Callable[[Object], T]) -> tuple[tuple[T, ...], int]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._pages(path, take)
            except Refused as refused:
                if attempt == _ATTEMPTS or refused.status not in (GONE, *_BUSY):
                    raise
                if refused.status in _BUSY:
                    asked_s = _WAIT_S if refused.retry_after_s is None else refused.retry_after_s
                    self._wait(min(asked_s, _LONGEST_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _pages(self, path: str, take: Callable[[Object], T]) -> tuple[tuple[T, ...], int]:
        """What was taken, and how many objects could not be read."""
        taken: list[T] = []
        unread = 0
        pages = self._calls.pages(path, _PAGE, _TIMEOUT_S, deadlines(time.monotonic, _PAGE_S, _LIST_S))
        for number, page in enumerate(pages):
            if number == _PAGES:
                raise Unreadable("too_many")
            unread += len(page.unread)
            for item in page.items:
                try:
                    taken += [take(item)] if isinstance(item, dict) else []
                except RecursionError:
                    unread += 1
        return tuple(taken), unread
