"""The rows of a month as sealed tables, and these as files.

Rows are read window by window and written in runs of whole windows of a day, each run sorted by names and
time: memory is that of a run, and statistics of row groups tell readers which they need. The sums of days are
made by DuckDB from the file of lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection, Table, select

from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.errors import LedgerError
from gpucost.domain.time import DAY_MS
from gpucost.ledger.db.dimensions import chunked
from gpucost.ledger.db.tables import (
    HOLDER,
    PROGRESS_LINE,
    RATE,
    TEAM_RULE,
    UNIT,
    USAGE_LINE,
    WASTE_LINE,
    WINDOW_PROBLEM,
)
from gpucost.ledger.sealed.seal_schema import (
    DAY_DIMS,
    DAY_MEASURES,
    GROUP_ROWS,
    HOLDER_NAMES,
    RATE_COLUMNS,
    UNIT_NAMES,
    VERSION,
    WASTE_SUMS,
    arrow_schema,
    quoted,
    total,
)
from gpucost.ledger.sealed.sealed_reader import LINES_AS_SUMS, WASTE_AS_SUMS, SealedStore, relation

RUN_LINES = 500_000
"""The lines that are sorted together, and in memory, at most (but for a window that has more)."""

# In this order names and time sort lines: what is asked for most comes first.
_HOLDER_ORDER = ("team", "namespace", "job", "job_uid", *HOLDER_NAMES)
_UNIT_ORDER = ("model", "node", *UNIT_NAMES)
_DAY_ORDER = tuple(dict.fromkeys(("day_ms", "team", "namespace", "job", "job_uid", *DAY_DIMS, "assessed")))
_SORTED_LAST = ("bucket", "waste")


class SealedNames:
    """The names behind ids of one dimension, as columns; ``names`` are those that the files have."""

    def __init__(
        self, connection: Connection, table: Table, names: Sequence[str], order: Sequence[str]
    ) -> None:
        self._connection, self._table, self._names = connection, table, names
        self._values = [column.name for column in table.columns][2:]
        self._order = [self._values.index(name) for name in dict.fromkeys(order)]

    def columns(self, ids: np.ndarray[Any, Any]) -> tuple[dict[str, pa.Array], np.ndarray[Any, Any]]:
        """Columns for ``ids``, and the rank of each in the order of names. An id of 0 or less that the table
        lacks is null in all of them."""
        used, at = np.unique(ids, return_inverse=True)
        rows = {None: (None,) * len(self._values)} | self._rows(used.tolist())
        found = [rows.get(each, rows[None]) for each in used.tolist()]
        order = sorted(range(len(found)), key=lambda n: [found[n][k] or "" for k in self._order])
        rank = np.empty(len(found), np.int64)
        rank[order] = np.arange(len(found))
        taken = pa.array(at.astype(np.int64))
        arrays = {
            name: pa.array([row[n] for row in found], None if found else pa.string()).take(taken)
            for n, name in enumerate(self._names)
        }
        return arrays, rank[at]

    def _rows(self, ids: Sequence[int]) -> dict[int | None, tuple[Any, ...]]:
        c = self._table.c
        rows: dict[int | None, tuple[Any, ...]] = {}
        for chunk in chunked(ids):
            statement = select(c.id, *(c[name] for name in self._values)).where(c.id.in_(chunk))
            rows |= {row_id: tuple(values) for row_id, *values in self._connection.execute(statement)}
        return rows


class MonthRows:
    """The rows of one cluster's windows as sealed tables. ``windows`` have ``id``, ``start_ms``, ``end_ms``
    and ``assessed``, in the order of their start."""

    def __init__(self, connection: Connection, cluster: str, windows: Sequence[Any]) -> None:
        self._connection, self._cluster, self._windows = connection, cluster, windows
        self._dimensions = {
            "unit_id": SealedNames(connection, UNIT, UNIT_NAMES, _UNIT_ORDER),
            "holder_id": SealedNames(connection, HOLDER, HOLDER_NAMES, _HOLDER_ORDER),
            "rate_id": SealedNames(connection, RATE, RATE_COLUMNS, ("rate_id",)),
            "team_rule_id": SealedNames(connection, TEAM_RULE, ("team_rule",), ("team_rule",)),
        }

    def tables(self, table: str) -> Iterator[pa.Table]:
        """The rows of a sealed table in runs, sorted, the same whenever they are read."""
        if table == "lines":
            yield from self._lines(table, USAGE_LINE, ("bucket", *LINE_MEASURES), ("assessed",))
        elif table == "waste":
            yield from self._lines(table, WASTE_LINE, ("bucket", "waste", "board_ms", "nano"), ())
        elif table == "progress":
            yield from self._small(table, PROGRESS_LINE, ("pod_uid", "name", "amount"))
        elif table == "problems":
            names = ("seq", "code", "cluster", "subject", "detail", "board_ms")
            yield from self._small(table, WINDOW_PROBLEM, names)
        else:
            raise LedgerError(f"no rows of {table}")

    def _lines(
        self, table: str, source: Table, values: Sequence[str], of_window: Sequence[str]
    ) -> Iterator[pa.Table]:
        run, count, day = list[pa.Table](), 0, None
        ids = [column.name for column in source.columns if column.name in self._dimensions]
        statement = select(*(source.c[name] for name in (*ids, *values)))
        for window in self._windows:
            if run and (window.start_ms // DAY_MS != day or count >= RUN_LINES):
                yield self._sorted(table, run, ids)
                run, count = [], 0
            day = window.start_ms // DAY_MS
            rows = self._connection.execute(statement.where(source.c.window_id == window.id)).all()
            if rows:
                columns = dict(zip((*ids, *values), zip(*rows, strict=True), strict=True))
                run.append(_narrow(columns, window, of_window))
                count += len(rows)
        if run:
            yield self._sorted(table, run, ids)

    def _sorted(self, table: str, run: Sequence[pa.Table], ids: Sequence[str]) -> pa.Table:
        lines = pa.concat_tables(run).combine_chunks()
        columns = {name: lines[name] for name in lines.column_names if name not in self._dimensions}
        ranks = {}
        for name in ids:
            at = lines[name].fill_null(-1).to_numpy()
            named, ranks[name] = self._dimensions[name].columns(at)
            columns |= named
        last = [lines[name].to_numpy(zero_copy_only=False) for name in _SORTED_LAST if name in columns]
        keys = [ranks["holder_id"], lines["window_start_ms"].to_numpy(), ranks["unit_id"], ranks["rate_id"]]
        order = np.lexsort([*reversed([*keys, *last])])
        return cast_table(table, columns).take(pa.array(order))

    def _small(self, table: str, source: Table, names: Sequence[str]) -> Iterator[pa.Table]:
        c = source.c
        spans = {window.id: (window.start_ms, window.end_ms) for window in self._windows}
        rows: list[tuple[Any, ...]] = []
        for chunk in chunked(spans):
            statement = select(c.window_id, *(c[name] for name in names)).where(c.window_id.in_(chunk))
            for window_id, *values in self._connection.execute(statement):
                rows.append((*spans[window_id], self._cluster, *values))
        if rows:
            # Only board_ms, which comes last, may be null; what is before it is never the same.
            yield rows_table(table, sorted(rows, key=lambda row: tuple(row[:7])))


def _narrow(columns: Mapping[str, Sequence[Any]], window: Any, of_window: Sequence[str]) -> pa.Table:
    count = len(next(iter(columns.values())))
    placed: dict[str, Any] = {
        "window_start_ms": pa.array(np.full(count, window.start_ms)),
        "window_end_ms": pa.array(np.full(count, window.end_ms)),
    }
    placed |= {name: pa.array([getattr(window, name)] * count) for name in of_window}
    texts = ("bucket", "waste")
    return pa.table(
        placed
        | {
            name: pa.array(values, pa.string() if name in texts else pa.int64())
            for name, values in columns.items()
        }
    )


def cast_table(table: str, columns: Mapping[str, Any]) -> pa.Table:
    """Columns in the order and types of the schema."""
    schema = arrow_schema(table)
    arrays = []
    for field in schema:
        values = columns[field.name]
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        arrays.append(values if values.type == field.type else values.cast(field.type))
    return pa.table(arrays, schema=schema)


def rows_table(table: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows whose values are in the order of the schema."""
    schema = arrow_schema(table)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def write_table(path: Path, table: str, parts: Iterable[pa.Table]) -> int:
    """A file of ``parts``, and how many rows they have; no file where they have none."""
    count, waiting = 0, list[pa.Table]()
    writer: pq.ParquetWriter | None = None
    try:
        for part in parts:
            waiting.append(part)
            count += part.num_rows
            if sum(each.num_rows for each in waiting) >= GROUP_ROWS:
                writer = writer or _writer(path, table)
                writer.write_table(pa.concat_tables(waiting), row_group_size=GROUP_ROWS)
                waiting = []
        if waiting:
            writer = writer or _writer(path, table)
            writer.write_table(pa.concat_tables(waiting), row_group_size=GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()
    return count


def _writer(path: Path, table: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, arrow_schema(table), compression="zstd", write_page_checksum=True)


def write_days(store: SealedStore, table: str, lines: Path, path: Path) -> int:
    """``days`` of a file of lines, or ``waste_days`` of one of waste: how many rows."""
    days = f"window_start_ms - window_start_ms % {DAY_MS} AS day_ms"
    if table == "days":
        columns: Sequence[str] = DAY_MEASURES
        source = relation("lines", LINES_AS_SUMS, {VERSION: [str(lines)]})
        keys: Sequence[str] = ("assessed", *DAY_DIMS)
    else:
        source, columns = relation("waste", WASTE_AS_SUMS, {VERSION: [str(lines)]}), WASTE_SUMS
        keys = (*(name for name in DAY_DIMS if name != "team_rule"), "waste")
    order = [name for name in _DAY_ORDER if name == "day_ms" or name in keys] + [
        name for name in ("waste",) if name in keys
    ]
    sums = ", ".join(f"{total(name)} AS {quoted(name)}" for name in columns)
    statement = (
        f"SELECT {days}, {', '.join(map(quoted, keys))}, {sums} FROM {source} GROUP BY ALL "
        f"ORDER BY {', '.join(f'{quoted(name)} NULLS FIRST' for name in order)}"
    )
    # A disk that is full is no damage of what is read.
    with store.cursor() as cursor, store.folder.writing():
        reader: Any = cursor.sql(statement).to_arrow_reader(GROUP_ROWS)
        parts = (
            cast_table(table, dict(zip(batch.schema.names, batch.columns, strict=True))) for batch in reader
        )
        return write_table(path, table, parts)


def differing_run(path: Path, parts: Iterable[pa.Table]) -> str:
    """What of a written file is not ``parts``, to the last value; empty where it is the same."""
    file = pq.ParquetFile(path)
    batches = file.iter_batches(GROUP_ROWS)
    pending, count = file.schema_arrow.empty_table(), 0
    for part in parts:
        while pending.num_rows < part.num_rows:
            batch = next(batches, None)
            if batch is None:
                return f"rows end after {count + pending.num_rows:,}"
            pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
        if not pending.slice(0, part.num_rows).combine_chunks().equals(part.combine_chunks()):
            return f"another value in rows {count + 1:,} to {count + part.num_rows:,}"
        pending, count = pending.slice(part.num_rows), count + part.num_rows
    if pending.num_rows or next(batches, None) is not None:
        return f"more rows than {count:,}"
    return ""
