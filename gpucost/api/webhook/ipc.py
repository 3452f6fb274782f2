"""Messages between the listener's process and the one that holds the cluster's state: JSON lines over a pair
of sockets.

The listener is a process of its own so that nothing holds it up: in the other one advice, reports, and
garbage collection among a million objects hold the interpreter's lock, sometimes for a second.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gpucost.api.webhook.admission_review import ReviewResult
from gpucost.api.webhook.deadline_queue import ReviewOutcome, ReviewTask

logger = logging.getLogger(__name__)

Tell = Callable[[ReviewOutcome, bool], bool]
"""Called with an outcome and whether a better one could follow; returns whether that is wanted. The last
outcome comes with False: then the other side is no longer waited for."""
Answering = Callable[[Mapping[str, Any], float, Tell], None]
"""``adviser.AdmissionAdviser``."""


class ProcessChannel:
    """One end. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises OSError when the other end has gone."""
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._connection.sendall(line)

    def receive(self) -> Any:
        """The next message. Raises EOFError when the other end has gone."""
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise EOFError
        return json.loads(line)

    def close(self) -> None:
        """The receiver at either end gets an EOFError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Called by the receiver, once no more messages will be read."""
        self._lines.close()


class RemoteWorker:
    """The listener's worker: asks the other process. It waits on a socket, and holds no lock meanwhile."""

    def __init__(self, channel: ProcessChannel) -> None:
        self._channel = channel
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, task: ReviewTask) -> None:
        self._channel.send({"document": task.review.document, "until_s": task.until_s})
        while True:
            found = self._channel.receive()
            outcome = ReviewOutcome(ReviewResult(found["result"]), found["warnings"], found["rules"])
            is_wanted = task.tell(outcome)
            if found["is_last"]:
                return
            self._channel.send({"is_wanted": is_wanted})
            if not is_wanted:
                return

    def reviewed(self, result: str) -> None:
        with self._lock:
            self._counts[result] += 1

    def report(self) -> None:
        """Send the counts since the last report. Raises OSError when the other end has gone."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        self._channel.send({"reviews": counts})


def serve(channel: ProcessChannel, answering: Answering, reviewed: Callable[[str, int], None]) -> None:
    """Answer the listener until it has gone."""
    try:
        while True:
            _answer(channel, answering, _received(channel, reviewed), reviewed)
    except (EOFError, OSError):
        return


def _received(channel: ProcessChannel, reviewed: Callable[[str, int], None]) -> Any:
    """The next message that is not a report; reports may come at any time."""
    while "reviews" in (message := channel.receive()):
        for result, count in message["reviews"].items():
            reviewed(result, count)
    return message


def _answer(
    channel: ProcessChannel,
    answering: Answering,
    message: Mapping[str, Any],
    reviewed: Callable[[str, int], None],
) -> None:
    last, is_open = ReviewOutcome(ReviewResult.ERROR), True

    def tell(outcome: ReviewOutcome, more: bool) -> bool:
        nonlocal last, is_open
        last = outcome
        said = {"result": outcome.result, "warnings": outcome.warnings, "rules": outcome.rules}
        channel.send({**said, "is_last": not more})
        is_open = more and bool(_received(channel, reviewed)["is_wanted"])
        return is_open

    try:
        answering(message["document"], message["until_s"], tell)
    except (EOFError, OSError):
        raise
    except Exception:  # a manifest or a state of an unexpected shape
        logger.exception("no advice for a review")
    if is_open:
        tell(last, False)
