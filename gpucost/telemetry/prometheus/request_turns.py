"""How many requests to one server are under way at once, and asking several questions together.

A server that answers several at once as fast as one is asked several; one that says that it has too much to
do (429, 503), or does not answer in time, is asked half as many from then on, and one more again after some
answers that came. Whoever asks waits for a turn; nobody is refused.

``PrometheusClient`` takes a turn for each request. ``asked_together`` is what readers call it with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

_Answer = TypeVar("_Answer")
_ANSWERS_FOR_ONE_MORE = 20


class RequestTurns:
    """Turns of at most ``most`` requests at once; may be shared by threads."""

    def __init__(self, most: int) -> None:
        self._most = self._allowed = most
        self._under_way = self._answered = 0
        self._changed = threading.Condition()

    @property
    def allowed(self) -> int:
        """How many may be under way at once now."""
        return self._allowed

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self._allowed)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def answered(self) -> None:
        """The server answered a request."""
        with self._changed:
            self._answered += 1
            if self._answered >= _ANSWERS_FOR_ONE_MORE and self._allowed < self._most:
                self._allowed, self._answered = self._allowed + 1, 0
                self._changed.notify_all()

    def overloaded(self) -> None:
        """The server said that it has too much to do, or did not answer in time."""
        with self._changed:
            self._allowed, self._answered = max(1, self._allowed // 2), 0


_OF_THREAD = threading.local()


def asked_together(asks: Sequence[Callable[[], _Answer]], most: int) -> list[_Answer]:
    """The results of ``asks`` in their order, ``most`` of them at once. Where any fails, those after it are
    not begun, and the first that failed is raised, as if one had been asked after the other. Within one of
    them, others run one after the other.

    The threads are nobody's to wait for: an interrupted command ends at once.
    """
    if len(asks) < 2 or most < 2 or getattr(_OF_THREAD, "is_inside", False):
        return [ask() for ask in asks]
    found: list[Future[_Answer]] = [Future() for _ in asks]
    numbers, lock, failed = iter(range(len(asks))), threading.Lock(), [len(asks)]

    def work() -> None:
        _OF_THREAD.is_inside = True
        while True:
            with lock:
                number = next(numbers, len(asks))
                if number >= failed[0]:
                    return
            try:
                found[number].set_result(asks[number]())
            except BaseException as error:  # raised by whoever waits for it
                with lock:
                    failed[0] = min(failed[0], number)
                found[number].set_exception(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(most, len(asks)))]
    for thread in threads:
        thread.start()
    try:
        return [each.result() for each in found]
    except Exception:
        for thread in threads:
            thread.join()
        raise
    finally:
        with lock:
            failed[0] = -1


def begun(ask: Callable[[], _Answer]) -> Future[_Answer]:
    """What will have the result of ``ask``, which goes on in a thread of its own that nobody waits for; what
    it asks together runs one after the other."""
    found: Future[_Answer] = Future()

    def work() -> None:
        _OF_THREAD.is_inside = True
        try:
            found.set_result(ask())
        except BaseException as error:  # raised by whoever waits for it
            found.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return found


class QuestionBatch:
    """Questions of several kinds that are asked together, ``most`` of them at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._asks: list[Callable[[], None]] = []

    def add(self, ask: Callable[[], _Answer]) -> Future[_Answer]:
        """What will have the answer once all are asked."""
        found: Future[_Answer] = Future()
        self._asks.append(lambda: found.set_result(ask()))
        return found

    def ask(self) -> None:
        """As ``asked_together``."""
        asked_together(self._asks, self._most)
