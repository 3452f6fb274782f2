"""The command line. What may live here: arguments, terminals, exit codes. What must not: anything that the
service or the API would have to repeat.

Commands import what they need when they run, so that ``gpucost --help`` starts without pandas and SQL.
"""

from __future__ import annotations

import sys

try:
    from gpucost.cli.main import app, main
except ModuleNotFoundError as error:
    if (error.name or "gpucost").partition(".")[0] == "gpucost":
        raise
    _missing = error.name

    def main() -> None:
        """Entry point where what the command needs is not installed, as in the image of an exporter."""
        sys.exit(f"gpucost: {_missing} is not installed; this command needs gpucost[server]")


__all__ = ["app", "main"]
