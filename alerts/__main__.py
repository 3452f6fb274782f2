"""``python -m alerts``: write the generated files anew."""

from __future__ import annotations

import argparse

from alerts.build import write
from alerts.rules.model import DASHBOARDS, RUNBOOKS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m alerts", description="Write rules, tests and examples.")
    parser.add_argument(
        "--runbooks", default=RUNBOOKS, metavar="URL", help="address of the folder with the runbooks"
    )
    parser.add_argument("--dashboards", default=DASHBOARDS, metavar="URL", help="address of Grafana")
    given = parser.parse_args()
    for path in write(given.runbooks, given.dashboards):
        print(f"written: {path.name}")


if __name__ == "__main__":
    main()
