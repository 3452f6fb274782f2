"""Heads of requests: what is understood, what is refused, and whether another may follow."""

from __future__ import annotations

import contextlib
import gzip
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost_exporter_base.endpoint import (
    PLAIN,
    TURN_BYTES,
    EndpointResponse,
    encode,
    parse,
    text,
    turns,
)

GET = b"GET /metrics HTTP/1.1\r\n"


def test_parts_of_a_request() -> None:
    head = (
        b"\r\nGET http://node-1:9400/metrics?a=1&b HTTP/1.1\r\nHost: node-1\r\nACCEPT: a \r\nAccept:b\r\n\r\n"
    )
    request = parse(head)
    assert (request.method, request.path, request.query) == ("GET", "/metrics", "a=1&b")
    assert request.headers == {"host": "node-1", "accept": "a, b"}
    assert request.keep_alive


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (GET + b"\r\n", True),
        (b"HEAD / HTTP/1.1\r\n\r\n", True),
        (GET + b"Connection: keep-alive\r\n\r\n", True),
        (GET + b"Content-Length: 0\r\n\r\n", True),
        (GET + b"Connection: Close\r\n\r\n", False),
        (GET + b"Connection: TE, close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\n\r\n", False),
        (GET + b"Content-Length: 5\r\n\r\n", False),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n", False),
    ],
)
def test_whether_another_request_may_follow(head: bytes, keeps: bool) -> None:
    assert parse(head).keep_alive is keeps


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET metrics HTTP/1.1\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b"Host : node\r\n\r\n",
        GET + b" folded: line\r\n\r\n",
        GET + b"Host: a\x00b\r\n\r\n",
        GET + b"Host: a\rb\r\n\r\n",
        GET + b"Host: a\nb\r\n\r\n",
    ],
)
def test_garbage_is_refused(head: bytes) -> None:
    with pytest.raises(InputError, match="request"):
        parse(head)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_understood_or_refused(noise: bytes, in_fields: bool) -> None:
    with contextlib.suppress(InputError):
        parse((GET if in_fields else b"") + noise + b"\r\n\r\n")


def test_head_has_the_length_and_no_body() -> None:
    response = EndpointResponse(200, (b"12", b"345"), PLAIN)
    head, body = encode(parse(b"HEAD / HTTP/1.1\r\n\r\n"), response)
    assert b"Content-Length: 5\r\n" in head
    assert list(body) == []
    assert encode(parse(b"GET / HTTP/1.1\r\n\r\n"), response) == (head, (b"12", b"345"))


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [
        (b"gzip", True),
        (b"deflate, gzip;q=1.0, *;q=0.5", True),
        (b"gzip;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip ; q=0.0, br", False),
        (b"xgzip", False),
        (b"gzipped", False),
        (b"identity", False),
        (b"", False),
    ],
)
def test_gzip_where_the_client_takes_it(accepted: bytes, zipped: bool) -> None:
    request = parse(GET + b"Accept-Encoding: " + accepted + b"\r\n\r\n")
    long = b"gpucost " * 1000
    head, chunks = encode(request, EndpointResponse(200, (long[:10], long[10:])))
    body = b"".join(chunks)
    assert (b"Content-Encoding: gzip\r\n" in head) is zipped
    assert (gzip.decompress(body) if zipped else body) == long
    assert f"Content-Length: {len(body)}\r\n".encode() in head


def test_short_bodies_are_not_zipped() -> None:
    request = parse(GET + b"Accept-Encoding: gzip\r\n\r\n")
    assert encode(request, text(200, "ok"))[1] == (b"ok\n",)


def test_chunks_compressed_before_are_sent_as_they_are() -> None:
    request = parse(GET + b"Accept-Encoding: gzip\r\n\r\n")
    members = (gzip.compress(b"a" * 2000), gzip.compress(b"b"))
    head, body = encode(request, EndpointResponse(200, (b"a" * 2000, b"b"), zipped=lambda: members))
    assert body is members
    assert f"Content-Length: {len(b''.join(members))}\r\n".encode() in head


@given(st.lists(st.integers(0, 3 * TURN_BYTES), max_size=8))
def test_turns_are_short_and_few(sizes: list[int]) -> None:
    chunks = [bytes([number]) * size for number, size in enumerate(sizes)]
    found = list(turns(chunks))
    assert b"".join(found) == b"".join(chunks)
    assert all(0 < len(turn) <= TURN_BYTES for turn in found)
    assert all(len(a) + len(b) > TURN_BYTES for a, b in itertools.pairwise(found))
