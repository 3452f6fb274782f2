"""A month's report over a ledger of 5 million lines, against the bare SQL aggregate over the same tables.

The ledger is filled with 720 hourly windows of 868 nodes of 8 GPUs, held by jobs of some hours each, once in
SQLite and then, when that is measured, in PostgreSQL: 29 days as ``gpucost ingest`` writes them, a day at a
time, and the last one as ``gpucost serve`` does, hour by hour. The baseline is the one
SQL statement that sums GPU time and cost of the lines per team, project, job, queue and GPU model. The
report, which reads the sums of days, adds the previous month, the days, coverage, rates, problems, ranking
and rendering to JSON. At the end the sums of ten days are thrown away and added up anew, as for a ledger of
an earlier release, and the report must be the same, without them and with them.

Figures are CPU seconds of this process and of the database's server together: what else runs on the machine
changes them little.

    python benchmarks/report.py [--lines 5000000] [--database sqlite|postgresql|both]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.support.processes import counting_cpu_s
from gpucost.attribution.apportion import Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.attribution.usage_lines import AllocationHolders, Attribution
from gpucost.contract.frames import HOLDER_COLUMNS, LINE_MEASURES, SIGNAL_MEASURES, USAGE_LINES
from gpucost.domain.buckets import Bucket
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.lines import HOLDER_KEY_COLUMNS, UNIT_COLUMNS
from gpucost.ledger.usage.prepared_batch import prepare_batch
from gpucost.reports.base.document import to_json
from gpucost.service.reporting.report_service import ReportService
from tests.support.postgres import postgres_server

MOST_OF_BARE, MOST_US_A_LINE = 0.2, 40.0
MONTH = Month(2026, 9)
PRICE = Rate("flat", 6_880_000_000, "USD", 6_880_000_000, "model", "benchmark", "2026-11-21")
BARE = """
SELECT h.team, h.project, h.job_uid, h.queue, u.model, l.bucket, SUM(l.board_ms), SUM(l.nano)
FROM usage_line l
JOIN ledger_window w ON w.id = l.window_id
JOIN holder h ON h.id = l.holder_id
JOIN unit u ON u.id = l.unit_id
WHERE w.start_ms >= :start AND w.end_ms <= :end
GROUP BY h.team, h.project, h.job_uid, h.queue, u.model, l.bucket
"""


def names_of(run: Ints, gpu: Ints, teams: int) -> dict[str, object]:
    """Who holds GPU ``gpu``: a pod that keeps it for six hours; pods of 8 to a job."""
    held = list(zip(run.tolist(), gpu.tolist(), strict=True))
    pod = [f"pod-{r:04}-{g:05}" for r, g in held]
    job = [f"job-{r:04}-{g // 8:05}" for r, g in held]
    team = [f"team-{g // 8 % teams:02}" for _, g in held]
    columns: dict[str, object] = {column.name: "" for column in HOLDER_COLUMNS}
    columns |= {"namespace": team, "team": team, "queue": team, "project": "p", "job_kind": "Job"}
    return columns | {"pod": pod, "pod_uid": pod, "job": job, "job_uid": job}


def units_of(node: Ints) -> dict[str, object]:
    columns: dict[str, object] = dict.fromkeys(UNIT_COLUMNS, "")
    columns |= {"cluster": "c", "node": [f"node-{each:04}" for each in node.tolist()], "model": "H100"}
    return columns | {"resource": "nvidia.com/gpu", "share_num": 1, "share_den": 1, "basis": "compute"}


def measures_of(start_ms: int | Ints, gpu: Ints, hour: int | Ints) -> pd.DataFrame:
    columns: dict[str, object] = {"board_ms": HOUR_MS, "nano": PRICE.nano_per_board_hour}
    columns |= {"first_ms": start_ms, "last_ms": start_ms + HOUR_MS}
    columns |= dict.fromkeys(SIGNAL_MEASURES, pd.NA)
    columns |= {"observed_ms": HOUR_MS, "busy_ms": (gpu * 7919 + hour) % HOUR_MS}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(gpu)))[list(LINE_MEASURES)]
    return frame.astype(dict.fromkeys(["nano", *SIGNAL_MEASURES], "Int64"))


def lines_of(window: Window, per_window: int, hour: int, teams: int = 40) -> pd.DataFrame:
    """Every GPU is held all hour."""
    gpu = np.arange(per_window)
    columns: dict[str, object] = dict.fromkeys(USAGE_LINES.column_names, "")
    columns |= {"window_start_ms": window.start_ms, "window_end_ms": window.end_ms}
    columns |= units_of(gpu // 8) | names_of((hour + gpu % 6) // 6, gpu, teams)
    columns |= {"bucket": "held", "rate_id": PRICE.rate_id}
    columns |= dict(measures_of(window.start_ms, gpu, hour).items())
    return pd.DataFrame(columns, index=pd.RangeIndex(per_window))[list(USAGE_LINES.column_names)]


def fill(ledger: Ledger, span: Window, per_window: int, teams: int = 40) -> int:
    """Write every hour of ``span``; the lines in all."""
    windows = list(span.split(HOUR_MS))
    for hour, window in enumerate(windows):
        write_hour(ledger, window, lines_of(window, per_window, hour, teams))
    return per_window * len(windows)


def write_hour(ledger: Ledger, window: Window, frame: pd.DataFrame) -> None:
    ledger.ingest(
        "c",
        window,
        frame,
        observed_ms=HOUR_MS,
        rates={PRICE.rate_id: PRICE},
        source="benchmark",
        code_version="benchmark",
        settle=True,
    )


def timed(
    action: Callable[[], object], times: int = 3, *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median seconds of some runs, the first of which warms the cache and is thrown away."""
    action()
    seconds = []
    for _ in range(times):
        began = clock()
        action()
        seconds.append(clock() - began)
    return statistics.median(seconds)


class PlainHolders:
    """Holders as attribution gives them: a frame of names, and no team rules."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def rules_of(self, lines: pd.DataFrame) -> tuple[tuple[str, ...], Ints]:
        return (), np.full(len(lines), -1, np.int64)


def day_of(windows: Sequence[Window], per_window: int, hour: int) -> Attribution:
    """The same lines as ``lines_of`` gives of each window, in normal form."""
    place, gpu = (each.ravel() for each in np.indices((len(windows), per_window)))
    start = np.array([window.start_ms for window in windows], np.int64)[place]
    run = (hour + place + gpu % 6) // 6
    held, holder = np.unique(run * per_window + gpu, return_inverse=True)
    names = pd.DataFrame(names_of(held // per_window, held % per_window, 40))[list(HOLDER_KEY_COLUMNS)]
    units = pd.DataFrame(units_of(np.arange(per_window // 8)))[list(UNIT_COLUMNS)]
    keys = {
        "window": place,
        "unit": gpu // 8,
        "holder": holder,
        "rate": 0,
        "bucket": BUCKETS.index(Bucket.HELD),
    }
    lines = pd.DataFrame(keys).join(measures_of(start, gpu, hour + place))
    kept = cast("AllocationHolders", PlainHolders(names))
    return Attribution(tuple(windows), lines, units, kept, (PRICE,), ())


def fill_days(
    ledger: Ledger, per_window: int, clock: Callable[[], float], tidied: Callable[[], object] = lambda: None
) -> tuple[int, float, float]:
    """Write the month, all but its last day day by day: the lines in all, and the seconds of ``clock`` for a
    line of the ledger, by days and by hours. ``tidied`` is called between the two."""
    windows = list(MONTH.window.split(HOUR_MS))

    def seconds(hour: int, count: int) -> float:
        some = windows[hour : hour + count]
        attribution = day_of(some, per_window, hour)
        began = clock()
        ledger.write_batch(
            prepare_batch("c", attribution, observed_ms=dict.fromkeys(some, HOUR_MS)),
            source="benchmark",
            code_version="benchmark",
            settled=some,
        )
        return clock() - began

    last = len(windows) - 24
    by_day_s = sum(seconds(hour, 24) for hour in range(0, last, 24))
    tidied()
    by_hour_s = sum(seconds(hour, 1) for hour in range(last, len(windows)))
    return per_window * len(windows), by_day_s / (last * per_window), by_hour_s / (24 * per_window)


def cpu_clock(url: str) -> Callable[[], float]:
    """CPU seconds of this process, and of PostgreSQL's with all its processes, so far."""
    if not url.startswith("postgresql"):
        return time.process_time
    engine = create_engine(url)
    with engine.connect() as connection:
        server = int(
            str(connection.execute(text("SELECT pg_read_file('postmaster.pid')")).scalar()).split()[0]
        )
    engine.dispose()

    def ticks(pid: int, *, of_gone: bool) -> int:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended since
            return 0
        return sum(map(int, fields[11 : 15 if of_gone else 13]))

    def clock() -> float:
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        alive = sum(ticks(int(pid), of_gone=False) for pid in children)
        return time.process_time() + (ticks(server, of_gone=True) + alive) / os.sysconf("SC_CLK_TCK")

    return clock


def measure(url: str, lines: int) -> dict[str, float]:
    clock = cpu_clock(url)
    with Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger:
        per_window = lines // (MONTH.window.length_ms // HOUR_MS) // 8 * 8
        engine = create_engine(url)

        def tidied() -> None:
            """What PostgreSQL does by itself, some minute after so many lines: not a part of what comes."""
            if engine.dialect.name == "postgresql":
                with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.execute(text("VACUUM ANALYZE"))

        written, day_s, hour_s = fill_days(ledger, per_window, clock, tidied)
        tidied()
        scope = {"start": MONTH.window.start_ms, "end": MONTH.window.end_ms}

        def bare() -> int:
            with engine.connect() as connection:
                return len(connection.execute(text(BARE), scope).all())

        def report() -> str:
            answer = ReportService(ledger, "benchmark", {}).month(EVERYTHING, MONTH)
            assert answer is not None
            return to_json(answer.report)

        bare_s, report_s, before = timed(bare, clock=clock), timed(report, clock=clock), report()
        some = "(SELECT id FROM usage_day ORDER BY start_ms LIMIT 10)"
        with engine.begin() as connection:
            connection.execute(text(f"DELETE FROM day_line WHERE day_id IN {some}"))
            connection.execute(text(f"DELETE FROM usage_day WHERE id IN {some}"))
        from_lines, began = report(), clock()
        days = sum(day.done for day in ledger.add_up_days())
        added_up_s = clock() - began
        assert report() == from_lines == before
        engine.dispose()
    figures = {"lines": written, "bare_s": bare_s, "report_s": report_s, "ratio": report_s / bare_s}
    ingest = {"ingest_us_a_line": day_s * 1e6, "hourly_us_a_line": hour_s * 1e6}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures | ingest | {"days_added_up": days, "added_up_s": added_up_s, "peak_rss_mb": peak}


@contextmanager
def databases(which: str) -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="gpucost-bench-"))
    try:
        urls = {"sqlite": f"sqlite:///{folder / 'ledger.db'}"} if which in ("sqlite", "both") else {}
        if which == "sqlite":
            yield urls
        else:
            with postgres_server() as server, server.database("bench") as url:
                yield urls | {"postgresql": url}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def arguments(description: str | None) -> argparse.Namespace:
    """How many lines, and in which databases."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    return parser.parse_args()


def main() -> None:
    args = arguments(__doc__)
    figures: dict[str, dict[str, float]] = {}
    with databases(args.database) as urls:
        for name, url in urls.items():
            # A process for each, whose memory is its own, and one after another: side by side they take the
            # caches of one another's cores.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                measured = pool.submit(measure, url, args.lines).result()
            figures[name] = found = {key: round(value, 3) for key, value in measured.items()}
            by_day, by_hour = found["ingest_us_a_line"], found["hourly_us_a_line"]
            speed = f"{int(found['lines']):,} lines at {by_day:.1f} us each by days, {by_hour:.1f} by hours"
            times = f"bare SQL {found['bare_s']:.2f} s, report {found['report_s']:.2f} s"
            again = f"{int(found['days_added_up'])} days added up anew in {found['added_up_s']:.1f} s"
            print(f"{name}: {speed}; {times}, ratio {found['ratio']:.2f}; {again}")
    ratios = {f"report/bare_sql {name}": found["ratio"] for name, found in figures.items()}
    speeds = {
        f"{kind} {name}": found[kind]
        for name, found in figures.items()
        for kind in ("ingest_us_a_line", "hourly_us_a_line")
    }
    limits = dict.fromkeys(ratios, MOST_OF_BARE) | dict.fromkeys(speeds, MOST_US_A_LINE)
    told = {**figures, "counting_s": counting_cpu_s()}
    result = {"name": "report", "figures": told, "ratios": ratios | speeds, "limits": limits}
    holds = all(found <= limits[name] for name, found in (ratios | speeds).items())
    print(json.dumps(result | {"holds": holds}))


if __name__ == "__main__":
    main()
