"""schemathesis against ``gpucost serve`` as it runs, over HTTP and PostgreSQL, as an admin and as a team's.

Every operation of the description the service gives, so many times as it wants its requests and as often
otherwise (where it takes anything): no server error, and nothing that the description does not say.

    python benchmarks/fuzz.py [--max-examples 60] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.fuzzing import SECRETS, Fuzzed, fuzz, running_service
from tests.support.postgres import postgres_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-examples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="gpucost-fuzz-") as folder,
        postgres_server() as server,
        server.database("fuzz") as url,
        running_service(Path(folder), url) as address,
    ):
        found = {key_id: fuzz(address, key_id, args.max_examples, first=args.seed) for key_id in SECRETS}
    for each in found.values():
        for operation, what in each.violations.items():
            print(f"{operation}\n{what}\n")
    limits = {"server_errors": 0, "operations_with_violations": 0}
    figures = {key_id: _figures(each) for key_id, each in found.items()}
    holds = all(each[name] <= limit for each in figures.values() for name, limit in limits.items())
    result = {"name": "fuzz", "figures": figures, "seconds": round(time.monotonic() - began, 1), "ratios": {}}
    print(json.dumps(result | {"limits": limits, "holds": holds}))


def _figures(found: Fuzzed) -> dict[str, object]:
    return {
        "operations": found.operations,
        "cases": found.cases,
        "statuses": {str(status): count for status, count in sorted(found.statuses.items())},
        "not_sent_since_the_url_is_too_long": found.too_long,
        "server_errors": found.server_errors,
        "no_example_of": found.untried,
        "operations_with_violations": len(found.violations),
    }


if __name__ == "__main__":
    main()
