"""Client of the Prometheus HTTP API: PrometheusConnect with its faults repaired.

Repaired: queries travel in POST bodies, not in the URL; every request has a timeout and a cap on its body;
warnings and infos are kept; every failure is a SourceError of its own kind; retries happen only where they
can help; redirects are refused; long ranges are queried in pieces. The caller decides what warnings mean.

The time limit of a request covers the whole answer, its head included. The timeout of a socket would not do:
it covers each wait, so a server that sends a byte now and then would never run into it.
"""

from __future__ import annotations

import http.client
import io
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from gpucost.domain.errors import InputError, QueryRejected, SourceTimeout, SourceUnreachable
from gpucost.domain.time import MINUTE_MS
from gpucost.telemetry.prometheus.promql import PromQL, label_name, samples
from gpucost.telemetry.prometheus.query_response import (
    AnsweredLabels,
    QueryResponse,
    checked,
    holding,
    joined,
    parse,
    parse_status,
)
from gpucost.telemetry.prometheus.request_turns import QuestionBatch, RequestTurns

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from gpucost.telemetry.prometheus.remote_read import RemoteReader

_Answer = TypeVar("_Answer")


class TimedAdapter(HTTPAdapter):
    """The read timeout of a request covers its whole answer; an answer that takes longer is a read
    timeout."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _AnswerStream(io.RawIOBase):
    """The bytes that a socket receives until ``deadline``; after it, reading raises TimeoutError."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        self._raw, self._sock, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_AnswerStream(raw, sock, time.monotonic() + timeout_s))
        self._chunks: _ChunkedBody | None = None

    def read(self, amt: int | None = None) -> bytes:
        """Of a body in chunks ``amt`` bytes, or some more, until it ends: a server sends a chunk for each
        series, and http.client reads each of them in a few calls."""
        if amt is None or not self.chunked or self.chunk_left is not None or self.fp is None:
            return super().read(amt)
        if self._chunks is None:
            self._chunks = _ChunkedBody()
        found: list[bytes] = []
        size = 0
        while size < amt and not self._chunks.is_whole:
            more = self.fp.read1(amt)
            if not more:
                self.close()
                raise http.client.IncompleteRead(b"")
            found.append(self._chunks.taken(more))
            size += len(found[-1])
        if self._chunks.is_whole:
            self.close()
        return b"".join(found)


class _ChunkedBody:
    """A body in chunks (RFC 9112, 7.1), as it comes."""

    def __init__(self) -> None:
        self.is_whole = False
        self._held = b"\r\n"  # as stands between chunks
        self._left = 0

    def taken(self, received: bytes) -> bytes:
        """What of the body is in it. Raises IncompleteRead for what is no chunk."""
        data, at, left = self._held + received, 0, self._left
        found: list[bytes] = []
        while True:
            if left:
                part = data[at : at + left]
                found.append(part)
                at, left = at + len(part), left - len(part)
            end = data.find(b"\r\n", at + 2)
            if left or end < 0:
                break
            many = _chunk_size(data[at + 2 : end]) if data.startswith(b"\r\n", at) else -1
            if many < 0:
                raise http.client.IncompleteRead(b"")
            if not many:
                # Trailers may follow, and an empty line.
                self.is_whole = data.find(b"\r\n\r\n", end) >= 0
                break
            at, left = end + 2, many
        if len(data) - at > _LONGEST_HEAD:
            raise http.client.IncompleteRead(b"")
        self._held, self._left = data[at:], left
        return b"".join(found)


def _chunk_size(head: bytes) -> int:
    """Of the line before a chunk, which may have extensions; -1 for none."""
    if not head.isalnum():
        head = head.partition(b";")[0].strip()
        if not head.isalnum():
            return -1
    try:
        return int(head, 16)
    except ValueError:
        return -1


class _HttpConnection(HTTPConnection):
    response_class = _TimedResponse


class _HttpsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


_CHUNK_BYTES = 1 << 18
_LONGEST_HEAD = 1 << 16
# By these a server says that it has too much to do.
_OVERLOADED = frozenset({429, 503})
# How far from the requested instant an answer may be: caches and servers that wait for late samples move it.
_MOVED_MS = 5 * MINUTE_MS
# How many of the server's warnings and infos are kept.
_MOST_INFOS = 100
# The first of these among the causes says what happened; if it has no text, the operating system's text is
# used.
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "its TLS certificate is not trusted (prometheus.ca_file)"),
    (ssl.SSLError, "TLS failed; does it speak https?"),
    (socket.gaierror, "its name cannot be resolved (DNS)"),
    (ConnectionRefusedError, "connection refused"),
    (ConnectionResetError, "connection reset"),
    (OSError, ""),
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Limits of one request, and how many are under way at once. Prometheus refuses more than 11,000 points
    per series by itself, and answers 20 queries at once by default."""

    connect_timeout_s: float = 5.0
    read_timeout_s: float = 120.0
    attempts: int = 4
    backoff_s: float = 0.5
    backoff_cap_s: float = 15.0
    max_bytes: int = 1 << 29
    max_points: int = 10_000
    max_raw_span_ms: int = 86_400_000
    most_at_once: int = 6

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InputError(f"prometheus.{name}", getattr(self, name), "a positive number")


@dataclass(slots=True)
class QueryStats:
    """Queries sent to the server; ``query_seconds`` is the time spent waiting for each, added up."""

    queries: int = 0
    retries: int = 0
    series: int = 0
    bytes: int = 0
    query_seconds: float = 0.0
    infos: set[str] = field(default_factory=set)


class PrometheusClient(PrometheusConnect):  # type: ignore[misc]
    """One server. ``headers`` may carry a bearer token; userinfo in ``url`` becomes basic auth.

    ``sleep`` and ``jitter`` (uniform in [0, 1)) are passed in so that tests need not wait.
    Once ``stopped`` says so, a request that failed is not tried again. May be shared by threads.
    """

    def __init__(
        self,
        url: str,
        *,
        settings: ClientSettings | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: Mapping[str, str] | None = None,
        verify: bool | str = True,
        sleep: Callable[[float], object] = time.sleep,
        stopped: Callable[[], bool] = lambda: False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        bare, auth = _split_userinfo(url)
        self.settings = settings or ClientSettings()
        self.stats = QueryStats()
        self.samples: RemoteReader | None = None
        """What reads samples themselves, where the server sends them; set by who has it."""
        self._turns, self._counting = RequestTurns(self.settings.most_at_once), threading.Lock()
        self._sleep, self._jitter, self._stopped = sleep, jitter, stopped
        self._labels = AnsweredLabels()
        session = requests.Session()
        # Proxies and credentials come from the settings, never from the environment or ~/.netrc.
        session.trust_env = False
        session.verify = verify
        super().__init__(
            bare,
            headers=dict(headers or {}),
            auth=auth,
            proxy=dict(proxy or {}),
            session=session,
            timeout=(self.settings.connect_timeout_s, self.settings.read_timeout_s),
            method="POST",
        )
        # In place of the library's own adapter, which retries by itself.
        session.mount(bare, TimedAdapter(max_retries=Retry(total=0, redirect=False)))

    @property
    def has_samples(self) -> bool:
        """Whether samples themselves are read, and the server sends them as far as is known."""
        return self.samples is not None and self.samples.is_there

    def batch(self) -> QuestionBatch:
        """For questions to this client that are asked together."""
        return QuestionBatch(self.settings.most_at_once)

    def query(self, expression: PromQL, at_ms: int) -> QueryResponse:
        """An instant query: one value per series, or the raw samples of a range selector."""
        form = {"query": expression, "time": _seconds(at_ms), **self._server_limit()}
        found = self._ask("query", form)
        if any("values" in series for series in found.result):
            return checked(self.url, found, 0, at_ms)
        return checked(self.url, found, at_ms - _MOVED_MS, at_ms + _MOVED_MS)

    def query_range(self, expression: PromQL, start_ms: int, end_ms: int, step_ms: int) -> QueryResponse:
        """Values at ``start, start + step, … <= end``, queried in pieces below the server's limit."""
        if step_ms <= 0:
            raise InputError("step", step_ms, "a positive number of milliseconds")
        answers = []
        span = (self.settings.max_points - 1) * step_ms
        for start in range(start_ms, end_ms + 1, span + step_ms):
            end = min(start + span, end_ms)
            form = {
                "query": expression,
                "start": _seconds(start),
                "end": _seconds(end),
                # As a duration: Prometheus makes 16.364 s of 16.365, since it cuts what it reads as a float.
                "step": f"{step_ms}ms",
            }
            found = holding("values", self._ask("query_range", {**form, **self._server_limit()}))
            answers.append(checked(self.url, found, start, end, step_ms))
        return joined(answers)

    def raw(self, selector: PromQL, start_ms: int, end_ms: int) -> QueryResponse:
        """Every sample in ``[start, end]``, both ends included, queried in pieces of a day."""
        answers = []
        for start, end in _spans(start_ms, end_ms, self.settings.max_raw_span_ms):
            # A range is open on its left from Prometheus 3 on: one millisecond more includes the start.
            found = holding("values", self.query(samples(selector, end - start + 1), end))
            answers.append(checked(self.url, found, start - 1, end))
        answer = joined(answers)
        for series in answer.result:
            series["values"] = [point for point in series["values"] if point[0] * 1000 > start_ms - 0.5]
        kept = [series for series in answer.result if series["values"]]
        return QueryResponse(kept, answer.warnings, answer.infos)

    def series(
        self, selector: PromQL, start_ms: int | None = None, end_ms: int | None = None
    ) -> QueryResponse:
        """The label sets of all series that ``selector`` matches, with samples in the given time or at any
        time."""
        form: dict[str, str] = {"match[]": selector}
        if start_ms is not None and end_ms is not None:
            form |= {"start": _seconds(start_ms), "end": _seconds(end_ms)}
        return self._ask("series", form)

    def label_names(self, selector: PromQL, start_ms: int, end_ms: int) -> QueryResponse:
        """The names of all labels of the series that ``selector`` matches, each as ``{"label": name}``."""
        form = {"match[]": selector, "start": _seconds(start_ms), "end": _seconds(end_ms)}
        return self._ask("labels", form, key="label")

    def label_values(self, label: str, selector: PromQL, start_ms: int, end_ms: int) -> QueryResponse:
        """The values of one label of the series that ``selector`` matches, each as ``{"label": value}``.
        Answered from the server's index, whatever the number of samples."""
        form = {"match[]": selector, "start": _seconds(start_ms), "end": _seconds(end_ms)}
        return self._ask(f"label/{label_name(label)}/values?{urlencode(form)}", None, key="label")

    def status(self, what: str) -> dict[str, str]:
        """What the server reports about itself: ``flags`` or ``runtimeinfo``. Not retried: many servers
        (Thanos, Mimir) do not support it. Raises SourceError."""
        with self._counting:
            self.stats.queries += 1
        code, body = self._send(f"status/{what}", None)
        return parse_status(self.url, code, body)

    def _server_limit(self) -> dict[str, str]:
        return {"timeout": f"{self.settings.read_timeout_s:g}s"}

    def _ask(self, path: str, form: Mapping[str, Any] | None, *, key: str = "") -> QueryResponse:
        return self.tried_again(lambda: self._once(path, form, key))

    def tried_again(self, ask: Callable[[], _Answer]) -> _Answer:
        """The result of ``ask``, which is called again where that can help."""
        for attempt in range(self.settings.attempts):
            try:
                return ask()
            except (SourceUnreachable, SourceTimeout):
                if attempt + 1 == self.settings.attempts or self._stopped():
                    raise
                with self._counting:
                    self.stats.retries += 1
                ceiling = min(self.settings.backoff_cap_s, self.settings.backoff_s * 2**attempt)
                self._sleep(self._jitter() * ceiling)
                if self._stopped():
                    raise
        raise AssertionError("at least one attempt is made")

    def _once(self, path: str, form: Mapping[str, Any] | None, key: str) -> QueryResponse:
        with self._counting:
            self.stats.queries += 1
        status, body = self._at_its_turn(path, form)
        answer = parse(self.url, status, body, key=key, known=self._labels)
        with self._counting:
            self.stats.series += len(answer.result)
            if len(self.stats.infos) < _MOST_INFOS:
                self.stats.infos.update(answer.infos[:_MOST_INFOS])
        return answer

    def _at_its_turn(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        with self._turns.turn():
            started = time.monotonic()
            try:
                status, body = self._send(path, form)
            except SourceTimeout:
                self._turns.overloaded()
                raise
            finally:
                with self._counting:
                    self.stats.query_seconds += time.monotonic() - started
        with self._counting:
            self.stats.bytes += len(body)
        if status in _OVERLOADED:
            self._turns.overloaded()
        else:
            self._turns.answered()
        return status, body

    def _send(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """Posts ``form``; without one, just asks."""
        with self._answer(path, form) as response:
            return response.status_code, self._body(response)

    @contextmanager
    def streamed(self, path: str, body: bytes, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        """The answer to ``body``, whose bytes (``raw``) are read while they come. Takes a turn as every
        request; not retried. Raises SourceUnreachable and SourceTimeout, within the block too."""
        with self._counting:
            self.stats.queries += 1
        with self._turns.turn():
            started = time.monotonic()
            try:
                with self._answer(path, body, headers) as response:
                    if response.status_code in _OVERLOADED:
                        self._turns.overloaded()
                    yield response
            except SourceTimeout:
                self._turns.overloaded()
                raise
            finally:
                with self._counting:
                    self.stats.query_seconds += time.monotonic() - started

    @contextmanager
    def _answer(
        self, path: str, data: Mapping[str, Any] | bytes | None, headers: Mapping[str, str] | None = None
    ) -> Iterator[requests.Response]:
        read_timeout = self.settings.read_timeout_s
        try:
            with self._session.send(
                self._prepared(path, data, headers or {}),
                timeout=(self.settings.connect_timeout_s, read_timeout),
                allow_redirects=False,
                stream=True,
            ) as response:
                yield response
        except requests.exceptions.Timeout:
            raise SourceTimeout(f"{self.url} did not answer within {read_timeout:g} s") from None
        except ReadTimeoutError:
            raise SourceTimeout(f"{self.url} was still sending after {read_timeout:g} s") from None
        except (requests.exceptions.RequestException, HTTPError) as error:
            raise SourceUnreachable(
                f"{self.url} cannot be reached: {_reason(error)}; is prometheus.url right?"
            ) from None  # the cause may show the header that holds the token

    def _prepared(
        self, path: str, data: Mapping[str, Any] | bytes | None, headers: Mapping[str, str]
    ) -> requests.PreparedRequest:
        """A request as the session makes it; what all have in common is made once, which is most of it."""
        request = requests.PreparedRequest()
        request.method = "GET" if data is None else "POST"
        request.url = f"{self._in_common.url}{path}"
        request.headers = self._in_common.headers.copy()
        request.prepare_cookies(self._session.cookies)
        if isinstance(data, Mapping):
            request.headers["Content-Type"] = "application/x-www-form-urlencoded"
            data = urlencode(data, doseq=True).encode()
        request.headers.update(headers)
        if data is not None:
            request.prepare_body(data, None)
        return request

    @cached_property
    def _in_common(self) -> requests.PreparedRequest:
        asked = requests.Request("GET", f"{self.url}/api/v1/", headers=self.headers, auth=self.auth)
        made: requests.PreparedRequest = self._session.prepare_request(asked)
        return made

    def _body(self, response: requests.Response) -> bytes:
        parts, size = [], 0
        while part := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            parts.append(part)
            size += len(part)
            if size > self.settings.max_bytes:
                raise QueryRejected(
                    f"{self.url} answered with over {self.settings.max_bytes} bytes; ask for less at once"
                )
        return b"".join(parts)


def _spans(start_ms: int, end_ms: int, span_ms: int) -> Iterator[tuple[int, int]]:
    start = start_ms
    while True:
        end = min(start + span_ms, end_ms)
        yield start, end
        if end == end_ms:
            return
        start = end


def _reason(error: BaseException) -> str:
    """What failed below HTTP, as text; the libraries' exceptions say it only in the chain of causes."""
    chain, at = [error], 0
    while at < len(chain):
        causes = (
            *chain[at].args,
            getattr(chain[at], "reason", None),
            chain[at].__cause__,
            chain[at].__context__,
        )
        chain += [cause for cause in causes if isinstance(cause, BaseException) and cause not in chain]
        at += 1
    for kind, words in _REASONS:
        found = next((cause for cause in chain if isinstance(cause, kind)), None)
        if found is not None:
            return words or getattr(found, "strerror", None) or type(found).__name__
    return type(error).__name__


def _seconds(instant_ms: int) -> str:
    return f"{instant_ms // 1000}.{instant_ms % 1000:03d}"


def _split_userinfo(url: str) -> tuple[str, tuple[str, str] | None]:
    """The URL without userinfo, so that no message can show it, and the userinfo as basic auth."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(
            "prometheus.url", parts.hostname or "", "http:// or https:// with a host, and no query"
        )
    host = parts.netloc.rpartition("@")[2]
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), auth
