"""Values of expressions, worked out from what each series did in ranges of time (``promql.QueryForm``).

As PromQL defines it for the few operators that readers use, so that a server which sends samples and one that
evaluates queries give the same numbers. Pure. What could come out differently in the last bit is not
evaluated: sums of other than whole numbers, since nobody says in which order a server adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpucost.telemetry.prometheus.promql import (
    LabelTaken,
    QueryForm,
    RangeFunction,
    SeriesAggregation,
    SeriesJoin,
    ValueBound,
)
from gpucost.telemetry.prometheus.sample_chunks import FUNCTIONS, Floats

Bools: TypeAlias = npt.NDArray[np.bool_]
Labels: TypeAlias = dict[str, str]

_NAME = "__name__"
_EXACT = float(1 << 53)
_OVER_TIME = {"resets": "resets"} | {f"{each}_over_time": each for each in FUNCTIONS if each != "resets"}


class NotEvaluated(Exception):
    """Only a server can tell the value of this expression."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelTable:
    """The labels of series, by row; what groups them is worked out once."""

    rows: Sequence[Labels]
    _groups: dict[object, tuple[LabelTable, npt.NDArray[np.int64]]] = field(default_factory=dict)

    def grouped(
        self, labels: tuple[str, ...], *, is_without: bool
    ) -> tuple[LabelTable, npt.NDArray[np.int64]]:
        """What is left of the labels, each set once, and for each row which of them is its own."""
        known = self._groups.get((labels, is_without))
        if known is None:
            known = self._groups[labels, is_without] = self._grouped(labels, is_without)
        return known

    def _grouped(self, labels: tuple[str, ...], is_without: bool) -> tuple[LabelTable, npt.NDArray[np.int64]]:
        found: dict[tuple[object, ...], int] = {}
        kept: list[int] = []
        dropped = {*labels, _NAME}
        names: Iterable[str] = labels
        codes = np.empty(len(self.rows), dtype=np.int64)
        for at, row in enumerate(self.rows):
            if is_without:
                names = sorted(row.keys() - dropped)
                key: tuple[object, ...] = (*names, *map(row.__getitem__, names))
            else:
                key = (*map(row.get, labels),)
            codes[at] = found.setdefault(key, len(kept))
            if codes[at] == len(kept):
                kept.append(at)
        left = [{name: value for name, value in self.rows[at].items() if name not in dropped} for at in kept]
        if not is_without:
            left = [{name: self.rows[at][name] for name in labels if self.rows[at].get(name)} for at in kept]
        return LabelTable(left), codes

    def taken(self, label: str, source: str) -> LabelTable:
        rows = [{**row, label: row[source]} if row.get(source) else row for row in self.rows]
        return LabelTable(rows)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesGrid:
    """Values of series (rows) at instants, and where there are any."""

    table: LabelTable
    values: Floats
    present: Bools

    @property
    def any_rows(self) -> npt.NDArray[np.int64]:
        """Rows with a value at any instant."""
        return np.flatnonzero(self.present.any(axis=1))


RangeReader: TypeAlias = Callable[[RangeFunction, str], SeriesGrid]
"""For a range function, and the name of its statistic among FUNCTIONS: the values of its series."""


def can_be_evaluated(form: QueryForm) -> bool:
    """Whether every part of it is one of those that are worked out here."""
    if isinstance(form, RangeFunction):
        return form.function in _OVER_TIME
    if isinstance(form, SeriesAggregation):
        return form.operator in _OPERATORS and can_be_evaluated(form.inner)
    if isinstance(form, LabelTaken | ValueBound):
        return can_be_evaluated(form.inner)
    return isinstance(form, SeriesJoin) and can_be_evaluated(form.left) and can_be_evaluated(form.right)


def longest_range_ms(form: QueryForm) -> int:
    """The longest range of samples that it reads; 0 where it reads none."""
    if isinstance(form, RangeFunction):
        return form.range_ms
    if isinstance(form, SeriesJoin):
        return max(longest_range_ms(form.left), longest_range_ms(form.right))
    inner = getattr(form, "inner", None)
    return 0 if inner is None else longest_range_ms(inner)


def evaluated(form: QueryForm, read: RangeReader) -> SeriesGrid:
    """The value of an expression of which ``can_be_evaluated``. Raises NotEvaluated where its values are such
    that a server may add them up to something else."""
    if isinstance(form, RangeFunction):
        found = read(form, _OVER_TIME[form.function])
        if form.function == "last_over_time":
            return found
        unnamed, codes = found.table.grouped((), is_without=True)
        if len(unnamed.rows) < len(codes):
            raise NotEvaluated  # series of several names with equal labels
        return SeriesGrid(unnamed, found.values, found.present)
    if isinstance(form, LabelTaken):
        found = evaluated(form.inner, read)
        return SeriesGrid(found.table.taken(form.label, form.source), found.values, found.present)
    if isinstance(form, SeriesAggregation):
        return _aggregated(form, evaluated(form.inner, read))
    if isinstance(form, ValueBound):
        found = evaluated(form.inner, read)
        return SeriesGrid(found.table, found.values, found.present & (found.values > form.threshold))
    if isinstance(form, SeriesJoin):
        return _joined(form, evaluated(form.left, read), evaluated(form.right, read))
    raise NotEvaluated


def _aggregated(form: SeriesAggregation, found: SeriesGrid) -> SeriesGrid:
    table, codes = found.table.grouped(form.labels, is_without=form.is_without)
    if not len(codes):
        return SeriesGrid(table, found.values, found.present)
    order = np.argsort(codes, kind="stable")
    first = np.searchsorted(codes[order], np.arange(len(table.rows)))
    present, values = found.present[order], found.values[order]
    anywhere = np.logical_or.reduceat(present, first, axis=0)
    return SeriesGrid(table, _OPERATORS[form.operator](values, present, first), anywhere)


def _sum(values: Floats, present: Bools, first: npt.NDArray[np.int64]) -> Floats:
    known = np.where(present, values, 0.0)
    total: Floats = np.add.reduceat(known, first, axis=0)
    if not (
        (np.floor(known) == known).all() and np.add.reduceat(np.abs(known), first, axis=0).max() < _EXACT
    ):
        raise NotEvaluated
    return total


def _count(_: Floats, present: Bools, first: npt.NDArray[np.int64]) -> Floats:
    return np.add.reduceat(present.astype(np.float64), first, axis=0)


def _one(_: Floats, present: Bools, first: npt.NDArray[np.int64]) -> Floats:
    return np.ones((len(first), present.shape[1]))


# A NaN gives way to any number, in Prometheus as in numpy's fmax; what is not there is written as one.
def _largest(values: Floats, present: Bools, first: npt.NDArray[np.int64]) -> Floats:
    return np.fmax.reduceat(np.where(present, values, np.nan), first, axis=0)


def _smallest(values: Floats, present: Bools, first: npt.NDArray[np.int64]) -> Floats:
    return np.fmin.reduceat(np.where(present, values, np.nan), first, axis=0)


_OPERATORS: dict[str, Callable[[Floats, Bools, npt.NDArray[np.int64]], Floats]] = {
    "sum": _sum,
    "count": _count,
    "group": _one,
    "max": _largest,
    "min": _smallest,
}


def _joined(form: SeriesJoin, left: SeriesGrid, right: SeriesGrid) -> SeriesGrid:
    def keys(grid: SeriesGrid) -> Iterable[tuple[str, ...]]:
        return (tuple(row.get(name, "") for name in form.labels) for row in grid.table.rows)

    codes: dict[tuple[str, ...], int] = {}
    of_right = [codes.setdefault(key, len(codes)) for key in keys(right)]
    there = np.zeros((len(codes) + 1, left.present.shape[1]), dtype=np.bool_)
    np.logical_or.at(there, of_right, right.present)
    of_left = [codes.get(key, len(codes)) for key in keys(left)]
    return SeriesGrid(left.table, left.values, left.present & there[of_left])
