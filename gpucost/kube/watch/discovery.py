"""Which versions of a collection the server serves, and all of its objects, listed once.

A group may appear, and change, at run time. The list is for ``gpucost state``, which reads once and does not
watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from gpucost.kube.connect.transport import KubeTransport
from gpucost.kube.parse.collections import ApiCollection
from gpucost.kube.parse.events import Object, Unreadable
from gpucost.kube.watch.api_calls import (
    GONE,
    NOT_FOUND,
    ApiServerRefusal,
    ListWatchCalls,
    deadlines,
)

KEPT_S = 300.0
"""How long an answer is kept."""

_TIMEOUT_S = 30.0


class ApiDiscovery:
    """Queries API groups and their resources, and keeps each answer for ``kept_s``.

    ``monotonic`` gives seconds, ``clock`` Unix nanoseconds. May be used from several threads. Every method
    raises ``TransportError``, ``ApiServerRefusal`` and ``Unreadable``; then the next call asks again.
    """

    def __init__(
        self,
        transport: KubeTransport,
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
        calls = ListWatchCalls(self._transport, {}, self._clock)
        try:
            with calls.get(path, {}, _TIMEOUT_S) as response:
                return _names(response.read_json(), key, name)
        except ApiServerRefusal as refused:
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


T = TypeVar("T")

_PAGE = 500
_PAGES = 10_000
_LIST_TIMEOUT_S, _PAGE_S, _LIST_S = 60.0, 300.0, 1800.0
_ATTEMPTS = 3
_BUSY = frozenset({429, 500, 502, 503, 504})
_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class CollectionList(Generic[T]):
    """The objects of a collection; ``version`` is the one it was read in, empty where it is not served.
    ``unread`` objects exist and could not be read."""

    version: str
    items: tuple[T, ...]
    unread: int = 0


class CollectionLister:
    """Lists collections over ``transport``, one after another. ``wait`` sleeps for seconds."""

    def __init__(self, transport: KubeTransport, wait: Callable[[float], None] = time.sleep) -> None:
        self._calls = ListWatchCalls(transport, {}, time.time_ns)
        self._discovery = ApiDiscovery(transport)
        self._wait = wait

    def all(self, collection: ApiCollection, take: Callable[[str, Object], T]) -> CollectionList[T]:
        """All objects of ``collection`` in the best version that is served, each converted by ``take`` from
        that version and the object: no page is kept longer than it takes to read it.

        A list whose pages expire half-way is begun again, and so is one that the server is too busy for.
        Raises TransportError, ApiServerRefusal or Unreadable.
        """
        served = self._served(collection)
        for each, path in zip(collection.versions, collection.paths, strict=True):
            if each in served:
                try:
                    return CollectionList(each, *self._whole(path, partial(take, each)))
                except ApiServerRefusal as refused:
                    if refused.status != NOT_FOUND:
                        raise
        return CollectionList("", ())

    def _served(self, collection: ApiCollection) -> tuple[str, ...]:
        """Versions worth trying. A server that does not list versions may serve any."""
        try:
            return self._discovery.versions_of(collection.group, collection.plural)
        except (ApiServerRefusal, Unreadable):
            return collection.versions

    def _whole(self, path: str, take: Callable[[Object], T]) -> tuple[tuple[T, ...], int]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._pages(path, take)
            except ApiServerRefusal as refused:
                if attempt == _ATTEMPTS or refused.status not in (GONE, *_BUSY):
                    raise
                if refused.status in _BUSY:
                    asked_s = _WAIT_S if refused.retry_after_s is None else refused.retry_after_s
                    self._wait(min(asked_s, _LONGEST_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _pages(self, path: str, take: Callable[[Object], T]) -> tuple[tuple[T, ...], int]:
        """The converted objects, and how many objects could not be read."""
        taken: list[T] = []
        unread = 0
        pages = self._calls.pages(path, _PAGE, _LIST_TIMEOUT_S, deadlines(time.monotonic, _PAGE_S, _LIST_S))
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
