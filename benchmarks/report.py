"""A month's report over a ledger of 5 million lines, against the bare SQL aggregate over the same tables.

The ledger is filled through Ledger.ingest (720 hourly windows, 868 nodes of 8 GPUs held by jobs of some
hours each), once in SQLite and once in PostgreSQL. The baseline is the one SQL statement that sums GPU
time and cost per team, project, job, queue and GPU model: what the report cannot do without. The report
adds the previous month, the days, coverage, rates, problems, ranking and rendering to JSON.

    python benchmarks/report.py [--lines 5000000] [--database sqlite|postgresql|both]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpucost.contract.frames import HOLDER_COLUMNS, SIGNAL_MEASURES, USAGE_LINES
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger import Ledger
from gpucost.reports.base.document import to_json
from gpucost.service.reporting.report_service import ReportService
from tests.support.postgres import postgres_server

LIMIT = 2.0
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


def timed(action: Callable[[], object], times: int = 3) -> float:
    """Median seconds of some runs, the first of which warms the cache and is thrown away."""
    action()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure(url: str, lines: int) -> dict[str, float]:
    began = time.perf_counter()
    with Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger:
        written = fill(ledger, MONTH.window, lines // (MONTH.window.length_ms // HOUR_MS) // 8 * 8)
        filled_s = time.perf_counter() - began
        engine = create_engine(url)
        scope = {"start": MONTH.window.start_ms, "end": MONTH.window.end_ms}

        def bare() -> int:
            with engine.connect() as connection:
                return len(connection.execute(text(BARE), scope).all())

        def report() -> int:
            answer = ReportService(ledger, "benchmark", {}).month(EVERYTHING, MONTH)
            assert answer is not None
            return len(to_json(answer.report))

        bare_s, report_s = timed(bare), timed(report)
        engine.dispose()
    figures = {"lines": written, "bare_s": bare_s, "report_s": report_s, "ratio": report_s / bare_s}
    return figures | {"ingest_lines_per_s": written / filled_s}


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
            speed = f"{int(found['lines']):,} lines written at {found['ingest_lines_per_s']:,.0f} a second"
            times = f"bare SQL {found['bare_s']:.2f} s, report {found['report_s']:.2f} s"
            print(f"{name}: {speed}; {times}, ratio {found['ratio']:.2f}")
    ratios = {f"report/bare_sql {name}": found["ratio"] for name, found in figures.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result = {"name": "report", "figures": figures | {"peak_rss_mb": peak}, "ratios": ratios}
    limits = dict.fromkeys(ratios, LIMIT)
    print(json.dumps(result | {"limits": limits, "holds": all(ratio <= LIMIT for ratio in ratios.values())}))


if __name__ == "__main__":
    main()
