"""Running the replay: the measured child, the child that is killed, the bare queries, and the totals."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from benchmarks.support.philly import CLUSTER
from gpucost.domain.buckets import Bucket
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Totals:
    """What a ledger holds for a span: GPU milliseconds by virtual cluster and by bucket, and digests."""

    held_ms: dict[str, int]
    buckets_ms: dict[str, int]
    nano: int
    digests: tuple[str, ...]


def ingest(
    url: str,
    ledger: Path,
    span: Window,
    window_ms: int,
    *,
    batch_ms: int = DAY_MS,
    queries: Path | None = None,
) -> dict[str, Any]:
    """Run the child to its end; return what it measured. Raises RuntimeError when a window failed.

    ``batch_ms`` is how much the child reads at once; a day is the service's default.
    """
    with _child(url, ledger, span, (window_ms, batch_ms), queries) as child:
        output, _ = child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the ingesting process ended with {child.returncode}")
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    if figures["failures"]:
        raise RuntimeError(f"windows failed: {figures['failures'][:3]}")
    return figures


def ingest_killed(url: str, ledger: Path, span: Window, window_ms: int, kills: int, seed: int) -> list[int]:
    """Kill the child with SIGKILL ``kills`` times at random moments, then let it finish.

    A moment is a random number of windows after its start, and up to a tenth of a second more: somewhere in
    reading, attributing or writing. Returns how many windows each killed child had written.
    """
    rng = random.Random(seed)
    windows = span.length_ms // window_ms
    written = []
    for _ in range(kills):
        wanted = rng.randint(0, max(1, 2 * windows // (kills + 2)))
        pause_s = rng.uniform(0, 0.1) if wanted else rng.uniform(1.0, 2.0)
        with _child(url, ledger, span, (window_ms, DAY_MS), None) as child:
            assert child.stdout is not None
            count = 0
            while count < wanted and child.stdout.readline():
                count += 1
            time.sleep(pause_s)
            child.kill()
            child.stdout.read()
        written.append(count)
    ingest(url, ledger, span, window_ms)
    return written


@contextmanager
def _child(
    url: str, ledger: Path, span: Window, lengths_ms: tuple[int, int], queries: Path | None
) -> Iterator[subprocess.Popen[str]]:
    arguments = [url, str(ledger), str(span.start_ms), str(span.end_ms), *map(str, lengths_ms)]
    arguments += [str(queries)] if queries else []
    command = [sys.executable, "-m", "benchmarks.support.ingest", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def bare_queries(url: str, queries: Path) -> float:
    """Send the same requests over one plain connection and only read the answers; return the seconds."""
    requests = [json.loads(line) for line in queries.read_text(encoding="utf-8").splitlines()]
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    began_s = time.monotonic()
    for path, form in requests:
        connection.request("POST", f"/api/v1/{path}", urlencode(form), headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the bare query failed with {answer.status}: {form}")
    took_s = time.monotonic() - began_s
    connection.close()
    return took_s


def server_cpu_s(url: str) -> float:
    """CPU seconds that the server has used so far, by its own metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total "))


def totals(ledger_file: Path, span: Window) -> Totals:
    """Read a ledger, and close its months to have their digests."""
    with Ledger.open(f"sqlite:///{ledger_file}", now=lambda: span.end_ms + 40 * DAY_MS) as ledger:
        held = ledger.aggregate(EVERYTHING, span, ["team"], filters={"bucket": [Bucket.HELD.value]})
        buckets = ledger.aggregate(EVERYTHING, span, ["bucket"])
        windows = ledger.windows(span, CLUSTER)
        months = sorted({Month.of(info.window.start_ms) for info in windows})
        closed = [
            ledger.close_month(month, author="replay", reason="a part of a month", min_coverage=Fraction(1))
            for month in months
        ]
        assert not ledger.verify()
    return Totals(
        dict(zip(held["team"].tolist(), held["board_ms"].tolist(), strict=True)),
        dict(zip(buckets["bucket"].tolist(), buckets["board_ms"].tolist(), strict=True)),
        int(buckets["nano"].sum()),
        tuple(str(info.digest) for info in closed),
    )
