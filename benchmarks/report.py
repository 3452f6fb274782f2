"""A month's report over a ledger of 5 million lines, against the bare SQL aggregate over the same tables.

The ledger is filled through Ledger.write_batch, a day at a time, as ``gpucost ingest`` does (720 hourly
windows, 868 nodes of 8 GPUs held by jobs of some hours each), once in SQLite and once in PostgreSQL. The
baseline is the one SQL statement that sums GPU time and cost of the lines per team, project, job, queue and
GPU model. The report, which reads the sums of days, adds the previous month, the days, coverage, rates,
problems, ranking and rendering to JSON. At the end the sums of days are thrown away and added up anew, as for
a ledger of an earlier release, and the report must be the same, without them and with them.

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
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpucost.attribution.apportion import Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.attribution.usage_lines import AllocationHolders, Attribution
from gpucost.contract.frames import HOLDER_COLUMNS, LINE_MEASURES, SIGNAL_MEASURES, USAGE_LINES
from gpucost.domain.buckets import Bucket
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger import Ledger
from gpucost.ledger.usage.lines import HOLDER_KEY_COLUMNS, UNIT_COLUMNS, prepare_batch
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


def lines_of(window: Window, per_window: int, hour: int, teams: int = 40) -> pd.DataFrame:
    """Every GPU is held all hour by a pod that keeps it for six hours; pods of 8 to a job."""
    gpu = np.arange(per_window)
    run = (hour + gpu % 6) // 6
    columns: dict[str, object] = dict.fromkeys(USAGE_LINES.column_names, "")
    pod = [f"pod-{r:04}-{g:05}" for r, g in zip(run, gpu, strict=True)]
    job = [f"job-{r:04}-{g // 8:05}" for r, g in zip(run, gpu, strict=True)]
    team = [f"team-{g // 8 % teams:02}" for g in gpu]
    columns |= {column.name: "" for column in HOLDER_COLUMNS}
    columns |= {"window_start_ms": window.start_ms, "window_end_ms": window.end_ms, "cluster": "c"}
    columns |= {"node": [f"node-{g // 8:04}" for g in gpu], "resource": "nvidia.com/gpu", "model": "H100"}
    columns |= {"share_num": 1, "share_den": 1, "basis": "compute", "bucket": "held"}
    columns |= {"rate_id": PRICE.rate_id}
    columns |= {"namespace": team, "team": team, "queue": team, "project": "p", "job_kind": "Job"}
    columns |= {"pod": pod, "pod_uid": pod, "job": job, "job_uid": job}
    columns |= {"board_ms": HOUR_MS, "nano": PRICE.nano_per_board_hour}
    columns |= {"first_ms": window.start_ms, "last_ms": window.end_ms}
    columns |= dict.fromkeys(SIGNAL_MEASURES, pd.NA)
    columns |= {"observed_ms": HOUR_MS, "busy_ms": (gpu * 7919 + hour) % HOUR_MS}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(per_window))[list(USAGE_LINES.column_names)]
    return frame.astype(dict.fromkeys(["nano", *SIGNAL_MEASURES], "Int64"))


def fill(ledger: Ledger, span: Window, per_window: int, teams: int = 40) -> int:
    """Write every hour of ``span``; the lines in all."""
    windows = list(span.split(HOUR_MS))
    for hour, window in enumerate(windows):
        frame = lines_of(window, per_window, hour, teams)
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
    return per_window * len(windows)


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
    frame = pd.concat(
        [lines_of(window, per_window, hour + n) for n, window in enumerate(windows)], ignore_index=True
    )
    place = np.repeat(np.arange(len(windows)), per_window)
    units, holders = (
        frame[list(names)].drop_duplicates(ignore_index=True) for names in (UNIT_COLUMNS, HOLDER_KEY_COLUMNS)
    )
    node, pod = (pd.Index(names[key]) for names, key in ((units, "node"), (holders, "pod")))
    lines = pd.DataFrame(
        {
            "window": place,
            "unit": node.get_indexer(frame["node"]),
            "holder": pod.get_indexer(frame["pod"]),
            "rate": 0,
            "bucket": BUCKETS.index(Bucket.HELD),
            **{name: frame[name] for name in LINE_MEASURES},
        }
    )
    kept = cast("AllocationHolders", PlainHolders(holders))
    return Attribution(tuple(windows), lines, units, kept, (PRICE,), ())


def fill_days(ledger: Ledger, per_window: int, clock: Callable[[], float]) -> tuple[int, float]:
    """Write the month day by day: the lines in all, and the seconds of ``clock`` that the ledger took."""
    windows, took_s = list(MONTH.window.split(HOUR_MS)), 0.0
    for hour in range(0, len(windows), 24):
        some = windows[hour : hour + 24]
        day = day_of(some, per_window, hour)
        began = clock()
        ledger.write_batch(
            prepare_batch("c", day, observed_ms=dict.fromkeys(some, HOUR_MS)),
            source="benchmark",
            code_version="benchmark",
            settled=some,
        )
        took_s += clock() - began
    return per_window * len(windows), took_s


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
        written, ingest_s = fill_days(ledger, per_window, clock)
        engine = create_engine(url)
        scope = {"start": MONTH.window.start_ms, "end": MONTH.window.end_ms}

        def bare() -> int:
            with engine.connect() as connection:
                return len(connection.execute(text(BARE), scope).all())

        def report() -> str:
            answer = ReportService(ledger, "benchmark", {}).month(EVERYTHING, MONTH)
            assert answer is not None
            return to_json(answer.report)

        bare_s, report_s, before = timed(bare, clock=clock), timed(report, clock=clock), report()
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM day_line"))
            connection.execute(text("DELETE FROM usage_day"))
        from_lines, began = report(), clock()
        days = sum(day.done for day in ledger.add_up_days())
        added_up_s = clock() - began
        assert report() == from_lines == before
        engine.dispose()
    figures = {"lines": written, "bare_s": bare_s, "report_s": report_s, "ratio": report_s / bare_s}
    migration = {"days_added_up": days, "added_up_s": added_up_s}
    return figures | {"ingest_us_a_line": ingest_s / written * 1e6} | migration


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
            figures[name] = {key: round(value, 3) for key, value in measure(url, args.lines).items()}
            found = figures[name]
            speed = f"{int(found['lines']):,} lines at {found['ingest_us_a_line']:.1f} us each"
            times = f"bare SQL {found['bare_s']:.2f} s, report {found['report_s']:.2f} s"
            again = f"{int(found['days_added_up'])} days added up anew in {found['added_up_s']:.1f} s"
            print(f"{name}: {speed}; {times}, ratio {found['ratio']:.2f}; {again}")
    ratios = {f"report/bare_sql {name}": found["ratio"] for name, found in figures.items()}
    speeds = {f"ingest_us_a_line {name}": found["ingest_us_a_line"] for name, found in figures.items()}
    limits = dict.fromkeys(ratios, MOST_OF_BARE) | dict.fromkeys(speeds, MOST_US_A_LINE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result = {"name": "report", "figures": figures | {"peak_rss_mb": peak}, "ratios": ratios | speeds}
    holds = all(found <= limits[name] for name, found in (ratios | speeds).items())
    print(json.dumps(result | {"limits": limits, "holds": holds}))


if __name__ == "__main__":
    main()
