"""From lines to what the ledger stores: checked, under content keys, with sums and digests per window."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.contract.frames import LINE_MEASURES, PROGRESS
from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.holders import Bucket
from gpucost.domain.problems import Problem
from gpucost.domain.time import Month, Window, iso
from gpucost.ledger.checks import check_int64, check_text, month_of
from gpucost.ledger.digest import content_key, line_texts, window_digest
from gpucost.ledger.lines import HOLDER_KEY_COLUMNS, INTEGERS, UNIT_COLUMNS, Lines, Rows, plain_columns

Keyed: TypeAlias = Mapping[str, tuple[Any, ...]]
# Plain values: str, int, None.
Objects: TypeAlias = np.ndarray[Any, np.dtype[np.object_]]

_BUCKET_NAMES = np.array([bucket.value for bucket in BUCKETS], dtype=object)
_OVERCOMMITTED, _UNKNOWN = Bucket.OVERCOMMITTED.value, Bucket.UNKNOWN.value


@dataclass(frozen=True, slots=True)
class Facts:
    """What a window holds beside its lines. ``progress`` is a PROGRESS frame."""

    observed_ms: int
    problems: Iterable[Problem] = ()
    progress: pd.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the capacity of a window; ``nano`` of what has a price, ``unpriced_ms`` the time without."""

    line_count: int
    board_ms: int
    unknown_ms: int
    unpriced_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Lines as columns, sorted by natural key: positions in windows and in the keys of each dimension.

    ``measures`` are in the order of LINE_MEASURES.
    """

    window: Ints
    unit: Ints
    holder: Ints
    rate: Ints
    bucket: Objects
    measures: tuple[Objects, ...]


@dataclass(frozen=True, slots=True)
class PreparedWindow:
    """A window ready to be written; ``part`` says which of the lines are its own."""

    window: Window
    month: Month
    observed_ms: int
    part: slice
    progress: Sequence[tuple[str, str, float]]
    problems: Sequence[tuple[Any, ...]]
    totals: Totals
    digest: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Windows of a cluster ready to be written, dimension rows by content key.

    The rate with the empty key is "no price"; ``currency`` is None when no line has a price.
    """

    cluster: str
    windows: tuple[PreparedWindow, ...]
    units: Keyed
    holders: Keyed
    rates: Keyed
    lines: Columns
    currency: str | None


def prepare(cluster: str, lines: Lines, facts: Sequence[Facts]) -> Prepared:
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
    columns = _sorted(lines, unit, holder, rate)
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
    return Prepared(cluster, tuple(windows), units, holders, rates, columns, currency)


def totals(buckets: Sequence[str], board_ms: Sequence[int], nano: Sequence[int | None]) -> Totals:
    """Of parallel columns of one window's lines."""
    capacity = [row for row in zip(buckets, board_ms, nano, strict=True) if row[0] != _OVERCOMMITTED]
    return Totals(
        line_count=len(buckets),
        board_ms=sum(ms for _, ms, _ in capacity),
        unknown_ms=sum(ms for bucket, ms, _ in capacity if bucket == _UNKNOWN),
        unpriced_ms=sum(ms for _, ms, cost in capacity if cost is None),
        nano=sum(cost for _, _, cost in capacity if cost is not None),
    )


def _keyed(rows: Rows, of_line: Ints) -> tuple[Keyed, Ints]:
    """The rows that lines name, by content key, and the position of each line's among them.

    Several of ``rows`` may be the same; an empty one has the empty key.
    """
    used, position = np.unique(of_line, return_inverse=True)
    by_key: dict[str, tuple[Any, ...]] = {}
    place: dict[str, int] = {}
    places = []
    for at in used.tolist():
        row = rows[at]
        key = content_key(row) if row else ""
        by_key[key] = row
        places.append(place.setdefault(key, len(place)))
    return by_key, np.array(places, np.int64)[position]


def _check_names(cluster: str, lines: Lines) -> None:
    """Before keys are made of them."""
    texts = chain(
        _texts(lines.units, lines.unit, UNIT_COLUMNS), _texts(lines.holders, lines.holder, HOLDER_KEY_COLUMNS)
    )
    for name, values in texts:
        for value in values:
            check_text(f"usage_lines.{name}", value)
            if name == "cluster" and value != cluster:
                raise InputError("usage_lines.cluster", value, f"{cluster}, the cluster being written")
    for rate in lines.rates:
        check_text("usage_lines.rate_id", rate.rate_id, empty=False)


def _texts(rows: Rows, of_line: Ints, names: Sequence[str]) -> Iterator[tuple[str, set[Any]]]:
    """The values of every column of text, of the rows that lines name."""
    used = [rows[at] for at in np.unique(of_line).tolist()]
    return ((name, {row[at] for row in used}) for at, name in enumerate(names) if name not in INTEGERS)


def _currency(lines: Lines) -> str | None:
    used = np.unique(lines.rate[lines.rate >= 0]).tolist()
    currencies = sorted({lines.rates[at].currency for at in used})
    if len(currencies) > 1:
        raise InputError("currency", ", ".join(currencies), "one currency for all rates of a ledger")
    return currencies[0] if currencies else None


def _check_measures(lines: Lines) -> None:
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


def _sorted(lines: Lines, unit: Ints, holder: Ints, rate: Ints) -> Columns:
    """Raises LedgerConflict for a natural key that stands twice."""
    key = (lines.window, unit, holder, rate, lines.bucket)
    order = np.lexsort(key[::-1])
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in key:
        same &= column[order[1:]] == column[order[:-1]]
    for at in order[1:][same][:1].tolist():
        raise LedgerConflict(f"{lines.name(at)} is given twice for {lines.windows[lines.window[at]]}")
    return Columns(
        lines.window[order],
        unit[order],
        holder[order],
        rate[order],
        _BUCKET_NAMES[lines.bucket[order]],
        tuple(lines.measures[name].plain()[order] for name in LINE_MEASURES),
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


def _problem(problem: Problem) -> tuple[Any, ...]:
    return str(problem.code), problem.cluster, problem.subject, problem.detail, problem.board_ms


def _problem_order(problem: Problem) -> tuple[Any, ...]:
    *texts, board_ms = _problem(problem)
    return *texts, -1 if board_ms is None else board_ms
