"""One GET of a text from servers that behave badly on purpose: it always ends, and in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from gpucost_exporter_base.fetch import FetchFailure, TextFetchError, fetch

OK = b"HTTP/1.1 200 OK\r\n"
TIMEOUT_S = 0.5


@contextmanager
def saying(first: bytes, again: bytes = b"", pause_s: float = 0.02) -> Iterator[str]:
    """A server of one connection that says ``first``, then ``again`` and again; its address."""
    stopping = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                try:
                    connection.sendall(first)
                    while again and not stopping.wait(pause_s):
                        connection.sendall(again)
                except OSError:
                    pass  # it has had enough

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        finally:
            stopping.set()
            thread.join()


def get(url: str, max_bytes: int = 1000, timeout_s: float = 60.0) -> str:
    return fetch(urlsplit(url), timeout_s, max_bytes)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((OK, b"Content-Length: 4\r\n\r\n", b"\xc3\xa4\xff\n"), "ä\ufffd\n"),
        ((OK, b"Connection: close\r\n\r\n", b"to the end"), "to the end"),
        ((OK, b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), "abc"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK, b"Content-Length: 1\r\n\r\n", b"a"), "a"),
    ],
)
def test_bodies_of_every_kind(answer: Sequence[bytes], text: str) -> None:
    with saying(b"".join(answer)) as url:
        assert get(url) == text


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b"H"),
        (OK + b"X: ", b"a"),
        (OK, b"X: a\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"Content-Length: 900\r\n\r\n", b"a"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"a"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n"),
    ],
)
def test_an_answer_that_drips_ends_as_a_whole(first: bytes, again: bytes) -> None:
    with saying(first, again) as url:
        with pytest.raises(TextFetchError) as caught:
            get(url, timeout_s=TIMEOUT_S)
        assert caught.value.reason is FetchFailure.TIMEOUT


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", FetchFailure.UNREACHABLE),
        (b"SSH-2.0-OpenSSH\r\n", FetchFailure.BAD_ANSWER),
        (OK + b"Content-Length: 5\r\n\r\nabc", FetchFailure.BAD_ANSWER),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", FetchFailure.BAD_ANSWER),
        (OK + b"X: a\r\n" * 200 + b"\r\n", FetchFailure.BAD_ANSWER),
        (OK + b"X: " + b"a" * 70_000 + b"\r\n\r\n", FetchFailure.BAD_ANSWER),
        (OK + b"\r\n" + b"a" * 1001, FetchFailure.TOO_LARGE),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", FetchFailure.HTTP_STATUS),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", FetchFailure.HTTP_STATUS),
    ],
)
def test_what_is_no_whole_text_is_told_apart(answer: bytes, reason: FetchFailure) -> None:
    with saying(answer) as url, pytest.raises(TextFetchError) as caught:
        get(url)
    assert caught.value.reason is reason
