"""Sums over sealed months, by DuckDB, in the same rows as the queries of the database give.

What is asked for decides which files are read: the sums of days where no pod, node or part of a day matters,
else the lines. A file of an earlier version lacks columns, which are null then. Every value from outside is a
bound parameter; names of columns come from the schema.
"""

from __future__ import annotations

import glob
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from gpucost.domain.buckets import WASTE_WHEN_UNCLAIMED, Bucket, Waste
from gpucost.domain.errors import LedgerDamaged, LedgerError, LedgerUnavailable
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.records import JOB_KEY_COLUMNS
from gpucost.ledger.db.tables import MONTH_SEAL
from gpucost.ledger.sealed.seal_folder import LAKE, SealedFile, SealedMonth, SealFolder
from gpucost.ledger.sealed.seal_schema import DAY_DIMS, DAY_MEASURES, TABLES, WASTE_SUMS, quoted, total

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MEMORY = "512MB"
"""What DuckDB takes at most; beyond it writes to a temporary folder."""
THREADS = 2

_OF_A_TEAM = (str(Bucket.HELD), str(Bucket.OVERCOMMITTED))
_CAPACITY = tuple(str(bucket) for bucket in Bucket if bucket.is_capacity)
_UNSEEN = {**WASTE_WHEN_UNCLAIMED, Bucket.HELD: Waste.UNKNOWN, Bucket.UNALLOCATED: Waste.UNKNOWN}

# Of lines as they were written: what a day's sums have already.
_UNPRICED = "CASE WHEN nano IS NULL THEN board_ms ELSE 0 END AS unpriced_ms"
TENSOR_OBSERVED = (
    "coalesce(tensor_observed_ms, CASE WHEN tensor_active_ms IS NOT NULL THEN sm_observed_ms END)"
)
LINES_AS_SUMS = f"* REPLACE ({TENSOR_OBSERVED} AS tensor_observed_ms), {_UNPRICED}"
WASTE_AS_SUMS = f"*, {_UNPRICED}"


def sealed_months(connection: Connection) -> dict[Month, str]:
    """The months that are in files now, with the hash of each list of them."""
    s = MONTH_SEAL.c
    rows = connection.execute(select(s.month, s.kind, s.manifest).order_by(s.seq))
    last = {row.month: (row.kind, row.manifest) for row in rows}
    return {Month.parse(name): manifest for name, (kind, manifest) in last.items() if kind == "seal"}


class SealedStore:
    """The files of sealed months at ``url`` (the setting ``ledger.sealed``, empty where it is not set), and
    one DuckDB that reads them. Threads may share it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._folder: SealFolder | None = None
        self._months: dict[tuple[Month, str], SealedMonth] = {}
        self._duck: duckdb.DuckDBPyConnection | None = None

    @property
    def folder(self) -> SealFolder:
        """Raises LedgerError where the setting or a package is missing."""
        with self._lock:
            if self._folder is None:
                if not self._url:
                    raise LedgerError(
                        "ledger.sealed is not set: it names the folder or object store of sealed months"
                    )
                self._folder = SealFolder(self._url)
            return self._folder

    def month(self, month: Month, sha256: str) -> SealedMonth:
        folder = self.folder
        with self._lock:
            return self._months.setdefault((month, sha256), SealedMonth(folder, month, sha256))

    def span(
        self, connection: Connection, window: Window, clusters: Collection[str] | None
    ) -> SealedSpan | None:
        """The files of the sealed months that meet ``window``, of ``clusters`` (None: of all); None where no
        month is sealed."""
        found = []
        for month, sha256 in sealed_months(connection).items():
            if month.window.overlap_ms(window.start_ms, window.end_ms):
                manifest = self.month(month, sha256).manifest
                found += [
                    (manifest.version, file)
                    for file in manifest.files
                    if clusters is None or file.cluster in clusters
                ]
        return SealedSpan(self, window, tuple(found)) if found else None

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows; integers, text and None."""
        with self.cursor() as cursor:
            return list(cursor.execute(statement, list(parameters)).fetchall())

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """For one thread; its errors are the ledger's."""
        try:
            import duckdb
        except ImportError:
            raise LedgerError(f"sealed months need DuckDB: {LAKE}") from None
        cursor = self._connection().cursor()
        try:
            yield cursor
        except (duckdb.ConversionException, duckdb.OutOfRangeException) as error:
            raise LedgerError(f"a sum does not fit 64 bits: {_first(error)}") from error
        except (duckdb.OutOfMemoryException, duckdb.HTTPException, duckdb.InterruptException) as error:
            raise LedgerUnavailable(f"sealed months could not be read now: {_first(error)}") from error
        except (duckdb.Error, OSError) as error:
            raise LedgerDamaged(
                f"sealed files cannot be read (gpucost ledger verify names them): {_first(error)}"
            ) from error
        finally:
            cursor.close()

    def close(self) -> None:
        with self._lock:
            if self._duck is not None:
                self._duck.close()
            self._duck = None

    def _connection(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        folder = self.folder
        with self._lock:
            if self._duck is None:
                # Nothing is ever downloaded, and nothing is written but what exceeds the memory: DuckDB makes
                # the folder then, and removes it.
                beyond = f"{tempfile.gettempdir()}/gpucost-duckdb-{os.getpid()}-{id(self)}"
                self._duck = duckdb.connect(
                    config={
                        "memory_limit": MEMORY,
                        "threads": THREADS,
                        "temp_directory": beyond,
                        "autoinstall_known_extensions": False,
                        "autoload_known_extensions": False,
                    }
                )
                if folder.filesystem is not None:
                    self._duck.register_filesystem(folder.filesystem)
            return self._duck


@dataclass(slots=True)
class _Conditions:
    """AND of conditions, and the parameters of all of them in order."""

    texts: list[str] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)

    def add(self, text: str, *parameters: Any) -> None:
        self.texts.append(text)
        self.parameters += parameters

    def one_of(self, expression: str, values: Iterable[str]) -> None:
        found = sorted(values)
        if found:
            self.add(f"{expression} IN ({', '.join('?' * len(found))})", *found)
        else:
            self.add("false")

    def __str__(self) -> str:
        return " AND ".join(self.texts) or "true"


@dataclass(frozen=True, slots=True)
class SealedSpan:
    """Files that hold a part of ``window``, with the version of their format."""

    store: SealedStore
    window: Window
    files: tuple[tuple[int, SealedFile], ...]

    def sums(
        self,
        scope: Scope,
        dims: Sequence[str],
        filters: Mapping[str, Collection[str]],
        step_ms: int | None,
    ) -> pa.Table | None:
        """Rows of ``dims``, the step where there is one, and DAY_MEASURES; sorted by code point. None where
        no file has any."""
        by_day = self._by_day((*dims, *filters), step_ms)
        source = self._lines(by_day)
        if source is None:
            return None
        where = self._where(scope, filters, by_day)
        keys = [*_named(dims), *_step(step_ms, by_day)]
        places = ", ".join(map(str, range(1, len(keys) + 1)))
        grouped, sorted_by = (f" GROUP BY {places}", f" ORDER BY {places}") if keys else ("", "")
        statement = (
            f"SELECT {', '.join([*keys, *map(total, DAY_MEASURES)])} FROM {source} WHERE {where}"
            f"{grouped} HAVING count(*) > 0{sorted_by}"
        )
        with self.store.cursor() as cursor:
            return cursor.sql(statement, params=where.parameters).to_arrow_table()

    def waste(
        self,
        scope: Scope,
        dims: Sequence[str],
        filters: Mapping[str, Collection[str]],
        step_ms: int | None,
    ) -> list[tuple[Any, ...]]:
        """Rows of ``dims``, the step where there is one, the bucket of waste, and its sums: lines as if all
        were rest, and the claimed parts, which are added where they belong and taken from the rest."""
        by_day = self._by_day((*dims, *filters), step_ms)
        keys = [*_named(dims), *_step(step_ms, by_day)]
        asked = dict(filters) | {"bucket": {*filters.get("bucket", _CAPACITY)} & {*_CAPACITY}}
        where = self._where(scope, asked, by_day)
        parts, parameters = [], list[Any]()
        lines = self._lines(by_day)
        seen = (
            f"CASE WHEN assessed <> '' THEN {_waste_of(WASTE_WHEN_UNCLAIMED)} ELSE {_waste_of(_UNSEEN)} END"
        )
        claims = self._source("waste_days") if by_day else self._source("waste", WASTE_AS_SUMS)
        for source, bucket, sign in (
            (lines, seen, ""),
            (claims, "waste", ""),
            (claims, _waste_of(WASTE_WHEN_UNCLAIMED), "-"),
        ):
            if source is not None:
                sums = ", ".join(f"{sign}coalesce({name}, 0) AS {name}" for name in WASTE_SUMS)
                columns = [*(f"{key} AS k{n}" for n, key in enumerate(keys)), f"{bucket} AS waste", sums]
                parts.append(f"SELECT {', '.join(columns)} FROM {source} WHERE {where}")
                parameters += where.parameters
        if not parts:
            return []
        by = ", ".join([*(f"k{n}" for n in range(len(keys))), "waste"])
        totals = ", ".join(map(total, WASTE_SUMS))
        return self.store.query(
            f"SELECT {by}, {totals} FROM ({' UNION ALL '.join(parts)}) GROUP BY {by}", parameters
        )

    def cells(self, scope: Scope, unit: Sequence[str], holder: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Capacity by window, values of ``unit``, values of ``holder``, bucket, first and last instant:
        board_ms, the cost of what has one, and the time without."""
        source = self._lines(by_day=False)
        if source is None:
            return
        where = self._where(scope, {"bucket": _CAPACITY}, by_day=False)
        keys = ", ".join(
            (
                "window_start_ms",
                "window_end_ms",
                *map(quoted, (*unit, *holder)),
                "bucket",
                "first_ms",
                "last_ms",
            )
        )
        statement = (
            f"SELECT {keys}, {total('board_ms')}, CAST(sum(coalesce(nano, 0)) AS BIGINT), "
            f"{total('unpriced_ms')} FROM {source} WHERE {where} GROUP BY ALL"
        )
        cut = 2 + len(unit)
        for row in self.store.query(statement, where.parameters):
            rest = row[cut + len(holder) :]
            yield Window(row[0], row[1]), row[2:cut], row[cut : cut + len(holder)], *rest

    def progress(self, job_uid: str | None) -> list[tuple[Any, ...]]:
        """Of each pod that counted, for each job and team that it was of in a window: the window's start,
        cluster, team, namespace, job, kind and uid of the job, pod, name, amount, held board_ms."""
        source, lines = self._source("progress"), self._lines(by_day=False)
        if source is None or lines is None:
            return []
        where = self._within(by_day=False)
        both = f"{source} AS p JOIN {lines} AS l USING (cluster, window_start_ms, window_end_ms, pod_uid)"
        of_job = "" if job_uid is None else f" AND pod_uid IN (SELECT pod_uid FROM {lines} WHERE job_uid = ?)"
        more = () if job_uid is None else (job_uid,)
        keys = ", ".join(("window_start_ms", *map(quoted, JOB_KEY_COLUMNS), "pod_uid", "p.name", "p.amount"))
        return self.store.query(
            f"SELECT {keys}, {total('board_ms')} FROM {both} WHERE {where} AND bucket = 'held'{of_job}"
            " GROUP BY ALL",
            [*where.parameters, *more],
        )

    def held_by_window(self, job_uids: Collection[str]) -> list[tuple[Any, ...]]:
        """What jobs held: the window's start, cluster, team, namespace, job, kind and uid of the job,
        board_ms, the time without a price, and the cost of the rest."""
        lines = self._lines(by_day=False)
        if lines is None:
            return []
        where = self._within(by_day=False)
        where.one_of("job_uid", job_uids)
        keys = ", ".join(("window_start_ms", *map(quoted, JOB_KEY_COLUMNS)))
        return self.store.query(
            f"SELECT {keys}, {total('board_ms')}, {total('unpriced_ms')}, "
            f"CAST(sum(coalesce(nano, 0)) AS BIGINT) FROM {lines} "
            f"WHERE {where} AND bucket = 'held' GROUP BY ALL",
            where.parameters,
        )

    def problems(self) -> list[tuple[Any, ...]]:
        """(code, cluster, subject, detail, board_ms)."""
        columns = ["code", "problem_cluster", "subject", "detail", "board_ms"]
        source = self._source("problems")
        if source is None:
            return []
        where = self._within(by_day=False)
        return self.store.query(f"SELECT {', '.join(columns)} FROM {source} WHERE {where}", where.parameters)

    def _by_day(self, names: Iterable[str], step_ms: int | None) -> bool:
        """Whether the sums of days have the answer."""
        edges = (self.window.start_ms, self.window.end_ms, step_ms or 0)
        return set(names) <= set(DAY_DIMS) and not any(edge % DAY_MS for edge in edges)

    def _lines(self, by_day: bool) -> str | None:
        return self._source("days") if by_day else self._source("lines", LINES_AS_SUMS)

    def _source(self, table: str, columns: str = "*") -> str | None:
        """FROM: the files of a table, whatever their version; None where there are none."""
        paths = defaultdict[int, list[str]](list)
        for version, file in self.files:
            if file.table == table:
                paths[version].append(self.store.folder.address(file.path))
        return relation(table, columns, paths) if paths else None

    def _within(self, *, by_day: bool) -> _Conditions:
        where = _Conditions()
        if by_day:
            where.add("day_ms >= ? AND day_ms < ?", self.window.start_ms, self.window.end_ms)
        else:
            where.add("window_start_ms >= ? AND window_end_ms <= ?", self.window.start_ms, self.window.end_ms)
        return where

    def _where(self, scope: Scope, filters: Mapping[str, Collection[str]], by_day: bool) -> _Conditions:
        where = self._within(by_day=by_day)
        if scope.teams is not None:
            where.one_of("bucket", _OF_A_TEAM)
            where.one_of("team", scope.teams)
        for name, values in filters.items():
            where.one_of(_expression(name), values)
        return where


def relation(table: str, columns: str, paths: Mapping[int, Sequence[str]]) -> str:
    """FROM: ``columns`` of files of a table, by version of their format; columns that a version lacks are
    null."""
    selects = []
    for version, files in sorted(paths.items()):
        # DuckDB takes *, ? and [ of a path for patterns.
        read = ", ".join("'" + glob.escape(path).replace("'", "''") + "'" for path in files)
        listed = ", ".join(column.selected(version) for column in TABLES[table])
        selects.append(f"SELECT {listed} FROM read_parquet([{read}], hive_partitioning = false)")
    return f"(SELECT {columns} FROM ({' UNION ALL '.join(selects)}))"


def _named(dims: Sequence[str]) -> list[str]:
    return [_expression(name) for name in dims]


def _expression(name: str) -> str:
    return "coalesce(team_rule, '')" if name == "team_rule" else quoted(name)


def _step(step_ms: int | None, by_day: bool) -> list[str]:
    if step_ms is None:
        return []
    at = "day_ms" if by_day else "window_start_ms"
    return [f"{at} - {at} % {int(step_ms)}"]


def _waste_of(names: Mapping[Bucket, Waste]) -> str:
    return "CASE bucket " + " ".join(f"WHEN '{key}' THEN '{name}'" for key, name in names.items()) + " END"


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
