"""From the frames of a window to the rows the ledger stores, refused where they cannot be right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd

from gpucost.contract.frames import HOLDER_COLUMNS, LINE_MEASURES, PROGRESS, USAGE_LINES, FrameSpec
from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.holders import Bucket
from gpucost.domain.money import INT64_MAX
from gpucost.domain.problems import Problem
from gpucost.domain.rates import Rate
from gpucost.domain.time import EARLIEST_MS, LATEST_MS, Month, Window, iso
from gpucost.ledger.digest import content_key, window_digest

UNIT_COLUMNS = (
    "cluster",
    "node",
    "resource",
    "model",
    "profile",
    "share_num",
    "share_den",
    "basis",
    "instance_type",
    "capacity_type",
    "region",
    "zone",
    "pool",
)
HOLDER_KEY_COLUMNS = (*(column.name for column in HOLDER_COLUMNS), "team")
_NULLABLE = frozenset(LINE_MEASURES) - {"board_ms", "first_ms", "last_ms"}
_INTEGERS = ("window_start_ms", "window_end_ms", "share_num", "share_den", *LINE_MEASURES)

# PostgreSQL indexes at most 2,704 bytes of a value, and no name in Kubernetes comes near this.
MAX_TEXT = 600

# (unit key, holder key, rate key, bucket, *LINE_MEASURES)
LineRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the capacity of a window; ``nano`` of what has a price, ``unpriced_ms`` the time without."""

    line_count: int
    board_ms: int
    unknown_ms: int
    unpriced_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A window ready to be written. Dimensions by content key; ``currency`` is None without a price."""

    cluster: str
    window: Window
    month: Month
    observed_ms: int
    units: Mapping[str, tuple[Any, ...]]
    holders: Mapping[str, tuple[Any, ...]]
    rates: Mapping[str, tuple[Any, ...]]
    lines: Sequence[LineRow]
    progress: Sequence[tuple[str, str, float]]
    problems: Sequence[tuple[Any, ...]]
    currency: str | None
    totals: Totals
    digest: str


def prepare(
    cluster: str,
    window: Window,
    lines: pd.DataFrame,
    observed_ms: int,
    rates: Mapping[str, Rate],
    problems: Iterable[Problem],
    progress: pd.DataFrame | None,
) -> Prepared:
    """Check a window and put it into the ledger's form. Raises as Ledger.ingest says."""
    check_text("cluster", cluster)
    month = month_of(window)
    if not 0 <= observed_ms <= window.length_ms:
        raise InputError("observed_ms", observed_ms, f"0 to the window's {window.length_ms} ms")
    columns = _columns(lines, USAGE_LINES, _INTEGERS)
    _check_place(columns, cluster, window)
    unit_keys, units = _dimension(columns, UNIT_COLUMNS)
    holder_keys, holders = _dimension(columns, HOLDER_KEY_COLUMNS)
    rate_rows = _used_rates(columns["rate_id"], rates)
    rate_keys = {rate_id: content_key(row) for rate_id, row in rate_rows.items()} | {"": ""}
    rows = list(
        zip(
            unit_keys,
            holder_keys,
            (rate_keys[rate_id] for rate_id in columns["rate_id"]),
            columns["bucket"],
            *(columns[name] for name in LINE_MEASURES),
            strict=True,
        )
    )
    _check_rows(rows, columns, window)
    progress_rows = _progress(progress, cluster, window)
    problem_rows = [_problem(problem) for problem in sorted(set(problems), key=_problem_order)]
    header = (cluster, window.start_ms, window.end_ms, observed_ms)
    sums = totals(rows)
    check_int64("sum of board_ms", sums.board_ms)
    check_int64("sum of nano", sums.nano)
    return Prepared(
        cluster=cluster,
        window=window,
        month=month,
        observed_ms=observed_ms,
        units=units,
        holders=holders,
        rates={rate_keys[rate_id]: row for rate_id, row in rate_rows.items()},
        lines=rows,
        progress=progress_rows,
        problems=problem_rows,
        currency=_currency(rates[rate_id] for rate_id in rate_rows),
        totals=sums,
        digest=window_digest(header, rows, progress_rows, problem_rows),
    )


def month_of(window: Window) -> Month:
    """The month a window lies in. Raises InputError when it lies in two, or in no sane year."""
    if not window.start_ms >= EARLIEST_MS or not window.end_ms <= LATEST_MS:
        raise InputError("window", str(window), "a window between 2010 and 2100")
    month = Month.of(window.start_ms)
    if window.end_ms > month.window.end_ms:
        raise InputError("window", str(window), f"a window inside one UTC month ({month} ends first)")
    return month


def check_int64(field: str, value: int) -> int:
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise InputError(field, value, "whole numbers of 64 bits")
    return value


def _columns(frame: pd.DataFrame, spec: FrameSpec, integers: Iterable[str]) -> dict[str, list[Any]]:
    """The frame's columns as lists of plain values: int, str, float or None."""
    if set(frame.columns) != set(spec.column_names) or len(frame.columns) != len(spec.columns):
        odd = sorted(set(map(str, frame.columns)) ^ set(spec.column_names))
        raise InputError(
            f"columns of {spec.name}", ", ".join(odd) or "a column twice", "each declared one, once"
        )
    columns = {name: frame[name] for name in spec.column_names}
    whole = set(integers)
    return {
        name: _whole(series, f"{spec.name}.{name}", nullable=name in _NULLABLE)
        if name in whole
        else series.tolist()
        for name, series in columns.items()
    }


def _whole(series: pd.Series[Any], field: str, *, nullable: bool) -> list[Any]:
    if series.dtype == "int64":
        return list(series.tolist())
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


def _check_place(columns: Mapping[str, list[Any]], cluster: str, window: Window) -> None:
    for field, expected in (
        ("cluster", cluster),
        ("window_start_ms", window.start_ms),
        ("window_end_ms", window.end_ms),
    ):
        for value in set(columns[field]) - {expected}:
            raise InputError(f"usage_lines.{field}", value, f"{expected}, the window being written")


def _dimension(
    columns: Mapping[str, list[Any]], names: Sequence[str]
) -> tuple[list[str], dict[str, tuple[Any, ...]]]:
    """The content key of every line, and the distinct rows by key."""
    for name in names:
        if name not in _INTEGERS:
            for value in set(columns[name]):
                check_text(f"usage_lines.{name}", value)
    rows = list(zip(*(columns[name] for name in names), strict=True))
    keys = {row: content_key(row) for row in set(rows)}
    return [keys[row] for row in rows], {key: row for row, key in keys.items()}


def check_text(field: str, value: object, *, empty: bool = True) -> None:
    """Raises InputError for what one of the databases could not store, or index, as it is."""
    allowed = f"text of at most {MAX_TEXT} characters, without NUL; " + (
        "empty where there is none" if empty else "not empty"
    )
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value or not (empty or value.strip()):
        raise InputError(field, value, allowed)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(field, value, allowed) from None


def _used_rates(rate_ids: Iterable[str], rates: Mapping[str, Rate]) -> dict[str, tuple[Any, ...]]:
    used = set(rate_ids) - {""}
    for rate_id in used:
        if rate_id not in rates or rates[rate_id].rate_id != rate_id:
            raise InputError("usage_lines.rate_id", rate_id, "a rate handed over with the lines")
        check_text("usage_lines.rate_id", rate_id)
    return {rate_id: astuple(rates[rate_id]) for rate_id in sorted(used)}


def _currency(rates: Iterable[Rate]) -> str | None:
    currencies = sorted({rate.currency for rate in rates})
    if len(currencies) > 1:
        raise InputError("currency", ", ".join(currencies), "one currency for all rates of a ledger")
    return currencies[0] if currencies else None


def _check_rows(rows: Sequence[LineRow], columns: Mapping[str, list[Any]], window: Window) -> None:
    seen: set[tuple[Any, ...]] = set()
    buckets = frozenset(Bucket)
    for index, row in enumerate(rows):
        rate, bucket, board_ms, nano, first_ms, last_ms = row[2:8]
        if bucket not in buckets:
            raise InputError(f"bucket of {_name(columns, index)}", bucket, ", ".join(Bucket))
        if not window.start_ms <= first_ms <= last_ms <= window.end_ms:
            found = f"{iso(first_ms)}/{iso(last_ms)}"
            raise InputError(f"first_ms, last_ms of {_name(columns, index)}", found, f"inside {window}")
        if board_ms < 0 or any(value is not None and value < 0 for value in row[8:]) or (nano or 0) < 0:
            worst = min(
                (value, name) for name, value in zip(LINE_MEASURES, row[4:], strict=True) if value is not None
            )
            raise InputError(f"{worst[1]} of {_name(columns, index)}", worst[0], "at least 0")
        if nano and not rate:
            raise InputError(f"nano of {_name(columns, index)}", nano, "null for a line without a rate")
        if row[:4] in seen:
            raise LedgerConflict(f"{_name(columns, index)} is given twice for {window}")
        seen.add(row[:4])


def _name(columns: Mapping[str, list[Any]], index: int) -> str:
    """A line in words, for a message."""
    node, resource, bucket, namespace, pod, uid, rate = (
        columns[name][index]
        for name in ("node", "resource", "bucket", "namespace", "pod", "pod_uid", "rate_id")
    )
    holder = f" {namespace}/{pod} ({uid})" if pod or uid else ""
    return f"the {bucket!r} line of {node} {resource}{holder}" + (f" at {rate}" if rate else "")


def totals(rows: Sequence[LineRow]) -> Totals:
    capacity = [(row[3], row[4], row[5]) for row in rows if row[3] != Bucket.OVERCOMMITTED]
    return Totals(
        line_count=len(rows),
        board_ms=sum(board_ms for _, board_ms, _ in capacity),
        unknown_ms=sum(board_ms for bucket, board_ms, _ in capacity if bucket == Bucket.UNKNOWN),
        unpriced_ms=sum(board_ms for _, board_ms, nano in capacity if nano is None),
        nano=sum(nano or 0 for _, _, nano in capacity),
    )


def _progress(frame: pd.DataFrame | None, cluster: str, window: Window) -> list[tuple[str, str, float]]:
    if frame is None or frame.empty:
        return []
    columns = _columns(frame, PROGRESS, ("start_ms", "end_ms"))
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


def _problem(problem: Problem) -> tuple[Any, ...]:
    return str(problem.code), problem.cluster, problem.subject, problem.detail, problem.board_ms


def _problem_order(problem: Problem) -> tuple[Any, ...]:
    *texts, board_ms = _problem(problem)
    return *texts, -1 if board_ms is None else board_ms
