"""Several requests at once: bounded, in order, fewer where the server has too much to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpucost.domain.errors import SourceUnreachable
from gpucost.telemetry.prometheus.api_client import ClientSettings, PrometheusClient
from gpucost.telemetry.prometheus.promql import PromQL
from gpucost.telemetry.prometheus.request_turns import QuestionBatch, RequestTurns, asked_together

MOST = 4
VECTOR = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


class BusyServer(ThreadingHTTPServer):
    """Answers once as many requests are there as ``meets``; ``status`` is what it answers with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.meets = threading.Barrier(1)
        self.status = 200
        self.together, self.most = 0, 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: BusyServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.together += 1
            self.server.most = max(self.server.most, self.server.together)
        self.server.meets.wait(30)
        with self.server.lock:
            self.server.together -= 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(VECTOR)))
        self.end_headers()
        self.wfile.write(VECTOR)

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def server() -> Iterator[BusyServer]:
    with BusyServer() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def client(server: BusyServer) -> PrometheusClient:
    settings = ClientSettings(most_at_once=MOST, attempts=1)
    return PrometheusClient(f"http://127.0.0.1:{server.server_port}", settings=settings)


def ask(asking: PrometheusClient, number: int) -> list[int]:
    """Of a batch, how many answers there were, in order."""
    batch = asking.batch()
    found = [batch.add(lambda at=at: len(asking.query(PromQL("up"), at).result) + at) for at in range(number)]
    batch.ask()
    return [each.result() for each in found]


def test_as_many_are_asked_at_once_as_may_be(server: BusyServer) -> None:
    server.meets = threading.Barrier(MOST)  # it answers none before all of them are there
    with client(server) as asking:
        assert ask(asking, 3 * MOST) == [*range(3 * MOST)]
        assert asking.stats.queries == 3 * MOST
    assert server.most == MOST


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_has_too_much_to_do_is_asked_less(server: BusyServer, status: int) -> None:
    with client(server) as asking:
        server.status = status
        with pytest.raises(SourceUnreachable):
            ask(asking, 1)
        server.status, server.most = 200, 0
        server.meets = threading.Barrier(MOST // 2)
        ask(asking, 3 * MOST)
        assert server.most == MOST // 2


def test_turns_come_back_one_by_one() -> None:
    turns = RequestTurns(MOST)
    for _ in range(10):
        turns.overloaded()
    assert turns.allowed == 1
    for _ in range(19):
        turns.answered()
    assert turns.allowed == 1
    for _ in range(1_000):
        turns.answered()
    assert turns.allowed == MOST


def test_the_first_that_fails_is_raised_and_nothing_after_it_is_begun() -> None:
    begun, late = list[int](), threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            assert late.wait(30)  # fails after the one that comes after it
            raise ValueError(number)
        if number == 2:
            late.set()
            raise KeyError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        asked_together([lambda at=at: work(at) for at in range(1_000)], 3)
    assert len(begun) < 100


def test_within_one_of_them_others_run_one_after_the_other() -> None:
    threads = set[int]()

    def inner() -> int:
        threads.add(threading.get_ident())
        return 1

    def outer() -> int:
        threads.clear()
        return sum(asked_together([inner] * 5, 5))

    batch = QuestionBatch(2)
    first, second = batch.add(outer), batch.add(lambda: "other")
    batch.ask()
    assert (first.result(), second.result()) == (5, "other")
    assert len(threads) == 1
