"""The two requests a reflector makes, and how an answer becomes a page, lines, or a refusal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
from gpucost.kube.parse.events import (
    ListPage,
    Object,
    Unreadable,
    head_of,
    page_of,
)

OK, BAD_REQUEST, FORBIDDEN, NOT_FOUND, GONE = 200, 400, 403, 404, 410


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
