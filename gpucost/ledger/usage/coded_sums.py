"""Sums by id as frames: names are looked up once for each id, and become codes that are sorted and compared.

A month has a hundred thousand jobs or more. To join their names to each row in SQL, and to compare them there
and in pandas again, takes several times as long as to read the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BigInteger, Connection, Select, Table, func, select
from sqlalchemy.sql.selectable import Subquery

from gpucost.attribution.apportion import Ints
from gpucost.domain.errors import LedgerError
from gpucost.domain.money import INT64_MAX
from gpucost.ledger.db.dimensions import among
from gpucost.ledger.usage.day_totals import LARGEST, Numbers, summed
from gpucost.ledger.usage.lines import LineMeasure

_ROOM = 1 << 62
_PART = 500


def coded_frame(
    connection: Connection,
    sums: Subquery,
    dims: Mapping[str, Table | None],
    measures: Sequence[str],
    *,
    stepped: bool,
    are_sums: bool,
) -> pd.DataFrame:
    """``sums`` (ids, ``step`` and measures, in any order and grouping) by ``dims``, whose names are in a
    table; None for a column of ``sums`` itself. Sorted; dims are categories in code-point order. They are
    read once where they ``are_sums``, which the database would work out each time.

    Raises LedgerError for a sum that leaves 64 bits.
    """
    ids = {name: "bucket" if table is None else f"{table.name}_id" for name, table in dims.items()}
    keys = [*dict.fromkeys(ids.values()), *(["step"] if stepped else [])]
    columns, numbers = _read(connection, sums, keys, measures, counts=not are_sums)
    coded = dict[str, _CodedNames]()
    for table in dict.fromkeys(dims.values()):
        own = [name for name, of in dims.items() if of is table]
        if table is None:
            coded |= dict.fromkeys(own, _CodedNames.of(columns["bucket"]))
            continue
        used, at = np.unique(columns[f"{table.name}_id"], return_inverse=True)
        names = _names(connection, table, own, used)
        coded |= {name: _CodedNames.of(values).taken(at) for name, values in zip(own, names, strict=True)}
    codes = [coded[name].codes for name in dims]
    if stepped:
        codes.append(columns["step"])
    try:
        firsts, found = _by_codes(codes, numbers)
    except OverflowError as error:
        raise LedgerError(f"a sum does not fit 64 bits: {error}") from error
    frame = {name: coded[name].taken(firsts).column() for name in dims}
    if stepped:
        frame["step_start_ms"] = columns["step"][firsts]
    return pd.DataFrame(
        frame | {name: pd.arrays.IntegerArray(n.values, n.missing) for name, n in found.items()}
    )


@dataclass(frozen=True, slots=True)
class _CodedNames:
    """A column: ``names`` are distinct and sorted, text by code point, and ``codes`` positions in them."""

    names: Any
    codes: Ints

    @classmethod
    def of(cls, values: Any) -> Self:
        """Of an array of Arrow (its texts are sorted as UTF-8, which is by code point)."""
        encoded = values.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return cls(encoded.dictionary.take(order), place[encoded.indices.to_numpy()])

    def taken(self, at: Ints) -> Self:
        return replace(self, codes=self.codes[at])

    def column(self) -> Any:
        if self.names.type == pa.int64():
            return self.names.to_numpy()[self.codes]
        return pd.Categorical.from_codes(self.codes, pd.Index(self.names.to_pylist(), dtype="str"))


def _read(
    connection: Connection, sums: Subquery, keys: Sequence[str], measures: Sequence[str], *, counts: bool
) -> tuple[dict[str, Any], dict[str, LineMeasure]]:
    """Columns of keys, and measures. With ``counts``, those that nobody measured are not read: they may be
    most of them."""
    present = [*measures]
    if counts:
        found_of = connection.execute(select(*(func.count(sums.c[name]) for name in measures))).one()
        present = [name for name, count in zip(measures, found_of, strict=True) if count]
    names = (*keys, *present)
    columns = dict(zip(names, _columns(connection, select(*(sums.c[name] for name in names))), strict=True))
    found = {name: _text_or_numbers(columns[name], text=name == "bucket") for name in keys}
    numbers = {name: _measure(columns[name]) for name in present}
    rows = len(next(iter(numbers.values())).values) if numbers else 0
    none = LineMeasure(np.zeros(rows, np.int64), np.ones(rows, np.bool_))
    return found, {name: numbers.get(name, none) for name in measures}


def _columns(connection: Connection, statement: Select[Any]) -> list[list[Sequence[Any]]]:
    """The columns, integers and texts, in small parts: rows of which many live at once are looked through by
    the garbage collector, again and again."""
    columns: list[list[Sequence[Any]]] = [[] for _ in statement.selected_columns]
    with closing(connection.execute(statement)) as result:
        assert result.cursor is not None
        while part := result.cursor.fetchmany(_PART):
            for column, values in zip(columns, zip(*part, strict=True), strict=True):
                column.append(values)
    return columns


def _text_or_numbers(parts: Sequence[Sequence[Any]], *, text: bool) -> Any:
    if text:
        return pa.chunked_array([pa.array(part, pa.string()) for part in parts], pa.string()).combine_chunks()
    return np.concatenate([np.array(part, np.int64) for part in parts]) if parts else np.zeros(0, np.int64)


def _measure(parts: Sequence[Sequence[Any]]) -> LineMeasure:
    found = [LineMeasure.of_plain(part) for part in parts or [()]]
    return LineMeasure(
        np.concatenate([part.values for part in found]), np.concatenate([part.missing for part in found])
    )


def _names(connection: Connection, table: Table, names: Sequence[str], ids: Ints) -> list[Any]:
    """The values of ``names`` of each of ``ids``, which are sorted, as arrays of Arrow."""
    columns = [table.c.id, *(table.c[name] for name in names)]
    statement = select(*columns).where(among(connection, table.c.id, ids.tolist()))
    found, *parts = _columns(connection, statement)
    order = np.argsort(_text_or_numbers(found, text=False))
    return [
        (
            pa.array(_text_or_numbers(values, text=False))
            if isinstance(column.type, BigInteger)
            else _text_or_numbers(values, text=True)
        ).take(order)
        for column, values in zip(columns[1:], parts, strict=True)
    ]


def _by_codes(codes: Sequence[Ints], numbers: Numbers) -> tuple[Ints, dict[str, LineMeasure]]:
    """The position of a row of each distinct combination of codes, in their order, and the sums."""
    rows = len(next(iter(numbers.values())).values)
    if not rows:
        return np.zeros(0, np.int64), dict(numbers)
    key, room = np.zeros(rows, np.int64), 1
    for code in codes:
        least, size = int(code.min()), int(code.max() - code.min()) + 1
        if room * size > _ROOM:
            used, key = np.unique(key, return_inverse=True)
            room = len(used)
        key, room = key * size + (code - least), room * size
    _, firsts = np.unique(key, return_index=True)
    if len(firsts) == rows:
        # As they came in most cases: nothing is to be added.
        return firsts, {name: LineMeasure(n.values[firsts], n.missing[firsts]) for name, n in numbers.items()}
    [_], found = summed([key], numbers, INT64_MAX)
    return firsts, found


def added(
    rows: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]], measures: Sequence[str]
) -> Sequence[Sequence[Any]]:
    """Rows of keys and ``measures``, those of the same keys as one. Raises LedgerError for a sum beyond 64
    bits."""
    if not (rows and others):
        return rows or others
    width = len(rows[0]) - len(measures)
    found = {tuple(row[:width]): list(row[width:]) for row in rows}
    for row in others:
        key, values = tuple(row[:width]), row[width:]
        before = found.get(key)
        found[key] = list(values) if before is None else [*map(_both, measures, before, values)]
    return [(*key, *values) for key, values in found.items()]


def _both(name: str, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    if name == "first_ms":
        return min(one, other)
    if name in LARGEST:
        return max(one, other)
    if abs(one + other) > INT64_MAX:
        raise LedgerError(f"a sum does not fit 64 bits: {name}")
    return one + other


def rows_of(table: pa.Table | None) -> list[tuple[Any, ...]]:
    """The rows of sums out of files."""
    return [] if table is None else list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def sealed_frame(table: pa.Table, types: Mapping[str, str], *, categories: bool) -> pd.DataFrame:
    """Sums out of files as a frame: its columns are named by ``types``, in their order. No value becomes an
    object on the way: there may be hundreds of thousands of rows."""
    columns: dict[str, Any] = {}
    for (name, kind), values in zip(types.items(), table.columns, strict=True):
        whole = values.combine_chunks()
        if kind != "str":
            numbers = whole.fill_null(0).to_numpy().astype("int64")
            missing = whole.is_null().to_numpy(zero_copy_only=False)
            columns[name] = pd.arrays.IntegerArray(numbers, missing) if kind == "Int64" else numbers
        elif categories:
            codes = whole.dictionary_encode()
            names = pd.Series(codes.dictionary.to_pylist(), dtype="str")
            order = names.argsort()
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
            at = rank[codes.indices.to_numpy()]
            columns[name] = pd.Categorical.from_codes(at, pd.Index(names.iloc[order]))
        else:
            columns[name] = pd.Series(whole.to_pandas(), dtype="str")
    return pd.DataFrame(columns)
