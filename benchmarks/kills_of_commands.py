"""SIGKILL at random moments of every command that writes a ledger.

Ingest, close, roll-up, backup, restore and upgrade, on SQLite and PostgreSQL, fifty times each, at moments
that are uniform over what the command takes when it is not disturbed. Then the ledger is looked through
(integrity, every digest), the same command is run again, and what comes out is held against a run that was
not killed: windows with versions and digests, month, folding, audit trail, sums, waste. Halves of files that
are never removed, and halves of dumps that go in as whole ones, are counted as wrong.

    python benchmarks/kills_of_commands.py [--kills 50] [--seed 19] [--only sqlite|postgres]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.killed_commands import Databases, Tally, kill_at_random, operations, prepare
from tests.support.postgres import postgres_server

_KINDS = ("sqlite", "postgres")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--only", choices=_KINDS)
    args = parser.parse_args()
    found: dict[str, Tally] = {}
    for kind in _KINDS:
        if args.only in (None, kind):
            found |= _of(kind, args.kills, args.seed)
    wrong = [each for tally in found.values() for each in tally.wrong]
    between = sum(tally.seen["between"] for name, tally in found.items() if not name.endswith("ingest"))
    figures = {name: _figures(tally) for name, tally in found.items()}
    result = {"name": "kills_of_commands", "figures": figures, "ratios": {}}
    limits = {"wrong": 0, "seen_half_done": 0}
    print(json.dumps(result | {"limits": limits, "holds": not wrong and not between}))


def _of(kind: str, kills: int, seed: int) -> dict[str, Tally]:
    found = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpucost-kills-")))
        server = stack.enter_context(postgres_server()) if kind == "postgres" else None
        databases = Databases(folder, server)
        prepare(databases)
        for operation in operations(databases):
            rng = random.Random(f"{seed} {operation.name}")
            tally = kill_at_random(databases, operation, kills, rng)
            found[f"{kind} {operation.name}"] = tally
            print(f"{kind} {operation.name}: {_figures(tally)}", file=sys.stderr, flush=True)
    return found


def _figures(tally: Tally) -> dict[str, object]:
    return vars(tally) | {"seen": dict(tally.seen), "takes_s": round(tally.takes_s, 2)}


if __name__ == "__main__":
    main()
