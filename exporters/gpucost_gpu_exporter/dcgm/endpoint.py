"""Fetches a dcgm-exporter's text in a thread of its own, so that nobody ever waits for it."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

from gpucost.domain.errors import InputError
from gpucost_gpu_exporter.dcgm.parse import MAX_BYTES, Parsed, parse
from gpucost_gpu_exporter.dcgm.state import MAX_AGE_NS, Known

_CHUNK = 64 * 1024
_LOGGER = logging.getLogger(__name__)


class Failure(StrEnum):
    """Why a round brought nothing."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    HTTP_STATUS = "http_status"
    BAD_ANSWER = "bad_answer"
    TOO_LARGE = "too_large"
    EMPTY = "empty"
    NO_VALUES = "no_values"
    INTERNAL = "internal"


class FetchError(Exception):
    """The text could not be fetched; ``failure`` says why."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.value)


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """The endpoint at one instant of its clock.

    ``up`` says whether the last round brought values and ``since_ns`` from when on that has been so; before
    the first round it is down since it was made. Values too old to be used mean that it is down, whatever
    the last round said: the next one may never end. ``failures`` counts rounds, ``dropped`` lines, by reason.
    """

    known: Known
    up: bool
    since_ns: int
    failures: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


class DcgmEndpoint:
    """One dcgm-exporter, read every ``interval_s``; ``clock`` gives integer nanoseconds.

    ``url`` is the whole address (``http://127.0.0.1:9400/metrics``); redirects are not followed and no proxy
    is used. ``timeout_s`` bounds the connection, each wait for the headers, and the body as a whole.
    Raises InputError for an address that is not http or https, and for times that are not above 0.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], int],
        interval_s: float = 10.0,
        timeout_s: float = 5.0,
        max_age_s: float = MAX_AGE_NS / 1e9,
    ) -> None:
        times = {"interval_s": interval_s, "timeout_s": timeout_s, "max_age_s": max_age_s}
        for name, value in times.items():
            if not 0 < value < float("inf"):
                raise InputError(f"dcgm {name}", value, "a number of seconds above 0")
        self._address = _address(url)
        self._clock, self._interval_s, self._timeout_s = clock, interval_s, timeout_s
        self._lock = threading.Lock()
        self._now = EndpointSnapshot(Known(max_age_ns=round(max_age_s * 1e9)), up=False, since_ns=clock())
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read at once and then every ``interval_s``, until ``close``."""
        self._thread = threading.Thread(target=self._run, name="dcgm-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; waits for the round it is in, at most about the time-out."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * self._timeout_s)

    def snapshot(self) -> EndpointSnapshot:
        """What is known now, without waiting for a round."""
        with self._lock:
            found, now_ns = self._now, self._clock()
        expires_ns = (found.known.at_ns or 0) + found.known.max_age_ns
        return replace(found, up=False, since_ns=expires_ns) if found.up and now_ns > expires_ns else found

    def poll(self) -> None:
        """One round. What goes wrong is counted, never raised; the last values are left to grow old."""
        try:
            parsed = parse(fetch(self._address, self._timeout_s), self._now.known.units)
        except FetchError as error:
            self._failed(error.failure)
        except Exception:
            _LOGGER.exception("a round of reading dcgm-exporter failed")
            self._failed(Failure.INTERNAL)
        else:
            self._fetched(parsed)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(self._interval_s)

    def _fetched(self, parsed: Parsed) -> None:
        now_ns = self._clock()
        with self._lock:
            dropped = Counter(self._now.dropped) + Counter(
                {why.value: n for why, n in parsed.dropped.items()}
            )
            self._now = replace(self._now, known=self._now.known.after(parsed, now_ns), dropped=dropped)
            if parsed.values:
                self._turn(True, now_ns)
        if not parsed.values:
            self._failed(Failure.EMPTY if parsed.is_empty else Failure.NO_VALUES)

    def _failed(self, failure: Failure) -> None:
        with self._lock:
            failures = Counter(self._now.failures) + Counter({failure.value: 1})
            self._now = replace(self._now, failures=failures)
            self._turn(False, self._clock())

    def _turn(self, up: bool, now_ns: int) -> None:
        if self._now.up != up:
            self._now = replace(self._now, up=up, since_ns=now_ns)


def fetch(address: SplitResult, timeout_s: float) -> str:
    """GET an address and return its text. Raises FetchError."""
    make = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = make(address.hostname or "", address.port, timeout=timeout_s)
    path = f"{address.path or '/'}{'?' if address.query else ''}{address.query}"
    try:
        return _get(connection, path, timeout_s)
    except TimeoutError as error:
        raise FetchError(Failure.TIMEOUT) from error
    except OSError as error:
        raise FetchError(Failure.UNREACHABLE) from error
    except (http.client.HTTPException, ValueError) as error:
        raise FetchError(Failure.BAD_ANSWER) from error
    finally:
        connection.close()


def _get(connection: http.client.HTTPConnection, path: str, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    connection.request("GET", path, headers={"Accept": "text/plain"})
    sock = connection.sock
    with connection.getresponse() as response:
        if response.status != http.client.OK:
            raise FetchError(Failure.HTTP_STATUS)
        body = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise FetchError(Failure.TIMEOUT)
            sock.settimeout(left)
            chunk = response.read1(_CHUNK)
            if not chunk:
                break
            body += chunk
            if len(body) > MAX_BYTES:
                raise FetchError(Failure.TOO_LARGE)
        if response.length:
            raise FetchError(Failure.BAD_ANSWER)
    return body.decode("utf-8", errors="replace")


def _address(url: str) -> SplitResult:
    allowed = "an http or https address such as http://127.0.0.1:9400/metrics"
    try:
        address = urlsplit(url)
        port_is_fine = address.port is None or address.port > 0
    except ValueError as error:
        raise InputError("dcgm url", url, allowed) from error
    if address.scheme not in {"http", "https"} or not address.hostname or not port_is_fine:
        raise InputError("dcgm url", url, allowed)
    if address.username is not None or any(not " " < letter < "\x7f" for letter in url):
        raise InputError("dcgm url", url, allowed)
    return address
