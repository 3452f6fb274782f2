"""A month of 5 million lines under a charge policy, against the bare SQL that groups the same lines.

The ledger is that of benchmarks/report.py. The baseline is one statement that adds the lines up by what
charges know of them: hour, model, bucket, team, queue, job and rate, its rows fetched and thrown away.
Measured are one policy (quotas of every team, idle time spread), and what a second one costs beside it.

    python benchmarks/charges.py [--lines 5000000] [--database sqlite|postgresql|both]
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import MONTH, arguments, databases, fill, timed
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.service.reporting.charge_reports import preview_charges
from gpucost.service.reporting.report_service import ReportService

LIMIT = 2.0
BARE = """
SELECT l.window_id, u.cluster, u.model, l.bucket, h.team, h.queue, h.namespace, h.job, h.job_uid, l.rate_id,
  SUM(l.board_ms), SUM(l.nano), MIN(l.first_ms), MAX(l.last_ms)
FROM usage_line l
JOIN ledger_window w ON w.id = l.window_id
JOIN holder h ON h.id = l.holder_id
JOIN unit u ON u.id = l.unit_id
WHERE w.start_ms >= :start AND w.end_ms <= :end
GROUP BY l.window_id, u.cluster, u.model, l.bucket, h.team, h.queue, h.namespace, h.job, h.job_uid, l.rate_id
"""
BY_QUOTA = """
version: 1
name: by quota
policies: [{base: larger, idle_of_nobody: by_quota}]
quotas: [%s]
"""
BY_USE = """
version: 1
name: by use
policies: [{base: use, idle_of_nobody: by_use}]
"""


def policies(gpus: int) -> list[PolicyBook]:
    """By quota, of a fortieth of all GPUs for each of the forty teams, and by use."""
    quotas = ", ".join(
        f"{{team: team-{n:02}, model: H100, gpus: {max(1, gpus // 40)}, cohort: all}}" for n in range(40)
    )
    texts = {"by-quota.yaml": BY_QUOTA % quotas, "by-use.yaml": BY_USE}
    return [PolicyBook.parse(found, name, {}) for name, found in texts.items()]


def measure(url: str, lines: int) -> dict[str, float]:
    with Ledger.open(url, now=lambda: MONTH.window.end_ms) as ledger:
        per_window = lines // (MONTH.window.length_ms // HOUR_MS) // 8 * 8
        written = fill(ledger, MONTH.window, per_window)
        engine, books = create_engine(url), policies(per_window)
        scope = {"start": MONTH.window.start_ms, "end": MONTH.window.end_ms}

        def bare() -> int:
            with engine.connect() as connection:
                return len(connection.execute(text(BARE), scope).all())

        def charged(books: list[PolicyBook]) -> None:
            service = ReportService(ledger, "benchmark", {})
            found = preview_charges(service, EVERYTHING, MONTH, books, {})
            assert all(each.difference.nano == each.difference.board_ms == 0 for each in found.policies)

        bare_s = timed(bare)
        one_s = timed(lambda: charged(books[:1]))
        both_s = timed(lambda: charged(books))
        engine.dispose()
    return {"lines": written, "bare_s": bare_s, "one_s": one_s, "both_s": both_s}


def main() -> None:
    args = arguments(__doc__)
    figures: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    with databases(args.database) as urls:
        for name, url in urls.items():
            began = time.perf_counter()
            found = figures[name] = {key: round(value, 3) for key, value in measure(url, args.lines).items()}
            ratios[f"charges/bare_sql {name}"] = round(found["one_s"] / found["bare_s"], 3)
            ratios[f"second policy/bare_sql {name}"] = round(
                (found["both_s"] - found["one_s"]) / found["bare_s"], 3
            )
            times = f"bare SQL {found['bare_s']:.2f} s, one policy {found['one_s']:.2f} s"
            print(f"{name}: {times}, two {found['both_s']:.2f} s; {time.perf_counter() - began:.0f} s in all")
    figures["process"] = {"peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    limits = {name: LIMIT if name.startswith("charges/") else LIMIT / 2 for name in ratios}
    holds = all(ratios[name] <= limit for name, limit in limits.items())
    result = {"name": "charges", "figures": figures, "ratios": ratios}
    print(json.dumps(result | {"limits": limits, "holds": holds}))


if __name__ == "__main__":
    main()
