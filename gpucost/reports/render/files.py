"""Flat tables as CSV text, Parquet bytes and workbooks (XLSX). The one place that escapes CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq

from gpucost.reports.base.document import companion, number
from gpucost.reports.render.tables import Cell, CellType, ReportTable

# A spreadsheet takes a cell that starts with one of these for a formula (OWASP, CSV injection); the
# full-width forms count too, since some spreadsheets fold them.
_FORMULA_STARTS = frozenset("=+-@\t\r\n＝＋－＠")
# A spreadsheet that expects semicolons or tabs, as in countries with decimal commas, ignores our quotes: a
# cell can then begin within a text.
_INNER_START = re.compile(r"([;|\t\r\n]\"*)(?=[=+\-@＝＋－＠])")
_LINE_END = "\r\n"  # RFC 4180
_PARQUET_TYPES = {CellType.TEXT: pa.string(), CellType.INTEGER: pa.int64(), CellType.RATIO: pa.float64()}


def to_csv(table: ReportTable) -> str:
    """``table`` as CSV: a head, text always quoted and harmless in a spreadsheet, numbers bare, null empty.

    Beside each integer of nano-units or GPU milliseconds is its decimal text, named as in JSON.
    """
    columns: list[list[str]] = []
    for position, column in enumerate(table.columns):
        cells = [row[position] for row in table.rows]
        partner = companion(column.name)
        if partner is not None:
            texts: dict[Cell, str] = {n: partner.text(n) for n in set(cells) if isinstance(n, int)}
            columns.append([quote(partner.name), *(texts.get(cell, "") for cell in cells)])
        columns.append([quote(column.name), *map(_cell, cells)])
    return "".join(",".join(line) + _LINE_END for line in zip(*columns, strict=True))


def quote(text: str) -> str:
    """A text cell: quoted, with an apostrophe wherever a formula could begin."""
    inner = _INNER_START.sub(r"\1'", text)
    safe = f"'{inner}" if text[:1] in _FORMULA_STARTS and text else inner
    return '"' + safe.replace('"', '""') + '"'


def to_parquet(table: ReportTable) -> bytes:
    """``table`` as Parquet."""
    buffer = io.BytesIO()
    pq.write_table(to_arrow(table), buffer, compression="zstd")
    return buffer.getvalue()


def to_arrow(table: ReportTable) -> pa.Table:
    """``table`` for Parquet: integers stay integers, ratios are doubles; the facts are metadata."""
    columns = []
    for position, column in enumerate(table.columns):
        cells = [_plain(row[position]) for row in table.rows]
        columns.append(pa.array(cells, type=_PARQUET_TYPES[column.type]))
    schema = pa.schema(
        [pa.field(column.name, _PARQUET_TYPES[column.type]) for column in table.columns],
        metadata=dict(sorted(table.facts.items())),
    )
    return pa.Table.from_arrays(columns, schema=schema)


_WORKBOOK = {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
_MADE = datetime(2000, 1, 1, tzinfo=UTC)
_EXACT = 2**53
"""Numbers of a workbook are doubles: whole ones are exact below this."""
_WIDTHS = (8, 60)


def to_xlsx(sheets: Mapping[str, ReportTable]) -> bytes:
    """Tables as the sheets of a workbook; the same bytes for the same tables.

    Text is text, whatever it begins with. A workbook has doubles for numbers: beside each integer of
    nano-units or GPU milliseconds its decimal value stands as a number, and the integer itself is text where
    a double would round it.
    """
    import xlsxwriter  # Imported here: few files are workbooks

    buffer = io.BytesIO()
    with xlsxwriter.Workbook(buffer, _WORKBOOK) as book:
        book.set_properties({"created": _MADE})
        head, amount = (
            book.add_format({"bold": True, "bottom": 1}),
            book.add_format({"num_format": "#,##0.00"}),
        )
        for name, table in sheets.items():
            sheet, columns = book.add_worksheet(name), list(_sheet_columns(table))
            sheet.freeze_panes(1, 0)
            for position, (title, cells) in enumerate(columns):
                sheet.write_string(0, position, title, head)
                width = max((len(str(cell)) for cell in (title, *cells)), default=0) + 2
                sheet.set_column(position, position, min(max(width, _WIDTHS[0]), _WIDTHS[1]))
                for row, cell in enumerate(cells, 1):
                    if isinstance(cell, float):
                        sheet.write_number(row, position, cell, amount)
                    elif isinstance(cell, int) and abs(cell) < _EXACT:
                        sheet.write_number(row, position, cell)
                    elif cell is not None and cell != "":
                        sheet.write_string(row, position, str(cell)[:_LONGEST])
            if table.rows:
                sheet.autofilter(0, 0, len(table.rows), len(columns) - 1)
    return buffer.getvalue()


_LONGEST = 32_767
"""Characters of a cell."""


def _sheet_columns(table: ReportTable) -> Iterator[tuple[str, list[str | int | float | None]]]:
    for position, column in enumerate(table.columns):
        cells = [row[position] for row in table.rows]
        partner = companion(column.name)
        if partner is not None:
            yield (
                partner.name,
                [float(partner.text(cell)) if isinstance(cell, int) else None for cell in cells],
            )
        yield column.name, [_plain(cell) for cell in cells]


def _cell(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Fraction):
        return f"{number(cell):.6f}"
    return quote(cell) if isinstance(cell, str) else str(cell)


def _plain(cell: Cell) -> str | int | float | None:
    return cell if cell is None or isinstance(cell, str | int) else number(cell)
