"""A month of 5 million lines as FOCUS, against the bare read of the same rows.

The ledger is that of benchmarks/report.py. The baseline reads the groups that rows are made of, a day at a
time, by one SQL statement for each day that sums by ids and then looks up names, and throws them away:
nothing is put together by job, divided, checked or written. Measured is the export by job and day, as CSV and
as Parquet, to a file. Memory is the peak of a process that does nothing else.

Figures are CPU seconds of this process and of the database's server together: what else runs on the machine
changes them little. Wall seconds stand beside them.

    python benchmarks/focus.py [--lines 5000000] [--database sqlite|postgresql|both]
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import MONTH, arguments, cpu_clock, databases, fill_days
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest

LIMIT, MOST_MB = 3.0, 1_000
_UNIT = (
    "u.cluster, u.node, u.resource, u.model, u.profile, u.instance_type, u.capacity_type, u.region, u.pool"
)
_HOLDER = "h.team, h.namespace, h.job_kind, h.job, h.job_uid, h.queue, h.project"
BARE = f"""
SELECT {_UNIT}, {_HOLDER}, s.bucket, s.rate_id, s.board_ms, s.nano, s.busy_ms, s.observed_ms,
  s.first_ms, s.last_ms
FROM (
  SELECT l.unit_id, l.holder_id, l.bucket, l.rate_id, SUM(l.board_ms) board_ms, SUM(l.nano) nano,
    SUM(l.busy_ms) busy_ms, SUM(l.observed_ms) observed_ms, MIN(l.first_ms) first_ms, MAX(l.last_ms) last_ms
  FROM ledger_window w
  JOIN usage_line l ON l.window_id = w.id
  WHERE w.start_ms >= :start AND w.end_ms <= :end
  GROUP BY l.unit_id, l.holder_id, l.bucket, l.rate_id
) s
JOIN holder h ON h.id = s.holder_id
JOIN unit u ON u.id = s.unit_id
"""


def fill_ledger(url: str, lines: int) -> int:
    with Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger:
        return fill_days(ledger, lines // (MONTH.window.length_ms // HOUR_MS) // 8 * 8, time.process_time)[0]


def bare(url: str) -> dict[str, float]:
    """Reads the rows and throws them away."""
    clock, engine = cpu_clock(url), create_engine(url)
    began, began_s, rows = clock(), time.perf_counter(), 0
    with engine.connect() as connection:
        for day in MONTH.window.split(DAY_MS):
            scope = {"start": day.start_ms, "end": day.end_ms}
            rows += len(connection.execute(text(BARE), scope).all())
    engine.dispose()
    return {"cpu_s": clock() - began, "wall_s": time.perf_counter() - began_s, "rows": rows}


def exported(url: str, format_: str) -> dict[str, float]:
    """Writes the month to a file."""
    clock = cpu_clock(url)
    with (
        Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger,
        tempfile.NamedTemporaryFile() as target,
    ):
        began, began_s = clock(), time.perf_counter()
        request = FocusRequest(MONTH, FocusVersion.V1_3)
        exports = FocusExports(ledger, EVERYTHING, "benchmark")
        exports.write(request, FocusDataset.COST_AND_USAGE, format_, target)
        target.flush()
        return {
            "cpu_s": clock() - began,
            "wall_s": time.perf_counter() - began_s,
            "size_mb": Path(target.name).stat().st_size // 2**20,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def main() -> None:
    args = arguments(__doc__)
    figures: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    memory: dict[str, float] = {}
    with databases(args.database) as urls:
        for name, url in urls.items():
            # A process for each, so that no peak is another's.
            def alone(action: object, *given: object) -> object:
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    return pool.submit(action, *given).result()  # type: ignore[arg-type]

            lines = alone(fill_ledger, url, args.lines)
            found = {"bare": alone(bare, url)}
            found |= {format_: alone(exported, url, format_) for format_ in ("csv", "parquet")}
            for key, values in found.items():
                assert isinstance(values, dict)
                figures[f"{key} {name}"] = {each: round(value, 3) for each, value in values.items()}
            base = figures[f"bare {name}"]
            for format_ in ("csv", "parquet"):
                own = figures[f"{format_} {name}"]
                ratios[f"{format_}/bare read {name}"] = round(own["cpu_s"] / base["cpu_s"], 3)
                memory[f"{format_} MB {name}"] = own["peak_rss_mb"]
                print(
                    f"{name}: {lines:,} lines, {int(base['rows']):,} rows as {format_}: "
                    f"{own['cpu_s']:.1f} s of CPU ({own['wall_s']:.1f} s), bare read {base['cpu_s']:.1f} s, "
                    f"peak {own['peak_rss_mb']:.0f} MB"
                )
    limits = dict.fromkeys(ratios, LIMIT) | dict.fromkeys(memory, float(MOST_MB))
    holds = all(value <= limits[key] for key, value in (ratios | memory).items())
    result = {"name": "focus", "figures": figures, "ratios": ratios | memory, "limits": limits}
    print(json.dumps(result | {"holds": holds}))


if __name__ == "__main__":
    main()
