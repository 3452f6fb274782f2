"""Requests about a collection, and how an answer becomes a page, lines, or a refusal: the two that a
reflector makes, which versions the server serves, and all objects, listed once.

A group may appear, and change, at run time. The list (``ListOnce``) is for ``gpucost state``, which reads
once and does not watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from gpucost.domain.backoff import retry_after_s
from gpucost.domain.errors import shorten
from gpucost.kube.connect.transport import (
    AnswerCheck,
    KubeResponse,
    KubeTransport,
    TooLarge,
    TransportError,
    no_check,
)
from gpucost.kube.parse.collections import ApiCollection
from gpucost.kube.parse.events import (
    ListPage,
    Object,
    Unreadable,
    head_of,
    page_of,
)

OK, BAD_REQUEST, FORBIDDEN, NOT_FOUND, GONE = 200, 400, 403, 404, 410
KEPT_S = 300.0
"""How long an answer is kept."""

_TIMEOUT_S = 30.0


class ApiServerRefusal(Exception):
    """The server answered with an error: a status, or an ERROR event in a watch.

    ``relist``: the same watch would only be refused again. ``retry_after_s`` is what the server requested,
    None if it did not.
    """

    def __init__(
        self, reason: str, status: int, message: str, retry_after_s: float | None, relist: bool
    ) -> None:
        self.reason, self.status, self.message = reason, status, message
        self.retry_after_s, self.relist = retry_after_s, relist
        super().__init__(reason)


class ListWatchCalls:
    """Lists and watches over a transport, one at a time; ``close`` ends the current one, from any thread.

    Every method raises ``TransportError``, ``Unreadable`` or ``ApiServerRefusal``.
    """

    def __init__(self, transport: KubeTransport, params: Mapping[str, str], clock: Callable[[], int]) -> None:
        self._transport, self._params, self._clock = transport, dict(params), clock
        self._lock = threading.Lock()
        self._response: KubeResponse | None = None
        self._is_closed = False

    def pages(
        self, path: str, size: int, timeout_s: float, deadline: Callable[[], AnswerCheck]
    ) -> Iterator[ListPage]:
        """A list, page by page, ``size`` objects to a page at most; ``deadline`` makes the check of each.

        A page that is too large is requested again with half as many objects. One object that is too large
        alone is left out and reported. After a page that could be read the next has twice as many again.
        """
        token, now = "", size
        while True:
            try:
                page = self._page(path, token, now, timeout_s, deadline())
            except TooLarge as error:
                if now > 1:
                    now //= 2
                    continue
                page = _without_object(error, token)
            if page.token and page.token == token:
                raise Unreadable("bad_list")
            yield page
            token, now = page.token, min(2 * now, size)
            if not token:
                return

    def _page(self, path: str, token: str, size: int, timeout_s: float, check: AnswerCheck) -> ListPage:
        params = {"limit": str(size), **({"continue": token} if token else {})}
        with self.get(path, params, timeout_s) as response:
            return page_of(response.read_body(check))

    @contextmanager
    def watch(
        self, path: str, position: str, ends_s: int, silence_s: float, check: AnswerCheck = no_check
    ) -> Iterator[Iterator[bytes]]:
        """The lines of a watch from ``position``; the server ends it after ``ends_s`` seconds."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": position,
            "timeoutSeconds": str(max(ends_s, 1)),
        }
        with self.get(path, params, silence_s) as response:
            yield response.lines(check)

    def close(self) -> None:
        """No answer is read from now on."""
        with self._lock:
            self._is_closed = True
            if self._response is not None:
                self._response.abort()

    @contextmanager
    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> Iterator[KubeResponse]:
        """An answer of 200, for as long as it is read."""
        response = self._transport.get(path, {**self._params, **params}, timeout_s)
        try:
            self._begin(response)
            if response.status != OK:
                raise self._refusal(response)
            yield response
        finally:
            with self._lock:
                self._response = None
            response.close()

    def _begin(self, response: KubeResponse) -> None:
        with self._lock:
            self._response = response
            if self._is_closed:
                response.abort()

    def _refusal(self, response: KubeResponse) -> ApiServerRefusal:
        status = response.status
        try:
            answer = response.read_json()
        except TransportError:
            answer = None
        wait_s = retry_after_s(response.headers.get("retry-after"), self._clock())
        return ApiServerRefusal(
            f"http_{status}", status, _message(answer), wait_s, status in {BAD_REQUEST, NOT_FOUND, GONE}
        )


def _without_object(error: TooLarge, token: str) -> ListPage:
    """Raises ``error`` where it may not be one object, but a whole list from a server without pagination,
    which must never pass for a list that ends here."""
    try:
        page = head_of(error.head)
    except Unreadable:
        raise error from None
    if not page.token and not token:
        raise error
    return page


def deadlines(monotonic: Callable[[], float], page_s: float, list_s: float) -> Callable[[], AnswerCheck]:
    """The checks of the pages of a list that begins now: a page may take ``page_s`` seconds, all of them
    ``list_s``."""
    last = monotonic() + list_s

    def deadline() -> AnswerCheck:
        ends = min(last, monotonic() + page_s)

        def check() -> None:
            if monotonic() > ends:
                raise TransportError("overdue", "a list takes too long")

        return check

    return deadline


def refusal_of_event(status: Object) -> ApiServerRefusal:
    """From the Status in an ERROR event."""
    code = status.get("code")
    known = code if isinstance(code, int) and 100 <= code <= 599 else 0
    return ApiServerRefusal(f"event_{known}", known, _message(status), None, relist=True)


def _message(status: Any) -> str:
    message = status.get("message") if isinstance(status, dict) else None
    return shorten(message, 256) if isinstance(message, str) else "no reason given"


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
