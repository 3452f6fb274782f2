"""Values of expressions, worked out from what each series did in ranges of time (``promql.QueryForm``).

As PromQL defines it for the few operators that readers use, so that a server which sends samples and one that
evaluates queries give the same numbers. Pure. What could come out differently in the last bit is not
evaluated: sums of other than whole numbers, since nobody says in which order a server adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gpucost.telemetry.prometheus.promql import (
    LabelGiven,
    LabelTaken,
    LatestValue,
    QueryForm,
    RangeFunction,
    SeriesAggregation,
    SeriesDifference,
    SeriesJoin,
    SeriesSelector,
    SeriesUnion,
    ValueBound,
)
from gpucost.telemetry.prometheus.sample_chunks import FUNCTIONS, Floats
from gpucost.telemetry.prometheus.series_labels import Codes, LabelTable

Bools: TypeAlias = npt.NDArray[np.bool_]

_EXACT = float(1 << 53)
_OVER_TIME = {"resets": "resets"} | {f"{each}_over_time": each for each in FUNCTIONS if each != "resets"}


class NotEvaluated(Exception):
    """Only a server can tell the value of this expression."""


@dataclass(frozen=True, slots=True, eq=False)
class SeriesGrid:
    """Values of series (rows) at instants, and where there are any."""

    table: LabelTable
    values: Floats
    present: Bools

    @property
    def any_rows(self) -> Codes:
        """Rows with a value at any instant."""
        return np.flatnonzero(self.present.any(axis=1))

    def unnamed(self) -> SeriesGrid:
        """Without the name of the metric. Raises NotEvaluated where series of several names have equal
        labels."""
        table = self.table.unnamed()
        if table is None:
            raise NotEvaluated
        return SeriesGrid(table, self.values, self.present)


class RangeReader(Protocol):
    """Reads series at the instants of one expression."""

    def over_time(self, selector: SeriesSelector, range_ms: int, function: str) -> SeriesGrid:
        """One of FUNCTIONS of the samples in the range before each instant."""

    def latest(self, selector: SeriesSelector) -> SeriesGrid:
        """The latest value at each instant of the series that have not ended."""


def can_be_evaluated(form: QueryForm) -> bool:
    """Whether every part of it is one of those that are worked out here."""
    if isinstance(form, RangeFunction):
        return form.function in _OVER_TIME
    if isinstance(form, SeriesAggregation) and form.operator not in _OPERATORS:
        return False
    return form is not None and all(map(can_be_evaluated, _parts(form)))


def _parts(form: QueryForm) -> tuple[QueryForm, ...]:
    if isinstance(form, SeriesAggregation | LabelTaken | LabelGiven | ValueBound):
        return (form.inner,)
    if isinstance(form, SeriesJoin | SeriesDifference):
        return form.left, form.right
    return form.parts if isinstance(form, SeriesUnion) else ()


def longest_range_ms(form: QueryForm) -> int:
    """The longest range of samples that it reads; 0 where it reads none."""
    own = form.range_ms if isinstance(form, RangeFunction) else 0
    return max((own, *map(longest_range_ms, _parts(form))))


def evaluated(form: QueryForm, reader: RangeReader) -> SeriesGrid:
    """The value of an expression of which ``can_be_evaluated``. Raises NotEvaluated where its values are such
    that a server may add them up to something else."""
    if isinstance(form, RangeFunction):
        found = reader.over_time(form.selector, form.range_ms, _OVER_TIME[form.function])
        return found if form.function == "last_over_time" else found.unnamed()
    if isinstance(form, LatestValue):
        return reader.latest(form.selector)
    parts = [evaluated(each, reader) for each in _parts(form)]
    if isinstance(form, LabelTaken):
        return SeriesGrid(parts[0].table.taken(form.label, form.source), parts[0].values, parts[0].present)
    if isinstance(form, LabelGiven):
        return SeriesGrid(parts[0].table.given(form.label, form.value), parts[0].values, parts[0].present)
    if isinstance(form, SeriesAggregation):
        return _aggregated(form, *parts)
    if isinstance(form, ValueBound):
        above = parts[0].present & (parts[0].values > form.threshold)
        return SeriesGrid(parts[0].table, parts[0].values, above)
    if isinstance(form, SeriesJoin):
        return _joined(form, *parts)
    if isinstance(form, SeriesDifference):
        return _differing(*parts)
    if isinstance(form, SeriesUnion):
        return _united(parts)
    raise NotEvaluated


def _aggregated(form: SeriesAggregation, found: SeriesGrid) -> SeriesGrid:
    table, codes = found.table.grouped(form.labels, is_without=form.is_without)
    if not len(codes):
        return SeriesGrid(table, found.values, found.present)
    values, present = found.values, found.present
    if len(table) < len(codes):
        order = np.argsort(codes, kind="stable")
        values, present = values[order], present[order]
    first = np.searchsorted(np.sort(codes), np.arange(len(table)))
    anywhere = np.logical_or.reduceat(present, first, axis=0)
    return SeriesGrid(table, _OPERATORS[form.operator](values, present, first), anywhere)


def _sum(values: Floats, present: Bools, first: Codes) -> Floats:
    known = np.where(present, values, 0.0)
    total: Floats = np.add.reduceat(known, first, axis=0)
    if not (
        (np.floor(known) == known).all() and np.add.reduceat(np.abs(known), first, axis=0).max() < _EXACT
    ):
        raise NotEvaluated
    return total


def _count(_: Floats, present: Bools, first: Codes) -> Floats:
    found: Floats = np.add.reduceat(present.astype(np.float64), first, axis=0)
    return found


def _one(_: Floats, present: Bools, first: Codes) -> Floats:
    return np.ones((len(first), present.shape[1]))


# A NaN gives way to any number, in Prometheus as in numpy's fmax; what is not there is written as one.
def _largest(values: Floats, present: Bools, first: Codes) -> Floats:
    found: Floats = np.fmax.reduceat(np.where(present, values, np.nan), first, axis=0)
    return found


def _smallest(values: Floats, present: Bools, first: Codes) -> Floats:
    found: Floats = np.fmin.reduceat(np.where(present, values, np.nan), first, axis=0)
    return found


_OPERATORS: dict[str, Callable[[Floats, Bools, Codes], Floats]] = {
    "sum": _sum,
    "count": _count,
    "group": _one,
    "max": _largest,
    "min": _smallest,
}


def _joined(form: SeriesJoin, left: SeriesGrid, right: SeriesGrid) -> SeriesGrid:
    keys, of_right = right.table.grouped(form.labels, is_without=False)
    there = np.zeros((len(keys) + 1, left.present.shape[1]), dtype=np.bool_)
    np.logical_or.at(there, of_right, right.present)
    own_keys, own = left.table.grouped(form.labels, is_without=False)
    # The last row, of what is not there.
    return SeriesGrid(left.table, left.values, left.present & there[own_keys.places_in(keys)[own]])


def _differing(left: SeriesGrid, right: SeriesGrid) -> SeriesGrid:
    left, right = left.unnamed(), right.unnamed()
    of = left.table.places_in(right.table)
    both = left.present & right.present[of] & (of >= 0)[:, None] if len(right.table) else None
    if both is None:
        return SeriesGrid(left.table, left.values, np.zeros_like(left.present))
    return SeriesGrid(left.table, left.values, both & (left.values != right.values[of]))


def _united(parts: Sequence[SeriesGrid]) -> SeriesGrid:
    found = parts[0].unnamed()
    for each in (part.unnamed() for part in parts[1:]):
        rows = {key: row for row, key in enumerate(found.table.keys)}
        of = [rows.setdefault(key, len(rows)) for key in each.table.keys]
        more = len(rows) - len(found.present)
        values = np.vstack((found.values, np.full((more, found.values.shape[1]), np.nan)))
        present = np.vstack((found.present, np.zeros((more, found.present.shape[1]), dtype=np.bool_)))
        new = each.present & ~present[of]
        values[of] = np.where(new, each.values, values[of])
        present[of] |= new
        found = SeriesGrid(LabelTable.of_keys([*rows]), values, present)
    return found
