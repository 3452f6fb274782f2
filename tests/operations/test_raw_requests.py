"""What a socket may do that no HTTP client does: hang up in the middle, and heads that are no heads."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gpucost.api.server.connections import LARGEST_HEAD
from tests.operations.serving import Served, served

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
TYPE = b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"detectors": {"enabled": False}, "log": {"requests": True, "level": "debug"}}
    with served(tmp_path_factory.mktemp("raw"), settings) as found:
        yield found


def said(process: Served, *parts: bytes) -> bytes:
    """All of the answers to ``parts``, until the connection ends or says nothing for a while."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        with suppress(OSError):  # it has been ended by then
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionResetError):  # it ended with something of ours unread
            while part := connection.recv(65_536):
                found += part
    return found


def head(size: int) -> bytes:
    """A request for /healthz whose head has exactly ``size`` bytes."""
    start, end = HEALTH + b"X-Filler: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


@pytest.mark.parametrize(
    "path", ["/v1/advisor/advice", "/v1/keys", "/v1/findings/1/mute", "/v1/keys/ada/revoke"]
)
@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_who_hangs_up_in_a_body_is_no_fault_of_ours(process: Served, path: str, framing: bytes) -> None:
    before = len(process.log)
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + TYPE + framing + b"\r\n\r\n"
        connection.sendall(request + (b"5\r\n" if b"chunked" in framing else b"") + b'{"a":')
        time.sleep(0.3)  # so that the request has begun; if not, there is no request to speak of
    route = re.sub("/(1|ada)/", "/{id}/", path)
    line = f"POST {route} 499 "
    process.until(lambda: line in process.log[before:])
    written = process.log[before:]
    assert written.count(line) == 1
    assert "ERROR" not in written
    assert "Traceback" not in written
    assert f'route="{route}",status="500"' not in process.get("/metrics").text


def test_a_head_has_16_kib_in_one_segment_too(process: Served) -> None:
    assert said(process, head(LARGEST_HEAD)).startswith(b"HTTP/1.1 200")
    found = said(process, head(LARGEST_HEAD + 1))
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"400"]
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"] == {
        "code": "malformed_request",
        "message": "The head of a request has at most 16,384 bytes.",
        **dict.fromkeys(("field", "value", "allowed")),
    }
    for size in (30_000, 70_000, 200_000):
        # Of one that is closed with something of it unread the client may get no answer at all.
        assert re.findall(rb"HTTP/1.1 (\d+)", said(process, head(size))) in ([b"400"], []), size


def test_each_head_on_a_connection_is_measured(process: Served) -> None:
    found = said(process, head(9_000) + head(9_000) + head(LARGEST_HEAD + 1) + head(100))
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"200", b"400"]


@pytest.mark.parametrize("first", ["length", "encoding"])
def test_a_length_beside_an_encoding_is_refused_and_ends_the_connection(process: Served, first: str) -> None:
    """RFC 9112, 6.3: one of both may be there so that a proxy and we see different requests."""
    both = [b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n"]
    lines = b"".join(both if first == "length" else reversed(both))
    request = b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\n" + TYPE + lines + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    found = said(process, request + HEALTH + b"\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"400"]
    assert b"connection: close" in found.lower()
    assert b"Content-Length and Transfer-Encoding" in found


def test_a_body_that_goes_wrong_after_its_answer_is_no_error(process: Served) -> None:
    before = len(process.log)
    start = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        connection.sendall(start)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 404")
        connection.sendall(b"no chunk\r\n")
        while connection.recv(65_536):
            pass
    assert process.status("/healthz") == 200
    assert "ERROR" not in process.log[before:]
