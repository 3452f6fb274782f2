"""The rows of sealed files, as the database holds them: names become ids again by their content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection, Table

from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.errors import LedgerDamaged
from gpucost.ledger.db.database import insert_rows
from gpucost.ledger.db.digest import content_key
from gpucost.ledger.db.dimensions import resolve
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
from gpucost.ledger.sealed.seal_folder import SealedFile, SealFolder, SealManifest
from gpucost.ledger.sealed.seal_schema import GROUP_ROWS, HOLDER_NAMES, RATE_COLUMNS, TABLES, UNIT_NAMES

_DIMENSIONS = ((UNIT, UNIT_NAMES), (HOLDER, HOLDER_NAMES), (RATE, RATE_COLUMNS))
_LINE = ("bucket", *LINE_MEASURES)
_WASTE = ("bucket", "waste", "board_ms", "nano")
_OTHERS: dict[str, tuple[Table, tuple[str, ...]]] = {
    "progress": (PROGRESS_LINE, ("pod_uid", "name", "amount")),
    "problems": (WINDOW_PROBLEM, ("seq", "code", "problem_cluster", "subject", "detail", "board_ms")),
}


def put_back(
    connection: Connection, folder: SealFolder, manifest: SealManifest, windows: Mapping[str, Sequence[Any]]
) -> int:
    """Inserts every row of the files that the database held; how many usage lines. ``windows`` are the
    ledger's, by cluster. Raises LedgerDamaged for rows of a window that it does not have."""
    ids = {(row.cluster, row.start_ms): row.id for rows in windows.values() for row in rows}
    count = 0
    for file in manifest.files:
        if file.table == "lines":
            for rows in _batches(folder, file, manifest.version):
                rule = _ids(connection, TEAM_RULE, ("team_rule",), rows)
                _insert(connection, USAGE_LINE, _keys(connection, file, rows, ids), rows, _LINE, (rule,))
                count += rows.num_rows
        elif file.table == "waste":
            for rows in _batches(folder, file, manifest.version):
                _insert(connection, WASTE_LINE, _keys(connection, file, rows, ids), rows, _WASTE)
        elif file.table in _OTHERS:
            table, names = _OTHERS[file.table]
            for rows in _batches(folder, file, manifest.version):
                _insert(connection, table, [_window_ids(file, rows, ids)], rows, names)
    return count


def _batches(folder: SealFolder, file: SealedFile, version: int) -> Iterator[pa.Table]:
    """The rows in parts, with every column of the newest version: null where the file's has none."""
    with folder.opened(file.path) as content:
        for batch in pq.ParquetFile(content).iter_batches(GROUP_ROWS):
            rows = pa.Table.from_batches([batch])
            for column in TABLES[file.table]:
                if column.since > version:
                    rows = rows.append_column(column.name, pa.nulls(rows.num_rows))
            yield rows


def _insert(
    connection: Connection,
    table: Table,
    keys: Sequence[Sequence[Any]],
    rows: pa.Table,
    values: Sequence[str],
    last: Sequence[Sequence[Any]] = (),
) -> None:
    columns = [*keys, *(rows[name].to_pylist() for name in values), *last]
    insert_rows(connection, table, list(zip(*columns, strict=True)))


def _keys(
    connection: Connection, file: SealedFile, rows: pa.Table, windows: Mapping[tuple[str, int], int]
) -> list[Sequence[Any]]:
    return [
        _window_ids(file, rows, windows),
        *(_ids(connection, table, names, rows) for table, names in _DIMENSIONS),
    ]


def _window_ids(file: SealedFile, rows: pa.Table, windows: Mapping[tuple[str, int], int]) -> Sequence[Any]:
    starts = rows["window_start_ms"].to_pylist()
    missing = {start for start in starts if (file.cluster, start) not in windows}
    if missing:
        raise LedgerDamaged(f"{file.path} has rows of a window that the ledger has not: {min(missing)}")
    return [windows[file.cluster, start] for start in starts]


def _ids(connection: Connection, table: Any, names: Sequence[str], rows: pa.Table) -> Sequence[Any]:
    """The id of each row's values in a dimension; None where there are none, 0 for no price."""
    codes = [rows[name].combine_chunks().dictionary_encode() for name in names]
    at = np.stack(
        [
            np.where(np.asarray(code.indices.is_null()), -1, code.indices.fill_null(0).to_numpy())
            for code in codes
        ]
    )
    distinct, position = np.unique(at, axis=1, return_inverse=True)
    words = [code.dictionary.to_pylist() for code in codes]
    found = [
        tuple(None if at < 0 else words[n][at] for n, at in enumerate(column))
        for column in distinct.T.tolist()
    ]
    by_key = {content_key(values): values for values in found if values[0] is not None}
    if table is RATE:
        by_key = {key: values for key, values in by_key.items() if values[0]}
    ids: dict[tuple[Any, ...], int] = {
        by_key[key]: row_id for key, row_id in resolve(connection, table, by_key).items()
    }
    empty = 0 if table is RATE else None
    return [ids.get(found[n], empty) for n in np.ravel(position).tolist()]
