"""The command line of gpucost.

What may live here: arguments, terminals, exit codes. What must not: anything that the service or the API
would have to repeat.

Begin with ``application``, which has all commands under their names. Commands import what they need when they
run, so that ``gpucost --help`` starts without pandas and SQL; this module imports nothing, so that Ctrl-C
works from the first import on.
"""

from __future__ import annotations

import atexit
import gc
import sys

# Hundreds of thousands of objects are made at the start, none of them garbage: to look for some as often as
# is usual would be a tenth of a small report.
_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100


def collect_seldom() -> None:
    """Let Python look for garbage as seldom as commands do."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def main() -> None:
    """Entry point of the scripts ``gpucost`` and ``kubectl-gpucost``. Ctrl-C during start-up ends it with
    130, without a message."""
    collect_seldom()
    # The end of the process frees all of it: Python need not look through it for garbage once more.
    atexit.register(gc.freeze)
    try:
        from gpucost.cli.terminal.exit_codes import ending_at_once

        with ending_at_once():
            from gpucost.cli.application import run
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        # As in the image of an exporter.
        if (error.name or "gpucost").partition(".")[0] == "gpucost":
            raise
        sys.exit(f"gpucost: {error.name} is not installed; this command needs gpucost[server]")
