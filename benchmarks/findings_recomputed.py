"""``python -m benchmarks.findings_recomputed LEDGER``: what findings cost, again, from intervals and prices.

Of each finding of jobs and nodes that goes on: boards now x (end - later of its begin and a day before) x
the price of its lines in that day, beside what the finding says. It reads the tables of a SQLite ledger, and
runs none of gpucost's code. A step of five minutes in which a GPU was not idle, and findings about quotas and
whole clusters, are not in such a product: they are to be looked at by hand.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from fractions import Fraction

HOUR_MS = 3_600_000
_FINDINGS = (
    "select id, pattern, subject_name, subject_uid, subject_kind, board_ms, nano, content, boards_now, "
    "since_ms from finding where state != 'resolved' order by nano desc"
)
_RATES = (
    "select distinct r.nano_per_board_hour from usage_line u join rate r on r.id = u.rate_id "
    "join holder h on h.id = u.holder_id join unit n on n.id = u.unit_id "
    "join ledger_window w on w.id = u.window_id where w.start_ms >= ? and "
)


def main(path: str) -> None:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        [(end_ms,)] = ledger.execute("select max(end_ms) from ledger_window").fetchall()
        day_ms = end_ms - 24 * HOUR_MS
        heads = f"{'says, s':>10} {'again, s':>10} {'says':>10} {'again':>10}"
        print(f"{'id':>4} {'pattern':18} {heads} a day: says, again")
        found = ledger.execute(_FINDINGS).fetchall()
        for number, pattern, name, uid, kind, board_ms, nano, content, now, since_ms in found:
            where, value = ("h.job_uid = ?", uid) if kind == "job" else ("n.node = ?", name)
            rates = [rate for (rate,) in ledger.execute(_RATES + where, (day_ms, value))]
            said = f"{number:4} {pattern:18} {board_ms / 1000:10.0f}"
            hourly = json.loads(content)["nano_per_hour"]
            if kind not in ("job", "node") or len(rates) != 1 or hourly is None:
                print(f"{said} {'':10} {(nano or 0) / 1e9:10.2f} {'by hand':>10}")
                continue
            boards = Fraction(now).limit_denominator(56)
            again_ms = boards * (end_ms - max(since_ms, day_ms))
            cost = float(again_ms * rates[0] / HOUR_MS) / 1e9
            daily = f"{hourly * 24 / 1e9:.2f}, {float(boards * rates[0] * 24) / 1e9:.2f}"
            print(f"{said} {float(again_ms) / 1000:10.0f} {nano / 1e9:10.2f} {cost:10.2f} {daily}")


if __name__ == "__main__":
    main(sys.argv[1])
