"""Answers of a Prometheus server: parsed and checked, or turned into the error that they mean."""

from __future__ import annotations

import gc
import json
import math
import operator
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NoReturn, TypedDict, cast

import msgspec
import numpy as np
import numpy.typing as npt

from gpucost.domain.errors import (
    AnswerRefused,
    QueryRejected,
    SourceError,
    SourceTimeout,
    SourceUnreachable,
    shorten,
)
from gpucost.domain.time import LATEST_MS, iso
from gpucost.telemetry.prometheus.series_labels import LabelCatalog, LabelTable, OrderedLabels

_UNREACHABLE_STATUS = frozenset({429, 500, 502, 503, 504})
_MOST_COUNTED = 1 << 53
_MOST_SETS = 100_000
BEYOND = 1e30
"""No real reading is larger; sums and products of values below it do not overflow."""
_SOURCE = "the source"
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")

# One entry of a result: ``metric`` (labels) with ``value`` or ``values``; of ``series``: labels only.
ResultSeries = dict[str, Any]
IntColumn = npt.NDArray[np.int64]


class GarbageCollector:
    """Pauses it while an answer is read, by any thread: an answer is millions of small lists, none of which
    is garbage, and to look through them again and again takes three times as long as to read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            if not self._readers:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                if not self._readers and self._was_enabled:
                    gc.enable()


COLLECTOR = GarbageCollector()


@dataclass(frozen=True, slots=True, eq=False)
class PointColumns:
    """The points of all series of an answer, one series after the other: instants in milliseconds, values,
    and how many each series has."""

    times: IntColumn
    values: npt.NDArray[np.float64]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class QueryResponse:
    """``result`` as in the API (vector, matrix or label sets), and the server's warnings and infos. Of a
    vector or a matrix from one request also its points in ``columns``; of a matrix its labels in ``table``.
    """

    result: list[ResultSeries]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    columns: PointColumns | None = field(default=None, compare=False)
    table: LabelTable | None = field(default=None, compare=False)


class _VectorEntry(TypedDict):
    metric: dict[str, str]
    value: tuple[float, str]


class _MatrixEntry(msgspec.Struct, gc=False):
    metric: msgspec.Raw
    values: list[tuple[float, str]]


class _ResultData(TypedDict, total=False):
    resultType: str
    result: msgspec.Raw


class _ResultDocument(TypedDict, total=False):
    status: Any
    data: _ResultData
    warnings: list[Any] | None
    infos: list[Any] | None
    isPartial: Any


_VECTOR = msgspec.json.Decoder(list[_VectorEntry])
_MATRIX = msgspec.json.Decoder(list[_MatrixEntry])
_RESULTS = msgspec.json.Decoder(_ResultDocument)
_LABELS = msgspec.json.Decoder(dict[str, str])


class AnsweredLabels:
    """The labels of matrices, each text of them read once: those of one answer are mostly those of the one
    before. May be shared by threads."""

    def __init__(self) -> None:
        self._ordered = OrderedLabels()
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._catalog = LabelCatalog()
        self._numbers: dict[bytes, int] = {}
        self._sets: dict[bytes, dict[str, str]] = {}

    def of(self, texts: Sequence[bytes]) -> tuple[list[dict[str, str]], LabelTable]:
        """Raises ValueError for a text that is no label set."""
        with self._lock:
            if len(self._sets) > _MOST_SETS:
                self._forget()
            for text in {*texts}.difference(self._sets):
                labels = _LABELS.decode(text)
                self._numbers[text] = self._catalog.number(self._ordered.key(labels))
                self._sets[text] = labels
            numbers = np.fromiter(map(self._numbers.__getitem__, texts), dtype=np.int64, count=len(texts))
            return [*map(self._sets.__getitem__, texts)], LabelTable(self._catalog, numbers)


def parse(
    server: str, status: int, body: bytes, *, key: str = "", known: AnsweredLabels | None = None
) -> QueryResponse:
    """The answer in ``body``. Raises the SourceError that fits; ``server`` names it in the message.

    Some answers are plain texts: with ``key`` each is made a label set, with the text under that key.
    ``known`` are labels of answers before.
    """
    found = _of_query(body, known or AnsweredLabels()) if status == 200 else None
    if found is not None:
        return found
    document = _document(body)
    if status != 200:
        raise _failure(server, status, document if isinstance(document, dict) else {})
    succeeded = isinstance(document, dict) and document.get("status") == "success"
    data = document.get("data") if succeeded else None
    result = data.get("result") if isinstance(data, dict) else data
    kind = data.get("resultType") if isinstance(data, dict) else None
    if key and isinstance(result, list) and all(isinstance(entry, str) for entry in result):
        result = [{key: entry} for entry in result]
    is_said = succeeded and isinstance(document.get("warnings"), list | None)
    if not is_said or not isinstance(result, list) or not _are_series(result, kind):
        said = shorten(body[:120].decode("utf-8", "replace"))
        raise SourceUnreachable(f"{server} does not speak the Prometheus API; it answered {said}")
    return QueryResponse(result, _warnings(document), _texts(document.get("infos")))


def _of_query(body: bytes, known: AnsweredLabels) -> QueryResponse | None:
    """A vector or a matrix, checked while it is read; None for all else, as for what is wrong with it."""
    try:
        with COLLECTOR.paused():
            document = _RESULTS.decode(body)
            if document["status"] != "success":
                return None
            kind, raw = document["data"]["resultType"], document["data"]["result"]
            result: list[ResultSeries]
            if kind == "vector":
                result, table = cast(list[ResultSeries], _VECTOR.decode(raw)), None
                values = [[each["value"]] for each in result]
            elif kind == "matrix":
                entries = _MATRIX.decode(raw)
                values = [each.values for each in entries]
                labels, table = known.of([bytes(each.metric) for each in entries])
                result = [{"metric": own, "values": of} for own, of in zip(labels, values, strict=True)]
            else:
                return None
            columns = _columns([*chain.from_iterable(values)], [*map(len, values)])
    except (KeyError, ValueError):
        return None
    if columns is None:
        return None
    return QueryResponse(result, _warnings(document), _texts(document.get("infos")), columns, table)


def _columns(points: Sequence[tuple[float, str]], lengths: Sequence[int]) -> PointColumns | None:
    """None where an instant or a number is none."""
    if not points:
        return PointColumns(np.empty(0, dtype=np.int64), np.empty(0), lengths)
    seconds, texts = zip(*points, strict=True)
    try:
        values = np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
    except ValueError:
        return None
    times = np.fromiter(seconds, dtype=np.float64, count=len(texts)) * 1000
    if not (times.min() > -LATEST_MS and times.max() < LATEST_MS):
        return None
    return PointColumns(np.rint(times).astype(np.int64), values, lengths)


def parse_status(server: str, status: int, body: bytes) -> dict[str, str]:
    """The texts of a status page (``flags``); values of other types are left out. Raises the fitting
    SourceError."""
    document = _document(body)
    says = document if isinstance(document, dict) else {}
    if status != 200:
        raise _failure(server, status, says)
    data = says.get("data")
    if not isinstance(data, dict):
        raise SourceUnreachable(f"{server} does not say how it is set")
    return {key: value for key, value in data.items() if isinstance(value, str)}


def holding(key: str, answer: QueryResponse) -> QueryResponse:
    """``answer``, when every entry has ``key`` (value, values). Raises SourceUnreachable for another kind."""
    if any(key not in series for series in answer.result):
        raise SourceUnreachable(f"the source answered with something else than the {key} of series")
    return answer


def checked(
    server: str, answer: QueryResponse, start_ms: int, end_ms: int, step_ms: int = 1
) -> QueryResponse:
    """``answer`` without the series that have no points. Raises AnswerRefused where a series occurs twice, or
    where its points are not ordered in ``[start, end]`` at distances of ``step_ms`` or a multiple.

    Prometheus never answers like that; proxies in between may. A frontend may move all instants of a range
    back by less than a step (Thanos: query-range.align-range-with-step).
    """
    kept = [series for series in answer.result if series.get("values") != []]
    columns = answer.columns or columns_of(kept)
    table = answer.table if len(kept) == len(answer.result) else None
    if table is not None:
        different = len(np.unique(table.codes))
    else:
        different = _different([series["metric"] for series in kept])
    if different < len(kept) or not _follow(columns, start_ms - step_ms + 1, end_ms, step_ms):
        _refuse(server, kept, start_ms, end_ms, step_ms)
    columns = PointColumns(columns.times, columns.values, [each for each in columns.lengths if each])
    return QueryResponse(kept, answer.warnings, answer.infos, columns, table)


def _different(labels: Sequence[Mapping[str, str]]) -> int:
    """How many of the label sets differ. Those of one answer have few orders of names: to compare names and
    values as they come takes a quarter of the time of comparing sets."""
    orders = {tuple(each) for each in labels}
    if len({frozenset(order) for order in orders}) < len(orders):
        return len({frozenset(each.items()) for each in labels})
    return len({(*each, *each.values()) for each in labels})


def columns_of(found: Sequence[ResultSeries]) -> PointColumns:
    """Of what was read already."""
    values = [series["values"] if "values" in series else [series["value"]] for series in found]
    points = [*chain.from_iterable(values)]
    told = np.fromiter(map(float, map(operator.itemgetter(1), points)), dtype=np.float64, count=len(points))
    return PointColumns(point_times(points), told, [*map(len, values)])


def _follow(columns: PointColumns, low_ms: int, high_ms: int, step_ms: int) -> bool:
    """Whether the points of each series are ordered, inside, and steps apart."""
    times = columns.times
    if not len(times):
        return True
    first = np.zeros(len(times), dtype=np.bool_)
    lengths = [each for each in columns.lengths if each]
    first[np.cumsum([0, *lengths[:-1]])] = True
    gaps = np.diff(times)
    is_apart = (gaps > 0) & (gaps % step_ms == 0) | first[1:]
    return bool(is_apart.all() and times.min() >= low_ms and times.max() <= high_ms)


def _refuse(server: str, kept: list[ResultSeries], start_ms: int, end_ms: int, step_ms: int) -> NoReturn:
    """Raise AnswerRefused for the first series that is there twice or has a point out of place."""
    low, names = start_ms - step_ms + 1, set()
    for series in kept:
        name = frozenset(series["metric"].items())
        if name in names:
            raise AnswerRefused(server, "a series", series["metric"], "each series once")
        names.add(name)
        values = series["values"] if "values" in series else [series["value"]]
        times = [round(at * 1000) for at, _ in values]
        bad = next((at for at in times if not low <= at <= end_ms), None)
        if bad is None:
            bad = next((b for a, b in pairwise(times) if a >= b or (b - a) % step_ms), None)
        if bad is None:
            continue
        allowed = f"one after the other from {iso(start_ms)} to {iso(end_ms)}"
        allowed += f", in steps of {step_ms} ms" if step_ms > 1 else ", each instant once"
        raise AnswerRefused(server, f"samples of {shorten(series['metric'])}", iso(bad), allowed)
    raise AssertionError("some series is out of place")


def point_times(points: Iterable[Sequence[Any]]) -> IntColumn:
    """The instants of points, in whole milliseconds."""
    seconds = np.fromiter(map(operator.itemgetter(0), points), dtype=np.float64)
    return np.rint(seconds * 1000).astype(np.int64)


def joined(answers: list[QueryResponse]) -> QueryResponse:
    """Pieces of a range put together: one entry per label set, points in order, no point twice."""
    for answer in answers:
        holding("values", answer)
    if len(answers) == 1:
        return answers[0]
    merged: dict[tuple[tuple[str, str], ...], ResultSeries] = {}
    for answer in answers:
        for series in answer.result:
            key = tuple(sorted(series["metric"].items()))
            known = merged.setdefault(key, {"metric": series["metric"], "values": []})["values"]
            last = known[-1][0] if known else float("-inf")
            known.extend(point for point in series["values"] if point[0] > last)
    warnings = tuple(dict.fromkeys(text for answer in answers for text in answer.warnings))
    infos = tuple(dict.fromkeys(text for answer in answers for text in answer.infos))
    return QueryResponse(list(merged.values()), warnings, infos)


def _are_series(result: list[Any], kind: object) -> bool:
    """Whether the entries of a result have the shape that ``kind`` (None: label sets) promises."""
    if not set(map(type, result)) <= {dict}:
        return False
    if kind is None or not result:
        return _are_labels(result)
    if not _are_labels([entry.get("metric") for entry in result]):
        return False
    if kind == "vector":
        return _are_points([entry.get("value") for entry in result])
    values = [entry.get("values") for entry in result]
    is_matrix = kind == "matrix" and set(map(type, values)) <= {list}
    return is_matrix and _are_points([*chain.from_iterable(values)])


def _are_labels(sets: list[Any]) -> bool:
    """Whether each is a label set: those of all series are checked together, as points are."""
    if not set(map(type, sets)) <= {dict}:
        return False
    return set(map(type, chain.from_iterable(map(dict.values, sets)))) <= {str}


def _are_points(values: list[Any]) -> bool:
    """``[1790812800.123, "1"]``: an instant in seconds, and a number as text (``NaN`` and ``+Inf`` too).

    There are millions of points, so those of all series are checked together, a column at a time.
    """
    if not values:
        return True
    if set(map(type, values)) != {list} or set(map(len, values)) != {2}:
        return False
    times, texts = zip(*values, strict=True)
    if not set(map(type, times)) <= {int, float} or set(map(type, texts)) != {str}:
        return False
    try:
        list(map(float, texts))
        # Refuses infinities and integers of any length; NaN is neither above nor below.
        inside = min(times) * 1000 > -LATEST_MS and max(times) * 1000 < LATEST_MS
        return inside and not any(map(math.isnan, times))
    except (ValueError, OverflowError):
        return False


def whole_count(value: float) -> int:
    """A number of samples or series. Raises AnswerRefused for a value that is not a count."""
    if not 0 <= value <= _MOST_COUNTED or value != int(value):
        raise AnswerRefused(_SOURCE, "a number of samples or series", value, "a whole number from 0")
    return int(value)


def needed(series: ResultSeries, label: str, allowed: Collection[str] = ()) -> str:
    """As ``needed_value``, of a series."""
    value: str = series["metric"].get(label, "")
    if value and (not allowed or value in allowed):
        return value
    return needed_value(f"label {label} of {shorten(series['metric'])}", value, allowed)


def needed_value(field: str, value: str, allowed: Collection[str] = ()) -> str:
    """A label that the query returns by. Raises AnswerRefused where it is missing, or is none of
    ``allowed``."""
    if not value or (allowed and value not in allowed):
        words = f"one of {', '.join(sorted(allowed))}" if allowed else "a text"
        raise AnswerRefused(_SOURCE, field, value, words)
    return value


def instant_place(at_ms: int, first_ms: int, step_ms: int, number: int) -> int:
    """The index of a point of a range among ``number`` instants that are ``step_ms`` apart; a frontend may
    have moved all of them back by less than a step. Raises AnswerRefused for any other point."""
    found = -(-(at_ms - first_ms) // step_ms)
    if 0 <= found < number:
        return found
    raise AnswerRefused(_SOURCE, "a sample", iso(at_ms), f"{number} from {iso(first_ms)} on")


def _document(body: bytes) -> Any:
    """None for text that is not JSON or not valid UTF-8, which no database stores."""
    try:
        text = body.decode()
        with COLLECTOR.paused():
            document = json.loads(text)
        if _HALF_PAIR.search(text):
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return document


def _failure(server: str, status: int, says: dict[str, Any]) -> SourceError:
    if 300 <= status < 400:
        return QueryRejected(f"{server} answered {status}, a redirect; redirects are not followed")
    if status == 404 and "error" not in says:
        return QueryRejected(
            f"{server} answered 404: no Prometheus API is there; is prometheus.url right? It ends before "
            "/api and before pages such as /graph"
        )
    text = f"{server} answered {status}: {shorten(says.get('error', 'no reason given'), 300)}"
    if status in (408, 503) and says.get("errorType") == "timeout":
        return SourceTimeout(text)
    return SourceUnreachable(text) if status in _UNREACHABLE_STATUS else QueryRejected(text)


def _warnings(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Also where VictoriaMetrics' cluster says that some of its storage did not answer."""
    partial = ("the answer is partial (isPartial)",) if document.get("isPartial") else ()
    return (*partial, *_texts(document.get("warnings")))


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value)[:300] for value in values) if isinstance(values, list) else ()
