"""Batches of FOCUS rows as CSV and Parquet, a batch at a time, and back.

The same batches give the same bytes. CSV is harmless in a spreadsheet: a text that would begin a formula has
an apostrophe before it, and one more where it has some already, so that reading takes away exactly what
writing added. Null is an empty cell, and text is always quoted.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO
from gpucost.domain.time import parse_instant
from gpucost.reports.focus.exact_products import (
    money_text,
    number_text,
    seconds_text,
    time_text,
)
from gpucost.reports.focus.focus_columns import FocusBatch, FocusCell, FocusColumn, FocusType

_LINE_END = "\r\n"
_FORMULA = "=+\\-@\t\r\n＝＋－＠"
# At the start, and after what a spreadsheet of another country takes for a separator.
_HIDE = re.compile(rf"((?:^|[;|\t\r\n])\"*)(?='*[{_FORMULA}])")
_SHOW = re.compile(rf"((?:^|[;|\t\r\n])\"*)'(?='*[{_FORMULA}])")
_TEXTS = frozenset((FocusType.TEXT, FocusType.JSON))
_ROWS_OF_A_BATCH = 20_000


def hidden(text: str) -> str:
    """``text`` so that no formula begins in it."""
    return _HIDE.sub(r"\1'", text) if _HIDE.search(text) else text


def shown(text: str) -> str:
    """What ``hidden`` was given."""
    return _SHOW.sub(r"\1", text)


def _quoted(text: str) -> str:
    return '"' + hidden(text).replace('"', '""') + '"'


def _product_text(cell: int | float) -> str:
    return number_text(cell) if isinstance(cell, float) else money_text(cell)


_WRITE: dict[FocusType, Callable[[Any], str]] = {
    FocusType.TEXT: _quoted,
    FocusType.JSON: _quoted,
    FocusType.TIME: time_text,
    FocusType.MONEY: money_text,
    FocusType.PRODUCT: _product_text,
    FocusType.NUMBER: number_text,
    FocusType.SECONDS: seconds_text,
}
# Most cells of these are the same few.
_FEW = frozenset((FocusType.TEXT, FocusType.TIME, FocusType.NUMBER))


def csv_parts(columns: Sequence[FocusColumn], batches: Iterable[FocusBatch]) -> Iterator[bytes]:
    """A CSV file in pieces: the head, then a piece for each batch."""
    yield (",".join(f'"{column.name}"' for column in columns) + _LINE_END).encode()
    for batch in batches:
        texts = [_column_texts(column, batch.cells(column.name)) for column in columns]
        yield "".join([",".join(line) + _LINE_END for line in zip(*texts, strict=True)]).encode()


def _column_texts(column: FocusColumn, cells: Sequence[FocusCell]) -> list[str]:
    write = _WRITE[column.type]
    if column.type in _FEW:
        known: dict[FocusCell, str] = {cell: "" if cell is None else write(cell) for cell in set(cells)}
        return [known[cell] for cell in cells]
    return ["" if cell is None else write(cell) for cell in cells]


_ARROW = {
    FocusType.TEXT: pa.string(),
    FocusType.JSON: pa.string(),
    FocusType.TIME: pa.timestamp("ms", tz="UTC"),
    FocusType.MONEY: pa.decimal128(38, 9),
    FocusType.PRODUCT: pa.float64(),
    FocusType.NUMBER: pa.float64(),
    FocusType.SECONDS: pa.decimal128(38, 3),
}


def write_parquet(
    columns: Sequence[FocusColumn], batches: Iterable[FocusBatch], target: IO[bytes], facts: dict[str, str]
) -> int:
    """A Parquet file, a row group for each batch; returns how many rows. ``facts`` are its metadata. Costs
    that are products are doubles, other amounts decimals."""
    schema = pa.schema(
        [pa.field(column.name, _ARROW[column.type]) for column in columns],
        metadata=dict(sorted(facts.items())),
    )
    rows = 0
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in batches:
            if batch.rows:
                arrays = [_array(column, batch.cells(column.name)) for column in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows += batch.rows
    return rows


def _array(column: FocusColumn, cells: Sequence[FocusCell]) -> Any:
    kind = _ARROW[column.type]
    if column.type is FocusType.MONEY:
        return pa.array([_scaled(cell, -9) for cell in cells], kind)
    if column.type is FocusType.SECONDS:
        return pa.array([_scaled(cell, -3) for cell in cells], kind)
    if column.type is FocusType.PRODUCT:
        return pa.array([cell / NANO if isinstance(cell, int) else cell for cell in cells], kind)
    if column.type is FocusType.TIME:
        # As in CSV: in whole seconds.
        cells = [cell // 1000 * 1000 if isinstance(cell, int) else None for cell in cells]
    return pa.array(cells, kind)


def _scaled(cell: FocusCell, digits: int) -> Decimal | None:
    return Decimal(cell).scaleb(digits) if isinstance(cell, int) else None


def read_csv(source: IO[str], known: Callable[[str], FocusColumn | None]) -> Iterator[FocusBatch]:
    """The batches of a CSV file that ``csv_parts`` wrote, or of the same form. Raises InputError for a cell
    that is not of its column's type."""
    reader = csv.reader(source, strict=True)
    names = next(reader, [])
    columns = _known(names, known)
    line, rows = 1, list[list[str]]()
    for row in reader:
        line += 1
        if len(row) != len(names):
            raise InputError(f"row {line}", f"{len(row)} cells", f"{len(names)} cells, as the head has")
        rows.append(row)
        if len(rows) == _ROWS_OF_A_BATCH:
            yield _parsed(columns, rows, line)
            rows = []
    if rows:
        yield _parsed(columns, rows, line)


def _known(names: Sequence[str], known: Callable[[str], FocusColumn | None]) -> list[FocusColumn]:
    found = []
    for name in names:
        column = known(name)
        if column is None:
            raise InputError("column", name, "a column of this dataset and version")
        found.append(column)
    return found


def _parsed(columns: Sequence[FocusColumn], rows: Sequence[Sequence[str]], last: int) -> FocusBatch:
    cells: dict[str, list[FocusCell]] = {}
    for at, column in enumerate(columns):
        try:
            cells[column.name] = [_cell(column.type, row[at]) for row in rows]
        except (ValueError, ArithmeticError, InputError):
            where = f"{column.name}, rows up to {last}"
            raise InputError(where, ", ".join(row[at] for row in rows[:3]), column.type.value) from None
    return FocusBatch(len(rows), cells)


def _cell(kind: FocusType, text: str) -> FocusCell:
    if text == "":
        return None
    if kind in _TEXTS:
        return shown(text)
    if kind is FocusType.TIME:
        return parse_instant(text)
    if kind is FocusType.NUMBER:
        return float(text)
    if kind is FocusType.PRODUCT:
        exact = Decimal(text) * NANO
        return int(exact) if exact == exact.to_integral_value() else float(text)
    digits = 3 if kind is FocusType.SECONDS else 9
    scaled = Decimal(text).scaleb(digits)
    if scaled != scaled.to_integral_value():
        raise ValueError(text)
    return int(scaled)


def read_parquet(source: IO[bytes], known: Callable[[str], FocusColumn | None]) -> Iterator[FocusBatch]:
    """The batches of a Parquet file that ``write_parquet`` wrote, a row group at a time."""
    file = pq.ParquetFile(source)
    columns = _known(file.schema_arrow.names, known)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        yield FocusBatch(
            table.num_rows, {column.name: _read(column, table[column.name]) for column in columns}
        )


def _read(column: FocusColumn, values: Any) -> list[FocusCell]:
    if column.type is FocusType.TIME:
        return list(values.cast(pa.int64()).to_pylist())
    cells = values.to_pylist()
    if column.type in (FocusType.MONEY, FocusType.SECONDS):
        digits = 3 if column.type is FocusType.SECONDS else 9
        return [None if cell is None else int(cell.scaleb(digits)) for cell in cells]
    if column.type is FocusType.PRODUCT:
        return [None if cell is None else _product(cell) for cell in cells]
    return list(cells)


def _product(value: float) -> int | float:
    nano = round(value * NANO)
    return nano if nano / NANO == value else value


def to_csv(columns: Sequence[FocusColumn], batches: Iterable[FocusBatch]) -> bytes:
    """A whole CSV file, for small ones."""
    return b"".join(csv_parts(columns, batches))


def to_parquet(columns: Sequence[FocusColumn], batches: Iterable[FocusBatch], facts: dict[str, str]) -> bytes:
    """A whole Parquet file, for small ones."""
    buffer = io.BytesIO()
    write_parquet(columns, batches, buffer, facts)
    return buffer.getvalue()
