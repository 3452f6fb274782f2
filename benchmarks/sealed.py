"""A month's report over 100 million sealed lines, against a bare DuckDB group-by over the same files.

Files of four clusters are written by the product's own writer (sums of days by DuckDB, hashes, manifest), out
of lines that are made as columns: every one of 139 thousand GPUs is held all hour by a pod that keeps it for
twelve hours, 32 pods to a job. The ledger in SQLite has the windows, the closed month and the seal. Each
report is made in a fresh process; its seconds begin when the modules are there (process_s has these, too),
its peak memory counts all of it. The bare statement sums GPU time and cost by team, project, job, queue and
model, out of the files of days and out of the lines themselves, as another engine would. Beside it a
month that is in SQLite is sealed, verified and unsealed.

    python benchmarks/sealed.py [--lines 100000000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import MONTH, PRICE, lines_of
from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.db.database import insert_rows
from gpucost.ledger.db.tables import LEDGER_WINDOW, WINDOW_VERSION
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention import month_sealing
from gpucost.ledger.sealed.seal_folder import (
    SealedFile,
    SealManifest,
    file_hash,
    file_name,
    manifest_path,
    table_path,
)
from gpucost.ledger.sealed.seal_schema import HOLDER_NAMES, RATE_COLUMNS, UNIT_NAMES
from gpucost.ledger.sealed.seal_writer import cast_table, write_days, write_table
from gpucost.ledger.sealed.sealed_reader import SealedStore, relation
from gpucost.reports.base.document import to_json
from gpucost.service.reporting.report_service import ReportService

REPORT_S, REPORT_MIB = 10.0, 1024
CLUSTERS = ("east", "north", "south", "west")
NODE_GPUS, JOB_PODS, POD_HOURS, TEAMS = 8, 32, 12, 40
HOURS = MONTH.window.length_ms // HOUR_MS
BARE = """
SELECT team, project, job_uid, queue, model, bucket, sum(board_ms), sum(nano) FROM {} GROUP BY ALL
"""


def texts(prefix: str, numbers: Any, width: int) -> pa.Array:
    """``prefix`` and each number; only the different ones are made."""
    used, at = np.unique(numbers, return_inverse=True)
    return pa.array([f"{prefix}{each:0{width}}" for each in used.tolist()]).take(pa.array(at))


def day_of_lines(cluster: str, day: int, gpus: int) -> pa.Table:
    """Every hour of a day, sorted as the product sorts a run: by team, job, pod, then hour."""
    gpu, hour = np.repeat(np.arange(gpus), 24), np.tile(np.arange(24) + 24 * day, gpus)
    run, job = hour // POD_HOURS, np.arange(gpus)[gpu] // JOB_PODS
    team = job % TEAMS
    order = np.lexsort([hour, gpu, run, job, team])
    gpu, hour, run, job, team = (each[order] for each in (gpu, hour, run, job, team))
    start = MONTH.window.start_ms + hour.astype(np.int64) * HOUR_MS
    pods, jobs = run * gpus + gpu, run * gpus + job
    columns: dict[str, Any] = dict.fromkeys((*UNIT_NAMES, *HOLDER_NAMES), "")
    columns |= {"window_start_ms": start, "window_end_ms": start + HOUR_MS, "assessed": ""}
    columns |= {"cluster": cluster, "node": texts("node-", gpu // NODE_GPUS, 5), "resource": "nvidia.com/gpu"}
    columns |= {"model": "H100", "share_num": 1, "share_den": 1, "basis": "compute", "bucket": "held"}
    names = texts("team-", team, 2)
    columns |= {"namespace": names, "team": names, "queue": names, "project": "p", "job_kind": "Job"}
    columns |= {"pod": texts("pod-", pods, 8), "pod_uid": texts(f"{cluster}-", pods, 8)}
    columns |= {
        "job": texts("job-", jobs, 8),
        "job_uid": texts(f"{cluster}-job-", jobs, 8),
        "team_rule": None,
    }
    columns |= dict.fromkeys(RATE_COLUMNS) | {"rate_id": PRICE.rate_id, "rate_currency": PRICE.currency}
    columns |= dict.fromkeys(LINE_MEASURES) | {"board_ms": HOUR_MS, "nano": PRICE.nano_per_board_hour}
    columns |= {"first_ms": start, "last_ms": start + HOUR_MS, "observed_ms": HOUR_MS}
    columns |= {"busy_ms": (gpu.astype(np.int64) * 7919 + hour) % HOUR_MS}
    return cast_table("lines", {name: _column(value, len(gpu)) for name, value in columns.items()})


def _column(value: Any, count: int) -> pa.Array:
    if isinstance(value, np.ndarray):
        return pa.array(value)
    return value if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value), count)


def days_of(cluster: str, gpus: int) -> Iterator[pa.Table]:
    for day in range(MONTH.window.length_ms // DAY_MS):
        yield day_of_lines(cluster, day, gpus)


def write_month(store: SealedStore, gpus: int) -> SealManifest:
    """The files of all clusters, and what the ledger is told of them."""
    folder, files = store.folder, list[SealedFile]()
    with folder.drafts(MONTH) as drafts:
        for cluster in CLUSTERS:
            lines, days = drafts / "lines.parquet", drafts / "days.parquet"
            counts = {"lines": write_table(lines, "lines", days_of(cluster, gpus))}
            counts["days"] = write_days(store, "days", lines, days)
            for table, draft in (("lines", lines), ("days", days)):
                sha256, size = file_hash(draft)
                path = table_path(MONTH, table, file_name(table, cluster, sha256))
                folder.put(draft, path)
                files.append(SealedFile(table, cluster, path, sha256, size, counts[table]))
    return SealManifest(MONTH, "", "", tuple(files))


def register(url: str, store: SealedStore, found: SealManifest, gpus: int) -> None:
    """Windows, the closed month and its seal, without the lines that are in the files."""
    with Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger:
        window = Window(MONTH.window.start_ms, MONTH.window.start_ms + HOUR_MS)
        frame = lines_of(window, 8, 0).assign(cluster="none")
        rates = {PRICE.rate_id: PRICE}
        settings: dict[str, Any] = {
            "observed_ms": HOUR_MS,
            "source": "b",
            "code_version": "b",
            "settle": True,
        }
        ledger.ingest("none", window, frame, rates=rates, **settings)  # the price, and the currency
        with ledger._database.write() as connection:
            rows, versions = [], []
            for c, cluster in enumerate(CLUSTERS):
                for hour, each in enumerate(MONTH.window.split(HOUR_MS)):
                    at = 100 + c * HOURS + hour
                    rows.append((at, cluster, each.start_ms, each.end_ms, str(MONTH), "settled", 1))
                    sums = gpus, gpus * HOUR_MS, 0, 0, gpus * (PRICE.nano_per_board_hour or 0)
                    versions.append((at, 1, f"{at:064x}", "", *sums, HOUR_MS, "b", "b", 0))
            insert_rows(connection, LEDGER_WINDOW, rows)
            insert_rows(connection, WINDOW_VERSION, versions)
        info = ledger.close_month(MONTH, author="b", min_coverage=Fraction(0), reason="benchmark")
        manifest = SealManifest(MONTH, info.digest or "", "", found.files)
        content = manifest.encoded()
        sha256 = hashlib.sha256(content).hexdigest()
        place = Path(store.folder.address(manifest_path(MONTH, sha256)))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        lines = sum(file.rows for file in found.files if file.table == "lines")
        with ledger._database.write("(retention)") as connection:
            month_sealing.move_in(connection, manifest, sha256, lines, "benchmark", MONTH.window.end_ms)


def report(url: str, folder: str) -> None:
    """In a process of its own: one line of JSON."""
    began = time.perf_counter()
    with Ledger.open(url, now=lambda: MONTH.window.end_ms, sealed=folder) as ledger:
        answer = ReportService(ledger, "benchmark", {}).month(EVERYTHING, MONTH)
        assert answer is not None
        size = len(to_json(answer.report))
    _tell(began, {"bytes": size})


def bare(folder: str, table: str) -> None:
    began = time.perf_counter()
    store = SealedStore(folder)
    paths = sorted(str(path) for path in Path(folder).glob(f"{table}/*/*.parquet"))
    rows = store.query(BARE.format(relation(table, "*", {1: paths})))
    store.close()
    _tell(began, {"rows": len(rows), "board_ms": sum(row[-2] for row in rows)})


def _tell(began: float, more: dict[str, Any]) -> None:
    # ru_maxrss would have what the parent had when it forked.
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
    used = time.process_time()
    print(json.dumps({"s": time.perf_counter() - began, "cpu_s": used, "peak_mib": peak, **more}))


def fresh(*words: str) -> dict[str, Any]:
    """One of the above in a fresh process; ``process_s`` has its imports, too."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout) | {"process_s": time.perf_counter() - began}


def sealing(lines: int) -> dict[str, float]:
    """A month that is in SQLite is sealed and unsealed."""
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as home:
        url = f"sqlite:///{home}/ledger.db"
        with Ledger.open(url, now=lambda: MONTH.window.end_ms, sealed=f"{home}/sealed") as ledger:
            per_window = max(8, lines // HOURS // 8 * 8)
            for hour, window in enumerate(MONTH.window.split(HOUR_MS)):
                ledger.ingest(
                    "c",
                    window,
                    lines_of(window, per_window, hour),
                    observed_ms=HOUR_MS,
                    rates={PRICE.rate_id: PRICE},
                    source="b",
                    code_version="b",
                    settle=True,
                )
            ledger.close_month(MONTH, author="b", min_coverage=Fraction(0), reason="benchmark")
            times = [time.perf_counter()]
            done = ledger.seal(MONTH, author="b")
            times.append(time.perf_counter())
            assert ledger.verify_sealed(MONTH) == ()
            times.append(time.perf_counter())
            ledger.unseal(MONTH, author="b")
            times.append(time.perf_counter())
        seal_s, verify_s, unseal_s = (after - before for before, after in pairwise(times))
        return {
            "lines": done.lines,
            "bytes_per_line": done.size / done.lines,
            "seal_lines_per_s": done.lines / seal_s,
            "verify_s": verify_s,
            "unseal_lines_per_s": done.lines / unseal_s,
        }


def main() -> None:
    if sys.argv[1:2] in (["report"], ["bare"]):
        {"report": report, "bare": bare}[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000_000)
    parser.add_argument("--sealed-from-database", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    gpus = max(JOB_PODS, args.lines // HOURS // len(CLUSTERS) // JOB_PODS * JOB_PODS)
    home = args.folder or Path(tempfile.mkdtemp(prefix="gpucost-bench-"))
    url, folder = f"sqlite:///{home}/ledger.db", str(home / "sealed")
    try:
        store = SealedStore(folder)
        began = time.perf_counter()
        found = write_month(store, gpus)
        write_s = time.perf_counter() - began
        register(url, store, found, gpus)
        store.close()
        figures: dict[str, Any] = {
            name: {key: round(value, 3) for key, value in fresh(*words).items()}
            for name, words in (
                ("report", ("report", url, folder)),
                ("report_again", ("report", url, folder)),
                ("bare_days", ("bare", folder, "days")),
                ("bare_lines", ("bare", folder, "lines")),
            )
        }
    finally:
        if args.folder is None:
            shutil.rmtree(home, ignore_errors=True)
    lines = sum(file.rows for file in found.files if file.table == "lines")
    figures |= {
        "lines": lines,
        "day_rows": sum(file.rows for file in found.files if file.table == "days"),
        "bytes_per_line": round(sum(file.size for file in found.files) / lines, 2),
        "written_lines_per_s": round(lines / write_s),
        "sealing": {key: round(value, 3) for key, value in sealing(args.sealed_from_database).items()},
    }
    ratios = {
        "report/bare group-by of days": figures["report"]["s"] / figures["bare_days"]["s"],
        "report/bare group-by of lines": figures["report"]["s"] / figures["bare_lines"]["s"],
    }
    assert figures["bare_lines"]["board_ms"] == figures["bare_days"]["board_ms"] == lines * HOUR_MS
    holds = figures["report"]["s"] < REPORT_S and figures["report"]["peak_mib"] < REPORT_MIB
    limits = {"report s": REPORT_S, "report peak_mib": REPORT_MIB}
    result = {"name": "sealed", "figures": figures, "ratios": {k: round(v, 3) for k, v in ratios.items()}}
    print(json.dumps(result | {"limits": limits, "holds": holds}))


if __name__ == "__main__":
    main()
