"""The transport over httpx2: answers, limits, kept connections, and watches that end at once."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gpucost.domain.errors import InputError
from gpucost.kube.connect.connection import connect, connect_url
from gpucost.kube.connect.credentials import AnswerLimits
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.watch.reflector import Reflector
from tests.kube.pki import Pki, ask, error_of, pod_environ, pod_mount
from tests.support.kube import Answer, KubeServer, kube_server, listed, refused, watched

# The transport


def _local(server: KubeServer, **limits: Any) -> HttpxTransport:
    return connect_url(server.url, AnswerLimits(**limits))


def test_a_plain_address_works_without_credentials() -> None:
    with (
        kube_server(listed(), listed()) as server,
        closing(connect_url(f"{server.url}/prefix/")) as transport,
    ):
        for _ in range(2):
            with closing(
                transport.get("/api/v1/pods", {"fieldSelector": "a=b&c", "continue": "x+/="}, 5)
            ) as got:
                assert got.read_json()["items"] == []
    asked = server.asked[0]
    assert asked.path == "/prefix/api/v1/pods"
    assert asked.params == {"fieldSelector": "a=b&c", "continue": "x+/="}
    assert "Authorization" not in asked.headers
    with pytest.raises(InputError):
        connect_url("ftp://host")


def test_a_zipped_answer_is_unzipped_and_its_size_counts_unzipped() -> None:
    body = gzip.compress(json.dumps({"x": "y" * 100_000}).encode())
    answer = Answer(chunks=(body,), headers={"Content-Encoding": "gzip"})
    with kube_server(answer, answer) as server:
        with closing(_local(server)) as transport, closing(transport.get("/api", {}, 5)) as response:
            assert len(response.read_json()["x"]) == 100_000
        assert server.asked[0].headers["Accept-Encoding"] == "gzip"
        with closing(_local(server, body_bytes=50_000)) as transport:
            response = transport.get("/api", {}, 5)
            with closing(response), pytest.raises(TransportError) as caught:
                response.read_json()
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(chunks=(b'{"x": ',), ending="cut"), "cut"),
        (Answer(chunks=(b'{"x": ',), ending="silence"), "silent"),
        (Answer(chunks=(b"<html>",)), "not_json"),
        (Answer(chunks=(b"xx",), headers={"Content-Encoding": "gzip"}), "cut"),
        (Answer(chunks=(b"[" * 200_000,)), "not_json"),
    ],
    ids=["cut", "silent", "html", "no-gzip", "deep"],
)
@pytest.mark.fault(15, 16)
def test_a_body_that_cannot_be_read_has_a_reason(answer: Answer, reason: str) -> None:
    with kube_server(answer) as server, closing(_local(server)) as transport:
        response = transport.get("/api", {}, 0.3)
        with closing(response), pytest.raises(TransportError) as caught:
            response.read_json()
    assert caught.value.reason == reason


def test_the_head_has_a_limit_of_its_own_and_the_body_is_waited_for_longer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
                time.sleep(2)
                accepted.sendall(b"{}")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with closing(connect_url(url, AnswerLimits(head_s=1.0))) as transport:
            with closing(transport.get("/api", {}, 60)) as response:
                assert response.read_json() == {}
            thread.join()
            began = time.monotonic()
            with pytest.raises(TransportError) as caught:
                transport.get("/api", {}, 60)
            assert time.monotonic() - began < 50
    assert caught.value.reason == "silent"


def test_nobody_listening_and_no_such_host_are_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    for host in ("127.0.0.1", "no-such-host.invalid"):
        assert error_of(connect_url(f"http://{host}:{port}")).reason == "unreachable"


def test_a_redirect_is_an_answer_like_any_other() -> None:
    with kube_server(refused(302, location="http://127.0.0.1:1/steal")) as server:
        transport = _local(server)
        assert ask(transport) == 302
        transport.close()
    assert len(server.asked) == 1


def test_a_line_too_long_is_cut_and_the_next_one_is_whole() -> None:
    with kube_server(watched(b"a" * 5000, b"b" * 5000 + b"\n", {"x": 1})) as server:
        transport = _local(server, line_bytes=100)
        with closing(transport), closing(transport.get("/api", {}, 5)) as response:
            assert list(response.lines()) == [b"a" * 100, b'{"x": 1}']


def test_a_kept_connection_that_the_server_left_is_not_an_error() -> None:
    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                with accepted:
                    accepted.recv(65536)
                    accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    accepted.recv(65536)  # the next request comes, and is not answered

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            with closing(connect_url(f"http://127.0.0.1:{listening.getsockname()[1]}")) as transport:
                assert [ask(transport) for _ in range(10)] == [200] * 10
        finally:
            # Before it is closed: its number would be another socket's.
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def test_several_kept_connections_that_the_server_left_are_not_an_error_either() -> None:
    """Each of them is met before one is made anew."""
    many, together = 6, threading.Barrier(6)
    numbers = itertools.count()

    def serve(accepted: socket.socket) -> None:
        number = next(numbers)
        with accepted, suppress(OSError):
            accepted.recv(65536)
            if number < many:
                together.wait(60)
            accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            accepted.recv(65536)  # the next request comes, and is not answered

    def listen(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=listen, args=(listening,))
        thread.start()
        try:
            with closing(connect_url(f"http://127.0.0.1:{listening.getsockname()[1]}")) as transport:
                with ThreadPoolExecutor(many) as pool:
                    assert [*pool.map(lambda _: ask(transport), range(many))] == [200] * many
                assert ask(transport) == 200
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)
    assert next(numbers) == many + 1


@pytest.mark.fault(15)
def test_many_silent_watches_over_tls_end_at_once_when_they_are_aborted(pki: Pki, tmp_path: Path) -> None:
    silent = [watched({"x": 1}, ending="silence")] * 45
    with kube_server(*silent, tls=pki.tls()) as server:
        mounted = pod_mount(tmp_path, pki)
        with closing(connect(pod_environ(server), mounted=mounted)) as transport:
            with ThreadPoolExecutor(45) as pool:
                responses = list(pool.map(lambda _: transport.get("/api", {}, 60), range(45)))
                lines = [response.lines() for response in responses]
                assert {next(line) for line in lines} == {b'{"x": 1}'}
                ends = [pool.submit(_reason, lambda line=line: next(line)) for line in lines]
                time.sleep(0.3)
                for response in responses:
                    response.abort()
                # They would be silent after 60 s, and the server leaves them after 30.
                assert [end.result(20) for end in ends] == ["cut"] * 45
            for response in responses:
                response.close()


def _reason(read: Callable[[], object]) -> str:
    try:
        read()
    except TransportError as error:
        return error.reason
    return "none"


@pytest.mark.fault(12)
def test_a_reflector_lists_watches_and_stops_over_it(pki: Pki, tmp_path: Path) -> None:
    def pod(uid: str, version: str) -> dict[str, Any]:
        return {"metadata": {"uid": uid, "name": uid, "namespace": "n", "resourceVersion": version}}

    added = {"type": "ADDED", "object": pod("c", "103")}
    script = (
        listed(pod("a", "1"), version="100", token="more"),
        listed(pod("b", "2"), version="100"),
        watched(added, ending="silence"),
    )
    with kube_server(*script, tls=pki.tls()) as server:
        mounted = pod_mount(tmp_path, pki)
        with closing(connect(pod_environ(server), mounted=mounted)) as transport:
            reflector = Reflector(transport, "/api/v1/pods", trim=dict)
            reflector.start()
            deadline = time.monotonic() + 60
            while len(reflector.snapshot()) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            reflector.close(20)
            assert not any(each.name == "reflector /api/v1/pods" for each in threading.enumerate())
    assert set(reflector.snapshot()) == {"a", "b", "c"}
    assert reflector.errors == {}


@pytest.mark.fault(21)
def test_a_large_list_costs_little_more_than_its_parsing() -> None:
    pods = [{"metadata": {"uid": str(n), "name": str(n)}, "spec": {"x": "y" * 4000}} for n in range(5000)]
    with kube_server(listed(*pods)) as server, closing(_local(server)) as transport:
        began = time.thread_time()
        with closing(transport.get("/api/v1/pods", {}, 60)) as response:
            assert len(response.read_json()["items"]) == 5000
        assert time.thread_time() - began < 10
