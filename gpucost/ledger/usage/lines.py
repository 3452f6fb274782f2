"""Usage lines in normal form, and what the ledger stores of them.

In normal form every name is stored once, and lines are positions in arrays. Attribution computes them so; a
frame of USAGE_LINES, with every name in every line, is converted. ``prepared_batch`` then makes of them what
is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.attribution.usage_lines import UNIT_NAMES, Attribution
from gpucost.contract.frames import HOLDER_COLUMNS, LINE_MEASURES, USAGE_LINES, FrameSpec
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.rates import Rate
from gpucost.domain.time import Window
from gpucost.ledger.db.stored_values import check_int64

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


# Plain values: str, int, None.
Objects: TypeAlias = np.ndarray[Any, np.dtype[np.object_]]

BUCKET_NAMES = np.array([bucket.value for bucket in BUCKETS], dtype=object)
_OVERCOMMITTED, _UNKNOWN = Bucket.OVERCOMMITTED.value, Bucket.UNKNOWN.value


@dataclass(frozen=True, slots=True)
class CapacityTotals:
    """Sums over the capacity of a window; ``nano`` of what has a price, ``unpriced_ms`` the time without."""

    line_count: int
    board_ms: int
    unknown_ms: int
    unpriced_ms: int
    nano: int


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
