"""Windows of a cluster ready to be written: lines checked and under content keys, with all that they sum to.

``prepare`` is the larger part of writing and needs no database, so that other processes may do it: what the
one that writes has left is to put ids in the place of keys. So a batch has the columns of the tables as they
are stored, a digest and sums for each window, and the sums of each day (``day_sums``), which were compared
with those of its windows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.usage_lines import Attribution
from gpucost.contract.frames import LINE_MEASURES, PROGRESS
from gpucost.domain.errors import DataProblem, InputError, LedgerConflict
from gpucost.domain.time import Month, Window, iso
from gpucost.ledger.db.digest import content_key, line_texts, window_digest
from gpucost.ledger.db.stored_values import are_texts, check_int64, check_text, month_of
from gpucost.ledger.usage.day_totals import AddedLines, DaySums, day_of, numbers_of, sums_of_windows
from gpucost.ledger.usage.lines import (
    BUCKET_NAMES,
    HOLDER_KEY_COLUMNS,
    INTEGERS,
    UNIT_COLUMNS,
    CapacityTotals,
    LineMeasure,
    LineRows,
    Objects,
    WindowLines,
    plain_columns,
    totals,
)

RowsByKey: TypeAlias = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class WindowContext:
    """What a window holds beside its lines. ``progress`` is a PROGRESS frame."""

    observed_ms: int
    problems: Iterable[DataProblem] = ()
    progress: pd.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class LineColumns:
    """Lines as columns, sorted by natural key: positions in windows, in the keys of each dimension, and in
    BUCKET_NAMES. ``measures`` are those of LINE_MEASURES that a line has, which may be the half of them."""

    window: Ints
    unit: Ints
    holder: Ints
    rate: Ints
    bucket: Ints
    rule: Ints
    measures: Mapping[str, Objects]

    def measure(self, name: str) -> Objects:
        """int, or None where a line has none."""
        found = self.measures.get(name)
        return np.full(len(self.window), None, dtype=object) if found is None else found


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
    line has a price. ``days`` is what ``sums_of`` says of all windows.
    """

    cluster: str
    windows: tuple[PreparedWindow, ...]
    units: RowsByKey
    holders: RowsByKey
    rates: RowsByKey
    rules: RowsByKey
    lines: LineColumns
    currency: str | None
    days: Mapping[int, DaySums] | None

    def sums_of(self, positions: Collection[int]) -> Mapping[int, DaySums] | None:
        """The sums of the days of those windows, whose other windows are left out; None where one could
        leave 64 bits."""
        if len(positions) == len(self.windows):
            return self.days
        part = np.flatnonzero(np.isin(self.lines.window, list(positions)))
        numbers = {
            name: LineMeasure.of_plain(self.lines.measure(name)[part].tolist()) for name in LINE_MEASURES
        }
        windows = {at: self.windows[at] for at in positions}
        return _days(self.cluster, windows, (self.units, self.holders, self.rates), self.lines, part, numbers)


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
    columns, numbers = _sorted(lines, unit, holder, rate, rule)
    keys = [
        np.array([*rows], dtype=object)[at].tolist()
        for rows, at in ((units, columns.unit), (holders, columns.holder), (rates, columns.rate))
    ]
    values = [BUCKET_NAMES[columns.bucket].tolist()]
    values += (columns.measure(name).tolist() for name in LINE_MEASURES)
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
    every, keyed = np.arange(len(columns.window)), (units, holders, rates)
    days = _days(cluster, dict(enumerate(windows)), keyed, columns, every, numbers)
    return PreparedBatch(cluster, tuple(windows), units, holders, rates, rules, columns, currency, days)


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


def _days(
    cluster: str,
    windows: Mapping[int, PreparedWindow],
    keyed: tuple[RowsByKey, RowsByKey, RowsByKey],
    lines: LineColumns,
    part: Ints,
    numbers: Mapping[str, LineMeasure],
) -> Mapping[int, DaySums] | None:
    """Of ``windows`` by position; ``part`` are their lines, ``numbers`` the measures of these, and ``keyed``
    units, holders and rates."""
    units, holders, rates = keyed
    days = np.zeros(max(windows, default=0) + 1, np.int64)
    for at, of in windows.items():
        days[at] = day_of(of.window)
    added = AddedLines(
        days[lines.window[part]],
        lines.unit[part],
        lines.holder[part],
        lines.rate[part],
        lines.bucket[part],
        [*units.values()],
        [*holders.values()],
        [*rates],
        BUCKET_NAMES.tolist(),
        numbers_of(numbers),
    )
    return sums_of_windows(cluster, [(each.window, each.totals) for each in windows.values()], added)


def _sorted(
    lines: WindowLines, unit: Ints, holder: Ints, rate: Ints, rule: Ints
) -> tuple[LineColumns, dict[str, LineMeasure]]:
    """Lines sorted by natural key, and their measures. Raises LedgerConflict for a key that occurs twice."""
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
    measures = {name: number.plain() for name, number in numbers.items() if not number.missing.all()}
    columns = LineColumns(
        lines.window[order],
        unit[order],
        holder[order],
        rate[order],
        lines.bucket[order],
        rule[order],
        measures,
    )
    return columns, numbers


MOST_COUNTED = 2.0**53
"""Of one pod in one stretch: beyond it a float does not count by ones, and sums of a month would overflow."""


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
        if not abs(amount) <= MOST_COUNTED:
            raise InputError(f"progress {name} of {pod_uid}", amount, f"a number up to {MOST_COUNTED:g}")
        check_text("progress.pod_uid", pod_uid)
        check_text("progress.name", name)
        amounts[pod_uid, name].append(float(amount))
    return [(uid, name, math.fsum(values)) for (uid, name), values in sorted(amounts.items())]


def _problem(problem: DataProblem) -> tuple[Any, ...]:
    return str(problem.code), problem.cluster, problem.subject, problem.detail, problem.board_ms


def _problem_order(problem: DataProblem) -> tuple[Any, ...]:
    *texts, board_ms = _problem(problem)
    return *texts, -1 if board_ms is None else board_ms
