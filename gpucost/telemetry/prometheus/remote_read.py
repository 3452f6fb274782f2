"""Samples by Prometheus' remote read, streamed: each sample of a series is read once, and never as text.

The server sends chunks as it stores them (``sample_chunks``), so it evaluates nothing, holds no more than a
frame at a time, and its limits on samples and points of a query do not apply. Prometheus has this since 2.13,
Mimir too; of Thanos the sidecar does. Who has not is asked by PromQL: ``is_there`` turns false with the first
answer of another kind.

A server adds its external labels to what it sends here, and not to the answers of queries; they are found by
comparing a series, and taken off again.

The protocol: prometheus.io/docs/prometheus/latest/querying/remote_read_api. Frames are the length of a
message, its CRC-32C (Castagnoli), and the message.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Protocol, TypeAlias

import numpy as np

from gpucost.domain.errors import QueryRejected, SourceUnreachable
from gpucost.domain.time import MINUTE_MS
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import (
    LabelMatcher,
    PromQL,
    QueryForm,
    SeriesSelector,
    any_of,
    equals,
    select,
    selecting,
)
from gpucost.telemetry.prometheus.query_response import COLLECTOR
from gpucost.telemetry.prometheus.sample_chunks import (
    PADDING,
    REFUSALS,
    RangeStatistics,
    SampleRanges,
    SparseStatistics,
)
from gpucost.telemetry.prometheus.sample_expressions import (
    NotEvaluated,
    SeriesGrid,
    can_be_evaluated,
    evaluated,
)
from gpucost.telemetry.prometheus.series_labels import (
    NAME,
    Codes,
    LabelCatalog,
    LabelKey,
    LabelNames,
    LabelTable,
)

_PACKAGES = ("numba", "cramjam", "google_crc32c", "google.protobuf")
_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Read-Version": "0.1.0",
    "Accept-Encoding": "identity",
}
_STREAMED = "application/x-streamed-protobuf"
# Answers that say that there is nothing of the kind at this address.
_NOT_THERE = frozenset({400, 403, 404, 405, 415, 422, 501})
_KINDS = {"=": "EQ", "!=": "NEQ", "=~": "RE", "!~": "NRE"}
_READ_BYTES = 1 << 18
_DECODED_BYTES = 4 << 20
_KEPT_BYTES = 128 << 20
_MOST_SETS = 200_000
LEAST_NODES = 16
_LOOK_BACK_MS = 5 * MINUTE_MS
"""For how long a sample is the latest one: Prometheus' own default (--query.lookback-delta)."""

_Samples: TypeAlias = tuple[LabelTable, RangeStatistics]
_Question: TypeAlias = tuple[SeriesSelector, SampleRanges]


def is_installed() -> bool:
    """Whether the packages of the extra ``fast`` are there."""
    return all(importlib.util.find_spec(name.partition(".")[0]) is not None for name in _PACKAGES)


class NoRemoteRead(Exception):
    """The server does not send samples."""


class RemoteReader:
    """Samples of one server; may be shared by threads. What was read last is kept, up to ``kept_bytes`` and
    for ``kept_s``: a service reads an hour again, to see what came late. To load what decodes takes most of a
    second, so clusters of less than ``least_nodes`` are better queried."""

    def __init__(
        self,
        client: PrometheusClient,
        *,
        least_nodes: int = LEAST_NODES,
        kept_bytes: int = _KEPT_BYTES,
        kept_s: float = math.inf,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self.least_nodes = least_nodes
        self._kept_bytes, self._kept_s, self._seconds = kept_bytes, kept_s, seconds
        self._began_s = seconds()
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Question, Future[_Samples]] = OrderedDict()
        self._bytes = 0
        self._expected: dict[tuple[int, int], SampleRanges] = {}
        self._ends: dict[int, SampleRanges] = {}
        self.looks: dict[tuple[PromQL, SampleRanges], SeriesGrid | None] = {}
        """Answers to the query of last, at all ends of ranges that are expected, kept by who asked; None
        where the server answers at other instants."""
        self._dropped: set[_Question] = set()
        self._external: Mapping[str, str] | None = None
        self._catalogs: dict[frozenset[tuple[str, str]], tuple[LabelCatalog, _LabelTexts]] = {}
        """By what is left out of the labels there."""
        self._matched: frozenset[str] = frozenset()
        """Labels by which it sent series: it takes none of them for its own."""
        self.is_there = True
        self.samples = 0
        """Read so far."""

    def grid(self, form: QueryForm, first_ms: int, step_ms: int, number: int) -> SeriesGrid | None:
        """The value of an expression at ``number`` instants; None where only a query tells it. Raises
        SourceError."""
        with self._lock:
            self._renew()
        if not self.is_there or not can_be_evaluated(form):
            return None
        try:
            return evaluated(form, _InstantReader(self, first_ms, step_ms, number))
        except NotEvaluated:
            return None
        except NoRemoteRead:
            self.is_there = False
            return None

    def expect(self, ranges: SampleRanges) -> None:
        """These ranges will be asked for, one at a time: what is read of the first is read of all. A block of
        many days costs a server the labels of all its series for each look at one of them."""
        ends = range(ranges.first_ms, ranges.first_ms + ranges.number * ranges.step_ms, ranges.step_ms)
        with self._lock:
            self._expected |= dict.fromkeys(((end_ms, ranges.range_ms) for end_ms in ends), ranges)
            self._ends |= dict.fromkeys(ends, ranges)

    def expected_with(self, end_ms: int) -> SampleRanges | None:
        """The ranges that are expected, of which one ends then."""
        return self._ends.get(end_ms)

    def statistics(self, selector: SeriesSelector, ranges: SampleRanges) -> _Samples:
        """What each series did in these ranges; read once, also where several threads ask at the same time.
        Raises NotEvaluated, NoRemoteRead and SourceError."""
        key = selector, ranges
        with self._lock:
            known = self._kept.get(key)
            if known is None:
                mine = self._kept[key] = Future[_Samples]()
            else:
                self._kept.move_to_end(key)
            together = self._expected.get((ranges.first_ms, ranges.range_ms)) if ranges.number == 1 else None
            if together is not None and (selector, together) in self._dropped:
                together = None  # there is no room for all of them
        if known is not None:
            return known.result()
        try:
            if together is not None:
                found = _at(*self.statistics(selector, together), ranges)
            else:
                found = self._as_stored(
                    selector, *self._client.tried_again(lambda: self._read(selector, ranges))
                )
        except BaseException as error:
            with self._lock:
                self._kept.pop(key, None)
            mine.set_exception(error)
            raise
        mine.set_result(found)
        with self._lock:
            self.samples += found[1].samples
            self._forget(found[1].bytes)
        return found

    def _renew(self) -> None:
        """Nothing that was kept is used for longer than it may be, nor that the server sent no samples."""
        now_s = self._seconds()
        if now_s - self._began_s <= self._kept_s:
            return
        for key in [key for key, each in self._kept.items() if each.done()]:
            del self._kept[key]
        for kept in (self._expected, self._ends, self.looks, self._dropped):
            kept.clear()
        self._bytes, self._began_s, self.is_there = 0, now_s, True

    def _forget(self, more: int) -> None:
        """What was asked for longest ago, after so many bytes came; mostly there is room for all."""
        self._bytes += more
        if self._bytes <= self._kept_bytes:
            return
        for key, each in [*self._kept.items()]:
            if self._bytes <= self._kept_bytes:
                return
            if each.done():
                self._bytes -= each.result()[1].bytes
                del self._kept[key]
                if key[1].number > 1:
                    self._dropped.add(key)

    def _as_stored(
        self, selector: SeriesSelector, table: LabelTable, statistics: RangeStatistics
    ) -> _Samples:
        """The labels without those that the server adds here only. Raises NotEvaluated where queries know
        series and the server sent none: it takes a matcher of an external label for its own."""
        span = _ends(statistics.ranges)
        labels = {each.label for each in selector.matchers}
        if len(table):
            self._matched |= labels
        elif not labels <= self._matched and self._client.series(selecting(selector), *span).result:
            raise NotEvaluated
        if self._external is None and len(table):
            added = self._added(table.rows[0], span)
            with self._lock:
                self._external = {**added, **(self._external or {})}
        if strange := _not_matched(selector, table):
            with self._lock:
                self._external = {**(self._external or {}), **strange}
        left_out = self._left_out(selector)
        with self._lock:
            catalog, _ = self._catalogs.get(left_out, (None, None))
        if not left_out or table.catalog is catalog:
            return table, statistics
        stored = (
            {name: value for name, value in row.items() if (name, value) not in left_out}
            for row in table.rows
        )
        return LabelTable.of(stored), statistics

    def _left_out(self, selector: SeriesSelector) -> frozenset[tuple[str, str]]:
        """What the server adds to series of these; a label that they must have is their own."""
        own = {each.label for each in selector.matchers if not _matches(each, "")}
        return frozenset((name, value) for name, value in (self._external or {}).items() if name not in own)

    def _added(self, labels: Mapping[str, str], span: tuple[int, int]) -> Mapping[str, str]:
        """What of these labels of a series queries do not show. Raises NotEvaluated where no query finds the
        series."""
        exact = [equals(name, labels[name]) for name in ("instance", "job") if name in labels]
        name = labels["__name__"]
        if self._client.series(select(name, [*starmap(equals, labels.items())]), *span).result == [labels]:
            return {}  # which of the many others are like it, nobody needs to know
        known = self._client.series(select(name, exact), *span).result
        within = [each for each in known if each.items() <= labels.items()]
        if not within:
            raise NotEvaluated
        stored = max(within, key=len)
        return {name: value for name, value in labels.items() if name not in stored}

    def _catalog_of(self, selector: SeriesSelector) -> tuple[LabelCatalog, _LabelTexts]:
        left_out = self._left_out(selector)
        with self._lock:
            if left_out not in self._catalogs or len(self._catalogs[left_out][0].keys) > _MOST_SETS:
                texts = _LabelTexts(dict(left_out))
                self._catalogs[left_out] = LabelCatalog(texts.key), texts
            return self._catalogs[left_out]

    def _read(self, selector: SeriesSelector, ranges: SampleRanges) -> _Samples:
        url = self._client.url
        with self._client.streamed("read", _request(selector, ranges), _HEADERS) as response:
            status = response.status_code
            if (status >= 500 and status != 501) or status == 429:
                raise SourceUnreachable(f"{url} answered {status} to a remote read")
            if status in _NOT_THERE or _STREAMED not in response.headers.get("Content-Type", ""):
                raise NoRemoteRead
            if status != 200:
                raise QueryRejected(f"{url} answered {status} to a remote read")
            try:
                catalog, texts = self._catalog_of(selector)
                with COLLECTOR.paused():
                    return _decoded(response.raw, self._statistics_of(ranges), catalog, texts)
            except _BrokenStream as error:
                raise SourceUnreachable(f"{url} broke off a remote read: {error}") from None

    def _statistics_of(self, ranges: SampleRanges) -> RangeStatistics:
        is_of_days = self._expected.get((ranges.first_ms, ranges.range_ms)) == ranges
        return SparseStatistics(ranges) if is_of_days else RangeStatistics(ranges)


@dataclass(frozen=True, slots=True)
class _InstantReader:
    """The ``RangeReader`` of an expression at ``number`` instants."""

    reader: RemoteReader
    first_ms: int
    step_ms: int
    number: int

    def over_time(self, selector: SeriesSelector, range_ms: int, function: str) -> SeriesGrid:
        ranges = SampleRanges(self.first_ms, self.step_ms, self.number, range_ms)
        table, statistics = self.reader.statistics(selector, ranges)
        return SeriesGrid(table, *statistics.grid(function))

    def latest(self, selector: SeriesSelector) -> SeriesGrid:
        # The ranges of functions over the same steps, which may have been read already.
        range_ms = max(_LOOK_BACK_MS, self.step_ms - 1 if self.number > 1 else 0)
        ranges = SampleRanges(self.first_ms, self.step_ms, self.number, range_ms)
        table, statistics = self.reader.statistics(selector, ranges)
        return SeriesGrid(table, *statistics.latest(_LOOK_BACK_MS))


def _at(table: LabelTable, statistics: RangeStatistics, ranges: SampleRanges) -> _Samples:
    """Of what was read of several ranges, the one that was asked for."""
    asked = statistics.ranges
    found, rows = statistics.range_at((ranges.first_ms - asked.first_ms) // asked.step_ms)
    return table.of_rows(rows), found


class ByteStream(Protocol):
    """The body of an answer."""

    def read(self, amt: int, /) -> bytes: ...


class _BrokenStream(Exception):
    pass


def _ends(ranges: SampleRanges) -> tuple[int, int]:
    """The first instant of all ranges, and the last."""
    return ranges.first_ms - ranges.range_ms, ranges.last_ms


def _matches(matcher: LabelMatcher, value: str) -> bool:
    if matcher.operator in ("=", "!="):
        return (value == matcher.value) is (matcher.operator == "=")
    try:
        is_like = re.fullmatch(matcher.value, value, re.DOTALL) is not None
    except re.error:  # a pattern that only the server understands
        return True
    return is_like is (matcher.operator == "=~")


def _not_matched(selector: SeriesSelector, table: LabelTable) -> dict[str, str]:
    """Labels that these series cannot have, so that the server must have added them."""
    found = dict[str, str]()
    for each in selector.matchers:
        if each.operator in ("=", "=~") and _matches(each, ""):
            (values,) = table.columns([each.label])
            found |= [(each.label, value) for value in {*values} if not _matches(each, value)]
    return found


def _request(selector: SeriesSelector, ranges: SampleRanges) -> bytes:
    import cramjam

    from gpucost.telemetry.prometheus import remote_read_pb2 as wire

    def matcher(each: LabelMatcher) -> Any:
        if each.operator == "=" and each.value and each.label != NAME:
            # Prometheus takes an equality with one of its external labels for "has no such label", and leaves
            # patterns as they are (filterExtLabelsFromMatchers in storage/remote/read_handler.go).
            each = LabelMatcher(each.label, "=~", any_of([each.value]))
        kind = _KINDS[each.operator]
        return wire.LabelMatcher(type=kind, name=each.label, value=each.value)

    start_ms, end_ms = _ends(ranges)
    matchers = [matcher(each) for each in selector.matchers]
    query = wire.Query(start_timestamp_ms=start_ms, end_timestamp_ms=end_ms, matchers=matchers)
    kinds = [wire.ReadRequest.STREAMED_XOR_CHUNKS]
    asked = wire.ReadRequest(queries=[query], accepted_response_types=kinds)
    return bytes(cramjam.snappy.compress_raw(asked.SerializeToString()))


class _ReadLabels(dict[bytes, tuple[str, str]]):
    """Messages ``Label``, each read once; those of one family of series are mostly those of the next."""

    def __init__(self) -> None:
        from gpucost.telemetry.prometheus.remote_read_pb2 import Label

        super().__init__()
        self._read = Label.FromString

    def __missing__(self, message: bytes) -> tuple[str, str]:
        read = self._read(message)
        found = self[message] = sys.intern(read.name), read.value
        return found


class _LabelTexts:
    """Texts of labels, which are messages ``Label``; without those that the server adds, where they are
    known."""

    def __init__(self, external: Mapping[str, str]) -> None:
        from gpucost.telemetry.prometheus.remote_read_pb2 import ChunkedSeries

        self._external = external
        self._series = ChunkedSeries.FromString
        self._labels = _ReadLabels()
        self._names: dict[LabelNames, LabelNames] = {}

    def key(self, text: bytes) -> LabelKey:
        labels = [*map(self._labels.__getitem__, self._series(text).labels)]
        if self._external:
            labels = [each for each in labels if self._external.get(each[0]) != each[1]]
        names, values = zip(*labels, strict=True) if labels else ((), ())
        return self._names.setdefault(names, names), values

    def value(self, text: bytes) -> str:
        """Of the text of one label; empty for none."""
        return next((self._labels[each][1] for each in self._series(text).labels), "")


class _StreamedSeries:
    """What frames say of series: labels by row, and statistics."""

    def __init__(self, statistics: RangeStatistics, catalog: LabelCatalog) -> None:
        self._catalog = catalog
        self.statistics = statistics
        self._rows: dict[bytes, int] = {}
        self._codes: list[int] = []
        self._names: list[bytes] = []

    def add(self, data: bytes, size: int) -> int:
        """The whole frames among so many bytes, after which PADDING follows; how many bytes they are. Raises
        _BrokenStream and NotEvaluated."""
        from google_crc32c import value

        from gpucost.telemetry.prometheus.chunk_loops import scan_frames

        array = np.frombuffer(data, dtype=np.uint8)
        # A series is no shorter than that.
        most = size // 16 + 1
        frames, series, chunks = (np.empty((width, most), dtype=np.int64) for width in (3, 4, 3))
        at, number, many, have, wrong = scan_frames(array, np.int64(size), frames, series, chunks)
        starts, ends, stated = frames[:, :number].tolist()
        if [value(data[first:end]) for first, end in zip(starts, ends, strict=True)] != stated:
            raise _BrokenStream("a frame whose checksum is another one")
        if wrong:
            raise _BrokenStream(REFUSALS[int(wrong)])
        rows = self._rows_of(data, series[:, :many].T.tolist())
        if have:
            try:
                self.statistics.add(array, chunks[0, :have], chunks[1, :have], rows[chunks[2, :have]])
            except ValueError:
                raise NotEvaluated from None
        return int(at)

    def _rows_of(self, data: bytes, spans: Sequence[Sequence[int]]) -> Codes:
        """The row of each series, by where its labels begin and end, and its name among them."""
        known, codes, names, texts = self._rows, self._codes, self._names, self._catalog.texts
        found: list[int] = []
        for first, end, name, after in spans:
            text = data[first:end]
            row = known.get(text)
            if row is None:
                row = known[text] = len(known)
                codes.append(texts[data[first:name] + data[after:end]])
                names.append(data[name:after])
            found.append(row)
        return np.array(found, dtype=np.int64)

    def samples(self, texts: _LabelTexts) -> _Samples:
        self.statistics.close(len(self._rows))
        of = {text: texts.value(text) for text in {*self._names}}
        names = [of[text] for text in self._names]
        return LabelTable(self._catalog, np.array(self._codes, dtype=np.int64), names), self.statistics


def _decoded(
    raw: ByteStream, statistics: RangeStatistics, catalog: LabelCatalog, texts: _LabelTexts
) -> _Samples:
    """Raises _BrokenStream and NotEvaluated."""
    found = _StreamedSeries(statistics, catalog)
    rest, is_over = b"", False
    while not is_over:
        parts, size = [rest], len(rest)
        while size < len(rest) + _DECODED_BYTES:
            more = raw.read(_READ_BYTES)
            if not more:
                is_over = True
                break
            parts.append(more)
            size += len(more)
        data = b"".join((*parts, bytes(PADDING)))
        rest = data[found.add(data, size) : size]
    if rest:
        raise _BrokenStream("the last frame is not whole")
    return found.samples(texts)
