"""Work with a deadline for an event loop: one worker, a short queue, and an answer in time whatever it does.

Advice is computed in Python, which cannot be stopped from outside. So there is one worker and no more; while
it is very late no review waits for it, and a review that waited too long is not begun. A task may leave a
first outcome and go on to a better one while no other waits: at its deadline, the last outcome counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpucost.api.webhook.admission_review import AdmissionReview, ReviewResult

logger = logging.getLogger(__name__)

# Weight of the newest task in the usual time to a first outcome, from which the length of the queue is
# estimated.
_NEWEST_COUNTS = 0.2
# A worker that is late by less is about to finish: mostly a pause for garbage collection.
_GRACE_S = 0.1
# Part of the time left: a review whose turn would take longer to come does not wait. Some tasks take many
# times as long as most, and a queue that fills the deadline would have all of them wait for nothing.
_MOST_WAITED = 0.5


@dataclass(frozen=True, slots=True)
class ReviewOutcome:
    """The outcome of a review, its warnings, and the rules that they follow; empty where none were asked."""

    result: ReviewResult
    warnings: Sequence[str] = ()
    rules: str = ""


@dataclass(eq=False, slots=True)
class ReviewTask:
    """One review. ``until_s`` is its deadline on the clock of ``time.monotonic``."""

    review: AdmissionReview
    until_s: float
    loop: asyncio.AbstractEventLoop
    others_wait: Callable[[], bool]
    outcome: ReviewOutcome | None = None
    first_s: float | None = None
    """When the first outcome was there, on the same clock."""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def tell(self, outcome: ReviewOutcome) -> bool:
        """Store an outcome; whether a better one is wanted."""
        self.outcome = outcome
        if self.first_s is None:
            self.first_s = time.monotonic()
        return self.left_s > 0 and not self.others_wait()


class ReviewQueue:
    """``work`` gives a task its outcome, any number of times. ``in_flight`` is how many reviews may wait or
    be worked on; one more is answered at once, and so is one whose turn would come too late."""

    def __init__(self, work: Callable[[ReviewTask], None], in_flight: int) -> None:
        self._work, self._in_flight = work, in_flight
        self._tasks: queue.SimpleQueue[ReviewTask | None] = queue.SimpleQueue()
        self._taken = 0
        self._usual_s = 0.0
        self._current: ReviewTask | None = None
        self._thread = threading.Thread(target=self._run, name="gpucost-webhook-advice", daemon=True)
        self._thread.start()

    @property
    def taken(self) -> int:
        """Reviews that are worked on or wait."""
        return self._taken

    @property
    def _wait_s(self) -> float:
        """The wait for a turn, if all waiting tasks take as long as usual."""
        return self._taken * self._usual_s

    async def ask(self, review: AdmissionReview, until_s: float) -> ReviewOutcome:
        """The outcome at ``until_s`` at the latest. Called in one event loop only."""
        task = ReviewTask(review, until_s, asyncio.get_running_loop(), lambda: self._taken > 1)
        current = self._current
        is_late = current is not None and current.left_s < -_GRACE_S
        if is_late or self._taken >= self._in_flight or self._wait_s > _MOST_WAITED * task.left_s:
            return ReviewOutcome(ReviewResult.BUSY)
        self._taken += 1
        self._tasks.put(task)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(task.done.wait(), max(0.0, task.left_s))
        return task.outcome or ReviewOutcome(ReviewResult.DEADLINE)

    def close(self) -> None:
        """Ends the worker after its current task, without waiting for it."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            begun = time.monotonic()
            if task.left_s > 0:
                self._current = task
                try:
                    self._work(task)
                except Exception:  # a manifest or a state of an unexpected shape
                    logger.exception("no advice for a review")
                    task.outcome = task.outcome or ReviewOutcome(ReviewResult.ERROR)
                self._current = None
            # RuntimeError: the loop has ended, and the result is not needed.
            with contextlib.suppress(RuntimeError):
                task.loop.call_soon_threadsafe(self._end, task)
            took_s = (task.first_s or time.monotonic()) - begun
            self._usual_s += (took_s - self._usual_s) * _NEWEST_COUNTS

    def _end(self, task: ReviewTask) -> None:
        self._taken -= 1
        task.done.set()
