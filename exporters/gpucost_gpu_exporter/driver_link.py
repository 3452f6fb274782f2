"""The parent's end of the driver process: asks for readings, and never waits for the driver for long.

A reply that does not come in time means a hung driver: the process is killed and started anew, after a wait
that grows with each failure in a row. XID events come between the replies, and are kept whatever becomes of
the process: some announce that the driver hangs.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from gpucost.domain.errors import SourceError
from gpucost_gpu_exporter.model.readings import NodeReading, XidEvent

# -P: the folder that the exporter is started in is no place to import from.
COMMAND = (sys.executable, "-P", "-m", "gpucost_gpu_exporter.driver")
MOST_LEFT_BEHIND = 3
LONGEST_WAIT_S = 60.0
# How long a process that was just started may take to answer.
FIRST_REPLY_S = 30.0
LONGEST_REPLY = 16 << 20
_CHUNK = 65536


class DriverDown(SourceError):
    """There is no reading. ``code`` is the name of the NVML error, or one of these:

    ``NO_GPUS`` (the driver lists none), ``HUNG`` (no reply in time), ``EXITED`` (the process ended by
    itself), ``PROTOCOL`` (not a valid reply), ``STUCK`` (too many processes could not be killed).
    """

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code}: {text}")


class DriverLink:
    """One driver process at a time, started when first needed. Used by one thread at a time.

    ``clock`` gives seconds and, with ``random`` (0 to 1), decides when to try again after a failure: full
    jitter below 1, 2, 4 … 60 s. ``resume`` is what an earlier exporter saved. ``restarts`` counts the
    processes started after the first. A reply may take ``timeout_s``; the first of a process, which takes in
    the start of the interpreter and of the library, ``first_timeout_s`` where that is longer.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float],
        timeout_s: float = 5.0,
        first_timeout_s: float = FIRST_REPLY_S,
        reap_s: float = 0.5,
        resume: Mapping[str, int] | None = None,
    ) -> None:
        self._command = command
        self._environment = environment
        self._clock = clock
        self._random = random
        self._timeout_s = timeout_s
        self._first_timeout_s = max(first_timeout_s, timeout_s)
        self._reap_s = reap_s
        self._resume = dict(resume or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._unfinished = bytearray()
        self._xids: Counter[XidEvent] = Counter()
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._starts = 0
        self._failures = 0
        self._try_at_s = 0.0
        self._down: DriverDown | None = None

    @property
    def resume(self) -> dict[str, int]:
        """The driver's time in us of the last sample seen, by UUID: to be saved along with the counters."""
        return dict(self._resume)

    @property
    def restarts(self) -> int:
        return max(0, self._starts - 1)

    @property
    def left_behind(self) -> int:
        """How many killed processes are still there: stuck in a call into the kernel."""
        self._left_behind = [child for child in self._left_behind if child.poll() is None]
        return len(self._left_behind)

    def look(self, now_ns: int, processes: bool) -> NodeReading:
        """One look at all GPUs; ``processes`` asks for the processes on them too.

        Raises DriverDown: at once while the next start is still delayed, else when the time for a reply is
        over.
        """
        if self._down is not None and self._clock() < self._try_at_s:
            raise DriverDown(self._down.code, self._down.text)
        try:
            reading = self._ask({"now_ns": now_ns, "processes": processes})
        except DriverDown as down:
            self._stop(is_read_out=True)
            wait_s = min(LONGEST_WAIT_S, 2.0 ** min(self._failures, 10)) * self._random()
            self._failures += 1
            self._try_at_s = self._clock() + wait_s
            self._down = down
            raise
        self._failures, self._down = 0, None
        return reading

    def take_xids(self) -> Counter[XidEvent]:
        """How often the driver told each XID event since this was asked last, also while it hangs."""
        taken, self._xids = self._xids, Counter()
        return taken

    def close(self) -> None:
        """End the process. Calling it twice is safe, and from another thread than the one that looks."""
        self._stop()

    def _ask(self, request: dict[str, Any]) -> NodeReading:
        timeout_s = self._timeout_s
        if self._child is None:
            self._child = self._start()
            request["resume"] = self._resume
            timeout_s = self._first_timeout_s
        answer = self._exchange(self._child, json.dumps(request).encode() + b"\n", timeout_s)
        try:
            return self._decoded(answer)
        except DriverDown:
            raise
        except Exception as error:
            raise DriverDown("PROTOCOL", f"the driver process sent {answer[:80]!r}") from error

    def _decoded(self, answer: bytes) -> NodeReading:
        reply = json.loads(answer)
        if "error" in reply:
            raise DriverDown(reply["error"]["code"], reply["error"]["text"])
        reading = NodeReading.from_json(reply["reading"])
        self._resume |= reply["resume"]
        return reading

    def _start(self) -> subprocess.Popen[bytes]:
        if self.left_behind >= MOST_LEFT_BEHIND:
            raise DriverDown("STUCK", f"{MOST_LEFT_BEHIND} killed driver processes are still in the kernel")
        self._starts += 1
        self._unfinished.clear()
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                bufsize=0,
                # An interrupt at the terminal is for the exporter; this process ends with its stdin.
                process_group=0,
            )
        except OSError as error:
            raise DriverDown("EXITED", f"the driver process could not be started: {error}") from error

    def _exchange(self, child: subprocess.Popen[bytes], line: bytes, timeout_s: float) -> bytes:
        try:
            if self._read_out(child):
                raise DriverDown("PROTOCOL", "the driver process sent a reply to no request")
            _pipe(child.stdin).write(line)
            return self._read_reply(child, timeout_s)
        except (OSError, ValueError):  # the process ended, or another thread closed this link
            raise DriverDown("EXITED", self._how_it_ended(child)) from None

    def _read_reply(self, child: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        source, poller = _polled(child)
        deadline_s = time.monotonic() + timeout_s
        answers: list[bytes] = []
        while not answers:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                raise DriverDown("HUNG", f"the driver did not answer within {timeout_s:g} s")
            chunk = os.read(source, _CHUNK)
            if not chunk:
                raise DriverDown("EXITED", self._how_it_ended(child))
            answers = self._replies_in(chunk)
            if len(self._unfinished) > LONGEST_REPLY:
                raise DriverDown("PROTOCOL", f"the driver process sent a line above {LONGEST_REPLY} bytes")
        if len(answers) > 1:
            raise DriverDown("PROTOCOL", f"the driver process sent {len(answers)} replies to one request")
        return answers[0]

    def _replies_in(self, chunk: bytes) -> list[bytes]:
        """The replies that end in this chunk of what the process writes; XID events among them are kept."""
        self._unfinished += chunk
        if b"\n" not in chunk:
            return []
        *lines, self._unfinished = self._unfinished.split(b"\n")
        replies = []
        for line in map(bytes, lines):
            event = XidEvent.from_line(line)
            if event is None:
                replies.append(line)
            else:
                self._xids[event] += 1
        return replies

    def _read_out(self, child: subprocess.Popen[bytes]) -> list[bytes]:
        """Take the XID events that a process, killed or not, has written; the replies among them."""
        (source, poller), replies = _polled(child), list[bytes]()
        while poller.poll(0) and len(self._unfinished) <= LONGEST_REPLY:
            chunk = os.read(source, _CHUNK)
            if not chunk:
                break
            replies += self._replies_in(chunk)
        return replies

    def _how_it_ended(self, child: subprocess.Popen[bytes]) -> str:
        try:
            return f"the driver process ended with status {child.wait(self._reap_s)}"
        except subprocess.TimeoutExpired:
            return "the driver process closed its end of the pipe"

    def _stop(self, is_read_out: bool = False) -> None:
        """Kill rather than ask: the process keeps no state, and one that hangs would not respond."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        try:
            child.wait(self._reap_s)
        except subprocess.TimeoutExpired:
            self._left_behind.append(child)
        if is_read_out:
            self._read_out(child)
        _pipe(child.stdin).close()
        _pipe(child.stdout).close()


def _polled(child: subprocess.Popen[bytes]) -> tuple[int, select.poll]:
    """What the process writes, and what tells when there is some."""
    source, poller = _pipe(child.stdout).fileno(), select.poll()
    poller.register(source, select.POLLIN)
    return source, poller


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "both pipes are asked for when the process is started"
    return pipe
