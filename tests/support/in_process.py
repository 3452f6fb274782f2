"""Console commands of the exporters in this process: what they print and their exit status, without a start.

For what ends at once: help, versions, and settings that are refused. Signals and the log are as before
afterwards. (Commands of ``gpucost`` are called by typer's own runner.)
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def ended(
    main: Callable[[Sequence[str]], None], arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The result of ``main``, as that of a process with this environment."""
    printed, said = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            redirect_stdout(printed),
            redirect_stderr(said),
        ):
            main(arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess([sys.argv[0], *arguments], status, printed.getvalue(), said.getvalue())
