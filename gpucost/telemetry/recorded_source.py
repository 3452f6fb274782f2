"""RecordedSource: the same frames out of Parquet files, the embedded default.

A recording is a folder with one file per frame (``allocations.parquet``), or one folder per frame with any
number of files in it (``allocations/2026-10-01.parquet``). Every file has exactly the columns of its
FrameSpec; optional columns may be missing. Signals, progress and the frames that only detectors read may be
absent.

Each frame is read once, on its first use, and kept in memory as an Arrow table: a search of a million starts
and ends takes milliseconds. Of a frame that is larger than ``MOST_KEPT_BYTES`` only the first start and the
last end of each row group are kept; for a window, the groups with a row in it are read anew, some rows at a
time. Text columns with few values are dictionaries, and categories in the frames.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    EVICTIONS,
    FRAMES,
    HISTORY_FRAMES,
    OBSERVED,
    PROGRESS,
    SERVING,
    SIGNALS,
    ColumnType,
    FrameColumn,
    FrameSpec,
)
from gpucost.domain.errors import ErrorRemark, InputError, NotCovered
from gpucost.domain.time import Window
from gpucost.telemetry.evidence.evidence_rule import IntArray

_OPTIONAL = (SIGNALS, PROGRESS, *HISTORY_FRAMES)
# Amounts over a stretch of time, and attempts that ended: they cannot be cut at a window's edge.
_AMOUNTS = (SIGNALS, PROGRESS, ACTIVITY, SERVING, EVICTIONS)
# Nearly every pod has values of its own, so a dictionary of them would cost more. Its activity has hundreds
# of rows.
_MANY_VALUED = ("pod", "pod_uid", "job", "job_uid", "workload")
_REPEATED = {
    ALLOCATIONS: tuple(name for name in ALLOCATIONS.column_names if name not in _MANY_VALUED),
    ACTIVITY: ACTIVITY.column_names,
    SERVING: SERVING.column_names,
}
# Parquet packs equal rows a thousandfold, so the size of a recording in memory is computed before it is read.
# A thousand GPUs have nine million rows of signals in a year, by the hour: below a GiB.
MOST_ROWS = 50_000_000
MOST_BYTES = 2 << 30
MOST_KEPT_BYTES = 256 << 20
# Small, so that little is read that is not in a window; a large frame of a day has some of them.
_GROUP_ROWS = 100_000
_TYPES = {ColumnType.TEXT: pa.string(), ColumnType.INTEGER: pa.int64(), ColumnType.REAL: pa.float64()}


class _RecordedRows(Protocol):
    """One frame of the recording."""

    def overlapping(self, cluster: str, window: Window) -> pa.Table:
        """The rows of the cluster that overlap the window, in order of their starts."""


@dataclass(frozen=True)
class _KeptRows:
    """In memory, in order of starts."""

    table: pa.Table
    starts: IntArray
    ends: IntArray

    def overlapping(self, cluster: str, window: Window) -> pa.Table:
        until = int(np.searchsorted(self.starts, window.end_ms, "left"))
        found = self.table.take(pa.array(np.flatnonzero(self.ends[:until] > window.start_ms)))
        return found.filter(pc.equal(found["cluster"], cluster))


@dataclass(frozen=True)
class _StoredRows:
    """In files: (file, row group, first start, last end)."""

    spec: FrameSpec
    groups: tuple[tuple[Path, int, int, int], ...]

    def overlapping(self, cluster: str, window: Window) -> pa.Table:
        found = [_schema(self.spec).empty_table()]
        needed = [row for row in self.groups if row[2] < window.end_ms and row[3] > window.start_ms]
        for file, rows in groupby(needed, key=itemgetter(0)):
            for part in _batches(file, self.spec, [group for _, group, _, _ in rows]):
                starts, ends = part["start_ms"], part["end_ms"]
                inside = pc.and_(pc.less(starts, window.end_ms), pc.greater(ends, window.start_ms))
                found.append(part.filter(pc.and_(inside, pc.equal(part["cluster"], cluster))))
        return _by_start(_one_table(found[1:] or found))


class RecordedSource:
    """The recording in ``folder``, read when needed. Raises InputError for a folder without a recording."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError("recording", str(folder), "a folder with Parquet files")
        self._folder = folder
        self._loaded: dict[str, _RecordedRows] = {}

    @property
    def name(self) -> str:
        return f"recorded {self._folder.name}"

    def clusters(self) -> tuple[str, ...]:
        """The clusters that were observed, sorted. Raises InputError for a file that is not valid."""
        return tuple(sorted(self._covered))

    def covered(self, cluster: str) -> Window | None:
        """From the first observed instant to the last; None for a cluster that is not in the recording."""
        return self._covered.get(cluster)

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """The rows that overlap ``window``: intervals clipped to it, amounts (signals, progress) whole.

        Raises NotCovered when the window reaches beyond the recording, InputError for a file that is not
        valid.
        """
        return self._frames([spec for spec in FRAMES if spec not in HISTORY_FRAMES], cluster, window)

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``, with the frames that only detectors read; of these, activity and evictions come whole.
        With ``only``, names of frames, just these are read, and all others stay empty."""
        specs = [spec for spec in FRAMES if only is None or spec.name in only]
        return self._frames(specs, cluster, window)

    def _frames(self, specs: Iterable[FrameSpec], cluster: str, window: Window) -> ClusterFrames:
        covered = self.covered(cluster)
        if covered is None or covered.intersect(window) != window:
            raise NotCovered(f"cluster {cluster}: {window} is not covered: the recording holds {covered}")
        parts: dict[str, Any] = {spec.name: self._part(spec, cluster, window) for spec in specs}
        # Else Arrow keeps what it read files with, as much as the frames again, and gives it to nobody.
        pa.default_memory_pool().release_unused()
        return replace(ClusterFrames(), **parts)

    def _part(self, spec: FrameSpec, cluster: str, window: Window) -> pd.DataFrame:
        part: pd.DataFrame = self._rows(spec).overlapping(cluster, window).to_pandas()
        if spec not in _AMOUNTS:
            part["start_ms"] = part["start_ms"].clip(lower=window.start_ms)
            part["end_ms"] = part["end_ms"].clip(upper=window.end_ms)
        return part

    @cached_property
    def _covered(self) -> dict[str, Window]:
        files = _files(self._folder, OBSERVED)
        _size(files)
        observed = _kept(files, OBSERVED).table.to_pandas().groupby("cluster")
        starts, ends = observed["start_ms"].min(), observed["end_ms"].max()
        return {
            str(cluster): Window(start, end)
            for cluster, start, end in zip(starts.index, starts.tolist(), ends.tolist(), strict=True)
        }

    def _rows(self, spec: FrameSpec) -> _RecordedRows:
        if spec.name not in self._loaded:
            self._loaded[spec.name] = _load(self._folder, spec)
        return self._loaded[spec.name]


def record(folder: Path, frames: ClusterFrames) -> None:
    """Write ``frames`` as a recording into ``folder``, one file per frame, sorted by cluster and start.

    Files of an earlier recording are replaced. Raises InputError when a frame lacks columns of its FrameSpec;
    then nothing is written.
    """
    checked = {spec: conform(getattr(frames, spec.name), spec) for spec in FRAMES}
    folder.mkdir(parents=True, exist_ok=True)
    for spec, frame in checked.items():
        ordered = frame.sort_values(["cluster", "start_ms", "end_ms"], kind="stable")
        table = pa.Table.from_pandas(ordered, schema=_schema(spec), preserve_index=False)
        pq.write_table(table, folder / f"{spec.name}.parquet", compression="zstd", row_group_size=_GROUP_ROWS)


def _load(folder: Path, spec: FrameSpec) -> _RecordedRows:
    files = _files(folder, spec)
    if _size(files) <= MOST_KEPT_BYTES:
        return _kept(files, spec)
    return _StoredRows(spec, tuple(group for file in files for group in _groups(file, spec)))


def _kept(files: list[Path], spec: FrameSpec) -> _KeptRows:
    tables = [_table(file, spec) for file in files]
    table = _by_start(_one_table(tables or [_schema(spec).empty_table()]))
    return _KeptRows(table, table["start_ms"].to_numpy(), table["end_ms"].to_numpy())


def _one_table(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _by_start(table: pa.Table) -> pa.Table:
    starts = table["start_ms"].to_numpy()
    if (starts[1:] < starts[:-1]).any():
        return table.take(pa.array(np.argsort(starts, kind="stable")))
    return table


def _groups(file: Path, spec: FrameSpec) -> Iterator[tuple[Path, int, int, int]]:
    """The row groups with their first start and last end. What values are missing is found as they are
    read."""
    times_of = [column for column in spec.columns if column.name in ("start_ms", "end_ms")]
    with _opened(file, spec) as parquet:
        _checked(file, parquet.schema_arrow.empty_table(), spec)
        for group in range(parquet.num_row_groups):
            times = parquet.read_row_group(group, columns=[column.name for column in times_of])
            if len(times):
                starts, ends = (_column(file, times, column) for column in times_of)
                yield file, group, pc.min(starts).as_py(), pc.max(ends).as_py()


def _batches(file: Path, spec: FrameSpec, groups: list[int]) -> Iterator[pa.Table]:
    with _opened(file, spec) as parquet:
        for batch in parquet.iter_batches(_GROUP_ROWS, groups):
            yield _checked(file, pa.Table.from_batches([batch]), spec)


def _schema(spec: FrameSpec) -> pa.Schema:
    return pa.schema([(column.name, _TYPES[column.type]) for column in spec.columns])


def _files(folder: Path, spec: FrameSpec) -> list[Path]:
    single, several = folder / f"{spec.name}.parquet", sorted((folder / spec.name).glob("**/*.parquet"))
    if single.exists() and several:
        beside = ErrorRemark("stands beside a folder of files")
        raise InputError(str(single), beside, f"{spec.name}.parquet or {spec.name}/")
    files = [single] if single.exists() else several
    if not files and spec not in _OPTIONAL:
        raise InputError(
            str(single), ErrorRemark("missing file"), f"a Parquet file of {spec.name}, or a folder of them"
        )
    return files


def _size(files: list[Path]) -> int:
    """Bytes in memory. Raises InputError for the file with which a frame exceeds what may be read."""
    rows = size = 0
    for file in files:
        try:
            metadata = pq.read_metadata(file)
            groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        except (pa.ArrowException, OSError):
            raise InputError(str(file), ErrorRemark("cannot be read"), "a Parquet file") from None
        rows += metadata.num_rows
        # A column of equal values is reported as small whatever its length: eight bytes per row are the
        # minimum.
        least = metadata.num_rows * metadata.num_columns * 8
        size += max(sum(group.total_byte_size for group in groups), least)
        if rows > MOST_ROWS or size > MOST_BYTES:
            found = ErrorRemark(f"with it the frame has {rows:,} rows and {size:,} bytes")
            allowed = f"at most {MOST_ROWS:,} rows and {MOST_BYTES:,} bytes per frame"
            raise InputError(str(file), found, allowed)
    return size


@contextmanager
def _opened(file: Path, spec: FrameSpec) -> Iterator[pq.ParquetFile]:
    texts = [column.name for column in spec.columns if column.type is ColumnType.TEXT]
    repeated = [name for name in texts if name in _REPEATED.get(spec, ())]
    try:
        with pq.ParquetFile(file, read_dictionary=repeated) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise InputError(str(file), ErrorRemark("cannot be read"), "a Parquet file") from error


def _table(file: Path, spec: FrameSpec) -> pa.Table:
    """The columns of ``spec`` out of one file. Raises InputError, which names the file and the column."""
    with _opened(file, spec) as parquet:
        table = parquet.read()
    return _checked(file, table, spec)


def _checked(file: Path, table: pa.Table, spec: FrameSpec) -> pa.Table:
    for name in table.column_names:
        if name not in spec.column_names:
            raise InputError(f"{file}: {name}", ErrorRemark("unknown column"), ", ".join(spec.column_names))
    return pa.table({column.name: _column(file, table, column) for column in spec.columns})


def _column(file: Path, table: pa.Table, column: FrameColumn) -> pa.ChunkedArray:
    where, allowed = f"{file}: {column.name}", f"{column.type.value} ({column.help})"
    if column.name not in table.column_names:
        if column.may_lack and column.type is ColumnType.TEXT:
            return pa.chunked_array([pa.array([""] * table.num_rows, pa.string())])
        if column.may_lack:
            return pa.chunked_array([pa.nulls(table.num_rows, _TYPES[column.type])])
        raise InputError(where, ErrorRemark("missing column"), allowed)
    values = table.column(column.name)
    if values.null_count and column.type is not ColumnType.REAL:
        raise InputError(where, ErrorRemark(f"{values.null_count} values are missing"), allowed)
    if column.type is ColumnType.TEXT:
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        if is_text or pa.types.is_dictionary(values.type):
            return values
    elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        try:
            return values.cast(_TYPES[column.type])
        except pa.ArrowInvalid as error:
            raise InputError(where, ErrorRemark(str(error)), allowed) from error
    raise InputError(where, str(values.type), allowed)
