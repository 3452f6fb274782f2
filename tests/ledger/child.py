"""A process of its own that ingests hour after hour and says so: something to kill."""

from __future__ import annotations

import sys

from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import NOW_MS, attribution, hour, ingest, ingest_batch, random_rows

ROWS = 300
BATCH = 3
PODS = 60


def write(ledger: Ledger, way: str, number: int) -> None:
    """Hour ``number`` alone, or the batch of hours that it ends."""
    if way == "window":
        ingest(ledger, hour(number), *random_rows(3, hour(number), count=ROWS))
    elif (number + 1) % BATCH == 0:
        ingest_batch(ledger, attribution(number + 1 - BATCH, number + 1, pods=PODS))


def main(url: str, way: str, hours: int) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        for number in range(hours):
            write(ledger, way, number)
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
