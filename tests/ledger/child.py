"""A process of its own that ingests hour after hour and says so: something to kill."""

from __future__ import annotations

import sys

from gpucost.ledger import Ledger
from tests.ledger.builders import NOW_MS, hour, ingest, random_rows

ROWS = 300


def main(url: str, hours: int) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        for number in range(hours):
            window = hour(number)
            ingest(ledger, window, *random_rows(3, window, count=ROWS))
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
