"""``python -m dashboards [--currency EUR] [FOLDER]``: write the JSON of all dashboards.

FOLDER is generated/ by default. The committed dashboards are those of a ledger in US dollars. ``--currency``
writes those of a ledger in another currency, whose metrics have no suffix; a FOLDER is needed then, so that
the committed ones are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dashboards import boards
from dashboards.grafana_json import (
    GENERATED,
    encode,
    in_currency,
    modern,
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m dashboards", description="Write the boards' JSON.")
    parser.add_argument("folder", nargs="?", type=Path, default=GENERATED)
    parser.add_argument("--currency", default="USD", help="ISO code of the ledger's currency")
    chosen = parser.parse_args(arguments)
    if chosen.currency != "USD" and chosen.folder == GENERATED:
        parser.error("--currency needs a folder of its own: generated/ holds the boards of the source")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for board in boards():
        json = in_currency(modern(board), chosen.currency)
        (chosen.folder / f"{json['uid']}.json").write_text(encode(json), encoding="utf-8")


if __name__ == "__main__":
    main()
