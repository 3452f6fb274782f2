"""dcgm-exporter as the second source: it fills what NVML lacks, and nothing else.

``DcgmEndpoint`` fetches its text in a thread of its own, so that no other part waits for it;
``DcgmSecondSource`` is the endpoint as the exporter uses it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from gpucost.domain.errors import InputError
from gpucost_exporter_base.fetch import FetchFailure, TextFetchError, address, fetch
from gpucost_gpu_exporter.dcgm.scrapes import MAX_AGE_NS, MAX_BYTES, DcgmProblem, DcgmScrape, DcgmState, parse
from gpucost_gpu_exporter.metering.meter import SecondSource
from gpucost_gpu_exporter.metering.missing_parts import NODE, MissingPart
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    InstanceReading,
    NodeReading,
)

_LOGGER = logging.getLogger(__name__)


class DcgmFailure(StrEnum):
    """Why a round brought nothing."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    HTTP_STATUS = "http_status"
    BAD_ANSWER = "bad_answer"
    TOO_LARGE = "too_large"
    EMPTY = "empty"
    NO_VALUES = "no_values"
    INTERNAL = "internal"


_FAILURES = {
    FetchFailure.UNREACHABLE: DcgmFailure.UNREACHABLE,
    FetchFailure.TLS: DcgmFailure.UNREACHABLE,
    FetchFailure.TIMEOUT: DcgmFailure.TIMEOUT,
    FetchFailure.HTTP_STATUS: DcgmFailure.HTTP_STATUS,
    FetchFailure.BAD_ANSWER: DcgmFailure.BAD_ANSWER,
    FetchFailure.TOO_LARGE: DcgmFailure.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """The endpoint at one instant of its clock.

    ``up`` says whether the last round brought values and ``since_ns`` from when on that has been so; before
    the first round it is down since it was made. Values too old to be used mean that it is down, whatever the
    result of the last round: the next one may never end. ``failures`` counts rounds, ``dropped`` lines, by
    reason.
    """

    known: DcgmState
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
        self._address = address(url, "dcgm url", "http://127.0.0.1:9400/metrics")
        self._clock, self._interval_s, self._timeout_s = clock, interval_s, timeout_s
        self._lock = threading.Lock()
        self._now = EndpointSnapshot(DcgmState(max_age_ns=round(max_age_s * 1e9)), up=False, since_ns=clock())
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
        """One round. Failures are counted, never raised; the last values stay and grow old."""
        try:
            text = fetch(self._address, self._timeout_s, MAX_BYTES)
            parsed = parse(text, self._now.known.units)
        except TextFetchError as error:
            self._failed(_FAILURES[error.reason])
        except Exception:
            _LOGGER.exception("a round of reading dcgm-exporter failed")
            self._failed(DcgmFailure.INTERNAL)
        else:
            self._fetched(parsed)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(self._interval_s)

    def _fetched(self, parsed: DcgmScrape) -> None:
        now_ns = self._clock()
        with self._lock:
            dropped = Counter(self._now.dropped) + Counter(
                {why.value: n for why, n in parsed.dropped.items()}
            )
            self._now = replace(self._now, known=self._now.known.after(parsed, now_ns), dropped=dropped)
            if parsed.values:
                self._turn(True, now_ns)
        if not parsed.values:
            self._failed(DcgmFailure.EMPTY if parsed.is_empty else DcgmFailure.NO_VALUES)

    def _failed(self, failure: DcgmFailure) -> None:
        with self._lock:
            failures = Counter(self._now.failures) + Counter({failure.value: 1})
            self._now = replace(self._now, failures=failures)
            self._turn(False, self._clock())

    def _turn(self, up: bool, now_ns: int) -> None:
        if self._now.up != up:
            self._now = replace(self._now, up=up, since_ns=now_ns)


R = TypeVar("R", GpuReading, InstanceReading)


class DcgmSecondSource:
    """A ``DcgmEndpoint`` as the exporter uses it; ``look`` fixes the values for one collection."""

    def __init__(self, endpoint: DcgmEndpoint) -> None:
        self._endpoint = endpoint
        self._now: EndpointSnapshot = endpoint.snapshot()
        self._why_down = next(iter(self._now.failures), "starting")
        self._counted: dict[str, Counter[int]] = {}

    def look(self) -> None:
        """Take the values known now."""
        before, self._now = self._now, self._endpoint.snapshot()
        if self._now.up:
            self._why_down = DcgmProblem.STALE.value  # unless a round fails: values grow old
        for reason, count in self._now.failures.items():
            if count > before.failures.get(reason, 0):
                self._why_down = reason

    def second(self, now_ns: int) -> SecondSource:
        known = self._now.known
        return SecondSource(
            ratio=lambda device, signal: known.ratio(device, signal, now_ns),
            energy_mj=lambda uuid: known.energy_mj(uuid, now_ns),
            take_xids=self._take_xids,
        )

    def filled(self, reading: NodeReading, now_ns: int) -> NodeReading:
        """``reading`` with memory where NVML has none."""
        return replace(reading, boards=tuple(self._board(board, now_ns) for board in reading.boards))

    def lacks(self) -> Iterator[MissingPart]:
        """That the endpoint is down, and which of its values contradict themselves."""
        if not self._now.up:
            yield MissingPart(NODE, "dcgm", self._why_down)
        known = self._now.known
        for (device, _), problem in known.problems(known.at_ns or 0).items():
            if problem is DcgmProblem.PROF_STUCK:
                yield MissingPart(DeviceKey(device.gpu_uuid), "dcgm", problem.value)

    @property
    def errors(self) -> Mapping[str, int]:
        return self._now.failures

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._now.dropped

    def _board(self, board: GpuReading, now_ns: int) -> GpuReading:
        if board.lost:
            return board
        instances = tuple(
            self._with_memory(instance, DeviceKey(board.uuid, str(instance.gpu_instance)), now_ns)
            for instance in board.instances
        )
        return self._with_memory(replace(board, instances=instances), DeviceKey(board.uuid), now_ns)

    def _with_memory(self, read: R, key: DeviceKey, now_ns: int) -> R:
        if read.memory_used_bytes is not None:
            return read
        memory = self._now.known.memory(key, now_ns)
        return replace(read, memory_used_bytes=memory.used_bytes, memory_total_bytes=memory.total_bytes)

    def _take_xids(self, uuid: str) -> Mapping[int, int]:
        """How often each XID code newly showed on a GPU since this was asked last."""
        counts = Counter(
            {code: events.count for (gpu, code), events in self._now.known.xids.items() if gpu == uuid}
        )
        risen = counts - self._counted.get(uuid, Counter())
        self._counted[uuid] = counts
        return risen
