"""Sums over frames of the ledger, as the values of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.core.groupby import DataFrameGroupBy

from gpucost.contract.frames import PEAKS
from gpucost.domain.errors import InputError
from gpucost.domain.money import INT64_MAX
from gpucost.reports.base.values import (
    EMPTY,
    MEASURES,
    STEP,
    MeasureSums,
)

_ADDED = [name for name in MEASURES if name not in PEAKS]
_INSTANTS = ("first_ms", "last_ms")
_ROOM = 1 << 62


def prepare(frame: pd.DataFrame, dims: Sequence[str], name: str) -> pd.DataFrame:
    """``frame`` cut to ``dims`` and the measures, ready for ``sums``.

    Raises InputError naming a column that is missing, and when a sum could leave 64 bits: a wrong total
    is worse than none.
    """
    for column in (*dims, *MEASURES):
        if column not in frame.columns:
            raise InputError(f"{name}.{column}", "missing column", ", ".join((*dims, *MEASURES)))
    for measure in MEASURES:
        if float(frame[measure].astype("Float64").abs().sum()) > 0.99 * INT64_MAX:
            raise InputError(f"{name}.{measure}", "a sum beyond 64 bits", f"at most {INT64_MAX} in all")
    extra = [column for column in _INSTANTS if column in frame.columns]
    cut = frame[list(dict.fromkeys((*dims, *extra, *MEASURES)))].copy()
    for dim in dims:
        if dim not in (STEP, *_INSTANTS):
            cut[dim] = cut[dim].astype("category")  # grouped many times: text is compared once
    return cut


def sums(frame: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], MeasureSums]:
    """Sums per distinct value of ``keys``; a measure that is null in every row of a group stays None."""
    if frame.empty:
        return {}
    grouped = _measures(frame.groupby(list(keys), sort=False, observed=True))
    names = grouped.index.tolist()
    return {
        (name if isinstance(name, tuple) else (name,)): values
        for name, values in zip(names, records(grouped), strict=True)
    }


def total(frame: pd.DataFrame) -> MeasureSums:
    """Sums over all rows; EMPTY when there are none, since no time costs nothing."""
    if frame.empty:
        return EMPTY
    columns = {
        name: [frame[name].max() if name in PEAKS else frame[name].sum(min_count=1)] for name in MEASURES
    }
    return records(pd.DataFrame(columns, dtype="object"))[0]


def records(grouped: pd.DataFrame) -> list[MeasureSums]:
    """One MeasureSums per row of a frame that has the summed measures as columns."""
    columns = [integers(grouped[measure]) for measure in MEASURES]
    return [
        MeasureSums(board or 0, nano, unpriced or 0, *rest)
        for board, nano, unpriced, *rest in zip(*columns, strict=True)
    ]


def summed(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Like ``sums`` but as a frame with the keys as columns, and first and last instants where known."""
    how = {"first_ms": "min", "last_ms": "max"}
    numbers = group_numbers(frame, keys)
    grouped = frame.groupby(numbers, sort=False)
    parts = [_measures(grouped)]
    parts += [grouped[[column]].agg(kind) for column, kind in how.items() if column in frame.columns]
    firsts = np.sort(np.unique(numbers, return_index=True)[1])
    names = frame[list(keys)].iloc[firsts]
    return pd.concat([each.reset_index(drop=True) for each in (names, *parts)], axis=1)


def group_numbers(frame: pd.DataFrame, keys: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number for each row, the same where ``keys`` are: to group by one is faster than by many names."""
    numbers, room = np.zeros(len(frame), np.int64), 1
    for key in keys:
        column = frame[key]
        is_coded = isinstance(column.dtype, pd.CategoricalDtype)
        codes = column.cat.codes.to_numpy() if is_coded else pd.factorize(column)[0]
        size = int(codes.max(initial=0)) + 1
        if room * size > _ROOM:
            found, numbers = np.unique(numbers, return_inverse=True)
            room = len(found)
        numbers, room = numbers * size + codes, room * size
    return numbers


def _measures(grouped: DataFrameGroupBy[Any, Any]) -> pd.DataFrame:
    """Sums of the measures, and the largest of PEAKS; null where all of a group is."""
    found = [grouped[_ADDED].sum(min_count=1), grouped[[*PEAKS]].max()]
    return pd.concat(found, axis=1)


def integers(series: pd.Series[int]) -> list[int | None]:
    """Plain Python integers, None where null."""
    return [None if missing else int(value) for value, missing in zip(series, series.isna(), strict=True)]
