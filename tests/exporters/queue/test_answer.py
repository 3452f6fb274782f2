"""Answers to scrapes share what they say: neither clients nor scrapes multiply the page in memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpucost.contract.queue_metrics import WORKLOAD_POSITION
from gpucost.domain.time import DAY_MS
from gpucost.kube.connect.transport import KubeResponse as KubeResponse
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.watch.cluster_watch import WatchClocks
from gpucost_exporter_base.endpoint import EndpointLimits, EndpointRequest, EndpointResponse, HttpEndpoint
from gpucost_queue_collector.collector import QueueCollector
from gpucost_queue_collector.page import MetricsPage, SeriesTable, line
from tests.cluster.builders import T0

SCRAPE = EndpointRequest("GET", "/metrics", "", {}, True)
ROWS = 100_000
READERS = 60


class Unreachable:
    """A transport to nowhere."""

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> KubeResponse:
        raise TransportError("unreachable", f"{path} {params} {timeout_s}")


class Told:
    """A collector of nothing, with clocks that stand still."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.now_ms = T0
        clocks = WatchClocks(lambda: self.now_ms * 1_000_000, lambda: self.seconds)
        self.collector = QueueCollector(Unreachable(), [], clocks=clocks)

    def answer(self) -> EndpointResponse:
        return self.collector.answer(SCRAPE)


@pytest.fixture
def told() -> Iterator[Told]:
    found = Told()
    yield found
    found.collector.close()


def refreshed(answer: EndpointResponse) -> list[bytes]:
    lines = answer.body.splitlines()
    return [line for line in lines if line.startswith(b"gpucost_state_refreshed_timestamp_seconds ")]


def test_scrapes_within_a_second_get_the_very_same(told: Told) -> None:
    first = told.answer()
    told.collector.refreshed_ms = T0
    told.seconds = 0.999
    assert told.answer().chunks is first.chunks
    assert refreshed(first) == []
    told.seconds = 1.0
    assert len(refreshed(told.answer())) == 1


def test_a_refresh_is_told_of_at_once(told: Told) -> None:
    told.answer()
    told.collector.refresh()
    assert len(refreshed(told.answer())) == 1


def test_the_heartbeat_is_never_a_second_old(told: Told) -> None:
    told.collector.refresh()
    assert b"gpucost_state_up 1.0" in told.answer().body.splitlines()
    told.now_ms -= DAY_MS  # the time of a host is set: what it shows is as fresh as it was
    assert b"gpucost_state_up 1.0" in told.answer().body.splitlines()
    told.seconds += 60.001
    assert b"gpucost_state_up 0.0" in told.answer().body.splitlines()


@pytest.mark.fault(10)
def test_slow_readers_of_a_page_that_changes_hold_it_once() -> None:
    table, counting = SeriesTable([WORKLOAD_POSITION]), iter(range(10**9))
    page = MetricsPage([table])
    name = "w" * 100

    def answer(request: EndpointRequest) -> EndpointResponse:
        """The page with a change since the last scrape, as the worst case."""
        with page.update():
            table.put("0", (line(WORKLOAD_POSITION, ("team", "first", "0"), next(counting)),))
        return page.answer(request)

    with page.update():
        for number in range(ROWS):
            table.put(str(number), (line(WORKLOAD_POSITION, ("team", name, str(number)), number),))
    size = len(answer(SCRAPE).body)
    endpoint = HttpEndpoint("127.0.0.1", 0, {"/metrics": answer}, EndpointLimits(write_s=60))
    port = endpoint.start()
    before = resident_bytes()
    try:
        with ExitStack() as stack:
            readers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                for _ in range(READERS)
            ]
            for reader in readers:
                reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            for reader in readers:
                assert reader.recv(15) == b"HTTP/1.1 200 OK"  # each is in the midst of its answer
            assert resident_bytes() - before < 2 * size
            assert READERS * size > 800_000_000  # what they would hold of their own
            assert length_of(readers[-1]) >= size - 100
    finally:
        endpoint.close()


def length_of(reader: socket.socket) -> int:
    """Bytes until the server has said all that it announced, for a reader that wakes up."""
    received, deadline = b"", time.monotonic() + 30
    while b"\r\n\r\n" not in received:
        received += reader.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    announced = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    count = len(body)
    while count < announced and time.monotonic() < deadline:
        count += len(reader.recv(65_536))
    assert count == announced
    return count


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
