"""SIGKILL of the service, of PostgreSQL and of Prometheus, in turn, fifty times during a replayed week.

A real ``gpucost serve`` reads the week of a simulated cluster hour by hour from a real Prometheus into a real
PostgreSQL, looks for findings and sends the week's digest, while one of the three is killed again and again
and started anew. Compared with an undisturbed run: digest and version of every window, sums by team, node and
job, waste, and the digest of the closed month; in the chat room, how often each message was sent.

    python benchmarks/kills.py [--kills 50] [--seed 8] [--since 2026-10-05T00:00:00Z]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpucost.domain.time import parse_instant
from tests.support.killing import kill_in_turn
from tests.support.replayed_week import WEEK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--since", type=parse_instant, default=WEEK.start_ms)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucost-kills-") as folder:
        found = kill_in_turn(Path(folder), args.since, args.kills, seed=args.seed)
    assert found.undisturbed is not None
    assert found.disturbed is not None
    same = found.disturbed == found.undisturbed
    digests = {found.undisturbed.month_digest, found.disturbed.month_digest}
    figures = {
        "windows": found.windows,
        "kills": dict(found.victims),
        "kills_while_windows_were_due": found.while_windows_were_due,
        "kills_while_a_write_was_open": found.while_writing,
        "kills_while_something_was_told": found.while_telling,
        "seconds": round(found.took_s, 1),
        "windows_with_more_than_one_version": sum(version > 1 for _, version, _ in found.disturbed.windows),
        "month_digests": sorted(digests),
        "digests_told": found.digests_told,
        "findings_told": found.findings_told,
        "findings_told_again": found.findings_repeated,
        "month_verify": found.verified,
    }
    limits = {"month_digests": 1, "digests_told": 1, "findings_told_again": 0}
    holds = same and len(digests) == found.digests_told == 1 and not found.findings_repeated
    holds = holds and found.findings_told > 0 and found.verified.startswith("0: ")
    result = {"name": "kills", "figures": figures, "ratios": {}, "limits": limits, "same_ledger": same}
    print(json.dumps(result | {"holds": holds}))


if __name__ == "__main__":
    main()
