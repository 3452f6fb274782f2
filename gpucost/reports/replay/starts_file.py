"""Every start of a replay as CSV, Parquet or JSON, written as scenarios end: no memory holds all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from tempfile import TemporaryFile
from textwrap import indent
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from gpucost.advisor.replay.history_record import ReplayHistory
from gpucost.advisor.replay.scenario_run import ScenarioRun
from gpucost.domain.time import iso
from gpucost.reports.base.document import document
from gpucost.reports.render.files import to_arrow, to_csv
from gpucost.reports.render.tables import Cell, CellType, ReportTable, TableColumn
from gpucost.reports.replay.run_views import pool_of, views_of
from gpucost.reports.replay.scenario_answer import ReplayReport

ROWS_AT_ONCE = 20_000
_NAMES = (
    *("scenario", "uid", "name", "team", "user", "queue", "pool"),
    *("gpus", "priority", "created", "start", "end", "run", "wait_ms", "lost", "layer", "recorded_start"),
)
_INTEGERS = frozenset({"gpus", "priority", "run", "wait_ms", "lost"})
_COLUMNS = tuple(
    TableColumn(name, CellType.INTEGER if name in _INTEGERS else CellType.TEXT) for name in _NAMES
)
_EMPTY = '\n  "starts": []'


class StartsFile:
    """Starts of one ``format_``: csv, parquet or json, which has the report around them. A row for each start
    of each scenario, in the order of uids; one without a start for a job that had none in the window.
    ``lost`` is 1 for a run that was stopped and has to be done again."""

    def __init__(self, history: ReplayHistory, format_: str) -> None:
        self._history, self._format = history, format_
        self._recorded = {each.uid: each.record for each in history.jobs}
        self._made: IO[bytes] | None = None
        self._parquet: pq.ParquetWriter | None = None

    def __enter__(self) -> StartsFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.close()

    def add(self, run: ScenarioRun) -> None:
        """A scenario that is over: all of it, or nothing where that is interrupted."""
        rows, parts = self._rows(run), []
        while chunk := tuple(islice(rows, ROWS_AT_ONCE)):
            parts.append(ReportTable(self._facts(), _COLUMNS, chunk))
        is_first = self._made is None
        if self._made is None:
            self._made = TemporaryFile()  # noqa: SIM115 - __exit__ closes it
        if self._format == "parquet":
            part = pa.concat_tables(map(to_arrow, parts))
            self._parquet = self._parquet or pq.ParquetWriter(self._made, part.schema, compression="zstd")
            self._parquet.write_table(part)
        elif self._format == "csv":
            texts = [to_csv(each).partition("\n") for each in parts]
            head = f"{texts[0][0]}\n" if is_first else ""
            self._made.write(f"{head}{''.join(rest for _, _, rest in texts)}".encode())
        else:
            found = (dict(zip(_NAMES, row, strict=True)) for each in parts for row in each.rows)
            text = ",".join(f"\n{indent(_text(each), '    ')}" for each in found)
            self._made.write(f"{'' if is_first else ','}{text}".encode())

    def write(self, report: ReplayReport, target: IO[bytes]) -> None:
        """All of it, once; nothing may be added any more."""
        assert self._made is not None
        if self._parquet is not None:
            self._parquet.close()
        self._made.seek(0)
        if self._format != "json":
            shutil.copyfileobj(self._made, target)
            return
        head, tail = _text({**document(report), "starts": []}).split(_EMPTY)
        target.write(f'{head}\n  "starts": ['.encode())
        shutil.copyfileobj(self._made, target)
        target.write(f"\n  ]{tail}\n".encode())

    def _facts(self) -> dict[str, str]:
        history = self._history
        return {"schema": "gpucost/ReplayStarts/v1", "history": history.name, "window": str(history.window)}

    def _rows(self, run: ScenarioRun) -> Iterator[tuple[Cell, ...]]:
        window = self._history.window
        views = views_of(run, window)
        for uid in sorted(views):
            view, record = views[uid], self._recorded[uid]
            job, wait = view.job, view.wait_ms(window)
            known = iso(record.starts[0]) if record is not None and record.starts else ""
            head: tuple[Cell, ...] = (
                *(run.name, uid, job.name, job.team, job.user, job.queue, pool_of(job, run.pools)),
                *(job.gpus, job.priority, iso(view.created_ms)),
            )
            for n, each in enumerate(view.runs, 1):
                times = iso(each.start_ms), iso(each.end_ms)
                yield (*head, *times, n, wait, int(each.is_lost), view.layer, known)
            if not view.runs:
                yield (*head, "", "", 0, wait, 0, view.layer, known)


def _text(found: Mapping[str, object]) -> str:
    return json.dumps(found, ensure_ascii=False, sort_keys=True, indent=2)
