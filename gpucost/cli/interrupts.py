"""Ends that are asked for: as Ctrl-C, so that what was begun is tidied up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ASKED = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """In this block SIGTERM and the end of the terminal raise KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = {each: signal.signal(each, _interrupt) for each in _ASKED}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
