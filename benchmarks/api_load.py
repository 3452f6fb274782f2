"""The API under 50 concurrent readers on PostgreSQL with 5 million usage lines, beside the same SQL by
itself.

A real ``gpucost serve`` answers wrk, over one keep-alive connection per reader. The baseline is psycopg:
50 threads over 16 connections, sending the one statement that a route cannot do without. What the service
adds is authentication, checks, the stand of the ledger, shares, shaping and JSON; what it saves is to ask
again for what cannot have changed.

A route's first answers are made while all 50 wait for the same one (``cold``); then it is asked for some
seconds (``warm``). Then 50 ask different things at once, which take turns or are told to wait; and a mix of
all routes is asked until 10,000 requests are answered, and memory is compared. At last six viewers send
parsing bombs as fast as they may, beside 50 readers with a key each: nobody else is to notice.

    python benchmarks/api_load.py [--lines 5000000] [--seconds 10] [--requests 10000] [--only-bombs]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.error import HTTPError

import numpy as np
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import BARE, MONTH, fill, lines_of
from benchmarks.support import bombs
from benchmarks.support.processes import resident_mib
from gpucost.access.keys import format_key, hash_secret
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.db.records import WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from gpucost.telemetry.recorded_source import record
from tests.api.findings import finding, life, save
from tests.service.worlds import frames
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.programs import Program
from tests.support.service_process import service

READERS = 50
POOL = 16
"""Connections of the baseline: more do not make two cores quicker."""
FINDINGS = 300
SUMS = ("report", "allocations", "waste")
SLOWEST_MS = 1_000.0
SECRET = "0123456789abcdef" * 4
KEY = format_key("bench", SECRET)
LUA = """
local paths, keys = {%s}, {%s}
local at = 0
function init(args) math.randomseed(7) at = math.random(0, #paths - 1) end
function request()
  at = at + 1
  local key = "Bearer " .. keys[at %% #keys + 1]
  return wrk.format("GET", paths[at %% #paths + 1], {["Authorization"] = key})
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('\\n{"requests":%%d,"seconds":%%f,"p50_ms":%%f,"p99_ms":%%f,"failed":%%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""
SPAN = {"start": MONTH.window.start_ms, "end": MONTH.window.end_ms, "day": DAY_MS, "job": "job-0002-00010"}


@dataclass(frozen=True)
class Route:
    """What is asked of the API, and the statement that its answer cannot do without."""

    path: str
    statement: str


_LINES = """
FROM usage_line l
JOIN ledger_window w ON w.id = l.window_id
JOIN holder h ON h.id = l.holder_id
"""
_IN_MONTH = "WHERE w.start_ms >= %(start)s AND w.end_ms <= %(end)s"
ROUTES = {
    "report": Route(f"/v1/reports/{MONTH}", BARE.replace(":start", "%(start)s").replace(":end", "%(end)s")),
    "allocations": Route(
        f"/v1/allocations?window={MONTH}&group_by=team&step=1d",
        f"SELECT h.team, w.start_ms / %(day)s, SUM(l.board_ms), SUM(l.nano) {_LINES} {_IN_MONTH}"
        " GROUP BY 1, 2",
    ),
    "job": Route(
        f"/v1/jobs/{SPAN['job']}",
        f"SELECT h.team, l.bucket, SUM(l.board_ms), SUM(l.nano) {_LINES}"
        " WHERE h.job_uid = %(job)s GROUP BY 1, 2",
    ),
    "findings": Route(
        "/v1/findings", "SELECT * FROM finding WHERE state IN ('open', 'acknowledged') ORDER BY id LIMIT 101"
    ),
    "waste": Route(
        f"/v1/waste?window={MONTH}",
        f"SELECT h.team, l.bucket, w.start_ms / %(day)s, SUM(l.board_ms), SUM(l.nano) {_LINES} {_IN_MONTH}"
        " GROUP BY 1, 2, 3",
    ),
}


def prepare(server: PostgresServer, url: str, lines: int) -> int:
    """Write and assess a day, repeat it for every day of the month, close it, and leave some findings open.

    The days are repeated in SQL, since it is reading that is measured: jobs run all month. The lines written.
    """
    day = Window(MONTH.window.start_ms, MONTH.window.start_ms + DAY_MS)
    days = MONTH.window.length_ms // DAY_MS
    with Ledger.open(url, now=lambda: MONTH.window.end_ms + HOUR_MS) as ledger:
        per_window = lines // days // 24 // 8 * 8
        fill(ledger, day, per_window)
        for hour, info in enumerate(ledger.windows(day)):
            idle = _idle(info.window, per_window, hour, info.digest)
            ledger.write_waste("c", [idle], code_version="benchmark")
        _repeat(server, url.rpartition("/")[2], days)
        ledger.close_month(MONTH, author="benchmark", reason="", min_coverage=Fraction(1))
        save(ledger, *(life(finding(f"job-{n}", f"team-{n % 40:02}", n)) for n in range(FINDINGS)))
    return per_window * 24 * days


def _repeat(server: PostgresServer, database: str, days: int) -> None:
    """The rows of the 24 windows that there are, again for every other day."""
    tables = {"window_version": "window_id", "usage_line": "window_id"}
    tables |= {"waste_window": "window_id", "waste_line": "window_id"}
    with server.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")  # what is copied refers to what is there
        for table, moved in {"ledger_window": "id", **tables}.items():
            query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY 1"
            names = [row[0] for row in connection.execute(query, [table])]
            # Ids of windows grow by 24 a day; instants by a day's length.
            values = {moved: f"{moved} + 24 * day"} | {
                name: f"{name} + day::bigint * {DAY_MS}" for name in names if name in ("start_ms", "end_ms")
            }
            wanted = ", ".join(values.get(name, name) for name in names)
            statement = f"INSERT INTO {table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE "
            statement += f"SELECT {wanted} FROM {table}, generate_series(1, {days - 1}) AS day"
            connection.execute(statement.encode())
        connection.execute("VACUUM ANALYZE")


def _idle(window: Window, per_window: int, hour: int, digest: str) -> WasteOfWindow:
    """One GPU in 64 did nothing for half an hour."""
    held = lines_of(window, per_window, hour)[::64]
    parts = held.assign(waste="idle", board_ms=held["board_ms"] // 2, nano=held["nano"] // 2)
    return WasteOfWindow(window, digest, parts[list(WASTE_LINES.column_names)], True)


@contextmanager
def serving(url: str, folder: Path, more: Mapping[str, Any] | None = None) -> Iterator[tuple[Program, str]]:
    """The service over a ledger that is full, with a source that has nothing more; with the settings of
    ``more`` in place of some."""
    record(folder / "recording", frames())
    port = free_port()
    key = {"id": "bench", "sha256": hash_secret(SECRET), "role": "admin"}
    settings: dict[str, Any] = {
        "ledger": {"url": url},
        "source": {"kind": "recorded", "path": str(folder / "recording")},
        "ingest": {"start": "2027-01-01T00:00:00Z"},
        "detectors": {"enabled": False},
        # One principal stands for fifty people.
        "api": {"keys": [key], "rate": 0},
    }
    settings |= more or {}
    with service(folder, settings, port, MONTH.window.end_ms + DAY_MS) as program:
        yield program, f"http://127.0.0.1:{port}"


def ask(address: str, path: str) -> float:
    """Seconds until the whole answer is there. Raises HTTPError for one that is no answer."""
    began = time.perf_counter()
    request = urllib.request.Request(f"{address}{path}", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()
    return time.perf_counter() - began


def wrk(
    address: str, paths: Sequence[str], seconds: float, folder: Path, keys: Sequence[str] = (KEY,)
) -> dict[str, float]:
    """What wrk says of READERS readers that go through ``paths``, with each of ``keys`` in turn."""
    script = folder / "readers.lua"
    script.write_text(LUA % tuple(", ".join(map(json.dumps, each)) for each in (paths, keys)), "utf-8")
    command = ["wrk", "-t2", f"-c{READERS}", f"-d{seconds:.0f}s", "--timeout", "120s", "-s", str(script)]
    command += [address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 180)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found | {"per_s": found["requests"] / found["seconds"]}


def bare(server: PostgresServer, database: str, statement: str, seconds: float) -> dict[str, float]:
    """The same by psycopg: READERS threads share POOL connections for ``seconds``; each asks once or more."""
    free: SimpleQueue[psycopg.Connection] = SimpleQueue()
    pool = [server.connect(database) for _ in range(POOL)]
    for connection in pool:
        connection.execute("SET work_mem = '256MB'; SET jit = off")
        free.put(connection)
    took: list[float] = []
    end = time.perf_counter() + seconds

    def reader(_: int) -> None:
        while True:
            began = time.perf_counter()
            connection = free.get()
            try:
                connection.execute(statement.encode(), SPAN).fetchall()
            finally:
                free.put(connection)
            took.append(time.perf_counter() - began)
            if time.perf_counter() > end:
                return

    began = time.perf_counter()
    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(reader, range(READERS)))
    spent = time.perf_counter() - began
    for connection in pool:
        connection.close()
    return {**_percentiles(took), "requests": len(took), "per_s": len(took) / spent}


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": float(np.percentile(seconds, 50)) * 1000,
        "p99_ms": float(np.percentile(seconds, 99)) * 1000,
    }


def cold(address: str, path: str) -> dict[str, float]:
    """All READERS at once, before anything of it was asked. A reader that is answered with 503
    tries again."""
    busy: list[int] = []

    def patiently(_: int) -> float:
        began = time.perf_counter()
        while True:
            try:
                ask(address, path)
            except HTTPError as error:
                if error.code != 503:
                    raise
                busy.append(1)
                time.sleep(1)
            else:
                return time.perf_counter() - began

    with ThreadPoolExecutor(READERS) as threads:
        return _percentiles(list(threads.map(patiently, range(READERS)))) | {"told_to_wait": len(busy)}


def measure(server: PostgresServer, url: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Figures of every route, of the mix, and of memory."""
    database = url.rpartition("/")[2]
    figures: dict[str, Any] = {"routes": {}}
    with serving(url, folder) as (program, address):
        for name, route in ROUTES.items():
            alone = ask(address, route.path) if args.alone else 0.0
            first = cold(address, route.path)
            warm = wrk(address, [route.path], args.seconds, folder)
            straight = bare(server, database, route.statement, args.seconds)
            found = {"alone_ms": alone * 1000, "cold": first, "warm": warm, "bare_sql": straight}
            figures["routes"][name] = found
            print(
                f"{name}: cold p99 {first['p99_ms']:,.0f} ms ({first['told_to_wait']:.0f} times 503); "
                f"warm p50 {warm['p50_ms']:,.1f}, "
                f"p99 {warm['p99_ms']:,.1f} ms, {warm['per_s']:,.1f}/s, {warm['failed']:.0f} failed; "
                f"bare SQL p50 "
                f"{straight['p50_ms']:,.1f}, p99 {straight['p99_ms']:,.1f} ms, {straight['per_s']:,.1f}/s",
                flush=True,
            )
        figures["different"] = different(address)
        print(f"{READERS} different questions at once: {figures['different']}", flush=True)
        figures["mix"] = mixed(address, program, args, folder)
    return figures


def bombed(url: str, folder: Path, seconds: float) -> dict[str, Any]:
    """The same readers without bombs and with them, and how long a probe took meanwhile."""
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    paths, readers = [route.path for route in ROUTES.values()], list(bombs.keys("reader", READERS).values())
    with bombs.watched(folder) as more, serving(url, folder, more) as (_, address):
        wrk(address, paths, 1, folder, readers)  # makes the answers that are kept
        for name in ("without", "with"):
            crowd = bombs.Crowd(address)
            with crowd.asking(with_bombs=name == "with"):
                read = wrk(address, paths, seconds, folder, readers)
            found[name] = crowd.figures() | {"readers": read, "failed": read["failed"] + crowd.failed_probes}
            print(
                f"{name} bombs: /healthz p50 {found[name]['p50_ms']:,.1f}, p99 {found[name]['p99_ms']:,.1f}, "
                f"longest {found[name]['longest_ms']:,.1f} ms; readers {read['per_s']:,.1f}/s, "
                f"{read['failed']:.0f} failed; {found[name]['statuses']}",
                flush=True,
            )
    return found


def bombs_verdict(found: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios and their limits."""
    limits = {"bombs: /healthz p99, ms": bombs.LIMIT_MS, "bombs: innocent requests that failed": 0}
    ratios = {
        "bombs: /healthz p99, ms": found["with"]["p99_ms"],
        "bombs: innocent requests that failed": found["with"]["failed"],
        "bombs: /healthz p99 / without": found["with"]["p99_ms"] / found["without"]["p99_ms"],
        "bombs: readers / without": found["with"]["readers"]["per_s"] / found["without"]["readers"]["per_s"],
    }
    return ratios, limits


def different(address: str) -> dict[str, int]:
    """READERS that each ask something of the whole month that was not asked before: served in turn, or
    refused with 503."""

    def reader(number: int) -> str:
        try:
            ask(
                address,
                f"/v1/allocations?window={MONTH}&group_by=team,job&team=team-{number % 40:02},{number}",
            )
        except HTTPError as error:
            error.close()
            return "told_to_wait" if error.code == 503 and error.headers["Retry-After"] else "failed"
        return "answered"

    with ThreadPoolExecutor(READERS) as threads:
        found = Counter(threads.map(reader, range(READERS)))
    return {name: found[name] for name in ("answered", "told_to_wait", "failed")}


def verdict(figures: dict[str, Any]) -> dict[str, Any]:
    """Ratios, their limits, and whether all of them hold.

    Of what sums millions of lines a kept answer has to come sooner than the bare statement, and 50 who wait
    for one that is being made sooner than 50 statements: that is what keeping is for. A job and the findings
    are some rows by an index, which take the server nothing: there HTTP, who asks, and a hundred rows as JSON
    are measured, all of it in one process of Python, against no HTTP at all; so it is the throughput of the
    whole that counts for people, and the limit is one of time: a second for the slowest of a hundred.
    Memory is flat if the answers leave what the garbage collector has not come to: 5 %.
    """
    ratios, limits = bombs_verdict(figures["bombs"])
    for name, found in figures["routes"].items():
        for kind in ("cold", "warm"):
            ratio = f"{name}: {kind} p99 / bare SQL p99"
            ratios[ratio] = found[kind]["p99_ms"] / found["bare_sql"]["p99_ms"]
            if name in SUMS:
                limits[ratio] = 1.0
            elif kind == "warm":
                slowest = f"{name}: warm p99, ms"
                ratios[slowest], limits[slowest] = found[kind]["p99_ms"], SLOWEST_MS
    if "mix" not in figures:
        return _judged(ratios, limits)
    mix = figures["mix"]
    ratios["RSS after / before"], limits["RSS after / before"] = (
        mix["rss_after_mib"] / mix["rss_before_mib"],
        1.05,
    )
    told = sum(found["cold"]["told_to_wait"] for found in figures["routes"].values())
    failed = mix["failed"] + figures["different"]["failed"]
    failed += sum(found["warm"]["failed"] for found in figures["routes"].values())
    ratios |= {"readers of one question told to wait": told, "failed requests": failed}
    limits |= {"readers of one question told to wait": 0, "failed requests": 0}
    return _judged(ratios, limits)


def _judged(ratios: Mapping[str, float], limits: Mapping[str, float]) -> dict[str, Any]:
    holds = all(ratios[name] <= limits[name] for name in limits)
    return {
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "limits": limits,
        "holds": holds,
    }


def mixed(address: str, program: Program, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """All routes in turn until enough requests were answered; memory after a first part, and at the end."""
    paths = [route.path for route in ROUTES.values()]
    summed = ("requests", "seconds", "failed")
    found = dict.fromkeys(summed, 0.0)
    before = 0.0
    while found["requests"] < args.requests:
        part = wrk(address, paths, args.seconds, folder)
        found = {key: found[key] + part[key] for key in summed} | {
            name: max(part[name], found.get(name, 0.0)) for name in ("p50_ms", "p99_ms")
        }
        if not before:
            before = resident_mib([program.pid])
    after = resident_mib([program.pid])
    per_s = found["requests"] / found["seconds"]
    print(
        f"mix: {found['requests']:.0f} requests, {per_s:,.1f}/s, RSS {before:.0f} -> {after:.0f} MiB",
        flush=True,
    )
    return found | {"per_s": per_s, "rss_before_mib": before, "rss_after_mib": after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--only-bombs", action="store_true")
    parser.add_argument("--alone", action="store_true", help="also ask once while nobody else does")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpucost-load-"))
    try:
        with postgres_server() as server, server.database("load") as url:
            began = time.perf_counter()
            written = prepare(server, url, args.lines)
            print(f"{written:,} lines in {time.perf_counter() - began:.0f} s", flush=True)
            figures = {"routes": {}} if args.only_bombs else measure(server, url, folder, args)
            figures["bombs"] = bombed(url, folder, args.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"name": "api_load", "figures": {"lines": written} | figures} | verdict(figures)))


if __name__ == "__main__":
    main()
