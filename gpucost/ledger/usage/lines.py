"""Usage lines in normal form, and what the ledger stores of them.

In normal form every name is stored once, and lines are positions in arrays. Attribution computes them so; a
frame of USAGE_LINES, with every name in every line, is converted. ``prepare`` then checks lines and puts them
under content keys, with sums and digests per window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.attribution.usage_lines import UNIT_NAMES, Attribution
from gpucost.contract.frames import HOLDER_COLUMNS, LINE_MEASURES, PROGRESS, USAGE_LINES, FrameSpec
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, InputError, LedgerConflict
from gpucost.domain.rates import Rate
from gpucost.domain.time import Month, Window, iso
from gpucost.ledger.db.digest import content_key, line_texts, window_digest
from gpucost.ledger.db.dimensions import are_texts, check_int64, check_text, month_of

UNIT_COLUMNS = tuple(UNIT_NAMES)
HOLDER_KEY_COLUMNS = (*(column.name for column in HOLDER_COLUMNS), "team")
_NULLABLE = frozenset(LINE_MEASURES) - {"board_ms", "first_ms", "last_ms"}
INTEGERS = frozenset({"window_start_ms", "window_end_ms", "share_num", "share_den", *LINE_MEASURES})
_CODES = {bucket.value: code for code, bucket in enumerate(BUCKETS)}

LineRows: TypeAlias = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class LineMeasure:
    """Numbers of lines; where one is ``missing`` its value is 0."""

    values: Ints
    missing: Flags

    @classmethod
    def of(cls, series: pd.Series[Any]) -> Self:
        """From a column of int64 or Int64."""
        return cls(series.to_numpy("int64", na_value=0), series.isna().to_numpy())

    @classmethod
    def of_plain(cls, values: Sequence[int | None]) -> Self:
        if None not in values:
            return cls(np.array(values, np.int64), np.zeros(len(values), np.bool_))
        return cls(
            np.array([value or 0 for value in values], np.int64),
            np.array([value is None for value in values], np.bool_),
        )

    def plain(self) -> np.ndarray[Any, Any]:
        """As int, or None where missing."""
        values = self.values.astype(object)
        values[self.missing] = None
        return values


@dataclass(frozen=True, slots=True)
class WindowLines:
    """Lines of one cluster and some windows.

    ``window``, ``unit``, ``holder``, ``rate`` (-1: no price), ``bucket`` (code) and ``rule`` (-1: not known)
    are positions, one per line. ``units`` are rows of UNIT_COLUMNS, ``holders`` of HOLDER_KEY_COLUMNS,
    ``rules`` texts of team rules; not all need to be used.
    """

    windows: tuple[Window, ...]
    units: LineRows
    holders: LineRows
    rates: tuple[Rate, ...]
    rules: tuple[str, ...]
    window: Ints
    unit: Ints
    holder: Ints
    rate: Ints
    bucket: Ints
    rule: Ints
    measures: Mapping[str, LineMeasure]

    @classmethod
    def of_attribution(cls, attribution: Attribution) -> Self:
        lines = attribution.lines
        rules, rule = attribution.holders.rules_of(lines)
        return cls(
            attribution.windows,
            _rows(attribution.units, UNIT_COLUMNS),
            _rows(attribution.holders.frame, HOLDER_KEY_COLUMNS),
            attribution.rates,
            rules,
            lines["window"].to_numpy(),
            lines["unit"].to_numpy(),
            lines["holder"].to_numpy(),
            lines["rate"].to_numpy(),
            lines["bucket"].to_numpy(),
            rule,
            {name: LineMeasure.of(lines[name]) for name in LINE_MEASURES},
        )

    @classmethod
    def of_frame(cls, cluster: str, window: Window, frame: pd.DataFrame, rates: Mapping[str, Rate]) -> Self:
        """``frame`` of USAGE_LINES of one window, which say no team rules. Raises InputError for columns that
        are not as declared."""
        columns = plain_columns(frame, USAGE_LINES, but=LINE_MEASURES)
        _check_place(columns, cluster, window)
        units, unit = distinct(columns, UNIT_COLUMNS)
        holders, holder = distinct(columns, HOLDER_KEY_COLUMNS)
        used = _used_rates(columns["rate_id"], rates)
        rate_at = {rate_id: n for n, rate_id in enumerate(used)} | {"": -1}
        codes = np.array([_CODES.get(bucket, -1) for bucket in columns["bucket"]], np.int64)
        for at in np.flatnonzero(codes < 0)[:1].tolist():
            bucket = columns["bucket"][at]
            name = line_name(units[unit[at]], holders[holder[at]], bucket, columns["rate_id"][at])
            raise InputError(f"bucket of {name}", bucket, ", ".join(BUCKETS))
        return cls(
            (window,),
            units,
            holders,
            tuple(used.values()),
            (),
            np.zeros(len(unit), np.int64),
            unit,
            holder,
            np.array([rate_at[rate_id] for rate_id in columns["rate_id"]], np.int64),
            codes,
            np.full(len(unit), -1, np.int64),
            {name: _measure(frame[name], f"usage_lines.{name}", name) for name in LINE_MEASURES},
        )

    def name(self, at: int) -> str:
        """A line in words, for a message."""
        rate = self.rates[self.rate[at]].rate_id if self.rate[at] >= 0 else ""
        bucket = BUCKETS[self.bucket[at]].value
        return line_name(self.units[self.unit[at]], self.holders[self.holder[at]], bucket, rate)


def line_name(unit: Sequence[Any], holder: Sequence[Any], bucket: str, rate: str) -> str:
    _, node, resource, *_ = unit
    namespace, pod, uid, *_ = holder
    who = f" {namespace}/{pod} ({uid})" if pod or uid else ""
    return f"the {bucket!r} line of {node} {resource}{who}" + (f" at {rate}" if rate else "")


def plain_columns(frame: pd.DataFrame, spec: FrameSpec, *, but: Collection[str] = ()) -> dict[str, list[Any]]:
    """The frame's columns, all ``but`` some, as lists of plain values: int, str, float or None.

    Raises InputError for a column that is missing or unknown, or that holds other than whole numbers where
    the ledger does.
    """
    if set(frame.columns) != set(spec.column_names) or len(frame.columns) != len(spec.columns):
        odd = sorted(set(map(str, frame.columns)) ^ set(spec.column_names))
        raise InputError(
            f"columns of {spec.name}", ", ".join(odd) or "a column twice", "each declared one, once"
        )
    whole = INTEGERS | {"start_ms", "end_ms"}
    return {
        name: _whole(frame[name], f"{spec.name}.{name}", nullable=name in _NULLABLE)
        if name in whole
        else frame[name].tolist()
        for name in spec.column_names
        if name not in but
    }


def _whole(series: pd.Series[Any], field: str, *, nullable: bool) -> list[Any]:
    if series.dtype == "int64":
        return list(series.tolist())
    if series.dtype == "Int64" and nullable:
        return [None if value is pd.NA else value for value in series.tolist()]
    missing = series.isna()
    if missing.any() and not nullable:
        raise InputError(field, None, "whole numbers, none missing")
    values: list[Any] = series.astype(object).where(~missing, None).tolist()
    for value in values:
        # A float has already lost what it meant, even where it happens to be whole.
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(field, value, "whole numbers of 64 bits" + ", or null" * nullable)
        check_int64(field, value or 0)
    return values


def _measure(series: pd.Series[Any], field: str, name: str) -> LineMeasure:
    nullable = name in _NULLABLE
    if series.dtype == "int64" or (series.dtype == "Int64" and nullable):
        return LineMeasure.of(series)
    return LineMeasure.of_plain(_whole(series, field, nullable=nullable))


def _check_place(columns: Mapping[str, list[Any]], cluster: str, window: Window) -> None:
    for field, expected in (
        ("cluster", cluster),
        ("window_start_ms", window.start_ms),
        ("window_end_ms", window.end_ms),
    ):
        for value in set(columns[field]) - {expected}:
            raise InputError(f"usage_lines.{field}", value, f"{expected}, the window being written")


def distinct(columns: Mapping[str, list[Any]], names: Sequence[str]) -> tuple[LineRows, Ints]:
    """The distinct rows, and the position of every line among them."""
    rows = list(zip(*(columns[name] for name in names), strict=True))
    position = {row: n for n, row in enumerate(dict.fromkeys(rows))}
    return list(position), np.array([position[row] for row in rows], np.int64)


def _rows(frame: pd.DataFrame, names: Sequence[str]) -> LineRows:
    return list(zip(*(frame[name].tolist() for name in names), strict=True))


def _used_rates(rate_ids: Iterable[str], rates: Mapping[str, Rate]) -> dict[str, Rate]:
    used = sorted(set(rate_ids) - {""})
    for rate_id in used:
        if rate_id not in rates or rates[rate_id].rate_id != rate_id:
            raise InputError("usage_lines.rate_id", rate_id, "a rate handed over with the lines")
    return {rate_id: rates[rate_id] for rate_id in used}


RowsByKey: TypeAlias = Mapping[str, tuple[Any, ...]]
# Plain values: str, int, None.
Objects: TypeAlias = np.ndarray[Any, np.dtype[np.object_]]

BUCKET_NAMES = np.array([bucket.value for bucket in BUCKETS], dtype=object)
_OVERCOMMITTED, _UNKNOWN = Bucket.OVERCOMMITTED.value, Bucket.UNKNOWN.value


@dataclass(frozen=True, slots=True)
class WindowContext:
    """What a window holds beside its lines. ``progress`` is a PROGRESS frame."""

    observed_ms: int
    problems: Iterable[DataProblem] = ()
    progress: pd.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class CapacityTotals:
    """Sums over the capacity of a window; ``nano`` of what has a price, ``unpriced_ms`` the time without."""

    line_count: int
    board_ms: int
    unknown_ms: int
    unpriced_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class LineColumns:
    """Lines as columns, sorted by natural key: positions in windows and in the keys of each dimension.

    ``code`` is the position of the bucket in BUCKET_NAMES; ``measures`` are in the order of LINE_MEASURES,
    and ``numbers`` are the same by name.
    """

    window: Ints
    unit: Ints
    holder: Ints
    rate: Ints
    bucket: Objects
    code: Ints
    rule: Ints
    measures: tuple[Objects, ...]
    numbers: Mapping[str, LineMeasure]


@dataclass(frozen=True, slots=True)
class PreparedWindow:
    """A window ready to be written; ``part`` says which of the lines are its own."""

    window: Window
    month: Month
    observed_ms: int
    part: slice
    progress: Sequence[tuple[str, str, float]]
    problems: Sequence[tuple[Any, ...]]
    totals: CapacityTotals
    digest: str


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """Windows of a cluster ready to be written, dimension rows by content key.

    The rate with the empty key is "no price", the rule with it is "not known"; ``currency`` is None when no
    line has a price.
    """

    cluster: str
    windows: tuple[PreparedWindow, ...]
    units: RowsByKey
    holders: RowsByKey
    rates: RowsByKey
    rules: RowsByKey
    lines: LineColumns
    currency: str | None


def prepare(cluster: str, lines: WindowLines, facts: Sequence[WindowContext]) -> PreparedBatch:
    """Check windows and put them into the ledger's form; ``facts`` are one per window.

    Raises as Ledger.ingest says.
    """
    check_text("cluster", cluster)
    months = [month_of(window) for window in lines.windows]
    for window, fact in zip(lines.windows, facts, strict=True):
        if not 0 <= fact.observed_ms <= window.length_ms:
            raise InputError("observed_ms", fact.observed_ms, f"0 to the window's {window.length_ms} ms")
    _check_names(cluster, lines)
    currency = _currency(lines)
    _check_measures(lines)
    units, unit = _keyed(lines.units, lines.unit)
    holders, holder = _keyed(lines.holders, lines.holder)
    rates, rate = _keyed([(), *map(astuple, lines.rates)], lines.rate + 1)
    rules, rule = _keyed([(), *((text,) for text in lines.rules)], lines.rule + 1)
    columns = _sorted(lines, unit, holder, rate, rule)
    keys = [
        np.array([*rows], dtype=object)[at].tolist()
        for rows, at in ((units, columns.unit), (holders, columns.holder), (rates, columns.rate))
    ]
    values = [columns.bucket.tolist(), *(measure.tolist() for measure in columns.measures)]
    texts = line_texts([*keys, *values])
    edges = np.searchsorted(columns.window, np.arange(len(lines.windows) + 1)).tolist()
    windows = []
    for n, (window, month, fact) in enumerate(zip(lines.windows, months, facts, strict=True)):
        part = slice(edges[n], edges[n + 1])
        progress = _progress(fact.progress, cluster, window)
        problems = [_problem(problem) for problem in sorted(set(fact.problems), key=_problem_order)]
        sums = totals(*(column[part] for column in values[:3]))
        check_int64("sum of board_ms", sums.board_ms)
        check_int64("sum of nano", sums.nano)
        header = (cluster, window.start_ms, window.end_ms, fact.observed_ms)
        digest = window_digest(header, texts[part], progress, problems)
        windows.append(
            PreparedWindow(window, month, fact.observed_ms, part, progress, problems, sums, digest)
        )
    return PreparedBatch(cluster, tuple(windows), units, holders, rates, rules, columns, currency)


def prepare_batch(
    cluster: str,
    attribution: Attribution,
    *,
    observed_ms: Mapping[Window, int],
    progress: Mapping[Window, pd.DataFrame] | None = None,
) -> PreparedBatch:
    """All windows of an attribution of this cluster, for ``Ledger.write_batch``. The result is plain values,
    which may go to another process.

    ``observed_ms`` is of every window, ``progress`` of those that have some. Raises as ``prepare`` does.
    """
    facts = [
        WindowContext(observed_ms[window], of_window, (progress or {}).get(window))
        for window, of_window in zip(attribution.windows, attribution.problems_by_window(), strict=True)
    ]
    return prepare(cluster, WindowLines.of_attribution(attribution), facts)


def totals(buckets: Sequence[str], board_ms: Sequence[int], nano: Sequence[int | None]) -> CapacityTotals:
    """The sums of parallel columns of one window's lines."""
    capacity = [row for row in zip(buckets, board_ms, nano, strict=True) if row[0] != _OVERCOMMITTED]
    return CapacityTotals(
        line_count=len(buckets),
        board_ms=sum(ms for _, ms, _ in capacity),
        unknown_ms=sum(ms for bucket, ms, _ in capacity if bucket == _UNKNOWN),
        unpriced_ms=sum(ms for _, ms, cost in capacity if cost is None),
        nano=sum(cost for _, _, cost in capacity if cost is not None),
    )


def _keyed(rows: LineRows, of_line: Ints) -> tuple[RowsByKey, Ints]:
    """The rows that lines name, by content key, and the position of each line's among them.

    Several of ``rows`` may be the same; an empty one has the empty key.
    """
    used, position = np.unique(of_line, return_inverse=True)
    named = [rows[at] for at in used.tolist()]
    keys = [content_key(row) if row else "" for row in named]
    by_key = dict(zip(keys, named, strict=True))
    place = {key: at for at, key in enumerate(by_key)}
    return by_key, np.array([place[key] for key in keys], np.int64)[position]


def _check_names(cluster: str, lines: WindowLines) -> None:
    """Names are checked before keys are made of them."""
    texts = chain(
        _texts(lines.units, lines.unit, UNIT_COLUMNS), _texts(lines.holders, lines.holder, HOLDER_KEY_COLUMNS)
    )
    for name, values in texts:
        if not are_texts(values):
            for value in values:
                check_text(f"usage_lines.{name}", value)
        for value in values if name == "cluster" else ():
            if value != cluster:
                raise InputError("usage_lines.cluster", value, f"{cluster}, the cluster being written")
    for rate in lines.rates:
        check_text("usage_lines.rate_id", rate.rate_id, empty=False)
    for text in lines.rules:
        check_text("team rule", text, empty=False)


def _texts(rows: LineRows, of_line: Ints, names: Sequence[str]) -> Iterator[tuple[str, set[Any]]]:
    """The values of every column of text, of the rows that lines name."""
    used = [rows[at] for at in np.unique(of_line).tolist()]
    return ((name, {row[at] for row in used}) for at, name in enumerate(names) if name not in INTEGERS)


def _currency(lines: WindowLines) -> str | None:
    used = np.unique(lines.rate[lines.rate >= 0]).tolist()
    currencies = sorted({lines.rates[at].currency for at in used})
    if len(currencies) > 1:
        raise InputError("currency", ", ".join(currencies), "one currency for all rates of a ledger")
    return currencies[0] if currencies else None


def _check_measures(lines: WindowLines) -> None:
    starts = np.array([window.start_ms for window in lines.windows], np.int64)[lines.window]
    ends = np.array([window.end_ms for window in lines.windows], np.int64)[lines.window]
    first, last, nano = (lines.measures[name].values for name in ("first_ms", "last_ms", "nano"))
    for at in np.flatnonzero((first < starts) | (last < first) | (last > ends))[:1].tolist():
        found = f"{iso(int(first[at]))}/{iso(int(last[at]))}"
        window = lines.windows[lines.window[at]]
        raise InputError(f"first_ms, last_ms of {lines.name(at)}", found, f"inside {window}")
    for name, measure in lines.measures.items():
        for at in np.flatnonzero(measure.values < 0)[:1].tolist():
            raise InputError(f"{name} of {lines.name(at)}", int(measure.values[at]), "at least 0")
    for at in np.flatnonzero((nano != 0) & (lines.rate < 0))[:1].tolist():
        raise InputError(f"nano of {lines.name(at)}", int(nano[at]), "null for a line without a rate")


def _sorted(lines: WindowLines, unit: Ints, holder: Ints, rate: Ints, rule: Ints) -> LineColumns:
    """Lines sorted by natural key. Raises LedgerConflict for a key that occurs twice."""
    key = (lines.window, unit, holder, rate, lines.bucket)
    order = np.lexsort(key[::-1])
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in key:
        same &= column[order[1:]] == column[order[:-1]]
    for at in order[1:][same][:1].tolist():
        raise LedgerConflict(f"{lines.name(at)} is given twice for {lines.windows[lines.window[at]]}")
    numbers = {
        name: LineMeasure(lines.measures[name].values[order], lines.measures[name].missing[order])
        for name in LINE_MEASURES
    }
    return LineColumns(
        lines.window[order],
        unit[order],
        holder[order],
        rate[order],
        BUCKET_NAMES[lines.bucket[order]],
        lines.bucket[order],
        rule[order],
        tuple(number.plain() for number in numbers.values()),
        numbers,
    )


def _progress(frame: pd.DataFrame | None, cluster: str, window: Window) -> list[tuple[str, str, float]]:
    if frame is None or frame.empty:
        return []
    columns = plain_columns(frame, PROGRESS)
    amounts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for at, pod_uid, start_ms, end_ms, name, amount in zip(*columns.values(), strict=True):
        if at != cluster or not window.start_ms <= start_ms < end_ms <= window.end_ms:
            raise InputError(
                f"progress of {pod_uid}", f"{at} {iso(start_ms)}/{iso(end_ms)}", f"{cluster}, inside {window}"
            )
        if not math.isfinite(amount):
            raise InputError(f"progress {name} of {pod_uid}", amount, "a finite number")
        check_text("progress.pod_uid", pod_uid)
        check_text("progress.name", name)
        amounts[pod_uid, name].append(float(amount))
    return [(uid, name, math.fsum(values)) for (uid, name), values in sorted(amounts.items())]


def _problem(problem: DataProblem) -> tuple[Any, ...]:
    return str(problem.code), problem.cluster, problem.subject, problem.detail, problem.board_ms


def _problem_order(problem: DataProblem) -> tuple[Any, ...]:
    *texts, board_ms = _problem(problem)
    return *texts, -1 if board_ms is None else board_ms
