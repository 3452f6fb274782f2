"""Every object of a collection, once: what ``gpucost state`` needs, which asks and does not watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from gpucost.kube.calls import GONE, NOT_FOUND, Calls, Refused
from gpucost.kube.collections import Collection
from gpucost.kube.discovery import Discovery
from gpucost.kube.events import Object, Unreadable
from gpucost.kube.transport import Transport

T = TypeVar("T")

FORBIDDEN = 403
_PAGE = 500
_PAGES = 10_000
_TIMEOUT_S = 60.0
_ATTEMPTS = 3
_BUSY = frozenset({429, 500, 502, 503, 504})
_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """What a collection holds; ``version`` is the one it was read in, empty where it is not served."""

    version: str
    items: tuple[T, ...]


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
                    return Listed(each, self._whole(path, partial(take, each)))
                except Refused as refused:
                    if refused.status != NOT_FOUND:
                        raise
        return Listed("", ())

    def _served(self, collection: Collection) -> tuple[str, ...]:
        """Versions worth asking for. A server that does not say may serve any."""
        try:
            return self._discovery.versions(collection.group)
        except (Refused, Unreadable):
            return collection.versions

    def _whole(self, path: str, take: Callable[[Object], T]) -> tuple[T, ...]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return tuple(self._pages(path, take))
            except Refused as refused:
                if attempt == _ATTEMPTS or refused.status not in (GONE, *_BUSY):
                    raise
                if refused.status in _BUSY:
                    asked_s = _WAIT_S if refused.retry_after_s is None else refused.retry_after_s
                    self._wait(min(asked_s, _LONGEST_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _pages(self, path: str, take: Callable[[Object], T]) -> Iterator[T]:
        token = ""
        for _ in range(_PAGES):
            page = self._calls.page(path, token, _PAGE, _TIMEOUT_S)
            yield from (take(item) for item in page.items if isinstance(item, dict))
            token = page.token
            if not token:
                return
        raise Unreadable("too_many")
