"""The page of a month of 10,000 jobs and 60 teams, against the API's answer from the same ledger.

The ledger is that of benchmarks/report.py, with detectors that looked at every hour and found nothing. Both
are asked of an app that has just been started, so that nothing is kept: the JSON of the month's report, and
the page with its frame. ``bytes`` are what a browser loads for the first page: HTML, style and script.

    python benchmarks/pages.py [--jobs 10000] [--teams 60]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import MONTH, fill, timed
from gpucost.api.app import create_app
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.db.records import WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from gpucost.service.settings.api import ApiSettings
from tests.support.ledgers import new_ledger

LIMIT = 2.0
MOST_BYTES = 150_000
_HTML = {"Accept": "text/html"}
_RUN_HOURS = 6


def looked_at(ledger: Ledger) -> None:
    """Every window, with nothing found."""
    nothing = pd.DataFrame(columns=list(WASTE_LINES.column_names), dtype=object)
    for info in ledger.windows(MONTH.window, "c"):
        ledger.write_waste("c", [WasteOfWindow(info.window, info.digest, nothing, True)], code_version="1")


def client(ledger: Ledger) -> TestClient:
    """Of an app that keeps nothing yet."""
    app = create_app(ledger, ApiSettings(auth="off", rate=0), now=lambda: MONTH.window.end_ms)
    return TestClient(app, base_url="http://localhost")


def fetched(ledger: Ledger, path: str, headers: dict[str, str]) -> Callable[[], str]:
    def ask() -> str:
        found = client(ledger).get(path, headers=headers)
        assert found.status_code == 200, found.text
        return found.text

    return ask


def loaded_bytes(ledger: Ledger, page: str) -> int:
    """Of the page and what it names."""
    named = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    return len(page.encode()) + sum(len(client(ledger).get(each).content) for each in named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--teams", type=int, default=60)
    args = parser.parse_args()
    hours = MONTH.window.length_ms // HOUR_MS
    at_once = -(-args.jobs * _RUN_HOURS // hours)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="gpucost-bench-") as folder:
        url = new_ledger(Path(folder) / "ledger.db")
        with Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger:
            lines = fill(ledger, MONTH.window, at_once * 8, args.teams)
            looked_at(ledger)
            print(f"{lines:,} lines written in {time.perf_counter() - began:.0f} s")
            api = fetched(ledger, f"/v1/reports/{MONTH}", {})
            page = fetched(ledger, f"/month/{MONTH}", _HTML)
            api_s, page_s = timed(api), timed(page)
            report, shown = json.loads(api()), page()
            size = loaded_bytes(ledger, shown)
    teams, jobs = len(report["teams"]), report["totals"]["jobs"]
    figures = {"jobs": jobs, "teams": teams, "lines": lines, "api_s": api_s, "page_s": page_s, "bytes": size}
    ratios = {"page/api": page_s / api_s, "bytes/limit": size / MOST_BYTES}
    print(f"{jobs:,} jobs, {teams} teams: API {api_s:.2f} s, page {page_s:.2f} s, {size:,} bytes")
    result = {
        "name": "pages",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "limits": {"page/api": LIMIT, "bytes/limit": 1.0},
        "holds": ratios["page/api"] <= LIMIT and size <= MOST_BYTES,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
