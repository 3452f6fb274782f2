"""The endpoint on real sockets: what it answers, and that no client keeps it from answering others."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpucost.contract.metric_spec import MetricSpec, MetricType
from gpucost.domain.errors import InputError
from gpucost_exporter_base.endpoint import (
    EndpointLimits,
    EndpointRequest,
    EndpointResponse,
    HttpEndpoint,
    Route,
    text,
)
from gpucost_exporter_base.exposition import MetricExposition, MetricFamily
from tests.support.ports import free_port

LONG = b"x" * 20_000_000
HELLO = b"GET /hello HTTP/1.1\r\n\r\n"
SERIES = MetricSpec("gpucost_gpu_boards", MetricType.GAUGE, "", ("node", "uuid"), "Boards.")


def hello(request: EndpointRequest) -> EndpointResponse:
    return text(200, f"hello {request.query}")


def long(request: EndpointRequest) -> EndpointResponse:  # noqa: ARG001
    return EndpointResponse(200, (LONG,))


def broken(request: EndpointRequest) -> EndpointResponse:  # noqa: ARG001
    raise RuntimeError("secret")


ROUTES: dict[str, Route] = {"/hello": hello, "/long": long, "/broken": broken}


@contextmanager
def serving(
    routes: dict[str, Route] | None = None, limits: EndpointLimits | None = None, host: str = "127.0.0.1"
) -> Iterator[int]:
    endpoint = HttpEndpoint(host, 0, ROUTES if routes is None else routes, limits)
    port = endpoint.start()
    try:
        yield port
    finally:
        endpoint.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def everything(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def exchange(port: int, request: bytes) -> bytes:
    with connect(port) as connection:
        connection.sendall(request)
        return everything(connection)


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={"Connection": "close", **headers})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def eventually(is_so: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.01)
    return is_so()


def endpoint_threads() -> int:
    return sum(thread.name.startswith("endpoint") for thread in threading.enumerate())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_get(port: int) -> None:
    response, body = get(port, "/hello?world")
    assert (response.status, body) == (200, b"hello world\n")
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_head(port: int) -> None:
    response, body = get(port, "/long", "HEAD")
    assert (response.status, body) == (200, b"")
    assert response.headers["Content-Length"] == str(len(LONG))


def test_long_body_arrives_whole(port: int) -> None:
    assert get(port, "/long")[1] == LONG
    response, body = get(port, "/long", **{"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == LONG


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(port: int, method: str) -> None:
    response, _ = get(port, "/hello", method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


def test_unknown_path_names_the_known(port: int) -> None:
    response, body = get(port, "/metricz")
    assert response.status == 404
    assert body.decode().split("\n")[1:-1] == list(ROUTES)
    assert b"metricz" not in body


def test_raising_route_says_nothing_of_the_inside(port: int, caplog: pytest.LogCaptureFixture) -> None:
    response, body = get(port, "/broken")
    assert response.status == 500
    assert b"secret" not in body
    assert "secret" in caplog.text


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x00\r\n\r\n", b"GET /hello\r\n\r\n"])
def test_garbage_is_answered_with_400(port: int, garbage: bytes) -> None:
    assert exchange(port, garbage).startswith(b"HTTP/1.1 400 ")


def test_endless_head_is_cut(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /hello HTTP/1.1\r\nX: " + b"x" * 9000)
        assert everything(connection).startswith(b"HTTP/1.1 431 ")


def test_keep_alive_and_close(port: int) -> None:
    with connect(port) as connection:
        for _ in range(3):
            connection.sendall(HELLO)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n")
        last = everything(connection)
    assert last.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close\r\n" in last


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    requests = [f"GET /hello?{number} HTTP/1.1\r\n\r\n".encode() for number in range(5)]
    requests.append(b"GET /hello?last HTTP/1.0\r\n\r\n")
    received = exchange(port, b"".join(requests))
    said = [line for line in received.split(b"\n") if line.startswith(b"hello")]
    assert said == [b"hello 0", b"hello 1", b"hello 2", b"hello 3", b"hello 4", b"hello last"]


def test_a_body_is_never_taken_for_a_request(port: int) -> None:
    request = b"GET /hello?1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(HELLO) + HELLO
    assert exchange(port, request).count(b"HTTP/1.1 ") == 1


@pytest.mark.fault(10)
def test_unfinished_head_ends() -> None:
    with serving(limits=EndpointLimits(head_s=0.2)) as port:
        for start in (b"", b"GET /hello HTTP/1.1\r\nHost: ", HELLO + b"GET /"):
            with connect(port) as connection:
                connection.sendall(start)
                received = everything(connection)
            assert received.count(b"HTTP/1.1 200 ") == start.count(b"\r\n\r\n")


@pytest.mark.fault(10)
def test_idle_connection_ends() -> None:
    with serving(limits=EndpointLimits(idle_s=1.0)) as port, connect(port) as connection:
        connection.sendall(HELLO)
        assert everything(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.fault(10)
def test_reader_that_takes_nothing_is_let_go() -> None:
    with serving(limits=EndpointLimits(write_s=0.2)) as port, connect(port) as connection:
        connection.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        assert connection.recv(1)
        time.sleep(2)
        assert len(everything(connection)) < len(LONG)


@pytest.mark.fault(10)
def test_hundreds_of_slow_clients_keep_no_one_waiting() -> None:
    limits = EndpointLimits(head_s=60, write_s=60)
    with serving(limits=limits) as port, ExitStack() as stack:
        get(port, "/long")
        before = resident_bytes()
        for _ in range(200):
            stack.enter_context(connect(port)).sendall(b"GET /hel")
        readers = [stack.enter_context(connect(port)) for _ in range(200)]
        for reader in readers:
            reader.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        for reader in readers:
            assert reader.recv(16).startswith(b"HTTP/1.1 200 OK")  # each is in the midst of its answer
        for _ in range(20):
            assert get(port, "/hello?you")[1] == b"hello you\n"
        assert endpoint_threads() <= 1 + 1 + limits.threads + 3  # and those of the module's endpoint
        # 200 whole bodies would be 4 GB.
        assert resident_bytes() - before < 100_000_000


@pytest.mark.fault(10)
def test_beyond_the_limit_the_longest_waiting_goes() -> None:
    limits = EndpointLimits(head_s=60, write_s=60, connections=4)
    with serving(limits=limits) as port, ExitStack() as stack:
        reader, first, second, third = (stack.enter_context(connect(port)) for _ in range(4))
        reader.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        assert reader.recv(16)
        first.sendall(b"GET /")
        second.sendall(HELLO)
        assert second.recv(4096).startswith(b"HTTP/1.1 200 ")  # it waits again, behind the third
        assert get(port, "/hello")[0].status == 200
        assert everything(first) == b""
        for connection in (second, third):
            connection.sendall(HELLO)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.fault(10)
def test_only_slow_readers_and_still_an_answer() -> None:
    limits = EndpointLimits(write_s=60, connections=4)
    with serving(limits=limits) as port, ExitStack() as stack:
        for _ in range(8):
            reader = stack.enter_context(connect(port))
            reader.sendall(b"GET /long HTTP/1.1\r\n\r\n")
            assert reader.recv(16)
        assert get(port, "/hello")[0].status == 200


def test_a_route_that_hangs_is_answered_for() -> None:
    go_on = threading.Event()

    def hanging(request: EndpointRequest) -> EndpointResponse:  # noqa: ARG001
        go_on.wait(60)
        return text(200, "late")

    try:
        with serving({"/hanging": hanging, "/hello": hello}, EndpointLimits(answer_s=0.2, threads=2)) as port:
            assert get(port, "/hanging")[0].status == 503
            assert get(port, "/hello")[0].status == 200
            go_on.set()
    finally:
        go_on.set()


@pytest.mark.fault(10)
def test_clients_that_have_gone_take_no_thread() -> None:
    go_on = threading.Event()
    begun: list[str] = []

    def hanging(request: EndpointRequest) -> EndpointResponse:
        begun.append(request.query)
        go_on.wait(60)
        return text(200, "late")

    limits = EndpointLimits(answer_s=60, threads=1)
    try:
        with serving({"/hanging": hanging, "/hello": hello}, limits) as port, ExitStack() as stack:
            stack.enter_context(connect(port)).sendall(b"GET /hanging?first HTTP/1.1\r\n\r\n")
            assert eventually(lambda: begun == ["first"])
            files = len(list(Path("/proc/self/fd").iterdir()))
            for _ in range(20):
                with connect(port) as gone:
                    gone.sendall(b"GET /hanging?gone HTTP/1.1\r\n\r\n")
            assert get(port, "/none")[0].status == 404  # behind them all, and without a thread
            # Their connections are closed while the only thread is still taken.
            assert eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= files)
            go_on.set()
            assert get(port, "/hello")[0].status == 200
        assert begun == ["first"]
    finally:
        go_on.set()


@pytest.mark.parametrize(("host", "clients"), [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("", [])])
def test_ipv6(host: str, clients: list[str]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving(host=host) as port:
        for client in clients:
            address = f"[{client}]" if ":" in client else client
            with urllib.request.urlopen(f"http://{address}:{port}/hello?6", timeout=30) as answer:
                assert answer.read() == b"hello 6\n"


def test_taken_address_is_told_by_the_name_of_its_setting() -> None:
    with serving() as port, pytest.raises(InputError, match=rf"metrics_listen: '127.0.0.1:{port}'.*in use"):
        HttpEndpoint("127.0.0.1", port, ROUTES, setting="metrics_listen").start()


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "a" * 64, "nul\0"])
def test_a_host_that_is_none_is_told_by_the_name_of_its_own_setting(host: str) -> None:
    with pytest.raises(InputError) as caught:
        HttpEndpoint(host, 0, ROUTES, setting="listen_port", host_setting="listen_host").start()
    assert (caught.value.field, caught.value.value) == ("listen_host", host)


@pytest.mark.parametrize(("host", "port"), [("no such host", 0), ("127.0.0.1", 70_000), ("192.0.2.1", 0)])
def test_impossible_address_is_refused(host: str, port: int) -> None:
    with pytest.raises(InputError, match="listen"):
        HttpEndpoint(host, port, ROUTES).start()


def test_close_leaves_nothing_behind() -> None:
    threads = set(threading.enumerate())
    files = len(list(Path("/proc/self/fd").iterdir()))
    endpoint = HttpEndpoint("127.0.0.1", free_port(), ROUTES)
    port = endpoint.start()
    with connect(port) as waiting, connect(port) as reading:
        waiting.sendall(b"GET /")
        reading.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        assert reading.recv(16)
        endpoint.close()
        assert everything(waiting) == b""
    endpoint.close()
    assert eventually(lambda: set(threading.enumerate()) <= threads)
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    with pytest.raises(ConnectionRefusedError):
        connect(port)
    again = HttpEndpoint("127.0.0.1", port, ROUTES)  # the address is free at once
    assert again.start() == port
    again.close()


class Snapshots:
    """A source whose snapshot is replaced as one: every value of it is its generation."""

    name = "snapshots"

    def __init__(self, size: int) -> None:
        self._labels = [("node-1", f"GPU-{number:08d}-1234-5678") for number in range(size)]
        self.replace(0)

    @property
    def version(self) -> object:
        return self._snapshot[0]

    def replace(self, generation: int) -> None:
        value = float(generation)
        self._snapshot = generation, [MetricFamily(SERIES, [(labels, value) for labels in self._labels])]

    def families(self) -> Iterable[MetricFamily]:
        return self._snapshot[1]


@pytest.mark.fault(11)
def test_scrapes_during_updates_see_one_snapshot_each() -> None:
    source = Snapshots(500)
    stop = threading.Event()
    seen: list[set[bytes]] = []

    def update() -> None:
        generation = 0
        while not stop.is_set():
            generation += 1
            source.replace(generation)

    def scrape(port: int) -> None:
        for _ in range(25):
            lines = get(port, "/metrics")[1].splitlines()
            values = [line.rsplit(b" ", 1)[1] for line in lines if line.startswith(b"gpucost_gpu_boards{")]
            assert len(values) == 500
            seen.append(set(values))

    with serving({"/metrics": MetricExposition([source]).answer}) as port:
        updating = threading.Thread(target=update)
        scraping = [threading.Thread(target=scrape, args=(port,)) for _ in range(2)]
        for thread in (updating, *scraping):
            thread.start()
        for thread in scraping:
            thread.join()
        stop.set()
        updating.join()
    assert len(seen) == 50
    assert all(len(values) == 1 for values in seen)
    assert len(set.union(*seen)) > 1  # there were updates


@pytest.mark.slow
@pytest.mark.fault(9)
def test_100k_series_keep_memory_flat_over_200_scrapes() -> None:
    # Ten pages of 7 MB: a page kept at each scrape would be a gigabyte; the allocator moves by some pages.
    series, budget = 100_000, 70_000_000
    source = Snapshots(series)
    with serving({"/metrics": MetricExposition([source]).answer}) as port:

        def scrape(number: int) -> int:
            if number % 20 == 0:
                source.replace(number)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                size = 0
                while piece := answer.read(1 << 20):
                    size += len(piece)
            return size

        sizes = [scrape(number) for number in range(60)]
        before = resident_bytes()
        sizes += [scrape(number) for number in range(60, 200)]
        growth = resident_bytes() - before
    assert min(sizes) > 60 * series  # they were all there
    assert max(sizes) < 80 * series
    assert growth < budget
